"""A target as a density of vectors, and what is computed for many of them."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from steingp.data import Batch
from steingp.precision import float64, to_numpy
from steingp.priors import Particle
from steingp.targets import Collapsed, Target
from steingp.targets.sites import Sites
from steingp.threads import EachOnThreads, num_cores

_PAIRS = 64
"""Pairs of draws of f that estimate a draw's weight."""
_WEIGHED_AT_ONCE, _BLOCK = 25, 250


class Flat(eqx.Module):
    """A target of a vector instead of a dictionary."""

    target: Target

    def __call__(self, z: Array, data: Batch) -> Array:
        return self.target(self.unravel(z), data)

    def unravel(self, z: Array) -> Particle:
        free = self.target.specification.hyperparameters.free
        return ravel_pytree({p.name: jnp.zeros(p.shape) for p in free})[1](z)

    def constrain(self, z: Array) -> Particle:
        return self.target.constrain(self.unravel(z))


def _blocks(rows: np.ndarray) -> Iterator[Array]:
    """The rows, 250 at a time, the last filled up: one shape to compile."""
    missing = -len(rows) % _BLOCK
    filled = np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
    for first in range(0, len(filled), _BLOCK):
        yield jnp.asarray(filled[first : first + _BLOCK])


@float64
def constrain(density: Flat, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Constrained particles of positions (S, d)."""
    parts = [
        to_numpy(_constrain_compiled(density, block)) for block in _blocks(positions)
    ]
    joined = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    return {name: array[: len(positions)] for name, array in joined.items()}


@eqx.filter_jit
def _constrain_compiled(density: Flat, positions: Array) -> Particle:
    return jax.vmap(density.constrain)(positions)


@float64
@eqx.filter_jit
def solve_inner(density: Flat, position: Array, data: Batch) -> tuple[Sites, Array]:
    """The sites of q(f | theta) at one position, and how far they are from their limit."""
    assert isinstance(density.target, Collapsed)
    found = density.target.solution(density.constrain(position), data)
    return found.sites, found.to_go


@float64
def log_errors(
    density: Flat, positions: np.ndarray, seed: int, data: Batch
) -> np.ndarray:
    """log of p(y | theta) over its approximation, estimated, for positions (S, d)."""
    numbered = np.column_stack([positions, np.arange(len(positions))])
    given = (data, jax.random.key_data(jax.random.key(seed)))
    if jax.default_backend() == "cpu":
        weigh = EachOnThreads(density, given, _BLOCK, num_cores(), _weighed)
        errors = [weigh(block) for block in _blocks(numbered)]
    else:
        errors = [
            np.asarray(_log_errors_compiled(density, given, block))
            for block in _blocks(numbered)
        ]
    return np.concatenate(errors)[: len(positions)]


def _weighed(density: Flat, given: Any) -> Callable[[Array, Any], Array]:
    """The error at a position with its number behind, which its randomness is of."""
    data, key_data = given
    assert isinstance(density.target, Collapsed)
    target = density.target

    def one(numbered: Array, _: Any) -> Array:
        position, number = numbered[:-1], numbered[-1].astype(int)
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), number)
        return target.log_error(density.constrain(position), data, key, _PAIRS)

    return one


@eqx.filter_jit
def _log_errors_compiled(density: Flat, given: Any, numbered: Array) -> Array:
    one = _weighed(density, given)
    return jax.lax.map(
        lambda row: one(row, None), numbered, batch_size=_WEIGHED_AT_ONCE
    )

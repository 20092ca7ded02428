"""A target as a density of vectors, and what is computed for many of them."""

from collections.abc import Iterator

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
from steingp.targets.collapsed import Sites

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
    """The sites of q(f | theta) at one position, and how far the last iteration went."""
    assert isinstance(density.target, Collapsed)
    found = density.target.solution(density.constrain(position), data)
    return found.sites, found.change


@float64
def log_errors(
    density: Flat, positions: np.ndarray, seed: int, data: Batch
) -> np.ndarray:
    """log of p(y | theta) over its approximation, estimated, for positions (S, d)."""
    key = jax.random.key(seed)
    errors = [
        np.asarray(
            _log_errors_compiled(density, block, jax.random.fold_in(key, i), data)
        )
        for i, block in enumerate(_blocks(positions))
    ]
    return np.concatenate(errors)[: len(positions)]


@eqx.filter_jit
def _log_errors_compiled(
    density: Flat, positions: Array, key: Array, data: Batch
) -> Array:
    assert isinstance(density.target, Collapsed)
    target = density.target

    def one(pair: tuple[Array, Array]) -> Array:
        position, key = pair
        return target.log_error(density.constrain(position), data, key, _PAIRS)

    keys = jax.random.split(key, len(positions))
    return jax.lax.map(one, (positions, keys), batch_size=_WEIGHED_AT_ONCE)

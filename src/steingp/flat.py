"""A target as a density of vectors, and what is computed for many of them."""

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
_WEIGHED_AT_ONCE = 25


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


def _filled_up(rows: np.ndarray) -> Array:
    """More rows, copies of the last, up to a multiple of 250: few shapes to compile."""
    missing = -len(rows) % 250
    return jnp.asarray(np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]))


@float64
def constrain(density: Flat, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Constrained particles of positions (S, d)."""
    particles = to_numpy(_constrain_compiled(density, _filled_up(positions)))
    return {name: array[: len(positions)] for name, array in particles.items()}


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
    density: Flat, positions: np.ndarray, seed: Array, data: Batch
) -> np.ndarray:
    """log of p(y | theta) over its approximation, estimated, for positions (S, d)."""
    errors = _log_errors_compiled(density, _filled_up(positions), seed, data)
    return np.array(errors)[: len(positions)]


@eqx.filter_jit
def _log_errors_compiled(
    density: Flat, positions: Array, seed: Array, data: Batch
) -> Array:
    assert isinstance(density.target, Collapsed)
    target = density.target

    def one(pair: tuple[Array, Array]) -> Array:
        position, key = pair
        return target.log_error(density.constrain(position), data, key, _PAIRS)

    keys = jax.random.split(jax.random.key(seed), len(positions))
    return jax.lax.map(one, (positions, keys), batch_size=_WEIGHED_AT_ONCE)

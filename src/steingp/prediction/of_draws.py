"""From draws of the hyperparameters to f at test points, N(mean, variance) for each."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steingp.data import Batch
from steingp.precision import float64
from steingp.targets import Target, joint, marginals

WORKING_FLOATS = 2**27
"""About how many numbers may be alive at once while predicting (1 GiB)."""

Particles = Mapping[str, Any]
"""Name -> constrained array, draws along the leading axis."""


def num_draws(particles: Particles) -> int:
    return len(next(iter(particles.values())))


@eqx.filter_jit
def _condition(target: Target, particles: Particles, data: Batch) -> Any:
    return jax.vmap(lambda theta: target.condition(theta, data))(particles)


@eqx.filter_jit
def _marginals(target: Target, particles: Particles, known: Any, X: Array) -> Any:
    def one(theta: Any, known: Any) -> tuple[Array, Array]:
        return marginals(target.specification.at(theta), known, X)

    return jax.vmap(one)(particles, known)


@eqx.filter_jit
def joint_of_draw(
    target: Target, theta: Any, data: Batch, X: Array
) -> tuple[Array, Array]:
    """Mean and covariance of f over all rows of X, given one particle."""
    known = target.condition(theta, data)
    return joint(target.specification.at(theta), known, X)


@float64
def predict_marginals(
    target: Target,
    particles: Particles,
    data: Batch,
    X: np.ndarray,
    batch_size: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f for every draw and row of X, each (draws, rows).

    Works through groups of draws and blocks of rows so that memory stays bounded; each
    draw's covariance is factorised once. The result does not depend on the blocks.

    Args:
        batch_size: rows of X at a time; chosen by memory if None.
    """
    draws, rows = num_draws(particles), len(X)
    size = target.matrix_size(len(data.y))
    block = min(rows, batch_size or max(256, WORKING_FLOATS // (8 * size)))
    group = int(np.clip(WORKING_FLOATS // (size * (3 * size + 4 * block)), 1, draws))
    means, variances = np.empty((draws, rows)), np.empty((draws, rows))
    data = Batch(*(jnp.asarray(column) for column in data))
    for first in range(0, draws, group):
        chosen = np.minimum(np.arange(first, first + group), draws - 1)
        some = {name: jnp.asarray(value[chosen]) for name, value in particles.items()}
        known = _condition(target, some, data)
        kept = min(group, draws - first)
        for start in range(0, rows, block):
            index = np.minimum(np.arange(start, start + block), rows - 1)
            mean, variance = _marginals(target, some, known, jnp.asarray(X[index]))
            piece = (slice(first, first + kept), slice(start, start + block))
            width = min(block, rows - start)
            means[piece] = np.asarray(mean)[:kept, :width]
            variances[piece] = np.asarray(variance)[:kept, :width]
    return means, variances

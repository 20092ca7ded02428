"""Gaussian likelihoods: f integrated out exactly, or by the Titsias bound."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.data import Batch
from steingp.likelihoods import Gaussian
from steingp.linalg import (
    DEFAULT_JITTER,
    add_diagonal,
    cholesky,
    gaussian_log_density,
    inverse_lower,
    log_normaliser,
    solve_lower,
    whiten,
)
from steingp.priors import Particle
from steingp.targets.base import Conditional, Model, Specification, Target

NOISE_FLOOR = 1e-10
"""Of a sparse model's noise variance, by which sums over rows are divided."""


class Marginal(Target):
    """A Gaussian likelihood with f integrated out: log N(y; m, K + noise)."""

    specification: Specification
    jitter: float = DEFAULT_JITTER
    num_latents: int = eqx.field(default=0, static=True)

    def covariance(self, theta: Particle, data: Batch) -> Array:
        model = self.specification.at(theta)
        assert isinstance(model.likelihood, Gaussian)
        return add_diagonal(
            model.kernel.gram(data.X), model.likelihood.variance + data.row
        )

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        model = self.specification.at(theta)
        # whoever wrote the kernel, the matrix is in the precision of the data
        dtype = jnp.asarray(batch.y).dtype
        residual = (batch.y - model.mean.of(batch.X)).astype(dtype)
        K = self.covariance(theta, batch).astype(dtype)
        return gaussian_log_density(residual, K, self.jitter)

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        model = self.specification.at(theta)
        L = cholesky(self.covariance(theta, data), self.jitter)
        residual = data.y - model.mean.of(data.X)
        return Conditional(data.X, L, solve_lower(L, residual))

    def leave_one_out(self, theta: Particle, data: Batch) -> Array:
        # with P = (K + noise)^-1, y_i given the rest is N(y_i - (P r)_i / P_ii, 1 / P_ii)
        model = self.specification.at(theta)
        L_inverse = inverse_lower(cholesky(self.covariance(theta, data), self.jitter))
        pull = L_inverse.T @ (L_inverse @ (data.y - model.mean.of(data.X)))
        return _log_left_out(pull, jnp.sum(L_inverse**2, axis=0))


def _log_left_out(pull: Array, precision: Array) -> Array:
    """log N(y_i; ...) from P (y - m) and the diagonal of P, the inverse covariance."""
    return 0.5 * (jnp.log(precision / (2.0 * np.pi)) - pull**2 / precision)


class _Sums(NamedTuple):
    """What the bound needs of the data: sums over rows, so rows may come in blocks.

    With a_i = Lz^-1 k(Z, x_i), noise l_i, residual r_i and d_i the variance of f(x_i)
    that the inducing points leave open.
    """

    precision: Float[Array, "M M"]
    """sum of a a' / l"""
    shift: Float[Array, " M"]
    """sum of a r / l"""
    scalar: Float[Array, ""]
    """sum of log(2 pi l) + r^2 / l + d / l"""


class Titsias(Target):
    """A Gaussian likelihood with u at inducing points integrated out (Titsias 2009).

    log N(y; m, Q + noise) - 1/2 sum of d_i / noise_i: the best bound that a Gaussian
    q(u | theta) gives. White noise of the kernel counts as noise. theta follows p(theta)
    exp(bound), which is p(theta | y) as the inducing points fill up.
    """

    specification: Specification
    Z: Any  # (M, D)
    jitter: float = DEFAULT_JITTER
    num_latents: int = eqx.field(default=0, static=True)
    block_rows: int | None = eqx.field(default=None, static=True)
    """Rows at a time, where all of them would not fit into memory."""

    def matrix_size(self, num_rows: int) -> int:
        del num_rows
        return len(self.Z)

    def sums(self, theta: Particle, batch: Batch) -> _Sums:
        """The sums over the rows of a batch; those of several batches add up."""
        model = self.specification.at(theta)
        A, noise, rest = self._rows(model, batch)
        residual = batch.y - model.mean.of(batch.X)
        weight = batch.mask / noise
        scalar = batch.mask * jnp.log(2.0 * np.pi * noise)
        scalar = jnp.sum(scalar + weight * (residual * residual + rest))
        return _Sums((A * weight[None, :]) @ A.T, A @ (weight * residual), scalar)

    def _rows(self, model: Model, batch: Batch) -> tuple[Array, Array, Array]:
        """a_i (M, N), noise l_i and rest d_i of every row."""
        assert isinstance(model.likelihood, Gaussian)
        points = self._points
        K = model.kernel.cross(points, points)
        A = whiten(K, model.kernel.cross(points, batch.X), self.jitter)
        smooth = jax.vmap(lambda x: model.kernel.cross(x[None], x[None])[0, 0])(batch.X)
        white = model.kernel.diag(batch.X) - smooth
        noise = model.likelihood.variance + batch.row + white
        rest = jnp.maximum(smooth - jnp.sum(A * A, axis=0), 0.0)
        return A, jnp.maximum(noise, NOISE_FLOOR), rest

    def bound(self, sums: _Sums) -> Float[Array, ""]:
        """The bound, from the sums over all rows."""
        precision = add_diagonal(sums.precision, 1.0)
        return log_normaliser(sums.shift, precision) - 0.5 * sums.scalar

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        return self.bound(self.all_sums(theta, batch))

    def leave_one_out(self, theta: Particle, data: Batch) -> Array:
        """Under the covariance Q + rest + noise, whose inverse has a closed form."""
        model = self.specification.at(theta)
        A, noise, rest = self._rows(model, data)
        weight = 1.0 / (noise + rest)
        L = cholesky(add_diagonal((A * weight[None, :]) @ A.T, 1.0), 0.0)
        half = solve_lower(L, A * weight[None, :])
        residual = data.y - model.mean.of(data.X)
        pull = weight * residual - half.T @ (half @ residual)
        return _log_left_out(pull, weight - jnp.sum(half**2, axis=0))

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        return self.condition_on(theta, self.all_sums(theta, data))

    def condition_on(self, theta: Particle, sums: _Sums) -> Conditional:
        """f's law, from the sums over all rows."""
        model = self.specification.at(theta)
        L = cholesky(add_diagonal(sums.precision, 1.0), 0.0)
        root = inverse_lower(L).T
        white = root @ (root.T @ sums.shift)
        return Conditional(self._points, self._factor(model), white, root)

    @property
    def _points(self) -> Array:
        return jnp.asarray(self.Z)

    def covariance(self, theta: Particle, data: Batch) -> Array:
        del data
        return self.specification.at(theta).kernel.cross(self._points, self._points)

    def _factor(self, model: Model) -> Array:
        return cholesky(model.kernel.cross(self._points, self._points), self.jitter)

    def all_sums(self, theta: Particle, batch: Batch) -> _Sums:
        """The sums over all rows, a block of them in memory at a time."""
        rows = len(batch.y)
        if self.block_rows is None or self.block_rows >= rows:
            return self.sums(theta, batch)
        blocks = in_blocks(batch, self.block_rows)

        # memory holds one block: backwards, its part is computed again
        @jax.checkpoint
        def add(total: _Sums, block: Batch) -> tuple[_Sums, None]:
            return jax.tree.map(jnp.add, total, self.sums(theta, block)), None

        return jax.lax.scan(add, self.zero_sums(), blocks)[0]

    def zero_sums(self) -> _Sums:
        """The sums over no rows."""
        size = len(self.Z)
        return _Sums(jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(()))


def in_blocks(batch: Batch, size: int) -> Batch:
    """The rows in blocks (blocks, size, ...); rows that fill up the last are masked."""
    missing = -len(batch.y) % size

    def split(column: Array) -> Array:
        filled = jnp.concatenate([column, jnp.repeat(column[-1:], missing, axis=0)])
        return filled.reshape(-1, size, *column.shape[1:])

    X, y, row, mask = (jnp.asarray(column) for column in batch)
    mask = jnp.concatenate([mask, jnp.zeros(missing, mask.dtype)]).reshape(-1, size)
    return Batch(split(X), split(y), split(row), mask)

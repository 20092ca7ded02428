"""Minibatches: every theta with a q(u) of its own, moved by natural gradients."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jaxtyping import Float

from steingp.data import Batch, count_rows
from steingp.likelihoods import Gaussian
from steingp.linalg import (
    DEFAULT_JITTER,
    add_diagonal,
    cholesky,
    inverse_factor,
    whiten,
)
from steingp.priors import Particle
from steingp.targets.base import Conditional, Model, Specification, Target

Q_MEAN, Q_ROOT = "q.mean", "q.root"
"""Names, in a particle, of the mean of whitened q(u) and a root of its covariance."""


class Natural(NamedTuple):
    """q(v) = N(P^-1 b, P^-1), v = L^-1 u: the whitened values at the inducing points."""

    precision: Float[Array, "M M"]
    shift: Float[Array, " M"]

    @staticmethod
    def of_prior(size: int) -> "Natural":
        return Natural(jnp.eye(size), jnp.zeros(size))

    def moments(self) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
        """The mean, and a root of the covariance."""
        root = inverse_factor(self.precision).T
        return root @ (root.T @ self.shift), root


class _Rows(NamedTuple):
    """Rows under q(u)."""

    white: Float[Array, "M N"]
    """L^-1 k(Z, x_i)"""
    mean: Float[Array, " N"]
    """Of f_i, and its variance:"""
    variance: Float[Array, " N"]


class Variational(Target):
    """Any likelihood by inducing points, in batches: p(theta) exp(ELBO(theta, q_theta)).

    N / |batch| sum over the batch of E_q log p(y | f) - KL(q(u) || p(u)), an unbiased
    estimate of the bound that is right for theta only where q has converged.
    """

    specification: Specification
    Z: Any  # (M, D)
    num_data: float
    jitter: float = DEFAULT_JITTER
    num_latents: int = eqx.field(default=0, static=True)

    def matrix_size(self, num_rows: int) -> int:
        del num_rows
        return len(self.Z)

    def covariance(self, theta: Particle, data: Batch) -> Array:
        del data
        points = jnp.asarray(self.Z)
        return self.specification.at(theta).kernel.cross(points, points)

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        """The bound with the q that the particle carries."""
        mean, root = theta[Q_MEAN], theta[Q_ROOT]
        half_log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root))))
        divergence = 0.5 * (jnp.sum(root**2) + mean @ mean - len(mean)) - half_log_det
        model = self.specification.at(theta)
        rows = self._rows(model, mean, root, batch)
        return self._expected(model, rows, batch) - divergence

    def bound(self, theta: Particle, q: Natural, batch: Batch) -> tuple[Array, Natural]:
        """The bound's part that depends on theta, and the q that this batch asks for.

        The latter is the full step of natural gradients: rows as sites of a Gaussian.
        """
        mean, root = stop_gradient(q.moments())
        model = self.specification.at(theta)
        rows = self._rows(model, mean, root, batch)
        asked = self._asked(model, rows, mean, batch)
        return self._expected(model, rows, batch), stop_gradient(asked)

    def stepped(
        self, theta: Particle, q: Natural, batch: Batch, rate: Float[Array, ""]
    ) -> tuple[Array, Natural]:
        """q after a natural step of some `rate`, and the bound's part under that q."""
        model = self.specification.at(theta)
        A, rest = self._white(model, batch)
        mean = jnp.zeros_like(q.shift)
        before = _Rows(A, model.mean.of(batch.X), rest)
        if not self.exact_noise():  # else what a batch asks for is the same under any q
            mean, root = q.moments()
            before = self._under(model, A, rest, mean, root, batch)
        asked = self._asked(model, before, mean, batch)
        new = stop_gradient(
            jax.tree.map(lambda old, new: old + rate * (new - old), q, asked)
        )
        mean, root = stop_gradient(new.moments())
        rows = self._under(model, A, rest, mean, root, batch)
        return self._expected(model, rows, batch), new

    def _rows(self, model: Model, mean: Array, root: Array, batch: Batch) -> _Rows:
        A, rest = self._white(model, batch)
        return self._under(model, A, rest, mean, root, batch)

    def _white(self, model: Model, batch: Batch) -> tuple[Array, Array]:
        """L^-1 k(Z, x_i), and the variance of f_i that u leaves open."""
        points = jnp.asarray(self.Z)
        K = model.kernel.cross(points, points)
        A = whiten(K, model.kernel.cross(points, batch.X), self.jitter)
        rest = jnp.maximum(model.kernel.diag(batch.X) - jnp.sum(A * A, axis=0), 0.0)
        return A, rest

    def _under(
        self,
        model: Model,
        A: Array,
        rest: Array,
        mean: Array,
        root: Array,
        batch: Batch,
    ) -> _Rows:
        """Rows under a q with this mean and this root of its covariance."""
        variance = rest + jnp.sum((root.T @ A) ** 2, axis=0)
        return _Rows(A, model.mean.of(batch.X) + A.T @ mean, variance)

    def _scale(self, batch: Batch) -> Array:
        return self.num_data / count_rows(batch)

    def _expected(self, model: Model, rows: _Rows, batch: Batch) -> Array:
        each = model.likelihood.expected_log_prob(
            batch.y, rows.mean, rows.variance, batch.row
        )
        return self._scale(batch) * jnp.sum(batch.mask * each)

    def _asked(self, model: Model, rows: _Rows, mean: Array, batch: Batch) -> Natural:
        A, f_mean, variance = rows

        def expected(m: Array, v: Array) -> Array:
            return model.likelihood.expected_log_prob(batch.y, m, v, batch.row)

        one = jnp.ones_like(f_mean)
        slope = jax.jvp(lambda m: expected(m, variance), (f_mean,), (one,))[1]
        tau = -2.0 * jax.jvp(lambda v: expected(f_mean, v), (variance,), (one,))[1]
        # a negative tau would make q wider than its prior, and one batch of many such
        # rows might leave the Gaussians
        tau = batch.mask * jnp.maximum(tau, 0.0)
        shift = batch.mask * slope + tau * (A.T @ mean)
        scale = self._scale(batch)
        return Natural(
            add_diagonal(scale * (A * tau[None, :]) @ A.T, 1.0), scale * (A @ shift)
        )

    def exact_noise(self) -> bool:
        """Whether what a batch asks for does not depend on q, as with Gaussian noise."""
        return isinstance(self.specification.likelihood, Gaussian)

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        L = cholesky(self.covariance(theta, data), self.jitter)
        return Conditional(jnp.asarray(self.Z), L, theta[Q_MEAN], theta[Q_ROOT])

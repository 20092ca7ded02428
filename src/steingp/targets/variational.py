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
    factorise,
    inverse_lower,
    solve_lower,
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
        return self._expected(theta, mean, root, batch) - divergence

    def bound(self, theta: Particle, q: Natural, batch: Batch) -> tuple[Array, Natural]:
        """The bound's part that depends on theta, and the q that this batch asks for.

        The latter is the full step of natural gradients: rows as sites of a Gaussian.
        """
        root = inverse_lower(factorise(q.precision)).T
        mean = root @ (root.T @ q.shift)
        mean, root = stop_gradient((mean, root))
        value = self._expected(theta, mean, root, batch)
        return value, stop_gradient(self._asked(theta, mean, root, batch))

    def _rows(
        self, model: Model, mean: Array, root: Array, batch: Batch
    ) -> tuple[Array, Array, Array]:
        """a_i = L^-1 k(Z, x_i), and mean and variance of f_i under q."""
        points = jnp.asarray(self.Z)
        L = cholesky(model.kernel.cross(points, points), self.jitter)
        A = solve_lower(L, model.kernel.cross(points, batch.X))
        rest = jnp.maximum(model.kernel.diag(batch.X) - jnp.sum(A * A, axis=0), 0.0)
        variance = rest + jnp.sum((root.T @ A) ** 2, axis=0)
        return A, model.mean.of(batch.X) + A.T @ mean, variance

    def _scale(self, batch: Batch) -> Array:
        return self.num_data / count_rows(batch)

    def _expected(
        self, theta: Particle, mean: Array, root: Array, batch: Batch
    ) -> Array:
        model = self.specification.at(theta)
        _, f_mean, variance = self._rows(model, mean, root, batch)
        rows = model.likelihood.expected_log_prob(batch.y, f_mean, variance, batch.row)
        return self._scale(batch) * jnp.sum(batch.mask * rows)

    def _asked(
        self, theta: Particle, mean: Array, root: Array, batch: Batch
    ) -> Natural:
        model = self.specification.at(theta)
        A, f_mean, variance = self._rows(model, mean, root, batch)

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

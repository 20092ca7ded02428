"""Targets whose particles carry latents beside theta, as in the paper."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from steingp.data import Batch, count_rows
from steingp.linalg import DEFAULT_JITTER, cholesky, colour
from steingp.priors import Particle
from steingp.targets.base import (
    LATENTS,
    Conditional,
    Specification,
    Target,
    marginals,
)


class Whitened(Target):
    """Any likelihood, latents f = m(X) + L nu at every row (section 4)."""

    specification: Specification
    num_latents: int = eqx.field(static=True)
    jitter: float = DEFAULT_JITTER

    def covariance(self, theta: Particle, data: Batch) -> Array:
        return self.specification.at(theta).kernel.gram(data.X)

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        model = self.specification.at(theta)
        away = colour(self.covariance(theta, batch), theta[LATENTS], self.jitter)
        f = model.mean.of(batch.X) + away
        return jnp.sum(model.likelihood.log_prob(batch.y, f, batch.row))

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        L = cholesky(self.covariance(theta, data), self.jitter)
        return Conditional(data.X, L, theta[LATENTS])


class Sparse(Target):
    """Latents u = L nu at inducing points Z; E_{p(f|u)} log p(y|f) per row.

    That expectation bounds log p(y | u) from below, so theta follows p(theta)
    exp(bound), not p(theta | y). With a batch of the rows it is scaled by N / |batch|,
    equation (9).
    """

    specification: Specification
    Z: Float[Array, "M D"]
    num_data: float
    jitter: float = DEFAULT_JITTER
    num_latents: int = eqx.field(kw_only=True, static=True)

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        model = self.specification.at(theta)
        known = self.condition(theta, batch)
        mean, variance = marginals(model, known, batch.X)
        rows = model.likelihood.expected_log_prob(batch.y, mean, variance, batch.row)
        return self.num_data / count_rows(batch) * jnp.sum(batch.mask * rows)

    def matrix_size(self, num_rows: int) -> int:
        del num_rows
        return self.num_latents

    def covariance(self, theta: Particle, data: Batch) -> Array:
        # u is f without White noise, which f(x) at x in Z has as well as elsewhere
        del data
        Z = jnp.asarray(self.Z)
        return self.specification.at(theta).kernel.cross(Z, Z)

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        L = cholesky(self.covariance(theta, data), self.jitter)
        return Conditional(jnp.asarray(self.Z), L, theta[LATENTS])

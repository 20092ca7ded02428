"""Targets: log p(lambda | X, y) of one particle, and f's law given that particle.

| target | lambda | likelihood | data in a step |
|---|---|---|---|
| `Marginal` | theta | Gaussian, f integrated out | all |
| `Whitened` | theta, nu (N,) with f = m + L nu | any | all |
| `Sparse` | theta, nu (M,) with u = L nu at Z | any | all, or a batch |

A particle is a dictionary name -> array: unconstrained `z` where it is moved,
constrained `theta` where it is read; the latents `nu ~ N(0, I)` are the same in both.
`vmap` makes many. A target is a pytree, so that compiled code is shared by all models
of one structure; the data travel beside it as a `Batch`.
"""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.data import Batch, count_rows
from steingp.kernels import Kernel
from steingp.likelihoods import Gaussian, Likelihood
from steingp.linalg import (
    DEFAULT_JITTER,
    add_diagonal,
    cholesky,
    gaussian_log_density,
    solve_lower,
)
from steingp.means import Mean
from steingp.priors import Component, Hyperparameters, Particle, assign

LATENTS = "nu"
"""The name of the whitened latents in a particle."""


class Model(NamedTuple):
    """A particle's kernel, mean and likelihood, with arrays in their slots."""

    kernel: Kernel
    mean: Mean
    likelihood: Likelihood


class Conditional(NamedTuple):
    """What a particle knows of f: f(x) = m(x) + k(x, P) L^-T w + N(0, rest).

    `points` P are the rows or the inducing points, `L` the factor of their covariance
    (with noise, where f is integrated out) and `white` is w.
    """

    points: Float[Array, "P D"]
    L: Float[Array, "P P"]
    white: Float[Array, " P"]


class Specification(eqx.Module):
    """What the user wrote, with its hyperparameters listed."""

    kernel: Kernel
    mean: Mean
    likelihood: Likelihood
    hyperparameters: Hyperparameters

    @staticmethod
    def bind(
        kernel: Kernel, mean: Mean, likelihood: Likelihood, num_inputs: int
    ) -> "Specification":
        parts: dict[str, Component] = {
            "kernel": kernel,
            "mean": mean,
            "likelihood": likelihood,
        }
        hyperparameters = Hyperparameters.bind(parts, num_inputs)
        return Specification(kernel, mean, likelihood, hyperparameters)

    def at(self, theta: Mapping[str, Array]) -> Model:
        """The model of one particle."""
        theta = self.hyperparameters.complete(theta)
        return Model(
            assign(self.kernel, theta, "kernel"),
            assign(self.mean, theta, "mean"),
            assign(self.likelihood, theta, "likelihood"),
        )


class Target(eqx.Module):
    """log p(lambda | X, y) up to a constant, and predictions of one particle."""

    specification: eqx.AbstractVar[Specification]
    num_latents: eqx.AbstractVar[int]

    @abc.abstractmethod
    def log_likelihood(self, theta: Particle, batch: Batch) -> Float[Array, ""]:
        """log p(y | theta, nu), or its bound."""

    @abc.abstractmethod
    def condition(self, theta: Particle, data: Batch) -> Conditional:
        """f's law given the particle (and, where f is integrated out, given y)."""

    def __call__(self, z: Particle, batch: Batch) -> Float[Array, ""]:
        """log p(y | lambda) + log p(lambda), of unconstrained z."""
        total = self.log_likelihood(self.constrain(z), batch)
        total = total + self.specification.hyperparameters.log_prior(z)
        if self.num_latents:
            total = total + jnp.sum(jax.scipy.stats.norm.logpdf(z[LATENTS]))
        return total

    def constrain(self, z: Mapping[str, Array]) -> Particle:
        """theta and nu from unconstrained values."""
        theta = self.specification.hyperparameters.constrain(z)
        return theta | ({LATENTS: z[LATENTS]} if self.num_latents else {})

    def unconstrain(self, theta: Mapping[str, Array]) -> Particle:
        """The inverse of `constrain`."""
        z = self.specification.hyperparameters.unconstrain(theta)
        return z | ({LATENTS: theta[LATENTS]} if self.num_latents else {})

    def check_particles(self, particles: Mapping[str, Any]) -> int:
        """How many constrained particles these are; refuse names or shapes not ours."""
        shapes: dict[str, tuple[int, ...]] = {
            p.name: p.shape for p in self.specification.hyperparameters.free
        }
        if self.num_latents:
            shapes[LATENTS] = (self.num_latents,)
        counts = set()
        for name, shape in shapes.items():
            got = np.shape(particles[name]) if name in particles else None
            if got is None or got[1:] != shape or not got:
                raise ValueError(
                    f"particles[{name!r}] must have shape (J, {', '.join(map(str, shape))})"
                    f"; got {got or 'nothing'}. Pass what SVGD.get_particles(), or "
                    "sample_prior, of this model gave."
                )
            counts.add(got[0])
        if len(counts) > 1:
            raise ValueError(f"particles have different numbers of draws: {counts}.")
        return counts.pop() if counts else 1

    def sample_prior(self, key: Array) -> Particle:
        """One constrained particle from the prior, q_0 of Algorithm 1."""
        theta_key, nu_key = jax.random.split(key)
        theta = self.specification.hyperparameters.sample(theta_key)
        if self.num_latents:
            theta[LATENTS] = jax.random.normal(nu_key, (self.num_latents,))
        return theta


class Marginal(Target):
    """A Gaussian likelihood with f integrated out: log N(y; m, K + noise)."""

    specification: Specification
    jitter: float = DEFAULT_JITTER
    num_latents: int = eqx.field(default=0, static=True)

    def _covariance(self, model: Model, data: Batch) -> Array:
        assert isinstance(model.likelihood, Gaussian)
        return add_diagonal(
            model.kernel.gram(data.X), model.likelihood.variance + data.row
        )

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        model = self.specification.at(theta)
        residual = batch.y - model.mean.of(batch.X)
        covariance = self._covariance(model, batch)
        return gaussian_log_density(residual, covariance, self.jitter)

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        model = self.specification.at(theta)
        L = cholesky(self._covariance(model, data), self.jitter)
        residual = data.y - model.mean.of(data.X)
        return Conditional(data.X, L, solve_lower(L, residual))


class Whitened(Target):
    """Any likelihood, latents f = m(X) + L nu at every row (section 4)."""

    specification: Specification
    num_latents: int = eqx.field(static=True)
    jitter: float = DEFAULT_JITTER

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        model = self.specification.at(theta)
        L = cholesky(model.kernel.gram(batch.X), self.jitter)
        f = model.mean.of(batch.X) + L @ theta[LATENTS]
        return jnp.sum(model.likelihood.log_prob(batch.y, f, batch.row))

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        model = self.specification.at(theta)
        L = cholesky(model.kernel.gram(data.X), self.jitter)
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

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        del data
        model = self.specification.at(theta)
        Z = jnp.asarray(self.Z)
        # u is f without White noise, which f(x) at x in Z has as well as elsewhere
        L = cholesky(model.kernel.cross(Z, Z), self.jitter)
        return Conditional(Z, L, theta[LATENTS])


def marginals(
    model: Model, known: Conditional, X: Float[Array, "S D"]
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Mean and variance of f at each row of X."""
    A = solve_lower(known.L, model.kernel.cross(known.points, X))
    variance = model.kernel.diag(X) - jnp.sum(A * A, axis=0)
    return model.mean.of(X) + A.T @ known.white, jnp.maximum(variance, 0.0)


def joint(
    model: Model, known: Conditional, X: Float[Array, "S D"]
) -> tuple[Float[Array, " S"], Float[Array, "S S"]]:
    """Mean and full covariance of f over the rows of X."""
    A = solve_lower(known.L, model.kernel.cross(known.points, X))
    return model.mean.of(X) + A.T @ known.white, model.kernel.gram(X) - A.T @ A

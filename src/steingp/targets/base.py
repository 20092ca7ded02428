"""The interface of a target: log p(lambda | X, y) of one particle, and f given it."""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.data import Batch
from steingp.kernels import Kernel
from steingp.likelihoods import Likelihood
from steingp.linalg import solve_lower
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
    """What a particle knows of f: f(x) = m(x) + k(x, P) L^-T v + N(0, rest).

    `points` P are the rows or the inducing points, `L` is the factor of their covariance
    (with noise, where f is integrated out), and v ~ N(white, root root'). Without a root,
    v is known to be `white`.
    """

    points: Float[Array, "P D"]
    L: Float[Array, "P P"]
    white: Float[Array, " P"]
    root: Float[Array, "P P"] | None = None


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
    jitter: eqx.AbstractVar[float]

    @abc.abstractmethod
    def log_likelihood(self, theta: Particle, batch: Batch) -> Float[Array, ""]:
        """log p(y | theta, nu), or its bound."""

    @abc.abstractmethod
    def condition(self, theta: Particle, data: Batch) -> Conditional:
        """f's law given the particle (and, where f is integrated out, given y)."""

    @abc.abstractmethod
    def covariance(self, theta: Particle, data: Batch) -> Float[Array, "P P"]:
        """The matrix that is factorised for a particle, without its jitter."""

    def leave_one_out(self, theta: Particle, data: Batch) -> Float[Array, " N"]:
        """log p(y_i | all other rows, theta), without a new factorisation for each.

        Raises:
            NotImplementedError: where f is not integrated out on all rows.
        """
        raise NotImplementedError

    def __call__(self, z: Particle, batch: Batch) -> Float[Array, ""]:
        """log p(y | lambda) + log p(lambda), of unconstrained z."""
        total = self.log_likelihood(self.constrain(z), batch)
        total = total + self.specification.hyperparameters.log_prior(z)
        if self.num_latents:
            total = total + jnp.sum(jax.scipy.stats.norm.logpdf(z[LATENTS]))
        return total

    def matrix_size(self, num_rows: int) -> int:
        """Rows of the matrix that is factorised for a particle; `num_rows` are data."""
        return num_rows

    def normalised(self) -> Self:
        """The same target of z in which every prior is standard normal."""
        hyperparameters = self.specification.hyperparameters.normalised()
        return eqx.tree_at(
            lambda t: t.specification.hyperparameters, self, hyperparameters
        )

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


def marginals(
    model: Model, known: Conditional, X: Float[Array, "S D"]
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Mean and variance of f at each row of X."""
    A = solve_lower(known.L, model.kernel.cross(known.points, X))
    variance = model.kernel.diag(X) - jnp.sum(A * A, axis=0)
    variance = jnp.maximum(variance, 0.0)
    if known.root is not None:
        variance = variance + jnp.sum((known.root.T @ A) ** 2, axis=0)
    return model.mean.of(X) + A.T @ known.white, variance


def joint(
    model: Model, known: Conditional, X: Float[Array, "S D"]
) -> tuple[Float[Array, " S"], Float[Array, "S S"]]:
    """Mean and full covariance of f over the rows of X."""
    A = solve_lower(known.L, model.kernel.cross(known.points, X))
    covariance = model.kernel.gram(X) - A.T @ A
    if known.root is not None:
        spread = known.root.T @ A
        covariance = covariance + spread.T @ spread
    return model.mean.of(X) + A.T @ known.white, covariance

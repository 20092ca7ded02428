"""Observations on the whole real line: f plus noise."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import erf, gammaln, logsumexp, ndtr

from steingp.likelihoods.base import Likelihood, convert_row, refuse_rows
from steingp.likelihoods.quadrature import gaussian_expectation, span
from steingp.priors import Slot, fixed, positive

_LOG_2PI = float(np.log(2.0 * np.pi))

NUM_MIXTURE = 200
"""Nodes in log g for Student's t as a mixture of Gaussians with precisions g."""


def _log_normal(residual: Array, variance: Array) -> Array:
    """log N(residual; 0, variance)."""
    return -0.5 * (residual * residual / variance + jnp.log(variance) + _LOG_2PI)


def _check_real(y: np.ndarray) -> None:
    refuse_rows(y, np.isfinite(y), "finite numbers", "Drop or impute such rows.")


class Gaussian(Likelihood):
    """y_i ~ N(f_i, variance + known_variance_i).

    Args:
        variance: the unknown part of the noise, the same for all rows. Pass
            variance=fixed(0.0) if the known noise is all there is.
        known_variance: the known part, one number per row (or one for all): squared
            standard errors of the measurements, for instance.

    Example:
        >>> from steingp import fixed, likelihoods
        >>> noise = likelihoods.Gaussian(fixed(0.0), known_variance=[0.1, 0.4])
        >>> noise.row_values
        array([0.1, 0.4])
        >>> likelihoods.Gaussian(0.5).predictive_variance(0.0, 1.0, 0.0)
        np.float64(1.5)
    """

    variance: Slot = positive(1.0, zero_allowed=True)
    known_variance: Any = eqx.field(default=None, converter=convert_row)

    is_discrete: ClassVar[bool] = False
    real_valued: ClassVar[bool] = True
    row_name: ClassVar[str | None] = "known_variance"
    row_neutral: ClassVar[float] = 0.0
    log_concave: ClassVar[bool] = True

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        return _log_normal(y - f, self.variance + row)

    def conditional_mean(self, f: Array, row: Array) -> Array:
        del row
        return f

    def conditional_variance(self, f: Array, row: Array) -> Array:
        return self.variance + row + jnp.zeros_like(f)

    def conditional_cdf(self, y: Array, f: Array, row: Array) -> Array:
        return ndtr((y - f) / jnp.sqrt(self.variance + row))

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        white = jax.random.normal(key, jnp.shape(f), f.dtype)
        return f + jnp.sqrt(self.variance + row) * white

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        noise = self.variance + row
        return _log_normal(y - mean, noise) - 0.5 * variance / noise

    def predictive_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return _log_normal(y - mean, variance + self.variance + row)

    def predictive_mean(self, mean: Array, variance: Array, row: Array) -> Array:
        del variance, row
        return mean

    def predictive_variance(self, mean: Array, variance: Array, row: Array) -> Array:
        del mean
        return variance + self.variance + row

    def predictive_cdf(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return ndtr((y - mean) / jnp.sqrt(variance + self.variance + row))

    def check_targets(self, y: np.ndarray) -> None:
        _check_real(y)


class StudentT(Likelihood):
    """y = f + scale * t, t with Student's density and `df` degrees of freedom.

    p(y | f) is proportional to (1 + (y - f)^2 / (df scale^2))^(-(df + 1) / 2): outliers
    cost little. `scale` is not the standard deviation, which is scale * sqrt(df / (df -
    2)), and infinite for df <= 2; the mean exists for df > 1 and is NaN otherwise.

    Args:
        scale: the width of the noise.
        df: 3 and fixed unless given; a number gets the prior Gamma(2, 0.1).

    Example:
        >>> from steingp import likelihoods
        >>> noise = likelihoods.StudentT(scale=1.0, df=4.0)
        >>> f"{noise.conditional_variance(0.0, 0.0):.1f}"
        '2.0'
    """

    scale: Slot = positive(1.0)
    df: Slot = positive(fixed(3.0), prior=lambda: dist.Gamma(2.0, 0.1))

    is_discrete: ClassVar[bool] = False
    real_valued: ClassVar[bool] = True
    row_name: ClassVar[str | None] = None
    row_neutral: ClassVar[float] = 0.0

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        del row
        half = 0.5 * (self.df + 1.0)
        constant = gammaln(half) - gammaln(0.5 * self.df) - jnp.log(self.scale)
        constant = constant - 0.5 * jnp.log(np.pi * self.df)
        return constant - half * jnp.log1p(((y - f) / self.scale) ** 2 / self.df)

    def conditional_mean(self, f: Array, row: Array) -> Array:
        return self.predictive_mean(f, jnp.zeros_like(f), row)

    def conditional_variance(self, f: Array, row: Array) -> Array:
        return self.predictive_variance(f, jnp.zeros_like(f), row)

    def conditional_cdf(self, y: Array, f: Array, row: Array) -> Array:
        return self.predictive_cdf(y, f, jnp.zeros_like(f), row)

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        del row
        return f + self.scale * jax.random.t(key, self.df, jnp.shape(f), f.dtype)

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return gaussian_expectation(lambda f: self.log_prob(y, f, row), mean, variance)

    def predictive_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        del row
        log_weights, total = self._mixture(y - mean, variance)
        return logsumexp(log_weights + _log_normal((y - mean)[None], total), axis=0)

    def predictive_mean(self, mean: Array, variance: Array, row: Array) -> Array:
        del variance, row
        return jnp.where(self.df > 1.0, mean, jnp.nan)

    def predictive_variance(self, mean: Array, variance: Array, row: Array) -> Array:
        del mean, row
        finite = self.df > 2.0
        ratio = self.df / jnp.where(finite, self.df - 2.0, 1.0)
        return jnp.where(finite, variance + self.scale**2 * ratio, jnp.inf)

    def predictive_cdf(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        del row
        log_weights, total = self._mixture(y - mean, variance)
        # Phi(z) = 1/2 + 1/2 erf(z / sqrt 2), and erf vanishes with g: a shorter tail
        halves = erf((y - mean)[None] / jnp.sqrt(2.0 * total))
        return 0.5 + 0.5 * jnp.sum(jnp.exp(log_weights) * halves, axis=0)

    def check_targets(self, y: np.ndarray) -> None:
        _check_real(y)

    def _mixture(self, residual: Array, variance: Array) -> tuple[Array, Array]:
        """y - mean as a mixture of Gaussians: log weights and variances, nodes leading.

        t = N(0, scale^2 / g) with g ~ Gamma(df/2, rate df/2), so that y - mean given g
        is N(0, variance + scale^2 / g). The trapezoid rule in x = log g converges
        exponentially. p(x) has its mode at 0; an outlier moves it left, by no more than
        log(1 + residual^2 / (scale^2 df)), a small residual right, by no more than
        log(1 + 1 / df). Two modes are possible, so all between is covered.
        """
        a = 0.5 * self.df

        def log_density(x: Array) -> Array:
            return a * (x - jnp.exp(x))

        low, high = span(log_density, jnp.zeros_like(a))
        low = low - jnp.log1p((residual / self.scale) ** 2 / self.df)
        high = high + jnp.log1p(1.0 / self.df)
        low, high = jax.lax.stop_gradient((low, high))
        step = (high - low) / (NUM_MIXTURE - 1)
        x = jax.vmap(lambda k: low + step * k)(jnp.arange(NUM_MIXTURE, dtype=low.dtype))
        constant = a * jnp.log(a) - gammaln(a)
        log_weights = constant + log_density(x) + jnp.log(step)[None]
        return log_weights, variance[None] + self.scale**2 * jnp.exp(-x)

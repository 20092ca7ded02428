"""Counts and positive numbers, whose mean is exp(f) times a factor."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import betainc, gammainc, gammaincc, gammaln, xlogy

from steingp.likelihoods.base import Likelihood, convert_row, refuse_rows
from steingp.likelihoods.quadrature import (
    Elementwise,
    gaussian_expectation,
    log_gaussian_integral,
    probability_below,
)
from steingp.priors import Slot, positive


class LogLink(Likelihood):
    """E[y | f] = c exp(f) and Var[y | f] = a E + b E^2, with log p(y | f) concave in f.

    Then exp(f) is lognormal under N(mean, variance) and the moments of y are closed.
    For its cdf each of these has a threshold T, independent of f, with Y <= y exactly
    where f <= T: Y = 0 in a Poisson process of rate exp(f), for one, where the first
    event, at the time E ~ Exponential(1) over exp(f), comes after 1, so T = log E.
    """

    log_concave: ClassVar[bool] = True

    @abc.abstractmethod
    def _unit_mean(self, row: Array) -> Array:
        """c: the mean of y at f = 0."""

    @abc.abstractmethod
    def _variance_terms(self) -> tuple[float, Array | float]:
        """a and b."""

    @abc.abstractmethod
    def _cdf(self, y: Array, f: Array, row: Array) -> Array:
        """P(Y <= y | f) for y in the support."""

    @abc.abstractmethod
    def _threshold(self, y: Array, row: Array) -> tuple[Elementwise, Array]:
        """The log density of T, which is log of -d/df P(Y <= y | f), and its mode."""

    def conditional_mean(self, f: Array, row: Array) -> Array:
        return self._unit_mean(row) * jnp.exp(f)

    def conditional_variance(self, f: Array, row: Array) -> Array:
        return self.predictive_variance(f, jnp.zeros_like(f), row)

    def conditional_cdf(self, y: Array, f: Array, row: Array) -> Array:
        inside, y = self._support(y)
        return jnp.where(inside, self._cdf(y, f, row), 0.0)

    def predictive_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return log_gaussian_integral(lambda f: self.log_prob(y, f, row), mean, variance)

    def predictive_mean(self, mean: Array, variance: Array, row: Array) -> Array:
        return self._unit_mean(row) * jnp.exp(mean + 0.5 * variance)

    def predictive_variance(self, mean: Array, variance: Array, row: Array) -> Array:
        a, b = self._variance_terms()
        m = self.predictive_mean(mean, variance, row)
        return a * m + m * m * (b * jnp.exp(variance) + jnp.expm1(variance))

    def expected_variance(self, mean: Array, variance: Array, row: Array) -> Array:
        a, b = self._variance_terms()
        m = self.predictive_mean(mean, variance, row)
        return a * m + m * m * b * jnp.exp(variance)

    def predictive_cdf(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        inside, y = self._support(y)
        log_density, mode = self._threshold(y, row)
        below = probability_below(log_density, mode, mean, variance)
        return jnp.where(inside, below, 0.0)

    def _support(self, y: Array) -> tuple[Array, Array]:
        """Whether P(Y <= y) > 0, and y rounded down to the support (1 where not)."""
        y = jnp.floor(y) if self.is_discrete else y
        inside = y >= 0.0 if self.is_discrete else y > 0.0
        return inside, jnp.where(inside, y, 1.0)


def _check_counts(y: np.ndarray) -> None:
    remedy = "Rates belong in exposure=...; measurements need another likelihood."
    refuse_rows(y, (y >= 0.0) & (y == np.round(y)), "counts 0, 1, 2, ...", remedy)


def _draw_counts(key: Array, rate: Array) -> Array:
    return jax.random.poisson(key, rate).astype(rate.dtype)


class Poisson(LogLink):
    """Counts with mean mu = exposure * exp(f): p(y | f) = mu^y exp(-mu) / y!.

    Args:
        exposure: what the counts were collected over (hours, area, people): one number
            per row, or one for all; 1 if left out.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp import likelihoods
        >>> count = likelihoods.Poisson(exposure=[1.0, 10.0])
        >>> count.conditional_mean(jnp.zeros(2), row=count.row_values).tolist()
        [1.0, 10.0]
    """

    exposure: Any = eqx.field(default=None, converter=convert_row)

    is_discrete: ClassVar[bool] = True
    real_valued: ClassVar[bool] = False
    row_name: ClassVar[str | None] = "exposure"
    row_neutral: ClassVar[float] = 1.0

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        return y * (f + jnp.log(row)) - row * jnp.exp(f) - gammaln(y + 1.0)

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        return _draw_counts(key, row * jnp.exp(f))

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        mu = self.predictive_mean(mean, variance, row)
        return y * (mean + jnp.log(row)) - mu - gammaln(y + 1.0)

    def check_targets(self, y: np.ndarray) -> None:
        _check_counts(y)

    def _unit_mean(self, row: Array) -> Array:
        return row

    def _variance_terms(self) -> tuple[float, Array | float]:
        return 1.0, 0.0

    def _cdf(self, y: Array, f: Array, row: Array) -> Array:
        return gammaincc(y + 1.0, row * jnp.exp(f))

    def _threshold(self, y: Array, row: Array) -> tuple[Elementwise, Array]:
        # event y + 1 comes after 1: exposure * exp(T) ~ Gamma(y + 1)
        def log_density(t: Array) -> Array:
            return self.log_prob(y, t, row) + t + jnp.log(row)

        return log_density, jnp.log((y + 1.0) / row)


class NegativeBinomial(LogLink):
    """Counts with mean mu = exposure * exp(f) and variance mu + dispersion * mu^2.

    With r = 1 / dispersion: p(y | f) = Gamma(y + r) / (Gamma(r) y!) (r / (r + mu))^r
    (mu / (r + mu))^y, a Poisson whose rate is Gamma distributed around mu.

    Args:
        dispersion: 0 would be Poisson.
        exposure: see `Poisson`.

    Example:
        >>> from steingp import likelihoods
        >>> count = likelihoods.NegativeBinomial(dispersion=0.5)
        >>> f"{count.conditional_variance(0.0, row=1.0):.2f}"
        '1.50'
    """

    dispersion: Slot = positive(1.0)
    exposure: Any = eqx.field(default=None, converter=convert_row)

    is_discrete: ClassVar[bool] = True
    real_valued: ClassVar[bool] = False
    row_name: ClassVar[str | None] = "exposure"
    row_neutral: ClassVar[float] = 1.0

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        r = 1.0 / self.dispersion
        log_odds = self._log_odds(f, row)
        constant = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
        return constant - r * jax.nn.softplus(log_odds) - y * jax.nn.softplus(-log_odds)

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        key_rate, key_count = jax.random.split(key)
        r = 1.0 / self.dispersion
        rate = jax.random.gamma(key_rate, r, jnp.shape(f), f.dtype) / r
        return _draw_counts(key_count, row * jnp.exp(f) * rate)

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return gaussian_expectation(lambda f: self.log_prob(y, f, row), mean, variance)

    def check_targets(self, y: np.ndarray) -> None:
        _check_counts(y)

    def _log_odds(self, f: Array, row: Array) -> Array:
        """log(mu / r)."""
        return f + jnp.log(row * self.dispersion)

    def _unit_mean(self, row: Array) -> Array:
        return row

    def _variance_terms(self) -> tuple[float, Array | float]:
        return 1.0, self.dispersion

    def _cdf(self, y: Array, f: Array, row: Array) -> Array:
        tail = jax.nn.sigmoid(-self._log_odds(f, row))  # r / (r + mu)
        return betainc(1.0 / self.dispersion, y + 1.0, tail)

    def _threshold(self, y: Array, row: Array) -> tuple[Elementwise, Array]:
        # r / (r + exposure * exp(T)) ~ Beta(r, y + 1)
        def log_density(t: Array) -> Array:
            slope = jnp.log(y + 1.0 / self.dispersion)
            slope = slope - jax.nn.softplus(-self._log_odds(t, row))
            return self.log_prob(y, t, row) + slope

        return log_density, jnp.log((y + 1.0) / row)


class Exponential(LogLink):
    """Positive numbers with mean exp(f): p(y | f) = exp(-f - y exp(-f)).

    GPflow's parametrisation: exp(f) is the scale, not the rate.

    Example:
        >>> from steingp import likelihoods
        >>> wait = likelihoods.Exponential()
        >>> f"{wait.log_prob(2.0, 0.0, row=0.0):.1f}"
        '-2.0'
    """

    is_discrete: ClassVar[bool] = False
    real_valued: ClassVar[bool] = False
    row_name: ClassVar[str | None] = None
    row_neutral: ClassVar[float] = 0.0

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        del row
        return -f - y * jnp.exp(-f)

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        del row
        return jnp.exp(f) * jax.random.exponential(key, jnp.shape(f), f.dtype)

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        del row
        return -mean - y * jnp.exp(-mean + 0.5 * variance)

    def check_targets(self, y: np.ndarray) -> None:
        remedy = "Model log(y) or y with a Gaussian if y may be negative."
        refuse_rows(y, y >= 0.0, "numbers that are 0 or more", remedy)

    def _unit_mean(self, row: Array) -> Array:
        return jnp.ones_like(row)

    def _variance_terms(self) -> tuple[float, Array | float]:
        return 0.0, 1.0

    def _cdf(self, y: Array, f: Array, row: Array) -> Array:
        del row
        return -jnp.expm1(-y * jnp.exp(-f))

    def _threshold(self, y: Array, row: Array) -> tuple[Elementwise, Array]:
        # y exp(-T) ~ Exponential(1)
        return lambda t: self.log_prob(y, t, row) + jnp.log(y), jnp.log(y)


class Gamma(LogLink):
    """Positive numbers: Gamma with the given shape and scale exp(f), as in GPflow.

    p(y | f) = y^(shape - 1) exp(-y exp(-f)) / (Gamma(shape) exp(shape f)), with mean
    shape * exp(f) and variance shape * exp(2 f).

    Example:
        >>> from steingp import likelihoods
        >>> size = likelihoods.Gamma(shape=4.0)
        >>> f"{size.conditional_mean(0.0, row=0.0):.1f}"
        '4.0'
    """

    shape: Slot = positive(1.0)

    is_discrete: ClassVar[bool] = False
    real_valued: ClassVar[bool] = False
    row_name: ClassVar[str | None] = None
    row_neutral: ClassVar[float] = 0.0

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        del row
        return self._without_scale(y) - self.shape * f - y * jnp.exp(-f)

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        del row
        return jnp.exp(f) * jax.random.gamma(key, self.shape, jnp.shape(f), f.dtype)

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        del row
        rate = jnp.exp(-mean + 0.5 * variance)
        return self._without_scale(y) - self.shape * mean - y * rate

    def check_targets(self, y: np.ndarray) -> None:
        remedy = "Zeros need another likelihood, or are values rounded down."
        refuse_rows(y, y > 0.0, "numbers greater than 0", remedy)

    def _without_scale(self, y: Array) -> Array:
        return xlogy(self.shape - 1.0, y) - gammaln(self.shape)

    def _unit_mean(self, row: Array) -> Array:
        return self.shape * jnp.ones_like(row)

    def _variance_terms(self) -> tuple[float, Array | float]:
        return 0.0, 1.0 / self.shape

    def _cdf(self, y: Array, f: Array, row: Array) -> Array:
        del row
        return gammainc(self.shape, y * jnp.exp(-f))

    def _threshold(self, y: Array, row: Array) -> tuple[Elementwise, Array]:
        # y exp(-T) ~ Gamma(shape)
        mode = jnp.log(y / self.shape)
        return lambda t: self.log_prob(y, t, row) + jnp.log(y), mode

"""Yes or no: labels 0 and 1."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr

from steingp.likelihoods.base import Likelihood, refuse_rows
from steingp.likelihoods.quadrature import gaussian_expectation, log_gaussian_integral

_LOG_LINKS = {"logit": jax.nn.log_sigmoid, "probit": log_ndtr}


class Bernoulli(Likelihood):
    """y is 1 with probability 1 / (1 + exp(-f)) ("logit") or Phi(f) ("probit").

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp import likelihoods
        >>> label = likelihoods.Bernoulli(link="probit")
        >>> mean, variance = jnp.array([0.0]), jnp.array([1.0])
        >>> label.predictive_mean(mean, variance, row=jnp.zeros(1)).tolist()
        [0.5]
    """

    link: str = eqx.field(default="logit", static=True)

    is_discrete: ClassVar[bool] = True
    real_valued: ClassVar[bool] = False
    row_name: ClassVar[str | None] = None
    row_neutral: ClassVar[float] = 0.0
    log_concave: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.link not in _LOG_LINKS:
            raise ValueError(
                f'Bernoulli(link=...) must be "logit" or "probit"; got {self.link!r}.'
            )

    def log_prob(self, y: Array, f: Array, row: Array) -> Array:
        del row
        return _LOG_LINKS[self.link]((2.0 * y - 1.0) * f)  # P(0 | f) = P(1 | -f)

    def conditional_mean(self, f: Array, row: Array) -> Array:
        return jnp.exp(self.log_prob(jnp.ones_like(f), f, row))

    def conditional_variance(self, f: Array, row: Array) -> Array:
        no = jnp.exp(self.log_prob(jnp.zeros_like(f), f, row))
        return no * self.conditional_mean(f, row)

    def conditional_cdf(self, y: Array, f: Array, row: Array) -> Array:
        return _step(y, jnp.exp(self.log_prob(jnp.zeros_like(f), f, row)))

    def sample(self, key: Array, f: Array, row: Array) -> Array:
        uniform = jax.random.uniform(key, jnp.shape(f), f.dtype)
        return (uniform < self.conditional_mean(f, row)).astype(f.dtype)

    def expected_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return gaussian_expectation(lambda f: self.log_prob(y, f, row), mean, variance)

    def predictive_log_prob(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        if self.link == "probit":  # f plus N(0, 1) is positive
            return self.log_prob(y, mean / jnp.sqrt(1.0 + variance), row)
        return log_gaussian_integral(lambda f: self.log_prob(y, f, row), mean, variance)

    def predictive_mean(self, mean: Array, variance: Array, row: Array) -> Array:
        one = jnp.ones_like(mean)
        return jnp.exp(self.predictive_log_prob(one, mean, variance, row))

    def predictive_variance(self, mean: Array, variance: Array, row: Array) -> Array:
        # P(0) is P(1) of -f; a label's variance is P(0) P(1), however f is spread
        no = self.predictive_mean(-mean, variance, row)
        return no * self.predictive_mean(mean, variance, row)

    def expected_variance(self, mean: Array, variance: Array, row: Array) -> Array:
        def log_variance(f: Array) -> Array:  # of P(0 | f) P(1 | f)
            no, yes = jnp.zeros_like(f), jnp.ones_like(f)
            return self.log_prob(no, f, row) + self.log_prob(yes, f, row)

        return jnp.exp(log_gaussian_integral(log_variance, mean, variance))

    def predictive_cdf(
        self, y: Array, mean: Array, variance: Array, row: Array
    ) -> Array:
        return _step(y, self.predictive_mean(-mean, variance, row))

    def check_targets(self, y: np.ndarray) -> None:
        remedy = (
            "Recode the two classes, for instance y = (labels == 'yes').astype(float)."
        )
        refuse_rows(y, (y == 0.0) | (y == 1.0), "labels 0 and 1", remedy)


def _step(y: Array, no: Array) -> Array:
    """P(Y <= y) of a label that is 0 with probability `no`."""
    return jnp.where(y < 0.0, 0.0, jnp.where(y < 1.0, no, 1.0))

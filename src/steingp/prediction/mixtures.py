"""The mixture over draws of what each of them predicts, at a block of points; compiled."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.likelihoods import Likelihood
from steingp.linalg import mvn_sample
from steingp.priors import assign


class Mixture(eqx.Module):
    """Draws' predictions at a block of points: everything a summary needs."""

    likelihood: Likelihood
    slots: dict[str, Array]
    weights: Float[Array, " S"]
    means: Float[Array, "S n"]
    variances: Float[Array, "S n"]
    row: Float[Array, " n"]

    def each(self, function: Callable[..., Array], *values: Array) -> Array:
        """function(likelihood, mean, variance, row) of every draw: (S, n)."""

        def one(slots: dict[str, Array], mean: Array, variance: Array) -> Array:
            bound = assign(self.likelihood, slots, "likelihood")
            return function(bound, *values, mean, variance, self.row)

        return jax.vmap(one)(self.slots, self.means, self.variances)

    def average(self, values: Array) -> Array:
        return self.weights @ values


def moments(mixture: Mixture) -> Array:
    means = mixture.each(lambda bound, *f: bound.predictive_mean(*f))
    variances = mixture.each(lambda bound, *f: bound.predictive_variance(*f))
    mean = mixture.average(means)
    spread = variances + (means - mean[None, :]) ** 2
    return jnp.stack([mean, mixture.average(spread)])


def each_draw(mixture: Mixture) -> Array:
    """Mean, variance, and what noise adds to it, of every draw: (3, S, n)."""
    means = mixture.each(lambda bound, *f: bound.predictive_mean(*f))
    variances = mixture.each(lambda bound, *f: bound.predictive_variance(*f))
    noise = mixture.each(lambda bound, *f: bound.expected_variance(*f))
    return jnp.stack([means, variances, noise])


def log_prob(mixture: Mixture, y: Array) -> Array:
    values = mixture.each(lambda bound, *f: bound.predictive_log_prob(*f), y)
    log_weights = jnp.log(mixture.weights)[:, None]
    return jax.scipy.special.logsumexp(log_weights + values, axis=0)


def cdf(mixture: Mixture, y: Array) -> Array:
    return mixture.average(mixture.each(lambda bound, *f: bound.predictive_cdf(*f), y))


def quantile(mixture: Mixture, q: Array) -> Array:
    """The smallest y with P(Y <= y) >= q, by doubling a bracket, then bisection."""
    likelihood = mixture.likelihood
    whole = jnp.floor if likelihood.is_discrete else (lambda y: y)

    def reached(y: Array) -> Array:
        return cdf(mixture, whole(y)) >= q

    mean, variance = moments(mixture)
    scale = jnp.where(jnp.isfinite(variance), jnp.sqrt(variance), 1.0) + 1e-3
    centre = jnp.where(jnp.isfinite(mean), mean, 0.0)

    def expand(side: float, wanted: bool) -> Array:
        def widen(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            distance, ok = carry
            distance = jnp.where(ok, distance, 2.0 * distance)
            return distance, reached(centre + side * distance * scale) == wanted

        start = jnp.full_like(centre, 4.0)
        ok = reached(centre + side * start * scale) == wanted
        distance, _ = jax.lax.while_loop(
            lambda carry: jnp.any(~carry[1] & (carry[0] < 1e12)),
            widen,
            (start, ok),
        )
        return centre + side * distance * scale

    upper = expand(1.0, True)
    if likelihood.real_valued:
        return _bisect(reached, expand(-1.0, False), upper)
    if likelihood.is_discrete:
        # y = e^t - 2, since counts may range over many magnitudes, from -1 upwards
        log_upper = jnp.log(jnp.maximum(upper, 0.0) + 2.0)
        t = _bisect(
            lambda t: reached(jnp.exp(t) - 2.0), jnp.zeros_like(upper), log_upper
        )
        return whole(jnp.exp(t) - 2.0)
    # positive numbers: by logarithms, since a quantile may be 1e-100
    smallest = jnp.full_like(upper, np.log(np.finfo(float).tiny))
    log_upper = jnp.log(jnp.maximum(upper, np.finfo(float).tiny))
    return jnp.exp(_bisect(lambda t: reached(jnp.exp(t)), smallest, log_upper))


def _bisect(reached: Callable[[Array], Array], lower: Array, upper: Array) -> Array:
    """The point between where `reached` turns true, from above."""

    def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        ok = reached(middle)
        return jnp.where(ok, low, middle), jnp.where(ok, middle, high)

    return jax.lax.fori_loop(0, 80, halve, (lower, upper))[1]


@eqx.filter_jit
def evaluate(function: Callable[..., Array], mixture: Mixture, *values: Array) -> Array:
    return function(mixture, *values)


sample_f = eqx.filter_jit(mvn_sample)


@eqx.filter_jit
def sample_y(
    key: Array, likelihood: Likelihood, slots: dict[str, Array], f: Array, row: Array
) -> Array:
    """y given f (n, rows), under one draw's likelihood."""
    bound = assign(likelihood, slots, "likelihood")
    return bound.sample(key, f, jnp.broadcast_to(row[None, :], f.shape))


@eqx.filter_jit
def sample_y_each(
    keys: Array, likelihood: Likelihood, slots: dict[str, Array], f: Array, row: Array
) -> Array:
    """y given f (n, rows), every row of f under a likelihood of its own."""

    def one(key: Array, slots: dict[str, Array], f: Array) -> Array:
        return assign(likelihood, slots, "likelihood").sample(key, f, row)

    return jax.vmap(one)(keys, slots, f)

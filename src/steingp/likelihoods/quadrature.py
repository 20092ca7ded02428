"""Integrals over one latent value f ~ N(mean, variance), elementwise over arrays.

| integral | rule |
|---|---|
| E g(f), g smooth and slow | Gauss-Hermite, 20 nodes |
| log of int exp(g(f)) N(f) df, g concave | Gauss-Legendre on both sides of the mode |
| P(f < T), T with a concave log density | the same, cut also where f lies |

The last two find the place and the width of their integrand first, so they stay right
where it is far narrower than N(f). Place and width enter as constants: an integral does
not depend on its nodes, and its derivative is the integral of the derivative.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr

NUM_HERMITE = 20
"""Nodes of the Gauss-Hermite rule."""

NUM_LEGENDRE = 32
"""Nodes of the Gauss-Legendre rule on each panel."""

VARIANCE_FLOOR = 1e-16
"""Added to every variance before its root is taken, which thus has a slope at 0."""

_NEGLIGIBLE = 36.0  # exp(-36) = 2e-16: what has fallen so far adds nothing to a sum
_LOG_2PI = float(np.log(2.0 * np.pi))

Elementwise = Callable[[Array], Array]


def standard_deviation(variance: Array) -> Array:
    """sqrt(variance + 1e-16); a variance rounded to below 0 counts as 0."""
    return jnp.sqrt(jnp.where(variance < 0.0, 0.0, variance) + VARIANCE_FLOOR)


def gaussian_expectation(function: Elementwise, mean: Array, variance: Array) -> Array:
    """E function(f) for f ~ N(mean, variance): exact for polynomials to degree 39."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_HERMITE)
    scale = standard_deviation(variance)
    values = jax.vmap(lambda u: function(mean + scale * u))(jnp.asarray(nodes))
    return jnp.tensordot(weights / np.sqrt(2.0 * np.pi), values, axes=1)


def log_gaussian_integral(log_f: Elementwise, mean: Array, variance: Array) -> Array:
    """log int exp(log_f(f)) N(f; mean, variance) df for a concave log_f.

    With f = mean + sqrt(variance) u the exponent is log_f - u^2 / 2.
    """
    scale = standard_deviation(variance)

    def exponent(u: Array) -> Array:
        return log_f(mean + scale * u) - 0.5 * u * u

    mode = _mode(exponent, jnp.zeros_like(scale))
    low, high = span(exponent, mode)
    top = jax.lax.stop_gradient(exponent(mode))
    integral = _integrate(lambda u: jnp.exp(exponent(u) - top), [low, mode, high])
    return top + jnp.log(integral) - 0.5 * _LOG_2PI


def tilted_moments(
    log_f: Elementwise, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """Mean and variance of f under exp(log_f(f)) N(f; mean, variance), log_f concave."""
    scale = standard_deviation(variance)

    def exponent(u: Array) -> Array:
        return log_f(mean + scale * u) - 0.5 * u * u

    mode = _mode(exponent, jnp.zeros_like(scale))
    low, high = span(exponent, mode)
    top = exponent(mode)

    def powers(u: Array) -> tuple[Array, Array, Array]:
        density, step = jnp.exp(exponent(u) - top), u - mode
        return density, density * step, density * step * step

    total, first, second = _integrate(powers, [low, mode, high])
    first, second = first / total, second / total
    return mean + scale * (mode + first), scale**2 * (second - first**2)


def probability_below(
    log_density: Elementwise, mode: Array, mean: Array, variance: Array
) -> Array:
    """P(f < T) = int q(t) Phi((t - mean) / sd) dt, f ~ N(mean, variance), T ~ q.

    Args:
        log_density: log q, concave.
        mode: where log q is largest.
    """
    scale = standard_deviation(variance)
    low, high = span(log_density, mode)
    width = np.sqrt(2.0 * _NEGLIGIBLE) * scale
    cuts = [mean - width, mean, mean + width]
    edges = [low, mode, high, *(jnp.clip(cut, low, high) for cut in cuts)]

    def integrand(t: Array) -> Array:
        return jnp.exp(log_density(t)) * ndtr((t - mean) / scale)

    return _integrate(integrand, edges)


def _mode(exponent: Elementwise, zero: Array) -> Array:
    """Where the exponent is largest, to a hundredth of its width there.

    Its slope falls by at least 1 per unit of u, so the root lies between 0 and slope(0).
    Newton's steps lead there, but where they leave the bracket, and at every third, the
    bracket is halved: in arcsinh(u), since slope(0) can be 1e20 with a root of order 10.
    """

    def slope(u: Array) -> Array:
        return jax.jvp(exponent, (u,), (jnp.ones_like(u),))[1]

    def slopes(u: Array) -> tuple[Array, Array]:
        return jax.lax.stop_gradient(jax.jvp(slope, (u,), (jnp.ones_like(u),)))

    first, curvature = slopes(zero)
    sign = jnp.sign(first)

    def unsettled(slope: Array, curvature: Array) -> Array:
        # of a slope that is nowhere finite there is nothing to find
        return ~(jnp.abs(slope) < 0.01 * jnp.sqrt(-curvature)) & ~jnp.isnan(first)

    def going(search: _Search) -> Array:
        found = unsettled(search.slope, search.curvature)
        return jnp.any(found) & (search.steps < 64)

    def onward(search: _Search) -> _Search:
        near, far, u, slope, curvature, steps = search
        before = slope * sign > 0.0
        near, far = jnp.where(before, u, near), jnp.where(before, far, u)
        newton = u - slope / curvature
        inside = ((newton - near) * (newton - far) < 0.0) & (steps % 3 != 2)
        middle = jnp.sinh(0.5 * (jnp.arcsinh(near) + jnp.arcsinh(far)))
        guess = jnp.where(inside, newton, middle)
        u = jnp.where(unsettled(slope, curvature), guess, u)
        return _Search(near, far, u, *slopes(u), steps + 1)

    far = jnp.clip(first, -1e30, 1e30)
    start = _Search(zero, far, zero, first, curvature, jnp.array(0))
    return jax.lax.while_loop(going, onward, start).u


class _Search(NamedTuple):
    """A bracket, the best guess, and the exponent's slope and curvature there."""

    near: Array
    far: Array
    u: Array
    slope: Array
    curvature: Array
    steps: Array


def span(exponent: Elementwise, mode: Array) -> tuple[Array, Array]:
    """Where a concave exponent has fallen by 36 on either side of its mode.

    Halves the logarithm of the distance, between 1e-8 and 1e6, and answers 3% too far.
    """
    bottom = exponent(mode) - _NEGLIGIBLE

    def end(side: Array) -> Array:
        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            inner, outer = bracket
            middle = 0.5 * (inner + outer)
            inside = exponent(mode + side * jnp.exp(middle)) > bottom
            return jnp.where(inside, middle, inner), jnp.where(inside, outer, middle)

        start = jnp.full_like(mode, np.log(1e-8)), jnp.full_like(mode, np.log(1e6))
        _, outer = jax.lax.fori_loop(0, 10, halve, start)
        return mode + side * jnp.exp(outer)

    low, high = jax.lax.stop_gradient(jax.vmap(end)(jnp.array([-1.0, 1.0])))
    return low, high


def _integrate(function: Callable[[Array], Any], edges: list[Array]) -> Any:
    """The integral from the lowest to the highest edge, panel by panel.

    Of one function, or of each member of the tuple that it returns.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NUM_LEGENDRE)
    ends = jax.lax.stop_gradient(jnp.sort(jnp.stack(edges), axis=0))
    left, half = ends[:-1], 0.5 * (ends[1:] - ends[:-1])

    def at(x: Array) -> Any:
        return jax.vmap(function)(left + half * (1.0 + x))

    def total(values: Array) -> Array:
        return jnp.sum(half * jnp.tensordot(weights, values, axes=1), axis=0)

    return jax.tree.map(total, jax.vmap(at)(jnp.asarray(nodes)))

"""Coordinates in which a prior is standard normal: z = Phi^-1(F(theta)).

A posterior seen in them is a standard normal bent by the likelihood. What the data do not
inform stays N(0, 1), lengthscales of irrelevant inputs for one, and moves need no tuning
there. The default prior's map is closed; any other's is a spline through its quantiles.
A spline is not exactly F, nor need it be: densities carry its own slope.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import log_ndtr, ndtri
from jaxtyping import Float
from numpyro.distributions.transforms import ExpTransform, Transform
from scipy.interpolate import CubicSpline
from scipy.special import ndtri_exp

_REACH = 6.0
"""Beyond this z a spline goes on as a straight line."""

_NUM_KNOTS = 49
_LOG_2 = float(np.log(2.0))

Values = Float[Array, "*shape"]


class NormalToExponential(eqx.Module):
    """theta = floor - log Phi(-z) / rate, exact far into both tails."""

    rate: Array | np.ndarray
    floor: float

    def __call__(self, z: Values) -> Values:
        return self.floor - log_ndtr(-z) / self.rate

    def inv(self, theta: Values) -> Values:
        x = self.rate * jnp.maximum(theta - self.floor, 0.0)
        small = x < _LOG_2
        low = ndtri(-jnp.expm1(-jnp.where(small, x, _LOG_2)))
        high = -ndtri(jnp.exp(-jnp.where(small, _LOG_2, x)))
        return jnp.where(small, low, high)

    def log_abs_det_jacobian(self, z: Values, theta: Values) -> Values:
        del theta
        return jax.scipy.stats.norm.logpdf(z) - log_ndtr(-z) - jnp.log(self.rate)


class NormalToAny(eqx.Module):
    """theta = outer(spline(z)), the spline rising through the prior's quantiles."""

    outer: Transform
    knots: Float[Array, " K"] | np.ndarray
    coefficients: Float[Array, "4 k n"] | np.ndarray
    """Of each piece (K - 1 of them) and each entry of theta, cubic term first."""

    def __call__(self, z: Values) -> Values:
        return jnp.asarray(self.outer(self._spline(z)[0]))

    def inv(self, theta: Values) -> Values:
        t = jnp.asarray(self.outer.inv(jnp.asarray(theta)))
        t = jnp.clip(t, -1e30, 1e30)

        def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = 0.5 * (low + high)
            below = self._spline(middle)[0] < t
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        # beyond the knots the map is a line, whose inverse is one too
        ends = jnp.asarray(self.knots[0]), jnp.asarray(self.knots[-1])
        low, high = (jnp.full_like(t, end) for end in ends)
        (start, rise), (stop, fall) = self._spline(low), self._spline(high)
        inside, _ = jax.lax.fori_loop(0, 60, halve, (low, high))
        below, above = low + (t - start) / rise, high + (t - stop) / fall
        return jnp.where(t < start, below, jnp.where(t > stop, above, inside))

    def log_abs_det_jacobian(self, z: Values, theta: Values) -> Values:
        t, slope = self._spline(z)
        return jnp.log(slope) + self.outer.log_abs_det_jacobian(t, theta)

    def _spline(self, z: Values) -> tuple[Values, Values]:
        """The spline and its slope, entry by entry."""
        knots = jnp.asarray(self.knots)
        flat = jnp.reshape(z, (-1,))
        inside = jnp.clip(flat, knots[0], knots[-1])
        piece = jnp.clip(jnp.searchsorted(knots, inside) - 1, 0, len(knots) - 2)
        entry = jnp.arange(flat.size) % self.coefficients.shape[2]
        c3, c2, c1, c0 = jnp.asarray(self.coefficients)[:, piece, entry]
        x = inside - knots[piece]
        slope = c1 + x * (2.0 * c2 + x * 3.0 * c3)
        value = c0 + x * (c1 + x * (c2 + x * c3)) + slope * (flat - inside)
        return jnp.reshape(value, jnp.shape(z)), jnp.reshape(slope, jnp.shape(z))


def normalising(
    prior: dist.Distribution, bijector: Transform, floor: float
) -> NormalToExponential | NormalToAny | Transform:
    """The map from z, standard normal, to `prior`.

    Priors whose entries depend on each other keep their `bijector`.

    Args:
        prior: of a hyperparameter, a scalar or a vector.
        bijector: its map from the real line.
        floor: how far above a half-line's end theta begins.
    """
    base = prior
    while isinstance(base, dist.ExpandedDistribution | dist.Independent):
        base = base.base_dist
    if base.event_shape:
        return bijector
    if isinstance(base, dist.Exponential):
        return NormalToExponential(np.asarray(base.rate, float), floor)
    with jax.enable_x64(True):
        return _fit_spline(prior, base, bijector, floor) or bijector


def _fit_spline(
    prior: dist.Distribution, base: dist.Distribution, bijector: Transform, floor: float
) -> NormalToAny | None:
    """A spline from z to t, where theta = outer(t); None if it does not rise."""
    lower = getattr(base.support, "lower_bound", None)
    outer = bijector
    if lower is not None and getattr(base.support, "upper_bound", None) is None:
        # logarithms: quantiles of positive things span magnitudes
        outer = dist.transforms.ComposeTransform(
            [ExpTransform(), dist.transforms.AffineTransform(lower + floor, 1.0)]
        )
    draws = jax.vmap(prior.sample)(jax.random.split(jax.random.key(0), 4000))
    t = np.asarray(jax.vmap(outer.inv)(draws)).reshape(4000, -1)
    centre = np.nanmedian(t, axis=0)
    spread = np.nanquantile(t, 0.75, axis=0) - np.nanquantile(t, 0.25, axis=0)
    grid = centre + np.linspace(-40.0, 40.0, 16_001)[:, None] * spread

    def density(t: Array) -> Array:
        theta = outer(t)
        slope = outer.log_abs_det_jacobian(t, theta)
        return jnp.asarray(base.log_prob(theta)) + jnp.asarray(slope)

    log_density = jax.vmap(density)(jnp.asarray(grid.reshape(-1, *prior.shape())))
    log_density = np.nan_to_num(np.asarray(log_density), nan=-1e4, neginf=-1e4)
    z_of_t = _normal_scores(log_density.reshape(len(grid), -1))
    low = max(-_REACH, np.max(np.min(z_of_t, axis=0)))
    high = min(_REACH, np.min(np.max(z_of_t, axis=0)))
    knots = np.linspace(low, high, _NUM_KNOTS)
    columns = [np.interp(knots, z_of_t[:, i], grid[:, i]) for i in range(grid.shape[1])]
    spline = CubicSpline(knots, np.stack(columns, axis=1))
    fine = spline(np.linspace(low, high, 20 * _NUM_KNOTS), 1)
    if not (np.all(np.isfinite(fine)) and np.min(fine) > 0.0):
        return None
    return NormalToAny(outer, knots, np.asarray(spline.c))


def _normal_scores(log_density: np.ndarray) -> np.ndarray:
    """Phi^-1 of the distribution function along axis 0 of an even grid."""
    below = np.logaddexp.accumulate(log_density, axis=0)
    above = np.logaddexp.accumulate(log_density[::-1], axis=0)[::-1]
    total = below[-1]
    # half of a cell's own mass lies on either side of its middle
    below = np.logaddexp(below - total + np.log1p(-_share(log_density, below)), -800.0)
    above = np.logaddexp(above - total + np.log1p(-_share(log_density, above)), -800.0)
    low, high = ndtri_exp(np.minimum(below, 0.0)), -ndtri_exp(np.minimum(above, 0.0))
    return np.where(below < above, low, high)


def _share(log_density: np.ndarray, cumulated: np.ndarray) -> np.ndarray:
    """Half of the part that a cell has in the mass up to and with it."""
    return 0.5 * np.exp(log_density - cumulated)

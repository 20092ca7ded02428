"""Laws of every likelihood, against scipy.stats and quadrature in f."""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import integrate, optimize

from steingp.likelihoods import Likelihood, at_start
from steingp.likelihoods.quadrature import NUM_HERMITE

# mean and variance of f: ordinary, wide, narrow, off to the side, a point
LATENTS = [(0.0, 1.0), (0.4, 6.0), (-1.0, 0.09), (2.5, 1.0), (0.7, 1e-9), (0.2, 0.0)]

METHODS = ("expected_log_prob", "predictive_log_prob", "predictive_cdf")


@eqx.filter_jit
def _evaluate(likelihood: Likelihood, method: str, *arguments: Any) -> Any:
    return getattr(likelihood, method)(*arguments)


@dataclasses.dataclass(frozen=True)
class Case:
    """One likelihood, the scipy.stats distribution it should be, and some targets.

    `singularity` is the distance from the real line to the nearest complex f where
    log p(y | f) is not analytic; infinite where `expected_log_prob` is a closed form.
    """

    likelihood: Likelihood
    reference: Callable[[Any], Any]  # f -> frozen distribution, vectorised over f
    targets: tuple[float, ...]
    row: float
    singularity: float = np.inf
    log_tail: Callable[[float, Any], Any] | None = None  # where scipy rounds p to 0

    @property
    def bound(self) -> Likelihood:
        return at_start(self.likelihood)

    def log_prob(self, y: float, f: Any) -> Any:
        if self.log_tail is not None:
            return self.log_tail(y, f)
        law = self.reference(f)
        return law.logpmf(y) if self.likelihood.is_discrete else law.logpdf(y)

    def call(self, method: str, *arguments: Any) -> np.ndarray:
        """A method of the likelihood at arrays of one shape, with this case's row."""
        arrays = np.broadcast_arrays(*(np.asarray(a, float) for a in arguments))
        size = arrays[0].size
        padding = (32 if size <= 32 else 8192) - size  # few shapes to compile
        flat = [np.pad(a.ravel(), (0, padding), mode="edge") for a in arrays]
        rows = np.full(size + padding, self.row)
        values = _evaluate(self.bound, method, *map(jnp.asarray, (*flat, rows)))
        return np.asarray(values)[:size].reshape(arrays[0].shape)

    def table(self) -> np.ndarray:
        """All (y, mean, variance), one per row."""
        return np.array([(y, m, v) for y in self.targets for m, v in LATENTS])


def density_is_scipys(case: Case) -> None:
    f = np.linspace(-3.0, 3.0, 7)
    for y in case.targets:
        want = case.log_prob(y, f)
        # rounding: log p is a sum of terms as large as y, or log Gamma(y)
        tolerance = 1e-10 * (1.0 + abs(y))
        np.testing.assert_allclose(
            case.call("log_prob", y, f), want, rtol=1e-10, atol=tolerance
        )


def conditional_moments_are_scipys(case: Case) -> None:
    f = np.linspace(-2.0, 2.0, 5)
    law = case.reference(f)
    np.testing.assert_allclose(case.call("conditional_mean", f), law.mean(), rtol=1e-12)
    np.testing.assert_allclose(
        case.call("conditional_variance", f), law.var(), rtol=1e-12
    )


def conditional_cdf_is_scipys(case: Case) -> None:
    f = np.linspace(-2.0, 3.0, 6)
    for y in (-0.5, 0.0, 0.5, *case.targets):
        want = case.reference(f).cdf(y)
        np.testing.assert_allclose(case.call("conditional_cdf", y, f), want, atol=1e-10)


def draws_have_the_moments(case: Case) -> None:
    num, f = 40_000, 0.3
    law = case.reference(f)
    rows = jnp.full(num, case.row)
    draws = np.asarray(case.bound.sample(jax.random.key(1), jnp.full(num, f), rows))
    variance, excess = law.stats(moments="vk")
    assert abs(draws.mean() - law.mean()) < 5.0 * np.sqrt(variance / num)
    # Var of the sample variance: (fourth central moment - variance^2) / num
    error = variance * np.sqrt((excess + 2.0) / num)
    assert abs(draws.var() - variance) < 5.0 * error
    case.bound.check_targets(draws)


def predictive_sums_to_one(case: Case) -> None:
    for mean, variance in [(0.2, 0.5), (0.2, 0.0)]:
        if case.likelihood.is_discrete:
            top = case.reference(mean + 7.0 * np.sqrt(variance)).isf(1e-13)
            y, weights = np.arange(top + 1.0), 1.0
        else:  # y = sinh(x), or exp(x) on the half-line: the trapezoid rule in x
            x, step = np.linspace(-34.0, 34.0, 6001, retstep=True)
            real = case.likelihood.real_valued
            y, weights = (np.sinh(x), np.cosh(x)) if real else (np.exp(x), np.exp(x))
            weights = weights * step
        log_p = case.call("predictive_log_prob", y, mean, variance)
        np.testing.assert_allclose(np.sum(weights * np.exp(log_p)), 1.0, atol=1e-8)


def predictive_log_prob_is_the_integral(case: Case) -> None:
    table = case.table()
    got = case.call("predictive_log_prob", *table.T)
    want = [_log_integral(case, *entry) for entry in table]
    np.testing.assert_allclose(got, want, atol=1e-6)


def expected_log_prob_is_the_integral(case: Case) -> None:
    table = case.table()
    got = case.call("expected_log_prob", *table.T)
    for (y, mean, variance), value in zip(table, got, strict=True):
        want = _expectation(lambda f, y=y: case.log_prob(y, f), mean, variance, y)
        # a function analytic within a of the real line in u = (f - mean) / sd costs the
        # n-point rule about exp(-2 a sqrt(n)) of its size (Boyd 2001, section 17.6)
        a = case.singularity / max(np.sqrt(variance), 1e-8)
        size = 10.0 * (1.0 + abs(y)) * np.exp(-2.0 * a * np.sqrt(NUM_HERMITE))
        np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-7 + size)


def predictive_moments_are_the_integrals(case: Case) -> None:
    mean, variance = np.array(LATENTS).T
    got_mean = case.call("predictive_mean", mean, variance)
    got_variance = case.call("predictive_variance", mean, variance)
    for i, (m, v) in enumerate(LATENTS):
        first = _expectation(lambda f: case.reference(f).mean(), m, v)
        within = _expectation(lambda f: case.reference(f).var(), m, v)
        between = _expectation(
            lambda f, first=first: (case.reference(f).mean() - first) ** 2, m, v
        )
        np.testing.assert_allclose(got_mean[i], first, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(got_variance[i], within + between, rtol=1e-6)


def predictive_cdf_is_the_integral(case: Case) -> None:
    table = case.table()
    got = case.call("predictive_cdf", *table.T)
    want = [
        _expectation(lambda f, y=y: case.reference(f).cdf(y), m, v, y)
        for y, m, v in table
    ]
    np.testing.assert_allclose(got, want, atol=1e-6)


def predictive_cdf_adds_up_the_density(case: Case) -> None:
    """P(Y <= y) is a sum for counts; its slope is the density otherwise."""
    mean, variance = 0.4, 0.8
    if case.likelihood.is_discrete:
        y = np.arange(2.0 if max(case.targets) == 1.0 else 30.0)
        sums = np.cumsum(np.exp(case.call("predictive_log_prob", y, mean, variance)))
        got = case.call("predictive_cdf", y, mean, variance)
        np.testing.assert_allclose(got, sums, atol=1e-8)
        between = case.call("predictive_cdf", y + 0.5, mean, variance)
        np.testing.assert_array_equal(between, got)
        assert np.all(case.call("predictive_cdf", -y - 0.5, mean, variance) == 0.0)
    else:
        y, step = np.array([0.3, 1.0, 2.5]), 1e-4
        upper, lower = (
            case.call("predictive_cdf", y + h, mean, variance) for h in (step, -step)
        )
        density = np.exp(case.call("predictive_log_prob", y, mean, variance))
        # central difference: step^2 / 6 times p'', of order 100 for the narrowest here
        np.testing.assert_allclose((upper - lower) / (2.0 * step), density, atol=1e-6)


def jensen(case: Case) -> None:
    """E log p <= log E p, with equality where f is a point."""
    table = case.table()
    table = table[np.sqrt(table[:, 2]) < case.singularity]  # where the rule is accurate
    expected = case.call("expected_log_prob", *table.T)
    predictive = case.call("predictive_log_prob", *table.T)
    assert np.all(expected <= predictive + 1e-6)
    spread = table[:, 2] > 0.01
    assert np.all(expected[spread] < predictive[spread] - 1e-6)


def gradients_are_differences(case: Case) -> None:
    """With respect to mean, variance and every hyperparameter."""
    bound = case.bound
    y = jnp.array([case.targets[0], case.targets[1], case.targets[1]])
    rows = jnp.full(3, case.row)
    slots, rest = jax.tree.flatten(bound)

    @jax.jit
    def totals(flat: Any) -> Any:
        mean, variance, slots = unravel(flat)
        likelihood = jax.tree.unflatten(rest, slots)
        values = [getattr(likelihood, m)(y, mean, variance, rows) for m in METHODS]
        return jnp.sum(jnp.stack(values), axis=1)

    point = (jnp.array([0.3, -0.8, 1.1]), jnp.array([0.5, 0.04, 1.5]), slots)
    flat, unravel = ravel_pytree(point)
    step = 1e-5
    want = [
        (totals(flat + e) - totals(flat - e)) / (2.0 * step)
        for e in step * np.eye(len(flat))
    ]
    # rounding 1e-13 / step and truncation step^2 times a third derivative
    np.testing.assert_allclose(
        jax.jit(jax.jacrev(totals))(flat).T, want, rtol=1e-5, atol=1e-6
    )


def gradients_at_variance_zero(case: Case) -> None:
    """d/dv of E log p is l''/2, of log E p (l'' + l'^2)/2 (Taylor around the mean)."""
    bound = case.bound
    y, row = jnp.asarray(case.targets[1]), jnp.asarray(case.row)
    mean, zero = jnp.asarray(0.3), jnp.asarray(0.0)
    slope = jax.grad(bound.log_prob, argnums=1)
    first = slope(y, mean, row)
    second = jax.grad(slope, argnums=1)(y, mean, row)
    for method, want in [
        ("expected_log_prob", 0.5 * second),
        ("predictive_log_prob", 0.5 * (second + first**2)),
    ]:
        function = getattr(bound, method)
        slopes = jax.jit(lambda *at, g=function: jax.grad(g, argnums=(1, 2))(*at))
        d_mean, d_variance = slopes(y, mean, zero, row)
        np.testing.assert_allclose(d_mean, first, rtol=1e-6)
        # rounding: 1e-15 of the slope over sqrt(1e-16)
        np.testing.assert_allclose(
            d_variance, want, rtol=1e-5, atol=1e-5 * (1.0 + abs(float(first)))
        )
    slopes = jax.jit(lambda *at: jax.grad(bound.predictive_cdf, argnums=(1, 2))(*at))
    d_cdf = slopes(y, mean, zero, row)
    assert np.all(np.isfinite(d_cdf))


def batches_like_single_values(case: Case) -> None:
    """On shape (2, 3), and mapped over single values."""
    columns = [jnp.asarray(column.reshape(2, 3)) for column in case.table()[:6].T]
    rows = jnp.full((2, 3), case.row)
    for method in METHODS:
        want = case.call(method, *columns)
        one = getattr(case.bound, method)
        together = jax.jit(lambda *a, one=one: one(*a))(*columns, rows)
        mapped = jax.jit(lambda *a, one=one: jax.vmap(jax.vmap(one))(*a))(
            *columns, rows
        )
        # rounding of sums whose terms are of order 1
        np.testing.assert_allclose(together, want, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(mapped, want, rtol=1e-11, atol=1e-14)


ALL = (
    density_is_scipys,
    conditional_moments_are_scipys,
    conditional_cdf_is_scipys,
    draws_have_the_moments,
    predictive_sums_to_one,
    predictive_log_prob_is_the_integral,
    expected_log_prob_is_the_integral,
    predictive_moments_are_the_integrals,
    predictive_cdf_is_the_integral,
    predictive_cdf_adds_up_the_density,
    jensen,
    gradients_are_differences,
    gradients_at_variance_zero,
    batches_like_single_values,
)


def _log_integral(case: Case, y: float, mean: float, variance: float) -> float:
    """log int p(y | f) N(f) df by 200 points on either side of the peak.

    Gauss-Legendre points are close at the ends of a panel, L / n^2 apart: 2e-4 here,
    where the narrowest likelihood of the cases is 4e-3 wide.
    """
    if variance == 0.0:
        return float(case.log_prob(y, mean))
    scale = np.sqrt(variance)

    def exponent(u: Any) -> Any:
        return case.log_prob(y, mean + scale * u) - 0.5 * u * u

    grid, step = np.linspace(-40.0, 40.0, 16001, retstep=True)
    with np.errstate(over="ignore"):
        heights = exponent(grid)
    start = grid[np.argmax(heights)]
    peak = optimize.minimize_scalar(
        lambda u: -exponent(u), bounds=(start - step, start + step), method="bounded"
    ).x
    top = exponent(peak)
    inside = grid[heights > top - 40.0]
    parts = [
        integrate.fixed_quad(lambda u: np.exp(exponent(u) - top), a, b, n=200)[0]
        for a, b in [(inside[0] - step, peak), (peak, inside[-1] + step)]
    ]
    return top + np.log(sum(parts)) - 0.5 * np.log(2.0 * np.pi)


def _expectation(
    function: Any, mean: float, variance: float, y: float | None = None
) -> float:
    """E function(f) by 200 points on each panel, split where p(y | f) may be steep."""
    if variance == 0.0:
        return float(function(mean))
    scale = np.sqrt(variance)
    upper = 9.0 + 2.0 * scale  # exp(2 f) moves the mass by that much
    steep = (
        [] if y is None else [y, np.log(max(y, 1e-3)), np.log(y + 1.0) if y > -1 else 0]
    )
    cuts = [(s - mean) / scale for s in steep]
    edges = sorted({-9.0, 0.0, upper, *(c for c in cuts if -9.0 < c < upper)})

    def integrand(u: Any) -> Any:
        return function(mean + scale * u) * np.exp(-0.5 * u * u)

    parts = [
        integrate.fixed_quad(integrand, a, b, n=200)[0] for a, b in pairwise(edges)
    ]
    return sum(parts) / np.sqrt(2.0 * np.pi)

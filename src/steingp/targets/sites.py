"""Gaussian q(f | theta) for any likelihood, by fixed-point iteration.

q is the prior times one Gaussian factor per row, a *site* exp(nu_i g_i - tau_i g_i^2 / 2),
where g = f - m(x). Three rules find the sites by the same fixed-point iteration:

| rule | a site matches | log evidence | for |
|---|---|---|---|
| EP | the tilted moments of its row | approximate, very close | concave log p(y given f) |
| VI | the expected slope and curvature of log p(y given f) | lower bound | any |
| Laplace | slope and curvature at the mode | second-order | concave |

g is one of `Rows` (g ~ N(0, K) at every row) and `Features` (g_i = a_i' v + rest of
variance d_i, v ~ N(0, I) at the inducing points). What a site sees of row i is then
N(m_i + mean of g_i, its variance + d_i).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jaxtyping import Float

from steingp.likelihoods import Likelihood
from steingp.likelihoods.quadrature import tilted_moments
from steingp.linalg import (
    add_diagonal,
    factorise,
    inverse_factor,
    inverse_lower,
    solve_and_invert,
    solve_lower,
)

TOLERANCE = 1e-4
"""The iteration ends when no row's q is further than this from its limit, in own sds, by
how fast its last steps became shorter.

The evidence of EP and VI is stationary there, so its error is of the order of the
square, and a leapfrog step that sees a score with an error of 1e-4 is as reversible as
any: the score depends on theta alone."""

MOST_ITERATIONS = 300
"""Most data take 3 to 9; labels that inputs part, where f is large, a hundred or two."""

_FASTEST, _SLOWEST = 0.1, 0.9
"""A step over the one before it: what is left to go is taken to be a geometric series of
steps with that ratio, within these bounds."""

_BACK = -0.7
"""Share of the last step that a step makes, below which both go back and forth."""

_FAINT = 1e-6
"""A row's share 1 - diag(B^-1) of its site in q, below which its digits are too few."""


class Sites(NamedTuple):
    """One factor exp(nu g - tau g^2 / 2) for every row."""

    tau: Any  # (N,)
    nu: Any  # (N,)


class Solution(NamedTuple):
    """Sites at the end of the iteration, q's marginals with them, and how it went."""

    sites: Sites
    mean: Float[Array, " N"]
    variance: Float[Array, " N"]
    num_iterations: Array
    to_go: Array
    """How far q is from its limit, in sds, by how fast its last steps became shorter;
    above the tolerance: not converged."""


# --- the two priors of g ----------------------------------------------------------------


class Rows(eqx.Module):
    """g ~ N(0, K); for sites of positive tau. B = I + S K S with S = sqrt(tau)."""

    K: Float[Array, "N N"]

    def q(self, sites: Sites) -> tuple[Array, Array, Array]:
        """q's means and variances, and log of the integral of prior times sites."""
        root = jnp.sqrt(sites.tau)
        W = inverse_factor(_scaled(self.K, root))
        K_nu = self.K @ sites.nu
        pull = sites.nu - root * (W.T @ (W @ (root * K_nu)))
        mean = self.K @ pull
        half_log_det = -jnp.sum(jnp.log(jnp.diagonal(W)))
        variance = self._variances(sites.tau, W)
        return mean, variance, 0.5 * sites.nu @ mean - half_log_det

    def _variances(self, tau: Array, W: Array) -> Array:
        """Of q, given L^-1: tau times them is 1 - diag(B^-1), where that keeps digits."""
        share = 1.0 - jnp.sum(W * W, axis=0)

        def from_the_prior() -> Array:
            half = (W * jnp.sqrt(tau)[None, :]) @ self.K
            return jnp.diagonal(self.K) - jnp.sum(half * half, axis=0)

        plain = jnp.all(share > _FAINT)
        return jax.lax.cond(plain, lambda: share / tau, from_the_prior)

    def log_integral(self, sites: Sites) -> Array:
        return _log_integral(self.K, sites.tau, sites.nu)

    def mode(self, sites: Sites) -> tuple[Array, Array]:
        """The mode of prior times sites, and the log prior there, up to a constant."""
        root = jnp.sqrt(sites.tau)
        L = factorise(_scaled(self.K, root))
        inner = solve_lower(L, root * (self.K @ sites.nu))
        b = sites.nu - root * (inverse_lower(L).T @ inner)
        g = self.K @ b
        return g, -0.5 * b @ g

    def half_log_det(self, tau: Array) -> Array:
        L = factorise(_scaled(self.K, jnp.sqrt(tau)))
        return jnp.sum(jnp.log(jnp.diagonal(L)))


def _scaled(K: Array, root: Array) -> Array:
    return add_diagonal(root[:, None] * K * root[None, :], 1.0)


@jax.custom_jvp
def _log_integral(K: Array, tau: Array, nu: Array) -> Array:
    """log int N(g; 0, K) prod exp(nu g - tau g^2 / 2) dg, differentiated in K alone."""
    return Rows(K).q(Sites(tau, nu))[2]


@_log_integral.defjvp
def _log_integral_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    # d/dK = 1/2 (b b' - S B^-1 S) with b = nu - S B^-1 S K nu, the sites standing still
    K, tau, nu = primals
    root, K_nu = jnp.sqrt(tau), K @ nu
    # B >= I: no jitter is needed, and no retry comes but where there is NaN already
    found = solve_and_invert(_scaled(K, root), root * K_nu, 0.0)
    b = nu - root * found.pull
    half_log_det = jnp.sum(jnp.log(found.diagonal))
    value = 0.5 * (nu @ K_nu - found.white @ found.white) - half_log_det
    inverse = root[:, None] * found.inverse * root[None, :]
    slope = 0.5 * (b[:, None] * b[None, :] - inverse)
    return value, jnp.sum(slope * tangents[0])


class Features(eqx.Module):
    """g = A' v, v ~ N(0, I); for sites of any sign. B = I + A tau A'."""

    A: Float[Array, "M N"]

    def _solve(self, sites: Sites) -> tuple[Array, Array]:
        L = self.factor(sites.tau)
        return L, solve_lower(L, self.A @ sites.nu)

    def factor(self, tau: Array) -> Array:
        return factorise(add_diagonal((self.A * tau[None, :]) @ self.A.T, 1.0))

    def q(self, sites: Sites) -> tuple[Array, Array, Array]:
        L, white = self._solve(sites)
        half = solve_lower(L, self.A)
        log_det = jnp.sum(jnp.log(jnp.diagonal(L)))
        variance = jnp.sum(half * half, axis=0)
        return half.T @ white, variance, 0.5 * white @ white - log_det

    def log_integral(self, sites: Sites) -> Array:
        L, white = self._solve(sites)
        return 0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(L)))

    def mode(self, sites: Sites) -> tuple[Array, Array]:
        L, white = self._solve(sites)
        v = inverse_lower(L).T @ white
        return self.A.T @ v, -0.5 * v @ v

    def half_log_det(self, tau: Array) -> Array:
        return jnp.sum(jnp.log(jnp.diagonal(self.factor(tau))))


Prior = Rows | Features


# --- the three rules --------------------------------------------------------------------


class SeenRows(eqx.Module):
    """What a site knows of its row, and the likelihood with numbers in its slots."""

    likelihood: Likelihood
    y: Float[Array, " N"]
    row: Float[Array, " N"]
    mask: Float[Array, " N"]
    offset: Float[Array, " N"]
    """m(x)"""
    rest: Float[Array, " N"]
    """d: variance of f that g leaves open; 0 without inducing points"""

    def expected(self, mean: Array, variance: Array) -> Array:
        """E log p(y | f), row by row."""
        return self.mask * self.likelihood.expected_log_prob(
            self.y, self.offset + mean, variance + self.rest, self.row
        )

    def log_predictive(self, mean: Array, variance: Array) -> Array:
        """log E p(y | f), row by row."""
        return self.mask * self.likelihood.predictive_log_prob(
            self.y, self.offset + mean, variance + self.rest, self.row
        )

    def tilted(self, mean: Array, variance: Array) -> Sites:
        """The sites that give N(mean, variance) times p(y | f) its own two moments."""
        f_mean, f_variance = self.offset + mean, variance + self.rest
        new_mean, new_variance = tilted_moments(
            lambda f: self.likelihood.log_prob(self.y, f, self.row), f_mean, f_variance
        )
        # slope and curvature of log E p(y | f) in f's mean
        slope = (new_mean - f_mean) / f_variance
        kept = new_variance / f_variance
        curvature = (1.0 - kept) / f_variance
        left = (self.rest + variance * kept) / f_variance
        tau = self.mask * jnp.maximum(curvature / left, 0.0)
        return Sites(tau, self.mask * slope / left + tau * mean)


def _slopes(function: Callable[[Array], Array], at: Array) -> Array:
    """The derivative of an elementwise function."""
    return jax.jvp(function, (at,), (jnp.ones_like(at),))[1]


class EP(eqx.Module):
    """Expectation propagation, all sites at once."""

    def update(
        self, data: SeenRows, sites: Sites, mean: Array, variance: Array
    ) -> Sites:
        return data.tilted(*self._cavity(sites, mean, variance))

    def gain(self, data: SeenRows, sites: Sites, mean: Array, variance: Array) -> Array:
        """log evidence less the log integral of prior times sites."""
        c_mean, c_variance = map(stop_gradient, self._cavity(sites, mean, variance))
        gaussian = 0.5 * jnp.log(variance / c_variance)
        gaussian = gaussian + 0.5 * (mean**2 / variance - c_mean**2 / c_variance)
        return jnp.sum(data.log_predictive(c_mean, c_variance) - data.mask * gaussian)

    def _cavity(
        self, sites: Sites, mean: Array, variance: Array
    ) -> tuple[Array, Array]:
        """q without the row's own site."""
        precision = jnp.maximum(1.0 / variance - sites.tau, 1e-3 / variance)
        return (mean / variance - sites.nu) / precision, 1.0 / precision


class VI(eqx.Module):
    """The best Gaussian by Kullback and Leibler (Opper and Archambeau 2009)."""

    def update(
        self, data: SeenRows, sites: Sites, mean: Array, variance: Array
    ) -> Sites:
        del sites
        slope = _slopes(lambda m: data.expected(m, variance), mean)
        tau = -2.0 * _slopes(lambda v: data.expected(mean, v), variance)
        return Sites(tau, slope + tau * mean)

    def gain(self, data: SeenRows, sites: Sites, mean: Array, variance: Array) -> Array:
        gaussian = sites.nu * mean - 0.5 * sites.tau * (mean**2 + variance)
        return jnp.sum(data.expected(mean, variance) - gaussian)


class Laplace(eqx.Module):
    """Newton's iteration for the mode of g; E log p(y | f) over the rest d, if any."""

    def update(
        self, data: SeenRows, sites: Sites, mean: Array, variance: Array
    ) -> Sites:
        del sites, variance
        zero = jnp.zeros_like(mean)

        def slope(m: Array) -> Array:
            return _slopes(lambda m: data.expected(m, zero), m)

        tau = jnp.maximum(-_slopes(slope, mean), 1e-10)
        return Sites(tau, slope(mean) + tau * mean)

    def gain(self, data: SeenRows, sites: Sites, mean: Array, variance: Array) -> Array:
        # at the mode only: the log density that Newton's steps must raise
        del variance
        gaussian = sites.nu * mean - 0.5 * sites.tau * mean**2
        return jnp.sum(data.expected(mean, jnp.zeros_like(mean)) - gaussian)


Rule = EP | VI | Laplace
RULES: dict[str, Rule] = {"ep": EP(), "vi": VI(), "laplace": Laplace()}


class _Progress(NamedTuple):
    solution: Solution
    step: Array
    """How far the last iteration moved q, in sds; infinite if it was shortened."""
    direction: Float[Array, " N"]
    """And where to."""
    objective: Array
    damping: Array
    """Of the next step."""
    most: Array
    """Of any step: less than 1 once q was seen to go back and forth."""


def solve(
    prior: Prior, rule: Rule, data: SeenRows, start: Sites, tolerance: float = TOLERANCE
) -> Solution:
    """Iterate a rule's sites from `start` until q stands still.

    VI and Laplace climb: a step that lowers their objective, or leaves the Gaussians, is
    halved. EP has no objective; its steps are shortened where they fail. Where a step
    takes most of the last one back, as it may for ever, all further ones are shortened by
    what would have ended both halfway.
    """

    def evaluate(sites: Sites) -> tuple[Array, Array, Array]:
        mean, variance, log_integral = prior.q(sites)
        if isinstance(rule, EP):
            return mean, variance, jnp.where(jnp.isfinite(log_integral), 0.0, -jnp.inf)
        if isinstance(rule, Laplace):
            # nu'g - tau g^2 / 2 at the mode, less g' K^-1 g / 2 = g' (nu - tau g) / 2
            penalty = 0.5 * mean @ (sites.nu - sites.tau * mean)
            quadratic = sites.nu @ mean - 0.5 * sites.tau @ mean**2
            return (
                mean,
                variance,
                rule.gain(data, sites, mean, variance) + (quadratic - penalty),
            )
        return mean, variance, log_integral + rule.gain(data, sites, mean, variance)

    def unfinished(progress: _Progress) -> Array:
        last = progress.solution
        return (last.to_go > tolerance) & (last.num_iterations < MOST_ITERATIONS)

    def iterate(progress: _Progress) -> _Progress:
        old, damping, most = progress.solution, progress.damping, progress.most
        wanted = rule.update(data, old.sites, old.mean, old.variance)
        sites = jax.tree.map(lambda a, b: a + damping * (b - a), old.sites, wanted)
        mean, variance, objective = evaluate(sites)
        slack = 1e-9 * (1.0 + jnp.abs(progress.objective))
        better = (objective > progress.objective - slack) & jnp.all(variance > 0.0)
        better = better & jnp.isfinite(objective)
        direction = (mean - old.mean) / jnp.sqrt(old.variance)
        moved = jnp.maximum(
            jnp.max(jnp.abs(direction)),
            jnp.max(jnp.abs(variance / old.variance - 1.0)),
        )
        # of a step that was shortened, or follows one, nothing can be told but its length
        ratio = jnp.clip(moved / progress.step, _FASTEST, _SLOWEST)
        told = (damping == most) & jnp.isfinite(progress.step)
        to_go = jnp.where(told, moved * ratio / (1.0 - ratio), moved / damping)
        last = progress.direction
        onward = last @ direction / jnp.maximum(last @ last, 1e-300)
        back = told & better & (onward < _BACK)
        step = jnp.where((damping == most) & ~back, moved, jnp.inf)
        most = jnp.where(back, most / (1.0 - onward), most)
        new = Solution(sites, mean, variance, old.num_iterations + 1, to_go)
        kept = old._replace(num_iterations=old.num_iterations + 1)
        solution, step, direction, objective = jax.tree.map(
            lambda a, b: jnp.where(better, a, b),
            (new, step, direction, objective),
            (kept, progress.step, last, progress.objective),
        )
        damping = jnp.where(better, jnp.minimum(most, 2.0 * damping), 0.5 * damping)
        return _Progress(solution, step, direction, objective, damping, most)

    mean, variance, objective = evaluate(start)
    far = jnp.array(jnp.inf)
    first = Solution(start, mean, variance, jnp.array(0), far)
    whole = jnp.array(1.0)
    progress = _Progress(first, far, jnp.zeros_like(mean), objective, whole, whole)
    return jax.lax.while_loop(unfinished, iterate, progress).solution

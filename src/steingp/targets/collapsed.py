"""Any likelihood with f integrated out: each theta has a Gaussian q(f | theta) of its own.

q is the prior times one Gaussian factor per row, a *site* exp(nu_i g_i - tau_i g_i^2 / 2),
where g = f - m(x). Three rules find the sites by the same fixed-point iteration:

| rule | a site matches | log evidence | for |
|---|---|---|---|
| EP | the tilted moments of its row | approximate, very close | concave log p(y given f) |
| VI | the expected slope and curvature of log p(y given f) | lower bound | any |
| Laplace | slope and curvature at the mode | second-order | concave |

At the fixed point of EP and VI the evidence is stationary in the sites, so its gradient
is the one with the sites held still: nothing is differentiated through the iteration.
Laplace's needs how the mode moves: one more Newton step, which is differentiated.

g is one of `_Rows` (g ~ N(0, K) at every row) and `_Features` (g_i = a_i' v + rest of
variance d_i, v ~ N(0, I) at the inducing points). What a site sees of row i is then
N(m_i + mean of g_i, its variance + d_i).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient
from jaxtyping import Float

from steingp.data import Batch
from steingp.likelihoods import Likelihood
from steingp.likelihoods.quadrature import tilted_moments
from steingp.linalg import (
    DEFAULT_JITTER,
    add_diagonal,
    cholesky,
    factorise,
    inverse_factor,
    inverse_lower,
    solve_and_invert,
    solve_lower,
    whiten,
)
from steingp.priors import Particle
from steingp.targets.base import Conditional, Model, Specification, Target

TOLERANCE = 1e-4
"""The iteration ends when no row's q is further than this from its limit, in own sds, by
how fast its last steps became shorter.

The evidence of EP and VI is stationary there, so its error is of the order of the
square, and a leapfrog step that sees a score with an error of 1e-4 is as reversible as
any: the score depends on theta alone."""

MOST_ITERATIONS = 100

_FASTEST, _SLOWEST = 0.1, 0.9
"""A step over the one before it: what is left to go is taken to be a geometric series of
steps with that ratio, within these bounds."""

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


class _Rows(eqx.Module):
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
    return _Rows(K).q(Sites(tau, nu))[2]


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


class _Features(eqx.Module):
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


Prior = _Rows | _Features


# --- the three rules --------------------------------------------------------------------


class _Data(eqx.Module):
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


class _EP(eqx.Module):
    """Expectation propagation, all sites at once."""

    def update(self, data: _Data, sites: Sites, mean: Array, variance: Array) -> Sites:
        return data.tilted(*self._cavity(sites, mean, variance))

    def gain(self, data: _Data, sites: Sites, mean: Array, variance: Array) -> Array:
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


class _VI(eqx.Module):
    """The best Gaussian by Kullback and Leibler (Opper and Archambeau 2009)."""

    def update(self, data: _Data, sites: Sites, mean: Array, variance: Array) -> Sites:
        del sites
        slope = _slopes(lambda m: data.expected(m, variance), mean)
        tau = -2.0 * _slopes(lambda v: data.expected(mean, v), variance)
        return Sites(tau, slope + tau * mean)

    def gain(self, data: _Data, sites: Sites, mean: Array, variance: Array) -> Array:
        gaussian = sites.nu * mean - 0.5 * sites.tau * (mean**2 + variance)
        return jnp.sum(data.expected(mean, variance) - gaussian)


class _Laplace(eqx.Module):
    """Newton's iteration for the mode of g; E log p(y | f) over the rest d, if any."""

    def update(self, data: _Data, sites: Sites, mean: Array, variance: Array) -> Sites:
        del sites, variance
        zero = jnp.zeros_like(mean)

        def slope(m: Array) -> Array:
            return _slopes(lambda m: data.expected(m, zero), m)

        tau = jnp.maximum(-_slopes(slope, mean), 1e-10)
        return Sites(tau, slope(mean) + tau * mean)

    def gain(self, data: _Data, sites: Sites, mean: Array, variance: Array) -> Array:
        # at the mode only: the log density that Newton's steps must raise
        del variance
        gaussian = sites.nu * mean - 0.5 * sites.tau * mean**2
        return jnp.sum(data.expected(mean, jnp.zeros_like(mean)) - gaussian)


Rule = _EP | _VI | _Laplace
RULES: dict[str, Rule] = {"ep": _EP(), "vi": _VI(), "laplace": _Laplace()}


class _Progress(NamedTuple):
    solution: Solution
    step: Array
    """How far the last iteration moved q, in sds; infinite if it was damped."""
    objective: Array
    damping: Array


def solve(
    prior: Prior, rule: Rule, data: _Data, start: Sites, tolerance: float = TOLERANCE
) -> Solution:
    """Iterate a rule's sites from `start` until q stands still.

    VI and Laplace climb: a step that lowers their objective, or leaves the Gaussians, is
    halved. EP has no objective; its steps are shortened only where they fail.
    """

    def evaluate(sites: Sites) -> tuple[Array, Array, Array]:
        mean, variance, log_integral = prior.q(sites)
        if isinstance(rule, _EP):
            return mean, variance, jnp.where(jnp.isfinite(log_integral), 0.0, -jnp.inf)
        if isinstance(rule, _Laplace):
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
        old, damping = progress.solution, progress.damping
        wanted = rule.update(data, old.sites, old.mean, old.variance)
        sites = jax.tree.map(lambda a, b: a + damping * (b - a), old.sites, wanted)
        mean, variance, objective = evaluate(sites)
        slack = 1e-9 * (1.0 + jnp.abs(progress.objective))
        better = (objective > progress.objective - slack) & jnp.all(variance > 0.0)
        better = better & jnp.isfinite(objective)
        moved = jnp.maximum(
            jnp.max(jnp.abs(mean - old.mean) / jnp.sqrt(old.variance)),
            jnp.max(jnp.abs(variance / old.variance - 1.0)),
        )
        # of a step that was damped, or follows one, nothing can be told but its length
        ratio = jnp.clip(moved / progress.step, _FASTEST, _SLOWEST)
        told = (damping == 1.0) & jnp.isfinite(progress.step)
        to_go = jnp.where(told, moved * ratio / (1.0 - ratio), moved / damping)
        step = jnp.where(damping == 1.0, moved, jnp.inf)
        new = Solution(sites, mean, variance, old.num_iterations + 1, to_go)
        kept = old._replace(num_iterations=old.num_iterations + 1)
        solution, step, objective = jax.tree.map(
            lambda a, b: jnp.where(better, a, b),
            (new, step, objective),
            (kept, progress.step, progress.objective),
        )
        damping = jnp.where(better, jnp.minimum(1.0, 2.0 * damping), 0.5 * damping)
        return _Progress(solution, step, objective, damping)

    mean, variance, objective = evaluate(start)
    far = jnp.array(jnp.inf)
    first = Solution(start, mean, variance, jnp.array(0), far)
    progress = _Progress(first, far, objective, jnp.array(1.0))
    return jax.lax.while_loop(unfinished, iterate, progress).solution


# --- the target -------------------------------------------------------------------------


class Collapsed(Target):
    """Any likelihood, f integrated out by EP, VI or Laplace; dense, or sparse with Z.

    `start` are the sites that the iteration begins with: 0 for those that each row's own
    data give it. The result does not depend on it but to the tolerance, the number of
    iterations does; since it is a constant of the target, what the target says of a theta
    depends on nothing but that theta.
    """

    specification: Specification
    start: Sites
    Z: Any = None  # (M, D)
    jitter: float = DEFAULT_JITTER
    rule: str = eqx.field(default="ep", static=True)
    tolerance: float = eqx.field(default=TOLERANCE, static=True)
    num_latents: int = eqx.field(default=0, static=True)

    @staticmethod
    def at_rest(num_rows: int) -> Sites:
        """Sites without a start."""
        return Sites(np.zeros(num_rows), np.zeros(num_rows))

    def matrix_size(self, num_rows: int) -> int:
        return num_rows if self.Z is None else len(self.Z)

    def _prior(self, model: Model, batch: Batch) -> tuple[Prior, Array]:
        """g's prior, and the variance of f that it leaves open."""
        if self.Z is not None:
            points = jnp.asarray(self.Z)
            K = model.kernel.cross(points, points)
            A = whiten(K, model.kernel.cross(points, batch.X), self.jitter)
            rest = model.kernel.diag(batch.X) - jnp.sum(A * A, axis=0)
            return _Features(A), jnp.maximum(rest, 0.0)
        K = add_diagonal(model.kernel.gram(batch.X), self.jitter)
        rest = jnp.zeros(len(batch.y))
        if model.likelihood.log_concave:
            return _Rows(K), rest
        return _Features(cholesky(K, 0.0).T), rest

    def covariance(self, theta: Particle, data: Batch) -> Array:
        kernel = self.specification.at(theta).kernel
        if self.Z is None:
            return kernel.gram(data.X)
        points = jnp.asarray(self.Z)
        return kernel.cross(points, points)

    def _parts(self, theta: Particle, batch: Batch) -> tuple[Prior, _Data]:
        model = self.specification.at(theta)
        prior, rest = self._prior(model, batch)
        offset = model.mean.of(batch.X)
        data = _Data(model.likelihood, batch.y, batch.row, batch.mask, offset, rest)
        return prior, data

    def _solve(self, prior: Prior, data: _Data) -> Solution:
        prior, data = stop_gradient((prior, data))
        diagonal = (
            jnp.diagonal(prior.K)
            if isinstance(prior, _Rows)
            else jnp.sum(prior.A**2, axis=0)
        )
        own = data.tilted(jnp.zeros_like(data.y), diagonal)
        given = jnp.any(jnp.asarray(self.start.tau) != 0.0)
        # B is positive for any theta where no tau is negative
        start = Sites(
            jnp.where(given, jnp.maximum(self.start.tau, 0.0), own.tau),
            jnp.where(given, self.start.nu, own.nu),
        )
        found = solve(prior, RULES[self.rule], data, start, self.tolerance)
        return stop_gradient(found)

    def solution(self, theta: Particle, batch: Batch) -> Solution:
        """q's sites and marginals of g = f - m(x) at the rows, for one particle."""
        return self._solve(*self._parts(theta, batch))

    def log_likelihood(self, theta: Particle, batch: Batch) -> Array:
        prior, data = self._parts(theta, batch)
        return self._log_evidence(prior, data, self._solve(prior, data))

    def _log_evidence(self, prior: Prior, data: _Data, found: Solution) -> Array:
        if self.rule == "laplace":
            sites = _Laplace().update(data, found.sites, found.mean, found.variance)
            mode, log_prior = prior.mode(sites)
            at_mode = _Laplace().update(data, sites, mode, found.variance)
            fit = jnp.sum(data.expected(mode, jnp.zeros_like(mode)))
            return fit + log_prior - prior.half_log_det(at_mode.tau)
        rule = RULES[self.rule]
        assert not isinstance(rule, _Laplace)
        gain = rule.gain(data, found.sites, found.mean, found.variance)
        return prior.log_integral(found.sites) + gain

    def started_at(self, sites: Sites) -> "Collapsed":
        """The same target, whose iteration begins with these sites."""
        return eqx.tree_at(lambda t: t.start, self, sites)

    def log_error(
        self, theta: Particle, batch: Batch, key: Array, num_pairs: int
    ) -> Float[Array, ""]:
        """log of p(y | theta) over its approximation, estimated without bias.

        By importance sampling from q(f | theta), with pairs of opposite draws; the
        exponential of the result is what has no bias. Not for inducing points.
        """
        if self.Z is not None:
            raise ValueError("log_error compares with f at every row, not with Z.")
        model = self.specification.at(theta)
        prior, rows = self._parts(theta, batch)
        found = self._solve(prior, rows)
        known = self._conditional(theta, batch, prior, found.sites)
        assert known.root is not None
        half = jax.random.normal(key, (num_pairs, len(batch.y)))
        white = jnp.concatenate([half, -half])
        v = known.white[None, :] + white @ known.root.T
        f = model.mean.of(batch.X)[None, :] + v @ known.L.T

        def log_likelihood(f: Array) -> Array:
            rows = model.likelihood.log_prob(batch.y, f, batch.row)
            return jnp.sum(batch.mask * rows)

        log_weights = jax.vmap(log_likelihood)(f)
        log_weights = log_weights + 0.5 * jnp.sum(white**2 - v**2, axis=1)
        log_weights = log_weights + jnp.sum(jnp.log(jnp.diagonal(known.root)))
        estimate = jax.scipy.special.logsumexp(log_weights) - np.log(2 * num_pairs)
        return estimate - self._log_evidence(prior, rows, found)

    def leave_one_out(self, theta: Particle, data: Batch) -> Array:
        """From each row's cavity: q without the row's own site (as EP itself sees it)."""
        prior, rows = self._parts(theta, data)
        found = self._solve(prior, rows)
        precision = 1.0 / found.variance - found.sites.tau
        precision = jnp.maximum(precision, 1e-10 / found.variance)
        mean = (found.mean / found.variance - found.sites.nu) / precision
        return rows.log_predictive(mean, 1.0 / precision)

    def condition(self, theta: Particle, data: Batch) -> Conditional:
        prior, rows = self._parts(theta, data)
        return self._conditional(theta, data, prior, self._solve(prior, rows).sites)

    def _conditional(
        self, theta: Particle, data: Batch, prior: Prior, sites: Sites
    ) -> Conditional:
        points = data.X if self.Z is None else jnp.asarray(self.Z)
        if isinstance(prior, _Rows):
            L = cholesky(prior.K, 0.0)
            prior = _Features(L.T)
        else:
            L = cholesky(self.covariance(theta, data), self.jitter)
        root = inverse_lower(prior.factor(sites.tau)).T
        white = root @ (root.T @ (prior.A @ sites.nu))
        return Conditional(points, L, white, root)

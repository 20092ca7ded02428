"""Any likelihood with f integrated out: each theta has a Gaussian q(f | theta) of its own.

q is found by EP, VI or Laplace (`steingp.targets.sites`). At the fixed point of EP and VI
the evidence is stationary in the sites, so its gradient is the one with the sites held
still: nothing is differentiated through the iteration. Laplace's needs how the mode moves:
one more Newton step, which is differentiated.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import stop_gradient
from jaxtyping import Float

from steingp.data import Batch
from steingp.linalg import (
    DEFAULT_JITTER,
    add_diagonal,
    cholesky,
    inverse_lower,
    whiten,
)
from steingp.priors import Particle
from steingp.targets.base import Conditional, Model, Specification, Target
from steingp.targets.sites import (
    RULES,
    TOLERANCE,
    Features,
    Laplace,
    Prior,
    Rows,
    SeenRows,
    Sites,
    Solution,
    solve,
)


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
            return Features(A), jnp.maximum(rest, 0.0)
        K = add_diagonal(model.kernel.gram(batch.X), self.jitter)
        rest = jnp.zeros(len(batch.y))
        if model.likelihood.log_concave:
            return Rows(K), rest
        return Features(cholesky(K, 0.0).T), rest

    def covariance(self, theta: Particle, data: Batch) -> Array:
        kernel = self.specification.at(theta).kernel
        if self.Z is None:
            return kernel.gram(data.X)
        points = jnp.asarray(self.Z)
        return kernel.cross(points, points)

    def _parts(self, theta: Particle, batch: Batch) -> tuple[Prior, SeenRows]:
        model = self.specification.at(theta)
        prior, rest = self._prior(model, batch)
        offset = model.mean.of(batch.X)
        data = SeenRows(model.likelihood, batch.y, batch.row, batch.mask, offset, rest)
        return prior, data

    def _solve(self, prior: Prior, data: SeenRows) -> Solution:
        prior, data = stop_gradient((prior, data))
        diagonal = (
            jnp.diagonal(prior.K)
            if isinstance(prior, Rows)
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

    def _log_evidence(self, prior: Prior, data: SeenRows, found: Solution) -> Array:
        if self.rule == "laplace":
            sites = Laplace().update(data, found.sites, found.mean, found.variance)
            mode, log_prior = prior.mode(sites)
            at_mode = Laplace().update(data, sites, mode, found.variance)
            fit = jnp.sum(data.expected(mode, jnp.zeros_like(mode)))
            return fit + log_prior - prior.half_log_det(at_mode.tau)
        rule = RULES[self.rule]
        assert not isinstance(rule, Laplace)
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
        if isinstance(prior, Rows):
            L = cholesky(prior.K, 0.0)
            prior = Features(L.T)
        else:
            L = cholesky(self.covariance(theta, data), self.jitter)
        root = inverse_lower(prior.factor(sites.tau)).T
        white = root @ (root.T @ (prior.A @ sites.nu))
        return Conditional(points, L, white, root)

"""New rows: draws are weighted by what they say of them, and moved if few are left."""

import copy
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from steingp import verdicts
from steingp.data import Batch, as_batch, check_column, check_inputs, in_order
from steingp.diagnostics import Verdict
from steingp.evidence import Evidence
from steingp.fitting import Fit
from steingp.inference import fit
from steingp.models import SteinGP
from steingp.posterior import Mode, Posterior
from steingp.precision import float64, to_numpy
from steingp.prediction import Particles, row_of
from steingp.priors import Particle
from steingp.targets import Collapsed, Marginal, Target, Titsias
from steingp.targets.sites import Sites
from steingp.weights import effective_size as size_of_weights
from steingp.weights import log_sum, pareto_smooth, resample

ENOUGH = 0.4
"""Share of the draws' worth that must be left after weighting; below, they are moved."""
FEWEST = 10.0
"""What weighted draws must be worth to start from; below, the fit is made anew."""


def update(
    posterior: Posterior,
    X: Any,
    y: Any,
    *,
    per_row: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Posterior:
    """See `Posterior.update`."""
    old = _checked(posterior)
    model = _with_rows(old, posterior, X, y, per_row)
    gains = _gains(old, model, posterior)
    if not np.isfinite(gains).any():
        return fit(model, seed=seed, progress=progress)
    gains = np.where(np.isfinite(gains), gains, -np.inf)
    weights, k = pareto_smooth(np.log(posterior.weights) + gains)
    left = size_of_weights(weights) / size_of_weights(posterior.weights)
    if left >= ENOUGH and k <= verdicts.LARGEST_K:
        return _weighted(model, posterior, weights, gains, left, float(k))
    if size_of_weights(weights) < FEWEST:
        return fit(model, seed=seed, progress=progress)
    return _moved(model, posterior, weights, seed, progress)


def _checked(posterior: Posterior) -> SteinGP:
    if not isinstance(posterior._target, Marginal | Titsias | Collapsed):
        raise ValueError(
            "update needs a posterior in which f is integrated out, of data in memory; "
            f"this one: {posterior.method or 'draws alone'}. Fit a new model to all rows."
        )
    return SteinGP.of(posterior)


def _with_rows(
    model: SteinGP, posterior: Posterior, X: Any, y: Any, per_row: Any
) -> SteinGP:
    """The model with these rows added, in its own scaling."""
    likelihood, scaling = model.target.specification.likelihood, model.scaling
    values, _ = check_inputs(in_order(X, model.labels), "X", model.data.X.shape[1])
    column = check_column(y, "y", len(values))
    likelihood.check_targets(column)
    row = row_of(likelihood, scaling, len(values), per_row)
    new = copy.copy(model)
    added = (scaling.inputs(values), scaling.outputs(column), row)
    joined = [np.concatenate(p) for p in zip(posterior._data[:3], added, strict=True)]
    new.data = as_batch(*joined)
    new.num_data = len(new.data.y)
    if isinstance(model.target, Collapsed):
        earlier, rest = model.target.start, np.zeros(len(values))
        new.target = model.target.started_at(
            Sites(*(np.concatenate([sites, rest]) for sites in earlier))
        )
    return new


def _gains(old: SteinGP, new: SteinGP, posterior: Posterior) -> np.ndarray:
    """log p(y_new | y_old, theta) of every draw."""
    before = _log_likelihoods(old.target, posterior.particles, old.data)
    after = _log_likelihoods(new.target, posterior.particles, new.data)
    return np.asarray(after) - np.asarray(before)


@float64
@eqx.filter_jit
def _log_likelihoods(target: Target, particles: Particles, data: Batch) -> Array:
    data = Batch(*(jnp.asarray(column) for column in data))
    draws = {name: jnp.asarray(v) for name, v in particles.items()}
    return jax.lax.map(lambda theta: target.log_likelihood(theta, data), draws)


def _weighted(
    model: SteinGP,
    posterior: Posterior,
    weights: np.ndarray,
    gains: np.ndarray,
    left: float,
    k: float,
) -> Posterior:
    report, verdict = posterior.report, posterior.verdict
    size = left * (posterior.num_draws if report is None else report.effective_size)
    if report is not None:
        report = report._replace(effective_size=size, weighted=True)
    if verdict is not None:
        kept = [c for c in verdict.checks if c.name not in ("effective size", "jitter")]
        checks = (*kept, verdicts.enough_draws(size, 0.0), verdicts.weights_stable(k))
        verdict = Verdict(checks)
    added = model.num_data - len(posterior._data.y)
    updated = model.posterior(
        posterior.particles,
        weights=weights,
        report=report,
        method=f"{posterior.method}; weighted by {added} new rows, worth {size:.0f}",
        modes=[
            Mode(float(weights[mode.draws].sum()), mode.draws)
            for mode in posterior.modes
        ],
        verdict=verdict,
    )
    earlier = posterior.evidence_of_modes
    if earlier is not None:
        # the evidence of all rows: of the old ones, times the new ones' given those
        groups = [mode.draws for mode in posterior.modes]
        unit = added * np.log(model.scaling.y_scale)

        def evidence() -> list[Evidence]:
            return [
                _with_gain(part, gains[rows] - unit, posterior.weights[rows])
                for part, rows in zip(earlier(), groups, strict=True)
            ]

        updated.evidence_of_modes = evidence
    return updated


def _with_gain(part: Evidence, gains: np.ndarray, weights: np.ndarray) -> Evidence:
    shares = weights / weights.sum()
    gain = log_sum(gains, shares)
    ratio = np.exp(gains - gain)
    error = np.sqrt(np.sum((shares * (ratio - 1.0)) ** 2))
    return part.shifted(gain)._replace(error=float(np.hypot(part.error, error)))


def _moved(
    model: SteinGP,
    posterior: Posterior,
    weights: np.ndarray,
    seed: int,
    progress: bool,
) -> Posterior:
    """A fit that starts where the weighted draws are."""
    report = posterior.report
    J = None if report is None else report.num_particles
    run = Fit(model, J, seed=seed, explore=False)
    draws = to_numpy(_positions(model.target.normalised(), posterior.particles))
    rng = np.random.default_rng(seed)
    run.start_at(draws[resample(weights, len(run.state.particles), rng)])
    run.run(progress=progress)
    return run.posterior()


@float64
@eqx.filter_jit
def _positions(target: Target, particles: Particles) -> Array:
    def one(theta: Particle) -> Array:
        return ravel_pytree(target.unconstrain(theta))[0]

    return jax.vmap(one)({name: jnp.asarray(v) for name, v in particles.items()})

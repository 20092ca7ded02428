"""The verdict on draws that no fit of ours has judged, and on their factorisations."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from steingp import verdicts
from steingp.data import Batch
from steingp.diagnostics import NUM_SCORED, Check, Verdict, spread
from steingp.linalg import extra_jitter
from steingp.precision import float64, to_numpy
from steingp.prediction import Particles
from steingp.priors import Particle
from steingp.targets import LATENTS, Collapsed, Marginal, Target, Variational

if TYPE_CHECKING:
    from steingp.posterior import Posterior

_FACTORISED = 10
"""Draws whose covariances are factorised to see what jitter they need."""
_UNCORRECTED = Check(
    "correction",
    None,
    "particles of plain SVGD, or given by hand: no move has corrected their spread",
    "Use steingp.fit(model).",
)


def judge_draws(posterior: "Posterior") -> Verdict:
    """The verdict on draws, from the density they claim to be from."""
    target, data = posterior._target, posterior._data
    end = [_UNCORRECTED, verdicts.enough_draws(posterior.num_draws, 0.0)]
    if posterior.history is not None and len(posterior.history.log_density):
        end.append(_steps(posterior))
    if not target.specification.hyperparameters.free and not target.num_latents:
        return Verdict((*_of_known(posterior), _jitter(posterior)))
    if isinstance(target, Variational):
        return Verdict((*end[1:], _of_batches(posterior), _jitter(posterior)))
    num = min(NUM_SCORED, posterior.num_draws)
    some = np.linspace(0, posterior.num_draws - 1, num).astype(int)
    particles = {name: v[some] for name, v in posterior.particles.items()}
    draws, scores = to_numpy(_scores(target.normalised(), particles, data))
    if posterior.num_draws > 1:
        end.append(verdicts.spread_right(spread(draws, scores), num, draws.shape[1]))
        end.append(verdicts.agrees_with_scores(draws, scores))
        end.append(_collapse(target.normalised(), draws, data))
    return Verdict((*end, _jitter(posterior)))


def _of_known(posterior: "Posterior") -> list[Check]:
    """Where no hyperparameter is free: is f's law given them the right one?"""
    target, data = posterior._target, posterior._data
    known = Check("hyperparameters", True, "every one is known")
    if isinstance(target, Marginal):
        return [known, Check("exact", True, "f's law given them has a closed form")]
    finding = "f's law given hyperparameters is approximate, by how much is not known"
    remedy = "See sg.fit(SteinGP(..., latents='joint')), or more inducing points."
    checks = [known, Check("approximation", None, finding, remedy)]
    if isinstance(target, Collapsed):
        theta = {name: value[0] for name, value in posterior.particles.items()}
        to_go = np.asarray(_to_go(target, theta, data))
        checks.append(verdicts.solver_converged(to_go[None], target.tolerance))
    return checks


@float64
@eqx.filter_jit
def _to_go(target: Collapsed, theta: Particle, data: Batch) -> Array:
    theta = {name: jnp.asarray(value) for name, value in theta.items()}
    return target.solution(theta, _on_device(data)).to_go


def _collapse(target: Target, draws: np.ndarray, data: Batch) -> Check:
    scale = np.maximum(draws.std(axis=0), np.finfo(float).tiny)
    apart = np.sum(((draws - np.median(draws, axis=0)) / scale) ** 2, axis=1)
    middle = draws[np.argmin(apart)]
    if isinstance(target, Collapsed):  # whose inner iteration has no second derivative
        return Check("collapse", None, "no curvature where f's integral is approximate")
    return verdicts.not_collapsed(draws, to_numpy(_curvature(target, middle, data)))


def with_factorisations(posterior: "Posterior", verdict: Verdict) -> Verdict:
    """A fit's verdict, and what jitter its draws needed."""
    return Verdict((*verdict.checks, _jitter(posterior)))


def _steps(posterior: "Posterior") -> Check:
    history = posterior.history
    assert history is not None
    sizes = [np.prod(v.shape[1:]) for v in posterior.particles.values()]
    return verdicts.ascended(
        np.asarray(history.log_density),
        np.asarray(history.bandwidth),
        int(np.asarray(history.num_failed)[-1]),
        int(sum(sizes)),
    )


def _of_batches(posterior: "Posterior") -> Check:
    target, data = posterior._target, posterior._data
    free = target.specification.hyperparameters.free
    d = sum(int(np.prod(p.shape)) for p in free)
    assert isinstance(target, Variational)
    whole = len(data.y) >= target.num_data  # else a stream's first block
    values = None
    if whole:
        values = np.asarray(_log_densities(target, posterior.particles, data))
    return verdicts.bounds_spread(values, d)


def _jitter(posterior: "Posterior") -> Check:
    num = min(_FACTORISED, posterior.num_draws)
    some = np.linspace(0, posterior.num_draws - 1, num).astype(int)
    particles = {name: v[some] for name, v in posterior.particles.items()}
    extra = _extra_jitter(posterior._target, particles, posterior._data)
    return verdicts.little_jitter(np.asarray(extra))


def _on_device(data: Batch) -> Batch:
    return Batch(*(jnp.asarray(column) for column in data))


@float64
@eqx.filter_jit
def _scores(target: Target, particles: Particles, data: Batch) -> tuple[Array, Array]:
    """Draws as vectors in which priors are standard normal, and their scores."""

    def one(theta: Particle) -> tuple[Array, Array]:
        z, unravel = ravel_pytree(target.unconstrain(theta))

        def log_density(z: Array) -> Array:
            return target(unravel(z), _on_device(data))

        return z, jax.grad(log_density)(z)

    return jax.lax.map(one, {n: jnp.asarray(v) for n, v in particles.items()})


@float64
@eqx.filter_jit
def _curvature(target: Target, z: Array, data: Batch) -> Array:
    free = target.specification.hyperparameters.free
    shapes = {p.name: jnp.zeros(p.shape) for p in free}
    if target.num_latents:
        shapes[LATENTS] = jnp.zeros(target.num_latents)
    unravel = ravel_pytree(shapes)[1]
    score = jax.grad(lambda z: target(unravel(z), _on_device(data)))
    return -jax.lax.map(
        lambda step: jax.jvp(score, (jnp.asarray(z),), (step,))[1], jnp.eye(len(z))
    )


@float64
@eqx.filter_jit
def _log_densities(target: Target, particles: Particles, data: Batch) -> Array:
    """Bound and log prior of every particle, on all rows."""
    hyperparameters = target.normalised().specification.hyperparameters

    def one(theta: Particle) -> Array:
        prior = hyperparameters.log_prior(hyperparameters.unconstrain(theta))
        return target.log_likelihood(theta, _on_device(data)) + prior

    return jax.lax.map(one, {n: jnp.asarray(v) for n, v in particles.items()})


@float64
@eqx.filter_jit
def _extra_jitter(target: Target, particles: Particles, data: Batch) -> Array:
    def one(theta: Particle) -> Array:
        return extra_jitter(target.covariance(theta, _on_device(data)), target.jitter)

    return jax.lax.map(one, {n: jnp.asarray(v) for n, v in particles.items()})

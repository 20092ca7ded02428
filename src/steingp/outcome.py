"""What a fit came to: kept draws, their weights and modes, a report and a verdict."""

import copy

import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from steingp import flat, modes, tempering, verdicts
from steingp.data import Batch
from steingp.diagnostics import NUM_SCORED, Verdict
from steingp.evidence import Evidence, log_mass_near, rough_log_mass
from steingp.fitting import Fit
from steingp.models import SteinGP
from steingp.posterior import FEWEST_DRAWS, FitReport, Mode, Posterior
from steingp.precision import float64, to_numpy
from steingp.run_state import State
from steingp.streamed import FullPasses
from steingp.targets import Collapsed, Titsias, Variational
from steingp.weights import Mixing, log_sum, pareto_smooth
from steingp.weights import effective_size as size_of_weights

_MOST_WEIGHED = 500
"""Draws that are weighted, where weights are needed: each costs a gradient or two."""
_WEIGHED_PEAKS = 5
"""Peaks beyond all draws, whose mass is estimated."""
_SOLVED = 20
"""Draws at which the inner iteration is looked at."""


def posterior_of(run: Fit) -> Posterior:
    """The draws as a posterior: those collected, or else where particles are now."""
    parts = [_kept(run, k) for k in range(len(run.states))]
    kept = np.concatenate(parts)
    mode_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    done = all(state.stage == "done" for state in run.states)
    masses = np.bincount(mode_of) / len(kept)
    several = len(parts) > 1 and done
    if several:
        masses = softmax([e.log_value for e in run.evidence()])
    share = (masses / np.bincount(mode_of))[mode_of]
    weights, k, gain = _weights(run, kept, share)
    mixings = [_mixing(state) for state in run.states]
    report = _report(run, len(kept), k, weights, mixings, masses)
    weights = share if weights is None else weights
    found = _evidence_with(run, gain) if several else [None] * len(parts)
    largest = run.states[int(np.argmax(masses))]
    posterior = _owner(run).posterior(
        _particles(run, kept),
        weights=weights,
        report=report,
        checkpoint=run.state_dict(),
        method=_method(run, report),
        modes=[
            Mode(float(weights[mode_of == k].sum()), np.flatnonzero(mode_of == k), e)
            for k, e in enumerate(found)
        ],
        paths=_paths(run, largest),
        trace=_trace(largest),
        verdict=judge(run, report, mixings),
    )
    if done:
        posterior.evidence_of_modes = lambda: _evidence_with(run, gain)
    return posterior


def of_known(model: SteinGP) -> Posterior:
    """The posterior of a model whose hyperparameters are fixed, f being integrated out.

    One draw, whose evidence is the likelihood.

    Example:
        >>> import numpy as np, steingp as sg
        >>> from steingp.outcome import of_known
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> kernel = sg.kernels.Matern32(sg.fixed(1.0), sg.fixed(2.0))
        >>> noise = sg.likelihoods.Gaussian(sg.fixed(0.1))
        >>> posterior = of_known(sg.SteinGP((X, np.cos(X)), kernel, noise))
        >>> posterior.num_draws, posterior.log_evidence().error
        (1, 0.0)
    """
    known = model.target.specification.hyperparameters.known
    draw = {name: np.asarray(value)[None] for name, value in known.items()}
    posterior = model.posterior(draw, method="every hyperparameter is fixed")
    posterior.diagnose()

    @float64
    def evidence() -> list[Evidence]:
        data = Batch(*map(jnp.asarray, model.data))
        theta = {name: jnp.asarray(value) for name, value in known.items()}
        value = float(model.target.log_likelihood(theta, data))
        value -= model.num_data * np.log(model.scaling.y_scale)
        return [Evidence(value, 0.0, (value, value), 1.0)]

    posterior.evidence_of_modes = evidence
    return posterior


def _kept(run: Fit, k: int) -> np.ndarray:
    """Draws of a mode, thinned where there are more than are of use."""
    state = run.states[k]
    draws = state.draws
    if run.exploring:
        assert run.exploration is not None
        return run.exploration.positions
    if state.stage not in ("collecting", "done") or not state.sweeps:
        particles = state.particles if state.moves is None else state.moves.positions
        draws = np.asarray(particles)[None]
    every = max(1, int(draws.shape[0] * draws.shape[1] // (2 * run.wanted)))
    if isinstance(run.model.target, Collapsed):
        most = max(1, draws.shape[0] * draws.shape[1] // _MOST_WEIGHED)
        every = max(every, most)
    kept = draws[::every].reshape(-1, draws.shape[-1])
    if run.by_mode.modes.num_modes > 1:
        inside = run.by_mode.modes.of(kept) == k
        kept = kept[inside] if inside.any() else kept
    if run.model.stream is not None:
        kept = kept[:: max(1, -(-len(kept) // FEWEST_DRAWS))]
    return kept


def _paths(run: Fit, state: State) -> dict[str, np.ndarray]:
    """Collected draws, name -> (sweeps, J, ...)."""
    if state.stage not in ("collecting", "done") or not state.sweeps:
        return {}
    sweeps, J, d = state.draws.shape
    flattened = flat.constrain(run.density, state.draws.reshape(-1, d))
    return {name: a.reshape(sweeps, J, *a.shape[1:]) for name, a in flattened.items()}


def _trace(state: State) -> dict[str, np.ndarray]:
    """Of the collected sweeps; of all, while there are none to be kept."""
    if state.stage not in ("collecting", "done"):
        return dict(state.trace)
    return {n: v[len(v) - state.sweeps :] for n, v in state.trace.items()}


def _mixing(state: State) -> Mixing | None:
    collected = state.stage in ("collecting", "done") and state.sweeps >= 4
    return state.mixing if collected else None


def _evidence_with(run: Fit, gain: float) -> list[Evidence]:
    """Of each mode, corrected by what weights know of it, and for the unit of y."""
    shift = gain - run.model.num_data * np.log(run.model.scaling.y_scale)
    return [part.shifted(shift) for part in run.evidence()]


def _particles(run: Fit, kept: np.ndarray) -> dict[str, np.ndarray]:
    scored = run.scored()
    if isinstance(scored, FullPasses):
        return to_numpy(float64(scored.particles)(jnp.asarray(kept)))
    return flat.constrain(run.density, kept)


def _owner(run: Fit) -> SteinGP:
    """Whose posterior it is: of a stream, the model whose particles carry q(u).

    Where f's integral is approximate, inner iterations begin where the fit's last did:
    from rest they fail for some draws.
    """
    owner, target = copy.copy(run.model), run.model.target
    if isinstance(target, Collapsed):
        assert isinstance(run.density.target, Collapsed)
        owner.target = target.started_at(run.density.target.start)
    if run.model.stream is None:
        return owner
    assert isinstance(target, Titsias)
    owner.target = Variational(
        target.specification,
        Z=target.Z,
        num_data=float(owner.num_data),
        jitter=target.jitter,
    )
    return owner


def _weights(
    run: Fit, kept: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray | None, float | None, float]:
    """Weights for what the approximate evidence got wrong, if they can be had.

    With them, their Pareto k, and the log of what it got wrong on the whole.
    """
    target = run.density.target
    if not isinstance(target, Collapsed) or target.Z is not None:
        return None, None, 0.0
    if any(state.stage != "done" for state in run.states) or len(kept) < 25:
        return None, None, 0.0
    with run.blas():
        errors = flat.log_errors(run.density, kept, run.seed, run.data)
    if not np.all(np.isfinite(errors)):
        return None, float("inf"), 0.0
    gain = log_sum(errors, share)
    weights, k = pareto_smooth(errors + np.log(share))
    # noisier than what they correct: leave them, and say so
    poor = size_of_weights(weights) < 0.5 * size_of_weights(share)
    if k > verdicts.LARGEST_K or poor:
        return None, float(k), gain
    return weights, float(k), gain


def _report(
    run: Fit,
    num_kept: int,
    k: float | None,
    weights: np.ndarray | None,
    mixings: list[Mixing | None],
    masses: np.ndarray,
) -> FitReport:
    share = 1.0
    if weights is not None:
        share = size_of_weights(weights) / len(weights)
    size, rhat = 0.0, float("nan")
    known = [m for m in mixings if m is not None]
    if len(known) == len(mixings):
        # masses are known, draws within them are worth so many
        size = 1.0 / sum(
            m**2 / w.smallest_size for m, w in zip(masses, known, strict=True)
        )
        rhat = max(float(w.mean_rhat.max()) for w in known)
    acceptances = [s.trace.get("acceptance", np.zeros(0)) for s in run.states]
    acceptance = np.concatenate(acceptances)
    return FitReport(
        stage=run.stage,
        effective_size=min(share * size, num_kept),
        rhat=rhat,
        num_particles=len(run.state.particles),
        num_gradients=sum(s.num_gradients for s in run.states),
        num_values=sum(s.num_values for s in run.states),
        num_sweeps=sum(s.sweeps for s in run.states) if known else 0,
        acceptance=float(np.nanmean(acceptance)) if len(acceptance) else float("nan"),
        num_replaced=sum(s.num_replaced for s in run.states),
        pareto_k=k,
        weighted=weights is not None,
        seconds=run.seconds,
    )


def _method(run: Fit, report: FitReport) -> str:
    if report.stage != "done":
        return f"stopped while {report.stage}"
    size = report.effective_size
    short = f" of the {run.wanted:.0f} asked for" if size < run.wanted else ""
    return (
        f"{run.begun_by} and corrected moves, worth {size:.0f} independent draws{short}"
    )


# --- the verdict ------------------------------------------------------------------------


def judge(run: Fit, report: FitReport, mixings: list[Mixing | None]) -> Verdict:
    """All checks of a fit; of one that was stopped, that it was."""
    end = verdicts.finished(report.stage)
    sizes = [m.smallest_size for m in mixings if m is not None]
    if not end.passed or len(sizes) < len(run.states):
        return Verdict((end,))
    known = [m for m in mixings if m is not None]
    rhats = [
        max(float(np.max(each)) for each in of_modes)
        for of_modes in zip(*((m.mean_rhat, m.square_rhat) for m in known), strict=True)
    ]
    checks = [
        end,
        verdicts.enough_draws(report.effective_size, run.wanted),
        verdicts.mixed(rhats[0], rhats[1], report.num_particles, run.wanted),
        _steps(run),
        *_against_scores(run, sizes),
        *_of_approximation(run, report),
        _of_modes(run),
    ]
    return Verdict(tuple(checks))


def _steps(run: Fit) -> verdicts.Check:
    """Of the collected sweeps of the mode in which it is worst."""
    found = []
    for state in run.states:
        trace = _trace(state)
        # beyond the walls between modes the density is 0, which is no failure
        failed = 0.0
        if len(run.states) == 1:
            trajectories = state.draws.shape[1] * np.sum(trace["num_leapfrog"] > 0)
            failed = np.sum(trace["num_failed"]) / max(trajectories, 1)
        found.append(
            verdicts.accepted(
                float(np.nanmean(trace["acceptance"])),
                float(failed),
                float(np.max(trace["energy_error"])),
            )
        )
    return min(found, key=lambda check: bool(check.passed))


def _against_scores(run: Fit, sizes: list[float]) -> list[verdicts.Check]:
    """Spread and Stein discrepancy, of the mode in which each is worst."""
    each = []
    for k, (state, size) in enumerate(zip(run.states, sizes, strict=True)):
        if k in run.by_mode.walled:  # its law ends there, where the density does not
            continue
        draws = state.draws
        if run.by_mode.modes.num_modes > 1:
            flat_draws = draws.reshape(-1, draws.shape[-1])
            draws = flat_draws[run.by_mode.modes.of(flat_draws) == k][:, None]
        some = _far_apart(draws, min(NUM_SCORED // len(run.states), int(size)))
        _, scores = run.evaluate(some)
        each.append(verdicts.follows_scores(some, scores, size))
    return [
        min(checks, key=lambda check: bool(check.passed))
        for checks in zip(*each, strict=True)
    ]


def _far_apart(draws: np.ndarray, num: int) -> np.ndarray:
    """About so many draws (sweeps, J, d) -> (num, d), those of a particle far apart.

    A particle that waited for a leap is in many sweeps after each other.
    """
    sweeps, J, d = draws.shape
    num = max(2, min(num, sweeps * J))
    chosen = np.linspace(0, sweeps - 1, -(-num // J)).astype(int)
    some = draws[chosen].reshape(-1, d)
    return some[np.linspace(0, len(some) - 1, num).astype(int)]


def _of_approximation(run: Fit, report: FitReport) -> list[verdicts.Check]:
    target = run.density.target
    if isinstance(target, Titsias):
        reason = "inducing points: hyperparameters follow a bound of the evidence"
        return [verdicts.weights_good(None, False, reason)]
    if not isinstance(target, Collapsed):
        return []
    draws = run.state.draws.reshape(-1, run.state.draws.shape[-1])
    some = draws[np.linspace(0, len(draws) - 1, _SOLVED).astype(int)]
    to_go = run.inner_distance(some)
    reason = "inducing points: what the bound leaves open is not known"
    return [
        verdicts.solver_converged(to_go, target.tolerance),
        verdicts.weights_good(report.pareto_k, report.weighted, reason),
    ]


def _of_modes(run: Fit) -> verdicts.Check:
    masses = run.evidence() if len(run.states) > 1 else []
    if run.exploration is None:
        num = len(run.state.particles)
        return verdicts.modes_found(len(run.states), None, masses, num)
    parts = [s.draws.reshape(-1, s.draws.shape[-1]) for s in run.states]
    explored = run.exploration
    missed = float(np.mean(modes.outside(explored.positions, parts)))
    missed = max(missed, _mass_of_peaks(run, parts))
    num = len(explored.positions)
    return verdicts.modes_found(len(run.states), missed, masses, num)


def _mass_of_peaks(run: Fit, parts: list[np.ndarray]) -> float:
    """About what share of the mass is near the best peak that no draw is near."""
    assert run.exploration is not None
    peaks = run.exploration.peaks
    peaks = peaks[modes.outside(peaks, parts)] if len(peaks) else peaks
    if not len(peaks):
        return 0.0
    highest = peaks[np.argsort(-run.evaluate(peaks)[0])]
    some = tempering.spread_out(highest[:20], min(_WEIGHED_PEAKS, len(highest)))
    known = [
        rough_log_mass(part, state.values.ravel())
        for part, state in zip(parts, run.states, strict=True)
    ]
    missed = max(log_mass_near(peak, run.evaluate) for peak in some)
    return float(np.exp(missed - log_sum([missed, *known])))

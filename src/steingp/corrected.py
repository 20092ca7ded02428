"""SVGD, corrected: from scattered particles to draws whose spread is right.

Over any log density of a vector, whose prior should be about standard normal:

1. *SVGD*: a short run brings the particles to where the mass is. It ends when the mean log
   density no longer rises.
2. *adapting*: Metropolis-adjusted Hamiltonian moves, in windows of sweeps, each of which
   gives metric and step to the next. It ends when a window's mean log density is that of
   the window before, and the widths of its draws are those of its metric.
3. *trying leaps*: metric and step are frozen, and some sweeps are of leaps alone
   (`steingp.leaps`), whose law is fitted to draws of the second stage. If they are taken
   often enough, the law is fitted again, with these draws, and frozen as well; else there
   are no leaps.
4. *collecting*: every sweep is kept, and where there are leaps most are of them. It ends
   when the draws are worth the effective size that was asked for, or it is clear that
   they will not be.

No step size is asked for: SVGD's is in units of the prior, the moves' is adapted. Draws of
the first three stages are thrown away, and in the fourth nothing adapts, so what is kept
has no bias of adaptation.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from steingp import descent, leaps, moves
from steingp.densities import Density, makes_sweeps
from steingp.moves import MoveState
from steingp.precision import float64
from steingp.run_state import FEWEST_SWEEPS, State, init

STEPS_PER_LOOK, MOST_STEPS = 10, 150
"""Of SVGD, between looks at the mean log density, and in all."""
SETTLING = (0.5, 0.3, 0.2, 0.1, 0.05)
"""Shares of Adam's step that the last steps of SVGD take, which tell the first metric."""
RISE = 0.3
"""SVGD goes on while the mean log density rises by this per dimension between looks."""
SWEEPS_PER_WINDOW, FEWEST_WINDOWS, MOST_WINDOWS = 5, 3, 10
"""Of the adapting stage."""
SWEEPS_PER_LOOK, MOST_SWEEPS = 5, 400
"""Of the collecting stage: between looks at least, and in all."""
SWEEPS_OF_TRIAL, TAKEN = 5, 0.1
"""Of leaps, in the third stage; and the share of them that must be taken there."""
HOPELESS_AFTER, PAST_HOPELESS, HOPELESS = 100, 150, 0.02
"""Collecting ends at the look between so many sweeps if each draw is worth less than the
third. It is asked once: a run that is taken up again goes on."""
NOWHERE = (
    "no particle has a finite log density. Standardise the data, or use tighter priors or "
    "more jitter."
)
_LOST = 10.0
"""Nats, beyond 6 sds of a Gaussian's log density, at which a particle is lost."""
_WIDTHS = 1.4
"""The factor between a metric's widths and those of draws at which it is made anew."""
_STUCK = 4.0
"""Sds of a Gaussian's log density, below which a particle is lost if it does not move."""


def started(
    positions: Float[np.ndarray, "J d"],
    values: Float[np.ndarray, " J"],
    scores: Float[np.ndarray, "J d"],
) -> State:
    """The state of particles that are where the mass is already: SVGD is left out.

    Raises:
        FloatingPointError: no log density with its score is finite.
    """
    return _begin_adapting(
        dataclasses.replace(init(positions), scored=(values, scores))
    )


@float64
def advance(
    density: Density, state: State, seed: int, wanted: float, num_sweeps: int = 1
) -> State:
    """One unit of work: some SVGD steps, or sweeps; and the stage that follows.

    Args:
        density: the same at every call of a stage.
        seed: with the number of sweeps, it makes the random numbers: a run that is
            taken up again from a state goes on as if never stopped.
        wanted: the effective size at which collecting ends.
        num_sweeps: at once, 1 or `SWEEPS_PER_WINDOW`; with 1, SVGD's steps are single as
            well. The result is the same; fewer calls are faster, shorter ones can be
            interrupted sooner.
    """
    if num_sweeps not in (1, SWEEPS_PER_WINDOW):
        raise ValueError(
            f"num_sweeps must be 1 or {SWEEPS_PER_WINDOW}; got {num_sweeps}."
        )
    if state.stage == "SVGD":
        return _descend(density, state, STEPS_PER_LOOK if num_sweeps > 1 else 1)
    if state.stage == "adapting":
        return _adapt(_sweep(density, state, seed, num_sweeps, adapting=True))
    if state.stage == "trying leaps":
        return _judge_leaps(_leap(density, state, seed, num_sweeps))
    if state.stage == "collecting":
        go_on = _sweep if state.law is None else _leap
        return _look(go_on(density, state, seed, num_sweeps), wanted)
    return state


def among(state: State, members: Int[np.ndarray, " k"]) -> State:
    """A run from where adapting ended, with these particles and copies of them alone.

    It adapts again: theirs may be another metric.
    """
    assert state.moves is not None
    J = len(state.particles)
    source = members[np.arange(J) % len(members)]
    drawn = state.adapted[:, members]
    if len(members) < 3:  # too few to tell a metric: how far any particle moves
        drawn = state.adapted - state.adapted.mean(axis=0)
    copies = _copies(state.moves, source)
    started = moves.start(copies.positions, copies.values, copies.scores, draws=drawn)
    return dataclasses.replace(
        state,
        stage="adapting",
        moves=started._replace(sweep=np.asarray(state.moves.sweep)),
        draws=state.draws[:0],
        values=state.values[:0],
        adapted=state.adapted[:0],
        law=None,
        previous=-np.inf,
        looks=0,
        next_look=FEWEST_SWEEPS,
        num_gradients=0,
        num_values=0,
        num_replaced=0,
        trace={},
    )


def brought_inside(state: State, inside: Bool[np.ndarray, " J"]) -> State:
    """The state with copies of the particles inside of a region for those outside."""
    assert state.moves is not None and inside.any()
    good = np.flatnonzero(inside)
    source = np.where(inside, np.arange(len(inside)), 0)
    source[~inside] = good[np.arange(np.sum(~inside)) % len(good)]
    return dataclasses.replace(state, moves=_copies(state.moves, source))


# --- the stages -------------------------------------------------------------------------


def _descend(density: Density, state: State, at_once: int) -> State:
    d = state.particles.shape[1]
    path, optimiser = descent.steps(
        density, state.particles, state.scored, state.optimiser,
        np.ones(STEPS_PER_LOOK), at_once,
    )  # fmt: skip
    if not np.isfinite(path.means[-1]):
        raise FloatingPointError(NOWHERE)
    state = _at_the_end(state, path, optimiser)
    means, state = path.means, dataclasses.replace(state, looks=state.looks + 1)
    risen = np.mean(means[-3:]) - np.mean(means[:3])
    if risen > RISE * d and state.looks * STEPS_PER_LOOK < MOST_STEPS:
        return state
    return _come_to_rest(density, state, at_once)


def _come_to_rest(density: Density, state: State, at_once: int) -> State:
    """Ever shorter steps, so that particles come to rest in narrow modes as well."""
    _, optimiser = descent.begin(state.particles)
    path, _ = descent.steps(
        density, state.particles, state.scored, optimiser, np.array(SETTLING), at_once
    )
    state = _at_the_end(state, path, state.optimiser)
    told = (path.positions, path.values, path.scores)
    return _begin_adapting(state, *map(np.concatenate, told))


def _at_the_end(state: State, path: descent.Path, optimiser: Any) -> State:
    """The state after some steps of SVGD."""
    return dataclasses.replace(
        state,
        particles=path.positions[-1],
        scored=(path.values[-1], path.scores[-1]),
        optimiser=optimiser,
        num_gradients=state.num_gradients + path.values.size,
    )


def _begin_adapting(state: State, *told: np.ndarray) -> State:
    """From where SVGD brought the particles; copies of others for those nowhere.

    The first metric is of positions, values and scores that are `told`, of the last steps,
    or else of where particles are.
    """
    values, scores = state.scored
    healthy = np.asarray(descent.healthy(values, scores))
    if not healthy.any():
        raise FloatingPointError(NOWHERE)
    source = np.where(healthy, np.arange(len(values)), np.flatnonzero(healthy)[0])
    begun = moves.start(state.particles[source], values[source], scores[source])
    positions, values, scores = told or (state.particles, values, scores)
    far = _LOST + 6.0 * np.sqrt(positions.shape[1] / 2.0)
    near = np.array(descent.healthy(values, scores))
    near &= values > np.max(values[near]) - far
    factor = moves.curved_factor(positions[near], scores[near])
    return dataclasses.replace(
        state,
        stage="adapting",
        moves=begun._replace(factor=factor),
        previous=-np.inf,
        looks=0,
        num_replaced=int(np.sum(~healthy)),
    )


def _copies(particles: MoveState, source: Int[np.ndarray, " J"]) -> MoveState:
    """Each particle as the copy of another, or of itself."""
    return particles._replace(
        positions=np.asarray(particles.positions)[source],
        values=np.asarray(particles.values)[source],
        scores=np.asarray(particles.scores)[source],
    )


def _sweep(
    density: Density, state: State, seed: int, num_sweeps: int, adapting: bool = False
) -> State:
    assert state.moves is not None
    begun, extra = leaps.with_scores(density, state.moves)
    # a density that is neither compiled nor makes sweeps itself can be stopped after each
    several = density.compiled or (makes_sweeps(density) and not adapting)
    keys = moves.sweep_keys(seed, begun, num_sweeps if several else 1)
    new, swept = moves.sweeps(density, begun, keys, adapting=adapting)
    state = _kept(state, new, swept, np.zeros(len(swept.values)))
    extra *= len(new.values)
    return dataclasses.replace(state, num_gradients=state.num_gradients + extra)


def _leap(density: Density, state: State, seed: int, num_sweeps: int) -> State:
    """Sweeps of leaps; while they are tried, without trajectories."""
    assert state.moves is not None and state.law is not None
    new, swept, taken = leaps.sweeps(
        density, state.law, state.moves, seed, num_sweeps,
        trajectories=state.stage == "collecting",
    )  # fmt: skip
    num = leaps.TRIES * swept.values.size
    state = _kept(state, new, swept, taken)
    return dataclasses.replace(state, num_values=state.num_values + num)


def _kept(state: State, new: MoveState, swept: moves.Swept, taken: np.ndarray) -> State:
    """The state with what some sweeps gave."""
    empty = np.zeros(0)
    told = swept.info._asdict() | {"leaps": taken}
    trace = {
        name: np.append(state.trace.get(name, empty), each)
        for name, each in told.items()
    }
    spent = len(new.values) * int(np.sum(swept.info.num_gradients))
    return dataclasses.replace(
        state,
        moves=new,
        draws=np.concatenate([state.draws, swept.positions]),
        values=np.concatenate([state.values, swept.values]),
        num_gradients=state.num_gradients + spent,
        trace=trace,
    )


def _adapt(state: State) -> State:
    # the metric is that of the last two windows, without the first, which starts from
    # SVGD's too narrow particles
    if state.sweeps < SWEEPS_PER_WINDOW * (1 if state.looks < 2 else 2):
        return state
    assert state.moves is not None
    d = state.moves.positions.shape[1]
    sd = np.sqrt(d / 2.0)  # of the log density of a Gaussian
    value = float(np.mean(state.values[-SWEEPS_PER_WINDOW:]))
    looks = state.looks + 1
    particles, lost = _replace_lost(
        state.moves, state.draws[-SWEEPS_PER_WINDOW:], _LOST + 6.0 * sd, _STUCK * sd
    )
    drawn = state.draws[:, ~lost]
    steady = value - state.previous < 0.4 * sd and not lost.any()
    steady = steady and looks >= FEWEST_WINDOWS and _suits(particles, drawn)
    adapted = state.draws
    state = dataclasses.replace(
        state,
        looks=looks,
        previous=value,
        num_replaced=state.num_replaced + int(lost.sum()),
        draws=state.draws[-SWEEPS_PER_WINDOW:] if looks > 1 else state.draws[:0],
        values=state.values[-SWEEPS_PER_WINDOW:] if looks > 1 else state.values[:0],
    )
    if steady or looks >= MOST_WINDOWS:
        return dataclasses.replace(
            state,
            stage="trying leaps",
            moves=moves.freeze(particles),
            law=leaps.fitted(adapted),
            draws=state.draws[:0],
            values=state.values[:0],
            adapted=adapted,
            looks=0,
        )
    return dataclasses.replace(state, moves=moves.with_metric(particles, drawn))


def _suits(particles: MoveState, draws: np.ndarray) -> bool:
    """Whether the metric has about the widths of the draws that were made with it."""
    widths = np.sqrt(np.sum(np.asarray(particles.factor) ** 2, axis=1))
    seen = draws.reshape(-1, draws.shape[-1]).std(axis=0)
    return bool(np.all(np.abs(np.log(seen / widths)) < np.log(_WIDTHS)))


def _replace_lost(
    particles: MoveState, window: np.ndarray, far: float, low: float
) -> tuple[MoveState, np.ndarray]:
    """Particles where there is next to no mass become copies of good ones.

    Lost are those far below the others in log density, since moves do not cross, and
    those low that moved once at most in the last window: where the density is steeper
    than elsewhere the common step is too long. A mode that is low but wide is not that.
    """
    values = np.asarray(particles.values)
    below = np.quantile(values, 0.75) - values
    num_moved = np.any(window[1:] != window[:-1], axis=-1).sum(axis=0)
    lost = (below > far) | ((below > low) & (num_moved <= 1))
    good = np.flatnonzero(~lost)
    source = np.arange(len(values))
    source[lost] = good[np.arange(lost.sum()) % len(good)]
    return _copies(particles, source), lost


def _judge_leaps(state: State) -> State:
    """Are leaps taken often enough? If so, their law is fitted anew."""
    if state.sweeps < SWEEPS_OF_TRIAL:
        return state
    worth_it = np.mean(state.trace["leaps"][-SWEEPS_OF_TRIAL:]) >= TAKEN
    law = leaps.fitted(np.concatenate([state.adapted, state.draws]))
    return dataclasses.replace(
        state,
        stage="collecting",
        law=law if worth_it else None,
        draws=state.draws[:0],
        values=state.values[:0],
    )


def _look(state: State, wanted: float) -> State:
    sweeps = state.sweeps
    if sweeps < state.next_look:
        return state
    size = state.effective_size()
    worth = size / (sweeps * state.draws.shape[1])
    hopeless = HOPELESS_AFTER <= sweeps < PAST_HOPELESS and worth < HOPELESS
    if size >= wanted or sweeps >= MOST_SWEEPS or hopeless:
        return dataclasses.replace(state, stage="done")
    # a first estimate may be far off, and too low more often than not: at most half as
    # many sweeps again before the next
    needed = min(1.5, wanted / max(size, 1.0)) * sweeps
    later = SWEEPS_PER_LOOK * int(np.ceil(needed / SWEEPS_PER_LOOK))
    next_look = min(max(later, sweeps + SWEEPS_PER_LOOK), MOST_SWEEPS)
    return dataclasses.replace(state, next_look=next_look)

"""One run for every mode: cut where particles stay apart, merged where they cross.

A fit begins as one run of `steingp.corrected`. When it has adapted, or fails to mix, its
particles may turn out to lie in several modes; each then gets a run of its own, with
copies of its particles, behind walls while it is collected. Modes that cannot have mass
are given up.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from steingp import corrected, modes, run_state
from steingp.evidence import fewest_draws, gaussian_log_mass
from steingp.flights import no_walls
from steingp.modes import Modes
from steingp.run_state import State, part

_ADAPTED = ("trying leaps", "collecting")
"""Stages of a run that knows its mode."""
_CROSSING, _STAYING = 0.1, 0.25
"""Two modes are one if particles go from one to the other in more sweeps than this share.
If fewer of them than that stay, and none come back, a mode is walled off."""
_LATE, _POOR = 40, 1.3
"""Collected sweeps after which a run is cut if its R-hat is worse than this."""
_UNSTEADY = 4
"""Windows of adapting after which it is looked for modes that keep it from ending."""
_NEGLIGIBLE = 15.0
"""Nats of evidence, roughly estimated, that a mode may lack and still be collected."""


class _Parent(NamedTuple):
    """What a mode was before it was cut."""

    modes: Modes
    mode: int
    state: State


class RunsByMode:
    """The runs of a fit, and the parts of the space that they are to draw from.

    Example:
        >>> import numpy as np
        >>> from steingp import corrected
        >>> from steingp.by_mode import RunsByMode
        >>> runs = RunsByMode(run_state.init(np.random.default_rng(0).normal(size=(9, 3))))
        >>> runs.modes.num_modes, runs.running, runs.states[0].stage
        (1, 0, 'SVGD')
    """

    def __init__(self, first: State) -> None:
        self.states: list[State] = [first]
        """One for every mode; they are run one after the other."""
        self.modes: Modes = modes.ONE
        self.walled: set[int] = set()
        """Modes with walls from the beginning, since their particles would leave."""
        self._parents: list[_Parent] = []

    @property
    def running(self) -> int:
        """The mode whose run goes on next, or went on last."""
        # modes are known once all have adapted, so that comes first
        for stages in (("SVGD", "adapting"), _ADAPTED):
            for k, state in enumerate(self.states):
                if state.stage in stages:
                    return k
        return len(self.states) - 1

    def walls(self, k: int) -> Float[np.ndarray, "W d+1"]:
        """Around what a mode's run may see: where it is collected, at least."""
        state = self.states[k]
        walls = no_walls(state.particles.shape[1])
        walled = state.stage in _ADAPTED or k in self.walled
        around = self.modes.walls(k) if walled else None
        if around is not None:
            walls[: len(around)] = around
        return walls

    def went_on(self, k: int, after: State) -> None:
        """A mode's run did a unit of work: is its mode still one, and one of its own?"""
        before, self.states[k] = self.states[k], after
        if before.stage == "adapting" and after.stage == "trying leaps":
            self._has_adapted(k)
            if all(state.stage in _ADAPTED for state in self.states):
                self.drop_negligible(range(len(self.states)))
        elif before.stage != after.stage:
            return
        elif after.stage == "adapting" and after.looks == _UNSTEADY > before.looks:
            self._cut_early(k)
        elif after.stage == "collecting" and after.sweeps == _LATE:
            self._cut_late(k)

    def drop_negligible(self, ones: Iterable[int]) -> None:
        """Give up those of some modes that can have next to no mass."""
        evidence = {k: _rough_log_evidence(self.states[k]) for k in ones}
        best = max(evidence, key=lambda k: evidence[k])
        for k in sorted(evidence, reverse=True):  # later ones move up
            if evidence[k] < evidence[best] - _NEGLIGIBLE:
                self._give_up(k, best)
                best -= best > k

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything, as named arrays."""
        arrays = {
            f"{k}.{name}": array
            for k, state in enumerate(self.states)
            for name, array in run_state.to_arrays(state).items()
        }
        arrays |= {f"modes.{n}": a for n, a in self.modes.to_arrays().items()}
        arrays["walled"] = np.array(sorted(self.walled), int)
        for i, parent in enumerate(self._parents):
            parts = {f"modes.{n}": a for n, a in parent.modes.to_arrays().items()}
            parts |= {
                f"state.{n}": a for n, a in run_state.to_arrays(parent.state).items()
            }
            parts["mode"] = np.asarray(parent.mode)
            arrays |= {f"parent{i}.{name}": array for name, array in parts.items()}
        return arrays

    @staticmethod
    def from_arrays(template: State, arrays: Mapping[str, np.ndarray]) -> "RunsByMode":
        """What `to_arrays` wrote; `template` is a state of `init` of equal shapes."""
        runs = RunsByMode(template)
        runs.modes = Modes.from_arrays(part(arrays, "modes"))
        runs.states = [
            run_state.from_arrays(template, part(arrays, str(k)))
            for k in range(runs.modes.num_modes)
        ]
        runs.walled = set(np.asarray(arrays["walled"]).tolist())
        while parent := part(arrays, f"parent{len(runs._parents)}"):
            runs._parents.append(
                _Parent(
                    Modes.from_arrays(part(parent, "modes")),
                    int(parent["mode"]),
                    run_state.from_arrays(template, part(parent, "state")),
                )
            )
        return runs

    def copy(self) -> "RunsByMode":
        """One that does not change with this one; states are shared, which never do."""
        runs = RunsByMode(self.states[0])
        runs.states, runs.modes = list(self.states), self.modes
        runs.walled, runs._parents = set(self.walled), list(self._parents)
        return runs

    # --- what may become of a mode ------------------------------------------------------

    def _has_adapted(self, k: int) -> None:
        """A run has adapted: are its particles one mode, part of another, or several?"""
        state = self.states[k]
        assert state.moves is not None
        mode_of = self.modes.of(state.adapted[-corrected.SWEEPS_PER_WINDOW :])
        crossing = float(np.mean(mode_of[1:] != mode_of[:-1]))
        counts = np.bincount(mode_of[-1], minlength=len(self.states))
        inside = self.modes.of(np.asarray(state.moves.positions)) == k
        leaving = counts[k] < _STAYING * counts.sum() or not inside.any()
        if leaving and crossing < _CROSSING and self._wall_off(k):
            return
        if crossing > _CROSSING or leaving:
            # in the whole window: at its end all may happen to be on one side
            seen = np.bincount(mode_of.ravel(), minlength=len(self.states))
            seen[k] = 0
            most_stay = bool(counts[k] > 0.5 * counts.sum())
            self._merge(k, int(np.argmax(seen)), keep_k=most_stay)
            return
        if not inside.all():
            state = self.states[k] = corrected.brought_inside(state, inside)
        been_inside = inside & (mode_of[-1] == k)  # those that are not copies
        self._cut(k, state, modes.gap(state.adapted[:, been_inside]))

    def _give_up(self, gone: int, heir: int) -> None:
        """One mode is a part of another from now on, without a run of its own."""
        spent = _effort(self.states[gone], self.states[heir])
        self._parents = []
        self.modes = self.modes.merged(gone, heir)
        self.states[heir] = dataclasses.replace(self.states[heir], **spent)
        self.states.pop(gone)
        self.walled = {m - (m > gone) for m in self.walled - {gone}}

    def _cut_early(self, k: int) -> None:
        """Adapting goes on and on: cut where particles stay apart, if they do."""
        state = self.states[k]
        self._cut(
            k, dataclasses.replace(state, adapted=state.draws), modes.gap(state.draws)
        )

    def _cut_late(self, k: int) -> None:
        """Collecting does not mix: cut where particles have stayed apart, if they have.

        Both sides get walls from the beginning: some particles do cross.
        """
        state = self.states[k]
        if float(np.max(state.mixing.mean_rhat)) < _POOR:
            return
        late = dataclasses.replace(state, adapted=state.draws)
        num = len(self.states)
        if self._cut(k, late, modes.gap(state.draws)) and len(self.states) > num:
            self.walled |= {k, len(self.states) - 1}

    def _cut(self, k: int, state: State, gap: modes.Gap | None) -> bool:
        """Two runs for one, either side of a gap, if there is one and enough to tell."""
        J, d = state.particles.shape
        # a mode's mass needs a t, fitted to half of its particles
        enough = fewest_draws(d) <= corrected.FEWEST_SWEEPS * (J // 2)
        if gap is None or len(self.states) >= modes.MOST_MODES or not enough:
            return False
        self._parents.append(_Parent(self.modes, k, state))
        self.modes = self.modes.cut(k, gap)
        below, above = self._among(state, k), self._among(state, len(self.states))
        if below is None or above is None:  # all have come to one side by now
            self.modes, _, _ = self._parents.pop()
            return False
        self.states[k] = dataclasses.replace(
            below, trace=state.trace, num_replaced=state.num_replaced,
            **_effort(state),
        )  # fmt: skip
        self.states.append(above)
        self.drop_negligible((k, len(self.states) - 1))
        return True

    def _among(self, state: State, k: int) -> State | None:
        """A run with those particles of a state that are in a mode, if there are any."""
        assert state.moves is not None
        members = np.flatnonzero(self.modes.of(np.asarray(state.moves.positions)) == k)
        return corrected.among(state, members) if len(members) else None

    def _wall_off(self, k: int) -> bool:
        """Start a mode of the last cut again, with walls from the beginning.

        Its particles left and did not come back: it is a narrow place that common steps
        find hard to enter. With a metric and a step of its own its mass can be told.
        """
        last = len(self.states) - 1
        if not self._parents or k not in (self._parents[-1].mode, last):
            return False
        begun = self._among(self._parents[-1].state, k)
        if begun is None or k in self.walled:
            return False
        spent = _effort(self.states[k])
        self.states[k] = dataclasses.replace(begun, **spent)
        self.walled.add(k)
        return True

    def _merge(self, k: int, other: int, keep_k: bool) -> None:
        """Particles cross between two modes: they are one.

        If it was cut last, what it was before goes on, with all its particles; else one
        of the two runs is enough.
        """
        spent = _effort(self.states[k], self.states[other])
        last = len(self.states) - 1
        if self._parents and {self._parents[-1].mode, last} == {k, other}:
            parent = self._parents.pop()
            self.modes, k, state = parent
            self.states[k] = dataclasses.replace(state, **spent)
            self.states.pop(last)
            self.walled -= {k, last}
            return
        self._give_up(*((other, k) if keep_k else (k, other)))


def _effort(*states: State) -> dict[str, int]:
    """What runs have cost so far, together."""
    return {
        "num_gradients": sum(state.num_gradients for state in states),
        "num_values": sum(state.num_values for state in states),
    }


def _rough_log_evidence(state: State) -> float:
    """Of a mode that has adapted, as if it were Gaussian with the metric's covariance."""
    assert state.moves is not None
    widths = np.diagonal(np.asarray(state.moves.factor))
    log_det = 2.0 * float(np.sum(np.log(widths)))
    return gaussian_log_mass(np.asarray(state.moves.values), log_det, len(widths))

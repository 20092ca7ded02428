"""The default fit as a run that can be stopped, looked at, and taken up again.

Particles start from the prior and are brought to the posterior, corrected and collected by
`steingp.corrected`. Where they come to stay in several modes, each mode gets a run of its
own, and a mass by its evidence.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from steingp import corrected, flat, modes, tempering
from steingp.checks import check_count
from steingp.corrected import State, part
from steingp.data import Batch
from steingp.densities import Density, OfOne, OnThreads, Rough, num_cores
from steingp.devices import check_mesh, num_rows_shards
from steingp.evidence import Evidence, bridge, fewest_draws, gaussian_log_mass
from steingp.flat import Flat
from steingp.flights import Tempering, no_walls, untempered
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.modes import Modes
from steingp.posterior import Posterior
from steingp.precision import float64, to_numpy
from steingp.progress import progress_bar
from steingp.streamed import FullPasses, RowsOverDevices, filled_up
from steingp.targets import Collapsed, Marginal, Titsias, Variational
from steingp.targets.collapsed import Sites
from steingp.tempering import Exploration, Tempered

_QUICK = 3e7
"""Flops of a gradient up to which a window of sweeps takes a second or so on a CPU."""
_FILLS_A_GPU = 1.5e9
"""Likewise, from which 64 particles' take a GPU clearly longer than 20's: 1145 rows."""
_SMALL = 50
"""Rows of a matrix below which one core works on all of them at once."""
_TINY = 64
"""Likewise, up to which twice as many particles explore."""
_ROUGH_FROM, _TRUE_ENOUGH = 200, 0.3
"""Rows of a matrix from which scores are taken in single precision, on a CPU; and nats by
which a log density in it may be off where that is done."""
_EXPLORED = 5
"""Hyperparameters up to which modes are looked for by tempering, on small data."""
_FEW_ROWS = 200
"""Up to which they are: many rows leave one mode, and a long way to it from the prior."""
_CROSSING, _STAYING = 0.1, 0.25
"""Two modes are one if particles go from one to the other in more sweeps than this share.
If fewer of them than that stay, and none come back, a mode is walled off."""
_LATE, _POOR = 40, 1.3
"""Collected sweeps after which a run is cut if its R-hat is worse than this."""
_UNSTEADY = 4
"""Windows of adapting after which it is looked for modes that keep it from ending."""
_NEGLIGIBLE = 15.0
"""Nats of evidence, roughly estimated, that a mode may lack and still be collected."""
_SEEDS_APART = 1_000_003
"""Between the seeds of modes."""


class _Parent(NamedTuple):
    """What a mode was before it was cut."""

    modes: Modes
    mode: int
    state: State


class Fit:
    """A fit that can be stopped, looked at, and taken up again; `fit` in pieces.

    Example:
        >>> import numpy as np, steingp as sg
        >>> from steingp.inference import Fit
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> one = Fit(model, effective_size=50)
        >>> one.run(progress=False, callback=lambda state: state.stage == "collecting")
        >>> two = Fit(model, effective_size=50)
        >>> two.load_state_dict(one.state_dict())
        >>> two.run(progress=False)
        >>> two.state.stage
        'done'
    """

    def __init__(
        self,
        model: SteinGP,
        num_particles: int | None = None,
        effective_size: float | None = None,
        seed: int = 0,
        explore: bool | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        self._mesh = check_mesh(mesh)
        on_cpu = jax.default_backend() == "cpu"
        work = model.num_data * model.matrix_size**2  # flops of a gradient, about
        if num_particles is None:
            num_particles = 20 if on_cpu or work > _FILLS_A_GPU else 64
        check_count("num_particles", num_particles)
        check_count("seed", seed, lowest=0)
        if effective_size is not None and not effective_size > 0:
            raise ValueError(f"effective_size must be positive; got {effective_size}.")
        self.model, self.seed = model, seed
        self.density = Flat(model.target.normalised())
        self.data = float64(lambda: Batch(*map(jnp.asarray, model.data)))()
        self._shares = self._shared_out()
        free = model.target.specification.hyperparameters.free
        d = sum(int(np.prod(p.shape)) for p in free)
        self.wanted = effective_size or (1000.0 if d <= 3 else 400.0)
        self._asked = effective_size is not None
        self._sought = self.wanted
        """The effective size that runs which are done were to reach, or gave up."""
        start = np.random.default_rng(seed).normal(size=(max(num_particles, 2), d))
        self.states: list[State] = [corrected.init(start)]
        """One for every mode; they are run one after the other."""
        self.modes: Modes = modes.ONE
        self.exploration: Exploration | None = None
        """Led to the posterior by tempering, before anything else, if at all."""
        small = d <= _EXPLORED and work < 0.1 * _QUICK and model.num_data <= _FEW_ROWS
        if explore is None:
            explore = small and not isinstance(model.target, Collapsed)
        if explore:
            some = tempering.NUM_EXPLORERS // (1 if model.matrix_size <= _TINY else 2)
            self.exploration = tempering.init(d, len(start), seed, some)
        self.begun_by = "tempering" if explore else "SVGD"
        """What leads particles to the posterior."""
        self.rough = (
            self._on_threads
            and isinstance(model.target, Marginal)
            and model.stream is None
            and model.matrix_size >= _ROUGH_FROM
        )
        """Whether moves follow scores in single precision. What decides on them is not."""
        self._scored: tuple[Flat, Density] | None = None
        self._parents: list[_Parent] = []
        self.walled: set[int] = set()
        """Modes with walls from the beginning, since their particles would leave."""
        self._evidence: list[Evidence] | None = None
        self.seconds = 0.0
        quick = work < (_QUICK if on_cpu else 1000 * _QUICK)
        self._sweeps_at_once = corrected.SWEEPS_PER_WINDOW if quick else 1

    @float64
    def _shared_out(self) -> Batch:
        """The data, with as many rows for every device."""
        if self._mesh is None or num_rows_shards(self._mesh) == 1:
            return self.data
        if not isinstance(self.model.target, Titsias) or self.model.stream is not None:
            raise ValueError(
                f"mesh={dict(self._mesh.shape)}: only the rows of a sparse Gaussian model "
                "in memory can be spread over devices; use devices.mesh() with rows=1."
            )
        return filled_up(self.data, self._mesh)

    @staticmethod
    def of(posterior: Posterior) -> "Fit":
        """The fit that a posterior came from, where it ended or was stopped.

        Raises:
            ValueError: the posterior did not come from such a fit, or its data were a
                stream.
        """
        arrays = posterior.checkpoint
        if arrays is None or "0.particles" not in arrays:
            raise ValueError("this posterior has no checkpoint of a fit.")
        model = SteinGP.of(posterior)
        if isinstance(model.target, Variational):  # a stream of one block, see _owner
            model = model.full_pass()
        fit = Fit(model, len(arrays["0.particles"]), explore=False)
        fit.load_state_dict(arrays)
        return fit

    @property
    def state(self) -> State:
        """Of the mode that is being run, or was last."""
        return self.states[self._running]

    @property
    def _running(self) -> int:
        # modes are known once all have adapted, so that comes first
        for stages in (("SVGD", "adapting"), ("collecting",)):
            for k, state in enumerate(self.states):
                if state.stage in stages:
                    return k
        return len(self.states) - 1

    def run(
        self,
        *,
        progress: bool = True,
        callback: Callable[[State], bool | None] | None = None,
    ) -> None:
        """Go on until the effective size is reached; Ctrl-C keeps what was reached."""
        began = time.perf_counter()
        self._reopen()
        with (
            self.blas(),
            progress_bar(int(self.wanted), progress, "SVGD", "...") as show,
        ):
            try:
                while self.state.stage != "done":
                    self._advance()
                    self._show(show)
                    if callback is not None and callback(self.state):
                        break
            except KeyboardInterrupt:
                warnings.warn(
                    f"interrupted while {self.stage}; what was reached is kept.",
                    stacklevel=3,
                )
        self.seconds += time.perf_counter() - began

    def _reopen(self) -> None:
        """Go on with runs that are done, if more is wanted of them than was."""
        for k, state in enumerate(self.states if self.wanted > self._sought else []):
            if state.stage == "done" and state.effective_size() < self.wanted:
                later = state.sweeps + corrected.SWEEPS_PER_LOOK
                if state.sweeps >= corrected.HOPELESS_AFTER:
                    later = max(later, corrected.PAST_HOPELESS)
                self.states[k] = dataclasses.replace(
                    state, stage="collecting", next_look=later
                )
        self._sought = self.wanted

    @property
    def stage(self) -> str:
        """What is being done: "exploring", or the stage of `state`."""
        return "exploring" if self.exploring else self.state.stage

    @property
    def exploring(self) -> bool:
        return self.exploration is not None and self.exploration.beta < 1.0

    def _explore(self) -> None:
        assert self.exploration is not None
        self.exploration = tempering.advance(self.scored(), self.exploration, self.seed)
        if not self.exploring:
            self.exploration = tempering.climb(self.scored(), self.exploration)
            reached = (self.exploration.positions, self.exploration.peaks)
            found = tempering.spread_out(
                np.concatenate(reached), len(self.state.particles)
            )
            scored = corrected.evaluate(self._within(0), found, len(found))
            self.states = [
                dataclasses.replace(
                    corrected.started(found, *scored),
                    num_gradients=self.exploration.num_gradients + len(found),
                )
            ]

    def start_at(self, positions: np.ndarray) -> None:
        """Begin where these particles (J, d) are, instead of with prior draws.

        They are taken to be about where the mass is: neither SVGD nor tempering leads
        them there.
        """
        self.exploration, self.begun_by = None, "earlier draws"
        values, scores = self.evaluate(positions)
        begun = corrected.started(positions, values, scores)
        self.states = [dataclasses.replace(begun, num_gradients=len(positions))]
        self._begin_inner_iterations_here()

    def _advance(self) -> None:
        if self.exploring:
            self._explore()
            return
        k = self._running
        density = self._within(k)
        before, self._evidence = self.states[k].stage, None
        looks = self.states[k].looks
        after = corrected.advance(
            density, self.states[k], self.seed + _SEEDS_APART * k, self.wanted,
            self._sweeps_at_once,
        )  # fmt: skip
        self.states[k] = after
        if before == "adapting" and after.stage == "collecting":
            self._settle(k)
            if all(state.stage == "collecting" for state in self.states):
                self._drop_negligible(range(len(self.states)))
        elif before == after.stage == "adapting" and after.looks == _UNSTEADY > looks:
            self._cut_early(k)
        elif before == after.stage == "collecting" and after.sweeps == _LATE:
            self._cut_late(k)
        if self.state.stage not in (before, "done"):
            self._begin_inner_iterations_here()
            self._give_up_roughness_if_off()

    def _settle(self, k: int) -> None:
        """A run has adapted: are its particles one mode, part of another, or several?"""
        state = self.states[k]
        assert state.moves is not None
        mode_of = self.modes.of(state.adapted[-corrected.SWEEPS_PER_WINDOW :])
        crossing = float(np.mean(mode_of[1:] != mode_of[:-1]))
        counts = np.bincount(mode_of[-1], minlength=len(self.states))
        leaving = counts[k] < _STAYING * counts.sum()
        if leaving and crossing < _CROSSING and self._wall_off(k):
            return
        if crossing > _CROSSING or leaving:
            elsewhere = np.where(np.arange(len(counts)) == k, 0, counts)
            most_stay = bool(counts[k] > elsewhere.sum())
            self._merge(k, int(np.argmax(elsewhere)), keep_k=most_stay)
            return
        inside = self.modes.of(np.asarray(state.moves.positions)) == k
        if not inside.all():
            state = self.states[k] = corrected.brought_inside(state, inside)
        self._cut(k, state, modes.gap(state.adapted[:, inside]))

    def _drop_negligible(self, ones: Iterable[int]) -> None:
        """Give up those of some modes that can have next to no mass."""
        evidence = {k: _rough_log_evidence(self.states[k]) for k in ones}
        best = max(evidence, key=lambda k: evidence[k])
        for k in sorted(evidence, reverse=True):  # later ones move up
            if evidence[k] < evidence[best] - _NEGLIGIBLE:
                self._give_up(k, best)
                best -= best > k

    def _give_up(self, gone: int, heir: int) -> None:
        """One mode is a part of another from now on, without a run of its own."""
        spent = self.states[gone].num_gradients + self.states[heir].num_gradients
        self._parents = []
        self.modes = self.modes.merged(gone, heir)
        self.states[heir] = dataclasses.replace(self.states[heir], num_gradients=spent)
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
        if float(np.max(state.mixing().mean_rhat)) < _POOR:
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
            below, num_gradients=state.num_gradients, trace=state.trace,
            num_replaced=state.num_replaced,
        )  # fmt: skip
        self.states.append(above)
        self._drop_negligible((k, len(self.states) - 1))
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
        spent = self.states[k].num_gradients
        self.states[k] = dataclasses.replace(begun, num_gradients=spent)
        self.walled.add(k)
        return True

    def _merge(self, k: int, other: int, keep_k: bool) -> None:
        """Particles cross between two modes: they are one.

        If it was cut last, what it was before goes on, with all its particles; else one
        of the two runs is enough.
        """
        spent = self.states[k].num_gradients + self.states[other].num_gradients
        last = len(self.states) - 1
        if self._parents and {self._parents[-1].mode, last} == {k, other}:
            parent = self._parents.pop()
            self.modes, k, state = parent
            self.states[k] = dataclasses.replace(state, num_gradients=spent)
            self.states.pop(last)
            self.walled -= {k, last}
            return
        self._give_up(*((other, k) if keep_k else (k, other)))

    def _within(self, k: int) -> Density:
        """The density that a mode's run sees: walled where it is collected, at least."""
        d = self.states[k].particles.shape[1]
        walls = no_walls(d)
        walled = self.states[k].stage == "collecting" or k in self.walled
        around = self.modes.walls(k) if walled else None
        if around is not None:
            walls[: len(around)] = around
        return Tempered(self.scored(), Tempering(np.asarray(1.0), walls))

    def scored(self) -> Density:
        """The density of particles, and how it is computed; made anew if it changes."""
        if self._scored is None or self._scored[0] is not self.density:
            self._scored = (self.density, self._score_many())
        return self._scored[1]

    def _score_many(self) -> Density:
        if self.model.stream is not None:
            return FullPasses(self.density, self.model.stream.one_pass)
        at_once = self.model.particles_at_once
        if self._mesh is not None and num_rows_shards(self._mesh) > 1:
            return RowsOverDevices(self.density, self._shares, at_once, self._mesh)
        if self._on_threads:
            small = self.model.matrix_size < _SMALL
            num_threads = 1 if small else num_cores()
            about = (self.density, self.data, len(self.state.particles), num_threads)
            if self.rough:
                return Rough(*about)
            return OnThreads(*about, together=small)
        return OfOne(self.density, self.data, at_once, self._mesh)

    def _give_up_roughness_if_off(self) -> None:
        """Where single precision is too far off: noise so small, or inputs so close."""
        density = self.scored()
        if not isinstance(density, Rough):
            return
        exact = []
        for state in self.states:
            assert state.moves is not None
            positions = np.asarray(state.moves.positions)
            exact.append(density.values(positions))
            off = np.abs(density(positions)[0] - exact[-1])
            self.rough = self.rough and bool(np.all(off < _TRUE_ENOUGH))
        if not self.rough:
            self._scored = None
        for k, state in enumerate(self.states):
            assert state.moves is not None
            # a particle that was never accepted still has the rough value it began with
            moves = state.moves._replace(values=exact[k])
            if not self.rough:
                moves = moves._replace(scores=self.evaluate(moves.positions)[1])
            self.states[k] = dataclasses.replace(state, moves=moves)

    @property
    def _on_threads(self) -> bool:
        return self._mesh is None and jax.default_backend() == "cpu"

    def blas(self) -> AbstractContextManager[None]:
        """As many threads of BLAS as suit this fit, while it computes."""
        own = self._on_threads and self.model.stream is None
        return blas_suited_to(self.model.matrix_size, threads=1 if own else None)

    def _begin_inner_iterations_here(self) -> None:
        """Sites of the mean particle as start of every inner iteration of a stage."""
        if not isinstance(self.density.target, Collapsed):
            return
        assert self.state.moves is not None
        middle = jnp.asarray(np.median(self.state.moves.positions, axis=0))
        sites, _ = to_numpy(flat.solve_inner(self.density, middle, self.data))
        if all(np.all(np.isfinite(part)) for part in sites):
            self.density = Flat(self.density.target.started_at(sites))

    def _show(self, show: Callable[..., None]) -> None:
        state = self.state
        if self.exploring:
            assert self.exploration is not None
            show(0, f"beta {self.exploration.beta:.3g}", "exploring")
        elif state.stage == "SVGD":
            show(0, f"{corrected.STEPS_PER_LOOK * state.looks} steps", "SVGD")
        elif state.stage == "adapting":
            show(0, f"acceptance {state.trace['acceptance'][-1]:.2f}"
                 if state.trace else "", "adapting")  # fmt: skip
        else:
            note = f"sweep {state.sweeps}, looks again at {state.next_look}"
            name = "collecting"
            if len(self.states) > 1:
                name = f"mode {self._running + 1} of {len(self.states)}"
            show(
                int(self.wanted * min(state.sweeps / state.next_look, 1.0)), note, name
            )

    # --- what came out ------------------------------------------------------------------

    def posterior(self) -> Posterior:
        """The draws as a posterior: those collected, or else where particles are now."""
        from steingp.outcome import posterior_of

        return posterior_of(self)

    def evidence(self) -> list[Evidence]:
        """Of every mode, in the coordinates in which priors are standard normal.

        Where f is integrated out by an approximation or a bound, so is this.
        """
        if self._evidence is None:

            def log_density(z: np.ndarray) -> np.ndarray:
                return self.evaluate(z)[0]

            self._evidence = [
                bridge(
                    state.draws, state.values, log_density, seed=self.seed,
                    inside=None if len(self.states) == 1 else (
                        lambda z, k=k: self.modes.of(z) == k
                    ),
                )
                for k, state in enumerate(self.states)
            ]  # fmt: skip
        return self._evidence

    def evaluate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log densities and scores of positions (S, d)."""
        density = Tempered(self.scored(), untempered(self.state.particles.shape[1]))
        with self.blas():
            return corrected.evaluate(density, positions, len(self.state.particles))

    def inner_distance(self, positions: np.ndarray) -> np.ndarray:
        """How far the inner iteration left q(f) from its limit at each position, in sds."""
        with self.blas():
            return np.array(
                [
                    flat.solve_inner(self.density, jnp.asarray(z), self.data)[1]
                    for z in positions
                ]
            )

    # --- files --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything needed to go on later, as named arrays."""
        arrays = {
            f"{k}.{name}": array
            for k, state in enumerate(self.states)
            for name, array in corrected.to_arrays(state).items()
        }
        arrays |= {f"modes.{n}": a for n, a in self.modes.to_arrays().items()}
        arrays["walled"] = np.array(sorted(self.walled), int)
        for i, parent in enumerate(self._parents):
            parts = {f"modes.{n}": a for n, a in parent.modes.to_arrays().items()}
            parts |= {
                f"state.{n}": a for n, a in corrected.to_arrays(parent.state).items()
            }
            parts["mode"] = np.asarray(parent.mode)
            arrays |= {f"parent{i}.{name}": array for name, array in parts.items()}
        if isinstance(self.density.target, Collapsed):
            arrays["start.tau"], arrays["start.nu"] = map(
                np.asarray, self.density.target.start
            )
        if self.exploration is not None:
            explored = tempering.to_arrays(self.exploration)
            arrays |= {f"exploration.{name}": a for name, a in explored.items()}
        return arrays | {
            "seconds": np.asarray(self.seconds),
            "begun_by": np.asarray(self.begun_by),
            "seed": np.asarray(self.seed),
            "rough": np.asarray(self.rough),
            "wanted": np.asarray(float(self.wanted)),
        }

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state_dict` of the same model, as if never stopped.

        The seed becomes that of the arrays, and so does the effective size, unless one
        was given to this fit.
        """
        if not {"modes.num", "seed", "wanted", "begun_by", "walled"} <= set(arrays):
            raise ValueError("the arrays do not hold the state of a fit.")
        self.seed, self.begun_by = int(arrays["seed"]), str(arrays["begun_by"])
        self.rough = bool(arrays.get("rough", False)) and self._on_threads
        self._scored, self._sought = None, float(arrays["wanted"])
        if not self._asked:
            self.wanted = self._sought
        self.modes = Modes.from_arrays(part(arrays, "modes"))
        template = self.states[0]
        self.states = [
            corrected.from_arrays(template, part(arrays, str(k)))
            for k in range(self.modes.num_modes)
        ]
        self.walled = set(np.asarray(arrays["walled"]).tolist())
        self._parents = []
        while parent := part(arrays, f"parent{len(self._parents)}"):
            self._parents.append(
                _Parent(
                    Modes.from_arrays(part(parent, "modes")),
                    int(parent["mode"]),
                    corrected.from_arrays(template, part(parent, "state")),
                )
            )
        explored = part(arrays, "exploration")
        self.exploration = tempering.from_arrays(explored) if explored else None
        self.seconds, self._evidence = float(arrays["seconds"]), None
        if isinstance(self.density.target, Collapsed):
            sites = Sites(
                np.asarray(arrays["start.tau"]), np.asarray(arrays["start.nu"])
            )
            self.density = Flat(self.density.target.started_at(sites))


def _rough_log_evidence(state: State) -> float:
    """Of a mode that has adapted, as if it were Gaussian with the metric's covariance."""
    assert state.moves is not None
    widths = np.diagonal(np.asarray(state.moves.factor))
    log_det = 2.0 * float(np.sum(np.log(widths)))
    return gaussian_log_mass(np.asarray(state.moves.values), log_det, len(widths))

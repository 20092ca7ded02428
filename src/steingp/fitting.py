"""The default fit as a run that can be stopped, looked at, and taken up again.

Particles start from the prior and are brought to the posterior, corrected and collected by
`steingp.corrected`. Where they come to stay in several modes, each mode gets a run of its
own (`steingp.by_mode`), and a mass by its evidence.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from steingp import corrected, descent, flat, run_state, tempering
from steingp.by_mode import RunsByMode
from steingp.checks import check_count
from steingp.data import Batch
from steingp.densities import Density, OfOne, OnThreads, Rough, is_rough
from steingp.devices import check_mesh, num_rows_shards
from steingp.evidence import Evidence, bridge
from steingp.flat import Flat
from steingp.flights import Tempering, untempered
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.precision import float64, to_numpy
from steingp.progress import progress_bar
from steingp.run_state import State, part
from steingp.streamed import FullPasses, RowsOverDevices, filled_up
from steingp.targets import Collapsed, Marginal, Titsias, Variational
from steingp.targets.sites import Sites
from steingp.tempering import Exploration, Tempered
from steingp.threads import num_cores

_QUICK = 3e7
"""Flops of a gradient up to which a window of sweeps takes a second or so on a CPU."""
_FILLS_A_GPU = 1.5e9
"""Likewise, from which 64 particles' take a GPU clearly longer than 20's: 1145 rows."""
_SMALL = 50
"""Rows of a matrix below which a core works on those of all particles at once."""
_TINY = 64
"""Likewise, up to which twice as many particles explore."""
_ROUGH_FROM, _TRUE_ENOUGH = 200, 0.3
"""Rows of a matrix from which scores are taken in single precision, on a CPU; and nats by
which a log density in it may be off where that is done."""
_EXPLORED = 5
"""Hyperparameters up to which modes are looked for by tempering, on small data."""
_FEW_ROWS = 200
"""Up to which they are: many rows leave one mode, and a long way to it from the prior."""
_SEEDS_APART = 1_000_003
"""Between the seeds of modes."""
_BEGIN_ANEW = ("adapting", "trying leaps")
"""Stages that settle first where inner iterations begin, and how scores are made."""
_PROGRESS = ("by_mode", "exploration", "density", "rough", "_scored")
"""What a unit of work may change."""


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
        precision: str | None = None,
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
        self.by_mode = RunsByMode(run_state.init(start))
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
        check_precision(precision, model)
        self._precision = precision
        gains = self._on_threads and model.matrix_size >= _ROUGH_FROM
        self.rough = precision == "float32" or (
            precision is None and gains and isinstance(model.target, Marginal)
        )
        """Whether moves follow scores in single precision. What decides on them is not."""
        self._scored: tuple[Flat, Density] | None = None
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
    def states(self) -> list[State]:
        """Of all modes; there is one until more are found."""
        return self.by_mode.states

    @property
    def state(self) -> State:
        """Of the mode that is being run, or was last."""
        return self.states[self.by_mode.running]

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
        reopened = self.wanted > self._sought
        for k, state in enumerate(self.states if reopened else []):
            if state.stage == "done" and state.effective_size() < self.wanted:
                later = state.sweeps + corrected.SWEEPS_PER_LOOK
                if state.sweeps >= corrected.HOPELESS_AFTER:
                    later = max(later, corrected.PAST_HOPELESS)
                self.by_mode.states[k] = dataclasses.replace(
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
            scored = descent.evaluate(self._within(0), found, len(found))
            spent = self.exploration.num_gradients + len(found)
            begun = corrected.started(found, *scored)
            self.by_mode = RunsByMode(dataclasses.replace(begun, num_gradients=spent))

    def start_at(self, positions: np.ndarray) -> None:
        """Begin where these particles (J, d) are, instead of with prior draws.

        They are taken to be about where the mass is: neither SVGD nor tempering leads
        them there.
        """
        self.exploration, self.begun_by = None, "earlier draws"
        values, scores = self.evaluate(positions)
        begun = corrected.started(positions, values, scores)
        self.by_mode = RunsByMode(
            dataclasses.replace(begun, num_gradients=len(positions))
        )
        self._begin_inner_iterations_here()

    def _advance(self) -> None:
        """A unit of work, done wholly or not at all."""
        before = {name: getattr(self, name) for name in _PROGRESS}
        before["by_mode"] = self.by_mode.copy()
        try:
            if self.exploring:
                self._explore()
            else:
                self._go_on()
        except BaseException:
            vars(self).update(before)
            raise

    def _go_on(self) -> None:
        k = self.by_mode.running
        state, self._evidence = self.states[k], None
        after = corrected.advance(
            self._within(k), state, self.seed + _SEEDS_APART * k, self.wanted,
            self._sweeps_at_once,
        )  # fmt: skip
        self.by_mode.went_on(k, after)
        if self.state.stage != state.stage and self.state.stage in _BEGIN_ANEW:
            self._begin_inner_iterations_here()
            self._give_up_roughness_if_off()

    def _within(self, k: int) -> Density:
        """The density that a mode's run sees."""
        tempering = Tempering(np.asarray(1.0), self.by_mode.walls(k))
        return Tempered(self.scored(), tempering)

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
            about = (self.density, self.data, len(self.state.particles), num_cores())
            if self.rough:
                return Rough(*about)
            return OnThreads(*about, together=self.model.matrix_size < _SMALL)
        return OfOne(self.density, self.data, at_once, self._mesh, self.rough)

    def _give_up_roughness_if_off(self) -> None:
        """Where single precision is too far off: noise so small, or inputs so close."""
        density = self.scored()
        if not is_rough(density):
            return
        exact, most = [], 0.0
        for state in self.states:
            assert state.moves is not None
            positions = np.asarray(state.moves.positions)
            exact.append(descent.evaluate_values(density, positions))
            values, _ = descent.score(density, positions, len(positions))
            off = np.abs(values - exact[-1])
            most = max(most, float(np.max(np.where(np.isnan(off), np.inf, off))))
        self.rough = most < _TRUE_ENOUGH
        if not self.rough:
            self._scored = None
            if self._precision == "float32":
                warnings.warn(
                    f'precision="float32": log densities are off by up to {most:.2g} in '
                    "single precision, so the fit goes on in double. The noise may be "
                    "next to none, or inputs be repeated.",
                    stacklevel=2,
                )
        for k, state in enumerate(self.states):
            assert state.moves is not None
            # a particle that was never accepted still has the rough value it began with
            moves = state.moves._replace(values=exact[k])
            if not self.rough:
                moves = moves._replace(scores=self.evaluate(moves.positions)[1])
            self.by_mode.states[k] = dataclasses.replace(state, moves=moves)

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
        now = self.state.moves
        middle = jnp.asarray(np.median(now.positions, axis=0))
        sites, _ = to_numpy(flat.solve_inner(self.density, middle, self.data))
        if not all(np.all(np.isfinite(part)) for part in sites):
            return
        self.density = Flat(self.density.target.started_at(sites))
        # which moves a little with where its iterations begin
        values, scores = self.evaluate(now.positions)
        k = self.by_mode.running
        self.by_mode.states[k] = dataclasses.replace(
            self.state, moves=now._replace(values=values, scores=scores)
        )

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
        elif state.stage == "trying leaps":
            show(0, "", state.stage)
        else:
            note = f"sweep {state.sweeps}, looks again at {state.next_look}"
            name = "collecting"
            if len(self.states) > 1:
                name = f"mode {self.by_mode.running + 1} of {len(self.states)}"
            show(
                int(self.wanted * min(state.sweeps / state.next_look, 1.0)), note, name
            )

    # --- what came out ------------------------------------------------------------------

    def posterior(self) -> Posterior:
        """The draws as a posterior: those collected, or else where particles are now."""
        from steingp.outcome import posterior_of

        # whose threads, once used, keep a core busy for a while after
        with self.blas():
            return posterior_of(self)

    def evidence(self) -> list[Evidence]:
        """Of every mode, in the coordinates in which priors are standard normal.

        Where f is integrated out by an approximation or a bound, so is this.
        """
        if self._evidence is None:
            self._evidence = [
                bridge(
                    state.draws, state.values, self.values, seed=self.seed,
                    inside=None if len(self.states) == 1 else (
                        lambda z, k=k: self.by_mode.modes.of(z) == k
                    ),
                )
                for k, state in enumerate(self.states)
            ]  # fmt: skip
        return self._evidence

    def values(self, positions: np.ndarray) -> np.ndarray:
        """Log densities of positions (S, d)."""
        density = self.scored()
        if density.compiled:  # for steps already, and values alone would be once more
            return self.evaluate(positions)[0]
        with self.blas():
            return descent.evaluate_values(density, positions)

    def evaluate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log densities and scores of positions (S, d)."""
        density = Tempered(self.scored(), untempered(self.state.particles.shape[1]))
        with self.blas():
            return descent.evaluate(density, positions, len(self.state.particles))

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
        arrays = self.by_mode.to_arrays()
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
        may = self._on_threads if self._precision is None else self.rough
        self.rough = bool(arrays.get("rough", False)) and may
        self._scored, self._sought = None, float(arrays["wanted"])
        if not self._asked:
            self.wanted = self._sought
        self.by_mode = RunsByMode.from_arrays(self.states[0], arrays)
        explored = part(arrays, "exploration")
        self.exploration = tempering.from_arrays(explored) if explored else None
        self.seconds, self._evidence = float(arrays["seconds"]), None
        if isinstance(self.density.target, Collapsed):
            sites = Sites(
                np.asarray(arrays["start.tau"]), np.asarray(arrays["start.nu"])
            )
            self.density = Flat(self.density.target.started_at(sites))


def check_precision(precision: str | None, model: SteinGP) -> None:
    """Whether a model can be fitted in the precision that is asked for.

    Raises:
        ValueError: another name; single precision where it is not safe.

    Example:
        >>> import numpy as np, steingp as sg
        >>> from steingp.fitting import check_precision
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> check_precision("float32", model)
    """
    if precision not in (None, "float64", "float32"):
        raise ValueError(
            f'precision must be "float64", "float32" or None; got {precision!r}.'
        )
    if precision == "float32" and not isinstance(model.target, Marginal):
        raise ValueError(
            'precision="float32" is for Gaussian likelihoods with f integrated out on all '
            "rows; elsewhere single precision is not safe. Leave it out."
        )

"""`fit`: from a model to its posterior."""

import copy
import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from steingp import corrected
from steingp.checks import check_count
from steingp.corrected import Density, OfOne, State
from steingp.data import Batch
from steingp.ensemble import Ensemble
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.paper import SVGD
from steingp.posterior import FEWEST_DRAWS, FitReport, Posterior
from steingp.precision import float64, to_numpy
from steingp.priors import Particle
from steingp.progress import progress_bar
from steingp.streamed import FullPasses
from steingp.targets import Collapsed, Target, Titsias, Variational
from steingp.targets.collapsed import Sites
from steingp.weights import Mixing, pareto_smooth
from steingp.weights import effective_size as size_of_weights

_PAIRS = 64
"""Pairs of draws of f that estimate a draw's weight."""
_MOST_WEIGHED = 500
"""Draws that are weighted, where weights are needed: each costs a gradient or two."""
_WEIGHED_AT_ONCE = 25

_QUICK = 3e7
"""Flops of a gradient up to which a window of sweeps takes a second or so on a CPU."""


def fit(
    model: SteinGP,
    *,
    num_particles: int | None = None,
    effective_size: float | None = None,
    num_steps: int | None = None,
    full_pass: bool = False,
    seed: int = 0,
    progress: bool = True,
    callback: Callable[..., bool | None] | None = None,
    resume: Mapping[str, np.ndarray] | None = None,
) -> Posterior:
    """The posterior of a model.

    Particles hold hyperparameters alone, f being integrated out for each of them. A short
    SVGD run brings them to the posterior, Metropolis-adjusted moves make their spread
    right, and their draws are kept until they are worth `effective_size` independent
    ones: see `steingp.corrected`. Where f was integrated out by an approximation, draws
    are weighted by what it got wrong, if that can be estimated.

    Models with batches get an ensemble of variational fits (`steingp.ensemble`), whose
    hyperparameters' spread is not calibrated; with `full_pass=True` and a Gaussian
    likelihood, the fit described above, each gradient being a pass over all rows. Models
    with `latents="joint"` get the paper's plain SVGD.

    Args:
        model: a `SteinGP`.
        num_particles: J, particles that move at the same time. By default 20, and 64 on
            a GPU where f is integrated out, which moves them in about the same time.
        effective_size: how many independent draws the result must be worth, for the mean
            and the spread of every hyperparameter. By default 1000 for up to three of
            them, 400 for more.
        num_steps: for models with batches or with `latents="joint"`; 1000 by default.
        full_pass: see above.
        seed: same seed, same result.
        progress: show a progress bar (on a terminal only).
        callback: called now and then with the state (of `steingp.corrected`, or of
            `steingp.svgd` and the latest step's info); returns True to stop.
        resume: `posterior.checkpoint` of an earlier fit of the same model that was
            interrupted, or shall go on to a larger effective size: goes on as if it had
            never stopped.

    Returns:
        A `Posterior`. Ctrl-C returns what was reached by then.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> posterior = sg.fit(model, effective_size=100, progress=False)
        >>> posterior.predict_f([[0.0]]).mean.shape
        (1,)
    """
    if not isinstance(model, SteinGP):
        raise ValueError(f"model must be a steingp model; got {type(model).__name__}.")
    if not model.has_unknowns:
        known = model.target.specification.hyperparameters.known
        draw = {name: np.asarray(value)[None] for name, value in known.items()}
        return model.posterior(draw, method="every hyperparameter is fixed")
    if full_pass:
        model = model.full_pass()
    batched = isinstance(model.target, Variational)
    if (batched or model.target.num_latents) and effective_size is not None:
        raise ValueError(
            f"effective_size={effective_size}: this fit ends after num_steps; only where "
            "f is integrated out on all rows can draws be counted. Leave it out, or see "
            "full_pass."
        )
    if not (batched or model.target.num_latents) and num_steps is not None:
        raise ValueError(
            f"num_steps={num_steps}: this fit stops at an effective size, not after a "
            "number of steps; pass effective_size. Plain SVGD is steingp.SVGD(model)."
        )
    run: SVGD | Ensemble | Fit
    if model.target.num_latents:
        run = SVGD(model, None, _given(num_particles, 20), seed=seed)
    elif batched:
        run = Ensemble(model, _given(num_particles, 20), num_steps or 1000, seed)
    else:
        run = Fit(model, num_particles, effective_size, seed)
    if resume is not None:
        run.load_state_dict(resume)
    if isinstance(run, SVGD):
        run.run(num_steps or 1000, progress=progress, callback=callback)
    else:
        run.run(progress=progress, callback=callback)
    return run.posterior()


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


class _Flat(eqx.Module):
    """A target of a vector instead of a dictionary."""

    target: Target

    def __call__(self, z: Array, data: Batch) -> Array:
        return self.target(self.unravel(z), data)

    def unravel(self, z: Array) -> Particle:
        free = self.target.specification.hyperparameters.free
        return ravel_pytree({p.name: jnp.zeros(p.shape) for p in free})[1](z)

    def constrain(self, z: Array) -> Particle:
        return self.target.constrain(self.unravel(z))


def _filled_up(rows: np.ndarray) -> Array:
    """More rows, copies of the last, up to a multiple of 250: few shapes to compile."""
    missing = -len(rows) % 250
    return jnp.asarray(np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]))


@float64
def _constrain(density: _Flat, positions: np.ndarray) -> Particle:
    particles = to_numpy(_constrain_compiled(density, _filled_up(positions)))
    return {name: array[: len(positions)] for name, array in particles.items()}


@eqx.filter_jit
def _constrain_compiled(density: _Flat, positions: Array) -> Particle:
    return jax.vmap(density.constrain)(positions)


@float64
@eqx.filter_jit
def _sites(density: _Flat, position: Array, data: Batch) -> Sites:
    assert isinstance(density.target, Collapsed)
    return density.target.solution(density.constrain(position), data).sites


@float64
def _log_errors(
    density: _Flat, positions: np.ndarray, seed: Array, data: Batch
) -> np.ndarray:
    errors = _log_errors_compiled(density, _filled_up(positions), seed, data)
    return np.array(errors)[: len(positions)]


@eqx.filter_jit
def _log_errors_compiled(
    density: _Flat, positions: Array, seed: Array, data: Batch
) -> Array:
    assert isinstance(density.target, Collapsed)
    target = density.target

    def one(pair: tuple[Array, Array]) -> Array:
        position, key = pair
        return target.log_error(density.constrain(position), data, key, _PAIRS)

    keys = jax.random.split(jax.random.key(seed), len(positions))
    return jax.lax.map(one, (positions, keys), batch_size=_WEIGHED_AT_ONCE)


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
    ) -> None:
        on_cpu = jax.default_backend() == "cpu"
        num_particles = _given(num_particles, 20 if on_cpu else 64)
        check_count("num_particles", num_particles)
        check_count("seed", seed, lowest=0)
        if effective_size is not None and not effective_size > 0:
            raise ValueError(f"effective_size must be positive; got {effective_size}.")
        self.model, self.seed = model, seed
        self._density = _Flat(model.target.normalised())
        self._data = float64(lambda: Batch(*map(jnp.asarray, model.data)))()
        free = model.target.specification.hyperparameters.free
        d = sum(int(np.prod(p.shape)) for p in free)
        self.wanted = effective_size or (1000.0 if d <= 3 else 400.0)
        start = np.random.default_rng(seed).normal(size=(max(num_particles, 2), d))
        self.state: State = corrected.init(start)
        self.seconds = 0.0
        work = model.num_data * model.matrix_size**2  # flops of a gradient, about
        quick = work < (_QUICK if on_cpu else 1000 * _QUICK)
        self._sweeps_at_once = corrected.SWEEPS_PER_WINDOW if quick else 1

    def run(
        self,
        *,
        progress: bool = True,
        callback: Callable[[State], bool | None] | None = None,
    ) -> None:
        """Go on until the effective size is reached; Ctrl-C keeps what was reached."""
        began = time.perf_counter()
        if self.state.stage == "done" and self.state.effective_size() < self.wanted:
            later = self.state.sweeps + corrected.SWEEPS_PER_LOOK
            self.state = dataclasses.replace(
                self.state, stage="collecting", next_look=later
            )
        with (
            blas_suited_to(self.model.matrix_size),
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
                    f"interrupted while {self.state.stage}; what was reached is kept.",
                    stacklevel=3,
                )
        self.seconds += time.perf_counter() - began

    def _advance(self) -> None:
        density = self._scored()
        before = self.state.stage
        self.state = corrected.advance(
            density, self.state, self.seed, self.wanted, self._sweeps_at_once
        )
        if self.state.stage != before and self.state.stage != "done":
            self._begin_inner_iterations_here()

    def _scored(self) -> Density:
        if self.model.stream is not None:
            return FullPasses(self._density, self.model.stream.one_pass)
        return OfOne(self._density, self._data, self.model.particles_at_once)

    def _begin_inner_iterations_here(self) -> None:
        """Sites of the mean particle as start of every inner iteration of a stage."""
        if not isinstance(self._density.target, Collapsed):
            return
        assert self.state.moves is not None
        middle = jnp.asarray(np.median(self.state.moves.positions, axis=0))
        sites = to_numpy(_sites(self._density, middle, self._data))
        if all(np.all(np.isfinite(part)) for part in sites):
            self._density = _Flat(self._density.target.started_at(sites))

    def _show(self, show: Callable[..., None]) -> None:
        state = self.state
        if state.stage == "SVGD":
            show(0, f"{corrected.STEPS_PER_LOOK * state.looks} steps", "SVGD")
        elif state.stage == "adapting":
            show(0, f"acceptance {state.trace['acceptance'][-1]:.2f}"
                 if state.trace else "", "adapting")  # fmt: skip
        else:
            note = f"sweep {state.sweeps}, looks again at {state.next_look}"
            show(int(self.wanted * min(state.sweeps / state.next_look, 1.0)), note,
                 "collecting")  # fmt: skip

    # --- what came out ------------------------------------------------------------------

    def posterior(self) -> Posterior:
        """The draws as a posterior: those collected, or else where particles are now."""
        state = self.state
        draws = state.draws
        if state.stage in ("SVGD", "adapting") or not state.sweeps:
            particles = state.particles if state.moves is None else (
                state.moves.positions
            )  # fmt: skip
            draws = np.asarray(particles)[None]
        every = max(1, int(draws.shape[0] * draws.shape[1] // (2 * self.wanted)))
        if isinstance(self.model.target, Collapsed):
            most = max(1, draws.shape[0] * draws.shape[1] // _MOST_WEIGHED)
            every = max(every, most)
        kept = draws[::every].reshape(-1, draws.shape[-1])
        if self.model.stream is not None:
            kept = kept[:: max(1, -(-len(kept) // FEWEST_DRAWS))]
        weights, k = self._weights(kept)
        collected = state.stage in ("collecting", "done") and state.sweeps >= 4
        worth = state.mixing() if collected else None
        return self._owner().posterior(
            self._particles(kept),
            weights=weights,
            report=self._report(len(kept), k, weights, worth),
            checkpoint=self.state_dict(),
            method=self._method(worth),
        )

    def _particles(self, kept: np.ndarray) -> dict[str, np.ndarray]:
        scored = self._scored()
        if isinstance(scored, FullPasses):
            return to_numpy(float64(scored.particles)(jnp.asarray(kept)))
        return _constrain(self._density, kept)

    def _owner(self) -> SteinGP:
        """Whose posterior it is: of a stream, the model whose particles carry q(u)."""
        if self.model.stream is None:
            return self.model
        owner, target = copy.copy(self.model), self.model.target
        assert isinstance(target, Titsias)
        owner.target = Variational(
            target.specification,
            Z=target.Z,
            num_data=float(owner.num_data),
            jitter=target.jitter,
        )
        return owner

    def _weights(self, kept: np.ndarray) -> tuple[np.ndarray | None, float | None]:
        """Weights for what the approximate evidence got wrong, if they can be had."""
        target = self._density.target
        if not isinstance(target, Collapsed) or target.Z is not None:
            return None, None
        if self.state.stage != "done" or len(kept) < 25:
            return None, None
        with blas_suited_to(self.model.matrix_size):
            errors = _log_errors(
                self._density, kept, jnp.asarray(self.seed), self._data
            )
        if not np.all(np.isfinite(errors)):
            return None, float("inf")
        weights, k = pareto_smooth(errors)
        # noisier than what they correct: leave them, and say so
        if k > 0.7 or size_of_weights(weights) < 0.5 * len(kept):
            return None, float(k)
        return weights, float(k)

    def _report(
        self,
        num_kept: int,
        k: float | None,
        weights: np.ndarray | None,
        worth: Mixing | None,
    ) -> FitReport:
        state = self.state
        share = 1.0
        if weights is not None:
            share = size_of_weights(weights) / len(weights)
        size = 0.0 if worth is None else worth.smallest_size
        return FitReport(
            stage=state.stage,
            effective_size=min(share * size, num_kept),
            rhat=float("nan") if worth is None else float(worth.mean_rhat.max()),
            num_particles=len(state.particles),
            num_gradients=state.num_gradients,
            num_sweeps=state.sweeps if worth is not None else 0,
            acceptance=float(np.mean(state.trace.get("acceptance", np.nan))),
            num_replaced=state.num_replaced,
            pareto_k=k,
            weighted=weights is not None,
            seconds=self.seconds,
        )

    def _method(self, worth: Mixing | None) -> str:
        stage = self.state.stage
        if stage != "done" or worth is None:
            return f"stopped while {stage}"
        size = worth.smallest_size
        short = f" of the {self.wanted:.0f} asked for" if size < self.wanted else ""
        return f"SVGD and corrected moves, worth {size:.0f} independent draws{short}"

    # --- files --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything needed to go on later, as named arrays."""
        arrays = corrected.to_arrays(self.state)
        if isinstance(self._density.target, Collapsed):
            arrays["start.tau"], arrays["start.nu"] = map(
                np.asarray, self._density.target.start
            )
        return arrays | {"seconds": np.asarray(self.seconds)}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state_dict` of the same model and seed, as if never stopped."""
        self.state = corrected.from_arrays(self.state, arrays)
        self.seconds = float(arrays["seconds"])
        if isinstance(self._density.target, Collapsed):
            sites = Sites(
                np.asarray(arrays["start.tau"]), np.asarray(arrays["start.nu"])
            )
            self._density = _Flat(self._density.target.started_at(sites))

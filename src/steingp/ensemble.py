"""Minibatched models: an ensemble of variational fits, moved together by SVGD.

Every particle holds theta and a Gaussian q(u) of its own. A step takes one batch: each
q goes a part of the way to what the batch asks for (a natural gradient), and all theta
move along phi, with the bound of the batch as score. At the end theta stands still and
every q converges, over passes through all the data.

There is no Metropolis step: the noise of a batch is far larger than what distinguishes
one theta from another nearby. So the spread of theta is not calibrated. The remedy, where
the likelihood is Gaussian, is a full pass over the data for every gradient: a sparse model
without `batch_size`, or `steingp.fit(model, full_pass=True)`.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from steingp import svgd
from steingp.checks import check_count
from steingp.data import Batch
from steingp.devices import check_mesh, on_all_devices, over_particles
from steingp.flat import Flat
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.posterior import FitReport, Posterior
from steingp.precision import float64, to_numpy
from steingp.priors import Particle
from steingp.progress import progress_bar
from steingp.stein import RBF, phi
from steingp.targets.variational import Q_MEAN, Q_ROOT, Natural, Variational
from steingp.threads import for_each, threads_for_each

STEP = 0.05
"""Of Adam, in units of the prior's sd; it falls to a tenth by a cosine."""
MEMORY = 0.9
"""Adam's second decay. While q is still the prior, scores are thousands of times those of
later steps; with the usual 0.999 they would keep steps short to the end."""
RATE = 0.1
"""Of the way to what a batch asks for, that q goes while theta moves."""
FEWEST_SETTLING = 50
"""Steps at the end before q is averaged, where what a batch asks for depends on q."""
_MOST_CHUNK = 50


class EnsembleState(NamedTuple):
    """What the next step needs: arrays alone."""

    positions: Any
    """(J, d), theta in coordinates in which priors are standard normal."""
    optimiser: Any
    q: Natural
    """(J, M, M) and (J, M)"""
    step: Any


@eqx.filter_jit
def _run_chunk(
    target: Variational,
    source: Any,
    state: EnsembleState,
    num_steps: Array,
    optimiser: optax.GradientTransformation,
    at_once: int,
    moving_until: Array,
    averaging_from: Array,
    skipped: Array,
    mesh: Mesh | None,
) -> tuple[EnsembleState, Array]:
    """`num_steps` steps; from `moving_until` on theta stands still.

    From `averaging_from` on q is the mean of what batches ask for, so that all rows of a
    pass count the same. Where that depends on q itself, what q was has some weight. The
    batches' numbers are `skipped` ahead of the steps'.
    """
    flat = Flat(target)

    def scored(shared: tuple[Flat, Batch], each: tuple[Array, Natural]) -> tuple:
        """Bounds, scores, and the q that the batch asks for."""
        flat, batch = shared
        target = flat.target
        assert isinstance(target, Variational)

        def one(pair: tuple[Array, Natural]) -> tuple[Array, Array, Natural]:
            position, q = pair

            def bound(z: Array) -> tuple[Array, Natural]:
                particle = flat.unravel(z)
                value, asked = target.bound(target.constrain(particle), q, batch)
                prior = target.specification.hyperparameters.log_prior(particle)
                return value + prior, asked

            (value, asked), score = jax.value_and_grad(bound, has_aux=True)(position)
            return value, score, asked

        return for_each(one, each, at_once)

    def body(_: Array, carry: tuple[EnsembleState, Array]) -> tuple:
        state, _ = carry
        shared = (flat, source.at(state.step + skipped))
        each = (state.positions, state.q)
        values, scores, asked = over_particles(mesh, scored, shared, each, gather=False)
        values, scores = on_all_devices(mesh, (values, scores))
        healthy = jnp.isfinite(values) & jnp.all(jnp.isfinite(scores), axis=1)
        scores = jnp.where(healthy[:, None], scores, 0.0)
        weight = 1.0 if target.exact_noise() else 1.0 / RATE
        since = jnp.maximum(state.step - averaging_from, 0)
        averaging = state.step >= averaging_from
        rate = jnp.where(averaging, 1.0 / (since + weight), RATE)
        q = jax.tree.map(
            lambda old, new: jnp.where(
                jnp.isfinite(new), old + rate * (new - old), old
            ),
            state.q,
            asked,
        )
        update, adam = optimiser.update(
            -phi(RBF(), state.positions, scores), state.optimiser, state.positions
        )
        moved = jnp.where(state.step < moving_until, 1.0, 0.0) * jnp.asarray(update)
        state = EnsembleState(state.positions + moved, adam, q, state.step + 1)
        return state, jnp.mean(values, where=healthy)

    state = jax.tree.map(jnp.asarray, state)
    done = jax.lax.fori_loop(0, num_steps, body, (state, jnp.zeros(())))
    return on_all_devices(mesh, done)


@float64
@eqx.filter_jit
def _particles(target: Variational, state: EnsembleState) -> Particle:
    def one(pair: tuple[Array, Natural]) -> Particle:
        position, q = pair
        mean, root = q.moments()
        return Flat(target).constrain(position) | {Q_MEAN: mean, Q_ROOT: root}

    return jax.lax.map(one, (state.positions, state.q))


class Ensemble:
    """A run on a minibatched model that can be stopped and taken up again.

    Example:
        >>> import numpy as np, steingp as sg
        >>> from steingp.ensemble import Ensemble
        >>> X = np.linspace(-3, 3, 200)[:, None]
        >>> model = sg.SteinGP(
        ...     (X, np.sin(X)), sg.kernels.Matern52(), inducing=X[::20], batch_size=50)
        >>> run = Ensemble(model, num_particles=3, num_steps=20)
        >>> run.run(progress=False)
        >>> run.posterior().num_draws
        3
    """

    def __init__(
        self,
        model: SteinGP,
        num_particles: int = 20,
        num_steps: int = 1000,
        seed: int = 0,
        mesh: Mesh | None = None,
    ) -> None:
        self._mesh = check_mesh(mesh)
        check_count("num_particles", num_particles)
        check_count("num_steps", num_steps)
        check_count("seed", seed, lowest=0)
        assert isinstance(model.target, Variational)
        self.model, self.num_moving = model, num_steps
        self._target = model.target.normalised()
        self._optimiser = svgd.adam(STEP, num_steps, lowest=0.1, memory=MEMORY)
        self._batches = float64(model.batches)()
        per_pass = model.batches_per_pass
        # whole passes: one if a batch's wish does not depend on q, else first until q
        # stands about right, then the mean over at least twice as many steps
        few = per_pass * -(-FEWEST_SETTLING // per_pass)
        exact = self._target.exact_noise()
        self._averaging_from = num_steps + (0 if exact else few)
        self.num_steps = num_steps + (per_pass if exact else 3 * few)
        self._skipped = -num_steps % per_pass  # settling begins with a pass
        free = model.target.specification.hyperparameters.free
        d = sum(int(np.prod(p.shape)) for p in free)
        start = np.random.default_rng(seed).normal(size=(num_particles, d))
        self.state = self._begin(start)
        self.seconds = 0.0

    @float64
    def _begin(self, positions: np.ndarray) -> EnsembleState:
        size, J = len(self._target.Z), len(positions)
        one = Natural.of_prior(size)
        q = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (J, *leaf.shape)), one)
        adam = self._optimiser.init(jnp.asarray(positions))
        return to_numpy(EnsembleState(positions, adam, q, np.array(0)))

    def run(
        self,
        *,
        progress: bool = True,
        callback: Callable[[EnsembleState], bool | None] | None = None,
    ) -> None:
        """Go on to the end; Ctrl-C keeps what was reached."""
        began = time.perf_counter()
        with (
            blas_suited_to(self.model.matrix_size, threads=threads_for_each()),
            progress_bar(self.num_steps, progress, "moving", "...") as show,
        ):
            try:
                while int(self.state.step) < self.num_steps:
                    value = self._chunk()
                    done = int(self.state.step)
                    what = "moving" if done < self.num_moving else "settling"
                    show(done, f"mean bound {value:.1f}", what)
                    if callback is not None and callback(self.state):
                        break
            except KeyboardInterrupt:
                warnings.warn(
                    f"interrupted after {int(self.state.step)} of {self.num_steps} "
                    "steps; what was reached is kept.",
                    stacklevel=3,
                )
        self.seconds += time.perf_counter() - began

    @float64
    def _chunk(self) -> float:
        done = int(self.state.step)
        moving = done < self.num_moving
        num = min(_MOST_CHUNK, (self.num_moving if moving else self.num_steps) - done)
        skipped = 0 if moving else self._skipped
        source, num = self._batches.chunk(done + skipped, num)
        state, value = to_numpy(
            _run_chunk(
                self._target, source, self.state, jnp.asarray(num), self._optimiser,
                self.model.particles_at_once, jnp.asarray(self.num_moving),
                jnp.asarray(self._averaging_from), jnp.asarray(skipped), self._mesh,
            )
        )  # fmt: skip
        if not np.isfinite(value):
            raise FloatingPointError(
                f"at step {done} no particle has a finite bound. Standardise the data, "
                "or use tighter priors or more jitter."
            )
        self.state = state
        return float(value)

    def posterior(self) -> Posterior:
        """The particles, each with its q(u), as a posterior that predicts."""
        settled = int(self.state.step) >= self.num_steps
        J = len(self.state.positions)
        return self.model.posterior(
            to_numpy(_particles(self._target, self.state)),
            method="variational fits in minibatches; the spread of hyperparameters is "
            "not calibrated" + ("" if settled else "; stopped before q(u) converged"),
            checkpoint=self.state_dict(),
            report=FitReport(
                stage="done" if settled else "moving",
                effective_size=float("nan"),
                rhat=float("nan"),
                num_particles=J,
                num_gradients=int(self.state.step) * J,
                num_sweeps=0,
                acceptance=float("nan"),
                num_replaced=0,
                pareto_k=None,
                weighted=False,
                seconds=self.seconds,
            ),
        )

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything needed to go on later, as named arrays."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self.state)
        arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
        return arrays | {"seconds": np.asarray(self.seconds)}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state_dict` of the same model and number of steps."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(self.state)
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
        shapes = {n: np.shape(leaf) for n, (_, leaf) in zip(names, leaves, strict=True)}
        for name, shape in shapes.items():
            if name not in arrays or np.shape(arrays[name]) != shape:
                raise ValueError(
                    f"{name} must be an array of shape {shape}: the arrays belong to a "
                    "run of another model or number of particles."
                )
        new = [np.asarray(arrays[name]) for name in names]
        self.state = jax.tree.unflatten(structure, new)
        self.seconds = float(arrays["seconds"])

"""Stein variational gradient descent over any log density of a pytree.

Algorithm 1 of the paper: J particles, each a pytree of arrays with a leading axis J,
move along phi (equation 5) by an optax optimiser. The loop is compiled in chunks of
steps; between chunks the progress bar moves, callbacks run and Ctrl-C is heard.

    >>> import jax, numpy as np
    >>> from steingp import svgd
    >>> def log_density(x):
    ...     return -0.5 * ((x["a"] - 3.0) ** 2).sum()
    >>> start = {"a": np.random.default_rng(0).normal(size=(50, 1))}
    >>> state, history = svgd.run(log_density, svgd.init(start), 500, progress=False)
    >>> bool(abs(state.particles["a"].mean() - 3.0) < 0.05)
    True
"""

import functools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Int, PyTree

from steingp.checks import check_count
from steingp.precision import float64, to_numpy
from steingp.progress import progress_bar
from steingp.stein import RBF, SteinKernel
from steingp.threads import for_each

LogDensity = Callable[..., Array]
_LONGEST_CHUNK = 500
_SECONDS_PER_CHUNK = 0.5


class SVGDState(NamedTuple):
    """What the next step needs; a pytree of arrays, and so serialisable."""

    particles: PyTree
    optimiser: PyTree
    step: Any


class SVGDInfo(NamedTuple):
    """What a step tells of itself; in a history, arrays with one entry per step."""

    log_density: Array | np.ndarray
    """Mean over particles."""
    bandwidth: Array | np.ndarray
    attraction: Array | np.ndarray
    """Root mean square norm of the attraction over particles."""
    repulsion: Array | np.ndarray
    num_failed: Array | np.ndarray
    """Particles whose log density or score was not finite; they had score 0."""
    first_failed: Array | np.ndarray
    """The first of them, or -1."""


class Batches(Protocol):
    """Where the data of a step come from."""

    def chunk(self, first_step: int, num_steps: int) -> tuple[Any, int]:
        """Something with `at(step)`, and for how many of these steps it is good."""
        ...


class _NoBatches(eqx.Module):
    def at(self, step: Int[Array, ""]) -> None:
        del step

    def chunk(self, first_step: int, num_steps: int) -> tuple["_NoBatches", int]:
        del first_step
        return self, num_steps


class _WithoutBatch(eqx.Module):
    log_density: LogDensity

    def __call__(self, particle: PyTree, batch: None) -> Array:
        del batch
        return self.log_density(particle)


@functools.cache
def adam(
    learning_rate: float = 0.05,
    num_steps: int | None = None,
    lowest: float = 0.1,
    memory: float = 0.999,
) -> optax.GradientTransformation:
    """Adam with the paper's step size; one object per value, so nothing recompiles.

    With `num_steps` the step size falls over so many of them, by a cosine, to `lowest` of
    what it was. `memory` is Adam's second decay: how much of the squares of earlier
    gradients a step keeps.
    """
    rate: optax.ScalarOrSchedule = learning_rate
    if num_steps is not None:
        rate = optax.cosine_decay_schedule(learning_rate, num_steps, lowest)
    return optax.adam(rate, b2=memory)


@float64
def init(
    particles: PyTree, optimiser: optax.GradientTransformation | None = None
) -> SVGDState:
    """The state before the first step.

    Args:
        particles: pytree of arrays, particles along the leading axis.
        optimiser: the one that `run` will be given; Adam 0.05 by default.
    """
    leaves = jax.tree.leaves(particles)
    counts = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            "particles must be a pytree of arrays whose leading axis counts the "
            f"particles, at least 1; got leading sizes {sorted(counts)}."
        )
    particles = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), particles)
    flat, _ = _flatten(particles)
    state = SVGDState(particles, (optimiser or adam()).init(flat), jnp.asarray(0))
    return to_numpy(state)


def _flatten(particles: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """Particles as rows of a matrix, and the way back."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))
    flat = jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles)
    return flat, jax.vmap(unravel)


def step(
    log_density: LogDensity,
    kappa: SteinKernel,
    optimiser: optax.GradientTransformation,
    state: SVGDState,
    batch: Any,
    at_once: int | None = None,
) -> tuple[SVGDState, SVGDInfo]:
    """One step of all particles, pure; `run` is the loop around it.

    A particle whose log density or score is not finite is given score 0: the others
    carry it back, and it does not harm them.
    """
    flat, unflatten = _flatten(state.particles)

    def value_and_score(particle: PyTree) -> tuple[Array, Array]:
        value, score = jax.value_and_grad(log_density)(particle, batch)
        return value, ravel_pytree(score)[0]

    values, scores = for_each(value_and_score, state.particles, at_once or len(flat))
    healthy = jnp.isfinite(values) & jnp.all(jnp.isfinite(scores), axis=1)
    scores = jnp.where(healthy[:, None], scores, 0.0)

    h = kappa.bandwidth(flat, state.step)
    attraction, repulsion = kappa.terms(flat, scores, h)
    # optax descends, SVGD ascends: the direction changes sign here and nowhere else
    descent = -(attraction + repulsion)
    update, optimiser_state = optimiser.update(descent, state.optimiser, flat)
    moved = unflatten(flat + jnp.asarray(update))
    info = SVGDInfo(
        log_density=jnp.mean(values, where=healthy),
        bandwidth=h,
        attraction=jnp.sqrt(jnp.mean(jnp.sum(attraction**2, axis=1))),
        repulsion=jnp.sqrt(jnp.mean(jnp.sum(repulsion**2, axis=1))),
        num_failed=jnp.sum(~healthy),
        first_failed=jnp.where(jnp.all(healthy), -1, jnp.argmin(healthy)),
    )
    return SVGDState(moved, optimiser_state, state.step + 1), info


@eqx.filter_jit
def _run_chunk(
    log_density: LogDensity,
    kappa: SteinKernel,
    optimiser: optax.GradientTransformation,
    source: Any,
    state: SVGDState,
    num_steps: Array,
    at_once: int | None,
    capacity: int,
) -> tuple[SVGDState, SVGDInfo]:
    """`num_steps` <= `capacity` steps; one compilation serves any number of them."""

    def body(i: Array, carry: tuple) -> tuple:
        state, history = carry
        batch = source.at(state.step)
        state, info = step(log_density, kappa, optimiser, state, batch, at_once)
        history = jax.tree.map(lambda all, one: all.at[i].set(one), history, info)
        return state, history

    state = jax.tree.map(jnp.asarray, state)
    shapes = jax.eval_shape(
        lambda s: step(log_density, kappa, optimiser, s, source.at(s.step), at_once)[1],
        state,
    )
    history = jax.tree.map(lambda one: jnp.zeros(capacity, one.dtype), shapes)
    return jax.lax.fori_loop(0, num_steps, body, (state, history))


@float64
def run(
    log_density: LogDensity,
    state: SVGDState,
    num_steps: int,
    kappa: SteinKernel | None = None,
    optimiser: optax.GradientTransformation | None = None,
    *,
    batches: Batches | None = None,
    at_once: int | None = None,
    progress: bool = True,
    callback: Callable[[SVGDState, SVGDInfo], bool | None] | None = None,
    callback_every: int | None = None,
) -> tuple[SVGDState, SVGDInfo]:
    """Take `num_steps` steps from `state`.

    Args:
        log_density: of one particle, `log_density(particle)`; with `batches`,
            `log_density(particle, batch)`.
        state: from `init`, or from an earlier run, which it continues exactly.
        kappa: the Stein kernel; RBF with the median rule by default.
        optimiser: any optax optimiser; Adam 0.05 by default.
        batches: where the data of a step come from, if they are needed.
        at_once: how many particles are scored at the same time; all by default.
        progress: show a bar with the mean log density (on a terminal only).
        callback: called between chunks with the state and the latest step's info;
            returns True to stop.
        callback_every: call it after every multiple of so many steps of this run, too.

    Returns:
        The last state and the history, as NumPy arrays. Ctrl-C ends the run early with
        what was reached by then.

    Raises:
        FloatingPointError: no particle has a finite log density any more.
    """
    check_count("num_steps", num_steps, lowest=0)
    every = _LONGEST_CHUNK if callback_every is None else callback_every
    check_count("callback_every", every)
    kappa, optimiser = kappa or RBF(), optimiser or adam()
    if batches is None:
        batches, log_density = _NoBatches(), _WithoutBatch(log_density)
    histories: list[SVGDInfo] = []
    done, size = 0, 1
    with progress_bar(num_steps, progress, "SVGD", "...") as show:
        try:
            while done < num_steps:
                began = time.perf_counter()
                num = min(size, num_steps - done, every - done % every)
                source, num = batches.chunk(int(state.step), num)
                new, info = to_numpy(
                    _run_chunk(
                        log_density, kappa, optimiser, source, state,
                        jnp.asarray(num), at_once, _LONGEST_CHUNK,
                    )
                )  # fmt: skip
                info = jax.tree.map(lambda all: all[:num], info)  # noqa: B023
                _check_alive(info, int(state.step), len(jax.tree.leaves(new)[0]))
                state = new
                histories.append(info)
                done += num
                latest = jax.tree.map(lambda all: all[-1], info)
                show(done, f"mean log density {latest.log_density:.3f}")
                if callback is not None and callback(state, latest):
                    break
                if done > 1:  # the first chunk's time is mostly compilation
                    seconds = (time.perf_counter() - began) / num
                    size = int(np.clip(_SECONDS_PER_CHUNK / seconds, 1, 4 * size))
                    size = min(size, _LONGEST_CHUNK)
        except KeyboardInterrupt:
            warnings.warn(
                f"interrupted after {done} of {num_steps} steps; what was reached is "
                "kept.",
                stacklevel=3,
            )
    return state, join(histories)


def join(histories: list[SVGDInfo]) -> SVGDInfo:
    """Histories one after the other."""
    if not histories:
        return SVGDInfo(*(np.zeros(0) for _ in SVGDInfo._fields))
    return SVGDInfo(*(np.concatenate(parts) for parts in zip(*histories, strict=True)))


def _check_alive(info: SVGDInfo, first_step: int, num_particles: int) -> None:
    dead = np.flatnonzero(info.num_failed >= num_particles)
    if dead.size:
        raise FloatingPointError(
            f"at step {first_step + dead[0]} no particle has a finite log density "
            f"(particle {int(info.first_failed[dead[0]])} was the first to fail). "
            "Standardise the data, use tighter priors, more jitter or a smaller step."
        )


def to_arrays(state: SVGDState) -> dict[str, np.ndarray]:
    """The state as a flat dictionary of arrays, for any file format.

    Example:
        >>> import numpy as np
        >>> from steingp import svgd
        >>> state = svgd.init({"a": np.zeros((3, 2))})
        >>> arrays = svgd.to_arrays(state)
        >>> bool((svgd.from_arrays(state, arrays).particles["a"] == 0).all())
        True
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(template: SVGDState, arrays: Mapping[str, np.ndarray]) -> SVGDState:
    """The state that `to_arrays` wrote; `template` is a state of the same shapes."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    if set(names) != set(arrays):
        raise ValueError(
            "the arrays belong to a run of another model or optimiser: expected "
            f"{sorted(names)}, got {sorted(arrays)}."
        )
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if np.shape(arrays[name]) != np.shape(leaf):
            raise ValueError(
                f"{name} has shape {np.shape(arrays[name])}, expected {np.shape(leaf)}: "
                "the run had another number of particles or hyperparameters."
            )
    return jax.tree.unflatten(structure, [np.asarray(arrays[name]) for name in names])

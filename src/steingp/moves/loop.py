"""Sweeps one after the other, compiled, resumable and interruptible."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key

from steingp.checks import check_count
from steingp.densities import makes_sweeps
from steingp.devices import on_all_devices
from steingp.flights import SWEEPS_AT_ONCE
from steingp.moves.hamiltonian import (
    MoveInfo,
    Randomness,
    Swept,
    draw_in_blocks,
    draw_randomness,
    flown,
    move,
    sweep,
)
from steingp.moves.state import MoveState, ValueAndScore
from steingp.precision import float64, to_numpy


@eqx.filter_jit
def _moves_compiled(
    value_and_score: ValueAndScore,
    state: MoveState,
    randomness: Randomness,
    adapting: Array,
) -> tuple[MoveState, tuple[MoveInfo, Array, Array]]:
    """One sweep after the other, as many as `randomness` has been drawn for."""

    def one(state: MoveState, randomness: Randomness) -> tuple[MoveState, Any]:
        state, info = move(value_and_score, state, randomness, adapting, compiled=True)
        return state, (info, state.positions, state.values)

    done = jax.lax.scan(one, MoveState(*map(jnp.asarray, state)), randomness)
    return on_all_devices(getattr(value_and_score, "mesh", None), done)


@float64
def jitted_sweeps(
    value_and_score: ValueAndScore,
    state: MoveState,
    keys: Key[Array, "sweeps J"],
    *,
    adapting: bool,
) -> tuple[MoveState, Swept]:
    """Sweeps in one call, compiled once for adapting and frozen ones of equal shapes.

    Args:
        value_and_score: a pytree such as an `eqx.Module`; what it holds may change
            without another compilation.
        keys: from `sweep_keys`, a row per sweep.

    Returns:
        The last state, and what every sweep gave.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> normal = lambda z: (-0.5 * (z**2).sum(axis=1), -z)
        >>> state = moves.init(normal, np.eye(3))
        >>> keys = moves.sweep_keys(0, state, 4)
        >>> state, swept = moves.jitted_sweeps(normal, state, keys, adapting=True)
        >>> int(state.sweep), swept.positions.shape
        (4, (4, 3, 3))
    """
    randomness = draw_randomness(keys, np.shape(state.positions)[1])
    new, swept = _moves_compiled(
        value_and_score, state, randomness, jnp.asarray(adapting)
    )
    return new, Swept(*swept)


@float64
def sweeps(
    density: Any, state: MoveState, keys: Key[Array, "sweeps J"], *, adapting: bool
) -> tuple[MoveState, Swept]:
    """Sweeps of a `densities.Density`, in as few calls as it can make them.

    Args:
        density: what it is not `compiled` for is done from Python.
        keys: from `sweep_keys`, a row per sweep.

    Returns:
        The last state, and what every sweep gave, as NumPy arrays.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> from steingp.densities import OnThreads
        >>> normal = OnThreads(lambda z, _: -0.5 * (z @ z), None, 3, num_threads=1)
        >>> state = moves.init(normal, np.eye(3), compiled=False)
        >>> keys = moves.sweep_keys(0, state, 4)
        >>> state, swept = moves.sweeps(normal, state, keys, adapting=False)
        >>> int(state.sweep), swept.positions.shape
        (4, (4, 3, 3))
    """
    if density.compiled:
        return jax.device_get(jitted_sweeps(density, state, keys, adapting=adapting))
    if makes_sweeps(density) and not adapting:
        randomness = draw_in_blocks(keys, np.shape(state.positions)[1])
        return flown(density, state, randomness, adapting)
    each = []
    for key in keys:
        done = sweep(density, state, key, adapting=adapting, compiled=False)
        state, info = to_numpy(done)
        each.append(Swept(info, state.positions, state.values))
    return state, jax.tree.map(lambda *parts: np.stack(parts), *each)


def jitted_sweep(
    value_and_score: ValueAndScore,
    state: MoveState,
    keys: Key[Array, " J"],
    *,
    adapting: bool,
) -> tuple[MoveState, MoveInfo]:
    """`jitted_sweeps` with one sweep.

    Example:
        >>> import jax, numpy as np
        >>> from steingp import moves
        >>> normal = lambda z: (-0.5 * (z**2).sum(axis=1), -z)
        >>> state = moves.init(normal, np.eye(3))
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> state, info = moves.jitted_sweep(normal, state, keys, adapting=True)
        >>> int(state.sweep)
        1
    """
    new, swept = jitted_sweeps(value_and_score, state, keys[None], adapting=adapting)
    return new, MoveInfo(*(part[0] for part in swept.info))


@float64
def sweep_keys(
    key: Key[Array, ""] | int, state: MoveState, num_sweeps: int
) -> Key[Array, "sweeps J"]:
    """One key per particle for each of the next sweeps.

    They are made of `key` and the number of the sweep, so it does not matter how many
    sweeps are made at once.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> state = moves.init(lambda z: (-0.5 * (z**2).sum(axis=1), -z), np.eye(3))
        >>> moves.sweep_keys(0, state, 2).shape
        (2, 3)
    """
    some = max(num_sweeps, SWEEPS_AT_ONCE)  # one shape to compile, most often
    keys = _sweep_keys(key, state.sweep, some, len(state.values))
    return keys if some == num_sweeps else _first(keys, num_sweeps)


@partial(jax.jit, static_argnums=(2, 3))
def _sweep_keys(key: Array | int, first: Array, num_sweeps: int, J: int) -> Array:
    if not jnp.issubdtype(jnp.result_type(key), jax.dtypes.prng_key):
        key = jax.random.key(key)

    def of_one(number: Array) -> Array:
        return jax.random.split(jax.random.fold_in(key, number), J)

    return jax.vmap(of_one)(first + jnp.arange(num_sweeps))


@partial(jax.jit, static_argnums=1)
def _first(keys: Array, num: int) -> Array:
    """Compiled, since slicing an array of keys takes JAX as long as a small sweep."""
    return keys[:num]


@float64
def run(
    value_and_score: ValueAndScore,
    state: MoveState,
    num_sweeps: int,
    key: Key[Array, ""] | int,
    *,
    adapting: bool,
    compiled: bool = True,
    callback: Callable[[MoveState, MoveInfo], bool | None] | None = None,
) -> tuple[MoveState, MoveInfo, Float[np.ndarray, "sweeps J d"]]:
    """Make `num_sweeps` sweeps from `state`.

    The randomness of a sweep is that of `key` and the sweep's number: a run that is
    stopped and continued with the same key gives what it would have given anyway.

    Args:
        value_and_score: positions (J, d) to log densities (J,) and scores (J, d).
        state: from `init`, or from an earlier run.
        num_sweeps: how many.
        key: a JAX key, or a seed.
        adapting: whether the step is adapted; `freeze` the state before it is not.
        compiled: False for a `value_and_score` that JAX cannot compile.
        callback: called after every sweep; returns True to stop.

    Returns:
        The last state, the infos, and the positions after every sweep, as NumPy arrays.
        Ctrl-C ends the run with the last complete sweep.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> normal = lambda z: (-0.5 * (z**2).sum(axis=1), -z)
        >>> state = moves.init(normal, np.eye(3))
        >>> state, infos, draws = moves.run(normal, state, 4, 0, adapting=True)
        >>> draws.shape, infos.acceptance.shape
        ((4, 3, 3), (4,))
    """
    check_count("num_sweeps", num_sweeps, lowest=0)
    infos: list[MoveInfo] = []
    positions: list[np.ndarray] = []
    state = to_numpy(state)
    try:
        for _ in range(num_sweeps):
            keys = sweep_keys(key, state, 1)[0]
            if compiled:
                new = jitted_sweep(value_and_score, state, keys, adapting=adapting)
            else:
                new = sweep(
                    value_and_score, state, keys, adapting=adapting, compiled=False
                )
            new_state, info = to_numpy(new)
            state = new_state
            positions.append(state.positions)
            infos.append(info)
            if callback is not None and callback(state, info):
                break
    except KeyboardInterrupt:
        warnings.warn(
            f"interrupted after {len(infos)} of {num_sweeps} sweeps; what was reached "
            "is kept.",
            stacklevel=3,
        )
    if not infos:
        nothing = MoveInfo(*(np.zeros(0) for _ in MoveInfo._fields))
        return state, nothing, np.zeros((0, *np.shape(state.positions)))
    together = MoveInfo(*(np.stack(parts) for parts in zip(*infos, strict=True)))
    return state, together, np.stack(positions)

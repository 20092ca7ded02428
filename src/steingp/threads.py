"""A function of each of many rows on a CPU: particles over its cores.

Cores are best used by different particles, whose matrices are too small to be shared:
from Python by threads (`EachOnThreads`), inside of a compiled loop by writing out as many
as there are cores (`for_each`).
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.precision import float64

_MOST_WRITTEN_OUT = 4
"""Parts one beside the other in a program, which takes as many times as long to compile."""
_PIECES_AT_ONCE = 8
"""Pieces that a core works on in one call: small ones take less than a call does."""
_NOTHING = np.zeros(0)


class EachOnThreads:
    """A function of each of many rows on a CPU: a piece of them for each core.

    A core is best used by one particle at a time, whose matrices stay in its cache, and
    cores by different particles: matrices are too small to be shared. One program is
    compiled, however many rows there are.

    Args:
        log_density: of one position and the data.
        data: a pytree of arrays.
        num_rows: how many there will be at a time, most often.
        num_threads: 1 where the work is little.
        made: log density and data to a function of one row, a vector, and what all share,
            another. Programs are told apart by it, so it must be equal if it is made
            again: a function of a module, or a NamedTuple.
        together: whether a core works on `num_rows` rows at once, which is better where
            matrices are so small that each operation takes as long as none. Where there
            are more rows than that, cores share them.

    Example:
        >>> import numpy as np
        >>> from steingp.threads import EachOnThreads
        >>> def scaled(log_density, data):
        ...     return lambda z, factor: factor[0] * log_density(z, data)
        >>> each = EachOnThreads(lambda z, _: z @ z, None, 4, 2, scaled)
        >>> each(np.eye(4), np.array([3.0])).tolist()
        [3.0, 3.0, 3.0, 3.0]
    """

    def __init__(
        self,
        log_density: Any,
        data: Any,
        num_rows: int,
        num_threads: int,
        made: "Maker",
        together: bool = False,
    ) -> None:
        arrays, rest = eqx.partition((log_density, data), eqx.is_array)
        # taken apart once: with priors in it that takes as long as a small matrix
        self._arrays, array_structure = jax.tree.flatten(arrays)
        leaves, structure = jax.tree.flatten(rest)
        self._rest = _Rest(tuple(leaves), structure, array_structure, made)
        self._program = (self._rest, tuple(np.shape(array) for array in self._arrays))
        piece = num_rows if together else -(-num_rows // num_threads)
        self._group = piece if together else 1
        self._room = _PIECES_AT_ONCE * piece
        self._num_threads = num_threads

    def __call__(
        self, rows: Float[Any, "num k"], shared: Float[Any, " _"] = _NOTHING
    ) -> np.ndarray:
        """What the function returns of every row, as a NumPy array."""
        rows = np.asarray(rows)
        groups = -(-len(rows) // (self._group * self._num_threads))
        share = min(self._group * groups, self._room)
        pieces = [rows[i : i + share] for i in range(0, len(rows), share)]
        if self._num_threads == 1 or len(pieces) == 1:
            done = [self._of_piece(piece, shared) for piece in pieces]
        else:
            done = self._at_the_same_time(pieces, shared)
        return np.concatenate(done)

    def _at_the_same_time(
        self, pieces: list[np.ndarray], shared: np.ndarray
    ) -> list[np.ndarray]:
        program = (self._program, self._room, pieces[0].shape[1], shared.shape)
        done, rest = [], pieces
        if program not in _known:  # compiled once, not by every thread
            done, rest = [self._of_piece(pieces[0], shared)], pieces[1:]
            _known.add(program)
        of_piece = functools.partial(self._of_piece, shared=shared)
        return [*done, *_threads(self._num_threads).map(of_piece, rest)]

    @float64
    def _of_piece(self, piece: np.ndarray, shared: np.ndarray) -> np.ndarray:
        groups = -(-len(piece) // self._group)
        rows = np.empty((self._room, piece.shape[1]))
        rows[: len(piece)] = piece
        rows[len(piece) : groups * self._group] = piece[-1]
        rows = rows.reshape(-1, self._group, piece.shape[1])
        done = _each_compiled(self._rest, self._arrays, rows, groups, shared)
        return np.asarray(done)[: len(piece)]


class _Rest(NamedTuple):
    """What is not an array of a log density and its data: known when compiling."""

    leaves: tuple
    structure: Any
    array_structure: Any
    """Of the arrays."""
    made: "Maker"


_known: set = set()
"""Programs that have been compiled."""


@functools.partial(
    jax.jit,
    static_argnums=0,
    compiler_options={"xla_cpu_multi_thread_eigen": False},
)
def _each_compiled(
    rest: _Rest,
    arrays: list[Array],
    groups: Float[Array, "room group k"],
    num: Array,
    shared: Array,
) -> Array:
    """Of every row of the first `num` groups; what stands beyond them is not looked at."""
    log_density, data = eqx.combine(
        jax.tree.unflatten(rest.array_structure, arrays),
        jax.tree.unflatten(rest.structure, rest.leaves),
    )
    function = rest.made(log_density, data)

    def of_group(rows: Array) -> Array:
        if len(rows) == 1:
            return function(rows[0], shared)[None]
        return jax.vmap(lambda row: function(row, shared))(rows)

    one = jax.eval_shape(of_group, groups[0])
    done = jax.lax.fori_loop(
        0,
        num,
        lambda i, done: done.at[i].set(of_group(groups[i])),
        jnp.zeros((len(groups), *one.shape), one.dtype),
    )
    return done.reshape(-1, *one.shape[1:])


Maker = Callable[[Any, Any], Callable[[Array, Array], Array]]
"""Log density and data to a function of one row and what all rows share."""


@functools.cache
def _threads(num: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num, thread_name_prefix="steingp")


def for_each(function: Callable[[Any], Any], each: Any, at_once: int) -> Any:
    """`function` of every part of arrays, inside of a compiled loop.

    On a GPU `at_once` of them by `vmap`. On a CPU one for each core: they are written out
    one beside the other, since XLA works at the same time on what does not depend on each
    other, and on the parts of a `vmap` it does not.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp.threads import for_each
        >>> for_each(lambda x: x**2, jnp.arange(5.0), at_once=2).tolist()
        [0.0, 1.0, 4.0, 9.0, 16.0]
    """
    num = len(jax.tree.leaves(each)[0])
    group = min(num_cores(), _MOST_WRITTEN_OUT, num)
    if jax.default_backend() != "cpu":
        return in_equal_parts(function, each, at_once)

    def of_group(parts: Any) -> Any:
        leaves, structure = jax.tree.flatten(parts)
        separate = [structure.unflatten(one) for one in zip(*leaves, strict=True)]
        return jax.tree.map(lambda *all_: jnp.stack(all_), *map(function, separate))

    def folded(array: Array) -> Array:
        whole = array[: num - num % group]
        return whole.reshape(num // group, group, *array.shape[1:])

    def unfolded(array: Array) -> Array:
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])

    done = jax.tree.map(unfolded, jax.lax.map(of_group, jax.tree.map(folded, each)))
    if num % group == 0:
        return done
    rest = of_group(jax.tree.map(lambda a: a[num - num % group :], each))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), done, rest)


def in_equal_parts(function: Callable[[Any], Any], each: Any, at_once: int) -> Any:
    """`function` of every part of arrays, at most `at_once` of them by `vmap` at a time.

    As many each time, some twice if need be: fewer at the end would be a second program
    to compile, and compiling is most of a short fit on a GPU.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp.threads import in_equal_parts
        >>> in_equal_parts(lambda x: x**2, jnp.arange(5.0), at_once=3).tolist()
        [0.0, 1.0, 4.0, 9.0, 16.0]
    """
    num = len(jax.tree.leaves(each)[0])
    if at_once >= num:
        return jax.vmap(function)(each)
    num_parts = -(-num // at_once)
    size = -(-num // num_parts)
    filled = jax.tree.map(lambda a: a[jnp.arange(num_parts * size) % num], each)
    found = jax.lax.map(function, filled, batch_size=size)
    return jax.tree.map(lambda a: a[:num], found)


def threads_for_each() -> int | None:
    """Threads of BLAS for each of those that `for_each` works on at the same time."""
    if jax.default_backend() != "cpu":
        return None
    return max(1, num_cores() // _MOST_WRITTEN_OUT)


def num_cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

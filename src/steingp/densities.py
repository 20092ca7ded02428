"""Log densities and scores of many positions at once: compiled in one, or on threads."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float

from steingp.devices import over_particles
from steingp.flights import Flight, Tempering, arrive, depart, untempered
from steingp.precision import float64

_MOST_WRITTEN_OUT = 4
"""Parts one beside the other in a program, which takes as many times as long to compile."""


class Density(Protocol):
    """What is drawn from: positions (J, d) to log densities (J,) and scores (J, d)."""

    @property
    def compiled(self) -> bool:
        """Whether JAX can compile it; if not, it is called from Python."""
        ...

    @property
    def mesh(self) -> Mesh | None:
        """Of the devices that it computes on; None: one."""
        ...

    def __call__(self, positions: Any) -> tuple[Any, Any]: ...

    # Two more, where it has them: `values` of positions, exact where those of a call are
    # rough, and `fly`, whole trajectories at a time (see `OnThreads`).


class OfOne(eqx.Module):
    """The density of many positions, from a log density of one and its data."""

    log_density: Any
    data: Any
    at_once: int | None = eqx.field(default=None, static=True)
    mesh: Mesh | None = eqx.field(default=None, static=True)
    """Of devices, each of which gets its share of the positions; None: one device."""
    compiled: bool = eqx.field(default=True, static=True)

    def __call__(self, positions: Float[Array, "J d"]) -> tuple[Array, Array]:
        shared = (self.log_density, self.data)
        return over_particles(self.mesh, self._here, shared, positions)

    def _here(self, shared: tuple[Any, Any], positions: Array) -> tuple[Array, Array]:
        log_density, data = shared

        def one(z: Array) -> tuple[Array, Array]:
            return jax.value_and_grad(log_density)(z, data)

        if self.at_once is None or self.at_once >= len(positions):
            return jax.vmap(one)(positions)
        return jax.lax.map(one, positions, batch_size=self.at_once)


class EachOnThreads:
    """A function of each of many items on a CPU: a piece of them for each core.

    A core is best used by one particle at a time, whose matrices stay in its cache, and
    cores by different particles: matrices are too small to be shared. One program is
    compiled, for a piece, however many items there are.

    Args:
        log_density: of one position and the data.
        data: a pytree of arrays.
        num_items: how many there will be at a time, most often.
        num_threads: 1 where the work is little.
        made: log density and data to a function of one item and what all share. Programs
            are told apart by it, so it must be equal if it is made again: a function of a
            module, or a NamedTuple.

    Example:
        >>> import numpy as np
        >>> from steingp.densities import EachOnThreads
        >>> def scaled(log_density, data):
        ...     return lambda z, factor: factor * log_density(z, data)
        >>> each = EachOnThreads(lambda z, _: z @ z, None, 4, 2, scaled)
        >>> each(np.eye(4), np.asarray(3.0)).tolist()
        [3.0, 3.0, 3.0, 3.0]
    """

    def __init__(
        self,
        log_density: Any,
        data: Any,
        num_items: int,
        num_threads: int,
        made: "Maker",
    ) -> None:
        arrays, rest = eqx.partition((log_density, data), eqx.is_array)
        # taken apart once: with priors in it that takes as long as a small matrix
        self._arrays, array_structure = jax.tree.flatten(arrays)
        leaves, structure = jax.tree.flatten(rest)
        self._rest = _Rest(tuple(leaves), structure, array_structure, made)
        self._program = (self._rest, tuple(np.shape(array) for array in self._arrays))
        self._piece = -(-num_items // num_threads)
        self._num_threads = num_threads

    def __call__(self, each: Any, shared: Any = ()) -> Any:
        """What the function returns, with an axis of items first, as NumPy arrays.

        `each` is a pytree of arrays with such an axis; so may `shared` be, without it.
        """
        leaves, structure = jax.tree.flatten(each)
        num = len(leaves[0])
        folded = [self._folded(np.asarray(leaf)) for leaf in leaves]
        pieces = [structure.unflatten(parts) for parts in zip(*folded, strict=True)]
        if self._num_threads == 1 or len(pieces) == 1:
            done = [self._of_piece(piece, shared) for piece in pieces]
        else:
            done = self._at_the_same_time(pieces, shared)
        return jax.tree.map(lambda *parts: np.concatenate(parts)[:num], *done)

    def _folded(self, leaf: np.ndarray) -> np.ndarray:
        missing = -len(leaf) % self._piece
        filled = np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])
        return filled.reshape(-1, self._piece, *leaf.shape[1:])

    def _at_the_same_time(self, pieces: list[Any], shared: Any) -> list[Any]:
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves((pieces[0], shared)))
        program = (self._program, shapes)
        done, rest = [], pieces
        if program not in _known:  # compiled once, not by every thread
            done, rest = [self._of_piece(pieces[0], shared)], pieces[1:]
            _known.add(program)
        of_piece = functools.partial(self._of_piece, shared=shared)
        return [*done, *_threads(self._num_threads).map(of_piece, rest)]

    @float64
    def _of_piece(self, piece: Any, shared: Any) -> Any:
        done = _each_compiled(self._rest, self._arrays, piece, shared)
        return jax.tree.map(np.asarray, done)


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
def _each_compiled(rest: _Rest, arrays: list[Array], each: Any, shared: Any) -> Any:
    log_density, data = eqx.combine(
        jax.tree.unflatten(rest.array_structure, arrays),
        jax.tree.unflatten(rest.structure, rest.leaves),
    )
    function = rest.made(log_density, data)
    return jax.lax.map(lambda item: function(item, shared), each)


Maker = Callable[[Any, Any], Callable[[Any, Any], Any]]
"""Log density and data to a function of one item and what all items share."""
Scorer = Callable[[Any, Any], Callable[[Array], tuple[Array, Array]]]
"""Log density and data to a function from a position to its value and score."""


def exactly(log_density: Any, data: Any) -> Callable[[Array], tuple[Array, Array]]:
    return lambda z: jax.value_and_grad(log_density)(z, data)


def roughly(log_density: Any, data: Any) -> Callable[[Array], tuple[Array, Array]]:
    """In single precision; in double, where that does not give a finite score."""
    exact = exactly(log_density, data)
    rough = exactly(*(_in_single_precision(part) for part in (log_density, data)))

    def one(z: Array) -> tuple[Array, Array]:
        value, score = rough(z.astype(jnp.float32))
        value, score = value.astype(z.dtype), score.astype(z.dtype)
        fine = jnp.isfinite(value) & jnp.all(jnp.isfinite(score))
        return jax.lax.cond(fine, lambda z: (value, score), exact, z)

    return one


def _in_single_precision(tree: Any) -> Any:
    numbers, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(
        jax.tree.map(lambda array: array.astype(jnp.float32), numbers), rest
    )


class OnThreads:
    """The density of many positions on a CPU, a piece of them for each core.

    Whatever calls it, one program is compiled, which makes leapfrog steps: a score is
    what a step of length 0 leads to.

    Args:
        log_density: of one position and the data.
        data: a pytree of arrays.
        num_positions: how many there will be at a time, most often.
        num_threads: 1 where the work is little.
        score: `exactly`, or `roughly`.

    Example:
        >>> import numpy as np
        >>> from steingp.densities import OnThreads
        >>> density = OnThreads(lambda z, _: -0.5 * (z @ z), None, 4, num_threads=2)
        >>> values, scores = density(np.eye(4))
        >>> values.tolist(), scores[1].tolist()
        ([-0.5, -0.5, -0.5, -0.5], [-0.0, -1.0, -0.0, -0.0])
    """

    compiled = False
    mesh = None

    def __init__(
        self,
        log_density: Any,
        data: Any,
        num_positions: int,
        num_threads: int,
        score: Scorer = exactly,
    ) -> None:
        self._each = EachOnThreads(
            log_density, data, num_positions, num_threads, _Flying(score)
        )

    def __call__(self, positions: Any) -> tuple[np.ndarray, np.ndarray]:
        z = np.asarray(positions, float)
        num, d = z.shape
        none, no = np.zeros((num, d)), np.zeros(num)
        flight = Flight(z, none, no, none, np.ones(num, bool))
        shared = (np.zeros((d, d)), np.asarray(1), untempered(d))
        return self._each((flight, no), shared)[1]

    def fly(
        self,
        flight: Flight,
        steps: Any,
        factor: Any,
        num: Any,
        tempering: Tempering | None = None,
    ) -> Flight:
        """`num` leapfrog steps of every particle, each with a length of its own.

        Particles do not know of each other on their way, so a core makes whole
        trajectories of its piece in one call.
        """
        tempering = tempering or untempered(len(factor))
        shared = (np.asarray(factor), np.asarray(num), tempering)
        return self._each((flight, np.asarray(steps)), shared)[0]


class _Flying(NamedTuple):
    """Makes leapfrog steps of a particle: where they end, and what was scored last."""

    score: Scorer

    def __call__(self, log_density: Any, data: Any) -> Callable[[Any, Any], Any]:
        score = self.score(log_density, data)

        def fly(item: tuple[Flight, Array], shared: tuple) -> tuple[Flight, Any]:
            (start, step), (factor, num, tempering) = item, shared

            def going(carry: tuple[Array, Flight, Any]) -> Array:
                return (carry[0] < num) & carry[
                    1
                ].alive  # a dead one waits at its start

            def onward(carry: tuple[Array, Flight, Any]) -> tuple[Array, Flight, Any]:
                halfway = depart(carry[1], start, step, factor)
                value, slope = score(halfway.position)
                scored = tempering.of(value, slope, halfway.position)
                arrived = arrive(halfway, scored, start, step, factor)
                return carry[0] + 1, arrived, (value, slope)

            begun = (jnp.asarray(0), start, (start.value, start.score))
            return jax.lax.while_loop(going, onward, begun)[1:]

        return fly


class Rough:
    """Scores in single precision, and values in double where they are asked for.

    A Metropolis-adjusted move along rough scores is exact, as long as the scores are a
    function of the position and the values that decide on it are exact; and scores are
    what takes its time.

    Example:
        >>> import numpy as np
        >>> from steingp.densities import Rough
        >>> density = Rough(lambda z, _: -0.5 * (z @ z), None, 4, num_threads=2)
        >>> z = np.full((4, 2), 0.1)
        >>> bool(density.values(z)[0] == -0.5 * (z[0] @ z[0]))
        True
        >>> bool(abs(density(z)[0][0] - density.values(z)[0]) < 1e-8)
        True
    """

    compiled = False
    mesh = None

    def __init__(
        self, log_density: Any, data: Any, num_positions: int, num_threads: int
    ) -> None:
        about = (log_density, data, num_positions, num_threads)
        self._rough = OnThreads(*about, score=roughly)
        self._values = EachOnThreads(*about, _value_alone)
        self.fly = self._rough.fly

    def __call__(self, positions: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._rough(positions)

    def values(self, positions: Any) -> np.ndarray:
        return self._values(np.asarray(positions, float))


def _value_alone(log_density: Any, data: Any) -> Callable[[Any, Any], Any]:
    return lambda z, _: log_density(z, data)


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
        >>> from steingp.densities import for_each
        >>> for_each(lambda x: x**2, jnp.arange(5.0), at_once=2).tolist()
        [0.0, 1.0, 4.0, 9.0, 16.0]
    """
    num = len(jax.tree.leaves(each)[0])
    group = min(num_cores(), _MOST_WRITTEN_OUT, num)
    if jax.default_backend() != "cpu":
        if at_once >= num:
            return jax.vmap(function)(each)
        return jax.lax.map(function, each, batch_size=at_once)

    def of_group(parts: Any) -> Any:
        leaves, structure = jax.tree.flatten(parts)
        separate = [structure.unflatten(one) for one in zip(*leaves, strict=True)]
        return jax.tree.map(lambda *all_: jnp.stack(all_), *map(function, separate))

    def folded(array: Array) -> Array:
        return array[: num - num % group].reshape(-1, group, *array.shape[1:])

    def unfolded(array: Array) -> Array:
        return array.reshape(-1, *array.shape[2:])

    done = jax.tree.map(unfolded, jax.lax.map(of_group, jax.tree.map(folded, each)))
    if num % group == 0:
        return done
    rest = of_group(jax.tree.map(lambda a: a[num - num % group :], each))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), done, rest)


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

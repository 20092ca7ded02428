"""Log densities and scores of many positions at once: compiled in one, or on threads."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float

from steingp.devices import over_particles
from steingp.flights import (
    SWEEPS_AT_ONCE,
    Course,
    Departure,
    Flight,
    Landing,
    Tempering,
    acceptance,
    arrive,
    depart,
    num_coordinates,
    pack,
    unpack,
    untempered,
)
from steingp.threads import EachOnThreads, in_equal_parts


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

    def values(self, positions: Any) -> Any:
        """Log densities alone: of any number of positions, and exact."""
        ...

    # Two more, where it has them: `rough`, True where values of a call are not exact, and
    # `fly`, whole sweeps at a time (see `OnThreads`).


def makes_sweeps(density: Any) -> bool:
    """Whether it makes whole sweeps by itself, as those on threads do."""
    return getattr(density, "fly", None) is not None


def is_rough(density: Any) -> bool:
    """Whether the log densities of a call are rough, and `values` has the exact ones."""
    return getattr(density, "rough", False)


class OfOne(eqx.Module):
    """The density of many positions, from a log density of one and its data."""

    log_density: Any
    data: Any
    at_once: int | None = eqx.field(default=None, static=True)
    mesh: Mesh | None = eqx.field(default=None, static=True)
    """Of devices, each of which gets its share of the positions; None: one device."""
    rough: bool = eqx.field(default=False, static=True)
    """Whether a call computes in single precision; `values` never does."""
    compiled: bool = eqx.field(default=True, static=True)

    def __call__(self, positions: Float[Array, "J d"]) -> tuple[Array, Array]:
        shared = (self.log_density, self.data)
        return over_particles(self.mesh, self._here, shared, positions)

    def values(self, positions: Float[Array, "S d"]) -> Array:
        shared = (self.log_density, self.data)
        return over_particles(self.mesh, self._values_here, shared, positions)

    def _here(self, shared: tuple[Any, Any], positions: Array) -> tuple[Array, Array]:
        if not self.rough:
            return self._each(exactly(*shared), positions)
        found = self._each(in_single_precision(*shared), positions)
        fine = jax.vmap(_is_finite)(*found)

        def mended() -> tuple[Array, Array]:
            values, scores = self._each(exactly(*shared), positions)
            return (
                jnp.where(fine, found[0], values),
                jnp.where(fine[:, None], found[1], scores),
            )

        return jax.lax.cond(jnp.all(fine), lambda: found, mended)

    def _values_here(self, shared: tuple[Any, Any], positions: Array) -> Array:
        log_density, data = shared
        return self._each(lambda z: log_density(z, data), positions)

    def _each(self, function: Callable[[Array], Any], positions: Array) -> Any:
        return in_equal_parts(function, positions, self.at_once or len(positions))


Scorer = Callable[[Any, Any], Callable[[Array], tuple[Array, Array]]]
"""Log density and data to a function from a position to its value and score."""


def exactly(log_density: Any, data: Any) -> Callable[[Array], tuple[Array, Array]]:
    return lambda z: jax.value_and_grad(log_density)(z, data)


def roughly(log_density: Any, data: Any) -> Callable[[Array], tuple[Array, Array]]:
    """In single precision; in double, where that does not give a finite score."""
    exact, rough = exactly(log_density, data), in_single_precision(log_density, data)

    def one(z: Array) -> tuple[Array, Array]:
        found = rough(z)
        return jax.lax.cond(_is_finite(*found), lambda z: found, exact, z)

    return one


def in_single_precision(
    log_density: Any, data: Any
) -> Callable[[Array], tuple[Array, Array]]:
    """Whether that gives a finite score or not."""
    rough = exactly(*map(_of_single_precision, (log_density, data)))

    def one(z: Array) -> tuple[Array, Array]:
        value, score = rough(z.astype(jnp.float32))
        return value.astype(z.dtype), score.astype(z.dtype)

    return one


def _is_finite(value: Array, score: Array) -> Array:
    return jnp.isfinite(value) & jnp.all(jnp.isfinite(score))


def _of_single_precision(tree: Any) -> Any:
    numbers, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(
        jax.tree.map(lambda array: array.astype(jnp.float32), numbers), rest
    )


class OnThreads:
    """The density of many positions on a CPU, a piece of them for each core.

    Whatever calls it, one program is compiled, which makes sweeps: a score is what a
    leapfrog step of length 0 leads to.

    Args:
        log_density: of one position and the data.
        data: a pytree of arrays.
        num_positions: how many there will be at a time, most often.
        num_threads: 1 where the work is little.
        score: `exactly`, or `roughly`.
        together: as in `EachOnThreads`.

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
        together: bool = False,
    ) -> None:
        self._each = EachOnThreads(
            log_density, data, num_positions, num_threads, _Flying(score), together
        )

    def __call__(self, positions: Any) -> tuple[np.ndarray, np.ndarray]:
        scored = self._at_rest(np.asarray(positions, float), num_leapfrogs=1)
        return scored[:, 0], scored[:, 1:]

    def values(self, positions: Any) -> np.ndarray:
        """Log densities alone, which are exact, however rough scores are."""
        z = np.asarray(positions, float)
        return self._at_rest(z, num_leapfrogs=0, exact=True)[:, 0]

    def _at_rest(
        self, z: Float[np.ndarray, "J d"], num_leapfrogs: int, exact: bool = False
    ) -> np.ndarray:
        """What the density gives where particles are."""
        (num, d), S = z.shape, SWEEPS_AT_ONCE
        none, no = np.zeros((num, S, d)), np.zeros((num, S))
        still = Departure(z, no[:, 0], none[:, 0], none, no, no)
        course = Course(1, num_leapfrogs, exact, np.zeros((d, d)), *untempered(d))
        return unpack(Landing, self._each(pack(still, num), pack(course)), d).scored

    def fly(
        self,
        flight: Flight,
        momenta: Float[np.ndarray, "sweeps J d"],
        steps: Float[np.ndarray, "sweeps J"],
        log_uniform: Float[np.ndarray, "sweeps J"],
        factor: Float[np.ndarray, "d d"],
        num_leapfrogs: int,
        tempering: Tempering | None = None,
        exact: bool = False,
    ) -> Landing:
        """Sweeps of every particle, of equally many leapfrog steps; at most 5.

        Particles do not know of each other on their way, so a core makes all sweeps of
        its piece in one call.
        """
        num_sweeps, num, d = np.shape(momenta)
        assert num_sweeps <= SWEEPS_AT_ONCE

        def each(part: np.ndarray) -> np.ndarray:  # particles first, all sweeps there
            filled = np.zeros((num, SWEEPS_AT_ONCE, *part.shape[2:]))
            filled[:, :num_sweeps] = np.swapaxes(part, 0, 1)
            return filled

        departure = Departure(
            flight.position, flight.value, flight.score,
            each(momenta), each(steps), each(log_uniform),
        )  # fmt: skip
        course = Course(
            num_sweeps, num_leapfrogs, exact, factor, *(tempering or untempered(d))
        )
        landed = unpack(Landing, self._each(pack(departure, num), pack(course)), d)
        # contiguous, since sums depend on how numbers lie in memory
        of_sweeps = (
            np.ascontiguousarray(np.swapaxes(part[:, :num_sweeps], 0, 1))
            for part in landed[:5]
        )
        return Landing._make((*of_sweeps, *landed[5:]))


class _Flying(NamedTuple):
    """Makes sweeps of a particle, from a packed `Departure` to a packed `Landing`."""

    score: Scorer

    def __call__(self, log_density: Any, data: Any) -> Callable[[Array, Array], Array]:
        score = self.score(log_density, data)

        def leapfrogs(
            start: Flight, step: Array, course: Course, scored: tuple[Array, Array]
        ) -> tuple[Flight, tuple[Array, Array]]:
            """Where they end, and what was scored last."""
            tempering = Tempering(course.beta, course.walls)

            def going(carry: tuple[Array, Flight, Any]) -> Array:
                done, flight, _ = carry  # one that is dead waits at its start
                return (done < course.num_leapfrogs) & flight.alive

            def onward(carry: tuple[Array, Flight, Any]) -> tuple[Array, Flight, Any]:
                done, flight, _ = carry
                halfway = depart(flight, start, step, course.factor)
                value, slope = score(halfway.position)
                seen = tempering.of(value, slope, halfway.position)
                arrived = arrive(halfway, seen, start, step, course.factor)
                return done + 1, arrived, (value, slope)

            _, end, scored = jax.lax.while_loop(
                going, onward, (jnp.asarray(0), start, scored)
            )
            value = jax.lax.cond(
                course.exact > 0.0,
                lambda z: log_density(z, data),
                lambda _: scored[0],
                end.position,
            )
            true, _ = tempering.of(value, scored[1], end.position)
            true = jnp.where(course.exact > 0.0, true, end.value)
            return end._replace(value=true), (value, scored[1])

        def fly(row: Array, shared: Array) -> Array:
            d = num_coordinates(row)
            departure, course = unpack(Departure, row, d), unpack(Course, shared, d)

            def sweep(i: Array, carry: tuple[Flight, Any, Landing]) -> tuple:
                here, scored, landing = carry
                start = here._replace(momentum=departure.momenta[i])
                end, scored = leapfrogs(start, departure.steps[i], course, scored)
                probability = acceptance(start, end)
                taken = departure.log_uniform[i] < jnp.log(probability)
                new = [jnp.where(taken, *both) for both in zip(end, start, strict=True)]
                here = Flight(*new)._replace(alive=start.alive)
                landing = landing._replace(
                    positions=landing.positions.at[i].set(here.position),
                    values=landing.values.at[i].set(here.value),
                    probabilities=landing.probabilities.at[i].set(probability),
                    changes=landing.changes.at[i].set(end.energy() - start.energy()),
                    alive=landing.alive.at[i].set(end.alive.astype(float)),
                )
                return here, scored, landing

            position, value, score = departure[:3]
            begun = Flight(position, position, value, score, jnp.asarray(True))
            nowhere = Landing(*(jnp.zeros(shape) for shape in Landing.shapes(d)))
            here, (value, slope), landing = jax.lax.fori_loop(
                0,
                course.num_sweeps.astype(int),
                sweep,
                (begun, (value, score), nowhere),
            )
            scored = jnp.concatenate([value[None], slope])
            landing = landing._replace(score=here.score, scored=scored)
            return jnp.concatenate([part.ravel() for part in landing])

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
    rough = True

    def __init__(
        self, log_density: Any, data: Any, num_positions: int, num_threads: int
    ) -> None:
        self._rough = OnThreads(
            log_density, data, num_positions, num_threads, score=roughly
        )
        self.fly = functools.partial(self._rough.fly, exact=True)
        self.values = self._rough.values

    def __call__(self, positions: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._rough(positions)

"""Leapfrog steps of a particle, under a density that may be tempered and walled in.

What happens to one particle, without the density itself: `vmap` makes many of it, and
`densities` puts it into a compiled loop on every core. With F the factor of the metric:

    p += e/2 F' grad log p(z),  z += e F p        `depart`
    p += e/2 F' grad log p(z)                     `arrive`
"""

import math
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

WIDTH = 2.0
"""Sd of the start of tempering, that of the prior being 1: modes in its tails count."""
MOST_WALLS = 5
"""Around a mode. Their number is fixed, so that nothing is compiled anew."""
SWEEPS_AT_ONCE = 5
"""Trajectories of a particle, one after the other, that one call can make."""


class Flight(NamedTuple):
    """Where a particle is on its trajectory; of many, with an axis of particles first."""

    position: Any  # (d,)
    momentum: Any  # (d,)
    value: Any
    """The log density at the position, perhaps tempered."""
    score: Any  # (d,)
    alive: Any
    """False: it met a value or score that is not finite, and waits at its start."""

    def energy(self) -> Any:
        return 0.5 * jnp.sum(self.momentum**2, axis=-1) - self.value


def depart(
    flight: Flight, start: Flight, step: Any, factor: Float[Array, "d d"]
) -> Flight:
    """Half a step of the momentum, and all of the position.

    A particle that fails, here or on arrival, goes back to `start` and waits there.
    """
    e = jnp.where(flight.alive, step, 0.0)
    momentum = flight.momentum + 0.5 * e * (flight.score @ factor)
    position = flight.position + e * (factor @ momentum)
    alive = flight.alive & jnp.all(jnp.isfinite(position))
    moved = flight._replace(position=position, momentum=momentum)
    return _back_unless(alive, moved, start)


def arrive(
    flight: Flight, scored: tuple[Any, Any], start: Flight, step: Any, factor: Any
) -> Flight:
    """The other half of the momentum, with value and score where `depart` led."""
    value, score = scored
    momentum = flight.momentum + 0.5 * step * (score @ factor)
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(momentum))
    alive = flight.alive & finite & jnp.all(jnp.isfinite(score))
    return _back_unless(
        alive, Flight(flight.position, momentum, value, score, alive), start
    )


def _back_unless(alive: Any, moved: Flight, start: Flight) -> Flight:
    chosen = (jnp.where(alive, *both) for both in zip(moved, start, strict=True))
    return Flight(*chosen)._replace(alive=alive)


def acceptance(start: Flight, end: Flight) -> Any:
    """min(1, exp(-change of energy)), 0 for a particle that failed."""
    change = end.energy() - start.energy()
    fine = end.alive & jnp.isfinite(change)
    return jnp.where(
        fine, jnp.exp(-jnp.maximum(jnp.where(fine, change, 0.0), 0.0)), 0.0
    )


class Tempering(NamedTuple):
    """What is made of a density: start^(1 - beta) density^beta, inside of all walls."""

    beta: Any
    """1: the density itself."""
    walls: Any
    """(W, d + 1): inside is where wall[:d]'z <= wall[d], for every row."""

    def of(self, value: Any, score: Any, position: Any) -> tuple[Any, Any]:
        """Value and score at a position, from those of the density.

        Of NumPy arrays with NumPy, and at many positions: nothing is compiled for it.
        """
        xp = np if isinstance(position, np.ndarray) else jnp
        rest = 1.0 - self.beta
        value = self.beta * value + rest * log_start(position)
        score = self.beta * score - rest * position / WIDTH**2
        beside = position @ self.walls[:, :-1].T <= self.walls[:, -1]
        return xp.where(xp.all(beside, axis=-1), value, -np.inf), score


def log_start(position: Any) -> Any:
    """Log density of N(0, WIDTH^2 I), of a NumPy or a JAX array (..., d)."""
    d = position.shape[-1]
    constant = d * np.log(WIDTH * np.sqrt(2.0 * np.pi))
    return -0.5 * (position**2).sum(axis=-1) / WIDTH**2 - constant


def no_walls(d: int) -> Float[np.ndarray, "W d+1"]:
    """Walls that enclose all."""
    return np.concatenate([np.zeros((MOST_WALLS, d)), np.ones((MOST_WALLS, 1))], axis=1)


def untempered(d: int) -> Tempering:
    """The density as it is."""
    return Tempering(np.asarray(1.0), no_walls(d))


# --- sweeps in one call -----------------------------------------------------------------
# What goes into a compiled loop and what comes out is one array each, of rows of numbers:
# a call takes the longer the more arrays it is given, for few rows of data longer than
# all that it computes.


class Departure(NamedTuple):
    """What a particle's sweeps begin with; S of them at most, S = `SWEEPS_AT_ONCE`."""

    position: Any  # (d,)
    value: Any
    score: Any  # (d,)
    momenta: Any  # (S, d)
    steps: Any  # (S,)
    log_uniform: Any  # (S,)
    """A sweep is accepted if this is below the log of its probability."""

    @staticmethod
    def shapes(d: int) -> tuple[tuple[int, ...], ...]:
        S = SWEEPS_AT_ONCE
        return (d,), (), (d,), (S, d), (S,), (S,)


class Course(NamedTuple):
    """What the sweeps of all particles share."""

    num_sweeps: Any
    num_leapfrogs: Any
    exact: Any
    """Whether a sweep is decided by an exact value, where scores are rough."""
    factor: Any  # (d, d)
    beta: Any
    walls: Any  # (W, d + 1)

    @staticmethod
    def shapes(d: int) -> tuple[tuple[int, ...], ...]:
        return (), (), (), (d, d), (), (MOST_WALLS, d + 1)


class Landing(NamedTuple):
    """Where a particle's sweeps ended: after each of them, and the score after the last."""

    positions: Any  # (S, d)
    values: Any  # (S,)
    probabilities: Any  # (S,)
    """Of acceptance."""
    changes: Any  # (S,)
    """Of energy."""
    alive: Any  # (S,)
    score: Any  # (d,)
    scored: Any  # (d + 1,)
    """What the density itself gave last: its value, and its score."""

    @staticmethod
    def shapes(d: int) -> tuple[tuple[int, ...], ...]:
        S = SWEEPS_AT_ONCE
        return (S, d), (S,), (S,), (S,), (S,), (d,), (d + 1,)


Numbers = TypeVar("Numbers", Departure, Course, Landing)


def pack(numbers: Departure | Course, num: int | None = None) -> np.ndarray:
    """One row; with an axis of `num` particles first, as many."""
    lead = () if num is None else (num,)
    parts = [np.asarray(part).reshape((*lead, -1)) for part in numbers]
    return np.concatenate(parts, axis=-1, dtype=float)


def unpack(kind: type[Numbers], rows: Any, d: int) -> Numbers:
    """What was packed, from one row or many."""
    lead, begin, parts = rows.shape[:-1], 0, []
    for shape in kind.shapes(d):
        end = begin + math.prod(shape)
        parts.append(rows[..., begin:end].reshape((*lead, *shape)))
        begin = end
    return kind(*parts)


def num_coordinates(departure: Any) -> int:
    """d, from the length of a packed `Departure`."""
    one = sum(math.prod(shape) for shape in Departure.shapes(1))
    two = sum(math.prod(shape) for shape in Departure.shapes(2))
    return 1 + (departure.shape[-1] - one) // (two - one)

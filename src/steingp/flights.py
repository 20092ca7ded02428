"""Leapfrog steps of a particle, under a density that may be tempered and walled in.

What happens to one particle, without the density itself: `vmap` makes many of it, and
`densities` puts it into a compiled loop on every core. With F the factor of the metric:

    p += e/2 F' grad log p(z),  z += e F p        `depart`
    p += e/2 F' grad log p(z)                     `arrive`
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

WIDTH = 2.0
"""Sd of the start of tempering, that of the prior being 1: modes in its tails count."""
MOST_WALLS = 5
"""Around a mode. Their number is fixed, so that nothing is compiled anew."""


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


class Tempering(NamedTuple):
    """What is made of a density: start^(1 - beta) density^beta, inside of all walls."""

    beta: Any
    """1: the density itself."""
    walls: Any
    """(W, d + 1): inside is where wall[:d]'z <= wall[d], for every row."""

    def of(self, value: Any, score: Any, position: Any) -> tuple[Any, Any]:
        """Value and score at a position, from those of the density."""
        rest = 1.0 - self.beta
        value = self.beta * value + rest * log_start(position)
        score = self.beta * score - rest * position / WIDTH**2
        inside = jnp.all(self.walls[:, :-1] @ position <= self.walls[:, -1])
        return jnp.where(inside, value, -jnp.inf), score


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

"""One sweep: a Hamiltonian trajectory of every particle, accepted or rejected."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float, Int, Key

from steingp.densities import is_rough, makes_sweeps
from steingp.flights import Flight, acceptance, arrive, depart
from steingp.moves.state import MoveState, ValueAndScore
from steingp.precision import float64, to_numpy

TRAJECTORY = 1.75
"""Length of a trajectory in the metric's units. A quarter turn of a Gaussian is pi/2; a
metric from few draws leaves some directions longer, for which a little more is better."""
MOST_LEAPFROGS = 12
ACCEPTANCE = 0.8
"""What the step is adapted to."""
_JITTER = 0.2  # a particle's step is within this fraction of the common one,
_SHORT, _SHORTER = 0.05, 0.25  # but with this probability, this much shorter: where
# the density is steeper than elsewhere a common step is never accepted

# Dual averaging (Nesterov 2009; Hoffman and Gelman 2014, section 3.2.1). Theirs is for
# hundreds of iterations of one chain; acceptances that are pooled over particles have
# little noise, and a dozen sweeps must do, so each error counts for more.
_GAIN, _DELAY, _FORGETTING = 4.0, 3.0, 0.75
_BLOCK = 100  # keys whose randomness is drawn at once
_MOST_TRIES = 60  # of halving or doubling in search of the first step


class MoveInfo(NamedTuple):
    """What a sweep tells of itself; from `run`, arrays with one entry per sweep.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> normal = lambda z: (-0.5 * (z**2).sum(axis=1), -z)
        >>> state = moves.init(normal, np.eye(3))
        >>> _, info, _ = moves.run(normal, state, 4, 0, adapting=True)
        >>> info.num_failed
        array([0, 0, 0, 0])
    """

    acceptance: Array | np.ndarray
    """Mean probability of acceptance."""
    log_density: Array | np.ndarray
    """Mean over particles, after the sweep."""
    step: Array | np.ndarray
    """The leapfrog step of this sweep."""
    num_leapfrog: Array | np.ndarray
    """Leapfrog steps of a trajectory."""
    num_gradients: Array | np.ndarray
    """Gradients per particle, with those of the search for a step."""
    num_failed: Array | np.ndarray
    """Particles whose trajectory met a value or score that is not finite."""
    energy_error: Array | np.ndarray
    """Largest change of energy, up or down, over trajectories that did not fail."""


class Swept(NamedTuple):
    """What some sweeps gave, one entry per sweep."""

    info: MoveInfo
    positions: Float[Any, "sweeps J d"]
    values: Float[Any, "sweeps J"]


class Randomness(NamedTuple):
    """What is random in a sweep."""

    momenta: Any  # (J, d)
    jitter: Any  # (J,)
    """Each particle's factor of the step."""
    log_uniform: Any  # (J,)
    """Accepted if below the log of the probability."""


class _Trip(NamedTuple):
    """The loop of a sweep: first the search for a step, if it is wanted, then the move."""

    flight: Flight
    log_step: Float[Array, ""]
    searching: Bool[Array, ""]
    direction: Int[Array, ""]
    """Of the search: 1 doubling, -1 halving, 0 not known yet."""
    num_done: Int[Array, ""]
    num_gradients: Int[Array, ""]
    going: Bool[Array, ""]
    """Whether another leapfrog step is to come."""


@float64
def sweep(
    value_and_score: ValueAndScore,
    state: MoveState,
    keys: Key[Array, " J"],
    *,
    adapting: bool | Bool[Array, ""],
    compiled: bool = True,
) -> tuple[MoveState, MoveInfo]:
    """One trajectory of every particle, accepted or rejected; pure.

    Its length is about 1.75 in the metric's units, in 2 to 12 leapfrog steps, as many
    for all particles; each particle's step is jittered by a factor in [0.8, 1.2], one in
    twenty is four times shorter. A
    particle that meets a value or score that is not finite waits at its start for the
    rest of the sweep and is rejected.

    Args:
        value_and_score: positions (J, d) to log densities (J,) and scores (J, d). If it
            is `rough`, its method `values` of positions decides on acceptance, and what a
            call gives may be off, as long as it depends on positions alone. If it has
            a method `fly` and is not compiled, that makes whole sweeps.
        state: from `init` or an earlier sweep.
        keys: one per particle: permuted with the particles, they permute the result.
        adapting: whether the step is adapted afterwards, to an acceptance of 0.8. If
            not, no particle's move depends on where the others are.
        compiled: False for a `value_and_score` that JAX cannot compile, such as one
            that reads blocks of data from a disk; the loop is then Python's. True is
            for calls inside `jit`, as in `jitted_sweep`.

    Example:
        >>> import jax, numpy as np
        >>> from steingp import moves
        >>> def on_the_host(z):
        ...     z = np.asarray(z)
        ...     return -0.5 * (z**2).sum(axis=1), -z
        >>> state = moves.init(on_the_host, np.eye(3), compiled=False)
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> state, info = moves.sweep(
        ...     on_the_host, state, keys, adapting=True, compiled=False)
        >>> int(state.sweep)
        1
    """
    d = np.shape(state.positions)[1]
    if not compiled and makes_sweeps(value_and_score):
        drawn = draw_in_blocks(keys[None], d)
        new, swept = flown(value_and_score, state, drawn, bool(adapting))
        return new, MoveInfo(*(part[0] for part in swept.info))
    return move(value_and_score, state, draw_randomness(keys, d), adapting, compiled)


@partial(jax.jit, static_argnums=1)
def draw_randomness(keys: Key[Array, "*sweeps J"], d: int) -> Randomness:
    """All that is random in a sweep or some, each particle's from its own key."""
    # one call, since it is what takes longest to compile
    normal = jax.vmap(lambda key: jax.random.normal(key, (d + 2,)))(keys.ravel())
    normal = normal.reshape(*keys.shape, d + 2)
    uniform = ndtr(normal[..., d:])
    short = uniform[..., 0] < _SHORT
    within = jnp.where(
        short, uniform[..., 0] / _SHORT, (uniform[..., 0] - _SHORT) / (1.0 - _SHORT)
    )
    jitter = 1.0 + _JITTER * (2.0 * within - 1.0)
    jitter = jnp.where(short, _SHORTER * jitter, jitter)
    return Randomness(normal[..., :d], jitter, jnp.log(uniform[..., 1]))


def draw_in_blocks(keys: Key[Array, "sweeps J"], d: int) -> Randomness:
    """`draw_randomness`, whose compilation takes seconds, compiled for one shape alone."""
    data = np.asarray(jax.random.key_data(keys)).reshape(num := keys.size, -1)
    blocks = np.resize(data, (-(-num // _BLOCK), _BLOCK, data.shape[1]))
    drawn = [_draw_of_data(block, d, jax.random.key_impl(keys)) for block in blocks]
    return Randomness(
        *(
            np.concatenate(parts)[:num].reshape(*keys.shape, *parts[0].shape[1:])
            for parts in zip(*drawn, strict=True)
        )
    )


@partial(jax.jit, static_argnums=(1, 2))
def _draw_of_data(data: Array, d: int, impl: Any) -> Randomness:
    return draw_randomness(jax.random.wrap_key_data(data, impl=impl), d)


def move(
    value_and_score: ValueAndScore,
    state: MoveState,
    randomness: Randomness,
    adapting: bool | Bool[Array, ""],
    compiled: bool,
) -> tuple[MoveState, MoveInfo]:
    """`sweep` with its randomness given.

    What is compiled by itself here counts if the whole is not.
    """
    begun = _begin(state, randomness.momenta, jnp.asarray(adapting))
    start = begun.flight

    def onward(trip: _Trip) -> _Trip:
        step, halfway = _depart(trip, start, randomness.jitter, state.factor)
        scored = value_and_score(halfway.position)
        return _arrive(trip, halfway, scored, start, step, state.factor)

    if compiled:
        trip = jax.lax.while_loop(lambda trip: trip.going, onward, begun)
    else:
        trip = begun
        while trip.going:
            trip = onward(trip)
    if is_rough(value_and_score):
        density: Any = value_and_score
        values = jnp.asarray(density.values(trip.flight.position))
        trip = trip._replace(flight=trip.flight._replace(value=values))
    return _finish(state, start, trip, randomness.log_uniform, jnp.asarray(adapting))


@jax.jit
def _begin(
    state: MoveState, momenta: Float[Array, "J d"], adapting: Bool[Array, ""]
) -> _Trip:
    alive = jnp.ones(len(momenta), bool)
    start = Flight(state.positions, momenta, state.values, state.scores, alive)
    zero = jnp.asarray(0)
    search = adapting & (state.num_adapted == 0)
    return _Trip(start, state.log_step, search, zero, zero, zero, jnp.asarray(True))


def flown(
    density: Any, state: MoveState, randomness: Randomness, adapting: bool
) -> tuple[MoveState, Swept]:
    """Sweeps by a density that makes them itself, in one call.

    One, if the step is adapted: it depends on how all particles fared.
    """
    tries = 0
    if adapting and state.num_adapted == 0:
        assert len(randomness.jitter) == 1
        state, tries = _with_searched_step(
            density, state, Randomness(*(part[0] for part in randomness))
        )
    start = Flight(state.positions, None, state.values, state.scores, None)
    step, num = to_numpy(_plan(state.log_step))
    momenta, jitter, log_uniform = map(np.asarray, randomness)
    landed = density.fly(
        start, momenta, step * jitter, log_uniform, np.asarray(state.factor), num
    )
    accepted = np.mean(np.sort(landed.probabilities, axis=1), axis=1)
    fine = landed.alive > 0.0
    sweeps = len(accepted)
    info = MoveInfo(
        acceptance=accepted,
        log_density=np.mean(np.sort(landed.values, axis=1), axis=1),
        step=np.full(sweeps, step),
        num_leapfrog=np.full(sweeps, num),
        num_gradients=np.full(sweeps, num + tries),
        num_failed=np.sum(~fine, axis=1),
        energy_error=np.max(np.abs(landed.changes), axis=1, where=fine, initial=0.0),
    )
    new = state._replace(
        positions=landed.positions[-1], values=landed.values[-1], scores=landed.score,
        sweep=state.sweep + sweeps,
    )  # fmt: skip
    if adapting:
        new = to_numpy(_adapted_compiled(new, accepted[-1]))
    return new, Swept(info, landed.positions, landed.values)


def _with_searched_step(
    value_and_score: ValueAndScore, state: MoveState, randomness: Randomness
) -> tuple[MoveState, int]:
    """The state with a first step for its metric, and how many gradients that took."""
    trip = _begin(state, randomness.momenta, jnp.asarray(True))
    start = trip.flight
    while trip.searching:
        step, halfway = _depart(trip, start, randomness.jitter, state.factor)
        scored = value_and_score(halfway.position)
        trip = _arrive(trip, halfway, scored, start, step, state.factor)
    return state._replace(log_step=np.asarray(trip.log_step)), int(trip.num_gradients)


@jax.jit
def _plan(log_step: Float[Array, ""]) -> tuple[Array, Array]:
    """The common step, and how many of them make a trajectory."""
    return _step(log_step), _num_leapfrogs(log_step)


def _num_leapfrogs(log_step: Float[Array, ""]) -> Int[Array, ""]:
    return jnp.minimum(jnp.round(TRAJECTORY / _step(log_step)), MOST_LEAPFROGS).astype(
        int
    )


def _step(log_step: Float[Array, ""]) -> Float[Array, ""]:
    """No longer than lets a trajectory have two steps: one alone would barely mix."""
    return jnp.minimum(jnp.exp(log_step), 0.5 * TRAJECTORY)


@jax.jit
def _finish(
    state: MoveState,
    start: Flight,
    trip: _Trip,
    log_uniform: Float[Array, " J"],
    adapting: Bool[Array, ""],
) -> tuple[MoveState, MoveInfo]:
    """Accept or reject, and adapt."""
    end = trip.flight
    probability = acceptance(start, end)
    accepted = _mean(probability)
    kept = _choose(log_uniform < jnp.log(probability), end, start)
    change = jnp.abs(end.energy() - start.energy())
    info = MoveInfo(
        acceptance=accepted,
        log_density=_mean(kept.value),
        step=_step(trip.log_step),
        num_leapfrog=trip.num_done,
        num_gradients=trip.num_gradients,
        num_failed=jnp.sum(~end.alive),
        energy_error=jnp.max(change, where=end.alive, initial=0.0),
    )
    state = state._replace(
        positions=kept.position, values=kept.value, scores=kept.score,
        log_step=trip.log_step, sweep=state.sweep + 1,
    )  # fmt: skip
    return _choose(adapting, _adapted(state, accepted), state), info


@jax.jit
def _depart(
    trip: _Trip, start: Flight, jitter: Float[Array, " J"], factor: Float[Array, "d d"]
) -> tuple[Float[Array, " J"], Flight]:
    """Every particle's step, and where it leads."""
    log_step = trip.log_step
    step = jnp.where(trip.searching, jnp.exp(log_step), _step(log_step)) * jitter
    each = jax.vmap(depart, (0, 0, 0, None))
    return step, each(trip.flight, start, step, factor)


@jax.jit
def _arrive(
    trip: _Trip,
    halfway: Flight,
    scored: tuple[Array, Array],
    start: Flight,
    step: Float[Array, " J"],
    factor: Float[Array, "d d"],
) -> _Trip:
    """The end of a leapfrog step, and what it means for the trip."""
    values, scores = (jnp.asarray(part, float) for part in scored)
    each = jax.vmap(arrive, (0, 0, 0, 0, None))
    flight = each(halfway, (values, scores), start, step, factor)
    trip = trip._replace(num_gradients=trip.num_gradients + 1)
    searched = _search(trip, start, _mean(acceptance(start, flight)))
    flown = trip._replace(flight=flight, num_done=trip.num_done + 1)
    trip = _choose(trip.searching, searched, flown)
    going = trip.searching | (trip.num_done < _num_leapfrogs(trip.log_step))
    return trip._replace(going=going)


def _search(trip: _Trip, start: Flight, accepted: Float[Array, ""]) -> _Trip:
    """Back to the start with twice or half the step, until acceptance crosses 0.8.

    It ends with the largest step tried of which one leapfrog is accepted often enough.
    """
    good = accepted > ACCEPTANCE
    direction = jnp.where(good, 1, -1)
    crossed = (trip.direction != 0) & (trip.direction != direction)
    ended = crossed | (trip.num_gradients >= _MOST_TRIES)
    stays = ended & good  # this step was good and the larger one before was not
    log_step = trip.log_step + jnp.where(stays, 0.0, direction * jnp.log(2.0))
    return trip._replace(
        flight=start, log_step=log_step, searching=~ended, direction=direction
    )


def _adapted(state: MoveState, accepted: Float[Array, ""]) -> MoveState:
    """Dual averaging: the step after a sweep with this acceptance."""
    count = state.num_adapted + 1
    first = jnp.where(count == 1, state.log_step, state.first_log_step)
    weight = 1.0 / (count + _DELAY)
    shortfall = (1.0 - weight) * state.shortfall + weight * (ACCEPTANCE - accepted)
    log_step = first - _GAIN * jnp.sqrt(count) * shortfall
    fresh = jnp.asarray(count, float) ** -_FORGETTING
    averaged = fresh * log_step + (1.0 - fresh) * state.averaged_log_step
    return state._replace(
        log_step=log_step, averaged_log_step=averaged, first_log_step=first,
        shortfall=shortfall, num_adapted=count,
    )  # fmt: skip


_adapted_compiled = jax.jit(_adapted)


def _mean(of_particles: Float[Array, " J"]) -> Float[Array, ""]:
    """The mean, the same to the last digit in whatever order the particles stand."""
    return jnp.mean(jnp.sort(of_particles))


def _choose(which: Bool[Array, "..."], yes: Any, no: Any) -> Any:
    """One pytree or the other; particle by particle if `which` is a vector."""

    def choose(one: Array, other: Array) -> Array:
        extra = (1,) * (one.ndim - which.ndim) if which.ndim else ()
        return jnp.where(which.reshape(which.shape + extra), one, other)

    return jax.tree.map(choose, yes, no)

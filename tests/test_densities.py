"""Threads give what one program gives, and errors come out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingp import densities, moves
from steingp.densities import OfOne, OnThreads, Rough, is_rough
from steingp.flights import (
    Course,
    Departure,
    Tempering,
    no_walls,
    num_coordinates,
    pack,
    unpack,
)
from steingp.tempering import Tempered


def log_density(z: jax.Array, data: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum((z - data) ** 2) + jnp.sum(jnp.sin(z))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num", [1, 4, 7, 20])
def test_threads_give_what_one_program_gives(num_threads: int, num: int) -> None:
    data = jnp.arange(3.0)
    z = np.random.default_rng(0).normal(size=(num, 3))
    threaded = OnThreads(log_density, data, 7, num_threads)(z)
    whole = OfOne(log_density, data)(jnp.asarray(z))
    for ours, expected in zip(threaded, whole, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_many_calls_compile_one_program() -> None:
    counts: list[str] = []

    def listen(name: str, _: float, **about: object) -> None:
        if "backend_compile" in name and "_each_compiled" in str(about):
            counts.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for num in (9, 2, 30):
            density = OnThreads(log_density, jnp.ones(5), 8, 2)
            density(np.zeros((num, 5)))
            state = moves.init(
                Tempered(density, HALF), np.zeros((num, 5)), compiled=False
            )
            moves.run(
                Tempered(density, HALF), state, 2, 0, adapting=True, compiled=False
            )
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(counts) == 1


HALF = Tempering(np.asarray(0.5), no_walls(5))
HALF.walls[0] = [1.0, 0.0, 0.0, 0.0, 0.0, 1.5]  # inside is where z_0 <= 1.5


def walled(density: Any) -> Tempered:
    return Tempered(density, HALF)


def as_it_is(density: Any) -> Any:
    return density


class StepByStep:
    """A density on threads without its trajectories."""

    compiled = False

    def __init__(self, density: Any) -> None:
        self._density = density
        self.rough, self.values = is_rough(density), density.values

    def __call__(self, positions: Any) -> Any:
        return self._density(positions)


@pytest.mark.parametrize("wrapped", [walled, as_it_is])
@pytest.mark.parametrize("on_threads", [OnThreads, Rough])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_whole_trajectories_are_those_of_single_steps(
    num_threads: int, on_threads: Any, wrapped: Any
) -> None:
    def nan_beyond_2(z: jax.Array, data: jax.Array) -> jax.Array:
        return jnp.where(z[1] < 2.0, log_density(z, data), jnp.nan)

    J = 12
    threaded = on_threads(nan_beyond_2, jnp.arange(5.0), J, num_threads)
    start = np.random.default_rng(0).normal(size=(J, 5))
    start[:, 0] = np.minimum(start[:, 0], 1.4)
    found = []
    for density in (wrapped(threaded), wrapped(StepByStep(threaded))):
        state = moves.init(density, start, compiled=False)
        state, info, draws = moves.run(
            density, state, 6, 0, adapting=True, compiled=False
        )
        more = moves.run(
            density, moves.freeze(state), 6, 0, adapting=False, compiled=False
        )
        found.append((draws, info, *more))
    assert np.sum(found[0][1].num_failed) > 0  # where it is NaN, at least
    assert np.any(found[0][4] != found[0][0][-1])
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(
            one, other, rtol=1e-9, atol=1e-12
        ),
        *found,
    )


def test_trajectories_end_at_walls() -> None:
    density = walled(OnThreads(log_density, jnp.full(5, 9.0), 12, 2))
    state = moves.init(density, np.zeros((12, 5)), compiled=False)
    state, info, draws = moves.run(density, state, 20, 0, adapting=True, compiled=False)
    assert np.sum(info.num_failed) > 0
    assert np.max(draws[..., 0]) <= 1.5 < 4.0 < np.max(draws[..., 1])


def test_an_error_on_a_thread_is_raised() -> None:
    def broken(z: jax.Array, _: None) -> jax.Array:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        OnThreads(broken, None, 4, 2)(np.zeros((8, 2)))


def rough_on_threads(log_density: Any, data: Any) -> Rough:
    return Rough(log_density, data, 7, 2)


def rough_compiled(log_density: Any, data: Any) -> OfOne:
    return OfOne(log_density, data, at_once=3, rough=True)


@pytest.mark.parametrize("made", [rough_on_threads, rough_compiled])
def test_rough_scores_come_with_exact_values(made: Any) -> None:
    data, z = jnp.arange(3.0), jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    density = made(log_density, data)
    assert is_rough(density)
    values, scores = OfOne(log_density, data)(z)
    np.testing.assert_allclose(density.values(z), values, rtol=1e-14)
    rough_values, rough_scores = density(z)
    assert np.all(rough_scores != scores) and rough_scores.dtype == np.float64
    np.testing.assert_allclose(rough_scores, scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rough_values, values, rtol=1e-5)


@pytest.mark.parametrize("made", [rough_on_threads, rough_compiled])
def test_where_single_precision_fails_double_is_taken(made: Any) -> None:
    def large(z: jax.Array, third: jax.Array) -> jax.Array:
        return z[0] ** 2 * third  # 1e60 is infinite in single precision

    z = jnp.array([[0.7], [1e30]])
    values, scores = made(large, jnp.asarray(1 / 3))(z)
    exact = np.asarray(z[:, 0]) ** 2 / 3, np.asarray(z) / 1.5
    for found, true in zip((values, scores), exact, strict=True):
        off = np.abs(np.asarray(found) / true - 1.0).ravel()
        assert 1e-9 < off[0] < 1e-6 and off[1] < 1e-14


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("score", [densities.exactly, densities.roughly])
def test_sweeps_in_one_call_are_those_one_by_one(score: Any, together: bool) -> None:
    density = walled(
        OnThreads(log_density, jnp.arange(5.0), 12, 2, score, together=together)
    )
    start = np.minimum(np.random.default_rng(0).normal(size=(12, 5)), 1.4)
    state = moves.init(density, start, step=0.4, compiled=False)
    keys = moves.sweep_keys(3, state, 4)
    whole, swept = moves.sweeps(density, state, keys, adapting=False)
    each = []
    for key in keys:
        state, info = moves.sweep(density, state, key, adapting=False, compiled=False)
        each.append((info, state.positions, state.values))
    jax.tree.map(np.testing.assert_array_equal, whole, state)
    one_by_one = jax.tree.map(lambda *parts: np.stack(parts), *each)
    jax.tree.map(np.testing.assert_array_equal, tuple(swept), one_by_one)
    assert 0.0 < np.mean(np.diff(swept.positions[:, :, 0], axis=0) == 0.0) < 1.0


def test_together_gives_what_one_after_the_other_gives() -> None:
    z = np.random.default_rng(0).normal(size=(9, 3))
    found = [
        OnThreads(log_density, jnp.arange(3.0), 9, 2, together=which)(z)
        for which in (False, True)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


@pytest.mark.parametrize("num", [4, 5, 13, 100])
def test_cores_share_what_each_works_on_together(num: int) -> None:
    z = np.random.default_rng(0).normal(size=(num, 3))
    found = [
        OnThreads(log_density, jnp.arange(3.0), 4, num_threads, together=True)(z)
        for num_threads in (1, 2, 3)
    ]
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)


@pytest.mark.parametrize("d", [1, 3, 10])
def test_what_is_packed_comes_out_again(d: int) -> None:
    rng = np.random.default_rng(0)
    given = Departure(*(rng.normal(size=(4, *s)) for s in Departure.shapes(d)))
    rows = pack(given, 4)
    assert num_coordinates(rows) == d
    jax.tree.map(np.testing.assert_array_equal, unpack(Departure, rows, d), given)
    course = Course(*(rng.normal(size=shape) for shape in Course.shapes(d)))
    jax.tree.map(np.testing.assert_array_equal, unpack(Course, pack(course), d), course)

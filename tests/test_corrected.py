"""SVGD corrected by moves, over densities that are known."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from steingp import corrected, descent, run_state
from steingp.densities import OfOne, OnThreads
from steingp.run_state import State


class Banana(eqx.Module):
    """x ~ N(0, 1), y ~ N(x^2 / 4, 1)."""

    def __call__(self, z: Array, data: Any) -> Array:
        del data
        return -0.5 * z[0] ** 2 - 0.5 * (z[1] - 0.25 * z[0] ** 2) ** 2


class Shifted(eqx.Module):
    """A Gaussian far from the start, of very different widths; NaN beyond a wall."""

    sd: Any
    wall: float = 1e9

    def __call__(self, z: Array, data: Any) -> Array:
        del data
        value = -0.5 * jnp.sum(((z - 3.0) / self.sd) ** 2)
        return jnp.where(z[0] > self.wall, jnp.nan, value)


def start(J: int = 20, d: int = 2, seed: int = 0) -> State:
    return run_state.init(np.random.default_rng(seed).normal(size=(J, d)))


def run(density: OfOne, state: State, wanted: float, seed: int = 0) -> State:
    while state.stage != "done":
        state = corrected.advance(density, state, seed, wanted)
    return state


def test_stages_follow_each_other_and_stop_by_evidence() -> None:
    density, state, seen = OfOne(Banana(), None), start(), []
    while state.stage != "done":
        seen.append(state.stage)
        state = corrected.advance(density, state, 0, 300.0)
    order = list(dict.fromkeys(seen))
    assert order == ["SVGD", "adapting", "trying leaps", "collecting"]
    assert state.effective_size() >= 300.0
    assert run(density, start(), 1200.0).sweeps > state.sweeps


def test_a_share_of_a_step_of_svgd_goes_that_share_of_the_way() -> None:
    density, z = OfOne(Banana(), None), start().particles
    unknown, optimiser = descent.begin(z)
    z, scored, optimiser, _ = descent.step(density, z, unknown, optimiser)
    whole = descent.step(density, z, scored, optimiser)[0] - z
    for share in (0.0, 0.3):
        part = descent.step(density, z, scored, optimiser, share)[0] - z
        np.testing.assert_allclose(part, share * whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("at_once", [1, 3, 10])
@pytest.mark.parametrize("on_threads", [False, True])
def test_steps_of_svgd_at_once_are_those_one_by_one(
    at_once: int, on_threads: bool
) -> None:
    z, density = start().particles, OfOne(Banana(), None)
    if on_threads:
        density = OnThreads(Banana(), None, len(z), num_threads=1)
    scored, optimiser = descent.begin(z)
    shares = np.linspace(1.0, 0.1, 12)
    path, last = descent.steps(density, z, scored, optimiser, shares, at_once)
    assert path.values.shape == (12, len(z))
    for i, share in enumerate(shares):
        z, scored, optimiser, mean = descent.step(density, z, scored, optimiser, share)
        each = (path.positions[i], path.values[i], path.scores[i], path.means[i])
        for found, expected in zip(each, (z, *scored, mean), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    for found, expected in zip(
        jax.tree.leaves(last), jax.tree.leaves(optimiser), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_moments_of_a_banana() -> None:
    state = run(OfOne(Banana(), None), start(), 4000.0)
    x, y = state.draws.reshape(-1, 2).T
    size = state.effective_size()
    assert size >= 4000.0
    # E x = 0, Var x = 1, E y = 1/4, Var y = 1 + Var(x^2) / 16 = 9/8; 4 standard errors
    for values, mean, variance in ((x, 0.0, 1.0), (y, 0.25, 1.125)):
        assert abs(values.mean() - mean) < 4 * np.sqrt(variance / size)
        spread = np.std((values - mean) ** 2) / np.sqrt(size)
        assert abs(np.mean((values - mean) ** 2) - variance) < 4 * spread


def test_narrow_and_wide_coordinates_need_no_step_size() -> None:
    sd = np.array([0.001, 0.1, 2.0])
    state = run(OfOne(Shifted(sd), None), start(d=3), 1500.0)
    draws = state.draws.reshape(-1, 3)
    assert state.effective_size() >= 1500.0
    np.testing.assert_allclose(draws.mean(axis=0), 3.0, atol=4 * sd.max() / 38)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1.0, atol=4 / np.sqrt(2 * 1500))


def test_a_state_through_arrays_goes_on_bit_for_bit() -> None:
    density = OfOne(Banana(), None)
    whole = run(density, start(), 300.0)
    state, count = start(), 0
    while state.stage != "done":
        state = corrected.advance(density, state, 0, 300.0)
        count += 1
        if count % 3 == 0:
            arrays = run_state.to_arrays(state)
            assert all(isinstance(a, np.ndarray) for a in arrays.values())
            state = run_state.from_arrays(start(), arrays)
    np.testing.assert_array_equal(state.draws, whole.draws)
    assert state.num_gradients == whole.num_gradients
    for name, values in whole.trace.items():
        np.testing.assert_array_equal(state.trace[name], values)


def test_arrays_of_another_run_are_refused() -> None:
    arrays = run_state.to_arrays(start())
    with pytest.raises(ValueError, match="another number of particles"):
        run_state.from_arrays(start(J=7), arrays)
    with pytest.raises(ValueError, match="do not hold the state"):
        run_state.from_arrays(start(), {"draws": np.zeros(3)})


def test_particles_beyond_a_wall_come_back() -> None:
    # half the starts have no finite density
    density = OfOne(Shifted(np.array([0.3, 0.3]), wall=4.5), None)
    positions = np.random.default_rng(0).normal(size=(20, 2))
    positions[::2, 0] += 9.0
    state = run(density, run_state.init(positions), 200.0)
    assert np.all(np.isfinite(state.draws)) and state.draws[..., 0].max() < 4.5


def test_lost_and_stuck_particles_become_copies_of_others() -> None:
    density = OfOne(Shifted(np.array([0.1, 0.1])), None)
    state = start()
    while state.stage != "adapting" or not state.sweeps:
        state = corrected.advance(density, state, 0, 100.0, corrected.SWEEPS_PER_WINDOW)
    assert state.moves is not None
    values = np.array(state.moves.values)
    window = np.random.default_rng(0).normal(size=(5, 20, 2))
    window[:, 5] = window[0, 5]  # these two did not move
    window[:, 7] = window[0, 7]
    values[:] = 0.0
    values[3], values[5], values[9] = -31.0, -9.0, -9.0
    moves = state.moves._replace(values=values)
    moved, lost = corrected._replace_lost(moves, window, far=30.0, low=8.0)
    assert np.flatnonzero(lost).tolist() == [3, 5]
    others = np.delete(np.asarray(moves.positions), [3, 5], axis=0)
    for i in (3, 5):
        assert np.any(np.all(moved.positions[i] == others, axis=1))
    np.testing.assert_array_equal(moved.positions[9], moves.positions[9])


def test_a_metric_of_other_widths_is_made_anew() -> None:
    state = start()
    particles = corrected.moves.start(
        state.particles, np.zeros(20), np.zeros((20, 2)), draws=np.diag([1.0, 3.0])
    )
    widths = np.sqrt(np.sum(particles.factor**2, axis=1))
    draws = np.random.default_rng(1).normal(size=(10, 20, 2)) * widths
    assert corrected._suits(particles, draws)
    assert not corrected._suits(particles, draws * np.array([1.0, 0.5]))


@pytest.mark.parametrize(("sweeps", "ends"), [(99, False), (100, True), (150, False)])
def test_draws_that_hardly_move_are_not_collected_for_ever(
    sweeps: int, ends: bool
) -> None:
    rng = np.random.default_rng(0)
    stays = rng.normal(size=(1, 20, 2)) + 0.01 * rng.normal(size=(sweeps, 20, 2))
    state = dataclasses.replace(start(), stage="collecting", draws=stays)
    assert (corrected._look(state, 400.0).stage == "done") == ends
    moving = dataclasses.replace(state, draws=rng.normal(size=(sweeps, 20, 2)))
    assert corrected._look(moving, 1e5).stage == "collecting"


def test_sweeps_at_once_do_not_matter() -> None:
    density = OfOne(Banana(), None)
    one, five = start(), start()
    while one.stage != "done":
        one = corrected.advance(density, one, 0, 150.0, 1)
    while five.stage != "done":
        five = corrected.advance(density, five, 0, 150.0, 5)
    np.testing.assert_allclose(one.draws, five.draws, rtol=1e-9)
    with pytest.raises(ValueError, match="num_sweeps must be 1 or 5"):
        corrected.advance(density, five, 0, 150.0, 3)


def test_nowhere_finite_is_said() -> None:
    density = OfOne(Shifted(np.array([1.0, 1.0]), wall=-1e9), None)
    with pytest.raises(FloatingPointError, match="no particle has a finite"):
        run(density, start(), 100.0)


def test_a_density_on_the_host_gives_the_same() -> None:
    compiled = OfOne(Banana(), None)

    class OnHost:
        compiled = False

        def __call__(self, positions: Array) -> tuple[Array, Array]:
            x, y = np.asarray(positions).T
            gap = y - 0.25 * x**2
            values = -0.5 * x**2 - 0.5 * gap**2
            scores = np.stack([-x + 0.5 * x * gap, -gap], axis=1)
            return jnp.asarray(values), jnp.asarray(scores)

        def values(self, positions: Array) -> Array:
            return self(positions)[0]

    one, two = run(compiled, start(), 100.0), run(OnHost(), start(), 100.0)  # type: ignore[arg-type]
    np.testing.assert_allclose(one.draws[0], two.draws[0], rtol=1e-6)
    assert two.effective_size() >= 100.0

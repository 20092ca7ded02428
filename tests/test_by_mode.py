"""Runs by mode: cut where particles stay apart, merged where they cross, kept in arrays."""

import dataclasses

import numpy as np
import pytest

from steingp import corrected, run_state
from steingp.by_mode import RunsByMode
from steingp.run_state import State

LOW, HIGH = -4.0, 4.0


def sweeps_around(centres: np.ndarray, num: int = 10, seed: int = 0) -> np.ndarray:
    """Draws (num, J, 3) of particles that stay about their centres, in one direction."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(num, len(centres), 3))
    draws[..., 0] += centres
    return draws


def adapting(centres: np.ndarray) -> State:
    """A run of particles around centres, with the log density of a normal there."""
    z = sweeps_around(centres, num=1)[0]
    from_centre = z - np.outer(centres, [1.0, 0.0, 0.0])
    values = -0.5 * np.sum(from_centre**2, axis=1)
    begun = corrected.started(z, values, -from_centre)
    return dataclasses.replace(begun, num_gradients=100)


def adapted(state: State, draws: np.ndarray) -> State:
    """The run with adapting just ended, after these draws."""
    assert state.moves is not None
    moves = state.moves._replace(positions=draws[-1])
    return dataclasses.replace(state, stage="trying leaps", adapted=draws, moves=moves)


def on_both_sides(num_low: int = 8) -> np.ndarray:
    return np.where(np.arange(20) < num_low, LOW, HIGH)


def two_runs() -> RunsByMode:
    centres = on_both_sides()
    runs = RunsByMode(adapting(centres))
    runs.went_on(0, adapted(runs.states[0], sweeps_around(centres)))
    return runs


def has_walls(runs: RunsByMode, k: int) -> bool:
    return bool(np.any(runs.walls(k)[:, :-1] != 0.0))


def test_one_mode_stays_one_run() -> None:
    centres = np.zeros(20)
    runs = RunsByMode(adapting(centres))
    after = adapted(runs.states[0], sweeps_around(centres))
    runs.went_on(0, after)
    assert runs.states == [after]
    assert not has_walls(runs, 0)


def test_particles_that_stay_apart_get_a_run_on_each_side() -> None:
    runs = two_runs()
    assert runs.modes.num_modes == len(runs.states) == 2
    assert [state.stage for state in runs.states] == ["adapting", "adapting"]
    assert runs.running == 0 and not runs.walled
    for k, state in enumerate(runs.states):
        assert state.moves is not None
        assert np.all(runs.modes.of(np.asarray(state.moves.positions)) == k)
        assert len(state.particles) == 20
    assert sum(state.num_gradients for state in runs.states) == 100


def test_both_sides_are_collected_behind_walls_once_both_have_adapted() -> None:
    runs = two_runs()
    for k in (0, 1):
        assert runs.running == k
        positions = np.asarray(runs.states[k].moves.positions)  # type: ignore[union-attr]
        centre = LOW if positions[:, 0].mean() < 0.0 else HIGH
        draws = sweeps_around(np.full(20, centre), seed=k)
        runs.went_on(k, adapted(runs.states[k], draws))
    assert [state.stage for state in runs.states] == ["trying leaps"] * 2
    assert runs.running == 0
    assert has_walls(runs, 0) and has_walls(runs, 1)


@pytest.mark.parametrize("at_the_end", [LOW, HIGH])
def test_particles_that_cross_make_two_modes_one_again(at_the_end: float) -> None:
    runs = two_runs()
    crossing = sweeps_around(np.zeros(20))
    crossing[..., 0] += np.where(np.arange(10) % 2, at_the_end, -at_the_end)[:, None]
    runs.went_on(0, adapted(runs.states[0], crossing))
    assert runs.modes.num_modes == len(runs.states) == 1
    assert runs.states[0].num_gradients == 100
    # the run that was cut goes on with all its particles
    assert runs.states[0].stage == "trying leaps"
    assert runs.states[0].moves is not None
    side = np.sign(np.asarray(runs.states[0].moves.positions)[:, 0])
    np.testing.assert_array_equal(side, np.sign(on_both_sides()))


def test_a_mode_that_all_particles_leave_is_walled_off_once() -> None:
    runs = two_runs()
    first = np.asarray(runs.states[0].moves.positions)  # type: ignore[union-attr]
    elsewhere = HIGH if first[:, 0].mean() < 0.0 else LOW
    gone = sweeps_around(np.full(20, elsewhere))
    runs.went_on(0, adapted(runs.states[0], gone))
    assert runs.walled == {0} and len(runs.states) == 2
    assert runs.states[0].stage == "adapting"
    assert has_walls(runs, 0)  # from the beginning, this time
    assert not has_walls(runs, 1)
    # if they leave again, it is part of the other
    runs.went_on(0, adapted(runs.states[0], gone))
    assert len(runs.states) == 1 and not runs.walled


def test_a_mode_whose_last_particles_were_lost_is_left_to_the_other() -> None:
    runs = two_runs()
    runs.walled = {0}  # it has been tried already
    own = float(np.mean(runs.states[0].moves.positions[:, 0]))  # type: ignore[union-attr]
    draws = sweeps_around(np.where(np.arange(20) < 12, own, -own))
    after = adapted(runs.states[0], draws)
    assert after.moves is not None
    copies = after.moves._replace(positions=np.repeat(draws[-1, -1:], 20, axis=0))
    runs.went_on(0, dataclasses.replace(after, moves=copies))
    assert len(runs.states) == 1


def test_a_copy_does_not_change_with_the_original() -> None:
    runs = two_runs()
    before, arrays = runs.copy(), runs.to_arrays()
    runs.went_on(0, adapted(runs.states[0], sweeps_around(np.zeros(20))))
    runs.walled |= {1}
    for name, array in before.to_arrays().items():
        np.testing.assert_array_equal(array, arrays[name])


def test_collecting_that_does_not_mix_is_cut_late_with_walls() -> None:
    centres = on_both_sides()
    state = dataclasses.replace(adapting(centres), stage="collecting")
    runs = RunsByMode(state)
    draws = sweeps_around(centres, num=40)
    assert state.moves is not None
    after = dataclasses.replace(
        state, draws=draws, values=np.zeros(draws.shape[:2]),
        moves=state.moves._replace(positions=draws[-1]),
    )  # fmt: skip
    runs.went_on(0, after)
    assert len(runs.states) == 2 and runs.walled == {0, 1}


def test_arrays_hold_everything() -> None:
    runs = two_runs()
    runs.walled = {1}
    template = run_state.init(np.zeros((20, 3)))
    arrays = runs.to_arrays()
    again = RunsByMode.from_arrays(template, arrays)
    assert again.walled == runs.walled and again.running == runs.running
    same = again.to_arrays()
    assert same.keys() == arrays.keys()
    assert any(name.startswith("parent0.state.") for name in arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, same[name])

"""The SVGD loop: known targets, determinism, resumption, interruption, failure."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from steingp import stein, svgd
from steingp.batches import FullBatch


def gaussian(particle: dict) -> jnp.ndarray:
    return -0.5 * jnp.sum(particle["x"] ** 2)


def start(J: int, d: int, seed: int = 0) -> dict:
    return {"x": np.random.default_rng(seed).normal(2.0, 0.3, (J, d))}


@pytest.mark.parametrize("d", [1, 2])
def test_gaussian_targets_are_recovered(d: int) -> None:
    state, _ = svgd.run(gaussian, svgd.init(start(100, d)), 3000, progress=False)
    x = state.particles["x"]
    assert np.all(np.abs(x.mean(axis=0)) < 0.05)
    assert np.all((x.var(axis=0) > 0.9) & (x.var(axis=0) < 1.1))


def test_one_particle_is_gradient_ascent() -> None:
    optimiser = optax.sgd(0.1)
    state = svgd.init({"x": np.array([[3.0, -1.0]])}, optimiser)
    state, _ = svgd.run(gaussian, state, 5, optimiser=optimiser, progress=False)
    # x <- x - 0.1 x, five times
    np.testing.assert_allclose(state.particles["x"], [[3.0 * 0.9**5, -(0.9**5)]])


def test_pytrees_of_several_leaves_move_together() -> None:
    def log_density(p: dict) -> jnp.ndarray:
        return -0.5 * jnp.sum((p["a"] - 1.0) ** 2) - 0.5 * (p["b"]["c"] + 2.0) ** 2

    rng = np.random.default_rng(0)
    particles = {"a": rng.normal(size=(40, 2)), "b": {"c": rng.normal(size=40)}}
    state, _ = svgd.run(log_density, svgd.init(particles), 1500, progress=False)
    np.testing.assert_allclose(state.particles["a"].mean(axis=0), 1.0, atol=0.05)
    np.testing.assert_allclose(state.particles["b"]["c"].mean(), -2.0, atol=0.05)


def test_stopping_and_going_on_gives_the_same_result() -> None:
    whole, history = svgd.run(gaussian, svgd.init(start(8, 3)), 60, progress=False)
    half, first = svgd.run(gaussian, svgd.init(start(8, 3)), 25, progress=False)
    stored = svgd.to_arrays(half)
    fresh = svgd.from_arrays(svgd.init(start(8, 3, seed=9)), stored)
    rest, second = svgd.run(gaussian, fresh, 35, progress=False)
    np.testing.assert_array_equal(whole.particles["x"], rest.particles["x"])
    joined = svgd.join([first, second])
    for one, other in zip(history, joined, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(joined.log_density) == 60 and int(rest.step) == 60


def test_arrays_of_another_run_are_refused() -> None:
    state = svgd.init(start(8, 3))
    with pytest.raises(ValueError, match="another number of particles"):
        svgd.from_arrays(state, svgd.to_arrays(svgd.init(start(9, 3))))
    with pytest.raises(ValueError, match="another model or optimiser"):
        svgd.from_arrays(state, {"x": np.zeros(3)})


def test_scoring_in_groups_changes_nothing() -> None:
    together, _ = svgd.run(gaussian, svgd.init(start(7, 2)), 20, progress=False)
    grouped, _ = svgd.run(
        gaussian, svgd.init(start(7, 2)), 20, progress=False, at_once=3
    )
    np.testing.assert_allclose(
        together.particles["x"], grouped.particles["x"], rtol=1e-13
    )


def test_callback_stops_the_run_and_sees_the_state() -> None:
    seen = []

    def callback(state: svgd.SVGDState, info: svgd.SVGDInfo) -> bool:
        seen.append((int(state.step), float(info.log_density)))
        return len(seen) == 2

    state, history = svgd.run(
        gaussian, svgd.init(start(5, 1)), 1000, progress=False, callback=callback
    )
    assert seen[-1][0] == int(state.step) == len(history.log_density) < 1000


def test_ctrl_c_keeps_what_was_reached() -> None:
    def interrupt(state: svgd.SVGDState, info: svgd.SVGDInfo) -> None:
        if int(state.step) > 1:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted after"):
        state, history = svgd.run(
            gaussian, svgd.init(start(5, 1)), 1000, progress=False, callback=interrupt
        )
    assert 1 < int(state.step) == len(history.log_density) < 1000
    rest, _ = svgd.run(
        gaussian, state, 50 - int(state.step) if int(state.step) < 50 else 0,
        progress=False,
    )  # fmt: skip
    whole, _ = svgd.run(
        gaussian, svgd.init(start(5, 1)), int(rest.step), progress=False
    )
    np.testing.assert_array_equal(whole.particles["x"], rest.particles["x"])


def test_history_has_the_norms_of_both_terms() -> None:
    state = svgd.init(start(6, 2))
    _, history = svgd.run(gaussian, state, 1, progress=False)
    x = jnp.asarray(state.particles["x"])
    h = stein.Median()(x, jnp.asarray(0))
    attraction, repulsion = stein.RBF().terms(x, -x, h)
    norm = lambda v: np.sqrt(np.mean(np.sum(np.asarray(v) ** 2, axis=1)))  # noqa: E731
    np.testing.assert_allclose(history.attraction[0], norm(attraction))
    np.testing.assert_allclose(history.repulsion[0], norm(repulsion))
    np.testing.assert_allclose(history.bandwidth[0], h)
    np.testing.assert_allclose(
        history.log_density[0], np.mean(-0.5 * np.sum(np.asarray(x) ** 2, axis=1))
    )


def test_a_failed_particle_is_carried_back_by_the_others() -> None:
    def half_line(p: dict) -> jnp.ndarray:
        return jnp.where(p["x"][0] > 5.0, jnp.nan, gaussian(p))

    particles = {"x": np.array([[0.1], [-0.2], [6.0]])}
    state, history = svgd.run(
        half_line, svgd.init(particles), 1500, progress=False,
        kappa=stein.IMQ(bandwidth=stein.Constant(1.0)),
    )  # fmt: skip
    assert history.num_failed[0] == 1 and history.first_failed[0] == 2
    assert np.all(np.isfinite(state.particles["x"]))
    assert np.all(np.isfinite(history.log_density))


def test_all_failed_stops_with_step_and_particle() -> None:
    with pytest.raises(FloatingPointError, match=r"at step 0 .*particle 0"):
        svgd.run(
            lambda p: jnp.log(-jnp.abs(p["x"]).sum() - 1.0),
            svgd.init(start(3, 1)), 10, progress=False,
        )  # fmt: skip


def test_batches_reach_the_density() -> None:
    def towards(p: dict, batch: jnp.ndarray) -> jnp.ndarray:
        return -0.5 * jnp.sum((p["x"] - batch) ** 2)

    source = FullBatch(jnp.asarray(4.0))  # type: ignore[arg-type]
    state, _ = svgd.run(
        towards, svgd.init(start(20, 1)), 800, batches=source, progress=False
    )
    np.testing.assert_allclose(state.particles["x"].mean(), 4.0, atol=0.05)


@pytest.mark.parametrize(
    "particles", [{}, {"a": np.zeros((0, 2))}, {"a": np.zeros(())}]
)
def test_particles_need_a_leading_axis(particles: dict) -> None:
    with pytest.raises(ValueError, match="leading"):
        svgd.init(particles)


@pytest.mark.user_precision
def test_results_are_float64_without_a_flag() -> None:
    state, history = svgd.run(gaussian, svgd.init(start(4, 1)), 3, progress=False)
    assert state.particles["x"].dtype == np.float64
    assert history.log_density.dtype == np.float64

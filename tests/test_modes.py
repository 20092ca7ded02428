"""Modes: gaps between particles, exploring, evidence by bridges, masses in a fit."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steingp as sg
from steingp import corrected, evidence, modes, run_state, tempering
from steingp.densities import OfOne
from steingp.experiments import references
from steingp.experiments.datasets import Split
from steingp.inference import Fit
from steingp.modes import Gap, Modes


def sweeps_around(centres: np.ndarray, num: int = 10, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(num, *centres.shape))
    return centres + noise


# --- gaps and partitions ----------------------------------------------------------------


def test_a_gap_is_found_where_there_is_one() -> None:
    rng = np.random.default_rng(0)
    correlated = np.linalg.cholesky(np.array([[1.0, 0.99], [0.99, 1.0]]))
    centres = np.zeros((20, 2))
    centres[:6] = [0.8, -0.8]  # far apart only across the correlation
    sweeps = rng.normal(size=(10, 20, 2)) @ correlated.T + centres
    gap = modes.gap(sweeps)
    assert gap is not None
    side = modes.ONE.cut(0, gap).of(sweeps[-1])
    assert len(set(side[:6])) == 1 and len(set(side[6:])) == 1 and side[0] != side[6]


def test_a_particle_that_crosses_does_not_close_the_gap() -> None:
    centres = np.where(np.arange(20) < 10, -4.0, 4.0)[:, None]
    sweeps = sweeps_around(centres)
    sweeps[:5, 3] += 8.0
    gap = modes.gap(sweeps)
    assert gap is not None and abs(gap.edge / gap.direction[0]) < 2.0


def test_a_few_particles_in_a_wide_mode_have_a_gap_to_a_narrow_one() -> None:
    rng = np.random.default_rng(0)
    wide = np.arange(20) >= 18
    sds = np.where(wide, 0.5, 0.05)[:, None]
    sweeps = np.where(wide, 1.5, -0.5)[:, None] + sds * rng.normal(size=(10, 20, 3))
    gap = modes.gap(sweeps)
    assert gap is not None
    assert np.mean((sweeps @ gap.direction > gap.edge) == wide) in (0.0, 1.0)


@pytest.mark.parametrize("d", [1, 3, 15])
def test_one_mode_is_not_parted(d: int) -> None:
    rng = np.random.default_rng(d)
    for _ in range(200):
        # a chain of correlation 0.5
        x = [rng.normal(size=(20, d))]
        for _ in range(9):
            x.append(0.5 * x[-1] + np.sqrt(0.75) * rng.normal(size=(20, d)))
        assert modes.gap(np.stack(x)) is None


def test_cuts_merges_and_arrays() -> None:
    first, second = Gap(np.array([1.0, 0.0]), 0.0), Gap(np.array([0.0, 1.0]), 2.0)
    three = modes.ONE.cut(0, first).cut(1, second)
    points = np.array([[-1.0, 5.0], [1.0, 0.0], [1.0, 3.0]])
    assert three.of(points).tolist() == [0, 1, 2]
    assert three.of(points[None]).shape == (1, 3)
    again = Modes.from_arrays(three.to_arrays())
    assert again.num_modes == 3 and again.of(points).tolist() == [0, 1, 2]
    for mode in range(3):
        walls = three.walls(mode)
        assert walls is not None
        inside = np.all(points @ walls[:, :2].T <= walls[:, 2], axis=1)
        assert inside.tolist() == [k == mode for k in range(3)]
    two = three.merged(0, 2)
    assert two.of(points).tolist() == [1, 0, 1]
    assert two.walls(1) is None and modes.ONE.walls(0) is None


# --- evidence ---------------------------------------------------------------------------


class Bent(eqx.Module):
    """x ~ N(0, 1), y ~ N(x^2 / 2, 0.3^2), times exp(5)."""

    def __call__(self, z: jax.Array, data: Any) -> jax.Array:
        del data
        return 5.0 - 0.5 * z[0] ** 2 - 0.5 * ((z[1] - 0.5 * z[0] ** 2) / 0.3) ** 2


def test_bridges_against_a_known_integral() -> None:
    rng = np.random.default_rng(0)
    truth = 5.0 + np.log(2 * np.pi * 0.3)
    density = jax.jit(jax.vmap(lambda z: Bent()(z, None)))
    misses = []
    for seed in range(20):
        x = rng.normal(size=(50, 20))
        y = 0.5 * x**2 + 0.3 * rng.normal(size=x.shape)
        draws = np.stack([x, y], axis=-1)
        values = np.asarray(density(draws.reshape(-1, 2))).reshape(50, 20)
        found = evidence.bridge(
            draws, values, lambda z: np.asarray(density(jnp.asarray(z))), seed=seed
        )
        assert found.error < 0.1
        misses.append((found.log_value - truth) / found.error)
    assert np.abs(np.mean(misses)) < 4 / np.sqrt(20)
    assert np.abs(misses).max() < 4.5


def test_parts_of_an_integral_add_up() -> None:
    draws = np.random.default_rng(0).normal(size=(100, 20, 2))

    def density(z: np.ndarray) -> np.ndarray:
        return -0.5 * np.sum(z**2, axis=1)

    values = density(draws.reshape(-1, 2)).reshape(100, 20)
    whole = evidence.bridge(draws, values, density)
    parts = [
        evidence.bridge(draws, values, density, inside=lambda z, s=s: s * z[:, 0] > s)
        for s in (1.0, -1.0)
    ]
    for part, share in zip(parts, (0.158655, 0.841345), strict=True):
        assert abs(np.exp(part.log_value - np.log(2 * np.pi)) - share) < 0.02
    assert abs(evidence.together(parts).log_value - whole.log_value) < 0.03
    with pytest.raises(ValueError, match="needs at least 6 draws"):
        evidence.bridge(draws, values, density, inside=lambda z: z[:, 0] > 9.0)


def test_exploring_reaches_both_modes_and_estimates_the_evidence() -> None:
    def density(z: jax.Array, _: Any) -> jax.Array:
        apart = jnp.array([[-2.0, 0.0], [2.0, 1.0]]) - z[None, :]
        squares = jnp.sum(apart**2, axis=1)
        return jax.nn.logsumexp(-0.5 * squares / 0.04, b=jnp.array([0.3, 0.7]))

    truth = np.log(2 * np.pi * 0.04)
    found = []
    for seed in range(5):
        state = tempering.init(2, 20, seed)
        while state.beta < 1.0:
            state = tempering.advance(OfOne(density, None), state, seed)
            state = tempering.from_arrays(tempering.to_arrays(state))
        share = np.mean(state.positions[:, 0] > 0.0)
        assert 0.2 < share < 0.95
        found.append(state.log_evidence - truth)
    assert abs(np.mean(found)) < 0.5


# --- the fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 6])
@pytest.mark.parametrize("many", ["narrow", "wide"])
def test_masses_do_not_depend_on_how_many_start_where(many: str, seed: int) -> None:
    reference = references.load_reference("two-modes")
    run = Fit(references.problem("two-modes").model("auto"), seed=seed, explore=False)
    rng = np.random.default_rng(seed)
    # around the modes in z: lengthscale, signal and noise variance
    narrow = np.array([-0.57, 0.0, -3.3]) + 0.05 * rng.normal(size=(20, 3))
    wide = np.array([1.2, 0.5, -2.1]) + 0.1 * rng.normal(size=(20, 3))
    of_narrow = np.arange(20) < (18 if many == "narrow" else 2)
    run.by_mode.states = [run_state.init(np.where(of_narrow[:, None], narrow, wide))]
    run.run(progress=False)
    posterior = run.posterior()
    assert len(posterior.modes) == 2
    lengthscale = posterior.particles["kernel.lengthscales"][:, 0]
    cut = reference.about["cut"]
    for mode in posterior.modes:
        short = bool(np.median(lengthscale[mode.draws]) < cut)
        truth = reference.about["masses"][0 if short else 1]
        assert abs(mode.mass - truth) < 0.05
    total = posterior.log_evidence()
    assert abs(total.log_value - reference.about["log_evidence"]) < 0.05
    assert total.error < 0.05
    assert "mode 1: mass 0." in repr(posterior)
    only = posterior.subset(posterior.modes[0].draws)
    assert np.all(np.isfinite(only.predict_y([[0.0]]).mean))


@pytest.mark.parametrize("stage", ["exploring", "adapting", "collecting"])
def test_a_fit_of_two_modes_goes_on_bit_for_bit(stage: str) -> None:
    def run() -> Fit:
        model = references.problem("two-modes-lognormal").model("auto")
        return Fit(model, effective_size=100, seed=1)

    whole = run()
    whole.run(progress=False)
    assert len(whole.states) == 2

    def there(state: Any) -> bool:
        return part.stage == stage and (stage == "exploring" or len(part.states) == 2)

    part = run()
    part.run(progress=False, callback=there)
    assert part.stage == stage
    assert part.posterior().method == f"stopped while {stage}"
    rest = run()
    rest.load_state_dict(part.state_dict())
    rest.run(progress=False)
    one, two = whole.posterior(), rest.posterior()
    np.testing.assert_array_equal(one.weights, two.weights)
    for name, values in one.particles.items():
        np.testing.assert_array_equal(values, two.particles[name])


def test_a_narrow_place_that_particles_leave_keeps_its_mass() -> None:
    # noise about nothing: a twentieth of the mass has tiny lengthscales or no noise
    X = np.linspace(-3.0, 2.6, 25)[:, None]
    y = np.array([
        0.755, -0.162, 0.799, 0.749, -0.502, -0.323, -0.165, -0.343, 0.466, 0.864, -0.038,
        0.423, -0.186, 0.468, -0.818, -0.239, 0.373, -0.131, -0.326, -0.28, -0.251, 0.58,
        0.343, 0.141, 0.359,
    ])  # fmt: skip
    data = Split(X, y, X, y)
    kernel = sg.kernels.SquaredExponential()
    ends = {"kernel.lengthscales": (1e-3, 60.0), "kernel.variance": (1e-5, 60.0),
            "likelihood.variance": (1e-7, 60.0)}  # fmt: skip
    problem = references.Problem(
        "noise", data, kernel, sg.likelihoods.Gaussian(), ranges=ends
    )
    grid = references.grid_posterior(problem, num=60)
    num_walled = 0
    for seed in (2, 6, 12):
        run = Fit(problem.model("auto"), effective_size=400, seed=seed)
        run.run(progress=False)
        posterior = run.posterior()
        if not run.by_mode.walled:  # no particle was there; R-hat may not tell
            continue
        num_walled += 1
        mass = sum(posterior.modes[k].mass for k in run.by_mode.walled)
        assert 0.005 < mass < 0.1
        for name in ends:
            draws = np.log(np.ravel(posterior.particles[name]))
            mean, sd = grid.mean_and_sd(name)
            ours = posterior.weights @ draws
            assert abs(ours - mean) < 0.25 * sd
            spread = np.sqrt(posterior.weights @ (draws - ours) ** 2)
            assert 0.8 < spread / sd < 1.2
        assert abs(posterior.log_evidence().log_value - grid.log_evidence) < 0.1
        again = Fit(problem.model("auto"), effective_size=400, seed=seed)
        again.load_state_dict(run.state_dict())
        assert again.by_mode.walled == run.by_mode.walled
    assert num_walled > 0


@pytest.mark.parametrize(("lower", "left"), [(40.0, 1), (8.0, 2)])
def test_modes_that_can_have_no_mass_are_given_up(lower: float, left: int) -> None:
    run = Fit(references.problem("sine").model("auto"), seed=0, explore=False)
    rng = np.random.default_rng(0)
    run.by_mode.modes = modes.ONE.cut(0, Gap(np.array([1.0, 0.0, 0.0]), 0.0))
    run.by_mode.states = [
        dataclasses.replace(
            corrected.started(z, value - 0.5 * np.sum((z - middle) ** 2, axis=1), z),
            num_gradients=100,
        )
        for middle, value in ((-4.0, -lower), (4.0, 0.0))
        for z in [middle + rng.normal(size=(20, 3))]
    ]
    run.by_mode.drop_negligible((0, 1))
    assert len(run.states) == run.by_mode.modes.num_modes == left
    assert sum(state.num_gradients for state in run.states) == 200
    assert np.all(run.states[-1].particles.mean(axis=0) > 2.0)


def test_particles_left_behind_in_a_low_mode_do_not_get_a_run() -> None:
    def low_and_high(z: Any, _: Any) -> Any:
        apart = (z[None] - jnp.array([[-3.0], [3.0]])) / 0.3
        # 16 nats apart: from 17.3 on single particles count as lost, and become copies
        heights = jnp.array([0.0, 16.0])
        return jax.nn.logsumexp(-0.5 * jnp.sum(apart**2, axis=1) + heights)

    run = Fit(references.problem("sine").model("auto"), seed=0, explore=False)
    run.scored = lambda: OfOne(low_and_high, None)  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    sides = np.where(np.arange(20) < 8, -3.0, 3.0)[:, None]
    run.by_mode.states = [run_state.init(sides + 0.1 * rng.normal(size=(20, 3)))]
    most = 0
    while run.state.stage != "collecting":
        run._advance()
        most = max(most, len(run.states))
    assert most == 1
    assert run.state.moves is not None
    assert np.all(np.asarray(run.state.moves.positions) > 1.0)


def test_log_evidence_is_the_same_in_softplus_and_normal_coordinates() -> None:
    model = references.problem("sine").model("auto")
    reference = references.load_reference("sine").about["log_evidence"]
    in_z = sg.fit(model, seed=0, explore=False).log_evidence()
    run = Fit(model, seed=0, explore=False)
    run.density = dataclasses.replace(run.density, target=model.target)
    run.run(progress=False)
    (in_softplus,) = run.evidence()
    error = np.hypot(in_z.error, in_softplus.error)
    assert abs(in_z.log_value - in_softplus.log_value) < 3 * error
    assert abs(in_z.log_value - reference) < 0.05
    assert abs(in_softplus.log_value - reference) < 0.05


def test_evidence_is_refused_where_it_is_not_known() -> None:
    X = np.linspace(-1.0, 1.0, 12)[:, None]
    model = sg.SteinGP((X, np.sin(X)), sg.kernels.Matern32())
    plain = sg.SVGD(model, n_particles=5).posterior()
    with pytest.raises(ValueError, match="needs the draws of a complete fit"):
        plain.log_evidence()


def test_a_unit_of_y_changes_the_evidence_by_its_jacobian() -> None:
    X = np.linspace(-2.0, 2.0, 25)[:, None]
    y = np.cos(2.0 * X[:, 0])
    y = (y - y.mean()) / y.std()
    kernel = sg.kernels.Matern32()
    effort: dict[str, Any] = {
        "effective_size": 100,
        "explore": False,
        "progress": False,
    }
    small = sg.fit(sg.SteinGP((X, y), kernel, standardise=True), **effort)
    large = sg.fit(sg.SteinGP((X, 1000.0 * y), kernel, standardise=True), **effort)
    gap = small.log_evidence().log_value - large.log_evidence().log_value
    assert gap == pytest.approx(25 * np.log(1000.0), abs=0.01)


def test_exploring_is_refused_where_it_cannot_be_done() -> None:
    X = np.linspace(-1.0, 1.0, 12)[:, None]
    model = sg.SteinGP((X, np.sin(X)), sg.kernels.Matern32(), latents="joint")
    with pytest.raises(ValueError, match="explore=True is for fits in which f is"):
        sg.fit(model, explore=True)


def test_particles_nowhere_become_copies_where_svgd_is_left_out() -> None:
    positions, scores = np.arange(8.0).reshape(4, 2), np.ones((4, 2))
    values = np.array([np.nan, -1.0, -2.0, -3.0])
    state = corrected.started(positions, values, scores)
    assert state.moves is not None and state.num_replaced == 1
    np.testing.assert_array_equal(state.moves.positions[0], positions[1])
    with pytest.raises(FloatingPointError, match="no particle has a finite"):
        corrected.started(positions, np.full(4, np.nan), scores)

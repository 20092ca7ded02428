"""The verdict on fits: healthy ones pass, faults that are planted are flagged."""

import dataclasses

import numpy as np
import optax
import pytest

import steingp as sg
from steingp import by_mode, corrected, modes, outcome, verdicts
from steingp.fitting import Fit
from steingp.targets import sites

rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (30, 1))
y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=30)
kernel = sg.kernels.Matern52()


def names(posterior: sg.Posterior) -> list[str]:
    return [check.name for check in posterior.diagnose().failed]


@pytest.fixture(scope="module")
def finished() -> Fit:
    run = Fit(sg.SteinGP((X, y), kernel), effective_size=200)
    run.run(progress=False)
    return run


def test_a_healthy_fit_passes_and_says_so(finished: Fit) -> None:
    posterior = finished.posterior()
    assert posterior.verdict is not None and posterior.verdict.trusted
    assert "Nothing speaks against it" in str(posterior)
    assert "modes" in posterior.verdict.line
    assert posterior.diagnose().checks[-1].name == "jitter"
    assert posterior.diagnose() is posterior.diagnose()


def test_paths_and_traces_are_of_the_kept_sweeps(finished: Fit) -> None:
    posterior, state = finished.posterior(), finished.states[0]
    assert posterior.paths["kernel.lengthscales"].shape == (state.sweeps, 20, 1)
    assert {len(v) for v in posterior.trace.values()} == {state.sweeps}
    last = posterior.paths["kernel.variance"][-1]
    assert np.isin(last, posterior.particles["kernel.variance"]).all() or (
        posterior.num_draws < state.sweeps * 20
    )


def test_collapsed_draws_are_flagged(finished: Fit) -> None:
    state = finished.states[0]
    mean = state.draws.mean(axis=(0, 1))
    narrow = dataclasses.replace(state, draws=mean + 0.5 * (state.draws - mean))
    run = Fit(finished.model, effective_size=200)
    run.load_state_dict(finished.state_dict())
    run.by_mode.states = [narrow]
    posterior = run.posterior()
    assert "spread" in names(posterior)
    assert "Do not trust it" in str(posterior)


def test_collapsed_particles_of_svgd_are_flagged() -> None:
    known = sg.kernels.Matern52(variance=sg.fixed(1.0), lengthscales=sg.fixed(1.0))
    noise = sg.likelihoods.Gaussian(variance=sg.fixed(0.1))
    run = sg.SVGD(sg.SteinMC((X, y), known, noise))
    run.run(1000, progress=False)
    verdict = run.posterior().diagnose()
    assert "collapse" in [check.name for check in verdict.failed]


def test_exact_draws_have_not_collapsed() -> None:
    draws = np.random.default_rng(0).normal(size=(300, 4)) * np.array([1, 2, 3, 4.0])
    curvature = np.diag(1.0 / np.array([1, 2, 3, 4.0]) ** 2)
    check = verdicts.not_collapsed(draws, curvature)
    assert check.passed and 0.8 < float(check.finding.split()[0]) < 1.2
    assert verdicts.not_collapsed(0.5 * draws, curvature).passed is False
    assert verdicts.not_collapsed(draws, -curvature).passed is None


def test_a_stopped_fit_says_where(finished: Fit) -> None:
    part = sg.fit(
        finished.model, effective_size=200, callback=lambda state: True, progress=False
    )
    assert part.verdict is not None
    assert part.verdict.line == "Do not trust it: stopped while exploring."


def test_too_few_draws_are_flagged(
    finished: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrected, "MOST_SWEEPS", 5)
    posterior = sg.fit(finished.model, effective_size=1000, explore=False)
    assert "effective size" in names(posterior)


def test_divergent_moves_are_flagged(
    finished: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_mode, "_POOR", np.inf)  # a late cut would mend it
    run = Fit(finished.model, effective_size=200)
    run.run(progress=False, callback=lambda state: state.stage == "collecting")
    state = run.states[0]
    assert state.moves is not None
    longer = state.moves._replace(factor=10.0 * state.moves.factor)
    run.by_mode.states = [dataclasses.replace(state, moves=longer)]
    run.run(progress=False)
    assert "step" in names(run.posterior())


def test_trajectories_that_fail_are_counted_among_trajectories(finished: Fit) -> None:
    run = Fit(finished.model, effective_size=200)
    run.load_state_dict(finished.state_dict())
    state = run.states[0]
    flown = state.trace["num_leapfrog"] > 0
    assert flown[-state.sweeps :].sum() < 0.5 * state.sweeps  # the rest are leaps
    trace = {**state.trace, "num_failed": 2 * flown}  # of 20 particles
    run.by_mode.states = [dataclasses.replace(state, trace=trace)]
    (check,) = [c for c in run.posterior().diagnose().failed if c.name == "step"]
    assert check.finding == "10 % of moves met a density that is not finite"


def test_svgd_whose_step_diverges_is_flagged() -> None:
    run = sg.SVGD(sg.SteinGP((X, y), kernel), optimiser=optax.sgd(5.0))
    run.run(200, progress=False)
    assert "step" in names(run.posterior())


def test_an_unconverged_solver_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MOST_ITERATIONS", 2)
    odd = (X[:17], (y[:17] > 0.0).astype(float))  # a size that nothing else compiles
    model = sg.SteinGP(odd, kernel, sg.likelihoods.Bernoulli())
    posterior = sg.fit(model, effective_size=20, num_particles=6)
    assert "inner solver" in names(posterior)


def test_a_mode_that_only_the_search_saw_is_flagged(finished: Fit) -> None:
    run = Fit(finished.model, effective_size=200)
    run.load_state_dict(finished.state_dict())
    assert run.exploration is not None
    moved = run.exploration.positions.copy()
    moved[:40] += 8.0
    run.exploration = dataclasses.replace(run.exploration, positions=moved)
    posterior = run.posterior()
    assert names(posterior) == ["modes"]
    check = posterior.diagnose().failed[0]
    assert "about 15 % of the mass" in check.finding


def test_outside_is_what_is_far_from_every_part() -> None:
    draws = np.random.default_rng(0).normal(size=(300, 2))
    parts = [draws, draws + 50.0]
    points = np.array([[0.0, 0.0], [50.0, 50.0], [25.0, 25.0], [0.0, 60.0]])
    assert modes.outside(points, parts).tolist() == [False, False, True, True]


def test_batches_are_never_called_calibrated_by_themselves() -> None:
    big = np.random.default_rng(0).uniform(-3.0, 3.0, (200, 1))
    model = sg.SteinGP((big, np.sin(big)), kernel, inducing=8, batch_size=50)
    posterior = sg.fit(model, num_particles=5, num_steps=60)
    verdict = posterior.diagnose()
    assert not verdict.trusted
    assert "calibration" in [check.name for check in verdict.checks]


def test_known_hyperparameters_are_exact() -> None:
    known = sg.kernels.Matern52(variance=sg.fixed(1.0), lengthscales=sg.fixed(1.0))
    noise = sg.likelihoods.Gaussian(variance=sg.fixed(0.1))
    assert sg.fit(sg.SteinGP((X, y), known, noise)).diagnose().trusted


def test_duplicated_rows_without_noise_need_jitter() -> None:
    twice = (np.repeat(X[:10], 2, axis=0), np.repeat(y[:10], 2))
    noise = sg.likelihoods.Gaussian(variance=sg.fixed(1e-12))
    smooth = sg.kernels.SquaredExponential(
        variance=sg.fixed(1e6), lengthscales=sg.fixed(30.0)
    )
    model = sg.SteinGP(twice, smooth, noise, jitter=0.0, mean=sg.means.Constant())
    verdict = model.posterior(model.sample_prior(4)).diagnose()
    jitter = next(check for check in verdict.checks if check.name == "jitter")
    assert "needed more jitter" in jitter.finding


def test_scored_draws_of_a_particle_are_far_apart() -> None:
    sweeps, J = np.meshgrid(np.arange(40.0), np.arange(20.0), indexing="ij")
    found = outcome._far_apart(np.stack([sweeps, J], axis=2), 200)
    assert len(np.unique(found, axis=0)) == 200
    of_one = np.sort(found[found[:, 1] == 3.0, 0])
    assert len(of_one) == 10 and np.diff(of_one).min() >= 4.0
    for shape, num in (
        ((3, 20, 1), 7),
        ((3, 20, 1), 100),
        ((1, 5, 1), 2),
        ((7, 1, 1), 5),
    ):
        draws = np.arange(float(np.prod(shape))).reshape(shape)
        found = outcome._far_apart(draws, num)
        assert len(np.unique(found)) == min(num, draws.size)

"""NUTS and HMC against grids, closed forms and each other."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike

import steingp as sg
from steingp.baselines import Chains, hmc, mcmc, nuts
from steingp.baselines.chains import capped_size
from steingp.experiments.datasets import Split
from steingp.experiments.references import (
    LENGTHSCALE,
    NOISE,
    Problem,
    grid_posterior,
)

SIZES = {"num_warmup": 300, "num_draws": 500, "seed": 1}


@pytest.fixture(scope="module")
def case() -> Problem:
    """Twenty rows, lengthscale and noise unknown: two hyperparameters, for a grid."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (20, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=20)
    return Problem(
        "twenty rows",
        Split(X, y, X, y),
        sg.kernels.SquaredExponential(variance=sg.fixed(1.0)),
        sg.likelihoods.Gaussian(),
        ranges={LENGTHSCALE: (0.005, 60.0), NOISE: (1e-6, 60.0)},
    )


@pytest.fixture(scope="module")
def small(case: Problem) -> sg.SteinGP:
    return case.model()


@pytest.fixture(scope="module")
def chains(small: sg.SteinGP) -> Chains:
    return nuts(small, **SIZES)


def assert_agrees(draws: np.ndarray, mean: ArrayLike, sd: ArrayLike) -> None:
    """Mean and sd of draws (chains, draws, d) within 4 of their standard errors."""
    squares = (draws - mean) ** 2
    of_mean = np.asarray(sd) / np.sqrt(capped_size(draws))
    of_square = squares.std(axis=(0, 1)) / np.sqrt(capped_size(squares))
    assert np.all(np.abs(draws.mean(axis=(0, 1)) - mean) < 4.0 * of_mean)
    variance = np.square(sd)
    assert np.all(np.abs(squares.mean(axis=(0, 1)) - variance) < 4.0 * of_square)


def assert_agrees_with_grid(chains: Chains, case: Problem) -> None:
    grid = grid_posterior(case, num=120)
    assert grid.mass_at_ends < 1e-5
    assert chains.worst_r_hat < 1.02
    for name in grid.axes:
        draws = np.log(chains.draws[name]).reshape(*chains.draws[NOISE].shape, 1)
        assert_agrees(draws, *grid.mean_and_sd(name))


def test_nuts_agrees_with_a_grid(case: Problem, chains: Chains) -> None:
    assert chains.least_effective_size > 500
    assert_agrees_with_grid(chains, case)


def test_hmc_agrees_with_a_grid_in_softplus_coordinates(case: Problem) -> None:
    chains = hmc(case.model(), **SIZES, coordinates="softplus")
    assert chains.least_effective_size > 500
    assert_agrees_with_grid(chains, case)


def test_latents_sampled_leave_the_same_theta(case: Problem) -> None:
    # nu integrated out by sampling, against nu integrated out in closed form
    chains = nuts(case.model(latents="joint"), **SIZES)
    assert_agrees_with_grid(chains, case)
    assert list(chains.r_hat)[-1] == "nu"


@pytest.mark.parametrize("sampler", [nuts, hmc])
def test_latents_with_theta_known(
    sampler: Callable[..., Chains], case: Problem
) -> None:
    # f = L nu sampled, against the exact posterior of f under Gaussian noise
    parts = (
        sg.kernels.SquaredExponential(sg.fixed(1.0), sg.fixed(0.8)),
        sg.likelihoods.Gaussian(sg.fixed(0.1)),
    )
    data = case.data.X, case.data.y
    exact = sg.fit(sg.SteinGP(data, *parts)).predict_f(data[0])
    model = sg.SteinGP(data, *parts, latents="joint")
    chains = sampler(model, **SIZES)
    f = chains.posterior.predict_f(data[0], max_draws=2000).means.reshape(4, 500, 20)
    assert np.min(capped_size(f)) > 500
    assert_agrees(f, exact.mean, np.sqrt(exact.variance))


def test_what_is_reported(chains: Chains) -> None:
    labels = [f"{LENGTHSCALE}[0]", NOISE]
    assert list(chains.r_hat) == list(chains.effective_size) == labels
    assert chains.draws[LENGTHSCALE].shape == (4, 500, 1)
    pooled = chains.posterior.particles[LENGTHSCALE]
    np.testing.assert_array_equal(pooled[500:1000], chains.draws[LENGTHSCALE][1])
    assert chains.posterior.method == "NUTS, 4 chains of 500"
    # every draw is one gradient or more, and a round waits for all chains
    assert chains.num_gradients >= 4 * 800
    assert chains.num_gradients / 4 <= chains.num_rounds <= chains.num_gradients
    assert chains.step_size.shape == chains.acceptance.shape == (4,)
    assert all(seconds >= 0.0 for seconds in chains.seconds)
    assert "4 chains: r-hat at most" in str(chains)


def test_seeds(small: sg.SteinGP, chains: Chains) -> None:
    again, other = nuts(small, **SIZES), nuts(small, **{**SIZES, "seed": 2})
    np.testing.assert_array_equal(chains.draws[NOISE], again.draws[NOISE])
    assert again.seconds.compile < chains.seconds.compile
    assert not np.any(chains.draws[NOISE] == other.draws[NOISE])


def test_one_chain_after_the_other(case: Problem, small: sg.SteinGP) -> None:
    alone = nuts(small, **SIZES, chain_method="sequential")
    assert_agrees_with_grid(alone, case)


def test_starts_are_used(small: sg.SteinGP) -> None:
    start = {LENGTHSCALE: np.array([[0.7], [0.9]]), NOISE: np.array([0.05, 0.2])}
    target = small.target.normalised()
    z = mcmc._start(target, target, start, 2, None)
    theta = target.constrain({name: value[1] for name, value in z.items()})
    np.testing.assert_allclose(theta[LENGTHSCALE], [0.9], rtol=1e-9)
    np.testing.assert_allclose(theta[NOISE], 0.2, rtol=1e-9)
    with pytest.raises(ValueError, match="2 particles for 4 chains"):
        nuts(small, start=start)


def test_metrics_of_each_kind(case: Problem) -> None:
    joint = case.model(latents="joint").target
    names = tuple(p.name for p in joint.specification.hyperparameters.free)
    assert mcmc._dense_blocks(joint, None) == (names,)
    assert mcmc._dense_blocks(joint, True) == ((*names, "nu"),)
    assert mcmc._dense_blocks(joint, False) == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chains": 0}, "num_chains must be a whole number"),
        ({"num_warmup": 1.5}, "num_warmup must be a whole number"),
        ({"num_draws": 3}, "num_draws must be a whole number of at least 4"),
        ({"seed": -1}, "seed must be"),
        ({"max_tree_depth": 0}, "max_tree_depth must be"),
        ({"target_accept": 1.0}, "between 0 and 1"),
        ({"coordinates": "log"}, '"normal" or "softplus"'),
        ({"chain_method": "parallel"}, '"vectorized" or "sequential"'),
        ({"start": {NOISE: np.ones(4)}}, "must have shape"),
    ],
)
def test_bad_arguments(small: sg.SteinGP, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nuts(small, **options)


def test_models_that_cannot_be_sampled(small: sg.SteinGP) -> None:
    with pytest.raises(ValueError, match="must be a SteinGP"):
        nuts(small.target)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trajectory_length must be a positive"):
        hmc(small, trajectory_length=0.0)
    X = y = np.linspace(-1.5, 1.5, 3)
    known = sg.SteinGP(
        (X, y),
        sg.kernels.SquaredExponential(sg.fixed(1.0), sg.fixed(1.0)),
        sg.likelihoods.Gaussian(sg.fixed(0.1)),
    )
    with pytest.raises(ValueError, match="nothing to sample"):
        nuts(known)
    stream = sg.SteinGP(
        lambda: iter([(X[:, None], y)]), sg.kernels.Matern32(),
        inducing=X[:1, None], num_data=3,
    )  # fmt: skip
    with pytest.raises(ValueError, match="data in memory"):
        nuts(stream)


def test_a_start_without_density(
    small: sg.SteinGP, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = {LENGTHSCALE: np.zeros((4, 1)), NOISE: np.array([0.0, np.nan, 0.0, 0.0])}
    monkeypatch.setattr(mcmc, "_start", lambda *_: z)
    with pytest.raises(FloatingPointError, match="chain 1"):
        nuts(small, **SIZES)

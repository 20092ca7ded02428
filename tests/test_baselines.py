"""NUTS and HMC against grids, closed forms and each other."""

import numpy as np
import pytest

import steingp as sg
from steingp.baselines import Chains, hmc, mcmc, nuts
from steingp.experiments.references import (
    LENGTHSCALE,
    NOISE,
    grid_posterior,
    problem,
)

SAMPLERS = [nuts, hmc]


@pytest.fixture(scope="module")
def small() -> sg.SteinGP:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (12, 1))
    return sg.SteinGP(
        (X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=12)),
        sg.kernels.SquaredExponential(variance=sg.fixed(1.0)),
    )


def errors(chains: Chains, name: str, mean: float, sd: float) -> tuple[float, float]:
    """How far mean and sd of log theta lie off, in standard errors of each."""
    draws = np.log(np.ravel(chains.posterior.particles[name]))
    label = name if name in chains.effective_size else f"{name}[0]"
    size = chains.effective_size[label]
    # var(sd) = sd^2 (kurtosis - 1) / 4n; kurtosis 5 is more than these have
    return (
        abs(draws.mean() - mean) / (sd / np.sqrt(size)),
        abs(draws.std() / sd - 1.0) / np.sqrt(1.0 / size),
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_posterior_of_two_hyperparameters(sampler) -> None:
    # lengthscale and noise of Neal's data; the truth by a grid
    case = problem("neal-known-variance")
    grid = grid_posterior(case)
    chains = sampler(case.model(), num_warmup=300, num_draws=500, seed=1)
    assert chains.worst_r_hat < 1.02
    assert chains.least_effective_size > 400
    for name in (LENGTHSCALE, NOISE):
        of_mean, of_sd = errors(chains, name, *grid.mean_and_sd(name))
        assert of_mean < 4.0
        assert of_sd < 4.0


@pytest.mark.parametrize("coordinates", ["normal", "softplus"])
def test_coordinates_do_not_matter(coordinates: str) -> None:
    case = problem("sine")
    grid = grid_posterior(case)
    chains = nuts(
        case.model(), num_warmup=300, num_draws=400, coordinates=coordinates, seed=2
    )
    for name in grid.axes:
        of_mean, of_sd = errors(chains, name, *grid.mean_and_sd(name))
        assert of_mean < 4.0
        assert of_sd < 4.0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_latents_with_theta_known(sampler) -> None:
    # f = L nu sampled, against the exact posterior of f with Gaussian noise
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (15, 1))
    y = np.cos(2 * X[:, 0]) + 0.3 * rng.normal(size=15)
    parts = (
        sg.kernels.SquaredExponential(sg.fixed(1.0), sg.fixed(0.8)),
        sg.likelihoods.Gaussian(sg.fixed(0.1)),
    )
    exact = sg.fit(sg.SteinGP((X, y), *parts)).predict_f(X)
    model = sg.SteinGP((X, y), *parts, latents="joint")
    chains = sampler(model, num_warmup=300, num_draws=1000, seed=0)
    f = chains.posterior.predict_f(X)
    # at least 2000 effective draws: 4.5 standard errors of 15 means and 15 sds
    assert chains.effective_size["nu"] > 2000
    sd = np.sqrt(exact.variance)
    assert np.max(np.abs(f.mean - exact.mean) / sd) < 4.5 / np.sqrt(2000)
    assert np.max(np.abs(np.sqrt(f.variance) / sd - 1.0)) < 4.5 / np.sqrt(4000)


def test_theta_and_latents_together() -> None:
    # nu integrated out by sampling gives the theta of the marginal target
    case = problem("sine")
    grid = grid_posterior(case)
    chains = nuts(case.model(latents="joint"), num_warmup=400, num_draws=500, seed=0)
    assert chains.worst_r_hat < 1.03
    for name in grid.axes:
        of_mean, of_sd = errors(chains, name, *grid.mean_and_sd(name))
        assert of_mean < 4.0
        assert of_sd < 4.0


def test_what_is_reported(small: sg.SteinGP) -> None:
    chains = nuts(small, num_warmup=100, num_draws=60, num_chains=3)
    labels = [f"{LENGTHSCALE}[0]", NOISE]
    assert list(chains.r_hat) == list(chains.effective_size) == labels
    assert chains.draws[LENGTHSCALE].shape == (3, 60, 1)
    pooled = chains.posterior.particles[LENGTHSCALE]
    np.testing.assert_array_equal(pooled[60:120], chains.draws[LENGTHSCALE][1])
    assert chains.posterior.method == "NUTS, 3 chains of 60"
    # every draw is one gradient or more, and a round waits for all chains
    assert chains.num_gradients >= 3 * 160
    assert chains.num_gradients / 3 <= chains.num_rounds <= chains.num_gradients
    assert chains.step_size.shape == chains.acceptance.shape == (3,)
    assert all(seconds >= 0.0 for seconds in chains.seconds)
    assert "3 chains: r-hat at most" in str(chains)


def test_seeds_and_chain_methods(small: sg.SteinGP) -> None:
    sizes = {"num_warmup": 60, "num_draws": 30, "num_chains": 2}
    first = nuts(small, **sizes)
    again = nuts(small, **sizes)
    other = nuts(small, **sizes, seed=1)
    np.testing.assert_array_equal(first.draws[NOISE], again.draws[NOISE])
    assert again.seconds.compile < first.seconds.compile
    assert not np.any(first.draws[NOISE] == other.draws[NOISE])
    # the same chains, one after the other: equal until rounding makes them part
    alone = nuts(small, **sizes, chain_method="sequential")
    near = np.log(alone.draws[NOISE][:, 0] / first.draws[NOISE][:, 0])
    assert alone.draws[NOISE].shape == first.draws[NOISE].shape
    print(near)


def test_starts_are_used(small: sg.SteinGP) -> None:
    # with a step that adaptation has no time to find, a chain stays where it starts
    start = {LENGTHSCALE: np.array([[0.7], [0.9]]), NOISE: np.array([0.05, 0.2])}
    target = small.target.normalised()
    z = mcmc._start(target, target, start, 2, None)
    theta = target.constrain({name: value[1] for name, value in z.items()})
    np.testing.assert_allclose(theta[LENGTHSCALE], [0.9], rtol=1e-9)
    np.testing.assert_allclose(theta[NOISE], 0.2, rtol=1e-9)
    with pytest.raises(ValueError, match="2 particles for 4 chains"):
        nuts(small, start=start)


def test_metrics_of_each_kind() -> None:
    joint = problem("sine").model(latents="joint").target
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
    X, y = np.zeros((3, 1)), np.zeros(3)
    known = sg.SteinGP(
        (X, y),
        sg.kernels.SquaredExponential(sg.fixed(1.0), sg.fixed(1.0)),
        sg.likelihoods.Gaussian(sg.fixed(0.1)),
    )
    with pytest.raises(ValueError, match="nothing to sample"):
        nuts(known)
    stream = sg.SteinGP(
        lambda: iter([(np.ones((3, 1)), np.ones(3))]), sg.kernels.Matern32(),
        inducing=np.zeros((1, 1)), num_data=3,
    )  # fmt: skip
    with pytest.raises(ValueError, match="data in memory"):
        nuts(stream)


def test_a_start_without_density(small: sg.SteinGP) -> None:
    start = {LENGTHSCALE: np.ones((2, 1)), NOISE: np.array([0.1, np.nan])}
    with pytest.raises(FloatingPointError, match="chain 1"):
        nuts(small, num_chains=2, start=start)

"""Two- and three-dimensional posteriors, integrated on a grid."""

import numpy as np
import pytest
from scipy.special import logsumexp

import steingp as sg
from steingp.experiments import multimodal
from steingp.experiments.datasets import neal
from steingp.experiments.multimodal import LENGTHSCALE, NOISE, VARIANCE


def test_grid_and_model_have_the_same_density() -> None:
    # the grid's formula (eigenvalues, density of log theta) against the model's
    # (Cholesky, density of softplus^-1 theta): they differ by the Jacobian
    split = neal(seed=1)
    model = sg.SteinGP((split.X, split.y), sg.kernels.SquaredExponential())
    grid = multimodal.grid_posterior(split.X, split.y, num=12)
    index = np.array([(3, 6, 7), (5, 4, 6), (6, 8, 8), (2, 3, 9)]).T
    theta = {
        name: values[i]
        for (name, values), i in zip(grid.axes.items(), index, strict=True)
    }
    particles = dict(theta, **{LENGTHSCALE: theta[LENGTHSCALE][:, None]})
    of_z = model.log_density(particles)
    # theta = softplus(z) + 1e-6: d log theta / dz = (1 - exp(-(theta - 1e-6))) / theta
    slopes = [np.log(-np.expm1(-(v - 1e-6))) - np.log(v) for v in theta.values()]
    of_log = of_z - np.sum(slopes, axis=0)
    gaps = of_log - np.log(grid.masses[tuple(index)])
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-8)


def test_svgd_matches_three_dimensions() -> None:
    # plain SVGD in 3 dimensions: centred, and somewhat narrow (sd ratio about .85-1)
    split = neal(seed=0)
    grid = multimodal.grid_posterior(split.X, split.y)
    model = sg.SteinGP((split.X, split.y), sg.kernels.SquaredExponential())
    opt = sg.SVGD(model, n_particles=40)
    opt.run(800)
    posterior = opt.posterior()
    for name in (LENGTHSCALE, VARIANCE, NOISE):
        mean, sd = grid.mean_and_sd(name)
        draws = np.log(np.ravel(posterior.particles[name]))
        assert abs(draws.mean() - mean) < 0.25 * sd
        assert 0.75 < draws.std() / sd < 1.15


def test_svgd_matches_two_dimensions() -> None:
    # lengthscale and noise, variance known; integrated here from the model's density
    split = neal(seed=3)
    model = sg.SteinGP(
        (split.X, split.y), sg.kernels.SquaredExponential(variance=sg.fixed(1.0))
    )
    lengthscale = np.geomspace(0.1, 3.0, 60)
    noise = np.geomspace(0.005, 0.5, 60)
    A, B = (a.ravel() for a in np.meshgrid(lengthscale, noise, indexing="ij"))
    log_density = model.log_density({LENGTHSCALE: A[:, None], NOISE: B})
    log_density -= np.log(-np.expm1(-A)) + np.log(-np.expm1(-B)) - np.log(A * B)
    mass = np.exp(log_density - logsumexp(log_density))
    opt = sg.SVGD(model, n_particles=40)
    opt.run(800)
    posterior = opt.posterior()
    for name, values in ((LENGTHSCALE, np.log(A)), (NOISE, np.log(B))):
        mean = mass @ values
        sd = np.sqrt(mass @ (values - mean) ** 2)
        draws = np.log(np.ravel(posterior.particles[name]))
        assert abs(draws.mean() - mean) < 0.25 * sd
        assert 0.75 < draws.std() / sd < 1.15


def test_the_grid_is_fine_enough() -> None:
    split = neal(seed=0)
    coarse = multimodal.grid_posterior(split.X, split.y, num=40)
    fine = multimodal.grid_posterior(split.X, split.y, num=60)
    for name in coarse.axes:
        np.testing.assert_allclose(
            coarse.mean_and_sd(name), fine.mean_and_sd(name), atol=0.01
        )
    assert fine.masses[[0, -1]].sum() < 1e-6  # the lengthscale's range is wide enough


@pytest.mark.parametrize("seed", [0, 4])
def test_neals_data_have_the_papers_outliers(seed: int) -> None:
    split = neal(seed, num=4000, num_train=2000)
    x = split.X[:, 0]
    clean = 0.3 + 0.3 * x + 0.5 * np.sin(2.7 * x) + 1.1 / (1 + x**2)
    noise = split.y - clean
    # variance .05 * 1 + .95 * .01 = .0595; an outlier (|noise| > .5) has probability
    # .05 * P(|N(0,1)| > .5) = .0309 (5 sd of the noise otherwise)
    # E noise^4 = .05 * 3 + .95 * .0003, so a variance of 2000 has sd .0086
    assert abs(noise.var() - 0.0595) < 5 * 0.0086
    assert abs(np.mean(np.abs(noise) > 0.5) - 0.0309) < 5 * np.sqrt(0.0309 / 2000)

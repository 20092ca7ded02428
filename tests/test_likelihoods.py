"""Likelihoods: the laws, and what each refuses."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from laws import likelihoods as laws
from laws.likelihoods import Case
from scipy import special, stats

from steingp import fixed, likelihoods
from steingp.likelihoods import at_start
from steingp.priors import Hyperparameters


def negative_binomial(dispersion: float, exposure: float):
    r = 1.0 / dispersion
    return lambda f: stats.nbinom(r, r / (r + exposure * np.exp(f)))


# log sigmoid and softplus are singular at i pi; Student's log density at y + i scale
# sqrt(df); log Phi at the zeros of erfc(-f / sqrt 2), the nearest at f = 1.91 + 2.82 i
CASES = {
    "gaussian": Case(
        likelihoods.Gaussian(0.3), lambda f: stats.norm(f, 0.3**0.5), (-1.0, 2.0), 0.0
    ),
    "gaussian_known": Case(
        likelihoods.Gaussian(fixed(0.0)),
        lambda f: stats.norm(f, 0.05**0.5),
        (0.1, 0.5),
        0.05,
    ),
    "student_t": Case(
        likelihoods.StudentT(scale=0.5, df=9.0),
        lambda f: stats.t(9.0, f, 0.5),
        (0.0, 1.0, 40.0),
        0.0,
        singularity=1.5,
    ),
    "student_t_narrow": Case(
        likelihoods.StudentT(scale=0.02, df=5.0),
        lambda f: stats.t(5.0, f, 0.02),
        (0.0, 0.6, 3.0),
        0.0,
        singularity=0.02 * 5.0**0.5,
    ),
    "bernoulli": Case(
        likelihoods.Bernoulli(),
        lambda f: stats.bernoulli(special.expit(f)),
        (0.0, 1.0),
        0.0,
        singularity=np.pi,
        log_tail=lambda y, f: special.log_expit((2.0 * y - 1.0) * f),
    ),
    "probit": Case(
        likelihoods.Bernoulli("probit"),
        lambda f: stats.bernoulli(special.ndtr(f)),
        (0.0, 1.0),
        0.0,
        singularity=2.82,
        log_tail=lambda y, f: special.log_ndtr((2.0 * y - 1.0) * f),
    ),
    "poisson": Case(
        likelihoods.Poisson(),
        lambda f: stats.poisson(np.exp(f)),
        (0.0, 3.0, 1000.0),
        1.0,
    ),
    "poisson_exposure": Case(
        likelihoods.Poisson(),
        lambda f: stats.poisson(2.5 * np.exp(f)),
        (0.0, 7.0),
        2.5,
    ),
    "negative_binomial": Case(
        likelihoods.NegativeBinomial(dispersion=0.4),
        negative_binomial(0.4, 2.0),
        (0.0, 5.0, 300.0),
        2.0,
        singularity=np.pi,
    ),
    "exponential": Case(
        likelihoods.Exponential(),
        lambda f: stats.expon(scale=np.exp(f)),
        (0.2, 3.0),
        0.0,
    ),
    "gamma": Case(
        likelihoods.Gamma(shape=2.5),
        lambda f: stats.gamma(2.5, scale=np.exp(f)),
        (0.2, 3.0),
        0.0,
    ),
    "gamma_narrow": Case(
        likelihoods.Gamma(shape=150.0),
        lambda f: stats.gamma(150.0, scale=np.exp(f)),
        (20.0, 100.0),
        0.0,
    ),
}


@pytest.mark.parametrize("law", laws.ALL, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", CASES)
def test_law(name, law):
    law(CASES[name])


def test_student_without_moments():
    f = jnp.zeros(1)
    assert np.isnan(
        at_start(likelihoods.StudentT(df=fixed(1.0))).conditional_mean(f, f)
    )
    assert np.isinf(likelihoods.StudentT(df=2.0).predictive_variance(f, f, f))
    cauchy = likelihoods.StudentT(scale=2.0, df=1.0)
    y = jnp.linspace(-30.0, 30.0, 7)
    got = cauchy.conditional_cdf(y, jnp.ones(7), jnp.zeros(7))
    np.testing.assert_allclose(got, stats.cauchy.cdf(y, 1.0, 2.0), atol=1e-8)


def test_tails_stay_finite():
    far = jnp.array([-700.0, 700.0])
    one, zero = jnp.ones(2), jnp.zeros(2)
    for link, want in [("logit", -700.0), ("probit", -0.5 * 700.0**2)]:
        got = likelihoods.Bernoulli(link).log_prob(one, far, zero)
        np.testing.assert_allclose(got[0], want, rtol=1e-4)
        np.testing.assert_allclose(got[1], 0.0, atol=1e-12)
    for likelihood in (likelihoods.Poisson(), likelihoods.Gamma(2.0)):
        for variance in (one, 100.0 * one):
            # log p is near -exp(700) at the mean: only f far from it explains y
            value = likelihood.predictive_log_prob(3.0 * one, far, variance, one)
            slope = jax.grad(
                lambda m, v=variance, p=likelihood: jnp.sum(
                    p.predictive_log_prob(3.0 * one, m, v, one)
                )
            )(far)
            assert np.all(np.isfinite(value)) and np.all(np.isfinite(slope))


def test_poisson_far_below_its_target():
    """y = 1000 where N(f; 0, 1) puts nothing: Laplace's approximation is near."""
    y, mean, variance = jnp.array([1000.0]), jnp.zeros(1), jnp.ones(1)
    got = likelihoods.Poisson().predictive_log_prob(y, mean, variance, jnp.ones(1))
    # 1000 - exp(f) = f at the mode f = 6.9008, curvature exp(f) + 1; the first term
    # left out is of order 1 / (8 * 1000) and smaller
    f = 6.9
    for _ in range(20):
        f -= (1000.0 - np.exp(f) - f) / (-np.exp(f) - 1.0)
    laplace = stats.poisson.logpmf(1000, np.exp(f)) - 0.5 * f * f
    laplace -= 0.5 * np.log(np.exp(f) + 1.0)
    np.testing.assert_allclose(got, laplace, atol=1.0 / 4000.0)


def test_binds_and_survives_replacement():
    spec = likelihoods.NegativeBinomial(exposure=[1.0, 2.0])
    hyperparameters = Hyperparameters.bind({"likelihood": spec}, 3)
    assert [p.name for p in hyperparameters.free] == ["likelihood.dispersion"]
    bound = at_start(spec)
    np.testing.assert_array_equal(bound.row_values, [1.0, 2.0])
    np.testing.assert_array_equal(dataclasses.replace(bound).row_values, [1.0, 2.0])
    traced = eqx.filter_jit(lambda e: likelihoods.Poisson(e).row_values * 2.0)
    np.testing.assert_array_equal(traced(jnp.array([-1.0])), [-2.0])


def test_degrees_of_freedom_move_only_if_asked():
    def free(likelihood):
        bound = Hyperparameters.bind({"likelihood": likelihood}, 1)
        return {p.name: p.prior for p in bound.free}

    assert set(free(likelihoods.StudentT())) == {"likelihood.scale"}
    prior = free(likelihoods.StudentT(df=5.0))["likelihood.df"]
    np.testing.assert_allclose(prior.mean, dist.Gamma(2.0, 0.1).mean)


@pytest.mark.parametrize(
    ("likelihood", "y", "row", "expected"),
    [
        (likelihoods.Gaussian(), [0.0, np.nan], 1, "finite"),
        (likelihoods.StudentT(), [0.0, 1.0, np.inf], 2, "finite"),
        (likelihoods.Bernoulli(), [0.0, 1.0, 2.0, -1.0], 2, "0 and 1"),
        (likelihoods.Poisson(), [3.0, -1.0], 1, "counts"),
        (likelihoods.Poisson(), [0.5, 1.0], 0, "counts"),
        (likelihoods.NegativeBinomial(), [1.0, 2.0, 2.5], 2, "counts"),
        (likelihoods.Exponential(), [0.0, -0.1], 1, "0 or more"),
        (likelihoods.Gamma(), [1.0, 0.0], 1, "greater than 0"),
    ],
)
def test_refuses_targets(likelihood, y, row, expected):
    with pytest.raises(ValueError, match=rf"y must hold .*{expected}.*; row {row} is "):
        likelihood.check_targets(np.array(y))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: likelihoods.Poisson([1.0, 0.0]),
            r"exposure.*greater than 0; row 1 is 0",
        ),
        (lambda: likelihoods.NegativeBinomial(exposure=-1.0), r"exposure.*row 0 is -1"),
        (lambda: likelihoods.Poisson([1.0, np.nan]), r"exposure.*finite.*row 1 is nan"),
        (
            lambda: likelihoods.Poisson(np.ones((2, 1))),
            r"exposure.*\(2, 1\).*one column",
        ),
        (lambda: likelihoods.Poisson("hours"), r"exposure.*got 'hours'"),
        (
            lambda: likelihoods.Gaussian(known_variance=[-0.1]),
            r"known_variance.*0 or more",
        ),
        (
            lambda: likelihoods.Bernoulli("log"),
            r'link.*"logit" or "probit"; got \'log\'',
        ),
        (
            lambda: likelihoods.Gaussian(-1.0),
            r"Gaussian\(variance=...\) must not be neg",
        ),
        (lambda: likelihoods.Gamma(shape=0.0), r"Gamma\(shape=...\) must be positive"),
    ],
)
def test_refuses_arguments(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_known_noise_may_be_zero():
    assert likelihoods.Gaussian(known_variance=[0.0, 1.0]).row_values[0] == 0.0
    assert likelihoods.Gaussian(fixed(0.0)).row_values is None

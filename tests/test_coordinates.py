"""Coordinates in which priors are standard normal."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from steingp import kernels
from steingp.coordinates import NormalToAny, NormalToExponential, normalising
from steingp.priors import POSITIVE_FLOOR, Hyperparameters, bijector_of

PRIORS = {
    "exponential": dist.Exponential(0.5),
    "exponentials": dist.Exponential(0.5).expand([3]),
    "gamma": dist.Gamma(3.0, 1.0),
    "gammas": dist.Gamma(jnp.array([0.7, 3.0]), jnp.array([1.0, 9.0])).to_event(1),
    "lognormal": dist.LogNormal(1.0, 3.0),
    "inverse gamma": dist.InverseGamma(3.0, 1.0),
    "half normal": dist.HalfNormal(2.0),
    "half cauchy": dist.HalfCauchy(1.0),
    "normal": dist.Normal(1000.0, 2.0),
    "student": dist.StudentT(3.0, 1.0, 2.0),
    "uniform": dist.Uniform(-1.0, 2.0),
    "beta": dist.Beta(2.0, 5.0),
    "truncated": dist.TruncatedNormal(1.0, 1.0, low=0.0),
}


def made(name: str):
    prior = PRIORS[name]
    return prior, normalising(prior, bijector_of(prior), POSITIVE_FLOOR)


@pytest.mark.parametrize("name", PRIORS)
def test_density_of_z_is_standard_normal(name: str) -> None:
    """log p(theta(z)) + log |dtheta/dz| against log N(z; 0, 1), entry by entry."""
    prior, coordinates = made(name)
    assert isinstance(coordinates, NormalToExponential | NormalToAny)

    @jax.jit
    @jax.vmap
    def log_density(value: jax.Array) -> jax.Array:
        z = jnp.full(prior.shape(), value)
        theta = coordinates(z)
        density = jnp.sum(prior.log_prob(theta))
        return density + jnp.sum(coordinates.log_abs_det_jacobian(z, theta))

    z = np.linspace(-3.0, 3.0, 25)
    size = max(int(np.prod(prior.shape())), 1)
    # the floor of 1e-6 shifts theta, by 2 % of it where theta is 5e-5
    np.testing.assert_allclose(
        log_density(jnp.asarray(z)), size * stats.norm.logpdf(z), atol=2e-3 * size
    )


@pytest.mark.parametrize("name", PRIORS)
def test_prior_draws_become_standard_normal(name: str) -> None:
    prior, coordinates = made(name)
    draws = jax.vmap(prior.sample)(jax.random.split(jax.random.key(1), 2000))
    z = np.asarray(jax.vmap(coordinates.inv)(draws)).reshape(2000, -1)
    for column in z.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3


@pytest.mark.parametrize("name", PRIORS)
def test_inverse_and_slope(name: str) -> None:
    prior, coordinates = made(name)
    for value in (-9.0, -6.5, -2.0, 0.3, 2.0, 5.0, 7.0):
        z = jnp.full(prior.shape(), value)
        theta = coordinates(z)
        if name in ("uniform", "beta") and abs(value) > 4.0:
            continue  # theta rounds to the end of the interval
        back = coordinates.inv(theta)
        precise = value > -6.0  # below, theta - floor is lost in theta's rounding
        np.testing.assert_allclose(back, z, atol=1e-6 if precise else 5.0)
        one = jnp.ones_like(z)
        slope = jax.jvp(coordinates, (z,), (one,))[1]
        claimed = jnp.exp(coordinates.log_abs_det_jacobian(z, theta))
        np.testing.assert_allclose(slope, claimed, rtol=1e-9)


def test_exponential_reaches_far_into_its_tails() -> None:
    coordinates = NormalToExponential(np.asarray(0.5), 0.0)
    far = coordinates(jnp.array([-12.0, 20.0]))
    assert 0.0 < far[0] < 1e-30
    np.testing.assert_allclose(far[1], -2.0 * stats.norm.logcdf(-20.0))


def test_dependent_entries_keep_their_bijector() -> None:
    prior = dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))
    bijector = bijector_of(prior)
    assert normalising(prior, bijector, POSITIVE_FLOOR) is bijector


def test_normalised_hyperparameters_have_standard_normal_priors() -> None:
    kernel = kernels.SquaredExponential(variance=dist.Gamma(2.0, 3.0))
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, 4).normalised()
    z = {"kernel.lengthscales": jnp.array([0.1, -1.0, 2.0, 0.5])}
    z["kernel.variance"] = jnp.asarray(-0.3)
    flat = jnp.concatenate([z["kernel.lengthscales"], z["kernel.variance"][None]])
    expected = jnp.sum(jax.scipy.stats.norm.logpdf(flat))
    assert hyperparameters.log_prior(z) == pytest.approx(float(expected), abs=1e-4)
    theta = hyperparameters.constrain(z)
    back = hyperparameters.unconstrain(theta)
    for name in z:
        np.testing.assert_allclose(back[name], z[name], atol=1e-6)

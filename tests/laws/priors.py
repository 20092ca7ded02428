"""The laws of a prior and its bijector; `prior_laws` is for any shape."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from steingp.priors import Hyperparameters

SPREAD = [-3.0, -0.4, 0.0, 0.7, 2.5]


def prior_laws(hyperparameters: Hyperparameters) -> None:
    """Everything that holds for the free hyperparameters of any model."""
    _round_trip_and_density(hyperparameters)
    _draws_lie_in_the_support(hyperparameters)


def _round_trip_and_density(hyperparameters: Hyperparameters) -> None:
    """z -> theta -> z, and log p(z) = log p(theta(z)) + log |det d theta / d z|.

    The determinant is that of the whole Jacobian matrix by autodiff.
    """
    start, unravel = ravel_pytree(hyperparameters.start())

    def constrained(flat: jax.Array) -> jax.Array:
        return ravel_pytree(hyperparameters.constrain(unravel(flat)))[0]

    def evaluate(flat: jax.Array) -> tuple[jax.Array, ...]:
        z = unravel(flat)
        theta = hyperparameters.constrain(z)
        again = ravel_pytree(hyperparameters.unconstrain(theta))[0]
        of_theta = sum(
            jnp.sum(p.prior.log_prob(theta[p.name])) for p in hyperparameters.free
        )
        jacobian = jax.jacfwd(constrained)(flat)
        return again, hyperparameters.log_prior(z), jnp.asarray(of_theta), jacobian

    shift = np.linspace(0.0, 0.3, start.size)
    points = np.array(SPREAD)[:, None] + shift[None, :]
    values = jax.jit(jax.vmap(evaluate))(points)
    again, log_density, of_theta, jacobian = map(np.asarray, values)
    np.testing.assert_allclose(again, points, rtol=1e-8, atol=1e-9)
    sign, log_det = np.linalg.slogdet(jacobian)
    assert np.all(sign != 0.0)
    np.testing.assert_allclose(log_density, of_theta + log_det, rtol=1e-9, atol=1e-9)


def _draws_lie_in_the_support(hyperparameters: Hyperparameters) -> None:
    theta = hyperparameters.sample(jax.random.key(0))
    z = hyperparameters.unconstrain(theta)
    for p in hyperparameters.free:
        assert theta[p.name].shape == z[p.name].shape == p.shape, p.name
        assert theta[p.name].dtype == jnp.float64
        assert np.all(np.isfinite(z[p.name])), p.name
    assert np.isfinite(hyperparameters.log_prior(z))
    assert np.isfinite(
        hyperparameters.log_prior(hyperparameters.unconstrain(hyperparameters.start()))
    )


def slope_law(hyperparameters: Hyperparameters) -> None:
    """d theta / d z of one scalar by central differences, against the log-Jacobian."""
    (p,) = hyperparameters.free
    step = 1e-5
    for z in SPREAD:
        up, down = p.bijector(jnp.array(z + step)), p.bijector(jnp.array(z - step))
        slope = float(up - down) / (2.0 * step)
        log_slope = p.bijector.log_abs_det_jacobian(
            jnp.array(z), p.bijector(jnp.array(z))
        )
        np.testing.assert_allclose(np.exp(log_slope), slope, rtol=1e-7)


def sampling_law(hyperparameters: Hyperparameters, cdf) -> None:
    """2000 draws of one scalar follow `cdf` (Kolmogorov-Smirnov, fixed seed)."""
    (p,) = hyperparameters.free
    keys = jax.random.split(jax.random.key(3), 2000)
    draws = np.asarray(jax.vmap(hyperparameters.sample)(keys)[p.name])
    assert stats.kstest(draws, cdf).pvalue > 1e-3

"""Hyperparameter slots: priors, bijectors, names, starts, the paper's defaults."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from laws.priors import prior_laws, sampling_law, slope_law
from numpyro.distributions.transforms import AffineTransform, ExpTransform
from scipy import integrate, stats

from steingp import kernels, means
from steingp.priors import Hyperparameters, assign, fixed


def shifted_log_normal() -> dist.Distribution:
    """1 + 2 exp(N(0, 1)) on (1, inf); numpyro declares its support to be real."""
    prior = dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), [ExpTransform(), AffineTransform(1.0, 2.0)]
    )
    assert prior.support is dist.constraints.real
    return prior


SCALAR = {
    "Gamma": (dist.Gamma(1.0, 0.5), stats.gamma(1.0, scale=2.0)),
    "Gamma-3": (dist.Gamma(3.0, 2.0), stats.gamma(3.0, scale=0.5)),
    "LogNormal": (dist.LogNormal(0.3, 0.8), stats.lognorm(0.8, scale=np.exp(0.3))),
    "InverseGamma": (dist.InverseGamma(3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    "HalfNormal": (dist.HalfNormal(1.5), stats.halfnorm(scale=1.5)),
    "HalfCauchy": (dist.HalfCauchy(0.7), stats.halfcauchy(scale=0.7)),
    "Exponential": (dist.Exponential(0.8), stats.expon(scale=1.25)),
    "Uniform": (dist.Uniform(0.5, 3.0), stats.uniform(0.5, 2.5)),
    "Beta": (dist.Beta(2.0, 3.0), stats.beta(2.0, 3.0)),
    "TruncatedNormal": (
        dist.TruncatedNormal(1.0, 2.0, low=0.0),
        stats.truncnorm(-0.5, np.inf, loc=1.0, scale=2.0),
    ),
    "TruncatedNormal-both": (
        dist.TruncatedNormal(1.0, 2.0, low=0.0, high=4.0),
        stats.truncnorm(-0.5, 1.5, loc=1.0, scale=2.0),
    ),
    "Transformed": (shifted_log_normal(), stats.lognorm(1.0, loc=1.0, scale=2.0)),
}


def bind_scalar(prior: dist.Distribution) -> Hyperparameters:
    return Hyperparameters.bind({"kernel": kernels.White(prior)}, 1)


@pytest.mark.parametrize("case", SCALAR)
def test_laws(case: str) -> None:
    prior, truth = SCALAR[case]
    hyperparameters = bind_scalar(prior)
    prior_laws(hyperparameters)
    slope_law(hyperparameters)
    sampling_law(hyperparameters, truth.cdf)


@pytest.mark.parametrize("case", SCALAR)
def test_density_of_z_integrates_to_one(case: str) -> None:
    # ... but for what lies below the floor of a half-line: softplus(z) + 1e-6 > 1e-6.
    prior, truth = SCALAR[case]
    hyperparameters = bind_scalar(prior)
    has_floor = case not in ("Uniform", "Beta", "TruncatedNormal-both", "Transformed")
    expected = 1.0 - truth.cdf(1e-6) if has_floor else 1.0

    @jax.jit
    def density(z: jax.Array) -> jax.Array:
        return jnp.exp(hyperparameters.log_prior({"kernel.variance": z}))

    total = sum(
        integrate.quad(lambda z: float(density(z)), *ends, epsabs=1e-11, limit=200)[0]
        for ends in [(-np.inf, 0.0), (0.0, np.inf)]
    )
    np.testing.assert_allclose(total, expected, atol=1e-9)


VECTOR = {
    "number": kernels.SquaredExponential(),
    "expanded": kernels.Matern52(lengthscales=dist.Gamma(3.0, 1.0).expand([3])),
    "event": kernels.Matern52(
        lengthscales=dist.Gamma(3.0, 1.0).expand([3]).to_event(1)
    ),
    "batch": kernels.Matern52(lengthscales=dist.LogNormal(jnp.arange(3.0), 1.0)),
    "interval": kernels.Linear(
        dist.Uniform(0.1, jnp.array([1.0, 2.0, 3.0])).to_event(1)
    ),
    "transformed": kernels.Matern52(lengthscales=shifted_log_normal().expand([3])),
    "transformed-event": kernels.Matern52(
        lengthscales=shifted_log_normal().expand([3]).to_event(1)
    ),
    "sum": kernels.Matern52(dist.LogNormal(0.0, 1.0)) * kernels.Constant()
    + kernels.White(fixed(0.1)),
}


@pytest.mark.parametrize("case", VECTOR)
def test_laws_of_vectors(case: str) -> None:
    prior_laws(Hyperparameters.bind({"kernel": VECTOR[case]}, 3))


def test_laws_of_a_correlated_prior_on_a_real_slot() -> None:
    covariance = jnp.array([[1.0, 0.6], [0.6, 2.0]])
    prior = dist.MultivariateNormal(jnp.array([1.0, -1.0]), covariance)
    hyperparameters = Hyperparameters.bind({"mean": means.Linear(prior, fixed(0.0))}, 2)
    prior_laws(hyperparameters)
    z = jnp.array([0.3, 0.9])
    np.testing.assert_allclose(
        hyperparameters.log_prior({"mean.coefficients": z}),
        stats.multivariate_normal([1.0, -1.0], covariance).logpdf(z),
        rtol=1e-10,
    )


def test_a_transformed_prior_reaches_its_true_support_only() -> None:
    (p,) = bind_scalar(shifted_log_normal()).free
    np.testing.assert_allclose(p.bijector(jnp.array(0.0)), 3.0)  # 1 + 2 exp(0)
    assert float(p.bijector(jnp.array(-40.0))) >= 1.0


# --- The paper's defaults -------------------------------------------------------------


def test_the_papers_priors_and_start_values() -> None:
    kernel = kernels.SquaredExponential()
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, 4)
    start = hyperparameters.start()
    np.testing.assert_array_equal(start["kernel.variance"], 1.0)
    np.testing.assert_allclose(start["kernel.lengthscales"], np.full(4, 2.0))  # sqrt(4)
    # Gamma(shape 1, rate 1/2) is exponential: log p(theta) = log(1/2) - theta / 2.
    # theta = softplus(z) + 1e-6, d theta / d z = sigmoid(z). At z = 0.3, five values:
    theta = np.log1p(np.exp(0.3)) + 1e-6
    one = np.log(0.5) - 0.5 * theta - np.log1p(np.exp(-0.3))
    z = {"kernel.variance": jnp.array(0.3), "kernel.lengthscales": jnp.full(4, 0.3)}
    np.testing.assert_allclose(hyperparameters.log_prior(z), 5.0 * one, rtol=1e-12)
    for value in hyperparameters.constrain(z).values():
        np.testing.assert_allclose(value, theta, rtol=1e-14)


def test_lengthscales_start_at_the_root_of_the_active_columns() -> None:
    kernel = kernels.Matern32(active_dims=[0, 2]) + kernels.Matern12(
        active_dims=slice(1, None)
    )
    start = Hyperparameters.bind({"kernel": kernel}, 4).start()
    np.testing.assert_allclose(
        start["kernel[0].matern32.lengthscales"], np.full(2, np.sqrt(2.0))
    )
    np.testing.assert_allclose(
        start["kernel[1].matern12.lengthscales"], np.full(3, np.sqrt(3.0))
    )


def test_real_slots_are_standard_normal() -> None:
    hyperparameters = Hyperparameters.bind({"mean": means.Constant(2.0)}, 1)
    np.testing.assert_array_equal(hyperparameters.start()["mean.value"], 2.0)
    # log N(1.5; 0, 1), and no Jacobian
    expected = -0.5 * 1.5**2 - 0.5 * np.log(2.0 * np.pi)
    value = hyperparameters.log_prior({"mean.value": jnp.array(1.5)})
    np.testing.assert_allclose(value, expected, rtol=1e-12)


# --- Names, fixed values, start values ------------------------------------------------


def test_names_of_nested_sums_and_products() -> None:
    kernel = (
        kernels.Matern52() + kernels.Periodic(kernels.SquaredExponential())
    ) * kernels.Constant() + kernels.White()
    hyperparameters = Hyperparameters.bind(
        {"kernel": kernel, "mean": means.Linear()}, num_inputs=2
    )
    assert [p.name for p in hyperparameters.free] == [
        "kernel[0][0][0].matern52.variance",
        "kernel[0][0][0].matern52.lengthscales",
        "kernel[0][0][1].periodic.period",
        "kernel[0][0][1].base_kernel.variance",
        "kernel[0][0][1].base_kernel.lengthscales",
        "kernel[0][1].constant.variance",
        "kernel[1].white.variance",
        "mean.coefficients",
        "mean.intercept",
    ]


def test_fixed_values_do_not_move_but_reach_the_kernel() -> None:
    kernel = kernels.Matern52(variance=fixed(2.0)) + kernels.White(fixed(0.0))
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, 1)
    assert [p.name for p in hyperparameters.free] == ["kernel[0].matern52.lengthscales"]
    theta = hyperparameters.sample(jax.random.key(0))
    assert list(theta) == ["kernel[0].matern52.lengthscales"]
    whole = hyperparameters.complete(theta)
    np.testing.assert_array_equal(whole["kernel[0].matern52.variance"], 2.0)
    np.testing.assert_array_equal(whole["kernel[1].white.variance"], 0.0)
    assert float(assign(kernel, whole, "kernel").diag(jnp.zeros((1, 1)))[0]) == 2.0
    z = hyperparameters.unconstrain(theta)
    assert list(z) == ["kernel[0].matern52.lengthscales"]


def test_everything_fixed_leaves_nothing_free() -> None:
    hyperparameters = Hyperparameters.bind({"kernel": kernels.White(fixed(1.0))}, 1)
    assert hyperparameters.free == ()
    assert hyperparameters.sample(jax.random.key(0)) == {}
    assert float(hyperparameters.log_prior({})) == 0.0


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (dist.Gamma(3.0, 2.0), 1.5),  # the mean, shape / rate
        (dist.LogNormal(0.0, 2.0), np.exp(2.0)),  # exp(loc + scale^2 / 2)
        (dist.Uniform(1.0, 4.0), 2.5),
    ],
)
def test_a_distribution_starts_at_its_mean(prior, expected: float) -> None:
    np.testing.assert_allclose(bind_scalar(prior).start()["kernel.variance"], expected)


@pytest.mark.parametrize(
    ("prior", "median"),
    [
        (dist.HalfCauchy(0.7), 0.7),
        (dist.InverseGamma(1.0, 2.0), 2.0 / np.log(2.0)),
        (shifted_log_normal(), 3.0),  # 1 + 2 exp(0)
    ],
)
def test_without_a_finite_mean_it_starts_near_its_median(prior, median: float) -> None:
    # 1001 draws: the median's standard error is 1 / (2 f sqrt(1001)) < 0.05 median
    start = float(bind_scalar(prior).start()["kernel.variance"])
    np.testing.assert_allclose(start, median, rtol=0.15)


def test_unconstrain_is_finite_at_the_ends_of_the_support() -> None:
    ends = {
        "Gamma": [0.0, 1e-300, 1e-6, 1e8, 1e300],
        "LogNormal": [0.0, 1e-12, 1e12],
        "Uniform": [0.5, 3.0],
        "Beta": [0.0, 1e-300, 1.0],
        "TruncatedNormal": [0.0, 1e9],
        "Transformed": [1.0, 1e9],
    }
    for case, values in ends.items():
        hyperparameters = bind_scalar(SCALAR[case][0])
        for value in values:
            z = hyperparameters.unconstrain({"kernel.variance": jnp.array(value)})
            assert np.isfinite(z["kernel.variance"]), (case, value)
            theta = hyperparameters.constrain(z)["kernel.variance"]
            np.testing.assert_allclose(theta, value, rtol=1e-6, atol=2e-6)


@pytest.mark.user_precision
def test_priors_written_in_float32_become_float64() -> None:
    prior = dist.Gamma(jnp.full(2, 3.0), 1.0)
    assert prior.concentration.dtype == jnp.float32
    kernel = kernels.Matern52(lengthscales=prior)
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, 2)
    with jax.enable_x64(True):
        theta = hyperparameters.sample(jax.random.key(0))
        z = hyperparameters.unconstrain(theta)
        assert {v.dtype for v in (theta | z).values()} == {jnp.dtype("float64")}
        assert hyperparameters.log_prior(z).dtype == jnp.float64

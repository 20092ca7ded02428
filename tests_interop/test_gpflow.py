"""GPflow's kernels and likelihoods, read by name, against GPflow itself.

Runs in an environment of its own (requirements.txt): `make test-interop`.
"""

from collections.abc import Callable

import gpflow
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels as theirs

from steingp import interop, kernels, likelihoods, priors

tfd = tfp.distributions
F64 = tf.float64
ARD = [0.7, 1.3, 2.1]


def fixed_exponential() -> theirs.Kernel:
    kernel = theirs.Exponential(1.2, 0.8)
    gpflow.set_trainable(kernel.lengthscales, False)
    return kernel


KERNELS: dict[str, Callable[[], theirs.Kernel]] = {
    "SquaredExponential": lambda: theirs.SquaredExponential(1.3, 0.8),
    "RBF": lambda: theirs.RBF(0.4, ARD),
    "Matern12": lambda: theirs.Matern12(1.3, 0.8),
    "Matern12-ard": lambda: theirs.Matern12(1.3, ARD),
    "Matern32": lambda: theirs.Matern32(1.3, ARD),
    "Matern52": lambda: theirs.Matern52(1.3, ARD),
    "Exponential": fixed_exponential,
    "RationalQuadratic": lambda: theirs.RationalQuadratic(0.9, ARD, 0.6),
    "Periodic": lambda: theirs.Periodic(theirs.SquaredExponential(1.1, 0.9), 1.7),
    "Periodic-ard": lambda: theirs.Periodic(theirs.RBF(1.1, ARD), [1.7, 0.9, 2.0]),
    "Periodic-Matern12": lambda: theirs.Periodic(theirs.Matern12(1.1, 0.9), 1.7),
    "Periodic-Matern52": lambda: theirs.Periodic(theirs.Matern52(1.1, ARD), 1.7),
    "Periodic-RationalQuadratic": lambda: theirs.Periodic(
        theirs.RationalQuadratic(1.1, 0.9, 0.7), 1.7
    ),
    "Cosine": lambda: theirs.Cosine(1.2, 0.9),
    "Cosine-ard": lambda: theirs.Cosine(1.2, ARD),
    "Linear": lambda: theirs.Linear(0.6),
    "Linear-ard": lambda: theirs.Linear(ARD),
    "Polynomial": lambda: theirs.Polynomial(3, 0.6, 0.4),
    "Polynomial-float": lambda: theirs.Polynomial(2.0, ARD, 0.4),
    "White": lambda: theirs.White(0.3),
    "Constant": lambda: theirs.Constant(0.8),
    "Bias": lambda: theirs.Bias(0.8),
    "columns": lambda: theirs.Matern52(1.1, [0.5, 2.0], active_dims=[2, 0]),
    "columns-slice": lambda: theirs.Matern32(1.1, 0.7, active_dims=slice(0, 2)),
    "columns-periodic": lambda: theirs.Periodic(theirs.RBF(active_dims=[1]), 1.3),
    "columns-linear": lambda: theirs.Linear([0.4, 0.9], active_dims=[0, 2]),
    "sum": lambda: theirs.Matern52(1.1, 0.7) + theirs.Linear(0.3) + theirs.White(0.1),
    "product": lambda: theirs.Matern52(1.1, 0.7) * theirs.Cosine(0.3),
    # the paper's air quality kernel, with White added
    "nested": lambda: (
        theirs.Matern32(1.0, [0.9, 1.4], active_dims=[0, 1])
        * (
            theirs.Matern12(0.8, 0.7, active_dims=[2])
            * theirs.Polynomial(3, 0.4, active_dims=[2])
            + theirs.Bias(0.2)
        )
        + theirs.White(0.1)
    ),
}


@pytest.mark.parametrize("case", KERNELS)
def test_values_are_those_of_gpflow(case: str) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(8, 3)), rng.normal(size=(5, 3))
    gpflow_kernel = KERNELS[case]()
    ours = interop.from_gpflow(gpflow_kernel)
    assert isinstance(ours, kernels.Kernel)
    np.testing.assert_allclose(
        ours(X, Y), gpflow_kernel(X, Y).numpy(), rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(
        np.diagonal(ours(X)),
        gpflow_kernel(X, full_cov=False).numpy(),
        rtol=1e-8,
        atol=1e-10,
    )
    # GPflow takes distances by matrix product: on the diagonal r is 1e-8 instead of 0
    between = ~np.eye(len(X), dtype=bool)
    np.testing.assert_allclose(
        ours(X)[between], gpflow_kernel(X).numpy()[between], rtol=1e-8, atol=1e-10
    )


def test_is_gpflow() -> None:
    class Own(theirs.Matern52):
        pass

    for obj in (
        theirs.RBF(),
        theirs.RBF() + theirs.White(),
        gpflow.likelihoods.Poisson(),
    ):
        assert interop.is_gpflow(obj)
    assert interop.is_gpflow(Own())
    for obj in (kernels.Matern52(), likelihoods.Poisson(), None, 1.0, np.zeros(2)):
        assert not interop.is_gpflow(obj)


def constant(value) -> tf.Tensor:
    return tf.constant(value, F64)


PRIORS = {
    "Gamma": (tfd.Gamma(constant(1.1), constant(0.5)), dist.Gamma),
    "Gamma-log-rate": (tfd.Gamma(constant(2.1), log_rate=constant(0.3)), dist.Gamma),
    "LogNormal": (tfd.LogNormal(constant(0.2), constant(0.7)), dist.LogNormal),
    "HalfNormal": (tfd.HalfNormal(constant(1.3)), dist.HalfNormal),
    "HalfCauchy": (tfd.HalfCauchy(constant(0.0), constant(2.1)), dist.HalfCauchy),
    "InverseGamma": (tfd.InverseGamma(constant(3.1), constant(2.2)), dist.InverseGamma),
    "Exponential": (tfd.Exponential(constant(0.8)), dist.Exponential),
    "Uniform": (tfd.Uniform(constant(0.3), constant(3.1)), dist.Uniform),
    "Beta": (tfd.Beta(constant(2.1), constant(5.3)), dist.Beta),
    "Chi2": (tfd.Chi2(constant(3.0)), dist.Gamma),
    "TruncatedNormal": (
        tfd.TruncatedNormal(constant(1.1), constant(2.1), constant(0.0), constant(5.0)),
        type(dist.TruncatedNormal(0.0, 1.0, low=0.0, high=1.0)),
    ),
}


@pytest.mark.parametrize("case", PRIORS)
def test_priors_are_carried_over(case: str) -> None:
    given, expected = PRIORS[case]
    gpflow_kernel = theirs.Matern52()
    gpflow_kernel.variance.prior = given
    prior = interop.from_gpflow(gpflow_kernel).variance
    assert type(prior) is expected
    points = np.array([0.6, 0.9])
    with jax.enable_x64(True):
        values = np.asarray(prior.log_prob(jnp.asarray(points)))
    np.testing.assert_allclose(values, given.log_prob(points).numpy(), rtol=1e-10)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (tfd.Normal(constant(0.5), constant(2.0)), dist.Normal),
        (tfd.StudentT(constant(3.0), constant(0.5), constant(2.0)), dist.StudentT),
    ],
)
def test_priors_on_the_whole_line_are_refused_by_positive_slots(
    given, expected
) -> None:
    gpflow_kernel = theirs.Matern52()
    gpflow_kernel.variance.prior = given
    with pytest.raises(ValueError, match=f"{expected.__name__} allows negative values"):
        interop.from_gpflow(gpflow_kernel)


def test_a_scalar_prior_of_a_vector_holds_for_each_entry() -> None:
    gpflow_kernel = theirs.RBF(1.0, ARD)
    gpflow_kernel.lengthscales.prior = tfd.Gamma(constant(3.0), constant(1.0))
    ours = interop.from_gpflow(gpflow_kernel)
    assert ours.lengthscales.shape() == (3,)
    bound = priors.Hyperparameters.bind({"kernel": ours}, 3)
    assert {p.name: p.shape for p in bound.free} == {
        "kernel.variance": (),
        "kernel.lengthscales": (3,),
    }


def test_what_is_not_trainable_is_fixed_and_the_rest_is_free() -> None:
    gpflow_kernel = theirs.Matern52(2.5, 0.7) + theirs.White(0.2)
    gpflow.set_trainable(gpflow_kernel.kernels[0].variance, False)
    gpflow_kernel.kernels[0].variance.prior = tfd.Gamma(constant(1.0), constant(1.0))
    bound = priors.Hyperparameters.bind(
        {"kernel": interop.from_gpflow(gpflow_kernel)}, 1
    )
    assert [p.name for p in bound.free] == [
        "kernel[0].matern52.lengthscales",
        "kernel[1].white.variance",
    ]
    np.testing.assert_allclose(bound.known["kernel[0].matern52.variance"], 2.5)
    np.testing.assert_allclose(bound.start()["kernel[1].white.variance"], 0.2)


def own_subclass() -> theirs.Kernel:
    class Matern52(theirs.Matern52):
        """A user's class of a known name may compute anything."""

    return Matern52()


def unconstrained_prior() -> theirs.Kernel:
    kernel = theirs.Matern52()
    kernel.variance.prior = tfd.Normal(constant(0.0), constant(1.0))
    kernel.variance.prior_on = "unconstrained"
    return kernel


def unknown_prior() -> theirs.Kernel:
    kernel = theirs.Matern52()
    kernel.lengthscales.prior = tfd.Gumbel(constant(0.0), constant(1.0))
    return kernel


def shifted_half_cauchy() -> theirs.Kernel:
    kernel = theirs.Matern52()
    kernel.variance.prior = tfd.HalfCauchy(constant(1.0), constant(1.0))
    return kernel


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theirs.ArcCosine(), r"kernel ArcCosine has no counterpart.*Pairwise"),
        (lambda: theirs.RBF() + theirs.ArcCosine(), r"kernel ArcCosine has no count"),
        (own_subclass, r"kernel Matern52 has no counterpart.*Pairwise"),
        (lambda: theirs.Exponential(), r"Matern12 with twice the lengthscales"),
        (lambda: theirs.Periodic(theirs.Exponential()), r"Matern12 with twice"),
        (lambda: theirs.Polynomial(2.5), r"degree=.*got 2.5"),
        (unconstrained_prior, r"Matern52.variance.*unconstrained.*prior_on"),
        (unknown_prior, r"prior Gumbel of Matern52.lengthscales.*LogNormal"),
        (shifted_half_cauchy, r"HalfCauchy of Matern52.variance must have loc = 0"),
    ],
)
def test_what_has_no_counterpart_is_refused(make: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interop.from_gpflow(make())


# --- Likelihoods ----------------------------------------------------------------------

LIKELIHOODS = {
    "Gaussian": (gpflow.likelihoods.Gaussian(0.3), [0.2, -1.0, 0.5]),
    "StudentT": (gpflow.likelihoods.StudentT(0.7, df=4.0), [0.2, -1.0, 0.5]),
    "Bernoulli": (gpflow.likelihoods.Bernoulli(), [0.0, 1.0, 1.0]),
    "Poisson": (gpflow.likelihoods.Poisson(), [0.0, 3.0, 1.0]),
    "Poisson-binsize": (gpflow.likelihoods.Poisson(binsize=2.5), [0.0, 3.0, 1.0]),
    "Exponential": (gpflow.likelihoods.Exponential(), [0.4, 1.3, 2.2]),
    "Gamma": (gpflow.likelihoods.Gamma(shape=1.8), [0.4, 1.3, 2.2]),
}


@pytest.mark.parametrize("case", LIKELIHOODS)
def test_likelihood_values_are_those_of_gpflow(case: str) -> None:
    gpflow_likelihood, y = LIKELIHOODS[case]
    f = np.array([-0.4, 0.3, 0.9])
    X = np.zeros((3, 1))
    expected = gpflow_likelihood.log_prob(X, f[:, None], np.array(y)[:, None]).numpy()
    ours = interop.likelihood_from_gpflow(gpflow_likelihood)
    assert type(ours).__name__ == case.split("-")[0]
    with jax.enable_x64(True):
        given = ours.row_values
        row = jnp.full(3, ours.row_neutral if given is None else given)
        bound = likelihoods.at_start(ours)
        values = bound.log_prob(jnp.asarray(y), jnp.asarray(f), row)
    # GPflow's probit link stays 1e-3 away from 0 and 1
    tolerance = 4e-3 if case == "Bernoulli" else 1e-8
    np.testing.assert_allclose(values, expected, rtol=tolerance)


def test_likelihood_slots_are_carried_over() -> None:
    noise = gpflow.likelihoods.Gaussian(0.3)
    gpflow.set_trainable(noise.variance, False)
    ours = interop.likelihood_from_gpflow(noise)
    np.testing.assert_allclose(ours.variance.value, 0.3)
    student = gpflow.likelihoods.StudentT(0.7, df=4.0)
    bound = priors.Hyperparameters.bind(
        {"likelihood": interop.likelihood_from_gpflow(student)}, 1
    )
    assert [p.name for p in bound.free] == ["likelihood.scale"]
    np.testing.assert_array_equal(bound.known["likelihood.df"], 4.0)


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (gpflow.likelihoods.Gaussian(scale=0.5), r"likelihood Gaussian has no counter"),
        (gpflow.likelihoods.Beta(), r"likelihood Beta has no counterpart"),
        (
            gpflow.likelihoods.Poisson(invlink=tf.square),
            r"Poisson.*exp; got square",
        ),
        (gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid), r"Bernoulli.*inv_probit"),
    ],
)
def test_likelihoods_without_counterpart_are_refused(likelihood, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interop.likelihood_from_gpflow(likelihood)


# --- The paper's first listing --------------------------------------------------------


LISTING = """
from steingp import SteinGPR, RBF, Median, SVGD
import numpy as np, gpflow
X = np.random.uniform(-5, 5, 100).reshape(-1, 1); y = np.sin(X)
model = SteinGPR((X, y), gpflow.kernels.SquaredExponential())
opt = SVGD(model, RBF(bandwidth=Median()), n_particles=5)
opt.run(iterations=1000)
theta = opt.get_particles()
posterior_samples = model.predict(
    np.linspace(-5, 5, 500).reshape(-1, 1), theta, n_samples=5
)
"""


def test_the_papers_first_listing() -> None:
    # as printed but for its typo (x -> X)
    names: dict = {}
    exec(LISTING, names)
    samples = names["posterior_samples"]
    assert samples.shape == (25, 500)  # 5 draws of each of 5 particles
    truth = np.sin(np.linspace(-5, 5, 500))
    inner = slice(25, 475)  # the outermost points may lie outside the data
    assert np.abs(samples.mean(axis=0) - truth)[inner].max() < 0.1

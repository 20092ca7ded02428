"""Targets: against exact answers, against each other, and their gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from steingp import (
    SteinGP,
    batches,
    data,
    fixed,
    kernels,
    likelihoods,
    means,
    targets,
)

rng = np.random.default_rng(7)
X = rng.normal(size=(25, 2))
f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
Y = {
    "Gaussian": f + 0.1 * rng.normal(size=25),
    "StudentT": f + 0.1 * rng.standard_t(3, size=25),
    "Bernoulli": (f > 0).astype(float),
    "Poisson": rng.poisson(np.exp(f)).astype(float),
    "NegativeBinomial": rng.poisson(np.exp(f)).astype(float),
    "Exponential": rng.exponential(np.exp(f)),
    "Gamma": rng.gamma(2.0, np.exp(f)),
}
LIKELIHOODS = {
    "Gaussian": likelihoods.Gaussian(),
    "StudentT": likelihoods.StudentT(),
    "Bernoulli": likelihoods.Bernoulli(),
    "Poisson": likelihoods.Poisson(),
    "NegativeBinomial": likelihoods.NegativeBinomial(),
    "Exponential": likelihoods.Exponential(),
    "Gamma": likelihoods.Gamma(),
}


def model_of(name: str, **options: Any) -> SteinGP:
    kernel = kernels.Matern52()
    return SteinGP((X, Y[name]), kernel, LIKELIHOODS[name], **options)


def batch_of(model: SteinGP) -> data.Batch:
    return data.Batch(*(jnp.asarray(column) for column in model.data))


def particle_of(model: SteinGP, seed: int = 0) -> dict[str, jax.Array]:
    theta = {k: jnp.asarray(v[0]) for k, v in model.sample_prior(1, seed).items()}
    return model.target.unconstrain(theta)


KINDS: dict[str, dict[str, Any]] = {
    "marginal": {},
    "whitened": {"latents": "joint"},
    "sparse": {"inducing": X[:6], "latents": "joint"},
    "minibatched": {"inducing": X[:6], "batch_size": 10, "latents": "joint"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_are_finite_differences(name: str, kind: str) -> None:
    if kind == "marginal" and name != "Gaussian":
        return  # the marginal target exists for Gaussian data only
    model = model_of(name, **KINDS[kind])
    batch = batch_of(model)
    if kind == "minibatched":
        batch = data.Batch(*(column[:10] for column in batch))
    z = particle_of(model, seed=1)
    flat, unravel = ravel_pytree(z)
    value = jax.jit(lambda v: model.target(unravel(v), batch))
    gradient = jax.jit(jax.grad(lambda v: model.target(unravel(v), batch)))(flat)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=flat.shape))
    for v in (direction, jnp.eye(len(flat))[0], jnp.eye(len(flat))[1]):
        step = 1e-5
        difference = (value(flat + step * v) - value(flat - step * v)) / (2 * step)
        # central differences err by step^2 f'''/6 and by 1e-16 |f| / step
        scale = 1.0 + abs(float(difference)) + 1e-3 * abs(float(value(flat)))
        assert abs(float(difference - gradient @ v)) < 2e-6 * scale


def test_marginal_and_predictions_equal_scikit_learn() -> None:
    lengthscales, variance, noise = np.array([0.7, 1.9]), 1.3, 0.05
    reference = GaussianProcessRegressor(
        sk.ConstantKernel(variance, "fixed") * sk.RBF(lengthscales, "fixed"),
        alpha=noise, optimizer=None,
    ).fit(X, Y["Gaussian"])  # fmt: skip
    model = SteinGP(
        (X, Y["Gaussian"]),
        kernels.SquaredExponential(fixed(variance), fixed(lengthscales)),
        likelihoods.Gaussian(fixed(noise)),
        jitter=0.0,
    )
    value = model.target.log_likelihood({}, batch_of(model))
    np.testing.assert_allclose(
        value, reference.log_marginal_likelihood_value_, rtol=1e-6
    )
    import steingp as sg

    Xs = rng.normal(size=(11, 2))
    prediction = sg.fit(model).predict_f(Xs)
    mean, covariance = reference.predict(Xs, return_cov=True)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(prediction.covariance, covariance, atol=1e-6)
    np.testing.assert_allclose(prediction.variance, np.diag(covariance), atol=1e-6)


def test_fixed_theta_gives_the_exact_posterior_of_f() -> None:
    # p(f | y) = N(K (K + s)^-1 y, K - K (K + s)^-1 K), written out
    import steingp as sg

    x = np.linspace(-2, 2, 100)[:, None]
    y = np.sin(3 * x[:, 0])
    kernel = kernels.SquaredExponential(fixed(1.5), fixed(0.6))
    model = SteinGP((x, y), kernel, likelihoods.Gaussian(fixed(0.1)), jitter=0.0)
    K = kernel(x)
    A = np.linalg.solve(K + 0.1 * np.eye(100), K).T
    prediction = sg.fit(model).predict_f(x)
    np.testing.assert_allclose(prediction.mean, A @ y, atol=1e-9)
    np.testing.assert_allclose(prediction.variance, np.diag(K - A @ K), rtol=1e-6)


def test_known_noise_per_row_enters_the_diagonal() -> None:
    known = np.linspace(0.01, 0.5, 25)
    model = SteinGP(
        (X, Y["Gaussian"]),
        kernels.SquaredExponential(fixed(1.0), fixed(1.0)),
        likelihoods.Gaussian(fixed(0.2), known_variance=known),
        mean=means.Constant(fixed(0.3)),
        jitter=0.0,
    )
    K = kernels.SquaredExponential(1.0, 1.0)(X) + np.diag(0.2 + known)
    expected = stats.multivariate_normal(np.full(25, 0.3), K).logpdf(Y["Gaussian"])
    value = model.target.log_likelihood({}, batch_of(model))
    np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_whitened_with_nu_integrated_out_is_marginal() -> None:
    # log p(y, nu | theta) is quadratic in nu, so the integral is exact: value at the
    # mode + N/2 log 2 pi - 1/2 log det(-Hessian)
    dense = model_of("Gaussian", jitter=1e-10)
    joint = model_of("Gaussian", jitter=1e-10, latents="joint")
    z = particle_of(joint, seed=3)
    theta = {name: value for name, value in z.items() if name != "nu"}

    def of_nu(nu: jax.Array) -> jax.Array:
        return joint.target({**theta, "nu": nu}, batch_of(joint))

    hessian = jax.hessian(of_nu)(jnp.zeros(25))
    mode = -jnp.linalg.solve(hessian, jax.grad(of_nu)(jnp.zeros(25)))
    log_det = np.linalg.slogdet(-hessian)[1]
    integral = of_nu(mode) + 0.5 * 25 * np.log(2 * np.pi) - 0.5 * log_det
    np.testing.assert_allclose(
        integral, dense.target(theta, batch_of(dense)), rtol=1e-6
    )


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sparse_at_the_rows_is_whitened(name: str) -> None:
    dense = model_of(name, jitter=1e-10, latents="joint")
    sparse = model_of(name, jitter=1e-10, inducing=X, latents="joint")
    z = particle_of(dense, seed=4)
    np.testing.assert_allclose(
        sparse.target(z, batch_of(sparse)), dense.target(z, batch_of(dense)), rtol=1e-6
    )
    Xs = jnp.asarray(rng.normal(size=(5, 2)))
    theta = dense.target.constrain(z)
    for one, other in zip(
        targets.marginals(
            sparse.target.specification.at(theta),
            sparse.target.condition(theta, batch_of(sparse)), Xs,
        ),
        targets.marginals(
            dense.target.specification.at(theta),
            dense.target.condition(theta, batch_of(dense)), Xs,
        ),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_sparse_gaussian_at_the_rows_is_the_dense_marginal() -> None:
    # u integrated out by the same quadratic, at Z = X: log p(y | theta) to 1e-6
    dense = model_of("Gaussian", jitter=1e-10)
    sparse = model_of("Gaussian", jitter=1e-10, inducing=X, latents="joint")
    z = particle_of(sparse, seed=5)
    theta = {name: value for name, value in z.items() if name != "nu"}

    def of_nu(nu: jax.Array) -> jax.Array:
        return sparse.target({**theta, "nu": nu}, batch_of(sparse))

    hessian = jax.hessian(of_nu)(jnp.zeros(25))
    mode = -jnp.linalg.solve(hessian, jax.grad(of_nu)(jnp.zeros(25)))
    log_det = np.linalg.slogdet(-hessian)[1]
    integral = of_nu(mode) + 0.5 * 25 * np.log(2 * np.pi) - 0.5 * log_det
    np.testing.assert_allclose(
        integral, dense.target(theta, batch_of(dense)), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["Gaussian", "Bernoulli", "Poisson"])
def test_an_epoch_of_equal_batches_averages_to_the_full_score(name: str) -> None:
    full = model_of(name, inducing=X[:6], latents="joint")
    small = model_of(name, inducing=X[:6], batch_size=5, latents="joint")
    z = particle_of(full, seed=6)
    score = jax.jit(jax.grad(full.target))
    batches = small.batches()
    parts = [score(z, batches.at(jnp.asarray(t))) for t in range(5)]  # 5 * 5 = N
    mean = jax.tree.map(lambda *leaves: sum(leaves) / 5, *parts)
    for one, other in zip(
        jax.tree.leaves(mean), jax.tree.leaves(score(z, batch_of(full))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_masked_rows_do_not_count() -> None:
    model = model_of("Poisson", inducing=X[:6], latents="joint")
    z = particle_of(model, seed=7)
    some = data.Batch(*(column[:9] for column in batch_of(model)))
    padded = batches._pad(*(np.asarray(c) for c in some[:3]), size=14)
    np.testing.assert_allclose(
        model.target(z, some), model.target(z, jax.tree.map(jnp.asarray, padded))
    )


def test_white_noise_adds_to_the_diagonal_only() -> None:
    # a White part of the kernel and Gaussian noise are the same thing for y
    kernel = kernels.SquaredExponential(fixed(1.0), fixed(1.0))
    plain = SteinGP((X, Y["Gaussian"]), kernel, likelihoods.Gaussian(fixed(0.3)))
    white = SteinGP(
        (X, Y["Gaussian"]),
        kernel + kernels.White(fixed(0.2)),
        likelihoods.Gaussian(fixed(0.1)),
    )
    np.testing.assert_allclose(
        plain.target.log_likelihood({}, batch_of(plain)),
        white.target.log_likelihood({}, batch_of(white)),
        rtol=1e-12,
    )


def test_white_noise_stays_out_of_the_inducing_points() -> None:
    # u is the smooth part of f: at Z = X the sparse model with a White part knows u and
    # has White's variance left at every row
    kernel = kernels.Matern52(fixed(1.0), fixed(1.0)) + kernels.White(fixed(0.2))
    model = SteinGP(
        (X, Y["Poisson"]), kernel, LIKELIHOODS["Poisson"], inducing=X, latents="joint"
    )
    theta = {"nu": jnp.zeros(25)}
    known = model.target.condition(theta, batch_of(model))
    _, variance = targets.marginals(
        model.target.specification.at(theta), known, jnp.asarray(X)
    )
    np.testing.assert_allclose(variance, 0.2, atol=1e-5)


def test_models_of_one_structure_share_compiled_code() -> None:
    # targets are pytrees whose static parts compare equal
    one = model_of("Gaussian").target
    other = SteinGP((X, Y["Gaussian"] + 1.0), kernels.Matern52()).target
    assert jax.tree.structure(one) == jax.tree.structure(other)

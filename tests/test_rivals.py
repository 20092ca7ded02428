"""Point estimates and variational rivals, against closed forms and each other."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import steingp as sg
from steingp import baselines
from steingp.data import Batch
from steingp.targets.variational import Q_MEAN, Q_ROOT, Natural, Variational


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (30, 1))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=30)


@pytest.fixture(scope="module")
def labels(rows: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return (rows[1] + 0.5 * np.random.default_rng(1).normal(size=30) > 0).astype(int)


def regression(rows: tuple[np.ndarray, np.ndarray], **options: object) -> sg.SteinGP:
    return sg.SteinGP(rows, sg.kernels.SquaredExponential(), **options)


def classes(rows: tuple, labels: np.ndarray, **options: object) -> sg.SteinGP:
    return sg.SteinGP(
        (rows[0], labels), sg.kernels.SquaredExponential(), sg.likelihoods.Bernoulli(),
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("gaussian", [True, False])
def test_a_natural_step_with_the_bound_after_it_is_one_after_the_other(
    rows: tuple[np.ndarray, np.ndarray], labels: np.ndarray, gaussian: bool
) -> None:
    options = {"inducing": rows[0][::6], "batch_size": 10}
    model = (
        regression(rows, **options) if gaussian else classes(rows, labels, **options)
    )
    target, data = model.target, Batch(*map(jnp.asarray, model.data))
    assert isinstance(target, Variational)
    theta = target.specification.hyperparameters.start()
    q = Natural.of_prior(5)
    for rate in (0.5, 0.1):  # the second from a q that is not the prior
        _, asked = target.bound(theta, q, data)
        new = Natural(
            *(old + rate * (to - old) for old, to in zip(q, asked, strict=True))
        )
        value, _ = target.bound(theta, new, data)
        ours, stepped = target.stepped(theta, q, data, jnp.asarray(rate))
        np.testing.assert_allclose(ours, value, rtol=1e-12)
        for one, other in zip(stepped, new, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
        q = new


# --- point estimates --------------------------------------------------------------------


def negative_log_likelihood(
    log_theta: np.ndarray, X: np.ndarray, y: np.ndarray
) -> float:
    variance, lengthscale, noise = np.exp(log_theta)
    K = variance * np.exp(-0.5 * (X - X.T) ** 2 / lengthscale**2)
    return -multivariate_normal.logpdf(y, np.zeros(len(y)), K + noise * np.eye(len(y)))


def test_maximum_likelihood_is_scipys(rows: tuple[np.ndarray, np.ndarray]) -> None:
    found = baselines.maximum_likelihood(regression(rows, jitter=0.0))
    best = minimize(negative_log_likelihood, np.zeros(3), rows, method="Nelder-Mead",
                    options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 5000})  # fmt: skip
    assert found.value == pytest.approx(-best.fun, abs=1e-5)
    theta = found.posterior.particles
    ours = [theta["kernel.variance"][0], theta["kernel.lengthscales"][0, 0],
            theta["likelihood.variance"][0]]  # fmt: skip
    np.testing.assert_allclose(np.log(ours), best.x, atol=2e-3)


def test_the_peak_of_the_posterior_counts_the_prior_but_no_jacobian(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    def loss(log_theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        # each prior is Gamma(1, rate 0.5), log density log(0.5) - 0.5 theta
        log_prior = np.sum(np.log(0.5) - 0.5 * np.exp(log_theta))
        return negative_log_likelihood(log_theta, X, y) - log_prior

    found = baselines.maximum_a_posteriori(regression(rows, jitter=0.0))
    best = minimize(loss, np.zeros(3), rows, method="Nelder-Mead",
                    options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 5000})  # fmt: skip
    assert found.value == pytest.approx(-best.fun, abs=1e-5)


def test_starts_that_end_in_worse_places_are_not_chosen() -> None:
    # a wave of unknown period: every whole fraction of it is a maximum of its own
    X = np.linspace(0, 6, 25)[:, None]
    y = np.sin(4 * X[:, 0]) + 0.1 * np.random.default_rng(3).normal(size=25)
    model = sg.SteinGP((X, y), sg.kernels.Periodic(sg.kernels.SquaredExponential()))
    found = baselines.maximum_likelihood(model, num_starts=6, seed=1)
    assert found.value == found.values.max()
    assert found.values.max() - found.values.min() > 0.5
    assert found.num_gradients > 8


def test_titsias_with_all_rows_is_the_dense_estimate(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    dense = baselines.maximum_likelihood(regression(rows))
    sparse = baselines.maximum_likelihood(regression(rows, inducing=rows[0]))
    few = baselines.maximum_likelihood(regression(rows, inducing=rows[0][:4]))
    assert sparse.value == pytest.approx(dense.value, abs=1e-3)
    assert few.value < dense.value - 1.0


@pytest.mark.parametrize(
    "options", [{"latents": "joint"}, {"inducing": 5, "batch_size": 10}]
)
def test_models_without_a_likelihood_of_theta_are_refused(
    rows: tuple, options: dict
) -> None:
    with pytest.raises(ValueError, match="maximum likelihood"):
        baselines.maximum_likelihood(regression(rows, **options))
    with pytest.raises(ValueError, match="num_starts"):
        baselines.maximum_likelihood(regression(rows), num_starts=0)
    with pytest.raises(ValueError, match="SteinGP"):
        baselines.maximum_a_posteriori("model")  # type: ignore[arg-type]


def test_a_likelihood_that_is_nowhere_finite_is_an_error() -> None:
    X = np.linspace(0, 1, 5)[:, None]
    with pytest.warns(UserWarning, match="far from the unit scale"):
        model = sg.SteinGP((X, np.full(5, 1e200)), sg.kernels.Matern52())
    with pytest.raises(FloatingPointError, match="not finite"):
        baselines.maximum_likelihood(model, num_starts=2)


# --- variational ------------------------------------------------------------------------


def test_vi_of_gaussian_rows_is_maximum_likelihood(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    point = baselines.maximum_likelihood(regression(rows))
    found = baselines.vi(regression(rows), num_steps=600, learning_rate=0.2)
    assert found.bound == pytest.approx(point.value, abs=0.02)
    assert found.bound < point.value + 1e-6
    new = np.linspace(-2, 2, 7)[:, None]
    ours, exact = found.posterior.predict_y(new), point.posterior.predict_y(new)
    np.testing.assert_allclose(ours.mean, exact.mean, atol=0.02)
    np.testing.assert_allclose(ours.variance, exact.variance, rtol=0.05)


def test_vi_of_labels_is_the_maximum_over_solved_q(
    rows: tuple, labels: np.ndarray
) -> None:
    solved = classes(rows, labels, approximation="vi")
    best = baselines.maximum_likelihood(solved)
    found = baselines.vi(classes(rows, labels), num_steps=600, learning_rate=0.3)
    assert found.bound == pytest.approx(best.value, abs=0.01)
    # and its q is that which a fixed-point iteration finds for the same theta
    theta = {
        name: value
        for name, value in found.posterior.particles.items()
        if name in best.posterior.particles
    }
    new = np.linspace(-2, 2, 7)[:, None]
    ours, exact = (
        posterior.predict_f(new)
        for posterior in (found.posterior, solved.posterior(theta))
    )
    np.testing.assert_allclose(ours.mean, exact.mean, atol=1e-3)
    np.testing.assert_allclose(ours.variance, exact.variance, rtol=1e-3)


def test_svi_in_batches_comes_near_the_collapsed_bound(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    Z = np.linspace(-2, 2, 8)[:, None]
    best = baselines.maximum_likelihood(regression(rows, inducing=Z))
    model = regression(rows, inducing=Z, batch_size=10)
    found = baselines.svi(model, num_steps=3000)
    assert "one batch" in found.posterior.method
    whole = baselines.vi(regression(rows, inducing=Z), num_steps=600, learning_rate=0.2)
    assert whole.bound == pytest.approx(best.value, abs=0.05)
    new = np.linspace(-2, 2, 7)[:, None]
    ours, exact = found.posterior.predict_y(new), best.posterior.predict_y(new)
    np.testing.assert_allclose(ours.mean, exact.mean, atol=0.15)
    np.testing.assert_allclose(np.log(ours.variance), np.log(exact.variance), atol=0.4)


def test_svi_of_a_stream_is_svi_of_the_same_rows(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = rows
    Z = np.linspace(-2, 2, 5)[:, None]
    blocks = [(X[:15], y[:15]), (X[15:], y[15:])]
    model = sg.SteinGP(blocks, sg.kernels.SquaredExponential(), inducing=Z, num_data=30)
    found = baselines.svi(model, num_steps=400)
    near = baselines.maximum_likelihood(regression(rows, inducing=Z))
    new = np.linspace(-2, 2, 7)[:, None]
    np.testing.assert_allclose(
        found.posterior.predict_f(new).mean,
        near.posterior.predict_f(new).mean,
        atol=0.25,
    )


def test_svi_stops_when_its_time_is_out(rows: tuple[np.ndarray, np.ndarray]) -> None:
    model = regression(rows, inducing=5, batch_size=10)
    baselines.svi(model, num_steps=100)  # compiles
    began = time.perf_counter()
    found = baselines.svi(model, num_steps=10**7, max_seconds=0.3)
    assert time.perf_counter() - began < 20.0
    assert 50 < int(found.posterior.method.split()[1]) < 10**6
    with pytest.raises(ValueError, match="max_seconds"):
        baselines.svi(model, max_seconds=0.0)


@pytest.mark.parametrize(
    ("rival", "options", "words"),
    [
        (baselines.vi, {"natural_rate": 0.0}, "natural_rate"),
        (baselines.vi, {"learning_rate": -1.0}, "learning_rate"),
        (baselines.svi, {}, "inducing"),
        (baselines.mixture_vi, {"covariance": "banded"}, "covariance"),
        (baselines.mixture_vi, {"num_components": 0}, "num_components"),
    ],
)
def test_what_cannot_work_is_refused(
    rows: tuple, rival: object, options: dict, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        rival(regression(rows), **options)  # type: ignore[operator]


# --- mixtures ---------------------------------------------------------------------------


def test_one_full_component_is_vi(rows: tuple, labels: np.ndarray) -> None:
    inner = baselines.maximum_likelihood(classes(rows, labels, approximation="vi"))
    found = baselines.mixture_vi(
        classes(rows, labels), num_components=1, num_steps=800, learning_rate=0.1
    )
    assert found.bound == pytest.approx(inner.value, abs=1e-3)


def test_a_mixtures_bound_is_below_the_likelihood(rows: tuple) -> None:
    """Of Gaussian rows the likelihood is known, at the theta that was found."""
    model = regression(rows)
    for covariance in ("full", "diagonal"):
        found = baselines.mixture_vi(
            model, num_components=2, num_steps=300, covariance=covariance
        )
        theta = {
            name: value for name, value in found.posterior.particles.items()
            if name not in (Q_MEAN, Q_ROOT)
        }  # fmt: skip
        exact = [
            -negative_log_likelihood(
                np.log([theta["kernel.variance"][0], theta["kernel.lengthscales"][0, 0],
                        theta["likelihood.variance"][0]]), *rows,
            )
        ]  # fmt: skip
        assert found.bound < exact[0]
        assert found.posterior.weights.sum() == pytest.approx(1.0)


def test_a_diagonal_gaussian_is_the_best_there_is(rows: tuple) -> None:
    """Of Gaussian rows, at the theta that was found: S_ii = 1 / (K^-1 + 1 / noise)_ii."""
    found = baselines.mixture_vi(
        regression(rows), num_components=1, covariance="diagonal", num_steps=1500,
        learning_rate=0.05,
    )  # fmt: skip
    X, y = rows
    theta = found.posterior.particles
    variance, noise = theta["kernel.variance"][0], theta["likelihood.variance"][0]
    lengthscale = theta["kernel.lengthscales"][0, 0]
    K = variance * np.exp(-0.5 * (X - X.T) ** 2 / lengthscale**2) + 1e-6 * np.eye(
        len(X)
    )
    precision = np.linalg.inv(K) + np.eye(len(X)) / noise
    exact = -negative_log_likelihood(np.log([variance, lengthscale, noise]), X, y)
    # E log p(y, f) - E log q, q the best diagonal Gaussian, falls short by KL(q | p)
    widths = 1.0 / np.diag(precision)
    gap = -0.5 * (np.sum(np.log(widths)) + np.linalg.slogdet(precision)[1])
    assert found.bound == pytest.approx(exact - gap, abs=0.05)


def test_equal_components_lose_what_jensens_inequality_loses(
    rows: tuple, labels: np.ndarray
) -> None:
    """N / 2 (1 - log 2) nats, where components have become the same."""
    one = baselines.mixture_vi(classes(rows, labels), num_components=1, num_steps=500)
    two = baselines.mixture_vi(classes(rows, labels), num_components=2, num_steps=500)
    lost = 0.5 * 30 * (1.0 - np.log(2.0))
    assert one.bound - lost - 1e-6 < two.bound < one.bound

"""Mixture predictions: moments, densities, quantiles, samples, blocks, units."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import steingp as sg
from steingp import kernels, likelihoods
from steingp.posterior import Posterior
from steingp.summaries import weighted_quantiles

rng = np.random.default_rng(11)
X = rng.uniform(-2, 2, (30, 1))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=30)
Xs = np.linspace(-3, 3, 9)[:, None]
WEIGHTS = np.array([0.5, 0.1, 0.4])


def posterior_of(likelihood: Any = None, values: Any = y, **options: Any) -> Posterior:
    """Three prior draws with unequal weights: any particles will do."""
    model = sg.SteinGP((X, values), kernels.Matern52(), likelihood, **options)
    particles = model.sample_prior(3, seed=5)
    return Posterior(
        model.target, model.data, particles, WEIGHTS, scaling=model.scaling
    )


def gaussian_parts(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of y per draw, from the definition, with plain NumPy."""
    means, variances = [], []
    for j in range(3):
        kernel = kernels.Matern52(
            posterior.particles["kernel.variance"][j],
            posterior.particles["kernel.lengthscales"][j],
        )
        noise = posterior.particles["likelihood.variance"][j]
        K = kernel(X) + (noise + 1e-6) * np.eye(30)
        A = np.linalg.solve(K, kernel(X, Xs)).T
        means.append(A @ y)
        variances.append(np.diag(kernel(Xs) - A @ kernel(X, Xs)) + noise)
    return np.array(means), np.array(variances)


def test_mixture_moments_and_density_by_definition() -> None:
    posterior = posterior_of()
    means, variances = gaussian_parts(posterior)
    prediction = posterior.predict_y(Xs)
    mean = WEIGHTS @ means
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-8, atol=1e-10)
    total = WEIGHTS @ (variances + means**2) - mean**2
    np.testing.assert_allclose(prediction.variance, total, rtol=1e-7)
    values = rng.normal(size=9)
    density = WEIGHTS @ stats.norm(means, np.sqrt(variances)).pdf(values)
    np.testing.assert_allclose(prediction.log_prob(values), np.log(density), rtol=1e-7)
    cdf = WEIGHTS @ stats.norm(means, np.sqrt(variances)).cdf(values)
    np.testing.assert_allclose(prediction.cdf(values), cdf, rtol=1e-7)


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.95, 0.999])
def test_quantiles_invert_the_mixture(q: float) -> None:
    prediction = posterior_of().predict_y(Xs)
    np.testing.assert_allclose(prediction.cdf(prediction.quantile(q)), q, atol=1e-10)
    prediction = posterior_of(likelihoods.StudentT(), latents="joint").predict_y(Xs)
    np.testing.assert_allclose(prediction.cdf(prediction.quantile(q)), q, atol=1e-8)
    prediction = posterior_of(likelihoods.Gamma(), np.exp(y)).predict_y(Xs)
    np.testing.assert_allclose(prediction.cdf(prediction.quantile(q)), q, atol=1e-6)


@pytest.mark.parametrize(
    "likelihood", [likelihoods.Poisson(), likelihoods.NegativeBinomial()]
)
def test_count_quantiles_are_the_smallest_that_suffice(likelihood: Any) -> None:
    counts = rng.poisson(np.exp(y))
    prediction = posterior_of(likelihood, counts).predict_y(Xs)
    for q in (0.05, 0.5, 0.9):
        quantile = prediction.quantile(q)
        np.testing.assert_array_equal(quantile, np.round(quantile))
        assert np.all(prediction.cdf(quantile) >= q)
        below = quantile - 1
        ok = below >= 0
        assert np.all(prediction.cdf(np.maximum(below, 0))[ok] < q)


def test_labels() -> None:
    prediction = posterior_of(likelihoods.Bernoulli(), y > 0).predict_y(Xs)
    p = prediction.mean
    assert np.all((p > 0) & (p < 1))
    np.testing.assert_allclose(prediction.variance, p * (1 - p), rtol=1e-6)
    np.testing.assert_allclose(np.exp(prediction.log_prob(np.ones(9))), p, rtol=1e-6)
    np.testing.assert_array_equal(prediction.quantile(0.5), (p > 0.5).astype(float))


def test_blocks_do_not_change_the_marginals() -> None:
    many = np.linspace(-4, 4, 301)[:, None]
    posterior = posterior_of()
    whole = posterior.predict_y(many)
    for batch_size in (1, 7, 100, 300):
        blocked = posterior.predict_y(many, batch_size=batch_size)
        np.testing.assert_allclose(blocked.mean, whole.mean, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(blocked.variance, whole.variance, rtol=1e-11)


def test_memory_bounds_do_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from steingp.prediction import answers, of_draws

    posterior = posterior_of(likelihoods.Bernoulli(), y > 0)
    whole = posterior.predict_y(Xs)
    mean, lower = whole.mean, whole.quantile(0.3)
    for module in (answers, of_draws):  # a draw and 3 points at a time
        monkeypatch.setattr(module, "WORKING_FLOATS", 3000)
    tight = posterior.predict_y(Xs)
    np.testing.assert_allclose(tight.mean, mean, rtol=1e-12)
    np.testing.assert_array_equal(tight.quantile(0.3), lower)


def test_joint_samples_and_covariance_agree() -> None:
    prediction = posterior_of().predict_f(Xs)
    n = 10_000
    samples = prediction.sample(n, seed=1)
    sd = np.sqrt(prediction.variance)
    assert np.all(np.abs(samples.mean(axis=0) - prediction.mean) < 5 * sd / np.sqrt(n))
    # an entry of a sample covariance has sd below 3 s_i s_j / sqrt(n) for mixtures of
    # moderate kurtosis
    gap = np.abs(np.cov(samples.T) - prediction.covariance)
    assert np.all(gap < 5 * 3 * np.outer(sd, sd) / np.sqrt(n))
    np.testing.assert_allclose(
        np.diag(prediction.covariance), prediction.variance, rtol=1e-9
    )
    np.testing.assert_array_equal(samples[:5], prediction.sample(n, seed=1)[:5])
    assert not np.array_equal(samples[:5], prediction.sample(n, seed=2)[:5])


def test_covariance_of_y_adds_noise_to_the_diagonal() -> None:
    posterior = posterior_of()
    gap = posterior.predict_y(Xs).covariance - posterior.predict_f(Xs).covariance
    noise = WEIGHTS @ posterior.particles["likelihood.variance"]
    np.testing.assert_allclose(gap, noise * np.eye(9), atol=1e-9)
    counts = posterior_of(likelihoods.Poisson(), rng.poisson(np.exp(y)))
    with pytest.raises(ValueError, match="no closed form"):
        _ = counts.predict_y(Xs).covariance


@pytest.mark.parametrize(
    "likelihood, values",
    [(likelihoods.Gaussian(), y), (likelihoods.Poisson(), rng.poisson(np.exp(y)))],
)
def test_marginal_samples_have_the_mixtures_moments(
    likelihood: Any, values: Any
) -> None:
    prediction = posterior_of(likelihood, values, latents="joint").predict_y(X[:6])
    n = 20_000
    samples = prediction.sample_marginals(n, seed=3)
    error = np.sqrt(prediction.variance / n)
    assert np.all(np.abs(samples.mean(axis=0) - prediction.mean) < 5 * error)


def test_algorithm_2_draws_from_every_particle() -> None:
    model = sg.SteinGPR((X, y), kernels.SquaredExponential())
    particles = model.sample_prior(5, seed=1)
    draws = model.predict(Xs, particles, n_samples=2000, seed=0)
    assert draws.shape == (10_000, 9)
    mixture = model.posterior(particles).predict_y(Xs)
    by_particle = draws.reshape(5, 2000, 9)
    for j in range(5):
        one = {name: value[j : j + 1] for name, value in particles.items()}
        alone = model.posterior(one).predict_y(Xs)
        error = np.sqrt(alone.variance / 2000)
        assert np.all(np.abs(by_particle[j].mean(axis=0) - alone.mean) < 5 * error)
    np.testing.assert_allclose(draws.var(axis=0), mixture.variance, rtol=0.1)


def test_standardised_answers_in_the_users_units() -> None:
    wide, high = 100.0 * X + 7.0, 50.0 * y - 300.0
    scaled_X, scaled_y = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()
    plain = sg.SteinGP((scaled_X, scaled_y), kernels.Matern52())
    scaled = sg.SteinGP((wide, high), kernels.Matern52(), standardise=True)
    particles = plain.sample_prior(4, seed=2)
    points = np.array([[0.1], [-1.5]])
    inside = plain.posterior(particles).predict_y((points - X.mean()) / X.std())
    outside = scaled.posterior(particles).predict_y(100.0 * points + 7.0)
    scale = 50.0 * y.std()
    back = inside.mean * scale + 50.0 * y.mean() - 300.0
    np.testing.assert_allclose(outside.mean, back, rtol=1e-9)
    np.testing.assert_allclose(outside.variance, inside.variance * scale**2, rtol=1e-9)
    low, high_end = outside.interval(0.8)
    inner = inside.interval(0.8)
    np.testing.assert_allclose(high_end - low, (inner[1] - inner[0]) * scale, rtol=1e-8)
    target = 50.0 * np.array([0.2, -0.4]) - 300.0
    z = (np.array([0.2, -0.4]) - y.mean()) / y.std()
    np.testing.assert_allclose(
        outside.log_prob(target), inside.log_prob(z) - np.log(scale), rtol=1e-8
    )


def test_exposure_at_new_rows() -> None:
    counts = rng.poisson(3.0 * np.exp(y))
    posterior = posterior_of(likelihoods.Poisson(exposure=np.full(30, 3.0)), counts)
    one, five = (
        posterior.predict_y(Xs),
        posterior.predict_y(Xs, per_row=np.full(9, 5.0)),
    )
    np.testing.assert_allclose(five.mean, 5.0 * one.mean, rtol=1e-9)


def test_one_exposure_for_all_rows_holds_for_new_ones() -> None:
    counts = rng.poisson(3.0 * np.exp(y))
    model = sg.SteinGP(
        (X, counts), kernels.Matern52(), likelihoods.Poisson(exposure=3.0)
    )
    particles = model.sample_prior(2)
    posterior = model.posterior(particles)
    three, one = posterior.predict_y(Xs), posterior.predict_y(Xs, per_row=1.0)
    np.testing.assert_allclose(three.mean, 3.0 * one.mean, rtol=1e-12)
    few = model.predict(X[:2], particles, 4000, per_row=0.01).mean()
    assert few < 0.2 * model.predict(X[:2], particles, 4000).mean()


def test_f_at_a_row_that_is_known_exactly() -> None:
    posterior = posterior_of(likelihoods.Bernoulli(), y > 0)
    prediction = posterior.predict_f(X[:3])  # each particle knows f there
    assert np.all(np.isfinite(prediction.quantile(0.5)))
    assert np.all(np.isfinite(prediction.log_prob(prediction.mean)))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p: p.predict_y(np.zeros((2, 3))), "3 column.*made for 1"),
        (lambda p: p.predict_y([[np.nan]]), "NaN"),
        (lambda p: p.predict_y([["a"]]), "must hold numbers"),
        (lambda p: p.predict_y(Xs).log_prob(np.zeros(8)), "X has 9 rows and y has 8"),
        (lambda p: p.predict_y(Xs).quantile(1.0), "q must be one number between"),
        (lambda p: p.predict_y(Xs).interval(90), "level must be one number between"),
        (lambda p: p.predict_y(Xs).sample(0), "at least 1"),
        (lambda p: p.predict_y(Xs, batch_size=0), "batch_size"),
        (lambda p: p.predict_y(Xs, per_row=[1.0]), "per_row has 1"),
        (lambda p: p.predict_y(Xs, per_row=-np.ones(9)), "per_row .*row 0 is -1"),
        (lambda p: p.predict_y(Xs).quantile([0.1, 0.9]), "q must be one number"),
    ],
)
def test_bad_questions_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(posterior_of())


def test_weighted_quantiles_are_numpys_for_equal_weights() -> None:
    values = rng.normal(size=37)
    ours = weighted_quantiles(values, np.full(37, 1 / 37), [0.05, 0.4])
    np.testing.assert_allclose(ours, np.quantile(values, [0.05, 0.4]), rtol=1e-12)


def test_weights_are_checked_and_normalised() -> None:
    model = sg.SteinGP((X, y), kernels.Matern52())
    particles = model.sample_prior(2)
    posterior = Posterior(model.target, model.data, particles, np.array([2.0, 6.0]))
    np.testing.assert_allclose(posterior.weights, [0.25, 0.75])
    with pytest.raises(ValueError, match="weights must be 2 numbers"):
        Posterior(model.target, model.data, particles, np.array([1.0, -1.0]))


def test_groups_of_draws_that_lie_apart_are_named() -> None:
    model = sg.SteinGP((X, y), kernels.Matern52())
    near = model.sample_prior(20, seed=0)
    noise = np.random.default_rng(0).uniform(-1.5, 1.5, size=(20, 3))
    one = {
        "kernel.variance": np.exp(0.2 * noise[:, 0]),
        "kernel.lengthscales": np.exp(0.2 * noise[:, 1:2]),
        "likelihood.variance": np.exp(0.2 * noise[:, 2]),
    }
    assert set(one) == set(near)
    assert len(model.posterior(one).groups()) == 1
    assert "groups" not in repr(model.posterior(one))
    two = {name: values.copy() for name, values in one.items()}
    two["kernel.lengthscales"][:6] *= 20.0
    posterior = model.posterior(two)
    assert [len(part) for part in posterior.groups()] == [14, 6]
    assert posterior.groups()[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert "2 groups, perhaps modes, of weight 0.70, 0.30" in repr(posterior)


def test_the_table_has_a_row_per_hyperparameter() -> None:
    text = repr(posterior_of())
    for name in ("kernel.variance", "kernel.lengthscales[0]", "likelihood.variance"):
        assert name in text
    for column in ("mean", "sd", "5%", "50%", "95%"):
        assert column in text


def test_columns_of_a_frame_are_found_by_name() -> None:
    inputs = rng.uniform(-2, 2, (30, 2))
    frame = pd.DataFrame(inputs, columns=["a", "b"])
    model = sg.SteinGP((frame, np.sin(inputs[:, 0])), kernels.Matern52())
    posterior = model.posterior(model.sample_prior(3))
    other = frame[["b", "a"]].assign(id=7.0)
    for ask in (
        lambda X: posterior.predict_y(X).mean,
        lambda X: model.predict(X, posterior.particles),
        lambda X: model.sample_prior_predictive(X, 2),
        lambda X: posterior.update(X[:3], np.zeros(3), progress=False).training_data[0],
    ):
        np.testing.assert_array_equal(ask(frame), ask(other))
    with pytest.raises(ValueError, match="X has no column 'b'; the model was made for"):
        posterior.predict_y(frame.rename(columns={"b": "c"}))
    of_array = posterior_of()  # has no names to look for
    np.testing.assert_array_equal(
        of_array.predict_f(pd.DataFrame(Xs, columns=["any"])).mean,
        of_array.predict_f(Xs).mean,
    )


def test_a_part_does_not_inherit_what_is_said_of_the_whole() -> None:
    model = sg.SteinGP((X, y), kernels.Matern52())
    whole = sg.fit(model, effective_size=100, progress=False)
    part = whole.subset([0, 0, 0])
    assert whole.diagnose().trusted and not part.diagnose().trusted
    assert part.report is None and part.checkpoint is None and not part.paths
    assert "worth" not in repr(part).splitlines()[0]
    assert whole.report is not None and whole.diagnose().trusted

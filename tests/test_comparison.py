"""Leave-one-out against leaving rows out, comparison of models, variance by source."""

import numpy as np
import pytest

import steingp as sg
from steingp.leaving_out import _left_out
from steingp.posterior import Mode

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-3.0, 3.0, (25, 1)), axis=0)
f = np.sin(2.0 * X[:, 0])
y = f + 0.3 * rng.normal(size=25)
kernel = sg.kernels.Matern52(lengthscales=[1.2])
OUTCOMES = {
    "gaussian": (None, y, {}, 1e-6),
    "filled": (None, y, {"inducing": X}, 1e-5),
    "sparse": (None, y, {"inducing": X[::4]}, 0.05),
    "bernoulli": (sg.likelihoods.Bernoulli(), (y > 0.0) * 1.0, {}, 0.01),
    "poisson": (sg.likelihoods.Poisson(), rng.poisson(np.exp(f)) * 1.0, {}, 0.03),
    "student": (sg.likelihoods.StudentT(), y, {}, 0.02),
}


def at_start(model: sg.SteinGP) -> dict[str, np.ndarray]:
    start = model.target.specification.hyperparameters.start()
    return {name: np.asarray(value)[None] for name, value in start.items()}


@pytest.mark.parametrize("name", OUTCOMES)
def test_rows_left_out_are_predicted_as_if_never_seen(name: str) -> None:
    likelihood, values, options, error = OUTCOMES[name]
    model = sg.SteinGP((X, values), kernel, likelihood, **options)
    draw = at_start(model)
    ours = np.asarray(_left_out(model.target, draw, model.data))[0]
    for row in (0, 7, 13):
        rest = np.arange(25) != row
        without = sg.SteinGP((X[rest], values[rest]), kernel, likelihood, **options)
        one = slice(row, row + 1)
        theirs = without.posterior(draw).predict_y(X[one]).log_prob(values[one])
        np.testing.assert_allclose(ours[row], theirs[0], atol=error)


@pytest.fixture(scope="module")
def fitted() -> dict[str, sg.Posterior]:
    kernels = {"wave": sg.kernels.Matern52(), "line": sg.kernels.Linear()}
    return {
        name: sg.fit(sg.SteinGP((X, y), k), effective_size=200)
        for name, k in kernels.items()
    }


def test_leave_one_out_equals_fits_without_the_row(
    fitted: dict[str, sg.Posterior],
) -> None:
    out = sg.leave_one_out(fitted["wave"])
    assert out.num_doubtful < 5
    for row in np.argsort(out.k)[[0, 12]]:
        rest = np.arange(25) != row
        model = sg.SteinGP((X[rest], y[rest]), sg.kernels.Matern52())
        one = slice(row, row + 1)
        theirs = sg.fit(model, effective_size=400).predict_y(X[one]).log_prob(y[one])
        np.testing.assert_allclose(out.log_density[row], theirs[0], atol=0.1)
    assert repr(out).startswith("LeaveOneOut(")


def test_leave_one_out_in_the_users_units() -> None:
    draws = sg.SteinGP((X, y), kernel).sample_prior(30)
    scaled = sg.SteinGP((X, 100.0 * y), kernel, standardise=True)
    out = sg.leave_one_out(scaled.posterior(draws))
    unit = sg.SteinGP((X, y), kernel, standardise=True)
    other = sg.leave_one_out(unit.posterior(draws))
    np.testing.assert_allclose(out.log_density, other.log_density - np.log(100.0))


def test_the_better_model_comes_first(fitted: dict[str, sg.Posterior]) -> None:
    X_test = np.linspace(-2.5, 2.5, 40)[:, None]
    y_test = np.sin(2.0 * X_test[:, 0])
    found = sg.compare({"line": fitted["line"], "wave": fitted["wave"]}, X_test, y_test)
    assert list(found.rows) == ["wave", "line"]
    best, worst = found.rows.values()
    assert best.probability is not None and best.probability > 0.99
    assert best.left_out is not None and worst.left_out is not None
    assert best.left_out.behind == 0.0
    gap = best.left_out.total - worst.left_out.total
    np.testing.assert_allclose(worst.left_out.behind, gap)
    assert gap > 2.0 * worst.left_out.behind_error > 0.0
    assert best.held_out is not None and worst.held_out is not None
    whole = fitted["wave"].predict_y(X_test).log_prob(y_test).sum()
    np.testing.assert_allclose(best.held_out.total, whole)
    text = str(found)
    assert "wave" in text and "+-" in text and "25 to fit" in text


def test_what_cannot_be_computed_is_said(fitted: dict[str, sg.Posterior]) -> None:
    joint = sg.SteinGP((X, y), kernel, latents="joint")
    plain = joint.posterior(joint.sample_prior(5))
    found = sg.compare({"wave": fitted["wave"], "joint": plain})
    assert found.rows["joint"].left_out is None
    assert found.rows["wave"].probability is None
    assert any("integrated out" in reason for reason in found.rows["joint"].reasons)
    assert "joint:" in str(found)


def test_refusals(fitted: dict[str, sg.Posterior]) -> None:
    other = sg.SteinGP((X[:20], y[:20]), kernel)
    fewer = other.posterior(other.sample_prior(5))
    with pytest.raises(ValueError, match="at least two"):
        sg.compare({"wave": fitted["wave"]})
    with pytest.raises(ValueError, match="different data"):
        sg.compare({"wave": fitted["wave"], "fewer": fewer})
    with pytest.raises(ValueError, match="belong together"):
        sg.compare(fitted, X_test=X)
    with pytest.raises(ValueError, match=r"posteriors\['wave'\] must be a Posterior"):
        sg.compare({"wave": 1, "line": fitted["line"]})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="y_test"):
        sg.compare(fitted, X, y[:3])


# --- variance by its source -------------------------------------------------------------

LIKELIHOODS = {
    "gaussian": (None, y),
    "logit": (sg.likelihoods.Bernoulli(), (y > 0.0) * 1.0),
    "probit": (sg.likelihoods.Bernoulli(link="probit"), (y > 0.0) * 1.0),
    "poisson": (sg.likelihoods.Poisson(), rng.poisson(np.exp(f)) * 1.0),
    "negative": (sg.likelihoods.NegativeBinomial(), rng.poisson(np.exp(f)) * 1.0),
    "gamma": (sg.likelihoods.Gamma(), np.exp(f)),
    "exponential": (sg.likelihoods.Exponential(), np.exp(f)),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sources_add_up_and_noise_is_the_expected_one(name: str) -> None:
    likelihood, values = LIKELIHOODS[name]
    model = sg.SteinGP((X, values), kernel, likelihood, standardise=name == "gaussian")
    draws = {name: 0.5 + 0.2 * v for name, v in model.sample_prior(6).items()}
    posterior = model.posterior(draws, weights=np.arange(1.0, 7.0))
    posterior.modes = [Mode(0.3, np.arange(3)), Mode(0.7, np.arange(3, 6))]
    new = X[:5] + 0.1
    parts = posterior.uncertainty(new)
    np.testing.assert_allclose(parts.total, posterior.predict_y(new).variance)
    assert all(np.all(part >= 0.0) for part in parts)
    # noise by simulation of f: the mean over draws of Var(y | f)
    prediction = posterior.predict_y(new)
    normal = np.random.default_rng(1).normal(size=(20_000, 1, 5))
    fs = prediction.means + np.sqrt(prediction.variances) * normal
    noise = _noise(name, posterior, fs)
    np.testing.assert_allclose(parts.noise, posterior.weights @ noise, rtol=0.05)


def _noise(name: str, posterior: sg.Posterior, fs: np.ndarray) -> np.ndarray:
    slots = posterior.particles
    if name == "gaussian":
        unit = posterior._scaling.y_scale**2
        return unit * np.repeat(slots["likelihood.variance"][:, None], 5, axis=1)
    if name in ("logit", "probit"):
        from scipy.special import expit, ndtr

        p = expit(fs) if name == "logit" else ndtr(fs)
        return (p * (1.0 - p)).mean(axis=0)
    mean = np.exp(fs)
    if name == "poisson":
        return mean.mean(axis=0)
    if name == "exponential":
        return (mean**2).mean(axis=0)
    if name == "gamma":
        shape = slots["likelihood.shape"][:, None]
        return (shape * mean**2).mean(axis=0)  # mean shape exp(f)
    excess = slots["likelihood.dispersion"][:, None]
    return (mean + excess * mean**2).mean(axis=0)


def test_modes_that_agree_add_nothing_and_one_mode_has_none() -> None:
    model = sg.SteinGP((X, y), kernel)
    one = {name: np.repeat(v, 4, axis=0) for name, v in at_start(model).items()}
    posterior = model.posterior(one)
    posterior.modes = [Mode(0.5, np.arange(2)), Mode(0.5, np.arange(2, 4))]
    parts = posterior.uncertainty(X[:3])
    np.testing.assert_allclose(parts.hyperparameters, 0.0, atol=1e-12)
    np.testing.assert_allclose(parts.modes, 0.0, atol=1e-12)
    far = {name: v.copy() for name, v in one.items()}
    far["kernel.lengthscales"][2:] = 30.0
    apart = model.posterior(far)
    assert np.all(apart.uncertainty(X[:3]).modes == 0.0)
    apart.modes = posterior.modes
    split = apart.uncertainty(X[:3])
    assert np.all(split.modes > 1e-4) and np.allclose(split.hyperparameters, 0.0)


def test_an_infinite_variance_is_the_noise_alone() -> None:
    model = sg.SteinGP((X, y), kernel, sg.likelihoods.StudentT(df=sg.fixed(1.5)))
    parts = model.posterior(model.sample_prior(3)).uncertainty(X[:2])
    assert np.all(np.isinf(parts.noise)) and np.all(np.isfinite(parts.function))

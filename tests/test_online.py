"""New rows: weights or moves, both as a fit to all rows."""

import numpy as np
import pytest

import steingp as sg
from steingp import online
from steingp.likelihoods import Poisson

rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (50, 1))
y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=50)
kernel = sg.kernels.Matern52()


def moments(posterior: sg.Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Of the logarithms."""
    names = sorted(posterior.particles)
    table = np.log(np.stack([np.ravel(posterior.particles[n]) for n in names], axis=1))
    mean = posterior.weights @ table
    return mean, np.sqrt(posterior.weights @ (table - mean) ** 2)


@pytest.fixture(scope="module")
def whole() -> sg.Posterior:
    return sg.fit(sg.SteinGP((X, y), kernel))


@pytest.mark.parametrize("before", [45, 12])
def test_an_update_equals_a_fit_to_all_rows(before: int, whole: sg.Posterior) -> None:
    first = sg.fit(sg.SteinGP((X[:before], y[:before]), kernel))
    updated = first.update(X[before:], y[before:])
    weighted = "weighted by 5 new rows" in updated.method
    assert weighted == (before == 45)
    assert weighted or "earlier draws" in updated.method or "temper" in updated.method
    assert updated.report is not None and updated.report.effective_size > 400
    (mean, sd), (exact_mean, exact_sd) = moments(updated), moments(whole)
    # three sds of a difference, of 400 and of 1000 draws
    assert np.max(np.abs(mean - exact_mean) / exact_sd) < 3.0 * np.sqrt(1 / 400 + 1e-3)
    np.testing.assert_allclose(sd, exact_sd, rtol=0.13)
    assert updated.verdict is not None and updated.verdict.trusted
    ours, exact = updated.log_evidence(), whole.log_evidence()
    assert abs(ours.log_value - exact.log_value) < 4 * np.hypot(ours.error, exact.error)
    new = np.linspace(-3.0, 3.0, 7)[:, None]
    a, b = updated.predict_y(new), whole.predict_y(new)
    np.testing.assert_allclose(a.mean, b.mean, atol=0.02)
    np.testing.assert_allclose(a.variance, b.variance, rtol=0.1)


def test_updates_follow_one_another(whole: sg.Posterior) -> None:
    one = whole.update([[0.5]], [np.sin(1.0)]).update([[0.6]], [np.sin(1.2)])
    both = whole.update([[0.5], [0.6]], [np.sin(1.0), np.sin(1.2)])
    assert len(one.training_data[1]) == 52
    gap = one.predict_y([[0.55]]).mean - both.predict_y([[0.55]]).mean
    assert abs(gap[0]) < 0.01


def test_scaling_and_exposure_stay_as_they_were() -> None:
    model = sg.SteinGP((10.0 * X, 5.0 + 3.0 * y), kernel, standardise=True)
    posterior = model.posterior(model.sample_prior(400))
    updated = posterior.update([[5.0]], [6.0])
    inputs, outputs = updated.training_data
    np.testing.assert_allclose(inputs[-1], [5.0])
    np.testing.assert_allclose(outputs[-1], 6.0)
    np.testing.assert_allclose(inputs[:50], 10.0 * X)
    counts = np.random.default_rng(0).poisson(np.exp(y))
    model = sg.SteinGP((X, counts), kernel, Poisson(exposure=np.full(50, 2.0)))
    new = online._with_rows(
        model, model.posterior(model.sample_prior(3)), [[0.0]], [3], [4.0]
    )
    assert new.data.row[-1] == 4.0 and new.num_data == 51


def test_weights_are_those_of_the_new_rows() -> None:
    model = sg.SteinGP((X[:20], y[:20]), kernel)
    draws = model.sample_prior(300)
    posterior = model.posterior(draws)
    wider = sg.SteinGP((X[:21], y[:21]), kernel)
    gains = online._gains(model, online._with_rows(
        model, posterior, X[20:21], y[20:21], None), posterior)  # fmt: skip
    z = wider.log_density(draws) - model.log_density(draws)  # priors cancel
    np.testing.assert_allclose(gains, z, atol=1e-8)


def test_refusals(whole: sg.Posterior) -> None:
    with pytest.raises(ValueError, match="X has 2 column"):
        whole.update([[0.0, 1.0]], [1.0])
    with pytest.raises(ValueError, match="y has NaN"):
        whole.update([[0.0]], [np.nan])
    joint = sg.SteinGP((X, y), kernel, latents="joint")
    with pytest.raises(ValueError, match="f is integrated out"):
        joint.posterior(joint.sample_prior(3)).update([[0.0]], [1.0])

"""Metrics against closed forms, numerical integration and brute force."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from steingp import metrics
from steingp.metrics import predictions


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# Points -------------------------------------------------------------------------------


def test_rmse_has_its_root():
    # errors 3, 4: sqrt((9 + 16) / 2)
    assert metrics.rmse([0.0, 0.0], [3.0, -4.0]) == pytest.approx(np.sqrt(12.5))


def test_mean_log_density_is_a_mean():
    assert metrics.mean_log_density([-1.0, -4.0]) == -2.5
    assert metrics.mean_log_density([0.0, -np.inf]) == -np.inf


def test_columns_and_vectors_are_the_same():
    y, mean = np.arange(4.0), np.arange(4.0)[::-1]
    assert metrics.rmse(y[:, None], mean) == metrics.rmse(y, mean)


def test_accuracy_of_probabilities_and_of_labels():
    # 1/2 counts as the label 0
    assert metrics.accuracy([0, 0, 1, 1], [0.1, 0.5, 0.5, 0.51]) == 0.75
    assert metrics.accuracy([True, False], [True, True]) == 0.5


def test_coverage_includes_the_ends():
    y = [0.0, 1.0, 2.0, 3.0]
    assert metrics.coverage(y, [0.0] * 4, [2.0] * 4) == 0.75


def test_coverage_of_gaussian_intervals(rng):
    n, half = 20_000, stats.norm.ppf(0.95)
    y = rng.normal(size=n)
    share = metrics.coverage(y, np.full(n, -half), np.full(n, half))
    assert abs(share - 0.9) < 5.0 * np.sqrt(0.9 * 0.1 / n)


def test_calibration_error_by_hand():
    # bins (0, .5], (.5, 1]: |1/2 - .3| and |1/2 - .8|, two points in each
    error = metrics.expected_calibration_error(
        [0, 1, 0, 1], [0.1, 0.5, 0.7, 0.9], num_bins=2
    )
    assert error == pytest.approx(0.5 * 0.2 + 0.5 * 0.3)


def test_calibration_error_against_a_loop(rng):
    p = np.concatenate([rng.random(200), [0.0, 1.0, 0.1, 0.2]])
    y = (rng.random(204) < p**2).astype(float)
    edges = np.linspace(0.0, 1.0, 11)
    expected = 0.0
    for b in range(10):
        inside = (p > edges[b]) & (p <= edges[b + 1])
        inside |= (p == 0.0) & (b == 0)
        if inside.any():
            gap = abs(y[inside].mean() - p[inside].mean())
            expected += inside.mean() * gap
    assert metrics.expected_calibration_error(y, p) == pytest.approx(expected)


# CRPS ---------------------------------------------------------------------------------


def test_crps_of_one_gaussian(rng):
    # sd (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)): Gneiting and Raftery (2007)
    y, mean, sd = rng.normal(size=6), rng.normal(size=6), rng.gamma(2.0, size=6)
    z = (y - mean) / sd
    expected = z * (2.0 * stats.norm.cdf(z) - 1.0) + 2.0 * stats.norm.pdf(z)
    expected = sd * (expected - 1.0 / np.sqrt(np.pi))
    score = metrics.crps_gaussian_mixture(y, mean[None], sd[None] ** 2)
    np.testing.assert_allclose(score, expected, rtol=1e-12)


def crps_by_quadrature(y: float, cdf) -> float:
    below, _ = quad(lambda x: cdf(x) ** 2, -60.0, y, limit=400, epsabs=1e-11)
    above, _ = quad(lambda x: (1 - cdf(x)) ** 2, y, 60.0, limit=400, epsabs=1e-11)
    return below + above


def test_crps_of_a_mixture_by_quadrature(rng):
    means, sds = rng.normal(scale=2.0, size=(4, 5)), rng.gamma(2.0, size=(4, 5))
    weights = rng.gamma(1.0, size=4)
    y = rng.normal(scale=3.0, size=5)
    scores = metrics.crps_gaussian_mixture(y, means, sds**2, weights)
    w = weights / weights.sum()
    for i in range(5):
        expected = crps_by_quadrature(
            y[i], lambda x, i=i: w @ stats.norm.cdf(x, means[:, i], sds[:, i])
        )
        assert scores[i] == pytest.approx(expected, abs=1e-8)


def test_crps_of_a_mixture_in_blocks(rng, monkeypatch):
    y, means = rng.normal(size=50), rng.normal(size=(7, 50))
    variances = rng.gamma(1.0, size=(7, 50))
    whole = metrics.crps_gaussian_mixture(y, means, variances)
    monkeypatch.setattr(predictions, "_BLOCK", 7 * 8)
    parts = metrics.crps_gaussian_mixture(y, means, variances)
    np.testing.assert_allclose(parts, whole, rtol=1e-13)


def test_crps_of_point_masses_is_that_of_samples(rng):
    y, draws, weights = rng.normal(size=8), rng.normal(size=(6, 8)), rng.random(6)
    np.testing.assert_allclose(
        metrics.crps_gaussian_mixture(y, draws, np.zeros((6, 8)), weights),
        metrics.crps_samples(y, draws, weights),
        rtol=1e-12,
    )


def test_crps_of_samples_against_the_double_sum(rng):
    y, draws, weights = rng.normal(size=5), rng.normal(size=(9, 5)), rng.random(9)
    w = weights / weights.sum()
    pairs = np.abs(draws[:, None] - draws[None])
    expected = w @ np.abs(draws - y) - 0.5 * np.einsum("s,t,stn->n", w, w, pairs)
    np.testing.assert_allclose(
        metrics.crps_samples(y, draws, weights), expected, rtol=1e-12
    )


def test_crps_of_samples_exceeds_the_exact_one_as_stated(rng):
    # E|X - X'| / (2 S) with |X - X'| of mean 2 / sqrt(pi) for N(0, 1); S = 10
    n = 40_000
    y, draws = rng.normal(size=n), rng.normal(size=(10, n))
    exact = metrics.crps_gaussian_mixture(y, np.zeros((1, n)), np.ones((1, n)))
    excess = metrics.crps_samples(y, draws) - exact
    error = np.std(excess) / np.sqrt(n)
    assert abs(np.mean(excess) - 1.0 / (10.0 * np.sqrt(np.pi))) < 5.0 * error


def test_crps_of_one_sample_is_the_absolute_error():
    np.testing.assert_array_equal(
        metrics.crps_samples([1.0, 2.0], [[3.0, 1.5]]), [2.0, 0.5]
    )


# Draws --------------------------------------------------------------------------------


def test_sliced_wasserstein_of_a_shift(rng):
    # W_2 along t is |t's|, so the mean square is |s|^2 / d: E (t's)^2 on the sphere
    a, shift = rng.normal(size=(50, 3)), np.array([1.0, -2.0, 0.5])
    distance = metrics.sliced_wasserstein(a, a + shift, num_projections=4000)
    assert distance == pytest.approx(np.linalg.norm(shift) / np.sqrt(3.0), rel=0.03)


def test_sliced_wasserstein_of_gaussians_on_the_line(rng):
    # W_2^2 = (m - m')^2 + (s - s')^2 = 1 + 4
    a, b = rng.normal(size=40_000), 1.0 + 3.0 * rng.normal(size=30_000)
    distance = metrics.sliced_wasserstein(a, b, num_projections=1)
    assert distance == pytest.approx(np.sqrt(5.0), rel=0.02)


def test_sliced_wasserstein_of_equal_sizes_is_by_sorting(rng):
    a, b = rng.normal(size=(30, 1)), rng.gamma(2.0, size=(30, 1))
    expected = np.sqrt(np.mean((np.sort(a[:, 0]) - np.sort(b[:, 0])) ** 2))
    assert metrics.sliced_wasserstein(a, b, 3) == pytest.approx(expected, rel=1e-12)


def test_sliced_wasserstein_counts_weights_as_repetitions(rng):
    a, b = rng.normal(size=(5, 2)), rng.normal(size=(3, 2))
    times_a, times_b = np.array([1, 3, 2, 0, 4]), np.array([2, 1, 5])
    weighted = metrics.sliced_wasserstein(a, b, 20, 1, times_a, times_b)
    repeated = metrics.sliced_wasserstein(
        np.repeat(a, times_a, axis=0), np.repeat(b, times_b, axis=0), 20, 1
    )
    assert weighted == pytest.approx(repeated, rel=1e-9)


def test_sliced_wasserstein_is_a_distance(rng):
    a, b = rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    there = metrics.sliced_wasserstein(a, b)
    assert metrics.sliced_wasserstein(b, a) == pytest.approx(there, rel=1e-12)
    assert metrics.sliced_wasserstein(a, a[::-1]) == pytest.approx(0.0, abs=1e-12)
    assert metrics.sliced_wasserstein(a, b, seed=0) == there
    assert metrics.sliced_wasserstein(a, b, seed=1) != there


def test_sd_ratio_is_unbiased_and_weighted(rng):
    draws, reference = rng.normal(size=(5, 2)), rng.normal(size=(50, 2))
    expected = np.std(draws, axis=0, ddof=1) / np.std(reference, axis=0, ddof=1)
    np.testing.assert_allclose(metrics.sd_ratio(draws, reference), expected)
    # weight 0 is as good as absent
    weighted = metrics.sd_ratio(draws, reference, [2.0, 2.0, 2.0, 0.0, 0.0])
    np.testing.assert_allclose(weighted, metrics.sd_ratio(draws[:3], reference))


# Bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse([1.0] * 3, [1.0] * 2), "y has 3 values and mean has 2"),
        (lambda: metrics.rmse([], []), r"y must have shape \(n,\).*got \(0,\)"),
        (lambda: metrics.mean_log_density(np.zeros((2, 3))), r"log_prob.*\(2, 3\)"),
        (
            lambda: metrics.accuracy([-1, 1], [0.1, 0.9]),
            "labels must be 0 or 1; got -1",
        ),
        (lambda: metrics.accuracy([0, 1], [0.1, 1.9]), r"lie in \[0, 1\]; got 1.9"),
        (lambda: metrics.coverage([1.0], [2.0], [0.0]), "lower must not lie above"),
        (
            lambda: metrics.expected_calibration_error([1], [0.5], 0),
            "num_bins must be 1 or more; got 0",
        ),
        (
            lambda: metrics.crps_gaussian_mixture([1.0] * 3, [[1.0]], [[1.0]]),
            r"means must have shape \(S, 3\).*got \(1, 1\)",
        ),
        (
            lambda: metrics.crps_gaussian_mixture([1.0], [[1.0]] * 2, [[1.0]]),
            r"means has shape \(2, 1\) and variances \(1, 1\)",
        ),
        (
            lambda: metrics.crps_gaussian_mixture([1.0], [[1.0]], [[-1.0]]),
            "variances must not be negative; got -1.0",
        ),
        (
            lambda: metrics.crps_samples([1.0], [[1.0]] * 3, [0.5, 0.5]),
            r"weights must have shape \(3,\), one per draw; got \(2,\)",
        ),
        (
            lambda: metrics.crps_samples([1.0], [[1.0]] * 2, [-3.0, -0.1]),
            "weights must not be negative.*not their logarithms",
        ),
        (
            lambda: metrics.sliced_wasserstein(np.zeros((3, 2)), np.zeros((3, 1))),
            r"a has 2 column\(s\) and b has 1",
        ),
        (
            lambda: metrics.sliced_wasserstein([0.0], [1.0], 0),
            "num_projections must be 1 or more; got 0",
        ),
        (
            lambda: metrics.sd_ratio(np.zeros((2, 2, 2)), np.zeros((3, 1))),
            r"draws must have shape \(draws, d\).*got \(2, 2, 2\)",
        ),
        (lambda: metrics.sd_ratio([1.0], [1.0, 2.0]), "two draws or more.*got 1 and 2"),
        (
            lambda: metrics.sd_ratio(np.eye(2), [[1.0, 2.0], [1.0, 3.0]]),
            r"column\(s\) \[0\] are constant",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "score",
    [
        lambda nan: metrics.rmse([1.0, nan], [1.0, 1.0]),
        lambda nan: metrics.mean_log_density([0.0, nan]),
        lambda nan: metrics.accuracy([0, 1], [0.1, nan]),
        lambda nan: metrics.coverage([0.0, 0.0], [-1.0, nan], [1.0, 1.0]),
        lambda nan: metrics.expected_calibration_error([0, 1], [0.1, nan]),
        lambda nan: metrics.crps_gaussian_mixture([0.0], [[nan], [0.0]], [[1.0]] * 2),
        lambda nan: metrics.crps_gaussian_mixture([0.0], [[0.0]] * 2, [[nan], [1.0]]),
        lambda nan: metrics.crps_samples([0.0], [[nan], [1.0]]),
        lambda nan: metrics.sliced_wasserstein([0.0, nan], [0.0, 1.0]),
        lambda nan: metrics.sd_ratio([0.0, nan], [0.0, 1.0]),
    ],
)
def test_nan_gives_nan(score):
    assert np.all(np.isnan(score(np.nan)))

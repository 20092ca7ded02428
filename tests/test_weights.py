"""Pareto-smoothed weights on ratios whose tail is known; mixing on known chains."""

import numpy as np
import pytest
from scipy.stats import genpareto

from steingp import weights

# Importance weights -------------------------------------------------------------------


@pytest.mark.parametrize("k", [0.1, 0.5, 0.9])
def test_k_of_a_ratio_with_a_pareto_tail(k: float) -> None:
    # x ~ Exp(1), weight exp(k x): P(w > t) = t^(-1/k), which is Pareto of shape k
    found = [
        weights.pareto_smooth(k * np.random.default_rng(seed).exponential(size=20_000))[
            1
        ]
        for seed in range(20)
    ]
    # each has an error of about (1 + k) / sqrt(M), M = 3 sqrt(S) = 425
    error = (1.0 + k) / np.sqrt(425) / np.sqrt(20)
    assert abs(np.mean(found) - k) < 4 * error + 0.01  # the prior's pull: 5 in 435


def test_k_of_bounded_weights_is_negative() -> None:
    x = np.random.default_rng(0).exponential(size=20_000)
    _, k = weights.pareto_smooth(-0.5 * x)  # density of w at its bound 1 is finite: -1
    assert -1.1 < k < -0.8


@pytest.mark.parametrize("k", [-0.3, 0.2, 0.7])
def test_the_fit_is_near_the_most_likely_pareto(k: float) -> None:
    excess = np.sort(genpareto(k, scale=2.0).rvs(size=4000, random_state=1))
    shape, scale = weights._fit_pareto(excess)
    k_ml, _, scale_ml = genpareto.fit(excess, floc=0.0)
    # the posterior mean is within a fraction of the error, (1 + k) / sqrt(4000) = 0.02
    assert abs(shape - k_ml) < 0.01 and abs(scale / scale_ml - 1.0) < 0.01


@pytest.mark.parametrize(
    ("c", "k", "largest"),
    [(0.2, 0.23678774, 0.00365708), (0.9, 0.84426643, 0.13591972)],
)
def test_the_values_of_arviz(c: float, k: float, largest: float) -> None:
    # what ArviZ's psislw gives for these log weights
    u = (np.arange(1000) + 0.5) / 1000
    w, found = weights.pareto_smooth(-c * np.log(u))
    np.testing.assert_allclose([found, w[0]], [k, largest], rtol=1e-5)


def test_smoothing_makes_heavy_weights_steadier_and_keeps_light_ones() -> None:
    # E[x] under Exp(1 - k), from Exp(1): 1 / (1 - k)
    k, raw, smooth = 0.6, [], []
    for seed in range(200):
        x = np.random.default_rng(seed).exponential(size=400)
        w, _ = weights.pareto_smooth(k * x)
        assert np.isclose(w.sum(), 1.0) and np.all(w > 0)
        plain = np.exp(k * x) / np.exp(k * x).sum()
        body = np.argsort(x)[
            : 400 - 60
        ]  # M = 3 sqrt(400): all others are in proportion
        np.testing.assert_allclose((w / plain)[body], (w / plain)[body[0]])
        raw.append(plain @ x - 2.5)
        smooth.append(w @ x - 2.5)
    assert np.mean(np.square(smooth)) < np.mean(np.square(raw))


def test_weights_keep_their_order_and_do_not_depend_on_that_of_the_draws() -> None:
    rng = np.random.default_rng(0)
    log_w = np.repeat(rng.normal(size=150), 2)  # each draw twice, as after a rejection
    w, k = weights.pareto_smooth(log_w + 1234.5)  # a constant cancels
    assert np.all(np.diff(w[np.argsort(log_w, kind="stable")]) >= -1e-15)
    np.testing.assert_allclose(w[::2], w[1::2], rtol=1e-12)
    order = rng.permutation(300)
    shuffled, same_k = weights.pareto_smooth(log_w[order])
    np.testing.assert_allclose(shuffled, w[order], rtol=1e-9)
    assert np.isclose(k, same_k, rtol=1e-9)


def test_weights_at_the_edges() -> None:
    w, k = weights.pareto_smooth(np.full(50, 3.0) + 1e-15 * np.arange(50))
    np.testing.assert_allclose(w, 0.02)
    assert k == 0.0
    w, k = weights.pareto_smooth(np.arange(20.0))  # M = 4
    np.testing.assert_allclose(w[1:] / w[:-1], np.e)
    assert k == np.inf
    w, k = weights.pareto_smooth(np.r_[np.zeros(99), 2000.0])  # one weight is all
    assert w[-1] == 1.0 and k == np.inf
    w, k = weights.pareto_smooth(np.r_[np.full(60, -np.inf), np.linspace(0, 1, 40)])
    assert np.all(w[:60] == 0) and np.isclose(w.sum(), 1.0) and np.isfinite(k)
    given = np.linspace(0.0, 5.0, 100)
    weights.pareto_smooth(given)
    np.testing.assert_array_equal(given, np.linspace(0.0, 5.0, 100))


@pytest.mark.parametrize(
    "bad", [[], [[1.0]], ["a"], [np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]]
)
def test_bad_weights_are_refused(bad: list) -> None:
    with pytest.raises(ValueError, match="log_weights"):
        weights.pareto_smooth(bad)


def test_effective_size() -> None:
    assert weights.effective_size(np.full(7, 1.0)) == pytest.approx(7.0)
    assert weights.effective_size([0.0, 2.0]) == 1.0
    # 1 / (0.5^2 + 2 * 0.25^2) = 1 / 0.375
    assert weights.effective_size([0.5, 0.25, 0.25]) == pytest.approx(8 / 3)


# Mixing -------------------------------------------------------------------------------


def chains(rho: float, sweeps: int, J: int, d: int = 1, seed: int = 0) -> np.ndarray:
    """Stationary x' = rho x + sqrt(1 - rho^2) noise, (sweeps, J, d)."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(J, d))]
    for _ in range(sweeps - 1):
        x.append(rho * x[-1] + np.sqrt(1 - rho**2) * rng.normal(size=(J, d)))
    return np.stack(x)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_effective_sizes_of_chains_with_known_correlation(rho: float) -> None:
    mixed = weights.mixing(chains(rho, 500, 40, 5))
    # the mean's: n (1 - rho) / (1 + rho); that of squares has rho^2 in place of rho
    np.testing.assert_allclose(mixed.mean_size, 2e4 * (1 - rho) / (1 + rho), rtol=0.2)
    square = 2e4 * (1 - rho**2) / (1 + rho**2)
    np.testing.assert_allclose(mixed.square_size, square, rtol=0.2)
    # means of halves of 250 sweeps have variance tau / 250, tau = (1 + rho) / (1 - rho)
    rhat = np.sqrt(1 + ((1 + rho) / (1 - rho) - 1) / 250)
    np.testing.assert_allclose(mixed.mean_rhat, rhat, atol=0.01)
    assert mixed.largest_rhat == max(mixed.mean_rhat.max(), mixed.square_rhat.max())
    least = min(mixed.mean_size.min(), 2.0 * mixed.square_size.min())
    assert mixed.smallest_size == least


def test_few_sweeps_give_sizes_between_one_and_the_number_of_draws() -> None:
    for sweeps in (4, 5, 7, 20):
        for rho in (-0.9, 0.0, 0.95):
            mixed = weights.mixing(chains(rho, sweeps, 20, 30))
            for size in (mixed.mean_size, mixed.square_size):
                assert np.all((size >= 1) & (size <= 20 * sweeps))
            assert np.all(np.isfinite(mixed.mean_rhat))
    slow, fast = (weights.mixing(chains(rho, 8, 20, 30)) for rho in (0.95, 0.0))
    assert np.median(slow.mean_size) < 50 < 100 < np.median(fast.mean_size)
    assert np.median(slow.mean_rhat) > 1.3 > 1.1 > np.median(fast.mean_rhat)


def test_a_drift_or_a_particle_apart_shows_in_rhat() -> None:
    x = chains(0.0, 20, 20)
    drifting = x + np.linspace(-2.0, 2.0, 20)[:, None, None]
    assert weights.mixing(drifting).mean_rhat > 1.2
    apart = x.copy()
    apart[:, 0] += 10.0
    assert weights.mixing(apart).mean_rhat > 1.2
    # half the particles have a smaller spread: the mean does not show it, squares do
    narrow = x.copy()
    narrow[:, ::2] *= 0.1
    mixed = weights.mixing(narrow)
    assert mixed.mean_rhat < 1.1 < mixed.square_rhat


def test_constant_coordinates_and_shapes() -> None:
    x = chains(0.0, 10, 20, 6).reshape(10, 20, 2, 3)
    x[:, :, 0, 1] = 0.3
    mixed = weights.mixing(x)
    assert mixed.mean_size.shape == mixed.square_rhat.shape == (2, 3)
    assert mixed.mean_size[0, 1] == mixed.square_size[0, 1] == 1.0
    assert np.isinf(mixed.mean_rhat[0, 1]) and np.isinf(mixed.square_rhat[0, 1])
    others = np.ones((2, 3), bool)
    others[0, 1] = False
    assert np.all(mixed.mean_rhat[others] < 1.2) and np.all(
        mixed.mean_size[others] > 80
    )
    alone = weights.mixing(chains(0.0, 100, 1)[:, :, 0])  # one particle
    assert alone.mean_size.shape == () and alone.mean_size > 40


def test_bad_draws_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 4 sweeps; got shape \(3, 20\)"):
        weights.mixing(np.zeros((3, 20)))
    with pytest.raises(ValueError, match="not finite"):
        weights.mixing(np.full((5, 2), np.nan))

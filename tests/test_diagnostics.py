"""Spread and Stein discrepancy: exact where known, blind to nothing that was planted."""

import jax.numpy as jnp
import numpy as np
import pytest

from steingp import diagnostics, stein, verdicts
from steingp.diagnostics import Check, Verdict


def correlated(
    num: int, d: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of a Gaussian with correlations of 0.9, their scores, and the precision."""
    rng = np.random.default_rng(seed)
    covariance = 0.9 * np.ones((d, d)) + 0.1 * np.eye(d)
    precision = np.linalg.inv(covariance)
    draws = rng.normal(size=(num, d)) @ np.linalg.cholesky(covariance).T
    return draws, -draws @ precision, precision


@pytest.mark.parametrize("d", [1, 3, 15])
def test_the_spread_of_exact_draws_is_one(d: int) -> None:
    means = []
    for seed in range(50):
        draws, scores, _ = correlated(200, d, seed)
        found = diagnostics.spread(draws, scores)
        means.append((found.mean - 1.0) / found.error)
        assert verdicts.spread_right(found, 200.0, d).passed
    assert abs(np.mean(means)) < 0.6 and 0.7 < np.std(means) < 1.3


@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_collapsed_draws_show_their_ratio_of_variances(ratio: float) -> None:
    draws, _, precision = correlated(200, 5, 0)
    draws = np.sqrt(ratio) * draws
    found = diagnostics.spread(draws, -draws @ precision)
    np.testing.assert_allclose(found.mean, ratio, rtol=0.15)
    assert verdicts.spread_right(found, 200.0, 5).passed is False


def test_one_narrow_direction_among_many_is_seen() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(400, 10))
    turned, _ = np.linalg.qr(rng.normal(size=(10, 10)))
    squeezed = draws @ np.diag([0.3] + [1.0] * 9) @ turned.T
    found = diagnostics.spread(squeezed, -squeezed)
    np.testing.assert_allclose(found.smallest, 0.09, atol=0.03)
    check = verdicts.spread_right(found, 400.0, 10)
    assert check.passed is False and "worst direction" in check.finding


def test_few_draws_in_many_dimensions_still_have_a_mean() -> None:
    draws = 0.1 * np.random.default_rng(0).normal(size=(20, 100))
    found = diagnostics.spread(draws, -draws)
    assert np.isnan(found.smallest)
    np.testing.assert_allclose(found.mean, 0.01, rtol=0.1)
    assert verdicts.spread_right(found, 20.0, 100).passed is False


def test_the_discrepancy_is_that_of_the_stein_kernel() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(30, 3))
    z, s = z / z.std(axis=0), rng.normal(size=(30, 3))
    kappa = stein.IMQ(c=1.0, beta=-0.5, bandwidth=stein.Constant(1.0))
    whole = stein.squared_ksd(kappa, jnp.asarray(z), jnp.asarray(s), jnp.asarray(1.0))
    own = np.sum(s**2) + 30 * 3  # pairs of a draw with itself
    value = (900 * float(whole) - own) / (30 * 29)
    found = diagnostics.stein_discrepancy(z, s).value ** 2
    np.testing.assert_allclose(found, max(value, 0.0), rtol=1e-10)
    assert value > 0.0


@pytest.mark.parametrize("d", [2, 8])
def test_the_discrepancy_finds_shifts_and_not_exact_draws(d: int) -> None:
    alarms = 0
    for seed in range(100):
        z = np.random.default_rng(seed).normal(size=(200, d))
        check = verdicts.agrees_with_scores(z, -z)
        alarms += check.passed is False
    assert alarms <= 1
    z = np.random.default_rng(0).normal(size=(200, d)) + 0.5
    assert verdicts.agrees_with_scores(z, -z).passed is False


def test_a_verdict_claims_what_was_checked() -> None:
    good = Check("R-hat", True, "R-hat at most 1.01")
    unknown = Check("modes", None, "not looked for", "look")
    bad = Check("step", False, "3 % of moves accepted", "shorten it")
    line = Verdict((good, unknown)).line
    assert line.startswith("Nothing speaks against it") and "Not checked: modes" in line
    verdict = Verdict((good, unknown, bad))
    assert not verdict.trusted and verdict.failed == [bad]
    assert verdict.line == "Do not trust it: 3 % of moves accepted."
    assert "-> shorten it" in str(verdict) and "-> look" in str(verdict)


def test_many_particles_with_few_sweeps_may_differ_more_in_spread_than_in_mean() -> (
    None
):
    # 64 particles, 400 draws: means are worth 6 draws of a particle, spreads 3
    assert verdicts.mixed(1.2, 1.35, 64, 400.0).passed
    assert not verdicts.mixed(1.35, 1.2, 64, 400.0).passed


def test_numbers_beyond_their_bounds_fail() -> None:
    for check in (
        verdicts.finished("adapting"),
        verdicts.enough_draws(99.0, 50.0),
        verdicts.enough_draws(300.0, 1000.0),
        verdicts.mixed(1.3, 1.0, 20, 400.0),
        verdicts.mixed(1.0, 1.3, 20, 400.0),
        verdicts.mixed(float("inf"), 1.0, 20, 400.0),
        verdicts.accepted(0.1, 0.0, 1e3),
        verdicts.accepted(0.9, 0.2, 0.1),
        verdicts.accepted(float("nan"), 0.0, 0.0),
        verdicts.weights_good(0.9, False, ""),
        verdicts.weights_stable(float("inf")),
        verdicts.solver_converged(np.array([0.0, np.nan]), 1e-4),
        verdicts.modes_found(1, 0.3, [], 260),
        verdicts.bounds_spread(np.linspace(0, 100, 20), 4),
        verdicts.bounds_spread(None, 4),
        verdicts.little_jitter(np.array([0.0, 1e-3])),
        verdicts.little_jitter(np.array([0.0, np.nan])),
        verdicts.ascended(np.linspace(0, -500, 100), np.ones(100), 0, 3),
        verdicts.ascended(np.array([0.0, np.nan]), np.ones(2), 0, 3),
        verdicts.ascended(np.zeros(100), np.ones(100), 2, 3),
    ):
        assert check.passed is False and check.finding, check
        assert check.remedy, check
    assert verdicts.modes_found(1, None, [], 20).passed is None
    assert verdicts.modes_found(1, 0.0, [], 260).passed


@pytest.mark.parametrize("seed", range(5))
def test_draws_that_waited_are_no_discrepancy(seed: int) -> None:
    """Of particles that wait for a leap many draws are one and the same."""
    z = np.random.default_rng(seed).normal(size=(70, 4))
    waited = np.repeat(z, 3, axis=0)
    found = diagnostics.stein_discrepancy(waited, -waited)
    once = diagnostics.stein_discrepancy(z, -z)
    assert found.value > once.value  # as of 210 draws it would be too much
    assert found.value < found.bound
    narrow = 0.5 * waited
    found = diagnostics.stein_discrepancy(narrow, -narrow)
    assert found.value > 1.3 * found.bound

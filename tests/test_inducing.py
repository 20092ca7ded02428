"""Inducing points: greedy picks, exact k-DPP draws, and what bad input is told."""

import itertools

import jax
import numpy as np
import pandas as pd
import pytest

from steingp import inducing, kernels

KERNEL = kernels.Matern32(variance=1.5, lengthscales=0.7)


def table(num_rows: int, num_columns: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_rows, num_columns))


def with_kernel(function):
    def choose(X, num, seed=0):
        return function(X, num, KERNEL, seed)

    return choose


RULES = {
    "uniform": inducing.uniform,
    "kmeans": inducing.kmeans,
    "greedy_variance": with_kernel(inducing.greedy_variance),
    "kdpp": with_kernel(inducing.kdpp),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
rule_of_rows = pytest.mark.parametrize(
    "rule", [r for name, r in RULES.items() if name != "kmeans"]
)
rule_of_kernel = pytest.mark.parametrize(
    "rule", [inducing.greedy_variance, inducing.kdpp]
)


def nystrom_trace(kernel: kernels.Kernel, X: np.ndarray, Z: np.ndarray) -> float:
    """tr(K(X, X) - K(X, Z) K(Z, Z)^-1 K(Z, X)): what Z leaves unexplained."""
    K_xz, K_zz = kernel(X, Z), kernel(Z, Z)
    explained = np.linalg.solve(K_zz + 1e-10 * np.eye(len(Z)), K_xz.T)
    return float(np.trace(kernel(X, X)) - np.sum(K_xz * explained.T))


# All rules ----------------------------------------------------------------------------


@every_rule
def test_points_are_distinct_and_repeat_with_the_seed(rule):
    X = table(80)
    Z = rule(X, 20, seed=3)
    assert isinstance(Z, np.ndarray)
    assert Z.dtype == np.float64
    assert Z.shape == (20, 2)
    assert len(np.unique(Z, axis=0)) == 20
    np.testing.assert_array_equal(Z, rule(X, 20, seed=3))


@pytest.mark.parametrize("name", ["uniform", "kmeans", "kdpp"])
def test_another_seed_gives_other_points(name):
    X = table(80)
    assert not np.array_equal(RULES[name](X, 20, seed=0), RULES[name](X, 20, seed=1))


@rule_of_rows
def test_points_are_rows_of_the_inputs(rule):
    X = table(50)
    rows = {tuple(row) for row in X}
    assert all(tuple(z) in rows for z in rule(X, 12))


@rule_of_rows
def test_all_rows_may_be_asked_for(rule):
    X = table(9)
    np.testing.assert_array_equal(np.unique(rule(X, 9), axis=0), np.unique(X, axis=0))


@every_rule
def test_duplicated_rows_are_picked_once(rule):
    X = np.repeat(table(6), [1, 9, 1, 5, 2, 30], axis=0)
    Z = rule(X, 6)
    np.testing.assert_allclose(
        np.unique(Z, axis=0), np.unique(X, axis=0), rtol=0, atol=1e-12
    )


@every_rule
def test_frames_lists_single_precision_and_vectors_are_accepted(rule):
    X = table(30).astype(np.float32)
    expected = rule(X.astype(float), 5)
    np.testing.assert_array_equal(rule(X, 5), expected)
    np.testing.assert_array_equal(rule(X.tolist(), 5), expected)
    np.testing.assert_array_equal(rule(pd.DataFrame(X), 5), expected)
    np.testing.assert_array_equal(rule(X[:, 0], 5), rule(X[:, :1], 5))


@pytest.mark.user_precision
@every_rule
def test_precision_does_not_depend_on_the_callers(rule):
    X = table(40)
    Z = rule(X, 10)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(rule(X, 10), Z)


@every_rule
def test_inputs_are_not_changed(rule):
    X = table(30)
    X[0] = -0.0
    before = X.copy()
    rule(X, 5)
    assert X.tobytes() == before.tobytes()


@every_rule
@pytest.mark.parametrize("num", [0, -2, 2.5])
def test_number_of_points_must_be_positive_and_whole(rule, num):
    with pytest.raises(ValueError, match=r"num must be a whole number.*got"):
        rule(table(10), num)


@every_rule
def test_more_points_than_distinct_rows_are_refused(rule):
    X = np.repeat(table(4), 3, axis=0)
    with pytest.raises(ValueError, match=r"the 4 distinct rows among the 12.*got 5"):
        rule(X, 5)


@every_rule
def test_strange_inputs_are_refused(rule):
    X = table(10)
    X[3, 1] = np.nan
    X[7, 0] = np.inf
    with pytest.raises(ValueError, match=r"X must be finite; 2 of its 10 rows.*Drop"):
        rule(X, 3)
    with pytest.raises(ValueError, match=r"X must have shape \(N, D\).*\(2, 2, 2\)"):
        rule(np.zeros((2, 2, 2)), 1)
    with pytest.raises(ValueError, match="X must be a table of numbers; got DataFrame"):
        rule(pd.DataFrame({"a": ["red", "blue"]}), 1)


@rule_of_kernel
def test_kernels_that_do_not_fit_are_refused(rule):
    X = table(10)
    wide = kernels.Matern32(lengthscales=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"lengthscales has 3 values .* sees 2 input"):
        rule(X, 3, wide)
    with pytest.raises(ValueError, match=r"kernel must be a steingp kernel.*got str"):
        rule(X, 3, "matern")
    with pytest.raises(ValueError, match=r"kernel must have a finite variance"):
        rule(X, 3, kernels.White())
    with pytest.raises(ValueError, match=r"max_rows must be 1 or more; got 0"):
        rule(X, 3, KERNEL, max_rows=0)


@rule_of_kernel
def test_white_noise_changes_nothing(rule):
    X = table(60)
    Z = rule(X, 15, KERNEL)
    np.testing.assert_array_equal(rule(X, 15, KERNEL + kernels.White(7.0)), Z)


@rule_of_kernel
def test_many_rows_are_thinned_first(rule):
    X = table(400)
    Z = rule(X, 10, KERNEL, seed=1, max_rows=30)
    assert Z.shape == (10, 2)
    np.testing.assert_array_equal(rule(X, 10, KERNEL, seed=1, max_rows=30), Z)
    # fewer than two rows per point would leave no choice: 2 num are looked at
    other = rule(X, 10, KERNEL, seed=1, max_rows=1)
    np.testing.assert_array_equal(rule(X, 10, KERNEL, seed=1, max_rows=20), other)


# Uniform and k-means ------------------------------------------------------------------


def test_uniform_is_uniform_over_rows():
    # The first point is any of 4 rows; the value 5 holds 3 of them, so P = 3/4.
    X = np.array([[5.0], [5.0], [5.0], [1.0]])
    draws = 1000
    share = np.mean(
        [inducing.uniform(X, 1, seed)[0, 0] == 5.0 for seed in range(draws)]
    )
    assert abs(share - 0.75) < 5.0 * np.sqrt(0.75 * 0.25 / draws)


def test_kmeans_finds_separate_clusters():
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    noise = 0.1 * np.random.default_rng(0).normal(size=(3, 50, 2))
    X = (centres[:, None, :] + noise).reshape(-1, 2)
    Z = inducing.kmeans(X, 3)
    means = X.reshape(3, 50, 2).mean(axis=1)
    nearest = np.argmin(np.linalg.norm(Z[:, None] - means[None], axis=-1), axis=0)
    np.testing.assert_allclose(Z[nearest], means, rtol=0, atol=1e-12)


def test_kmeans_in_minibatches(monkeypatch):
    monkeypatch.setattr(inducing, "_MINIBATCH_ABOVE", 100)
    X = np.repeat(table(50), 4, axis=0)
    Z = inducing.kmeans(X, 50, seed=2)
    assert len(np.unique(Z, axis=0)) == 50
    np.testing.assert_array_equal(inducing.kmeans(X, 50, seed=2), Z)


# Greedy conditional variance ----------------------------------------------------------


def pivoted_cholesky(K: np.ndarray, num: int) -> list[int]:
    """Plain: the conditional variance from its definition at every pick."""
    picks: list[int] = []
    for _ in range(num):
        K_pp, K_p = K[np.ix_(picks, picks)], K[picks]
        remaining = np.diag(K) - np.sum(K_p * np.linalg.solve(K_pp, K_p), axis=0)
        remaining[picks] = -np.inf
        picks.append(int(np.argmax(remaining)))
    return picks


@pytest.mark.parametrize(
    "kernel",
    [
        KERNEL,
        KERNEL * kernels.Linear() + kernels.Constant(0.3),
        kernels.Matern12(active_dims=[0]) + kernels.SquaredExponential(active_dims=[1]),
    ],
)
def test_greedy_is_pivoted_cholesky(kernel):
    X = table(120)
    expected = X[pivoted_cholesky(kernel(X, X), 25)]
    np.testing.assert_array_equal(inducing.greedy_variance(X, 25, kernel), expected)


def test_greedy_order():
    # Stationary: the first row by the tie rule, then the farthest one from it; the
    # third is halfway. Linear: the largest |x| alone explains every other row.
    X = np.array([[0.0], [1.0], [5.0], [10.0]])
    k = kernels.SquaredExponential(lengthscales=3.0)
    np.testing.assert_array_equal(
        inducing.greedy_variance(X, 3, k).ravel(), [0.0, 10.0, 5.0]
    )
    assert inducing.greedy_variance(X, 1, kernels.Linear()) == 10.0


def test_greedy_is_nested():
    X = table(70)
    Z = inducing.greedy_variance(X, 20, KERNEL)
    np.testing.assert_array_equal(inducing.greedy_variance(X, 8, KERNEL), Z[:8])


@pytest.mark.parametrize(
    "kernel", [kernels.Matern32(), kernels.SquaredExponential(lengthscales=1.0)]
)
def test_greedy_explains_more_than_uniform(kernel):
    X = table(300)
    greedy = nystrom_trace(kernel, X, inducing.greedy_variance(X, 40, kernel))
    for seed in range(5):
        Z = inducing.uniform(X, 40, seed)
        assert greedy < 0.9 * nystrom_trace(kernel, X, Z)


def test_greedy_fills_up_when_nothing_is_left_to_explain():
    # Linear in two columns has rank 2: the third point and later ones are at random.
    X = table(30)
    Z = inducing.greedy_variance(X, 10, kernels.Linear(), seed=0)
    other = inducing.greedy_variance(X, 10, kernels.Linear(), seed=1)
    np.testing.assert_array_equal(Z[:2], other[:2])
    assert not np.array_equal(Z[2:], other[2:])
    assert len(np.unique(Z, axis=0)) == 10


# k-DPP --------------------------------------------------------------------------------


def elementary_symmetric(values: np.ndarray, num: int) -> float:
    return sum(float(np.prod(c)) for c in itertools.combinations(values, num))


def test_log_elementary_symmetric_polynomials():
    values = np.random.default_rng(0).gamma(0.5, size=9)
    log_table = inducing._log_elementary_symmetric(np.log(values), 5)
    for m, l in itertools.product(range(10), range(6)):
        expected = elementary_symmetric(values[:m], l)
        np.testing.assert_allclose(np.exp(log_table[m, l]), expected, rtol=1e-12)


def test_log_elementary_symmetric_polynomials_do_not_overflow():
    # n equal values v: e_l = binomial(n, l) v^l; here log e_300 is about 7325
    n, l, log_value = 1000, 300, 20.0
    log_table = inducing._log_elementary_symmetric(np.full(n, log_value), l)
    i = np.arange(1, l + 1)
    expected = np.sum(np.log(n - l + i) - np.log(i)) + l * log_value
    np.testing.assert_allclose(log_table[n, l], expected, rtol=1e-12)


@pytest.mark.parametrize("num", [1, 2, 3, 5])
def test_kdpp_draws_sets_with_their_probabilities(num):
    X = np.array([[0.0], [0.3], [0.5], [1.5], [1.6]])
    K = kernels.Matern32(lengthscales=1.0)(X, X) * np.outer(*2 * [[1, 2, 1, 1, 0.5]])
    eigenvalues, eigenvectors = np.linalg.eigh(K)
    log_table = inducing._log_elementary_symmetric(np.log(eigenvalues), num)
    rng = np.random.default_rng(num)
    draws = 4_000
    counts = dict.fromkeys(itertools.combinations(range(5), num), 0)
    for _ in range(draws):
        picks = inducing._draw_kdpp(rng, np.log(eigenvalues), eigenvectors, log_table)
        counts[tuple(sorted(picks.tolist()))] += 1
    total = elementary_symmetric(eigenvalues, num)
    for subset, count in counts.items():
        p = np.linalg.det(K[np.ix_(subset, subset)]) / total
        error = np.sqrt(max(p * (1.0 - p), 0.0) / draws)
        assert abs(count / draws - p) <= 5.0 * error + 1e-12, subset


def test_kdpp_itself_draws_sets_with_their_probabilities():
    X = np.array([[0.0], [0.3], [2.0]])
    K = KERNEL(X, X)
    pairs = [(0, 1), (0, 2), (1, 2)]
    dets = np.array([np.linalg.det(K[np.ix_(s, s)]) for s in pairs])
    draws = 300
    counts = np.zeros(3)
    for seed in range(draws):
        Z = inducing.kdpp(X, 2, KERNEL, seed)
        counts[pairs.index(tuple(np.flatnonzero(np.isin(X, Z)).tolist()))] += 1
    p = dets / np.sum(dets)
    assert np.all(np.abs(counts / draws - p) < 5.0 * np.sqrt(p * (1.0 - p) / draws))


def test_kdpp_spreads_more_than_uniform():
    X = table(200)
    log_dets = [
        np.mean([np.linalg.slogdet(KERNEL(Z, Z))[1] for Z in chosen])
        for chosen in (
            [inducing.kdpp(X, 20, KERNEL, seed) for seed in range(5)],
            [inducing.uniform(X, 20, seed) for seed in range(5)],
        )
    ]
    assert log_dets[0] > log_dets[1] + 5.0


def test_kdpp_beyond_the_rank_of_the_kernel():
    # Linear in two columns has rank 2; the jitter provides for the other points.
    X = table(40)
    Z = inducing.kdpp(X, 12, kernels.Linear())
    assert len(np.unique(Z, axis=0)) == 12
    with pytest.raises(ValueError, match=r"jitter must be positive.*got 0"):
        inducing.kdpp(X, 12, kernels.Linear(), jitter=0.0)


def test_projection_basis_stays_orthogonal_in_a_hard_case():
    # 60 points of a projection on 60 smooth functions: every subset drawn must keep a
    # determinant that is not round-off, since P(S) = det(V_S)^2.
    x = np.linspace(-1.0, 1.0, 400)
    V, _ = np.linalg.qr(np.polynomial.chebyshev.chebvander(x, 59))
    picks = inducing._draw_projection_dpp(np.random.default_rng(0), V)
    assert len(set(picks.tolist())) == 60
    assert np.isfinite(np.linalg.slogdet(V[picks])[1])
    assert np.linalg.cond(V[picks]) < 1e6

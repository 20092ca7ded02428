"""Linear algebra: values, derivatives of both orders, jitter per matrix."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import stats

from steingp import linalg
from steingp.linalg import inverses


def covariance(size: int = 4, seed: int = 0) -> jax.Array:
    """A well conditioned covariance matrix."""
    A = np.random.default_rng(seed).normal(size=(size, size))
    return jnp.asarray(A @ A.T / size + np.eye(size))


def residual(size: int = 4) -> jax.Array:
    return jnp.asarray(np.random.default_rng(4).normal(size=size))


# --- Distances ------------------------------------------------------------------------


def test_distances_are_those_of_a_double_loop() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    expected = np.array([[np.sqrt(np.sum((x - y) ** 2)) for y in Y] for x in X])
    np.testing.assert_allclose(linalg.distances(X, Y), expected, rtol=1e-14)
    np.testing.assert_allclose(
        linalg.squared_distances(X, Y), expected**2, rtol=1e-12, atol=1e-14
    )
    scales = np.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(
        linalg.distances(X, Y, scales),
        linalg.distances(X / scales, Y / scales),
        rtol=1e-13,
    )


def test_squared_distances_do_not_suffer_from_a_common_offset() -> None:
    # x + 1e6 is rounded to 1e-10; the matrix product adds no more, since inputs are
    # centred: uncentred, |x|^2 = 1e12 would leave an error of 1e-4
    X = np.random.default_rng(1).normal(size=(20, 2)) + 1e6
    expected = np.sum((X[:, None] - X[None]) ** 2, axis=-1)
    r2 = np.asarray(linalg.squared_distances(X, X))
    np.testing.assert_allclose(r2, expected, atol=1e-8)
    assert np.all(r2 >= 0.0)
    centred = X - X.mean(axis=0)
    error = np.abs(r2 - expected).max()
    assert error < 1e-14 * np.max(np.sum(centred**2, axis=1)) * 10


@pytest.mark.parametrize("distance", [linalg.distances, linalg.squared_distances])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_at_zero_distance_are_zero(
    distance: Callable, compiled: bool
) -> None:
    X = jnp.asarray(np.random.default_rng(2).normal(size=(4, 3)))

    def trace(X: jax.Array) -> jax.Array:
        return jnp.trace(distance(X, X))

    slope = (jax.jit if compiled else lambda f: f)(jax.grad(trace))(X)
    np.testing.assert_allclose(slope, np.zeros((4, 3)), atol=1e-14)


def test_compiled_gradients_by_lengthscales_and_inputs_agree_with_eager_ones() -> None:
    # jit may round x / l in two ways; distances of a point to itself must stay zero
    rng = np.random.default_rng(3)
    X, weights = jnp.asarray(rng.normal(size=(7, 2))), rng.normal(size=(7, 7))

    def rough(lengthscales: jax.Array, X: jax.Array) -> jax.Array:
        return jnp.sum(weights * jnp.exp(-linalg.distances(X, X, lengthscales)))

    slopes = jax.grad(rough, (0, 1))
    scales = jnp.array(0.8)
    for eager, compiled in zip(
        slopes(scales, X), jax.jit(slopes)(scales, X), strict=True
    ):
        np.testing.assert_allclose(compiled, eager, rtol=1e-12, atol=1e-13)


def test_safe_sqrt() -> None:
    np.testing.assert_array_equal(linalg.safe_sqrt(jnp.array([0.0, 4.0])), [0.0, 2.0])
    slope = jax.vmap(jax.grad(linalg.safe_sqrt))(jnp.array([0.0, 4.0]))
    np.testing.assert_array_equal(slope, [0.0, 0.25])  # 1 / (2 sqrt 4)


# --- Cholesky -------------------------------------------------------------------------


def test_cholesky_is_that_of_numpy_with_the_jitter() -> None:
    K = covariance()
    expected = np.linalg.cholesky(K + 1e-6 * np.eye(4))
    np.testing.assert_allclose(linalg.cholesky(K), expected, rtol=1e-13, atol=1e-14)
    expected = np.linalg.cholesky(K + 0.5 * np.eye(4))
    np.testing.assert_allclose(
        linalg.cholesky(K, 0.5), expected, rtol=1e-13, atol=1e-14
    )


def smooth_of_factor(K: jax.Array) -> jax.Array:
    """A function that sees every entry of L, and not symmetrically."""
    L = linalg.cholesky(0.5 * (K + K.T), 0.0)
    return jnp.sum(jnp.sin(L) * jnp.arange(L.size, dtype=L.dtype).reshape(L.shape))


def test_cholesky_derivatives_of_first_and_second_order() -> None:
    check_grads(jax.jit(smooth_of_factor), (covariance(),), order=2, rtol=1e-5)


def test_cholesky_slope_by_central_differences() -> None:
    K, dK, step = covariance(), covariance(4, seed=1), 1e-6
    up, down = (np.linalg.cholesky(K + s * step * dK) for s in (1.0, -1.0))
    _, dL = jax.jvp(lambda K: linalg.cholesky(K, 0.0), (K,), (dK,))
    np.testing.assert_allclose(dL, (up - down) / (2.0 * step), rtol=1e-7, atol=1e-8)


def test_cholesky_hessian_agrees_with_jaxs_own() -> None:
    def with_jax(K: jax.Array) -> jax.Array:
        L = jnp.linalg.cholesky(0.5 * (K + K.T))
        return jnp.sum(jnp.sin(L) * jnp.arange(L.size, dtype=L.dtype).reshape(L.shape))

    K = covariance(3)
    expected = jax.jit(jax.hessian(with_jax))(K)
    hessian = jax.jit(jax.hessian(smooth_of_factor))(K)
    np.testing.assert_allclose(hessian, expected, atol=1e-9)
    reverse_only = jax.jit(jax.jacrev(jax.jacrev(smooth_of_factor)))(K)
    np.testing.assert_allclose(reverse_only, expected, atol=1e-9)


def small_blocks(backend: str, monkeypatch: pytest.MonkeyPatch, leaf: int = 8) -> None:
    """The path of a backend, with blocks so small that there are some."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(inverses, "CPU_LEAF", leaf)
    monkeypatch.setattr(inverses, "GPU_LEAF", leaf)
    monkeypatch.setattr(inverses, "GPU_TRIANGLE", max(1, leaf // 4))


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_whitening_is_through_the_factor_in_value_and_derivatives(
    shape: tuple, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(backend, monkeypatch, leaf=2)

    def through_factor(K: jax.Array, B: jax.Array) -> jax.Array:
        return linalg.solve_lower(linalg.cholesky(K, 0.1), B)

    def whiten(K: jax.Array, B: jax.Array) -> jax.Array:
        return linalg.whiten(K, B, 0.1)

    agree_in_value_and_derivatives(whiten, through_factor, shape)


def test_colouring_is_through_the_factor_in_value_and_derivatives() -> None:
    def through_factor(K: jax.Array, v: jax.Array) -> jax.Array:
        return linalg.cholesky(K, 0.1) @ v

    def colour(K: jax.Array, v: jax.Array) -> jax.Array:
        return linalg.colour(K, v, 0.1)

    agree_in_value_and_derivatives(colour, through_factor, (5,))


def agree_in_value_and_derivatives(
    fast: Callable, plain: Callable, shape: tuple
) -> None:
    """Two functions of a covariance and an array of that shape."""
    K, B = covariance(5), jnp.asarray(np.random.default_rng(1).normal(size=shape))
    np.testing.assert_allclose(fast(K, B), plain(K, B), rtol=1e-13)

    def of_root(root: jax.Array, B: jax.Array) -> jax.Array:
        return fast(root @ root.T, B)

    check_grads(of_root, (K, B), order=2, modes=("fwd", "rev"), rtol=1e-6)
    weights = jnp.arange(1.0, 1.0 + B.size).reshape(B.shape)
    ours, theirs = (
        jax.grad(lambda K, B, f=f: jnp.sum(weights * jnp.sin(f(K, B))), argnums=(0, 1))(
            K, B
        )
        for f in (fast, plain)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


def test_each_matrix_of_a_batch_gets_its_own_jitter() -> None:
    # the second has an eigenvalue of -3e-8, so that of 1e-8, 1e-7, ... of its diagonal
    # it needs the second, on top of the jitter
    singular = jnp.ones((5, 5)) - 3e-8 * jnp.eye(5)
    batch = jnp.stack([covariance(5, 1), singular, covariance(5, 2)])
    L = jax.jit(jax.vmap(lambda K: linalg.cholesky(K, 1e-12)))(batch)
    for healthy in (0, 2):
        alone = jax.jit(lambda K: linalg.cholesky(K, 1e-12))(batch[healthy])
        np.testing.assert_array_equal(L[healthy], alone)
    assert np.all(np.isfinite(L[1]))
    added = np.asarray(L[1] @ L[1].T) - singular
    np.testing.assert_allclose(added, added[0, 0] * np.eye(5), atol=1e-14)
    np.testing.assert_allclose(added[0, 0], 1e-12 + 1e-7, rtol=1e-6)


def test_a_rescued_matrix_has_finite_gradients() -> None:
    singular = jnp.ones((4, 4)) - 1e-7 * jnp.eye(4)
    slope = jax.grad(lambda K: jnp.sum(linalg.cholesky(K, 0.0)))(singular)
    assert np.all(np.isfinite(slope))


def test_a_matrix_beyond_help_is_nan_and_spares_its_neighbours() -> None:
    indefinite = jnp.diag(jnp.array([1.0, -1.0, 1.0]))
    assert np.all(np.isnan(np.asarray(linalg.cholesky(indefinite))[np.tril_indices(3)]))
    healthy = covariance(3)
    L = jax.vmap(linalg.cholesky)(jnp.stack([indefinite, healthy]))
    assert np.isnan(L[0, -1, -1])
    np.testing.assert_array_equal(L[1], linalg.cholesky(healthy))
    with_nan = jnp.full((3, 3), jnp.nan)
    assert np.isnan(linalg.cholesky(with_nan)[-1, -1])


# --- Triangular inverse ---------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 16, 17, 31])
def test_inverse_lower_around_the_leaf(size: int) -> None:
    L = np.linalg.cholesky(covariance(size))
    inverse = linalg.inverse_lower(jnp.asarray(L), leaf=8)
    np.testing.assert_allclose(inverse, np.linalg.inv(L), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(np.triu(inverse, 1), np.zeros((size, size)))


@pytest.mark.parametrize("size", [128, 129])
def test_inverse_lower_around_the_default_leaf(size: int) -> None:
    L = np.linalg.cholesky(covariance(size))
    inverse = linalg.inverse_lower(jnp.asarray(L))
    np.testing.assert_allclose(inverse, np.linalg.inv(L), atol=1e-11)


@pytest.mark.parametrize("size", [1, 4, 5, 8, 9, 16, 17, 31])
def test_inverse_by_pairs_around_the_parts(size: int) -> None:
    L = np.linalg.cholesky(covariance(size))
    three = jnp.stack([jnp.asarray(L), jnp.eye(size), jnp.full((size, size), jnp.nan)])
    found = jax.vmap(lambda L: inverses.inverse_by_pairs(L, 4))(three)
    np.testing.assert_allclose(found[0], np.linalg.inv(L), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(np.triu(found[0], 1), np.zeros((size, size)))
    np.testing.assert_array_equal(found[1], np.eye(size))
    assert np.isnan(found[2][-1, -1])


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17, 31])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_solve_and_invert_around_the_leaf(
    size: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    K, r = covariance(size), np.linspace(-1.0, 1.0, size)
    small_blocks(backend, monkeypatch)
    found = linalg.solve_and_invert(jnp.asarray(K), jnp.asarray(r), 0.0)
    L, inverse = np.linalg.cholesky(K), np.linalg.inv(K)
    np.testing.assert_allclose(found.diagonal, np.diagonal(L), rtol=1e-9)
    np.testing.assert_allclose(found.inverse, inverse, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.inverse, found.inverse.T, atol=1e-9)
    np.testing.assert_allclose(found.white, np.linalg.solve(L, r), atol=1e-9)
    np.testing.assert_allclose(found.pull, inverse @ r, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_solve_and_invert_adds_jitter_where_it_must(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(backend, monkeypatch)
    three = jnp.stack([jnp.ones((20, 20)), jnp.eye(20), 2.0 * jnp.ones((20, 20))])
    r = jnp.ones(20)
    found = jax.vmap(lambda K: linalg.solve_and_invert(K, r, 0.0))(three)
    assert all(np.all(np.isfinite(part)) for part in found)
    np.testing.assert_array_equal(found.diagonal[1], np.ones(20))
    np.testing.assert_array_equal(found.inverse[1], np.eye(20))
    for i in (0, 2):
        inverse = found.inverse[i]  # (I - a 1 1') / extra for some a
        extra = 1.0 / float(inverse[0, 0] - inverse[0, 1])
        assert 0.0 < extra < 1e-3
        alone = linalg.solve_and_invert(three[i], r, 0.0)
        np.testing.assert_allclose(found.diagonal[i], alone.diagonal, rtol=1e-12)
        np.testing.assert_allclose(inverse, alone.inverse, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17, 31, 90])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_factor_and_whiten_around_the_leaf(
    size: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    K, v = covariance(size), np.linspace(-1.0, 1.0, size)
    small_blocks(backend, monkeypatch)
    found = linalg.factor_and_whiten(jnp.asarray(K), jnp.asarray(v), 0.0)
    L = np.linalg.cholesky(K)
    np.testing.assert_allclose(found[0], np.diagonal(L), rtol=1e-9)
    np.testing.assert_allclose(found[1], np.linalg.solve(L, v), atol=1e-9)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_factor_and_whiten_adds_jitter_where_it_must(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(backend, monkeypatch)
    three = jnp.stack([jnp.ones((20, 20)), jnp.eye(20), 2.0 * jnp.ones((20, 20))])
    v = jnp.linspace(1.0, 2.0, 20)
    diagonal, white = jax.vmap(lambda K: linalg.factor_and_whiten(K, v, 0.0))(three)
    np.testing.assert_array_equal(diagonal[1], np.ones(20))
    np.testing.assert_array_equal(white[1], v)
    for i in (0, 2):
        L = linalg.cholesky(three[i], 0.0)
        np.testing.assert_allclose(diagonal[i], np.diagonal(L), rtol=1e-12)
        np.testing.assert_allclose(white[i], linalg.solve_lower(L, v), rtol=1e-9)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("size", [1, 8, 9, 31, 90])
def test_the_inverse_of_a_factor(
    size: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(backend, monkeypatch)
    W = linalg.inverse_factor(jnp.asarray(covariance(size)))
    expected = np.linalg.inv(np.linalg.cholesky(covariance(size)))
    np.testing.assert_allclose(W, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_the_normaliser_of_a_gaussian_by_its_definition_and_derivatives(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(backend, monkeypatch)
    # in one dimension, by quadrature
    v, step = np.linspace(-12.0, 12.0, 20_001, retstep=True)
    b, p = 0.7, 1.9
    inside = np.exp(-0.5 * v**2 + b * v - 0.5 * (p - 1.0) * v**2)
    expected = np.log(inside.sum() * step / np.sqrt(2.0 * np.pi))
    one = linalg.log_normaliser(jnp.array([b]), jnp.array([[p]]))
    np.testing.assert_allclose(one, expected, rtol=1e-12)

    root = jnp.asarray(np.random.default_rng(0).normal(size=(12, 12)))

    def of_root(b: jax.Array, root: jax.Array) -> jax.Array:
        return linalg.log_normaliser(b, root @ root.T + jnp.eye(12))

    check_grads(of_root, (root[0], root), order=2, modes=("fwd", "rev"), rtol=1e-6)
    P = np.asarray(root @ root.T + np.eye(12))
    exact = 0.5 * root[0] @ np.linalg.solve(P, root[0]) - 0.5 * np.linalg.slogdet(P)[1]
    np.testing.assert_allclose(of_root(root[0], root), exact, rtol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_derivatives_are_the_same_on_both_paths(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(backend, monkeypatch)
    X, r = jnp.linspace(-2.0, 2.0, 19)[:, None], jnp.sin(jnp.linspace(0.0, 5.0, 19))

    def density(z: jax.Array) -> jax.Array:
        K = jnp.exp(-0.5 * linalg.squared_distances(X, X) / jnp.exp(z[0]))
        return linalg.gaussian_log_density(r, linalg.add_diagonal(K, jnp.exp(z[1])))

    def plain(z: jax.Array) -> jax.Array:
        K = jnp.exp(-0.5 * linalg.squared_distances(X, X) / jnp.exp(z[0]))
        K = linalg.add_diagonal(K, jnp.exp(z[1]) + linalg.DEFAULT_JITTER)
        return plain_log_density(r, K)

    z = jnp.array([[0.3, -1.0], [-0.5, 0.2]])
    for derivative in (jax.grad, jax.hessian):
        np.testing.assert_allclose(
            jax.vmap(derivative(density))(z), jax.vmap(derivative(plain))(z), rtol=1e-7
        )


# --- Gaussian log density -------------------------------------------------------------


def plain_log_density(residual: jax.Array, K: jax.Array) -> jax.Array:
    """-1/2 r' K^-1 r - 1/2 log det K - N/2 log 2 pi, left to autodiff."""
    K = 0.5 * (K + K.T)
    _, log_det = jnp.linalg.slogdet(K)
    quadratic = residual @ jnp.linalg.solve(K, residual)
    return -0.5 * (quadratic + log_det + len(residual) * jnp.log(2.0 * jnp.pi))


def log_density(residual: jax.Array, K: jax.Array) -> jax.Array:
    return linalg.gaussian_log_density(residual, 0.5 * (K + K.T), 0.0)


def test_log_density_is_that_of_scipy() -> None:
    K = covariance()
    expected = stats.multivariate_normal(np.zeros(4), K + 1e-6 * np.eye(4))
    np.testing.assert_allclose(
        linalg.gaussian_log_density(residual(), K),
        expected.logpdf(residual()),
        rtol=1e-12,
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_log_density_gradient_is_that_of_the_plain_formula(compiled: bool) -> None:
    compile_or_not = jax.jit if compiled else lambda f: f
    K = covariance()
    ours = compile_or_not(jax.grad(log_density, (0, 1)))(residual(), K)
    plain = jax.grad(plain_log_density, (0, 1))(residual(), K)
    for slope, expected in zip(ours, plain, strict=True):
        np.testing.assert_allclose(slope, expected, rtol=1e-10, atol=1e-12)


def test_log_density_gradient_above_the_leaf_size() -> None:
    r, K = residual(150), covariance(150)
    slope = jax.jit(jax.grad(log_density, 1))(r, K)
    expected = jax.jit(jax.grad(plain_log_density, 1))(r, K)
    np.testing.assert_allclose(slope, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "second",
    [
        jax.hessian,
        lambda f, a: jax.jacfwd(jax.jacrev(f, a), a),
        lambda f, a: jax.jacrev(jax.jacrev(f, a), a),
    ],
    ids=["hessian", "forward-reverse", "reverse-reverse"],
)
def test_log_density_has_second_derivatives(second: Callable) -> None:
    K = covariance()
    ours = jax.jit(second(log_density, (0, 1)))(residual(), K)
    plain = jax.jit(jax.hessian(plain_log_density, (0, 1)))(residual(), K)
    for row, expected_row in zip(ours, plain, strict=True):
        for block, expected in zip(row, expected_row, strict=True):
            np.testing.assert_allclose(block, expected, rtol=1e-8, atol=1e-10)


def test_log_density_of_a_batch_with_a_failing_matrix() -> None:
    batch = jnp.stack([covariance(), -jnp.eye(4)])
    values = jax.vmap(linalg.gaussian_log_density, (None, 0))(residual(), batch)
    alone = linalg.gaussian_log_density(residual(), batch[0])
    np.testing.assert_allclose(values[0], alone, rtol=1e-14)
    assert np.isnan(values[1])


# --- Sampling -------------------------------------------------------------------------


def test_samples_have_the_mean_and_covariance_asked_for() -> None:
    # 20000 draws: a mean's standard error is sqrt(K_ii / 20000) < 0.015, a covariance's
    # sqrt((K_ii K_jj + K_ij^2) / 20000) < 0.04; 5 of them leave room
    K, mean = covariance(3), jnp.array([1.0, -2.0, 0.5])
    draws = linalg.mvn_sample(jax.random.key(0), mean, jnp.asarray(K), 20_000)
    assert draws.shape == (20_000, 3)
    np.testing.assert_allclose(np.mean(draws, axis=0), mean, atol=0.08)
    np.testing.assert_allclose(np.cov(draws.T), K, atol=0.2)


def test_samples_of_a_singular_covariance() -> None:
    # rank one: all coordinates of a draw are equal, but for jitter of root 1e-10
    draws = linalg.mvn_sample(jax.random.key(1), jnp.zeros(3), jnp.ones((3, 3)), 50)
    assert np.all(np.isfinite(draws))
    np.testing.assert_allclose(draws, np.repeat(draws[:, :1], 3, axis=1), atol=1e-3)


def test_add_diagonal() -> None:
    K = jnp.zeros((2, 2))
    np.testing.assert_array_equal(linalg.add_diagonal(K, 2.0), 2.0 * np.eye(2))
    np.testing.assert_array_equal(
        linalg.add_diagonal(K, jnp.array([1.0, 3.0])), np.diag([1.0, 3.0])
    )

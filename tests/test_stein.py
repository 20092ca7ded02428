"""Stein kernels, bandwidths, phi, and the discrepancy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingp import stein
from steingp.stein import SteinKernel, Terms, plain_terms

KERNELS = [
    stein.RBF(),
    stein.RBF(bandwidth=stein.Constant(0.7)),
    stein.IMQ(),
    stein.IMQ(c=2.0, beta=-1.5),
    stein.Matern(nu=1.5),
    stein.Matern(nu=2.5),
    stein.RandomFourier(num_features=50),
]


class Bilinear(SteinKernel):
    """x'y + 1, under which SVGD keeps a Gaussian Gaussian (Liu and Wang 2018)."""

    bandwidth: stein.Bandwidth = stein.Constant(1.0)

    def pair(self, x: jax.Array, y: jax.Array, h: jax.Array) -> jax.Array:
        return x @ y + 1.0

    def terms(self, particles: jax.Array, scores: jax.Array, h: jax.Array) -> Terms:
        return plain_terms(self, particles, scores, h)


def draws(seed: int, J: int = 7, d: int = 3) -> tuple[jax.Array, jax.Array]:
    a, b = jax.random.split(jax.random.key(seed))
    return jax.random.normal(a, (J, d)), jax.random.normal(b, (J, d))


@pytest.mark.parametrize("kappa", KERNELS, ids=lambda k: type(k).__name__)
def test_fast_terms_are_equation_5(kappa: SteinKernel) -> None:
    particles, scores = draws(0)
    h = kappa.bandwidth(particles, jnp.asarray(0))
    fast, plain = (
        kappa.terms(particles, scores, h),
        plain_terms(kappa, particles, scores, h),
    )
    np.testing.assert_allclose(fast.attraction, plain.attraction, atol=1e-13)
    np.testing.assert_allclose(fast.repulsion, plain.repulsion, atol=1e-13)


@pytest.mark.parametrize("kappa", KERNELS[:-1], ids=lambda k: type(k).__name__)
def test_repulsion_has_the_papers_sign(kappa: SteinKernel) -> None:
    # two particles, zero score: each is pushed straight away from the other
    particles = jnp.array([[0.0, 0.0], [1.0, 0.5]])
    phi = stein.phi(kappa, particles, jnp.zeros((2, 2)))
    away = particles[1] - particles[0]
    assert phi[1] @ away > 0 and phi[0] @ away < 0
    np.testing.assert_allclose(phi[0], -phi[1], atol=1e-15)


def test_rbf_repulsion_by_hand() -> None:
    # x = 0, 1; h = 1/log 3 (median of one distance 1); grad_{x_1} kappa(x_1, x_2) =
    # -2/h (x_1 - x_2) kappa = 2 log 3 * 3^-1, and phi(x_2) halves it (J = 2)
    phi = stein.phi(stein.RBF(), jnp.array([[0.0], [1.0]]), jnp.zeros((2, 1)))
    np.testing.assert_allclose(phi[1, 0], np.log(3.0) / 3.0, rtol=1e-14)


def test_zero_score_spreads_particles() -> None:
    particles, _ = draws(1, J=30)
    moved = particles
    for _ in range(20):
        moved = moved + 0.1 * stein.phi(stein.RBF(), moved, jnp.zeros_like(moved))
    assert moved.var() > particles.var()


def test_one_particle_follows_its_score() -> None:
    particles, scores = draws(2, J=1)
    for kappa in (stein.RBF(), stein.Matern(), stein.IMQ()):
        np.testing.assert_allclose(stein.phi(kappa, particles, scores), scores)


def test_median_by_hand_and_without_gradient() -> None:
    x = jnp.array([[0.0], [1.0], [3.0]])
    h = stein.Median()(x, jnp.asarray(0))
    np.testing.assert_allclose(h, 4.0 / np.log(4.0))
    gradient = jax.grad(lambda x: stein.Median()(x, jnp.asarray(0)))(x)
    np.testing.assert_array_equal(gradient, np.zeros((3, 1)))


def test_cyclical_falls_back_on_the_median() -> None:
    x, _ = draws(3)
    rule = stein.Cyclical(low=0.1, high=0.3, period=10, start=5)
    median = stein.Median()(x, jnp.asarray(0))
    np.testing.assert_allclose(rule(x, jnp.asarray(4)), median)
    wave = [float(rule(x, jnp.asarray(t))) for t in range(5, 16)]
    np.testing.assert_allclose(wave[0], 0.1)
    np.testing.assert_allclose(wave[5], 0.3)
    np.testing.assert_allclose(wave[10], 0.1, atol=1e-12)
    assert np.all(np.diff(wave[:6]) > 0) and np.all(np.diff(wave[5:]) < 0)


def test_random_features_approach_the_rbf() -> None:
    # each of R features has variance below 1/2 ... 3/2 about the mean: sd 1.3/sqrt(R)
    particles, _ = draws(4)
    h = jnp.asarray(2.0)
    rough = stein.RandomFourier(num_features=40_000)
    gap = rough.pair(particles[0], particles[1], h) - stein.RBF().pair(
        particles[0], particles[1], h
    )
    assert abs(gap) < 5 * 1.3 / np.sqrt(40_000)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: stein.IMQ(beta=0.5), "beta"),
        (lambda: stein.IMQ(c=0.0), "c="),
        (lambda: stein.Matern(nu=0.5), "1.5 or 2.5"),
        (lambda: stein.Constant(0.0), "must be positive"),
        (lambda: stein.Cyclical(2.0, 1.0), "low <= high"),
        (lambda: stein.RandomFourier(num_features=0), "num_features"),
    ],
)
def test_bad_settings_are_refused(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def gaussian_kl(mean: np.ndarray, covariance: np.ndarray) -> float:
    """KL(N(mean, covariance) || N(0, I))."""
    d = len(mean)
    log_det = np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(covariance) + mean @ mean - d - log_det)


def bilinear_map(mean: np.ndarray, covariance: np.ndarray) -> tuple:
    """phi(x) = B x + b of N(mean, covariance) against N(0, I) under x'y + 1.

    E[(x'y + 1)(-x) + y] over x gives phi(y) = (I - S) y - mean with S = E[x x'].
    """
    second = covariance + np.outer(mean, mean)
    return np.eye(len(mean)) - second, -mean


def test_theorem_1_under_the_bilinear_kernel() -> None:
    # phi is affine, so a Gaussian stays Gaussian and its KL is known exactly: it falls
    # at every small step
    mean, covariance = np.array([2.0, -1.0]), np.array([[2.0, 0.7], [0.7, 0.5]])
    divergence = gaussian_kl(mean, covariance)
    for _ in range(200):
        B, b = bilinear_map(mean, covariance)
        A = np.eye(2) + 0.02 * B
        mean, covariance = A @ mean + 0.02 * b, A @ covariance @ A.T
        new = gaussian_kl(mean, covariance)
        assert new < divergence
        divergence = new
    assert divergence < 1e-2


def test_phi_is_the_affine_map_and_ksd_its_rate() -> None:
    # with very many particles phi matches the population map; and dKL/d eps = -KSD^2.
    # For phi(x) = B x + b against N(0, I): dKL/d eps = -E[trace of the Stein operator]
    # = E[x'phi] - tr B
    rng = np.random.default_rng(0)
    mean, covariance = np.array([0.5, -0.3]), np.array([[1.5, 0.4], [0.4, 0.8]])
    particles = jnp.asarray(rng.multivariate_normal(mean, covariance, size=300))
    m = np.mean(particles, axis=0)
    S = np.cov(np.asarray(particles).T, bias=True)  # the particles' own moments
    B, b = bilinear_map(m, S)
    phi = stein.phi(Bilinear(), particles, -particles)
    np.testing.assert_allclose(phi, particles @ B.T + b[None, :], atol=1e-10)
    rate = np.mean(np.sum(np.asarray(particles) * np.asarray(phi), axis=1)) - np.trace(
        B
    )
    ksd2 = stein.squared_ksd(Bilinear(), particles, -particles, jnp.asarray(1.0))
    np.testing.assert_allclose(-rate, ksd2, rtol=1e-9)


@pytest.mark.parametrize("kappa", KERNELS[:-1], ids=lambda k: type(k).__name__)
def test_ksd_of_one_particle_by_hand(kappa: SteinKernel) -> None:
    # u(x, x) = g(0) |s|^2 + 0 - 2 d / h g'(0)
    x, s, h = jnp.array([[0.3, -1.0]]), jnp.array([[2.0, 1.0]]), jnp.asarray(0.7)
    assert isinstance(kappa, stein.Radial)
    zero = jnp.zeros(())
    expected = 5.0 * kappa.profile(zero) - 2.0 * 2 / h * kappa.slope(zero)
    np.testing.assert_allclose(stein.squared_ksd(kappa, x, s, h), expected, rtol=1e-12)


def test_ksd_tells_a_good_sample_from_a_narrow_one() -> None:
    x, _ = draws(5, J=200, d=2)
    h = jnp.asarray(1.0)
    good = stein.squared_ksd(stein.IMQ(), x, -x, h)
    narrow = stein.squared_ksd(stein.IMQ(), 0.5 * x, -0.5 * x, h)
    assert good < 0.5 * narrow


def test_permuting_particles_permutes_phi() -> None:
    particles, scores = draws(6, J=9)
    order = np.random.default_rng(0).permutation(9)
    straight = stein.phi(stein.RBF(), particles, scores)[order]
    permuted = stein.phi(stein.RBF(), particles[order], scores[order])
    np.testing.assert_allclose(straight, permuted, atol=1e-12)

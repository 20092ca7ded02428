"""Gaussians by their covariance: white coordinates, log densities, draws.

Derivatives that are written by hand are `custom_jvp` rules made of differentiable parts,
so forward mode, reverse mode and curvature all work.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.linalg.factors import (
    DEFAULT_JITTER,
    cholesky,
    half_tangent,
    lower_half,
    solve_lower,
)
from steingp.linalg.inverses import (
    blocks_with_retries,
    factor_and_whiten,
    solve_and_invert,
)

_LOG_2PI = float(np.log(2.0 * np.pi))


def whiten(
    K: Float[Array, "N N"],
    B: Float[Array, "N ..."],
    jitter: float | Float[Array, ""] = DEFAULT_JITTER,
) -> Float[Array, "N ..."]:
    """L^-1 B with L = `cholesky`(K, jitter).

    d(L^-1 B) = L^-1 dB - Phi(L^-1 dK L^-T) L^-1 B. Backwards that is a product of N x N
    matrices less than through the factor.
    """
    return _whiten(K, B, jnp.asarray(jitter, K.dtype))


@jax.custom_jvp
def _whiten(K: Array, B: Array, jitter: Array) -> Array:
    return _white_parts(K, jitter)[0](B)


@_whiten.defjvp
def _whiten_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    K, B, jitter = primals
    dK, dB, _ = tangents
    white, both_sides = _white_parts(K, jitter)
    A = white(B)
    return A, white(dB) - lower_half(both_sides(0.5 * (dK + dK.T))) @ A


def _white_parts(K: Array, jitter: Array) -> tuple[Callable, Callable]:
    """L^-1 B of any B, and L^-1 S L^-T of a symmetric S.

    On a GPU by L^-1, since a product there takes a fraction of a triangular solve.
    """
    if jax.default_backend() == "cpu":
        L = cholesky(K, jitter)

        def both_sides(S: Array) -> Array:
            return solve_lower(L, solve_lower(L, S).T)

        return lambda B: solve_lower(L, B), both_sides
    _, W = blocks_with_retries(K, jitter)
    return lambda B: W @ B, lambda S: W @ S @ W.T


def colour(
    K: Float[Array, "N N"],
    v: Float[Array, " N"],
    jitter: float | Float[Array, ""] = DEFAULT_JITTER,
) -> Float[Array, " N"]:
    """L v with L = `cholesky`(K, jitter).

    d(L v) = L (Phi(L^-1 dK L^-T) v + dv). Backwards that is a product of N x N matrices
    less than through the factor.
    """
    return _colour(K, v, jnp.asarray(jitter, K.dtype))


@jax.custom_jvp
def _colour(K: Array, v: Array, jitter: Array) -> Array:
    return cholesky(K, jitter) @ v


@_colour.defjvp
def _colour_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    K, v, jitter = primals
    dK, dv, _ = tangents
    L = cholesky(K, jitter)
    return L @ v, L @ (half_tangent(L, dK) @ v + dv)


def gaussian_log_density(
    residual: Float[Array, " N"],
    K: Float[Array, "N N"],
    jitter: float | Float[Array, ""] = DEFAULT_JITTER,
) -> Float[Array, ""]:
    """log N(residual; 0, K + jitter I), with its gradient written by hand.

    d/dK = 1/2 (a a' - K^-1) and d/dresidual = -a with a = K^-1 residual: about half the
    cost of differentiating through the Cholesky factorisation.
    """
    return _gaussian_log_density(residual, K, jnp.asarray(jitter, K.dtype))


@jax.custom_jvp
def _gaussian_log_density(residual: Array, K: Array, jitter: Array) -> Array:
    diagonal, white = factor_and_whiten(K, residual, jitter)
    return _from_white(white, diagonal)


def _from_white(white: Array, diagonal: Array) -> Array:
    log_det = jnp.sum(jnp.log(diagonal))
    return -0.5 * white @ white - log_det - 0.5 * len(white) * _LOG_2PI


@_gaussian_log_density.defjvp
def _gaussian_log_density_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    residual, K, jitter = primals
    d_residual, dK, _ = tangents
    found = solve_and_invert(K, residual, jitter)
    a = found.pull
    half_slope = 0.5 * (a[:, None] * a[None, :] - found.inverse)
    slope = jnp.sum(half_slope * dK) - a @ d_residual
    return _from_white(found.white, found.diagonal), slope


@jax.custom_jvp
def log_normaliser(
    shift: Float[Array, " N"], precision: Float[Array, "N N"]
) -> Float[Array, ""]:
    """log of the integral of N(v; 0, I) exp(v' shift - v' (precision - I) v / 2) over v.

    That is 1/2 b' P^-1 b - 1/2 log |P|, with its gradient written by hand as that of
    `gaussian_log_density`: P^-1 b and -1/2 (P^-1 b b' P^-1 + P^-1).
    """
    diagonal, white = factor_and_whiten(precision, shift, 0.0)
    return _normaliser_from_white(white, diagonal)


def _normaliser_from_white(white: Array, diagonal: Array) -> Array:
    return 0.5 * white @ white - jnp.sum(jnp.log(diagonal))


@log_normaliser.defjvp
def _log_normaliser_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    shift, precision = primals
    d_shift, d_precision = tangents
    found = solve_and_invert(precision, shift, 0.0)
    a = found.pull
    half_slope = 0.5 * (a[:, None] * a[None, :] + found.inverse)
    slope = a @ d_shift - jnp.sum(half_slope * d_precision)
    return _normaliser_from_white(found.white, found.diagonal), slope


def mvn_sample(
    key: Array, mean: Float[Array, " N"], covariance: Float[Array, "N N"], num: int
) -> Float[Array, "num N"]:
    """Draws from N(mean, covariance) for a covariance that may be singular."""
    L = cholesky(covariance, 1e-10 * jnp.mean(jnp.diagonal(covariance)) + 1e-12)
    white = jax.random.normal(key, (num, len(mean)), dtype=mean.dtype)
    return mean[None, :] + white @ L.T

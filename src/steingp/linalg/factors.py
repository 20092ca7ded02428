"""Cholesky factors with jitter, and triangular solves."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

DEFAULT_JITTER = 1e-6
"""Added to the diagonal of every covariance matrix before it is factorised."""

_RETRIES = 6


def add_diagonal(
    K: Float[Array, "N N"], diagonal: Float[Array, " N"] | Float[Array, ""] | float
) -> Float[Array, "N N"]:
    """K + diag(diagonal)."""
    index = jnp.arange(K.shape[-1])
    return K.at[index, index].add(diagonal)


# LAPACK under vmap. On a CPU, jaxlib spreads a batch of factorisations or triangular
# solves over its thread pool and waits for them on one of the pool's own threads: as
# many such calls at once as there are threads, two on two cores, wait for ever (seen with
# jaxlib 0.10.2). One matrix after the other never waits, and BLAS still has its threads.


def _one_by_one_on_cpu(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function`, whose vmap on a CPU is a loop over the batch."""
    in_sequence = jax.custom_batching.sequential_vmap(function)

    def call(*arrays: Array) -> Array:
        on_cpu = jax.default_backend() == "cpu"
        return (in_sequence if on_cpu else function)(*arrays)

    return call


@_one_by_one_on_cpu
def _factorise(K: Array) -> Array:
    return jax.lax.linalg.cholesky(K, symmetrize_input=False)


@jax.custom_jvp
def factorise(K: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Lower L with L L' = K, and NaN where K is not positive: no jitter, no retry."""
    return _factorise(K)


@_one_by_one_on_cpu
def _solve(L: Array, B: Array) -> Array:
    return solve_triangular(L, B, lower=True)


@_one_by_one_on_cpu
def _solve_transposed(L: Array, B: Array) -> Array:
    return solve_triangular(L, B, lower=True, trans=1)


def solve_lower(
    L: Float[Array, "N N"], B: Float[Array, "N ..."]
) -> Float[Array, "N ..."]:
    """L^-1 B for a lower triangular L, whose upper triangle must be 0."""
    return jax.lax.custom_linear_solve(
        lambda X: L @ X,
        B,
        solve=lambda _, B: _solve(L, B),
        transpose_solve=lambda _, B: _solve_transposed(L, B),
    )


def solve_lower_transposed(
    L: Float[Array, "N N"], B: Float[Array, "N ..."]
) -> Float[Array, "N ..."]:
    """L^-T B for a lower triangular L, whose upper triangle must be 0."""
    return jax.lax.custom_linear_solve(
        lambda X: L.T @ X,
        B,
        solve=lambda _, B: _solve_transposed(L, B),
        transpose_solve=lambda _, B: _solve(L, B),
    )


def cholesky(
    K: Float[Array, "N N"], jitter: float | Float[Array, ""] = DEFAULT_JITTER
) -> Float[Array, "N N"]:
    """Lower L with L L' = K + jitter I; more jitter for this matrix alone if it fails.

    Where the factorisation fails, 1e-8, 1e-7, ... 1e-3 of the mean of the diagonal is
    added, one after the other, until it succeeds. Under `vmap` each matrix of the batch
    gets only what it needs itself. If nothing helps, the result is NaN.
    """
    return _cholesky(K, jnp.asarray(jitter, K.dtype))


def extra_jitter(K: Float[Array, "N N"], jitter: float | Array) -> Float[Array, ""]:
    """What `cholesky` adds beyond `jitter`, as a share of the diagonal's mean."""
    diagonal = jnp.diagonal(K)
    added = jnp.sum(cholesky(K, jitter) ** 2, axis=1) - diagonal - jitter
    return jnp.mean(added) / jnp.mean(diagonal)


@jax.custom_jvp
def _cholesky(K: Array, jitter: Array) -> Array:
    return with_retries(K, jitter)


@_one_by_one_on_cpu
def with_retries(K: Array, jitter: Array) -> Array:
    """A factor, with as little extra as it takes."""

    def attempt(extra: Array) -> Array:
        return _factorise(add_diagonal(K, jitter + extra))

    def failed(carry: tuple[Array, Array, Array]) -> Array:
        L, _, tries = carry
        return ~jnp.isfinite(L[-1, -1]) & (tries < _RETRIES)

    def retry(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        _, extra, tries = carry
        return attempt(extra), 10.0 * extra, tries + 1

    first = attempt(jnp.zeros_like(jitter))
    L, _, _ = jax.lax.while_loop(
        failed, retry, (first, 1e-8 * jnp.mean(jnp.diagonal(K)), jnp.array(0))
    )
    return L


@_cholesky.defjvp
def _cholesky_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    L = _cholesky(*primals)
    return L, _factor_tangent(L, tangents[0])


@factorise.defjvp
def _factorise_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    L = factorise(*primals)
    return L, _factor_tangent(L, tangents[0])


def _factor_tangent(L: Array, dK: Array) -> Array:
    # dL = L Phi(L^-1 dK L^-T), Phi: the lower half (Murray 2016, eq. 8)
    return L @ half_tangent(L, dK)


def half_tangent(L: Array, dK: Array) -> Array:
    """Phi(L^-1 dK L^-T); dK is symmetrised, so that only L's own triangle counts."""
    half = solve_lower(L, 0.5 * (dK + dK.T))
    return lower_half(solve_lower(L, half.T))


def lower_half(S: Array) -> Array:
    """The lower triangle with half the diagonal."""
    return jnp.tril(S) - 0.5 * jnp.diag(jnp.diagonal(S))

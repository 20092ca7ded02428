"""Linear algebra of Gaussian processes: distances, Cholesky factors, log densities.

Everything here scores one matrix; `vmap` makes many. Both derivatives that are written
by hand are `custom_jvp` rules made of differentiable parts, so forward mode, reverse
mode and curvature all work.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float
from threadpoolctl import ThreadpoolController

DEFAULT_JITTER = 1e-6
"""Added to the diagonal of every covariance matrix before it is factorised."""

_RETRIES = 6
_CPU_LEAF, _GPU_LEAF = 48, 256
"""Rows of blocks that are not cut further."""
_GPU_TRIANGLE = 64
"""Rows of triangles in such a block, all of which a GPU inverts at the same time."""
_LOG_2PI = float(np.log(2.0 * np.pi))


def squared_distances(
    X: Float[Array, "N D"], Y: Float[Array, "M D"]
) -> Float[Array, "N M"]:
    """|x - y|^2 for every pair, by one matrix product on centred inputs.

    Good to about 1e-16 of the largest |x|^2. That is enough for kernels that are smooth
    functions of r^2; a kernel of r would see its square root, 1e-8: see `distances`.
    """
    centre = jnp.mean(X, axis=0, keepdims=True)
    X, Y = X - centre, Y - centre
    squares = jnp.sum(X * X, axis=1)[:, None] + jnp.sum(Y * Y, axis=1)[None, :]
    return jnp.maximum(squares - 2.0 * X @ Y.T, 0.0)


def distances(
    X: Float[Array, "N D"],
    Y: Float[Array, "M D"],
    lengthscales: float | Float[Array, "..."] = 1.0,
) -> Float[Array, "N M"]:
    """|(x - y) / lengthscales| for every pair, with gradient 0 where x = y.

    The difference comes before the division. Under `jit` a compiler may round x / l in
    two ways at two places, and |x / l - x / l| = 1e-17 has a gradient of order one.
    """
    differences = X[:, None, :] - Y[None, :, :]
    scaled = differences / jnp.atleast_1d(lengthscales)[None, None, :]
    return safe_sqrt(jnp.sum(scaled * scaled, axis=-1))


def safe_sqrt(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The square root, with derivative 0 instead of infinity at 0."""
    positive = x > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


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
    return _with_retries(K, jitter)


@_one_by_one_on_cpu
def _with_retries(K: Array, jitter: Array) -> Array:
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
    return L @ _half_tangent(L, dK)


def _half_tangent(L: Array, dK: Array) -> Array:
    """Phi(L^-1 dK L^-T); dK is symmetrised, so that only L's own triangle counts."""
    half = solve_lower(L, 0.5 * (dK + dK.T))
    return _lower_half(solve_lower(L, half.T))


def _lower_half(S: Array) -> Array:
    """The lower triangle with half the diagonal."""
    return jnp.tril(S) - 0.5 * jnp.diag(jnp.diagonal(S))


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
    return A, white(dB) - _lower_half(both_sides(0.5 * (dK + dK.T))) @ A


def _white_parts(K: Array, jitter: Array) -> tuple[Callable, Callable]:
    """L^-1 B of any B, and L^-1 S L^-T of a symmetric S.

    On a GPU by L^-1, since a product there takes a fraction of a triangular solve.
    """
    if jax.default_backend() == "cpu":
        L = _cholesky(K, jitter)

        def both_sides(S: Array) -> Array:
            return solve_lower(L, solve_lower(L, S).T)

        return lambda B: solve_lower(L, B), both_sides
    _, W = _in_blocks_with_retries(K, jitter)
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
    return _cholesky(K, jitter) @ v


@_colour.defjvp
def _colour_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    K, v, jitter = primals
    dK, dv, _ = tangents
    L = _cholesky(K, jitter)
    return L @ v, L @ (_half_tangent(L, dK) @ v + dv)


def inverse_factor(K: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """L^-1 with L L' = K, and NaN where K is not positive: no jitter, no retry."""
    if jax.default_backend() == "cpu":
        return inverse_lower(factorise(K))
    return _in_blocks(K)[1]


def inverse_lower(L: Float[Array, "N N"], leaf: int = 128) -> Float[Array, "N N"]:
    """L^-1 of a lower triangular matrix by 2 x 2 blocks: most work is matmul."""
    size = L.shape[-1]
    if size <= leaf:
        return solve_lower(L, jnp.eye(size, dtype=L.dtype))
    half = size // 2
    A, C = inverse_lower(L[:half, :half], leaf), inverse_lower(L[half:, half:], leaf)
    B = -C @ (L[half:, :half] @ A)
    return jnp.block([[A, jnp.zeros((half, size - half), L.dtype)], [B, C]])


class Solved(NamedTuple):
    """A covariance, with jitter, factorised and inverted, and a residual r in it."""

    diagonal: Float[Array, " N"]
    """Of the lower factor L that `cholesky` gives."""
    inverse: Float[Array, "N N"]
    white: Float[Array, " N"]
    """L^-1 r"""
    pull: Float[Array, " N"]
    """K^-1 r"""


def solve_and_invert(
    K: Float[Array, "N N"],
    residual: Float[Array, " N"],
    jitter: float | Float[Array, ""] = DEFAULT_JITTER,
) -> Solved:
    """Everything that a Gaussian log density and its gradient need of K + jitter I.

    By 2 x 2 blocks, so that most work is matmul; of what is symmetric one half is
    multiplied, and few zeros are. On a CPU LAPACK factorises; on a GPU, whose factors and
    triangular solves are slow beside its products, so do blocks.
    """
    jitter = jnp.asarray(jitter, K.dtype)
    if jax.default_backend() == "cpu":
        L = cholesky(K, jitter)
        white = solve_lower(L, residual)
        inverse = _inverse_by_solves(L, _CPU_LEAF)
        pull = solve_lower_transposed(L, white)
        return Solved(jnp.diagonal(L), inverse, white, pull)
    diagonal, W = _in_blocks_with_retries(K, jitter)
    white = W @ residual
    return Solved(diagonal, _square_of_lower(W), white, W.T @ white)


def _in_blocks(K: Array) -> tuple[Array, Array]:
    """L's diagonal and L^-1.

    Every block is code of its own to a compiler, which takes it longer than anything
    else here. So they are as few as can be, of one size, and what nobody asks for, the
    rest of L, is not put together.
    """
    return _of_blocks(K, gpu_leaf(K.shape[-1]))


def gpu_leaf(size: int) -> int:
    """Rows of the blocks that a matrix of so many rows is cut into on a GPU."""
    num = -(-size // _GPU_LEAF)
    return -(-size // num)


def inverse_by_pairs(L: Float[Array, "N N"], part: int) -> Float[Array, "N N"]:
    """L^-1 of a lower triangular matrix, for a GPU.

    Triangles of `part` rows or fewer along the diagonal are inverted, all at the same
    time, and then put together two by two: a solve takes as long as it has rows, one
    after the other, however many of them there are.
    """
    size, dtype = L.shape[-1], L.dtype
    num = 1 << max(0, math.ceil(math.log2(size / part)))
    rows = -(-size // num)
    filled = jnp.eye(num * rows, dtype=dtype).at[:size, :size].set(L)

    def blocks(down: int) -> Array:
        """Those on the diagonal; or, one down, those that join two by two of them."""
        cut = filled.reshape(num, rows, num, rows)
        return jnp.stack([cut[i + down, :, i] for i in range(0, num, 1 + down)])

    one = jnp.eye(rows, dtype=dtype)
    W = jax.vmap(lambda triangle: solve_lower(triangle, one))(blocks(0))
    while num > 1:
        A, C = W[::2], W[1::2]
        above = jnp.concatenate([A, jnp.zeros_like(A)], axis=2)
        below = jnp.concatenate([-C @ (blocks(1) @ A), C], axis=2)
        W = jnp.concatenate([above, below], axis=1)
        num, rows = num // 2, rows * 2
    return W[0][:size, :size]


def _of_blocks(K: Array, leaf: int) -> tuple[Array, Array]:
    size = K.shape[-1]
    if size <= leaf:
        L = _factorise(K)
        return jnp.diagonal(L), inverse_by_pairs(L, _GPU_TRIANGLE)
    num = -(-size // leaf)
    first = (num + 1) // 2 * leaf
    diagonal_A, W_A = _of_blocks(K[:first, :first], leaf)
    B = K[first:, :first] @ W_A.T
    diagonal_C, W_C = _of_blocks(K[first:, first:] - B @ B.T, leaf)
    below = -W_C @ (B @ W_A)
    above = jnp.zeros((first, size - first), K.dtype)
    return (
        jnp.concatenate([diagonal_A, diagonal_C]),
        jnp.block([[W_A, above], [below, W_C]]),
    )


@jax.custom_jvp
def _in_blocks_with_retries(K: Array, jitter: Array) -> tuple[Array, Array]:
    """L's diagonal and L^-1; as `cholesky`, with more jitter where it fails."""
    return _attempts_in_blocks(K, jitter)


@_in_blocks_with_retries.defjvp
def _in_blocks_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    diagonal, W = _in_blocks_with_retries(*primals)
    dK = 0.5 * (tangents[0] + tangents[0].T)
    half = _lower_half(W @ dK @ W.T)  # dL = L half, both triangular
    return (diagonal, W), (diagonal * jnp.diagonal(half), -half @ W)


def _with_more_jitter(K: Array, jitter: Array) -> tuple[Array, Array]:
    L = _with_retries(K, jitter)
    return jnp.diagonal(L), solve_lower(L, jnp.eye(len(L), dtype=L.dtype))


@jax.custom_batching.custom_vmap
def _attempts_in_blocks(K: Array, jitter: Array) -> tuple[Array, Array]:
    found = _in_blocks(add_diagonal(K, jitter))
    return jax.lax.cond(
        jnp.isfinite(found[0][-1]),
        lambda: found,
        lambda: _with_more_jitter(K, jitter),
    )


@_attempts_in_blocks.def_vmap
def _attempts_of_many(
    num: int, batched: list[bool], K: Array, jitter: Array
) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    """All at once without retries; then those that failed, one after the other.

    A loop over the batch would repeat it all for the sake of one matrix.
    """
    K = K if batched[0] else jnp.broadcast_to(K, (num, *K.shape))
    jitter = jitter if batched[1] else jnp.broadcast_to(jitter, (num,))
    diagonals, W = jax.vmap(lambda K, jitter: _in_blocks(add_diagonal(K, jitter)))(
        K, jitter
    )
    failed = ~jnp.isfinite(diagonals[:, -1])

    def mend(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        diagonals, W, failed = carry
        i = jnp.argmax(failed)
        diagonal, own = _with_more_jitter(K[i], jitter[i])
        return (
            diagonals.at[i].set(diagonal),
            W.at[i].set(own),
            failed.at[i].set(False),
        )

    diagonals, W, _ = jax.lax.while_loop(
        lambda carry: carry[2].any(), mend, (diagonals, W, failed)
    )
    return (diagonals, W), (True, True)


def _inverse_by_solves(L: Array, leaf: int) -> Array:
    """K^-1 from its factor, by products A B and A B' alone: A' B takes twice as long."""
    size = L.shape[-1]
    if size <= leaf:
        V = solve_lower_transposed(L, jnp.eye(size, dtype=L.dtype))
        return V @ V.T
    half = size // 2
    A, B, C = L[:half, :half], L[half:, :half], L[half:, half:]
    P_A, P_C = _inverse_by_solves(A, leaf), _inverse_by_solves(C, leaf)
    T = solve_lower_transposed(A, B.T)  # A^-T B'
    below = -P_C @ T.T
    return jnp.block([[P_A - T @ below, below.T], [below, P_C]])


def _square_of_lower(W: Array) -> Array:
    """W' W for a lower triangular W: half of the products that it would take."""
    size = W.shape[-1]
    if size <= 4 * _GPU_LEAF:
        return W.T @ W
    half = size // 2
    A, B, C = W[:half, :half], W[half:, :half], W[half:, half:]
    below = C.T @ B
    above = _square_of_lower(A) + B.T @ B
    return jnp.block([[above, below.T], [below, _square_of_lower(C)]])


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
    L = cholesky(K, jitter)
    return _from_white(solve_lower(L, residual), jnp.diagonal(L))


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
    L = cholesky(precision, 0.0)
    return _normaliser_from_white(solve_lower(L, shift), jnp.diagonal(L))


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


@contextmanager
def blas_suited_to(size: int, *, threads: int | None = None) -> Iterator[None]:
    """One BLAS thread while matrices are small, else `threads`; None: as many as it has.

    Threads of BLAS contend for little work, and with threads of our own for the same
    cores. The bound of 500 rows is a guess that has not been tuned by measurement.
    """
    limit = 1 if size <= 500 else threads
    if limit is None:
        yield
        return
    with _libraries().limit(limits=limit, user_api="blas"):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    """Of this process that have threads; NumPy's and SciPy's are loaded by now."""
    return ThreadpoolController()


def mvn_sample(
    key: Array, mean: Float[Array, " N"], covariance: Float[Array, "N N"], num: int
) -> Float[Array, "num N"]:
    """Draws from N(mean, covariance) for a covariance that may be singular."""
    L = cholesky(covariance, 1e-10 * jnp.mean(jnp.diagonal(covariance)) + 1e-12)
    white = jax.random.normal(key, (num, len(mean)), dtype=mean.dtype)
    return mean[None, :] + white @ L.T

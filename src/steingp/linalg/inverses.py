"""Inverses by blocks, made of matrix products as far as can be."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from steingp.linalg.factors import (
    DEFAULT_JITTER,
    add_diagonal,
    cholesky,
    factorise,
    lower_half,
    solve_lower,
    solve_lower_transposed,
    with_retries,
)

CPU_LEAF, GPU_LEAF = 48, 256
"""Rows of blocks that are not cut further."""
GPU_TRIANGLE = 64
"""Rows of triangles in such a block, all of which a GPU inverts at the same time."""


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
        inverse = _inverse_by_solves(L, CPU_LEAF)
        pull = solve_lower_transposed(L, white)
        return Solved(jnp.diagonal(L), inverse, white, pull)
    diagonal, W = blocks_with_retries(K, jitter)
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
    num = -(-size // GPU_LEAF)
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
        L = factorise(K)
        return jnp.diagonal(L), inverse_by_pairs(L, GPU_TRIANGLE)
    num = -(-size // leaf)
    first = (num + 1) // 2 * leaf
    diagonal_A, W_A = _of_blocks(K[:first, :first], leaf)
    B = K[first:, :first] @ W_A.T
    diagonal_C, W_C = _of_blocks(_less_square(K[first:, first:], B), leaf)
    below = -W_C @ (B @ W_A)
    above = jnp.zeros((first, size - first), K.dtype)
    return (
        jnp.concatenate([diagonal_A, diagonal_C]),
        jnp.block([[W_A, above], [below, W_C]]),
    )


@jax.custom_jvp
def blocks_with_retries(K: Array, jitter: Array) -> tuple[Array, Array]:
    """L's diagonal and L^-1; as `cholesky`, with more jitter where it fails."""
    return _inverse_with_retries(K, jitter)


@blocks_with_retries.defjvp
def _in_blocks_jvp(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    diagonal, W = blocks_with_retries(*primals)
    dK = 0.5 * (tangents[0] + tangents[0].T)
    half = lower_half(W @ dK @ W.T)  # dL = L half, both triangular
    return (diagonal, W), (diagonal * jnp.diagonal(half), -half @ W)


def factor_and_whiten(
    K: Float[Array, "N N"],
    v: Float[Array, " N"],
    jitter: float | Float[Array, ""] = DEFAULT_JITTER,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Diagonal of the L that `cholesky` gives of K + jitter I, and L^-1 v.

    All that a log density needs; on a GPU by blocks. It has no derivatives.
    """
    jitter = jnp.asarray(jitter, K.dtype)
    if jax.default_backend() == "cpu":
        L = cholesky(K, jitter)
        return jnp.diagonal(L), solve_lower(L, v)
    return _whitened_with_retries(K, jitter, v)


def _whitened(K: Array, v: Array) -> tuple[Array, Array]:
    diagonal, rows = _solved_rows(K, v[None], gpu_leaf(K.shape[-1]))
    return diagonal, rows[0]


def _solved_rows(K: Array, B: Array, leaf: int) -> tuple[Array, Array]:
    """L's diagonal, and B L^-T: what L has below K if K goes on with the rows of B."""
    size = K.shape[-1]
    if size <= leaf:
        L = factorise(K)
        return jnp.diagonal(L), B @ inverse_by_pairs(L, GPU_TRIANGLE).T
    first = (-(-size // leaf) + 1) // 2 * leaf
    below = jnp.concatenate([K[first:, :first], B[:, :first]])
    diagonal, solved = _solved_rows(K[:first, :first], below, leaf)
    C, left = solved[: size - first], solved[size - first :]
    rest = _less_square(K[first:, first:], C)
    last, right = _solved_rows(rest, B[:, first:] - left @ C.T, leaf)
    return jnp.concatenate([diagonal, last]), jnp.concatenate([left, right], axis=1)


def _less_square(K: Array, C: Array) -> Array:
    """K - C C', of which nobody asks for what is above the blocks of the diagonal."""
    size = K.shape[-1]
    if size <= 4 * GPU_LEAF:
        return K - C @ C.T
    half = size // 2
    A, B = C[:half], C[half:]
    above = jnp.zeros((half, size - half), K.dtype)
    return jnp.block(
        [
            [_less_square(K[:half, :half], A), above],
            [K[half:, :half] - B @ A.T, _less_square(K[half:, half:], B)],
        ]
    )


Direct = Callable[..., tuple[Array, Array]]
"""From a matrix, and perhaps more, to L's diagonal and something else made of L."""


def _retried(direct: Direct, of_factor: Callable[..., Array]) -> Direct:
    """`direct` of K + jitter I; by `of_factor`, with more jitter, where it fails.

    Under `vmap` all at once without retries; then those that failed, one after the
    other. A loop over the batch would repeat it all for the sake of one matrix.
    """

    def mended(K: Array, jitter: Array, *others: Array) -> tuple[Array, Array]:
        L = with_retries(K, jitter)
        return jnp.diagonal(L), of_factor(L, *others)

    @jax.custom_batching.custom_vmap
    def attempts(K: Array, jitter: Array, *others: Array) -> tuple[Array, Array]:
        found = direct(add_diagonal(K, jitter), *others)
        return jax.lax.cond(
            jnp.isfinite(found[0][-1]),
            lambda: found,
            lambda: mended(K, jitter, *others),
        )

    @attempts.def_vmap
    def attempts_of_many(num: int, batched: list[bool], *given: Array) -> tuple:
        given = tuple(
            part if of_each else jnp.broadcast_to(part, (num, *part.shape))
            for part, of_each in zip(given, batched, strict=True)
        )

        def mend(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            diagonals, found, failed = carry
            i = jnp.argmax(failed)
            diagonal, own = mended(*(part[i] for part in given))
            return (
                diagonals.at[i].set(diagonal),
                found.at[i].set(own),
                failed.at[i].set(False),
            )

        K, jitter, *others = given
        diagonals, found = jax.vmap(direct)(jax.vmap(add_diagonal)(K, jitter), *others)
        failed = ~jnp.isfinite(diagonals[:, -1])
        diagonals, found, _ = jax.lax.while_loop(
            lambda carry: carry[2].any(), mend, (diagonals, found, failed)
        )
        return (diagonals, found), (True, True)

    return attempts


_inverse_with_retries = _retried(
    _in_blocks, lambda L: solve_lower(L, jnp.eye(len(L), dtype=L.dtype))
)
_whitened_with_retries = _retried(_whitened, solve_lower)


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
    if size <= 4 * GPU_LEAF:
        return W.T @ W
    half = size // 2
    A, B, C = W[:half, :half], W[half:, :half], W[half:, half:]
    below = C.T @ B
    above = _square_of_lower(A) + B.T @ B
    return jnp.block([[above, below.T], [below, _square_of_lower(C)]])

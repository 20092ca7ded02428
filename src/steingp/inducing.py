"""Inducing points Z, chosen from the inputs before a sparse model is built.

| function | rule | cost |
|---|---|---|
| `uniform` | rows of X at random | N |
| `kmeans` | centres of clusters: dense where the data are | N M D per iteration |
| `greedy_variance` | the row whose f is least known from those picked | n M^2 |
| `kdpp` | a random set of rows that repel each other | n^3 |

The last two ask the kernel, at its start values and without its White parts, and work
on at most `max_rows` rows drawn at random (n above). All return distinct points: a
repeated one would make K(Z, Z) singular.

    >>> import numpy as np
    >>> from steingp import inducing, kernels
    >>> X = np.linspace(0.0, 1.0, 101)[:, None]
    >>> inducing.greedy_variance(X, 3, kernels.Matern32(lengthscales=0.5)).ravel()
    array([0. , 1. , 0.5])
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from steingp.kernels import Kernel, at_start
from steingp.precision import float64

_SPENT = 1e-12
"""Share of the largest variance below which what remains is round-off."""

_MINIBATCH_ABOVE = 20_000
"""Rows above which k-means runs on minibatches."""


def uniform(X: ArrayLike, num: int, seed: int = 0) -> Float[np.ndarray, "M D"]:
    """Rows of X at random, without replacement, no two of them equal.

    Z = the first `num` distinct rows of X in random order, so a value that occurs often
    in X is picked early.

    Args:
        X: inputs, (N, D); a vector is one column.
        num: how many points, M.
        seed: the same seed gives the same points.

    Returns:
        Z, (M, D), in random order.

    Raises:
        ValueError: if X is not a finite table, or has fewer than `num` distinct rows.

    Reference:
        Titsias (2009), Variational learning of inducing variables in sparse Gaussian
        processes: the starting point of most sparse models.

    Example:
        >>> from steingp import inducing
        >>> inducing.uniform([[1.0], [1.0], [2.0]], 2).shape
        (2, 1)
    """
    X, _ = _check(X, num)
    shuffled = X[np.random.default_rng(seed).permutation(len(X))]
    return shuffled[_first_occurrences(shuffled)[:num]]


def kmeans(X: ArrayLike, num: int, seed: int = 0) -> Float[np.ndarray, "M D"]:
    """Centres of clusters of the rows of X, by scikit-learn.

    Z minimises (locally) sum_n min_m |x_n - z_m|^2, started by k-means++; above 20,000
    rows by minibatches. Columns count by their units: standardise X first. Where fewer
    than `num` different centres come out, rows of X at random make up the number. One
    thread only, so that the same seed gives the same result to the last bit.

    Args:
        X: inputs, (N, D); a vector is one column.
        num: how many points, M.
        seed: the same seed gives the same points.

    Returns:
        Z, (M, D), which need not be rows of X.

    Raises:
        ValueError: if X is not a finite table, or has fewer than `num` distinct rows.

    Reference:
        Arthur and Vassilvitskii (2007), k-means++: the advantages of careful seeding;
        Sculley (2010), Web-scale k-means clustering.

    Example:
        >>> from steingp import inducing
        >>> Z = inducing.kmeans([[0.0], [0.2], [5.0], [5.2]], 2)
        >>> sorted(Z.ravel().round(6).tolist())
        [0.1, 5.1]
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    X, distinct = _check(X, num)
    rng = np.random.default_rng(seed)
    random_state = int(rng.integers(2**31))
    if len(X) <= _MINIBATCH_ABOVE:
        method = KMeans(num, random_state=random_state)
    else:
        batch = max(4096, 2 * num)
        method = MiniBatchKMeans(num, batch_size=batch, random_state=random_state)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # fewer distinct centres than asked for: mended below
        warnings.simplefilter("ignore", ConvergenceWarning)
        centres = np.asarray(method.fit(X).cluster_centers_)
    centres = centres[_first_occurrences(centres)]
    if len(centres) < num:
        rows = distinct[rng.permutation(len(distinct))]
        together = np.concatenate([centres, rows])
        centres = together[_first_occurrences(together)[:num]]
    return centres


@float64
def greedy_variance(
    X: ArrayLike, num: int, kernel: Kernel, seed: int = 0, max_rows: int = 20_000
) -> Float[np.ndarray, "M D"]:
    """Rows picked one after the other where f is least known given those picked.

    z_{m+1} = argmax_x k(x, x) - k(x, Z_m) K(Z_m, Z_m)^-1 k(Z_m, x): the pivots of a
    pivoted Cholesky factorisation of K(X, X), without White. It removes the largest
    errors first, those of outlying rows among them: good once M points nearly explain
    f, while with far too few `uniform` or `kmeans` may leave less error in all. Ties go
    to the earliest row. Where the remaining variance is zero before `num` points are
    found (at 1e-12 of the largest one), the points so far explain f everywhere on X and
    the others are rows at random. Takes O(n M^2) time and O(n M) memory.

    Args:
        X: inputs, (N, D); a vector is one column.
        num: how many points, M.
        kernel: the model's kernel; its start values are used.
        seed: draws the subset of rows, and the rows that make up the number.
        max_rows: look at this many distinct rows at most (at least 2 `num`).

    Returns:
        Z, (M, D), in the order of picking: the first m are the answer for m points.

    Raises:
        ValueError: if X is not a finite table, has fewer than `num` distinct rows or
            does not fit the kernel, or if the kernel is zero without its White parts.

    Reference:
        Burt, Rasmussen and van der Wilk (2020), Convergence of sparse variational
        inference in Gaussian processes regression: greedy variance selection.

    Example:
        >>> from steingp import inducing, kernels
        >>> inducing.greedy_variance([[1.0], [2.0], [3.0]], 1, kernels.Linear())
        array([[3.]])
    """
    rng = np.random.default_rng(seed)
    rows, bound = _candidates(X, num, kernel, max_rows, rng)
    variance = _variance(bound, jnp.asarray(rows))
    _check_variance(np.asarray(variance))
    picks, count = _pivots(bound, jnp.asarray(rows), variance, num)
    picked = np.asarray(picks)[: int(count)]
    others = np.setdiff1d(np.arange(len(rows)), picked)
    fill = rng.permutation(others)[: num - len(picked)]
    return rows[np.concatenate([picked, fill])]


@float64
def kdpp(
    X: ArrayLike,
    num: int,
    kernel: Kernel,
    seed: int = 0,
    max_rows: int = 2_000,
    jitter: float = 1e-8,
) -> Float[np.ndarray, "M D"]:
    """A random set of rows that repel each other: an exact draw from a k-DPP.

    P(Z) = det L(Z, Z) / e_M(eigenvalues of L) over all sets of M of the rows, where
    L = K(X, X) without White, plus `jitter` times the mean of its diagonal on the
    diagonal, and e_M is the elementary symmetric polynomial. The jitter settles what
    happens when K has a rank, in double precision, below `num`: as many points as the
    rank spread out, and the others are nearly uniform. Takes O(n^3) time.

    With more than `max_rows` distinct rows, the draw is from the k-DPP on a uniform
    subset of them, which is not the one on all rows.

    Args:
        X: inputs, (N, D); a vector is one column.
        num: how many points, M.
        kernel: the model's kernel; its start values are used.
        seed: the same seed gives the same points.
        max_rows: look at this many distinct rows at most (at least 2 `num`).
        jitter: added to the diagonal of L, relative to the mean of that diagonal.

    Returns:
        Z, (M, D), in random order.

    Raises:
        ValueError: if X is not a finite table, has fewer than `num` distinct rows or
            does not fit the kernel, if the kernel is zero without its White parts, or
            if `jitter` is not positive.

    Reference:
        Kulesza and Taskar (2012), Determinantal point processes for machine learning,
        algorithms 1, 7 and 8.

    Example:
        >>> from steingp import inducing, kernels
        >>> X = [[0.0], [0.01], [5.0], [5.01]]
        >>> Z = inducing.kdpp(X, 2, kernels.SquaredExponential(lengthscales=1.0))
        >>> sorted(Z.ravel().round().tolist())
        [0.0, 5.0]
    """
    if not jitter > 0.0:
        raise ValueError(f"jitter must be positive, such as 1e-8; got {jitter!r}.")
    rng = np.random.default_rng(seed)
    rows, bound = _candidates(X, num, kernel, max_rows, rng)
    K = np.asarray(_covariance(bound, jnp.asarray(rows)))
    _check_variance(np.diagonal(K))
    # one thread: two cost more than they gain on a busy machine (5 times, measured)
    with threadpool_limits(limits=1):
        eigenvalues, eigenvectors = np.linalg.eigh(K)
        floor = jitter * np.mean(np.diagonal(K))
        log_eigenvalues = np.log(np.maximum(eigenvalues, 0.0) + floor)
        table = _log_elementary_symmetric(log_eigenvalues, num)
        return rows[_draw_kdpp(rng, log_eigenvalues, eigenvectors, table)]


# Greedy conditional variance ----------------------------------------------------------


@eqx.filter_jit
def _variance(kernel: Kernel, X: Float[Array, "N D"]) -> Float[Array, " N"]:
    """k(x, x) without White, which `kernel.diag` would include."""
    return jax.vmap(lambda x: kernel.cross(x[None], x[None])[0, 0])(X)


@eqx.filter_jit
def _covariance(kernel: Kernel, X: Float[Array, "N D"]) -> Float[Array, "N N"]:
    """K(X, X) without White."""
    return kernel.cross(X, X)


@eqx.filter_jit
def _pivots(
    kernel: Kernel, X: Float[Array, "N D"], variance: Float[Array, " N"], num: int
) -> tuple[Int[Array, " M"], Int[Array, ""]]:
    """Pivots of the Cholesky factorisation of K(X, X), and how many are sound.

    The rows of C are those of the factor: K(X, X) is about C' C, and `remaining` is the
    diagonal of K(X, X) - C' C, with -inf at the rows already picked.
    """
    smallest = _SPENT * jnp.max(variance)

    def unspent(carry: tuple[Array, ...]) -> Array:
        count, remaining, _, _ = carry
        return (count < num) & (jnp.max(remaining) > smallest)

    def pick(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        count, remaining, C, picks = carry
        i = jnp.argmax(remaining)
        column = kernel.cross(X, X[i][None])[:, 0] - C[:, i] @ C
        column = column / jnp.sqrt(remaining[i])
        remaining = (remaining - column * column).at[i].set(-jnp.inf)
        return count + 1, remaining, C.at[count].set(column), picks.at[count].set(i)

    start = (
        jnp.array(0),
        variance,
        jnp.zeros((num, len(X)), X.dtype),
        jnp.zeros(num, int),
    )
    count, _, _, picks = jax.lax.while_loop(unspent, pick, start)
    return picks, count


# k-DPP --------------------------------------------------------------------------------


def _log_elementary_symmetric(
    log_values: Float[np.ndarray, " n"], num: int
) -> Float[np.ndarray, "n_plus_1 num_plus_1"]:
    """log e_l of the first m values at [m, l]: e_l is the sum of products of l of them.

    e_l(m) = e_l(m - 1) + value_m e_{l-1}(m - 1) (Kulesza and Taskar, algorithm 7), in
    logarithms, since e_600 of 2000 values overflows.
    """
    table = np.full((len(log_values) + 1, num + 1), -np.inf)
    table[:, 0] = 0.0
    for m, log_value in enumerate(log_values, start=1):
        table[m, 1:] = np.logaddexp(table[m - 1, 1:], log_value + table[m - 1, :-1])
    return table


def _draw_kdpp(
    rng: np.random.Generator,
    log_eigenvalues: Float[np.ndarray, " n"],
    eigenvectors: Float[np.ndarray, "n n"],
    table: Float[np.ndarray, "n_plus_1 num_plus_1"],
) -> Int[np.ndarray, " num"]:
    """One k-DPP draw: choose eigenvectors, then points of their projection DPP."""
    chosen = _choose_eigenvectors(rng, log_eigenvalues, table)
    return _draw_projection_dpp(rng, eigenvectors[:, chosen])


def _choose_eigenvectors(
    rng: np.random.Generator,
    log_eigenvalues: Float[np.ndarray, " n"],
    table: Float[np.ndarray, "n_plus_1 num_plus_1"],
) -> Bool[np.ndarray, " n"]:
    """A set of eigenvectors, with probability the product of its eigenvalues over e_k.

    From the last to the first: with l still to choose among the first m, the m-th is in
    with probability value_m e_{l-1}(m - 1) / e_l(m).
    """
    left = table.shape[1] - 1
    chosen = np.zeros(len(log_eigenvalues), bool)
    log_uniform = np.log1p(-rng.random(len(log_eigenvalues)))
    for m in range(len(log_eigenvalues), 0, -1):
        if left == 0:
            break
        log_odds = log_eigenvalues[m - 1] + table[m - 1, left - 1] - table[m, left]
        if m == left or log_uniform[m - 1] < log_odds:
            chosen[m - 1] = True
            left -= 1
    return chosen


def _draw_projection_dpp(
    rng: np.random.Generator, V: Float[np.ndarray, "n k"]
) -> Int[np.ndarray, " k"]:
    """k points of the DPP with the projection V V' as its marginal kernel.

    The chain rule: each point with probability proportional to the squared length of
    what is left of its row of V after projecting on the rows already drawn. Q holds an
    orthonormal basis of those; projecting twice keeps it orthonormal in round-off.
    """
    size = V.shape[1]
    Q = np.zeros((size, size))
    left = np.sum(V * V, axis=1)
    picks = np.zeros(size, int)
    for j in range(size):
        picks[j] = i = rng.choice(len(V), p=left / np.sum(left))
        q = V[i] - (Q[:j] @ V[i]) @ Q[:j]
        q = q - (Q[:j] @ q) @ Q[:j]
        Q[j] = q / np.linalg.norm(q)
        along = V @ Q[j]
        left = np.maximum(left - along * along, 0.0)
        left[i] = 0.0
    return picks


# Checks -------------------------------------------------------------------------------


def _check(X: ArrayLike, num: int) -> tuple[np.ndarray, np.ndarray]:
    """X as a finite (N, D) array and its distinct rows, enough of them for `num`."""
    try:
        X = np.asarray(X, float)
    except (TypeError, ValueError):
        raise ValueError(
            f"X must be a table of numbers; got {type(X).__name__} with other entries. "
            "Encode or drop the columns that are not numeric."
        ) from None
    if X.ndim == 1:
        X = X[:, None]
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(
            f"X must have shape (N, D) with D >= 1; got {X.shape}. Give one row per "
            "observation."
        )
    if bad := int(np.sum(~np.all(np.isfinite(X), axis=1))):
        raise ValueError(
            f"X must be finite; {bad} of its {len(X)} rows hold NaN or infinity. Drop "
            "or impute them first."
        )
    if not isinstance(num, int | np.integer) or num < 1:
        raise ValueError(
            f"num must be a whole number of points, 1 or more; got {num!r}."
        )
    X = X + 0.0  # -0 becomes 0, and the caller's array is left alone
    distinct = X[_first_occurrences(X)]
    if num > len(distinct):
        raise ValueError(
            f"num must not exceed the {len(distinct)} distinct rows among the {len(X)} "
            f"of X; got {num}. Ask for at most {len(distinct)} points."
        )
    return X, distinct


def _candidates(
    X: ArrayLike, num: int, kernel: Kernel, max_rows: int, rng: np.random.Generator
) -> tuple[np.ndarray, Kernel]:
    """At most max(max_rows, 2 num) distinct rows of X, and the kernel at its start."""
    if not isinstance(kernel, Kernel):
        raise ValueError(
            "kernel must be a steingp kernel, such as kernels.Matern52(); got "
            f"{type(kernel).__name__}."
        )
    if max_rows < 1:
        raise ValueError(f"max_rows must be 1 or more; got {max_rows!r}.")
    _, rows = _check(X, num)
    bound = at_start(kernel, rows.shape[1])
    most = max(max_rows, 2 * num)
    if len(rows) > most:
        rows = rows[np.sort(rng.choice(len(rows), most, replace=False))]
    return rows, bound


def _check_variance(variance: Float[np.ndarray, " N"]) -> None:
    if not np.all(np.isfinite(variance)) or not np.max(variance) > 0.0:
        raise ValueError(
            "kernel must have a finite variance that is not zero at the rows of X, "
            f"White apart; got values from {np.min(variance)} to {np.max(variance)}. "
            "Add a kernel that links points, such as Matern52, or use "
            "inducing.kmeans, which needs no kernel."
        )


def _first_occurrences(X: Float[np.ndarray, "N D"]) -> Int[np.ndarray, " K"]:
    """Positions of the rows that do not equal an earlier row, in order."""
    order = np.lexsort(X.T)  # stable: equal rows stay in order
    new = np.ones(len(X), bool)
    new[1:] = np.any(X[order[1:]] != X[order[:-1]], axis=1)
    return np.sort(order[new])

"""Figures of merit of posterior draws, beside others that are taken as the truth."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from steingp.metrics.checks import draws_of_both, normalised


def sliced_wasserstein(
    a: ArrayLike,
    b: ArrayLike,
    num_projections: int = 200,
    seed: int = 0,
    weights_a: ArrayLike | None = None,
    weights_b: ArrayLike | None = None,
) -> float:
    """Sliced 2-Wasserstein distance between two sets of draws, in their units.

    sqrt(mean over directions t of W_2(t'a, t'b)^2), directions uniform on the sphere;
    W_2(p, q)^2 = integral_0^1 (quantile_p(u) - quantile_q(u))^2 du, exact for
    draws with weights. Shifting a set by s moves it by about |s| / sqrt(d).

    Args:
        a: draws, (S, d); a vector is one column.
        b: other draws, (R, d).
        num_projections: number of random directions; with d = 1 one is enough.
        seed: draws the directions; the same seed gives the same result.
        weights_a: weights of `a`, (S,), normalised here; equal if left out.
        weights_b: weights of `b`, (R,).

    Returns:
        The distance, 0 for equal sets.

    Raises:
        ValueError: if the columns differ in number, shapes disagree, weights are
            negative, or `num_projections` is less than 1.

    Reference:
        Bonneel, Rabin, Peyre and Pfister (2015), Sliced and Radon Wasserstein
        barycenters of measures.

    Example:
        >>> from steingp import metrics
        >>> metrics.sliced_wasserstein([[0.0], [1.0]], [[3.0], [2.0]])
        2.0
    """
    a, b = draws_of_both("a", a, "b", b)
    if num_projections < 1:
        raise ValueError(f"num_projections must be 1 or more; got {num_projections}.")
    w_a, w_b = (
        normalised("weights_a", weights_a, len(a)),
        normalised("weights_b", weights_b, len(b)),
    )
    directions = np.random.default_rng(seed).normal(size=(num_projections, a.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    squares = [
        _wasserstein_squared(a @ direction, b @ direction, w_a, w_b)
        for direction in directions
    ]
    return float(np.sqrt(np.mean(squares)))


def _wasserstein_squared(
    a: np.ndarray, b: np.ndarray, w_a: np.ndarray, w_b: np.ndarray
) -> float:
    """W_2^2 on the line: both quantile functions are constant between `levels`."""
    order_a, order_b = np.argsort(a), np.argsort(b)
    top_a, top_b = np.cumsum(w_a[order_a]), np.cumsum(w_b[order_b])
    levels = np.sort(np.concatenate([top_a[:-1], top_b[:-1]]))
    at_a = a[order_a][np.searchsorted(top_a[:-1], levels, side="left")]
    at_b = b[order_b][np.searchsorted(top_b[:-1], levels, side="left")]
    squares = np.append((at_a - at_b) ** 2, (a[order_a[-1]] - b[order_b[-1]]) ** 2)
    lengths = np.diff(levels, prepend=0.0, append=1.0)
    return float(np.sum(lengths * squares))


def sd_ratio(
    draws: ArrayLike, reference: ArrayLike, weights: ArrayLike | None = None
) -> Float[np.ndarray, " d"]:
    """Standard deviation of draws over that of reference draws, by column; 1 is right.

    sd(draws) / sd(reference), sd^2 = sum_s w_s (x_s - mean)^2 / (1 - sum_s w_s^2): the
    unbiased variance, with S - 1 below the line where the weights are equal.

    Args:
        draws: draws to be judged, (S, d); a vector is one column.
        reference: draws taken as the truth, (R, d), equally weighted.
        weights: weights of `draws`, (S,), normalised here; equal if left out.

    Returns:
        The ratios, (d,).

    Raises:
        ValueError: if the columns differ in number, there are fewer than two draws, or
            a column of the reference does not vary.

    Reference:
        Magnusson et al. (2025), posteriordb: testing, benchmarking and developing
        Bayesian inference algorithms: judging samplers by reference draws.

    Example:
        >>> from steingp import metrics
        >>> metrics.sd_ratio([[0.0], [1.0]], [[0.0], [2.0]])
        array([0.5])
    """
    draws, reference = draws_of_both("draws", draws, "reference", reference)
    w = normalised("weights", weights, len(draws))
    if len(reference) < 2 or np.sum(w > 0.0) < 2:
        raise ValueError(
            "draws and reference need two draws or more (of positive weight) for a "
            f"standard deviation; got {np.sum(w > 0.0)} and {len(reference)}."
        )
    truth = np.std(reference, axis=0, ddof=1)
    if np.any(truth == 0.0):
        columns = np.flatnonzero(truth == 0.0).tolist()
        raise ValueError(
            f"reference must vary in every column; column(s) {columns} are constant. "
            "Leave out what is fixed."
        )
    deviations = draws - w @ draws
    return np.sqrt(w @ deviations**2 / (1.0 - np.sum(w * w))) / truth

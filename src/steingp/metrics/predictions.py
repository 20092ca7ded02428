"""Figures of merit of predictions at n points."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from steingp.metrics.checks import classified, normalised, or_nan, table, vectors

_BLOCK = 1_000_000
"""Numbers held at once by the double sum over mixture components."""


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Root mean squared error of the predictive mean, in the units of y.

    sqrt(1/n sum_i (y_i - mean_i)^2)

    Args:
        y: observations, (n,) or (n, 1).
        mean: predictive means, (n,) or (n, 1).

    Returns:
        The error, 0 at best.

    Raises:
        ValueError: if the shapes differ or are empty.

    Reference:
        Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, 2.5.

    Example:
        >>> from steingp import metrics
        >>> metrics.rmse([0.0, 0.0], [3.0, 3.0])
        3.0
    """
    y, mean = vectors(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mean_log_density(log_prob: ArrayLike) -> float:
    """Mean log predictive density of the observations; higher is better.

    1/n sum_i log p(y_i | x_i, data), where p is the mixture over posterior draws:
    log p = log sum_s w_s p_s(y_i), as `prediction.log_prob(y)` gives it.

    Args:
        log_prob: log predictive density of each observation, (n,) or (n, 1).

    Returns:
        The mean.

    Raises:
        ValueError: if `log_prob` is empty or not one number per observation.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and
        estimation, section 4.1.

    Example:
        >>> from steingp import metrics
        >>> metrics.mean_log_density([-1.0, -2.0])
        -1.5
    """
    (log_prob,) = vectors(log_prob=log_prob)
    return float(np.mean(log_prob))


def accuracy(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Share of binary labels that the more probable class gets right.

    1/n sum_i [y_i = [p_i > 1/2]]

    Args:
        labels: 0 or 1 (or False, True), (n,) or (n, 1).
        probabilities: predictive probabilities of the label 1, (n,) or (n, 1).

    Returns:
        The share, from 0 to 1.

    Raises:
        ValueError: if the shapes differ, labels are not 0 or 1, or probabilities leave
            [0, 1].

    Reference:
        Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, 3.1.

    Example:
        >>> from steingp import metrics
        >>> metrics.accuracy([0, 1, 1, 1], [0.2, 0.9, 0.6, 0.4])
        0.75
    """
    labels, probabilities = classified(labels, probabilities)
    right = (probabilities > 0.5) == (labels == 1.0)
    return float(np.mean(or_nan(right, labels + probabilities)))


def crps_gaussian_mixture(
    y: ArrayLike,
    means: ArrayLike,
    variances: ArrayLike,
    weights: ArrayLike | None = None,
) -> Float[np.ndarray, " n"]:
    """Continuous ranked probability score of Gaussian mixtures, in closed form.

    integral (F(x) - [y <= x])^2 dx =
    sum_s w_s A(y - m_s, v_s) - 1/2 sum_st w_s w_t A(m_s - m_t, v_s + v_t), where
    A(m, v) = E|N(m, v)| = m (2 Phi(m / sqrt v) - 1) + 2 sqrt(v) phi(m / sqrt v).

    In the units of y; 0 at best. A component of variance 0 is a point mass. Takes
    O(S^2 n) time, but memory as for 10^6 numbers: a block of points at a time.

    Args:
        y: observations, (n,) or (n, 1).
        means: means of the S components at each point, (S, n).
        variances: their variances, (S, n).
        weights: their weights, (S,), normalised here; equal if left out.

    Returns:
        The score of each observation, (n,): their mean scores the data set.

    Raises:
        ValueError: if shapes disagree, or variances or weights are negative.

    Reference:
        Grimit, Gneiting, Berrocal and Johnson (2006), The continuous ranked probability
        score for circular variables and its application to mesoscale forecast ensemble
        verification.

    Example:
        >>> from steingp import metrics
        >>> metrics.crps_gaussian_mixture([0.0], [[0.0]], [[1.0]]).round(4)
        array([0.2337])
    """
    (y,) = vectors(y=y)
    means, variances = table("means", means, y), table("variances", variances, y)
    if means.shape != variances.shape:
        raise ValueError(
            f"means has shape {means.shape} and variances {variances.shape}; both must "
            "be (S, n), one row per component."
        )
    if np.any(variances < 0.0):
        raise ValueError(
            f"variances must not be negative; got {np.min(variances)}. Pass variances, "
            "not log variances, and clip round-off at 0."
        )
    w = normalised("weights", weights, len(means))
    width = max(1, _BLOCK // len(means))
    blocks = [slice(i, i + width) for i in range(0, len(y), width)]
    scores = [_crps_mixture(y[b], means[:, b], variances[:, b], w) for b in blocks]
    return np.concatenate(scores)


def _crps_mixture(
    y: np.ndarray, means: np.ndarray, variances: np.ndarray, w: np.ndarray
) -> np.ndarray:
    to_data = w @ _expected_absolute(y - means, variances)
    # E|X - X'|: pairs s < t count twice; s = t gives E|N(0, 2v)| = 2 sqrt(v / pi)
    within = (w * w) @ (2.0 * np.sqrt(variances / np.pi))
    for s in range(len(w) - 1):
        difference, variance = (
            means[s + 1 :] - means[s],
            variances[s + 1 :] + variances[s],
        )
        pairs = w[s + 1 :] @ _expected_absolute(difference, variance)
        within = within + 2.0 * w[s] * pairs
    return to_data - 0.5 * within


def _expected_absolute(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E|N(mean, variance)|; |mean| where the variance is 0."""
    from scipy.special import erf

    sd = np.sqrt(variance)
    ratio = mean / np.where(sd > 0.0, sd, 1.0)
    spread = np.sqrt(2.0 / np.pi) * sd * np.exp(-0.5 * ratio * ratio)
    smooth = mean * erf(ratio * np.sqrt(0.5)) + spread
    return np.where(sd == 0.0, np.abs(mean), smooth)


def crps_samples(
    y: ArrayLike, samples: ArrayLike, weights: ArrayLike | None = None
) -> Float[np.ndarray, " n"]:
    """Continuous ranked probability score of the empirical distribution of samples.

    sum_s w_s |x_s - y| - 1/2 sum_st w_s w_t |x_s - x_t|, the second sum by sorting:
    sum_k W_k (1 - W_k) (x_(k+1) - x_(k)), W_k the weight of the k smallest.

    It exceeds the score of the law behind S equal-weighted samples by
    E|X - X'| / (2 S) on average: take many, or use `crps_gaussian_mixture`.

    Args:
        y: observations, (n,) or (n, 1).
        samples: S draws from the predictive distribution at each point, (S, n).
        weights: weights of the draws, (S,), normalised here; equal if left out.

    Returns:
        The score of each observation, (n,): their mean scores the data set.

    Raises:
        ValueError: if shapes disagree or weights are negative.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and
        estimation, equation 21.

    Example:
        >>> from steingp import metrics
        >>> metrics.crps_samples([0.0], [[-1.0], [1.0]])  # 1 - (1/2) (1/2) 2
        array([0.5])
    """
    (y,) = vectors(y=y)
    samples = table("samples", samples, y)
    w = normalised("weights", weights, len(samples))
    to_data = w @ np.abs(samples - y)
    order = np.argsort(samples, axis=0)
    below = np.cumsum(w[order], axis=0)[:-1]
    gaps = np.diff(np.take_along_axis(samples, order, axis=0), axis=0)
    return to_data - np.sum(below * (1.0 - below) * gaps, axis=0)


def coverage(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """Share of observations inside their predictive intervals, ends included.

    1/n sum_i [lower_i <= y_i <= upper_i], to be compared with the intervals' level.

    Args:
        y: observations, (n,) or (n, 1).
        lower: lower ends, (n,) or (n, 1).
        upper: upper ends, (n,) or (n, 1).

    Returns:
        The share, from 0 to 1.

    Raises:
        ValueError: if the shapes differ, or a lower end lies above its upper end.

    Reference:
        Gneiting, Balabdaoui and Raftery (2007), Probabilistic forecasts, calibration
        and sharpness.

    Example:
        >>> from steingp import metrics
        >>> metrics.coverage([0.0, 5.0], [-1.0, -1.0], [1.0, 1.0])
        0.5
    """
    y, lower, upper = vectors(y=y, lower=lower, upper=upper)
    if crossed := int(np.sum(lower > upper)):
        raise ValueError(
            f"lower must not lie above upper; it does at {crossed} of {len(y)} points. "
            "Are the two swapped?"
        )
    inside = (lower <= y) & (y <= upper)
    return float(np.mean(or_nan(inside, y + lower + upper)))


def expected_calibration_error(
    labels: ArrayLike, probabilities: ArrayLike, num_bins: int = 10
) -> float:
    """How far predicted probabilities lie from observed frequencies, bin by bin.

    sum_b n_b / n |mean of y in b - mean of p in b| over `num_bins` bins of equal width
    of p, the probability of the label 1; a bin holds its upper end. It does not reach 0
    for finite n, however good the probabilities.

    Args:
        labels: 0 or 1 (or False, True), (n,) or (n, 1).
        probabilities: predictive probabilities of the label 1, (n,) or (n, 1).
        num_bins: number of bins.

    Returns:
        The error, from 0 to 1.

    Raises:
        ValueError: if the shapes differ, labels are not 0 or 1, probabilities leave
            [0, 1], or `num_bins` is less than 1.

    Reference:
        Naeini, Cooper and Hauskrecht (2015), Obtaining well calibrated probabilities
        using Bayesian binning.

    Example:
        >>> from steingp import metrics
        >>> metrics.expected_calibration_error([0, 1, 1, 1], [0.75, 0.75, 0.75, 0.75])
        0.0
    """
    labels, probabilities = classified(labels, probabilities)
    if num_bins < 1:
        raise ValueError(f"num_bins must be 1 or more; got {num_bins}.")
    inner_edges = np.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    bins = np.searchsorted(inner_edges, probabilities, side="left")
    gaps = np.bincount(bins, labels - probabilities, num_bins)
    return float(np.sum(np.abs(gaps)) / len(labels))

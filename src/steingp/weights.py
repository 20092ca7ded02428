"""How many draws are draws worth: Pareto-smoothed weights and mixing of particles.

NumPy in, NumPy out.

    >>> import numpy as np
    >>> from steingp import weights
    >>> x = np.random.default_rng(0).normal(size=1000)
    >>> w, k = weights.pareto_smooth(-0.25 * x**2)      # from N(0, 1) to N(0, 2/3)
    >>> bool(k < 0.7), round(float((w * x**2).sum()), 2), round(weights.effective_size(w))
    (True, 0.64, 947)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from steingp.checks import as_numbers

_FEWEST_SWEEPS = 4
_FEWEST_IN_TAIL = 5


# Importance weights -------------------------------------------------------------------


def pareto_smooth(
    log_weights: ArrayLike,
) -> tuple[Float[np.ndarray, " S"], float]:
    """Weights that sum to 1, their tail smoothed, and the Pareto k that judges them.

    The M = ceil(min(S / 5, 3 sqrt(S))) largest of S weights are replaced by the expected
    order statistics of a generalised Pareto distribution fitted to them, and cut off at
    the largest weight before smoothing. k is its shape: averages with these weights can
    be relied on below min(0.7, 1 - 1 / log10(S)).

    Args:
        log_weights: (S,), up to a constant; -inf is a weight of 0.

    Returns:
        The weights (S,), and k. With fewer than 5 draws in the tail (S <= 20, or a few
        weights that dwarf all others) there is no telling: the weights are left as they
        are and k = inf. If the M + 1 largest are equal there is no tail: k = 0.

    Raises:
        ValueError: no finite weight, or some that is NaN or infinite.

    Reference:
        Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance
        sampling, JMLR 25.

    Example:
        >>> import numpy as np
        >>> from steingp import weights
        >>> w, k = weights.pareto_smooth(np.zeros(100))
        >>> float(w[0]), k
        (0.01, 0.0)
    """
    array = as_numbers(log_weights)
    if array is None or array.ndim != 1 or not np.isfinite(array).any():
        raise ValueError("log_weights must be a vector (S,) with finite numbers in it.")
    if np.isnan(array).any() or np.isposinf(array).any():
        raise ValueError("log_weights has entries that are NaN or infinite.")
    array = array - array.max()
    size = len(array)
    most = int(np.ceil(min(size / 5.0, 3.0 * np.sqrt(size))))
    if most < _FEWEST_IN_TAIL:
        return _normalised(array), np.inf
    order = np.argsort(array, kind="stable")
    # the threshold: the largest weight that is not among the last
    edge = np.exp(max(array[order[-most - 1]], np.log(np.finfo(float).tiny)))
    if 1.0 - edge <= 1e-12:
        return _normalised(array), 0.0
    excess = np.exp(array[order[-most:]]) - edge
    tail = order[-most:][excess > 0.0]
    if len(tail) < _FEWEST_IN_TAIL:
        return _normalised(array), np.inf
    k, scale = _fit_pareto(excess[excess > 0.0])
    expected = _pareto_quantile((np.arange(len(tail)) + 0.5) / len(tail), k, scale)
    # equal weights stay equal, whatever the order of the draws
    _, group = np.unique(array[tail], return_inverse=True)
    expected = (np.bincount(group, expected) / np.bincount(group))[group]
    array[tail] = np.minimum(np.log(edge + expected), 0.0)
    return _normalised(array), k


def _normalised(log_weights: np.ndarray) -> np.ndarray:
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def _fit_pareto(excess: Float[np.ndarray, " M"]) -> tuple[float, float]:
    """Shape k and scale of a generalised Pareto distribution, from sorted excesses.

    The posterior mean of Zhang and Stephens (2009) over a grid of theta = -k / scale,
    and then k drawn to 1/2 with the weight of ten observations (Vehtari et al. 2024,
    appendix C).
    """
    num = len(excess)
    grid = 30 + int(np.sqrt(num))
    quarter = excess[int(num / 4.0 + 0.5) - 1]
    theta = 1.0 / excess[-1] + (
        1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    ) / (3.0 * quarter)
    shape = np.mean(np.log1p(-theta[:, None] * excess[None, :]), axis=1)
    log_likelihood = num * (np.log(-theta / shape) - shape - 1.0)
    posterior = np.exp(log_likelihood - logsumexp(log_likelihood))
    best = np.sum(posterior * theta)
    k = np.mean(np.log1p(-best * excess))
    scale = -k / best
    return float((num * k + 10 * 0.5) / (num + 10)), float(scale)


def _pareto_quantile(p: np.ndarray, k: float, scale: float) -> np.ndarray:
    """Where the distribution function of the generalised Pareto reaches p."""
    log_tail = np.log1p(-p)
    return -scale * log_tail if k == 0 else scale * np.expm1(-k * log_tail) / k


def effective_size(weights: ArrayLike) -> float:
    """(sum w)^2 / sum w^2: how many equal weights these are worth.

    Example:
        >>> from steingp import weights
        >>> weights.effective_size([0.5, 0.5, 0.0])
        2.0
    """
    w = np.asarray(weights, float)
    return float(np.sum(w) ** 2 / np.sum(w**2))


def resample(
    shares: Float[np.ndarray, " S"], num: int, rng: np.random.Generator
) -> np.ndarray:
    """`num` row numbers, each as often as its share asks for but for rounding.

    Example:
        >>> import numpy as np
        >>> from steingp import weights
        >>> rng = np.random.default_rng(0)
        >>> weights.resample(np.array([0.5, 0.0, 0.5]), 4, rng).tolist()
        [0, 0, 2, 2]
    """
    ticks = (np.arange(num) + rng.uniform()) / num
    return np.minimum(np.searchsorted(np.cumsum(shares), ticks), len(shares) - 1)


def log_sum(log_values: ArrayLike, shares: ArrayLike | None = None) -> float:
    """log of the sum of exp(log_values), each times its share.

    Example:
        >>> from steingp import weights
        >>> round(weights.log_sum([0.0, 0.0], shares=[0.5, 0.5]), 6)
        0.0
    """
    return float(np.asarray(logsumexp(np.asarray(log_values), b=shares)))


# Mixing -------------------------------------------------------------------------------


class Mixing(NamedTuple):
    """Effective sizes and R-hats per coordinate, of the mean and of the spread.

    Example:
        >>> import numpy as np
        >>> from steingp import weights
        >>> draws = np.random.default_rng(0).normal(size=(50, 20, 3))
        >>> mixed = weights.mixing(draws)
        >>> bool(mixed.smallest_size > 700), bool(mixed.largest_rhat < 1.02)
        (True, True)
    """

    mean_size: np.ndarray
    """Effective number of draws for the mean of x."""
    square_size: np.ndarray
    """The same for the mean of (x - mean)^2, and so for the spread."""
    mean_rhat: np.ndarray
    square_rhat: np.ndarray

    @property
    def smallest_size(self) -> float:
        """Independent draws that would tell every mean and every sd as well.

        n of them tell a Gaussian's mean to 1 / sqrt(n) sds and its sd to 1 / sqrt(2 n),
        so for the spread half as many are enough.
        """
        return float(min(np.min(self.mean_size), 2.0 * np.min(self.square_size)))

    @property
    def largest_rhat(self) -> float:
        return float(max(np.max(self.mean_rhat), np.max(self.square_rhat)))


def mixing(draws: ArrayLike) -> Mixing:
    """What draws of particles are worth, each particle being a chain of its sweeps.

    Effective sizes are at most the number of draws: estimated from a few sweeps they may
    exceed it, or be negative. A coordinate that never changes counts as one draw and
    has an infinite R-hat, as has one whose particles all stay where they are.

    Of few sweeps R-hat tells how much they are correlated, even if all starts are exact:
    with n sweeps, and tau of them for one independent draw, it is about
    sqrt(1 + 2 (tau - 1) / n). A bound such as 1.01 is for long chains.

    Args:
        draws: (sweeps, J, ...), at least 4 sweeps.

    Returns:
        Arrays of the trailing shape.

    Raises:
        ValueError: fewer than 4 sweeps, or draws that are not finite.

    Example:
        >>> import numpy as np
        >>> from steingp import weights
        >>> stuck = np.tile(np.arange(20.0), (10, 1))    # 20 particles stay in place
        >>> mixed = weights.mixing(stuck)
        >>> float(mixed.mean_rhat), round(float(mixed.mean_size))
        (inf, 11)
    """
    array = as_numbers(draws)
    if array is None or array.ndim < 2 or len(array) < _FEWEST_SWEEPS:
        shape = "none" if array is None else array.shape
        raise ValueError(
            "draws must be numbers of shape (sweeps, J, ...) with at least "
            f"{_FEWEST_SWEEPS} sweeps; got shape {shape}."
        )
    if not np.isfinite(array).all():
        raise ValueError("draws has entries that are not finite.")
    chains = np.swapaxes(array, 0, 1)
    squares = (chains - chains.mean(axis=(0, 1))) ** 2
    mean_size, mean_rhat = _mixing_of_mean(chains)
    square_size, square_rhat = _mixing_of_mean(squares)
    return Mixing(mean_size, square_size, mean_rhat, square_rhat)


def _mixing_of_mean(
    chains: Float[np.ndarray, "J sweeps ..."],
) -> tuple[np.ndarray, np.ndarray]:
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    num = chains.shape[0] * chains.shape[1]
    lowest, highest = chains.min(axis=(0, 1)), chains.max(axis=(0, 1))
    # squares of a constant differ by rounding alone
    largest = np.maximum(np.abs(lowest), np.abs(highest))
    constant = highest - lowest <= 1e-12 * largest
    with np.errstate(all="ignore"):
        size = np.asarray(effective_sample_size(chains, bias=False))
        rhat = np.asarray(split_gelman_rubin(chains))
    # antithetic chains have so small a correlation time that its estimate may be < 0
    size = np.where((size <= 0) | ~(size <= num), num, size)
    size = np.where(constant, 1.0, np.maximum(size, 1.0))
    return size, np.where(constant | np.isnan(rhat), np.inf, rhat)

"""Log evidence: the log of the integral of a density, by bridge sampling.

Draws from the density and draws from a Student t that was fitted to them see each other's
densities; the optimal bridge between the two gives the integral (Meng and Wong 1996).
The t is fitted to half of the particles and bridged with the other half, and the other
way round: a t fitted to the very draws it is bridged with would look too good.

    >>> import numpy as np
    >>> from steingp import evidence
    >>> rng = np.random.default_rng(0)
    >>> draws = 2.0 * rng.normal(size=(50, 20, 3))              # sweeps, particles, d
    >>> density = lambda z: -0.125 * np.sum(z**2, axis=1)       # int = (8 pi)^(3/2)
    >>> values = density(draws.reshape(-1, 3)).reshape(50, 20)
    >>> found = evidence.bridge(draws, values, density, seed=0)
    >>> bool(abs(found.log_value - 1.5 * np.log(8 * np.pi)) < 4 * found.error)
    True
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from steingp.moves import shrunk_factor
from steingp.weights import log_sum, mixing

NUM_PROPOSALS = 1000
"""Draws of the t, over both halves."""
FREEDOM = 5.0
"""Degrees of freedom of the t: its tails are heavier than those of most posteriors."""

LogDensity = Callable[[Float[np.ndarray, "S d"]], Float[np.ndarray, " S"]]
Inside = Callable[[Float[np.ndarray, "S d"]], Bool[np.ndarray, " S"]]


class Evidence(NamedTuple):
    """The log of an integral, and how well it is known."""

    log_value: float
    error: float
    """Standard error of `log_value`."""
    halves: tuple[float, float]
    """What either half of the particles says."""
    overlap: float
    """Share of the t's draws that the density's draws could have been, about: 1 is a
    perfect fit, below 0.05 the estimate leans on a few draws."""

    def shifted(self, by: float) -> "Evidence":
        """Of the density times exp(by)."""
        first, second = self.halves
        return self._replace(
            log_value=self.log_value + by, halves=(first + by, second + by)
        )

    @property
    def trusted(self) -> bool:
        """Whether the halves agree and the t overlaps with the density."""
        gap = abs(self.halves[0] - self.halves[1])
        return bool(gap < max(0.2, 4.0 * self.error) and self.overlap > 0.05)


def together(parts: list[Evidence]) -> Evidence:
    """The evidence of all modes, from that of each.

    Example:
        >>> from steingp.evidence import Evidence, together
        >>> half = Evidence(0.0, 0.1, (0.0, 0.0), 0.8)
        >>> round(together([half, half]).log_value, 3)                # log 2
        0.693
    """
    values = np.array([part.log_value for part in parts])
    shares = np.exp(values - log_sum(values))
    errors = np.array([part.error for part in parts])
    return Evidence(
        log_value=log_sum(values),
        error=float(np.sqrt(np.sum((shares * errors) ** 2))),
        halves=(
            log_sum([part.halves[0] for part in parts]),
            log_sum([part.halves[1] for part in parts]),
        ),
        overlap=min(part.overlap for part in parts),
    )


class StudentT(NamedTuple):
    """A multivariate t, to draw from and to evaluate."""

    mean: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"]
    """Lower triangular; factor factor' is its covariance times (FREEDOM - 2) / FREEDOM."""

    @staticmethod
    def fitted(draws: Float[np.ndarray, "S d"]) -> "StudentT":
        scale = np.sqrt((FREEDOM - 2.0) / FREEDOM)
        return StudentT(draws.mean(axis=0), scale * shrunk_factor(draws))

    def sample(self, rng: np.random.Generator, num: int) -> Float[np.ndarray, "S d"]:
        normal = rng.normal(size=(num, len(self.mean)))
        stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, size=(num, 1)))
        return self.mean + (normal * stretch) @ self.factor.T

    def log_density(self, at: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        d = len(self.mean)
        white = solve_triangular(self.factor, (at - self.mean).T, lower=True)
        log_det = np.sum(np.log(np.diagonal(self.factor)))
        return log_t(np.sum(white**2, axis=0), log_det, d, FREEDOM)


def log_t(square: Any, log_det: Any, d: int, freedom: float) -> np.ndarray:
    """Log density of a t in d dimensions, by its squared distance and half its log det.

    Example:
        >>> import numpy as np
        >>> from steingp import evidence
        >>> log_density = evidence.log_t(1.0, 0.0, 1, 1.0)  # 1 / (2 pi)
        >>> bool(np.isclose(log_density, -np.log(2 * np.pi)))
        True
    """
    constant = gammaln(0.5 * (freedom + d)) - gammaln(0.5 * freedom)
    constant -= 0.5 * d * np.log(freedom * np.pi)
    kernel = -0.5 * (freedom + d) * np.log1p(square / freedom)
    return kernel + constant - log_det


def bridge(
    draws: Float[np.ndarray, "sweeps J d"],
    values: Float[np.ndarray, "sweeps J"],
    log_density: LogDensity,
    *,
    seed: int = 0,
    inside: Inside | None = None,
    num_proposals: int = NUM_PROPOSALS,
) -> Evidence:
    """The log of the integral of exp(log_density).

    Args:
        draws: from the density, of at least two particles.
        values: `log_density` of the draws.
        log_density: of positions (S, d).
        inside: where given, the integral is over the region in which it is True alone;
            draws outside are left out.
        num_proposals: evaluations of `log_density` that this costs.

    Raises:
        ValueError: a half of the particles has too few draws in the region for a t.

    Example:
        >>> import numpy as np
        >>> from steingp import evidence
        >>> draws = np.random.default_rng(0).normal(size=(50, 20, 1))
        >>> density = lambda z: -0.5 * np.sum(z**2, axis=1)
        >>> right = evidence.bridge(
        ...     draws, density(draws.reshape(-1, 1)).reshape(50, 20), density,
        ...     inside=lambda z: z[:, 0] > 0.0)
        >>> round(float(np.exp(right.log_value)), 1)                # sqrt(2 pi) / 2
        1.3
    """
    rng = np.random.default_rng(seed)
    d = draws.shape[-1]
    halves = []
    for fitted, bridged in ((0, 1), (1, 0)):
        own, at = _kept(draws[:, fitted::2], values[:, fitted::2], inside)[0], _kept(
            draws[:, bridged::2], values[:, bridged::2], inside
        )  # fmt: skip
        if len(own) < fewest_draws(d) or not len(at[0]):
            raise ValueError(
                f"a t in {d} dimensions needs at least {fewest_draws(d)} draws, of either "
                f"half of the particles; got {len(own)} and {len(at[0])}."
            )
        t = StudentT.fitted(own)
        proposals = t.sample(rng, num_proposals // 2)
        proposed = np.asarray(log_density(proposals), float)
        proposed = np.where(np.isnan(proposed), -np.inf, proposed)
        if inside is not None:
            proposed = np.where(inside(proposals), proposed, -np.inf)
        size = (
            _effective(draws[:, bridged::2]) * len(at[0]) / draws[:, bridged::2, 0].size
        )
        halves.append(
            _optimal(
                at[1] - t.log_density(at[0]), proposed - t.log_density(proposals), size
            )
        )
    (one, one_variance, one_overlap), (two, two_variance, two_overlap) = halves
    # the halves' estimates share no draws; their difference tells what the formula omits
    formula = 0.25 * (one_variance + two_variance)
    seen = 0.25 * (one - two) ** 2
    return Evidence(
        log_value=0.5 * (one + two),
        error=float(np.sqrt(max(formula, seen))),
        halves=(one, two),
        overlap=min(one_overlap, two_overlap),
    )


ValuesAndScores = Callable[
    [Float[np.ndarray, "S d"]],
    tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S d"]],
]


def log_mass_near(
    peak: Float[np.ndarray, " d"], evaluate: ValuesAndScores, step: float = 1e-3
) -> float:
    """log of the mass about a peak, by the quadratic that fits the density there.

    The curvature is by differences of scores; -inf where it is not that of a peak, or the
    top is more than d log units higher. `peak` need not be quite at the top.

    Example:
        >>> import numpy as np
        >>> from steingp import evidence
        >>> normal = lambda z: (-0.5 * np.sum(z**2, axis=1), -z)
        >>> mass = evidence.log_mass_near(np.array([0.1, 0.2]), normal)
        >>> bool(abs(mass - np.log(2 * np.pi)) < 1e-6)
        True
    """
    d = len(peak)
    steps = step * np.eye(d)
    values, scores = evaluate(np.concatenate([peak[None], peak + steps, peak - steps]))
    H = -(scores[1 : d + 1] - scores[d + 1 :]) / (2.0 * step)
    H = 0.5 * (H + H.T)
    if not np.all(np.isfinite(H)) or np.linalg.eigvalsh(H)[0] <= 0.0:
        return -np.inf
    gain = 0.5 * scores[0] @ np.linalg.solve(H, scores[0])
    if gain > d:
        return -np.inf
    half_log_det = 0.5 * np.linalg.slogdet(H)[1]
    return float(values[0] + gain + 0.5 * d * np.log(2.0 * np.pi) - half_log_det)


def rough_log_mass(
    draws: Float[np.ndarray, "S d"], values: Float[np.ndarray, " S"]
) -> float:
    """log of the integral of a density from draws alone, as if it were Gaussian.

    Example:
        >>> import numpy as np
        >>> from steingp import evidence
        >>> z = np.random.default_rng(0).normal(size=(5000, 2))
        >>> mass = evidence.rough_log_mass(z, -0.5 * np.sum(z**2, axis=1))
        >>> bool(abs(mass - np.log(2 * np.pi)) < 0.05)
        True
    """
    log_det = np.linalg.slogdet(np.atleast_2d(np.cov(draws.T)))[1]
    return gaussian_log_mass(values, log_det, draws.shape[1])


def gaussian_log_mass(values: Float[np.ndarray, " S"], log_det: float, d: int) -> float:
    """The same from log densities of draws and the log determinant of a covariance.

    Example:
        >>> import numpy as np
        >>> from steingp import evidence
        >>> evidence.gaussian_log_mass(np.array([-1.0]), 0.0, 2)  # log 2 pi
        1.8378770664093453
    """
    return float(np.mean(values) + 0.5 * (d * (1.0 + np.log(2.0 * np.pi)) + log_det))


def fewest_draws(d: int) -> int:
    """To which a t in d dimensions can be fitted.

    Example:
        >>> from steingp import evidence
        >>> evidence.fewest_draws(3)
        8
    """
    return 2 * d + 2


def _kept(
    draws: np.ndarray, values: np.ndarray, inside: Inside | None
) -> tuple[np.ndarray, np.ndarray]:
    flat, of_draws = draws.reshape(-1, draws.shape[-1]), values.ravel()
    if inside is None:
        return flat, of_draws
    mask = inside(flat)
    return flat[mask], of_draws[mask]


def _effective(draws: Float[np.ndarray, "sweeps J d"]) -> float:
    return float(np.median(mixing(draws).mean_size))


def _optimal(
    own: Float[np.ndarray, " n"], proposed: Float[np.ndarray, " m"], size: float
) -> tuple[float, float, float]:
    """The optimal bridge, from log density ratios at draws and at proposals.

    Returns the log of the integral, the variance of that (Fruehwirth-Schnatter 2004, the
    draws counting as `size` independent ones), and the overlap.
    """
    m = len(proposed)
    size = min(max(size, 2.0), len(own))
    log_share, log_other = np.log(size / (size + m)), np.log(m / (size + m))
    log_value = float(np.median(own))
    for _ in range(1000):
        top = log_sum(_ratio(proposed, log_share, log_other + log_value)) - np.log(m)
        bottom = log_sum(-np.logaddexp(log_share + own, log_other + log_value))
        new = float(top - (bottom - np.log(len(own))))
        if abs(new - log_value) < 1e-10:
            break
        log_value = new
    # both terms with the normalised density
    first = np.exp(_ratio(proposed - log_value, log_share, log_other))
    second = np.exp(-np.logaddexp(log_share + own - log_value, log_other))
    variance = first.var() / first.mean() ** 2 / m
    variance = variance + second.var() / second.mean() ** 2 / size
    weights = np.exp(proposed - np.max(proposed))
    return (
        log_value,
        float(variance),
        float(weights.sum() ** 2 / np.sum(weights**2) / m),
    )


def _ratio(log_ratio: np.ndarray, log_share: float, log_rest: float) -> np.ndarray:
    """log of r / (share r + rest), for a log ratio that may be -inf."""
    return log_ratio - np.logaddexp(log_share + log_ratio, log_rest)

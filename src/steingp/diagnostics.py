"""Diagnostics: what was checked of some draws, what was found, what to do about it.

Draws and the scores of their log density are enough for two questions that do not ask a
sampler's opinion of itself. *Spread*: for draws z from a density with score s, the mean of
-(z - mean)'s is the dimension, whatever the density (by parts); particles that have
collapsed make it smaller by the factor their variances are too small. *Stein discrepancy*:
the same for all functions of a large family, by a kernel.

    >>> import numpy as np
    >>> from steingp import diagnostics
    >>> z = np.random.default_rng(0).normal(size=(500, 3))
    >>> round(diagnostics.spread(z, -z).mean, 1)              # N(0, I): its score is -z
    1.0
    >>> round(diagnostics.spread(0.3 * z, -0.3 * z).mean, 2)          # collapsed draws
    0.09
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

NUM_SCORED = 200
"""Draws whose scores are asked for."""
NUM_MULTIPLIERS = 1000
"""Of the wild bootstrap for the Stein discrepancy."""


class Check(NamedTuple):
    """One question that was asked of a posterior."""

    name: str
    passed: bool | None
    """None: it was not asked, and `finding` says why."""
    finding: str
    """What was seen, with its number and the bound."""
    remedy: str = ""
    """What to do if it failed."""


class Verdict(NamedTuple):
    """Whether to trust a posterior, and all that this rests on.

    Example:
        >>> from steingp.diagnostics import Check, Verdict
        >>> short = Check("draws", False, "worth 12 draws, fewer than 100", "fit longer")
        >>> print(Verdict((short, Check("R-hat", True, "at most 1.02"))))
        Do not trust it: worth 12 draws, fewer than 100.
          FAILED  draws  worth 12 draws, fewer than 100
                         -> fit longer
          passed  R-hat  at most 1.02
    """

    checks: tuple[Check, ...]

    @property
    def trusted(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> list[Check]:
        """Checks that failed."""
        return [check for check in self.checks if check.passed is False]

    @property
    def line(self) -> str:
        """The verdict in one line: it claims what was checked, no more."""
        if self.failed:
            return f"Do not trust it: {'; '.join(c.finding for c in self.failed)}."
        passed = ", ".join(c.name for c in self.checks if c.passed)
        unknown = ", ".join(c.name for c in self.checks if c.passed is None)
        rest = f" Not checked: {unknown}." if unknown else ""
        return f"Nothing speaks against it. Checked: {passed}.{rest}"

    def __repr__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        words = {True: "passed", False: "FAILED", None: "   -  "}
        lines = [self.line]
        for check in self.checks:
            lines.append(
                f"  {words[check.passed]}  {check.name:{width}}  {check.finding}"
            )
            if check.passed is not True and check.remedy:
                lines.append(f"{'':{width + 12}}-> {check.remedy}")
        return "\n".join(lines)


class Spread(NamedTuple):
    """How wide draws are, against what the slope of their density asks for."""

    mean: float
    """Over all directions: 1 if right; of a Gaussian, the ratio of variances."""
    error: float
    """Standard error of `mean`, for independent draws."""
    smallest: float
    """In the worst direction; NaN where draws are too few to tell."""


def spread(draws: Float[np.ndarray, "S d"], scores: Float[np.ndarray, "S d"]) -> Spread:
    """The spread of draws against the scores of their log density.

    Example:
        >>> import numpy as np
        >>> from steingp import diagnostics
        >>> z = np.random.default_rng(0).normal(size=(500, 2))
        >>> narrow = z * np.array([1.0, 0.5])              # too narrow in one direction
        >>> round(diagnostics.spread(narrow, -narrow).smallest, 1)
        0.2
    """
    num, d = draws.shape
    centred = draws - draws.mean(axis=0)
    each = -np.sum(centred * scores, axis=1) / d * num / max(num - 1, 1)
    smallest = float("nan")
    if num >= 5 * d and num > 2:
        covariance = centred.T @ centred / (num - 1)
        scale = np.sqrt(np.diagonal(covariance))
        if np.all(scale > 0.0):
            L = np.linalg.cholesky(covariance + 1e-10 * np.diag(scale**2))
            white = solve_triangular(L, centred.T, lower=True)
            C = -(white @ (scores @ L)) / (num - 1)
            smallest = float(np.linalg.eigvalsh(0.5 * (C + C.T))[0])
    return Spread(float(each.mean()), float(each.std() / np.sqrt(num)), smallest)


class Discrepancy(NamedTuple):
    """A kernel Stein discrepancy, and what it is by chance."""

    value: float
    """Square root of the unbiased estimate of its square, 0 where that is negative."""
    bound: float
    """What independent draws from the density exceed one time in a thousand."""


def stein_discrepancy(
    draws: Float[np.ndarray, "S d"], scores: Float[np.ndarray, "S d"]
) -> Discrepancy:
    """The discrepancy between draws and the density of which these are the scores.

    The inverse multiquadric kernel (1 + r^2)^(-1/2) of draws in units of their sds, which
    sees what a Gaussian kernel does not from three dimensions on (Gorham and Mackey
    2017); the bound is by a wild bootstrap (Chwialkowski et al. 2016). It is blind to the
    masses of modes that are well apart.

    Example:
        >>> import numpy as np
        >>> from steingp import diagnostics
        >>> z = np.random.default_rng(0).normal(size=(200, 3))
        >>> good = diagnostics.stein_discrepancy(z, -z)
        >>> shifted = diagnostics.stein_discrepancy(z + 0.7, -(z + 0.7))
        >>> good.value < good.bound, shifted.value < shifted.bound
        (True, False)
    """
    num, d = draws.shape
    scale = draws.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    x, s = draws / scale, scores * scale
    squares = np.sum(x**2, axis=1)
    base = 1.0 + np.maximum(squares[:, None] + squares - 2.0 * x @ x.T, 0.0)
    k, slope = base**-0.5, -(base**-1.5)
    # grad_x k = slope (x - y), grad_y k = -grad_x k
    own = np.sum(s * x, axis=1)
    across = s @ x.T  # s_i' x_j
    first = slope * (across - own[:, None])  # s_x' grad_y k
    second = slope * (across.T - own[None, :])  # s_y' grad_x k
    trace = -(slope * d + 3.0 * (base - 1.0) * base**-2.5)
    u = k * (s @ s.T) + first + second + trace
    np.fill_diagonal(u, 0.0)
    pairs = num * (num - 1)
    # draws that are one and the same, of a particle that waited, have one sign
    _, which = np.unique(draws, axis=0, return_inverse=True)
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (NUM_MULTIPLIERS, num))[:, which.ravel()]
    by_chance = np.sum((signs @ u) * signs, axis=1) / pairs
    return Discrepancy(
        value=float(np.sqrt(max(u.sum() / pairs, 0.0))),
        bound=float(np.sqrt(max(np.quantile(by_chance, 0.999), 0.0))),
    )

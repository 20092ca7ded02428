"""Problems whose posterior is known: by long NUTS runs, or by a grid.

`problem(name)` has the data, the model and the test part; `load_reference(name)` what
benchmarks/references.py found and wrote to results/references. NUTS ran on theta alone
where f can be integrated out, and on the joint posterior of theta and nu where it cannot.

| names | data | likelihood | reference |
|---|---|---|---|
| `REGRESSION` | six UCI sets | Gaussian | NUTS |
| `JOINT` | UCI sets, simulated counts | Bernoulli, Poisson, StudentT | NUTS |
| `SPARSE` | concrete, 50 inducing points | Gaussian, Titsias's bound | NUTS |
| `UNIMODAL` | simulated, one input | Gaussian | grid |
| `BIMODAL` | simulated, one input: noise or signal? | Gaussian | grid |
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.signal import argrelmax

from steingp import inducing, kernels, likelihoods
from steingp.experiments.datasets import CLASSIFICATION, Split, neal, uci_split
from steingp.experiments.multimodal import LENGTHSCALE, NOISE, VARIANCE
from steingp.kernels import Kernel
from steingp.likelihoods import Likelihood
from steingp.linalg import DEFAULT_JITTER
from steingp.models import SteinGP
from steingp.precision import float64
from steingp.priors import fixed

_LIMITS = {"concrete": 300, "blood": 300}
"""Rows of the training part that are kept, where not all are."""

REGRESSION = ("boston", "autompg", "concrete", "servo", "concreteslump", "machine")
JOINT = ("hepatitis", "fertility", "blood", "poisson", "studentt")
SPARSE = ("concrete-sparse",)
UNIMODAL = ("neal", "neal-known-variance", "sine")
BIMODAL = ("two-modes", "two-modes-lognormal")

FOLDER = Path(__file__).parents[3] / "results" / "references"
"""Where the files are in a checkout of the repository."""


class Problem(NamedTuple):
    """Data, model and test part of one problem.

    Example:
        >>> from steingp.experiments.references import problem
        >>> problem("poisson").model(latents="joint")
        SteinGP(100 rows, 1 column, 100 latents per particle, 2 hyperparameters)
    """

    name: str
    data: Split
    kernel: Kernel
    likelihood: Likelihood
    Z: np.ndarray | None = None
    ranges: Mapping[str, tuple[float, float]] | None = None
    """Of the grid, where there is one."""

    @property
    def latents(self) -> str:
        """Those of the reference: "auto" where f is integrated out without error."""
        gaussian = isinstance(self.likelihood, likelihoods.Gaussian)
        return "auto" if gaussian else "joint"

    def model(self, latents: str | None = None, **options: Any) -> SteinGP:
        """The model; `latents` as the reference's if None."""
        return SteinGP(
            (self.data.X, self.data.y), self.kernel, self.likelihood, inducing=self.Z,
            latents=latents or self.latents, **options,
        )  # fmt: skip


def problem(name: str, max_rows: int | None = None) -> Problem:
    """The problem of that name, on at most `max_rows` training rows.

    Raises:
        ValueError: there is none of that name.
        FileNotFoundError: it needs UCI data that are not there.

    Example:
        >>> from steingp.experiments.references import problem
        >>> problem("sine").model()
        SteinGP(25 rows, 1 column, f integrated out, 3 hyperparameters)
    """
    ranges = None
    kernel: Kernel = kernels.SquaredExponential()
    likelihood: Likelihood = likelihoods.Gaussian()
    if name in UNIMODAL + BIMODAL:
        data, kernel, likelihood, ranges = _one_input(name)
    elif name == "poisson":
        data, likelihood = _counts(), likelihoods.Poisson()
    elif name == "studentt":
        data, likelihood = uci_split("machine"), likelihoods.StudentT()
    elif name in REGRESSION + JOINT + SPARSE:
        base = name.removesuffix("-sparse")
        data = uci_split(base, max_rows=_LIMITS.get(base))
        if name in CLASSIFICATION:
            likelihood = likelihoods.Bernoulli()
    else:
        everything = REGRESSION + JOINT + SPARSE + UNIMODAL + BIMODAL
        raise ValueError(f"no problem {name!r}; there are {', '.join(everything)}.")
    data = data._replace(X=data.X[:max_rows], y=data.y[:max_rows])
    Z = None
    if name in SPARSE:
        Z = inducing.greedy_variance(data.X, min(50, len(data.X)), kernel)
    return Problem(name, data, kernel, likelihood, Z, ranges)


def _counts() -> Split:
    """Poisson counts of rate exp(1.2 sin(2 x) + 0.8), 100 to fit and 50 to test."""
    rng = np.random.RandomState(1)
    X = rng.uniform(-3.0, 3.0, (150, 1))
    y = rng.poisson(np.exp(1.2 * np.sin(2.0 * X[:, 0]) + 0.8)).astype(float)
    return Split(X[:100], y[:100], X[100:], y[100:])


def _line_and_wave(
    num: int, height: float, slope: float, noise: float, frequency: float = 4.3
) -> Split:
    """y = slope x + height sin(frequency x) + noise on an even grid; tests between.

    A small wave on a steep line: is it signal (short lengthscale, little noise) or noise
    (long lengthscale)?
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-3.0, 3.0, num), rng.uniform(-3.0, 3.0, num)])
    y = height * np.sin(frequency * x) + slope * x
    # the training part's noise first, so that it does not depend on the test part
    y = y + noise * np.random.default_rng(0).normal(size=2 * num)
    X = x[:, None]
    return Split(X[:num], y[:num], X[num:], y[num:])


def _one_input(name: str) -> tuple[Split, Kernel, Likelihood, Mapping]:
    kernel: Kernel = kernels.SquaredExponential()
    likelihood = likelihoods.Gaussian()
    ranges = {LENGTHSCALE: (0.05, 50.0), VARIANCE: (0.01, 60.0), NOISE: (1e-5, 8.0)}
    if name == "neal":
        ranges = {LENGTHSCALE: (0.1, 20.0), VARIANCE: (0.02, 40.0), NOISE: (5e-3, 1.0)}
        return neal(seed=0), kernel, likelihood, ranges
    if name == "neal-known-variance":
        kernel = kernels.SquaredExponential(variance=fixed(1.0))
        ranges = {LENGTHSCALE: (0.1, 5.0), NOISE: (4e-3, 1.0)}
        return neal(seed=3), kernel, likelihood, ranges
    if name == "sine":
        rng = np.random.default_rng(2)
        X = rng.uniform(-2.0, 2.0, (50, 1))
        y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=50)
        kernel = kernels.SquaredExponential(
            lengthscales=dist.Gamma(3.0, 2.0), variance=dist.LogNormal(0.0, 1.0)
        )
        likelihood = likelihoods.Gaussian(dist.HalfNormal(0.5))
        ranges = {
            LENGTHSCALE: (0.03, 20.0),
            VARIANCE: (0.01, 100.0),
            NOISE: (0.01, 4.0),
        }
        return Split(X[:25], y[:25], X[25:], y[25:]), kernel, likelihood, ranges
    if name == "two-modes":
        return _line_and_wave(20, 0.2, 0.5, 0.03), kernel, likelihood, ranges
    kernel = kernels.SquaredExponential(
        lengthscales=dist.LogNormal(0.0, 1.5), variance=dist.LogNormal(0.0, 0.25)
    )
    likelihood = likelihoods.Gaussian(dist.LogNormal(float(np.log(0.02)), 2.5))
    ranges = {LENGTHSCALE: (0.05, 400.0), VARIANCE: (0.2, 5.0), NOISE: (1e-7, 10.0)}
    return _line_and_wave(20, 0.2, 0.3, 0.06), kernel, likelihood, ranges


# --- posteriors on a grid ---------------------------------------------------------------


class GridPosterior(NamedTuple):
    """An exact posterior on a grid that is even in the logarithms of theta."""

    axes: dict[str, np.ndarray]
    log_density: np.ndarray
    """Of log theta, normalised."""
    log_evidence: float
    """log p(y), under priors that integrate to 1."""

    @property
    def masses(self) -> np.ndarray:
        masses = np.exp(self.log_density - self.log_density.max())
        return masses / masses.sum()

    def marginal(self, name: str) -> np.ndarray:
        """Masses along one axis."""
        others = tuple(i for i, other in enumerate(self.axes) if other != name)
        return self.masses.sum(axis=others)

    def mean_and_sd(self, name: str, part: slice = slice(None)) -> tuple[float, float]:
        """Of log theta; `part` keeps only that stretch of lengthscales."""
        masses = np.zeros_like(self.masses)
        masses[part] = self.masses[part]
        others = tuple(i for i, other in enumerate(self.axes) if other != name)
        mass = masses.sum(axis=others) / masses.sum()
        x = np.log(self.axes[name])
        mean = float(mass @ x)
        return mean, float(np.sqrt(mass @ (x - mean) ** 2))

    @property
    def mass_at_ends(self) -> float:
        """The largest mass in an outermost layer of the grid; it should be nothing."""
        return max(float(self.marginal(name)[[0, -1]].max()) for name in self.axes)

    def modes(self) -> dict[str, Any]:
        """Where the lengthscale parts two modes, their masses, and how deep the valley is.

        Of the density of log theta, maximised over all but the lengthscale: no path from
        one mode to the other stays above the lowest point of that profile. The depth is
        the lower peak over that point, as a logarithm.
        """
        profile = self.log_density.max(axis=tuple(range(1, self.log_density.ndim)))
        peaks = argrelmax(profile)[0]
        best: tuple[float, int] | None = None
        for i, first in enumerate(peaks):
            for second in peaks[i + 1 :]:
                valley = int(first + np.argmin(profile[first : second + 1]))
                depth = min(profile[first], profile[second]) - profile[valley]
                if best is None or depth > best[0]:
                    best = float(depth), valley
        if best is None:
            return {"depth": 0.0, "masses": [1.0]}
        depth, valley = best
        lengthscales = self.axes[LENGTHSCALE]
        below = float(self.marginal(LENGTHSCALE)[: valley + 1].sum())
        cut = float(np.sqrt(lengthscales[valley] * lengthscales[valley + 1]))
        return {
            "depth": depth,
            "cut": cut,
            "masses": [below, 1.0 - below],
            "modes": [
                self._describe(part)
                for part in (slice(0, valley + 1), slice(valley + 1, None))
            ],
        }

    def _describe(self, part: slice) -> dict[str, Any]:
        inside = self.log_density[part]
        peak = np.unravel_index(np.argmax(inside), inside.shape)
        first = (peak[0] + (part.start or 0), *peak[1:])
        return {
            "peak": {
                name: float(axis[i])
                for (name, axis), i in zip(self.axes.items(), first, strict=True)
            },
            "log_mean_and_sd": {
                name: self.mean_and_sd(name, part) for name in self.axes
            },
        }


@float64
def grid_posterior(
    problem: Problem, num: int = 100, jitter: float = DEFAULT_JITTER
) -> GridPosterior:
    """The exact posterior of a problem with one input, `num` values per hyperparameter.

    One eigendecomposition per lengthscale serves all values of variance and noise: with
    R = U diag(r) U', K = variance R + noise has eigenvalues variance r + noise.

    Example:
        >>> from steingp.experiments.references import grid_posterior, problem
        >>> grid = grid_posterior(problem("sine"), num=30)
        >>> round(grid.mean_and_sd("likelihood.variance")[0], 1)
        -2.2
    """
    if problem.ranges is None:
        raise ValueError(f"{problem.name} has too many hyperparameters for a grid.")
    axes = {name: np.geomspace(*ends, num) for name, ends in problem.ranges.items()}
    X, y = problem.data.X, problem.data.y
    variances = axes.get(VARIANCE, np.ones(1))
    log_density = np.empty((num, len(variances), num))
    squares = (X - X.T) ** 2
    for i, lengthscale in enumerate(axes[LENGTHSCALE]):
        r, U = np.linalg.eigh(np.exp(-0.5 * squares / lengthscale**2))
        eigenvalues = variances[:, None, None] * np.maximum(r, 0.0)
        eigenvalues = eigenvalues + axes[NOISE][None, :, None] + jitter
        terms = np.log(2.0 * np.pi * eigenvalues) + (U.T @ y) ** 2 / eigenvalues
        log_density[i] = -0.5 * np.sum(terms, axis=-1)
    log_density = log_density.reshape([num] * len(axes))
    free = problem.model().target.specification.hyperparameters.free
    for parameter in free:
        values = axes[parameter.name]
        prior = parameter.prior
        while isinstance(prior, dist.ExpandedDistribution):
            prior = prior.base_dist
        # as a density of the logarithm
        log_prior = np.asarray(prior.log_prob(jnp.asarray(values))) + np.log(values)
        shape = [-1 if name == parameter.name else 1 for name in axes]
        log_density = log_density + log_prior.reshape(shape)
    cell = sum(np.log(np.log(axis[1] / axis[0])) for axis in axes.values())
    highest = log_density.max()
    log_evidence = float(np.log(np.exp(log_density - highest).sum()) + highest + cell)
    return GridPosterior(axes, log_density - log_evidence, log_evidence)


# --- what was found ---------------------------------------------------------------------


class Reference(NamedTuple):
    """What is known of a problem's posterior; the grid's have no draws."""

    labels: list[str]
    """Of the hyperparameters, in the order of all that follows."""
    mean: np.ndarray
    """Of log theta, as is all that follows."""
    sd: np.ndarray
    draws: np.ndarray | None
    """(S, d), thinned."""
    mean_error: np.ndarray | None
    """Standard errors of mean and sd, by effective sizes."""
    sd_error: np.ndarray | None
    r_hat: np.ndarray | None
    effective_size: np.ndarray | None
    f_mean: np.ndarray | None
    """Of f at the training rows."""
    f_sd: np.ndarray | None
    test_log_density: np.ndarray | None
    """Of each test row."""
    Z: np.ndarray | None
    about: dict[str, Any]
    """Seeds, sizes, seconds, versions, log evidence, modes."""


def load_reference(name: str, folder: Path | str = FOLDER) -> Reference:
    """The reference of a problem, from its file.

    Raises:
        FileNotFoundError: there is none.

    Example:
        >>> from steingp.experiments.references import load_reference
        >>> load_reference("two-modes").labels  # doctest: +SKIP
        ['kernel.lengthscales[0]', 'kernel.variance', 'likelihood.variance']
    """
    path = Path(folder) / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"no reference {path}; benchmarks/references.py makes it."
        )
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    about = json.loads(str(arrays.pop("about")))
    labels = [str(label) for label in arrays.pop("labels")]
    rest = {key: arrays.get(key) for key in Reference._fields if key in OPTIONAL}
    return Reference(labels, arrays["mean"], arrays["sd"], about=about, **rest)


OPTIONAL = frozenset(Reference._fields) - {"labels", "mean", "sd", "about"}


def save_reference(reference: Reference, name: str, folder: Path | str) -> Path:
    """Write a reference to a small file of its own."""
    arrays = {
        key: np.asarray(value)
        for key, value in reference._asdict().items()
        if value is not None and key != "about"
    }
    if reference.draws is not None:
        arrays["draws"] = reference.draws.astype(np.float32)
    path = Path(folder) / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays["about"] = np.asarray(json.dumps(reference.about))
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def device_name() -> str:
    """What computes here, for the record."""
    return jax.devices()[0].device_kind

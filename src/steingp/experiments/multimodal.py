"""The multimodal study, section 5.2: Neal's data, with the exact posterior beside it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import argrelmax
from scipy.stats import multivariate_normal

from steingp import kernels, metrics, plots
from steingp.experiments.datasets import Split, neal
from steingp.inference import fit
from steingp.linalg import DEFAULT_JITTER
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.summaries import weighted_quantiles

LENGTHSCALE, VARIANCE, NOISE = (
    "kernel.lengthscales",
    "kernel.variance",
    "likelihood.variance",
)


class Grid(NamedTuple):
    """A posterior on a product grid: axes by name, and masses that sum to 1."""

    axes: dict[str, np.ndarray]
    masses: np.ndarray

    def marginal(self, *names: str) -> np.ndarray:
        """Masses of these axes, in the order of the grid."""
        others = tuple(i for i, name in enumerate(self.axes) if name not in names)
        return self.masses.sum(axis=others)

    def valley(self, name: str) -> float | None:
        """Where the density of one logarithm is lowest between its two highest peaks."""
        density = self.marginal(name)
        peaks = argrelmax(density)[0]
        if len(peaks) < 2:
            return None
        low, high = np.sort(peaks[np.argsort(density[peaks])[-2:]])
        lowest = low + int(np.argmin(density[low:high]))
        return float(self.axes[name][lowest])

    def mean_and_sd(self, name: str) -> tuple[float, float]:
        """Of the logarithm of one hyperparameter."""
        x, mass = np.log(self.axes[name]), self.marginal(name)
        mean = float(mass @ x)
        return mean, float(np.sqrt(mass @ (x - mean) ** 2))


def grid_posterior(
    X: np.ndarray, y: np.ndarray, num: int = 60, jitter: float = DEFAULT_JITTER
) -> Grid:
    """The exact posterior of Neal's model under the default priors, on a grid.

    The grid is even in the logarithms of lengthscale, variance and noise variance. One
    eigendecomposition of the correlation matrix per lengthscale serves all values of
    the other two: with R = U diag(r) U', K = variance R + noise has eigenvalues
    variance r + noise.
    """
    axes = {
        LENGTHSCALE: np.geomspace(0.05, 20.0, num),
        VARIANCE: np.geomspace(0.02, 20.0, num),
        NOISE: np.geomspace(0.003, 1.0, num),
    }
    variance = axes[VARIANCE][:, None, None]
    noise = axes[NOISE][None, :, None] + jitter
    log_density = np.empty((num, num, num))
    squares = (X - X.T) ** 2
    for i, lengthscale in enumerate(axes[LENGTHSCALE]):
        r, U = np.linalg.eigh(np.exp(-0.5 * squares / lengthscale**2))
        eigenvalues = variance * np.maximum(r, 0.0) + noise
        log_density[i] = -0.5 * np.sum(
            np.log(eigenvalues) + (U.T @ y) ** 2 / eigenvalues, axis=-1
        )
    for axis, values in enumerate(axes.values()):
        # the prior Gamma(1, 0.5), as a density of the logarithm
        shape = [-1 if k == axis else 1 for k in range(3)]
        log_density += (np.log(values) - 0.5 * values).reshape(shape)
    masses = np.exp(log_density - log_density.max())
    return Grid(axes, masses / masses.sum())


class DemoResult(NamedTuple):
    split: Split
    posterior: Posterior
    grid: Grid

    @property
    def comment(self) -> str:
        """Where the draws lie, beside the truth."""
        lines = ["\nThe draws beside the exact posterior (mean +- sd, on a grid):"]
        for name in self.grid.axes:
            mean, sd = self.grid.mean_and_sd(name)
            draws = np.log(np.ravel(self.posterior.particles[name]))
            ours = float(self.posterior.weights @ draws)
            spread = float(np.sqrt(self.posterior.weights @ (draws - ours) ** 2))
            lines.append(
                f"  log {name:20} exact {mean:5.2f} +- {sd:.2f}, draws "
                f"{ours:5.2f} +- {spread:.2f}"
            )
        valley = self.grid.valley(LENGTHSCALE)
        if valley is not None:
            exact = self.grid.marginal(LENGTHSCALE)[
                self.grid.axes[LENGTHSCALE] < valley
            ]
            short = np.ravel(self.posterior.particles[LENGTHSCALE]) < valley
            lines.append(
                f"Two peaks, parted at a lengthscale of {valley:.2f}; mass of the shorter "
                f"one: exact {exact.sum():.3f}, draws {self.posterior.weights @ short:.3f}"
            )
            if len(self.posterior.modes) == 1:
                lines.append("(particles go from one to the other: one run has both)")
        if len(self.posterior.modes) > 1:
            masses = zip(self.posterior.modes, self.grid_masses(), strict=True)
            for number, (mode, exact) in enumerate(masses):
                lines.append(
                    f"  mass of mode {number + 1:<12} exact {exact:5.3f}, draws "
                    f"{mode.mass:.3f}"
                )
        return "\n".join(lines)

    def grid_masses(self) -> np.ndarray:
        """The exact mass of each mode: of the grid's cells that are nearest to it.

        Nearest is by the Gaussian density of the mode's draws, in logarithms.
        """
        names = list(self.grid.axes)
        cells = np.meshgrid(
            *(np.log(a) for a in self.grid.axes.values()), indexing="ij"
        )
        points = np.stack([cell.ravel() for cell in cells], axis=1)
        draws = np.stack(
            [np.log(np.ravel(self.posterior.particles[n])) for n in names], axis=1
        )
        near = []
        for part in (draws[mode.draws] for mode in self.posterior.modes):
            covariance: Any = np.cov(part.T)
            near.append(
                multivariate_normal.logpdf(points, part.mean(axis=0), cov=covariance)
            )
        return np.bincount(
            np.argmax(near, axis=0), self.grid.masses.ravel(), len(self.posterior.modes)
        )


def demo_in_words(num_particles: int, effective_size: float) -> str:
    """What the demo is about to do, in rich's markup."""
    return (
        "[bold]Neal's data with outliers[/bold] (section 5.2 of the paper): 100 rows to "
        "fit, 100 held out. A Gaussian process with a squared exponential kernel and "
        "Gaussian noise. Modes of its three hyperparameters are looked for by tempering; "
        f"{num_particles} particles then move in each until their draws are worth "
        f"{effective_size} independent ones. (The default seed was picked for its two "
        "modes; most have one.)\n"
    )


def fit_demo(
    seed: int, num_particles: int, effective_size: float, progress: bool = True
) -> DemoResult:
    """Simulate the data, fit them, and integrate the exact posterior."""
    split = neal(seed)
    model = SteinGP((split.X, split.y), kernels.SquaredExponential())
    posterior = fit(
        model, num_particles=num_particles, effective_size=effective_size, seed=seed,
        progress=progress,
    )  # fmt: skip
    return DemoResult(split, posterior, grid_posterior(split.X, split.y))


def score_table(result: DemoResult, seconds: float) -> Any:
    """RMSE, log density and coverage on the held-out half, as a rich table."""
    from rich.table import Table

    split = result.split
    prediction = result.posterior.predict_y(split.X_test)
    low, high = prediction.interval(0.9)
    table = Table(title="100 held-out observations", title_justify="left")
    for heading in ("RMSE", "mean log density", "in the 90 % interval", "seconds"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{metrics.rmse(split.y_test, prediction.mean):.3f}",
        f"{prediction.log_prob(split.y_test).mean():.3f}",
        f"{100 * metrics.coverage(split.y_test, low, high):.0f} %",
        f"{seconds:.1f}",
    )
    return table


def write_figures(result: DemoResult, folder: Path) -> list[Path]:
    """The predictive band, and the particles over the exact posterior."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split, posterior, grid = result
    axes = plots.predictive_band(
        posterior, split.X, split.y, X_test=split.X_test, y_test=split.y_test
    )
    axes.set_title("Neal's data: every particle's prediction, mixed", fontsize=10)
    band = folder / "predictive_band.png"
    plt.gcf().savefig(band, dpi=150)

    names = list(grid.axes)
    labels = {LENGTHSCALE: f"{LENGTHSCALE}[0]"}
    density = {
        (labels.get(a, a), labels.get(b, b)): (
            grid.axes[a],
            grid.axes[b],
            grid.marginal(a, b).T,
        )
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    chosen = [labels.get(name, name) for name in names]
    figure = plots.pairs(posterior, chosen, density=density)
    for panel, (a, b) in zip(figure.axes, density, strict=True):
        inverse = {v: k for k, v in labels.items()}
        for name, limit in ((a, panel.set_xlim), (b, panel.set_ylim)):
            key = inverse.get(name, name)
            low, high = weighted_quantiles(
                np.log(grid.axes[key]), grid.marginal(key), [0.001, 0.999]
            )
            draws = np.log(np.ravel(posterior.particles[key]))
            low, high = min(low, draws.min()), max(high, draws.max())
            limit(np.exp(low - 0.1), np.exp(high + 0.1))
    shown = min(posterior.num_draws, 300)
    figure.suptitle("20 %, 50 %, 80 %, 95 % of the exact posterior (grey) and "
                    f"{shown} draws (dots)", fontsize=10)  # fmt: skip
    cloud = folder / "particles.png"
    figure.savefig(cloud, dpi=150)
    plt.close("all")
    return [band, cloud]

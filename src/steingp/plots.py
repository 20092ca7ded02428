"""Figures: matplotlib axes in, axes out.

Colours are from Okabe and Ito's palette, which colour-blind readers can tell apart.
"""

import itertools
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike

from steingp.posterior import Posterior
from steingp.targets import LATENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#999999", "#222222"


def predictive_band(
    posterior: Posterior,
    X: ArrayLike,
    y: ArrayLike,
    axes: "Axes | None" = None,
    *,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    level: float = 0.9,
    num_functions: int = 5,
    num_points: int = 200,
) -> "Axes":
    """Data of one input column with the band that holds `level` of new observations.

    Args:
        posterior: of a model with one input column.
        X, y: the data it was fitted to.
        axes: where to draw; a new figure by default.
        X_test, y_test: held-out data, drawn hollow.
        num_functions: draws of the latent function to show.
        num_points: at how many points to evaluate.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.fit(model, effective_size=50, progress=False)
        >>> axes = plots.predictive_band(posterior, X, np.sin(6 * X))
    """
    axes = _new_axes((7.5, 4.2)) if axes is None else axes
    x, values = np.ravel(np.asarray(X, float)), np.ravel(np.asarray(y, float))
    everything = [x] if X_test is None else [x, np.ravel(np.asarray(X_test, float))]
    low, high = np.min(np.concatenate(everything)), np.max(np.concatenate(everything))
    margin = 0.05 * (high - low)
    grid = np.linspace(low - margin, high + margin, num_points)[:, None]
    prediction = posterior.predict_y(grid)
    lower, upper = prediction.interval(level)
    functions = posterior.predict_f(grid).sample(num_functions)
    label = f"{100 * level:.0f} % of new observations"
    axes.fill_between(
        grid[:, 0], lower, upper, color=BLUE, alpha=0.18, lw=0, label=label
    )
    for i, function in enumerate(functions):
        name = "draws of the function" if i == 0 else None
        axes.plot(grid[:, 0], function, color=BLUE, lw=0.7, alpha=0.6, label=name)
    axes.plot(grid[:, 0], prediction.mean, color=BLUE, lw=2.2, label="predictive mean")
    axes.plot(x, values, "o", ms=3.5, color=BLACK, label="data")
    if X_test is not None and y_test is not None:
        x_test, held_out = np.ravel(np.asarray(X_test)), np.ravel(np.asarray(y_test))
        axes.plot(x_test, held_out, "o", ms=4, mfc="none", mec=ORANGE, label="held out")
    axes.set_xlabel("x" if posterior.labels[0] == "0" else posterior.labels[0])
    axes.set_ylabel("y")
    axes.legend(
        frameon=False, fontsize=8, ncols=5, loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
    )  # fmt: skip
    _tidy(axes)
    return axes


def particles(
    posterior: Posterior,
    names: list[str] | None = None,
    *,
    log_scale: bool = True,
    density: dict[tuple[str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]
    | None = None,
) -> "Figure":
    """Every pair of hyperparameters against each other, each particle a dot.

    Args:
        names: which ones, as in `posterior.summary()`; the first six by default.
        log_scale: logarithmic axes, for positive hyperparameters.
        density: a density to draw under the dots for some pairs, (x, y, values with
            rows along y), such as the posterior on a grid.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.fit(model, effective_size=50, progress=False)
        >>> len(plots.particles(posterior).axes)
        3
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    columns = _scalar_columns(posterior)
    names = names or list(columns)[:6]
    pairs = list(itertools.combinations(names, 2)) or [(names[0], names[0])]
    across = min(3, len(pairs))
    down = -(-len(pairs) // across)
    figure, grid = plt.subplots(
        down, across, figsize=(3.6 * across, 3.3 * down), squeeze=False
    )
    for axes in list(grid.flat)[len(pairs) :]:
        axes.remove()
    for axes, (first, second) in zip(grid.flat, pairs, strict=False):
        if density and (first, second) in density:
            x, y, values = density[first, second]
            levels = _levels(values, (0.95, 0.8, 0.5, 0.2))
            axes.contourf(x, y, values, levels=levels, cmap="Greys", alpha=0.55)
        # many draws would hide what lies beneath them
        some = np.linspace(0, posterior.num_draws - 1, min(posterior.num_draws, 300))
        some = some.astype(int)
        size = 26.0 * np.clip(posterior.weights * posterior.num_draws, 0.2, 5.0)[some]
        few = posterior.num_draws <= 50
        axes.scatter(
            columns[first][some], columns[second][some], s=size if few else 0.35 * size,
            color=ORANGE, edgecolor="white" if few else "none",
            alpha=1.0 if few else 0.6, lw=0.5, zorder=3,
        )  # fmt: skip
        if log_scale:
            axes.set_xscale("log")
            axes.set_yscale("log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(first)
        axes.set_ylabel(second)
        _tidy(axes)
    figure.tight_layout()
    return figure


def _levels(values: np.ndarray, masses: tuple[float, ...]) -> list[float]:
    """Heights above which the density holds these masses, rising."""
    heights = np.sort(values.ravel())[::-1]
    mass = np.cumsum(heights) / np.sum(heights)
    cuts = [heights[np.searchsorted(mass, m)] for m in masses]
    return [*cuts, float(heights[0]) * 1.001]


def _scalar_columns(posterior: Posterior) -> dict[str, np.ndarray]:
    return {
        label: column
        for name in posterior.particles
        if name != LATENTS
        for label, column in posterior.named_columns(name)
    }


def _new_axes(size: tuple[float, float]) -> "Axes":
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _tidy(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)

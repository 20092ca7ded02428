"""Where the hyperparameters are: one by one, in pairs, and which inputs matter."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steingp.plots.columns import (
    Column,
    Group,
    choose_columns,
    groups_of,
    prior_density,
    weighted_density,
)
from steingp.plots.style import (
    BLACK,
    BLUE,
    ORANGE,
    figure_of,
    input_name,
    log_axis,
    one_panel,
    several_panels,
    tidy,
)
from steingp.posterior import Posterior
from steingp.summaries import weighted_quantiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 50
"""Up to how many draws each is shown by itself."""

Density = tuple[np.ndarray, np.ndarray, np.ndarray]


def marginals(
    posterior: Posterior, names: Sequence[str] | None = None, axes: Any = None
) -> "Figure":
    """The density of every hyperparameter, coloured by mode, with its prior.

    Positive ones have a logarithmic axis, and the density is that of the logarithm.
    Where there are several modes each has its share of the area. Up to 50 draws stand
    as ticks at the bottom.

    Args:
        posterior: with weights and modes, which are used.
        names: which ones, as in `posterior.summary()`; the first twelve by default.
        axes: one Axes per name; a new figure by default.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> len(plots.marginals(posterior).axes)
        3
    """
    columns, groups = choose_columns(posterior, names, 12), groups_of(posterior)
    panels = several_panels(
        axes, len(columns), (3.2, 2.4), 4 if len(columns) > 6 else 3
    )
    for panel, (name, column) in zip(panels, columns.items(), strict=True):
        _marginal(panel, column, groups, posterior.weights)
        panel.set_xlabel(name)
        panel.set_yticks([])
        panel.set_ylim(bottom=0.0)
        tidy(panel)
        panel.spines["left"].set_visible(False)
    _legend(panels[0])
    return figure_of(panels)


def _marginal(
    axes: "Axes", column: Column, groups: list[Group], weights: np.ndarray
) -> None:
    values = np.log(column.values) if column.positive else column.values
    # a kernel estimate of few draws reaches far beyond them
    margin = (0.15 if len(values) > _FEW else 0.6) * np.ptp(values) or 0.5
    grid = np.linspace(values.min() - margin, values.max() + margin, 300)
    shown = np.exp(grid) if column.positive else grid
    for group in groups:
        draws = group.draws
        density = weighted_density(values[draws], weights[draws], grid)
        axes.fill_between(
            shown, density, color=group.colour, alpha=0.35, lw=0, label=group.label
        )
        axes.plot(shown, density, color=group.colour, lw=1.4)
        if len(values) <= _FEW:
            axes.vlines(
                column.values[draws], 0.0, 0.06, color=group.colour, lw=1.2,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
    prior = prior_density(column, shown)
    if prior is not None:
        axes.plot(shown, prior, color=BLACK, lw=0.9, ls="--", label="prior")
    axes.set_xlim(shown[0], shown[-1])
    if column.positive:
        log_axis(axes, "x")


def pairs(
    posterior: Posterior,
    names: Sequence[str] | None = None,
    axes: Any = None,
    *,
    density: Mapping[tuple[str, str], Density] | None = None,
) -> "Figure":
    """Every pair of hyperparameters against each other, each draw a dot.

    Dots are coloured by mode, and larger where the weight is. Positive hyperparameters
    have logarithmic axes. Of many draws 300 are shown.

    Args:
        posterior: with two hyperparameters or more.
        names: which ones, as in `posterior.summary()`; the first six by default.
        axes: one Axes per pair, in the order of `itertools.combinations(names, 2)`; a
            new figure by default.
        density: a density to draw under the dots for some pairs, (x, y, values with
            rows along y), such as the posterior on a grid.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> len(plots.pairs(posterior).axes)
        3
    """
    columns, groups = choose_columns(posterior, names, 6), groups_of(posterior)
    if len(columns) < 2:
        raise ValueError(
            f"names must hold two hyperparameters or more; got {list(columns)}. For one "
            "alone use plots.marginals."
        )
    couples = list(itertools.combinations(columns, 2))
    corner = axes is None
    if corner:
        axes = _corner(len(columns))
    panels = several_panels(axes, len(couples), (3.0, 3.0), 3)
    for panel, (first, second) in zip(panels, couples, strict=True):
        if density and (first, second) in density:
            _shade(panel, *density[first, second])
        _dots(panel, columns[first], columns[second], groups, posterior.weights)
        # in the triangle a label serves a whole column, or row
        panel.set_xlabel("" if corner and second != couples[-1][1] else first)
        panel.set_ylabel("" if corner and first != couples[0][0] else second)
        tidy(panel)
    if len(groups) > 1:
        _legend_of_pairs(panels, corner and len(columns) > 2)
    return figure_of(panels)


def _corner(number: int) -> list["Axes"]:
    """Axes of the lower triangle, in the order of the pairs."""
    import matplotlib.pyplot as plt

    side = number - 1
    width = 3.1 if number < 5 else 2.4
    figure = plt.figure(figsize=(width * side + 0.8, width * side + 0.4))
    figure.set_layout_engine("constrained")
    grid = figure.add_gridspec(side, side)
    couples = itertools.combinations(range(number), 2)
    return [figure.add_subplot(grid[second - 1, first]) for first, second in couples]


def _dots(
    axes: "Axes", x: Column, y: Column, groups: list[Group], weights: np.ndarray
) -> None:
    num = len(weights)
    few = num <= _FEW
    # many draws would hide what lies beneath them
    some = np.linspace(0, num - 1, min(num, 300)).astype(int)
    size = (26.0 if few else 9.0) * np.clip(weights * num, 0.2, 5.0)
    for group in groups:
        draws = np.intersect1d(group.draws, some)
        axes.scatter(
            x.values[draws], y.values[draws], s=size[draws],
            color=group.colour if group.label else ORANGE,
            edgecolor="white" if few else "none", alpha=1.0 if few else 0.6, lw=0.5,
            zorder=3, label=group.label,
        )  # fmt: skip
    if x.positive:
        log_axis(axes, "x")
    if y.positive:
        log_axis(axes, "y")


def _shade(axes: "Axes", x: np.ndarray, y: np.ndarray, values: np.ndarray) -> None:
    """20, 50, 80 and 95 % of the mass, by their heights."""
    heights = np.sort(values.ravel())[::-1]
    mass = np.cumsum(heights) / np.sum(heights)
    cuts = [heights[np.searchsorted(mass, m)] for m in (0.95, 0.8, 0.5, 0.2)]
    levels = [*cuts, float(heights[0]) * 1.001]
    axes.contourf(x, y, values, levels=levels, cmap="Greys", alpha=0.55)


def _legend(axes: "Axes") -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=7, handlelength=1.2)


def _legend_of_pairs(panels: list["Axes"], corner: bool) -> None:
    """In the empty corner above the diagonal, where there is one."""
    if not corner:
        panels[0].legend(
            frameon=False, fontsize=7, handlelength=1.0, ncols=2, loc="lower left",
            bbox_to_anchor=(0.0, 1.0), borderpad=0.0, columnspacing=1.0,
        )  # fmt: skip
        return
    handles, labels = panels[0].get_legend_handles_labels()
    figure_of(panels).legend(
        handles, labels, frameon=False, fontsize=9, loc="upper right", markerscale=1.5
    )


def relevance(
    posterior: Posterior, name: str | None = None, axes: "Axes | None" = None
) -> "Axes":
    """Lengthscales of the input columns, the most relevant column on top.

    Dots are medians, lines reach from 5 to 95 %. Lengthscales are divided by the sd of
    their column, so that columns of different units compare (with standardised data
    that changes nothing): a column matters where its lengthscale is short.

    Args:
        posterior: of a kernel with a lengthscale per column.
        name: whose lengthscales, such as "kernel.lengthscales"; all by default.
        axes: where to draw; a new figure by default.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.random.default_rng(0).normal(size=(20, 3))
        >>> model = sg.SteinGP((X, np.sin(X[:, 0])), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> axes = plots.relevance(posterior)
    """
    rows = _lengthscales(posterior, name)
    rows = dict(sorted(rows.items(), key=lambda row: row[1][1]))
    axes = one_panel(axes, (6.0, 1.2 + 0.32 * len(rows)))
    low, middle, high = np.array(list(rows.values())).T
    heights = np.arange(len(rows))
    axes.hlines(heights, low, high, color=BLUE, lw=2.5, alpha=0.5)
    axes.plot(middle, heights, "o", color=BLUE, ms=6)
    axes.set_yticks(heights, list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("lengthscale, in sds of its column (short: relevant)")
    tidy(axes)
    log_axis(axes, "x")
    return axes


def _lengthscales(
    posterior: Posterior, name: str | None
) -> dict[str, list[float]]:  # fmt: skip
    """Label -> the 5, 50 and 95 % points of a column's scaled lengthscale."""
    free = posterior._target.specification.hyperparameters.free
    found = {p.name: p for p in free if p.name.endswith("lengthscales") and p.shape}
    if name is not None and name not in found:
        raise ValueError(
            f"name must be one of the lengthscales with a value per input column, "
            f"{', '.join(found) or 'of which there are none'}; got {name!r}."
        )
    if not found:
        raise ValueError(
            "posterior has no lengthscale per input column to compare; its "
            f"hyperparameters are {', '.join(posterior.summary())}. Use a kernel with "
            "free lengthscales, one per column, such as sg.kernels.Matern52()."
        )
    chosen = [name] if name is not None else list(found)
    spread = np.std(np.asarray(posterior._data.X), axis=0)
    rows = {}
    for one in chosen:
        for i, column in enumerate(found[one].columns):
            label = input_name(posterior.labels[column], len(posterior.labels))
            label += (
                f"  ({one.removesuffix('.lengthscales')})" if len(chosen) > 1 else ""
            )
            values = posterior.particles[one][:, i] / (spread[column] or 1.0)
            points = weighted_quantiles(values, posterior.weights, [0.05, 0.5, 0.95])
            rows[label] = points
    return rows

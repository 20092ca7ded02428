"""How a run went: paths of particles, and numbers sweep by sweep."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steingp.checks import check_count
from steingp.plots.columns import columns_of, paths_of
from steingp.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    choose,
    figure_of,
    log_axis,
    one_panel,
    several_panels,
    tidy,
)
from steingp.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = ("acceptance", "step", "log_density")
"""Of `posterior.trace`, in this order."""


def trajectories(
    posterior: Posterior,
    names: Sequence[str] | None = None,
    axes: "Axes | None" = None,
    *,
    num_particles: int | None = None,
) -> "Axes":
    """Paths of particles in the plane of two hyperparameters: hollow start, full end.

    Args:
        posterior: with `paths`: from `steingp.fit`, or from plain SVGD, which records
            about 100 moments of a run.
        names: which two, as in `posterior.summary()`; the first two by default.
        axes: where to draw; a new figure by default.
        num_particles: at most how many particles to follow; by default 20 of plain SVGD,
            and 3 of a fit, whose paths fill the plane.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> opt = sg.SVGD(model, n_particles=5)
        >>> opt.run(20, progress=False)
        >>> axes = plots.trajectories(opt.posterior())
    """
    if num_particles is None:
        num_particles = 20 if posterior.history is not None else 3
    check_count("num_particles", num_particles)
    paths = _recorded(posterior)
    names = choose("names", names, list(paths), 2)
    if len(names) != 2:
        raise ValueError(
            f"names must be two different hyperparameters; got {list(names)}. For one "
            "alone use plots.traces."
        )
    axes = one_panel(axes, (5.2, 4.4))
    x, y = (_some(paths[name], num_particles) for name in names)
    axes.plot(x, y, color=BLUE, lw=0.8, alpha=0.45 if len(x) <= 200 else 0.15)
    axes.plot(
        x[0],
        y[0],
        "o",
        ms=4.5,
        mfc="white",
        mec=BLACK,
        mew=0.9,
        label="start",
        zorder=3,
    )
    axes.plot(
        x[-1], y[-1], "o", ms=5.5, color=ORANGE, mec="white", mew=0.5, label="end",
        zorder=4,
    )  # fmt: skip
    columns = columns_of(posterior)
    for name, values, which in ((names[0], x, "x"), (names[1], y, "y")):
        if columns[name].positive and np.all(values > 0.0):
            log_axis(axes, which)
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.legend(
        frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0)
    )
    tidy(axes)
    return axes


def traces(
    posterior: Posterior,
    names: Sequence[str] | None = None,
    axes: Any = None,
    *,
    num_particles: int = 3,
) -> "Figure":
    """The run over time: acceptance, step and mean log density, then hyperparameters.

    For plain SVGD the first panels are its mean log density, its bandwidth, and the
    sizes of attraction and repulsion.

    Args:
        posterior: with `trace`, `history` or `paths`, from `steingp.fit` or `SVGD`.
        names: whose paths to show, as in `posterior.summary()`; the first six by
            default, an empty list for none.
        axes: one Axes per panel; a new figure by default.
        num_particles: how many particles' paths to show.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> opt = sg.SVGD(model, n_particles=5)
        >>> opt.run(20, progress=False)
        >>> [panel.get_ylabel() for panel in plots.traces(opt.posterior(), []).axes]
        ['mean log density', 'bandwidth', 'size of the two terms']
    """
    check_count("num_particles", num_particles)
    numbers, paths = _numbers(posterior), paths_of(posterior)
    if not numbers and not paths:
        raise ValueError(
            "posterior has nothing of its run to draw: trace, history and paths are "
            "empty. Make it by steingp.fit(model), or by SVGD(model) after run()."
        )
    names = choose("names", names, list(paths), 6)
    panels = several_panels(axes, len(numbers) + len(names), (3.4, 2.2), 3)
    time = "step" if _is_svgd(posterior) else "sweep"
    for panel, (label, series) in zip(panels, numbers.items(), strict=False):
        _series(panel, series)
        panel.set_ylabel(label)
        panel.set_xlabel(time)
        if label == "acceptance":
            panel.set_ylim(0.0, 1.02)
    columns = columns_of(posterior)
    for panel, name in zip(panels[len(numbers) :], names, strict=True):
        values = _some(paths[name], num_particles)
        panel.plot(values, lw=0.8, alpha=0.8)
        for line, colour in zip(panel.lines, _colours(num_particles), strict=False):
            line.set_color(colour)
        if columns[name].positive and np.all(values > 0.0):
            log_axis(panel, "y")
        panel.set_ylabel(name)
        panel.set_xlabel("recorded moment" if _is_svgd(posterior) else time)
    for panel in panels:
        tidy(panel)
    return figure_of(panels)


def panel_names(posterior: Posterior) -> list[str]:
    """What `traces` draws by default, panel by panel; nothing if nothing was kept."""
    return [*_numbers(posterior), *list(paths_of(posterior))[:6]]


def _series(axes: "Axes", series: dict[str, np.ndarray]) -> None:
    for (name, values), colour in zip(series.items(), (BLUE, ORANGE), strict=False):
        told = np.flatnonzero(np.isfinite(values))
        axes.plot(told, values[told], color=colour, lw=1.0, label=name)
    if len(series) > 1:
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=7, handlelength=1.2)


def _numbers(posterior: Posterior) -> dict[str, dict[str, np.ndarray]]:
    """A label for each panel of numbers per sweep, and its series by name."""
    numbers = {}
    for name in _SHOWN:
        if len(values := np.ravel(posterior.trace.get(name, []))):
            label = "mean log density" if name == "log_density" else name
            numbers[label] = {name: values}
    if _is_svgd(posterior):
        history: Any = posterior.history
        terms = {"attraction": history.attraction, "repulsion": history.repulsion}
        numbers["mean log density"] = {"log_density": history.log_density}
        numbers["bandwidth"] = {"bandwidth": history.bandwidth}
        numbers["size of the two terms"] = terms
    return numbers


def _is_svgd(posterior: Posterior) -> bool:
    return posterior.history is not None and len(posterior.history.log_density) > 0


def _recorded(posterior: Posterior) -> dict[str, np.ndarray]:
    paths = paths_of(posterior)
    if not paths:
        raise ValueError(
            "posterior.paths is empty: no paths were recorded. Make the posterior by "
            "steingp.fit(model) or by SVGD(model)."
        )
    return paths


def _some(path: np.ndarray, number: int) -> np.ndarray:
    """Paths of at most so many particles, evenly spaced."""
    J = path.shape[1]
    return path[:, np.linspace(0, J - 1, min(number, J)).astype(int)]


def _colours(number: int) -> list[str]:
    return [(BLUE, ORANGE, GREEN)[i % 3] for i in range(number)]

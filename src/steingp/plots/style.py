"""What all figures share: colours, new axes, tidy axes, and the names of things."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#999999", "#222222"
PURPLE, YELLOW, SKY = "#CC79A7", "#E69F00", "#56B4E9"

MODE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY)
"""Of the modes, largest first; any further ones are grey."""


def one_panel(axes: Any, size: tuple[float, float]) -> "Axes":
    """The given Axes, or those of a new figure."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if axes is None:
        return plt.subplots(figsize=size, layout="constrained")[1]
    if not isinstance(axes, Axes):
        raise ValueError(
            f"axes must be one matplotlib Axes, or None for a new figure; got "
            f"{type(axes).__name__}. From plt.subplots(2, 2)[1] pick one, as in axes[0, 0]."
        )
    return axes


def several_panels(
    axes: Any, number: int, size: tuple[float, float], across: int
) -> list["Axes"]:
    """The given Axes, or `number` new ones, `across` of them in a row."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if axes is None:
        across = min(across, number)
        down = -(-number // across)
        grid = plt.subplots(
            down, across, figsize=(size[0] * across, size[1] * down), squeeze=False,
            layout="constrained",
        )[1]  # fmt: skip
        for empty in list(grid.flat)[number:]:
            empty.remove()
        return list(grid.flat)[:number]
    given = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != number or not all(isinstance(one, Axes) for one in given):
        kinds = sorted({type(one).__name__ for one in given})
        raise ValueError(
            f"axes must hold {number} matplotlib Axes, one per panel; got {len(given)} of "
            f"{', '.join(kinds) or 'nothing'}. Leave it out for a new figure."
        )
    return given


def figure_of(axes: Sequence["Axes"]) -> "Figure":
    """The whole figure, also where the axes stand in a part of it."""
    return axes[0].figure.figure  # type: ignore[return-value]


def tidy(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def log_axis(axes: "Axes", which: str) -> None:
    """A logarithmic axis ("x" or "y") whose ticks are plain numbers, and few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    class FewTicks(LogLocator):
        """Finer the narrower the range is when the figure is drawn."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            decades = np.log10(vmax / vmin)
            if decades < 0.5:  # there may be no round number
                return MaxNLocator(4).tick_values(vmin, vmax)
            fine, middle = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0)
            subs = fine if decades < 1 else middle if decades < 2 else (1.0,)
            self.set_params(subs=subs, numticks=8)
            return super().tick_values(vmin, vmax)

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(FewTicks())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def legend_below(axes: "Axes", columns: int) -> None:
    """A legend under the axes, where it hides nothing."""
    axes.legend(
        frameon=False, fontsize=8, ncols=columns, loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
    )  # fmt: skip


def input_name(label: str, num_inputs: int = 1) -> str:
    """What to write at the axis of an input column: columns without a name are x."""
    if not label.isdigit():
        return label
    return "x" if num_inputs == 1 else f"x[{label}]"


def choose(
    name: str, given: Sequence[str] | None, known: Sequence[str], most: int
) -> list[str]:
    """`given`, if all of them are known; the first `most` known ones by default."""
    if given is None:
        return list(known)[:most]
    given = [given] if isinstance(given, str) else list(given)
    unknown = [one for one in given if one not in known]
    if unknown or len(set(given)) < len(given):
        raise ValueError(
            f"{name} must be some of {', '.join(known)}, each once; got {given}. "
            "posterior.summary() lists the names."
        )
    return given

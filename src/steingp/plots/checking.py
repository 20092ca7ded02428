"""Whether predictions hold what they promise, and where their uncertainty comes from."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from steingp.checks import check_count
from steingp.data import check_column, check_inputs
from steingp.likelihoods import Bernoulli
from steingp.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    input_name,
    legend_below,
    one_panel,
    tidy,
)
from steingp.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PARTS = {
    "noise": GREY, "function": BLUE, "hyperparameters": ORANGE, "modes": GREEN,
}  # fmt: skip
_BAND = 0.9
"""The level of the bands and intervals that chance alone would leave."""


def calibration(
    prediction: Prediction,
    y: ArrayLike,
    axes: "Axes | None" = None,
    *,
    num_bins: int = 10,
) -> "Axes":
    """Observed against promised: on the diagonal where the predictions are right.

    For numbers and counts: the share of y inside the central interval of every level,
    with the band that holds 90 % of the shares of right predictions (binomial, one level
    at a time). A count's jump of the distribution function is spread evenly over
    itself, so that right predictions of counts lie on the diagonal, too.

    For labels 0 and 1: the share of ones in bins of equal numbers of rows against their
    mean predicted probability, with 90 % intervals (Jeffreys).

    Args:
        prediction: of new observations, from `posterior.predict_y(X)`.
        y: what was observed at these rows, best not used in the fit.
        axes: where to draw; a new figure by default.
        num_bins: of the probabilities of labels.

    Reference:
        Czado, Gneiting and Held (2009), Predictive model assessment for count data.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> y = np.sin(6 * X[:, 0])
        >>> model = sg.SteinGP((X[::2], y[::2]), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> axes = plots.calibration(posterior.predict_y(X[1::2]), y[1::2])
    """
    if not isinstance(prediction, Prediction):
        raise ValueError(
            "prediction must be one of posterior.predict_y(X); got "
            f"{type(prediction).__name__}."
        )
    check_count("num_bins", num_bins)
    observed = check_column(y, "y", len(prediction.mean))
    prediction._likelihood.check_targets(observed)
    axes = one_panel(axes, (4.6, 4.4))
    axes.plot([0, 1], [0, 1], color=BLACK, lw=0.8, ls="--")
    if isinstance(prediction._likelihood, Bernoulli):
        _reliability(axes, prediction.mean, observed, num_bins)
    else:
        _coverage(axes, prediction, observed)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    tidy(axes)
    return axes


def _coverage(axes: "Axes", prediction: Prediction, y: np.ndarray) -> None:
    from scipy.stats import binom

    levels = np.linspace(0.0, 1.0, 101)
    upper = prediction.cdf(y)
    lower = prediction.cdf(y - 1.0) if prediction._likelihood.is_discrete else upper
    shares = np.array([np.mean(_inside(lower, upper, level)) for level in levels])
    tails = (0.5 - 0.5 * _BAND, 0.5 + 0.5 * _BAND)
    low, high = (binom.ppf(tail, len(y), levels[1:-1]) / len(y) for tail in tails)
    axes.fill_between(
        levels[1:-1], low, high, color=GREY, alpha=0.3, lw=0,
        label=f"{100 * _BAND:.0f} % of right predictions",
    )  # fmt: skip
    axes.plot(levels, shares, color=BLUE, lw=2.0, label=f"{len(y)} observations")
    axes.set_xlabel("level of the central interval")
    axes.set_ylabel("share of observations inside")


def _inside(lower: np.ndarray, upper: np.ndarray, level: float) -> np.ndarray:
    """How much of [lower, upper] lies in the middle `level` of [0, 1]; a point: 0 or 1."""
    low, high = 0.5 - 0.5 * level, 0.5 + 0.5 * level
    jump = upper - lower
    overlap = np.clip(np.minimum(upper, high) - np.maximum(lower, low), 0.0, None)
    point = (low <= upper) & (upper <= high)
    return np.where(jump > 1e-12, overlap / np.maximum(jump, 1e-12), point)


def _reliability(axes: "Axes", p: np.ndarray, y: np.ndarray, num_bins: int) -> None:
    from scipy.stats import beta

    bins = np.array_split(np.argsort(p, kind="stable"), min(num_bins, len(p)))
    promised = np.array([p[rows].mean() for rows in bins])
    ones = np.array([y[rows].sum() for rows in bins])
    size = np.array([len(rows) for rows in bins])
    tails = (0.5 - 0.5 * _BAND, 0.5 + 0.5 * _BAND)
    low, high = (beta.ppf(tail, ones + 0.5, size - ones + 0.5) for tail in tails)
    axes.vlines(promised, low, high, color=BLUE, lw=1.6, alpha=0.5)
    axes.plot(
        promised, ones / size, "o", color=BLUE, ms=5.5,
        label=f"{len(bins)} bins of about {len(y) / len(bins):.0f} rows",
    )  # fmt: skip
    axes.set_xlabel("predicted probability of y = 1")
    axes.set_ylabel("share of rows with y = 1")


def uncertainty(split: Any, x: Any = None, axes: "Axes | None" = None) -> "Axes":
    """The variance of a prediction as a sum of its sources, stacked.

    Along x where it is one column; otherwise a bar per row, the largest first. Sources
    that are 0 everywhere are left out.

    Args:
        split: what `posterior.uncertainty(X)` returns: arrays (S,) `noise`, `function`,
            `hyperparameters`, `modes` and `total`.
        x: the input column, (S,) or (S, 1), if there is just one.
        axes: where to draw; a new figure by default.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> from steingp import plots
        >>> parts = dict(noise=1.0, function=2.0, hyperparameters=0.5, modes=0.0)
        >>> split = {name: np.full(5, value) for name, value in parts.items()}
        >>> axes = plots.uncertainty(SimpleNamespace(**split, total=np.full(5, 3.5)))
        >>> len(axes.get_legend().get_texts())
        3
    """
    parts, total = _parts(split)
    axes = one_panel(axes, (7.0, 3.8))
    colours = [_PARTS[name] for name in parts]
    values, label = (None, "") if x is None else _one_column(x, len(total))
    if values is None:
        order = np.argsort(-total, kind="stable")
        _bars(axes, {name: part[order] for name, part in parts.items()})
        axes.set_xlabel("rows, sorted by their variance")
    else:
        order = np.argsort(values)
        stack = [part[order] for part in parts.values()]
        axes.stackplot(
            values[order], stack, labels=list(parts), colors=colours, alpha=0.85, lw=0
        )
        axes.set_xlim(values.min(), values.max())
        axes.set_xlabel(label)
    axes.set_ylabel("variance")
    axes.set_ylim(0.0, 1.05 * float(total.max()) or 1.0)
    legend_below(axes, 4)
    tidy(axes)
    return axes


def _bars(axes: "Axes", parts: dict[str, np.ndarray]) -> None:
    below = np.zeros(len(next(iter(parts.values()))))
    number = np.arange(1, len(below) + 1)
    width = 0.9 if len(below) <= 60 else 1.0
    for name, part in parts.items():
        axes.bar(
            number, part, width, bottom=below, color=_PARTS[name], alpha=0.85, lw=0,
            label=name,
        )  # fmt: skip
        below = below + part
    axes.set_xlim(0.4, len(below) + 0.6)


def _parts(split: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    missing = [name for name in (*_PARTS, "total") if not hasattr(split, name)]
    if missing:
        raise ValueError(
            "split must be what posterior.uncertainty(X) returns; got "
            f"{type(split).__name__} without {', '.join(missing)}."
        )
    total = np.asarray(split.total, float)
    parts = {name: np.asarray(getattr(split, name), float) for name in _PARTS}
    wrong = [name for name, part in parts.items() if part.shape != total.shape]
    if wrong or total.ndim != 1 or not len(total):
        raise ValueError(
            "split must hold arrays of one shape (S,); got "
            + ", ".join(f"{name} {part.shape}" for name, part in parts.items())
            + f", total {total.shape}."
        )
    # what round-off alone could leave is not seen
    seen = {n: part for n, part in parts.items() if np.any(part > 1e-9 * total)}
    return seen or {"noise": parts["noise"]}, total


def _one_column(x: Any, num_rows: int) -> tuple[np.ndarray | None, str]:
    """The values and the name of x, None for x of several columns."""
    values, labels = check_inputs(x, "x")
    if len(values) != num_rows:
        raise ValueError(
            f"x has {len(values)} rows and split has {num_rows}; they must describe the "
            "same rows."
        )
    if values.shape[1] > 1:
        return None, ""
    return values[:, 0], input_name(labels[0])

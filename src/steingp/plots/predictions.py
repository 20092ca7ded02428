"""What a posterior predicts: a band over one input column, maps over two."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from steingp.checks import check_count
from steingp.data import check_column, check_inputs
from steingp.likelihoods import Bernoulli, Likelihood
from steingp.plots.style import (
    BLACK,
    BLUE,
    ORANGE,
    figure_of,
    input_name,
    legend_below,
    one_panel,
    several_panels,
    tidy,
)
from steingp.posterior import Posterior
from steingp.precision import float64
from steingp.prediction import row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAP_DRAWS = 200
"""Draws behind a map: more would change no colour."""


def predictive_band(
    posterior: Posterior,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    axes: "Axes | None" = None,
    *,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    level: float = 0.9,
    num_functions: int = 5,
    num_points: int = 200,
) -> "Axes":
    """Data of one input column with the band that holds `level` of new observations.

    For labels 0 and 1 the band is that of their probability. So it is for counts whose
    exposure differs between rows: the band is that of the rate, and the data are drawn
    as counts over their exposure.

    Args:
        posterior: of a model with one input column.
        X, y: the data to draw; those of the fit by default.
        axes: where to draw; a new figure by default.
        X_test, y_test: held-out data, drawn hollow.
        level: of the band.
        num_functions: draws of the function to show, as means of y.
        num_points: at how many points to evaluate.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> axes = plots.predictive_band(posterior)
    """
    if len(posterior.labels) != 1:
        raise ValueError(
            f"posterior has {len(posterior.labels)} input columns; predictive_band draws "
            "one. Use plots.maps."
        )
    check_count("num_functions", num_functions, lowest=0)
    check_count("num_points", num_points, lowest=2)
    x, values = _pair("X", X, "y", y) or _shown_data(posterior)
    held_out = _pair("X_test", X_test, "y_test", y_test)
    axes = one_panel(axes, (7.5, 4.2))
    grid = _padded(np.concatenate([x, held_out[0]]) if held_out else x, num_points)
    mean, lower, upper, what = _band(posterior, grid, level)
    axes.fill_between(
        grid, lower, upper, color=BLUE, alpha=0.18, lw=0,
        label=f"{100 * level:.0f} % {what}",
    )  # fmt: skip
    for i, function in enumerate(_functions(posterior, grid, num_functions)):
        name = "draws of the function" if i == 0 else None
        axes.plot(grid, function, color=BLUE, lw=0.7, alpha=0.6, label=name)
    axes.plot(grid, mean, color=BLUE, lw=2.2, label="predictive mean")
    binary = isinstance(_likelihood(posterior), Bernoulli)
    marker, size = ("|", 9.0) if binary else ("o", 3.8)
    axes.plot(x, values, marker, ms=size, color=BLACK, label="data")
    if held_out:
        axes.plot(*held_out, marker, ms=size, mfc="none", mec=ORANGE, label="held out")
    axes.set_xlabel(input_name(posterior.labels[0]))
    axes.set_ylabel("probability of y = 1" if binary else _name_of_y(posterior))
    legend_below(axes, 5)
    tidy(axes)
    return axes


def maps(
    posterior: Posterior,
    columns: tuple[int | str, int | str] = (0, 1),
    axes: Any = None,
    *,
    of: str = "y",
    num_points: int = 40,
) -> "Figure":
    """Mean and sd over two input columns, side by side, with the data as dots.

    Dots on the mean have the colour of their y. Other columns are held at the data's
    median. For labels 0 and 1 the two maps of y are the probability's mean and sd.

    Args:
        posterior: of a model with at least two input columns.
        columns: which two, by number or by name.
        axes: two Axes; a new figure by default.
        of: "y" for new observations, "f" for the latent function.
        num_points: grid points along each side.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, steingp as sg
        >>> from steingp import plots
        >>> X = np.random.default_rng(0).normal(size=(20, 2))
        >>> model = sg.SteinGP((X, np.sin(X[:, 0])), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> figure = plots.maps(posterior, of="f", num_points=10)
    """
    if of not in ("y", "f"):
        raise ValueError(f'of must be "y" or "f"; got {of!r}.')
    check_count("num_points", num_points, lowest=2)
    first, second = _two_columns(posterior, columns)
    X, y = posterior.training_data
    y = y / _exposure(posterior)
    sides = [_padded(X[:, column], num_points) for column in (first, second)]
    grid = np.tile(np.median(X, axis=0), (num_points**2, 1))
    grid[:, first], grid[:, second] = (side.ravel() for side in np.meshgrid(*sides))
    mean, sd, names = _mean_and_sd(posterior, grid, of)
    panels = several_panels(axes, 2, (4.8, 4.0), 2)
    comparable = of == "y" or _likelihood(posterior).real_valued
    values = np.concatenate([mean, y]) if comparable else mean
    limits = {"vmin": values.min(), "vmax": values.max()}
    _map(panels[0], sides, mean, "viridis", names[0], **limits)
    _map(panels[1], sides, sd, "cividis", names[1])
    plain: dict[str, Any] = {"s": 16, "edgecolors": "white", "lw": 0.7, "c": BLACK}
    coloured = plain | {"c": y, "cmap": "viridis", **limits}
    panels[0].scatter(X[:, first], X[:, second], **(coloured if comparable else plain))
    panels[1].scatter(X[:, first], X[:, second], **plain)
    for panel in panels:
        panel.set_xlabel(input_name(posterior.labels[first], X.shape[1]))
        panel.set_ylabel(input_name(posterior.labels[second], X.shape[1]))
        tidy(panel)
    return figure_of(panels)


def _map(
    axes: "Axes",
    sides: list[np.ndarray],
    values: np.ndarray,
    colours: str,
    name: str,
    **limits: Any,
) -> None:
    image = axes.pcolormesh(
        *sides, values.reshape(len(sides[1]), len(sides[0])), cmap=colours,
        shading="gouraud", rasterized=True, **limits,
    )  # fmt: skip
    axes.figure.colorbar(image, ax=axes, pad=0.02).ax.tick_params(labelsize=8)
    axes.set_title(name, fontsize=10)


# --- what is drawn ----------------------------------------------------------------------


def _likelihood(posterior: Posterior) -> Likelihood:
    return posterior._target.specification.likelihood


def _exposure(posterior: Posterior) -> np.ndarray:
    """What each row's y is divided by: its exposure, where rows differ in it."""
    likelihood = _likelihood(posterior)
    rows = np.asarray(posterior._data.row)
    differs = likelihood.row_neutral == 1.0 and np.ptp(rows) > 0.0
    return rows if differs else np.ones(len(rows))


def _name_of_y(posterior: Posterior) -> str:
    return "y per unit of exposure" if np.any(_exposure(posterior) != 1.0) else "y"


def _shown_data(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    X, y = posterior.training_data
    return X[:, 0], y / _exposure(posterior)


def _pair(
    x_name: str, X: Any, y_name: str, y: Any
) -> tuple[np.ndarray, np.ndarray] | None:
    """Two columns of numbers, or None if neither was given."""
    if X is None and y is None:
        return None
    if X is None or y is None:
        missing = x_name if X is None else y_name
        raise ValueError(
            f"{missing} is missing: {x_name} and {y_name} go together. Give both, or "
            "neither."
        )
    values, _ = check_inputs(X, x_name, 1)
    return values[:, 0], check_column(y, y_name, len(values))


def _padded(x: np.ndarray, num_points: int) -> np.ndarray:
    """Points from just below to just above the data."""
    margin = 0.05 * np.ptp(x) or 0.5
    return np.linspace(x.min() - margin, x.max() + margin, num_points)


def _band(
    posterior: Posterior, grid: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Mean, lower and upper end, and what the band is of."""
    prediction = posterior.predict_y(grid)
    binary = isinstance(_likelihood(posterior), Bernoulli)
    if not binary and not np.any(_exposure(posterior) != 1.0):
        return prediction.mean, *prediction.interval(level), "of new observations"
    # P(y = 1 | f) and the rate grow with f, so that their quantiles are those of f
    ends = posterior.predict_f(grid).interval(level)
    lower, upper = (_mean_given_f(posterior, 0, end) for end in ends)
    what = "band of the probability" if binary else "band of the rate"
    return prediction.mean, lower, upper, what


def _functions(posterior: Posterior, grid: np.ndarray, number: int) -> list[np.ndarray]:
    """Draws of the function along the grid, each as the mean of y given f."""
    rng = np.random.default_rng(0)
    chosen = rng.choice(posterior.num_draws, number, p=posterior.weights)
    functions = []
    for seed, draw in enumerate(chosen):
        f = posterior.subset(np.array([draw])).predict_f(grid).sample(1, seed=seed)[0]
        functions.append(_mean_given_f(posterior, draw, f))
    return functions


@float64
def _mean_given_f(posterior: Posterior, draw: int, f: np.ndarray) -> np.ndarray:
    """E[y | f] under one draw's likelihood; f itself where y is f plus noise."""
    likelihood = _likelihood(posterior)
    if likelihood.real_valued:
        return f
    theta = {name: jnp.asarray(v[draw]) for name, v in posterior.particles.items()}
    bound = posterior._target.specification.at(theta).likelihood
    row = row_of(likelihood, posterior._scaling, 1, None)[0]
    return np.asarray(bound.conditional_mean(jnp.asarray(f), jnp.full(f.shape, row)))


def _mean_and_sd(
    posterior: Posterior, grid: np.ndarray, of: str
) -> tuple[np.ndarray, np.ndarray, tuple[str, str]]:
    if of == "f":
        prediction = posterior.predict_f(grid, max_draws=_MAP_DRAWS)
    else:
        prediction = posterior.predict_y(grid, max_draws=_MAP_DRAWS)
    if of == "f" or not isinstance(_likelihood(posterior), Bernoulli):
        name = "f" if of == "f" else _name_of_y(posterior)
        sd = np.sqrt(prediction.variance)
        return prediction.mean, sd, (f"mean of {name}", f"sd of {name}")
    nodes, masses = np.polynomial.hermite_e.hermegauss(20)
    square = np.zeros(len(grid))
    for node, mass in zip(nodes, masses / masses.sum(), strict=True):
        f = prediction.means + node * np.sqrt(prediction.variances)
        square += mass * prediction.weights @ _mean_given_f(posterior, 0, f) ** 2
    sd = np.sqrt(np.maximum(square - prediction.mean**2, 0.0))
    return prediction.mean, sd, ("probability of y = 1", "sd of the probability")


def _two_columns(posterior: Posterior, columns: Any) -> tuple[int, int]:
    labels = posterior.labels
    if len(labels) < 2:
        raise ValueError(
            "posterior has one input column; maps needs two. Use plots.predictive_band."
        )
    given = list(columns) if isinstance(columns, tuple | list) else [columns]
    numbers = [labels.index(c) if c in labels else c for c in given]
    right = [isinstance(n, int | np.integer) and 0 <= n < len(labels) for n in numbers]
    if len(set(map(str, numbers))) != 2 or len(numbers) != 2 or not all(right):
        raise ValueError(
            f"columns must be two different columns, by number (0 to {len(labels) - 1}) "
            f"or by name ({', '.join(labels)}); got {columns!r}."
        )
    return int(numbers[0]), int(numbers[1])

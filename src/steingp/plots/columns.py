"""Hyperparameters as columns of numbers, with what figures need to know of each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from steingp.plots.style import GREY, MODE_COLOURS, choose
from steingp.posterior import Posterior
from steingp.precision import float64
from steingp.priors import Parameter
from steingp.summaries import weighted_quantiles


class Column(NamedTuple):
    """One number per draw: a hyperparameter, or one entry of a vector of them."""

    values: np.ndarray
    positive: bool
    """Whether it can only be positive: then it is drawn on a logarithmic axis."""
    parameter: Parameter
    entry: int


class Group(NamedTuple):
    """Draws of one colour: a mode, or all of them."""

    label: str | None
    colour: str
    draws: np.ndarray


def columns_of(posterior: Posterior) -> dict[str, Column]:
    """The inferred hyperparameters by the names of `posterior.summary()`."""
    columns = {}
    free = posterior._target.specification.hyperparameters.free
    for parameter in _in_order(posterior, free):
        positive = _is_positive(parameter)
        named = posterior.named_columns(parameter.name)
        for entry, (label, values) in enumerate(named):
            is_positive = positive and bool(np.all(values > 0.0))
            columns[label] = Column(values, is_positive, parameter, entry)
    return columns


def choose_columns(
    posterior: Posterior, names: Sequence[str] | None, most: int
) -> dict[str, Column]:
    """The hyperparameters called `names`; the first `most` by default."""
    columns = columns_of(posterior)
    if not columns:
        raise ValueError(
            "posterior has no hyperparameters to draw: all of them are fixed. Draw its "
            "predictions, or leave some of them free."
        )
    chosen = choose("names", names, list(columns), most)
    return {name: columns[name] for name in chosen}


def _in_order(posterior: Posterior, free: Sequence[Parameter]) -> list[Parameter]:
    """As in `posterior.summary()`."""
    by_name = {parameter.name: parameter for parameter in free}
    return [by_name[name] for name in posterior.particles if name in by_name]


@float64
def _is_positive(parameter: Parameter) -> bool:
    support: Any = parameter.prior.support
    below = jnp.full(parameter.shape, -1e-9)
    return not bool(np.any(np.asarray(support(below))))


@float64
def prior_density(column: Column, grid: np.ndarray) -> np.ndarray | None:
    """The prior's density at the grid's points; None where entries are not independent.

    Of the logarithm for a positive hyperparameter, d theta = theta d log theta.
    """
    prior: Any = column.parameter.prior
    if prior.event_shape:
        return None

    def log_prob(value: Any) -> Any:
        everywhere = jnp.full(column.parameter.shape, value)
        inside = prior.support(everywhere)
        return jnp.where(inside, prior.log_prob(everywhere), -jnp.inf)

    values = np.asarray(jax.vmap(log_prob)(jnp.asarray(grid)))
    density = np.exp(values.reshape(len(grid), -1)[:, column.entry])
    return density * grid if column.positive else density


def groups_of(posterior: Posterior) -> list[Group]:
    """Draws by mode where there are several modes; else all in one group.

    Draws that belong to no mode, and the modes beyond the sixth, are grey.
    """
    everything = np.arange(posterior.num_draws)
    if len(posterior.modes) < 2:
        return [Group(None, MODE_COLOURS[0], everything)]
    groups = [
        Group(
            f"mode {number + 1}, mass {mode.mass:.2f}", colour, np.asarray(mode.draws)
        )
        for number, (mode, colour) in enumerate(
            zip(posterior.modes, MODE_COLOURS, strict=False)
        )
    ]
    rest = np.setdiff1d(everything, np.concatenate([g.draws for g in groups]))
    return groups + ([Group("other draws", GREY, rest)] if len(rest) else [])


def paths_of(posterior: Posterior) -> dict[str, np.ndarray]:
    """`posterior.paths` by the names of `posterior.summary()`, each (sweeps, J)."""
    paths = {}
    for name in posterior.particles:
        if name not in posterior.paths:
            continue
        values = np.asarray(posterior.paths[name], float)
        labels = [label for label, _ in posterior.named_columns(name)]
        values = values.reshape(*values.shape[:2], -1)
        paths |= {label: values[:, :, i] for i, label in enumerate(labels)}
    known = columns_of(posterior) if paths else {}
    return {label: values for label, values in paths.items() if label in known}


def weighted_density(
    values: np.ndarray, weights: np.ndarray, grid: np.ndarray
) -> np.ndarray:
    """A kernel estimate on the grid whose integral is the sum of the weights.

    Silverman's width 0.9 min(sd, quartiles' distance / 1.34) n^(-1/5), with the n that
    the weights are worth.
    """
    total = weights.sum()
    if not total > 0.0:
        return np.zeros(len(grid))
    share = weights / total
    mean = share @ values
    sd = np.sqrt(share @ (values - mean) ** 2)
    low, high = weighted_quantiles(values, share, [0.25, 0.75])
    spread = min(sd, (high - low) / 1.34) or sd
    width = 0.9 * spread * np.sum(share**2) ** 0.2
    width = max(width, (grid[-1] - grid[0]) / len(grid))
    z = (grid[:, None] - values[None, :]) / width
    return total * np.exp(-0.5 * z**2) @ share / (width * np.sqrt(2.0 * np.pi))

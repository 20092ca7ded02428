"""Data on its way in: checked and shaped once, scaled, split.

Users hand in NumPy or JAX arrays, lists, or pandas; everything behind this module sees
float64 `X (N, D)` and `y (N,)`. A batch also carries `row`, the one number per row that
a likelihood may know (an exposure, a known noise variance), and a `mask` that is 0 on
rows that only pad a short block: see `steingp.batches`.
"""

import dataclasses
import warnings
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp.checks import as_numbers


class Batch(NamedTuple):
    """Rows that enter one evaluation of a target: NumPy at rest, JAX where computed."""

    X: Any  # (B, D)
    y: Any  # (B,)
    row: Any  # (B,)
    mask: Any  # (B,)


def check_inputs(
    X: Any, name: str = "X", num_columns: int | None = None
) -> tuple[np.ndarray, list[str]]:
    """X as a float64 matrix, and the names of its columns.

    Args:
        X: (N, D), or (N,) for one column; pandas columns give their names.
        name: what to call it in messages.
        num_columns: the width it must have, if it is known.

    Raises:
        ValueError: not numbers, no rows, NaN or infinite values, the wrong width.
    """
    labels = [str(c) for c in X.columns] if hasattr(X, "columns") else None
    values = _as_floats(X, name)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(
            f"{name} must have rows and columns, shape (N, D); got shape {values.shape}."
        )
    if values.shape[0] == 0 or values.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {values.shape}: at least one row and one column is needed."
        )
    if num_columns is not None and values.shape[1] != num_columns:
        raise ValueError(
            f"{name} has {values.shape[1]} column(s), but the model was made for "
            f"{num_columns}; pass the same inputs in the same order."
        )
    _check_finite(values, name)
    return values, labels or [str(i) for i in range(values.shape[1])]


def in_order(X: Any, labels: list[str], name: str = "X") -> Any:
    """New inputs with the columns a model was made for, found by name in a data frame.

    Anything but a data frame is as it is, and so is one for a model of an array, whose
    columns have numbers for names.

    Raises:
        ValueError: a column is not there.

    Example:
        >>> import pandas as pd
        >>> from steingp.data import in_order
        >>> frame = pd.DataFrame({"b": [1.0], "id": [7.0], "a": [2.0]})
        >>> in_order(frame, ["a", "b"]).columns.tolist()
        ['a', 'b']
    """
    if not hasattr(X, "columns") or labels == [str(i) for i in range(len(labels))]:
        return X
    position = {str(column): i for i, column in enumerate(X.columns)}
    if missing := [label for label in labels if label not in position]:
        raise ValueError(
            f"{name} has no column {', '.join(map(repr, missing))}; the model was made for "
            f"{labels}, and {name} has {list(position)}. Rename its columns, or pass an "
            "array in the model's order."
        )
    return X.iloc[:, [position[label] for label in labels]]


def check_column(y: Any, name: str, num_rows: int) -> np.ndarray:
    """One number per row as a float64 vector; (N,) and (N, 1) are both accepted."""
    values = _as_floats(y, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(
            f"{name} must have one value per row, shape (N,) or (N, 1); got shape "
            f"{values.shape}."
        )
    if len(values) != num_rows:
        raise ValueError(
            f"X has {num_rows} rows and {name} has {len(values)}; they must describe the "
            "same observations."
        )
    _check_finite(values[:, None], name)
    return values


def _as_floats(values: Any, name: str) -> np.ndarray:
    if hasattr(values, "dtypes") and hasattr(values, "columns"):
        for column in values.columns:
            _as_floats(values[column].to_numpy(), f"column {column!r} of {name}")
    numbers = as_numbers(values)
    if numbers is None:
        raise ValueError(
            f"{name} must hold numbers; got {_kind(values)}. Convert text, categories "
            "and dates to numbers first."
        )
    return numbers


def _kind(values: Any) -> str:
    array = np.asarray(values, dtype=object).ravel()
    if not array.size:
        return type(values).__name__
    odd = next((v for v in array if as_numbers(v) is None), array[0])
    return f"{odd!r}, a {type(odd).__name__}"


def _check_finite(values: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        rows = int(bad.any(axis=1).sum())
        where = f"row {row}" + (f", column {column}" if values.shape[1] > 1 else "")
        raise ValueError(
            f"{name} has NaN or infinite values in {rows} row(s), first in {where}. "
            "Drop these rows or fill them in."
        )


def warn_about_scale(
    X: np.ndarray, y: np.ndarray | None, default_priors: bool, labels: list[str]
) -> None:
    """Warn of constant columns, and of default priors on data far from unit scale."""
    varies = X.max(axis=0) > X.min(axis=0)  # an sd may miss 0 by round-off
    spread = np.where(varies, X.std(axis=0), 0.0)
    constant = [labels[i] for i in np.flatnonzero(~varies)]
    if constant and len(X) > 1:
        warnings.warn(
            f"input column(s) {', '.join(constant)} are constant: they carry no "
            "information, and their lengthscales keep their priors.",
            stacklevel=4,
        )
    if not default_priors or len(X) < 2:
        return
    far = [labels[i] for i in np.flatnonzero(spread > 0) if not 0.05 < spread[i] < 20]
    if far:
        warnings.warn(
            f"input column(s) {', '.join(far)} are far from unit scale, which the "
            "default priors expect. Pass standardise=True, or priors of your own.",
            stacklevel=4,
        )
    if y is not None and (not 0.02 < y.std() < 50 or abs(y.mean()) > 10 * y.std()):
        warnings.warn(
            f"y has mean {y.mean():.3g} and sd {y.std():.3g}, far from the unit scale "
            "and zero mean that the default priors expect. Pass standardise=True, or "
            "priors and a mean function of your own.",
            stacklevel=4,
        )


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The affine maps between the user's units and the model's."""

    x_mean: np.ndarray | float = 0.0
    x_scale: np.ndarray | float = 1.0
    y_mean: float = 0.0
    y_scale: float = 1.0

    @staticmethod
    def of(X: np.ndarray, y: np.ndarray | None) -> "Scaling":
        """Zero mean and unit sd; a constant column is only centred."""
        scale = np.where(X.max(axis=0) > X.min(axis=0), X.std(axis=0), 1.0)
        if y is None:
            return Scaling(X.mean(axis=0), scale)
        y_scale = float(y.std()) if y.max() > y.min() else 1.0
        return Scaling(X.mean(axis=0), scale, float(y.mean()), y_scale)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        return (X - self.x_mean) / self.x_scale

    def inputs_back(self, X: Any) -> Any:
        return X * self.x_scale + self.x_mean

    def outputs(self, y: np.ndarray) -> np.ndarray:
        return (y - self.y_mean) / self.y_scale

    def outputs_back(self, y: Any) -> Any:
        return y * self.y_scale + self.y_mean


def split_rows(
    num_rows: int, fraction: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a random training and test part.

    Example:
        >>> from steingp.data import split_rows
        >>> train, test = split_rows(10)
        >>> len(train), len(test), len({*train, *test})
        (7, 3, 10)
    """
    order = np.random.default_rng(seed).permutation(num_rows)
    return order[: int(fraction * num_rows)], order[int(fraction * num_rows) :]


def as_batch(X: np.ndarray, y: np.ndarray, row: np.ndarray) -> Batch:
    """All rows, none masked."""
    return Batch(X, y, row, np.ones(len(y)))


def count_rows(batch: Batch) -> Float[Array, ""]:
    """How many rows of a batch are real."""
    return jnp.sum(batch.mask)

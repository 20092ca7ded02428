"""Weighted draws in a table: quantiles, rows of numbers, groups that lie apart."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from scipy.cluster.hierarchy import fcluster, linkage

_COLUMNS = ("mean", "sd", "5%", "50%", "95%")
_FAR = 1.75
"""Times the median link, from which a link parts two groups."""
_STRAGGLERS = 0.2
"""Share of the weight below which a group is none."""


def summary(
    columns: Mapping[str, Float[np.ndarray, " S"]], weights: Float[np.ndarray, " S"]
) -> dict[str, dict[str, float]]:
    """Mean, sd and the 5, 50 and 95 % points of each column.

    Example:
        >>> import numpy as np
        >>> from steingp import summaries
        >>> rows = summaries.summary({"a": np.array([1.0, 2.0, 3.0])}, np.ones(3) / 3)
        >>> rows["a"]["mean"], rows["a"]["50%"]
        (2.0, 2.0)
    """
    rows = {}
    for label, column in columns.items():
        mean = float(weights @ column)
        sd = float(np.sqrt(weights @ (column - mean) ** 2))
        points = weighted_quantiles(column, weights, [0.05, 0.5, 0.95])
        rows[label] = dict(zip(_COLUMNS, (mean, sd, *points), strict=True))
    return rows


def table(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines of a summary, under a head.

    Example:
        >>> import numpy as np
        >>> from steingp import summaries
        >>> rows = summaries.summary({"a": np.array([1.0, 2.0, 3.0])}, np.ones(3) / 3)
        >>> print(summaries.table(rows)[2])
        a                       2     0.8165        1.1          2        2.9
    """
    width = max([len(label) for label in rows] + [14])
    head = f"{'hyperparameter':{width}}" + "".join(f"{name:>11}" for name in _COLUMNS)
    lines = [head, "-" * len(head)]
    for label, row in rows.items():
        cells = "".join(f"{row[name]:>11.4g}" for name in _COLUMNS)
        lines.append(f"{label:{width}}{cells}")
    return lines


def groups(
    columns: list[Float[np.ndarray, " S"]], weights: Float[np.ndarray, " S"]
) -> list[np.ndarray]:
    """Draws that lie apart from each other: row numbers of each group, largest first.

    Draws are linked to their neighbours (in logarithms of what is positive, each column
    scaled by its sd), and a link 1.75 times as long as the median one parts two groups.
    Groups of less than a fifth of the weight are stragglers and are left out. Both bounds
    are rough: they were set with the demo's two modes in view, and 20 draws from one
    Gaussian in 2 dimensions are parted about one time in six, in 3 dimensions one time in
    fifty.

    Example:
        >>> import numpy as np
        >>> from steingp import summaries
        >>> apart = np.array([0.0, 0.1, 0.2, 9.0, 9.1, 9.2, 9.3])
        >>> [part.tolist() for part in summaries.groups([apart], np.ones(7) / 7)]
        [[3, 4, 5, 6], [0, 1, 2]]
    """
    columns = [np.log(c) if np.all(c > 0) else c for c in columns]
    columns = [c / np.std(c) for c in columns if np.std(c) > 0]
    if len(weights) < 4 or not columns:
        return [np.arange(len(weights))]
    tree = linkage(np.stack(columns, axis=1), "single")
    labels = fcluster(tree, _FAR * np.median(tree[:, 2]), "distance")
    parts = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    parts = [part for part in parts if weights[part].sum() >= _STRAGGLERS]
    return sorted(parts, key=lambda part: -weights[part].sum())


def weighted_quantiles(
    values: np.ndarray, weights: np.ndarray, q: list[float]
) -> list[float]:
    """Quantiles of weighted draws; with equal weights, NumPy's default definition.

    Example:
        >>> import numpy as np
        >>> from steingp.summaries import weighted_quantiles
        >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.ones(3) / 3, [0.5])
        [2.0]
    """
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    if len(values) == 1:
        return [float(values[0])] * len(q)
    # positions run from 0 at the lowest draw to 1 at the highest
    middle = np.cumsum(weights) - 0.5 * weights
    position = (middle - middle[0]) / (middle[-1] - middle[0])
    return [float(v) for v in np.interp(q, position, values)]

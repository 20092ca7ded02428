"""Shapes and ranges of what is to be scored, checked."""

import numpy as np
from numpy.typing import ArrayLike


def vectors(**named: ArrayLike) -> list[np.ndarray]:
    """Each argument as (n,), with one n."""
    vectors = []
    for name, values in named.items():
        values = np.asarray(values, float)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1 or len(values) == 0:
            raise ValueError(
                f"{name} must have shape (n,) with n >= 1; got {values.shape}. Give "
                "one number per observation."
            )
        vectors.append(values)
    first, *others = zip(named, vectors, strict=True)
    for name, vector in others:
        if len(vector) != len(first[1]):
            raise ValueError(
                f"{first[0]} has {len(first[1])} values and {name} has {len(vector)}; "
                "they must describe the same observations."
            )
    return vectors


def classified(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    labels, probabilities = vectors(labels=labels, probabilities=probabilities)
    strange = labels[~np.isin(labels, (0.0, 1.0)) & ~np.isnan(labels)]
    if len(strange):
        raise ValueError(
            f"labels must be 0 or 1; got {strange[0]}. For labels -1 and 1 pass "
            "labels > 0."
        )
    outside = probabilities[(probabilities < 0.0) | (probabilities > 1.0)]
    if len(outside):
        raise ValueError(
            f"probabilities must lie in [0, 1]; got {outside[0]}. Pass the probability "
            "of the label 1, not the latent function."
        )
    return labels, probabilities


def table(name: str, values: ArrayLike, y: np.ndarray) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim != 2 or len(values) == 0 or values.shape[1] != len(y):
        raise ValueError(
            f"{name} must have shape (S, {len(y)}), one column per observation in y; "
            f"got {values.shape}. Draws lead: transpose if they are columns."
        )
    return values


def draws_of_both(
    name_a: str, a: ArrayLike, name_b: str, b: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    tables = []
    for name, values in ((name_a, a), (name_b, b)):
        values = np.asarray(values, float)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(
                f"{name} must have shape (draws, d), neither of them 0; got "
                f"{values.shape}. Flatten other axes into columns."
            )
        tables.append(values)
    if tables[0].shape[1] != tables[1].shape[1]:
        raise ValueError(
            f"{name_a} has {tables[0].shape[1]} column(s) and {name_b} has "
            f"{tables[1].shape[1]}; they must hold the same quantities."
        )
    return tables[0], tables[1]


def normalised(name: str, weights: ArrayLike | None, size: int) -> np.ndarray:
    """Normalised weights of `size` draws; equal ones where None."""
    if weights is None:
        return np.full(size, 1.0 / size)
    w = np.asarray(weights, float)
    if w.shape != (size,):
        raise ValueError(
            f"{name} must have shape ({size},), one per draw; got {w.shape}."
        )
    if np.any(w < 0.0) or not np.sum(w) > 0.0:
        raise ValueError(
            f"{name} must not be negative and must have a positive sum; got values "
            f"from {np.min(w)} to {np.max(w)}. Pass weights, not their logarithms."
        )
    return w / np.sum(w)


def or_nan(share: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """`share`, but NaN where an input is NaN: comparisons would call that False."""
    return np.where(np.isnan(inputs), np.nan, share)

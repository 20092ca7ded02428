"""The two questions every entry asks of its arguments: is it numbers, is it a count?"""

from typing import Any

import numpy as np


def as_numbers(values: Any) -> np.ndarray | None:
    """`values` as a float64 array, or None if they are not plain numbers.

    Strings, dates and complex numbers are not, even where NumPy could convert them.
    Missing values of pandas become NaN.
    """
    if values is None:
        return None
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and not any(isinstance(v, str) for v in array.flat):
            array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return array.astype(np.float64) if array.dtype.kind in "buif" else None


def check_count(name: str, value: Any, lowest: int = 1) -> int:
    """A whole number of at least `lowest`.

    Raises:
        ValueError: with the argument's name, if it is anything else.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < lowest:
        raise ValueError(
            f"{name} must be a whole number of at least {lowest}; got {value!r}."
        )
    return int(value)

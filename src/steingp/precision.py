"""Double precision where we compute, without touching JAX's global switch.

Gaussian processes need float64; JAX computes in float32 unless told otherwise. Every
public entry of steingp runs inside [`float64`][], a context of its own, and hands
NumPy arrays back, since a JAX array made inside the context would lose its precision
in the caller's arithmetic outside it.

The context belongs to a thread: a thread started inside it has to enter it again.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with JAX's 64-bit types enabled."""

    @functools.wraps(function)
    def in_double_precision(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return in_double_precision


def to_numpy(tree: Any) -> Any:
    """The same tree with every JAX array copied into a NumPy array."""
    return jax.tree.map(np.array, tree)


def is_traced(value: Any) -> bool:
    """Whether `value` is a stand-in inside a JAX transformation, without a number."""
    return isinstance(value, jax.core.Tracer)

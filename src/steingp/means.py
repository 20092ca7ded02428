"""Mean functions m(x) of the Gaussian process prior.

>>> from steingp import means
>>> means.Linear(coefficients=[2.0], intercept=1.0)([[0.0], [3.0]])
array([1., 7.])
"""

import abc

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Float

from steingp.precision import float64
from steingp.priors import Component, Hyperparameters, Slot, assign, real


class Mean(Component):
    """A mean function: write `of(X)` for rows of inputs."""

    @abc.abstractmethod
    def of(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """m(x) at every row of X."""

    @float64
    def __call__(self, X: ArrayLike) -> np.ndarray:
        """m(x) at the start values."""
        X = jnp.asarray(X, float)
        X = X[:, None] if X.ndim == 1 else X
        bound = Hyperparameters.bind({"mean": self}, X.shape[1])
        start = bound.complete(bound.start())
        return np.asarray(assign(self, start, "mean").of(X))


class Zero(Mean):
    """m(x) = 0, the default.

    Example:
        >>> from steingp import means
        >>> means.Zero()([[1.0], [2.0]])
        array([0., 0.])
    """

    def of(self, X: Array) -> Array:
        return jnp.zeros(len(X), X.dtype)


class Constant(Mean):
    """m(x) = value, with prior N(0, 1) unless another is given.

    Example:
        >>> from steingp import means
        >>> means.Constant(4.0)([[1.0], [2.0]])
        array([4., 4.])
    """

    value: Slot = real(0.0)

    def of(self, X: Array) -> Array:
        return jnp.broadcast_to(self.value, X.shape[:1])


class Linear(Mean):
    """m(x) = sum_d coefficients_d x_d + intercept, with N(0, 1) priors by default.

    Example:
        >>> from steingp import means
        >>> means.Linear(coefficients=[1.0, -1.0])([[5.0, 2.0]])
        array([3.])
    """

    coefficients: Slot = real(None, start=np.zeros)
    intercept: Slot = real(0.0)

    def of(self, X: Array) -> Array:
        slopes = jnp.broadcast_to(self.coefficients, X.shape[1:])
        return X @ slopes + self.intercept

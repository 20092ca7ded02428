"""Kernels that are not functions of x - y alone: polynomials, and noise."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from steingp.kernels.base import Leaf
from steingp.priors import Slot, positive


class Linear(Leaf):
    """sum_d variance_d x_d y_d: straight lines through the origin.

    Example:
        >>> from steingp import kernels
        >>> kernels.Linear(variance=2.0)([[1.0], [3.0]])
        array([[ 2.,  6.],
               [ 6., 18.]])
    """

    variance: Slot = positive(1.0, zero_allowed=True, per_column=True)

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _cross(self, X: Array, Y: Array) -> Array:
        return (X * jnp.atleast_1d(self.variance)[None, :]) @ Y.T

    def _diag(self, X: Array) -> Array:
        return jnp.sum(X * X * jnp.atleast_1d(self.variance)[None, :], axis=1)


class Polynomial(Leaf):
    """(sum_d variance_d x_d y_d + offset)^degree: polynomials of that degree.

    Example:
        >>> from steingp import kernels
        >>> kernels.Polynomial(degree=2)([[1.0], [2.0]])
        array([[ 4.,  9.],
               [ 9., 25.]])
    """

    degree: int = eqx.field(default=3, static=True)
    variance: Slot = positive(1.0, zero_allowed=True, per_column=True)
    offset: Slot = positive(1.0, zero_allowed=True)

    def __check_init__(self) -> None:
        if self.degree != int(self.degree) or self.degree < 1:
            raise ValueError(
                f"Polynomial(degree=...) must be 1, 2, 3, ...; got {self.degree!r}."
            )

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _cross(self, X: Array, Y: Array) -> Array:
        scaled = X * jnp.atleast_1d(self.variance)[None, :]
        return (scaled @ Y.T + self.offset) ** int(self.degree)

    def _diag(self, X: Array) -> Array:
        squares = X * X * jnp.atleast_1d(self.variance)[None, :]
        return (jnp.sum(squares, axis=1) + self.offset) ** int(self.degree)


class White(Leaf):
    """variance on the diagonal of K(X, X); nothing between two sets of points.

    Two rows with equal x are still two observations with noise of their own.

    Example:
        >>> from steingp import kernels
        >>> kernels.White(variance=0.5)([[0.0], [0.0]])
        array([[0.5, 0. ],
               [0. , 0.5]])
    """

    variance: Slot = positive(1.0, zero_allowed=True)

    def _gram(self, X: Array) -> Array:
        return self.variance * jnp.eye(len(X), dtype=X.dtype)

    def _cross(self, X: Array, Y: Array) -> Array:
        return jnp.zeros((len(X), len(Y)), X.dtype)

    def _diag(self, X: Array) -> Array:
        return jnp.broadcast_to(self.variance, X.shape[:1])


class Constant(Leaf):
    """variance between any two points: an unknown level.

    Example:
        >>> from steingp import kernels
        >>> kernels.Constant(variance=3.0)([[0.0]], [[5.0]])
        array([[3.]])
    """

    variance: Slot = positive(1.0, zero_allowed=True)

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _cross(self, X: Array, Y: Array) -> Array:
        return jnp.broadcast_to(self.variance, (len(X), len(Y)))

    def _diag(self, X: Array) -> Array:
        return jnp.broadcast_to(self.variance, X.shape[:1])

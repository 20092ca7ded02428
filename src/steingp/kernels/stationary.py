"""Kernels of the difference x - y."""

import abc
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steingp.kernels.base import ActiveDims, Kernel, Leaf
from steingp.linalg import distances, safe_sqrt, squared_distances
from steingp.priors import Slot, positive


def _ard_start(num_inputs: int) -> np.ndarray:
    return np.full(num_inputs, np.sqrt(num_inputs))


def _scale(X: Array, lengthscales: Array) -> Array:
    return X / jnp.atleast_1d(lengthscales)[None, :]


class Isotropic(Leaf):
    """variance * profile of the scaled distance; what `Periodic` can wrap."""

    variance: Slot = positive(1.0, zero_allowed=True)
    lengthscales: Slot = positive(None, start=_ard_start)

    @abc.abstractmethod
    def _of_differences(self, scaled: Array) -> Array:
        """k from x - y over lengthscales, last axis the columns (for `Periodic`)."""

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _diag(self, X: Array) -> Array:
        return jnp.broadcast_to(self.variance, X.shape[:1])


class _OfSquare(Isotropic):
    """Kernels that are smooth functions of r^2."""

    @abc.abstractmethod
    def _profile(self, r2: Array) -> Array: ...

    def _cross(self, X: Array, Y: Array) -> Array:
        X, Y = _scale(X, self.lengthscales), _scale(Y, self.lengthscales)
        return self.variance * self._profile(squared_distances(X, Y))

    def _of_differences(self, scaled: Array) -> Array:
        return self.variance * self._profile(jnp.sum(scaled * scaled, axis=-1))


class _OfDistance(Isotropic):
    """Kernels of r."""

    @abc.abstractmethod
    def _profile(self, r: Array) -> Array: ...

    def _of_differences(self, scaled: Array) -> Array:
        return self.variance * self._profile(jnp.sum(jnp.abs(scaled), axis=-1))


class _Differentiable(_OfDistance):
    """Those with a slope in r^2, the `_slope`, that is finite at 0.

    So r^2 may be off by rounding, and is had by a matrix product; and derivatives do not
    go through a square root.
    """

    @abc.abstractmethod
    def _slope(self, r: Array) -> Array:
        """Of the profile, by r^2."""

    def _cross(self, X: Array, Y: Array) -> Array:
        @jax.custom_jvp
        def of_square(r2: Array) -> Array:
            return self._profile(safe_sqrt(r2))

        @of_square.defjvp
        def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
            (r2,), (d_r2,) = primals, tangents
            return of_square(r2), self._slope(safe_sqrt(r2)) * d_r2

        X, Y = _scale(X, self.lengthscales), _scale(Y, self.lengthscales)
        return self.variance * of_square(squared_distances(X, Y))


class SquaredExponential(_OfSquare):
    """variance * exp(-r^2 / 2), r^2 = sum_d (x_d - y_d)^2 / lengthscales_d^2.

    Example:
        >>> from steingp import kernels
        >>> kernels.SquaredExponential(variance=2.0, lengthscales=1.0)([[0.0]])
        array([[2.]])
    """

    def _profile(self, r2: Array) -> Array:
        return jnp.exp(-0.5 * r2)


class RationalQuadratic(_OfSquare):
    """variance * (1 + r^2 / (2 alpha))^-alpha.

    Example:
        >>> from steingp import kernels
        >>> kernels.RationalQuadratic(lengthscales=1.0, alpha=1.0)([[0.0], [2.0]])[0, 1]
        np.float64(0.3333333333333333)
    """

    alpha: Slot = positive(1.0)

    def _profile(self, r2: Array) -> Array:
        return jnp.exp(-self.alpha * jnp.log1p(0.5 * r2 / self.alpha))


class Matern12(_OfDistance):
    """variance * exp(-r): continuous, rough functions (Ornstein-Uhlenbeck).

    Example:
        >>> from steingp import kernels
        >>> kernels.Matern12(lengthscales=1.0)([[0.0], [1.0]]).round(4)[0, 1]
        np.float64(0.3679)
    """

    def _profile(self, r: Array) -> Array:
        return jnp.exp(-r)

    def _cross(self, X: Array, Y: Array) -> Array:
        # a kink at r = 0: distances must be exact there
        return self.variance * self._profile(distances(X, Y, self.lengthscales))


class Matern32(_Differentiable):
    """variance * (1 + sqrt(3) r) exp(-sqrt(3) r): once differentiable functions.

    Example:
        >>> from steingp import kernels
        >>> kernels.Matern32(lengthscales=1.0)([[0.0], [1.0]]).round(4)[0, 1]
        np.float64(0.4834)
    """

    def _profile(self, r: Array) -> Array:
        s = math.sqrt(3.0) * r
        return (1.0 + s) * jnp.exp(-s)

    def _slope(self, r: Array) -> Array:
        return -1.5 * jnp.exp(-math.sqrt(3.0) * r)


class Matern52(_Differentiable):
    """variance * (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r): twice differentiable.

    Example:
        >>> from steingp import kernels
        >>> kernels.Matern52(lengthscales=1.0)([[0.0], [1.0]]).round(4)[0, 1]
        np.float64(0.524)
    """

    def _profile(self, r: Array) -> Array:
        s = math.sqrt(5.0) * r
        return (1.0 + s + s * s / 3.0) * jnp.exp(-s)

    def _slope(self, r: Array) -> Array:
        s = math.sqrt(5.0) * r
        return -5.0 / 6.0 * (1.0 + s) * jnp.exp(-s)


class Periodic(Kernel):
    """A kernel of sin(pi (x - y) / period) instead of x - y.

    Around SquaredExponential: variance * exp(-1/2 sum_d sin^2(pi (x_d - y_d) /
    period_d) / lengthscales_d^2). Matern bases take the sum of the absolute scaled
    sines as their distance, as in GPflow. `active_dims` are those of the base kernel.

    Example:
        >>> from steingp import kernels
        >>> k = kernels.Periodic(kernels.SquaredExponential(), period=2.0)
        >>> k([[0.0], [2.0]]).round(6)
        array([[1., 1.],
               [1., 1.]])
    """

    base_kernel: Isotropic
    period: Slot = positive(1.0, per_column=True)

    def __check_init__(self) -> None:
        if not isinstance(self.base_kernel, Isotropic):
            raise ValueError(
                "Periodic(base_kernel=...) needs a SquaredExponential, "
                "RationalQuadratic or Matern kernel; got "
                f"{type(self.base_kernel).__name__}."
            )

    @property
    def active_dims(self) -> ActiveDims:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base_kernel.active_dims

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _cross(self, X: Array, Y: Array) -> Array:
        period = jnp.atleast_1d(self.period)[None, None, :]
        lengthscales = jnp.atleast_1d(self.base_kernel.lengthscales)[None, None, :]
        angle = np.pi * (X[:, None, :] - Y[None, :, :]) / period
        return self.base_kernel._of_differences(jnp.sin(angle) / lengthscales)

    def _diag(self, X: Array) -> Array:
        return self.base_kernel._diag(X)


class Cosine(Leaf):
    """variance * cos(2 pi sum_d (x_d - y_d) / lengthscales_d).

    Example:
        >>> from steingp import kernels
        >>> kernels.Cosine(lengthscales=1.0)([[0.0], [0.5]])[0, 1]
        np.float64(-1.0)
    """

    variance: Slot = positive(1.0, zero_allowed=True)
    lengthscales: Slot = positive(None, start=_ard_start)

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _cross(self, X: Array, Y: Array) -> Array:
        x = jnp.sum(_scale(X, self.lengthscales), axis=1)
        y = jnp.sum(_scale(Y, self.lengthscales), axis=1)
        return self.variance * jnp.cos(2.0 * np.pi * (x[:, None] - y[None, :]))

    def _diag(self, X: Array) -> Array:
        return jnp.broadcast_to(self.variance, X.shape[:1])

"""Covariance functions k(x, x'), their sums and products.

Names and parametrisation are GPflow's. A kernel as written is a specification (see
`steingp.priors`); `kernel(X)` evaluates it at its start values:

    >>> from steingp import kernels
    >>> k = kernels.Matern52(lengthscales=2.0) + kernels.White(variance=0.1)
    >>> k([[0.0], [1.0]]).round(3)
    array([[1.1  , 0.829],
           [0.829, 1.1  ]])

A kernel of your own is the formula for one pair of points:

    >>> import jax.numpy as jnp
    >>> from steingp.priors import Slot, positive
    >>> class Brownian(kernels.Pairwise):
    ...     variance: Slot = positive(1.0)
    ...     def pair(self, x, y):
    ...         return self.variance * jnp.minimum(x, y).prod()

`lengthscales`: a scalar is shared by all columns, a vector is one per column (ARD), and
left out it is one per column, each sqrt(D) at the start.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Float

from steingp.linalg import distances, squared_distances
from steingp.precision import float64, is_traced
from steingp.priors import Component, Hyperparameters, Slot, assign, positive

ActiveDims = tuple[int, ...] | slice | None


class Kernel(Component):
    """A covariance function: three verbs, and + and *.

    `gram`, `cross` and `diag` pick the columns in `active_dims` and call the formulas
    `_gram`, `_cross` and `_diag` of the concrete kernel, whose slots must hold arrays
    by then.
    """

    active_dims: eqx.AbstractVar[ActiveDims]

    def gram(self, X: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """K(X, X), with White's variance on the diagonal."""
        return self._gram(self._columns(X))

    def cross(
        self, X: Float[Array, "N D"], Y: Float[Array, "M D"]
    ) -> Float[Array, "N M"]:
        """K(X, Y) between two sets of points, which White does not link."""
        return self._cross(self._columns(X), self._columns(Y))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """The diagonal of `gram(X)`."""
        return self._diag(self._columns(X))

    @abc.abstractmethod
    def _gram(self, X: Array) -> Array: ...

    @abc.abstractmethod
    def _cross(self, X: Array, Y: Array) -> Array: ...

    @abc.abstractmethod
    def _diag(self, X: Array) -> Array: ...

    @float64
    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> Any:
        """K(X, X), or K(X, Y), at the start values."""
        X = _as_rows(X)
        bound = at_start(self, X.shape[1])
        K = bound.gram(X) if Y is None else bound.cross(X, _as_rows(Y))
        return K if is_traced(K) else np.asarray(K)

    def __add__(self, other: "Kernel") -> "Sum":
        parts = _parts(self, Sum) + _parts(other, Sum)
        return Sum(parts=parts)  # pyright: ignore[reportCallIssue]

    def __mul__(self, other: "Kernel") -> "Product":
        parts = _parts(self, Product) + _parts(other, Product)
        return Product(parts=parts)  # pyright: ignore[reportCallIssue]

    def columns_seen(self, path: str, num_inputs: int) -> tuple[int, ...]:
        dims = self.active_dims
        if dims is None:
            return tuple(range(num_inputs))
        if isinstance(dims, slice):
            chosen = tuple(range(*dims.indices(num_inputs)))
            if not chosen:
                raise ValueError(
                    f"active_dims of {path} is {dims}, which picks none of X's "
                    f"{num_inputs} column(s)."
                )
            return chosen
        if any(not 0 <= d < num_inputs for d in dims):
            raise ValueError(
                f"active_dims of {path} is {list(dims)}, but X has {num_inputs} "
                f"column(s): use numbers from 0 to {num_inputs - 1}."
            )
        return dims

    def _columns(self, X: Array) -> Array:
        dims = self.active_dims
        if dims is None:
            return X
        return X[:, dims] if isinstance(dims, slice) else X[:, np.asarray(dims)]


def _as_rows(X: ArrayLike) -> Array:
    X = jnp.asarray(X, float)
    return X[:, None] if X.ndim == 1 else X


def at_start(kernel: Kernel, num_inputs: int) -> Kernel:
    """The kernel with start values in its slots, for X with `num_inputs` columns."""
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, num_inputs)
    start = hyperparameters.complete(hyperparameters.start())
    return assign(kernel, start, "kernel")


def _parts(kernel: Any, kind: type) -> tuple[Kernel, ...]:
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"kernels add to and multiply kernels; got {type(kernel).__name__}. For a "
            "number use steingp.kernels.Constant(variance=...)."
        )
    return kernel.parts if isinstance(kernel, kind) else (kernel,)  # type: ignore


def _convert_dims(dims: Any) -> ActiveDims:
    if dims is None or isinstance(dims, slice):
        return None if dims == slice(None) else dims
    values = np.atleast_1d(np.asarray(dims))
    if (
        values.ndim != 1
        or values.size == 0
        or not np.issubdtype(values.dtype, np.integer)
    ):
        raise ValueError(
            "active_dims must be column numbers such as [0, 2] or a slice; got "
            f"{dims!r}."
        )
    return tuple(int(v) for v in values)


class Leaf(Kernel):
    """A kernel that is not made of other kernels; it may see only some columns."""

    active_dims: ActiveDims = eqx.field(
        default=None, static=True, kw_only=True, converter=_convert_dims
    )


class Pairwise(Leaf):
    """Base for a kernel of your own: write `pair(x, y)`, get everything else.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp import kernels
        >>> from steingp.priors import Slot, positive
        >>> class Sobolev(kernels.Pairwise):
        ...     variance: Slot = positive(1.0)
        ...     def pair(self, x, y):
        ...         return self.variance * (1.0 + jnp.minimum(x, y).prod())
        >>> Sobolev()([[1.0], [2.0]])
        array([[2., 2.],
               [2., 3.]])
    """

    @abc.abstractmethod
    def pair(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Float[Array, ""]:
        """k(x, y) of two points."""

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _cross(self, X: Array, Y: Array) -> Array:
        return jax.vmap(lambda x: jax.vmap(lambda y: self.pair(x, y))(Y))(X)

    def _diag(self, X: Array) -> Array:
        return jax.vmap(self.pair)(X, X)


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
    """Kernels of r, whose distances must be exact near zero."""

    @abc.abstractmethod
    def _profile(self, r: Array) -> Array: ...

    def _cross(self, X: Array, Y: Array) -> Array:
        return self.variance * self._profile(distances(X, Y, self.lengthscales))

    def _of_differences(self, scaled: Array) -> Array:
        return self.variance * self._profile(jnp.sum(jnp.abs(scaled), axis=-1))


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


class Matern32(_OfDistance):
    """variance * (1 + sqrt(3) r) exp(-sqrt(3) r): once differentiable functions.

    Example:
        >>> from steingp import kernels
        >>> kernels.Matern32(lengthscales=1.0)([[0.0], [1.0]]).round(4)[0, 1]
        np.float64(0.4834)
    """

    def _profile(self, r: Array) -> Array:
        s = np.sqrt(3.0) * r
        return (1.0 + s) * jnp.exp(-s)


class Matern52(_OfDistance):
    """variance * (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r): twice differentiable.

    Example:
        >>> from steingp import kernels
        >>> kernels.Matern52(lengthscales=1.0)([[0.0], [1.0]]).round(4)[0, 1]
        np.float64(0.524)
    """

    def _profile(self, r: Array) -> Array:
        s = np.sqrt(5.0) * r
        return (1.0 + s + s * s / 3.0) * jnp.exp(-s)


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


class _Combination(Kernel):
    """Several kernels at once; each picks its own columns."""

    parts: tuple[Kernel, ...]

    @property
    def active_dims(self) -> ActiveDims:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None

    @abc.abstractmethod
    def _combine(self, values: list[Array]) -> Array: ...

    def _gram(self, X: Array) -> Array:
        return self._combine([part.gram(X) for part in self.parts])

    def _cross(self, X: Array, Y: Array) -> Array:
        return self._combine([part.cross(X, Y) for part in self.parts])

    def _diag(self, X: Array) -> Array:
        return self._combine([part.diag(X) for part in self.parts])


class Sum(_Combination):
    """k1 + k2 + ...: made by `+`."""

    def _combine(self, values: list[Array]) -> Array:
        return sum(values[1:], start=values[0])


class Product(_Combination):
    """k1 * k2 * ...: made by `*`."""

    def _combine(self, values: list[Array]) -> Array:
        total = values[0]
        for value in values[1:]:
            total = total * value
        return total

"""The interface of a kernel, sums and products, and the base for your own."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Float

from steingp.precision import float64, is_traced
from steingp.priors import Component, Hyperparameters, assign

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

"""Hyperparameter slots: what a user may write in them, and what they become.

A kernel, mean function or likelihood as written is a *specification*: each of its slots
holds a number, a numpyro distribution or [`fixed`][steingp.priors.fixed]. Binding it to
data with D columns (`Hyperparameters.bind`) yields a flat list of hyperparameters, each
with a name, a shape, a proper prior and a bijector to the real line. From then on a
particle is a dictionary name -> array, and `assign` puts constrained arrays back into
the slots for evaluation.

| slot | start value | prior |
|---|---|---|
| a number or list | that | the slot's default |
| a distribution | its mean (its median if that is infinite) | the distribution |
| `fixed(value)` | the value | none: it does not move |
| left out | the slot's default | the slot's default |

Default priors (the paper, appendix F): Gamma(shape 1, rate 0.5) on positive slots;
N(0, 1) on real ones. Positive values are softplus(z) + 1e-6.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jaxtyping import ArrayLike, Float
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    SoftplusTransform,
    Transform,
    biject_to,
)

from steingp.checks import as_numbers
from steingp.coordinates import normalising
from steingp.precision import is_traced

POSITIVE_FLOOR = 1e-6
"""Smallest value a positive hyperparameter can take (GPflow's, and the paper's)."""

DEFAULT_POSITIVE_PRIOR = dist.Exponential(0.5)
"""The paper's Gamma(shape 1, rate 0.5), written as what it is: cheaper to sample."""

Particle = dict[str, Array]
"""Name -> array: constrained values (theta) or unconstrained ones (z) of a particle."""

C = TypeVar("C", bound="Component")


class Fixed(eqx.Module):
    """A hyperparameter that is known: see [`fixed`][steingp.priors.fixed]."""

    value: Any

    def __repr__(self) -> str:
        return f"fixed({self.value})"


def fixed(value: ArrayLike) -> Fixed:
    """Hold a hyperparameter at `value` instead of inferring it.

    Example:
        >>> import steingp as sg
        >>> sg.kernels.Matern52(variance=sg.fixed(1.0)).variance
        fixed(1.0)
    """
    return Fixed(np.asarray(value, float))


Slot = Any
"""A number, list, numpyro distribution, `Fixed`, or None for the slot's default."""


@dataclasses.dataclass(frozen=True)
class Domain:
    """Which values a slot may take, and its prior when none is given."""

    lower: float
    zero_allowed: bool
    default_prior: Callable[[], dist.Distribution]
    default_start: Callable[[int], np.ndarray] | None
    per_column: bool

    def complaint(self, values: np.ndarray) -> str | None:
        """What is wrong with `values`, or None."""
        if not np.all(np.isfinite(values)):
            return "must be finite"
        if self.lower == 0.0 and self.zero_allowed and np.any(values < 0.0):
            return "must not be negative"
        if self.lower == 0.0 and not self.zero_allowed and np.any(values <= 0.0):
            return "must be positive"
        return None


def _slot(default: Any, domain: Domain) -> Any:
    return eqx.field(
        default=default, converter=_convert_slot, metadata={"domain": domain}
    )


def positive(
    default: Slot = 1.0,
    *,
    zero_allowed: bool = False,
    prior: Callable[[], dist.Distribution] = lambda: DEFAULT_POSITIVE_PRIOR,
    start: Callable[[int], np.ndarray] | None = None,
    per_column: bool = False,
) -> Any:
    """Declare a slot for positive values; for authors of kernels and likelihoods.

    Args:
        default: what the slot holds when the user writes nothing.
        zero_allowed: whether `fixed(0.0)` makes sense.
        prior: makes the default prior.
        start: start value by number of input columns, where `default` is None.
        per_column: whether a vector, one value per input column, makes sense; it does
            where `start` is given.

    Example:
        >>> import jax.numpy as jnp
        >>> from steingp import kernels, priors
        >>> class Brownian(kernels.Pairwise):
        ...     variance: priors.Slot = priors.positive(1.0)
        ...     def pair(self, x, y):
        ...         return self.variance * jnp.minimum(x, y).prod()
        >>> Brownian(variance=2.0)([[1.0], [3.0]])
        array([[2., 2.],
               [2., 6.]])
    """
    return _slot(
        default,
        Domain(0.0, zero_allowed, prior, start, per_column or start is not None),
    )


def real(
    default: Slot = 0.0,
    *,
    prior: Callable[[], dist.Distribution] = lambda: dist.Normal(0.0, 1.0),
    start: Callable[[int], np.ndarray] | None = None,
    per_column: bool = False,
) -> Any:
    """Declare a slot for any real value; for authors of mean functions.

    The arguments are those of [`positive`][steingp.priors.positive].

    Example:
        >>> from steingp import means
        >>> means.Constant(3.0)([[0.0], [1.0]])
        array([3., 3.])
    """
    return _slot(
        default, Domain(-np.inf, True, prior, start, per_column or start is not None)
    )


def _convert_slot(value: Any) -> Any:
    """Numbers and lists become NumPy arrays; all else stays as it is."""
    if value is None or isinstance(value, Fixed | dist.Distribution | jax.Array):
        return value
    array = as_numbers(value)
    # what is no number is refused by Component.__check_init__, which knows the slot
    return value if array is None else array


class Component(eqx.Module):
    """A part of a model with hyperparameter slots: a kernel, mean or likelihood."""

    def __check_init__(self) -> None:
        for field, domain in _slots(self):
            _check_slot(f"{type(self).__name__}({field}=...)", domain, self, field)

    def columns_seen(self, path: str, num_inputs: int) -> tuple[int, ...]:
        """Which of the data's columns this part sees (kernels: active_dims)."""
        del path
        return tuple(range(num_inputs))


def _check_slot(name: str, domain: Domain, component: Component, field: str) -> None:
    value = getattr(component, field)
    if (value is None and domain.default_start is not None) or is_traced(value):
        return
    if isinstance(value, dist.Distribution):
        check_prior(name, domain, value)
        return
    values = as_numbers(value.value if isinstance(value, Fixed) else value)
    if values is None:
        raise ValueError(
            f"{name} must be a number, a list of numbers, a numpyro distribution or "
            f"steingp.fixed(value); got {value!r}."
        )
    if values.ndim > 1:
        raise ValueError(
            f"{name} must be a scalar or a vector; got an array of shape "
            f"{values.shape}."
        )
    if complaint := domain.complaint(values):
        raise ValueError(f"{name} {complaint}; got {values}.")


def check_prior(name: str, domain: Domain, prior: dist.Distribution) -> None:
    """Refuse priors that are discrete, improper, or leave the slot's domain."""
    if prior.support is not None and prior.support.is_discrete:
        raise ValueError(
            f"{name} needs a continuous prior; {type(prior).__name__} is discrete. "
            "Use for instance numpyro.distributions.Gamma or LogNormal."
        )
    if isinstance(prior, dist.ImproperUniform):
        raise ValueError(
            f"{name} needs a proper prior, one that can be sampled; got "
            "ImproperUniform. Use a wide proper one, for instance LogNormal(0, 3)."
        )
    if len(prior.shape()) > 1:
        raise ValueError(
            f"{name} is a scalar or a vector; its prior has shape {prior.shape()}."
        )
    bijector = bijector_of(prior)
    shape = bijector.inverse_shape(prior.shape())
    with jax.enable_x64(True):
        reach = [np.asarray(bijector(jnp.full(shape, z))) for z in (-30.0, 0.0, 30.0)]
    if domain.lower == 0.0 and np.min(reach) < 0.0:
        raise ValueError(
            f"{name} must be positive, but its prior {type(prior).__name__} allows "
            "negative values. Use Gamma, LogNormal, HalfNormal or InverseGamma, or "
            "truncate it."
        )


def bijector_of(prior: dist.Distribution) -> Transform:
    """The map from the real line to a prior's support.

    Half-lines get softplus with a floor of 1e-6 above their end, as in the paper. A
    transformed distribution whose declared support is not a half-line is followed
    through its own transforms, which is right even if that declaration is too wide.
    """
    while isinstance(prior, dist.ExpandedDistribution | dist.Independent):
        prior = prior.base_dist
    support = prior.support
    lower = getattr(support, "lower_bound", None)
    if lower is not None and getattr(support, "upper_bound", None) is None:
        floor = AffineTransform(lower + POSITIVE_FLOOR, 1.0, constraints.positive)
        return ComposeTransform([SoftplusTransform(), floor])
    if isinstance(prior, dist.TransformedDistribution):
        base = bijector_of(prior.base_dist)
        return ComposeTransform([base, *prior.transforms])
    return biject_to(prior.support)


def _slots(component: Component) -> Iterator[tuple[str, Domain]]:
    for field in dataclasses.fields(component):
        if "domain" in field.metadata:
            yield field.name, field.metadata["domain"]


def _children(component: Component, path: str) -> Iterator[tuple[str, str, Any]]:
    """(path, field, child) of the parts inside a component."""
    for field in dataclasses.fields(component):
        value = getattr(component, field.name)
        if isinstance(value, Component):
            yield f"{path}.{field.name}", field.name, value
        elif isinstance(value, tuple) and value and isinstance(value[0], Component):
            for position, part in enumerate(value):
                yield f"{path}[{position}]", field.name, part


def slot_name(path: str, component: Component, field: str) -> str:
    """`kernel.variance`; inside sums and products `kernel[0].matern52.variance`."""
    if path.endswith("]"):
        return f"{path}.{type(component).__name__.lower()}.{field}"
    return f"{path}.{field}"


def assign(component: C, values: Mapping[str, Array], path: str) -> C:
    """The component with constrained arrays in all its slots."""
    new: dict[str, Any] = {
        field: values[slot_name(path, component, field)]
        for field, _ in _slots(component)
    }
    parts: dict[str, list[Component]] = {}
    for child_path, field, child in _children(component, path):
        parts.setdefault(field, []).append(assign(child, values, child_path))
    for field, assigned in parts.items():
        is_tuple = isinstance(getattr(component, field), tuple)
        new[field] = tuple(assigned) if is_tuple else assigned[0]
    return dataclasses.replace(component, **new) if new else component


class Parameter(eqx.Module):
    """One hyperparameter: its name, start value, prior and bijector."""

    name: str = eqx.field(static=True)
    start: np.ndarray | Array
    prior: dist.Distribution
    bijector: Any
    """z -> theta: a numpyro transform, or one of `steingp.coordinates`."""
    has_default_prior: bool = eqx.field(static=True)
    columns: tuple[int, ...] = eqx.field(static=True)
    """The data's columns that its entries belong to, where it has one for each."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.start.shape


class Hyperparameters(eqx.Module):
    """All hyperparameters of a model, free and fixed: theta and its prior.

    Methods act on one particle; `vmap` makes many.
    """

    free: tuple[Parameter, ...]
    known: dict[str, np.ndarray | Array]

    @staticmethod
    def bind(components: Mapping[str, Component], num_inputs: int) -> "Hyperparameters":
        """List the slots of `components` for data with `num_inputs` columns."""
        free: list[Parameter] = []
        known: dict[str, np.ndarray | Array] = {}
        with jax.enable_x64(True):
            for path, component in components.items():
                _bind(component, path, num_inputs, free, known)
        return Hyperparameters(tuple(free), known)

    @property
    def has_default_priors(self) -> bool:
        """Whether any free one has the prior that nobody chose for it."""
        return any(p.has_default_prior for p in self.free)

    def normalised(self) -> "Hyperparameters":
        """The same, with coordinates z in which every prior is standard normal."""
        free = tuple(
            eqx.tree_at(
                lambda p: p.bijector,
                parameter,
                normalising(parameter.prior, parameter.bijector, POSITIVE_FLOOR),
            )
            for parameter in self.free
        )
        return Hyperparameters(free, self.known)

    def constrain(self, z: Mapping[str, Array]) -> Particle:
        """theta from unconstrained z."""
        return {p.name: jnp.asarray(p.bijector(z[p.name])) for p in self.free}

    def unconstrain(self, theta: Mapping[str, Array]) -> Particle:
        """z from theta; values at the edge of a support are moved just inside."""
        return {p.name: _inverse(p.bijector, theta[p.name]) for p in self.free}

    def log_prior(self, z: Mapping[str, Array]) -> Float[Array, ""]:
        """log p(z) = log p(theta(z)) + log |d theta / d z|."""
        total = jnp.zeros(())
        for p in self.free:
            theta = p.bijector(z[p.name])
            slope = p.bijector.log_abs_det_jacobian(z[p.name], theta)
            total = total + jnp.sum(p.prior.log_prob(theta)) + jnp.sum(slope)
        return total

    def sample(self, key: Array) -> Particle:
        """One draw of theta from the prior."""
        keys = jax.random.split(key, max(len(self.free), 1))
        return {
            p.name: jnp.asarray(p.prior.sample(k))
            for p, k in zip(self.free, keys, strict=False)
        }

    def start(self) -> Particle:
        """The start values: the numbers written in the slots."""
        return {p.name: jnp.asarray(p.start) for p in self.free}

    def complete(self, theta: Mapping[str, Array]) -> Particle:
        """theta with the fixed values beside the free ones."""
        return {n: jnp.asarray(v) for n, v in self.known.items()} | dict(theta)


def _bind(
    component: Component,
    path: str,
    num_inputs: int,
    free: list[Parameter],
    known: dict[str, np.ndarray | Array],
) -> None:
    columns = component.columns_seen(path, num_inputs)
    width = len(columns)
    for field, domain in _slots(component):
        name = slot_name(path, component, field)
        value = getattr(component, field)
        if value is None:
            value = domain.default_start(width)  # type: ignore[misc]
        if isinstance(value, Fixed):
            _check_length(name, domain, value.value.shape, width)
            known[name] = value.value
            continue
        if isinstance(value, dist.Distribution):
            prior = jax.tree.map(_as_float64, value)
            start = _typical_value(prior)
        else:
            start = value if is_traced(value) else np.asarray(value, float)
            prior = domain.default_prior().expand(start.shape)
        _check_length(name, domain, start.shape, width)
        default = not isinstance(value, dist.Distribution)
        bijector = bijector_of(prior)
        free.append(Parameter(name, start, prior, bijector, default, columns))
    for child_path, _, child in _children(component, path):
        _bind(child, child_path, num_inputs, free, known)


def _check_length(
    name: str, domain: Domain, shape: tuple[int, ...], width: int
) -> None:
    if shape and not domain.per_column:
        raise ValueError(f"{name} is a scalar; got {shape[0]} values.")
    if shape and shape[0] != width:
        raise ValueError(
            f"{name} has {shape[0]} values but its part of the model sees {width} "
            f"input column(s). Give {width} values, or a scalar to share one."
        )


def _typical_value(prior: dist.Distribution) -> np.ndarray:
    """The prior's mean; the median of draws where the mean is not finite."""
    try:
        with np.errstate(all="ignore"):  # an infinite mean may be a division by 0
            mean = np.broadcast_to(np.asarray(prior.mean, float), prior.shape())
        if np.all(np.isfinite(mean)):
            return np.array(mean)
    except NotImplementedError:
        pass
    return np.median(prior.sample(jax.random.key(0), (1001,)), axis=0)


def _as_float64(leaf: Any) -> Any:
    return np.asarray(leaf, float) if eqx.is_inexact_array_like(leaf) else leaf


def _inverse(bijector: Any, theta: Array) -> Array:
    """z with theta = bijector(z); the ends of a support map to finite z."""
    z = bijector.inv(jnp.asarray(theta))
    lowest = bijector(jnp.full_like(z, -30.0))
    return jnp.where(jnp.isfinite(z), z, jnp.where(theta <= lowest, -30.0, 30.0))

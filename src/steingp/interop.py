"""GPflow kernels and likelihoods as ours, read by name: GPflow is never imported.

A GPflow parameter becomes a slot (`steingp.priors`): not trainable, it is `fixed` at
its value; with a prior, it carries the numpyro distribution of that name; else its
value is the start value under the slot's default prior. A slot with a prior starts at
the prior's mean, so that GPflow's value of such a parameter is not kept.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

from steingp import kernels
from steingp.kernels import Kernel
from steingp.priors import Component, Slot, fixed


def is_gpflow(obj: Any) -> bool:
    """Whether `obj` is an object of GPflow's, or of a class derived from one."""
    return any(kind.__module__.startswith("gpflow.") for kind in type(obj).__mro__)


def from_gpflow(kernel: Any) -> Kernel:
    """Our kernel with the values, priors and columns of a GPflow kernel.

    Args:
        kernel: SquaredExponential (RBF), Matern12, Matern32, Matern52, Exponential with
            fixed lengthscales, RationalQuadratic, Periodic, Cosine, Linear, Polynomial,
            White, Constant (Bias), or sums and products of these.

    Raises:
        ValueError: the kernel, or a prior in it, has no counterpart here.
    """
    name = type(kernel).__name__
    if not type(kernel).__module__.startswith("gpflow.kernels") or name not in _KERNELS:
        raise ValueError(
            f"the GPflow kernel {name} has no counterpart in steingp. Write it as a "
            "steingp.kernels.Pairwise; those that are read are "
            f"{', '.join(sorted(_KERNELS))}."
        )
    return _KERNELS[name](kernel)


def _leaf(ours: type[Kernel], *slots: str) -> Callable[[Any], Kernel]:
    """Reader of a kernel whose slots carry the same names on both sides."""

    def read(theirs: Any) -> Kernel:
        arguments = {slot: _slot(theirs, slot) for slot in slots}
        return ours(**arguments, active_dims=_columns(theirs))  # type: ignore[call-arg]

    return read


def _exponential(theirs: Any) -> Kernel:
    # exp(-r / 2) is Matern12 with twice the lengthscales, and so is its prior
    if theirs.lengthscales.trainable:
        raise ValueError(
            "the GPflow kernel Exponential is exp(-r / 2), Matern12 with twice the "
            "lengthscales. Use Matern12, or fix its lengthscales."
        )
    doubled = fixed(2.0 * np.asarray(theirs.lengthscales.numpy()))
    return kernels.Matern12(
        _slot(theirs, "variance"), doubled, active_dims=_columns(theirs)
    )


def _periodic(theirs: Any) -> Kernel:
    if type(theirs.base_kernel).__name__ == "Exponential":
        raise ValueError(
            "Periodic around GPflow's Exponential has no counterpart in steingp. Use "
            "Matern12 with twice the lengthscales as base kernel."
        )
    base = from_gpflow(theirs.base_kernel)
    return kernels.Periodic(base, _slot(theirs, "period"))  # type: ignore[arg-type]


def _polynomial(theirs: Any) -> Kernel:
    return kernels.Polynomial(
        _whole_number(theirs.degree),
        _slot(theirs, "variance"),
        _slot(theirs, "offset"),
        active_dims=_columns(theirs),
    )


def _whole_number(degree: Any) -> Any:
    """3.0 and a tensor of 3.0 as 3; Polynomial refuses what is not whole."""
    value = float(_array(degree))
    return int(value) if value.is_integer() else value


def _sum(theirs: Any) -> Kernel:
    return functools.reduce(operator.add, map(from_gpflow, theirs.kernels))


def _product(theirs: Any) -> Kernel:
    return functools.reduce(operator.mul, map(from_gpflow, theirs.kernels))


_STATIONARY = ("variance", "lengthscales")
_KERNELS: Mapping[str, Callable[[Any], Kernel]] = {
    "SquaredExponential": _leaf(kernels.SquaredExponential, *_STATIONARY),
    "Matern12": _leaf(kernels.Matern12, *_STATIONARY),
    "Matern32": _leaf(kernels.Matern32, *_STATIONARY),
    "Matern52": _leaf(kernels.Matern52, *_STATIONARY),
    "RationalQuadratic": _leaf(kernels.RationalQuadratic, *_STATIONARY, "alpha"),
    "Cosine": _leaf(kernels.Cosine, *_STATIONARY),
    "Linear": _leaf(kernels.Linear, "variance"),
    "White": _leaf(kernels.White, "variance"),
    "Constant": _leaf(kernels.Constant, "variance"),
    "Exponential": _exponential,
    "Periodic": _periodic,
    "Polynomial": _polynomial,
    "Sum": _sum,
    "Product": _product,
}


def _columns(theirs: Any) -> Any:
    """GPflow's active_dims, a slice or an array, as ours."""
    dims = theirs.active_dims
    if dims is None or isinstance(dims, slice):
        return dims
    return np.asarray(dims).astype(int)


def _slot(owner: Any, name: str) -> Slot:
    """What our slot `name` holds for GPflow's parameter of that name."""
    parameter = getattr(owner, name)
    label = f"{type(owner).__name__}.{name}"
    if not hasattr(parameter, "trainable"):
        raise ValueError(
            f"{label} must be a GPflow parameter; got {type(parameter).__name__}. "
            "A function of the inputs has no counterpart in steingp."
        )
    value = np.asarray(parameter.numpy(), float)
    if not parameter.trainable:
        return fixed(value)
    if getattr(parameter, "prior", None) is None:
        return value
    if parameter.prior_on.name == "UNCONSTRAINED":
        raise ValueError(
            f"{label} has its prior on the unconstrained value. Set prior_on = "
            "'constrained' and give the prior of the value itself."
        )
    prior = _prior(label, parameter.prior)
    return prior if prior.shape() == value.shape else prior.expand(value.shape)


def _prior(label: str, theirs: Any) -> dist.Distribution:
    """The numpyro distribution for a TensorFlow Probability one."""
    name = type(theirs).__name__
    if name not in _PRIORS:
        raise ValueError(
            f"the prior {name} of {label} has no counterpart in steingp. Use one of "
            f"{', '.join(sorted(_PRIORS))}, or write the kernel with steingp.kernels "
            "and a numpyro distribution."
        )
    given = {k: _array(v) for k, v in theirs.parameters.items() if _is_number(v)}
    if name == "HalfCauchy" and np.any(given["loc"] != 0.0):
        raise ValueError(f"the prior HalfCauchy of {label} must have loc = 0.")
    with jax.enable_x64(True):
        return _PRIORS[name](given)


def _rate(p: Mapping[str, np.ndarray]) -> np.ndarray:
    return p["rate"] if "rate" in p else np.exp(p["log_rate"])


_PRIORS: Mapping[str, Callable[[Mapping[str, np.ndarray]], dist.Distribution]] = {
    "Beta": lambda p: dist.Beta(p["concentration1"], p["concentration0"]),
    "Chi2": lambda p: dist.Gamma(0.5 * p["df"], 0.5),
    "Exponential": lambda p: dist.Exponential(p["rate"]),
    "Gamma": lambda p: dist.Gamma(p["concentration"], _rate(p)),
    "HalfCauchy": lambda p: dist.HalfCauchy(p["scale"]),
    "HalfNormal": lambda p: dist.HalfNormal(p["scale"]),
    "InverseGamma": lambda p: dist.InverseGamma(p["concentration"], p["scale"]),
    "LogNormal": lambda p: dist.LogNormal(p["loc"], p["scale"]),
    "Normal": lambda p: dist.Normal(p["loc"], p["scale"]),
    "StudentT": lambda p: dist.StudentT(p["df"], p["loc"], p["scale"]),
    "TruncatedNormal": lambda p: dist.TruncatedNormal(
        p["loc"], p["scale"], low=p["low"], high=p["high"]
    ),
    "Uniform": lambda p: dist.Uniform(p["low"], p["high"]),
}


def _is_number(value: Any) -> bool:
    return not (value is None or isinstance(value, bool | str))


def _array(value: Any) -> np.ndarray:
    """Numbers, TensorFlow tensors and variables as a NumPy array of floats."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value, float)


def likelihood_from_gpflow(likelihood: Any) -> Component:
    """Our likelihood with the values and priors of a GPflow likelihood.

    Args:
        likelihood: Gaussian with a variance, StudentT, Bernoulli with the probit link
            (GPflow's keeps probabilities between .001 and .999, ours does not), Poisson
            (binsize becomes the exposure), Exponential or Gamma with the exponential
            link.

    Raises:
        ValueError: the likelihood, its link or a prior in it has no counterpart here.
    """
    from steingp import likelihoods

    name = type(likelihood).__name__
    if type(likelihood).__module__.startswith("gpflow.likelihoods"):
        match name:
            case "Gaussian" if likelihood.variance is not None:
                return likelihoods.Gaussian(variance=_slot(likelihood, "variance"))
            case "StudentT":
                df = fixed(_array(likelihood.df))
                return likelihoods.StudentT(scale=_slot(likelihood, "scale"), df=df)
            case "Bernoulli":
                _check_link(likelihood, "inv_probit")
                return likelihoods.Bernoulli(link="probit")
            case "Poisson":
                _check_link(likelihood, "exp")
                return likelihoods.Poisson(exposure=float(likelihood.binsize))
            case "Exponential":
                _check_link(likelihood, "exp")
                return likelihoods.Exponential()
            case "Gamma":
                _check_link(likelihood, "exp")
                return likelihoods.Gamma(shape=_slot(likelihood, "shape"))
    raise ValueError(
        f"the GPflow likelihood {name} has no counterpart in steingp. Those that are "
        "read are Gaussian with a variance, StudentT, Bernoulli, Poisson, Exponential "
        "and Gamma."
    )


def _check_link(likelihood: Any, expected: str) -> None:
    link = getattr(likelihood.invlink, "__name__", repr(likelihood.invlink))
    if link != expected:
        raise ValueError(
            f"the GPflow likelihood {type(likelihood).__name__} is read with its "
            f"default inverse link {expected}; got {link}."
        )

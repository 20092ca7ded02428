"""Posteriors and their parts as JSON and named arrays, and back again.

Every object is written as the call that makes it, `{"new": "kernels.Matern52", "with":
{...}}`, arrays by their name in a dictionary beside. Names are looked up in one fixed
table: reading calls the constructors in it and those of `classes`, and nothing else.

    >>> import numpyro.distributions as dist
    >>> from steingp import kernels, written
    >>> arrays = {}
    >>> kernel = kernels.Periodic(kernels.Matern32(), period=dist.Gamma(2.0, 1.0))
    >>> text = written.write(kernel, "kernel", arrays)
    >>> text["new"], text["with"]["period"]["with"]
    ('kernels.Periodic', {'concentration': 2.0, 'rate': 1.0})
    >>> written.read(text, arrays).period.rate
    1.0
"""

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints, transforms

from steingp import kernels, likelihoods, means
from steingp.data import Batch, Scaling
from steingp.diagnostics import Check, Verdict
from steingp.evidence import Evidence
from steingp.posterior import FitReport, Mode
from steingp.priors import Component, Fixed, Hyperparameters, slot_name
from steingp.svgd import SVGDInfo
from steingp.targets import (
    Collapsed,
    Marginal,
    Sparse,
    Specification,
    Target,
    Titsias,
    Variational,
    Whitened,
)
from steingp.targets.sites import Sites

DISTRIBUTIONS = (
    "AsymmetricLaplace", "AsymmetricLaplaceQuantile", "Beta", "CategoricalLogits",
    "CategoricalProbs", "Cauchy", "Chi2", "Dagum", "DoublyTruncatedPowerLaw",
    "ExpandedDistribution", "Exponential", "FoldedDistribution", "Gamma", "Gompertz",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy",
    "Laplace", "LeftTruncatedDistribution", "LeftTruncatedGamma", "Levy", "LogNormal",
    "LogUniform", "Logistic", "LowerTruncatedPowerLaw", "MixtureSameFamily",
    "MultivariateNormal", "MultivariateStudentT", "Normal", "Pareto",
    "RightTruncatedDistribution", "RightTruncatedGamma", "SoftLaplace", "StudentT",
    "TransformedDistribution", "TwoSidedTruncatedDistribution",
    "TwoSidedTruncatedGamma", "Uniform", "Weibull",
)  # fmt: skip
"""Priors that can be written; those that this numpyro has."""
TRANSFORMS = (
    "AbsTransform", "AffineTransform", "ComposeTransform", "ExpTransform",
    "IdentityTransform", "LowerCholeskyAffine", "PowerTransform", "SigmoidTransform",
    "SoftplusTransform",
)  # fmt: skip
CONSTRAINTS = ("real", "positive", "nonnegative", "unit_interval", "real_vector")
"""Domains of transforms, by their names in numpyro."""


def _members(module: Any, kind: type) -> dict[str, type]:
    """The classes of a module of ours: kernels.Matern52 and so on."""
    prefix = module.__name__.removeprefix("steingp.")
    return {
        f"{prefix}.{name}": member
        for name, member in vars(module).items()
        if isinstance(member, type) and issubclass(member, kind)
    }


TABLE: dict[str, type] = {
    **_members(kernels, kernels.Kernel),
    **_members(means, means.Mean),
    **_members(likelihoods, likelihoods.Likelihood),
    **{
        f"targets.{target.__name__}": target
        for target in (Collapsed, Marginal, Sparse, Titsias, Variational, Whitened)
    },
    **{
        f"distributions.{name}": getattr(dist, name)
        for name in DISTRIBUTIONS
        if hasattr(dist, name)
    },
    **{f"transforms.{name}": getattr(transforms, name) for name in TRANSFORMS},
    **{
        part.__name__: part
        for part in (
            Batch, Check, Evidence, FitReport, Fixed, Mode, SVGDInfo, Scaling, Sites,
            Verdict,
        )
    },
}  # fmt: skip
"""All that is ever made by reading, but for the reader's own classes."""
_NAMES = {member: name for name, member in TABLE.items()}

Arrays = dict[str, np.ndarray]


# --- writing ----------------------------------------------------------------------------


def write(value: Any, path: str, arrays: Arrays) -> Any:
    """`value` as JSON; its arrays go into `arrays`, under names that begin with `path`.

    Raises:
        ValueError: it holds something that is not in the table; `path` says where.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray | jax.Array):
        return {"array": _put(np.asarray(value), path, arrays)}
    if isinstance(value, Component):
        return _write_component(value, path, arrays)
    if type(value) in _NAMES:
        return _write_call(value, path, arrays)
    if isinstance(value, Mapping):
        return {"dict": _write_items(value, path, arrays)}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if type(value) in (tuple, list):
        items = [write(v, f"{path}[{i}]", arrays) for i, v in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    for name in CONSTRAINTS:
        if value is getattr(constraints, name):
            return {"constraint": name}
    raise ValueError(
        f"{path} cannot be written to a file: it is a {type(value).__name__}. Priors may "
        f"be numpyro's {', '.join(n for n in DISTRIBUTIONS if hasattr(dist, n))}; other "
        "parts numbers, texts, arrays, tuples, and parts of models."
    )


def _write_items(items: Mapping[Any, Any], path: str, arrays: Arrays) -> dict[str, Any]:
    for name in items:
        if not isinstance(name, str):
            raise ValueError(f"{path} has the key {name!r}; in a file keys are texts.")
    return {name: write(item, f"{path}.{name}", arrays) for name, item in items.items()}


def _put(array: np.ndarray, path: str, arrays: Arrays) -> str:
    """The name under which the array now stands; names are unique."""
    name = path
    while name in arrays:
        name += "'"
    arrays[name] = array
    return name


def _write_call(value: Any, path: str, arrays: Arrays) -> dict[str, Any]:
    written = _write_items(_arguments(value), path, arrays)
    return {"new": _NAMES[type(value)], "with": written}


def _arguments(value: Any) -> dict[str, Any]:
    """What the constructor of an object in the table was called with."""
    if isinstance(value, dist.Distribution):
        return _distribution_arguments(value)
    if isinstance(value, transforms.Transform):
        names = inspect.signature(type(value)).parameters
        return {name: getattr(value, name) for name in names}
    if isinstance(value, tuple):  # a NamedTuple
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    names = [field.name for field in dataclasses.fields(value) if field.init]
    return {name: getattr(value, name) for name in names}


_MATRICES = ("covariance_matrix", "precision_matrix", "scale_tril")


def _distribution_arguments(value: dist.Distribution) -> dict[str, Any]:
    names = list(inspect.signature(type(value)).parameters)
    if isinstance(value, dist.MultivariateNormal):  # the matrix that it was made with
        names = ["loc", next(n for n in _MATRICES if n in vars(value)), "validate_args"]
    arguments = {
        # the one name that is not that of its attribute
        name: getattr(value, "base_dist" if name == "base_distribution" else name)
        for name in names
        if name != "validate_args"
    }
    given = vars(value).get("_validate_args")
    if "validate_args" in names and given is not None:
        arguments["validate_args"] = given
    return arguments


def _write_component(value: Component, path: str, arrays: Arrays) -> dict[str, Any]:
    """A kernel, mean or likelihood; its slots bear the names of hyperparameters."""
    written = {}
    for field in dataclasses.fields(value):
        part, name = getattr(value, field.name), slot_name(path, value, field.name)
        if isinstance(part, dist.Distribution):
            written[field.name] = _write_prior(part, name, arrays)
        elif isinstance(part, tuple) and part and isinstance(part[0], Component):
            parts = [write(p, f"{path}[{i}]", arrays) for i, p in enumerate(part)]
            written[field.name] = {"tuple": parts}
        elif isinstance(part, Component):
            written[field.name] = write(part, f"{path}.{field.name}", arrays)
        else:
            written[field.name] = write(part, name, arrays)
    kind = type(value)
    if kind in _NAMES:
        return {"new": _NAMES[kind], "with": written}
    return {"own": kind.__name__, "with": written}


def _write_prior(prior: dist.Distribution, path: str, arrays: Arrays) -> dict[str, Any]:
    """A slot's distribution, with the precision in which its constructor worked.

    A prior that was made in float32, JAX's default, is made in float32 again: some
    constructors compute, and the result shall be the same to the last bit.
    """
    written: Any = write(prior, path, arrays)
    for x64 in (True, False):
        text = {**written, "x64": x64}
        if _same(prior, read(text, arrays)):
            return text
    raise ValueError(
        f"{path} cannot be written to a file: its prior {type(prior).__name__} is not "
        "what its arguments make. Give it as a plain numpyro distribution."
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two trees have the same structure and, to the last bit, numbers."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(leaves, others, strict=True)
    )


# --- reading ----------------------------------------------------------------------------


def read(
    written: Any,
    arrays: Mapping[str, np.ndarray],
    classes: Sequence[type[Component]] = (),
) -> Any:
    """What `write` wrote.

    Args:
        written: JSON, as `write` returned it.
        arrays: those it put aside.
        classes: kernels, means and likelihoods that are not steingp's.

    Raises:
        ValueError: a class is not in the table, nor among `classes`.
    """
    if isinstance(written, list):
        return [read(item, arrays, classes) for item in written]
    if not isinstance(written, dict):
        return written
    if "with" in written:
        return _made(written, arrays, classes)
    ((kind, content),) = written.items()
    if kind == "array":
        return arrays[content]
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(read(content, arrays, classes))
    if kind == "slice":
        return slice(*content)
    if kind == "constraint" and content in CONSTRAINTS:
        return getattr(constraints, content)
    if kind == "dict":
        return {key: read(item, arrays, classes) for key, item in content.items()}
    raise ValueError(f"it holds {kind!r}, which this version of steingp does not know.")


def _made(
    written: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    classes: Sequence[type[Component]],
) -> Any:
    make = _class_of(written, classes)
    with jax.enable_x64(written.get("x64", True)):
        content = written["with"].items()
        arguments = {name: read(item, arrays, classes) for name, item in content}
        try:
            return make(**arguments)
        except TypeError as error:
            raise ValueError(
                f"{make.__name__} cannot be made from {', '.join(arguments)}: {error}. "
                "It is another version of the class that was saved."
            ) from error


def _class_of(written: Mapping[str, Any], classes: Sequence[type[Component]]) -> type:
    if "own" in written:
        own = {kind.__name__: kind for kind in classes}
        if written["own"] not in own:
            raise ValueError(
                f"it holds {written['own']}, a class of your own, which a file cannot "
                f"bring along: pass it, steingp.load(path, classes=[{written['own']}])."
            )
        return own[written["own"]]
    if written.get("new") not in TABLE:
        raise ValueError(
            f"it holds {written.get('new')}, which this version of steingp or numpyro "
            "does not have: upgrade both."
        )
    return TABLE[written["new"]]


# --- targets ----------------------------------------------------------------------------


def write_target(target: Target, num_inputs: int, arrays: Arrays) -> dict[str, Any]:
    """A target with its specification as the user wrote it, for data of so many columns.

    Raises:
        ValueError: a hyperparameter's prior, or a part of the model, cannot be written.
    """
    fields = _arguments(target)
    specification: Specification = fields.pop("specification")
    parts = {
        name: write(getattr(specification, name), name, arrays)
        for name in ("kernel", "mean", "likelihood")
    }
    return {
        "new": _NAMES[type(target)],
        "fields": write(fields, "target", arrays),
        "num_inputs": num_inputs,
        "hyperparameters": write(_listed(specification.hyperparameters), "", {}),
        **parts,
    }


def read_target(
    written: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    classes: Sequence[type[Component]] = (),
) -> Target:
    """What `write_target` wrote, with the hyperparameters bound anew.

    Raises:
        ValueError: these are not the hyperparameters, or priors, of then.
    """
    parts = [
        read(written[name], arrays, classes)
        for name in ("kernel", "mean", "likelihood")
    ]
    specification = Specification.bind(*parts, num_inputs=written["num_inputs"])
    then = read(written["hyperparameters"], arrays)
    now = _listed(specification.hyperparameters)
    for name in {*then, *now}:
        if name not in then or name not in now or not _agree(then[name], now[name]):
            raise ValueError(
                f"the hyperparameter {name}, or its prior, is not what it was when the "
                "posterior was saved: the class that has it is another now. Load it with "
                "the version of the class, or of steingp, that saved it."
            )
    fields = read(written["fields"], arrays, classes)
    return TABLE[written["new"]](specification=specification, **fields)


def _listed(hyperparameters: Hyperparameters) -> dict[str, list[Any]]:
    """Name -> shape and start, with the log prior there; or shape and fixed value."""
    listed: dict[str, list[Any]] = {}
    with jax.enable_x64(True):
        for p in hyperparameters.free:
            start = np.asarray(p.start, float)
            log_prior = float(jnp.sum(p.prior.log_prob(start)))
            listed[p.name] = [list(start.shape), start.ravel().tolist(), log_prior]
    for name, known in hyperparameters.known.items():
        value = np.asarray(known, float)
        listed[name] = [list(value.shape), value.ravel().tolist(), None]
    return listed


def _agree(then: list[Any], now: list[Any]) -> bool:
    """Whether a hyperparameter is the same, to what other machines may compute."""
    (shape, start, log_prior), (now_shape, now_start, now_log_prior) = then, now
    if shape != now_shape or (log_prior is None) != (now_log_prior is None):
        return False
    numbers = [*start, *([] if log_prior is None else [log_prior])]
    now_numbers = [*now_start, *([] if log_prior is None else [now_log_prior])]
    return np.allclose(numbers, now_numbers, rtol=1e-6, atol=1e-9, equal_nan=True)

"""Point estimates of the hyperparameters: maximum likelihood and maximum a posteriori.

Both maximise by L-BFGS from several starts. f is integrated out as the model says: exactly
for Gaussian data, with inducing points by the bound of Titsias (2009), and for other
likelihoods by EP, VI or Laplace. So maximum likelihood of a model with inducing points is
the sparse variational regression of Titsias, and of one with `approximation="vi"` it is the
variational inference of Opper and Archambeau (2008), its q solved for at every theta.
"""

import time
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from steingp.checks import check_count
from steingp.data import Batch
from steingp.flat import Flat
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.precision import float64
from steingp.progress import progress_bar
from steingp.targets import Variational

_WORST = 1e25
"""Stands for a likelihood that is not finite, which a line search must step back from."""


class PointEstimate(NamedTuple):
    """The best hyperparameters found, and how they were.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.sin(2 * X)), sg.kernels.SquaredExponential())
        >>> found = sg.baselines.maximum_likelihood(model, num_starts=2)
        >>> found.posterior.num_draws, len(found.values)
        (1, 2)
    """

    posterior: Posterior
    """Of one draw."""
    value: float
    """The log likelihood there; with the log prior, where that was maximised."""
    values: np.ndarray
    """What every start came to."""
    num_gradients: int
    seconds: float


def maximum_likelihood(
    model: SteinGP,
    *,
    num_starts: int = 5,
    max_iterations: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> PointEstimate:
    """The hyperparameters under which the data are most likely.

    Args:
        model: a `SteinGP` in which f is integrated out, with its data in memory.
        num_starts: the numbers in the model's slots first, then draws from the prior.
        max_iterations: of L-BFGS, from every start.
        seed: for the starts.
        progress: show a bar (on a terminal only).

    Raises:
        ValueError: the model has joint latents, batches or a stream.
        FloatingPointError: the likelihood is not finite at any start.

    Reference:
        Rasmussen and Williams (2006), chapter 5; Titsias (2009) with inducing points.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.cos(2 * X)), sg.kernels.Matern52())
        >>> found = sg.baselines.maximum_likelihood(model, num_starts=2)
        >>> found.posterior.predict_y([[0.5]]).mean.shape
        (1,)
    """
    return _maximise(
        model, "maximum likelihood", False, num_starts, max_iterations, seed, progress
    )


def maximum_a_posteriori(
    model: SteinGP,
    *,
    num_starts: int = 5,
    max_iterations: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> PointEstimate:
    """The hyperparameters of highest posterior density.

    A density has its peak elsewhere in other coordinates; this is the peak of the density
    of the hyperparameters as they are, not of their logarithms.

    Args:
        model, num_starts, max_iterations, seed, progress: as in `maximum_likelihood`.

    Raises:
        ValueError, FloatingPointError: as `maximum_likelihood`.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.cos(2 * X)), sg.kernels.Matern52())
        >>> found = sg.baselines.maximum_a_posteriori(model, num_starts=2)
        >>> found.posterior.num_draws
        1
    """
    return _maximise(
        model, "maximum a posteriori", True, num_starts, max_iterations, seed, progress
    )


@eqx.filter_jit
def _value_and_gradient(
    flat: Flat, z: Array, data: Batch, with_prior: bool
) -> tuple[Array, Array]:
    def value(z: Array) -> Array:
        theta = flat.constrain(z)
        total = flat.target.log_likelihood(theta, data)
        if with_prior:
            for p in flat.target.specification.hyperparameters.free:
                total = total + jnp.sum(p.prior.log_prob(theta[p.name]))
        return total

    return jax.value_and_grad(value)(z)


@float64
def _maximise(
    model: SteinGP,
    what: str,
    with_prior: bool,
    num_starts: int,
    max_iterations: int,
    seed: int,
    progress: bool,
) -> PointEstimate:
    _check_model(model, what)
    check_count("num_starts", num_starts)
    check_count("max_iterations", max_iterations)
    check_count("seed", seed, lowest=0)
    flat = Flat(model.target)
    data = Batch(*map(jnp.asarray, model.data))
    count = 0

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal count
        count += 1
        value, gradient = _value_and_gradient(flat, jnp.asarray(z), data, with_prior)
        slope = np.asarray(gradient)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return _WORST, np.zeros_like(slope)
        return -float(value), -slope

    began = time.perf_counter()
    values, places = [], []
    with (
        blas_suited_to(model.matrix_size),
        progress_bar(num_starts, progress, what, "...") as show,
    ):
        for start in _starts(model, num_starts, seed):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a line search that met _WORST
                found: Any = minimize(
                    loss, start, jac=True, method="L-BFGS-B",
                    options={"maxiter": max_iterations, "maxcor": 20},
                )  # fmt: skip
            values.append(-float(found.fun) if found.fun < _WORST else -np.inf)
            places.append(found.x)
            show(len(values), f"best {max(values):.2f}")
    best = int(np.argmax(values))
    if not np.isfinite(values[best]):
        raise FloatingPointError(
            f"{what}: the likelihood is not finite at any of {num_starts} starts. "
            "Standardise the data, or use more jitter."
        )
    theta = {k: np.asarray(v)[None] for k, v in flat.constrain(places[best]).items()}
    name = "log posterior density" if with_prior else "log likelihood"
    about = f"best of {num_starts} starts, {name} {values[best]:.2f}"
    return PointEstimate(
        model.posterior(theta, method=f"{what}, {about}"),
        values[best],
        np.array(values),
        count,
        time.perf_counter() - began,
    )


def _starts(model: SteinGP, num: int, seed: int) -> list[np.ndarray]:
    target = model.target
    written = target.specification.hyperparameters.start()
    drawn = model.sample_prior(max(num - 1, 1), seed)
    each = [written]
    each += [{k: jnp.asarray(v[i]) for k, v in drawn.items()} for i in range(num - 1)]
    return [np.asarray(ravel_pytree(target.unconstrain(theta))[0]) for theta in each]


def _check_model(model: Any, what: str) -> None:
    """Refuse what has no likelihood of theta alone."""
    if not isinstance(model, SteinGP):
        raise ValueError(f"model must be a SteinGP; got {type(model).__name__}.")
    if isinstance(model.target, Variational) or model.stream is not None:
        raise ValueError(
            f"{what} needs all rows at once, in memory; for batches and streams there is "
            "steingp.baselines.svi(model)."
        )
    if model.target.num_latents:
        raise ValueError(
            f"{what} is of hyperparameters alone, f being integrated out: make the model "
            'with latents="auto".'
        )
    if not model.has_unknowns:
        raise ValueError("every hyperparameter is fixed: there is nothing to estimate.")

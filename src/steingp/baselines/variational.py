"""Variational inference with natural gradients: one theta, and one Gaussian q.

q(u) at the inducing points, or at every row of the data, goes at each step a part of the
way to what the rows of the step ask for (a natural gradient; Hensman et al. 2013); then
theta takes a step of Adam up the bound. Of the prior of theta nothing is used: it is
maximum likelihood, with the bound in place of the likelihood.
"""

import copy
import time
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from steingp import svgd
from steingp.batches import FullBatch
from steingp.checks import check_count
from steingp.data import Batch
from steingp.flat import Flat
from steingp.likelihoods import Gaussian
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.precision import float64, to_numpy
from steingp.priors import Particle
from steingp.progress import progress_bar
from steingp.targets import Variational
from steingp.targets.variational import Q_MEAN, Q_ROOT, Natural

_MOST_CHUNK = 50
_SETTLING, _SETTLING_RATE = 30, 0.5
"""Steps of q alone at the end, where all rows are at hand at every step."""


class VariationalFit(NamedTuple):
    """One theta with its q, and how the bound rose.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.sin(2 * X)), sg.kernels.SquaredExponential())
        >>> found = sg.baselines.vi(model, num_steps=100)
        >>> found.posterior.num_draws, found.bounds.shape
        (1, (3,))
    """

    posterior: Posterior
    """Of one draw; of one per component, with their weights, where q is a mixture."""
    bound: float
    """On the log likelihood, at the end: over all rows, or else of the last batch."""
    bounds: np.ndarray
    """The same now and then on the way; of `vi` and `svi` without the divergence of q from
    its prior."""
    seconds: float


class _State(NamedTuple):
    z: Any
    optimiser: Any
    q: Natural
    step: Any


def vi(
    model: SteinGP,
    *,
    num_steps: int = 1000,
    learning_rate: float = 0.05,
    natural_rate: float | None = None,
    progress: bool = True,
) -> VariationalFit:
    """Variational inference on all rows, for any likelihood.

    q is a Gaussian over f at every row, or at the inducing points of the model. At the end
    q settles while theta stands still. For Gaussian data without inducing points, and
    without White in the kernel, the bound is the likelihood itself.

    Args:
        model: a `SteinGP` with its data in memory.
        num_steps: of theta and q together.
        learning_rate: of Adam, for theta.
        natural_rate: how far q goes at a step, in (0, 1]; by default 1 for Gaussian data,
            whose q is right at once, and else 0.5. The paper's is 0.1.
        progress: show a bar (on a terminal only).

    Raises:
        ValueError: a model with joint latents or a stream; rates out of range.
        FloatingPointError: the bound is not finite.

    Reference:
        Opper and Archambeau (2009), The variational Gaussian approximation revisited;
        Salimbeni, Eleftheriadis and Hensman (2018), Natural gradients in practice.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> y = (np.sin(3 * X[:, 0]) > 0).astype(int)
        >>> model = sg.SteinGP(
        ...     (X, y), sg.kernels.SquaredExponential(), sg.likelihoods.Bernoulli())
        >>> found = sg.baselines.vi(model, num_steps=100)
        >>> found.posterior.predict_y([[0.5]]).mean.shape
        (1,)
    """
    if natural_rate is None:
        known = isinstance(model, SteinGP) and isinstance(model._likelihood, Gaussian)
        natural_rate = 1.0 if known else 0.5
    _check(model, learning_rate, natural_rate)
    if model.stream is not None:
        raise ValueError("vi needs all rows in memory; for a stream there is svi.")
    check_count("num_steps", num_steps)
    whole = with_q(model)
    whole._batch_size = None
    return _climb(
        whole, num_steps, learning_rate, natural_rate, _SETTLING, "VI", progress
    )


def svi(
    model: SteinGP,
    *,
    num_steps: int = 10_000,
    learning_rate: float = 0.01,
    natural_rate: float = 0.1,
    max_seconds: float | None = None,
    progress: bool = True,
) -> VariationalFit:
    """Stochastic variational inference: a batch of rows at every step.

    Args:
        model: a `SteinGP` with inducing points, and with a `batch_size` or a stream.
        num_steps: of theta and q together.
        learning_rate: of Adam, for theta.
        natural_rate: how far q goes at a step to what its batch asks for, in (0, 1].
        max_seconds: stop earlier, when so many have passed since the first 50 steps, with
            which code is compiled.
        progress: show a bar (on a terminal only).

    Raises:
        ValueError: a model without inducing points or with joint latents; rates out of
            range.
        FloatingPointError: the bound is not finite.

    Reference:
        Hensman, Fusi and Lawrence (2013), Gaussian processes for big data.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 200)[:, None]
        >>> model = sg.SteinGP(
        ...     (X, np.sin(X)), sg.kernels.Matern52(), inducing=X[::20], batch_size=50)
        >>> sg.baselines.svi(model, num_steps=200).posterior.num_draws
        1
    """
    _check(model, learning_rate, natural_rate)
    check_count("num_steps", num_steps)
    if getattr(model.target, "Z", None) is None:
        raise ValueError(
            "svi needs inducing points: make the model with inducing=200, for instance."
        )
    if max_seconds is not None and not max_seconds > 0:
        raise ValueError(f"max_seconds must be positive; got {max_seconds!r}.")
    return _climb(
        with_q(model), num_steps, learning_rate, natural_rate, 0, "SVI", progress,
        max_seconds,
    )  # fmt: skip


def with_q(model: SteinGP) -> SteinGP:
    """The model with a q(u) at its inducing points, or at every row, in each particle."""
    if isinstance(model.target, Variational):
        return copy.copy(model)
    Z = getattr(model.target, "Z", None)
    explicit = copy.copy(model)
    explicit.target = Variational(
        model.target.specification,
        Z=np.asarray(model.data.X if Z is None else Z),
        num_data=float(model.num_data),
        jitter=model.target.jitter,
    )
    return explicit


def _check(model: Any, learning_rate: float, natural_rate: float) -> None:
    if not isinstance(model, SteinGP):
        raise ValueError(f"model must be a SteinGP; got {type(model).__name__}.")
    if model.target.num_latents:
        raise ValueError(
            "the model has latents as part of its particles; variational inference has a "
            'Gaussian q for them: make it with latents="auto".'
        )
    if not (np.isfinite(learning_rate) and learning_rate > 0.0):
        raise ValueError(f"learning_rate must be positive; got {learning_rate!r}.")
    if not 0.0 < natural_rate <= 1.0:
        raise ValueError(f"natural_rate must be in (0, 1]; got {natural_rate!r}.")


@eqx.filter_jit
def _run_chunk(
    target: Variational,
    source: Any,
    state: _State,
    num_steps: Array,
    optimiser: optax.GradientTransformation,
    natural_rate: Array,
    moving_until: Array,
) -> tuple[_State, Array]:
    flat = Flat(target)

    def body(_: Array, carry: tuple[_State, Array]) -> tuple[_State, Array]:
        state, _ = carry
        batch = source.at(state.step)

        moving = state.step < moving_until
        rate = jnp.where(moving, natural_rate, _SETTLING_RATE)
        # theta sees the new q: with the old one its steps would be held back by what q
        # knew before, the more so the smaller the noise
        (value, q), slope = jax.value_and_grad(
            lambda z: target.stepped(flat.constrain(z), state.q, batch, rate),
            has_aux=True,
        )(state.z)
        update, adam = optimiser.update(-slope, state.optimiser, state.z)
        z = jnp.where(moving, state.z + jnp.asarray(update), state.z)
        return _State(z, adam, q, state.step + 1), value

    state = jax.tree.map(jnp.asarray, state)
    return jax.lax.fori_loop(0, num_steps, body, (state, jnp.zeros(())))


@eqx.filter_jit
def _particle(target: Variational, state: _State) -> Particle:
    theta = Flat(target).constrain(state.z)
    mean, root = state.q.moments()
    return theta | {Q_MEAN: mean, Q_ROOT: root}


@eqx.filter_jit
def _bound_of(target: Variational, particle: Particle, batch: Batch) -> Array:
    return target.log_likelihood(particle, batch)


@float64
def _climb(
    model: SteinGP,
    num_steps: int,
    learning_rate: float,
    natural_rate: float,
    num_settling: int,
    name: str,
    progress: bool,
    max_seconds: float | None = None,
) -> VariationalFit:
    target = model.target
    assert isinstance(target, Variational)
    began = compiled = time.perf_counter()
    start = target.specification.hyperparameters.start()
    z = np.asarray(
        ravel_pytree(target.specification.hyperparameters.unconstrain(start))[0]
    )
    optimiser = svgd.adam(learning_rate)
    state = _State(
        z, optimiser.init(jnp.asarray(z)), Natural.of_prior(len(target.Z)), np.array(0)
    )
    batches = model.batches()
    source: Any = batches.chunk(0, 1)[0]
    total, bounds = num_steps + num_settling, []
    with (
        blas_suited_to(model.matrix_size),
        progress_bar(total, progress, name, "...") as show,
    ):
        try:
            while (done := int(state.step)) < total:
                source, num = batches.chunk(done, min(_MOST_CHUNK, total - done))
                state, value = to_numpy(
                    _run_chunk(
                        target, source, state, jnp.asarray(num), optimiser,
                        jnp.asarray(natural_rate), jnp.asarray(num_steps),
                    )
                )  # fmt: skip
                if not np.isfinite(value):
                    raise FloatingPointError(
                        f"{name}: the bound is not finite after {done + num} steps. "
                        "Standardise the data, or use a smaller learning_rate."
                    )
                bounds.append(float(value))
                if done == 0:
                    compiled = time.perf_counter()
                show(int(state.step), f"bound {value:.1f}")
                if max_seconds and time.perf_counter() - compiled > max_seconds:
                    break
        except KeyboardInterrupt:
            warnings.warn(
                f"interrupted after {int(state.step)} of {total} steps; what was reached "
                "is kept.",
                stacklevel=3,
            )
    particle = _particle(target, state)
    last = source.at(jnp.asarray(max(int(state.step) - 1, 0)))
    bound = float(_bound_of(target, particle, last))
    draw = {k: np.asarray(v)[None] for k, v in particle.items()}
    exact = isinstance(batches, FullBatch)
    about = f"{name}, {int(state.step)} steps, bound {bound:.2f}"
    return VariationalFit(
        model.posterior(draw, method=about + ("" if exact else " (of one batch)")),
        bound,
        np.array(bounds),
        time.perf_counter() - began,
    )

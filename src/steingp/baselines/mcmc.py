"""NUTS and HMC, by numpyro, on the target of any model: the gold standard.

The whole posterior is sampled, latents `nu` with it where they are part of a particle.
Each chain adapts its own step and metric during the warm-up, as numpyro does. The chains
run side by side in one compiled loop, in coordinates where every prior is standard normal.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer.hmc as numpyro_hmc
from jax import Array
from jaxtyping import ArrayLike

from steingp.baselines.chains import Chains, Seconds, diagnose
from steingp.checks import check_count
from steingp.data import Batch
from steingp.linalg import blas_suited_to
from steingp.models import SteinGP
from steingp.precision import float64
from steingp.priors import Particle
from steingp.progress import progress_bar
from steingp.targets import LATENTS, Target

_CHUNK = 25
"""Draws of every chain between two looks at the clock."""

_START_SD = 0.1
"""How far chains start from the prior's median, in normal coordinates."""


class _Settings(NamedTuple):
    """What the compiled loop depends on besides the target."""

    algorithm: str
    num_warmup: int
    dense: tuple[tuple[str, ...], ...]
    target_accept: float
    max_tree_depth: int
    trajectory_length: float
    one_by_one: bool


class _Record(NamedTuple):
    """What is kept of each draw."""

    z: Particle
    num_steps: Array
    acceptance: Array
    diverging: Array


def nuts(
    model: SteinGP,
    *,
    num_warmup: int = 500,
    num_draws: int = 500,
    num_chains: int = 4,
    seed: int = 0,
    start: Mapping[str, ArrayLike] | None = None,
    coordinates: str = "normal",
    dense_mass: bool | None = None,
    max_tree_depth: int = 10,
    target_accept: float = 0.8,
    chain_method: str = "vectorized",
    progress: bool = True,
) -> Chains:
    """The posterior of a model by the No-U-Turn sampler.

    Args:
        model: a `SteinGP` with its data in memory.
        num_warmup: draws of each chain that adapt step and metric, and are dropped.
        num_draws: draws of each chain that are kept.
        num_chains: how many chains.
        seed: same seed, same draws.
        start: where the chains start, name -> constrained array (num_chains, ...), for
            instance from `model.sample_prior(num_chains)`. By default near the prior's
            median, with latents near 0.
        coordinates: "normal", in which the priors are standard normal, or "softplus",
            the paper's.
        dense_mass: whether the metric is a full matrix; None: for the hyperparameters,
            and a diagonal for the latents.
        max_tree_depth: a trajectory has at most 2^max_tree_depth - 1 steps.
        target_accept: the acceptance probability that the step is adapted to.
        chain_method: "vectorized", all chains at once, each trajectory as slow as the
            longest; or "sequential", which is often faster on a CPU.
        progress: show a bar (on a terminal only).

    Returns:
        The draws, pooled into a `Posterior` and by chain, with their diagnostics.

    Raises:
        ValueError: for arguments that cannot work.
        FloatingPointError: the density is not finite where a chain starts.

    Reference:
        Hoffman and Gelman (2014), The No-U-Turn sampler.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.cos(2 * X)), sg.kernels.SquaredExponential())
        >>> chains = sg.baselines.nuts(model, num_warmup=100, num_draws=50)
        >>> chains.posterior.predict_y([[0.5]]).mean.shape
        (1,)
    """
    check_count("max_tree_depth", max_tree_depth)
    return _sample(
        model, "NUTS", num_warmup, num_draws, num_chains, seed, start, coordinates,
        dense_mass, max_tree_depth, 1.0, target_accept, chain_method, progress,
    )  # fmt: skip


def hmc(
    model: SteinGP,
    *,
    num_warmup: int = 500,
    num_draws: int = 500,
    num_chains: int = 4,
    seed: int = 0,
    start: Mapping[str, ArrayLike] | None = None,
    coordinates: str = "normal",
    dense_mass: bool | None = None,
    trajectory_length: float = 0.5 * math.pi,
    target_accept: float = 0.8,
    chain_method: str = "vectorized",
    progress: bool = True,
) -> Chains:
    """The posterior of a model by Hamiltonian Monte Carlo.

    Trajectories are on average a quarter of a period long in the directions that the
    metric has made standard normal: there, the end does not depend on the start. Lengths
    vary at random by half, since directions in which the posterior is narrower than its
    marginals would otherwise swing to and fro in step.

    Args:
        model: a `SteinGP` with its data in memory.
        num_warmup: draws of each chain that adapt step and metric, and are dropped.
        num_draws: draws of each chain that are kept.
        num_chains: how many chains.
        seed: same seed, same draws.
        start: as in `nuts`.
        coordinates: as in `nuts`.
        dense_mass: as in `nuts`.
        trajectory_length: steps times their number, on average.
        target_accept: the acceptance probability that the step is adapted to.
        chain_method: as in `nuts`.
        progress: show a bar (on a terminal only).

    Returns:
        As `nuts`.

    Reference:
        Neal (2011), MCMC using Hamiltonian dynamics.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.cos(2 * X)), sg.kernels.SquaredExponential())
        >>> chains = sg.baselines.hmc(model, num_warmup=100, num_draws=50)
        >>> chains.draws["kernel.variance"].shape
        (4, 50)
    """
    if not (np.isfinite(trajectory_length) and trajectory_length > 0.0):
        raise ValueError(
            f"trajectory_length must be a positive number; got {trajectory_length!r}."
        )
    return _sample(
        model, "HMC", num_warmup, num_draws, num_chains, seed, start, coordinates,
        dense_mass, 10, float(trajectory_length), target_accept, chain_method, progress,
    )  # fmt: skip


@float64
def _sample(
    model: SteinGP, algorithm: str, num_warmup: int, num_draws: int, num_chains: int,
    seed: int, start: Mapping[str, ArrayLike] | None, coordinates: str,
    dense_mass: bool | None, max_tree_depth: int, trajectory_length: float,
    target_accept: float, chain_method: str, progress: bool,
) -> Chains:  # fmt: skip
    _check(model, coordinates, target_accept, chain_method)
    check_count("num_warmup", num_warmup)
    check_count("num_draws", num_draws, lowest=4)
    check_count("num_chains", num_chains)
    check_count("seed", seed, lowest=0)
    normal = model.target.normalised()
    target = normal if coordinates == "normal" else model.target
    start_key, chain_key = jax.random.split(jax.random.key(seed))
    z = _start(target, normal, start, num_chains, start_key)
    settings = _Settings(
        algorithm, num_warmup, _dense_blocks(target, dense_mass), float(target_accept),
        max_tree_depth, trajectory_length, chain_method == "sequential",
    )  # fmt: skip
    data = Batch(*(jnp.asarray(column) for column in model.data))
    keys = jax.random.split(chain_key, num_chains)
    with blas_suited_to(model.matrix_size):
        record, step_size, seconds = _run(
            settings, target, data, z, keys, num_draws, progress
        )
    return _conclude(model, target, record, step_size, seconds, settings)


def _check(model: Any, coordinates: Any, target_accept: Any, chain_method: Any) -> None:
    if not isinstance(model, SteinGP):
        raise ValueError(f"model must be a SteinGP; got {type(model).__name__}.")
    if model.stream is not None:
        raise ValueError("MCMC needs the data in memory; the model reads a stream.")
    if not model.has_unknowns:
        raise ValueError(
            "there is nothing to sample: every hyperparameter is fixed and f is "
            "integrated out. steingp.fit gives the exact posterior."
        )
    if coordinates not in ("normal", "softplus"):
        raise ValueError(
            f'coordinates must be "normal" or "softplus"; got {coordinates!r}.'
        )
    if chain_method not in ("vectorized", "sequential"):
        raise ValueError(
            f'chain_method must be "vectorized" or "sequential"; got {chain_method!r}.'
        )
    if not (np.ndim(target_accept) == 0 and 0.0 < target_accept < 1.0):
        raise ValueError(
            f"target_accept must be a number between 0 and 1; got {target_accept!r}."
        )


def _start(
    target: Target,
    normal: Target,
    start: Mapping[str, ArrayLike] | None,
    num_chains: int,
    key: Array,
) -> Particle:
    """Where the chains start, in the target's coordinates."""
    if start is None:
        shapes = {p.name: p.shape for p in normal.specification.hyperparameters.free}
        if normal.num_latents:
            shapes[LATENTS] = (normal.num_latents,)
        near = {
            name: _START_SD * jax.random.normal(k, (num_chains, *shape))
            for (name, shape), k in zip(
                shapes.items(), jax.random.split(key, len(shapes)), strict=True
            )
        }
        theta = _constrain(normal, near)
    else:
        theta = {name: jnp.asarray(value, float) for name, value in start.items()}
        given = target.check_particles(theta)
        if given != num_chains:
            raise ValueError(
                f"start has {given} particles for {num_chains} chains; give one each."
            )
    return _unconstrain(target, theta)


def _dense_blocks(
    target: Target, dense_mass: bool | None
) -> tuple[tuple[str, ...], ...]:
    """Which parts of z share a full metric; the rest has a diagonal one."""
    names = [p.name for p in target.specification.hyperparameters.free]
    if dense_mass and target.num_latents:
        names.append(LATENTS)
    if dense_mass is False or not names:
        return ()
    return (tuple(names),)


# --- the compiled loop ------------------------------------------------------------------


def _potential(target: Target, data: Batch) -> Callable[[Particle], Array]:
    return lambda z: -target(z, data)


def _kernel(settings: _Settings, target: Target, data: Batch) -> tuple[Any, Any]:
    """numpyro's start and step, of one chain."""
    kernel: Any = numpyro_hmc.hmc(potential_fn_gen=_potential, algo=settings.algorithm)
    init, sample = kernel

    def start(z: Particle, key: Array) -> Any:
        return init(
            z, settings.num_warmup, dense_mass=list(settings.dense),
            target_accept_prob=settings.target_accept,
            trajectory_length=settings.trajectory_length,
            max_tree_depth=settings.max_tree_depth, model_args=(target, data),
            rng_key=key,
        )  # fmt: skip

    def step(state: Any) -> Any:
        if settings.algorithm == "HMC":
            # a key that the step does not split off itself
            key = jax.random.fold_in(state.rng_key, 1000)
            factor = jax.random.uniform(key, minval=0.5, maxval=1.5)
            length = settings.trajectory_length * factor
            state = state._replace(trajectory_length=length)
        return sample(state, (target, data))

    return start, step


def _shared(state: Any) -> Any:
    """vmap's axes of a state: all chains count the same draws and windows.

    Then adaptation is a branch that is taken now and then; with a counter per chain it
    would be computed at every step and thrown away.
    """
    axes = jax.tree.map(lambda _: 0, state)
    return axes._replace(i=None, adapt_state=axes.adapt_state._replace(window_idx=None))


@eqx.filter_jit
def _init(
    settings: _Settings, target: Target, data: Batch, z: Particle, keys: Array
) -> Any:
    start, _ = _kernel(settings, target, data)
    if settings.one_by_one:
        return jax.lax.map(lambda pair: start(*pair), (z, keys))
    one = jax.eval_shape(start, jax.tree.map(lambda leaf: leaf[0], z), keys[0])
    return jax.vmap(start, out_axes=_shared(one))(z, keys)


@eqx.filter_jit
def _advance(
    settings: _Settings, target: Target, data: Batch, state: Any, num: Array
) -> tuple[Any, _Record]:
    """`num` <= _CHUNK draws of every chain; the record's axes are draws, chains, ..."""
    start, sample = _kernel(settings, target, data)
    # numpyro's step reads what its start left behind in Python variables
    one = jax.eval_shape(start, jax.tree.map(lambda leaf: leaf[0], state.z),
                         state.rng_key[0])  # fmt: skip

    def draws(step: Callable[[Any], Any], state: Any) -> tuple[Any, _Record]:
        def body(i: Array, carry: tuple[Any, _Record]) -> tuple[Any, _Record]:
            state, record = carry
            state = step(state)
            latest = _recorded(state)
            record = jax.tree.map(lambda all, x: all.at[i].set(x), record, latest)
            return state, record

        empty = jax.tree.map(
            lambda x: jnp.zeros((_CHUNK, *x.shape), x.dtype), _recorded(state)
        )
        return jax.lax.fori_loop(0, num, body, (state, empty))

    if settings.one_by_one:
        state, record = jax.lax.map(lambda s: draws(sample, s), state)
        return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), record)
    axes = _shared(one)
    return draws(jax.vmap(sample, in_axes=(axes,), out_axes=axes), state)


def _recorded(state: Any) -> _Record:
    return _Record(state.z, state.num_steps, state.accept_prob, state.diverging)


def _run(
    settings: _Settings, target: Target, data: Batch, z: Particle, keys: Array,
    num_draws: int, progress: bool,
) -> tuple[_Record, np.ndarray, Seconds]:  # fmt: skip
    """All draws, warm-up first, axes chains and draws; steps; seconds."""
    began = time.perf_counter()
    state = _init(settings, target, data, z, keys)
    lost = ~np.isfinite(np.asarray(state.potential_energy))
    if np.any(lost):
        raise FloatingPointError(
            f"the density is not finite where chain {int(np.argmax(lost))} starts; "
            "give another start."
        )
    # no draws: compiles, and takes no time when it is compiled already
    jax.block_until_ready(_advance(settings, target, data, state, jnp.asarray(0)))
    ticks = [time.perf_counter()]
    records: list[_Record] = []
    done, everything = 0, settings.num_warmup + num_draws
    with progress_bar(everything, progress, settings.algorithm, "") as show:
        for phase, end in (("warm-up", settings.num_warmup), ("draws", everything)):
            while done < end:
                now = min(_CHUNK, end - done)
                state, record = _advance(
                    settings, target, data, state, jnp.asarray(now)
                )
                records.append(jax.tree.map(lambda x: np.array(x)[:now], record))  # noqa: B023
                done += now
                show(done, phase)
            ticks.append(time.perf_counter())
    record = jax.tree.map(
        lambda *parts: np.swapaxes(np.concatenate(parts), 0, 1), *records
    )
    seconds = Seconds(ticks[0] - began, ticks[1] - ticks[0], ticks[2] - ticks[1])
    return record, np.array(state.adapt_state.step_size), seconds


# --- the draws --------------------------------------------------------------------------


def _conclude(
    model: SteinGP, target: Target, record: _Record, step_size: np.ndarray,
    seconds: Seconds, settings: _Settings,
) -> Chains:  # fmt: skip
    kept = jax.tree.map(lambda x: x[:, settings.num_warmup :], record)
    num_chains, num_draws = kept.diverging.shape
    z = {name: value.reshape(-1, *value.shape[2:]) for name, value in kept.z.items()}
    pooled = {name: np.array(value) for name, value in _constrain(target, z).items()}
    draws = {
        name: value.reshape(num_chains, num_draws, *value.shape[1:])
        for name, value in pooled.items()
    }
    posterior = model.posterior(
        pooled, method=f"{settings.algorithm}, {num_chains} chains of {num_draws}"
    )
    r_hat, effective_size = diagnose(posterior, num_chains)
    # the start of every chain takes one gradient too
    return Chains(
        posterior, draws, r_hat, effective_size, int(kept.diverging.sum()),
        int(record.num_steps.sum()) + num_chains,
        int(record.num_steps.max(axis=0).sum()) + 1,
        kept.acceptance.mean(axis=1), step_size, seconds,
    )  # fmt: skip


@eqx.filter_jit
def _constrain(target: Target, z: Particle) -> Particle:
    return jax.vmap(target.constrain)(z)


@eqx.filter_jit
def _unconstrain(target: Target, theta: Particle) -> Particle:
    return jax.vmap(target.unconstrain)(theta)

"""Variational posteriors of f that are mixtures of Gaussians (Nguyen and Bonilla 2014).

q(f) = sum of w_k N(m_k, S_k). The expectations of log p(y | f) are those of each row's
Gaussian marginals, one-dimensional. The entropy of a mixture is bounded by Jensen's
inequality, -sum_k w_k log sum_l w_l N(m_k; m_l, S_k + S_l); that of a single Gaussian is
known. What is maximised is the resulting bound, over theta, weights, means and covariances.
"""

import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from steingp import svgd
from steingp.baselines.variational import VariationalFit, vi, with_q
from steingp.checks import check_count
from steingp.data import Batch
from steingp.flat import Flat
from steingp.linalg import (
    add_diagonal,
    blas_suited_to,
    cholesky,
    factorise,
    solve_lower,
)
from steingp.models import SteinGP
from steingp.precision import float64, to_numpy
from steingp.priors import Particle
from steingp.progress import progress_bar
from steingp.targets import Variational
from steingp.targets.variational import Q_MEAN, Q_ROOT

_MOST_CHUNK = 50
_APART = 0.5
"""Sds of q, by which the components' means differ at the start."""


class _Mixture(NamedTuple):
    """All that is maximised over; whitened, v = L^-1 (f - m(X))."""

    z: Float[Array, " d"]
    logits: Float[Array, " K"]
    means: Float[Array, "K N"]
    widths: Any
    """Full: lower triangles (K, N, N), logarithms on the diagonal. Diagonal: log sds of f,
    (K, N)."""


def mixture_vi(
    model: SteinGP,
    *,
    num_components: int = 2,
    covariance: str = "full",
    num_steps: int = 2000,
    learning_rate: float = 0.02,
    seed: int = 0,
    progress: bool = True,
) -> VariationalFit:
    """Variational inference in which q(f) is a mixture of Gaussians.

    It starts from the Gaussian q of `vi`, the components a little apart. The bound on the
    entropy of several components is loose, by 0.15 nats per row for equal ones, so a
    mixture's bound may be below a single Gaussian's.

    Args:
        model: a `SteinGP` without inducing points, its data in memory, any likelihood.
        num_components: K; 1 is a single Gaussian.
        covariance: of a component over f: "full", or "diagonal", of which Nguyen and
            Bonilla have few numbers to learn per component. Values of f that are all but
            equal cannot vary independently, so diagonal ones are far too narrow for
            smooth functions.
        num_steps: of Adam.
        learning_rate: of Adam.
        seed: for where the components start.
        progress: show a bar (on a terminal only).

    Returns:
        A posterior of K draws, one per component, with their weights.

    Raises:
        ValueError: inducing points, joint latents or a stream.
        FloatingPointError: the bound is not finite.

    Reference:
        Nguyen and Bonilla (2014), Automated variational inference for Gaussian process
        models.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-1, 1, 15)[:, None]
        >>> y = (np.sin(3 * X[:, 0]) > 0).astype(int)
        >>> model = sg.SteinGP(
        ...     (X, y), sg.kernels.SquaredExponential(), sg.likelihoods.Bernoulli())
        >>> found = sg.baselines.mixture_vi(model, num_components=2, num_steps=100)
        >>> found.posterior.num_draws, round(float(found.posterior.weights.sum()), 6)
        (2, 1.0)
    """
    check_count("num_components", num_components)
    check_count("num_steps", num_steps)
    check_count("seed", seed, lowest=0)
    if covariance not in ("diagonal", "full"):
        raise ValueError(
            f'covariance must be "diagonal" or "full"; got {covariance!r}.'
        )
    if getattr(getattr(model, "target", None), "Z", None) is not None:
        raise ValueError("mixture_vi is for models without inducing points.")
    began = time.perf_counter()
    single = vi(model, progress=progress)
    mixture, bound, bounds = _maximise(
        with_q(model), single, num_components, covariance == "full",
        num_steps, learning_rate, seed, progress,
    )  # fmt: skip
    posterior = with_q(model).posterior(
        mixture[0], weights=mixture[1],
        method=f"VI with {num_components} components, {covariance} covariances, "
        f"{num_steps} steps, bound {bound:.2f}",
    )  # fmt: skip
    return VariationalFit(posterior, bound, bounds, time.perf_counter() - began)


@float64
def _maximise(
    model: SteinGP,
    single: VariationalFit,
    num: int,
    full: bool,
    num_steps: int,
    learning_rate: float,
    seed: int,
    progress: bool,
) -> tuple[tuple[dict[str, np.ndarray], np.ndarray], float, np.ndarray]:
    target = model.target
    assert isinstance(target, Variational)
    data = Batch(*map(jnp.asarray, model.data))
    mixture = _begin(target, single, data, num, full, seed)
    optimiser = svgd.adam(learning_rate, num_steps, lowest=0.01)
    state, bounds, done = optimiser.init(mixture), [], 0
    with (
        blas_suited_to(model.matrix_size),
        progress_bar(num_steps, progress, "mixture", "...") as show,
    ):
        while done < num_steps:
            some = min(_MOST_CHUNK, num_steps - done)
            mixture, state, value = to_numpy(
                _run_chunk(
                    target, data, mixture, state, optimiser, jnp.asarray(some), full
                )
            )
            done += some
            if not np.isfinite(value):
                raise FloatingPointError(
                    f"the mixture's bound is not finite after {done} steps; use a smaller "
                    "learning_rate."
                )
            bounds.append(float(value))
            show(done, f"bound {value:.1f}")
    roots = np.asarray(_whitened_roots(target, mixture, full))
    theta = Flat(target).constrain(jnp.asarray(mixture.z))
    draws = {k: np.repeat(np.asarray(v)[None], num, axis=0) for k, v in theta.items()}
    draws |= {Q_MEAN: np.asarray(mixture.means), Q_ROOT: roots}
    weights = np.asarray(jax.nn.softmax(jnp.asarray(mixture.logits)))
    return (
        (draws, weights),
        float(_bound(target, mixture, data, full)),
        np.array(bounds),
    )


def _begin(
    target: Variational,
    single: VariationalFit,
    data: Batch,
    num: int,
    full: bool,
    seed: int,
) -> _Mixture:
    """The components around the q of a single Gaussian."""
    q = single.posterior.particles
    theta = {p.name: jnp.asarray(q[p.name][0])
             for p in target.specification.hyperparameters.free}  # fmt: skip
    z = ravel_pytree(target.specification.hyperparameters.unconstrain(theta))[0]
    mean, root = jnp.asarray(q[Q_MEAN][0]), jnp.asarray(q[Q_ROOT][0])
    apart = np.random.default_rng(seed).normal(size=(num, len(mean)))
    apart = _APART * (apart - apart.mean(axis=0)) * (num > 1)
    means = mean[None, :] + jnp.asarray(apart) @ root.T
    widths = _first_widths(target, theta, root, data, full)
    widths = jnp.broadcast_to(widths, (num, *widths.shape))
    return _Mixture(z, jnp.zeros(num), means, widths)


@eqx.filter_jit
def _first_widths(
    target: Variational, theta: Particle, root: Array, data: Batch, full: bool
) -> Array:
    lower = cholesky(root @ root.T, target.jitter)
    if full:
        return jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diagonal(lower)))
    # the best independent sds of f given the precision of a Gaussian q(f)
    L = cholesky(target.covariance(theta, data), target.jitter)
    inverse = solve_lower(L @ lower, jnp.eye(len(root)))
    return -0.5 * jnp.log(jnp.sum(inverse**2, axis=0))


def _lower(width: Float[Array, "N N"]) -> Float[Array, "N N"]:
    return jnp.tril(width, -1) + jnp.diag(jnp.exp(jnp.diagonal(width)))


def _roots_of(L: Array, mixture: _Mixture, full: bool) -> Float[Array, "K N N"]:
    """Roots of the components' whitened covariances."""
    if full:
        return jax.vmap(_lower)(mixture.widths)
    inverse = solve_lower(L, jnp.eye(len(L)))
    return inverse[None] * jnp.exp(mixture.widths)[:, None, :]


def _factor(target: Variational, mixture: _Mixture) -> tuple[Any, Array]:
    theta = Flat(target).constrain(mixture.z)
    points = jnp.asarray(target.Z)
    model = target.specification.at(theta)
    return model, cholesky(model.kernel.cross(points, points), target.jitter)


@eqx.filter_jit
def _whitened_roots(target: Variational, mixture: _Mixture, full: bool) -> Array:
    _, L = _factor(target, jax.tree.map(jnp.asarray, mixture))
    return _roots_of(L, jax.tree.map(jnp.asarray, mixture), full)


def _log_bound(
    target: Variational, mixture: _Mixture, data: Batch, full: bool
) -> Float[Array, ""]:
    """The bound on log p(y | theta)."""
    model, L = _factor(target, mixture)
    roots = _roots_of(L, mixture, full)
    weights = jax.nn.softmax(mixture.logits)
    N = len(L)

    def expected(mean: Array, root: Array) -> tuple[Array, Array]:
        f = L @ root
        rest = jnp.maximum(model.kernel.diag(data.X) - jnp.sum(L * L, axis=1), 0.0)
        variance = rest + jnp.sum(f * f, axis=1)
        rows = model.likelihood.expected_log_prob(
            data.y, model.mean.of(data.X) + L @ mean, variance, data.row
        )
        prior = -0.5 * (mean @ mean + jnp.sum(root**2) + N * jnp.log(2.0 * jnp.pi))
        return jnp.sum(rows), prior

    rows, prior = jax.vmap(expected)(mixture.means, roots)
    entropy = _entropy(L, mixture, roots, weights, full)
    return weights @ (rows + prior) + entropy


def _entropy(
    L: Array, mixture: _Mixture, roots: Array, weights: Array, full: bool
) -> Array:
    """Of the whitened q: exact for one component, else Jensen's bound."""
    K, N = mixture.means.shape
    half_log_det_L = jnp.sum(jnp.log(jnp.diagonal(L)))
    if K == 1:
        if full:
            log_det = jnp.sum(jnp.diagonal(mixture.widths[0]))
        else:
            log_det = jnp.sum(mixture.widths[0]) - half_log_det_L
        return log_det + 0.5 * N * (1.0 + jnp.log(2.0 * jnp.pi))

    def full_overlap(k: int, l: int) -> Array:
        both = roots[k] @ roots[k].T + roots[l] @ roots[l].T
        factor = factorise(add_diagonal(both, 1e-12))
        apart = solve_lower(factor, mixture.means[k] - mixture.means[l])
        return -0.5 * apart @ apart - jnp.sum(jnp.log(jnp.diagonal(factor)))

    def diagonal_overlap(k: int, l: int) -> Array:
        both = jnp.exp(2.0 * mixture.widths[k]) + jnp.exp(2.0 * mixture.widths[l])
        apart = L @ (mixture.means[k] - mixture.means[l])
        in_f = -0.5 * jnp.sum(apart**2 / both + jnp.log(both))
        return in_f + half_log_det_L

    overlap = full_overlap if full else diagonal_overlap
    log_overlaps = jnp.stack(
        [jnp.stack([overlap(k, l) for l in range(K)]) for k in range(K)]
    )
    log_overlaps = log_overlaps - 0.5 * N * jnp.log(2.0 * jnp.pi)
    mixed = jax.scipy.special.logsumexp(
        log_overlaps + jnp.log(weights)[None, :], axis=1
    )
    return -(weights @ mixed)


@eqx.filter_jit
def _bound(target: Variational, mixture: _Mixture, data: Batch, full: bool) -> Array:
    return _log_bound(target, jax.tree.map(jnp.asarray, mixture), data, full)


@eqx.filter_jit
def _run_chunk(
    target: Variational,
    data: Batch,
    mixture: _Mixture,
    state: Any,
    optimiser: optax.GradientTransformation,
    num: Array,
    full: bool,
) -> tuple[_Mixture, Any, Array]:
    def body(_: Array, carry: tuple[_Mixture, Any, Array]) -> tuple:
        mixture, state, _ = carry
        value, slope = jax.value_and_grad(lambda m: _log_bound(target, m, data, full))(
            mixture
        )
        down = jax.tree.map(jnp.negative, slope)
        update, state = optimiser.update(down, state, mixture)
        return optax.apply_updates(mixture, update), state, value

    begun = jax.tree.map(jnp.asarray, (mixture, state))
    return jax.lax.fori_loop(0, num, body, (*begun, jnp.zeros(())))

"""Predictions: the mixture over particles of what each of them predicts.

Each draw predicts f at a test point as N(mean, variance). A `Prediction` is the weighted
mixture of those, for f itself or pushed through the likelihood for y. Its moments, log
density, distribution function and quantiles are those of the mixture: exact for f and
for Gaussian y, by quadrature over f for other likelihoods.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Float

from steingp.checks import check_count
from steingp.data import Batch, Scaling, check_column
from steingp.likelihoods import Gaussian, Likelihood
from steingp.linalg import mvn_sample
from steingp.precision import float64
from steingp.priors import assign
from steingp.targets import Target, joint, marginals

_WORKING_FLOATS = 2**27
"""About how many numbers may be alive at once while predicting (1 GiB)."""

_MOST_JOINT_ROWS = 20_000

Particles = Mapping[str, Any]
"""Name -> constrained array, draws along the leading axis."""


def num_draws(particles: Particles) -> int:
    return len(next(iter(particles.values())))


# --- from particles to f at test points -------------------------------------------------


@eqx.filter_jit
def _condition(target: Target, particles: Particles, data: Batch) -> Any:
    return jax.vmap(lambda theta: target.condition(theta, data))(particles)


@eqx.filter_jit
def _marginals(target: Target, particles: Particles, known: Any, X: Array) -> Any:
    def one(theta: Any, known: Any) -> tuple[Array, Array]:
        return marginals(target.specification.at(theta), known, X)

    return jax.vmap(one)(particles, known)


@eqx.filter_jit
def joint_of_draw(
    target: Target, theta: Any, data: Batch, X: Array
) -> tuple[Array, Array]:
    """Mean and covariance of f over all rows of X, given one particle."""
    known = target.condition(theta, data)
    return joint(target.specification.at(theta), known, X)


@float64
def predict_marginals(
    target: Target,
    particles: Particles,
    data: Batch,
    X: np.ndarray,
    batch_size: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f for every draw and row of X, each (draws, rows).

    Works through groups of draws and blocks of rows so that memory stays bounded; each
    draw's covariance is factorised once. The result does not depend on the blocks.

    Args:
        batch_size: rows of X at a time; chosen by memory if None.
    """
    draws, rows = num_draws(particles), len(X)
    size = target.matrix_size(len(data.y))
    block = min(rows, batch_size or max(256, _WORKING_FLOATS // (8 * size)))
    group = int(np.clip(_WORKING_FLOATS // (size * (3 * size + 4 * block)), 1, draws))
    means, variances = np.empty((draws, rows)), np.empty((draws, rows))
    data = Batch(*(jnp.asarray(column) for column in data))
    for first in range(0, draws, group):
        chosen = np.minimum(np.arange(first, first + group), draws - 1)
        some = {name: jnp.asarray(value[chosen]) for name, value in particles.items()}
        known = _condition(target, some, data)
        kept = min(group, draws - first)
        for start in range(0, rows, block):
            index = np.minimum(np.arange(start, start + block), rows - 1)
            mean, variance = _marginals(target, some, known, jnp.asarray(X[index]))
            piece = (slice(first, first + kept), slice(start, start + block))
            width = min(block, rows - start)
            means[piece] = np.asarray(mean)[:kept, :width]
            variances[piece] = np.asarray(variance)[:kept, :width]
    return means, variances


# --- the mixture ------------------------------------------------------------------------


class _Mixture(eqx.Module):
    """Draws' predictions at a block of points: everything a summary needs."""

    likelihood: Likelihood
    slots: dict[str, Array]
    weights: Float[Array, " S"]
    means: Float[Array, "S n"]
    variances: Float[Array, "S n"]
    row: Float[Array, " n"]

    def each(self, function: Callable[..., Array], *values: Array) -> Array:
        """function(likelihood, mean, variance, row) of every draw: (S, n)."""

        def one(slots: dict[str, Array], mean: Array, variance: Array) -> Array:
            bound = assign(self.likelihood, slots, "likelihood")
            return function(bound, *values, mean, variance, self.row)

        return jax.vmap(one)(self.slots, self.means, self.variances)

    def average(self, values: Array) -> Array:
        return self.weights @ values


def _moments(mixture: _Mixture) -> Array:
    means = mixture.each(lambda bound, *f: bound.predictive_mean(*f))
    variances = mixture.each(lambda bound, *f: bound.predictive_variance(*f))
    mean = mixture.average(means)
    spread = variances + (means - mean[None, :]) ** 2
    return jnp.stack([mean, mixture.average(spread)])


def _each_draw(mixture: _Mixture) -> Array:
    """Mean, variance, and what noise adds to it, of every draw: (3, S, n)."""
    means = mixture.each(lambda bound, *f: bound.predictive_mean(*f))
    variances = mixture.each(lambda bound, *f: bound.predictive_variance(*f))
    noise = mixture.each(lambda bound, *f: bound.expected_variance(*f))
    return jnp.stack([means, variances, noise])


def _log_prob(mixture: _Mixture, y: Array) -> Array:
    values = mixture.each(lambda bound, *f: bound.predictive_log_prob(*f), y)
    log_weights = jnp.log(mixture.weights)[:, None]
    return jax.scipy.special.logsumexp(log_weights + values, axis=0)


def _cdf(mixture: _Mixture, y: Array) -> Array:
    return mixture.average(mixture.each(lambda bound, *f: bound.predictive_cdf(*f), y))


def _quantile(mixture: _Mixture, q: Array) -> Array:
    """The smallest y with P(Y <= y) >= q, by doubling a bracket, then bisection."""
    likelihood = mixture.likelihood
    whole = jnp.floor if likelihood.is_discrete else (lambda y: y)

    def reached(y: Array) -> Array:
        return _cdf(mixture, whole(y)) >= q

    mean, variance = _moments(mixture)
    scale = jnp.where(jnp.isfinite(variance), jnp.sqrt(variance), 1.0) + 1e-3
    centre = jnp.where(jnp.isfinite(mean), mean, 0.0)

    def expand(side: float, wanted: bool) -> Array:
        def widen(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            distance, ok = carry
            distance = jnp.where(ok, distance, 2.0 * distance)
            return distance, reached(centre + side * distance * scale) == wanted

        start = jnp.full_like(centre, 4.0)
        ok = reached(centre + side * start * scale) == wanted
        distance, _ = jax.lax.while_loop(
            lambda carry: jnp.any(~carry[1] & (carry[0] < 1e12)),
            widen,
            (start, ok),
        )
        return centre + side * distance * scale

    upper = expand(1.0, True)
    if likelihood.real_valued:
        return _bisect(reached, expand(-1.0, False), upper)
    if likelihood.is_discrete:
        # y = e^t - 2, since counts may range over many magnitudes, from -1 upwards
        log_upper = jnp.log(jnp.maximum(upper, 0.0) + 2.0)
        t = _bisect(
            lambda t: reached(jnp.exp(t) - 2.0), jnp.zeros_like(upper), log_upper
        )
        return whole(jnp.exp(t) - 2.0)
    # positive numbers: by logarithms, since a quantile may be 1e-100
    smallest = jnp.full_like(upper, np.log(np.finfo(float).tiny))
    log_upper = jnp.log(jnp.maximum(upper, np.finfo(float).tiny))
    return jnp.exp(_bisect(lambda t: reached(jnp.exp(t)), smallest, log_upper))


def _bisect(reached: Callable[[Array], Array], lower: Array, upper: Array) -> Array:
    """The point between where `reached` turns true, from above."""

    def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        ok = reached(middle)
        return jnp.where(ok, low, middle), jnp.where(ok, middle, high)

    return jax.lax.fori_loop(0, 80, halve, (lower, upper))[1]


@eqx.filter_jit
def _evaluate(
    function: Callable[..., Array], mixture: _Mixture, *values: Array
) -> Array:
    return function(mixture, *values)


_sample_f = eqx.filter_jit(mvn_sample)


@eqx.filter_jit
def _sample_y(
    key: Array, likelihood: Likelihood, slots: dict[str, Array], f: Array, row: Array
) -> Array:
    """y given f (n, rows), under one draw's likelihood."""
    bound = assign(likelihood, slots, "likelihood")
    return bound.sample(key, f, jnp.broadcast_to(row[None, :], f.shape))


@eqx.filter_jit
def _sample_y_each(
    keys: Array, likelihood: Likelihood, slots: dict[str, Array], f: Array, row: Array
) -> Array:
    """y given f (n, rows), every row of f under a likelihood of its own."""

    def one(key: Array, slots: dict[str, Array], f: Array) -> Array:
        return assign(likelihood, slots, "likelihood").sample(key, f, row)

    return jax.vmap(one)(keys, slots, f)


class Uncertainty(NamedTuple):
    """The variance of new observations by its source, at every row; they add up.

    Example:
        >>> import numpy as np
        >>> from steingp.prediction import Uncertainty
        >>> parts = Uncertainty(np.ones(2), 0.5 * np.ones(2), np.zeros(2), np.zeros(2))
        >>> parts.total.tolist()
        [1.5, 1.5]
    """

    noise: np.ndarray
    """Of y around f: it stays, however many data there are."""
    function: np.ndarray
    """Of f given the hyperparameters: it shrinks with data nearby."""
    hyperparameters: np.ndarray
    """Between the draws of a mode: what a point estimate leaves out."""
    modes: np.ndarray
    """Between modes."""

    @property
    def total(self) -> np.ndarray:
        """The variance of the prediction."""
        return self.noise + self.function + self.hyperparameters + self.modes


class Prediction:
    """What the posterior says of f or of y at some rows, in the user's units.

    `mean`, `variance`, `cdf`, `log_prob`, `quantile` and `interval` are pointwise, of
    the mixture over draws. `sample` draws all rows jointly, `sample_marginals` each row
    by itself, which is cheaper for many rows.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.fit(model, effective_size=50, progress=False)
        >>> prediction = posterior.predict_y([[0.5], [2.0]])
        >>> prediction.mean.shape, prediction.sample(3, seed=0).shape
        ((2,), (3, 2))
        >>> low, high = prediction.interval(0.9)
        >>> bool((low < prediction.mean).all() and (prediction.mean < high).all())
        True
    """

    def __init__(
        self,
        likelihood: Likelihood,
        particles: Particles,
        weights: np.ndarray,
        row: np.ndarray,
        scaling: Scaling,
        marginals_of: Callable[[], tuple[np.ndarray, np.ndarray]],
        joint_of: Callable[[int], tuple[Array, Array]],
    ) -> None:
        self._likelihood = likelihood
        self._slots = {
            name: np.asarray(value)
            for name, value in particles.items()
            if name.startswith("likelihood.")
        }
        self.weights = weights
        self._row, self._scaling = row, scaling
        self._marginals_of, self._joint_of = marginals_of, joint_of

    def __repr__(self) -> str:
        return (
            f"Prediction({len(self._row)} rows, mixture of {len(self.weights)} draws)"
        )

    @functools.cached_property
    def _marginals(self) -> tuple[np.ndarray, np.ndarray]:
        return self._marginals_of()

    @property
    def means(self) -> np.ndarray:
        """Mean of f for each draw (draws, rows), in the model's units."""
        return self._marginals[0]

    @property
    def variances(self) -> np.ndarray:
        """Variance of f for each draw (draws, rows), in the model's units."""
        return self._marginals[1]

    @property
    def mean(self) -> np.ndarray:
        """Mean at every row."""
        return self._scaling.outputs_back(self._moments[0])

    @property
    def variance(self) -> np.ndarray:
        """Variance at every row: within draws plus between them."""
        return self._moments[1] * self._scaling.y_scale**2

    @functools.cached_property
    def _moments(self) -> np.ndarray:
        return self._in_blocks(_moments)

    def uncertainty(self, mode_of: np.ndarray | None = None) -> Uncertainty:
        """The variance at every row by its source.

        Args:
            mode_of: the mode of each draw; all are of one by default.
        """
        means, variances, noise = self._in_blocks(_each_draw)
        # where y's variance is infinite, so is the noise; f's part is not
        function = self.variances
        finite = np.isfinite(variances)
        function = np.where(finite, np.where(finite, variances, 0.0) - noise, function)
        if mode_of is None:
            mode_of = np.zeros(len(self.weights), int)
        mean = self.weights @ means
        centres = np.empty_like(means)
        for mode in np.unique(mode_of):
            here = mode_of == mode
            share = self.weights[here] / self.weights[here].sum()
            centres[here] = share @ means[here]
        unit = self._scaling.y_scale**2
        return Uncertainty(
            noise=unit * (self.weights @ noise),
            function=unit * (self.weights @ np.maximum(function, 0.0)),
            hyperparameters=unit * (self.weights @ (means - centres) ** 2),
            modes=unit * (self.weights @ (centres - mean) ** 2),
        )

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """log p(y_i | x_i) of the mixture at every row."""
        y = check_column(y, "y", len(self._row))
        self._likelihood.check_targets(y)
        values = self._in_blocks(_log_prob, self._scaling.outputs(y))
        return values - np.log(self._scaling.y_scale)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y_i <= y_i) at every row."""
        y = check_column(y, "y", len(self._row))
        return self._in_blocks(_cdf, self._scaling.outputs(y))

    def quantile(self, q: float) -> np.ndarray:
        """The q-quantile of the mixture at every row, 0 < q < 1."""
        _check_probability("q", q)
        values = self._in_blocks(_quantile, np.full(len(self._row), q))
        return self._scaling.outputs_back(values)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central interval that holds `level` of the mass."""
        _check_probability("level", level)
        return self.quantile(0.5 - 0.5 * level), self.quantile(0.5 + 0.5 * level)

    @property
    @float64
    def covariance(self) -> np.ndarray:
        """Covariance between all pairs of rows (computed when asked for)."""
        if not isinstance(self._likelihood, Gaussian):
            raise ValueError(
                "the covariance of y between rows has no closed form for this "
                "likelihood; use predict_f(...).covariance, or the covariance of "
                ".sample(n)."
            )
        total = np.diag(self._moments[1] - self.weights @ self.variances
                        - self.weights @ (self.means - self._moments[0]) ** 2)  # fmt: skip
        for draw, weight in enumerate(self.weights):
            mean, covariance = self._joint_of(draw)
            offset = np.asarray(mean) - self._moments[0]
            total += weight * (np.asarray(covariance) + np.outer(offset, offset))
        return total * self._scaling.y_scale**2

    @float64
    def sample(self, n: int, seed: int = 0) -> np.ndarray:
        """n joint draws over all rows, (n, rows)."""
        check_count("n", n)
        draw_key, sample_key = jax.random.split(jax.random.key(seed))
        chosen = np.asarray(
            jax.random.choice(draw_key, len(self.weights), (n,), p=self.weights)
        )
        out = np.empty((n, len(self._row)))
        for draw in np.unique(chosen):
            here = np.flatnonzero(chosen == draw)
            draw_key = jax.random.fold_in(sample_key, int(draw))
            out[here] = self._draw_jointly(draw_key, int(draw), len(here))
        return out

    @float64
    def sample_each(self, n: int, seed: int = 0) -> np.ndarray:
        """n joint draws from every one of the posterior's draws, (draws * n, rows).

        Algorithm 2 of the paper, without its final averages.
        """
        check_count("n", n)
        keys = jax.random.split(jax.random.key(seed), len(self.weights))
        parts = [self._draw_jointly(key, draw, n) for draw, key in enumerate(keys)]
        return np.concatenate(parts)

    @float64
    def sample_marginals(self, n: int, seed: int = 0) -> np.ndarray:
        """n draws at every row, each row by itself, (n, rows)."""
        check_count("n", n)
        draw_key, f_key, y_key = jax.random.split(jax.random.key(seed), 3)
        shape = (n, len(self._row))
        chosen = np.asarray(
            jax.random.choice(draw_key, len(self.weights), (n,), p=self.weights)
        )
        noise = np.asarray(jax.random.normal(f_key, shape))
        f = self.means[chosen] + np.sqrt(self.variances[chosen]) * noise
        slots = {name: jnp.asarray(v[chosen]) for name, v in self._slots.items()}
        y = _sample_y_each(
            jax.random.split(y_key, n), self._likelihood, slots, jnp.asarray(f),
            jnp.asarray(self._row),
        )  # fmt: skip
        return self._scaling.outputs_back(np.asarray(y))

    def _draw_jointly(self, key: Array, draw: int, n: int) -> np.ndarray:
        if len(self._row) > _MOST_JOINT_ROWS:
            raise ValueError(
                f"a joint sample of {len(self._row)} rows needs their full covariance; "
                f"at most {_MOST_JOINT_ROWS} rows are sampled jointly. Use "
                "sample_marginals, or fewer rows."
            )
        f_key, y_key = jax.random.split(key)
        f = _sample_f(f_key, *self._joint_of(draw), n)
        slots = {name: jnp.asarray(value[draw]) for name, value in self._slots.items()}
        y = _sample_y(y_key, self._likelihood, slots, f, jnp.asarray(self._row))
        return self._scaling.outputs_back(np.asarray(y))

    @float64
    def _in_blocks(self, function: Callable[..., Array], *values: np.ndarray) -> Any:
        rows, draws = len(self._row), len(self.weights)
        block = int(np.clip(_WORKING_FLOATS // (256 * draws), 1, rows))
        slots = {name: jnp.asarray(value) for name, value in self._slots.items()}
        out = []
        for start in range(0, rows, block):
            index = np.minimum(np.arange(start, start + block), rows - 1)
            mixture = _Mixture(
                self._likelihood, slots, jnp.asarray(self.weights),
                jnp.asarray(self.means[:, index]), jnp.asarray(self.variances[:, index]),
                jnp.asarray(self._row[index]),
            )  # fmt: skip
            some = [jnp.asarray(value[index]) for value in values]
            result = np.asarray(_evaluate(function, mixture, *some))
            out.append(result[..., : min(block, rows - start)])
        return np.concatenate(out, axis=-1)


def _check_probability(name: str, value: Any) -> None:
    if np.ndim(value) != 0 or not 0.0 < value < 1.0:
        raise ValueError(f"{name} must be one number between 0 and 1; got {value!r}.")

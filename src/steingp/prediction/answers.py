"""What a prediction can be asked: moments, densities, quantiles, samples."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike

from steingp.checks import check_count
from steingp.data import Scaling, check_column
from steingp.likelihoods import Gaussian, Likelihood
from steingp.precision import float64
from steingp.prediction import mixtures
from steingp.prediction.of_draws import WORKING_FLOATS, Particles

_MOST_JOINT_ROWS = 20_000


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
        return self._in_blocks(mixtures.moments)

    def uncertainty(self, mode_of: np.ndarray | None = None) -> Uncertainty:
        """The variance at every row by its source.

        Args:
            mode_of: the mode of each draw; all are of one by default.
        """
        means, variances, noise = self._in_blocks(mixtures.each_draw)
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
        values = self._in_blocks(mixtures.log_prob, self._scaling.outputs(y))
        return values - np.log(self._scaling.y_scale)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(Y_i <= y_i) at every row."""
        y = check_column(y, "y", len(self._row))
        return self._in_blocks(mixtures.cdf, self._scaling.outputs(y))

    def quantile(self, q: float) -> np.ndarray:
        """The q-quantile of the mixture at every row, 0 < q < 1."""
        _check_probability("q", q)
        values = self._in_blocks(mixtures.quantile, np.full(len(self._row), q))
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
        y = mixtures.sample_y_each(
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
        f = mixtures.sample_f(f_key, *self._joint_of(draw), n)
        slots = {name: jnp.asarray(value[draw]) for name, value in self._slots.items()}
        y = mixtures.sample_y(y_key, self._likelihood, slots, f, jnp.asarray(self._row))
        return self._scaling.outputs_back(np.asarray(y))

    @float64
    def _in_blocks(self, function: Callable[..., Array], *values: np.ndarray) -> Any:
        rows, draws = len(self._row), len(self.weights)
        block = int(np.clip(WORKING_FLOATS // (256 * draws), 1, rows))
        slots = {name: jnp.asarray(value) for name, value in self._slots.items()}
        out = []
        for start in range(0, rows, block):
            index = np.minimum(np.arange(start, start + block), rows - 1)
            mixture = mixtures.Mixture(
                self._likelihood, slots, jnp.asarray(self.weights),
                jnp.asarray(self.means[:, index]), jnp.asarray(self.variances[:, index]),
                jnp.asarray(self._row[index]),
            )  # fmt: skip
            some = [jnp.asarray(value[index]) for value in values]
            result = np.asarray(mixtures.evaluate(function, mixture, *some))
            out.append(result[..., : min(block, rows - start)])
        return np.concatenate(out, axis=-1)


def _check_probability(name: str, value: Any) -> None:
    if np.ndim(value) != 0 or not 0.0 < value < 1.0:
        raise ValueError(f"{name} must be one number between 0 and 1; got {value!r}.")

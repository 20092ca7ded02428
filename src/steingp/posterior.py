"""The posterior: draws of the hyperparameters (and latents), weighted, that predict."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike

from steingp.data import Batch, Scaling, check_column, check_inputs
from steingp.likelihoods import Gaussian
from steingp.precision import float64
from steingp.prediction import Particles, Prediction, joint_of_draw, predict_marginals
from steingp.priors import fixed
from steingp.svgd import SVGDInfo
from steingp.targets import LATENTS, Target


class Posterior:
    """Draws from p(theta, nu | X, y), and the predictions of their mixture.

    `particles` is a dictionary name -> constrained array with draws along the leading
    axis (`nu` are the whitened latents, where they are part of a particle), `weights`
    are theirs and sum to 1, `history` tells how they came to be.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.SquaredExponential())
        >>> posterior = sg.fit(model, num_particles=5, num_steps=50, progress=False)
        >>> sorted(posterior.particles)
        ['kernel.lengthscales', 'kernel.variance', 'likelihood.variance']
        >>> posterior.particles["kernel.lengthscales"].shape
        (5, 1)
        >>> posterior.predict_y([[0.5]]).mean.shape
        (1,)
    """

    def __init__(
        self,
        target: Target,
        data: Batch,
        particles: Particles,
        weights: np.ndarray | None = None,
        *,
        scaling: Scaling | None = None,
        labels: list[str] | None = None,
        history: SVGDInfo | None = None,
        method: str = "",
    ) -> None:
        self._target, self._data = target, data
        self.particles = {k: np.asarray(v, float) for k, v in particles.items()}
        self.num_draws = len(next(iter(self.particles.values())))
        self.weights = _normalise(weights, self.num_draws)
        self._scaling = scaling or Scaling()
        self.labels = labels or [str(i) for i in range(np.shape(data.X)[1])]
        self.history, self.method = history, method

    def predict_f(self, X: ArrayLike, *, batch_size: int | None = None) -> Prediction:
        """The latent function at the rows of X.

        Args:
            X: (S, D), as wide as the data the model was made for.
            batch_size: rows at a time; chosen by memory if None.
        """
        return self._predict(X, batch_size, None, of_y=False)

    def predict_y(
        self,
        X: ArrayLike,
        *,
        per_row: ArrayLike | None = None,
        batch_size: int | None = None,
    ) -> Prediction:
        """New observations at the rows of X.

        Args:
            X: (S, D), as wide as the data the model was made for.
            per_row: what the likelihood knows of each row (the exposure of counts, the
                known noise variance of Gaussian data); 1 and 0 respectively by default.
            batch_size: rows at a time; chosen by memory if None.
        """
        return self._predict(X, batch_size, per_row, of_y=True)

    def _predict(
        self, X: Any, batch_size: int | None, per_row: Any, of_y: bool
    ) -> Prediction:
        return predict(
            self._target, self._data, self.particles, self.weights, self._scaling,
            X, per_row, batch_size, of_y=of_y,
        )  # fmt: skip

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, sd and the 5, 50 and 95 % points of every hyperparameter.

        Vectors have a row per entry, named by the input column it belongs to. Latents
        are left out.
        """
        rows = {}
        known = self._target.specification.hyperparameters.known
        for name, values in self.particles.items():
            if name == LATENTS or name in known:
                continue
            for label, column in named_columns(name, values, self.labels):
                mean = float(self.weights @ column)
                sd = float(np.sqrt(self.weights @ (column - mean) ** 2))
                low, middle, high = weighted_quantiles(
                    column, self.weights, [0.05, 0.5, 0.95]
                )
                rows[label] = {
                    "mean": mean, "sd": sd, "5%": low, "50%": middle, "95%": high,
                }  # fmt: skip
        return rows

    def __repr__(self) -> str:
        rows = self.summary()
        width = max([len(label) for label in rows] + [14])
        head = f"{'hyperparameter':{width}}" + "".join(
            f"{column:>11}" for column in ("mean", "sd", "5%", "50%", "95%")
        )
        lines = [
            f"Posterior of {self.num_draws} draws"
            + (f" ({self.method})" if self.method else ""),
            head,
            "-" * len(head),
        ]
        for label, row in rows.items():
            cells = "".join(f"{value:>11.4g}" for value in row.values())
            lines.append(f"{label:{width}}{cells}")
        if LATENTS in self.particles:
            latents = self.particles[LATENTS].shape[1]
            lines.append(f"and {latents} whitened latent values per draw")
        return "\n".join(lines)


@float64
def predict(
    target: Target,
    data: Batch,
    particles: Mapping[str, np.ndarray],
    weights: np.ndarray,
    scaling: Scaling,
    X: Any,
    per_row: Any = None,
    batch_size: int | None = None,
    *,
    of_y: bool,
) -> Prediction:
    """The mixture prediction of y, or of f, by these particles at the rows of X."""
    values, _ = check_inputs(X, "X", np.shape(data.X)[1])
    values = scaling.inputs(values)
    # f is y with a Gaussian likelihood that adds no noise
    likelihood = target.specification.likelihood
    slots = {
        name: np.broadcast_to(value, (len(weights), *np.shape(value)))
        for name, value in target.specification.hyperparameters.known.items()
    } | dict(particles)
    if not of_y:
        likelihood = Gaussian(variance=fixed(0.0))
        slots = {"likelihood.variance": np.zeros(len(weights))}
        scaling = scaling if target.specification.likelihood.real_valued else Scaling()
    # a sliver of noise gives f a distribution function where it is known exactly
    row = np.full(len(values), likelihood.row_neutral if of_y else 1e-18)
    if per_row is not None:
        row = check_column(per_row, "per_row", len(values))
        if isinstance(likelihood, Gaussian):
            row = row / scaling.y_scale**2
    means, variances = predict_marginals(target, particles, data, values, batch_size)

    def joint_of(draw: int) -> tuple[Array, Array]:
        theta = {name: jnp.asarray(value[draw]) for name, value in particles.items()}
        return joint_of_draw(target, theta, data, jnp.asarray(values))

    return Prediction(
        likelihood, slots, weights, means, variances, row, scaling, joint_of
    )


def weighted_quantiles(
    values: np.ndarray, weights: np.ndarray, q: list[float]
) -> list[float]:
    """Quantiles of weighted draws; with equal weights, NumPy's default definition.

    Example:
        >>> import numpy as np
        >>> from steingp.posterior import weighted_quantiles
        >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.ones(3) / 3, [0.5])
        [2.0]
    """
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    if len(values) == 1:
        return [float(values[0])] * len(q)
    # positions run from 0 at the lowest draw to 1 at the highest
    middle = np.cumsum(weights) - 0.5 * weights
    position = (middle - middle[0]) / (middle[-1] - middle[0])
    return [float(v) for v in np.interp(q, position, values)]


def named_columns(
    name: str, values: np.ndarray, labels: list[str]
) -> list[tuple[str, np.ndarray]]:
    """A hyperparameter's entries one by one, named by the input column of each."""
    if values.ndim == 1:
        return [(name, values)]
    same = values.shape[1] == len(labels)
    tags = labels if same else [str(i) for i in range(values.shape[1])]
    return [(f"{name}[{tag}]", values[:, i]) for i, tag in enumerate(tags)]


def _normalise(weights: np.ndarray | None, num: int) -> np.ndarray:
    if weights is None:
        return np.full(num, 1.0 / num)
    weights = np.asarray(weights, float)
    if weights.shape != (num,) or np.any(weights < 0) or not weights.sum() > 0:
        raise ValueError(
            f"weights must be {num} numbers >= 0, not all 0; got shape {weights.shape}."
        )
    return weights / weights.sum()

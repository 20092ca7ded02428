"""From a target, particles and new rows to a `Prediction`."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from steingp.checks import check_count
from steingp.data import Batch, Scaling, check_column, check_inputs
from steingp.likelihoods import Gaussian, Likelihood
from steingp.precision import float64
from steingp.prediction.answers import Prediction
from steingp.prediction.of_draws import joint_of_draw, predict_marginals
from steingp.priors import fixed
from steingp.targets import Target


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
    particles = {
        name: np.broadcast_to(value, (len(weights), *np.shape(value)))
        for name, value in target.specification.hyperparameters.known.items()
    } | dict(particles)
    slots = particles
    if not of_y:
        likelihood = Gaussian(variance=fixed(0.0))
        slots = {"likelihood.variance": np.zeros(len(weights))}
        # a sliver of noise gives f a distribution function where it is known exactly
        row = np.full(len(values), 1e-18)
    else:
        row = row_of(likelihood, scaling, len(values), per_row)
    if batch_size is not None:
        check_count("batch_size", batch_size)

    def marginals_of() -> tuple[np.ndarray, np.ndarray]:
        return predict_marginals(target, particles, data, values, batch_size)

    def joint_of(draw: int) -> tuple[Array, Array]:
        theta = {name: jnp.asarray(value[draw]) for name, value in particles.items()}
        return joint_of_draw(target, theta, data, jnp.asarray(values))

    return Prediction(likelihood, slots, weights, row, scaling, marginals_of, joint_of)


def row_of(
    likelihood: Likelihood, scaling: Scaling, num_rows: int, per_row: Any
) -> np.ndarray:
    """What the likelihood knows of each new row, in the model's units.

    What is given; else the one number the likelihood was made with, if it is one for all
    rows; else the value that changes nothing.
    """
    if per_row is None:
        own = likelihood.row_values
        per_row = own if own is not None and np.ndim(own) == 0 else None
        value = likelihood.row_neutral if per_row is None else float(per_row)
        row = np.full(num_rows, value)
    else:
        likelihood.check_rows(per_row, "per_row")
        row = np.broadcast_to(np.asarray(per_row, float), (num_rows,)) if (
            np.ndim(per_row) == 0
        ) else check_column(per_row, "per_row", num_rows)  # fmt: skip
    return row / scaling.y_scale**2 if isinstance(likelihood, Gaussian) else row

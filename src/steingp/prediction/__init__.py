"""Predictions: the mixture over particles of what each of them predicts.

Each draw predicts f at a test point as N(mean, variance). A `Prediction` is the weighted
mixture of those, for f itself or pushed through the likelihood for y. Its moments, log
density, distribution function and quantiles are those of the mixture: exact for f and
for Gaussian y, by quadrature over f for other likelihoods.
"""

from steingp.prediction.answers import Prediction, Uncertainty
from steingp.prediction.new_rows import predict, row_of
from steingp.prediction.of_draws import (
    Particles,
    joint_of_draw,
    num_draws,
    predict_marginals,
)

__all__ = [
    "Particles",
    "Prediction",
    "Uncertainty",
    "joint_of_draw",
    "num_draws",
    "predict",
    "predict_marginals",
    "row_of",
]

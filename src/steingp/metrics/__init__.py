"""Figures of merit from arrays: of predictions at n points, and of posterior draws.

NumPy in, NumPy out. Predictions are scored as the mixture they are: the log density
that goes into `mean_log_density` is that of the mixture over draws, not an average of
log densities. A NaN among the inputs gives a NaN.

    >>> from steingp import metrics
    >>> metrics.rmse([1.0, 2.0], [1.0, 4.0])
    1.4142135623730951
"""

from steingp.metrics.draws import sd_ratio, sliced_wasserstein
from steingp.metrics.predictions import (
    accuracy,
    coverage,
    crps_gaussian_mixture,
    crps_samples,
    expected_calibration_error,
    mean_log_density,
    rmse,
)

__all__ = [
    "accuracy",
    "coverage",
    "crps_gaussian_mixture",
    "crps_samples",
    "expected_calibration_error",
    "mean_log_density",
    "rmse",
    "sd_ratio",
    "sliced_wasserstein",
]

"""Leave-one-out: each row as the others predict it, without fitting again.

For given hyperparameters, what all other rows say of a row has a closed form: exact for a
Gaussian likelihood (Rasmussen and Williams 2006, section 5.4.2), from the cavity of its
site for others. Draws of hyperparameters given *all* rows are then weighted, row by row,
by one over it, smoothed (Vehtari, Gelman and Gabry 2017).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steingp.data import Batch
from steingp.posterior import Posterior
from steingp.precision import float64
from steingp.prediction import Particles
from steingp.targets import Collapsed, Marginal, Target, Titsias
from steingp.verdicts import LARGEST_K
from steingp.weights import log_sum, pareto_smooth


class LeaveOneOut(NamedTuple):
    """log p(y_i | all other rows) for every row, in the user's units."""

    log_density: np.ndarray
    k: np.ndarray
    """Pareto k of each row's weights: above 0.7 the row changes what is believed."""

    @property
    def total(self) -> float:
        """The sum over rows."""
        return float(self.log_density.sum())

    @property
    def error(self) -> float:
        """Standard error of `total`, rows being a sample of more."""
        return float(np.sqrt(len(self.log_density)) * self.log_density.std(ddof=1))

    @property
    def num_doubtful(self) -> int:
        """Rows with k above 0.7."""
        return int(np.sum(self.k > LARGEST_K))

    def __repr__(self) -> str:
        return (
            f"LeaveOneOut({self.total:.2f} +- {self.error:.2f} over "
            f"{len(self.log_density)} rows, {self.num_doubtful} doubtful)"
        )


def leave_one_out(posterior: Posterior, max_draws: int | None = None) -> LeaveOneOut:
    """Each row's log density given all others, over the posterior.

    Args:
        posterior: from `steingp.fit`, f being integrated out on all rows.
        max_draws: draws to use; 200 to 1000 if None.

    Raises:
        ValueError: the posterior is from batches, a stream, or has joint latents.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.fit(model, effective_size=50, progress=False)
        >>> sg.leave_one_out(posterior).log_density.shape
        (20,)
    """
    target, data = posterior._target, posterior._data
    if not isinstance(target, Marginal | Titsias | Collapsed):
        raise ValueError(
            "leave-one-out needs a fit in which f is integrated out on all rows; this "
            f"posterior: {posterior.method or 'draws alone'}."
        )
    some = posterior._spaced(max_draws)
    particles = {name: v[some] for name, v in posterior.particles.items()}
    weights = posterior.weights[some] / posterior.weights[some].sum()
    values = np.asarray(_left_out(target, particles, data))
    unit = np.log(posterior._scaling.y_scale)
    found, ks = np.empty(values.shape[1]), np.empty(values.shape[1])
    if len(values) == 1:  # nothing is weighted
        return LeaveOneOut(values[0] - unit, np.zeros(len(values[0])))
    for row, column in enumerate(values.T):
        chosen, ks[row] = pareto_smooth(np.log(weights) - column)
        found[row] = log_sum(column, chosen)
    return LeaveOneOut(found - unit, ks)


@float64
@eqx.filter_jit
def _left_out(target: Target, particles: Particles, data: Batch) -> Array:
    """(draws, rows)"""
    data = Batch(*(jnp.asarray(column) for column in data))
    draws = {name: jnp.asarray(v) for name, v in particles.items()}
    return jax.lax.map(lambda theta: target.leave_one_out(theta, data), draws)

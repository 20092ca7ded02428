"""What moves start from and hand on: particles, their metric and their step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpy.typing import ArrayLike

from steingp.checks import as_numbers
from steingp.moves.metric import shrunk_factor
from steingp.precision import float64, to_numpy

ValueAndScore = Callable[[Any], tuple[Any, Any]]
"""Positions (J, d) to log densities (J,) and their gradients (J, d)."""


class MoveState(NamedTuple):
    """What the next sweep needs: arrays alone, `state._asdict()` names them for a file.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> state = moves.init(lambda z: (-0.5 * (z**2).sum(axis=1), -z), np.eye(3))
        >>> moves.MoveState(**state._asdict()).values
        array([-0.5, -0.5, -0.5])
    """

    positions: Any
    """(J, d)"""
    values: Any
    """(J,), the log density there."""
    scores: Any
    """(J, d), its gradient."""
    factor: Any
    """(d, d), lower triangular F; F F' is the inverse of the mass matrix."""
    log_step: Any
    """Log of the leapfrog step in the metric's units."""
    averaged_log_step: Any
    """The average over adapting sweeps, which `freeze` takes."""
    first_log_step: Any
    """Where adaptation to this metric began."""
    shortfall: Any
    """Running mean of what acceptance lacks."""
    num_adapted: Any
    """Adapting sweeps with this metric; at 0 the next one searches for its step."""
    sweep: Any
    """Sweeps so far, in all."""


@float64
def init(
    value_and_score: ValueAndScore,
    positions: ArrayLike,
    *,
    step: float | None = None,
    draws: ArrayLike | None = None,
    compiled: bool = True,
) -> MoveState:
    """The state before the first sweep.

    Args:
        value_and_score: positions (J, d) to log densities (J,) and scores (J, d).
        positions: of the particles, (J, d).
        step: the first guess of the leapfrog step, in the metric's units; d^(-1/4) by
            default. It need not be good: the first adapting sweep halves or doubles it
            until one leapfrog step is accepted about as often as it should be.
        draws: (..., d), whose covariance is the first metric; `positions` by default.
        compiled: False for a `value_and_score` that JAX cannot compile.

    Raises:
        ValueError: positions or step are not as above.
        FloatingPointError: some particle starts where the density is not finite.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> state = moves.init(lambda z: (-0.5 * (z**2).sum(axis=1), -z), np.eye(3))
        >>> state.positions.shape, state.scores[0].tolist()
        ((3, 3), [-1.0, -0.0, -0.0])
    """
    array = as_numbers(positions)
    if array is None or array.ndim != 2 or 0 in array.shape:
        shape = "no array of numbers" if array is None else f"shape {array.shape}"
        raise ValueError(
            f"positions must be a matrix (J, d), one row per particle; got {shape}."
        )
    if step is not None and not (np.isfinite(step) and step > 0):
        raise ValueError(f"step must be positive; got {step}.")
    score = _evaluate_compiled if compiled else evaluate
    values, scores = to_numpy(score(value_and_score, jnp.asarray(array)))
    broken = ~(np.isfinite(values) & np.all(np.isfinite(scores), axis=1))
    if broken.any():
        raise FloatingPointError(
            f"{broken.sum()} of {len(array)} particles start where the log density or "
            f"its gradient is not finite, first particle {np.flatnonzero(broken)[0]}; "
            "start them elsewhere."
        )
    return start(array, values, scores, step=step, draws=draws)


def start(
    positions: Float[np.ndarray, "J d"],
    values: Float[np.ndarray, " J"],
    scores: Float[np.ndarray, "J d"],
    *,
    step: float | None = None,
    draws: ArrayLike | None = None,
) -> MoveState:
    """`init` where values and scores are known already.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> z = np.eye(3)
        >>> moves.start(z, -0.5 * (z**2).sum(axis=1), -z).factor.shape
        (3, 3)
    """
    d = positions.shape[1]
    return MoveState(
        positions=positions,
        values=values,
        scores=scores,
        factor=shrunk_factor(positions if draws is None else draws),
        sweep=np.array(0),
        **_starting(_first_log_step(d) if step is None else float(np.log(step))),
    )


@float64
def refresh(
    value_and_score: ValueAndScore, state: MoveState, *, compiled: bool = True
) -> MoveState:
    """The same particles under another log density: values and scores anew; pure.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> state = moves.init(lambda z: (-0.5 * (z**2).sum(axis=1), -z), np.eye(3))
        >>> hotter = lambda z: (-0.25 * (z**2).sum(axis=1), -0.5 * z)
        >>> moves.refresh(hotter, state).values.tolist()
        [-0.25, -0.25, -0.25]
    """
    score = _evaluate_compiled if compiled else evaluate
    values, scores = score(value_and_score, jnp.asarray(state.positions))
    return state._replace(values=values, scores=scores)


def with_metric(state: MoveState, draws: ArrayLike) -> MoveState:
    """The state with the covariance of `draws` (..., d) as metric.

    The step is in the metric's units and starts again: the next adapting sweep searches
    for it, as the very first one does.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> state = moves.init(lambda z: (-0.5 * (z**2).sum(axis=1), -z), np.eye(3))
        >>> draws = np.random.default_rng(0).normal(0.0, 2.0, (100, 3))
        >>> moves.with_metric(state, draws).factor.diagonal().round(1).tolist()
        [2.2, 2.0, 1.9]
    """
    factor = shrunk_factor(draws)
    if factor.shape != np.shape(state.factor):
        raise ValueError(
            f"draws have {len(factor)} coordinates, particles {len(state.factor)}."
        )
    return state._replace(factor=factor, **_starting(_first_log_step(len(factor))))


def freeze(state: MoveState) -> MoveState:
    """The state with the averaged step, for sweeps that do not adapt.

    Example:
        >>> import numpy as np
        >>> from steingp import moves
        >>> normal = lambda z: (-0.5 * (z**2).sum(axis=1), -z)
        >>> state = moves.init(normal, np.eye(3))
        >>> state, _, _ = moves.run(normal, state, 6, 0, adapting=True)
        >>> bool(moves.freeze(state).log_step == state.averaged_log_step)
        True
    """
    return state._replace(log_step=state.averaged_log_step)


def _first_log_step(d: int) -> float:
    return -0.25 * float(np.log(d))


def _starting(log_step: float) -> dict[str, np.ndarray]:
    """The scalars of adaptation before it begins."""
    steps = dict.fromkeys(
        ("log_step", "averaged_log_step", "first_log_step"), np.array(log_step, float)
    )
    return steps | {"shortfall": np.array(0.0), "num_adapted": np.array(0)}


def evaluate(value_and_score: ValueAndScore, positions: Array) -> tuple[Array, Array]:
    """Values and scores as JAX arrays."""
    values, scores = value_and_score(positions)
    return jnp.asarray(values, float), jnp.asarray(scores, float)


_evaluate_compiled = eqx.filter_jit(evaluate)

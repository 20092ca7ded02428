"""Where a run of `steingp.corrected` is, and that as arrays for any file."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from steingp import descent
from steingp.leaps import Law
from steingp.moves import MoveState
from steingp.weights import Mixing, mixing

STAGES = ("SVGD", "adapting", "trying leaps", "collecting", "done")
FEWEST_SWEEPS = 10
"""Collected before the first look at the effective size."""
_ARRAYS = ("particles", "draws", "values", "adapted")
_SCALARS = (
    "previous", "looks", "next_look", "num_gradients", "num_values", "num_replaced",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class State:
    """Where a run is: all that the next unit of work needs, arrays and a stage's name."""

    stage: str
    particles: Float[np.ndarray, "J d"]
    """Where SVGD brought them."""
    scored: tuple[Float[np.ndarray, " J"], Float[np.ndarray, "J d"]]
    """Their log densities and scores; NaN before the first evaluation."""
    optimiser: Any
    moves: MoveState | None
    draws: Float[np.ndarray, "sweeps J d"]
    """Of the last windows while adapting, of all sweeps while trying and collecting."""
    values: Float[np.ndarray, "sweeps J"]
    """Log densities of `draws`."""
    adapted: Float[np.ndarray, "sweeps J d"]
    """Draws of the last windows of adapting, once it has ended."""
    law: Law | None
    """Of leaps, where there are any."""
    previous: float
    """Mean log density of the window before, while adapting."""
    looks: int
    """Looks in this stage so far."""
    next_look: int
    """The number of collected sweeps at which the effective size is looked at next."""
    num_gradients: int
    """Of the log density, so far, over all particles."""
    num_values: int
    """Log densities alone, likewise."""
    num_replaced: int
    """Particles that were lost and became copies of others."""
    trace: Mapping[str, np.ndarray]
    """One entry per sweep: acceptance, step, leapfrogs, mean log density, failures, the
    share of leaps that were taken."""

    @property
    def sweeps(self) -> int:
        return len(self.draws)

    @functools.cached_property
    def mixing(self) -> Mixing:
        """What the draws are worth."""
        return mixing(self.draws)

    def effective_size(self) -> float:
        """Of the worst coordinate's mean or spread; 0 while too few were collected."""
        if self.stage not in ("collecting", "done") or self.sweeps < 4:
            return 0.0
        return self.mixing.smallest_size


def init(positions: Float[np.ndarray, "J d"]) -> State:
    """The state before anything was done; `positions` are draws from the prior."""
    J, d = positions.shape
    scored, optimiser = descent.begin(positions)
    return State(
        stage=STAGES[0],
        particles=positions,
        scored=scored,
        optimiser=optimiser,
        moves=None,
        draws=np.zeros((0, J, d)),
        values=np.zeros((0, J)),
        adapted=np.zeros((0, J, d)),
        law=None,
        previous=-np.inf,
        looks=0,
        next_look=FEWEST_SWEEPS,
        num_gradients=0,
        num_values=0,
        num_replaced=0,
        trace={},
    )


def to_arrays(state: State) -> dict[str, np.ndarray]:
    """The state as a flat dictionary of arrays, for any file format."""
    leaves = enumerate(jax.tree.leaves(state.optimiser))
    arrays = {f"optimiser.{i}": np.asarray(leaf) for i, leaf in leaves}
    if state.moves is not None:
        arrays |= {
            f"moves.{n}": np.asarray(a) for n, a in state.moves._asdict().items()
        }
    if state.law is not None:
        arrays |= {f"law.{n}": a for n, a in state.law._asdict().items()}
    arrays |= {f"trace.{name}": a for name, a in state.trace.items()}
    for name in ("stage", *_ARRAYS, *_SCALARS):
        arrays[name] = np.asarray(getattr(state, name))
    arrays["scored.values"], arrays["scored.scores"] = state.scored
    return arrays


def from_arrays(template: State, arrays: Mapping[str, np.ndarray]) -> State:
    """The state that `to_arrays` wrote; `template` is one of `init` of equal shapes."""
    if "stage" not in arrays or str(arrays["stage"]) not in STAGES:
        raise ValueError("the arrays do not hold the state of a fit.")
    if missing := set(_SCALARS) - set(arrays):
        raise ValueError(
            f"the arrays are of a fit by another version of steingp: {sorted(missing)} are "
            "not there. Its draws can be used; to have more of them, fit anew."
        )
    shape = template.particles.shape
    if np.shape(arrays["particles"]) != shape:
        raise ValueError(
            f"the arrays hold particles of shape {np.shape(arrays['particles'])}, expected "
            f"{shape}: the run had another number of particles or hyperparameters."
        )
    leaves, structure = jax.tree.flatten(template.optimiser)
    optimiser = [part(arrays, "optimiser")[str(i)] for i in range(len(leaves))]
    moved, scored = part(arrays, "moves"), part(arrays, "scored")
    law = part(arrays, "law")
    return State(
        stage=str(arrays["stage"]),
        optimiser=jax.tree.unflatten(structure, optimiser),
        moves=MoveState(**moved) if moved else None,
        law=Law(**law) if law else None,
        trace=part(arrays, "trace"),
        scored=(scored["values"], scored["scores"]),
        **{name: np.asarray(arrays[name]) for name in _ARRAYS},
        **{name: np.asarray(arrays[name]).item() for name in _SCALARS},
    )


def part(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Those arrays whose names begin with `name` and a dot, without both."""
    return {
        key.removeprefix(f"{name}."): np.asarray(value)
        for key, value in arrays.items()
        if key.startswith(f"{name}.")
    }

"""Exploring: wide-spread particles, led to the posterior step by step.

Where the prior is N(0, I), particles start from N(0, 4 I), so that modes in its tails
count as well. Between the start and the density stand the tempered densities
start^(1 - beta) density^beta. Particles are weighted, resampled and moved at a rising
beta (Del Moral, Doucet and Jasra 2006), each rise as large as leaves the weights worth a
share of the particles. While beta is small modes are not parted yet, so particles come to
all that can be reached from the start. The product of the mean weights estimates the
evidence. A narrow mode has next to no mass while beta is small, and may lose all its
particles then; so some others `climb` from the start straight to the peak above them.

    >>> import jax, numpy as np
    >>> from steingp import tempering
    >>> from steingp.densities import OfOne
    >>> def two_modes(z, _):                            # at -2 and 2, masses 0.3 and 0.7
    ...     apart = jax.numpy.array([-2.0, 2.0]) - z[0]
    ...     return jax.nn.logsumexp(-18.0 * apart**2, b=jax.numpy.array([0.3, 0.7]))
    >>> state = tempering.init(1, num_particles=20, seed=0)
    >>> while state.beta < 1.0:
    ...     state = tempering.advance(OfOne(two_modes, None), state, seed=0)
    >>> sorted(set(np.sign(state.positions[:, 0]).tolist()))
    [-1.0, 1.0]
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float
from scipy.special import ndtri

from steingp import moves
from steingp.corrected import NOWHERE
from steingp.densities import Density, is_rough, makes_sweeps
from steingp.descent import evaluate
from steingp.flights import WIDTH, Landing, Tempering, log_start, no_walls, untempered
from steingp.precision import float64
from steingp.weights import log_sum, resample

NUM_EXPLORERS = 256
"""Particles that explore where that takes little time."""
KEPT = 0.6
"""Share of the particles that the weights of a rise are worth."""
SWEEPS = 3
"""Of moves after each rise."""
MOST_RISES = 60
CLIMBS, CLIMBING_STEPS, CLIMBING_STEP = 3, 40, 0.15
"""Groups of particles that climb, how many steps, and how long at first."""


class Tempered(eqx.Module):
    """A density of many positions, tempered and walled in."""

    density: Any
    tempering: Tempering

    @property
    def compiled(self) -> bool:
        return self.density.compiled

    @property
    def mesh(self) -> Mesh | None:
        return self.density.mesh

    def __call__(self, positions: Any) -> tuple[Any, Any]:
        if self.compiled:
            values, scores = self.density(positions)
            return jax.vmap(self.tempering.of)(values, scores, positions)
        positions = np.asarray(positions)
        values, scores = map(np.asarray, self.density(positions))
        return self.tempering.of(values, scores, positions)

    @property
    def rough(self) -> bool:
        """Whether the values of a call are rough."""
        return is_rough(self.density)

    def values(self, positions: Any) -> Any:
        """Log densities alone, exact ones."""
        values = self.density.values(positions)
        if self.compiled:
            return jax.vmap(self.tempering.of)(values, positions, positions)[0]
        z = np.asarray(positions)
        return self.tempering.of(np.asarray(values), z, z)[0]

    @property
    def fly(self) -> Callable[..., Landing] | None:
        """Whole sweeps at a time, where the density can make them."""
        fly = getattr(self.density, "fly", None)
        return None if fly is None else partial(fly, tempering=self.tempering)


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Where an exploration is."""

    starts: Float[np.ndarray, "P d"]
    peaks: Float[np.ndarray, "_ d"]
    """Where some of the starts climbed to; none before `climb`."""
    positions: Float[np.ndarray, "P d"]
    values: Float[np.ndarray, " P"]
    """Log densities, not tempered; NaN before the first evaluation."""
    scores: Float[np.ndarray, "P d"]
    """Likewise."""
    beta: float
    log_evidence: float
    log_step: float
    rises: int
    num_particles: int
    """That move at once."""
    num_gradients: int


def init(
    d: int, num_particles: int, seed: int, num_explorers: int = NUM_EXPLORERS
) -> Exploration:
    """Evenly spread draws from the start.

    As many as a multiple of `num_particles`, which move at once, but at least
    `num_explorers`.

    Example:
        >>> from steingp import tempering
        >>> tempering.init(3, num_particles=20, seed=0).positions.shape
        (260, 3)
    """
    from scipy.stats import qmc  # which takes long to import

    num = -(-num_explorers // num_particles) * num_particles
    points = qmc.Sobol(d, rng=np.random.default_rng([seed, 1]))
    uniform = points.random(1 << (num - 1).bit_length())[:num]
    starts = WIDTH * ndtri(uniform)
    return Exploration(
        starts=starts,
        peaks=starts[:0],
        positions=starts,
        values=np.full(num, np.nan),
        scores=np.full((num, d), np.nan),
        beta=0.0,
        log_evidence=0.0,
        log_step=-0.25 * float(np.log(d)),
        rises=0,
        num_particles=num_particles,
        num_gradients=0,
    )


@float64
def advance(density: Density, state: Exploration, seed: int) -> Exploration:
    """One rise of beta: weigh, resample, move."""
    num, d = state.positions.shape
    J = state.num_particles
    count = state.num_gradients
    if state.rises == 0:
        plain = Tempered(density, untempered(d))
        values, scores = evaluate(plain, state.positions, J)
        state = dataclasses.replace(state, values=values, scores=scores)
        count += num
    gain = state.values - log_start(state.positions)
    gain = np.where(np.isfinite(gain), gain, -np.inf)
    if not np.isfinite(gain).any():
        raise FloatingPointError(NOWHERE)
    rise = _rise(gain, 1.0 - state.beta)
    last = state.beta + rise >= 1.0 or state.rises + 1 >= MOST_RISES
    beta = 1.0 if last else state.beta + rise
    log_weights = np.where(np.isfinite(gain), (beta - state.beta) * gain, -np.inf)
    rng = np.random.default_rng([seed, 2, state.rises])
    shares = np.exp(log_weights - log_sum(log_weights))
    chosen = resample(shares, len(shares), rng)
    positions = state.positions[chosen]
    tempering = Tempering(np.asarray(beta), no_walls(d))
    tempered = Tempered(density, tempering)
    values, scores = tempering.of(state.values[chosen], state.scores[chosen], positions)
    spread = positions.copy()  # whose covariance is the metric of all
    accepted = []
    for part in np.arange(num).reshape(-1, num if makes_sweeps(density) else J):
        begun = moves.start(
            positions[part], values[part], scores[part], draws=spread
        )._replace(
            log_step=np.asarray(state.log_step),
            sweep=np.asarray(state.rises * SWEEPS + part[0] * 10_000),
        )
        keys = moves.sweep_keys(seed, begun, SWEEPS)
        moved, (info, _, _) = moves.sweeps(tempered, begun, keys, adapting=False)
        positions[part], values[part] = moved.positions, moved.values
        scores[part] = moved.scores
        count += len(part) * int(np.sum(info.num_gradients))
        accepted.append(np.mean(info.acceptance))
    # the step for the next rise, from how these moves were accepted
    log_step = state.log_step + float(np.clip(np.mean(accepted) - 0.8, -0.5, 0.1)) * 2.0
    rest = 1.0 - beta
    return dataclasses.replace(
        state,
        positions=positions,
        values=(values - rest * log_start(positions)) / beta,
        scores=(scores + rest * positions / WIDTH**2) / beta,
        beta=beta,
        log_evidence=state.log_evidence + log_sum(log_weights) - np.log(num),
        log_step=log_step,
        rises=state.rises + 1,
        num_gradients=count,
    )


@float64
def climb(density: Density, state: Exploration) -> Exploration:
    """The exploration with the peaks above some of its starts.

    By Adam on the host, since values and scores of particles are compiled anyway. Those
    far below the explorers at the end are left out.

    Example:
        >>> import jax, numpy as np
        >>> from steingp import tempering
        >>> from steingp.densities import OfOne
        >>> def narrow_and_wide(z, _):
        ...     sds = jax.numpy.array([0.01, 0.5])
        ...     apart = (z[0] - jax.numpy.array([-3.0, 1.0])) / sds
        ...     return jax.nn.logsumexp(-0.5 * apart**2 - jax.numpy.log(sds))
        >>> state = tempering.init(1, num_particles=20, seed=0)
        >>> while state.beta < 1.0:
        ...     state = tempering.advance(OfOne(narrow_and_wide, None), state, seed=0)
        >>> state = tempering.climb(OfOne(narrow_and_wide, None), state)
        >>> bool(np.min(np.abs(state.peaks + 3.0)) < 0.1)
        True
    """
    num, d = CLIMBS * state.num_particles, state.positions.shape[1]
    plain = Tempered(density, untempered(d))
    z = state.starts[:num].copy()
    first, second = np.zeros_like(z), np.zeros_like(z)
    values = np.zeros(num)
    for step in range(1, CLIMBING_STEPS + 1):
        values, scores = evaluate(plain, z, state.num_particles)
        scores = np.where(np.isfinite(scores), scores, 0.0)
        first = 0.9 * first + 0.1 * scores
        second = 0.99 * second + 0.01 * scores**2
        length = CLIMBING_STEP * (1.0 - 0.8 * step / CLIMBING_STEPS)
        size = np.sqrt(second / (1.0 - 0.99**step)) + 1e-12
        z = z + length * (first / (1.0 - 0.9**step)) / size
    least = np.quantile(state.values, 0.75) - 10.0 - 6.0 * np.sqrt(d / 2.0)
    return dataclasses.replace(
        state,
        peaks=z[values > least],
        num_gradients=state.num_gradients + num * CLIMBING_STEPS,
    )


def spread_out(
    positions: Float[np.ndarray, "P d"], num: int
) -> Float[np.ndarray, "num d"]:
    """Some of the positions, such that few of them stand for every place.

    The first is next to the median; each further one is that farthest from those chosen,
    in units of their sds.

    Example:
        >>> import numpy as np
        >>> from steingp import tempering
        >>> z = np.array([[0.0], [0.1], [-0.1], [5.0]])
        >>> tempering.spread_out(z, 2)[:, 0].tolist()
        [0.0, 5.0]
    """
    scale = positions.std(axis=0)
    white = positions / np.where(scale > 0.0, scale, 1.0)
    first = int(np.argmin(np.sum((white - np.median(white, axis=0)) ** 2, axis=1)))
    chosen = [first]
    distance = np.sum((white - white[first]) ** 2, axis=1)
    while len(chosen) < num:
        chosen.append(int(np.argmax(distance)))
        nearer = np.sum((white - white[chosen[-1]]) ** 2, axis=1)
        distance = np.minimum(distance, nearer)
    return positions[chosen]


def to_arrays(state: Exploration) -> dict[str, np.ndarray]:
    """The state as named arrays; `from_arrays` reads them."""
    return {name: np.asarray(v) for name, v in dataclasses.asdict(state).items()}


def from_arrays(arrays: Mapping[str, np.ndarray]) -> Exploration:
    """What `to_arrays` wrote.

    Example:
        >>> from steingp import tempering
        >>> state = tempering.init(2, num_particles=20, seed=0)
        >>> tempering.from_arrays(tempering.to_arrays(state)).rises
        0
    """
    return Exploration(
        starts=np.asarray(arrays["starts"]),
        peaks=np.asarray(arrays["peaks"]),
        positions=np.asarray(arrays["positions"]),
        values=np.asarray(arrays["values"]),
        scores=np.asarray(arrays["scores"]),
        beta=float(arrays["beta"]),
        log_evidence=float(arrays["log_evidence"]),
        log_step=float(arrays["log_step"]),
        rises=int(arrays["rises"]),
        num_particles=int(arrays["num_particles"]),
        num_gradients=int(arrays["num_gradients"]),
    )


def _rise(gain: np.ndarray, most: float) -> float:
    """How far beta can rise until weights exp(rise gain) are worth `KEPT` of the draws."""

    def worth(rise: float) -> float:
        w = np.where(np.isfinite(gain), rise * gain, -np.inf)
        w = np.exp(w - np.max(w))
        return float(np.sum(w) ** 2 / np.sum(w**2)) / len(gain)

    if worth(most) >= KEPT:
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if worth(middle) > KEPT else (low, middle)
    return max(low, 1e-6)

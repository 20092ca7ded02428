"""Leaps: moves of particles to places that were drawn without looking where they are.

A leap is drawn from a law that resembles the density, and taken or not by Metropolis and
Hastings (an independence sampler: Tierney 1994). It needs log densities alone, less work
than gradients, of any number of places at a time; a particle that takes it has forgotten
where it was. Where the law's tails are too thin a particle may wait long, so a
Hamiltonian trajectory goes before every few sweeps of leaps.

The law is a t in coordinates whose skewness is taken out, one by one:

    z = centre + scale sinh(arsinh(u) + skew),   u ~ t(mean, factor factor')

In a share of the leaps one coordinate, any, is a draw from the prior instead, N(0, 1).
Where the data do not tell a coordinate, as a lengthscale far below the distances or far
above them, the density is as long as the prior is, and earlier draws that have not been
there know nothing of it.

    >>> import numpy as np
    >>> from steingp import leaps
    >>> rng = np.random.default_rng(0)
    >>> draws = np.log(rng.gamma(5.0, size=(300, 2)))
    >>> law = leaps.fitted(draws)
    >>> bool(np.abs(np.median(law.sample(rng, 1000)) - np.median(draws)) < 0.2)
    True
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from steingp import moves
from steingp.densities import Density
from steingp.descent import evaluate_values, score
from steingp.evidence import log_t
from steingp.moves import MoveInfo, MoveState, Swept, shrunk_factor

FREEDOM = 7.0
"""Degrees of freedom of the t."""
TRIES = 3
"""Leaps of a particle in each sweep."""
SWEEPS_PER_TRAJECTORY = 5
"""The first of so many sweeps begins with a trajectory."""
REFRESHED = 0.25
"""Share of the leaps in which a coordinate is a draw from the prior."""
_STRAIGHTENED = 0.7
"""Share of the skewness that is taken out."""
_MOST_SKEW = 0.9
_TAIL, _TAIL_Z = 0.05, 1.645
"""A quantile that tells skewness, and the normal's."""


class Law(NamedTuple):
    """What leaps are drawn from."""

    centre: Any  # (d,)
    scale: Any  # (d,)
    skew: Any  # (d,)
    mean: Any  # (d,)
    factor: Any  # (d, d), lower triangular

    def sample(self, rng: np.random.Generator, num: int) -> Float[np.ndarray, "S d"]:
        normal = rng.normal(size=(num, len(self.mean)))
        stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, size=(num, 1)))
        u = self.mean + (normal * stretch) @ self.factor.T
        z = self.centre + self.scale * np.sinh(np.arcsinh(u) + self.skew)
        coordinate, prior = rng.integers(len(self.mean), size=num), rng.normal(size=num)
        refreshed = np.flatnonzero(rng.uniform(size=num) < REFRESHED)
        z[refreshed, coordinate[refreshed]] = prior[refreshed]
        return z

    def log_density(self, z: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Of positions: of the t, and of its marginals times a coordinate's prior."""
        d = len(self.mean)
        u = straightened(z, self.centre, self.scale, self.skew)
        v = (z - self.centre) / self.scale
        # du/dz = cosh(arsinh(v) - skew) / (scale sqrt(1 + v^2))
        slopes = 0.5 * np.log1p(u**2) - 0.5 * np.log1p(v**2) - np.log(self.scale)
        inverse = np.linalg.inv(self.factor)
        # by einsum, whose rows do not depend on how many there are, as BLAS's do
        white = np.einsum("sk,jk->sj", u - self.mean, inverse)
        square = np.sum(white**2, axis=1, keepdims=True)
        log_det = np.sum(np.log(np.diagonal(self.factor)))
        whole = log_t(square, log_det, d, FREEDOM) + slopes.sum(axis=1, keepdims=True)
        # with P the inverse of factor factor' and r = u - mean: without coordinate i,
        # r'Pr is less by (Pr)_i^2 / P_ii, and the determinant P_ii times as large
        precision = np.sum(inverse**2, axis=0)
        pull = np.einsum("sk,kj->sj", white, inverse)
        rest = np.maximum(square - pull**2 / precision, 0.0)
        others = log_t(rest, log_det + 0.5 * np.log(precision), d - 1, FREEDOM)
        others += slopes.sum(axis=1, keepdims=True) - slopes
        prior = -0.5 * (z**2 + np.log(2.0 * np.pi))
        parts = np.concatenate(
            [
                whole + np.log1p(-REFRESHED),
                others + prior + np.log(REFRESHED / d),
            ],
            axis=1,
        )
        return np.logaddexp.reduce(parts, axis=1)


def straightened(
    z: Float[np.ndarray, "S d"], centre: Any, scale: Any, skew: Any
) -> Float[np.ndarray, "S d"]:
    """Coordinates whose skewness is taken out.

    Example:
        >>> import numpy as np
        >>> from steingp import leaps
        >>> leaps.straightened(np.array([[3.0]]), 1.0, 2.0, 0.0).tolist()
        [[1.0]]
    """
    return np.sinh(np.arcsinh((z - centre) / scale) - skew)


def fitted(draws: Float[np.ndarray, "*some d"]) -> Law:
    """The law that resembles some draws.

    A coordinate's skew is what makes sinh(arsinh(u) + skew) of a normal u 0.7 times as
    lopsided, by its quantiles of 5, 50 and 95 %, as the draws are: a few hundred of them
    do not know it well.

    Example:
        >>> import numpy as np
        >>> from steingp import leaps
        >>> law = leaps.fitted(np.random.default_rng(0).normal(size=(500, 3)))
        >>> bool(np.all(np.abs(law.skew) < 0.3))
        True
    """
    flat = np.reshape(draws, (-1, np.shape(draws)[-1]))
    flat = flat[np.lexsort(flat.T)]  # sums do not depend on the order of the draws
    spread = flat.std(axis=0)
    scale = np.where(spread > 0.0, spread, 1.0)
    low, middle, high = np.quantile(flat, [_TAIL, 0.5, 1.0 - _TAIL], axis=0)
    width = np.where(high > low, high - low, 1.0)
    lopsided = _STRAIGHTENED * (high + low - 2.0 * middle) / width
    tail = np.arcsinh(_TAIL_Z)
    tilt = np.clip(
        lopsided * np.sinh(tail) / (np.cosh(tail) - 1.0), -_MOST_SKEW, _MOST_SKEW
    )
    centre, skew = flat.mean(axis=0), np.arctanh(tilt)
    u = straightened(flat, centre, scale, skew)
    # FREEDOM / (FREEDOM - 2) would be the t's variance: a law a little too wide is safer
    return Law(centre, scale, skew, u.mean(axis=0), shrunk_factor(u))


def sweeps(
    density: Density,
    law: Law,
    state: MoveState,
    seed: int,
    num_sweeps: int,
    trajectories: bool = True,
) -> tuple[MoveState, Swept, Float[np.ndarray, " sweeps"]]:
    """Sweeps of `TRIES` leaps of every particle, some with a trajectory before them.

    What a sweep does depends on its number and the seed alone: it does not matter how
    many are made at once.

    Args:
        density: any; log densities of all leaps are computed in one call.
        law: fitted to draws before these sweeps.
        state: frozen.
        seed: of the randomness, with the sweep's number.
        num_sweeps: how many.
        trajectories: whether the first of every few sweeps begins with one.

    Returns:
        The last state, what every sweep gave, and the share of leaps that each took.
        Step and acceptance are NaN for sweeps without a trajectory.

    Example:
        >>> import numpy as np
        >>> from steingp import leaps, moves
        >>> from steingp.densities import OnThreads
        >>> normal = OnThreads(lambda z, _: -0.5 * (z @ z), None, 20, num_threads=1)
        >>> z = np.random.default_rng(0).normal(size=(20, 3))
        >>> state = moves.freeze(moves.init(normal, z, compiled=False))
        >>> state, swept, taken = leaps.sweeps(normal, leaps.fitted(z), state, 0, 5)
        >>> swept.positions.shape, bool(taken.mean() > 0.3)
        ((5, 20, 3), True)
    """
    J, d = np.shape(state.positions)
    first = int(state.sweep)
    streams = [np.random.default_rng([seed, 3, first + i]) for i in range(num_sweeps)]
    drawn = np.concatenate([law.sample(rng, TRIES * J) for rng in streams])
    log_uniform = np.log([rng.uniform(size=(TRIES, J)) for rng in streams])
    leaps = drawn.reshape(num_sweeps, TRIES, J, d)
    values = evaluate_values(density, drawn).reshape(leaps.shape[:-1])
    gains = values - law.log_density(drawn).reshape(values.shape)
    gain = np.asarray(state.values) - law.log_density(np.asarray(state.positions))
    infos, positions, kept, taken = [], [], [], []
    for i in range(num_sweeps):
        if trajectories and (first + i) % SWEEPS_PER_TRAJECTORY == 0:
            state, info = _trajectory(density, state, seed)
            gain = state.values - law.log_density(state.positions)
        else:
            info = _WITHOUT_TRAJECTORY
            state = state._replace(sweep=state.sweep + 1)
        z, value = np.array(state.positions), np.array(state.values)
        scores, num_taken = np.array(state.scores), 0
        for t in range(TRIES):
            take = log_uniform[i, t] < gains[i, t] - gain
            z[take], value[take] = leaps[i, t][take], values[i, t][take]
            gain[take] = gains[i, t][take]
            scores[take] = np.nan
            num_taken += int(take.sum())
        state = state._replace(positions=z, values=value, scores=scores)
        infos.append(info._replace(log_density=np.mean(np.sort(value))))
        positions.append(z)
        kept.append(value)
        taken.append(num_taken / (TRIES * J))
    together = MoveInfo(*(np.stack(parts) for parts in zip(*infos, strict=True)))
    return state, Swept(together, np.stack(positions), np.stack(kept)), np.array(taken)


_WITHOUT_TRAJECTORY = MoveInfo(
    acceptance=np.array(np.nan), log_density=np.array(np.nan), step=np.array(np.nan),
    num_leapfrog=np.array(0), num_gradients=np.array(0), num_failed=np.array(0),
    energy_error=np.array(0.0),
)  # fmt: skip
"""What a sweep without one tells of it."""


def _trajectory(
    density: Density, state: MoveState, seed: int
) -> tuple[MoveState, MoveInfo]:
    """One of every particle."""
    state, extra = with_scores(density, state)
    keys = moves.sweep_keys(seed, state, 1)
    state, (infos, _, _) = moves.sweeps(density, state, keys, adapting=False)
    info = MoveInfo(*(np.asarray(part)[0] for part in infos))
    return state, info._replace(num_gradients=info.num_gradients + extra)


def with_scores(density: Density, state: MoveState) -> tuple[MoveState, int]:
    """The state with the scores that leaps left unknown, and how many gradients it took.

    Example:
        >>> import numpy as np
        >>> from steingp import leaps, moves
        >>> from steingp.densities import OnThreads
        >>> normal = OnThreads(lambda z, _: -0.5 * (z @ z), None, 3, num_threads=1)
        >>> state = moves.start(np.eye(3), np.full(3, -0.5), np.full((3, 3), np.nan))
        >>> state, num = leaps.with_scores(normal, state)
        >>> state.scores[0].tolist(), num
        ([-1.0, -0.0, -0.0], 1)
    """
    if not np.any(np.isnan(state.scores)):
        return state, 0
    positions = np.asarray(state.positions)
    return state._replace(scores=score(density, positions, len(positions))[1]), 1

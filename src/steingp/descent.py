"""SVGD steps over a density of many positions, and its values and scores at any number.

>>> import numpy as np
>>> from steingp import descent
>>> from steingp.densities import OnThreads
>>> normal = OnThreads(lambda z, _: -0.5 * (z @ z), None, 4, num_threads=1)
>>> z = 3.0 + np.eye(4)
>>> scored, optimiser = descent.begin(z)
>>> z, scored, optimiser, before = descent.step(normal, z, scored, optimiser)
>>> for _ in range(30):
...     z, scored, optimiser, mean = descent.step(normal, z, scored, optimiser)
>>> bool(mean > before)
True
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from steingp import svgd
from steingp.densities import Density, is_rough, makes_sweeps
from steingp.devices import on_all_devices
from steingp.precision import float64, to_numpy
from steingp.stein import RBF, phi

STEP = 0.2
"""Of Adam; a prior's sd is 1."""
STEPS_AT_ONCE = 10
"""In one call of a density that is compiled, at most."""


class Path(NamedTuple):
    """Where some steps led, one entry per step."""

    positions: Any  # (steps, J, d)
    values: Any  # (steps, J)
    scores: Any  # (steps, J, d)
    means: Any  # (steps,), of the log densities that are finite


@float64
def begin(
    positions: Float[np.ndarray, "J d"],
) -> tuple[tuple[np.ndarray, np.ndarray], Any]:
    """Values and scores before the first step, which are not known, and Adam's state."""
    unknown = np.full(len(positions), np.nan), np.full(positions.shape, np.nan)
    return unknown, to_numpy(svgd.adam(STEP).init(positions))


def step(
    density: Density,
    positions: Any,
    scored: tuple[Any, Any],
    optimiser: Any,
    share: float = 1.0,
) -> tuple[Any, tuple[Any, Any], Any, Any]:
    """An SVGD step by Adam, log densities and scores where it leads, and their mean.

    `share` of Adam's step is taken. A particle without a finite score is carried by the
    others. Where none has any, as before the first evaluation, all stay.
    """
    if density.compiled:
        path, optimiser = _steps_compiled(
            density, positions, scored, optimiser,
            np.full(STEPS_AT_ONCE, share), np.asarray(1),
        )  # fmt: skip
        found = Path(*(part[0] for part in path))
        return found.positions, (found.values, found.scores), optimiser, found.means
    positions, optimiser = _along_phi_compiled(
        positions, scored, optimiser, np.asarray(share)
    )
    values, scores = map(np.asarray, density(positions))
    fine = healthy(values, scores)
    mean = np.mean(values[fine]) if fine.any() else np.nan
    return positions, (values, scores), optimiser, mean


def steps(
    density: Density,
    positions: Any,
    scored: tuple[Any, Any],
    optimiser: Any,
    shares: Float[np.ndarray, " steps"],
    at_once: int = STEPS_AT_ONCE,
) -> tuple[Path, Any]:
    """As many of `step` as there are shares; the path, and Adam's state at its end.

    Args:
        at_once: steps in one call of a density that is compiled, which cannot be
            interrupted.

    Example:
        >>> import numpy as np
        >>> from steingp import descent
        >>> from steingp.densities import OfOne
        >>> z = 3.0 + np.eye(4)
        >>> normal = OfOne(lambda z, _: -0.5 * (z @ z), None)
        >>> path, _ = descent.steps(normal, z, *descent.begin(z), np.ones(3))
        >>> path.positions.shape, bool(path.means[-1] > path.means[0])
        ((3, 4, 4), True)
    """
    paths = []
    if not density.compiled:
        for share in shares:
            positions, scored, optimiser, mean = step(
                density, positions, scored, optimiser, share
            )
            paths.append(Path(np.asarray(positions), *scored, mean))
        return Path(*map(np.stack, zip(*paths, strict=True))), to_numpy(optimiser)
    size = min(at_once, STEPS_AT_ONCE)
    for some in np.split(shares, range(size, len(shares), size)):
        num, filled = len(some), np.resize(some, STEPS_AT_ONCE)
        path, optimiser = jax.device_get(
            _steps_compiled(
                density, positions, scored, optimiser, filled, np.asarray(num)
            )
        )
        path = Path(*(part[:num] for part in path))
        paths.append(path)
        positions, scored = path.positions[-1], (path.values[-1], path.scores[-1])
    return Path(*map(np.concatenate, zip(*paths, strict=True))), optimiser


@eqx.filter_jit
def _steps_compiled(
    density: Density,
    positions: Any,
    scored: tuple[Any, Any],
    optimiser: Any,
    shares: np.ndarray,
    num: np.ndarray,
) -> tuple[Path, Any]:
    """The first `num` of them: one program, whatever it is."""

    def one(i: Array, carry: tuple[Any, tuple, Any, Path]) -> tuple:
        positions, scored, optimiser, path = carry
        positions, optimiser = _along_phi(positions, scored, optimiser, all_shares[i])
        values, scores = (jnp.asarray(part, float) for part in density(positions))
        mean = jnp.mean(values, where=healthy(values, scores))
        here = (positions, values, scores, mean)
        path = Path(*(all.at[i].set(new) for all, new in zip(path, here, strict=True)))
        return positions, (values, scores), optimiser, path

    all_shares, positions = jnp.asarray(shares), jnp.asarray(positions)
    scored = jax.tree.map(jnp.asarray, scored)
    shapes = (positions.shape, *(part.shape for part in scored), ())
    empty = Path(*(jnp.zeros((len(all_shares), *shape)) for shape in shapes))
    begun = (positions, scored, jax.tree.map(jnp.asarray, optimiser), empty)
    _, _, optimiser, path = jax.lax.fori_loop(0, num, one, begun)
    return on_all_devices(density.mesh, (path, optimiser))


def _along_phi(
    positions: Any, scored: Any, optimiser: Any, share: Any
) -> tuple[Array, Any]:
    positions = jnp.asarray(positions)
    fine = healthy(*scored)
    direction = phi(RBF(), positions, jnp.where(fine[:, None], scored[1], 0.0))
    update, new = svgd.adam(STEP).update(-direction, optimiser, positions)
    return jax.tree.map(
        lambda new, old: jnp.where(fine.any(), new, old),
        (positions + share * jnp.asarray(update), new),
        (positions, optimiser),
    )


_along_phi_compiled = jax.jit(_along_phi)


def healthy(values: Any, scores: Any) -> Any:
    """Which particles have a finite log density and score; of NumPy arrays with NumPy."""
    xp = np if isinstance(values, np.ndarray) else jnp
    return xp.isfinite(values) & xp.all(xp.isfinite(scores), axis=1)


@float64
def score(
    density: Density, positions: Float[np.ndarray, "S d"], num_particles: int
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S d"]]:
    """Log densities, rough ones perhaps, and scores of any number of positions.

    As many at a time as move together, and of a density that is compiled by SVGD steps
    that stay where they are: what a run needs anyway is compiled once.
    """
    if makes_sweeps(density):  # and is compiled for one number of positions already
        values, scores = density(positions)
    else:
        values, scores = _in_parts(density, positions, num_particles)
    return np.asarray(values), np.asarray(scores)


@float64
def evaluate(
    density: Density, positions: Float[np.ndarray, "S d"], num_particles: int
) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S d"]]:
    """`score` with exact log densities; rough ones that are not finite are -inf."""
    values, scores = score(density, positions, num_particles)
    if is_rough(density):
        values = evaluate_values(density, positions)
    return values, scores


def _in_parts(
    density: Density, positions: np.ndarray, num_particles: int
) -> tuple[np.ndarray, np.ndarray]:
    missing = -len(positions) % num_particles
    filled = np.concatenate([positions, np.repeat(positions[-1:], missing, axis=0)])
    parts = filled.reshape(-1, num_particles, positions.shape[1])
    at_rest = begin(parts[0])
    found = jax.device_get(
        [
            step(density, part, *at_rest)[1] if density.compiled else density(part)
            for part in parts
        ]
    )
    values, scores = (np.concatenate(part) for part in zip(*found, strict=True))
    return values[: len(positions)], scores[: len(positions)]


@float64
def evaluate_values(
    density: Density, positions: Float[np.ndarray, "S d"]
) -> Float[np.ndarray, " S"]:
    """Log densities alone, exact ones, at less work; what is not finite is -inf."""
    if density.compiled:
        values = np.asarray(_values_compiled(density, positions))
    else:
        values = np.asarray(density.values(positions))
    return np.where(np.isfinite(values), values, -np.inf)


@eqx.filter_jit
def _values_compiled(density: Density, positions: Any) -> Array:
    values = density.values(jnp.asarray(positions))
    return on_all_devices(density.mesh, values)

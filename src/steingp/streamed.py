"""The sparse Gaussian bound with its rows in parts: blocks of a stream, or devices.

The bound depends on the rows through sums (`Titsias.sums`). One pass adds them up for all
particles; what the bound gains per unit of each sum is then known, and a second pass adds
up what that means for theta. So a gradient costs two passes and the memory of one block.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from steingp.batches import prefetched
from steingp.data import Batch
from steingp.devices import ROWS, num_rows_shards, over_particles
from steingp.priors import Particle
from steingp.targets import Titsias
from steingp.targets.variational import Q_MEAN, Q_ROOT
from steingp.threads import in_equal_parts

_AHEAD = 4
"""Batches that are read while one is worked on."""


@eqx.filter_jit
def _add_sums(target: Titsias, flat: Any, positions: Array, batch: Batch, total: Any):
    """Sums over one more block, of every particle."""
    sums = jax.lax.map(lambda z: target.sums(flat.constrain(z), batch), positions)
    return jax.tree.map(jnp.add, total, sums)


@eqx.filter_jit
def _bounds(target: Titsias, flat: Any, positions: Array, sums: Any):
    """Log densities, their slopes in the sums, and the prior's in positions."""

    values, slopes = jax.lax.map(jax.value_and_grad(target.bound), sums)
    priors, scores = jax.vmap(lambda z: _prior(flat, z))(positions)
    return values + priors, slopes, scores


def _prior(flat: Any, z: Array) -> tuple[Array, Array]:
    """Its log density and score."""
    hyperparameters = flat.target.specification.hyperparameters
    return jax.value_and_grad(lambda z: hyperparameters.log_prior(flat.unravel(z)))(z)


@eqx.filter_jit
def _add_scores(
    target: Titsias,
    flat: Any,
    positions: Array,
    batch: Batch,
    slopes: Any,
    total: Array,
) -> Array:
    """What one block's sums mean for theta, of every particle."""

    def one(pair: tuple[Array, Any]) -> Array:
        z, slope = pair
        _, pull = jax.vjp(lambda z: target.sums(flat.constrain(z), batch), z)
        return pull(slope)[0]

    return total + jax.lax.map(one, (positions, slopes))


@eqx.filter_jit
def _conditions(target: Titsias, flat: Any, positions: Array, sums: Any) -> Particle:
    def one(pair: tuple[Array, Any]) -> Particle:
        theta = flat.constrain(pair[0])
        known = target.condition_on(theta, pair[1])
        assert known.root is not None
        return theta | {Q_MEAN: known.white, Q_ROOT: known.root}

    return jax.lax.map(one, (positions, sums))


class FullPasses:
    """The density of a streamed sparse Gaussian model, for `steingp.corrected`.

    Args:
        flat: the target of a vector, with `target`, `unravel` and `constrain`.
        one_pass: makes an iterator over all batches.
    """

    compiled = False
    mesh = None

    def __init__(self, flat: Any, one_pass: Callable[[], Iterator[Batch]]) -> None:
        assert isinstance(flat.target, Titsias)
        self._flat, self._target, self._one_pass = flat, flat.target, one_pass

    def sums(self, positions: Array) -> Any:
        """The sums over all rows, of every particle."""
        J, zero = len(positions), self._target.zero_sums()
        total = jax.tree.map(lambda leaf: jnp.zeros((J, *leaf.shape)), zero)
        for batch in prefetched(self._one_pass(), _AHEAD):
            total = _add_sums(self._target, self._flat, positions, batch, total)
        return total

    def __call__(self, positions: Any) -> tuple[Array, Array]:
        positions = jnp.asarray(positions)
        values, slopes, scores = _bounds(
            self._target, self._flat, positions, self.sums(positions)
        )
        for batch in prefetched(self._one_pass(), _AHEAD):
            scores = _add_scores(
                self._target, self._flat, positions, batch, slopes, scores
            )
        return values, scores

    def values(self, positions: Any) -> Array:
        """Log densities alone: one pass instead of two."""
        positions = jnp.asarray(positions)
        sums = self.sums(positions)
        return _bounds(self._target, self._flat, positions, sums)[0]

    def particles(self, positions: Array) -> Particle:
        """Constrained particles, each with its q(u)."""
        sums = self.sums(positions)
        return _conditions(self._target, self._flat, positions, sums)


class RowsOverDevices(eqx.Module):
    """The density of a sparse Gaussian model, rows and particles spread over devices.

    Args:
        flat: as in `FullPasses`.
        data: all rows, as many for every device: see `filled_up`.
        at_once: particles that a device scores at the same time.
        mesh: with the axis "rows".
    """

    flat: Any
    data: Batch
    at_once: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)
    compiled: bool = eqx.field(default=True, static=True)

    def __call__(self, positions: Array) -> tuple[Array, Array]:
        return self._everywhere(self._here, positions)

    def values(self, positions: Array) -> Array:
        """Log densities alone."""
        return self._everywhere(self._values_here, positions)

    def _everywhere(self, function: Callable[[Any, Any], Any], positions: Array) -> Any:
        arrays = eqx.filter(self.flat, eqx.is_array)
        spec = (
            jax.tree.map(lambda _: PartitionSpec(), arrays),
            jax.tree.map(lambda _: PartitionSpec(ROWS), self.data),
        )
        shared = (self.flat, self.data)
        return over_particles(self.mesh, function, shared, positions, spec)

    def _values_here(self, shared: tuple[Any, Batch], positions: Array) -> Array:
        flat, own = shared

        def one(z: Array) -> Array:
            sums = jax.lax.psum(flat.target.all_sums(flat.constrain(z), own), ROWS)
            return flat.target.bound(sums) + _prior(flat, z)[0]

        return in_equal_parts(one, positions, self.at_once)

    def _here(self, shared: tuple[Any, Batch], positions: Array) -> tuple[Array, Array]:
        flat, own = shared
        target = flat.target

        def one(z: Array) -> tuple[Array, Array]:
            def own_sums(z: Array) -> Any:
                return target.all_sums(flat.constrain(z), own)

            sums, pull = jax.vjp(own_sums, z)
            value, slopes = jax.value_and_grad(target.bound)(jax.lax.psum(sums, ROWS))
            score = jax.lax.psum(pull(slopes)[0], ROWS)
            prior, prior_score = _prior(flat, z)
            return value + prior, score + prior_score

        return in_equal_parts(one, positions, self.at_once)


def filled_up(data: Batch, mesh: Mesh) -> Batch:
    """The rows and some that do not count, so that every device has as many."""
    missing = -len(data.y) % num_rows_shards(mesh)
    X, y, row, mask = (
        jnp.concatenate([column, jnp.repeat(column[-1:], missing, axis=0)])
        for column in map(jnp.asarray, data)
    )
    return Batch(X, y, row, mask.at[len(data.y) :].set(0.0))

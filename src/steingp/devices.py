"""Many devices: particles, and rows of sparse models, spread over a mesh of them.

A mesh has the axis "particles" and may have "rows". Every device scores its share of the
particles; where there are "rows", its share of the rows for them, of which sums are added
up over the devices. All else, which is little, every device does for itself, so results
are those of one device but for the order in which rows are added up.

On several hosts every process runs the same program: see docs/devices.md.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from steingp.checks import check_count

PARTICLES, ROWS = "particles", "rows"


def mesh(num_devices: int | None = None, *, rows: int = 1) -> Mesh:
    """A mesh of devices for `steingp.fit(model, mesh=...)`.

    Args:
        num_devices: the first so many; all by default, of all hosts.
        rows: how many devices share the rows of a sparse Gaussian model among them; the
            others have other particles.

    Raises:
        ValueError: there are fewer devices, or `rows` does not divide their number.

    Example:
        >>> from steingp import devices
        >>> dict(devices.mesh(1).shape)
        {'particles': 1, 'rows': 1}
    """
    there = len(jax.devices())
    num = there if num_devices is None else check_count("num_devices", num_devices)
    check_count("rows", rows)
    if num > there:
        raise ValueError(f"num_devices={num}, but JAX sees {there} ({jax.devices()}).")
    if num % rows:
        raise ValueError(f"rows={rows} must divide the number of devices, {num}.")
    return jax.make_mesh(
        (num // rows, rows),
        (PARTICLES, ROWS),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=jax.devices()[:num],
    )


def check_mesh(mesh: Any) -> Mesh | None:
    """A mesh whose axes are known, or None.

    Raises:
        ValueError: it is something else.
    """
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh) or not {PARTICLES} <= {*mesh.axis_names} <= {
        PARTICLES,
        ROWS,
    }:
        raise ValueError(
            "mesh must be made by steingp.devices.mesh(), or be a jax Mesh with the axis "
            f'"particles" and perhaps "rows"; got {mesh!r}.'
        )
    return mesh


def num_rows_shards(mesh: Mesh | None) -> int:
    """Over how many devices rows are spread."""
    return 1 if mesh is None else dict(mesh.shape).get(ROWS, 1)


def over_particles(
    mesh: Mesh | None,
    function: Callable[[Any, Any], Any],
    shared: Any,
    each: Any,
    shared_spec: Any = None,
    gather: bool = True,
) -> Any:
    """`function(shared, each)`, each device with its share of `each`'s first axis.

    Args:
        mesh: None: here and at once.
        function: maps arrays with a first axis of particles to such arrays.
        shared: what all devices need, a pytree; may hold things that are not arrays.
        each: a pytree of arrays with one entry per particle. If their number does not
            divide evenly, the first is computed more than once.
        shared_spec: how `shared`'s arrays are laid out, leaf by leaf; every device has
            all of them by default.
        gather: whether every device gets the whole result, not its own share alone.

    Returns:
        What `function` returns for all particles.
    """
    if mesh is None:
        return function(shared, each)
    arrays, rest = eqx.partition(shared, eqx.is_array)
    everywhere = PartitionSpec()
    num = len(jax.tree.leaves(each)[0])
    missing = -num % dict(mesh.shape)[PARTICLES]
    if missing:
        again = jnp.where(jnp.arange(num + missing) < num, jnp.arange(num + missing), 0)
        each = jax.tree.map(lambda leaf: jnp.take(leaf, again, axis=0), each)
    shares = jax.shard_map(
        lambda arrays, each: function(eqx.combine(arrays, rest), each),
        mesh=mesh,
        in_specs=(
            everywhere if shared_spec is None else shared_spec,
            PartitionSpec(PARTICLES),
        ),
        out_specs=PartitionSpec(PARTICLES),
        check_vma=False,  # loops begin with constants, which are on every device
    )(arrays, each)

    shares = jax.tree.map(lambda leaf: leaf[:num], shares)
    return on_all_devices(mesh, shares) if gather else shares


def on_all_devices(mesh: Mesh | None, tree: Any) -> Any:
    """The tree with every array whole on every device, inside of compiled code."""
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda leaf: jax.lax.with_sharding_constraint(leaf, everywhere), tree
    )

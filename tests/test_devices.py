"""Many devices give the numbers of one: emulated, and in two processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import steingp as sg

PROGRAM = Path(__file__).parent / "on_many_devices.py"
# pytest starts where the package is found; its processes must find it as well
SOURCE = str(Path(sg.__file__).parent.parent)


def environment(num_devices: int) -> dict[str, str]:
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    # NPROC: emulated devices wait for each other, and hang with fewer threads
    return os.environ | {
        "XLA_FLAGS": flags, "NPROC": "16", "JAX_PLATFORMS": "cpu", "PYTHONPATH": SOURCE,
    }  # fmt: skip


def run(arguments: list[list[str]], num_devices: int) -> None:
    """One process for each list of arguments, at the same time."""
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *own], env=environment(num_devices),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for own in arguments
    ]  # fmt: skip
    try:
        for process in started:
            output, _ = process.communicate(timeout=600)
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in started:
            process.kill()


def check(found: Any) -> None:
    assert found["devices"] == 4
    for name in ("dense", "counts", "sparse", "draws", "minibatched"):
        np.testing.assert_allclose(
            found[f"mesh.{name}"], found[f"one.{name}"], rtol=1e-10, atol=1e-10
        )
    # sums over rows in another order
    np.testing.assert_allclose(
        found["mesh.rows"], found["one.sparse"], rtol=1e-10, atol=1e-10
    )
    assert np.ptp(found["one.draws"]) > 0.0


def test_four_devices_give_the_numbers_of_one(tmp_path: Path) -> None:
    out = tmp_path / "found.npz"
    run([[str(out)]], num_devices=4)
    check(np.load(out))


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "found.npz"
    run([[str(out), address, "2", str(i)] for i in range(2)], num_devices=2)
    check(np.load(out))


def test_says_what_a_mesh_must_be() -> None:
    X = np.linspace(0, 1, 10)[:, None]
    model = sg.SteinGP((X, X), sg.kernels.Matern52())
    with pytest.raises(ValueError, match="num_devices=99, but JAX sees"):
        sg.devices.mesh(99)
    with pytest.raises(ValueError, match="must divide the number of devices"):
        sg.devices.mesh(1, rows=2)
    with pytest.raises(ValueError, match="mesh must be made by"):
        sg.fit(model, mesh="all")  # type: ignore[arg-type]
    odd = jax.make_mesh((1,), ("x",))
    with pytest.raises(ValueError, match="mesh must be made by"):
        sg.fit(model, mesh=odd)
    joint = sg.SteinGP((X, X), sg.kernels.Matern52(), latents="joint")
    with pytest.raises(ValueError, match="not for models with latents"):
        sg.fit(joint, mesh=sg.devices.mesh(1))

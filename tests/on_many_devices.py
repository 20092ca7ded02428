"""A program for tests/test_devices.py: scores and fits on one device and on a mesh.

python on_many_devices.py OUT [ADDRESS NUM_PROCESSES PROCESS]
"""

import sys
from typing import Any

import jax
import numpy as np

import steingp as sg
from steingp import descent
from steingp.fitting import Fit


def models() -> dict[str, sg.SteinGP]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (41, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=41)
    counts = rng.poisson(np.exp(y)).astype(float)
    kernel = sg.kernels.SquaredExponential
    return {
        "dense": sg.SteinGP((X, y), kernel()),
        "counts": sg.SteinGP((X, counts), kernel(), sg.likelihoods.Poisson()),
        "sparse": sg.SteinGP((X, y), kernel(), inducing=8),
        "minibatched": sg.SteinGP((X, y), kernel(), inducing=8, batch_size=10),
    }


def scores(model: sg.SteinGP, mesh: Any) -> np.ndarray:
    run = Fit(model, num_particles=6, explore=False, mesh=mesh)
    values, scores = run.evaluate(run.state.particles)
    alone = descent.evaluate_values(run.scored(), run.state.particles)
    np.testing.assert_allclose(alone, values, rtol=1e-10)
    return np.column_stack([values, scores])


def draws(model: sg.SteinGP, mesh: Any) -> np.ndarray:
    run = Fit(model, num_particles=6, explore=False, mesh=mesh)
    run.run(progress=False, callback=lambda state: state.sweeps >= 5)
    return run.state.draws


def minibatched(model: sg.SteinGP, mesh: Any) -> np.ndarray:
    posterior = sg.fit(model, num_particles=6, num_steps=20, mesh=mesh, progress=False)
    return posterior.predict_f(model.data.X[:5]).mean


def main(out: str, *processes: str) -> None:
    if processes:
        address, num, process = processes
        jax.distributed.initialize(address, int(num), int(process))
    of = models()
    found: dict[str, Any] = {"devices": len(jax.devices())}
    for kind, mesh in (("one", None), ("mesh", sg.devices.mesh())):
        for name in ("dense", "counts", "sparse"):
            found[f"{kind}.{name}"] = scores(of[name], mesh)
        found[f"{kind}.draws"] = draws(of["dense"], mesh)
        found[f"{kind}.minibatched"] = minibatched(of["minibatched"], mesh)
    found["mesh.rows"] = scores(of["sparse"], sg.devices.mesh(rows=2))
    if not processes or processes[-1] == "0":
        np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

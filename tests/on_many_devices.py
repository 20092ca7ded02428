"""A program for tests/test_devices.py: scores and fits on one device and on a mesh.

python on_many_devices.py OUT [ADDRESS NUM_PROCESSES PROCESS]
"""

import sys
from typing import Any

import jax
import numpy as np

out, *processes = sys.argv[1:]
if processes:
    address, num, process = processes
    jax.distributed.initialize(address, int(num), int(process))

import steingp as sg  # noqa: E402
from steingp.fitting import Fit  # noqa: E402

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (41, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=41)
counts = rng.poisson(np.exp(y)).astype(float)
kernel = sg.kernels.SquaredExponential
MODELS = {
    "dense": sg.SteinGP((X, y), kernel()),
    "counts": sg.SteinGP((X, counts), kernel(), sg.likelihoods.Poisson()),
    "sparse": sg.SteinGP((X, y), kernel(), inducing=8),
}
found: dict[str, Any] = {"devices": len(jax.devices())}


def scores(name: str, mesh: Any) -> np.ndarray:
    run = Fit(MODELS[name], num_particles=6, explore=False, mesh=mesh)
    values, scores = run.evaluate(run.state.particles)
    return np.column_stack([values, scores])


def draws(mesh: Any) -> np.ndarray:
    run = Fit(MODELS["dense"], num_particles=6, explore=False, mesh=mesh)
    run.run(progress=False, callback=lambda state: state.sweeps >= 5)
    return run.state.draws


def minibatched(mesh: Any) -> np.ndarray:
    model = sg.SteinGP((X, y), kernel(), inducing=8, batch_size=10)
    posterior = sg.fit(model, num_particles=6, num_steps=20, mesh=mesh, progress=False)
    return posterior.predict_f(X[:5]).mean


whole = sg.devices.mesh()
for kind, mesh in (("one", None), ("mesh", whole)):
    for name in MODELS:
        found[f"{kind}.{name}"] = scores(name, mesh)
    found[f"{kind}.draws"] = draws(mesh)
    found[f"{kind}.minibatched"] = minibatched(mesh)
found["mesh.rows"] = scores("sparse", sg.devices.mesh(rows=2))
if not processes or process == "0":
    np.savez(out, **found)
print("done")

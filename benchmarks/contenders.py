"""Who is timed by benchmarks/bench.py: steingp and its rivals, each in its own process.

    python benchmarks/contenders.py steingp

A process reads tasks, one JSON object per line, prepares each (data, models, compilation)
and answers with one JSON line; then every further line "again" makes one more timed run of
the task. So runs of several contenders can alternate, and none disturbs another's threads.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ANSWER = "bench-answer "
"""Before every answer, since libraries print as well."""
POINT_STEPS, POINT_RATE = 1000, 0.05
"""Of Adam, for point estimates."""

Measure = Callable[[int], dict[str, Any]]
"""A timed run, from a seed to what was measured."""


class Rows(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def rows_of(task: dict[str, Any]) -> Rows:
    """The data of a task: a UCI set's first split, or simulated."""
    if "data" in task:
        from steingp.experiments.datasets import uci_split

        return Rows(*uci_split(task["data"], max_rows=task.get("rows")))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(task["rows"], task["columns"]))
    y = np.sin(X.sum(axis=1)) + 0.1 * rng.normal(size=len(X))
    return Rows(X, y, X[:10], y[:10])


def path_of(task: dict[str, Any]) -> Path:
    return Path(os.environ["STEINGP_DATA"]) / task["file"]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def per_call(function: Callable[[], Any], least: float = 1.0) -> float:
    """Seconds of a call, over as many as take a second or so."""
    once, _ = timed(function)
    num = max(1, int(least / max(once, 1e-6)))
    began = time.perf_counter()
    for _ in range(num):
        function()
    return (time.perf_counter() - began) / num


# --- steingp ----------------------------------------------------------------------------


def ours_fit(task: dict[str, Any]) -> Measure:
    import steingp as sg

    rows = rows_of(task)
    model = sg.SteinGP((rows.X, rows.y), sg.kernels.SquaredExponential())
    J = task.get("particles")

    def measure(seed: int) -> dict[str, Any]:
        seconds, posterior = timed(
            lambda: sg.fit(model, num_particles=J, seed=seed, progress=False)
        )
        report = posterior.report
        assert report is not None
        score = posterior.predict_y(rows.X_test).log_prob(rows.y_test)
        return {
            "seconds": seconds,
            "log_density": float(np.mean(score)),
            "gradients": report.num_gradients,
            "values": report.num_values,
            "effective_size": report.effective_size,
            "trusted": posterior.diagnose().trusted,
        }

    return measure


def ours_gradient(task: dict[str, Any]) -> Measure:
    """A whole SVGD step of J particles, and the gradients alone."""
    import equinox as eqx
    import jax

    import steingp as sg
    from steingp import descent
    from steingp.fitting import Fit
    from steingp.precision import float64

    rows = rows_of(task)
    model = sg.SteinGP(
        (rows.X, rows.y), sg.kernels.SquaredExponential(), inducing=task.get("inducing")
    )
    run = Fit(model, task["particles"], explore=False)
    density, state = run.scored(), run.state
    positions = 0.3 * state.particles

    arrays, rest = eqx.partition(density, eqx.is_array)
    compiled = jax.jit(lambda arrays, z: eqx.combine(arrays, rest)(z))

    @float64
    def measure(seed: int) -> dict[str, Any]:
        del seed

        def gradient() -> Any:
            if not density.compiled:
                return density(positions)
            return jax.block_until_ready(compiled(arrays, positions))

        scored, num = gradient(), descent.STEPS_AT_ONCE

        def steps() -> None:
            descent.steps(density, positions, scored, state.optimiser, np.ones(num))

        with run.blas():
            steps()
            measured = {
                "seconds_per_step": per_call(steps) / num,
                "seconds_per_gradient": per_call(gradient),
                "seconds_per_values": per_call(
                    lambda: descent.evaluate_values(density, positions)
                ),
            }
        if jax.default_backend() != "cpu" and "inducing" not in task:
            measured["seconds_in_leaves"] = leaves(task["rows"], task["particles"])
        return measured

    return measure


def leaves(num_rows: int, num_particles: int) -> float:
    """Seconds of a gradient on a GPU in blocks that are not cut further, one by one.

    They are factorised and inverted by cuSOLVER and cuBLAS, each after the one before;
    everything else of a factorisation is products.
    """
    import jax
    import jax.numpy as jnp

    from steingp.linalg import factorise, inverses

    size = inverses.gpu_leaf(num_rows)
    num = -(-num_rows // size)
    each = jnp.broadcast_to(2.0 * jnp.eye(size), (num_particles, size, size))
    leaf = jax.jit(
        jax.vmap(
            lambda K: inverses.inverse_by_pairs(factorise(K), inverses.GPU_TRIANGLE)
        )
    )
    return per_call(lambda: jax.block_until_ready([leaf(each) for _ in range(num)]))


def ours_stream(task: dict[str, Any]) -> Measure:
    """Steps of a minibatched sparse model, after a first run compiled them."""
    import steingp as sg

    data: Any
    if task["from"] == "disk":
        data = sg.RowsOnDisk(path_of(task), task["target"], task["inputs"])
    else:
        import pandas as pd

        table = pd.read_csv(path_of(task))
        data = (table[task["inputs"]].to_numpy(), table[task["target"]].to_numpy())
    model = sg.SteinGP(
        data, sg.kernels.Matern32(), inducing=task["inducing"],
        batch_size=task["batch"], standardise=True,
    )  # fmt: skip
    from steingp.ensemble import Ensemble

    def measure(seed: int) -> dict[str, Any]:
        run = Ensemble(model, task["particles"], task["steps"], seed)
        began: list[float] = []

        def first_chunk_done(state: Any) -> bool:
            if not began:
                began.append(time.perf_counter())
                began.append(int(state.step))
            return int(state.step) >= task["steps"]

        run.run(progress=False, callback=first_chunk_done)
        seconds = time.perf_counter() - began[0]
        return {"seconds_per_step": seconds / (int(run.state.step) - began[1])}

    return measure


def nuts_fit(task: dict[str, Any]) -> Measure:
    import steingp as sg

    rows = rows_of(task)
    model = sg.SteinGP((rows.X, rows.y), sg.kernels.SquaredExponential())

    def measure(seed: int) -> dict[str, Any]:
        chains = sg.baselines.nuts(model, seed=seed, progress=False)
        score = chains.posterior.predict_y(rows.X_test).log_prob(rows.y_test)
        return {
            "seconds": chains.seconds.warmup + chains.seconds.sampling,
            "log_density": float(np.mean(score)),
            "gradients": int(chains.num_gradients),
        }

    return measure


# --- GPflow -----------------------------------------------------------------------------


def gpflow_model(rows: Rows) -> Any:
    import gpflow

    D = rows.X.shape[1]
    return gpflow.models.GPR(
        (rows.X, rows.y[:, None]),
        gpflow.kernels.SquaredExponential(lengthscales=np.full(D, np.sqrt(D))),
    )


def gpflow_fit(task: dict[str, Any]) -> Measure:
    import tensorflow as tf
    import tf_keras

    rows = rows_of(task)

    def measure(seed: int) -> dict[str, Any]:
        del seed
        model = gpflow_model(rows)
        adam = tf_keras.optimizers.Adam(POINT_RATE)
        variables = model.trainable_variables

        @tf.function
        def step() -> None:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                loss = model.training_loss()
            slopes = tape.gradient(loss, variables)
            adam.apply_gradients(zip(slopes, variables, strict=True))

        step()  # compiles
        seconds, _ = timed(lambda: [step() for _ in range(POINT_STEPS - 1)])
        score = model.predict_log_density((rows.X_test, rows.y_test[:, None]))
        return {"seconds": seconds, "log_density": float(np.mean(score))}

    return measure


def gpflow_gradient(task: dict[str, Any]) -> Measure:
    """Of one point."""
    import tensorflow as tf

    model = gpflow_model(rows_of(task))
    variables = model.trainable_variables

    @tf.function
    def gradient() -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss()
        return tape.gradient(loss, variables)

    gradient()
    return lambda seed: {"seconds_per_gradient": per_call(gradient)}


def gpflow_stream(task: dict[str, Any]) -> Measure:
    """Adam steps of SVGP: of one variational fit, where steingp has `particles`."""
    import gpflow
    import pandas as pd
    import tensorflow as tf
    import tf_keras

    table = pd.read_csv(path_of(task))
    X, y = table[task["inputs"]].to_numpy(), table[[task["target"]]].to_numpy()
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean(0)) / y.std(0)
    Z = X[np.random.default_rng(0).choice(len(X), task["inducing"], replace=False)]
    model = gpflow.models.SVGP(
        gpflow.kernels.Matern32(lengthscales=np.ones(X.shape[1])),
        gpflow.likelihoods.Gaussian(), Z, num_data=len(X),
    )  # fmt: skip
    batches = iter(
        tf.data.Dataset.from_tensor_slices((X, y))
        .repeat().shuffle(100_000, seed=0).batch(task["batch"]).prefetch(8)
    )  # fmt: skip
    loss_of = model.training_loss_closure(batches)
    adam = tf_keras.optimizers.Adam(0.01)
    variables = model.trainable_variables

    @tf.function
    def step() -> None:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = loss_of()
        adam.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    step()

    def measure(seed: int) -> dict[str, Any]:
        del seed
        num = min(task["steps"], 100)
        seconds, _ = timed(lambda: [step() for _ in range(num)])
        return {"seconds_per_step": seconds / num}

    return measure


# --- GPyTorch ---------------------------------------------------------------------------


def gpytorch_model(rows: Rows) -> tuple[Any, Any, Callable[[], Any]]:
    """The model, its likelihood, and its loss."""
    import gpytorch
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y = (torch.tensor(part, device=device) for part in (rows.X, rows.y))
    D = X.shape[1]

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=D)
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double().to(device)
    model = Exact(likelihood).double().to(device)
    model.covar_module.base_kernel.lengthscale = float(np.sqrt(D))
    model.covar_module.outputscale = 1.0
    likelihood.noise = 1.0
    model.train()
    likelihood.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return model, likelihood, lambda: -marginal(model(X), y)


def gpytorch_fit(task: dict[str, Any]) -> Measure:
    import gpytorch
    import torch

    rows = rows_of(task)

    def measure(seed: int) -> dict[str, Any]:
        del seed
        model, likelihood, loss_of = gpytorch_model(rows)
        adam = torch.optim.Adam(model.parameters(), lr=POINT_RATE)

        def run() -> None:
            for _ in range(POINT_STEPS):
                adam.zero_grad()
                loss_of().backward()
                adam.step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()

        seconds, _ = timed(run)
        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            device = next(model.parameters()).device
            found = likelihood(model(torch.tensor(rows.X_test, device=device)))
            mean, variance = found.mean.cpu().numpy(), found.variance.cpu().numpy()
        error = rows.y_test - mean
        score = -0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
        return {"seconds": seconds, "log_density": float(np.mean(score))}

    return measure


def gpytorch_gradient(task: dict[str, Any]) -> Measure:
    """Of one point."""
    import torch

    model, _, loss_of = gpytorch_model(rows_of(task))

    def gradient() -> None:
        model.zero_grad()
        loss_of().backward()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    gradient()
    return lambda seed: {"seconds_per_gradient": per_call(gradient)}


# --- floors -----------------------------------------------------------------------------


def floor_gradient(task: dict[str, Any]) -> Measure:
    """LAPACK's potrf + potri of one particle on a CPU; N^3 by dgemm on a GPU."""
    import jax

    N = task["rows"]
    if jax.default_backend() == "gpu":
        import jax.numpy as jnp

        with jax.enable_x64(True):
            size = 8192
            A = jax.random.normal(jax.random.key(0), (size, size), dtype=float)
            product = jax.jit(jnp.matmul)
            product(A, A).block_until_ready()
            rate = 2 * size**3 / per_call(lambda: product(A, A).block_until_ready())
        # a factor takes N^3 / 3 additions and multiplications, its inverse 2 N^3 / 3
        return lambda seed: {"seconds_per_gradient": N**3 / rate, "rate": rate}
    from scipy.linalg import lapack

    A = np.random.default_rng(0).normal(size=(N, N))
    A = np.asfortranarray(A @ A.T + N * np.eye(N))

    def once() -> None:
        L, _ = lapack.dpotrf(A, lower=1, clean=0)
        lapack.dpotri(L, lower=1, overwrite_c=1)

    return lambda seed: {"seconds_per_gradient": per_call(once)}


CONTENDERS: dict[str, dict[str, Callable[[dict[str, Any]], Measure]]] = {
    "steingp": {"fit": ours_fit, "gradient": ours_gradient, "stream": ours_stream},
    "NUTS": {"fit": nuts_fit},
    "GPflow": {
        "fit": gpflow_fit,
        "gradient": gpflow_gradient,
        "stream": gpflow_stream,
    },
    "GPyTorch": {"fit": gpytorch_fit, "gradient": gpytorch_gradient},
    "floor": {"gradient": floor_gradient},
}


def peak_memory() -> float:
    """Of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def answer(content: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(content), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CONTENDERS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tasks = CONTENDERS[parser.parse_args().name]
    measure: Measure | None = None
    count = 0
    for line in sys.stdin:
        try:
            if line.strip() != "again":
                task = json.loads(line)
                began = time.perf_counter()
                measure, count = tasks[task["task"]](task), 0
                measure(0)  # compiles
                first = time.perf_counter() - began
                answer({"first_seconds": first, "peak_gib": peak_memory()})
                continue
            assert measure is not None
            count += 1
            answer(measure(count) | {"peak_gib": peak_memory()})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"[:500]})


if __name__ == "__main__":
    main()

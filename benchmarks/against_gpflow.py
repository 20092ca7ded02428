"""Are our rivals the rivals? Maximum likelihood, sparse and VI beside GPflow's own.

    STEINGP_DATA=... .venv-bench/bin/python benchmarks/against_gpflow.py [--quick]

Writes results/against_gpflow.jsonl, a line for each set and method: our best value,
GPflow's value at our hyperparameters (with its q optimised there, where it has one), and
the best that GPflow finds by itself from the start values; likewise the mean log density of
the test rows. Runs in the environment of `make bench`.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import steingp as sg
from steingp.experiments.datasets import CLASSIFICATION, uci_split

RESULTS = Path(__file__).parent.parent / "results" / "against_gpflow.jsonl"
TASKS = (
    ("servo", "ML"),
    ("concreteslump", "ML"),
    ("servo", "Titsias"),
    ("concreteslump", "Titsias"),
    ("servo", "VI"),
    ("fertility", "VI"),
    ("hepatitis", "VI"),
)
NUM_INDUCING = 30
JITTER = 1e-6
"""GPflow's, which is part of the covariance at rows and inducing points."""


def kernel_of(gpflow: Any, theta: dict[str, np.ndarray], D: int) -> Any:
    if theta:
        return gpflow.kernels.SquaredExponential(
            theta["kernel.variance"], theta["kernel.lengthscales"]
        )
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(D, np.sqrt(D)))


def logit_link(f: Any) -> Any:
    """Ours; kept off 0 and 1, of which GPflow takes logarithms."""
    import tensorflow as tf

    return tf.clip_by_value(tf.math.sigmoid(f), 1e-14, 1.0 - 1e-14)


def model_of(
    gpflow: Any, name: str, method: str, data: Any, Z: Any, theta: dict
) -> Any:
    X, y = data.X, data.y[:, None]
    kernel = kernel_of(gpflow, theta, X.shape[1])
    noise = float(theta.get("likelihood.variance", 1.0))
    if method == "ML":
        return gpflow.models.GPR((X, y), kernel, noise_variance=noise)
    if method == "Titsias":
        model = gpflow.models.SGPR((X, y), kernel, Z, noise_variance=noise)
        gpflow.set_trainable(model.inducing_variable, False)
        return model
    likelihood = gpflow.likelihoods.Gaussian(noise)
    if name in CLASSIFICATION:
        likelihood = gpflow.likelihoods.Bernoulli(invlink=logit_link)
    return gpflow.models.VGP((X, y), kernel, likelihood)


def optimise(gpflow: Any, model: Any, max_steps: int) -> None:
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": max_steps}
    )


def run(name: str, method: str, num_starts: int, max_steps: int) -> dict[str, Any]:
    import gpflow

    gpflow.config.set_default_jitter(JITTER)
    data = uci_split(name)
    Z = data.X[: min(NUM_INDUCING, len(data.X))]
    options: dict[str, Any] = {"jitter": 0.0 if method == "ML" else JITTER}
    likelihood = sg.likelihoods.Bernoulli() if name in CLASSIFICATION else None
    if method == "Titsias":
        options["inducing"] = Z
    kernel = sg.kernels.SquaredExponential()
    model = sg.SteinGP((data.X, data.y), kernel, likelihood, **options)
    line: dict[str, Any] = {"set": name, "method": method, "rows": len(data.y)}
    if method == "VI":
        ours = sg.baselines.vi(model, num_steps=max_steps)
        line["ours"] = ours.bound
    else:
        ours = sg.baselines.maximum_likelihood(model, num_starts=num_starts)
        line["ours"] = ours.value
    theta = {k: v[0] for k, v in ours.posterior.particles.items()}
    line["our_log_density"] = float(
        ours.posterior.predict_y(data.X_test).log_prob(data.y_test).mean()
    )
    at_ours = model_of(gpflow, name, method, data, Z, theta)
    if method == "VI":
        for part in (at_ours.kernel, at_ours.likelihood):
            gpflow.set_trainable(part, False)
        optimise(gpflow, at_ours, max_steps)
    theirs = model_of(gpflow, name, method, data, Z, {})
    optimise(gpflow, theirs, max_steps)
    for key, one in (("gpflow_at_ours", at_ours), ("gpflow_own", theirs)):
        line[key] = -float(one.training_loss())
        score = one.predict_log_density((data.X_test, data.y_test[:, None]))
        line[f"{key}_log_density"] = float(np.mean(score))
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one set, to try it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.quick and asked.out == RESULTS:
        asked.out = Path("against_gpflow-quick.jsonl")
    lines = []
    for name, method in TASKS[:1] if asked.quick else TASKS:
        line = run(name, method, 1 if asked.quick else 5, 50 if asked.quick else 2000)
        lines.append(line)
        print(json.dumps(line), flush=True)
        asked.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()

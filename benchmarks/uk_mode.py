"""Where the posterior of the air-quality model lies on the UK's data, by L-BFGS.

    python benchmarks/uk_mode.py

The mode under the bound of Titsias with all rows and the study's inducing points, beside
which the study's fits can be held: its lengthscales and its scores. Writes
results/uk_mode.jsonl: how much stations near each other differ, and a line for the first
random split and one for the midlands.
"""

from pathlib import Path
from typing import Any

import numpy as np

import steingp as sg
from steingp import inducing, metrics
from steingp.experiments import air_quality, jobs
from steingp.experiments.uci import about

RESULTS = Path(__file__).parent.parent / "results" / "uk_mode.jsonl"
KEYS = ("set", "split")
KILOMETRES = np.array([111.0 * np.cos(np.radians(53.0)), 111.0])
"""In a degree of longitude and of latitude."""


def fit_one(job: dict[str, Any]) -> dict[str, Any]:
    rows = air_quality.load("uk", job["split"])
    kernel = air_quality.kernel()
    Z = inducing.kdpp(rows.X, air_quality.INDUCING, kernel, seed=0, max_rows=2000)
    model = sg.SteinGP((rows.X, rows.y), kernel, inducing=Z)
    found = sg.baselines.maximum_a_posteriori(
        model, num_starts=1, max_iterations=80, progress=False
    )
    prediction = found.posterior.predict_y(rows.X_test)
    particles = found.posterior.particles
    return {
        "log_density": float(prediction.log_prob(rows.y_test).mean()),
        "rmse": metrics.rmse(rows.y_test, prediction.mean),
        "seconds": found.seconds,
        "num_gradients": found.num_gradients,
        "hyperparameters": {name: v[0].tolist() for name, v in particles.items()},
        **about(),
    }


def differences(job: dict[str, Any]) -> dict[str, Any]:
    """How much stations' means differ, in sds: of any two, and of those within 10 km."""
    values = air_quality.table(job["set"])
    names = np.unique(values[:, 0])
    own = [values[values[:, 0] == name] for name in names]
    means = np.array([rows[:, 4].mean() for rows in own]) / values[:, 4].std()
    places = np.array([rows[0, 1:3] for rows in own]) * KILOMETRES
    i, j = np.triu_indices(len(names), 1)
    gap = means[i] - means[j]
    near = np.linalg.norm(places[i] - places[j], axis=1) < 10.0
    return {
        "pairs": int(near.sum()),
        "near": float(np.sqrt(np.mean(gap[near] ** 2))),
        "any": float(np.sqrt(np.mean(gap**2))),
    }


def main() -> None:
    lines = jobs.Lines(RESULTS, KEYS)
    jobs.run([{"set": "uk", "split": "stations"}], differences, lines, say=print)
    todo = [{"set": "uk", "split": split} for split in (0, "midlands")]
    jobs.run(todo, fit_one, lines, say=print)


if __name__ == "__main__":
    main()

"""What the paper's prior of lengthscales costs where there are many inputs.

    python benchmarks/priors.py [spectf gas skillcraft]

The paper's has mean 2 in every one of D standardised inputs, between whose points the
typical distance is sqrt(2 D). The other is lognormal with median sqrt(D). Sets of few rows
have whole posteriors (`steingp.fit`), larger ones the mode of the posterior. Writes
results/priors.jsonl, a line per fit, and goes on where it was stopped.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist

import steingp as sg
from steingp.experiments import jobs, uci
from steingp.experiments.datasets import uci_split

RESULTS = Path(__file__).parent.parent / "results" / "priors.jsonl"
KEYS = ("set", "split", "prior")
SETS = {"spectf": 5, "skillcraft": 2, "gas": 2}
"""Splits of each."""
FEW_ROWS = 300


def fit_one(job: dict[str, Any]) -> dict[str, Any]:
    data = uci_split(job["set"], seed=job["split"])
    labels = uci.is_classification(job["set"])
    kernel = sg.kernels.SquaredExponential()
    if job["prior"] == "by inputs":
        num = data.X.shape[1]
        prior = dist.LogNormal(0.5 * np.log(num), 1.0)
        kernel = sg.kernels.SquaredExponential(lengthscales=prior)
    likelihood = sg.likelihoods.Bernoulli() if labels else None
    model = sg.SteinGP((data.X, data.y), kernel, likelihood)
    if len(data.y) <= FEW_ROWS:
        how = "posterior"
        posterior = sg.fit(model, seed=job["split"], progress=False)
    else:
        how = "mode"
        posterior = sg.baselines.maximum_a_posteriori(
            model, num_starts=1, max_iterations=100, progress=False
        ).posterior
    scores = uci.score(posterior.predict_y(data.X_test), data.y_test, labels)
    return {"how": how, **scores, **uci.about()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETS))
    asked = parser.parse_args()
    if unknown := set(asked.sets) - set(SETS):
        parser.error(f"sets: there are {', '.join(SETS)}; got {', '.join(unknown)}.")
    todo = [
        {"set": name, "split": split, "prior": prior}
        for name in asked.sets
        for split in range(SETS[name])
        for prior in ("the paper's", "by inputs")
    ]
    jobs.run(todo, fit_one, jobs.Lines(RESULTS, KEYS), say=print)


if __name__ == "__main__":
    main()

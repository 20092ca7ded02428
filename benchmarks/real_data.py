"""Six UCI sets at full size: our test log density beside the paper's.

    STEINGP_DATA=... python benchmarks/real_data.py [--sets boston autompg] [--splits 2]

Plain SVGD with the paper's settings (J = 20, Adam 0.05, 1000 steps, ARD squared
exponential, Gamma(1, 2) priors), 70/30 splits, scaled by the training part. One line per
fit is appended to results/real_data.jsonl; the table is made from that file.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import jax
import numpy as np

import steingp as sg
from steingp.experiments.datasets import CLASSIFICATION, uci_split

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "real_data.jsonl"
PAGE = ROOT / "docs" / "results.md"

# Table 5 of the paper: SteinGP20, mean over five splits and its spread
PAPER = {
    "airfoil": (0.05, 0.05),
    "concrete": (-0.25, 0.07),
    "boston": (-0.30, 0.13),
    "autompg": (-0.40, 0.09),
    "mammographic": (-0.37, 0.03),
    "blood": (-0.61, 0.04),
}


def fit_one(
    name: str,
    split: int,
    num_steps: int = 1000,
    num_particles: int = 20,
    max_rows: int | None = None,
) -> dict:
    """Fit one split and score its test part."""
    parts = uci_split(name, seed=split, max_rows=max_rows)
    likelihood = sg.likelihoods.Bernoulli() if name in CLASSIFICATION else None
    kernel = sg.kernels.SquaredExponential()
    latents = "auto" if likelihood is None else "joint"
    model = sg.SteinGP((parts.X, parts.y), kernel, likelihood, latents=latents)
    opt = sg.SVGD(model, n_particles=num_particles, seed=split)
    began = time.perf_counter()
    opt.run(1, progress=False)
    compiled = time.perf_counter()
    opt.run(num_steps - 1)
    ended = time.perf_counter()
    prediction = opt.posterior().predict_y(parts.X_test)
    return {
        "set": name,
        "method": f"SteinGP{num_particles}",
        "split": split,
        "rows": len(parts.y),
        "columns": parts.X.shape[1],
        "steps": num_steps,
        "log_density": float(prediction.log_prob(parts.y_test).mean()),
        "rmse": sg.metrics.rmse(parts.y_test, prediction.mean),
        "first_step_seconds": compiled - began,
        "run_seconds": ended - compiled,
        "jax": jax.__version__,
        "device": f"{jax.devices()[0].device_kind}, {platform.machine()}",
        "version": sg.__version__,
    }


def table(lines: list[dict]) -> str:
    """Mean over splits with its standard error, the paper's figure beside it."""
    rows = [f"{'set':14}{'rows':>6}{'ours':>18}{'paper':>18}{'splits':>8}{'s/fit':>8}"]
    for name, (value, spread) in PAPER.items():
        own = [line for line in lines if line["set"] == name]
        if not own:
            continue
        scores = np.array([line["log_density"] for line in own])
        error = scores.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan
        seconds = np.mean([line["run_seconds"] for line in own])
        rows.append(
            f"{name:14}{own[0]['rows']:>6}{scores.mean():>10.3f} +- {error:.3f}"
            f"{value:>10.2f} +- {spread:.2f}{len(own):>8}{seconds:>8.0f}"
        )
    return "\n".join(rows)


PAGE_TEXT = """# Real data

Made by `benchmarks/real_data.py` from `results/real_data.jsonl` ({devices}).

Mean test log density per point, of the mixture over particles, in standardised units.
Plain SVGD with the paper's settings: J = 20, Adam 0.05, 1000 steps, ARD squared
exponential, default priors. Random 70/30 splits, scaled by the training part. "Ours" is the
mean over splits with its standard error; "paper" is its SteinGP20 with the spread over its
five splits, which are not ours.

```
{table}
```

The regression sets come out as in the paper or better, on other splits than the paper's.
Mammographic comes out far worse than in the paper. There each particle carries a latent
value per row; plain SVGD loses its spread in so many dimensions (docs/method.md), but that
this is the cause here has not been tested. The row number, which the paper's
classification sets had as an input, is left out here.
"""


def _devices(lines: list[dict]) -> str:
    return "; ".join(sorted({f"{d['device']}, jax {d['jax']}" for d in lines}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--splits", type=int, default=5)
    arguments = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    done = [json.loads(line) for line in RESULTS.read_text().splitlines()] if (
        RESULTS.exists()
    ) else []  # fmt: skip
    for split in range(arguments.splits):
        for name in arguments.sets:
            if any(d["set"] == name and d["split"] == split for d in done):
                continue
            result = fit_one(name, split)
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
            done.append(result)
            print(f"{name} {split}: {result['log_density']:.3f}", flush=True)
    print("\nmean test log density per point")
    print(table(done))
    PAGE.write_text(PAGE_TEXT.format(table=table(done), devices=_devices(done)))


if __name__ == "__main__":
    main()

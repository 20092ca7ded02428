"""Is the default fit right, and what does it cost? Against NUTS and grids.

    STEINGP_DATA=... python benchmarks/evaluate.py [PROBLEM ...] [--seeds 10]
    STEINGP_DATA=... python benchmarks/evaluate.py PROBLEM ... --cost    # one at a time
    python benchmarks/evaluate.py --page

One line per fit is appended to results/evaluation.jsonl; fits that are there already are
left out. `--page` makes the tables of docs/evaluation.md, and the figure, from that file.

Every problem of `steingp.experiments.references` is fitted by default, by the paper's SVGD
(20 particles, Adam 0.05, 1000 steps, latents as part of the particles where f cannot be
integrated out exactly) and, where it is sparse, in minibatches and streamed.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

import steingp as sg
from steingp.experiments import references
from steingp.experiments.references import Problem, Reference
from steingp.weights import mixing

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "evaluation.jsonl"
GROUPS = 5
"""Parts of the draws whose disagreement gives a prediction's Monte Carlo error."""


def evaluate(
    name: str, method: str, seed: int, max_rows: int | None = None, **effort: Any
) -> dict[str, Any]:
    """Fit one problem by one method, and compare with its reference."""
    problem = references.problem(name, max_rows)
    began = time.perf_counter()
    posterior = fit(problem, method, seed, **effort)
    seconds = time.perf_counter() - began
    line: dict[str, Any] = {
        "problem": name,
        "method": method,
        "seed": seed,
        "rows": len(problem.data.y),
        "draws": posterior.num_draws,
        "seconds_with_compilation": seconds,
        **about(),
    }
    if posterior.report is not None:
        line |= {
            key: value
            for key, value in posterior.report._asdict().items()
            if key in ("effective_size", "rhat", "num_gradients", "pareto_k", "weighted",
                       "acceptance", "num_replaced", "num_sweeps", "stage",
                       "num_particles")
        }  # fmt: skip
    else:
        line["num_gradients"] = 20 * 1000
    if posterior.verdict is not None:
        line["failed"] = [check.finding for check in posterior.verdict.failed]
    score, error = test_score(posterior, problem)
    line |= {"log_density": score, "log_density_error": error}
    if max_rows is None:
        line |= compare(posterior, problem, references.load_reference(name))
    return line


def about() -> dict[str, str]:
    return {
        "jax": jax.__version__,
        "steingp": sg.__version__,
        "device": f"{references.device_name()}, {platform.machine()}",
    }


def fit(problem: Problem, method: str, seed: int, **effort: Any) -> sg.Posterior:
    """By "default", "paper", "minibatch" or "streamed"."""
    if method == "default":
        return sg.fit(problem.model("auto"), seed=seed, **effort)
    if method == "paper":
        dense_gaussian = problem.latents == "auto" and problem.Z is None
        model = problem.model("auto" if dense_gaussian else "joint")
        run = sg.SVGD(model, n_particles=20, seed=seed)
        run.run(effort.get("num_steps", 1000))
        return run.posterior()
    if method == "minibatch":
        model = problem.model("auto", batch_size=64)
        return sg.fit(model, seed=seed, num_steps=effort.get("num_steps", 2000))
    X, y = problem.data.X, problem.data.y
    blocks = [(X[i : i + 64], y[i : i + 64]) for i in range(0, len(y), 64)]
    model = sg.SteinGP(blocks, problem.kernel, inducing=problem.Z, num_data=len(y))
    return sg.fit(model, seed=seed, full_pass=True, **effort)


def test_score(posterior: sg.Posterior, problem: Problem) -> tuple[float, float]:
    """Mean log density of the test rows, and its Monte Carlo error.

    With p_gi the density of row i under a group g of draws and p_i their mean, the mean
    over rows of log p_i has the error of the mean over groups of mean_i p_gi / p_i.
    """
    X, y = problem.data.X_test, problem.data.y_test
    whole = float(posterior.predict_y(X).log_prob(y).mean())
    if posterior.num_draws < 10 * GROUPS:
        return whole, float("nan")
    # the particles are the fastest index of the draws: groups of whole particles
    rows = []
    report = posterior.report
    assert report is not None
    particle = np.arange(posterior.num_draws) % report.num_particles
    group = particle * GROUPS // report.num_particles
    for g in range(GROUPS):
        rows.append(posterior.subset(group == g).predict_y(X, max_draws=60).log_prob(y))
    by_group = np.stack(rows)
    pooled = logsumexp(by_group, axis=0) - np.log(GROUPS)
    ratios = np.exp(by_group - pooled).mean(axis=1)
    return whole, float(ratios.std(ddof=1) / np.sqrt(GROUPS))


def compare(
    posterior: sg.Posterior, problem: Problem, reference: Reference
) -> dict[str, Any]:
    """Log-hyperparameters, f and test scores beside the reference's."""
    columns = dict(
        pair
        for name in posterior.particles
        if name != "nu" and not name.startswith("q.")
        for pair in posterior.named_columns(name)
    )
    table = np.log(np.stack([columns[label] for label in reference.labels], axis=1))
    w = posterior.weights
    mean = w @ table
    sd = np.sqrt(w @ (table - mean) ** 2)
    line: dict[str, Any] = {
        "dimension": len(mean),
        "mean_error": ((mean - reference.mean) / reference.sd).tolist(),
        "sd_ratio": (sd / reference.sd).tolist(),
    }
    report = posterior.report
    if report is not None:
        squares = (table - mean) ** 2
        relative = np.sqrt(w @ (squares - sd**2) ** 2) / (2 * sd**2)
        size = report.effective_size
        sweeps, left = divmod(len(table), report.num_particles)
        if len(posterior.modes) == 1 and sweeps >= 4 and not left:
            worth = mixing(table.reshape(-1, report.num_particles, len(mean)))
            size = worth.square_size
            line["least_size"] = worth.smallest_size
        error = relative / np.sqrt(size)
        if reference.sd_error is not None:
            error = np.hypot(error, reference.sd_error / reference.sd)
        line["sd_ratio_error"] = error.tolist()
    if posterior.evidence_of_modes is not None and problem.ranges is not None:
        found = posterior.log_evidence()
        line["log_evidence"], line["log_evidence_error"] = found[:2]
        line["log_evidence_gap"] = found.log_value - reference.about["log_evidence"]
    if problem.name in references.BIMODAL:
        lengthscale = np.ravel(posterior.particles["kernel.lengthscales"])
        below = float(w @ (lengthscale < reference.about["cut"]))
        line |= {"mass": below, "true_mass": reference.about["masses"][0]}
        line["num_modes"] = len(posterior.modes)
    if reference.f_sd is not None:
        f = posterior.predict_f(problem.data.X)
        line["f_sd_ratio"] = float(np.mean(np.sqrt(f.variance) / reference.f_sd))
        gap = (f.mean - reference.f_mean) / reference.f_sd
        line["f_mean_error"] = float(np.mean(np.abs(gap)))
        line["nuts_log_density"] = reference.about["log_density"]
        line["nuts_log_density_error"] = reference.about[
            "log_density_monte_carlo_error"
        ]
    return line


def known_hyperparameters(rows: int = 100, num_steps: int = 1000) -> dict[str, Any]:
    """f's variance at the rows of a Gaussian model, beside the exact one."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-3.0, 3.0, (rows, 1)), axis=0)
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=rows)
    kernel = sg.kernels.SquaredExponential(sg.fixed(1.0), sg.fixed(0.8))
    noise = sg.likelihoods.Gaussian(sg.fixed(0.09))
    K = np.asarray(kernel(X))
    exact = np.diag(K - K @ np.linalg.solve(K + 0.09 * np.eye(rows), K))
    ours = sg.fit(sg.SteinGP((X, y), kernel, noise, jitter=0.0), progress=False)
    joint = sg.SVGD(sg.SteinMC((X, y), kernel, noise), n_particles=20)
    joint.run(num_steps)
    found = {
        "default": ours.predict_f(X).variance,
        "paper": joint.posterior().predict_f(X).variance,
    }
    return {
        "problem": "known-hyperparameters",
        "method": "known",
        "rows": rows,
        "num_steps": num_steps,
        "largest_error": {k: float(np.abs(v - exact).max()) for k, v in found.items()},
        "variance_ratio": {k: float(np.mean(v / exact)) for k, v in found.items()},
        **about(),
    }


def cost(name: str, repeats: int = 5, max_rows: int | None = None) -> dict[str, Any]:
    """Seconds of a default fit after a first one compiled it, other seeds; then NUTS's."""
    problem = references.problem(name, max_rows)
    seconds, gradients, sizes = [], [], []
    for seed in range(repeats + 1):
        began = time.perf_counter()
        posterior = sg.fit(problem.model("auto"), seed=seed)
        seconds.append(time.perf_counter() - began)
        assert posterior.report is not None
        gradients.append(posterior.report.num_gradients)
        sizes.append(posterior.report.effective_size)
    return {
        "problem": name,
        "method": "cost",
        "rows": len(problem.data.y),
        "first_seconds": seconds[0],
        "seconds": seconds[1:],
        "num_gradients": gradients[1:],
        "effective_size": sizes[1:],
        **about(),
    }


def methods_of(name: str) -> list[str]:
    more = ["minibatch", "streamed"] if name in references.SPARSE else []
    return ["default", "paper", *more]


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def append(line: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    everything = [
        "known-hyperparameters",
        *references.UNIMODAL,
        *references.BIMODAL,
        *references.REGRESSION,
        *references.JOINT,
        *references.SPARSE,
    ]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=everything)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.page:
        from evaluation_page import write_page

        write_page(read(arguments.out))
        return
    done = {(d["problem"], d["method"], d.get("seed")) for d in read(arguments.out)}
    for name in arguments.names:
        if name == "known-hyperparameters":
            if (name, "known", None) not in done:
                append(known_hyperparameters(), arguments.out)
            continue
        if arguments.cost:
            append(cost(name), arguments.out)
            continue
        for seed in range(arguments.seeds):
            for method in arguments.methods or methods_of(name):
                if (name, method, seed) in done:
                    continue
                if method != "default" and seed > 2:
                    continue  # rivals: three seeds
                line = evaluate(name, method, seed)
                append(line, arguments.out)
                print(
                    f"{name} {method} {seed}: log density {line['log_density']:.4f}, "
                    f"{line['seconds_with_compilation']:.1f} s", flush=True,
                )  # fmt: skip


if __name__ == "__main__":
    main()

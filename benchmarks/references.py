"""Reference posteriors: long NUTS runs, and grids, kept as small files.

    STEINGP_DATA=... python benchmarks/references.py boston poisson [--chains 16] ...
    python benchmarks/references.py --grids
    STEINGP_DATA=... python benchmarks/references.py --cost boston blood
    python benchmarks/references.py --table

The problems are those of steingp.experiments.references, the files go to
results/references. NUTS runs in coordinates where the priors are standard normal, with a
dense metric for the hyperparameters; a reference should have r-hat < 1.01 and an effective
size of 2000 for every hyperparameter, and its file says what it has. `--cost` times NUTS as
others are compared with it, 4 chains of 500 + 500, and writes nuts_cost_gpu.json
(or _cpu).
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
from scipy.special import logsumexp

import steingp as sg
from steingp.baselines import Chains, nuts
from steingp.baselines.chains import capped_size
from steingp.experiments import references
from steingp.experiments.references import Problem, Reference
from steingp.models import SteinGP

NUM_KEPT = 1500

ALL = 10**9
"""Draws to predict with."""


def versions() -> dict[str, str]:
    return {
        "jax": jax.__version__,
        "numpyro": numpyro.__version__,
        "steingp": sg.__version__,
        "python": platform.python_version(),
        "device": f"{references.device_name()}, {platform.machine()}",
    }


def run_nuts(problem: Problem, model: SteinGP, sizes: argparse.Namespace) -> Chains:
    """Chains from starts that lie apart: a third of the way out to the prior's draws."""
    target = model.target.normalised()
    rng = np.random.default_rng(sizes.seed)
    free = target.specification.hyperparameters.free
    z = {p.name: rng.normal(size=(sizes.chains, *p.shape)) / 3.0 for p in free}
    if target.num_latents:
        z["nu"] = 0.1 * rng.normal(size=(sizes.chains, target.num_latents))
    with jax.enable_x64(True):
        start = {k: np.array(v) for k, v in jax.vmap(target.constrain)(z).items()}
    return nuts(
        model, num_warmup=sizes.warmup, num_draws=sizes.draws, num_chains=sizes.chains,
        seed=sizes.seed, start=start, max_tree_depth=sizes.depth,
        target_accept=sizes.accept,
    )  # fmt: skip


def columns(chains: Chains) -> tuple[list[str], np.ndarray]:
    """Labels, and log theta as (chains, draws, d)."""
    posterior = chains.posterior
    named = [
        pair
        for name in posterior.particles
        if name != "nu"
        for pair in posterior.named_columns(name)
    ]
    count = len(chains.step_size)
    table = np.stack([np.log(column).reshape(count, -1) for _, column in named], axis=2)
    return [label for label, _ in named], table


def test_scores(
    problem: Problem, model: SteinGP, chains: Chains
) -> tuple[np.ndarray, float]:
    """Log density of each test row under all draws, and its mean's Monte Carlo error.

    With p_ci the density of row i under chain c alone and p_i their mean, the mean over
    rows of log p_i has the error of the mean over chains of mean_i p_ci / p_i.
    """
    rows = []
    for c in range(len(chains.step_size)):
        part = model.posterior({name: v[c] for name, v in chains.draws.items()})
        prediction = part.predict_y(problem.data.X_test, max_draws=ALL)
        rows.append(prediction.log_prob(problem.data.y_test))
    by_chain = np.stack(rows)
    pooled = logsumexp(by_chain, axis=0) - np.log(len(by_chain))
    ratios = np.exp(by_chain - pooled).mean(axis=1)
    return pooled, float(ratios.std(ddof=1) / np.sqrt(len(ratios)))


def make(problem: Problem, sizes: argparse.Namespace) -> Reference:
    """Run NUTS and describe what came out."""
    began = time.perf_counter()
    model = problem.model()
    chains = run_nuts(problem, model, sizes)
    labels, table = columns(chains)
    squares = (table - table.mean(axis=(0, 1))) ** 2
    size, size_of_squares = capped_size(table), capped_size(squares)
    pooled = table.reshape(-1, table.shape[2])
    mean, sd = pooled.mean(axis=0), pooled.std(axis=0, ddof=1)
    sd_of_squares = squares.reshape(pooled.shape).std(axis=0, ddof=1)
    f = chains.posterior.predict_f(problem.data.X, max_draws=ALL)
    log_density, monte_carlo_error = test_scores(problem, model, chains)
    r_hat = np.array([chains.r_hat[label] for label in labels])
    about = {
        "problem": problem.name,
        "target": type(model.target).__name__,
        "rows": len(problem.data.y),
        "columns": problem.data.X.shape[1],
        "test_rows": len(problem.data.y_test),
        "split_seed": 0,
        "method": "NUTS, coordinates normal, dense metric over the hyperparameters",
        "seed": sizes.seed,
        "chains": sizes.chains,
        "warmup": sizes.warmup,
        "draws": sizes.draws,
        "max_tree_depth": sizes.depth,
        "target_accept": sizes.accept,
        "divergences": chains.divergences,
        "acceptance": float(chains.acceptance.mean()),
        "num_gradients": chains.num_gradients,
        "num_rounds": chains.num_rounds,
        "worst_r_hat": float(r_hat.max()),
        "least_effective_size": float(size.min()),
        "r_hat_of_latents": chains.r_hat.get("nu"),
        "effective_size_of_latents": chains.effective_size.get("nu"),
        "log_density": float(log_density.mean()),
        "log_density_error": float(log_density.std(ddof=1) / np.sqrt(len(log_density))),
        "log_density_monte_carlo_error": monte_carlo_error,
        "rmse": sg.metrics.rmse(
            problem.data.y_test,
            chains.posterior.predict_y(problem.data.X_test, max_draws=ALL).mean,
        ),
        "seconds": chains.seconds._asdict(),
        "seconds_in_all": time.perf_counter() - began,
        "settings_note": sizes.note,
        **versions(),
    }
    kept = np.linspace(0, len(pooled) - 1, min(NUM_KEPT, len(pooled))).astype(int)
    return Reference(
        labels, mean, sd, pooled[kept],
        mean_error=sd / np.sqrt(size),
        sd_error=sd_of_squares / (2.0 * sd * np.sqrt(size_of_squares)),
        r_hat=r_hat, effective_size=size, f_mean=f.mean, f_sd=np.sqrt(f.variance),
        test_log_density=log_density, Z=problem.Z, about=about,
    )  # fmt: skip


def make_grid(problem: Problem, num: int = 200) -> Reference:
    """Integrate on a grid, and on a coarser one to see that it is fine enough."""
    grid, coarse = (references.grid_posterior(problem, n) for n in (num, num * 2 // 3))
    moments = np.array([grid.mean_and_sd(name) for name in grid.axes])
    coarse_moments = np.array([coarse.mean_and_sd(name) for name in grid.axes])
    about = {
        "problem": problem.name,
        "rows": len(problem.data.y),
        "method": f"grid, {num} values of every hyperparameter",
        "log_evidence": grid.log_evidence,
        "mass_at_ends": grid.mass_at_ends,
        "change_from_coarser_grid": {
            "log_evidence": abs(grid.log_evidence - coarse.log_evidence),
            "moments": float(np.abs(moments - coarse_moments).max()),
        },
        **versions(),
    }
    if problem.name in references.BIMODAL:
        about |= grid.modes()
    named = {
        p.name: f"{p.name}[0]" if p.shape else p.name
        for p in problem.model().target.specification.hyperparameters.free
    }
    return Reference(
        [named[name] for name in grid.axes], moments[:, 0], moments[:, 1],
        **dict.fromkeys(references.OPTIONAL), about=about,
    )  # fmt: skip


def cost(problem: Problem, depth: int) -> dict[str, Any]:
    """NUTS as it is usually run, compilation apart."""
    model = problem.model()
    settings = {"num_warmup": 500, "num_draws": 500, "num_chains": 4}
    chains = nuts(model, **settings, max_tree_depth=depth)
    size = min(v for name, v in chains.effective_size.items() if name != "nu")
    return {
        "problem": problem.name,
        "target": type(model.target).__name__,
        "rows": len(problem.data.y),
        "hyperparameters": len(columns(chains)[0]),
        **settings,
        "max_tree_depth": depth,
        "coordinates": "normal",
        "chain_method": "vectorized",
        "compile_seconds": chains.seconds.compile,
        "seconds": chains.seconds.warmup + chains.seconds.sampling,
        "warmup_seconds": chains.seconds.warmup,
        "sampling_seconds": chains.seconds.sampling,
        "num_gradients": chains.num_gradients,
        "num_rounds": chains.num_rounds,
        "worst_r_hat": max(v for k, v in chains.r_hat.items() if k != "nu"),
        "least_effective_size": size,
        "divergences": chains.divergences,
        **versions(),
    }


def table(folder: Path) -> str:
    """One line per reference, from the files."""
    lines = [
        f"{'problem':22}{'d':>3}{'r-hat':>8}{'size':>8}{'div':>5}{'log density':>16}"
        f"{'+- MC':>8}{'seconds':>9}"
    ]
    for path in sorted(folder.glob("*.npz")):
        reference = references.load_reference(path.stem, folder)
        about, d = reference.about, len(reference.labels)
        if reference.draws is None:
            lines.append(
                f"{path.stem:22}{d:>3}  grid: log evidence {about['log_evidence']:.4f}"
                + (f", masses {about['masses'][0]:.3f} {about['masses'][1]:.3f}, "
                   f"valley {about['depth']:.1f}" if "masses" in about else "")
            )  # fmt: skip
            continue
        lines.append(
            f"{path.stem:22}{d:>3}{about['worst_r_hat']:>8.4f}"
            f"{about['least_effective_size']:>8.0f}{about['divergences']:>5}"
            f"{about['log_density']:>9.4f} +- {about['log_density_error']:.2f}"
            f"{about['log_density_monte_carlo_error']:>8.4f}"
            f"{about['seconds_in_all']:>9.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="problems for NUTS")
    parser.add_argument("--grids", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--depth", type=int, default=7, help="of NUTS's trees, at most")
    parser.add_argument("--accept", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-rows", type=int, help="for a quick try")
    parser.add_argument("--note", default="", help="is kept in the file")
    parser.add_argument("--out", type=Path, default=references.FOLDER)
    arguments = parser.parse_args()
    names = list(arguments.names)
    if arguments.grids:
        names += references.UNIMODAL + references.BIMODAL
    costs = []
    for name in names:
        problem = references.problem(name, arguments.max_rows)
        if arguments.cost:
            costs.append(cost(problem, arguments.depth))
            print(json.dumps(costs[-1]), flush=True)
            (arguments.out / f"nuts_cost_{jax.default_backend()}.json").write_text(
                json.dumps(costs, indent=1) + "\n"
            )
            continue
        reference = (
            make(problem, arguments) if problem.ranges is None else make_grid(problem)
        )
        references.save_reference(reference, name, arguments.out)
        print(f"{name}: {json.dumps(reference.about)}", flush=True)
    if arguments.table or not names:
        print(table(arguments.out))


if __name__ == "__main__":
    main()

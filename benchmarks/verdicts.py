"""How often is the verdict wrong? Healthy fits, and fits with a fault planted in them.

    python benchmarks/verdicts.py [names ...] [--seeds 10] [--out results/verdicts.jsonl]
    python benchmarks/verdicts.py --planted
    python benchmarks/verdicts.py --page

Healthy are default fits of the reference problems (evaluation.md's rows compare them with
NUTS and grids): none of them should fail a check. A planted fault is one of: particles that
collapsed, too few draws, a step that diverges, an inner solver cut short, a second mode in
which no particle starts. Each must be flagged. One JSON line per fit; `--page` makes
docs/verdict.md from them.
"""

import argparse
import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optax
from evaluate import about, append, read

import steingp as sg
from steingp import by_mode, corrected, fitting, tempering
from steingp.experiments import references
from steingp.fitting import Fit
from steingp.targets import sites

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "verdicts.jsonl"
HEALTHY = (
    *references.UNIMODAL,
    *references.BIMODAL,
    "servo",
    "concreteslump",
    "machine",
    "poisson",
    "fertility",
    "studentt",
)
"""Small enough for two cores; others belong on a GPU."""


def line_of(posterior: sg.Posterior, **known: Any) -> dict[str, Any]:
    verdict = posterior.diagnose()
    return {
        **known,
        "trusted": verdict.trusted,
        "failed": [check.name for check in verdict.failed],
        "findings": {check.name: check.finding for check in verdict.checks},
        **about(),
    }


def healthy(name: str, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    posterior = sg.fit(references.problem(name).model("auto"), seed=seed)
    seconds = round(time.perf_counter() - began, 2)
    return line_of(posterior, kind="healthy", problem=name, seed=seed, seconds=seconds)


# --- planted faults ---------------------------------------------------------------------


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """A module's name with another value for a while."""
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


def small_problem(seed: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (rows, 1))
    return X, np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=rows)


def collapsed_latents(seed: int) -> sg.Posterior:
    """Plain SVGD of 40 latent values, hyperparameters known; see `svgd_spread.py`."""
    kernel = sg.kernels.Matern52(variance=sg.fixed(1.0), lengthscales=sg.fixed(1.0))
    noise = sg.likelihoods.Gaussian(variance=sg.fixed(0.1))
    run = sg.SVGD(sg.SteinMC(small_problem(seed), kernel, noise), seed=seed)
    run.run(1000, progress=False)
    return run.posterior()


def collapsed_draws(seed: int) -> sg.Posterior:
    """A finished fit whose draws are drawn to their mean: variances a quarter."""
    run = Fit(sg.SteinGP(small_problem(seed), sg.kernels.Matern52()), seed=seed)
    run.run(progress=False)
    state = run.states[0]
    mean = state.draws.mean(axis=(0, 1))
    run.by_mode.states[0] = dataclasses.replace(
        state, draws=mean + 0.5 * (state.draws - mean)
    )
    return run.posterior()


def too_few_draws(seed: int) -> sg.Posterior:
    model = sg.SteinGP(small_problem(seed), sg.kernels.Matern52())
    with replaced(corrected, "MOST_SWEEPS", corrected.FEWEST_SWEEPS):
        return sg.fit(model, num_particles=8, seed=seed, progress=False)


def divergent_moves(seed: int) -> sg.Posterior:
    """The metric, once adapted, is made ten times as wide, and with it the step."""
    run = Fit(sg.SteinGP(small_problem(seed), sg.kernels.Matern52()), seed=seed)
    run.run(progress=False, callback=lambda state: state.stage == "collecting")
    state = run.states[0]
    assert state.moves is not None
    longer = state.moves._replace(factor=10.0 * state.moves.factor)
    run.by_mode.states[0] = dataclasses.replace(state, moves=longer)
    with replaced(by_mode, "_POOR", np.inf):  # a late cut would begin anew, and mend it
        run.run(progress=False)
    return run.posterior()


def divergent_svgd(seed: int) -> sg.Posterior:
    model = sg.SteinGP(small_problem(seed), sg.kernels.Matern52())
    run = sg.SVGD(model, n_particles=100, optimiser=optax.sgd(5.0), seed=seed)
    run.run(200, progress=False)
    return run.posterior()


def unconverged_solver(seed: int) -> sg.Posterior:
    X, y = small_problem(seed, rows=33)  # a size that nothing else here compiles
    labels = (y > 0.0).astype(float)
    model = sg.SteinGP((X, labels), sg.kernels.Matern52(), sg.likelihoods.Bernoulli())
    with replaced(sites, "MOST_ITERATIONS", 2):
        return sg.fit(model, effective_size=100, seed=seed, progress=False)


def missed_mode(seed: int) -> sg.Posterior:
    """Two modes; every particle starts in the wide one, of mass 0.62."""
    cut = np.log(references.load_reference("two-modes").about["cut"])
    run = Fit(references.problem("two-modes").model("auto"), seed=seed)

    def in_one(positions: np.ndarray, num: int) -> np.ndarray:
        theta = fitting.flat.constrain(run.density, positions)
        wide = np.log(np.ravel(theta["kernel.lengthscales"])) > cut
        return tempering.spread_out(positions[wide], num)

    class OneMode:
        """`tempering`, but for the starts."""

        spread_out = staticmethod(in_one)

        def __getattr__(self, name: str) -> Any:
            return getattr(tempering, name)

    with replaced(fitting, "tempering", OneMode()):
        run.run(progress=False)
    return run.posterior()


PLANTED: dict[str, tuple[Callable[[int], sg.Posterior], str]] = {
    "collapsed particles of plain SVGD": (collapsed_latents, "collapse"),
    "draws of half the width": (collapsed_draws, "spread"),
    "too few draws": (too_few_draws, "effective size"),
    "moves whose step is ten times too long": (divergent_moves, "step"),
    "SVGD whose step diverges": (divergent_svgd, "step"),
    "inner solver of two iterations": (unconverged_solver, "inner solver"),
    "all starts in one of two modes": (missed_mode, "modes"),
}


def planted(name: str, seed: int) -> dict[str, Any]:
    make, check = PLANTED[name]
    line = line_of(make(seed), kind="planted", problem=name, seed=seed)
    return line | {"expected": check, "flagged": check in line["failed"]}


# --- the page ---------------------------------------------------------------------------


def write_page(lines: list[dict[str, Any]], path: Path) -> None:
    by_kind: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], defaultdict(list))[line["problem"]].append(
            line
        )
    fits = [line for line in lines if line["kind"] == "healthy"]
    alarms = [line for line in fits if not line["trusted"]]
    page = [
        "# Is the verdict right?",
        "",
        "Made by `benchmarks/verdicts.py` from `results/verdicts.jsonl`. The bounds of the "
        "checks (`steingp.verdicts`) were set while looking at fits of these problems, so "
        "the count of false alarms is not an independent test of them; simulations are "
        "(`make calibration` records the verdict of every fit).",
        "",
        f"Healthy fits: {len(fits)}, of which {len(alarms)} failed a check.",
        "",
        "| problem | fits | alarms | of which |",
        "|---|---|---|---|",
    ]
    for name, group in by_kind.get("healthy", {}).items():
        bad = [line for line in group if not line["trusted"]]
        what = "; ".join(
            f"seed {line['seed']}: {line['findings'][check]}"
            for line in bad
            for check in line["failed"]
        )
        page.append(f"| {name} | {len(group)} | {len(bad)} | {what} |")
    page += ["", "Faults that were planted, and what the verdict said:", ""]
    page += ["| fault | fits | flagged | one of them |", "|---|---|---|---|"]
    for name, group in by_kind.get("planted", {}).items():
        count = sum(line["flagged"] for line in group)
        said = group[0]["findings"].get(group[0]["expected"], "-")
        page.append(f"| {name} | {len(group)} | {count} | {said} |")
    devices = sorted({f"{line['device']}, jax {line['jax']}" for line in lines})
    page += ["", f"On {'; '.join(devices)}.", ""]
    path.write_text("\n".join(page))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=HEALTHY)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.page:
        write_page(read(arguments.out), ROOT / "docs" / "verdict.md")
        return
    make = planted if arguments.planted else healthy
    names = PLANTED if arguments.planted else arguments.names
    done = {(line["problem"], line["seed"]) for line in read(arguments.out)}
    for name in names:
        for seed in range(arguments.seeds):
            if (name, seed) in done:
                continue
            line = make(name, seed)
            append(line, arguments.out)
            print(name, seed, line["trusted"], json.dumps(line["failed"]), flush=True)


if __name__ == "__main__":
    main()

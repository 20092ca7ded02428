"""Are posteriors of the default fit calibrated? By simulation (Talts et al. 2018).

    python benchmarks/calibration.py [--problem regression ...] [--first 0]
        [--replications 1000] [--out results/calibration.jsonl]
    python benchmarks/calibration.py --page

A replication draws hyperparameters theta from their prior, f from its GP at fixed inputs
and at one new point, and y given f; then fits y. If the fit is right, theta and f at the
new point are one more draw of the posterior: their ranks among 99 draws of it are uniform
on 0, ..., 99. Nothing is left out: a fit that raises is a line as well.

One line per replication is appended to the file; those that are there already are left
out. Several processes may share the work by problems and ranges, with a file each, to be
concatenated. `--page` makes docs/calibration.md, and its figure, from the file.

Reference:
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), Validating Bayesian inference
    algorithms with simulation-based calibration, arXiv:1804.06788.
"""

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import steingp as sg
from steingp.kernels import Kernel
from steingp.likelihoods import Likelihood
from steingp.linalg import DEFAULT_JITTER, add_diagonal, mvn_sample
from steingp.means import Zero
from steingp.precision import float64, to_numpy
from steingp.targets import Specification

RESULTS = Path(__file__).parent.parent / "results" / "calibration.jsonl"
NUM_DRAWS = 99
"""Among which a truth is ranked: ranks 0 to 99 fill ten bins evenly."""
EFFECTIVE_SIZE = 200
"""Asked of every fit, instead of 1000; all else is its default."""
NEW_POINT = 0.4
"""Where f is tested."""


class Problem(NamedTuple):
    """What replications share: inputs, and a model with default priors.

    One kernel and likelihood for all of them, so that code is compiled once.
    """

    number: int
    """For seeds."""
    X: np.ndarray
    kernel: Kernel
    likelihood: Likelihood


def _inputs(num: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).uniform(-3.0, 3.0, (num, 1)), axis=0)


PROBLEMS = {
    "regression": Problem(
        0, _inputs(25), sg.kernels.Matern52(), sg.likelihoods.Gaussian()
    ),
    "bernoulli": Problem(
        1, _inputs(40), sg.kernels.SquaredExponential(), sg.likelihoods.Bernoulli()
    ),
    "poisson": Problem(
        2, _inputs(25), sg.kernels.SquaredExponential(), sg.likelihoods.Poisson()
    ),
}


# --- one replication --------------------------------------------------------------------


class Simulated(NamedTuple):
    """A truth, and data that come from it."""

    theta: dict[str, np.ndarray]
    f_new: float
    y: np.ndarray


@float64
def simulate(problem: Problem, seed: int) -> Simulated:
    """theta ~ prior, f ~ GP(theta), y ~ p(y | f)."""
    spec = Specification.bind(problem.kernel, Zero(), problem.likelihood, 1)
    theta, f_new, y = _simulate(spec, jax.random.key(seed), jnp.asarray(problem.X))
    return Simulated(to_numpy(theta), float(f_new), np.array(y))


@eqx.filter_jit
def _simulate(
    spec: Specification, key: Array, X: Array
) -> tuple[dict[str, Array], Array, Array]:
    theta_key, f_key, y_key = jax.random.split(key, 3)
    theta = spec.hyperparameters.sample(theta_key)
    model = spec.at(theta)
    points = jnp.concatenate([X, jnp.array([[NEW_POINT]])])
    # the fitted model has its jitter at the rows, and so have these data
    jitter = jnp.full(len(points), DEFAULT_JITTER).at[-1].set(0.0)
    K = add_diagonal(model.kernel.gram(points), jitter)
    f = mvn_sample(f_key, model.mean.of(points), K, 1)[0]
    row = jnp.full(len(X), spec.likelihood.row_neutral)
    return theta, f[-1], model.likelihood.sample(y_key, f[:-1], row)


def replicate(
    name: str, replication: int, effective_size: float = EFFECTIVE_SIZE
) -> dict[str, Any]:
    """Simulate, fit and rank; what went wrong, if the fit or its draws fail."""
    problem = PROBLEMS[name]
    seeds = np.random.SeedSequence([problem.number, replication]).generate_state(3)
    data_seed, fit_seed, rank_seed = (int(seed) // 4 for seed in seeds)
    truth = simulate(problem, data_seed)
    line: dict[str, Any] = {
        "problem": name,
        "replication": replication,
        "truth": {k: _short(v.item()) for k, v in truth.theta.items()},
        "asked": effective_size,
        **about(),
    }
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # of y far from unit scale, for one: the prior's own data
            warnings.simplefilter("ignore")
            model = sg.SteinGP((problem.X, truth.y), problem.kernel, problem.likelihood)
            posterior = sg.fit(
                model, effective_size=effective_size, seed=fit_seed, progress=False
            )
        line["seconds"] = _short(time.perf_counter() - began)
        line["ranks"] = ranks(posterior, truth, np.random.default_rng(rank_seed))
    except Exception as error:
        return line | {"error": f"{type(error).__name__}: {error}"[:300]}
    report = posterior.report
    assert report is not None
    if report.stage != "done":  # a fit keeps what it has on Ctrl-C; we do not
        raise KeyboardInterrupt
    line |= {
        "draws": posterior.num_draws,
        "effective_size": _short(report.effective_size),
        "modes": len(posterior.modes),
    }
    if report.pareto_k is not None:
        line |= {"pareto_k": _short(report.pareto_k), "weighted": report.weighted}
    if posterior.verdict is not None:
        line["trusted"] = posterior.verdict.trusted
    return line


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def about() -> dict[str, str]:
    return {
        "jax": jax.__version__,
        "steingp": sg.__version__,
        "device": f"{jax.devices()[0].device_kind}, {platform.machine()}",
    }


# --- ranks ------------------------------------------------------------------------------


def ranks(
    posterior: sg.Posterior, truth: Simulated, rng: np.random.Generator
) -> dict[str, int]:
    """Of every hyperparameter, and of f at the new point, among the same 99 draws."""
    chosen = choose(posterior, rng)
    found = {
        name: rank_of(value.item(), posterior.particles[name][chosen].ravel())
        for name, value in truth.theta.items()
    }
    f = posterior.subset(chosen).predict_f(np.array([[NEW_POINT]]), max_draws=NUM_DRAWS)
    noise = rng.normal(size=NUM_DRAWS)
    draws = f.means[:, 0] + np.sqrt(f.variances[:, 0]) * noise
    return found | {"f": rank_of(truth.f_new, draws)}


def choose(posterior: sg.Posterior, rng: np.random.Generator) -> np.ndarray:
    """Row numbers of 99 draws, by weight, as far from each other as can be.

    A posterior's draws stand sweep by sweep, particles next to each other. They are put
    in the order of particles first, so that even steps through the weights take every
    particle about equally often, at sweeps that are far apart. (Of several modes, some
    draws are left out by the fit, and particles are then known only about. The order is
    of no consequence but for correlation: in any order each draw is taken as often as its
    weight says, on average over the start of the steps.)
    """
    assert posterior.report is not None
    J = posterior.report.num_particles
    parts = [mode.draws for mode in posterior.modes]
    order = np.concatenate(
        [part[np.argsort(np.arange(len(part)) % J, kind="stable")] for part in parts]
    )
    return order[systematic(posterior.weights[order], NUM_DRAWS, rng.uniform())]


def systematic(weights: np.ndarray, num: int, start: float) -> np.ndarray:
    """`num` row numbers at even steps through the weights, 0 <= start < 1."""
    upto = np.cumsum(weights) / np.sum(weights)
    rows = np.searchsorted(upto, (start + np.arange(num)) / num, side="right")
    return np.minimum(rows, len(weights) - 1)


def rank_of(truth: float, draws: np.ndarray) -> int:
    """How many draws are below the truth.

    Raises:
        ValueError: some draw is not a finite number.
    """
    if not np.all(np.isfinite(draws)):
        raise ValueError("the posterior has draws that are not finite.")
    return int(np.sum(draws < truth))


# --- files ------------------------------------------------------------------------------


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The lines of a file, one of every replication."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return list({(d["problem"], d["replication"]): d for d in lines}.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problem", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS)
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.page:
        from calibration_page import write_page

        write_page(read(arguments.out))
        return
    done = {(d["problem"], d["replication"]) for d in read(arguments.out)}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.problem:
        for i in range(arguments.first, arguments.first + arguments.replications):
            if (name, i) in done:
                continue
            line = replicate(name, i)
            with arguments.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, i, line.get("seconds"), line.get("ranks", line.get("error")),
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

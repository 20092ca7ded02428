"""The multimodal study, section 5.2: simulated sets, every method, and a grid as truth.

A job is one simulated set and one method (`steingp.experiments.jobs`). Under the paper's
priors most sets have a posterior with one peak. The first eleven seeds are taken as they
come; `FIGURE_SEED` was chosen for its two peaks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steingp import baselines, metrics, svgd
from steingp.compilation import Stopwatch
from steingp.experiments import paper_numbers
from steingp.experiments.datasets import neal
from steingp.experiments.multimodal import (
    LENGTHSCALE,
    NOISE,
    VARIANCE,
    Grid,
    grid_posterior,
)
from steingp.experiments.uci import about, judgement
from steingp.experiments.uci_tables import Cell
from steingp.inference import fit
from steingp.kernels import SquaredExponential
from steingp.models import SteinGP
from steingp.paper import SVGD
from steingp.posterior import Posterior

METHODS = ("grid", "default", "SteinGP", "HMC", "VI")
FIGURE_SEED = 46
SEEDS = (*range(11), FIGURE_SEED)
KEYS = ("seed", "method")

PARTICLES, RATE, STEPS = 20, 0.001, 5000
"""The paper's particles and rate; how many steps it took is not said."""
CHAINS, DRAWS = 4, 500
_GRID_DRAWS = 500
_SHOWN = 200
"""Draws in a line of the set that is drawn."""
_NAMES = {LENGTHSCALE: "lengthscale", VARIANCE: "variance", NOISE: "noise variance"}


def jobs(
    seeds: tuple[int, ...] = SEEDS, quick: bool = False
) -> Iterator[dict[str, Any]]:
    """What there is to fit.

    Example:
        >>> from steingp.experiments import multimodal_study
        >>> len(list(multimodal_study.jobs((0, 1))))
        10
    """
    for seed in seeds:
        for method in METHODS:
            yield {"seed": seed, "method": method} | ({"quick": True} if quick else {})


def fit_one(job: dict[str, Any]) -> dict[str, Any]:
    """Fit one simulated set by one method; scores, and masses beside the grid's."""
    seed, method, quick = job["seed"], job["method"], job.get("quick", False)
    data = neal(seed)
    model = SteinGP((data.X, data.y), SquaredExponential())
    watch = Stopwatch()
    grid = grid_posterior(data.X, data.y, num=30 if quick else 60)
    if method != "grid":
        watch = Stopwatch()
    posterior = _fit(model, grid, method, seed, quick)
    spent = watch.read()
    prediction = posterior.predict_y(data.X_test)
    line = {
        **spent,
        "rmse": metrics.rmse(data.y_test, prediction.mean),
        "log_density": float(prediction.log_prob(data.y_test).sum()),
        "coverage90": float(np.mean(np.abs(prediction.cdf(data.y_test) - 0.5) <= 0.45)),
        "posterior": _moments(posterior, grid),
        **_masses(posterior, grid),
    }
    if method == "default":
        line |= judgement(posterior)
        line["modes"] = len(posterior.modes)
    if seed == FIGURE_SEED:
        line["draws"] = _some_draws(posterior)
    return line | about()


def _fit(model: SteinGP, grid: Grid, method: str, seed: int, quick: bool) -> Posterior:
    if method == "grid":
        return model.posterior(_grid_draws(grid, seed), method="drawn from the grid")
    if method == "default":
        size = 100.0 if quick else None
        return fit(model, seed=seed, effective_size=size, progress=False)
    if method == "SteinGP":
        run = SVGD(model, n_particles=PARTICLES, optimiser=svgd.adam(RATE), seed=seed)
        run.run(200 if quick else STEPS, progress=False)
        return run.posterior()
    if method == "HMC":
        num = 100 if quick else DRAWS
        return baselines.hmc(
            model, num_warmup=num, num_draws=num, num_chains=CHAINS, seed=seed,
            progress=False,
        ).posterior  # fmt: skip
    if method == "VI":
        return baselines.vi(
            model, num_steps=200 if quick else STEPS, learning_rate=RATE,
            natural_rate=0.1, progress=False,
        ).posterior  # fmt: skip
    raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}.")


def _grid_draws(grid: Grid, seed: int) -> dict[str, np.ndarray]:
    """Cells by their masses, and a place in each cell."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(grid.masses.size, _GRID_DRAWS, p=grid.masses.ravel())
    draws = {}
    for name, index in zip(
        grid.axes, np.unravel_index(cells, grid.masses.shape), strict=True
    ):
        log_axis = np.log(grid.axes[name])
        within = (log_axis[1] - log_axis[0]) * rng.uniform(-0.5, 0.5, _GRID_DRAWS)
        draws[name] = np.exp(log_axis[index] + within)
    draws[LENGTHSCALE] = draws[LENGTHSCALE][:, None]
    return draws


def _moments(posterior: Posterior, grid: Grid) -> dict[str, list[float]]:
    """Of every logarithm: mean's error in exact sds, and ratio of sds."""
    found = {}
    for name in grid.axes:
        mean, sd = grid.mean_and_sd(name)
        draws = np.log(np.ravel(posterior.particles[name]))
        ours = float(posterior.weights @ draws)
        spread = float(np.sqrt(posterior.weights @ (draws - ours) ** 2))
        found[name] = [(ours - mean) / sd, spread / sd]
    return found


def _masses(posterior: Posterior, grid: Grid) -> dict[str, Any]:
    """Of the peak at shorter lengthscales, where the exact posterior has two."""
    valley = grid.valley(LENGTHSCALE)
    if valley is None:
        return {"peaks": 1}
    exact = grid.marginal(LENGTHSCALE)[grid.axes[LENGTHSCALE] < valley].sum()
    short = np.ravel(posterior.particles[LENGTHSCALE]) < valley
    return {
        "peaks": 2,
        "exact_mass": float(exact),
        "mass": float(posterior.weights @ short),
    }


def _some_draws(posterior: Posterior) -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    num = posterior.num_draws
    some = np.arange(num)
    if num > _SHOWN:
        some = rng.choice(num, _SHOWN, p=posterior.weights)
    return {
        name: np.round(np.log(np.ravel(posterior.particles[name])[some]), 3).tolist()
        for name in _NAMES
    }


# --- tables and figures -----------------------------------------------------------------


def table(lines: list[dict[str, Any]]) -> str:
    """The paper's table over all sets, beside the paper's one set."""
    rows = [f"{'':10s}{'RMSE':>16s}{'paper':>8s}{'log density':>18s}{'paper':>8s}"
            f"{'seconds':>10s}{'paper':>8s}{'sd ratio':>20s}"]  # fmt: skip
    for method in METHODS:
        own = [d for d in lines if d["method"] == method and "error" not in d]
        if not own:
            continue
        paper = paper_numbers.MULTIMODAL.get(method, {})
        cells = [
            Cell({d["seed"]: value(d) for d in own})
            for value in (
                lambda d: d["rmse"],
                lambda d: d["log_density"],
                lambda d: d["seconds"] - d["compile_seconds"],
            )
        ]
        ratios = np.array([[r for _, r in d["posterior"].values()] for d in own])
        spread = "-"
        if method != "VI":  # a point
            low, middle, high = np.quantile(ratios, [0.0, 0.5, 1.0])
            spread = f"{low:.2f} {middle:.2f} {high:.2f}"
        rows.append(
            f"{method:10s}{cells[0].mean:8.3f} +-{cells[0].error:5.3f}"
            f"{_or_blank(paper, 'rmse', '.2f'):>8s}"
            f"{cells[1].mean:10.2f} +-{cells[1].error:5.2f}"
            f"{_or_blank(paper, 'log_density', '.2f'):>8s}"
            f"{cells[2].mean:10.1f}{_or_blank(paper, 'seconds', '.1f'):>8s}{spread:>20s}"
        )
    return "\n".join(rows)


def _or_blank(paper: dict[str, float], name: str, form: str) -> str:
    return format(paper[name], form) if name in paper else ""


def mass_table(lines: list[dict[str, Any]]) -> str:
    """Sets whose exact posterior has two peaks: mass of that at shorter lengthscales."""
    rows = [f"{'seed':>6s}{'exact':>8s}" + "".join(f"{m:>9s}" for m in METHODS[1:])]
    for seed in sorted({d["seed"] for d in lines if d.get("peaks") == 2}):
        own = {d["method"]: d for d in lines if d["seed"] == seed and "mass" in d}
        exact = next(iter(own.values()))["exact_mass"]
        rows.append(f"{seed:6d}{exact:8.3f}" + "".join(
            f"{own[m]['mass']:9.3f}" if m in own else f"{'-':>9s}" for m in METHODS[1:]
        ))  # fmt: skip
    return "\n".join(rows)


def in_words(lines: list[dict[str, Any]]) -> str:
    """What the command prints at the end."""
    seeds = sorted({d["seed"] for d in lines})
    two = sorted({d["seed"] for d in lines if d.get("peaks") == 2})
    parts = [
        f"{len(seeds)} simulated sets, mean +- standard error; log density of 100 held-out "
        "points together; sd of log-hyperparameters over the exact one (smallest, median, "
        "largest); seconds without compilation",
        table(lines),
    ]
    if two:
        parts += [
            f"{len(two)} sets whose exact posterior has two peaks: mass of the peak at "
            "shorter lengthscales",
            mass_table(lines),
        ]
    return "\n\n".join(parts)


def write_figures(lines: list[dict[str, Any]], folder: Path) -> list[Path]:
    """The data, and the hyperparameters' posteriors by every method, of one set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from steingp.plots import style

    folder.mkdir(parents=True, exist_ok=True)
    data = neal(FIGURE_SEED)
    axes = style.one_panel(None, (6.4, 3.2))
    for X, y, colour, name in (
        (data.X, data.y, style.BLUE, "to fit"),
        (data.X_test, data.y_test, style.ORANGE, "held out"),
    ):
        axes.plot(X[:, 0], y, ".", color=colour, markersize=5, label=f"{len(y)} {name}")
    axes.set(xlabel="x", ylabel="y", title=f"Neal's data, seed {FIGURE_SEED}")
    axes.title.set_fontsize(10)
    style.tidy(axes)
    style.legend_below(axes, 2)
    paths = [folder / "multimodal_data.png"]
    axes.figure.savefig(paths[0], dpi=150)  # type: ignore[union-attr]

    own = {d["method"]: d for d in lines if d["seed"] == FIGURE_SEED and "draws" in d}
    if own:
        panels = style.several_panels(None, len(_NAMES), (3.1, 3.0), 3)
        grid = grid_posterior(data.X, data.y, num=60)
        for panel, (name, label) in zip(panels, _NAMES.items(), strict=True):
            _draw_posteriors(panel, name, label, grid, own)
        figure = style.figure_of(panels)
        handles = panels[0].get_legend_handles_labels()
        figure.legend(*handles, frameon=False, fontsize=8, ncols=5,
                      loc="outside lower center")  # fmt: skip
        paths.append(folder / "multimodal_posteriors.png")
        figure.savefig(paths[1], dpi=150)
    plt.close("all")
    return paths


def _draw_posteriors(
    panel: Any, name: str, label: str, grid: Grid, own: dict[str, dict]
) -> None:
    from steingp.plots import style

    log_axis = np.log(grid.axes[name])
    density = grid.marginal(name) / (log_axis[1] - log_axis[0])
    panel.fill_between(np.exp(log_axis), density, color=style.GREY, alpha=0.4, lw=0,
                       label="exact, by a grid")  # fmt: skip
    for method, colour, dash in (
        ("default", style.BLUE, "-"), ("HMC", style.GREEN, "--"),
    ):  # fmt: skip
        if method in own:
            heights, edges = np.histogram(
                own[method]["draws"][name], bins=18, density=True
            )
            panel.stairs(heights, np.exp(edges), color=colour, ls=dash, lw=1.4,
                         label=f"{method}, 200 draws")  # fmt: skip
    if "SteinGP" in own:
        places = np.exp(own["SteinGP"]["draws"][name])
        panel.plot(places, np.full(len(places), -0.05 * density.max()), "|",
                   color=style.ORANGE, markersize=9, label="SteinGP, 20 particles",
                   clip_on=False)  # fmt: skip
    if "VI" in own:
        panel.axvline(np.exp(own["VI"]["draws"][name][0]), color=style.PURPLE, lw=1.4,
                      ls=":", label="VI, a point")  # fmt: skip
    seen = density > 1e-3 * density.max()
    low, high = log_axis[seen][[0, -1]]
    for one in own.values():
        low = min(low, np.min(one["draws"][name]) - 0.1)
        high = max(high, np.max(one["draws"][name]) + 0.1)
    style.log_axis(panel, "x")
    panel.set_xlim(np.exp(low), np.exp(high))
    panel.set(xlabel=label, ylabel="density of its logarithm")
    style.tidy(panel)

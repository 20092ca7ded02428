"""Table and figure of docs/calibration.md, from results/calibration.jsonl."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom, chi2, norm

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "calibration.md"
FIGURE = ROOT / "docs" / "figures" / "calibration.png"

NUM_DRAWS, NUM_BINS = 99, 10
LEVEL = 0.05
"""Of all tests together: a right method is flagged anywhere in one page of twenty."""

Line = dict[str, Any]

TEXT = """# Is the default fit calibrated?

Made by `make calibration` from `results/calibration.jsonl` ({devices}).

{verdict}

![Ranks of the truth among draws of the posterior](figures/calibration.png)

## What was done

Simulation-based calibration ([Talts et al. 2018](https://arxiv.org/abs/1804.06788)). A
replication draws hyperparameters from their default priors, Gamma(1, rate 0.5), f from the
Gaussian process at fixed inputs between -3 and 3 and at one new point among them, and y
given f. `steingp.fit` then gets y, with all its defaults but `effective_size={asked}`. Were
its posterior exact, the truth would be one more draw of it, and its rank among 99 draws
uniform on 0, ..., 99. regression: Matern52, 25 rows; bernoulli: squared exponential, logit,
40 rows; poisson: squared exponential, 25 rows. `f` is the function at the new point.

Wild data are part of the prior and of the test: counts of thousands, noise much
larger than the signal, forty equal labels. No replication is left out.

{fits}

## Ranks

`mean`: of the ranks, 49.5 if all is right; above it, the posterior lies too low.
`sd ratio`: the posterior's sd over the one it should have, and its standard error: 1 / sd
of the ranks' normal scores, scaled so that uniform ranks give 1. (Normal scores of 99 draws
do not go beyond 2.6, so that ratios far from 1 come out nearer to it.) `p mean`, `p sd`: of
each by itself. `chi2`: of the ranks in ten bins; `p`: its p-value; `p all`: times the
{tests} quantities that are tested (Bonferroni). Flagged are those below {level}.

```
{table}
```

## Draws that are not independent

Ranks are uniform for 99 independent draws; those of a fit are correlated, and weighted
where f is integrated out by an approximation. The 99 are taken at even steps through the
weights of all draws, ordered by particle and then by sweep, so that they come from all
particles and from sweeps far apart. Taken at random, 99 of N draws worth n independent ones
would be worth m = 1 / (1/99 + 1/n - 1/N), {worth}. A share of m
draws below the truth varies more than one of 99, which widens the ranks as a posterior
would that is too narrow: by this alone the sd ratio would be {alone}. It is not
corrected for, and errs on the side of a flag; the standard errors above tell whether it
could be seen.

f at the new point is drawn from what the fit predicts for each of the 99 draws, Gaussian
given the hyperparameters: exact for regression, an approximation (EP) for the others.
"""


# --- what ranks say ---------------------------------------------------------------------


class Uniformity(NamedTuple):
    """Whether ranks are uniform on 0, ..., 99, and if not, how."""

    num: int
    mean: float
    mean_p: float
    sd_ratio: float
    """Below 1: the posterior is too narrow."""
    sd_ratio_error: float
    sd_p: float
    chi2: float
    p: float


def uniformity(ranks: np.ndarray) -> Uniformity:
    """Tests of ranks; all p-values are two-sided but for chi-square's."""
    ranks = np.asarray(ranks)
    num = len(ranks)
    error = np.sqrt(((NUM_DRAWS + 1) ** 2 - 1) / 12.0 / num)
    mean_z = (ranks.mean() - 0.5 * NUM_DRAWS) / error
    every = ndtri((np.arange(NUM_DRAWS + 1) + 0.5) / (NUM_DRAWS + 1))
    squares = every[ranks] ** 2
    expected, spread = np.mean(every**2), np.std(every**2)
    sd_z = (squares.mean() - expected) / (spread / np.sqrt(num))
    ratio = float(np.sqrt(expected) / max(every[ranks].std(), 1e-3))
    # of sqrt(mean square), half of the relative error of the mean square
    relative = 0.5 * squares.std() / max(squares.mean(), 1e-6) / np.sqrt(num)
    counts = bins(ranks)
    statistic = float(np.sum((counts - num / NUM_BINS) ** 2) / (num / NUM_BINS))
    return Uniformity(
        num, float(ranks.mean()), _two_sided(mean_z), ratio, float(ratio * relative),
        _two_sided(sd_z), statistic, float(chi2.sf(statistic, NUM_BINS - 1)),
    )  # fmt: skip


def _two_sided(z: float) -> float:
    return float(2.0 * norm.sf(abs(z)))


def bins(ranks: np.ndarray) -> np.ndarray:
    """Ranks in ten bins of ten."""
    per_bin = (NUM_DRAWS + 1) // NUM_BINS
    return np.bincount(np.asarray(ranks) // per_bin, minlength=NUM_BINS)


def worth_of(line: Line) -> float:
    """How many independent draws 99 of a fit's are, were they taken at random."""
    size = max(min(line["effective_size"], line["draws"]), 1.0)
    return 1.0 / (1.0 / NUM_DRAWS + 1.0 / size - 1.0 / line["draws"])


def sd_ratio_of_correlation(worth: np.ndarray) -> float:
    """The sd ratio that draws worth so many show if nothing else is wrong.

    A share of m draws below a quantile u has variance u (1 - u) / m, on average over u
    1 / (6 m), beside the 1/12 of u itself.
    """
    right = 1.0 / 12.0 + 1.0 / (6.0 * NUM_DRAWS)
    found = 1.0 / 12.0 + np.mean(1.0 / (6.0 * worth))
    return float(np.sqrt(right / found))


# --- the page ---------------------------------------------------------------------------


def by_quantity(lines: list[Line]) -> dict[tuple[str, str], np.ndarray]:
    """Ranks of every problem's quantities, in the order of the lines."""
    found: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        for quantity, rank in line.get("ranks", {}).items():
            found.setdefault((line["problem"], quantity), []).append(rank)
    return {key: np.array(ranks) for key, ranks in found.items()}


def is_flagged(result: Uniformity, num_tests: int) -> bool:
    return result.p * num_tests < LEVEL


def table(results: dict[tuple[str, str], Uniformity]) -> str:
    rows = [
        f"{'problem':12}{'quantity':21}{'fits':>5}{'mean':>7}{'p mean':>8}"
        f"{'sd ratio':>15}{'p sd':>8}{'chi2':>7}{'p':>8}{'p all':>8}"
    ]
    for (problem, quantity), r in results.items():
        flag = "  flagged" if is_flagged(r, len(results)) else ""
        rows.append(
            f"{problem:12}{quantity:21}{r.num:>5}{r.mean:>7.1f}{r.mean_p:>8.2g}"
            f"{r.sd_ratio:>8.3f} +-{r.sd_ratio_error:.3f}{r.sd_p:>7.2g}{r.chi2:>7.1f}"
            f"{r.p:>8.2g}{min(1.0, r.p * len(results)):>8.2g}{flag}"
        )
    return "\n".join(rows)


def verdict_text(results: dict[tuple[str, str], Uniformity]) -> str:
    flagged = {key: r for key, r in results.items() if is_flagged(r, len(results))}
    ratios = [r.sd_ratio for r in results.values()]
    error = max(r.sd_ratio_error for r in results.values())
    said = [
        f"In plain words: of {len(results)} quantities, {len(flagged) or 'none'} "
        f"{'has' if len(flagged) == 1 else 'have'} ranks that differ from\nuniform more "
        "than chance explains."
    ]
    for (problem, quantity), r in flagged.items():
        said.append(
            f"{problem}, {quantity}: mean rank {r.mean:.1f} of 49.5, sd ratio "
            f"{r.sd_ratio:.2f}, p {r.p:.1g}."
        )
    said.append(
        f"Posteriors' sds are {min(ratios):.2f} to {max(ratios):.2f} of what they should "
        f"be, with standard errors of up to {error:.2f}."
    )
    fewest = min(r.num for r in results.values())
    if fewest < 1000:
        said.append(f"Only {fewest} replications so far: 1000 are planned.")
    return "\n".join(said)


def fit_text(lines: list[Line]) -> str:
    """What became of every problem's fits, in numbers."""
    said = []
    for problem in dict.fromkeys(line["problem"] for line in lines):
        own = [line for line in lines if line["problem"] == problem]
        good = [line for line in own if "ranks" in line]
        failed = [line for line in own if "ranks" not in line]
        sizes = np.array([line["effective_size"] for line in good])
        lacking = np.array([line["asked"] for line in good]) / sizes
        short, far = np.sum(lacking > 1.0), np.sum(lacking > 1.05)
        gaps = max(line["replication"] for line in own) + 1 - len(own)
        missing = f" ({gaps} before the last not run)" if gaps else ""
        text = (
            f"- **{problem}**: {len(own)} replications{missing}, {len(failed)} of them "
            "failed. "
            f"Effective size: median {np.median(sizes):.0f}, smallest {sizes.min():.0f}, "
            f"{short} below what was asked, {far} of them by more than 5 %.\n"
            "  Several modes in "
            f"{sum(line['modes'] > 1 for line in good)} fits. Median "
            f"{np.median([line['seconds'] for line in good]):.1f} s."
        )
        weighed = [line for line in good if "weighted" in line]
        if weighed:
            kept = sum(line["weighted"] for line in weighed)
            text += f" Weights were used in {kept} of {len(weighed)}."
        judged = [line for line in good if line.get("trusted") is not None]
        if judged:
            trusted = sum(line["trusted"] for line in judged)
            text += f" The verdict trusts {trusted} of {len(judged)}."
        if failed:
            kinds = sorted({line["error"].splitlines()[0] for line in failed})
            text += " Failed with: " + "; ".join(kinds[:5]) + "."
        said.append(text)
    return "\n".join(said)


def worth_text(lines: list[Line]) -> tuple[str, str]:
    """m and the sd ratio it would show, by problem."""
    worths, ratios = [], []
    for problem in dict.fromkeys(line["problem"] for line in lines):
        own = [d for d in lines if d["problem"] == problem and "ranks" in d]
        worth = np.array([worth_of(line) for line in own])
        worths.append(f"{np.median(worth):.0f} ({problem}, median)")
        ratios.append(f"{sd_ratio_of_correlation(worth):.3f} ({problem})")
    return ", ".join(worths), ", ".join(ratios)


def figure(ranks: dict[tuple[str, str], np.ndarray], path: Path) -> None:
    """Histograms of the ranks, a row of panels per problem."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    problems = list(dict.fromkeys(problem for problem, _ in ranks))
    of = {p: [q for problem, q in ranks if problem == p] for p in problems}
    width = max(len(quantities) for quantities in of.values())
    fig, grid = plt.subplots(
        len(problems), width, figsize=(2.5 * width, 1.9 * len(problems)),
        squeeze=False,
    )  # fmt: skip
    for row, problem in zip(grid, problems, strict=True):
        for panel in row[len(of[problem]) :]:
            panel.set_visible(False)
        for panel, quantity in zip(row, of[problem], strict=False):
            own = ranks[problem, quantity]
            low, high = binom.ppf([0.005, 0.995], len(own), 1.0 / NUM_BINS)
            panel.axhspan(low, high, color="#BBBBBB", alpha=0.5, linewidth=0)
            panel.axhline(len(own) / NUM_BINS, color="black", linewidth=0.8)
            panel.bar(np.arange(NUM_BINS) * 10 + 5, bins(own), width=9, color="#0072B2")
            panel.set_title(f"{problem}: {quantity}", fontsize=8)
            panel.set_ylim(0, max(2.0 * len(own) / NUM_BINS, 1.1 * bins(own).max()))
            panel.tick_params(labelsize=7)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
    fig.supxlabel("rank among 99 draws (band: 99 % of counts, if uniform)", fontsize=8)
    fig.supylabel("replications", fontsize=8)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def write_page(lines: list[Line], page: Path = PAGE, picture: Path = FIGURE) -> None:
    """The page and its figure.

    Raises:
        ValueError: there are no ranks in the lines.
    """
    ranks = by_quantity(lines)
    if not ranks:
        raise ValueError(
            "no ranks: run benchmarks/calibration.py without --page first."
        )
    results = {key: uniformity(own) for key, own in ranks.items()}
    worth, alone = worth_text(lines)
    asked = sorted({line["asked"] for line in lines})
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        TEXT.format(
            devices="; ".join(sorted({f"{d['device']}, jax {d['jax']}" for d in lines})),
            verdict=verdict_text(results), fits=fit_text(lines), table=table(results),
            asked=", ".join(map(str, asked)), tests=len(results), level=LEVEL,
            worth=worth, alone=alone,
        )
    )  # fmt: skip
    figure(ranks, picture)
    print(page.read_text())

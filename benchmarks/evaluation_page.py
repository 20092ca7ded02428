"""Tables and figure of docs/evaluation.md, from results/evaluation.jsonl."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steingp.experiments import references

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "evaluation.md"
FIGURE = ROOT / "docs" / "figures" / "evaluation.png"
COSTS = ROOT / "results" / "references"

Line = dict[str, Any]

TEXT = """# Is the default fit right, and what does it cost?

Made by `make evaluate` from `results/evaluation.jsonl` ({devices}) and
`results/references` (NUTS and grids). Every line that misses its bound says so.

In plain words: SVGD alone gives hyperparameters about {plain:.0%} of the spread that they
should have, and where latent values are part of its particles, f's intervals come out far
too narrow. The default fit, on the same models, gives {ours:.0%}, and predicts as well as
NUTS.

![Spread of every hyperparameter against the reference](figures/evaluation.png)

## f, where the hyperparameters are known

{known}

## Hyperparameters

Ratio of the sd of every log-hyperparameter to the reference's, over all seeds: smallest,
median, largest; the largest error of a mean, in sds. Bound on every fit: each
hyperparameter's ratio within 0.05 + 3.5 standard errors of 1 and their median within 0.05;
where a grid is the truth, each ratio within 0.1 of 1 and each mean within 0.1 sd. `missed`
counts fits.

```
{hyperparameters}
```

## Modes and evidence

Against grids: the largest error of the log evidence over seeds (bound 0.05) and, where the
posterior has two modes, how many fits found both, the mass of the one with the shorter
lengthscale, and its largest error (bound 0.05). The paper's masses beside.

```
{modes}
```

## Predictions

Mean log density of the test rows, the mean over seeds and its sd over them (bound 0.01);
ours may be below NUTS's by 0.01 + 2 Monte Carlo standard errors. `f`: ratio of the sd of f
at the training rows to NUTS's, the mean over rows (bound 0.95 to 1.05 where f is integrated
out by an approximation).

```
{predictions}
```

{sparse}

## Cost

Seconds of a fit that is not the first of its shape (no compilation), median over seeds,
beside NUTS with 4 chains of 500 + 500, vectorized, dense mass, in the same coordinates on
the same machine. Bound: a tenth on a CPU with two cores, a fiftieth on a GPU.

```
{costs}
```

{remarks}
"""

REMARKS = """Default fits are of 20 particles, each on one core of a CPU. The paper's, the
minibatched and the streamed ones and the costs are of earlier versions, whose default fits
had no leaps (method.md), and on the GPU 64 particles. Costs were measured one problem at a
time, and docs/speed.md has later ones.

{failed}"""


def remarks_on(lines: list[Line]) -> str:
    """About the fits that are there."""
    own = [d for d in lines if d["method"] == "default"]
    failed = [d for d in own if d.get("failed")]
    if not failed:
        return REMARKS.format(failed="All are trusted by their own verdict.")
    each = "\n".join(
        f"- {d['problem']}, seed {d['seed']}: {'; '.join(d['failed'])}" for d in failed
    )
    told = f"Of {len(own)} fits {len(failed)} are not trusted by their own verdict:"
    return REMARKS.format(failed=f"{told}\n\n{each}")


def known_text(lines: list[Line]) -> str:
    own = [d for d in lines if d["method"] == "known"]
    if not own:
        return "Not run."
    line = own[-1]
    error, ratio = line["largest_error"]["default"], line["variance_ratio"]["paper"]
    bound = "within" if error < 1e-6 else "beyond"
    return (
        f"A Gaussian likelihood, {line['rows']} rows: f's variance differs from the exact "
        f"one by {error:.0e} at most, {bound} the bound of 1e-6. With f's values as\npart "
        f"of the particles (the paper's SVGD, 20 particles, {line['num_steps']} steps) it "
        f"is {ratio:.2g} of the exact one, the mean over\nrows."
    )


def of(lines: list[Line], problem: str, method: str) -> list[Line]:
    return [d for d in lines if (d["problem"], d["method"]) == (problem, method)]


def problems_in(lines: list[Line]) -> list[str]:
    order = (
        references.UNIMODAL
        + references.REGRESSION
        + references.SPARSE
        + references.JOINT
    )
    return [name for name in order if of(lines, name, "default")]


def violations(lines: list[Line]) -> int:
    """Fits that miss the bound on sd ratios."""
    count = 0
    for line in lines:
        ratio = np.array(line["sd_ratio"])
        if line["problem"] in references.UNIMODAL:
            far = np.abs(ratio - 1.0).max() > 0.1
            count += bool(far or np.abs(line["mean_error"]).max() > 0.1)
            continue
        error = np.array(line.get("sd_ratio_error", np.zeros(len(ratio))))
        far = np.any(np.abs(ratio - 1.0) > 0.05 + 3.5 * error)
        count += bool(far or abs(np.median(ratio) - 1.0) > 0.05)
    return count


def hyperparameter_table(lines: list[Line]) -> str:
    rows = [
        f"{'problem':20}{'d':>3} {'method':10}{'fits':>5}{'sd ratio':>20}"
        f"{'mean':>7}{'size':>7}{'gradients':>11}{'missed':>8}"
    ]
    for name in problems_in(lines):
        for method in ("default", "paper", "minibatch", "streamed"):
            own = of(lines, name, method)
            if not own:
                continue
            ratios = np.array([d["sd_ratio"] for d in own])
            low, middle, high = ratios.min(), np.median(ratios), ratios.max()
            error = np.abs([d["mean_error"] for d in own]).max()
            size = np.mean([d.get("effective_size", np.nan) for d in own])
            missed = str(violations(own)) if method == "default" else "-"
            rows.append(
                f"{name:20}{own[0]['dimension']:>3} {method:10}{len(own):>5}"
                f"{low:>8.2f}{middle:>6.2f}{high:>6.2f}{error:>7.2f}{size:>7.0f}"
                f"{np.mean([d['num_gradients'] for d in own]):>11.0f}{missed:>8}"
            )
    return "\n".join(rows)


def prediction_table(lines: list[Line]) -> str:
    rows = [
        f"{'problem':20} {'default':>9}{'sd':>8}{'NUTS':>9}{'+- MC':>8}{'paper':>9}"
        f"{'f':>7}{'f paper':>9}  missed"
    ]
    for name in problems_in(lines):
        ours, paper = of(lines, name, "default"), of(lines, name, "paper")
        scores = np.array([d["log_density"] for d in ours])
        nuts = ours[0].get("nuts_log_density", np.nan)
        error = np.array(
            [np.hypot(d["log_density_error"], d.get("nuts_log_density_error", np.nan))
             for d in ours]
        )  # fmt: skip
        spread = scores.std(ddof=1) if len(scores) > 1 else np.nan
        missed = []
        if np.any(scores < nuts - 0.01 - 2 * error):
            missed.append("below NUTS")
        if spread > 0.01:
            missed.append("spread")
        f = np.array([d.get("f_sd_ratio", np.nan) for d in ours])
        if name in references.JOINT and np.any(np.abs(f - 1.0) > 0.05):
            missed.append("f")
        theirs = [d.get("f_sd_ratio", np.nan) for d in paper]
        rows.append(
            f"{name:20} {scores.mean():>9.4f}{spread:>8.4f}{nuts:>9.4f}"
            f"{np.mean(error):>8.4f}{np.mean([d['log_density'] for d in paper]):>9.4f}"
            f"{f.mean():>7.3f}{np.mean(theirs):>9.3f}  {', '.join(missed) or '-'}"
        )
    return "\n".join(rows).replace("nan", "  -")


def mode_table(lines: list[Line]) -> str:
    rows = [
        f"{'problem':22}{'fits':>5}{'log evidence':>14}{'found':>8}{'true mass':>11}"
        f"{'error':>8}{'paper error':>13}  missed"
    ]
    for name in references.UNIMODAL + references.BIMODAL:
        own = [d for d in of(lines, name, "default") if "log_evidence_gap" in d]
        if not own:
            continue
        gap = max(abs(d["log_evidence_gap"]) for d in own)
        missed = ["evidence"] if gap > 0.05 else []
        row = f"{name:22}{len(own):>5}{gap:>14.3f}"
        if name in references.BIMODAL:
            plain = of(lines, name, "paper")
            error, theirs = (
                max((abs(d["mass"] - d["true_mass"]) for d in some), default=np.nan)
                for some in (own, plain)
            )
            both = sum(d["num_modes"] > 1 for d in own)
            missed += ["mass"] if error > 0.05 else []
            row += f"{both:>8}{own[0]['true_mass']:>11.3f}{error:>8.3f}{theirs:>13.3f}"
        else:
            row += f"{'-':>8}{'-':>11}{'-':>8}{'-':>13}"
        rows.append(row + f"  {', '.join(missed) or '-'}")
    return "\n".join(rows)


def sparse_text(lines: list[Line]) -> str:
    """Rows in batches, or from a stream, beside all rows at once."""
    said = []
    for name in references.SPARSE:
        whole = [d["log_density"] for d in of(lines, name, "default")]
        for method in ("minibatch", "streamed"):
            own = [d["log_density"] for d in of(lines, name, method)]
            if own and whole:
                gap = float(np.abs(np.array(own) - np.mean(whole)).max())
                said.append(
                    f"{name}, {method}: {np.mean(own):.4f} ({len(own)} fits), at most "
                    f"{gap:.4f} from all rows at once\n(bound 0.02"
                    f"{'' if gap <= 0.02 else ', missed'})."
                )
    return "\n".join(said)


def cost_table(lines: list[Line]) -> str:
    nuts = [
        line
        for path in sorted(COSTS.glob("nuts_cost_*.json"))
        for line in json.loads(path.read_text())
    ]
    rows = [
        f"{'problem':16}{'device':24}{'ours':>8}{'gradients':>11}{'NUTS':>8}"
        f"{'gradients':>11}{'ratio':>8}"
    ]
    for line in (d for d in lines if d["method"] == "cost"):
        match = [
            n for n in nuts
            if (n["problem"], n["device"]) == (line["problem"], line["device"])
        ]  # fmt: skip
        ours = np.median(line["seconds"])
        theirs = match[0]["seconds"] if match else np.nan
        count = match[0]["num_gradients"] if match else np.nan
        rows.append(
            f"{line['problem']:16}{line['device']:24}{ours:>8.2f}"
            f"{np.median(line['num_gradients']):>11.0f}{theirs:>8.1f}{count:>11.0f}"
            f"{'1/%.0f' % (theirs / ours) if match else '-':>8}"
        )
    return "\n".join(rows).replace("nan", "  -")


def figure(lines: list[Line], path: Path) -> None:
    """Every hyperparameter's sd ratio, by problem and method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = problems_in(lines)
    fig, axes = plt.subplots(figsize=(9, 4.5))
    styles = (("paper", "#D55E00", -0.17, "plain SVGD (the paper's)"),
              ("default", "#0072B2", 0.17, "default fit"))  # fmt: skip
    for method, colour, shift, label in styles:
        for i, name in enumerate(names):
            values = np.ravel([d["sd_ratio"] for d in of(lines, name, method)])
            jitter = np.random.default_rng(0).uniform(-0.1, 0.1, len(values))
            axes.scatter(
                i + shift + jitter, np.clip(values, 0.02, 3.0), s=7, color=colour,
                alpha=0.5, linewidths=0, label=label if i == 0 else None,
            )  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=1.0, label="NUTS or grid")
    axes.set_yscale("log")
    ticks = [0.02, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 3.0]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
    axes.set_ylabel("sd of a log-hyperparameter / reference's")
    axes.legend(loc="lower left", frameon=False, markerscale=2.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def write_page(
    lines: list[Line],
    page: Path = PAGE,
    picture: Path = FIGURE,
    remarks: str | None = None,
) -> None:
    """The page and its figure."""

    def middle(method: str) -> float:
        known: Callable[[Line], bool] = lambda d: d["method"] == method  # noqa: E731
        per = [np.median(d["sd_ratio"]) for d in lines if known(d) and "sd_ratio" in d]
        return float(np.median(per))

    devices = sorted({f"{d['device']}, jax {d['jax']}" for d in lines})
    page.write_text(
        TEXT.format(
            devices="; ".join(devices), plain=middle("paper"), ours=middle("default"),
            known=known_text(lines), modes=mode_table(lines),
            hyperparameters=hyperparameter_table(lines),
            predictions=prediction_table(lines), sparse=sparse_text(lines),
            costs=cost_table(lines),
            remarks=remarks_on(lines) if remarks is None else remarks,
        )
    )  # fmt: skip
    figure(lines, picture)
    print(page.read_text())

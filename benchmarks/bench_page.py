"""docs/speed.md from results/bench-*.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"

TEXT = """# What a fit costs

Made by `make bench` from `results/bench-*.json`. Contenders run alternately on one machine,
compilation apart; medians over repeats, and in brackets the smallest and largest. Ratios
are of medians.
"""

MACHINE = """
# {device}

{cpu}, {cores} cores; python {python}; {versions}; {date}.
"""

FITS = """
## Finished fits

Seconds of the default fit beside 1000 steps of Adam (rate 0.05) to a point estimate by
GPflow and GPyTorch, and NUTS on our density (4 chains of 500 + 500, vectorized, dense
mass); mean log density of the test rows (70/30 split, squared exponential, ARD) below each.
`first` is our first fit of that shape in a new process, with compilation and imports;
`GPflow` and `NUTS` on the right are our seconds over GPflow's, and NUTS's over ours.

```
{table}
```

{shortfalls}

{gradients}
"""

GRADIENTS = """
## Gradients

Milliseconds of one SVGD step of J particles, of their gradients alone, each call waited
for, and of one point's gradient by the rivals. The floor is LAPACK's potrf + potri for
every particle on all cores (on a GPU: N^3 at the measured rate of dgemm), and the last
columns are step and gradients over it. On a CPU, from 200 rows on, our scores are in
single precision (what decides on moves is not), and the floor is in double. GPyTorch
factorises up to 800 rows and uses conjugate gradients beyond. `first` is the seconds of
our first call, with imports and compilation; a star: without XLA's products by Triton
(devices.md). `leaves`, on a GPU: of a gradient, the blocks that are factorised one after
the other, which take time but little work; the rest is products.

```
{table}
```
{profile}"""

STREAMS = """
## Minibatches

Milliseconds of a step of J particles, each with its q(u), batches of 256 rows; GPflow's
SVGP is one fit and would have to be run J times. Peak memory is of the whole process.

```
{table}
```
"""


def middle(line: dict[str, Any] | None, name: str, scale: float = 1.0) -> float:
    if line is None or name not in line.get("runs", {}):
        return float("nan")
    return scale * float(np.median(line["runs"][name]))


def number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "-"


def spread(line: dict[str, Any] | None, name: str, scale: float = 1.0) -> str:
    if line is None or name not in line.get("runs", {}):
        return "-"
    values = scale * np.array(line["runs"][name], float)
    middle, low, high = map(short, (np.median(values), values.min(), values.max()))
    return f"{middle} ({low}-{high})"


def short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def find(lines: list[dict], contender: str, **about: Any) -> dict[str, Any] | None:
    for line in lines:
        same = all(line.get(name) == value for name, value in about.items())
        if line["contender"] == contender and same:
            return line
    return None


def fit_table(lines: list[dict]) -> str:
    ours = [d for d in lines if d["task"] == "fit" and d["contender"] == "steingp"]
    rows = [f"{'set':14s}{'first':>7s}" + "".join(
        f"{name:>22s}" for name in ("steingp", "GPflow", "GPyTorch", "NUTS")
    ) + f"{'GPflow':>8s}{'NUTS':>7s}"]  # fmt: skip
    for line in ours:
        each = [
            find(lines, name, task="fit", data=line["data"])
            for name in ("steingp", "GPflow", "GPyTorch", "NUTS")
        ]
        cells = "".join(f"{spread(one, 'seconds'):>22s}" for one in each)
        own, point, _, chains = (middle(one, "seconds") for one in each)
        rows.append(
            f"{line['data']:14s}{line.get('first_seconds', np.nan):7.1f}{cells}"
            f"{number(own / point, '.2f'):>8s}{number(chains / own, '.1f'):>7s}"
        )
        scores = "".join(
            f"{number(middle(one, 'log_density'), '.4f'):>22s}" for one in each
        )
        rows.append(f"{'':21s}{scores}")
    return "\n".join(rows)


def gradients_in_words(lines: list[dict], on_gpu: bool) -> str:
    """Where the time goes: how much of what a fit takes."""
    parts = []
    for line in lines:
        if line["task"] == "fit" and line["contender"] == "steingp":
            num, values = middle(line, "gradients"), middle(line, "values")
            if np.isfinite(num):
                J = line.get("particles", 64 if on_gpu else 20)
                alone = f" + {values / J:.0f}" if values > 0 else ""
                parts.append(f"{line['data']} {num / J:.0f}{alone}")
    if not parts:
        return ""
    return (
        "Gradients for each particle, and log densities without one (leaps, method.md"
        f"{shares_of_values(lines)}): "
        f"{', '.join(parts)}. A point estimate takes 1000 gradients."
    )


def shares_of_values(lines: list[dict]) -> str:
    """What a log density alone takes of a gradient's time, where that was measured."""
    parts = []
    for line in lines:
        alone = middle(line, "seconds_per_values")
        share = alone / middle(line, "seconds_per_gradient")
        about = [line.get(name) for name in ("particles", "columns", "inducing")]
        if np.isfinite(share) and about == [20, 8, None]:
            parts.append(f"{share:.2f} for {line['rows']} rows")
    return f"; of a gradient's time they take {', '.join(parts)}" if parts else ""


def shortfalls(lines: list[dict], on_gpu: bool) -> str:
    """What the aims are, and which sets miss them."""
    times, rival = (50, "GPyTorch") if on_gpu else (10, "GPflow")
    slower, worse, near_chains = [], [], []
    for line in lines:
        if line["task"] != "fit" or line["contender"] != "steingp":
            continue
        name = line["data"]
        point, chains = (
            find(lines, who, task="fit", data=name) for who in (rival, "NUTS")
        )
        if middle(line, "seconds") > middle(point, "seconds"):
            slower.append(name)
        if middle(line, "log_density") < middle(point, "log_density"):
            worse.append(name)
        if middle(chains, "seconds") < times * middle(line, "seconds"):
            near_chains.append(name)
    return (
        f"Slower than {rival}: {', '.join(slower) or 'none'}. "
        f"Predicts worse than {rival}: {', '.join(worse) or 'none'}. "
        + (
            f"Less than {times} times faster than NUTS, where that was run: "
            f"{', '.join(near_chains) or 'none'}."
            if any(d["contender"] == "NUTS" for d in lines)
            else "NUTS was not run."
        )
    )


def gradient_table(lines: list[dict]) -> str:
    head = f"{'N':>6s}{'J':>5s}{'D':>4s}{'M':>5s}{'first':>8s}{'steingp step':>24s}"
    head += f"{'gradient':>9s}"
    cut = any("seconds_in_leaves" in line.get("runs", {}) for line in lines)
    head += f"{'leaves':>8s}" * cut
    rows = [
        head
        + f"{'GPflow':>20s}{'GPyTorch':>20s}{'floor':>9s}{'step/':>8s}{'grad./':>8s}"
    ]
    for line in lines:
        if line["task"] != "gradient" or line["contender"] != "steingp":
            continue
        about = {k: line[k] for k in ("rows", "columns")}
        same = {"task": "gradient", "inducing": line.get("inducing"), **about}
        rivals = [find(lines, name, **same) for name in ("GPflow", "GPyTorch")]
        J = line["particles"]
        floor = J * middle(
            find(lines, "floor", task="gradient", rows=line["rows"]),
            "seconds_per_gradient", 1e3,
        )  # fmt: skip
        if line.get("inducing"):
            floor = float("nan")
        step, gradient = (
            middle(line, f"seconds_per_{what}", 1e3) for what in ("step", "gradient")
        )
        plain = "triton_gemm=false" in line.get("xla_flags", "")
        first = f"{line['first_seconds']:.1f}" if "first_seconds" in line else "-"
        leaves = number(middle(line, "seconds_in_leaves", 1e3), ".3g")
        rows.append(
            f"{line['rows']:6d}{J:5d}{line['columns']:4d}{line.get('inducing') or '':>5}"
            f"{first + '*' * plain:>8s}{spread(line, 'seconds_per_step', 1e3):>24s}"
            f"{number(gradient, '.3g'):>9s}"
            + f"{leaves:>8s}" * cut
            + "".join(
                f"{spread(one, 'seconds_per_gradient', 1e3):>20s}" for one in rivals
            )
            + f"{number(floor, '.3g'):>9s}"
            + f"{over(step, floor):>8s}{over(gradient, floor):>8s}"
        )
    return "\n".join(rows)


def by_hand(found: dict[str, Any]) -> str:
    """What was seen on that machine beside the tables, if its file tells of it."""
    seen = "\n".join(found.get("seen_by_hand", []))
    return f"\nSeen by hand:\n{seen}\n" if seen else ""


def over(time: float, floor: float) -> str:
    ratio = time / floor
    return number(ratio, ".2f" if ratio < 100 else ".0f")


def stream_table(lines: list[dict]) -> str:
    rows = [f"{'who':10s}{'from':8s}{'J':>4s}{'M':>5s}{'step':>22s}{'peak GiB':>10s}"]
    for line in lines:
        if line["task"] == "stream":
            J = line["particles"] if line["contender"] == "steingp" else 1
            rows.append(
                f"{line['contender']:10s}{line['from']:8s}{J:4d}{line['inducing']:5d}"
                f"{spread(line, 'seconds_per_step', 1e3):>22s}"
                f"{middle(line, 'peak_gib'):10.2f}"
            )
    return "\n".join(rows)


def write(paths: list[Path], page: Path = PAGE) -> None:
    """The page, from the results of one machine or several."""
    text = TEXT
    for path in paths:
        found = json.loads(path.read_text())
        versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
        text += MACHINE.format(**found | {"versions": versions})
        lines, on_gpu = found["lines"], found.get("gpu", False)
        for task, part, table in (
            ("fit", FITS, fit_table),
            ("gradient", GRADIENTS, gradient_table),
            ("stream", STREAMS, stream_table),
        ):
            if any(line["task"] == task for line in lines):
                text += part.format(
                    table=table(lines),
                    gradients=gradients_in_words(lines, on_gpu),
                    profile=by_hand(found),
                    shortfalls=shortfalls(lines, on_gpu),
                )
    page.write_text(text)
    print(text)

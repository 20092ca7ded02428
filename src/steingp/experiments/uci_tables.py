"""The tables of the UCI study, from its lines: plain text, a row per set."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student
from scipy.stats import wilcoxon

from steingp.experiments import paper_numbers
from steingp.experiments.uci import (
    CLASSIFICATION,
    LARGE,
    METHODS,
    SETS,
    is_classification,
)

Line = dict[str, Any]
ALPHA = 0.05
_NOTHING = 1e-3


class Cell(NamedTuple):
    """Of one set and method: a value for every split."""

    values: dict[int, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values()))) if self.values else np.nan

    @property
    def error(self) -> float:
        """Standard error over splits."""
        each = np.array(list(self.values.values()))
        return float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else np.nan


def collect(
    lines: Iterable[Line], value: str | Callable[[Line], float]
) -> dict[tuple[str, str], Cell]:
    """(set, method) -> a value of its lines."""
    cells: dict[tuple[str, str], Cell] = {}
    for line in lines:
        if "error" in line:
            continue
        got = line.get(value) if isinstance(value, str) else value(line)
        if got is not None:
            cell = cells.setdefault((line["set"], line["method"]), Cell({}))
            cell.values[line["split"]] = float(got)
    return cells


def sets_in(lines: Iterable[Line]) -> list[str]:
    there = {line["set"] for line in lines}
    return [name for name in SETS if name in there]


def columns(labels: bool) -> tuple[str, ...]:
    """Methods that are run for labels, or for numbers."""
    return tuple(m for m in METHODS if m != ("ML" if labels else "HMC"))


def log_density_table(lines: list[Line], sets: list[str]) -> str:
    """Mean +- standard error over splits, and below the paper's mean and its spread.

    The paper's figures for labels are shown where the row number is an input, as it was
    there.
    """
    cells = collect(lines, "log_density")
    rows = []
    for name in sets:
        methods = columns(is_classification(name))
        if not rows or methods != rows[0][0]:
            rows.append(
                (methods, f"{'set':20s}" + "".join(f"{m:>15s}" for m in methods))
            )
        shown = "".join(f"{plus_minus(cells.get((name, m))):>15s}" for m in methods)
        done = max(
            (len(c.values) for (n, _), c in cells.items() if n == name), default=0
        )
        wanted = 2 if name in LARGE else 5
        few = f"  {done} of {wanted} splits" if done < wanted else ""
        rows.append((methods, f"{name:20s}{shown}{few}"))
        known = [_paper(name, m) for m in methods]
        if any(known):
            shown = "".join(f"{text:>15s}" for text in known)
            rows.append((methods, f"{'  paper':20s}{shown}"))
    return "\n".join(text for _, text in rows)


def plus_minus(cell: Cell | None) -> str:
    if cell is None or not cell.values:
        return "-"
    error = f" +-{cell.error:.3f}" if np.isfinite(cell.error) else ""
    return f"{cell.mean:.3f}{error}"


def _paper(name: str, method: str) -> str:
    base = name.removesuffix("_rowid")
    if name in CLASSIFICATION or base not in paper_numbers.LOG_DENSITY:
        return ""
    place = paper_place(method)
    if place is None:
        return ""
    mean = paper_numbers.LOG_DENSITY[base][place]
    return f"{mean:.2f} +-{paper_numbers.LOG_DENSITY_SPREAD[base][place]:.2f}"


def paper_place(method: str) -> int | None:
    """Where a method stands in the paper's tables."""
    known = paper_numbers.METHODS
    if method in ("ML", "HMC"):
        return len(known) - 1
    return known.index(method) if method in known else None


def score_table(lines: list[Line], sets: list[str], value: str, form: str) -> str:
    """Another score: a row per set, the mean over splits."""
    cells = collect(lines, value)
    width = 11
    rows = [f"{'set':20s}" + "".join(f"{m:>{width}s}" for m in METHODS)]
    for name in sets:
        each = [cells.get((name, m)) for m in METHODS]
        if any(each):
            rows.append(f"{name:20s}" + "".join(
                f"{format(c.mean, form) if c else '-':>{width}s}" for c in each
            ))  # fmt: skip
    return "\n".join(rows)


def machine(line: Line) -> str:
    """What a fit ran on.

    Example:
        >>> from steingp.experiments.uci_tables import machine
        >>> machine({"device": "cpu", "cores": 1})
        'cpu, 1 core'
    """
    cores = line.get("cores")
    many = f", {cores} core{'s' if cores > 1 else ''}" if cores else ""
    return f"{line.get('device', '')}{many}"


def _of_one_machine(lines: list[Line], name: str) -> tuple[str, list[Line]]:
    """A set's lines of the machine on which most methods ran, and that machine."""
    own = [d for d in lines if d["set"] == name and "error" not in d]
    methods: dict[str, set[str]] = {}
    for line in own:
        methods.setdefault(machine(line), set()).add(line["method"])
    most = max(sorted(methods), key=lambda where: len(methods[where]), default="")
    return most, [d for d in own if machine(d) == most]


def _running(line: Line) -> float:
    """Seconds without compilation."""
    return max(line["seconds"] - line["compile_seconds"], 1e-3)


def runtime_table(lines: list[Line], sets: list[str]) -> str:
    """Seconds of a fit without compilation, on one machine; below, the paper's.

    Between them, of methods that did not run on that machine, those of all others.
    """
    width = 11
    rows = [f"{'set':20s}" + "".join(f"{m:>{width}s}" for m in METHODS) + "  on"]
    for name in sets:
        where, own = _of_one_machine(lines, name)
        here = {line["method"] for line in own}
        rest = [d for d in lines if d["set"] == name and "error" not in d
                and d["method"] not in here]  # fmt: skip
        places = " and ".join(sorted({machine(d) for d in rest}))
        for label, some, place in ((name, own, where), ("  elsewhere", rest, places)):
            if some or label == name:
                cells = collect(some, _running)
                each = [cells.get((name, m)) for m in METHODS]
                rows.append(f"{label:20s}" + "".join(
                    f"{seconds(c.mean) if c else '-':>{width}s}" for c in each
                ) + f"  {place}")  # fmt: skip
        known = paper_numbers.SECONDS.get(name.removesuffix("_rowid"))
        if known:
            shown = []
            for method in METHODS:
                place = paper_place(method)
                right = method != ("ML" if is_classification(name) else "HMC")
                shown.append(
                    seconds(known[place]) if right and place is not None else ""
                )
            rows.append(f"{'  paper':20s}" + "".join(f"{s:>{width}s}" for s in shown))
    return "\n".join(rows)


def seconds(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def relative_runtimes(lines: list[Line]) -> dict[str, float]:
    """Of each method to SteinGP2, the mean over sets, each on one machine."""
    ratios: dict[str, list[float]] = {}
    for name in sets_in(lines):
        cells = collect(_of_one_machine(lines, name)[1], _running)
        base = cells.get((name, "SteinGP2"))
        for method in METHODS:
            if base is not None and method != "SteinGP2" and (name, method) in cells:
                ratios.setdefault(method, []).append(
                    cells[name, method].mean / base.mean
                )
    return {m: float(np.mean(ratios[m])) for m in METHODS if m in ratios}


def significance(lines: list[Line], sets: list[str]) -> str:
    """Of the default against each rival, by paired tests of test log densities.

    Within a set: a t test over splits, of which there are five at most. Splits share
    rows, so the variance of their mean is taken as 1 / n + 3 / 7 of theirs instead of
    1 / n (Nadeau and Bengio 2003). Over sets: Wilcoxon's signed ranks of the mean
    differences, sets with the row number as an input left out, since they are the same
    rows again.
    """
    cells = collect(lines, "log_density")
    rows = [f"{'default against':16s}{'better':>8s}{'worse':>8s}{'sets':>6s}"
            f"{'mean gain':>11s}{'median':>9s}{'p over sets':>13s}"]  # fmt: skip
    for rival in METHODS[1:]:
        gains, better, worse = [], 0, 0
        for name in sets:
            ours, theirs = cells.get((name, "default")), cells.get((name, rival))
            if ours is None or theirs is None:
                continue
            both = sorted(set(ours.values) & set(theirs.values))
            gap = np.array([ours.values[s] - theirs.values[s] for s in both])
            if not len(gap):
                continue
            if not name.endswith("_rowid"):
                gains.append(gap.mean())
            if len(gap) > 1 and gap.std() > 1e-9:
                p = _corrected_p(gap)
                better += p < ALPHA and gap.mean() > 0
                worse += p < ALPHA and gap.mean() < 0
        if not gains:
            continue
        p = float(np.asarray(wilcoxon(gains))[1]) if len(gains) > 5 else np.nan
        rows.append(
            f"{rival:16s}{better:8d}{worse:8d}{len(gains):6d}{np.mean(gains):11.3f}"
            f"{np.median(gains):9.3f}{p:13.2g}"
        )
    return "\n".join(rows)


def _corrected_p(gap: np.ndarray) -> float:
    """Of no difference, for random splits of 70 to 30."""
    num = len(gap)
    error = gap.std(ddof=1) * np.sqrt(1.0 / num + 3.0 / 7.0)
    return float(2.0 * student.sf(abs(gap.mean()) / error, num - 1))


def shortfalls(lines: list[Line], sets: list[str]) -> list[str]:
    """Sets on which a rival is above the default by more than a standard error.

    Of the difference, over splits that both have; the rival that is farthest above is
    named. With one split there is no error, and a set is named if it is behind at all; by
    less than a thousandth it is not behind.
    """
    cells, found = collect(lines, "log_density"), []
    for name in sets:
        ours = cells.get((name, "default"))
        above: dict[str, tuple[float, float]] = {}
        for rival in METHODS[1:]:
            theirs = cells.get((name, rival))
            if ours is None or theirs is None:
                continue
            both = sorted(set(ours.values) & set(theirs.values))
            gap = Cell({s: theirs.values[s] - ours.values[s] for s in both})
            error = gap.error if len(both) > 1 else 0.0
            if both and gap.mean > max(error, _NOTHING):
                above[rival] = (gap.mean, gap.error)
        if above:
            best = max(above, key=lambda rival: above[rival][0])
            gain, error = above[best]
            shown = f" +- {error:.3f}" if np.isfinite(error) else ", one split"
            found.append(f"{name} ({best} by {gain:.3f}{shown})")
    return found


def verdicts(lines: list[Line]) -> str:
    """How many default fits their own verdict trusts, and which not, and why."""
    judged = [line for line in lines if "trusted" in line]
    doubted = [line for line in judged if not line["trusted"]]
    text = f"{len(judged) - len(doubted)} of {len(judged)} default fits are trusted by "
    text += "their own verdict" + ("; not trusted are:\n" if doubted else ".")
    for line in doubted:
        why = "; ".join(line.get("findings", ["why was not kept"]))
        text += f"\n- {line['set']}, split {line['split']}: {why}"
    return text


def in_words(lines: list[Line]) -> str:
    """What the command prints at the end."""
    sets = sets_in(lines)
    parts = []
    for title, some in (
        ("Test log density, regression", [n for n in sets if not is_classification(n)]),
        ("Test log density, labels", [n for n in sets if is_classification(n)]),
    ):
        if some:
            parts.append(f"{title}\n{log_density_table(lines, some)}")
    relative = relative_runtimes(lines)
    if relative:
        shown = ", ".join(f"{m} {v:.2g}" for m, v in relative.items())
        parts.append(f"Seconds relative to SteinGP2, compilation apart: {shown}")
    failed = [line for line in lines if "error" in line]
    for line in failed:
        parts.append(
            f"failed: {line['set']} split {line['split']} {line['method']}: {line['error']}"
        )
    return "\n\n".join(parts)

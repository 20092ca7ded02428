"""What a full posterior costs beside point estimates and NUTS, on this machine.

    python benchmarks/bench.py [fits gradients streams] [--repeats 5] [--quick]
        [--sets servo boston] [--rows 350 1000] [--only steingp GPflow]
        [--out results/bench-mine.json]
    python benchmarks/bench.py --page

Every contender (benchmarks/contenders.py) is a process of its own, and but for gradients
a new one for every task; on each task all of them first run once, which compiles, and are
then timed alternately. Medians and spreads are over repeats. Results are written after
every round of a task; a task that is in the file already is left out, so that a run which
was stopped goes on.

Parts:
    fits       default fits of eight UCI sets beside GPflow and GPyTorch (1000 steps of
               Adam, rate 0.05) and NUTS (4 chains of 500 + 500): seconds, log density of
               the test rows.
    gradients  one SVGD step of J particles, and gradients alone, against N, J and D;
               beside one point's gradient of the rivals and the floor: LAPACK's potrf +
               potri per particle on a CPU, N^3 at the measured rate of dgemm on a GPU.
    streams    steps of the minibatched sparse model on 632,438 rows, in memory and from
               disk, beside GPflow's SVGP; peak memory.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from contenders import ANSWER

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
SETS = (
    "challenger",
    "concreteslump",
    "servo",
    "machine",
    "autompg",
    "boston",
    "concrete",
    "airfoil",
)
LONG = 150.0
"""Seconds of a task after which it is not repeated any more."""
PACKAGES = ("steingp", "jax", "numpyro", "gpflow", "tensorflow", "gpytorch", "torch")


class Contender:
    """A process that does tasks."""

    def __init__(self, name: str) -> None:
        self.name = name
        program = Path(__file__).parent / "contenders.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program), name], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        for printed in self._process.stdout:
            if printed.startswith(ANSWER):
                return json.loads(printed.removeprefix(ANSWER))
        return {"error": f"the process ended with status {self._process.wait()}"}

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Crew:
    """Contenders at work, each started when it is first asked, all stopped at the end."""

    def __init__(self) -> None:
        self._at_work: dict[str, Contender] = {}

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getitem__(self, name: str) -> Contender:
        if name not in self._at_work:
            self._at_work[name] = Contender(name)
        return self._at_work[name]

    def stop(self) -> None:
        for contender in self._at_work.values():
            contender.stop()
        self._at_work = {}


def measure(
    task: dict[str, Any],
    names: list[str],
    repeats: int,
    crew: Crew,
    save: Callable[[list[dict]], None] = lambda _: None,
) -> list[dict]:
    """All contenders on one task, alternately; one line for each.

    A task that takes long is repeated less often, once at least. `save` gets the lines
    after every round, so that little is lost when the bench is stopped.
    """
    lines = []
    able: list[tuple[Contender, dict[str, Any]]] = []
    began = time.perf_counter()
    for name in names:
        line = {"contender": name, **task} | crew[name].ask(json.dumps(task))
        if os.environ.get("XLA_FLAGS"):
            line["xla_flags"] = os.environ["XLA_FLAGS"]
        lines.append(line)
        if "error" not in line:
            able.append((crew[name], line))
        show(line)
    for repeat in range(repeats):
        if repeat >= 1 and time.perf_counter() - began > LONG:
            break
        for contender, line in able:
            for name, value in contender.ask("again").items():
                line.setdefault("runs", {}).setdefault(name, []).append(value)
            show(line)
        save(lines)
    return lines


def show(line: dict[str, Any]) -> None:
    about = {k: v for k, v in line.items() if k not in ("contender", "runs")}
    middle = {
        name: round(float(np.median(values)), 5)
        for name, values in line.get("runs", {}).items()
        if not isinstance(values[0], str)
    }
    print(
        f"{line['contender']:9s} {json.dumps(about)} {json.dumps(middle)}", flush=True
    )


def tasks(part: str, quick: bool, on_gpu: bool) -> Iterator[tuple[dict, list[str]]]:
    """Tasks of a part, and who is asked."""
    rivals = ["GPyTorch"] if on_gpu else ["GPflow", "GPyTorch"]
    if part == "fits":
        sets = ("challenger", "servo") if quick else SETS
        for name in (*sets, "parkinsons") if on_gpu else sets:
            # minutes to hours on a CPU beyond these
            small = name in ("challenger", "concreteslump", "servo", "machine")
            nuts = ["NUTS"] if small or (on_gpu and name != "parkinsons") else []
            task = {"task": "fit", "data": name}
            yield task if on_gpu else task | {"particles": 20}, [
                "steingp", *rivals, *nuts,
            ]  # fmt: skip
    elif part == "gradients":
        sizes: tuple[int, ...] = (100, 350, 1000, 2000)
        if on_gpu:
            sizes = (*sizes, 4000, 8000, 20_000)
        for N in (50, 100) if quick else sizes:
            task = {"task": "gradient", "rows": N, "particles": 20, "columns": 8}
            yield task, ["steingp", *rivals, "floor"]
        for J in () if quick else (2, 5, 10, 64, 128):
            task = {"task": "gradient", "rows": 350, "particles": J, "columns": 8}
            yield task, ["steingp"]
        for D in () if quick else (1, 32):
            task = {"task": "gradient", "rows": 350, "particles": 20, "columns": D}
            yield task, ["steingp", *rivals]
        for M in () if quick else (50, 200, 600):
            yield {
                "task": "gradient", "rows": 10_000, "particles": 20, "columns": 8,
                "inducing": M,
            }, ["steingp"]  # fmt: skip
    else:
        base = {
            "task": "stream",
            "file": "air_quality/netherlands_hourly_2020.csv.gz",
            "target": "no2",
            "inputs": ["longitude", "latitude", "hour"],
            "inducing": 20 if quick else 600,
            "particles": 2 if quick else 30,
            "batch": 256,
            "steps": 1000 if on_gpu else 100,
        }
        if quick:
            base |= {
                "file": "air_quality/aurn_uk_daily_2020.csv.gz",
                "inputs": ["longitude", "latitude", "day"],
            }
        yield base | {"from": "memory"}, ["steingp", *rivals[:-1]]
        yield base | {"from": "disk"}, ["steingp"]


def about_machine() -> dict[str, Any]:
    import jax

    from steingp.experiments.references import device_name

    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "device": device_name(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "gpu": jax.default_backend() == "gpu",
        "versions": versions,
        "date": datetime.date.today().isoformat(),
    }


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def results_of(about: dict[str, Any]) -> Path:
    """A file for every machine: times of two are not to be compared."""
    kind, name = ("gpu", about["device"]) if about["gpu"] else ("cpu", about["cpu"])
    return RESULTS / f"bench-{kind}-{re.sub('[^a-z0-9]+', '-', name.lower())}.json"


def key(line: dict[str, Any]) -> str:
    """What tells one task of one contender from others."""
    known = ("task", "data", "rows", "particles", "columns", "inducing", "from")
    return json.dumps([line["contender"], *(line.get(name) for name in known)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["gradients", "fits", "streams"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it")
    parser.add_argument("--sets", nargs="*", help="fits of these data alone")
    parser.add_argument(
        "--rows", nargs="*", type=int, help="gradients of so many alone"
    )
    parser.add_argument("--only", nargs="*", help="these contenders alone")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--page", action="store_true", help="make docs/speed.md")
    asked = parser.parse_args()
    if asked.page:
        from bench_page import write

        write(sorted(RESULTS.glob("bench-*.json")))
        return
    about = about_machine()
    out = asked.out or results_of(about)
    before = json.loads(out.read_text()) if out.exists() else {}
    lines = before.pop("lines", [])
    done = {key(line) for line in lines}

    def save(new: list[dict]) -> None:
        content = {**before, **about, "lines": lines + new}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n")

    with Crew() as crew:
        for part in asked.parts:
            for task, names in tasks(part, asked.quick, about["gpu"]):
                if asked.sets and task.get("data") not in asked.sets:
                    continue
                if asked.rows and task.get("rows") not in asked.rows:
                    continue
                names = [n for n in names if not asked.only or n in asked.only]
                names = [n for n in names if key({"contender": n, **task}) not in done]
                if names:
                    lines += measure(task, names, asked.repeats, crew, save)
                    save([])
                if part != "gradients":
                    crew.stop()
            crew.stop()


if __name__ == "__main__":
    main()

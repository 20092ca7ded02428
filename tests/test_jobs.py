"""Many fits, one line each: after a stop, a failure, the loss of a worker."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import steingp as sg
from steingp.experiments import jobs
from steingp.experiments.jobs import Lines

KEYS = ("x",)


def square(job: dict) -> dict:
    return {"y": job["x"] ** 2}


def test_what_is_done_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "squares.jsonl"
    todo = [{"x": x} for x in range(4)]
    assert jobs.run(todo[:2], square, Lines(path, KEYS)) == 0
    seen: list[dict] = []
    jobs.run(todo, square, Lines(path, KEYS), say=seen.append)
    assert [line["x"] for line in seen] == [2, 3]
    assert [line["y"] for line in Lines(path, KEYS).read()] == [0, 1, 4, 9]
    assert len(path.read_text().splitlines()) == 4


def test_a_half_written_line_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "squares.jsonl"
    jobs.run([{"x": 1}, {"x": 2}], square, Lines(path, KEYS))
    content = path.read_text()
    path.write_text(content[:-7])  # killed while it wrote
    lines = Lines(path, KEYS)
    assert lines.is_done({"x": 1}) and not lines.is_done({"x": 2})
    jobs.run([{"x": 1}, {"x": 2}], square, lines)
    assert path.read_text() == content


def test_a_failure_is_a_line_and_is_tried_again(tmp_path: Path) -> None:
    def fails(job: dict) -> dict:
        raise FloatingPointError("no particle is finite")

    path = tmp_path / "squares.jsonl"
    assert jobs.run([{"x": 1}], fails, Lines(path, KEYS)) == 1
    (line,) = Lines(path, KEYS).read()
    assert line["error"].startswith("FloatingPointError: no particle is finite")
    assert jobs.run([{"x": 1}], square, Lines(path, KEYS)) == 0
    (line,) = Lines(path, KEYS).read()
    assert line["y"] == 1 and "error" not in line


def test_programming_errors_are_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        jobs.run(
            [{"x": 1}], lambda job: {"y": job["z"]}, Lines(tmp_path / "a.jsonl", KEYS)
        )


def test_of_several_failures_the_latest_is_told(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "squares.jsonl", KEYS)
    for words in ("first", "second"):
        lines.append({"x": 1, "error": words})
    assert [line["error"] for line in lines.read()] == ["second"]


@pytest.mark.parametrize("which", ["vi", "SVGD", "fit"])
def test_ctrl_c_ends_the_study_and_leaves_no_line(tmp_path: Path, which: str) -> None:
    """Fits that meet Ctrl-C keep what they have reached: not what the job asked for."""

    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    def fit(job: dict) -> dict:
        X = np.linspace(-1, 1, 12)[:, None]
        model = sg.SteinGP((X, np.sin(3 * X)), sg.kernels.Matern52())
        if which == "vi":
            with mock.patch("steingp.baselines.variational._run_chunk", ctrl_c):
                sg.baselines.vi(model, progress=False)
        elif which == "SVGD":
            sg.SVGD(model, n_particles=3).run(10, progress=False, callback=ctrl_c)
        else:
            sg.fit(model, progress=False, callback=ctrl_c)
        return {"y": 0}

    lines = Lines(tmp_path / "fits.jsonl", KEYS)
    with pytest.raises(KeyboardInterrupt):
        jobs.run([{"x": 1}, {"x": 2}], fit, lines)
    assert lines.read() == [] and not lines.is_done({"x": 1})


def test_a_second_machine_writes_its_own_file(tmp_path: Path) -> None:
    jobs.run([{"x": 1}], square, Lines(tmp_path / "squares.jsonl", KEYS))
    other = Lines(tmp_path / "squares-gpu.jsonl", KEYS)
    jobs.run([{"x": 1}, {"x": 2}], square, other)
    assert [line["x"] for line in jobs.read_lines(other.path)] == [2]
    assert len(Lines(tmp_path / "squares.jsonl", KEYS).read()) == 2
    quick = Lines(tmp_path / "squares-quick.jsonl", KEYS)
    assert not quick.is_done({"x": 1}) and quick.read() == []
    quick.append({"x": 3, "y": 0, "quick": True})
    assert not Lines(tmp_path / "squares.jsonl", KEYS).is_done({"x": 3})
    assert Lines(tmp_path / "squares-quick.jsonl", KEYS).is_done({"x": 3})


def test_killed_midway_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """A process of its own, killed as it works."""
    program = (
        "import time, sys; from pathlib import Path\n"
        "from steingp.experiments import jobs\n"
        "def slow(job):\n"
        "    time.sleep(0.3); return {'y': job['x']}\n"
        f"jobs.run([{{'x': x}} for x in range(8)], slow, "
        f"jobs.Lines(Path({str(tmp_path)!r}) / 'slow.jsonl', ('x',)))\n"
    )
    path = tmp_path / "slow.jsonl"
    process = subprocess.Popen([sys.executable, "-c", program])
    while not path.exists() or len(path.read_text().splitlines()) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = len(list(jobs.read_lines(path)))
    assert 3 <= before < 8
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [json.loads(line)["x"] for line in path.read_text().splitlines()] == list(
        range(8)
    )


def slow_square(job: dict) -> dict:
    time.sleep(0.5)
    return {"y": job["x"] ** 2, "worker": os.getpid()}


@pytest.mark.filterwarnings("ignore")  # the cluster's own, as a worker dies
def test_a_cluster_that_loses_a_worker_loses_no_fit(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    lines = Lines(tmp_path / "squares.jsonl", KEYS)
    todo = [{"x": x} for x in range(12)]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        killed = threading.Event()

        def kill_one(line: dict) -> None:
            if not killed.is_set() and len(list(jobs.read_lines(lines.path))) >= 3:
                os.kill(line["worker"], signal.SIGKILL)
                killed.set()

        failed = jobs.run(
            todo, slow_square, lines, dask=cluster.scheduler_address, say=kill_one
        )
    assert killed.is_set() and len(pids) == 2
    written = list(jobs.read_lines(lines.path))
    assert failed == 0
    assert sorted(line["x"] for line in written) == list(range(12))
    assert len({line["worker"] for line in written}) >= 2


def test_without_dask_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match=r"steingp\[dask\]"):
        jobs.run(
            [{"x": 1}], square, Lines(tmp_path / "a.jsonl", KEYS), dask="tcp://a:1"
        )


def and_its_process(job: dict) -> dict:
    if job["x"] == 13:
        os._exit(1)
    time.sleep(0.2)
    return {"y": job["x"] ** 2, "process": os.getpid()}


def test_several_processes_share_the_fits(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "squares.jsonl", KEYS)
    todo = [{"x": x} for x in range(8)]
    assert jobs.run(todo, and_its_process, lines, processes=2) == 0
    written = list(jobs.read_lines(lines.path))
    assert sorted(line["y"] for line in written) == [x**2 for x in range(8)]
    assert len({line["process"] for line in written}) == 2


def test_a_process_that_dies_is_told(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "squares.jsonl", KEYS)
    assert jobs.run([{"x": 13}], and_its_process, lines, processes=2) == 1
    (line,) = lines.read()
    assert "a process died" in line["error"]


def test_a_process_that_dies_does_not_take_later_fits_with_it(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "squares.jsonl", KEYS)
    todo = [{"x": x} for x in (13, *range(6))]
    failed = jobs.run(todo, and_its_process, lines, processes=2)
    assert failed in (1, 2)  # and perhaps what ran beside it
    assert sum("error" not in line for line in lines.read()) == 7 - failed


def test_what_another_run_has_begun_is_left_to_it(tmp_path: Path) -> None:
    one, other = (Lines(tmp_path / f"squares{end}.jsonl", KEYS) for end in ("", "-b"))
    claim = one.claim({"x": 1})
    assert claim is not None and other.claim({"x": 1}) is None
    with pytest.warns(UserWarning, match="1 jobs were left to another run"):
        assert jobs.run([{"x": 1}, {"x": 2}], square, other) == 0
    assert [line["x"] for line in jobs.read_lines(other.path)] == [2]
    # a quick job is another
    quick = Lines(tmp_path / "squares-quick.jsonl", KEYS)
    another = quick.claim({"x": 1, "quick": True})
    assert another is not None
    another.release()
    claim.release()
    again = other.claim({"x": 1})
    assert again is not None
    other.append({"x": 1, "y": 1})
    again.release()
    assert one.claim({"x": 1}) is None and one.is_done({"x": 1})


def test_runs_at_the_same_time_share_the_jobs(tmp_path: Path) -> None:
    program = (
        "import os, sys, time, warnings; from pathlib import Path\n"
        "from steingp.experiments import jobs\n"
        "warnings.simplefilter('ignore')\n"
        f"folder = Path({str(tmp_path)!r}); (folder / sys.argv[1]).touch()\n"
        "while not all((folder / name).exists() for name in 'ab'):\n"
        "    time.sleep(0.01)\n"
        "def slow(job):\n"
        "    time.sleep(0.1); return {'y': job['x'], 'process': os.getpid()}\n"
        "jobs.run([{'x': x} for x in range(40)], slow, "
        "jobs.Lines(folder / 'slow.jsonl', ('x',)))\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "ab"]
    assert [run.wait() for run in runs] == [0, 0]
    written = list(jobs.read_lines(tmp_path / "slow.jsonl"))
    assert sorted(line["x"] for line in written) == list(range(40))
    assert len({line["process"] for line in written}) == 2


def test_processes_beside_a_cluster_are_refused(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "a.jsonl", KEYS)
    with pytest.raises(ValueError, match="one of the two"):
        jobs.run([{"x": 1}], square, lines, processes=2, dask="tcp://a:1")

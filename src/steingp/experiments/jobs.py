"""Many fits: one JSON line for each, written as it ends; by one process, several, or Dask.

A job is a dictionary of what to fit, and a line is the job with what came out. Jobs whose
line is in a file already are left out, so a run that was stopped goes on where it was; and
so does one on another machine that writes to another file of the same folder and beginning
(`uci.jsonl`, `uci-gpu.jsonl`). A fit that failed leaves a line with its `error`, and is
tried again by the next run. Runs at the same time on one folder share the jobs: each takes
those that no other has begun, by a lock on a file, which ends with the process that has it.
"""

import hashlib
import json
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from pathlib import Path
from typing import IO, Any

from steingp.progress import progress_bar

try:
    import fcntl
except ImportError:  # Windows: runs at the same time do not share, and do all jobs
    fcntl = None

Job = dict[str, Any]
Line = dict[str, Any]


class Lines:
    """A file of JSON lines, and its sisters.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from steingp.experiments.jobs import Lines
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lines = Lines(Path(folder) / "uci.jsonl", ("set", "split"))
        ...     lines.append({"set": "servo", "split": 0, "rmse": 0.5})
        ...     lines.is_done({"set": "servo", "split": 0}), len(lines.read())
        (True, 1)
    """

    def __init__(self, path: Path, keys: tuple[str, ...]) -> None:
        self.path, self._keys = path, keys
        self._done: set[str] = set()
        self._look()

    def _look(self) -> None:
        self._done |= {self._key(line) for line in self.read() if "error" not in line}

    def _key(self, line: Line) -> str:
        return json.dumps([line.get(name) for name in self._keys])

    def read(self) -> list[Line]:
        """Of each job the latest line without an error, or else the latest."""
        latest: dict[str, Line] = {}
        base = self.path.stem.split("-")[0]
        folder, quick = self.path.parent, self.path.stem.endswith("-quick")
        paths = [*folder.glob(f"{base}.jsonl"), *folder.glob(f"{base}-*.jsonl")]
        for path in sorted(paths):
            for line in read_lines(path):
                before = latest.get(self._key(line))
                better = before is None or "error" in before or "error" not in line
                if better and line.get("quick", False) == quick:
                    latest[self._key(line)] = line
        return list(latest.values())

    def is_done(self, job: Job) -> bool:
        return self._key(job) in self._done

    def claim(self, job: Job) -> "Claim | None":
        """The right to do a job; None if another run has begun or done it."""
        base, quick = self.path.stem.split("-")[0], job.get("quick", False)
        folder = self.path.parent / f".{base}-begun"
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{self._key(job)}{quick}".encode()).hexdigest()[:16]
        file = (folder / name).open("w")
        if not _lock(file, waiting=False):
            file.close()
            return None
        self._look()
        claim = Claim(file)
        if self.is_done(job):
            claim.release()
            return None
        return claim

    def append(self, line: Line) -> None:
        """Write a line, all of it or nothing of it that counts."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            _lock(file, waiting=True)
            cut_off_half_lines(self.path)
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if "error" not in line:
            self._done.add(self._key(line))


class Claim:
    """A job that no other run does meanwhile."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def release(self) -> None:
        """Once its line is written."""
        Path(self._file.name).unlink(missing_ok=True)
        self._file.close()


def _lock(file: IO[str], waiting: bool) -> bool:
    """Whether the file is ours alone, until it is closed or this process ends."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waiting else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def read_lines(path: Path) -> Iterator[Line]:
    """The complete lines of a file."""
    if not path.exists():
        return
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n") and text.strip():
            yield json.loads(text)


def cut_off_half_lines(path: Path) -> None:
    """What a run that was killed while it wrote has left at the end."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def attempt(work: Callable[[Job], Line], job: Job) -> Line:
    """The line of a job; with the error, if it failed.

    Raises:
        KeyboardInterrupt: also where a fit would end early and keep what it has reached,
            which is not what the job asked for.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "interrupted", UserWarning)
            return {**job, **work(job)}
    except UserWarning as warning:
        if str(warning).startswith("interrupted"):
            raise KeyboardInterrupt from None
        raise
    except (ArithmeticError, ValueError, RuntimeError, OSError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(where.filename).name})"
        return {**job, "error": said}


def run(
    jobs: Iterable[Job],
    work: Callable[[Job], Line],
    lines: Lines,
    *,
    processes: int = 1,
    dask: str | None = None,
    progress: bool = True,
    say: Callable[[Line], None] = lambda line: None,
) -> int:
    """Do what is not done yet; returns how many failed.

    Args:
        jobs: all of them.
        work: from a job to what came out; a function of a module, if other processes are
            to do it.
        lines: where they go.
        processes: of this machine that fit at the same time, on a GPU too.
        dask: the address of a scheduler, whose workers do the fits. They need steingp, and
            STEINGP_DATA where data are read. Lines are written here alone; fits of workers
            that die are done by others.
        progress: show a bar (on a terminal only).
        say: called with every new line.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from steingp.experiments import jobs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lines = jobs.Lines(Path(folder) / "squares.jsonl", ("x",))
        ...     failed = jobs.run(
        ...         [{"x": 2}, {"x": 3}], lambda job: {"y": job["x"] ** 2}, lines)
        ...     [line["y"] for line in lines.read()]
        [4, 9]
    """
    if dask and processes > 1:
        raise ValueError(
            f"processes={processes} are of this machine, and dask={dask!r} has workers of "
            "its own: give one of the two."
        )
    everything = list(jobs)
    left = [job for job in everything if not lines.is_done(job)]
    done, failed = len(everything) - len(left), 0
    if dask:
        finished = _over_dask(left, work, dask)
    elif processes > 1:
        finished = _over_processes(left, work, processes, lines)
    else:
        finished = _one_by_one(left, work, lines)
    with progress_bar(len(everything), progress, "fits", "...") as show:
        show(done, f"{done} were there already" if done else "...")
        for line in finished:
            lines.append(line)
            done, failed = done + 1, failed + ("error" in line)
            say(line)
            show(
                done, " ".join(str(line.get(k, "")) for k in ("set", "split", "method"))
            )
    others = sum(not lines.is_done(job) for job in left) - failed
    if others > 0:
        warnings.warn(
            f"{others} jobs were left to another run on {lines.path.parent}, which has "
            "begun them.",
            stacklevel=2,
        )
    return failed


def _one_by_one(
    jobs: list[Job], work: Callable[[Job], Line], lines: Lines
) -> Iterator[Line]:
    for job in jobs:
        claim = lines.claim(job)
        if claim is not None:
            try:
                yield attempt(work, job)
            finally:
                claim.release()


def _over_processes(
    jobs: list[Job], work: Callable[[Job], Line], num: int, lines: Lines
) -> Iterator[Line]:
    """Processes that do not share what JAX holds, so each is a fresh one."""
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num, mp_context=fresh)
    waiting, running = iter(jobs), dict[Future[Line], tuple[Job, Claim]]()
    try:
        while True:
            while len(running) < num and (job := next(waiting, None)) is not None:
                claim = lines.claim(job)
                if claim is None:
                    continue
                try:
                    future = pool.submit(attempt, work, job)
                except BrokenExecutor:  # a process died, and its job is running no more
                    pool = ProcessPoolExecutor(num, mp_context=fresh)
                    future = pool.submit(attempt, work, job)
                running[future] = job, claim
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, claim = running[future]
                yield _or_death(future, job)
                running.pop(future)
                claim.release()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for _, claim in running.values():
            claim.release()


def _or_death(future: Future[Line], job: Job) -> Line:
    try:
        return future.result()
    except BrokenExecutor as error:
        return {**job, "error": f"a process died, out of memory perhaps: {error}"}


def _over_dask(
    jobs: list[Job], work: Callable[[Job], Line], address: str
) -> Iterator[Line]:
    try:
        import distributed
    except ImportError:
        raise ValueError(
            "--dask needs the package distributed: pip install 'steingp[dask]'."
        ) from None
    with distributed.Client(address) as client:
        futures = client.map(attempt, [work] * len(jobs), jobs, pure=False)
        job_of = {future.key: job for future, job in zip(futures, jobs, strict=True)}
        for future in distributed.as_completed(futures):
            if future.status == "finished":
                yield future.result()
            else:  # its workers died time and again
                said = f"{future.status}: {future.exception()}"
                yield {**job_of[future.key], "error": said}

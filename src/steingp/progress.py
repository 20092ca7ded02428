"""A progress bar on the terminal, for whoever works long."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(
    total: int, wanted: bool, what: str, note: str
) -> Iterator[Callable[..., None]]:
    """A function `show(done, note, what)` that moves a bar, on a terminal only.

    Args:
        total: where `done` ends.
        wanted: False for no bar.
        what: the first column, until `show` changes it.
        note: the last one.
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda *args, **kwargs: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=total, note=note)

        def show(done: int, note: str, what: str | None = None, **more: Any) -> None:
            named = {} if what is None else {"description": what}
            bar.update(task, completed=done, note=note, **named, **more)

        yield show

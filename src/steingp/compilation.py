"""Compiled code that outlives the process, on request; what compiling costs."""

import functools
import time
from pathlib import Path

import jax
import jax.monitoring

DEFAULT_FOLDER = Path("~/.cache/steingp")


def keep_compiled(folder: str | Path | None = None) -> Path:
    """Keep compiled code in a folder, for this process and all that ask for the same.

    Compiling takes most of the time of a short fit. What has been compiled once, for data
    of a shape and a kind of model, is then read from the folder in a fraction of the
    time. It is JAX's persistent cache, and holds for all that this process compiles. Call
    it before the first fit.

    Args:
        folder: made if it is not there; `~/.cache/steingp` by default.

    Returns:
        The folder.

    Raises:
        ValueError: the folder cannot be made or written to.

    Example:
        >>> import steingp as sg
        >>> folder = sg.keep_compiled("~/.cache/steingp")  # doctest: +SKIP
    """
    path = Path(DEFAULT_FOLDER if folder is None else folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".steingp-can-write"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"folder={str(path)!r} cannot be written to: {error.strerror}."
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


_spans: list[tuple[float, float]] = []
"""From when to when JAX traced, lowered or compiled; none within another."""


def _note(event: str, duration_secs: float, **_: str | int) -> None:
    if not event.startswith("/jax/core/compile/"):
        return
    ended = time.perf_counter()
    began = ended - duration_secs
    while _spans and _spans[-1][0] >= began:  # an inner function's, which ended first
        _spans.pop()
    _spans.append((began, ended))


def seconds_compiling() -> float:
    """Seconds that JAX has traced and compiled for, since this was first called.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from steingp.compilation import seconds_compiling
        >>> before = seconds_compiling()
        >>> done = jax.jit(lambda x: jnp.sin(x) + 1234.5)(jnp.ones(3))
        >>> seconds_compiling() > before
        True
    """
    _listen()
    return sum(ended - began for began, ended in _spans)


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_note)


class Stopwatch:
    """Runs from when it is made.

    Example:
        >>> from steingp.compilation import Stopwatch
        >>> sorted(Stopwatch().read())
        ['compile_seconds', 'seconds']
    """

    def __init__(self) -> None:
        self._compiled, self._began = seconds_compiling(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Seconds up to now, and for how many of them JAX traced and compiled."""
        return {
            "seconds": time.perf_counter() - self._began,
            "compile_seconds": seconds_compiling() - self._compiled,
        }

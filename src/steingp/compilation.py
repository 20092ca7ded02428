"""Compiled code that outlives the process, on request; what compiling costs."""

import functools
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


_seconds = 0.0


def _count(event: str, duration_secs: float, **_: str | int) -> None:
    global _seconds
    if event in ("/jax/core/compile/backend_compile_duration",
                 "/jax/core/compile/jaxpr_to_mlir_module_duration"):  # fmt: skip
        _seconds += duration_secs


def seconds_compiling() -> float:
    """Seconds that JAX has compiled for in this process, since this was first called.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from steingp.compilation import seconds_compiling
        >>> before = seconds_compiling()
        >>> done = jax.jit(lambda x: jnp.sin(x) + 1234.5)(jnp.ones(3))
        >>> seconds_compiling() > before
        True
    """
    _listen()
    return _seconds


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_count)

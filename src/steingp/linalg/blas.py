"""Threads of BLAS."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def blas_suited_to(size: int, *, threads: int | None = None) -> Iterator[None]:
    """One BLAS thread while matrices are small, else `threads`; None: as many as it has.

    Threads of BLAS contend for little work, and with threads of our own for the same
    cores. The bound of 500 rows is a guess that has not been tuned by measurement.
    """
    limit = 1 if size <= 500 else threads
    if limit is None:
        yield
        return
    with _libraries().limit(limits=limit, user_api="blas"):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    """Of this process that have threads; NumPy's and SciPy's are loaded by now."""
    return ThreadpoolController()

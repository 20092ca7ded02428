"""Every test computes in float64 and strictly, and fails on any warning."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # what one worker or a program that it starts has compiled, the others find there
    COMPILED = tempfile.mkdtemp(prefix="steingp-tests-")
    atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True)
def double_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Internals are tested inside the precision that public entries give them."""
    if request.node.get_closest_marker("user_precision"):
        yield
    else:
        with jax.enable_x64(True):
            yield


MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000
"""Linux gives a process 65,530 maps by default; a compiled function takes a dozen, and
the worker that runs out of them dies without a word."""


@pytest.fixture(autouse=True)
def few_memory_maps() -> Iterator[None]:
    """Compiled functions are thrown away before there are too many."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()

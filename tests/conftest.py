"""Every test computes in float64 and strictly, and fails on any warning."""

from collections.abc import Iterator

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

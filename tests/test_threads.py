"""Rows over the cores of a CPU, inside of a compiled loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingp import threads
from steingp.threads import for_each


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize("num", [1, 4, 7])
def test_for_each_gives_what_vmap_gives(
    num: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "num_cores", lambda: cores)
    rng = np.random.default_rng(0)
    each = {"a": jnp.asarray(rng.normal(size=(num, 3))), "b": jnp.arange(1.0 * num)}

    def function(part: dict) -> tuple[jax.Array, jax.Array]:
        return jnp.sum(jnp.sin(part["a"])) + part["b"], part["a"] * part["b"]

    found = jax.jit(lambda each: for_each(function, each, 3))(each)
    expected = jax.vmap(function)(each)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)

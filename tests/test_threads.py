"""Rows over the cores of a CPU, inside of a compiled loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingp import threads
from steingp.threads import for_each, in_equal_parts


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


@pytest.mark.parametrize("num", [1, 3, 7, 8, 9])
def test_equal_parts_give_what_vmap_gives_of_one_size(num: int) -> None:
    each = jnp.arange(2.0 * num).reshape(num, 2)
    traced = []

    def function(part: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(part))

    def counted(part: jax.Array) -> jax.Array:
        traced.append(1)  # once for each program that is traced
        return function(part)

    found = jax.jit(lambda each: in_equal_parts(counted, each, 4))(each)
    np.testing.assert_allclose(found, jax.vmap(function)(each), rtol=1e-14)
    assert len(traced) == 1


def test_equal_parts_hold_no_more_than_asked_for() -> None:
    made = jax.make_jaxpr(
        lambda each: in_equal_parts(lambda x: jnp.outer(x, x), each, 4)
    )(jnp.ones((9, 5)))
    assert "f64[3,5,5]" in str(made)  # thrice three, not twice four and one

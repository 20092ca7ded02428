"""Threads give what one program gives, and errors come out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steingp import densities
from steingp.densities import OfOne, OnThreads, for_each


def log_density(z: jax.Array, data: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum((z - data) ** 2) + jnp.sum(jnp.sin(z))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num", [1, 4, 7, 20])
def test_threads_give_what_one_program_gives(num_threads: int, num: int) -> None:
    data = jnp.arange(3.0)
    z = np.random.default_rng(0).normal(size=(num, 3))
    threaded = OnThreads(log_density, data, 7, num_threads)(z)
    whole = OfOne(log_density, data)(jnp.asarray(z))
    for ours, expected in zip(threaded, whole, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_many_calls_compile_one_program() -> None:
    counts: list[str] = []

    def listen(name: str, _: float, **about: object) -> None:
        if "backend_compile" in name and "_score_compiled" in str(about):
            counts.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for num in (9, 2, 30):
            OnThreads(log_density, jnp.ones(5), 8, 2)(np.zeros((num, 5)))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(counts) == 1


def test_an_error_on_a_thread_is_raised() -> None:
    def broken(z: jax.Array, _: None) -> jax.Array:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        OnThreads(broken, None, 4, 2)(np.zeros((8, 2)))


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize("num", [1, 4, 7])
def test_for_each_gives_what_vmap_gives(
    num: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(densities, "num_cores", lambda: cores)
    rng = np.random.default_rng(0)
    each = {"a": jnp.asarray(rng.normal(size=(num, 3))), "b": jnp.arange(1.0 * num)}

    def function(part: dict) -> tuple[jax.Array, jax.Array]:
        return jnp.sum(jnp.sin(part["a"])) + part["b"], part["a"] * part["b"]

    found = jax.jit(lambda each: for_each(function, each, 3))(each)
    expected = jax.vmap(function)(each)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)

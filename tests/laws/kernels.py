"""The laws of a covariance function, all checked by `kernel_laws`."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from steingp.kernels import Kernel, White
from steingp.priors import Component, Hyperparameters, assign


def inputs(num_inputs: int, num_rows: int = 7, seed: int = 0) -> np.ndarray:
    """Rows of N(0, 1); the last one repeats the first, so one distance is zero."""
    X = np.random.default_rng(seed).normal(size=(num_rows, num_inputs))
    X[-1] = X[0]
    return X


def has_white(part: Component) -> bool:
    """Whether a White kernel stands anywhere inside."""
    children = [getattr(part, field.name) for field in dataclasses.fields(part)]
    flat = [
        c for child in children for c in (child if type(child) is tuple else (child,))
    ]
    inside = any(has_white(c) for c in flat if isinstance(c, Component))
    return inside or isinstance(part, White)


def kernel_laws(kernel: Kernel, num_inputs: int) -> None:
    """Everything that holds for any kernel on data with `num_inputs` columns."""
    X, Y = inputs(num_inputs), inputs(num_inputs, 4, seed=1)
    weights = np.random.default_rng(2).normal(size=(len(X), len(X)))
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, num_inputs)
    theta = hyperparameters.complete(hyperparameters.start())

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def weighted(theta: dict, X: jax.Array, Y: jax.Array) -> tuple:
        k = assign(kernel, theta, "kernel")
        others = k.diag(X), k.cross(X, X), k.cross(X, Y), k.cross(Y, X)
        K = k.gram(X)
        return jnp.sum(weights * K), (K, *others)

    (_, values), slopes = weighted(theta, X, Y)
    K, diagonal, Kxx, Kxy, Kyx = map(np.asarray, values)
    _is_a_covariance(K)
    np.testing.assert_allclose(diagonal, np.diagonal(K), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(Kxy, Kyx.T, rtol=1e-12, atol=1e-13)
    if not has_white(kernel):
        np.testing.assert_allclose(Kxx, K, rtol=1e-12, atol=1e-14)

    assert type(kernel(X)) is np.ndarray
    np.testing.assert_allclose(kernel(X), K, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel(X, Y), Kxy, rtol=1e-12, atol=1e-14)

    scale = float(np.abs(weights).sum())
    _slopes_are_right(
        lambda theta: weighted(theta, X, Y)[0][0], theta, slopes[0], scale
    )
    assert np.all(np.isfinite(slopes[1]))
    _keeps_single_precision(kernel, theta, X)
    _binding_round_trip(kernel, hyperparameters, num_inputs)


def _keeps_single_precision(kernel: Kernel, theta: dict, X: np.ndarray) -> None:
    """Numbers of NumPy among its constants would make it double."""

    def gram(theta: dict, X: jax.Array) -> jax.Array:
        return assign(kernel, theta, "kernel").gram(X)

    single = jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), (theta, X))
    assert jax.eval_shape(gram, *single).dtype == jnp.float32


def _is_a_covariance(K: np.ndarray) -> None:
    np.testing.assert_allclose(K, K.T, rtol=1e-12, atol=1e-13)
    jitter = 1e-8 * np.mean(np.diagonal(K))
    smallest = np.linalg.eigvalsh(K + jitter * np.eye(len(K))).min()
    assert smallest > 0.0, f"gram is not positive semi-definite: {smallest}"


def _slopes_are_right(
    function: Callable, theta: dict, slopes: dict, scale: float
) -> None:
    """Slopes by every slot: as central differences have them, zero distances included.

    A step of 1e-5 leaves 1e-10 of truncation and 1e-16 / 1e-5 = 1e-11 of rounding.
    """
    assert set(slopes) == set(theta)
    for name, value in theta.items():
        for position in np.ndindex(value.shape):
            step = 1e-5 * float(value[position])
            up, down = (
                theta | {name: value.at[position].add(sign * step)} for sign in (1, -1)
            )
            np.testing.assert_allclose(
                slopes[name][position],
                (function(up) - function(down)) / (2.0 * step),
                rtol=1e-6,
                atol=1e-9 * scale,
                err_msg=f"{name}{list(position)}",
            )


def _binding_round_trip(
    kernel: Kernel, hyperparameters: Hyperparameters, num_inputs: int
) -> None:
    """Names and values survive: theta -> slots -> theta."""
    theta = hyperparameters.complete(hyperparameters.sample(jax.random.key(1)))
    assigned = assign(kernel, theta, "kernel")
    again = Hyperparameters.bind({"kernel": assigned}, num_inputs).start()
    assert again
    assert set(again) == set(theta)
    for name, value in theta.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def precision_law(kernel: Kernel, num_inputs: int) -> None:
    """float64 comes out although the user's JAX computes in float32."""
    assert jnp.zeros(()).dtype == jnp.float32, "mark the test user_precision"
    X = inputs(num_inputs)
    values = kernel(X)
    assert values.dtype == np.float64
    with jax.enable_x64(True):
        np.testing.assert_array_equal(values, kernel(X))
    assert jnp.zeros(()).dtype == jnp.float32

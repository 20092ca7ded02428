"""Mean functions: values, slopes, names and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from steingp import means
from steingp.priors import Hyperparameters, assign, fixed

X = np.array([[0.0, 1.0], [2.0, -1.0], [3.0, 0.5]])


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (means.Zero(), [0.0, 0.0, 0.0]),
        (means.Constant(), [0.0, 0.0, 0.0]),
        (means.Constant(-1.5), [-1.5, -1.5, -1.5]),
        (means.Linear(), [0.0, 0.0, 0.0]),
        # 2 x_1 - x_2 + 1 at (0, 1), (2, -1), (3, 0.5)
        (means.Linear([2.0, -1.0], 1.0), [0.0, 6.0, 6.5]),
        # one slope for all columns: 2 (x_1 + x_2)
        (means.Linear(2.0), [2.0, 2.0, 7.0]),
        (means.Linear(fixed([2.0, -1.0]), fixed(1.0)), [0.0, 6.0, 6.5]),
        (means.Linear(dist.Normal(jnp.array([2.0, -1.0]), 1.0)), [-1.0, 5.0, 5.5]),
    ],
)
def test_values(mean: means.Mean, expected: list[float]) -> None:
    np.testing.assert_allclose(mean(X), expected, atol=1e-15)
    assert type(mean(X)) is np.ndarray


@pytest.mark.user_precision
def test_float64_without_the_users_flag() -> None:
    value = means.Linear([0.1, 0.2], 0.3)(X)
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, X @ [0.1, 0.2] + 0.3, rtol=1e-15)


def test_slopes() -> None:
    mean = means.Linear([2.0, -1.0], 1.0)
    theta = Hyperparameters.bind({"mean": mean}, 2).start()
    slopes = jax.jacobian(lambda t: assign(mean, t, "mean").of(jnp.asarray(X)))(theta)
    np.testing.assert_allclose(slopes["mean.coefficients"], X)  # d(x' b)/db = x
    np.testing.assert_allclose(slopes["mean.intercept"], np.ones(3))


def test_linear_has_one_coefficient_per_column() -> None:
    bound = Hyperparameters.bind({"mean": means.Linear()}, 4)
    assert {p.name: p.shape for p in bound.free} == {
        "mean.coefficients": (4,),
        "mean.intercept": (),
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: means.Constant("high"), r"Constant\(value=.*'high'"),
        (lambda: means.Constant(np.inf), r"Constant\(value=.*finite"),
        (lambda: means.Constant(dist.Poisson(1.0)), "discrete"),
        (lambda: means.Linear([1.0, 2.0, 3.0])(X), r"mean.coefficients has 3 values"),
        (lambda: means.Constant([1.0, 2.0])(X), r"mean.value is a scalar"),
    ],
)
def test_bad_input_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

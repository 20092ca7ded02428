"""Kernels: the laws, independent values and gradients, own kernels, and bad input."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import sklearn.gaussian_process.kernels as sk
import tinygp
from laws.kernels import inputs, kernel_laws, precision_law

from steingp import kernels
from steingp.kernels import (
    Constant,
    Cosine,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Pairwise,
    Periodic,
    Polynomial,
    RationalQuadratic,
    SquaredExponential,
    White,
)
from steingp.priors import Hyperparameters, Slot, assign, fixed, positive

ARD = [0.7, 1.3, 2.1]
ISOTROPIC = [SquaredExponential, Matern12, Matern32, Matern52]
CASES: dict[str, tuple[Kernel, int]] = {
    **{f"{k.__name__}-default": (k(), 3) for k in ISOTROPIC},
    **{
        f"{k.__name__}-shared": (k(variance=1.7, lengthscales=0.8), 2)
        for k in ISOTROPIC
    },
    **{f"{k.__name__}-ard": (k(variance=0.6, lengthscales=ARD), 3) for k in ISOTROPIC},
    **{f"Periodic-{k.__name__}": (Periodic(k(1.2, 0.9), 1.6), 1) for k in ISOTROPIC},
    "RationalQuadratic-shared": (RationalQuadratic(1.1, 0.8, 0.4), 2),
    "RationalQuadratic-ard": (RationalQuadratic(0.9, ARD, 2.5), 3),
    "Periodic-RationalQuadratic": (Periodic(RationalQuadratic(1.0, 0.9, 0.7), 1.6), 1),
    "Periodic-ard": (Periodic(SquaredExponential(0.8, ARD), [1.1, 2.3, 0.9]), 3),
    "Cosine-shared": (Cosine(1.3, 2.2), 2),
    "Cosine-ard": (Cosine(0.7, ARD), 3),
    "Linear-shared": (Linear(1.4), 2),
    "Linear-ard": (Linear(ARD), 3),
    "Polynomial-1": (Polynomial(1, 0.7, 0.3), 2),
    "Polynomial-3": (Polynomial(3, ARD, 1.2), 3),
    "White": (White(0.3), 2),
    "Constant": (Constant(2.2), 2),
    "columns-list": (Matern52(1.2, [0.8, 1.9], active_dims=[2, 0]), 3),
    "columns-slice": (SquaredExponential(active_dims=slice(1, 3)), 4),
    "columns-periodic": (Periodic(Matern32(1.0, 0.9, active_dims=[1]), 1.4), 2),
    "sum": (Matern52(1.2, 0.8) + Linear(0.5), 2),
    "sum-white": (SquaredExponential(1.2, 0.8) + White(0.2), 2),
    "product": (Matern12(1.2, 0.8) * Cosine(0.5, 1.7), 2),
    "product-white": (Constant(1.5) * White(0.2), 1),
    "fixed": (Matern32(variance=fixed(2.0), lengthscales=fixed(ARD)), 3),
    "air-quality": (
        Matern32(1.0, [0.9, 1.4], active_dims=[0, 1])
        * (Matern12(0.8, 0.7, active_dims=[2]) * Polynomial(3, 0.4, active_dims=[2]))
        + White(0.1),
        3,
    ),
    "nested": ((Matern52(1.0, 0.9) + Constant(0.3)) * (Linear(0.7) + White(0.2)), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_laws(case: str) -> None:
    kernel_laws(*CASES[case])


@pytest.mark.user_precision
@pytest.mark.parametrize("case", ["Matern12-ard", "air-quality", "Polynomial-3"])
def test_float64_without_the_users_flag(case: str) -> None:
    precision_law(*CASES[case])


def start_values(kernel: Kernel, num_inputs: int) -> dict[str, jax.Array]:
    hyperparameters = Hyperparameters.bind({"kernel": kernel}, num_inputs)
    return hyperparameters.complete(hyperparameters.start())


def values_and_slopes(kernel: Kernel, X: np.ndarray) -> tuple[np.ndarray, dict]:
    """gram(X), and d gram(X) / d slot for every slot by name."""
    theta = start_values(kernel, X.shape[1])

    def gram(theta: dict) -> tuple[jax.Array, jax.Array]:
        K = assign(kernel, theta, "kernel").gram(jnp.asarray(X))
        return K, K

    slopes, K = jax.jit(jax.jacfwd(gram, has_aux=True))(theta)
    return np.asarray(K), slopes


# --- Against plain formulas for one pair, in complex numbers ------------------------
#
# Each formula takes complex hyperparameters, so f'(a) = Im f(a + ih) / h is exact to
# rounding for h = 1e-30: there is no difference of close numbers in it.


def _r2(x, y, lengthscales):
    return np.sum(((x - y) / lengthscales) ** 2)


def _sines(x, y, base, period):
    return np.sin(np.pi * (x - y) / period) / base["lengthscales"]


def _modulus(s):
    return np.where(s.real < 0.0, -s, s)  # |s|, analytic on either side of zero


def _matern12(r):
    return np.exp(-r)


def _matern32(r):
    return (1 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r)


def _matern52(r):
    return (1 + np.sqrt(5.0) * r + 5.0 / 3.0 * r**2) * np.exp(-np.sqrt(5.0) * r)


def _of_r(profile):
    return lambda x, y, t: (
        t["variance"] * profile(np.sqrt(_r2(x, y, t["lengthscales"])))
    )


def _periodic_of_r(profile):
    return lambda x, y, t: (
        t["variance"] * profile(np.sum(_modulus(_sines(x, y, t, t["period"]))))
    )


FORMULAS: dict[str, Callable] = {
    "SquaredExponential": lambda x, y, t: (
        t["variance"] * np.exp(-_r2(x, y, t["lengthscales"]) / 2)
    ),
    "Matern12": _of_r(_matern12),
    "Matern32": _of_r(_matern32),
    "Matern52": _of_r(_matern52),
    "RationalQuadratic": lambda x, y, t: (
        t["variance"]
        * (1 + _r2(x, y, t["lengthscales"]) / (2 * t["alpha"])) ** (-t["alpha"])
    ),
    "Periodic-SquaredExponential": lambda x, y, t: (
        t["variance"] * np.exp(-np.sum(_sines(x, y, t, t["period"]) ** 2) / 2)
    ),
    "Periodic-RationalQuadratic": lambda x, y, t: (
        t["variance"]
        * (1 + np.sum(_sines(x, y, t, t["period"]) ** 2) / (2 * t["alpha"]))
        ** (-t["alpha"])
    ),
    "Periodic-Matern12": _periodic_of_r(_matern12),
    "Periodic-Matern32": _periodic_of_r(_matern32),
    "Periodic-Matern52": _periodic_of_r(_matern52),
    "Cosine": lambda x, y, t: (
        t["variance"] * np.cos(2 * np.pi * np.sum((x - y) / t["lengthscales"]))
    ),
    "Linear": lambda x, y, t: np.sum(t["variance"] * x * y),
    "Polynomial-1": lambda x, y, t: np.sum(t["variance"] * x * y) + t["offset"],
    "Polynomial-3": lambda x, y, t: (np.sum(t["variance"] * x * y) + t["offset"]) ** 3,
    "Constant": lambda x, y, t: t["variance"],
}


def reference(formula: Callable, X: np.ndarray, theta: dict) -> tuple[np.ndarray, dict]:
    """Gram matrix and slopes by a double loop, one complex step per slot entry."""

    def gram(theta: dict) -> np.ndarray:
        return np.array([[complex(formula(x, y, theta)) for y in X] for x in X])

    slopes = {}
    for name, value in theta.items():
        slopes[name] = np.zeros((len(X), len(X), *value.shape))
        for position in np.ndindex(value.shape):
            stepped = value.astype(complex)
            stepped[position] += 1e-30j
            slope = gram(theta | {name: stepped}).imag / 1e-30
            slopes[name][(..., *position)] = slope
    return gram(theta).real, slopes


def formula_of(case: str) -> Callable | None:
    return FORMULAS.get(case) or FORMULAS.get(case.split("-")[0])


@pytest.mark.parametrize(
    "case", [c for c in CASES if formula_of(c) or c == "Periodic-ard"]
)
def test_values_and_slopes_of_the_plain_formula(case: str) -> None:
    kernel, num_inputs = CASES[case]
    X = inputs(num_inputs)
    K, slopes = values_and_slopes(kernel, X)
    theta = start_values(kernel, num_inputs)
    short = {name: name.split(".")[-1] for name in theta}
    formula = formula_of(case) or FORMULAS["Periodic-SquaredExponential"]
    expected, expected_slopes = reference(
        formula, X, {short[name]: np.asarray(v) for name, v in theta.items()}
    )
    np.testing.assert_allclose(K, expected, rtol=1e-8, atol=1e-12)
    assert slopes
    for name, slope in slopes.items():
        np.testing.assert_allclose(
            slope, expected_slopes[short[name]], rtol=1e-8, atol=1e-10, err_msg=name
        )


def test_sums_and_products_of_the_plain_formulas() -> None:
    # columns 0, 1 through Matern32; column 2 through Matern12 and the cubic polynomial
    kernel, num_inputs = CASES["air-quality"]
    X = inputs(num_inputs)
    space, time = X[:, :2], X[:, 2:]
    expected = (
        reference(
            FORMULAS["Matern32"],
            space,
            {"variance": np.array(1.0), "lengthscales": np.array([0.9, 1.4])},
        )[0]
        * reference(
            FORMULAS["Matern12"],
            time,
            {"variance": np.array(0.8), "lengthscales": np.array(0.7)},
        )[0]
        * reference(
            FORMULAS["Polynomial-3"],
            time,
            {"variance": np.array(0.4), "offset": np.array(1.0)},
        )[0]
    )
    np.testing.assert_allclose(kernel(X, X), expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        kernel(X), expected + 0.1 * np.eye(len(X)), rtol=1e-8, atol=1e-12
    )


# --- Against scikit-learn -----------------------------------------------------------
#
# Its gradients are by log parameters: dK/dlog a = a dK/da. `names` lists our slots in
# the order of its theta, each with d(our slot)/dlog(its parameter) as a factor of the
# slot: 1 where they are proportional.

SKLEARN = {
    "SquaredExponential": (
        SquaredExponential(1.3, ARD),
        sk.ConstantKernel(1.3) * sk.RBF(ARD),
        [("kernel.variance", 1.0), ("kernel.lengthscales", 1.0)],
    ),
    "Matern12": (
        Matern12(1.3, ARD),
        sk.ConstantKernel(1.3) * sk.Matern(ARD, nu=0.5),
        [("kernel.variance", 1.0), ("kernel.lengthscales", 1.0)],
    ),
    "Matern32": (
        Matern32(1.3, ARD),
        sk.ConstantKernel(1.3) * sk.Matern(ARD, nu=1.5),
        [("kernel.variance", 1.0), ("kernel.lengthscales", 1.0)],
    ),
    "Matern52": (
        Matern52(1.3, ARD),
        sk.ConstantKernel(1.3) * sk.Matern(ARD, nu=2.5),
        [("kernel.variance", 1.0), ("kernel.lengthscales", 1.0)],
    ),
    "RationalQuadratic": (
        RationalQuadratic(1.3, 0.8, 0.6),
        sk.ConstantKernel(1.3) * sk.RationalQuadratic(0.8, 0.6),
        [
            ("kernel.variance", 1.0),
            ("kernel.alpha", 1.0),
            ("kernel.lengthscales", 1.0),
        ],
    ),
    # exp(-2 sin^2 / l^2) there, exp(-sin^2 / (2 l^2)) here: l there is 2 l here
    "Periodic": (
        Periodic(SquaredExponential(1.3, 0.45), 1.7),
        sk.ConstantKernel(1.3) * sk.ExpSineSquared(0.9, 1.7),
        [
            ("kernel.base_kernel.variance", 1.0),
            ("kernel.base_kernel.lengthscales", 1.0),
            ("kernel.period", 1.0),
        ],
    ),
    # sigma_0^2 there is our offset: d offset / dlog sigma_0 = 2 offset
    "Polynomial": (
        Polynomial(3, fixed(1.0), 0.49),
        sk.DotProduct(0.7) ** 3,
        [("kernel.offset", 2.0)],
    ),
    "sum": (
        Matern32(1.3, 0.8) + White(0.2) + Constant(0.4),
        sk.ConstantKernel(1.3) * sk.Matern(0.8, nu=1.5)
        + sk.WhiteKernel(0.2)
        + sk.ConstantKernel(0.4),
        [
            ("kernel[0].matern32.variance", 1.0),
            ("kernel[0].matern32.lengthscales", 1.0),
            ("kernel[1].white.variance", 1.0),
            ("kernel[2].constant.variance", 1.0),
        ],
    ),
}


@pytest.mark.parametrize("case", SKLEARN)
def test_scikit_learn_agrees(case: str) -> None:
    ours, theirs, names = SKLEARN[case]
    X = inputs(1 if case == "Periodic" else 3)
    expected, expected_slopes = theirs(X, eval_gradient=True)
    K, slopes = values_and_slopes(ours, X)
    np.testing.assert_allclose(K, expected, rtol=1e-8, atol=1e-12)
    theta = start_values(ours, X.shape[1])
    by_log = np.concatenate(
        [
            (factor * np.asarray(slopes[name]) * np.asarray(theta[name])).reshape(
                len(X), len(X), -1
            )
            for name, factor in names
        ],
        axis=-1,
    )
    assert by_log.shape == expected_slopes.shape
    np.testing.assert_allclose(by_log, expected_slopes, rtol=1e-8, atol=1e-10)


def test_tinygp_agrees_on_the_cosine() -> None:
    X = inputs(1)
    theirs = 1.4 * tinygp.kernels.Cosine(scale=0.9)
    np.testing.assert_allclose(
        Cosine(1.4, 0.9)(X), theirs(X, X), rtol=1e-10, atol=1e-12
    )


# --- Meaning ------------------------------------------------------------------------


def test_matern12_is_exact_at_small_distances() -> None:
    # 1 - k(r) = r to first order; distances by matrix product would lose it below 1e-8
    X = np.array([[1000.0], [1000.0 + 2.0**-30]])
    k = Matern12(1.0, 1.0)(X)[0, 1]
    np.testing.assert_allclose(1.0 - k, 2.0**-30, rtol=1e-6)


def test_white_links_no_two_sets_even_if_they_are_equal() -> None:
    X = np.zeros((2, 1))
    np.testing.assert_array_equal(White(0.5)(X), 0.5 * np.eye(2))
    np.testing.assert_array_equal(White(0.5)(X, X), np.zeros((2, 2)))


def test_active_dims_pick_columns_in_their_order() -> None:
    X = inputs(3)
    picked = Matern52(1.0, [0.5, 2.0], active_dims=[2, 0])
    np.testing.assert_array_equal(picked(X), Matern52(1.0, [0.5, 2.0])(X[:, [2, 0]]))
    single = SquaredExponential(active_dims=1)
    np.testing.assert_array_equal(single(X), SquaredExponential()(X[:, [1]]))
    everything = SquaredExponential(active_dims=slice(None))
    np.testing.assert_array_equal(everything(X), SquaredExponential()(X))


def test_sums_and_products_are_flat() -> None:
    a, b, c = Matern12(), Matern32(), White()
    assert (a + b + c).parts == (a + (b + c)).parts == (a, b, c)
    assert (a * b * c).parts == (a * (b * c)).parts == (a, b, c)
    assert len(((a + b) * c).parts) == 2


class Brownian(Pairwise):
    """min(x, y): a user's kernel in four lines."""

    variance: Slot = positive(1.0)

    def pair(self, x, y):
        return self.variance * jnp.minimum(x, y).prod()


def test_a_kernel_of_your_own() -> None:
    # Brownian motion at times 1, 3, 4: Cov = variance * min
    expected = 2.0 * np.array([[1.0, 1.0, 1.0], [1.0, 3.0, 3.0], [1.0, 3.0, 4.0]])
    np.testing.assert_array_equal(Brownian(2.0)([[1.0], [3.0], [4.0]]), expected)
    shifted = Brownian(dist.LogNormal(0.0, 1.0), active_dims=[1]) + White(0.1)
    names = [p.name for p in Hyperparameters.bind({"kernel": shifted}, 2).free]
    assert names == ["kernel[0].brownian.variance", "kernel[1].white.variance"]


class SmoothPair(Pairwise):
    """A squared exponential, pair by pair."""

    variance: Slot = positive(1.0)
    lengthscales: Slot = positive(1.0)

    def pair(self, x, y):
        scaled = (x - y) / self.lengthscales
        return self.variance * jnp.exp(-0.5 * scaled @ scaled)


def test_a_pairwise_kernel_equals_the_built_in_one() -> None:
    own, ours = SmoothPair(1.3, 0.7), SquaredExponential(1.3, 0.7)
    kernel_laws(own, 2)
    X = inputs(2)
    np.testing.assert_allclose(own(X), ours(X), rtol=1e-12, atol=1e-14)
    own_slopes, our_slopes = values_and_slopes(own, X)[1], values_and_slopes(ours, X)[1]
    for name in our_slopes:
        np.testing.assert_allclose(
            own_slopes[name], our_slopes[name], rtol=1e-10, atol=1e-12
        )


def test_calls_work_inside_jit_and_grad() -> None:
    X = inputs(2)
    slope = jax.grad(lambda s: jnp.sum(Matern52(s, 1.0)(X)))(2.0)
    np.testing.assert_allclose(slope, np.sum(Matern52(1.0, 1.0)(X)), rtol=1e-12)


# --- Bad input: the message says what to do -------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Matern52(lengthscales=-1.0), r"lengthscales=.*must be positive"),
        (lambda: Matern52(lengthscales=[1.0, 0.0]), r"lengthscales=.*must be positive"),
        (
            lambda: Matern52(lengthscales=fixed(-2.0)),
            r"lengthscales=.*must be positive",
        ),
        (lambda: Matern52(variance=-0.1), r"variance=.*must not be negative"),
        (lambda: Matern52(variance=np.nan), r"variance=.*must be finite"),
        (lambda: Matern52(variance="large"), r"variance=.*must be a number.*'large'"),
        (lambda: Matern52(variance="1.0"), r"variance=.*must be a number.*'1.0'"),
        (lambda: Matern52(variance=None), r"variance=.*must be a number.*None"),
        (lambda: Matern52(variance=[[1.0]]), r"scalar or a vector.*\(1, 1\)"),
        (lambda: White(variance=dist.Poisson(2.0)), r"Poisson is discrete.*Gamma"),
        (lambda: White(variance=dist.Normal(0.0, 1.0)), r"Normal.*negative.*LogNormal"),
        (
            lambda: White(
                variance=dist.ImproperUniform(dist.constraints.positive, (), ())
            ),
            r"proper prior.*LogNormal",
        ),
        (
            lambda: Matern52(lengthscales=dist.Gamma(1.0, 1.0).expand([2, 2])),
            r"prior has shape \(2, 2\)",
        ),
        (lambda: Matern52(active_dims="time"), r"active_dims must be column numbers"),
        (lambda: Matern52(active_dims=[0.5]), r"active_dims must be column numbers"),
        (lambda: Matern52(active_dims=[]), r"active_dims must be column numbers"),
        (lambda: Polynomial(degree=0), r"degree=.*1, 2, 3"),
        (lambda: Polynomial(degree=2.5), r"degree=.*1, 2, 3"),
        (lambda: Periodic(White()), r"Periodic.*needs.*got White"),
        (lambda: White() + 1.0, r"kernels add to.*Constant\(variance="),
        (lambda: White() * 2.0, r"kernels add to.*Constant\(variance="),
    ],
)
def test_bad_specifications_are_refused(make: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Matern52(active_dims=[2]), r"active_dims of kernel is \[2\].*2 column"),
        (Matern52(active_dims=[-1]), r"active_dims of kernel is \[-1\]"),
        (Matern52(active_dims=slice(2, 4)), r"active_dims of kernel.*2 column"),
        (White() + Matern52(active_dims=[5]), r"active_dims of kernel\[1\] is \[5\]"),
        (
            Matern52(lengthscales=[1.0, 2.0, 3.0]),
            r"kernel.lengthscales has 3 values.*2",
        ),
        (
            Matern52(lengthscales=[1.0, 2.0], active_dims=[1]),
            r"kernel.lengthscales has 2 values.*sees 1 input",
        ),
        (
            Matern52(lengthscales=dist.Gamma(1.0, 1.0).expand([3])),
            r"kernel.lengthscales has 3 values",
        ),
        (Matern52(lengthscales=fixed([1.0, 2.0, 3.0])), r"lengthscales has 3 values"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(inputs(2))


def test_a_vector_where_only_a_scalar_makes_sense_is_refused() -> None:
    for kernel in (Matern52([1.0, 2.0]), White(fixed([1.0, 2.0]))):
        with pytest.raises(ValueError, match=r"variance.*scalar"):
            kernel(inputs(2))


def test_every_public_kernel_is_tested_here() -> None:
    concrete = {
        name
        for name, item in vars(kernels).items()
        if isinstance(item, type)
        and issubclass(item, Kernel)
        and not name.startswith("_")
        and not item.__abstractmethods__
    }
    tested = {type(k).__name__ for k, _ in CASES.values()}
    assert concrete - {"Leaf", "Isotropic", "Pairwise"} == tested

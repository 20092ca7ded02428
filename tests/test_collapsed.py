"""f integrated out: Titsias's bound, EP, VI and Laplace, dense and sparse."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.polynomial.hermite_e import hermegauss

from steingp import SteinGP, fixed, flat, kernels, likelihoods, means
from steingp.data import Batch
from steingp.likelihoods.quadrature import tilted_moments
from steingp.targets import Collapsed, Marginal, Target, Titsias, marginals
from steingp.targets.sites import TOLERANCE, Rows, Sites

rng = np.random.default_rng(0)
N = 24
X = rng.normal(size=(N, 2))
f = np.sin(2.0 * X[:, 0])
OUTLIERS = f + 0.1 * rng.standard_t(2, size=N)
OUTLIERS[3] = 8.0
Y = {
    "Gaussian": f + 0.1 * rng.normal(size=N),
    "Bernoulli": (rng.uniform(size=N) < 1 / (1 + np.exp(-2 * f))).astype(float),
    "Poisson": rng.poisson(np.exp(f + 1)).astype(float),
    "NegativeBinomial": rng.poisson(np.exp(f + 1)).astype(float),
    "StudentT": OUTLIERS,
    "Gamma": rng.gamma(2.0, np.exp(f)),
}
DENSE = [("Bernoulli", "ep"), ("Bernoulli", "vi"), ("Bernoulli", "laplace"),
         ("Poisson", "ep"), ("NegativeBinomial", "ep"), ("NegativeBinomial", "laplace"),
         ("Gamma", "vi"), ("StudentT", "vi"), ("Gaussian", None)]  # fmt: skip
SPARSE = [("Bernoulli", "ep"), ("Poisson", "vi"), ("NegativeBinomial", "laplace"),
          ("StudentT", "vi"), ("Gaussian", None)]  # fmt: skip


def model_of(name: str, rule: str | None = None, **options: Any) -> SteinGP:
    return SteinGP(
        (X, Y[name]),
        options.pop("kernel", kernels.SquaredExponential()),
        options.pop("likelihood", getattr(likelihoods, name)()),
        approximation=rule,
        **options,
    )


def batch_of(model: SteinGP) -> Batch:
    return Batch(*(jnp.asarray(column) for column in model.data))


def density_of(model: SteinGP) -> tuple[Callable, jax.Array, Target]:
    """The converged log density of a vector, a point, and the target in z."""
    target, batch = model.target.normalised(), batch_of(model)
    if isinstance(target, Collapsed):
        target = dataclasses.replace(target, tolerance=1e-8)
    free = target.specification.hyperparameters.free
    z, unravel = ravel_pytree({p.name: jnp.full(p.shape, 0.2) for p in free})
    density = jax.jit(jax.value_and_grad(lambda z: target(unravel(z), batch)))
    return density, z, target


def finite_differences(function: Callable, z: jax.Array, e: float = 1e-4) -> np.ndarray:
    """Central differences of fourth order."""
    slopes = []
    for i in range(len(z)):
        at = [float(function(z.at[i].add(k * e))) for k in (-2, -1, 1, 2)]
        slopes.append((at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * e))
    return np.array(slopes)


@pytest.mark.parametrize(
    ("name", "rule", "sparse"),
    [(*pair, False) for pair in DENSE] + [(*pair, True) for pair in SPARSE],
)
def test_gradients_are_those_of_the_converged_value(
    name: str, rule: str | None, sparse: bool
) -> None:
    options: dict[str, Any] = {"inducing": X[:8]} if sparse else {}
    model = model_of(name, rule, mean=means.Constant(0.3), **options)
    value_and_slope, z, _ = density_of(model)
    slope = value_and_slope(z)[1]
    expected = finite_differences(lambda z: value_and_slope(z)[0], z)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(slope, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize(("y0", "y1"), [(1.0, 1.0), (1.0, 0.0)])
def test_ep_evidence_of_two_rows_equals_quadrature(
    link: str, y0: float, y1: float
) -> None:
    x = np.array([[0.0], [0.7]])
    kernel = kernels.SquaredExponential(fixed(2.5), fixed(1.0))
    model = SteinGP(
        (x, np.array([y0, y1])), kernel, likelihoods.Bernoulli(link=link), jitter=0.0
    )
    nodes, weights = hermegauss(60)
    L = np.linalg.cholesky(kernel(x))
    a, b = np.meshgrid(nodes, nodes, indexing="ij")
    w = np.outer(weights, weights) / (2 * np.pi)
    f0, f1 = L[0, 0] * a, L[1, 0] * a + L[1, 1] * b
    likelihood, row = model.target.specification.likelihood, np.zeros(())
    p = np.exp(
        likelihood.log_prob(jnp.asarray(y0), jnp.asarray(f0), row)
        + likelihood.log_prob(jnp.asarray(y1), jnp.asarray(f1), row)
    )
    exact = np.log(np.sum(w * p))
    assert isinstance(model.target, Collapsed) and model.target.rule == "ep"
    value = model.target.log_likelihood({}, batch_of(model))
    np.testing.assert_allclose(value, exact, atol=0.01)
    # and f's moments
    mean = np.sum(w * p * f0) / np.sum(w * p)
    variance = np.sum(w * p * f0**2) / np.sum(w * p) - mean**2
    found = model.target.solution({}, batch_of(model))
    np.testing.assert_allclose(found.mean[0], mean, atol=0.02)
    np.testing.assert_allclose(found.variance[0], variance, rtol=0.03)


@pytest.mark.parametrize("rule", ["ep", "vi", "laplace"])
def test_gaussian_rows_make_every_rule_exact(rule: str) -> None:
    exact = model_of("Gaussian")
    assert isinstance(exact.target, Marginal)
    target = Collapsed(
        exact.target.specification, start=Collapsed.at_rest(N), rule=rule
    )
    theta = exact.target.specification.hyperparameters.start()
    batch = batch_of(exact)
    np.testing.assert_allclose(
        target.log_likelihood(theta, batch),
        exact.target.log_likelihood(theta, batch),
        rtol=1e-9,
    )
    bound = exact.target.specification.at(theta)
    new = jnp.asarray(rng.normal(size=(5, 2)))
    ours = marginals(bound, target.condition(theta, batch), new)
    theirs = marginals(bound, exact.target.condition(theta, batch), new)
    # the exact one has jitter in its noise, the other in its prior
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-4)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-4)


def test_titsias_is_vi_with_gaussian_rows() -> None:
    model = model_of("Gaussian", inducing=X[:8])
    assert isinstance(model.target, Titsias)
    vi = Collapsed(
        model.target.specification,
        start=Collapsed.at_rest(N),
        Z=model.target.Z,
        rule="vi",
    )
    theta = model.target.specification.hyperparameters.start()
    batch = batch_of(model)
    np.testing.assert_allclose(
        vi.log_likelihood(theta, batch),
        model.target.log_likelihood(theta, batch),
        rtol=1e-9,
    )
    a, b = vi.condition(theta, batch), model.target.condition(theta, batch)
    np.testing.assert_allclose(a.white, b.white, atol=1e-8)
    np.testing.assert_allclose(a.root @ a.root.T, b.root @ b.root.T, atol=1e-8)


def test_titsias_with_all_rows_is_exact_and_blocks_do_not_matter() -> None:
    exact = model_of("Gaussian", jitter=1e-10)
    sparse = model_of("Gaussian", inducing=X, jitter=1e-10)
    theta = exact.target.specification.hyperparameters.start()
    batch = batch_of(exact)
    value = sparse.target.log_likelihood(theta, batch)
    np.testing.assert_allclose(
        value, exact.target.log_likelihood(theta, batch), atol=1e-6
    )
    blocked = Titsias(sparse.target.specification, Z=X, jitter=1e-10, block_rows=7)
    slope = jax.grad(lambda t: sparse.target.log_likelihood(t, batch))(theta)
    blocked_slope = jax.grad(lambda t: blocked.log_likelihood(t, batch))(theta)
    np.testing.assert_allclose(blocked.log_likelihood(theta, batch), value, rtol=1e-12)
    for name in slope:
        np.testing.assert_allclose(slope[name], blocked_slope[name], rtol=1e-7)


def test_white_noise_of_a_sparse_kernel_counts_as_noise() -> None:
    smooth = kernels.SquaredExponential(fixed(1.0), fixed(1.0))
    one = model_of(
        "Gaussian", kernel=smooth + kernels.White(fixed(0.3)), inducing=X[:8],
        likelihood=likelihoods.Gaussian(fixed(0.2)),
    )  # fmt: skip
    two = model_of(
        "Gaussian", kernel=smooth, inducing=X[:8],
        likelihood=likelihoods.Gaussian(fixed(0.5)),
    )  # fmt: skip
    a, b = (m.target.log_likelihood({}, batch_of(m)) for m in (one, two))
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(("name", "rule"), [("Bernoulli", "ep"), ("StudentT", "vi")])
def test_the_start_of_the_iteration_does_not_matter(name: str, rule: str) -> None:
    model = model_of(name, rule)
    target, batch = model.target, batch_of(model)
    assert isinstance(target, Collapsed)
    target = dataclasses.replace(target, tolerance=1e-6)
    theta = target.specification.hyperparameters.start()
    other = {k: 1.02 * v for k, v in theta.items()}

    @eqx.filter_jit
    def solved(target: Collapsed, theta: Any) -> Any:
        return target.solution(theta, batch), target.log_likelihood(theta, batch)

    sites = Sites(*(np.asarray(s) for s in solved(target, other)[0].sites))
    cold, value = solved(target, theta)
    warmed, same = solved(target.started_at(sites), theta)
    assert cold.to_go < 1e-6 and warmed.to_go < 1e-6
    assert warmed.num_iterations < cold.num_iterations
    np.testing.assert_allclose(warmed.mean, cold.mean, atol=1e-5)
    np.testing.assert_allclose(same, value, rtol=1e-9)


def test_the_order_of_bounds() -> None:
    """VI is a lower bound; EP's evidence lies close to the importance-sampled truth."""
    theta = model_of("Bernoulli").target.specification.hyperparameters.start()
    values, errors = {}, {}
    for rule in ("ep", "vi", "laplace"):
        model = model_of("Bernoulli", rule)
        target, batch = model.target, batch_of(model)
        assert isinstance(target, Collapsed)
        values[rule] = float(target.log_likelihood(theta, batch))
        key = jax.random.key(0)
        errors[rule] = float(target.log_error(theta, batch, key, 20_000))
    truth = values["ep"] + errors["ep"]
    for rule, value in values.items():
        # three independent estimates of one truth
        assert value + errors[rule] == pytest.approx(truth, abs=0.02)
    assert abs(errors["ep"]) < 0.01
    assert values["vi"] < truth + 0.005
    assert errors["laplace"] > 0.02  # Laplace is the one that is off


def test_extreme_rows_converge() -> None:
    counts = np.array([0.0, 1000.0, 3.0, 0.0, 25_000.0, 1.0])
    x = np.linspace(-2.0, 2.0, 6)[:, None]
    for rule in ("ep", "vi", "laplace"):
        kernel = kernels.Matern32(fixed(20.0), fixed(0.7))
        model = SteinGP((x, counts), kernel, likelihoods.Poisson(), approximation=rule)
        assert isinstance(model.target, Collapsed)
        found = model.target.solution({}, batch_of(model))
        assert found.to_go < TOLERANCE
        np.testing.assert_allclose(found.mean[4], np.log(25_000.0), atol=0.05)


@pytest.mark.parametrize("faintest", [0.1, 1e-9, 0.0])
def test_q_is_that_of_dense_matrices_however_faint_a_site(faintest: float) -> None:
    # below a share of 1e-6 in q a row's variance takes another way
    K = 2.0 * np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1)) + 1e-6 * np.eye(N)
    tau = rng.uniform(0.1, 1.0, size=N)
    tau[5] = faintest
    nu = rng.normal(size=N)
    with jax.enable_x64(True):
        mean, variance, log_integral = Rows(jnp.asarray(K)).q(Sites(tau, nu))
    covariance = np.linalg.solve(np.eye(N) + K * tau[None, :], K)
    np.testing.assert_allclose(variance, np.diag(covariance), rtol=1e-8)
    np.testing.assert_allclose(mean, covariance @ nu, atol=1e-8)
    log_det = np.linalg.slogdet(np.eye(N) + K * tau[None, :])[1]
    exact = 0.5 * nu @ covariance @ nu - 0.5 * log_det
    np.testing.assert_allclose(log_integral, exact, rtol=1e-10)


def test_blocks_as_on_a_gpu_give_the_same_evidence_and_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "steingp.linalg.inverses.GPU_LEAF", 10
    )  # three blocks of eight rows
    found = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        density, z, _ = density_of(model_of("Bernoulli", "ep"))
        with jax.enable_x64(True):
            found.append(jax.vmap(density)(jnp.stack([z, 2.0 * z])))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7)


def test_errors_of_the_evidence_do_not_depend_on_how_they_are_computed() -> None:
    model = model_of("Bernoulli", "ep")
    density = flat.Flat(model.target.normalised())
    positions = 0.3 * rng.normal(size=(260, 3))  # two blocks of 250
    together = flat.log_errors(density, positions, 1, batch_of(model))
    assert together.shape == (260,) and np.ptp(together) > 1e-3
    numbered = jnp.column_stack([positions, np.arange(260.0)])
    given = (batch_of(model), jax.random.key_data(jax.random.key(1)))
    as_on_a_gpu = flat._log_errors_compiled(density, given, numbered[:250])
    np.testing.assert_allclose(together[:250], as_on_a_gpu, atol=1e-8)
    # of the same position, but with randomness of its own
    again = flat.log_errors(density, positions[[7, 7]], 1, batch_of(model))
    assert 0.0 < abs(again[1] - again[0]) < 1.0


def test_tilted_moments_against_a_fine_grid() -> None:
    for y, mean, variance in ((0.0, 1.0, 25.0), (40.0, 0.0, 4.0), (2.0, -1.0, 0.3)):

        def log_f(f: Any, y: float = y) -> Any:
            return y * f - jnp.exp(f)

        got = tilted_moments(log_f, jnp.array([mean]), jnp.array([variance]))
        grid = np.linspace(mean - 60.0, mean + 30.0, 400_001)
        log_p = y * grid - np.exp(grid) - 0.5 * (grid - mean) ** 2 / variance
        p = np.exp(log_p - log_p.max())
        p /= p.sum()
        m = p @ grid
        np.testing.assert_allclose(got[0][0], m, rtol=1e-8)
        np.testing.assert_allclose(got[1][0], p @ (grid - m) ** 2, rtol=1e-7)


def test_approximations_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match='"ep", "vi" or "laplace"; got \'mcmc\''):
        model_of("Bernoulli", "mcmc")
    with pytest.raises(ValueError, match=r'StudentT has not; use "vi"'):
        model_of("StudentT", "ep")


NEAR = [("Bernoulli", "ep"), ("Bernoulli", "vi"), ("Bernoulli", "laplace"),
        ("Poisson", "ep"), ("Poisson", "vi"), ("StudentT", "vi")]  # fmt: skip


@pytest.mark.parametrize(("name", "rule"), NEAR)
def test_an_iteration_ends_as_near_to_its_limit_as_it_says(
    name: str, rule: str
) -> None:
    model = model_of(name, rule)
    target, batch = model.target, batch_of(model)
    assert isinstance(target, Collapsed)
    theta = target.specification.hyperparameters.start()
    limit = dataclasses.replace(target, tolerance=1e-11).solution(theta, batch)
    iterations = []
    for tolerance in (1e-2, 1e-4, 1e-6):
        found = dataclasses.replace(target, tolerance=tolerance).solution(theta, batch)
        off = np.max(np.abs(found.mean - limit.mean) / np.sqrt(limit.variance))
        off = max(off, np.max(np.abs(found.variance / limit.variance - 1.0)))
        # a ratio of two steps is an estimate: it may still be off by a factor
        assert off < 2.0 * float(found.to_go) <= 2.0 * tolerance
        iterations.append(int(found.num_iterations))
    assert iterations[0] < iterations[1] < iterations[2] < int(limit.num_iterations)


def test_an_iteration_that_goes_round_in_circles_says_so() -> None:
    kernel = kernels.SquaredExponential(fixed(400.0), fixed(0.3))
    model = model_of("Bernoulli", "vi", kernel=kernel)
    assert isinstance(model.target, Collapsed)
    solved = [
        dataclasses.replace(model.target, tolerance=tolerance)
        .solution({}, batch_of(model))
        for tolerance in (TOLERANCE, 1e-9)
    ]  # fmt: skip
    off = np.abs(solved[0].mean - solved[1].mean) / np.sqrt(solved[1].variance)
    assert np.max(off) < 2.0 * float(solved[0].to_go) + 2.0 * float(solved[1].to_go)


@pytest.mark.parametrize(
    ("variance", "rule"), [(100.0, "ep"), (1e4, "ep"), (100.0, "vi")]
)
def test_labels_that_inputs_part_do_not_send_it_back_and_forth(
    variance: float, rule: str
) -> None:
    # all sites at once overshoot where f is large: without shorter steps it goes
    # between two q for ever; EP's have 0.4 and 2.7 of each other's variance
    X = np.linspace(-2.0, 2.0, 60)[:, None]
    kernel = kernels.SquaredExponential(fixed(variance), fixed(2.0))
    model = SteinGP(
        (X, (X[:, 0] > 0.3).astype(float)),
        kernel,
        likelihoods.Bernoulli(),
        approximation=rule,
    )
    target, batch = model.target, batch_of(model)
    assert isinstance(target, Collapsed)
    found = target.solution({}, batch)
    assert float(found.to_go) <= TOLERANCE
    limit = dataclasses.replace(target, tolerance=1e-7).solution({}, batch)
    assert float(limit.to_go) <= 1e-7
    np.testing.assert_allclose(found.variance, limit.variance, rtol=2 * TOLERANCE)

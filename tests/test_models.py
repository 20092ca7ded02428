"""Models from the user's side: what goes in, what is refused, what comes out."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest

import steingp as sg
from steingp import kernels, likelihoods, means

rng = np.random.default_rng(3)
X = rng.normal(size=(40, 2))
f = np.sin(2 * X[:, 0])
y = f + 0.1 * rng.normal(size=40)
labels = (f > 0).astype(int)
counts = rng.poisson(np.exp(f))
kernel = kernels.Matern52()


def replaced(values: np.ndarray, row: int, value: float) -> np.ndarray:
    values = values.astype(float).copy()
    values[row] = value
    return values


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: sg.SteinGP((replaced(X, 3, np.nan), y), kernel), "X has NaN.*row 3"),
        (lambda: sg.SteinGP((X, replaced(y, 5, np.inf)), kernel), "y has NaN.*row 5"),
        (lambda: sg.SteinGP((X, y[:-1]), kernel), "X has 40 rows and y has 39"),
        (lambda: sg.SteinGP((X[:0], y[:0]), kernel), "at least one row"),
        (lambda: sg.SteinGP((X, y, y), kernel), r"passed as a pair \(X, y\)"),
        (
            lambda: sg.SteinGP((X, 2 * labels), kernel, likelihoods.Bernoulli()),
            "row .* is 2",
        ),
        (
            lambda: sg.SteinGP((X, counts - 9), kernel, likelihoods.Poisson()),
            "y must hold .*counts|y must hold .*whole",
        ),
        (
            lambda: sg.SteinGP((X, counts + 0.5), kernel, likelihoods.Poisson()),
            "y must hold",
        ),
        (
            lambda: sg.SteinGP((X, y), kernel, inducing=np.zeros((5, 3))),
            "inducing has 3",
        ),
        (
            lambda: sg.SteinGP((X, y), kernel, inducing=0),
            "inducing, if not .* at least 1",
        ),
        (lambda: sg.SteinGP((X, y), kernel, inducing=2.7), "inducing, if not an array"),
        (lambda: sg.SteinGP((X, y), kernel, inducing="kmeans"), "inducing, if not an"),
        (lambda: sg.SteinGP((X, y), kernel, inducing=5, batch_size=8.0), "batch_size"),
        (lambda: sg.SteinGP((X, y), kernel, seed=0.5), "seed must be a whole number"),
        (lambda: sg.RBF(bandwidth=1.0), "must be a rule such as"),
        (lambda: sg.SVGD(sg.SteinGP((X, y), kernel), n_particles=2.5), "whole number"),
        (lambda: sg.SVGD(sg.SteinGP((X, y), kernel)).run(10.0), "iterations must be"),
        (
            lambda: sg.SteinGPR(
                (X, labels), kernel, likelihood=likelihoods.Bernoulli()
            ),
            "SteinMC",
        ),
        (
            lambda: sg.SteinGP((X, y), kernel).predict(X, {"kernel.variance": [1.0]}),
            "kernel.lengthscales.*got nothing",
        ),
        (lambda: sg.SteinGP((X, y), kernel, inducing=500), "500"),
        (lambda: sg.SteinGP((X, y), kernel, batch_size=8), "give inducing points"),
        (
            lambda: sg.SteinGP((X, y), kernel, inducing=5, batch_size=0),
            "batch_size must be",
        ),
        (
            lambda: sg.SteinGP((X, y), kernels.Matern52(active_dims=[2])),
            "active_dims of kernel",
        ),
        (
            lambda: sg.SteinGP((X, y), kernels.Matern52(lengthscales=[1.0, 1.0, 1.0])),
            "3 values",
        ),
        (lambda: sg.SteinGP((X, y), kernels.Matern52), "the class Matern52"),
        (lambda: sg.SteinGP((X, y), "matern"), "kernel must be one of steingp.kernels"),
        (lambda: sg.SteinGP((X, y), kernel, "gaussian"), "likelihood must be one of"),
        (lambda: sg.SteinGP((X, y), kernel, mean=1.0), "mean must be one of"),
        (lambda: sg.SteinGP((X, y), kernel, jitter=-1.0), "jitter"),
        (lambda: sg.SteinGP((X, y), kernel, latents="both"), "latents"),
        (lambda: sg.SteinGP((X, y), kernel, num_data=7), "num_data=7"),
        (lambda: sg.SteinGP((X.astype(str).tolist(), y), kernel), "a str"),
        (lambda: sg.SteinGP((X, pd.date_range("2020", periods=40)), kernel), "numbers"),
        (lambda: sg.SteinGP((X, y + 1j), kernel), "must hold numbers"),
        (lambda: sg.SteinGP(([["a"], ["b"]], [0, 1]), kernel), "must hold numbers"),
        (
            lambda: sg.SteinGP(
                (X, counts), kernel, likelihoods.Poisson(exposure=np.ones(39))
            ),
            "exposure has 39",
        ),
        (lambda: sg.SteinGP([(X, y)], kernel, inducing=X[:5]), "num_data=None"),
        (lambda: sg.SteinGP([(X, y)], kernel, num_data=40), "needs a sparse model"),
        (
            lambda: sg.SteinGP([X, y], kernel, num_data=40, inducing=X[:5]),
            "every block must be",
        ),
        (lambda: sg.SVGD(sg.SteinGP((X, y), kernel), n_particles=0), "at least 1"),
        (lambda: sg.SVGD(sg.SteinGP((X, y), kernel), "rbf"), "kappa must be"),
        (lambda: sg.fit(sg.SteinGP((X, y), kernel), num_particles=0), "at least 1"),
        (lambda: sg.fit(kernel), "model must be a steingp model"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    build: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    def no_work(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled before the input was checked")

    monkeypatch.setattr(sg.svgd, "_run_chunk", no_work)
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.user_precision
@pytest.mark.parametrize(
    "data",
    [
        (X.astype(np.float32), y.astype(np.float32)),
        (X, y[:, None]),
        (X.tolist(), y.tolist()),
        (pd.DataFrame(X, columns=["a", "b"]), pd.Series(y)),
        (np.repeat(X, 2, axis=0), np.repeat(y, 2)),
        ((10 * X).astype(int) / 10, y),
    ],
    ids=["float32", "column", "lists", "pandas", "duplicates", "rounded"],
)
def test_data_of_all_kinds_is_accepted_and_computed_in_float64(data: Any) -> None:
    opt = sg.SVGD(sg.SteinGP(data, kernel), n_particles=3)
    opt.run(3)
    posterior = opt.posterior()
    prediction = posterior.predict_y(X[:4])
    assert prediction.mean.dtype == np.float64
    assert np.all(np.isfinite(prediction.log_prob(y[:4])))
    assert not jax.config.jax_enable_x64  # the user's setting is left alone


def test_pandas_names_the_lengthscales() -> None:
    frame = pd.DataFrame(X, columns=["age", "dose"])
    model = sg.SteinGP((frame, y), kernel)
    summary = sg.SVGD(model, n_particles=2).posterior().summary()
    assert "kernel.lengthscales[dose]" in summary


def test_warnings_for_constant_columns_and_scale() -> None:
    with pytest.warns(UserWarning, match="constant"):
        sg.SteinGP((X * [1.0, 0.0], y), kernel)
    with pytest.warns(UserWarning, match="far from unit scale"):
        sg.SteinGP((X * [1000.0, 1.0], y), kernel)
    sg.SteinGP((X * [1000.0, 1.0], y), kernel, standardise=True)
    chosen = kernels.Matern52(dist.Gamma(2.0, 1.0), dist.Gamma(2.0, 0.01))
    noise = likelihoods.Gaussian(dist.HalfNormal(1.0))
    sg.SteinGP((X * [1000.0, 1.0], y), chosen, noise)


def test_the_papers_names_build_the_right_targets() -> None:
    assert isinstance(sg.SteinGPR((X, y), kernel).target, sg.targets.Marginal)
    gaussian = likelihoods.Gaussian()
    assert isinstance(sg.SteinMC((X, y), kernel, gaussian).target, sg.targets.Whitened)
    sparse = sg.SteinSGPR((X, y), kernel, 7)
    assert isinstance(sparse.target, sg.targets.Sparse)
    assert sparse.target.Z.shape == (7, 2)
    batched = sg.StochSteinGPR((X, y), kernel, X[:5], batch_size=8)
    assert isinstance(batched.batches(), sg.batches.Minibatches)


def test_same_seed_same_result() -> None:
    for options in ({}, {"inducing": 6, "batch_size": 8}):
        model = sg.SteinGP((X, y), kernel, **options)
        effort = {"num_steps": 30} if options else {"effective_size": 20}
        one = sg.fit(model, num_particles=4, seed=2, **effort)
        again = sg.SteinGP((X, y), kernel, **options)
        two = sg.fit(again, num_particles=4, seed=2, **effort)
        other = sg.fit(model, num_particles=4, seed=3, **effort)
        for name, values in one.particles.items():
            np.testing.assert_array_equal(values, two.particles[name])
            assert not np.array_equal(values, other.particles[name])


def blocks() -> Any:
    for start in range(0, 40, 16):
        yield X[start : start + 16], y[start : start + 16]


@pytest.mark.parametrize(
    "build",
    [
        lambda: sg.SteinGP((X, y), kernel),
        lambda: sg.SteinMC((X, labels), kernel, likelihoods.Bernoulli()),
        lambda: sg.StochSteinGPR((X, y), kernel, inducing=X[:6], batch_size=8),
        lambda: sg.StochSteinGPR(
            blocks, kernel, inducing=X[:6], num_data=40, batch_size=None
        ),
    ],
    ids=["dense", "latents", "minibatched", "streamed"],
)
def test_a_stored_run_goes_on_to_the_same_result(build: Any) -> None:
    whole = sg.SVGD(build(), n_particles=3)
    whole.run(40, progress=False)
    first = sg.SVGD(build(), n_particles=3)
    first.run(17, progress=False)
    second = sg.SVGD(build(), n_particles=3, seed=99)
    second.load_state_dict(first.state_dict())
    second.run(23, progress=False)
    for name, values in whole.get_particles().items():
        np.testing.assert_array_equal(values, second.get_particles()[name])


def test_one_block_of_everything_is_the_full_batch() -> None:
    options = {"inducing": X[:6], "latents": "joint"}
    full = sg.SVGD(sg.SteinGP((X, y), kernel, **options), n_particles=3)
    stream = sg.SteinGP([(X, y)], kernel, num_data=40, **options)
    streamed = sg.SVGD(stream, n_particles=3)
    full.run(25, progress=False)
    streamed.run(25, progress=False)
    for name, values in full.get_particles().items():
        np.testing.assert_allclose(values, streamed.get_particles()[name], rtol=1e-9)


def test_streamed_exposure_comes_with_the_blocks() -> None:
    exposure = rng.uniform(0.5, 2.0, 40)
    stream = [
        (X[:25], counts[:25], exposure[:25]),
        (X[25:], counts[25:], exposure[25:]),
    ]
    model = sg.SteinGP(
        stream, kernel, likelihoods.Poisson(), inducing=X[:6], num_data=40
    )
    batches = list(model.stream.one_pass())
    rows = np.concatenate([b.row[b.mask > 0] for b in batches])
    np.testing.assert_array_equal(rows, exposure)
    with pytest.raises(ValueError, match="third item"):
        sg.SteinGP(
            stream,
            kernel,
            likelihoods.Poisson(exposure=2.0),
            inducing=X[:6],
            num_data=40,
        )


def test_a_stream_of_the_wrong_length_is_refused() -> None:
    model = sg.SteinGP(blocks, kernel, inducing=X[:6], num_data=41)
    with pytest.raises(ValueError, match="gave 40 rows, but num_data is 41"):
        sg.fit(model, num_particles=2, num_steps=20)
    one = blocks()
    spent = sg.SteinGP(lambda: one, kernel, inducing=X[:6], num_data=40)
    with pytest.raises(ValueError, match="fresh iterator"):
        sg.fit(spent, num_particles=2, num_steps=20)


def test_an_interrupted_stream_goes_on_to_the_same_result() -> None:
    interruptions = [KeyboardInterrupt]

    def interrupted() -> Any:
        for i, block in enumerate(blocks()):
            if i == 2 and interruptions:
                raise interruptions.pop()
            yield block

    def run(source: Any) -> dict[str, np.ndarray]:
        model = sg.SteinGP(source, kernel, inducing=X[:6], num_data=40, latents="joint")
        opt = sg.SVGD(model, n_particles=2)
        while int(opt.state.step) < 12:
            opt.run(12 - int(opt.state.step), progress=False)
        return opt.get_particles()

    with pytest.warns(UserWarning, match="interrupted"):
        broken = run(interrupted)
    for name, values in run(blocks).items():
        np.testing.assert_array_equal(values, broken[name])


def test_lengthscales_are_named_by_their_columns() -> None:
    frame = pd.DataFrame(X, columns=["age", "dose"])
    swapped = kernels.Matern52(active_dims=[1, 0]) + kernels.Matern12(active_dims=[1])
    model = sg.SteinGP((frame, y), swapped)
    summary = sg.SVGD(model, n_particles=2).posterior()
    names = [name for name in summary.summary() if "lengthscales" in name]
    assert names == [
        "kernel[0].matern52.lengthscales[dose]",
        "kernel[0].matern52.lengthscales[age]",
        "kernel[1].matern12.lengthscales[dose]",
    ]


def test_prior_samples_and_prior_predictive() -> None:
    prior = kernels.SquaredExponential(dist.Gamma(4.0, 2.0), sg.fixed(1.0))
    model = sg.SteinGP(
        (X, y), prior, likelihoods.Gaussian(dist.HalfNormal(0.5)),
        mean=means.Constant(dist.Normal(3.0, 0.1)),
    )  # fmt: skip
    n = 4000
    draws = model.sample_prior(n)
    assert set(draws) == {"kernel.variance", "mean.value", "likelihood.variance"}
    # Gamma(4, 2): mean 2, sd 1
    assert abs(draws["kernel.variance"].mean() - 2.0) < 5 / np.sqrt(n)
    simulated = model.sample_prior_predictive(X[:2], n)
    assert simulated.shape == (n, 2)
    # E y = 3; Var y = 0.01 + E variance + E noise = 0.01 + 2 + 0.5 sqrt(2 / pi)
    total = 0.01 + 2.0 + 0.5 * np.sqrt(2 / np.pi)
    assert np.all(np.abs(simulated.mean(axis=0) - 3.0) < 5 * np.sqrt(total / n))
    np.testing.assert_allclose(simulated.var(axis=0), total, rtol=0.15)


def test_any_optimiser_and_stein_kernel() -> None:
    model = sg.SteinGP((X, y), kernel)
    for kappa in (sg.IMQ(), sg.Matern(), sg.RandomFourier(), sg.RBF(sg.Constant(1.0)),
                  sg.RBF(sg.Cyclical(0.5, 2.0))):  # fmt: skip
        run = sg.SVGD(model, kappa, 4, optimiser=optax.adagrad(0.1))
        run.run(20, progress=False)
        assert np.all(np.isfinite(run.history.log_density))
        assert run.history.log_density[-1] > run.history.log_density[0]


def test_model_log_density_is_the_targets() -> None:
    model = sg.SteinGP((X, y), kernel)
    particles = model.sample_prior(3)
    values = model.log_density(particles)
    z = {k: jax.numpy.asarray(v[1]) for k, v in particles.items()}
    alone = model.target(
        model.target.unconstrain(z), jax.tree.map(jax.numpy.asarray, model.data)
    )
    np.testing.assert_allclose(values[1], alone, rtol=1e-12)


def test_nothing_to_infer_is_said() -> None:
    model = sg.SteinGP(
        (X, y), kernels.Constant(sg.fixed(1.0)), likelihoods.Gaussian(sg.fixed(0.1))
    )
    with pytest.raises(ValueError, match="nothing to infer"):
        sg.SVGD(model)
    assert sg.fit(model).num_draws == 1


def test_latents_only() -> None:
    # theta known, Gaussian noise, latents as particles: the paper's joint way
    known = kernels.SquaredExponential(sg.fixed(1.0), sg.fixed(1.0))
    noise = likelihoods.Gaussian(sg.fixed(0.05))
    joint = sg.fit(
        sg.SteinMC((X, y), known, noise), num_particles=10, num_steps=800
    ).predict_f(X)
    exact = sg.fit(sg.SteinGP((X, y), known, noise)).predict_f(X)
    assert np.sqrt(np.mean((joint.mean - exact.mean) ** 2)) < 0.1

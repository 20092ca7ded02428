"""Files: what is saved comes back to the last bit, and what is damaged is refused."""

import json
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints, transforms
from safetensors.numpy import load as tensors_of
from safetensors.numpy import save as bytes_of

import steingp as sg
from steingp import fixed, io, kernels, likelihoods, means, written
from steingp.diagnostics import Check, Verdict
from steingp.evidence import Evidence
from steingp.fitting import Fit
from steingp.kernels import Matern52
from steingp.posterior import Mode, Posterior
from steingp.priors import Slot, positive
from steingp.targets.variational import Q_MEAN, Q_ROOT

rng = np.random.default_rng(5)
X = rng.normal(size=(12, 2))
f = np.sin(2 * X[:, 0])
y = f + 0.1 * rng.normal(size=12)
labels = (f > 0).astype(int)
counts = rng.poisson(np.exp(f))
Z = X[:4] + 0.01
NEW = rng.normal(size=(5, 2))


def assert_same(one: Any, other: Any) -> None:
    """Equal as trees: structure, shapes, kinds, and every bit; functions are not asked."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    assert structure == other_structure
    for a, b in zip(leaves, others, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)


def assert_same_posterior(one: Posterior, other: Posterior) -> None:
    for name in (
        "particles", "weights", "labels", "method", "report", "history", "checkpoint",
        "modes", "paths", "trace", "verdict", "num_draws",
    ):  # fmt: skip
        assert_same(getattr(one, name), getattr(other, name))
    assert list(one.particles) == list(other.particles)
    assert_same(one._data, other._data)
    assert vars(one._scaling).keys() == vars(other._scaling).keys()
    assert_same(list(vars(one._scaling).values()), list(vars(other._scaling).values()))
    assert_same(one._target, other._target)
    assert repr(one) == repr(other)
    for predict in ("predict_f", "predict_y"):
        before, after = getattr(one, predict)(NEW), getattr(other, predict)(NEW)
        np.testing.assert_array_equal(before.mean, after.mean)
        np.testing.assert_array_equal(before.variance, after.variance)


def with_q(model: sg.SteinGP, num: int = 5) -> Posterior:
    """A posterior whose particles carry a q(u) made up."""
    M = len(model.target.Z)  # type: ignore[attr-defined]
    q = {
        Q_MEAN: rng.normal(size=(num, M)),
        Q_ROOT: np.eye(M) + 0.1 * np.tril(rng.normal(size=(num, M, M))),
    }
    return model.posterior(model.sample_prior(num) | q)


def draws_of(model: sg.SteinGP) -> Posterior:
    """A few draws from the prior, of unequal weight."""
    return model.posterior(model.sample_prior(5), weights=np.arange(1.0, 6.0) / 7.0)


TARGETS: dict[str, Callable[[], Posterior]] = {
    "Marginal": lambda: draws_of(
        sg.SteinGP(
            (pd.DataFrame(X, columns=["a", "b"]), 30.0 + 9.0 * y),
            Matern52() + kernels.White(variance=dist.HalfNormal(0.1)),
            likelihoods.Gaussian(known_variance=np.linspace(0.0, 0.3, 12)),
            mean=means.Constant(),
            standardise=True,
        )
    ),
    "Titsias": lambda: draws_of(
        sg.SteinGP((X, y), Matern52(), inducing=Z, jitter=1e-5)
    ),
    "Whitened": lambda: draws_of(
        sg.SteinMC((X, labels), Matern52(), likelihoods.Bernoulli("probit"))
    ),
    "Sparse": lambda: draws_of(
        sg.StochSteinGPR((X, y), Matern52(), inducing=Z, batch_size=4)
    ),
    "Collapsed": lambda: draws_of(
        sg.SteinGP(
            (X, counts), Matern52(), likelihoods.Poisson(exposure=np.arange(1.0, 13.0))
        )
    ),
    "Collapsed with Z": lambda: draws_of(
        sg.SteinGP((X, y), Matern52(), likelihoods.StudentT(df=4.0), inducing=Z)
    ),
    "Variational": lambda: with_q(
        sg.SteinGP((X, y), Matern52(), inducing=Z, batch_size=4)
    ),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_posterior_comes_back_to_the_last_bit(target: str, tmp_path: Path) -> None:
    posterior = TARGETS[target]()
    assert type(posterior._target).__name__ == target.split()[0]
    posterior.save(tmp_path / "one.steingp")
    assert_same_posterior(posterior, sg.load(tmp_path / "one.steingp"))
    assert os.listdir(tmp_path) == ["one.steingp"]


_ELSEWHERE = """
import sys
import numpy as np
import steingp as sg
folder = sys.argv[1]
for name in ("Collapsed", "Marginal"):
    posterior = sg.load(f"{folder}/{name}.steingp")
    prediction = posterior.predict_y(np.load(f"{folder}/new.npy"))
    np.save(f"{folder}/{name}.npy", [prediction.mean, prediction.variance])
    open(f"{folder}/{name}.txt", "w").write(repr(posterior))
"""


def test_another_process_predicts_the_same(tmp_path: Path) -> None:
    # in JAX's default precision, and with another order of sets
    np.save(tmp_path / "new.npy", NEW)
    posteriors = {name: TARGETS[name]() for name in ("Collapsed", "Marginal")}
    for name, posterior in posteriors.items():
        posterior.save(tmp_path / f"{name}.steingp")
    environment = os.environ | {
        "PYTHONHASHSEED": "77",
        "PYTHONPATH": str(Path(sg.__file__).parent.parent),
    }
    environment.pop("JAX_ENABLE_X64", None)
    subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(tmp_path)], check=True, env=environment
    )
    for name, posterior in posteriors.items():
        prediction = posterior.predict_y(NEW)
        there = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(there[0], prediction.mean)
        np.testing.assert_array_equal(there[1], prediction.variance)
        assert (tmp_path / f"{name}.txt").read_text() == repr(posterior)


@pytest.mark.user_precision
def test_without_double_precision_and_from_a_thread(tmp_path: Path) -> None:
    # Beta's constructor computes: in float32 here
    kernel = Matern52(variance=dist.Beta(2.0, 0.3), lengthscales=dist.LogNormal(0, 1))
    posterior = draws_of(sg.SteinGP((X, y), kernel))
    posterior.save(tmp_path / "one.steingp")
    assert_same_posterior(posterior, sg.load(tmp_path / "one.steingp"))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(sg.load(tmp_path / "one.steingp").predict_y(NEW))
    )
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0].mean, posterior.predict_y(NEW).mean)
    assert found[0].mean.dtype == np.float64
    with jax.enable_x64(True):
        assert_same(posterior._target, sg.load(tmp_path / "one.steingp")._target)


# --- every part of a model --------------------------------------------------------------

KERNELS = [
    kernels.SquaredExponential(variance=2.0, lengthscales=[1.0, 0.1]),
    kernels.RationalQuadratic(alpha=fixed(0.3), active_dims=[1]),
    kernels.Matern12(variance=fixed(0.0), active_dims=slice(0, 2, 2)),
    kernels.Matern32(lengthscales=np.array([0.1, 0.2])),
    kernels.Matern52(lengthscales=dist.Gamma(2.0, [0.1, 0.3])),
    kernels.Periodic(kernels.Matern32(active_dims=[0]), period=0.7),
    kernels.Cosine(variance=1 / 3),
    kernels.Linear(variance=[0.1, 0.2]),
    kernels.Polynomial(degree=2, offset=0.1),
    kernels.White(variance=1e-300),
    kernels.Constant(variance=0.2),
    kernels.Matern12() + kernels.Matern32() * (kernels.Constant() + kernels.White(0.3)),
    kernels.Matern12() * kernels.Constant(variance=dist.Exponential(0.1)),
]
MEANS = [
    means.Zero(),
    means.Constant(dist.Normal(0.1, 2.0)),
    means.Linear(dist.Normal(0.0, 0.1).expand([2]), intercept=fixed(-0.3)),
]
LIKELIHOODS = [
    likelihoods.Gaussian(fixed(0.0), known_variance=[0.1, 0.4]),
    likelihoods.StudentT(scale=0.1, df=dist.Gamma(2.0, 0.1)),
    likelihoods.Bernoulli(link="probit"),
    likelihoods.Poisson(exposure=2.5),
    likelihoods.NegativeBinomial(dispersion=0.2, exposure=[1.0, 2.0, 3.0]),
    likelihoods.Exponential(),
    likelihoods.Gamma(shape=0.7),
]


def through(value: Any, classes: Any = ()) -> Any:
    """Written to JSON and arrays, and read again, by way of texts and bytes."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(written.write(value, "kernel", arrays), allow_nan=False)
    return written.read(json.loads(text), tensors_of(bytes_of(arrays)), classes)


@pytest.mark.parametrize(
    "part", [*KERNELS, *MEANS, *LIKELIHOODS], ids=lambda part: type(part).__name__
)
def test_every_part_comes_back(part: Any) -> None:
    found = through(part)
    assert type(found) is type(part)
    assert_same(part, jax.tree.map(np.asarray, found))


def test_a_jax_array_in_a_slot_comes_back_as_its_numbers() -> None:
    scales = jnp.array([0.1, 0.2], jnp.float32)
    found = through(Matern52(lengthscales=scales))
    np.testing.assert_array_equal(found.lengthscales, np.asarray(scales))


def test_the_rule_of_an_approximation_comes_back() -> None:
    model = sg.SteinGP(
        (X, labels), Matern52(), likelihoods.Bernoulli(), approximation="laplace"
    )
    text = written.write_target(model.target, 2, arrays := {})
    assert_same(model.target, written.read_target(text, arrays))


def concrete(prefix: str) -> set[type]:
    return {
        kind for name, kind in written.TABLE.items()
        if name.startswith(prefix) and not getattr(kind, "__abstractmethods__", ())
    }  # fmt: skip


def test_no_part_is_forgotten() -> None:
    assert {type(kernel) for kernel in KERNELS} == concrete("kernels.")
    assert {type(mean) for mean in MEANS} == concrete("means.")
    assert {type(one) for one in LIKELIHOODS} == concrete("likelihoods.")
    assert {name.split()[0] for name in TARGETS} == {
        kind.__name__ for kind in concrete("targets.")
    }


def priors() -> list[dist.Distribution]:
    """One of every kind, made in the precision that holds now."""
    pair = jnp.array([0.3, 0.7])
    root = jnp.array([[1.0, 0.0], [0.1, 0.3]])
    some = [
        dist.AsymmetricLaplace(1.0, 2.0, 0.3),
        dist.AsymmetricLaplaceQuantile(0.1, 0.2, 0.3),
        dist.Beta(2.0, 0.3),
        dist.Cauchy(0.1, 1.0),
        dist.Chi2(0.3),
        dist.Dagum(0.1, 0.2, 0.3),
        dist.DoublyTruncatedPowerLaw(-2.1, 0.3, 2.0),
        dist.Exponential(0.1),
        dist.Exponential(0.1).expand([2]),
        dist.FoldedDistribution(dist.Normal(0.1, 0.2)),
        dist.Gamma(2, 1),
        dist.Gamma(np.float64(2.0), np.float32(0.1)),
        dist.Gamma(2.0, 0.1, validate_args=True),
        dist.Gamma(pair, 0.3).to_event(1),
        dist.Gompertz(0.1, 0.2),
        dist.Gumbel(0.1, 0.2),
        dist.HalfCauchy(0.3),
        dist.HalfNormal([0.1, 0.2]),
        dist.InverseGamma(2.0, 0.1),
        dist.Kumaraswamy(0.1, 0.2),
        dist.Laplace(0.1, 0.2),
        dist.Levy(0.1, 0.2),
        dist.LogNormal(0.1, 0.2),
        dist.LogUniform(0.1, 3.0),
        dist.Logistic(0.1, 0.2),
        dist.LowerTruncatedPowerLaw(-2.1, 0.3),
        dist.MixtureSameFamily(dist.Categorical(probs=pair), dist.Gamma(pair, 0.3)),
        dist.MixtureSameFamily(dist.Categorical(logits=pair), dist.Gamma(pair, 0.3)),
        dist.MultivariateNormal(pair, root @ root.T),
        dist.MultivariateNormal(pair, precision_matrix=root @ root.T),
        dist.MultivariateNormal(0.1, scale_tril=root),
        dist.MultivariateStudentT(3.0, pair, root),
        dist.Normal(0.1, pair),
        dist.Pareto(0.1, 2.0),
        dist.SoftLaplace(0.1, 0.2),
        dist.StudentT(3.0, 0.1, 0.2),
        dist.TransformedDistribution(
            dist.Normal(0.1, 0.2),
            [
                transforms.ExpTransform(),
                transforms.AffineTransform(0.1, 2.0, domain=constraints.positive),
            ],
        ),
        dist.TruncatedCauchy(low=0.1),
        dist.TruncatedNormal(0.1, 0.7, high=0.9),
        dist.TruncatedNormal(0.1, 0.7, low=0.2),
        dist.TruncatedNormal(0.1, 0.7, low=0.2, high=np.inf),
        dist.Uniform(0.1, 0.2),
        dist.Weibull(0.3, 0.1),
    ]
    if hasattr(dist, "TruncatedGamma"):
        some += [
            dist.TruncatedGamma(2.0, 0.1, low=0.3),
            dist.TruncatedGamma(2.0, 0.1, high=0.3),
            dist.TruncatedGamma(2.0, 0.1, low=0.1, high=0.3),
        ]
    return some


@pytest.mark.parametrize("x64", [True, False])
def test_every_prior_comes_back(x64: bool) -> None:
    with jax.enable_x64(x64):
        some = priors()
    for prior in some:
        # only the way of a slot knows the precision
        text = written._write_prior(prior, "slot", arrays := {})
        found = written.read(text, arrays)
        leaves, structure = jax.tree.flatten(prior)
        others, other_structure = jax.tree.flatten(found)
        assert structure == other_structure, prior
        for a, b in zip(leaves, others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_no_prior_is_forgotten() -> None:
    tested = {
        type(leaf).__name__
        for prior in priors()
        for leaf in (prior, *(v for v in vars(prior).values()))
        if isinstance(leaf, dist.Distribution)
    } | {"CategoricalProbs", "CategoricalLogits"}
    assert tested >= {n for n in written.DISTRIBUTIONS if hasattr(dist, n)}


@pytest.mark.parametrize(
    "transform",
    [
        transforms.AbsTransform(),
        transforms.ComposeTransform(
            [transforms.SoftplusTransform(), transforms.PowerTransform(0.3)]
        ),
        transforms.IdentityTransform(),
        transforms.SigmoidTransform(),
        transforms.LowerCholeskyAffine(np.array([0.1, 0.2]), np.eye(2)),
    ],
)
def test_transforms_come_back(transform: Any) -> None:
    assert_same(transform, jax.tree.map(np.asarray, through(transform)))


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        -0.0,
        5e-324,
        1 / 3,
        math.inf,
        -math.inf,
        math.nan,
        2**70,
        True,
        None,
        "é\ud800",
    ],
)
def test_plain_values_come_back(value: Any) -> None:
    for found in (through(value), *through((value,)), *through([value]),
                  *through({"k": value}).values()):  # fmt: skip
        assert type(found) is type(value) and repr(found) == repr(value)


class OwnPrior(dist.Gamma):
    """Somebody's distribution."""


@pytest.mark.parametrize(
    "prior",
    [
        OwnPrior(2.0, 1.0),
        dist.BetaProportion(0.3, 2.0),
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.0),
            [
                transforms.ExpTransform(),
                transforms.AffineTransform(
                    0.0, 2.0, domain=constraints.greater_than(0.0)
                ),
            ],
        ),
    ],
    ids=["own", "not in the table", "domain"],
)
def test_a_prior_that_cannot_be_written_is_named(prior: Any, tmp_path: Path) -> None:
    model = sg.SteinGP((X, y), kernels.Matern12() + Matern52(variance=prior))
    with pytest.raises(
        ValueError, match=r"kernel\[1\]\.matern52\.variance.* cannot be"
    ):
        draws_of(model).save(tmp_path / "one.steingp")
    assert not os.listdir(tmp_path)


# --- classes of one's own ---------------------------------------------------------------


class Brownian(kernels.Pairwise):
    """Somebody's kernel, with a field that is no slot."""

    variance: Slot = positive(1.0)
    power: float = 1.5

    def pair(self, x: Any, y: Any) -> Any:
        return self.variance * jnp.exp(-(jnp.sum(jnp.abs(x - y)) ** self.power))


def test_a_kernel_of_ones_own_must_be_passed(tmp_path: Path) -> None:
    path = tmp_path / "one.steingp"
    posterior = draws_of(sg.SteinGP((X, y), Brownian(power=1.2) + kernels.White()))
    posterior.save(path)
    with pytest.raises(ValueError, match=r"one\.steingp .*classes=\[Brownian\]"):
        sg.load(path)
    with pytest.raises(ValueError, match="classes must be kernels"):
        sg.load(path, classes=[Brownian()])  # type: ignore[list-item]
    assert_same_posterior(posterior, sg.load(path, classes=[Brownian]))


def test_a_class_that_is_another_now_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.steingp"
    draws_of(sg.SteinGP((X, y), Brownian())).save(path)

    def other(**fields: Any) -> Any:
        body = {"__annotations__": dict.fromkeys(fields, Slot), "pair": Brownian.pair}
        return type("Brownian", (kernels.Pairwise,), body | fields)

    for kind in (
        other(variance=positive(1.0, prior=lambda: dist.Gamma(2.0)), power=positive()),
        other(variance=positive(1.0)),
    ):
        with pytest.raises(ValueError, match="another"):
            sg.load(path, classes=[kind])


class Unreadable(kernels.Pairwise):
    """A kernel whose field is a function, which no file can hold."""

    shape: Any = abs
    variance: Slot = positive(1.0)

    def pair(self, x: Any, y: Any) -> Any:
        return self.variance * jnp.exp(-jnp.sum(self.shape(x - y)))


def test_a_field_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kernel\.shape cannot be written"):
        draws_of(sg.SteinGP((X, y), Unreadable())).save(tmp_path / "one.steingp")
    assert not os.listdir(tmp_path)


# --- what hangs on a posterior ----------------------------------------------------------


def test_all_that_a_fit_says_comes_back(tmp_path: Path) -> None:
    model = sg.SteinGP((X, y), Matern52())
    run = sg.SVGD(model, n_particles=4)
    run.run(3, progress=False)
    evidence = Evidence(-3.0, math.nan, (-math.inf, 0.1), 0.5)
    posterior = model.posterior(
        run.get_particles(),
        history=run.history,
        method="SVGD, über alles",
        modes=[Mode(0.4, np.array([0, 2]), evidence), Mode(0.6, np.array([1, 3]))],
        paths={"kernel.variance": rng.normal(size=(3, 2))},
        trace={"step": np.arange(3), "none": np.zeros((0, 2))},
        verdict=Verdict((Check("rhat", True, "1.01"), Check("k", None, "-", "more"))),
        checkpoint={"stage": np.asarray("SVGD"), "ok": np.asarray([True, False])},
    )
    # a sum that is 1 but for rounding: dividing by it again would change the weights
    posterior.weights = np.array([0.1, 0.2, 0.3, 0.4 + 2**-40])
    posterior.save(tmp_path / "one.steingp")
    found = sg.load(tmp_path / "one.steingp")
    assert_same_posterior(posterior, found)
    assert len(run.history.log_density) == 3
    found.particles["kernel.variance"][0] = 1.0  # what was loaded is one's own


@pytest.fixture(scope="module")
def fitted() -> Posterior:
    with jax.enable_x64(True):
        model = sg.SteinGP((X[:, :1], y), Matern52(), standardise=True)
        return sg.fit(model, effective_size=50, seed=3, progress=False)


def test_a_fit_goes_on_from_its_file(fitted: Posterior, tmp_path: Path) -> None:
    fitted.save(tmp_path / "fit.steingp")
    loaded = sg.load(tmp_path / "fit.steingp")
    assert fitted.checkpoint is not None and loaded.checkpoint is not None
    assert list(loaded.checkpoint) == list(fitted.checkpoint)
    assert_same(dict(fitted.checkpoint), loaded.checkpoint)
    assert loaded.report == fitted.report
    model = sg.SteinGP((X[:, :1], y), Matern52(), standardise=True)
    one = sg.fit(
        model, effective_size=150, seed=3, progress=False, resume=fitted.checkpoint
    )
    # its seed comes with the file
    two = sg.fit(
        sg.SteinGP.of(loaded), effective_size=150, progress=False,
        resume=loaded.checkpoint,
    )  # fmt: skip
    assert one.num_draws > fitted.num_draws
    assert_same(one.particles, two.particles)
    # and so does the effective size: there is nothing to do
    same = sg.fit(model, progress=False, resume=loaded.checkpoint)
    assert_same(same.particles, fitted.particles)


def test_evidence_after_loading(
    fitted: Posterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.subset([0, 1]).save(tmp_path / "few.steingp")
    with pytest.raises(ValueError, match="needs the draws of a complete fit"):
        sg.load(tmp_path / "few.steingp").log_evidence()
    fitted._evidence = None
    fitted.save(tmp_path / "before.steingp")
    expected = fitted.log_evidence()
    fitted.save(tmp_path / "after.steingp")
    assert sg.load(tmp_path / "before.steingp").log_evidence() == expected

    def never(posterior: Posterior) -> Fit:
        raise AssertionError("computed again")

    monkeypatch.setattr(Fit, "of", never)
    assert sg.load(tmp_path / "after.steingp").log_evidence() == expected
    fitted.modes = [mode._replace(evidence=expected) for mode in fitted.modes]
    fitted._evidence = None
    fitted.save(tmp_path / "modes.steingp")
    assert sg.load(tmp_path / "modes.steingp").log_evidence().error == expected.error


def test_evidence_of_a_weighted_fit_after_loading(tmp_path: Path) -> None:
    model = sg.SteinGP((X[:, :1], labels), Matern52(), likelihoods.Bernoulli())
    posterior = sg.fit(model, effective_size=30, seed=2, progress=False)
    posterior.save(tmp_path / "fit.steingp")
    loaded = sg.load(tmp_path / "fit.steingp")
    assert loaded.report is not None and loaded.report.weighted
    np.testing.assert_array_equal(loaded.weights, posterior.weights)
    assert loaded.log_evidence() == posterior.log_evidence()


def streamed() -> Posterior:
    """A posterior of a stream, with an evidence made up."""
    blocks = [(X[:8], y[:8]), (X[8:], y[8:])]
    posterior = with_q(sg.SteinGP(blocks, Matern52(), inducing=Z, num_data=12))
    posterior.evidence_of_modes = lambda: [Evidence(-3.0, 0.1, (-3.0, -3.0), 0.5)]
    return posterior


def test_a_stream_is_saved_without_its_data(tmp_path: Path) -> None:
    posterior = streamed()
    posterior.save(tmp_path / "one.steingp")
    loaded = sg.load(tmp_path / "one.steingp")
    assert_same_posterior(posterior, loaded)
    with pytest.raises(ValueError, match="a stream of 12 rows"):
        sg.SteinGP.of(loaded)
    loaded.checkpoint = {"0.particles": np.zeros((2, 1))}
    with pytest.raises(ValueError, match=r"stream of 12 .* before saving"):
        loaded.log_evidence()
    expected = posterior.log_evidence()
    posterior.save(tmp_path / "one.steingp")
    assert sg.load(tmp_path / "one.steingp").log_evidence() == expected


def test_the_model_of_a_posterior() -> None:
    model = sg.SteinGP((X, y), Matern52(), standardise=True)
    posterior = draws_of(model)
    again = sg.SteinGP.of(posterior)
    assert repr(again) == repr(model)
    np.testing.assert_array_equal(
        again.log_density(posterior.particles), model.log_density(posterior.particles)
    )
    with pytest.raises(ValueError, match="without batches"):
        sg.SteinGP.of(posterior, batch_size=3)
    sparse = TARGETS["Sparse"]()
    assert sg.SteinGP.of(sparse, batch_size=4).batches_per_pass == 3
    with pytest.raises(ValueError, match="batch_size must be"):
        sg.SteinGP.of(sparse, batch_size=0)
    with pytest.raises(ValueError, match="no checkpoint"):
        Fit.of(posterior)


# --- files that are not what they should be ---------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "one.steingp"
    model = sg.SteinGP((X[:3, :1], y[:3]), Matern52(variance=fixed(1.0)))
    model.posterior(model.sample_prior(2)).save(path)
    return path


def spread(size: int, every: int) -> list[int]:
    """Some positions of a file: all at its beginning and end, and many between."""
    return sorted({*range(100), *range(0, size, every), *range(size - 100, size)})


def test_a_file_that_was_cut_short_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for size in spread(len(content), 11):
        saved.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"one\.steingp .*save it again"):
            sg.load(saved)
    saved.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match=r"one\.steingp .*save it again"):
        sg.load(saved)


def test_a_changed_byte_is_noticed_anywhere(saved: Path) -> None:
    content = saved.read_bytes()
    head = 8 + int.from_bytes(content[:8], "little")
    blanks = [i for i in range(head - 9, head) if content[i] == ord(" ")]
    for i in [*spread(len(content), 7), *blanks]:
        # one bit, all bits, and white space for white space
        for new in {content[i] ^ 0x20, content[i] ^ 0xFF, ord("\t")} - {content[i]}:
            saved.write_bytes(content[:i] + bytes([new]) + content[i + 1 :])
            with pytest.raises(ValueError, match=r"one\.steingp .*save it again"):
                sg.load(saved)


def test_a_checksum_alone_is_not_trusted(saved: Path) -> None:
    # arrays taken away, the checksum made right again
    content = saved.read_bytes()
    size = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + size])["__metadata__"]
    tensors = tensors_of(content)
    tensors.pop("weights")
    blank = bytes_of(tensors, about | {"sha256": "0" * 64})
    at = blank.index(io._MARK) + len(io._MARK)
    saved.write_bytes(blank[:at] + io._checksum(blank, at) + blank[at + 64 :])
    with pytest.raises(ValueError, match="damaged"):
        sg.load(saved)


@pytest.mark.parametrize("forged", ["os.system", "builtins.eval", "targets", ""])
def test_only_the_table_is_made(
    saved: Path, forged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = io._read_file

    def other(path: Any) -> Any:
        arrays, document = real(path)
        document["posterior"]["scaling"] = {"new": forged, "with": {"command": "true"}}
        return arrays, document

    monkeypatch.setattr(io, "_read_file", other)
    with pytest.raises(ValueError, match=r"one\.steingp cannot be loaded"):
        sg.load(saved)


@pytest.mark.parametrize(
    "content",
    [b"", b"x,y\n1,2\n", b"\0" * 7, b"\0" * 100, pickle.dumps({"a": 1}),
     bytes_of({"a": np.zeros(2)}), bytes_of({"a": np.zeros(2)}, {"steingp": "{}"}),
     b"\xff" * 64, (4).to_bytes(8, "little") + b"[1] ", b"[" * 100_000],
)  # fmt: skip
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.steingp"
    path.write_bytes(content)
    for reader in (sg.load, io.read_arrays):
        with pytest.raises(ValueError, match=r"other\.steingp .*again"):
            reader(path)


def test_a_newer_format_asks_for_a_newer_version(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = sg.load(saved)
    with monkeypatch.context() as later:
        later.setattr(io, "FORMAT", 2)
        later.setattr(io, "_version", lambda: "9.1")
        posterior.save(saved)
    with pytest.raises(ValueError, match=r"steingp 9\.1, format 2; .*upgrade"):
        sg.load(saved)


def test_wrong_places(saved: Path, tmp_path: Path) -> None:
    posterior = sg.load(saved)
    for path, message in (
        (None, "path must be the name of a file; got None"),
        ("", "path must be the name of a file"),
        (3, "path must be the name of a file"),
        (tmp_path / "data.csv", r"must end in \.steingp"),
        (tmp_path / "fit", r"must end in \.steingp"),
        (tmp_path / "no" / "fit.steingp", "there is no folder .*no: make it"),
    ):
        with pytest.raises(ValueError, match=message):
            posterior.save(path)  # type: ignore[arg-type]
    (tmp_path / "folder.steingp").mkdir()
    for action in (posterior.save, sg.load):
        with pytest.raises(ValueError, match=r"folder\.steingp is a folder"):
            action(tmp_path / "folder.steingp")
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.steingp"):
        sg.load(tmp_path / "none.steingp")
    with pytest.raises(ValueError, match="path must be"):
        sg.load(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_old_file(
    saved: Path, step: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, posterior = saved.read_bytes(), sg.load(saved)
    posterior.method = "another"

    def fail(*args: Any) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(os, step, fail)
        with pytest.raises(type(error)):
            posterior.save(saved)
    assert saved.read_bytes() == old
    assert os.listdir(saved.parent) == ["one.steingp"]
    posterior.save(saved)
    assert sg.load(saved).method == "another"


def test_a_link_stays_a_link(saved: Path) -> None:
    link = saved.with_name("link.steingp")
    link.symlink_to(saved)
    posterior = sg.load(link)
    posterior.method = "by way of the link"
    posterior.save(link)
    assert link.is_symlink() and sg.load(saved).method == "by way of the link"


# --- arrays -----------------------------------------------------------------------------

ARRAYS = {
    "text": np.asarray("collecting"),
    "texts": np.array([["a", "bcd"], ["", "é"]]),
    "bytes": np.array([b"a", b"bc"]),
    "truth": np.array([True, False]),
    "one truth": np.asarray(True),
    "count": np.asarray(3),
    "int8": np.arange(-3, 3, dtype=np.int8),
    "uint64": np.array([2**64 - 1], np.uint64),
    "half": np.array([0.1], np.float16),
    "single": np.array([0.1], np.float32),
    "number": np.asarray(np.nan),
    "big endian": np.arange(3.0).astype(">f8"),
    "complex": np.array([1 + 2j]),
    "empty": np.zeros((0, 3, 2)),
    "no texts": np.zeros((0, 2), "<U5"),
    "columns": np.asfortranarray(rng.normal(size=(3, 4))),
    "every other": rng.normal(size=(6, 4))[::2, ::-1],
    ".optimiser[0].count": np.asarray(7, np.int32),
}


def test_arrays_come_back(tmp_path: Path) -> None:
    about = {"step": 3, "rate": -math.inf, "nan": math.nan, "pair": (1, [None, "é"])}
    io.write_arrays(tmp_path / "run", ARRAYS, about)
    arrays, found = io.read_arrays(tmp_path / "run")
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype.str == array.dtype.str, name
        assert arrays[name].shape == array.shape, name
        assert arrays[name].tobytes() == array.tobytes(), name
        assert arrays[name].flags.writeable
    assert repr(found) == repr(about)
    with pytest.raises(ValueError, match="holds arrays, not a posterior"):
        sg.load(tmp_path / "run")
    content = (tmp_path / "run").read_bytes()
    (tmp_path / "run").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="damaged"):
        io.read_arrays(tmp_path / "run")


def test_jax_arrays_and_lists_are_arrays(tmp_path: Path) -> None:
    io.write_arrays(tmp_path / "run", {"a": jnp.arange(3.0), "b": [1, 2]}, {})
    arrays, about = io.read_arrays(tmp_path / "run")
    assert about == {} and arrays["a"].dtype == np.float64
    np.testing.assert_array_equal(arrays["b"], [1, 2])


@pytest.mark.parametrize(
    "arrays, about, message",
    [
        ({"a": np.array([object()])}, {}, "a is an array of object"),
        ({"__metadata__": np.zeros(1)}, {}, "cannot be the name"),
        ({3: np.zeros(1)}, {}, "3 cannot be the name"),
        ({}, {"a": np.zeros(1)}, r"about\.a is an array: put it among"),
        ({}, {"a": object()}, r"about\.a cannot be written"),
        ({}, {"a": {3: "three"}}, r"about\.a has the key 3"),
        ({}, [1], "about must be a dictionary"),
    ],
)
def test_what_cannot_be_written(
    arrays: Any, about: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        io.write_arrays(tmp_path / "run", arrays, about)
    assert not os.listdir(tmp_path)


def test_read_arrays_sends_posteriors_to_load(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"read it with steingp\.load"):
        io.read_arrays(saved)


def test_a_checkpoint_on_disk_goes_on(tmp_path: Path) -> None:
    model = sg.SteinGP((X[:, :1], y), Matern52())
    run = Fit(model, effective_size=40, seed=4, explore=False)
    run.run(progress=False, callback=lambda state: state.stage == "adapting")
    io.write_arrays(tmp_path / "run", run.state_dict(), {"seed": 4})
    arrays, _ = io.read_arrays(tmp_path / "run")
    rest = Fit(model)  # neither seed nor size: both are the checkpoint's
    rest.load_state_dict(arrays)
    assert (rest.seed, rest.wanted) == (4, 40.0)
    run.run(progress=False)
    rest.run(progress=False)
    assert_same(run.posterior().particles, rest.posterior().particles)
    more = Fit(model, effective_size=60.0)
    more.load_state_dict(arrays)
    assert more.wanted == 60.0

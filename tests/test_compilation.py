"""What is compiled, how often, and how long it takes to begin."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import steingp as sg
from steingp.cli import app

SOURCE = str(Path(sg.__file__).parent.parent)

PROGRAM = """
import sys
sys.path.insert(0, {source!r})
import jax, numpy as np, steingp as sg
found = {{"hits": 0, "misses": 0}}
def listen(name, **about):
    if "compilation_cache/cache_" in name:
        found[name.rsplit("_", 1)[1]] += 1
jax.monitoring.register_event_listener(listen)
sg.keep_compiled({folder!r})
X = np.linspace(-2, 2, 12)[:, None]
sg.SteinGP((X, np.sin(X)), sg.kernels.Matern52()).log_density(
    {{"kernel.lengthscales": np.ones((3, 1)), "kernel.variance": np.ones(3),
     "likelihood.variance": np.ones(3)}})
print(found["hits"], found["misses"])
"""


def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    program = PROGRAM.format(source=SOURCE, folder=str(tmp_path / "kept"))
    counts = [
        [
            int(word)
            for word in subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True,
                check=True, timeout=300,
            ).stdout.split()
        ]
        for _ in range(2)
    ]  # fmt: skip
    (_, first_misses), (hits, misses) = counts
    assert first_misses > 0 and hits > 0 and misses < first_misses
    assert any((tmp_path / "kept").iterdir())


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written to"):
        sg.keep_compiled(tmp_path / "file" / "inside")
    told = CliRunner().invoke(app, ["--cache", str(tmp_path / "file" / "in"), "demo"])
    assert told.exit_code == 2 and "--cache" in told.output


@pytest.mark.parametrize(
    ("jax_version", "given", "expected"),
    [
        ("0.11.2", "", "--xla_gpu_enable_triton_gemm=false"),
        ("0.10.0", "--xla_a=1", "--xla_a=1 --xla_gpu_enable_triton_gemm=false"),
        (
            "0.11.2",
            "--xla_gpu_enable_triton_gemm=true",
            "--xla_gpu_enable_triton_gemm=true",
        ),
        ("0.12.0", "--xla_a=1", "--xla_a=1"),  # may not know it, and would end
    ],
)
def test_the_command_line_has_products_by_cublas_unless_told_otherwise(
    jax_version: str,
    given: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("steingp.cli.metadata.version", lambda _: jax_version)
    monkeypatch.setenv("XLA_FLAGS", given)
    CliRunner().invoke(app, ["fit", str(tmp_path / "no.csv"), "--target", "y"])
    assert os.environ["XLA_FLAGS"] == expected


def by_default(model: sg.SteinGP, seed: int) -> sg.Posterior:
    return sg.fit(model, effective_size=100, seed=seed, explore=False, progress=False)


def by_svgd(model: sg.SteinGP, seed: int) -> sg.Posterior:
    run = sg.SVGD(model, n_particles=3, seed=seed)
    run.run(3, progress=False)
    return run.posterior()


def in_batches(model: sg.SteinGP, seed: int) -> sg.Posterior:
    data = (model.data.X, model.data.y)
    small = sg.SteinGP(data, sg.kernels.Matern52(), inducing=data[0][::4], batch_size=5)
    return sg.fit(small, num_particles=3, num_steps=4, seed=seed, progress=False)


def by_vi(model: sg.SteinGP, seed: int) -> sg.Posterior:
    return sg.baselines.vi(model, num_steps=3, progress=False).posterior


def by_mixture(model: sg.SteinGP, seed: int) -> sg.Posterior:
    found = sg.baselines.mixture_vi(model, num_steps=3, seed=seed, progress=False)
    return found.posterior


def by_likelihood(model: sg.SteinGP, seed: int) -> sg.Posterior:
    found = sg.baselines.maximum_likelihood(model, num_starts=2, progress=False)
    return found.posterior


@pytest.mark.parametrize(
    "method", [by_default, by_svgd, in_batches, by_vi, by_mixture, by_likelihood]
)
def test_a_second_fit_of_the_same_shapes_compiles_nothing(
    method: Callable[[sg.SteinGP, int], sg.Posterior],
) -> None:
    compiled: list[str] = []

    def listen(name: str, _: float, **about: object) -> None:
        if "backend_compile" in name:
            compiled.append(str(about))

    X = np.linspace(-2, 2, 20)[:, None]

    def fit(seed: int) -> None:
        y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(seed).normal(size=20)
        posterior = method(sg.SteinGP((X, y), sg.kernels.Matern52()), seed)
        posterior.predict_y(X)
        if method is by_default:
            posterior.diagnose()

    fit(0)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fit(1)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def test_heavy_imports_wait_until_they_are_needed() -> None:
    heavy = ("pandas", "matplotlib", "sklearn", "tensorflow", "pyarrow", "scipy.stats")
    program = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); import steingp; "
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"

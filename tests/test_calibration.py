"""Calibration by simulation: ranks with known answers, a replication, and the page."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import steingp as sg

FOLDER = Path(__file__).parent.parent / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


calibration, page = script("calibration"), script("calibration_page")


def conjugate_ranks(sd_ratio: float, num: int = 1000, seed: int = 0) -> np.ndarray:
    """theta ~ N(0, 1), y ~ N(theta, 1): theta | y ~ N(y / 2, 1 / 2), sd off by a factor.

    Draws are 400 with unequal weights, from which 99 are chosen by weight.
    """
    rng = np.random.default_rng(seed)
    ranks = []
    for _ in range(num):
        theta = rng.normal()
        y = theta + rng.normal()
        # from N(y / 2, s^2) to N(y / 2, s^2 / 2) by weights, s^2 = 1
        x = rng.normal(size=400)
        weights = np.exp(-0.5 * x**2)
        chosen = calibration.systematic(weights, calibration.NUM_DRAWS, rng.uniform())
        ranks.append(calibration.rank_of(theta, y / 2 + sd_ratio * x[chosen]))
    return np.array(ranks)


def test_ranks_of_an_exact_posterior_are_uniform() -> None:
    found = page.uniformity(conjugate_ranks(1.0))
    assert found.p > 0.05 and found.mean_p > 0.05 and found.sd_p > 0.05
    assert abs(found.sd_ratio - 1.0) < 3 * found.sd_ratio_error
    assert 0.01 < found.sd_ratio_error < 0.03  # about 1 / sqrt(2 * 1000)


@pytest.mark.parametrize("ratio", [0.7, 0.85, 1.2])
def test_a_wrong_spread_is_flagged(ratio: float) -> None:
    found = page.uniformity(conjugate_ranks(ratio))
    assert page.is_flagged(found, num_tests=10)
    assert abs(found.sd_ratio - ratio) < 0.08  # scores beyond 2.6 are cut off


def test_a_shift_is_flagged() -> None:
    rng = np.random.default_rng(0)
    draws, truths = rng.normal(size=(1000, 99)), rng.normal(size=1000) + 0.3
    ranks = [calibration.rank_of(t, row) for t, row in zip(truths, draws, strict=True)]
    found = page.uniformity(np.array(ranks))
    # P(draw < truth) = Phi(.3 / sqrt 2) = .584
    assert found.mean == pytest.approx(99 * 0.584, abs=3) and found.mean_p < 1e-6
    assert page.is_flagged(found, num_tests=10)


def test_every_rank_once_is_as_uniform_as_can_be() -> None:
    found = page.uniformity(np.arange(100))
    assert found.mean == 49.5 and found.chi2 == 0.0 and found.p == 1.0
    assert found.sd_ratio == pytest.approx(1.0)


def test_steps_through_weights() -> None:
    rows = calibration.systematic(np.array([0.5, 0.0, 0.25, 0.25]), 4, 0.0)
    assert rows.tolist() == [0, 0, 2, 3]
    even = calibration.systematic(np.ones(400), 99, 0.5)
    assert len(set(even)) == 99 and set(np.diff(even)) == {4, 5}


def test_draws_that_are_not_finite_have_no_rank() -> None:
    with pytest.raises(ValueError, match="finite"):
        calibration.rank_of(0.0, np.array([1.0, np.nan]))


def test_correlated_draws_widen_ranks_as_is_said() -> None:
    # 99 draws in 33 threes of equal ones are worth 33
    rng = np.random.default_rng(1)
    truths = rng.normal(size=20_000)
    draws = np.repeat(rng.normal(size=(20_000, 33)), 3, axis=1)
    share = np.mean(draws < truths[:, None], axis=1)
    right = 1 / 12 + 1 / (6 * 99)
    ratio = page.sd_ratio_of_correlation(np.array([33.0]))
    assert share.var() == pytest.approx(right / ratio**2, rel=0.03)
    assert page.worth_of({"effective_size": 400.0, "draws": 400}) == pytest.approx(99)


def test_simulated_data_follow_the_prior() -> None:
    problem = calibration.PROBLEMS["regression"]
    some = [calibration.simulate(problem, seed) for seed in range(300)]
    noise = np.array([s.theta["likelihood.variance"] for s in some])
    signal = np.array([s.theta["kernel.variance"] for s in some])
    assert noise.mean() == pytest.approx(2.0, abs=0.5)  # sd 2 / sqrt(300)
    # given theta, y^2 is noise + signal and f_new^2 signal, on average
    square = np.mean([s.y[0] ** 2 for s in some])
    assert square == pytest.approx(np.mean(noise + signal), rel=0.4)
    scaled = [s.f_new / np.sqrt(v) for s, v in zip(some, signal, strict=True)]
    assert np.std(scaled) == pytest.approx(1.0, abs=0.15)


def test_f_at_the_new_point_goes_with_the_data() -> None:
    """Given the true theta f's law is exact: its scores are standard normal."""
    problem = calibration.PROBLEMS["regression"]
    point, scores = np.array([[calibration.NEW_POINT]]), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # y far from unit scale
        for seed in range(300):
            s = calibration.simulate(problem, seed)
            model = sg.SteinGP((problem.X, s.y), problem.kernel, problem.likelihood)
            exact = model.posterior({k: v[None] for k, v in s.theta.items()})
            f = exact.predict_f(point)
            scores.append((s.f_new - f.means[0, 0]) / np.sqrt(f.variances[0, 0]))
    assert abs(np.mean(scores)) < 0.2  # 1 / sqrt(300) = .06
    assert np.std(scores) == pytest.approx(1.0, abs=0.14)  # 1 / sqrt(600) = .04


def test_a_replication_is_ranked_and_repeats() -> None:
    line = calibration.replicate("regression", 0, effective_size=30)
    assert set(line["ranks"]) == {
        "kernel.lengthscales", "kernel.variance", "likelihood.variance", "f",
    }  # fmt: skip
    assert all(0 <= rank <= 99 for rank in line["ranks"].values())
    assert line["effective_size"] > 0 and json.loads(json.dumps(line)) == line
    again = calibration.replicate("regression", 0, effective_size=30)
    assert again["ranks"] == line["ranks"]


def test_a_fit_that_raises_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise FloatingPointError("no factor")

    monkeypatch.setattr(calibration.sg, "fit", broken)
    line = calibration.replicate("regression", 3)
    assert line["error"] == "FloatingPointError: no factor" and "ranks" not in line


def line_of(problem: str, replication: int, rank: int) -> dict:
    return {
        "problem": problem, "replication": replication, "jax": "0", "device": "cpu",
        "asked": 200, "truth": {"kernel.variance": 1.0}, "seconds": 1.0, "modes": 1,
        "draws": 400, "effective_size": 210.0,
        "ranks": {"kernel.variance": rank, "f": 99 - rank},
    }  # fmt: skip


def test_the_page_flags_and_counts(tmp_path: Path) -> None:
    lines = [line_of("regression", i, i % 100) for i in range(300) if i != 7]
    narrow = [line_of("poisson", i, (0, 99, 50)[i % 3]) for i in range(300)]
    lines += [d | {"pareto_k": 0.1, "weighted": True, "trusted": True} for d in narrow]
    failed = line_of("poisson", 300, 0) | {"error": "ValueError: no"}
    del failed["ranks"], failed["effective_size"], failed["draws"], failed["modes"]
    page.write_page([*lines, failed], tmp_path / "page.md", tmp_path / "figure.png")
    text = (tmp_path / "page.md").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 5000
    rows = [r for r in text.splitlines() if r.startswith(("regression  ", "poisson  "))]
    assert [row.endswith("flagged") for row in rows] == [False, False, True, True]
    assert "301 replications, 1 of them failed" in text
    assert (
        "299 replications (1 before the last not run)" in text
        and "ValueError: no" in text
    )
    assert "The verdict trusts 300 of 300" in text
    assert "Only 299 replications so far" in text


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(name: str, replication: int) -> dict:
        asked.append(replication)
        return line_of(name, replication, 0)

    monkeypatch.setattr(calibration, "replicate", counted)
    out = ["--problem", "poisson", "--out", str(tmp_path / "some.jsonl")]
    for more in (["--replications", "2"], ["--first", "1", "--replications", "3"]):
        monkeypatch.setattr(sys, "argv", ["calibration.py", *out, *more])
        calibration.main()
    assert asked == [0, 1, 2, 3]
    assert len(calibration.read(tmp_path / "some.jsonl")) == 4


def test_a_file_is_read_once_per_replication(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    lines = [line_of("poisson", i, i) for i in (0, 1, 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [d["replication"] for d in calibration.read(path)] == [0, 1]
    assert calibration.read(tmp_path / "none.jsonl") == []

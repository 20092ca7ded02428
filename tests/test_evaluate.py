"""The evaluation's script, on a small size, and its page from a small file."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


evaluate, page = script("evaluate"), script("evaluation_page")


@pytest.mark.parametrize("method", ["default", "paper"])
def test_a_small_fit_is_scored(method: str) -> None:
    effort = {"effective_size": 30} if method == "default" else {"num_steps": 5}
    line = evaluate.evaluate("sine", method, 0, max_rows=12, **effort)
    assert (line["problem"], line["rows"]) == ("sine", 12)
    assert math.isfinite(line["log_density"])
    assert line["num_gradients"] > 0


def line_of(problem: str, method: str, seed: int, ratio: list[float]) -> dict:
    return {
        "problem": problem, "method": method, "seed": seed, "dimension": len(ratio),
        "sd_ratio": ratio, "sd_ratio_error": [0.01] * len(ratio), "jax": "0",
        "mean_error": [0.1] * len(ratio), "num_gradients": 10, "log_density": -0.5,
        "log_density_error": 0.001, "nuts_log_density": -0.4, "device": "cpu",
        "nuts_log_density_error": 0.001, "f_sd_ratio": 0.5, "effective_size": 100.0,
    }  # fmt: skip


def test_the_page_says_what_was_missed(tmp_path: Path) -> None:
    lines = [line_of("poisson", "default", s, [1.0, 1.2]) for s in range(2)]
    lines += [line_of("machine", "default", s, [1.01, 0.99]) for s in range(2)]
    lines += [line_of(name, "paper", 0, [0.5, 0.4]) for name in ("poisson", "machine")]
    lines[1]["log_density"] = -0.7
    page.write_page(lines, tmp_path / "page.md", tmp_path / "figure.png")
    text = (tmp_path / "page.md").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 5000
    poisson, machine = (
        [row for row in text.splitlines() if row.startswith(name)]
        for name in ("poisson", "machine")
    )
    assert poisson[0].split()[-1] == "2" and machine[0].split()[-1] == "0"
    assert poisson[-1].endswith("below NUTS, spread, f")
    assert machine[-1].endswith("below NUTS")  # f is no bound where it is exact


def test_a_bound_within_its_error_is_kept() -> None:
    good = line_of("poisson", "default", 0, [1.0, 1.08])  # .05 + 3.5 * .01 = .085
    bad = line_of("poisson", "default", 0, [1.0, 1.09])
    assert page.violations([good]) == 0 and page.violations([bad]) == 1
    assert np.isfinite(page.violations([good, bad]))

"""The multimodal study on small sizes."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from steingp.cli import app
from steingp.experiments import multimodal_study as study
from steingp.experiments.datasets import neal
from steingp.experiments.multimodal import LENGTHSCALE, grid_posterior


@pytest.fixture(scope="module")
def lines() -> list[dict]:
    todo = study.jobs((study.FIGURE_SEED,), quick=True)
    return [job | study.fit_one(job) for job in todo]


def test_every_method_leaves_a_line_with_the_exact_mass_beside_its_own(
    lines: list[dict],
) -> None:
    assert [line["method"] for line in lines] == list(study.METHODS)
    for line in lines:
        assert line["peaks"] == 2 and 0.4 < line["exact_mass"] < 0.47
        assert np.isfinite([line["rmse"], line["log_density"]]).all()
        assert {len(draws) for draws in line["draws"].values()} <= {1, 20, 200}
    grid = next(line for line in lines if line["method"] == "grid")
    # 500 draws: a mass to .022, so this is 4 standard errors
    assert abs(grid["mass"] - grid["exact_mass"]) < 0.09
    for gap, ratio in grid["posterior"].values():
        assert abs(gap) < 4 / np.sqrt(500) and abs(ratio - 1) < 0.15


def test_grid_draws_follow_the_grid() -> None:
    data = neal(0)
    grid = grid_posterior(data.X, data.y, num=30)
    draws = study._grid_draws(grid, seed=1)
    mean, sd = grid.mean_and_sd(LENGTHSCALE)
    logs = np.log(draws[LENGTHSCALE][:, 0])
    assert abs(logs.mean() - mean) < 4 * sd / np.sqrt(len(logs))


def test_tables_and_figures(lines: list[dict], tmp_path: Path) -> None:
    words = study.in_words(lines)
    assert "-24.33" in words and "24.8" in words  # the paper's SteinGP
    rows = study.mass_table(lines).splitlines()
    assert rows[1].split()[0] == str(study.FIGURE_SEED) and len(rows) == 2
    paths = study.write_figures(lines, tmp_path)
    assert [path.name for path in paths] == [
        "multimodal_data.png", "multimodal_posteriors.png",
    ]  # fmt: skip
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_the_command_refuses_what_is_no_seed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "multimodal", "--seeds", "a,b"])
    assert result.exit_code == 2 and "whole numbers" in result.output

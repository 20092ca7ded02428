"""The air-quality study on small sizes, and its tables and figures."""

import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from steingp.cli import app
from steingp.experiments import air_quality as study
from steingp.experiments import air_quality_figures as pictures

pytestmark = pytest.mark.skipif(
    not os.environ.get("STEINGP_DATA"), reason="STEINGP_DATA is not set"
)


def test_the_uk_has_the_papers_period_and_the_midlands_14_stations() -> None:
    values = study.table("uk")
    assert len(values) == 6660 and values[:, 3].max() == 89
    rows = study.load("uk", "midlands")
    places = rows.X_test[:, :2] * rows.scale[1, :2] + rows.scale[0, :2]
    assert len(np.unique(places.round(5), axis=0)) == 14
    assert len(rows.y) + len(rows.y_test) == 6660
    (west, south), (east, north) = study.MIDLANDS
    assert ((places > [west, south]) & (places < [east, north])).all()


def test_random_splits_are_scaled_by_the_rows_to_fit() -> None:
    rows = study.load("uk", 1)
    np.testing.assert_allclose(rows.X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(rows.y.std(), 1.0)
    assert len(rows.y_test) == pytest.approx(0.3 * 6660, abs=1)
    assert not np.array_equal(rows.y[:50], study.load("uk", 2).y[:50])


@pytest.mark.parametrize("method", ["SVI equal time", "SteinGP"])
def test_a_job_gives_a_line(method: str) -> None:
    line = study.fit_one(
        {"set": "uk", "split": "midlands", "method": method, "quick": True}
    )
    lon, lat = study.map_points("uk")
    assert len(line["map"]["variance"]) == len(lon) * len(lat)
    assert np.all(np.array(line["map"]["variance"]) > 0)
    assert len(line["lengthscales"]) == 3
    assert np.isfinite(line["log_density"]) and line["compile_seconds"] > 0
    assert line["seconds"] > 0 and ("seconds_allowed" in line) == (method != "SteinGP")


def made_up(method: str, split: int | str, num_draws: int) -> dict:
    rng = np.random.default_rng(len(method))
    num = len(study.map_points("uk")[0]) * len(study.map_points("uk")[1])
    names = ("lon", "lat", "time")
    return {
        "set": "uk", "split": split, "method": method, "rmse": 0.8, "log_density": -1.3,
        "coverage90": 0.9, "seconds": 3.0, "compile_seconds": 1.0, "unit": 13.5,
        "lengthscales": {n: rng.gamma(2.0, size=num_draws).tolist() for n in names},
        "map": {"mean": rng.normal(size=num).tolist(), "scale": [15.0, 13.5],
                "variance": rng.gamma(2.0, size=num).tolist()},
    }  # fmt: skip


def test_tables_and_figures(tmp_path: Path) -> None:
    lines = [
        made_up(method, split, num)
        for method, num in (("default", 100), ("SteinGP", 30), ("SVI", 1))
        for split in (0, 1, "midlands")
    ]
    words = pictures.in_words(lines)
    assert "0.82 +-0.09" in words and "-1.47" in words and "midlands" in words
    paths = pictures.write_figures(lines, tmp_path)
    assert len(paths) == 4 and all(path.stat().st_size > 20_000 for path in paths)


def test_seconds_are_of_the_machine_that_made_most_fits() -> None:
    lines = [
        made_up("SVI", split, 1) | {"device": device, "seconds": seconds}
        for split, device, seconds in ((0, "fast", 3.0), (1, "slow", 700.0))
    ]
    lines += [made_up("SteinGP", split, 3) | {"device": "fast"} for split in (0, 1)]
    row = pictures.score_table(lines, "uk").splitlines()[-1]
    assert row.startswith("SVI") and row.split()[-2:] == ["2.0", "2"]


def test_coastlines_have_land_within() -> None:
    land = pictures._on_land({"set": "uk", "map": {"step": 0.1}})
    lon, lat = study.map_points("uk", 0.1)
    assert land.shape == (len(lat), len(lon)) == (97, 103)
    birmingham = np.abs(lat - 52.5).argmin(), np.abs(lon + 1.9).argmin()
    north_sea = np.abs(lat - 56.0).argmin(), np.abs(lon - 1.6).argmin()
    assert land[birmingham] and not land[north_sea]


def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEINGP_DATA", str(tmp_path))
    result = CliRunner().invoke(app, ["reproduce", "air-quality", "--quick"])
    assert result.exit_code == 2 and "aurn_uk_daily_2020.csv.gz" in result.output

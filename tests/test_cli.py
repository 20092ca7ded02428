"""The command line, as typed."""

import subprocess
import sys
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from steingp.cli import app


def test_demo_prints_tables_and_writes_figures(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["demo", "--out", str(tmp_path / "new"), "--effective-size", "30"]
    )
    assert result.exit_code == 0, result.output
    for words in ("kernel.lengthscales[0]", "likelihood.variance", "RMSE", "exact"):
        assert words in result.output
    for name in ("predictive_band.png", "particles.png"):
        with Image.open(tmp_path / "new" / name) as image:
            width, height = image.size
        assert width > 800 and height > 300


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0 and "demo" in result.output


def test_bad_options_are_refused() -> None:
    assert CliRunner().invoke(app, ["demo", "--particles", "0"]).exit_code == 2


def test_progress_bar_is_silent_off_a_terminal() -> None:
    code = (
        "import numpy as np, steingp as sg\n"
        "X = np.linspace(0, 1, 9)[:, None]\n"
        "sg.fit(sg.SteinGP((X, X), sg.kernels.Matern52()), effective_size=20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and done.stdout == ""

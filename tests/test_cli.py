"""The command line, as typed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

import steingp as sg
from steingp import cli, io, runs
from steingp.cli import app
from steingp.fitting import Fit

rng = np.random.default_rng(0)


def run(*arguments: object, code: int = 0) -> str:
    """What a command prints, errors too; its exit code must be the one expected."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return " ".join(result.output.split())


def write(path: Path, **columns: object) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def table(folder: Path, num: int = 30) -> Path:
    """Tides: one input, far from unit scale, and a column of names."""
    x = np.linspace(1000.0, 1024.0, num)
    y = 500.0 + 80.0 * np.sin(x / 3.0) + 9.0 * np.random.default_rng(0).normal(size=num)
    return write(
        folder / "tides.csv", id=[f"t{i}" for i in range(num)], hour=x, level=y
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that is not to be changed, and what was printed."""
    folder = tmp_path_factory.mktemp("finished")
    words = run(
        "fit", table(folder), "--target", "level", "--drop", "id", "--out",
        folder / "run", "--effective-size", 60, "--no-explore", "--seed", 3,
    )  # fmt: skip
    return folder / "run", words


# --- the demo, help and version ---------------------------------------------------------


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
    page = (tmp_path / "new" / "report.html").read_text()
    assert "Neal&#x27;s data" in page and page.count("<img") >= 5


def test_help_lists_the_commands() -> None:
    words = run("--help")
    assert all(name in words for name in ("demo", "fit", "predict", "report"))
    assert "--inducing" in run("fit", "--help")
    assert "checkpoint-every" not in run("fit", "--help")


def test_version() -> None:
    assert run("--version") == f"steingp {sg.__version__}"


def test_bad_options_are_refused() -> None:
    assert CliRunner().invoke(app, ["demo", "--particles", "0"]).exit_code == 2


def test_names_of_options_are_those_of_the_tables() -> None:
    assert [str(name) for name in cli.KernelName] == list(runs.KERNELS)
    assert {str(name) for name in cli.LikelihoodName} == set(runs.LIKELIHOODS)
    for make in runs.KERNELS.values():
        assert isinstance(make(), sg.kernels.Kernel)


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


# --- fit, predict, report ---------------------------------------------------------------


def test_fit_prints_and_writes_a_run(finished: tuple[Path, str]) -> None:
    folder, words = finished
    assert "30 rows; level from hour." in words
    assert "kernel.lengthscales[hour]" in words
    assert "Nothing speaks against it" in words or "Do not trust it" in words
    for name in ("posterior.steingp", "report.html"):
        assert f"wrote {folder / name}" in words and (folder / name).exists()
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["inputs"] == ["hour"] and settings["target"] == "level"
    assert settings["seed"] == 3 and settings["kernel"] == "matern52"
    assert set(settings["versions"]) == {"steingp", "jax", "numpy", "python"}
    assert (folder / "checkpoint.safetensors").exists()


def test_the_fit_is_that_of_the_library(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    frame = pd.read_csv(folder.parent / "tides.csv")
    model = sg.SteinGP(
        (frame[["hour"]], frame["level"]), sg.kernels.Matern52(), standardise=True
    )
    expected = sg.fit(model, effective_size=60, explore=False, seed=3)
    loaded = sg.load(folder / "posterior.steingp")
    for name, values in expected.particles.items():
        np.testing.assert_array_equal(loaded.particles[name], values)


def test_predictions_are_in_the_units_of_the_data(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = finished
    hours = [1003.0, 1017.5]
    # other columns first, in another order than in the fit, and no target
    new = write(tmp_path / "new.csv", extra=["a", "b"], hour=hours, id=["p", "q"])
    words = run("predict", folder, new, "--out", tmp_path / "out.csv", "--keep", "id")
    assert "wrote 2 rows" in words
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found.columns) == ["id", "mean", "sd", "5%", "50%", "95%"]
    assert found["id"].tolist() == ["p", "q"]
    prediction = sg.load(folder / "posterior.steingp").predict_y(
        np.array(hours)[:, None]
    )
    np.testing.assert_allclose(found["mean"], prediction.mean, rtol=1e-9)
    np.testing.assert_allclose(found["sd"] ** 2, prediction.variance, rtol=1e-8)
    for name, q in (("5%", 0.05), ("50%", 0.5), ("95%", 0.95)):
        np.testing.assert_allclose(found[name], prediction.quantile(q), rtol=1e-8)
    truth = 500.0 + 80.0 * np.sin(np.array(hours) / 3.0)
    assert np.all(np.abs(found["mean"] - truth) < 4 * found["sd"])


def test_predictions_go_to_the_terminal_in_blocks(
    finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    new = write(tmp_path / "new.csv", hour=np.linspace(1000.0, 1020.0, 7))
    whole = CliRunner().invoke(app, ["predict", str(folder), str(new)]).stdout
    monkeypatch.setattr(runs, "_ROWS_AT_ONCE", 3)
    parts = CliRunner().invoke(app, ["predict", str(folder), str(new)]).stdout
    assert whole.startswith("mean,sd,5%,50%,95%\n") and whole.count("\n") == 8
    numbers = [
        np.loadtxt(t.splitlines(), delimiter=",", skiprows=1) for t in (whole, parts)
    ]
    np.testing.assert_allclose(*numbers, rtol=1e-8)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"Hour": [1.0]},
            [],
            "lacks 'hour', which the model was fitted with. Is 'Hour'",
        ),
        ({"hour": [1.0, None]}, [], "column 'hour' has no value in 1 row of 2"),
        ({"hour": ["noon"]}, [], "holds text, first 'noon' in line 2: code it"),
        ({"hour": [1.0]}, ["--keep", "name"], "no column 'name' (--keep)"),
        ({"hour": [1.0]}, ["--out", "new.csv"], "is the file that is read"),
        ({"hour": [1.0]}, ["--out", "no/where.csv"], "a file in a folder that exists"),
    ],
)
def test_new_rows_that_cannot_be_predicted(
    finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    columns: dict, options: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"other": 0, **columns}).to_csv("new.csv", index=False)
    assert message in run("predict", finished[0], "new.csv", *options, code=2)


def test_report_writes_the_page_again(finished: tuple[Path, str]) -> None:
    page = finished[0] / "report.html"
    before = page.read_text()
    page.unlink()
    assert f"wrote {page}" in run("report", finished[0])
    again = page.read_text()
    assert "<h1>level of tides.csv</h1>" in again
    # the evidence is the one of the fit: the file has kept it
    line = next(text for text in before.splitlines() if "log evidence" in text)
    assert line in again and "+-" in line


def test_a_finished_run_is_left_alone(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert "finished already: nothing was done" in run("fit", "--resume", folder)
    data = folder.parent / "tides.csv"
    words = run("fit", data, "--target", "level", "--out", folder, code=2)
    assert "holds a finished run" in words and "--force" in words
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


# --- killed, and gone on with -----------------------------------------------------------

PROGRAM = [sys.executable, "-c", "from steingp.cli import main; main()"]


def start(*arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments), "--checkpoint-every", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_while(process: subprocess.Popen, folder: Path, stage: str) -> str:
    """Kill it as soon as its checkpoint is of this stage; the stage it is left in."""
    checkpoint = folder / "checkpoint.safetensors"
    for _ in range(30_000):
        if checkpoint.exists() and io.read_arrays(checkpoint)[1]["stage"] == stage:
            break
        assert process.poll() is None, f"it ended before {stage}"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return io.read_arrays(checkpoint)[1]["stage"]


def same(one: Path, two: Path) -> None:
    first, second = (sg.load(path / "posterior.steingp") for path in (one, two))
    np.testing.assert_array_equal(first.weights, second.weights)
    for what in ("particles", "paths", "trace"):
        a, b = getattr(first, what), getattr(second, what)
        assert list(a) == list(b) and len(a) > 0
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert first.report is not None and second.report is not None
    assert first.report._replace(seconds=0) == second.report._replace(seconds=0)
    assert first._evidence == second._evidence and first._evidence is not None


def test_a_run_killed_twice_gives_what_an_uninterrupted_one_gives(
    tmp_path: Path,
) -> None:
    data = table(tmp_path)
    options = ["--target", "level", "--drop", "id", "--effective-size", 600]
    whole = start("fit", data, *options, "--out", tmp_path / "whole")
    killed = tmp_path / "killed"
    process = start("fit", data, *options, "--out", killed)
    assert kill_while(process, killed, "exploring") == "exploring"
    process = start("fit", "--resume", killed)
    assert kill_while(process, killed, "collecting") == "collecting"
    assert not (killed / "posterior.steingp").exists()
    last = start("fit", "--resume", killed)
    assert last.wait() == 0 and whole.wait() == 0
    same(tmp_path / "whole", killed)


class Killed(BaseException):
    """Ends a run at once, as nothing catches it."""


def test_labels_go_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.linspace(-3, 3, 24)
    y = (np.sin(2 * x) + 0.3 * rng.normal(size=24) > 0).astype(int)
    data = write(tmp_path / "labels.csv", x=x, y=y)
    options = [
        data, "--target", "y", "--likelihood", "bernoulli", "--effective-size", 60,
        "--checkpoint-every", 0,
    ]  # fmt: skip
    run("fit", *options, "--out", tmp_path / "whole")
    advance = Fit._advance
    for stage in ("adapting", "collecting"):

        def dies(self: Fit, stage: str = stage) -> None:
            if self.stage == stage:
                raise Killed
            advance(self)

        monkeypatch.setattr(Fit, "_advance", dies)
        begin = [*options, "--out", tmp_path / "part"]
        if stage == "collecting":
            begin = ["--resume", tmp_path / "part", "--checkpoint-every", 0]
        with pytest.raises(Killed):
            CliRunner().invoke(app, ["fit", *map(str, begin)], standalone_mode=False)
    monkeypatch.setattr(Fit, "_advance", advance)
    run("fit", "--resume", tmp_path / "part")
    same(tmp_path / "whole", tmp_path / "part")
    # of labels: a probability, and what is believed of it
    new = write(tmp_path / "new.csv", x=[0.8, -0.8])
    run("predict", tmp_path / "part", new, "--out", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found.columns) == ["probability", "5%", "50%", "95%"]
    assert found["probability"][0] > 0.6 > 0.4 > found["probability"][1]
    assert np.all(found["5%"] < found["50%"]) and np.all(found["50%"] < found["95%"])
    assert np.all((found > 0.0) & (found < 1.0))


def test_ctrl_c_keeps_what_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Fit._advance

    def pressed(self: Fit) -> None:
        if self.stage == "collecting":
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(Fit, "_advance", pressed)
    folder = tmp_path / "run"
    data = table(tmp_path, 12)
    options = ["--target", "level", "--drop", "id", "--no-explore"]
    words = run("fit", data, *options, "--out", folder, code=130)
    assert f"Go on with: steingp fit --resume {folder}" in words
    assert io.read_arrays(folder / "checkpoint.safetensors")[1]["stage"] == "collecting"
    words = run("fit", data, *options, "--out", folder, code=2)
    assert "is not finished: go on with" in words
    for command in ("report", "predict"):
        more = [data] if command == "predict" else []
        assert "is not finished" in run(command, folder, *more, code=2)
    # data that have changed are not gone on with
    data.write_text(data.read_text().replace("t3,", "u3,"))
    assert "has changed since" in run("fit", "--resume", folder, code=2)
    data.unlink()
    assert "does not exist" in run("fit", "--resume", folder, code=2)


def test_resume_takes_no_other_options(tmp_path: Path) -> None:
    words = run("fit", "--resume", tmp_path, "--seed", 0, code=2)
    assert "leave out --seed" in words
    assert "leave out data.csv" in run("fit", "d.csv", "--resume", tmp_path, code=2)
    assert "is no run of steingp" in run("fit", "--resume", tmp_path, code=2)


# --- what is refused --------------------------------------------------------------------

GOOD = "x,y\n" + "".join(f"{i},{i * i}\n" for i in range(9))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", [], "data.csv is empty."),
        ("x,y\n", [], "no rows of data"),
        ("x;y\n1;2\n", [], "Pass --separator ';'."),
        ("x\ty\n1\t2\n", [], "Pass --separator tab."),
        (GOOD.replace("x,y", "1,2"), [], "line 1 holds numbers (1, 2, ...)"),
        (GOOD.replace("x,y", "y,y"), [], "'y' names more than one column in line 1"),
        (GOOD.replace("x,y", ",y"), [], "column 1 has no name in line 1"),
        (GOOD.replace("x,y", "x,Y"), [], "no column 'y' (--target). Did you mean 'Y'?"),
        (GOOD, ["--columns", "z"], "no column 'z' (--columns)"),
        (GOOD, ["--drop", "x"], "no input column"),
        (GOOD, ["--drop", "y"], "'y' stands in --drop and is --target, too"),
        (GOOD, ["--columns", "x", "--drop", "x"], "not both"),
        (GOOD, ["--columns", "x,x"], "names a column twice"),
        (
            GOOD.replace("3,9", "\nLeeds,9").replace("x", "city"),
            [],
            "column 'city' holds text, first 'Leeds' in line 6: drop it with --drop city",
        ),
        (GOOD.replace("3,9", "3,"), [], "column 'y' has no value in 1 row of 9, first in "
         "line 5. Fill in a number or remove such rows."),
        (GOOD.replace("3,9", "3,inf"), [], "column 'y' has infinity in 1 row"),
        (GOOD.replace("3,9", '"3,5",9'), [], "pass --decimal ','"),
        (GOOD.replace("3,9", "3,9,27"), [], "line 5 has 3 values, but there are 2"),
        ("x,y\n1,1\n2,2\n", [], "2 row(s) of data; at least 5"),
        ("x,y\n" + "1,3\n2,3\n" * 5, [], "target 'y' is 3 in every row"),
        (GOOD, ["--likelihood", "bernoulli"], "must hold 0 or 1; it is 4 in line 4, one "
         "of 7 such rows"),
        (GOOD, ["--likelihood", "gamma"], "must hold positive numbers; it is 0 in line 2"),
        (GOOD.replace("9\n", "9.5\n"), ["--likelihood", "poisson"], "9.5 in line 5"),
        (GOOD, ["--exposure", "x", "--likelihood", "poisson"], "no input column"),
        (GOOD, ["--inducing", "10"], "--inducing 10 is more than the 9 rows"),
        ("x,y\n" + "1,3\n2,4\n" * 2501, [], "has 5,002 rows"),
    ],
)  # fmt: skip
def test_tables_are_refused_with_the_place_and_the_fix(
    tmp_path: Path, content: str, options: list[str], message: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content)
    out = ["--out", tmp_path / "run"]
    words = run("fit", path, "--target", "y", *out, *options, code=2)
    assert words.startswith("error: ") and message in words
    assert not (tmp_path / "run").exists()


def test_exposure_is_of_counts_and_positive(tmp_path: Path) -> None:
    data = write(tmp_path / "d.csv", x=range(6), hours=[1, 2, 0, 1, 1, 1], y=range(6))
    out = ["--target", "y", "--exposure", "hours", "--out", tmp_path / "run"]
    assert "greater than 0; it is 0 in line 4" in run("fit", data, *out, code=2)
    data = write(tmp_path / "d.csv", x=range(6), hours=[1.5] * 6, y=range(6))
    assert "--exposure is for counts" in run("fit", data, *out, code=2)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    out = ["--target", "y", "--out", tmp_path / "run"]
    missing = tmp_path / "missing.csv"
    assert f"{missing} does not exist" in run("fit", missing, *out, code=2)
    assert "is a folder" in run("fit", tmp_path, *out, code=2)
    binary = tmp_path / "sheet.csv"
    binary.write_bytes(b"PK\x03\x04\xff\xfe\x00")
    assert "not text in UTF-8" in run("fit", binary, *out, code=2)
    assert "what to fit?" in run("fit", binary, code=2)


def test_folders_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    data = tmp_path / "data.csv"
    data.write_text(GOOD)
    options = ["--target", "y", "--effective-size", 20, "--no-explore"]
    words = run("fit", data, *options, "--out", tmp_path, code=2)
    assert "is not empty and is no run" in words
    assert "is a file" in run("fit", data, *options, "--out", data, code=2)
    run("fit", data, *options, "--out", tmp_path, "--force")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / "posterior.steingp").exists()


def test_labels_without_a_likelihood_are_spoken_of(tmp_path: Path) -> None:
    # compressed, without a line of names, with inducing points; a column is constant
    x = np.linspace(0, 1, 12)
    frame = pd.DataFrame({"x": x, "c": 1.0, "y": (x > 0.5).astype(int)})
    data = tmp_path / "labels.csv.gz"
    frame.to_csv(data, index=False, header=False)
    words = run(
        "fit", data, "--no-header", "--target", "column3", "--inducing", 5, "--out",
        tmp_path / "run", "--effective-size", 20, "--kernel", "se",
    )  # fmt: skip
    assert "For labels, pass --likelihood bernoulli" in words
    assert "note: input column(s) column2 are constant" in words
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["likelihood"] == "gaussian" and settings["inducing"] == 5
    new = tmp_path / "new.csv"
    new.write_text("0.2,1\n0.9,1\n")  # the target was last and may be left out
    lines = run("predict", tmp_path / "run", new).split()
    assert lines[0] == "mean,sd,5%,50%,95%" and len(lines) == 3
    new.write_text("0.2\n")
    words = run("predict", tmp_path / "run", new, code=2)
    assert "has 1 columns and the data of the fit had 3" in words

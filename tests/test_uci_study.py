"""The UCI study on small sizes: its jobs, lines, tables and command."""

import functools
import gzip
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

import steingp as sg
from steingp.cli import app
from steingp.diagnostics import Check, Verdict
from steingp.experiments import fetching, paper_numbers, uci, uci_tables
from steingp.experiments.datasets import where_to_get


def write_set(
    folder: Path, name: str, num: int = 24, labels: bool = False
) -> np.ndarray:
    rng = np.random.default_rng(len(name))
    X = rng.normal(size=(num, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=num)
    table = np.round(np.column_stack([X, y > 0 if labels else y]), 4)
    path = folder / "uci" / f"{name}.csv.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, table, delimiter=",", fmt="%.4f")
    return table


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    write_set(folder, "servo")
    write_set(folder, "fertility", labels=True)
    monkeypatch.setenv("STEINGP_DATA", str(folder))
    return folder


def test_all_sets_methods_and_splits_are_there() -> None:
    todo = list(uci.jobs())
    keys = {tuple(job[k] for k in uci.KEYS) for job in todo}
    assert len(keys) == len(todo)
    regression = 10 * 5 + 4 * 2  # splits of small and of large sets
    labels = 12 * 5
    assert len(todo) == 7 * (regression + labels)
    assert len(set(uci.SETS)) == 14 + 6 + 6
    # what the paper has figures for
    assert {n.removesuffix("_rowid") for n in uci.SETS} == {*paper_numbers.SECONDS}
    assert {*paper_numbers.SECONDS} - {"wine"} == {*paper_numbers.LOG_DENSITY}
    for table in (paper_numbers.LOG_DENSITY, paper_numbers.SECONDS):
        assert {len(row) for row in table.values()} == {len(paper_numbers.METHODS)}


@pytest.mark.parametrize(
    ("name", "method"),
    [("servo", "ML"), ("servo", "VI"), ("servo", "SteinGP2"), ("servo", "default"),
     ("fertility", "HMC"), ("fertility", "SteinGP5"), ("fertility", "VI")],
)  # fmt: skip
def test_a_job_gives_a_line(data: Path, name: str, method: str) -> None:
    line = uci.fit_one({"set": name, "split": 1, "method": method, "quick": True})
    assert np.isfinite(line["log_density"]) and line["rows"] == 16
    assert 0.0 < line["compile_seconds"] <= line["seconds"]
    if name == "servo":
        assert (
            0.0 <= line["coverage50"] <= line["coverage90"] <= line["coverage95"] <= 1.0
        )
        assert line["crps"] < line["rmse"]
    else:
        assert 0.0 <= line["ece"] <= 1.0 and line["base_rate_log_density"] < 0.0
    assert ("trusted" in line) == (method == "default")


def test_scores_are_those_of_the_mixture(data: Path) -> None:
    """Beside intervals by bisection and sampled scores."""
    import steingp as sg
    from steingp import metrics
    from steingp.experiments.datasets import uci_split

    split = uci_split("servo")
    model = sg.SteinGP((split.X, split.y), sg.kernels.SquaredExponential())
    prediction = model.posterior(model.sample_prior(30)).predict_y(split.X_test)
    found = uci.score(prediction, split.y_test, labels=False)
    for level in (50, 90, 95):
        inside = metrics.coverage(split.y_test, *prediction.interval(level / 100))
        assert found[f"coverage{level}"] == inside
    draws = prediction.sample_marginals(4000)
    sampled = metrics.crps_samples(split.y_test, draws)
    assert found["crps"] == pytest.approx(sampled.mean(), rel=0.05)


def line(
    name: str, split: int, method: str, value: float, seconds: float = 2.0
) -> dict:
    return {
        "set": name, "split": split, "method": method, "log_density": value,
        "seconds": seconds, "compile_seconds": 1.0, "device": "cpu",
    }  # fmt: skip


def test_tables_show_the_paper_beside_ours() -> None:
    lines = [line("servo", s, "SteinGP20", -0.4 - 0.1 * s) for s in range(3)]
    table = uci_tables.log_density_table(lines, ["servo"])
    head, ours, paper = table.splitlines()
    assert head.split()[:2] == ["set", "default"] and "-0.500 +-0.058" in ours
    assert "3 of 5 splits" in ours and "-0.41 +-0.21" in paper
    # labels: the paper's figures stand where the row number is an input
    some = [line(n, 0, "HMC", -0.5) for n in ("blood", "blood_rowid")]
    rows = uci_tables.log_density_table(some, ["blood", "blood_rowid"]).splitlines()
    assert [row.split()[0] for row in rows] == ["set", "blood", "blood_rowid", "paper"]
    assert rows[-1].endswith("-0.52 +-0.06")


def test_runtimes_are_relative_to_two_particles_on_the_same_machine() -> None:
    lines = [line("servo", 0, "SteinGP2", 0.0, 2.0), line("servo", 0, "ML", 0.0, 4.0)]
    other = line("boston", 0, "ML", 0.0, 100.0) | {"device": "another"}
    assert uci_tables.relative_runtimes([*lines, other]) == {"ML": 3.0}


def test_a_set_is_timed_on_the_machine_with_most_methods() -> None:
    here = [line("servo", 0, m, 0.0, 3.0) for m in ("SteinGP2", "ML")]
    there = line("servo", 1, "ML", 0.0, 101.0) | {"device": "cpu", "cores": 1}
    row = uci_tables.runtime_table([*here, there], ["servo"]).splitlines()[1]
    assert row.split() == ["servo", "-", "2", "-", "-", "-", "-", "2", "-", "cpu"]
    ours = line("servo", 1, "default", 0.0, 8.0) | {"device": "cpu", "cores": 1}
    table = uci_tables.runtime_table([*here, there, ours], ["servo"]).splitlines()
    assert table[1] == row
    assert table[2].split()[:3] == ["elsewhere", "7", "-"]
    assert table[2].endswith("cpu, 1 core")


def test_where_the_default_falls_short_is_named() -> None:
    rng = np.random.default_rng(0)
    lines = []
    for split in range(5):
        shift = rng.normal()
        for name, gain in (("servo", 0.2), ("boston", -0.2)):
            rival = shift + gain + 0.01 * rng.normal()
            lines.append(line(name, split, "default", shift))
            lines.append(line(name, split, "ML", rival))
    (found,) = uci_tables.shortfalls(lines, ["servo", "boston"])
    assert found.startswith("servo (ML by 0.199 +- 0.003")
    test = uci_tables.significance(lines, ["servo", "boston"])
    row = next(r for r in test.splitlines() if r.startswith("ML"))
    assert row.split()[1:4] == ["1", "1", "2"]


def test_a_verdict_is_kept_with_what_it_found() -> None:
    X = np.linspace(0, 1, 20)[:, None]
    model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
    run = sg.SVGD(model, n_particles=10)
    run.run(20, progress=False)
    posterior = run.posterior()
    kept = uci.judgement(posterior)
    assert kept["trusted"] is False
    assert kept["findings"] == [check.finding for check in posterior.diagnose().failed]
    fine = Verdict((Check("R-hat", True, "at most 1.02"),))
    with mock.patch.object(type(posterior), "diagnose", lambda self: fine):
        assert uci.judgement(posterior) == {"trusted": True}


def test_fits_that_their_verdict_does_not_trust_are_named_with_the_reason() -> None:
    fine = line("servo", 0, "default", 0.0) | {"trusted": True}
    assert uci_tables.verdicts([fine]).startswith("1 of 1 default fits are trusted")
    bad = line("servo", 1, "default", 0.0) | {"trusted": False}
    said = uci_tables.verdicts([fine, bad | {"findings": ["R-hat: 1.7"]}, bad])
    assert said.splitlines()[2:] == [
        "- servo, split 1: R-hat: 1.7", "- servo, split 1: why was not kept",
    ]  # fmt: skip
    assert "1 of 3" in said


# --- the command ------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reproduce", "uci", *arguments])
    return result.exit_code, result.output


def test_the_command_fits_goes_on_and_prints(data: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "results")
    options = ("--quick", "--datasets", "servo", "--methods", "ML,VI", "--out", out)
    code, said = run(*options)
    assert code == 0 and said.count("of them compiling") == 2 and "paper" in said
    path = tmp_path / "results" / "uci-quick.jsonl"
    content = path.read_text()
    code, said = run(*options)
    assert code == 0 and "compiling" not in said and path.read_text() == content


def test_sets_that_are_not_there_are_named_with_their_source(
    data: Path, tmp_path: Path
) -> None:
    code, said = run("--datasets", "boston,winered,blood_rowid", "--out", str(tmp_path))
    assert code == 2
    for word in ("treforevans", "housing", "archive.ics.uci.edu", "_R.dat", "--fetch"):
        assert word in said
    assert "winered" in where_to_get(["winered"], Path("data"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--datasets", "serv"), "no 'serv'"), (("--methods", "MCMC"), "no 'MCMC'"),
     (("--name", "gpu"), "begin with uci-"), (("--name", "uci2"), "begin with uci-")],
)  # fmt: skip
def test_typos_are_told(data: Path, arguments: tuple[str, ...], words: str) -> None:
    code, said = run(*arguments)
    assert code == 2 and words in said


# --- fetching ---------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[str]:
    """A server with the folders of the public copy."""
    folder = tmp_path / "copy"
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    handler.func.log_message = lambda *args: None  # type: ignore[attr-defined]
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def serve(tmp_path: Path, name: str, table: np.ndarray) -> None:
    path = tmp_path / "copy" / name / "data.csv.gz"
    path.parent.mkdir()
    text = "\n".join(",".join(f"{v:.4f}" for v in row) for row in table)
    path.write_bytes(gzip.compress(text.encode()))


def test_a_set_is_fetched_once_and_checked(
    tmp_path: Path, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.arange(12.0).reshape(4, 3)
    serve(tmp_path, "housing", table)
    monkeypatch.setitem(fetching.CHECKSUMS, "boston", fetching.checksum(table))
    path = fetching.fetch("boston", tmp_path / "data", copy)
    np.testing.assert_array_equal(np.loadtxt(path, delimiter=","), table)
    again = fetching.fetch("boston", tmp_path / "data", "http://127.0.0.1:9")
    assert again == path  # nothing is asked for


def test_other_numbers_or_no_table_are_refused(tmp_path: Path, copy: str) -> None:
    serve(tmp_path, "servo", np.arange(12.0).reshape(4, 3))
    with pytest.raises(ValueError, match="not those of the set"):
        fetching.fetch("servo", tmp_path / "data", copy)
    (tmp_path / "copy" / "airfoil").mkdir()
    (tmp_path / "copy" / "airfoil" / "data.csv.gz").write_text("a pointer, not data")
    with pytest.raises(ValueError, match="not a gzipped table"):
        fetching.fetch("airfoil", tmp_path / "data", copy)
    with pytest.raises(OSError, match="by hand"):
        fetching.fetch("gas", tmp_path / "data", copy)
    with pytest.raises(ValueError, match="cannot be fetched"):
        fetching.fetch("blood", tmp_path / "data", copy)
    assert not list((tmp_path / "data").rglob("*.csv.gz"))


def test_checksums_are_those_of_the_sets_that_results_were_made_with() -> None:
    folder = os.environ.get("STEINGP_DATA")
    if not folder:
        pytest.skip("STEINGP_DATA is not set")
    for name, known in fetching.CHECKSUMS.items():
        table = np.loadtxt(Path(folder) / "uci" / f"{name}.csv.gz", delimiter=",")
        assert fetching.checksum(table) == known, name

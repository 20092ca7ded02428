"""docs/results.md from made-up lines."""

import importlib.util
import json
from pathlib import Path

_path = Path(__file__).parent.parent / "benchmarks" / "results_page.py"
_spec = importlib.util.spec_from_file_location("results_page", _path)
assert _spec is not None and _spec.loader is not None
results_page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(results_page)

ABOUT = {
    "device": "cpu",
    "cores": 1,
    "jax": "0.10",
    "steingp": "0.1",
    "date": "2026-11-16",
}


def uci_line(name: str, split: int, method: str, value: float) -> dict:
    return {
        "set": name, "split": split, "method": method, "log_density": value,
        "rmse": 0.5, "coverage90": 0.9, "seconds": 2.0, "compile_seconds": 1.0, **ABOUT,
    }  # fmt: skip


def test_the_page_has_tables_flaws_and_what_was_left_out(tmp_path: Path) -> None:
    lines = [
        uci_line(name, split, method, -0.4 - 0.1 * split + 0.3 * (method == "ML"))
        for name in ("servo", "boston")
        for split in range(5)
        for method in ("default", "SteinGP2", "ML")
    ] + [uci_line("blood_rowid", 0, "HMC", -0.5)]
    lines.append({"set": "machine", "split": 0, "method": "ML",
                  "error": "RuntimeError: too far"})  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "uci.jsonl").write_text(text)
    page = tmp_path / "results.md"
    written = results_page.write(tmp_path, page, tmp_path / "figures")
    assert page.read_text() == written
    for words in ("row number", "-0.41 +-0.21", "31 fits on cpu, 1 core", "Left out",
                  "servo (ML by 0.300", "- parkinsons: splits 0, 1",
                  "- boston: SteinGP5 0 1 2 3 4, SteinGP10"):  # fmt: skip
        assert words in written, words
    assert "Failed: machine, split 0, ML: RuntimeError: too far" in written
    assert "Air quality" not in written and "GPflow there" not in written


def test_priors_and_the_mode_stand_beside_the_studies(tmp_path: Path) -> None:
    text = "".join(
        json.dumps({"set": "gas", "split": split, "prior": prior, "how": "mode",
                    "log_density": value + split, "log_density99": 2.0}) + "\n"
        for split in (0, 1)
        for prior, value in (("the paper's", -1.0), ("by inputs", -0.5))
    )  # fmt: skip
    (tmp_path / "priors.jsonl").write_text(text)
    lines = list(results_page.read_lines(tmp_path / "priors.jsonl"))
    table = results_page.priors(lines)
    assert (
        "gas                mode       2      -0.500       0.000       2.000" in table
    )
    assert results_page.priors(lines[:1]) == ""  # nothing to stand beside
    found = {"set": "uk", "split": "midlands", "rmse": 1.9, "log_density": -2.6,
             "hyperparameters": {"a.lengthscales": [4.5, 2.3], "b.lengthscales": [180.0],
                                 "c.variance": 1.0}}  # fmt: skip
    near = {"set": "uk", "split": "stations", "pairs": 20, "near": 0.7, "any": 0.86}
    default = {"set": "uk", "split": "midlands", "method": "default", "rmse": 1.8,
               "log_density": -2.7, "findings": ["worth 52 draws"],
               "lengthscales": {"x": [4.0, 5.0], "y": [2.0], "t": [200.0]}}  # fmt: skip
    words = results_page.mode([near, found], [default])
    assert "(20 pairs) differ by 0.70 sds" in words
    assert "midlands  mode       1.900       -2.600        4.5        2.3" in words
    assert "default    1.800       -2.700        4.5          2        200" in words
    assert "- midlands: worth 52 draws" in words
    assert results_page.mode([], [default]) == ""


def test_columns_become_code_and_sentences_stay() -> None:
    words = "A sentence.\n\ntitle\na   1\nb   2\n\nx   y\n1   2"
    found = results_page.blocks(words)
    assert found.count("```") == 4 and "title\n\n```\na   1" in found
    assert found.startswith("A sentence.\n\n")

"""The study of verdicts: its lines and its page, on small sizes."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("verdicts")


def test_a_planted_fault_is_a_line_that_says_what_was_flagged(study: Any) -> None:
    line = study.planted("SVGD whose step diverges", 0)
    assert line["flagged"] and line["expected"] == "step"
    assert not line["trusted"] and "diverged" in line["findings"]["step"]
    json.dumps(line)


def test_what_was_replaced_is_put_back(study: Any) -> None:
    before = study.corrected.MOST_SWEEPS
    with pytest.raises(KeyError), study.replaced(study.corrected, "MOST_SWEEPS", 1):
        assert study.corrected.MOST_SWEEPS == 1
        raise KeyError
    assert before == study.corrected.MOST_SWEEPS


def test_the_page_counts_alarms_and_flags(study: Any, tmp_path: Path) -> None:
    about = {"device": "cpu", "jax": "0"}
    good = {"kind": "healthy", "problem": "sine", "trusted": True, "failed": []}
    bad = good | {"trusted": False, "failed": ["step"], "findings": {"step": "9 %"}}
    fault = {"kind": "planted", "problem": "few", "expected": "step", "flagged": True}
    lines = [
        good | about | {"seed": 0},
        bad | about | {"seed": 1},
        fault | about | {"seed": 0, "trusted": False, "findings": {"step": "0 %"}},
        fault | about | {"seed": 1, "trusted": True, "flagged": False, "findings": {}},
    ]
    study.write_page(lines, tmp_path / "verdict.md")
    page = (tmp_path / "verdict.md").read_text()
    assert "Healthy fits: 2, of which 1 failed a check." in page
    assert "| sine | 2 | 1 | seed 1: 9 % |" in page
    assert "| few | 2 | 1 | 0 % |" in page

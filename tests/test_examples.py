"""Every example runs, with few steps, as a newcomer would run it."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.user_precision
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = path.read_text()
    assert len(source.splitlines()) < 100
    # what a reader sees, and what is shortened here
    assert "NUM_STEPS = 1000" in source or "EFFECTIVE_SIZE = 400" in source
    short = tmp_path / path.name
    source = source.replace("NUM_STEPS = 1000", "NUM_STEPS = 20")
    short.write_text(source.replace("EFFECTIVE_SIZE = 400", "EFFECTIVE_SIZE = 20"))
    runpy.run_path(str(short), run_name="__main__")
    assert capsys.readouterr().out

"""The bench works: small sizes, the contenders that need no further packages."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "benchmarks" / "bench.py"


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH), *arguments],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_gradients_are_timed_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    out = tmp_path / "bench-cpu.json"
    asked = ("gradients", "--quick", "--repeats", "1", "--out", str(out))
    run(*asked, "--only", "steingp", "floor")
    found = json.loads(out.read_text())
    assert found["versions"]["jax"] and found["cores"] >= 1
    for line in found["lines"]:
        assert "error" not in line, line
        assert min(line["runs"]["seconds_per_gradient"]) > 0.0
    assert {line["contender"] for line in found["lines"]} == {"steingp", "floor"}
    before = out.read_text()
    run(*asked, "--only", "steingp", "floor")
    assert out.read_text() == before


def test_leaves_are_timed_on_any_device() -> None:
    sys.path.insert(0, str(BENCH.parent))
    try:
        from contenders import leaves
    finally:
        sys.path.pop(0)
    assert 0.0 < leaves(300, 2) < 10.0  # two of 150 rows each


def test_the_page_has_every_part(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCH.parent))
    try:
        from bench_page import write
    finally:
        sys.path.pop(0)
    runs = {"seconds": [1.0, 2.0], "log_density": [-0.5, -0.5]}
    about = {"rows": 100, "columns": 8, "task": "gradient"}
    content = {
        "device": "a gpu", "cpu": "a cpu", "cores": 2, "python": "3.11", "versions": {},
        "date": "2026-01-01", "gpu": True, "seen_by_hand": ["busy for half of it"],
        "lines": [
            {"contender": "steingp", "task": "fit", "data": "servo",
             "runs": runs | {"gradients": [640], "values": [1280]}},
            {"contender": "NUTS", "task": "fit", "data": "servo", "runs": runs},
            {"contender": "steingp", **about, "particles": 20,
             "first_seconds": 7.5, "xla_flags": "--xla_gpu_enable_triton_gemm=false",
             "runs": {"seconds_per_step": [0.02], "seconds_in_leaves": [0.0075],
                      "seconds_per_gradient": [0.02], "seconds_per_values": [0.01]}},
            {"contender": "floor", **about, "runs": {"seconds_per_gradient": [0.0005]}},
            {"contender": "steingp", "task": "stream", "from": "disk", "particles": 30,
             "inducing": 600, "runs": {"seconds_per_step": [0.1], "peak_gib": [1.0]}},
        ],
    }  # fmt: skip
    (tmp_path / "bench-cpu.json").write_text(json.dumps(content))
    write([tmp_path / "bench-cpu.json"], tmp_path / "speed.md")
    text = (tmp_path / "speed.md").read_text()
    assert "1.5 (1-2)" in text and "-0.5000" in text
    assert "2.00" in text  # 20 ms over 20 x 0.5 ms
    assert "20 (20-20)       20     7.5" in text  # its gradient and leaves
    assert "7.5*" in text
    assert "100 (100-100)" in text
    assert "Seen by hand:\nbusy for half of it\n" in text
    assert "they take 0.50 for 100 rows): servo 10 + 20." in text

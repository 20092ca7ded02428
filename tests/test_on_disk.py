"""Files larger than memory: every row once, well mixed, in constant memory."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import steingp as sg
from steingp.batches import prefetched


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    hour = np.sort(rng.uniform(0.0, 10.0, 5003))  # sorted, as tables often are
    return pd.DataFrame(
        {"hour": hour, "wind": rng.normal(size=5003), "no2": np.sin(hour)}
    )


@pytest.fixture(scope="module")
def files(
    frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    paths = {kind: folder / f"rows.{kind}" for kind in ("csv", "csv.gz", "parquet")}
    for kind in ("csv", "csv.gz"):
        frame.to_csv(paths[kind], index=False)
    frame.to_parquet(paths["parquet"])
    paths["npy"] = folder / "rows.npy"
    np.save(paths["npy"], frame.to_numpy())
    return paths


def opened(files: dict[str, Path], kind: str, **options: object) -> sg.RowsOnDisk:
    named = kind != "npy"
    options = {"columns": ["hour", "wind"] if named else [0, 1]} | options
    return sg.RowsOnDisk(files[kind], "no2" if named else -1, **options)  # type: ignore


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "npy"])
def test_every_row_once_and_the_same_in_every_pass(
    files: dict[str, Path], frame: pd.DataFrame, kind: str
) -> None:
    rows = opened(files, kind, block_rows=1000)
    assert rows.num_data == 5003
    passes = [
        np.concatenate([np.column_stack([X, y]) for X, y in rows]) for _ in range(2)
    ]
    np.testing.assert_array_equal(*passes)
    ordered = passes[0][np.argsort(passes[0][:, 0])]
    np.testing.assert_allclose(ordered, frame.to_numpy(), rtol=1e-15)


def test_blocks_of_a_sorted_file_are_alike(files: dict[str, Path]) -> None:
    means = [X["hour"].mean() for X, y in opened(files, "csv", block_rows=1000)]
    # a block has 31 runs of 32 neighbours, which are alike: the mean of 31 uniform
    # values on [0, 10] has sd 2.9 / sqrt(31) = 0.52, less the share already drawn
    assert len(means) == 6 and np.ptp(means[:5]) < 4 * 0.52


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    peaks = []
    for num in (100_000, 400_000):
        path = tmp_path / f"{num}.npy"
        np.save(path, rng.normal(size=(num, 6)))
        rows = sg.RowsOnDisk(path, 5, block_rows=8192)
        tracemalloc.start()
        assert sum(len(y) for _, y in rows) == num
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    block = 8 * 8192 * 6
    # a few copies of a block, and one number per run of 32 rows
    assert max(peaks) < 8 * block and peaks[1] - peaks[0] < 3 * 8 * 300_000 / 32


def test_a_model_of_a_file_is_that_of_its_rows(
    files: dict[str, Path], frame: pd.DataFrame
) -> None:
    rows = opened(files, "parquet")
    model = sg.SteinGP(
        rows, sg.kernels.Matern52(), inducing=15, batch_size=100, standardise=True
    )
    assert model.labels == ["hour", "wind"] and model.num_data == 5003
    np.testing.assert_allclose(model.scaling.x_mean, frame.iloc[:, :2].mean())
    np.testing.assert_allclose(model.scaling.x_scale, frame.iloc[:, :2].std(ddof=0))
    np.testing.assert_allclose(
        (model.scaling.y_mean, model.scaling.y_scale),
        (frame["no2"].mean(), frame["no2"].std(ddof=0)),
    )
    posterior = sg.fit(model, num_steps=150, num_particles=4, progress=False)
    X = frame.iloc[::50, :2]
    error = posterior.predict_f(X).mean - frame["no2"][::50]
    assert np.sqrt(np.mean(error**2)) < 0.1


@pytest.mark.parametrize(
    "name, content, target, columns, message",
    [
        ("a.txt", "x,y\n1,2\n", "y", None, "must end in .parquet"),
        ("a.csv", "x,y\n1,2\n", "z", None, "no column 'z'.*columns are x, y"),
        ("a.csv", "hour,no2\n1,2\n", "no2", ["houre"], "Did you mean 'hour'"),
        ("a.csv", "x,y\n", "y", None, "has no rows"),
        ("a.csv", "", "y", None, "cannot be read as CSV"),
        ("a.csv", "x,y\na,2\n", "y", None, "column 'x' of .* must hold numbers"),
        ("a.csv", "y\n2\n", "y", None, "at least one is needed"),
        ("a.csv", "x,y\n1,2\n", "y", ["x", "y"], "must not be among them"),
        ("a.npy", "no array", 0, None, "cannot be read as a NumPy array"),
        ("a.parquet", "no table", "y", None, "cannot be read as Parquet"),
    ],
)
def test_says_what_is_wrong_with_a_file(
    tmp_path: Path,
    name: str,
    content: str,
    target: object,
    columns: object,
    message: str,
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        sg.RowsOnDisk(path, target, columns)  # type: ignore[arg-type]


def test_refuses_missing_files_and_odd_arrays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a file"):
        sg.RowsOnDisk(tmp_path / "none.csv", "y")
    np.save(tmp_path / "flat.npy", np.zeros(3))
    with pytest.raises(ValueError, match="rows and columns"):
        sg.RowsOnDisk(tmp_path / "flat.npy", 0)
    np.save(tmp_path / "two.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match="no column 2"):
        sg.RowsOnDisk(tmp_path / "two.npy", 2)


def test_missing_values_are_named_before_any_work(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "gaps.csv.gz", "wt") as file:
        file.write("x,y\n1,2\n,3\n")
    rows = sg.RowsOnDisk(tmp_path / "gaps.csv.gz", "y")
    with pytest.raises(ValueError, match="NaN or infinite"):
        sg.SteinGP(rows, sg.kernels.Matern52(), inducing=1, batch_size=1)


def test_prefetching_keeps_order_and_passes_errors_on() -> None:
    assert list(prefetched(iter(range(50)), 3)) == list(range(50))

    def broken():
        yield 1
        raise OSError("the disk is gone")

    ahead = prefetched(broken(), 3)
    assert next(ahead) == 1
    with pytest.raises(OSError, match="disk is gone"):
        next(ahead)

"""Tables larger than memory: Parquet, CSV and NumPy files as streams of rows."""

import difflib
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steingp.checks import as_numbers, check_count

_RUN = 32
"""Neighbouring rows that are read together; blocks are made of runs from everywhere."""
_READ_AT_ONCE = 100_000


class RowsOnDisk:
    """The rows of a file, to be streamed into a sparse model in constant memory.

    A `.npy` file is mapped into memory as it is. A Parquet or CSV file is read once, a
    part at a time, and its columns written to a temporary file of 8 bytes per number,
    which is mapped and is deleted with the object: so rows can be had in any order, and
    text is parsed once. Blocks are made of rows from all over the file, in an order
    that is random but the same in every pass, since the neighbours in a file are often
    alike.

    Args:
        path: `.parquet` (needs pyarrow), `.csv`, `.csv.gz`, or `.npy` with an array of
            two dimensions.
        target: the column of y: its name or, in a `.npy` file, its number.
        columns: those of X; all others by default.
        block_rows: rows in memory at a time.
        seed: for the order.
        folder: where the temporary file is written; the system's default if None.

    Raises:
        ValueError: there is no such file or column, it is of another kind, or has no rows.

    Example:
        >>> import numpy as np, steingp as sg, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
        >>> _ = path.write_text("x,y\\n" + "\\n".join(f"{i/99},{i%7}" for i in range(99)))
        >>> rows = sg.RowsOnDisk(path, target="y")
        >>> rows
        RowsOnDisk(rows.csv: 99 rows, 'y' from 1 column)
        >>> sg.SteinGP(rows, sg.kernels.Matern52(), inducing=10, batch_size=20)
        SteinGP(99 rows, 1 column, f integrated out, 3 hyperparameters)
    """

    def __init__(
        self,
        path: str | Path,
        target: str | int,
        columns: Sequence[str | int] | None = None,
        *,
        block_rows: int = 65_536,
        seed: int = 0,
        folder: str | Path | None = None,
    ) -> None:
        check_count("block_rows", block_rows)
        check_count("seed", seed, lowest=0)
        self.path, self.target = Path(path), target
        self._block_rows, self._seed = block_rows, seed
        if not self.path.is_file():
            raise ValueError(f"path={str(path)!r} is not a file.")
        kind = self.path.name.lower()
        if kind.endswith(".npy"):
            self._open_array(target, columns)
        elif kind.endswith((".parquet", ".csv", ".csv.gz")):
            parts = _parquet if kind.endswith(".parquet") else _csv
            names = _names_in_parquet if kind.endswith(".parquet") else _names_in_csv
            self._copy(parts, names(self.path), target, columns, folder)
        else:
            raise ValueError(
                f"path={str(path)!r} must end in .parquet, .csv, .csv.gz or .npy."
            )
        self.num_data = len(self._table)
        if not self.num_data:
            raise ValueError(f"{self.path} has no rows.")

    def _open_array(
        self, target: str | int, columns: Sequence[str | int] | None
    ) -> None:
        try:
            table = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(
                f"{self.path} cannot be read as a NumPy array: {error}."
            ) from error
        if table.ndim != 2 or table.dtype.kind not in "buif":
            raise ValueError(
                f"{self.path} must hold numbers in rows and columns; its array has shape "
                f"{table.shape} and type {table.dtype}."
            )
        width = table.shape[1]
        self._target, self._inputs = _choose(
            self.path, range(-width, width), target, columns, range(width)
        )
        self._table, self.labels = table, None

    def _copy(
        self, parts: Any, names: list[str], target: Any, columns: Any, folder: Any
    ) -> None:
        target, inputs = _choose(self.path, names, target, columns, names)
        wanted = [*inputs, target]
        file = tempfile.NamedTemporaryFile(suffix=".rows", dir=folder)  # noqa: SIM115
        weakref.finalize(self, file.close)  # which deletes it
        count = 0
        for part in parts(self.path, wanted):
            for name in wanted:
                if as_numbers(part[name].to_numpy()) is None:
                    raise ValueError(
                        f"column {name!r} of {self.path} must hold numbers; got "
                        f"{part[name].iloc[0]!r} or the like. Name the inputs by "
                        "columns=[...], or code it as numbers."
                    )
            part[wanted].to_numpy(np.float64).tofile(file)
            count += len(part)
        file.flush()
        shape = (count, len(wanted))
        self._table = np.memmap(file, float, "r", shape=shape) if count else np.empty(0)
        self._inputs, self._target = list(range(len(inputs))), len(inputs)
        self.labels = [str(name) for name in inputs]

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Blocks (X, y): every row once."""
        rng = np.random.default_rng(self._seed)
        starts = _RUN * rng.permutation(-(-self.num_data // _RUN))
        per_block = max(1, self._block_rows // _RUN)
        for first in range(0, len(starts), per_block):
            runs = np.sort(starts[first : first + per_block])
            index = (runs[:, None] + np.arange(_RUN)).ravel()
            rows = np.asarray(self._table[index[index < self.num_data]], float)
            rng.shuffle(rows)
            X = rows[:, self._inputs]
            if self.labels is not None:
                import pandas as pd

                X = pd.DataFrame(X, columns=self.labels)
            yield X, rows[:, self._target]

    def __repr__(self) -> str:
        D = len(self._inputs)
        return (
            f"RowsOnDisk({self.path.name}: {self.num_data} rows, {self.target!r} from {D} "
            f"column{'s' * (D != 1)})"
        )


def _choose(
    path: Path, known: Any, target: Any, columns: Any, by_default: Any
) -> tuple[Any, list]:
    """The target and the inputs, once it is clear that they exist."""
    for column in (target, *(columns or ())):
        if column in known:
            continue
        close = difflib.get_close_matches(str(column), list(map(str, known)), 1)
        raise ValueError(
            f"{path} has no column {column!r}. "
            + (f"Did you mean {close[0]!r}? " if close else "")
            + f"Its columns are {', '.join(str(c) for c in by_default)}."
        )
    if isinstance(known, range):
        width = len(by_default)
        target %= width
        columns = None if columns is None else [c % width for c in columns]
    inputs = [c for c in by_default if c != target] if columns is None else [*columns]
    if not inputs or target in inputs:
        raise ValueError(
            f"columns={columns} of {path}: at least one is needed, and the target "
            f"{target!r} must not be among them."
        )
    return target, inputs


def _names_in_csv(path: Path) -> list[str]:
    import pandas as pd

    try:
        return [str(name) for name in pd.read_csv(path, nrows=0).columns]
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}.") from error


def _csv(path: Path, names: list[str]) -> Iterator[Any]:
    import pandas as pd

    yield from pd.read_csv(path, usecols=names, chunksize=_READ_AT_ONCE)


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"{path}: Parquet files need pyarrow: pip install 'steingp[parquet]'."
        ) from error
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}.") from error


def _names_in_parquet(path: Path) -> list[str]:
    return list(_parquet_file(path).schema_arrow.names)


def _parquet(path: Path, names: list[str]) -> Iterator[Any]:
    batches = _parquet_file(path).iter_batches(_READ_AT_ONCE, columns=names)
    yield from (batch.to_pandas() for batch in batches)

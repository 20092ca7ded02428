"""CSV files on their way in: read, checked, and refused with file, column, line and fix.

The command line reads tables through this module. pandas does the reading; what it lets
pass in silence (columns of one name, text among numbers, rows of another length) is
refused here, in words that name the place in the file.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FEWEST_ROWS = 5
"""To fit a model to."""
_SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""Names of characters that are hard to type."""


class TableError(ValueError):
    """A table that cannot be used; the message says where and what to do."""


class Layout(NamedTuple):
    """How a file is written."""

    separator: str = ","
    decimal: str = "."
    header: bool = True
    """Whether the first line names the columns; if not, they are column1, column2, ..."""


class Table(NamedTuple):
    """A file as it was read: nothing is converted, nothing dropped but blank lines."""

    path: Path
    frame: "pd.DataFrame"
    lines: np.ndarray
    """The line of the file that each row stands in, from 1."""

    @property
    def columns(self) -> list[str]:
        return list(self.frame.columns)


class Rows(NamedTuple):
    """What a model is fitted to."""

    X: "pd.DataFrame"
    y: np.ndarray
    exposure: np.ndarray | None


def read_table(path: str | Path, layout: Layout | None = None) -> Table:
    """Read a CSV file, plain or compressed (.csv.gz).

    Raises:
        TableError: no such file, an empty one, one that is no table, columns of one name,
            another separator.

    Example:
        >>> import pathlib, tempfile
        >>> from steingp.tables import read_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "trees.csv"
        ...     _ = path.write_text("girth,height\\n8.3,70\\n\\n8.6,65\\n")
        ...     table = read_table(path)
        >>> table.columns, table.lines.tolist()
        (['girth', 'height'], [2, 4])
    """
    path, layout = Path(path), layout or Layout()
    if path.is_dir() or not path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise TableError(f"{path} {what}: give the name of a CSV file.")
    names = _names(path, layout)
    frame = _read(path, layout, names)
    frame = frame.dropna(how="all")  # blank lines
    lines = frame.index.to_numpy() + (2 if layout.header else 1)
    if not len(frame):
        raise TableError(f"{path} has no rows of data below its column names.")
    return Table(path, frame.reset_index(drop=True), lines)


def _names(path: Path, layout: Layout) -> list[str]:
    first = _read(path, layout._replace(header=False), None, nrows=1, dtype=str)
    if not len(first) or first.iloc[0].isna().all():
        raise TableError(
            f"{path}: line 1 is blank. It must name the columns; or pass --no-header."
        )
    if not layout.header:
        return [f"column{i + 1}" for i in range(first.shape[1])]
    names = ["" if name != name else str(name).strip() for name in first.iloc[0]]
    _check_separator(path, names, layout)
    if all(_is_number(name) for name in names):
        raise TableError(
            f"{path}: line 1 holds numbers ({', '.join(names[:3])}, ...), not the names "
            "of columns. Add a first line of names; or pass --no-header, and they are "
            "called column1, column2, ..."
        )
    if "" in names:
        raise TableError(
            f"{path}: column {names.index('') + 1} has no name in line 1. Name it; if it "
            "numbers the rows, call it id and pass --drop id."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(
            f"{path}: {_quoted(twice)} names more than one column in line 1. Rename all "
            "but one of them."
        )
    return names


def _check_separator(path: Path, names: list[str], layout: Layout) -> None:
    if len(names) > 1:
        return
    for other, typed in ((";", "';'"), ("\t", "tab"), (",", "','"), ("|", "'|'")):
        if other in names[0] and other != layout.separator:
            raise TableError(
                f"{path} has one column, {names[0][:60]!r}: its values seem to stand "
                f"between other separators. Pass --separator {typed}."
            )


def _read(
    path: Path, layout: Layout, names: list[str] | None, **options: Any
) -> "pd.DataFrame":
    import warnings

    import pandas as pd

    separator = _SEPARATORS.get(layout.separator, layout.separator)
    for option, value in (("separator", separator), ("decimal", layout.decimal)):
        if len(value) != 1:
            raise TableError(f"--{option} must be one character; got {value!r}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                path, sep=separator, decimal=layout.decimal, header=None, names=names,
                skiprows=1 if layout.header and names else 0, index_col=False,
                skip_blank_lines=False, skipinitialspace=True, low_memory=False,
                encoding="utf-8-sig", **options,
            )  # fmt: skip
    except pd.errors.EmptyDataError as error:
        if names:  # the line of names was all there was
            raise TableError(f"{path} has no rows below its column names.") from error
        raise TableError(f"{path} is empty.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise TableError(_uneven(path, separator, names, str(error))) from error
    except UnicodeDecodeError as error:
        raise TableError(
            f"{path} is not text in UTF-8: give a CSV file. From a spreadsheet, save it "
            "as 'CSV UTF-8'."
        ) from error
    except (OSError, EOFError) as error:
        raise TableError(f"{path} cannot be read: {error}.") from error


def _uneven(path: Path, separator: str, names: list[str] | None, reason: str) -> str:
    """What to say of rows that are longer than the line of names."""
    import csv
    import gzip

    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        for row in reader:
            if names and len(row) > len(names):
                return (
                    f"{path}: line {reader.line_num} has {len(row)} values, but there "
                    f"are {len(names)} columns. Give every line as many values, and put "
                    f"quotes around text that holds {separator!r}."
                )
    return f"{path} is not a table: {reason.strip()}."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- columns ----------------------------------------------------------------------------


def find(table: Table, name: str, what: str) -> str:
    """The name of a column that exists.

    Raises:
        TableError: it does not, with the closest name.
    """
    if name in table.columns:
        return name
    close = _closest(name, table.columns)
    raise TableError(
        f"{table.path} has no column {name!r} ({what}). "
        + (f"Did you mean {close!r}? " if close else "")
        + f"Its columns are {_quoted(table.columns)}."
    )


def numbers(table: Table, name: str, option: str = "") -> np.ndarray:
    """A column as float64.

    Args:
        option: how to leave the column out, for messages; nothing if it is needed.

    Raises:
        TableError: text, missing or infinite values, with the line.
    """
    import pandas as pd

    column = table.frame[name]
    values = np.asarray(pd.to_numeric(column, errors="coerce"), float)
    text = np.isnan(values) & np.asarray(column.notna())
    where = f"{table.path}: column {name!r}"
    if text.any():
        row = int(np.argmax(text))
        leave = f"drop it with {option}, or " if option else ""
        raise TableError(
            f"{where} holds text, first {column.iloc[row]!r} in line {table.lines[row]}: "
            f"{leave}code it as numbers.{_about_decimals(str(column.iloc[row]))}"
        )
    for bad, what in ((np.isnan(values), "no value"), (np.isinf(values), "infinity")):
        if bad.any():
            num, line = int(bad.sum()), table.lines[int(np.argmax(bad))]
            leave = f", or drop the column with {option}" if option else ""
            raise TableError(
                f"{where} has {what} in {num} row{'s' * (num > 1)} of {len(values)}, "
                f"first in line {line}. Fill in a number or remove such rows{leave}."
            )
    return values


def _about_decimals(text: str) -> str:
    if text.count(",") == 1 and _is_number(text.replace(",", ".")):
        return " If the comma is a decimal one, pass --decimal ','."
    return ""


def training_rows(
    table: Table,
    target: str,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    exposure: str | None = None,
) -> Rows:
    """Inputs, target and exposure of a table to be fitted.

    Args:
        columns: the inputs; all columns but the others named here if there are none.
        drop: columns to leave out.

    Raises:
        TableError: a column that does not exist, is not numeric, or is named twice; too
            few rows; a target that is the same in every row.
    """
    find(table, target, "--target")
    if exposure is not None:
        find(table, exposure, "--exposure")
    for names, option in ((columns, "--columns"), (drop, "--drop")):
        for name in names:
            find(table, name, option)
    inputs = _inputs(table, target, columns, drop, exposure)
    if len(table.frame) < FEWEST_ROWS:
        raise TableError(
            f"{table.path} has {len(table.frame)} row(s) of data; at least {FEWEST_ROWS} "
            "are needed."
        )
    y = numbers(table, target)
    if y.max() == y.min():
        raise TableError(
            f"{table.path}: target {target!r} is {y[0]:g} in every row: there is nothing "
            "to learn. Choose another --target."
        )
    given = None if exposure is None else _exposure(table, exposure)
    return Rows(_frame(table, inputs, "--drop {}"), y, given)


def _inputs(
    table: Table,
    target: str,
    columns: Sequence[str],
    drop: Sequence[str],
    exposure: str | None,
) -> list[str]:
    if columns and drop:
        raise TableError(
            "give --columns (the inputs) or --drop (what to leave out), not both."
        )
    taken = {target: "--target", exposure: "--exposure"}
    for name in (*columns, *drop):
        if name in taken:
            option = "--columns" if columns else "--drop"
            raise TableError(f"{name!r} stands in {option} and is {taken[name]}, too.")
    if len(set(columns)) < len(columns):
        raise TableError(f"--columns names a column twice: {_quoted(columns)}.")
    rest = [n for n in table.columns if n not in taken and n not in drop]
    inputs = list(columns) or rest
    if not inputs:
        raise TableError(
            f"{table.path} has no input column beside the target {target!r}."
        )
    return inputs


def new_rows(
    table: Table, inputs: Sequence[str], exposure: str | None = None
) -> tuple["pd.DataFrame", np.ndarray | None]:
    """Inputs and exposure of a table to predict; other columns are ignored.

    Raises:
        TableError: missing columns, or values that are not numbers.
    """
    wanted = [*inputs, *([] if exposure is None else [exposure])]
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        hints = [(n, _closest(n, set(table.columns) - set(wanted))) for n in missing]
        close = "".join(f" Is {b!r} meant for {a!r}?" for a, b in hints if b)
        raise TableError(
            f"{table.path} lacks {_quoted(missing)}, which the model was fitted with."
            f"{close} Its columns are {_quoted(table.columns)}."
        )
    given = None if exposure is None else _exposure(table, exposure)
    return _frame(table, inputs, ""), given


def _frame(table: Table, names: Sequence[str], option: str) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(
        {name: numbers(table, name, option.format(_shell(name))) for name in names}
    )


def _exposure(table: Table, name: str) -> np.ndarray:
    values = numbers(table, name)
    if np.any(values <= 0.0):
        row = int(np.argmax(values <= 0.0))
        raise TableError(
            f"{table.path}: exposure {name!r} must be greater than 0; it is "
            f"{values[row]:g} in line {table.lines[row]}."
        )
    return values


def refuse_lines(
    table: Table, target: str, good: np.ndarray, expected: str, remedy: str
) -> None:
    """Raise for the first row that is not good, by its line.

    Raises:
        TableError: there is one.
    """
    if not np.all(good):
        row, num = int(np.argmin(good)), int(np.sum(~good))
        value = numbers(table, target)[row]
        raise TableError(
            f"{table.path}: target {target!r} must hold {expected}; it is "
            f"{value:g} in line {table.lines[row]}, one of {num} "
            f"such row{'s' * (num > 1)}. {remedy}"
        )


def _closest(name: str, known: Any) -> str | None:
    folded = {other.casefold(): other for other in known}
    found = difflib.get_close_matches(name.casefold(), folded, 1, 0.6)
    return folded[found[0]] if found else None


def _quoted(names: Sequence[str], most: int = 12) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")


def _shell(name: str) -> str:
    import shlex

    return shlex.quote(name)

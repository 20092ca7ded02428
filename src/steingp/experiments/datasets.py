"""The data of the paper's studies: simulated ones, and real ones from a folder.

Real sets are looked for in the folder that the environment variable `STEINGP_DATA`
names: `uci/<name>.csv.gz` are gzipped CSV files without a header, target last.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from steingp.data import split_rows

CLASSIFICATION = (
    "blood",
    "breast-cancer",
    "fertility",
    "hepatitis",
    "mammographic",
    "spectf",
)
"""UCI sets with labels 0 and 1; all others are regression."""


class Split(NamedTuple):
    """A training and a test part."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def neal(seed: int = 0, num: int = 200, num_train: int = 100) -> Split:
    """Neal's one-dimensional data with outliers, section 5.2.

    y = 0.3 + 0.3 x + 0.5 sin(2.7 x) + 1.1 / (1 + x^2) + noise, x ~ N(0, 1), noise of sd
    1 with probability 0.05 and 0.1 otherwise.

    Example:
        >>> from steingp.experiments.datasets import neal
        >>> neal(seed=0).X.shape, neal(seed=0).y_test.shape
        ((100, 1), (100,))
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=num)
    sd = np.where(rng.uniform(size=num) < 0.05, 1.0, 0.1)
    y = 0.3 + 0.3 * x + 0.5 * np.sin(2.7 * x) + 1.1 / (1.0 + x**2)
    y = y + sd * rng.normal(size=num)
    X = x[:, None]
    return Split(X[:num_train], y[:num_train], X[num_train:], y[num_train:])


def data_folder() -> Path:
    """The folder of real data.

    Raises:
        FileNotFoundError: with what to set, if there is none.
    """
    folder = os.environ.get("STEINGP_DATA")
    if not folder or not Path(folder).is_dir():
        raise FileNotFoundError(
            "the environment variable STEINGP_DATA must name the folder with the data "
            f"(it holds uci/<name>.csv.gz); it is {folder!r}."
        )
    return Path(folder)


def where_to_get(names: list[str], folder: Path) -> str:
    """Where UCI sets that are not in the folder come from, and how to lay them out.

    Example:
        >>> from pathlib import Path
        >>> from steingp.experiments.datasets import where_to_get
        >>> print(where_to_get(["servo"], Path("data")).splitlines()[0])
        not in data/uci, left out: servo.
    """
    from steingp.experiments.fetching import CHECKSUMS, OTHER_NAMES

    lines = [f"not in {folder / 'uci'}, left out: {', '.join(names)}."]
    fetched = [name for name in names if name in CHECKSUMS]
    if fetched:
        other = "".join(f" ({n} is {OTHER_NAMES[n]} there)" for n in fetched
                        if n in OTHER_NAMES)  # fmt: skip
        lines.append(
            f"- {', '.join(fetched)}: steingp reproduce uci --fetch, or data.csv.gz of the "
            f"set's folder in https://github.com/treforevans/uci_datasets{other}, as "
            f"{folder / 'uci' / fetched[0]}.csv.gz"
        )
    wines = [name for name in names if name in ("winered", "winewhite")]
    if wines:
        lines.append(
            f"- {', '.join(wines)}: https://archive.ics.uci.edu/dataset/186/wine+quality; "
            "commas for semicolons, no header, quality last, gzipped."
        )
    labels = [n for n in names if n.removesuffix("_rowid") in CLASSIFICATION]
    if labels:
        lines.append(
            f"- {', '.join(labels)}: files <set>_R.dat of the collection of Fernandez-"
            "Delgado et al. (2014), Do we need hundreds of classifiers, from the UCI "
            "repository; gzipped commas without a header, label 0 or 1 last; _rowid keeps "
            "their first column, the row number."
        )
    return "\n".join(lines)


def uci(name: str) -> tuple[np.ndarray, np.ndarray]:
    """X and y of a UCI set, as they are in its file.

    Raises:
        FileNotFoundError: if the set is not in the folder, naming those that are.
    """
    folder = data_folder() / "uci"
    path = folder / f"{name}.csv.gz"
    if not path.is_file():
        there = sorted(p.name.removesuffix(".csv.gz") for p in folder.glob("*.csv.gz"))
        raise FileNotFoundError(f"no {name!r} in {folder}; there are {there}.")
    table = np.loadtxt(path, delimiter=",")
    return table[:, :-1], table[:, -1]


def uci_split(name: str, seed: int = 0, max_rows: int | None = None) -> Split:
    """A random 70/30 split, scaled by the training part's mean and sd.

    Columns that are constant in the training part are dropped; labels are not scaled.

    Args:
        max_rows: keep only so many rows of the training part.
    """
    X, y = uci(name)
    train, test = split_rows(len(X), seed=seed)
    train = train[:max_rows]
    X = X[:, X[train].max(axis=0) > X[train].min(axis=0)]
    mean, sd = X[train].mean(axis=0), X[train].std(axis=0)
    X = (X - mean) / sd
    if name.removesuffix("_rowid") not in CLASSIFICATION:
        y = (y - y[train].mean()) / y[train].std()
    return Split(X[train], y[train], X[test], y[test])

"""The data of a model as they come in: checked, scaled, in memory or as a stream."""

from typing import Any, NamedTuple

import numpy as np

from steingp.batches import Block, BlockStream
from steingp.checks import check_count
from steingp.data import Batch, Scaling, as_batch, check_column, check_inputs
from steingp.likelihoods import Gaussian, Likelihood

_SAMPLED = 10_000
"""Rows of a stream among which inducing points are chosen."""


class Observations(NamedTuple):
    """What a model knows of its data."""

    batch: Batch
    """Scaled; of a stream its first block."""
    candidates: np.ndarray
    """Rows of X among which inducing points may be chosen."""
    num_data: int
    labels: list[str]
    """Names of the input columns."""
    scaling: Scaling
    stream: BlockStream | None


def in_memory(
    data: tuple, num_data: int | None, likelihood: Likelihood, standardise: bool
) -> Observations:
    """Of a pair (X, y); arguments as those of `SteinGP`."""
    X, labels = check_inputs(data[0])
    y = check_column(data[1], "y", len(X))
    likelihood.check_targets(y)
    if num_data not in (None, len(y)):
        raise ValueError(
            f"num_data={num_data}, but (X, y) has {len(y)} rows; num_data is for "
            "streams of blocks."
        )
    row = np.full(len(y), likelihood.row_neutral)
    if likelihood.row_values is not None:
        given = np.asarray(likelihood.row_values, float)
        row = np.full(len(y), given) if given.ndim == 0 else given
        row = check_column(row, str(likelihood.row_name), len(y))
    scaling = Scaling()
    if standardise:
        scaling = Scaling.of(X, y if likelihood.real_valued else None)
        X, y, row = _scaled(X, y, row, likelihood, scaling)
    return Observations(as_batch(X, y, row), X, len(y), labels, scaling, None)


def streamed(
    blocks: Any,
    num_data: int | None,
    likelihood: Likelihood,
    inducing: Any,
    batch_size: int | None,
    standardise: bool,
    seed: int,
) -> Observations:
    """Of blocks (X, y); arguments as those of `SteinGP`."""
    if num_data is None:
        num_data = getattr(blocks, "num_data", None)
    if num_data is None:
        raise ValueError(
            "num_data=None: a stream of blocks needs the number of its rows. (Data in "
            "memory are passed as a pair (X, y).)"
        )
    check_count("num_data", num_data)
    if inducing is None:
        raise ValueError(
            "inducing=None: a stream of blocks needs a sparse model. Give the number "
            "of inducing points, for instance inducing=200, or the points (M, D)."
        )
    if likelihood.row_values is not None:
        raise ValueError(
            f"with a stream, pass {likelihood.row_name} as the third item of "
            "every block, (X, y, values), not to the likelihood."
        )
    checked = _CheckedBlocks(likelihood)
    stream = BlockStream(blocks, int(num_data), batch_size, checked)
    candidates = stream.first_block[0]
    if standardise or np.ndim(inducing) == 0:
        found = stream.survey(_SAMPLED, seed)
        if standardise:
            checked.scaling = found.scaling(y_too=likelihood.real_valued)
            stream = BlockStream(blocks, int(num_data), batch_size, checked)
        candidates = checked.scaling.inputs(found.sample)
    return Observations(
        as_batch(*stream.first_block), candidates, int(num_data), checked.labels,
        checked.scaling, stream,
    )  # fmt: skip


class _CheckedBlocks:
    """Blocks of a stream, one after the other, checked and scaled."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.scaling = Scaling()
        self.labels: list[str] = []
        self._likelihood = likelihood
        self._num_columns: int | None = None

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not isinstance(block, tuple | list) or len(block) not in (2, 3):
            raise ValueError(
                "every block must be (X, y), or (X, y, values) with what the likelihood "
                f"knows of each row; got {type(block).__name__}. (Data in memory are "
                "passed as one tuple (X, y).)"
            )
        X, labels = check_inputs(block[0], "X of a block", self._num_columns)
        if self._num_columns is None:
            self._num_columns, self.labels = X.shape[1], labels
        y = check_column(block[1], "y of a block", len(X))
        self._likelihood.check_targets(y)
        row = np.full(len(y), self._likelihood.row_neutral)
        if len(block) == 3:
            row = check_column(block[2], "values of a block", len(X))
            self._likelihood.check_rows(row, "values of a block")
        return _scaled(X, y, row, self._likelihood, self.scaling)


def _scaled(
    X: np.ndarray,
    y: np.ndarray,
    row: np.ndarray,
    likelihood: Likelihood,
    scaling: Scaling,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and known variances in the model's units."""
    if isinstance(likelihood, Gaussian):
        row = row / scaling.y_scale**2
    return scaling.inputs(X), scaling.outputs(y), row

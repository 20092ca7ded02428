"""Data on its way in: checked and shaped once, scaled, split, and cut into batches.

Users hand in NumPy or JAX arrays, lists, or pandas; everything behind this module sees
float64 `X (N, D)` and `y (N,)`. A batch also carries `row`, the one number per row that
a likelihood may know (an exposure, a known noise variance), and a `mask` that is 0 on
rows that only pad a short block.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from steingp.checks import as_numbers


class Batch(NamedTuple):
    """Rows that enter one evaluation of a target: NumPy at rest, JAX where computed."""

    X: Any  # (B, D)
    y: Any  # (B,)
    row: Any  # (B,)
    mask: Any  # (B,)


def check_inputs(
    X: Any, name: str = "X", num_columns: int | None = None
) -> tuple[np.ndarray, list[str]]:
    """X as a float64 matrix, and the names of its columns.

    Args:
        X: (N, D), or (N,) for one column; pandas columns give their names.
        name: what to call it in messages.
        num_columns: the width it must have, if it is known.

    Raises:
        ValueError: not numbers, no rows, NaN or infinite values, the wrong width.
    """
    labels = [str(c) for c in X.columns] if hasattr(X, "columns") else None
    values = _as_floats(X, name)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(
            f"{name} must have rows and columns, shape (N, D); got shape {values.shape}."
        )
    if values.shape[0] == 0 or values.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {values.shape}: at least one row and one column is needed."
        )
    if num_columns is not None and values.shape[1] != num_columns:
        raise ValueError(
            f"{name} has {values.shape[1]} column(s), but the model was made for "
            f"{num_columns}; pass the same inputs in the same order."
        )
    _check_finite(values, name)
    return values, labels or [str(i) for i in range(values.shape[1])]


def check_column(y: Any, name: str, num_rows: int) -> np.ndarray:
    """One number per row as a float64 vector; (N,) and (N, 1) are both accepted."""
    values = _as_floats(y, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(
            f"{name} must have one value per row, shape (N,) or (N, 1); got shape "
            f"{values.shape}."
        )
    if len(values) != num_rows:
        raise ValueError(
            f"X has {num_rows} rows and {name} has {len(values)}; they must describe the "
            "same observations."
        )
    _check_finite(values[:, None], name)
    return values


def _as_floats(values: Any, name: str) -> np.ndarray:
    if hasattr(values, "dtypes") and hasattr(values, "columns"):
        for column in values.columns:
            _as_floats(values[column].to_numpy(), f"column {column!r} of {name}")
    numbers = as_numbers(values)
    if numbers is None:
        raise ValueError(
            f"{name} must hold numbers; got {_kind(values)}. Convert text, categories "
            "and dates to numbers first."
        )
    return numbers


def _kind(values: Any) -> str:
    array = np.asarray(values, dtype=object).ravel()
    if not array.size:
        return type(values).__name__
    odd = next((v for v in array if as_numbers(v) is None), array[0])
    return f"{odd!r}, a {type(odd).__name__}"


def _check_finite(values: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        rows = int(bad.any(axis=1).sum())
        where = f"row {row}" + (f", column {column}" if values.shape[1] > 1 else "")
        raise ValueError(
            f"{name} has NaN or infinite values in {rows} row(s), first in {where}. "
            "Drop these rows or fill them in."
        )


def warn_about_scale(
    X: np.ndarray, y: np.ndarray | None, default_priors: bool, labels: list[str]
) -> None:
    """Warn of constant columns, and of default priors on data far from unit scale."""
    varies = X.max(axis=0) > X.min(axis=0)  # an sd may miss 0 by round-off
    spread = np.where(varies, X.std(axis=0), 0.0)
    constant = [labels[i] for i in np.flatnonzero(~varies)]
    if constant and len(X) > 1:
        warnings.warn(
            f"input column(s) {', '.join(constant)} are constant: they carry no "
            "information, and their lengthscales keep their priors.",
            stacklevel=4,
        )
    if not default_priors or len(X) < 2:
        return
    far = [labels[i] for i in np.flatnonzero(spread > 0) if not 0.05 < spread[i] < 20]
    if far:
        warnings.warn(
            f"input column(s) {', '.join(far)} are far from unit scale, which the "
            "default priors expect. Pass standardise=True, or priors of your own.",
            stacklevel=4,
        )
    if y is not None and (not 0.02 < y.std() < 50 or abs(y.mean()) > 10 * y.std()):
        warnings.warn(
            f"y has mean {y.mean():.3g} and sd {y.std():.3g}, far from the unit scale "
            "and zero mean that the default priors expect. Pass standardise=True, or "
            "priors and a mean function of your own.",
            stacklevel=4,
        )


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The affine maps between the user's units and the model's."""

    x_mean: np.ndarray | float = 0.0
    x_scale: np.ndarray | float = 1.0
    y_mean: float = 0.0
    y_scale: float = 1.0

    @staticmethod
    def of(X: np.ndarray, y: np.ndarray | None) -> "Scaling":
        """Zero mean and unit sd; a constant column is only centred."""
        scale = np.where(X.max(axis=0) > X.min(axis=0), X.std(axis=0), 1.0)
        if y is None:
            return Scaling(X.mean(axis=0), scale)
        y_scale = float(y.std()) if y.max() > y.min() else 1.0
        return Scaling(X.mean(axis=0), scale, float(y.mean()), y_scale)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        return (X - self.x_mean) / self.x_scale

    def inputs_back(self, X: Any) -> Any:
        return X * self.x_scale + self.x_mean

    def outputs(self, y: np.ndarray) -> np.ndarray:
        return (y - self.y_mean) / self.y_scale

    def outputs_back(self, y: Any) -> Any:
        return y * self.y_scale + self.y_mean


def split_rows(
    num_rows: int, fraction: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of a random training and test part.

    Example:
        >>> from steingp.data import split_rows
        >>> train, test = split_rows(10)
        >>> len(train), len(test), len({*train, *test})
        (7, 3, 10)
    """
    order = np.random.default_rng(seed).permutation(num_rows)
    return order[: int(fraction * num_rows)], order[int(fraction * num_rows) :]


# --- batches: what a compiled loop sees at each step ------------------------------------


class FullBatch(eqx.Module):
    """All rows at every step."""

    batch: Batch

    def at(self, step: Int[Array, ""]) -> Batch:
        del step
        return self.batch

    def chunk(self, first_step: int, num_steps: int) -> tuple["FullBatch", int]:
        del first_step
        return self, num_steps


class Minibatches(eqx.Module):
    """`batch_size` rows at each step, drawn inside the compiled loop.

    The rows of an epoch are a permutation of the data, so that each is seen once before
    any is seen twice; the cost of a step does not depend on N.
    """

    data: Batch
    key: Array
    batch_size: int = eqx.field(static=True)

    def at(self, step: Int[Array, ""]) -> Batch:
        index = epoch_index(self.key, step, self.batch_size, len(self.data.y))
        return Batch(*(jnp.take(column, index, axis=0) for column in self.data))

    def chunk(self, first_step: int, num_steps: int) -> tuple["Minibatches", int]:
        del first_step
        return self, num_steps


def epoch_index(
    key: Array, step: Int[Array, ""], batch_size: int, num_data: int
) -> Int[Array, " B"]:
    """Rows of the step-th batch; where an epoch ends inside it, the next one begins."""
    position = step.astype(jnp.int64) * batch_size + jnp.arange(batch_size)
    epoch, within = position // num_data, position % num_data
    first = epoch[0]
    this = _permute(jax.random.fold_in(key, first), within, num_data)
    following = _permute(jax.random.fold_in(key, first + 1), within, num_data)
    return jnp.where(epoch == first, this, following)


def _permute(key: Array, index: Array, size: int, rounds: int = 6) -> Array:
    """A keyed permutation of 0..size-1, evaluated only at `index`.

    A Feistel network on Z_a x Z_b with a b just above `size` (Black and Rogaway 2002);
    an image outside is mapped again until it falls inside.
    """
    a = int(np.ceil(np.sqrt(size)))
    b = int(np.ceil(size / a))
    keys = jax.random.bits(key, (2 * rounds,), jnp.uint32)

    def mix(value: Array, round_key: Array) -> Array:
        value = (value ^ round_key) * jnp.uint32(0x85EBCA6B)
        value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE35)
        return value ^ (value >> 16)

    def once(value: Array) -> Array:
        left, right = value // b, value % b
        for r in range(rounds):
            left = (left + mix(right, keys[2 * r]) % a) % a
            right = (right + mix(left, keys[2 * r + 1]) % b) % b
        return left * b + right

    image = jax.lax.while_loop(
        lambda value: jnp.any(value >= size),
        lambda value: jnp.where(value >= size, once(value), value),
        once(index.astype(jnp.uint32)),
    )
    return image.astype(jnp.int64)


class Stacked(eqx.Module):
    """Batches that came from outside, stacked: step `first + i` sees the i-th."""

    batches: Batch
    first: Array

    def at(self, step: Int[Array, ""]) -> Batch:
        return Batch(*(column[step - self.first] for column in self.batches))


Block = tuple[Any, ...]
Blocks = Iterable[Block] | Callable[[], Iterator[Block]]


class BlockStream:
    """(X, y) or (X, y, row) blocks from anywhere, cut to batches of one size.

    Args:
        blocks: an iterable that can be iterated again (not a generator), or a callable
            that returns a fresh iterator.
        num_data: rows of one pass.
        batch_size: rows of a batch; None: as many as the first block has.
        prepare: turns a checked block into the model's units.
    """

    def __init__(
        self,
        blocks: Blocks,
        num_data: int,
        batch_size: int | None,
        prepare: Callable[[Block], tuple[np.ndarray, np.ndarray, np.ndarray]],
    ) -> None:
        if isinstance(blocks, Iterator):
            raise ValueError(
                "blocks must be iterable more than once, but an iterator (or generator) "
                "came, which is used up after one pass. Pass a list, an object with "
                "__iter__, or the function that makes the generator."
            )
        self._blocks, self._prepare, self._num_data = blocks, prepare, num_data
        self.first_block = prepare(self._first())
        self.batch_size = batch_size or len(self.first_block[1])

    def _once(self) -> Iterator[Block]:
        return iter(self._blocks() if callable(self._blocks) else self._blocks)

    def _first(self) -> Block:
        for block in self._once():
            return block
        raise ValueError("blocks is empty: at least one (X, y) block is needed.")

    def one_pass(self) -> Iterator[Batch]:
        """Every row once, in full batches; only the last of a pass may be padded.

        Rows left over from one block begin the next batch: a batch of few rows would
        count each of them for many.
        """
        rest: list[np.ndarray] = []
        count = 0
        for block in self._once():
            parts = list(self._prepare(block))
            count += len(parts[1])
            if rest:
                parts = [np.concatenate(both) for both in zip(rest, parts, strict=True)]
            whole = len(parts[1]) - len(parts[1]) % self.batch_size
            for start in range(0, whole, self.batch_size):
                piece = slice(start, start + self.batch_size)
                yield _pad(*(part[piece] for part in parts), size=self.batch_size)
            rest = [part[whole:] for part in parts]
        if count != self._num_data:
            raise ValueError(
                f"a pass over the blocks gave {count} rows, but num_data is "
                f"{self._num_data}. Give the number of rows, and see that every pass "
                "starts anew: a callable must return a fresh iterator each time."
            )
        if len(rest[1]):
            yield _pad(*rest, size=self.batch_size)

    def forever(self) -> Iterator[Batch]:
        """Pass after pass."""
        while True:
            yield from self.one_pass()


class StreamBatches:
    """Hands the batches of a stream to a compiled loop, a stack of them at a time."""

    def __init__(self, stream: BlockStream, stack_size: int = 16) -> None:
        self._stream, self._stack_size = stream, stack_size
        self._next_step, self._batches = 0, stream.forever()

    def chunk(self, first_step: int, num_steps: int) -> tuple[Stacked, int]:
        """The batches of the next steps, as many as fit into a stack.

        A run that goes on from a stored state, or one that was interrupted, starts the
        stream again and skips what it has seen, so that a step always sees the same rows.
        """
        if first_step != self._next_step:
            self._batches = itertools.islice(self._stream.forever(), first_step, None)
        self._next_step = -1  # if reading is interrupted, the next call starts again
        num = min(num_steps, self._stack_size)
        taken = list(itertools.islice(self._batches, num))
        self._next_step = first_step + num
        taken += [taken[-1]] * (self._stack_size - num)
        columns = (np.stack(column) for column in zip(*taken, strict=True))
        return Stacked(Batch(*columns), jnp.asarray(first_step)), num


def _pad(X: np.ndarray, y: np.ndarray, row: np.ndarray, size: int) -> Batch:
    """Repeat the first row up to `size`, with mask 0."""
    index = np.where(np.arange(size) < len(y), np.arange(size), 0)
    mask = (np.arange(size) < len(y)).astype(float)
    return Batch(X[index], y[index], row[index], mask)


def as_batch(X: np.ndarray, y: np.ndarray, row: np.ndarray) -> Batch:
    """All rows, none masked."""
    return Batch(X, y, row, np.ones(len(y)))


def count_rows(batch: Batch) -> Float[Array, ""]:
    """How many rows of a batch are real."""
    return jnp.sum(batch.mask)

"""What each step of a compiled loop sees of the data: all rows, some, or a stream's."""

import dataclasses
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from steingp.data import Batch, Scaling


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
        self._check_count(count)
        if len(rest[1]):
            yield _pad(*rest, size=self.batch_size)

    def _check_count(self, count: int) -> None:
        if count != self._num_data:
            raise ValueError(
                f"a pass over the blocks gave {count} rows, but num_data is "
                f"{self._num_data}. Give the number of rows, and see that every pass "
                "starts anew: a callable must return a fresh iterator each time."
            )

    def forever(self) -> Iterator[Batch]:
        """Pass after pass."""
        while True:
            yield from self.one_pass()

    def survey(self, num_sampled: int, seed: int) -> "Survey":
        """Moments of all rows, and some of them at random, by one pass."""
        rng = np.random.default_rng(seed)
        width = self.first_block[0].shape[1] + 1
        origin = np.append(self.first_block[0][0], self.first_block[1][0])
        sums, squares, count = np.zeros(width), np.zeros(width), 0
        sample, marks = np.zeros((0, width)), np.zeros(0)
        for block in self._once():
            X, y, _ = self._prepare(block)
            table = np.column_stack([X, y])
            count += len(table)
            sums += np.sum(table - origin, axis=0)
            squares += np.sum((table - origin) ** 2, axis=0)
            # the rows with the smallest marks are a sample without replacement
            marks = np.append(marks, rng.random(len(table)))
            kept = np.argsort(marks)[:num_sampled]
            sample, marks = np.concatenate([sample, table])[kept], marks[kept]
        self._check_count(count)
        mean = sums / count
        sd = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        sd = np.where(squares > 0.0, sd, 1.0)
        return Survey(origin + mean, sd, sample[:, :-1])


class Survey(NamedTuple):
    """What one pass tells of a stream."""

    mean: np.ndarray
    """Of the columns of X, then y."""
    sd: np.ndarray
    """Likewise; 1 for a constant."""
    sample: np.ndarray
    """Rows of X, at random."""

    def scaling(self, y_too: bool) -> Scaling:
        """To zero mean and unit sd, of X or X and y."""
        x_only = Scaling(self.mean[:-1], self.sd[:-1])
        if not y_too:
            return x_only
        y = {"y_mean": float(self.mean[-1]), "y_scale": float(self.sd[-1])}
        return dataclasses.replace(x_only, **y)


def prefetched(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    """The same, `depth` of them ahead, prepared by a thread while others are used."""
    ready: queue.Queue = queue.Queue(depth)
    left = threading.Event()

    def put(item: tuple[str, Any]) -> bool:
        while not left.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def fill() -> None:
        try:
            for batch in batches:
                if not put(("batch", batch)):
                    return
            put(("end", None))
        except BaseException as error:  # raised where batches are used
            put(("error", error))

    threading.Thread(target=fill, daemon=True).start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "error":
                raise item
            if kind == "end":
                return
            yield item
    finally:
        left.set()


class StreamBatches:
    """Hands the batches of a stream to a compiled loop, a stack of them at a time.

    The next stack is read while a step works on this one.
    """

    def __init__(self, stream: BlockStream, stack_size: int = 16) -> None:
        self._stream, self._stack_size = stream, stack_size
        self._next_step, self._batches = 0, self._from(0)

    def _from(self, first_step: int) -> Iterator[Batch]:
        batches = itertools.islice(self._stream.forever(), first_step, None)
        return prefetched(batches, self._stack_size)

    def chunk(self, first_step: int, num_steps: int) -> tuple[Stacked, int]:
        """The batches of the next steps, as many as fit into a stack.

        A run that goes on from a stored state, or one that was interrupted, starts the
        stream again and skips what it has seen, so that a step always sees the same rows.
        """
        if first_step != self._next_step:
            self._batches = self._from(first_step)
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

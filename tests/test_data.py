"""Data checks, scaling, and the ways batches are cut."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from steingp import batches, data


def test_accepts_lists_pandas_float32_integers_and_vectors() -> None:
    frame = pd.DataFrame({"age": [1, 2, 3], "dose": [0.5, 0.25, 0.125]})
    X, labels = data.check_inputs(frame)
    assert X.dtype == np.float64 and X.shape == (3, 2) and labels == ["age", "dose"]
    X, labels = data.check_inputs(np.arange(3, dtype=np.float32))
    assert X.dtype == np.float64 and X.shape == (3, 1) and labels == ["0"]
    assert data.check_column([[1], [2]], "y", 2).tolist() == [1.0, 2.0]
    assert data.check_column(pd.Series([True, False]), "y", 2).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "X, message",
    [
        (np.zeros((0, 2)), "at least one row"),
        (np.zeros((2, 2, 2)), r"shape \(N, D\)"),
        ([[1.0], [np.nan], [np.inf]], "in 2 row\\(s\\), first in row 1"),
        ([[1.0, 2.0], [1.0, np.inf]], "first in row 1, column 1"),
        ([["a"], ["b"]], "must hold numbers"),
        (pd.DataFrame({"ok": [1.0], "town": ["Leeds"]}), "column 'town' of X"),
    ],
)
def test_refuses_bad_inputs(X: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.check_inputs(X)


def test_refuses_mismatched_rows_and_wide_targets() -> None:
    with pytest.raises(ValueError, match="X has 50 rows and y has 49"):
        data.check_column(np.zeros(49), "y", 50)
    with pytest.raises(ValueError, match=r"got shape \(3, 2\)"):
        data.check_column(np.zeros((3, 2)), "y", 3)
    with pytest.raises(ValueError, match=r"y has NaN .* first in row 2"):
        data.check_column([0.0, 1.0, np.nan], "y", 3)


def test_scaling_round_trip_and_constant_column() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(5.0, 3.0, (40, 2)), rng.normal(-2.0, 7.0, 40)
    X[:, 1] = 0.1  # whose computed sd is 1e-17, not 0
    scaling = data.Scaling.of(X, y)
    scaled = scaling.inputs(X)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(scaling.outputs_back(scaling.outputs(y)), y, rtol=1e-12)


@pytest.mark.parametrize("num_data", [1, 2, 7, 97, 100, 1000])
def test_an_epoch_is_a_permutation(num_data: int) -> None:
    key = jax.random.key(3)
    batch_size = min(8, num_data)
    steps = num_data // np.gcd(num_data, batch_size)  # ends where an epoch ends
    draw = jax.jit(lambda t: batches.epoch_index(key, t, batch_size, num_data))
    seen = np.concatenate([draw(jnp.asarray(t)) for t in range(steps)])
    for epoch in np.split(seen, len(seen) // num_data):
        assert sorted(epoch) == list(range(num_data))


def test_epochs_differ_and_positions_are_uniform() -> None:
    # 2000 permutations of 10: where row 0 goes is multinomial; chi-square with 9
    # degrees of freedom exceeds 33.7 once in 10,000
    size, num = 10, 2000
    keys = jax.random.split(jax.random.key(0), num)
    images = jax.vmap(lambda k: batches._permute(k, jnp.arange(size), size))(keys)
    for row in (0, 5, 9):
        counts = np.bincount(np.asarray(images[:, row]), minlength=size)
        assert ((counts - num / size) ** 2 / (num / size)).sum() < 33.7
    # neighbours must not stay neighbours: P(image[1] = image[0] + 1) is 9 / 90 = 0.1,
    # so the count of 2000 has sd 13.4
    together = int(jnp.sum(images[:, 1] == images[:, 0] + 1))
    assert abs(together - 200) < 5 * 13.4


def test_streams_pad_split_and_start_again() -> None:
    blocks = [(np.arange(5.0), np.arange(5.0)), (np.arange(5.0, 7.0), np.ones(2))]

    def prepare(block: tuple) -> tuple:
        X, y = block
        return X[:, None], y, np.zeros(len(y))

    stream = batches.BlockStream(lambda: iter(blocks), 7, 3, prepare)
    cut = list(stream.one_pass())
    # rows left over from a block begin the next batch; only the last is padded
    assert [int(b.mask.sum()) for b in cut] == [3, 3, 1]
    rows = np.concatenate([b.X[b.mask > 0, 0] for b in cut])
    assert rows.tolist() == list(range(7))
    assert all(b.X.shape == (3, 1) for b in cut)

    source = batches.StreamBatches(stream, stack_size=2)
    first, num = source.chunk(0, 5)
    assert num == 2
    np.testing.assert_array_equal(first.at(jnp.asarray(1)).X, cut[1].X)
    again, _ = source.chunk(4, 1)  # out of order: as after an interruption
    np.testing.assert_array_equal(again.at(jnp.asarray(4)).X, cut[1].X)


def test_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="iterable more than once"):
        batches.BlockStream((b for b in []), 1, None, lambda b: b)  # type: ignore
    with pytest.raises(ValueError, match="blocks is empty"):
        batches.BlockStream([], 1, None, lambda b: b)  # type: ignore


def test_scale_warnings() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = X[:, 0]
    with pytest.warns(UserWarning, match="column\\(s\\) b are constant"):
        data.warn_about_scale(X * [1.0, 0.0] + 0.1, y, True, ["a", "b"])
    with pytest.warns(UserWarning, match="column\\(s\\) a are far from unit scale"):
        data.warn_about_scale(X * [1e4, 1.0], y, True, ["a", "b"])
    with pytest.warns(UserWarning, match="y has mean"):
        data.warn_about_scale(X, y + 500.0, True, ["a", "b"])
    data.warn_about_scale(X * [1e4, 1.0], y, False, ["a", "b"])  # priors were chosen

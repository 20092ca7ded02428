# %% [markdown]
# # Streamed
# Data that do not fit into memory: any function that yields (X, y) blocks. Here they
# come from a memory-mapped file; a database cursor or a folder of CSV files works alike.

# %%
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import steingp as sg
from steingp import kernels, metrics

NUM_STEPS = 1000  # a test runs this file with fewer
NUM_DATA = 100_000

rng = np.random.default_rng(4)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "rows.npy"
table = np.lib.format.open_memmap(path, "w+", dtype=float, shape=(NUM_DATA, 3))
table[:, :2] = rng.uniform(-3, 3, (NUM_DATA, 2))
table[:, 2] = (
    np.sin(2 * table[:, 0]) + 0.5 * table[:, 1] + 0.1 * rng.normal(size=NUM_DATA)
)
table.flush()


# %% Called anew for every pass over the data; blocks in random order, read as needed.
def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rows = np.load(path, mmap_mode="r")
    for start in np.random.default_rng(0).permutation(np.arange(0, NUM_DATA, 5000)):
        block = np.array(rows[start : start + 5000])
        yield block[:, :2], block[:, 2]


# %%
kernel = kernels.SquaredExponential(lengthscales=[1.0, 1.0])
sample, _ = next(blocks())
Z = sg.inducing.kmeans(sample, 50)
model = sg.SteinGP(blocks, kernel, inducing=Z, num_data=NUM_DATA, batch_size=256)
print(model)

posterior = sg.fit(model, num_particles=10, num_steps=NUM_STEPS)
print(posterior)

X_test = rng.uniform(-3, 3, (500, 2))
f_test = np.sin(2 * X_test[:, 0]) + 0.5 * X_test[:, 1]
error = metrics.rmse(f_test, posterior.predict_f(X_test).mean)
print(f"RMSE against the true function: {error:.3f}")
folder.cleanup()

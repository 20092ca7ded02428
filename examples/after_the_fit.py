# %% [markdown]
# # After the fit
# Should it be believed? Where does the uncertainty come from? Which kernel? What do new
# rows change? And how is it kept?

# %%
import tempfile
from pathlib import Path

import numpy as np

import steingp as sg
from steingp import kernels

EFFECTIVE_SIZE = 400  # a test runs this file with less

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (40, 1))
y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=40)
model = sg.SteinGP((X, y), kernels.Matern52())
posterior = sg.fit(model, effective_size=EFFECTIVE_SIZE)

# %% Every check, what it found, and what to do about it.
print(posterior.diagnose())

# %% The variance of a new observation, by its source; the sources add up.
parts = posterior.uncertainty([[0.0], [5.0]])
for name, values in parts._asdict().items():
    print(f"{name:16} {values.round(3)}")
print(f"{'total':16} {parts.total.round(3)}")

# %% Another kernel? By evidence, and by leaving one row out.
line = sg.fit(
    sg.SteinGP((X, y), kernels.Linear(), mean=sg.means.Constant()),
    effective_size=EFFECTIVE_SIZE,
)
print(sg.compare({"Matern 5/2": posterior, "line": line}))

# %% Three more rows: the draws are weighted, and moved only if few are left.
X_new = np.array([[3.1], [3.2], [3.3]])
later = posterior.update(X_new, np.sin(2 * X_new[:, 0]))
print("at 3.5, before and after:", posterior.predict_y([[3.5]]).mean.round(2),
      later.predict_y([[3.5]]).mean.round(2))  # fmt: skip

# %% One file, no pickle; it predicts to the last bit the same.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "sine.steingp"
    posterior.save(path)
    again = sg.load(path)
same = again.predict_y([[3.5]]).mean == posterior.predict_y([[3.5]]).mean
print("the same after loading:", bool(same[0]))

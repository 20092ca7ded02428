# %% [markdown]
# # Regression
# Noisy observations of a function; the posterior holds every hyperparameter that the
# data allow, not one best guess.

# %%
import numpy as np
import numpyro.distributions as dist

import steingp as sg
from steingp import kernels

EFFECTIVE_SIZE = 400  # a test runs this file with less

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (60, 1))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] + 0.2 * rng.normal(size=60)

# %% A number starts a hyperparameter under its default prior; a distribution is its prior.
kernel = kernels.Matern52(variance=1.0, lengthscales=dist.Gamma(3.0, 2.0))
model = sg.SteinGP((X, y), kernel)
print(model)

# %% Does the prior make sense? Ten data sets that it expects:
print("prior sd of y:", model.sample_prior_predictive(X, 10).std().round(2))

# %%
posterior = sg.fit(model, effective_size=EFFECTIVE_SIZE, seed=0)
print(posterior)

# %% Predictions average over all draws of the posterior.
X_new = np.linspace(-4, 4, 5)[:, None]
prediction = posterior.predict_y(X_new)
low, high = prediction.interval(0.9)
for x, mean, a, b in zip(X_new[:, 0], prediction.mean, low, high, strict=True):
    print(f"x = {x:5.1f}   y = {mean:6.2f}   90 % in [{a:6.2f}, {b:6.2f}]")

functions = posterior.predict_f(X_new).sample(3, seed=1)
print("three functions from the posterior:", functions.round(2), sep="\n")

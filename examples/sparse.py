# %% [markdown]
# # Sparse
# Thousands of rows through a few dozen inducing points, with all rows at every step and
# in minibatches.

# %%
import time

import numpy as np

import steingp as sg
from steingp import kernels, metrics

EFFECTIVE_SIZE = 400  # a test runs this file with less
NUM_STEPS = 1000  # a test runs this file with fewer

rng = np.random.default_rng(3)
X = rng.uniform(-3, 3, (2000, 2))
y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.normal(size=2000)
X_train, y_train, X_test, y_test = X[:1000], y[:1000], X[1000:], y[1000:]

# %% Where the inducing points go: where the kernel knows least (or k-means, a k-DPP, ...)
kernel = kernels.SquaredExponential(lengthscales=[1.0, 1.0])
Z = sg.inducing.greedy_variance(X_train, 40, kernel)

# %%
for batch_size in (None, 256):
    model = sg.SteinGP(
        (X_train, y_train), kernel, inducing=Z, batch_size=batch_size, seed=0
    )
    began = time.perf_counter()
    # all rows: until the draws are worth enough; minibatches: a number of steps
    effort = {"num_steps": NUM_STEPS} if batch_size else {
        "effective_size": EFFECTIVE_SIZE
    }  # fmt: skip
    posterior = sg.fit(model, num_particles=10, **effort)
    seconds = time.perf_counter() - began
    prediction = posterior.predict_y(X_test)
    print(
        f"batch of {batch_size or 'all'} rows: {seconds:.1f} s, "
        f"RMSE {metrics.rmse(y_test, prediction.mean):.3f}, "
        f"mean log density {prediction.log_prob(y_test).mean():.3f}"
    )

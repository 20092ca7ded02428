# %% [markdown]
# # Classification
# Labels 0 and 1 from a curved boundary. Expectation propagation integrates f out for every
# draw of the hyperparameters; weights correct what it leaves.

# %%
import numpy as np

import steingp as sg
from steingp import kernels, likelihoods, metrics

EFFECTIVE_SIZE = 400  # a test runs this file with less

rng = np.random.default_rng(1)
X = rng.normal(size=(200, 2))
score = 2.0 * (X[:, 1] - np.sin(2.0 * X[:, 0]))
y = (rng.uniform(size=200) < 1.0 / (1.0 + np.exp(-2.0 * score))).astype(int)
X_train, y_train, X_test, y_test = X[:120], y[:120], X[120:], y[120:]

# %%
model = sg.SteinGP(
    (X_train, y_train),
    kernels.SquaredExponential(),
    likelihood=likelihoods.Bernoulli(link="logit"),
)
posterior = sg.fit(model, effective_size=EFFECTIVE_SIZE)
print(posterior)

# %% The mean of y is the probability of label 1.
prediction = posterior.predict_y(X_test)
probability = prediction.mean
print(f"accuracy         {metrics.accuracy(y_test, probability):.3f}")
print(f"mean log density {prediction.log_prob(y_test).mean():.3f}")
error = metrics.expected_calibration_error(y_test, probability)
print(f"calibration err. {error:.3f}")

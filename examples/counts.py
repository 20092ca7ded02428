# %% [markdown]
# # Counts
# Cases per district with different populations: a Poisson likelihood with exposure, and
# a negative binomial one that allows more spread.

# %%
import numpy as np

import steingp as sg
from steingp import kernels, likelihoods

EFFECTIVE_SIZE = 400  # a test runs this file with less

rng = np.random.default_rng(2)
X = rng.uniform(-2, 2, (120, 1))
rate = np.exp(0.5 * np.sin(2.5 * X[:, 0]))
population = rng.uniform(1.0, 20.0, 120)
cases = rng.poisson(population * rate * rng.gamma(4.0, 1 / 4.0, size=120))
train, test = slice(0, 80), slice(80, None)

# %%
for make in (likelihoods.Poisson, likelihoods.NegativeBinomial):
    model = sg.SteinGP(
        (X[train], cases[train]),
        kernels.Matern52(),
        likelihood=make(exposure=population[train]),
    )
    posterior = sg.fit(model, effective_size=EFFECTIVE_SIZE)
    prediction = posterior.predict_y(X[test], per_row=population[test])
    low, high = prediction.interval(0.9)
    inside = np.mean((cases[test] >= low) & (cases[test] <= high))
    print(
        f"{make.__name__:17} mean log density "
        f"{prediction.log_prob(cases[test]).mean():.3f}, {100 * inside:.0f} % of new "
        "counts in their 90 % interval"
    )

"""The rivals, on the same targets as our own inference.

>>> import numpy as np, steingp as sg
>>> X = np.linspace(-2, 2, 15)[:, None]
>>> model = sg.SteinGP((X, np.sin(2 * X)), sg.kernels.SquaredExponential())
>>> chains = sg.baselines.nuts(model, num_warmup=100, num_draws=50)
>>> chains.posterior.num_draws
200
"""

from steingp.baselines.chains import Chains as Chains
from steingp.baselines.mcmc import hmc as hmc
from steingp.baselines.mcmc import nuts as nuts

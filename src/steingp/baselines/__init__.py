"""The rivals, on the same targets as our own inference.

| the paper's Table 1 and section 2 | here |
|---|---|
| maximum likelihood (ML) | `maximum_likelihood(model)` |
| its penalised form | `maximum_a_posteriori(model)` |
| sparse variational, Gaussian data (Titsias 2009) | `maximum_likelihood`, with `inducing` |
| VI, any likelihood (Opper and Archambeau 2009) | `vi(model)` |
| stochastic VI (Hensman et al. 2013) | `svi(model)`, with `inducing` and `batch_size` |
| mixtures of Gaussians (Nguyen and Bonilla 2014) | `mixture_vi(model)` |
| HMC, dense and sparse (Hensman et al. 2015) | `hmc`, `nuts`, with `latents="joint"` |

Each takes a `SteinGP` and gives a record: its `posterior`, which predicts as ours does, and
how it went.

>>> import numpy as np, steingp as sg
>>> X = np.linspace(-2, 2, 15)[:, None]
>>> model = sg.SteinGP((X, np.sin(2 * X)), sg.kernels.SquaredExponential())
>>> sg.baselines.maximum_likelihood(model).posterior.num_draws
1
>>> sg.baselines.nuts(model, num_warmup=100, num_draws=50).posterior.num_draws
200
"""

from steingp.baselines.chains import Chains as Chains
from steingp.baselines.mcmc import hmc as hmc
from steingp.baselines.mcmc import nuts as nuts
from steingp.baselines.mixtures import mixture_vi as mixture_vi
from steingp.baselines.points import PointEstimate as PointEstimate
from steingp.baselines.points import maximum_a_posteriori as maximum_a_posteriori
from steingp.baselines.points import maximum_likelihood as maximum_likelihood
from steingp.baselines.variational import VariationalFit as VariationalFit
from steingp.baselines.variational import svi as svi
from steingp.baselines.variational import vi as vi

"""steingp: Gaussian processes with their full posterior, by Stein variational gradients.

>>> import numpy as np, steingp as sg
>>> X = np.linspace(-3, 3, 40)[:, None]
>>> model = sg.SteinGP((X, np.sin(X)), sg.kernels.Matern52())
>>> posterior = sg.fit(model, seed=0, effective_size=50, progress=False)
>>> prediction = posterior.predict_y([[0.5]])
>>> prediction.mean.shape, prediction.interval(0.9)[0].shape
((1,), (1,))
"""

from steingp import baselines as baselines
from steingp import devices as devices
from steingp import inducing as inducing
from steingp import kernels as kernels
from steingp import likelihoods as likelihoods
from steingp import means as means
from steingp import metrics as metrics
from steingp import stein as stein
from steingp.comparison import compare as compare
from steingp.compilation import keep_compiled as keep_compiled
from steingp.inference import fit as fit
from steingp.io import load as load
from steingp.leaving_out import leave_one_out as leave_one_out
from steingp.models import SteinGP as SteinGP
from steingp.on_disk import RowsOnDisk as RowsOnDisk
from steingp.paper import SVGD as SVGD
from steingp.paper import SteinGPR as SteinGPR
from steingp.paper import SteinMC as SteinMC
from steingp.paper import SteinSGPR as SteinSGPR
from steingp.paper import StochSteinGPR as StochSteinGPR
from steingp.posterior import Posterior as Posterior
from steingp.prediction import Prediction as Prediction
from steingp.priors import fixed as fixed
from steingp.stein import IMQ as IMQ
from steingp.stein import RBF as RBF
from steingp.stein import Constant as Constant
from steingp.stein import Cyclical as Cyclical
from steingp.stein import Matern as Matern
from steingp.stein import Median as Median
from steingp.stein import RandomFourier as RandomFourier

__version__ = "0.1.0.dev0"

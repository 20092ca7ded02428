"""Likelihoods p(y | f): how observations arise from the latent function.

| y | likelihoods |
|---|---|
| real numbers | `Gaussian`, `StudentT` (outliers) |
| labels 0 and 1 | `Bernoulli` |
| counts | `Poisson`, `NegativeBinomial` (more spread) |
| positive numbers | `Exponential`, `Gamma` |

Every method works elementwise on arrays of one common shape:

    >>> import jax.numpy as jnp
    >>> from steingp import likelihoods
    >>> count = likelihoods.Poisson()
    >>> y, mean, variance = jnp.array([2.0]), jnp.array([0.0]), jnp.array([1.0])
    >>> one = jnp.ones(1)  # the neutral exposure
    >>> count.predictive_log_prob(y, mean, variance, one).round(3).item() < -1.5
    True
"""

from steingp.likelihoods.base import Likelihood as Likelihood
from steingp.likelihoods.base import at_start as at_start
from steingp.likelihoods.binary import Bernoulli as Bernoulli
from steingp.likelihoods.log_link import Exponential as Exponential
from steingp.likelihoods.log_link import Gamma as Gamma
from steingp.likelihoods.log_link import NegativeBinomial as NegativeBinomial
from steingp.likelihoods.log_link import Poisson as Poisson
from steingp.likelihoods.real import Gaussian as Gaussian
from steingp.likelihoods.real import StudentT as StudentT

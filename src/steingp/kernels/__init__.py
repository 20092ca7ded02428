"""Covariance functions k(x, x'), their sums and products.

Names and parametrisation are GPflow's. A kernel as written is a specification (see
`steingp.priors`); `kernel(X)` evaluates it at its start values:

    >>> from steingp import kernels
    >>> k = kernels.Matern52(lengthscales=2.0) + kernels.White(variance=0.1)
    >>> k([[0.0], [1.0]]).round(3)
    array([[1.1  , 0.829],
           [0.829, 1.1  ]])

A kernel of your own is the formula for one pair of points:

    >>> import jax.numpy as jnp
    >>> from steingp.priors import Slot, positive
    >>> class Brownian(kernels.Pairwise):
    ...     variance: Slot = positive(1.0)
    ...     def pair(self, x, y):
    ...         return self.variance * jnp.minimum(x, y).prod()

`lengthscales`: a scalar is shared by all columns, a vector is one per column (ARD), and
left out it is one per column, each sqrt(D) at the start.
"""

from steingp.kernels.base import Kernel as Kernel
from steingp.kernels.base import Leaf as Leaf
from steingp.kernels.base import Pairwise as Pairwise
from steingp.kernels.base import Product as Product
from steingp.kernels.base import Sum as Sum
from steingp.kernels.base import at_start as at_start
from steingp.kernels.others import Constant as Constant
from steingp.kernels.others import Linear as Linear
from steingp.kernels.others import Polynomial as Polynomial
from steingp.kernels.others import White as White
from steingp.kernels.stationary import Cosine as Cosine
from steingp.kernels.stationary import Isotropic as Isotropic
from steingp.kernels.stationary import Matern12 as Matern12
from steingp.kernels.stationary import Matern32 as Matern32
from steingp.kernels.stationary import Matern52 as Matern52
from steingp.kernels.stationary import Periodic as Periodic
from steingp.kernels.stationary import RationalQuadratic as RationalQuadratic
from steingp.kernels.stationary import SquaredExponential as SquaredExponential

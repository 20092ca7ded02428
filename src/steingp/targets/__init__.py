"""Targets: log p(lambda | X, y) of one particle, and f's law given that particle.

| target | lambda | likelihood | f or u given theta | data in a step |
|---|---|---|---|---|
| `Marginal` | theta | Gaussian | exact | all |
| `Titsias` | theta | Gaussian, inducing points | exact for the bound | all |
| `Collapsed` | theta | any, rows or inducing points | EP, VI or Laplace | all |
| `Variational` | theta and its q(u) | any, inducing points | natural gradients | a batch |
| `Whitened` | theta, nu (N,) with f = m + L nu | any | a value | all |
| `Sparse` | theta, nu (M,) with u = L nu at Z | any | a value | all, or a batch |

The first four are collapsed: a particle carries theta alone, with a Gaussian q(f | theta)
of its own. The last two are the paper's.

A particle is a dictionary name -> array: unconstrained `z` where it is moved,
constrained `theta` where it is read; the latents `nu ~ N(0, I)` are the same in both.
`vmap` makes many. A target is a pytree, so that compiled code is shared by all models
of one structure; the data travel beside it as a `Batch`.
"""

from steingp.targets.base import (
    LATENTS,
    Conditional,
    Model,
    Specification,
    Target,
    joint,
    marginals,
)
from steingp.targets.collapsed import Collapsed
from steingp.targets.gaussian import Marginal, Titsias
from steingp.targets.latent import Sparse, Whitened
from steingp.targets.variational import Variational

__all__ = [
    "LATENTS",
    "Collapsed",
    "Conditional",
    "Marginal",
    "Model",
    "Sparse",
    "Specification",
    "Target",
    "Titsias",
    "Variational",
    "Whitened",
    "joint",
    "marginals",
]

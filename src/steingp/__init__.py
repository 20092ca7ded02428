"""steingp: Gaussian processes with their full posterior."""

from steingp import kernels as kernels
from steingp.priors import fixed as fixed

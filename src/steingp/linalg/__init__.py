"""Linear algebra of Gaussian processes: distances, Cholesky factors, log densities.

Everything here scores one matrix; `vmap` makes many.
"""

from steingp.linalg.blas import blas_suited_to as blas_suited_to
from steingp.linalg.distances import distances as distances
from steingp.linalg.distances import safe_sqrt as safe_sqrt
from steingp.linalg.distances import squared_distances as squared_distances
from steingp.linalg.factors import DEFAULT_JITTER as DEFAULT_JITTER
from steingp.linalg.factors import add_diagonal as add_diagonal
from steingp.linalg.factors import cholesky as cholesky
from steingp.linalg.factors import extra_jitter as extra_jitter
from steingp.linalg.factors import factorise as factorise
from steingp.linalg.factors import solve_lower as solve_lower
from steingp.linalg.factors import solve_lower_transposed as solve_lower_transposed
from steingp.linalg.gaussians import colour as colour
from steingp.linalg.gaussians import gaussian_log_density as gaussian_log_density
from steingp.linalg.gaussians import log_normaliser as log_normaliser
from steingp.linalg.gaussians import mvn_sample as mvn_sample
from steingp.linalg.gaussians import whiten as whiten
from steingp.linalg.inverses import Solved as Solved
from steingp.linalg.inverses import factor_and_whiten as factor_and_whiten
from steingp.linalg.inverses import inverse_factor as inverse_factor
from steingp.linalg.inverses import inverse_lower as inverse_lower
from steingp.linalg.inverses import solve_and_invert as solve_and_invert

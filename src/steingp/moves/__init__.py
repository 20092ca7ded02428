"""Metropolis-adjusted Hamiltonian moves of J particles at once, over any log density.

Particles are rows of a matrix (J, d). All share a metric, the pooled covariance of
earlier draws or what scores tell of it, and a leapfrog step, both of which are adapted
first and frozen then; a frozen sweep leaves the density invariant for each particle by
itself:

    p ~ N(0, I);  p += e/2 F' grad log p(z),  z += e F p,  p += e/2 F' grad log p(z)

with F F' the covariance, repeated L times and accepted with probability
min(1, exp(-change of energy)), energy = |p|^2 / 2 - log p(z).

    >>> import jax, numpy as np
    >>> from steingp import moves
    >>> def value_and_score(z):
    ...     return -0.5 * (z**2).sum(axis=1) / 9.0, -z / 9.0      # N(0, 3^2)
    >>> state = moves.init(value_and_score, np.random.default_rng(0).normal(size=(20, 2)))
    >>> state, _, draws = moves.run(value_and_score, state, 10, 0, adapting=True)
    >>> state = moves.with_metric(state, draws[5:])
    >>> state, _, _ = moves.run(value_and_score, state, 10, 0, adapting=True)
    >>> state, info, draws = moves.run(
    ...     value_and_score, moves.freeze(state), 50, 0, adapting=False)
    >>> draws.shape
    (50, 20, 2)
    >>> bool(abs(draws.std() - 3.0) < 0.3)
    True
"""

from steingp.moves.hamiltonian import MoveInfo as MoveInfo
from steingp.moves.hamiltonian import Swept as Swept
from steingp.moves.hamiltonian import sweep as sweep
from steingp.moves.loop import jitted_sweep as jitted_sweep
from steingp.moves.loop import jitted_sweeps as jitted_sweeps
from steingp.moves.loop import run as run
from steingp.moves.loop import sweep_keys as sweep_keys
from steingp.moves.loop import sweeps as sweeps
from steingp.moves.metric import curved_factor as curved_factor
from steingp.moves.metric import shrunk_factor as shrunk_factor
from steingp.moves.state import MoveState as MoveState
from steingp.moves.state import ValueAndScore as ValueAndScore
from steingp.moves.state import freeze as freeze
from steingp.moves.state import init as init
from steingp.moves.state import refresh as refresh
from steingp.moves.state import start as start
from steingp.moves.state import with_metric as with_metric

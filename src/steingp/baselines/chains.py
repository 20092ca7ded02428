"""What Markov chains give back: draws by chain, and whether to believe them."""

from typing import NamedTuple

import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from steingp.posterior import Posterior
from steingp.targets import LATENTS


class Seconds(NamedTuple):
    """Where the time of a run went; `compile` is 0 if the code was there already."""

    compile: float
    warmup: float
    sampling: float


class Chains(NamedTuple):
    """The draws of several chains, and whether to believe them.

    `r_hat` (split) and `effective_size` have an entry for every hyperparameter, taken of
    its logarithm if it is positive, and one for the worst of the latents `nu`.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-2, 2, 15)[:, None]
        >>> model = sg.SteinGP((X, np.sin(2 * X)), sg.kernels.SquaredExponential())
        >>> chains = sg.baselines.nuts(model, num_warmup=100, num_draws=50)
        >>> chains.draws["kernel.lengthscales"].shape
        (4, 50, 1)
        >>> list(chains.r_hat)
        ['kernel.lengthscales[0]', 'kernel.variance', 'likelihood.variance']
        >>> chains.worst_r_hat == max(chains.r_hat.values())
        True
    """

    posterior: Posterior
    """All chains' draws, pooled."""
    draws: dict[str, np.ndarray]
    """Constrained, (chains, draws, ...)."""
    r_hat: dict[str, float]
    effective_size: dict[str, float]
    divergences: int
    """After the warm-up, in all chains."""
    num_gradients: int
    """Of one particle; of all chains, warm-up included."""
    num_rounds: int
    """Of all chains at once: every trajectory waits for the longest of its round."""
    acceptance: np.ndarray
    """Mean acceptance probability of each chain after the warm-up."""
    step_size: np.ndarray
    seconds: Seconds

    @property
    def worst_r_hat(self) -> float:
        return max(self.r_hat.values())

    @property
    def least_effective_size(self) -> float:
        return min(self.effective_size.values())

    def __repr__(self) -> str:
        return (
            f"{self.posterior}\n"
            f"{len(self.step_size)} chains: r-hat at most {self.worst_r_hat:.3f}, "
            f"effective size at least {self.least_effective_size:.0f}, "
            f"{self.divergences} divergences, {self.num_gradients} gradients"
        )


def diagnose(
    posterior: Posterior, num_chains: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Split r-hat and effective size of every hyperparameter, and the worst of nu's."""
    r_hat, effective_size = {}, {}
    for name in posterior.particles:
        if name == LATENTS:
            continue
        for label, column in posterior.named_columns(name):
            chains = column.reshape(num_chains, -1)
            chains = np.log(chains) if np.all(chains > 0.0) else chains
            r_hat[label] = float(split_gelman_rubin(chains))
            effective_size[label] = float(capped_size(chains))
    if LATENTS in posterior.particles:
        latents = posterior.particles[LATENTS]
        chains = latents.reshape(num_chains, -1, latents.shape[1])
        r_hat[LATENTS] = float(np.max(split_gelman_rubin(chains)))
        effective_size[LATENTS] = float(np.min(capped_size(chains)))
    return r_hat, effective_size


def capped_size(chains: np.ndarray) -> np.ndarray:
    """Effective size of (chains, draws, ...), at most S log10(S) of S draws, as in Stan.

    Draws that alternate are worth more than independent ones, but how much more cannot be
    estimated: numpyro's formula may even turn negative then.

    Example:
        >>> import numpy as np
        >>> from steingp.baselines.chains import capped_size
        >>> round(float(capped_size(np.tile([1.0, -1.0], (4, 50)))))
        1041
    """
    size, draws = effective_sample_size(chains), chains.shape[0] * chains.shape[1]
    most = draws * np.log10(draws)
    return np.where((size > 0.0) & (size < most), size, most)

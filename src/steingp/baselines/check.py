"""A posterior beside NUTS's."""

import copy
from typing import NamedTuple

import numpy as np

from steingp.baselines.chains import Chains
from steingp.baselines.mcmc import nuts
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.targets import Collapsed, Sparse, Variational, Whitened
from steingp.verdicts import FEWEST_DRAWS


class Beside(NamedTuple):
    """One hyperparameter, of its logarithm if it is positive."""

    mean: float
    sd: float
    nuts_mean: float
    nuts_sd: float
    allowed_shift: float
    """How far means may differ by chance, in NUTS's sds."""
    allowed_ratio: float
    """How far the ratio of sds may be from 1 by chance."""

    @property
    def shift(self) -> float:
        """Difference of means in NUTS's sds."""
        return (self.mean - self.nuts_mean) / self.nuts_sd

    @property
    def ratio(self) -> float:
        """Of the sds."""
        return self.sd / self.nuts_sd

    @property
    def agrees(self) -> bool:
        """Whether both differ by no more than chance allows."""
        close = abs(self.shift) <= self.allowed_shift
        return bool(close and abs(self.ratio - 1.0) <= self.allowed_ratio)


class AgainstNuts(NamedTuple):
    """A posterior beside NUTS's: hyperparameter by hyperparameter, and f at the rows."""

    rows: dict[str, Beside]
    f_shift: float
    """Root mean square difference of f's means at the rows, in NUTS's sds."""
    f_ratio: float
    """Mean ratio of f's sds at the rows."""
    size: float
    """Independent draws that the posterior is worth."""
    seconds: float
    """Of the posterior, with compilation; NaN if that is not known."""
    chains: Chains

    @property
    def converged(self) -> bool:
        """Whether NUTS itself is to be believed: r-hat below 1.05, no divergences."""
        return self.chains.worst_r_hat < 1.05 and not self.chains.divergences

    @property
    def agrees(self) -> bool:
        """Whether all hyperparameters agree within chance, and f's sds within 5 %."""
        return all(row.agrees for row in self.rows.values()) and bool(
            abs(self.f_ratio - 1.0) < 0.05 and self.f_shift < 0.2
        )

    def __repr__(self) -> str:
        width = max(max(len(name) for name in self.rows), 8)
        head = (
            f"{'':{width}}  {'mean +- sd':>18}  {'by NUTS':>18}  {'shift':>7}  "
            f"{'sd ratio':>8}"
        )
        lines = [head, "-" * len(head)]
        for name, row in self.rows.items():
            lines.append(
                f"{name:{width}}  {f'{row.mean:.3f} +- {row.sd:.3f}':>18}  "
                f"{f'{row.nuts_mean:.3f} +- {row.nuts_sd:.3f}':>18}  {row.shift:>7.2f}  "
                f"{row.ratio:>8.2f}" + ("" if row.agrees else "  <- beyond chance")
            )
        blank = " " * 36
        lines.append(
            f"{'f at the rows':{width}}  {blank}    {self.f_shift:>7.2f}  "
            f"{self.f_ratio:>8.2f}"
        )
        spent = self.chains.seconds
        lines.append(
            "Logarithms, where positive. NUTS: r-hat at most "
            f"{self.chains.worst_r_hat:.3f}, effective size at least "
            f"{self.chains.least_effective_size:.0f}, "
            f"{self.chains.divergences} divergences, "
            f"{spent.compile + spent.warmup + spent.sampling:.1f} s; this posterior: worth "
            f"{self.size:.0f} draws, {self.seconds:.1f} s (both with compilation)."
        )
        words = "They agree." if self.agrees else "They do not agree."
        if not self.converged:
            words = "NUTS has not converged: no conclusion. Give it more draws."
        elif self.size < FEWEST_DRAWS:
            words = f"{self.size:.0f} draws are too few for a conclusion."
        return "\n".join([*lines, words])


def check_against_nuts(
    posterior: Posterior,
    num_warmup: int,
    num_draws: int,
    num_chains: int,
    seed: int,
    progress: bool,
) -> AgainstNuts:
    """See `Posterior.check_against_nuts`."""
    model = _sampled(posterior)
    chains = nuts(
        model, num_warmup=num_warmup, num_draws=num_draws, num_chains=num_chains,
        seed=seed, progress=progress,
    )  # fmt: skip
    report = posterior.report
    size = posterior.num_draws if report is None else report.effective_size
    rows = {}
    for name in posterior._free_names():
        theirs = dict(chains.posterior.named_columns(name))
        for label, ours in posterior.named_columns(name):
            rows[label] = _beside(
                ours, posterior.weights, size, theirs[label],
                chains.effective_size[label],
            )  # fmt: skip
    X = posterior.training_data[0]
    ours, theirs = posterior.predict_f(X), chains.posterior.predict_f(X)
    sd = np.sqrt(theirs.variance)
    return AgainstNuts(
        rows,
        float(np.sqrt(np.mean(((ours.mean - theirs.mean) / sd) ** 2))),
        float(np.mean(np.sqrt(ours.variance) / sd)),
        size,
        float("nan") if report is None else report.seconds,
        chains,
    )


def _sampled(posterior: Posterior) -> SteinGP:
    """The model that NUTS samples."""
    if isinstance(posterior._target, Variational | Sparse):
        raise ValueError(
            "check_against_nuts needs all rows at once; this posterior: "
            f"{posterior.method or 'from batches'}. Fit with full_pass=True, or a part of "
            "the rows."
        )
    model = SteinGP.of(posterior)
    target = model.target
    if isinstance(target, Collapsed) and target.Z is None:
        model = copy.copy(model)
        model.target = Whitened(
            target.specification, num_latents=model.num_data, jitter=target.jitter
        )
    return model


def _beside(
    ours: np.ndarray,
    weights: np.ndarray,
    size: float,
    theirs: np.ndarray,
    nuts_size: float,
) -> Beside:
    if np.all(ours > 0.0) and np.all(theirs > 0.0):
        ours, theirs = np.log(ours), np.log(theirs)
    mean = float(weights @ ours)
    sd = float(np.sqrt(weights @ (ours - mean) ** 2))
    error = float(np.sqrt(1.0 / max(size, 1.0) + 1.0 / max(nuts_size, 1.0)))
    return Beside(
        mean,
        sd,
        float(theirs.mean()),
        float(theirs.std()),
        0.1 + 3.5 * error,
        0.05 + 3.5 * error / float(np.sqrt(2.0)),
    )

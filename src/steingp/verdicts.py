"""The verdict on a fit: one function per question, from numbers to a `Check`.

Bounds were set on the reference problems (`benchmarks/verdicts.py`), so that a healthy fit
seldom fails any: they are loose enough for a few hundred draws, and the planted faults
of the tests lie far beyond them.
"""

import numpy as np
from jaxtyping import Float

from steingp.diagnostics import Check, Spread, spread, stein_discrepancy
from steingp.evidence import Evidence

FEWEST_DRAWS = 100
"""Independent draws below which an sd is known to 7 % at best."""
LARGEST_K = 0.7
_LONGER = "Go on: steingp.fit(model, resume=posterior.checkpoint, effective_size=...)."
_PRIORS = "Standardise the data, or use tighter priors."


def finished(stage: str) -> Check:
    """Did the run come to its end?"""
    if stage == "done":
        return Check("finished", True, "ran to its end")
    return Check(
        "finished",
        False,
        f"stopped while {stage}",
        "Go on: steingp.fit(model, resume=posterior.checkpoint).",
    )


def enough_draws(size: float, wanted: float) -> Check:
    """Are the draws worth what was asked for, or nearly?"""
    least = max(FEWEST_DRAWS, 0.4 * wanted)
    finding = f"worth {size:.0f} independent draws, at least {least:.0f} needed"
    return Check("effective size", bool(size >= least), finding, _LONGER)


def mixed(
    mean_rhat: float, square_rhat: float, num_particles: int, wanted: float
) -> Check:
    """Do particles agree with each other, in their means and in their spreads?

    Of few sweeps R-hat tells how they are correlated, about sqrt(1 + 2 J / size); and of
    spreads the size that is asked for is half as large (`weights.Mixing`).
    """
    bounds = [
        max(1.2, float(np.sqrt(1.0 + 3.0 * num_particles / size)))
        for size in (wanted, 0.5 * wanted)
    ]
    finding = (
        f"R-hat at most {mean_rhat:.2f}, bound {bounds[0]:.2f}; "
        f"of spreads {square_rhat:.2f}, bound {bounds[1]:.2f}"
    )
    passed = mean_rhat <= bounds[0] and square_rhat <= bounds[1]
    return Check("R-hat", bool(passed), finding, _LONGER)


def accepted(acceptance: float, failed: float, energy_error: float) -> Check:
    """Were the moves' steps short enough?"""
    finding = f"{100 * acceptance:.0f} % of moves accepted, at least 50 % needed"
    if failed > 0.05:
        finding = f"{100 * failed:.0f} % of moves met a density that is not finite"
    elif not acceptance >= 0.5 and energy_error > 10.0:
        finding += ": steps diverge"
    remedy = f"Steps are too long for some regions. {_PRIORS}"
    return Check("step", bool(acceptance >= 0.5 and failed <= 0.05), finding, remedy)


def spread_right(found: Spread, size: float, num_free: int) -> Check:
    """Are draws as wide as the slope of their density asks for?

    Args:
        size: independent draws that those of `found` are worth.
        num_free: d.
    """
    slack = 0.15 + 5.0 * found.error
    fewest = 0.4 * max(1.0 - np.sqrt(num_free / max(size, num_free)), 0.0) ** 2
    wide = abs(found.mean - 1.0) < slack
    narrow = bool(found.smallest < fewest)
    finding = f"{found.mean:.2f} of the variance that the density's slope asks for"
    if wide and narrow:
        finding = f"{found.smallest:.2f} of the variance in the worst direction"
    name = "spread"
    if found.mean < 1.0 - slack or narrow:
        remedy = (
            "Particles have collapsed. Use steingp.fit, which corrects their spread."
        )
        return Check(name, False, finding, remedy)
    return Check(name, bool(wide), finding, _LONGER)


def not_collapsed(
    draws: Float[np.ndarray, "S d"], curvature: Float[np.ndarray, "d d"]
) -> Check:
    """Are draws as wide as the density's curvature amid them says?

    Widths are quartiles', which a few stragglers do not change.

    Args:
        curvature: minus the Hessian of the log density, at a draw in their middle.
    """
    name, remedy = "collapse", "Use steingp.fit, which corrects the particles' spread."
    if not np.all(np.isfinite(curvature)):
        return Check(name, None, "the curvature amid the draws is not finite")
    values, vectors = np.linalg.eigh(curvature)
    if np.mean(values > 0.0) < 0.5:
        return Check(name, None, "amid the draws the density has no peak")
    low, high = np.quantile(draws @ vectors, [0.25, 0.75], axis=0)
    ratios = ((high - low) / 1.349) ** 2 * values
    ratio = float(np.median(ratios[values > 0.0]))
    finding = f"{ratio:.2g} of the variance that the curvature amid the draws says"
    return Check(name, bool(ratio > 0.5), finding, remedy)


def agrees_with_scores(
    draws: Float[np.ndarray, "S d"], scores: Float[np.ndarray, "S d"]
) -> Check:
    """Do draws follow the density whose scores these are?"""
    found = stein_discrepancy(draws, scores)
    most = 1.3 * found.bound
    finding = f"Stein discrepancy {found.value:.3f}, bound {most:.3f}"
    return Check("Stein discrepancy", bool(found.value <= most), finding, _LONGER)


def follows_scores(
    draws: Float[np.ndarray, "S d"], scores: Float[np.ndarray, "S d"], size: float
) -> tuple[Check, ...]:
    """The two questions that scores answer."""
    num, d = draws.shape
    right = spread_right(spread(draws, scores), min(size, num), d)
    return right, agrees_with_scores(draws, scores)


def weights_good(k: float | None, weighted: bool, reason: str) -> Check:
    """Is what an approximation of f's integral got wrong weighted away?"""
    name = "approximation"
    if k is None:
        return Check(name, None, reason)
    finding = f"Pareto k of its correction {k:.2f}, bound {LARGEST_K}"
    if k <= LARGEST_K and not weighted:
        finding += "; its weights are too noisy to use, and were left out"
    remedy = (
        "The approximation of f's integral is rough here. See check_against_nuts(), and "
        'approximation="ep" or "vi".'
    )
    return Check(name, bool(k <= LARGEST_K), finding, remedy)


def weights_stable(k: float) -> Check:
    """Do many draws carry the weights that new rows gave them?"""
    finding = f"Pareto k of the new rows' weights {k:.2f}, bound {LARGEST_K}"
    return Check("new rows", bool(k <= LARGEST_K), finding, "Fit again to all rows.")


def solver_converged(to_go: Float[np.ndarray, " S"], tolerance: float) -> Check:
    """Did the inner iteration that approximates f's integral come to an end?"""
    share = float(np.mean(~(to_go <= tolerance)))
    finding = f"unconverged at {100 * share:.0f} % of draws, bound 5 %"
    remedy = f"The inner iteration for q(f) needs longer. {_PRIORS}"
    return Check("inner solver", share <= 0.05, finding, remedy)


def modes_found(
    num_modes: int, outside: float | None, parts: list[Evidence], num_starts: int
) -> Check:
    """Were other modes looked for, are they there, and are their masses known?

    Args:
        outside: share of the tempered particles that lie where no draw does, or the
            rough mass of a peak there; None if modes were not searched for.
        parts: the evidence of each mode, where it was computed.
        num_starts: of the exploration, or of the fit.
    """
    name = "modes"
    if any(not part.trusted for part in parts) and num_modes > 1:
        finding = f"{num_modes} modes, whose masses are uncertain"
        return Check(name, False, finding, "Fit with more num_particles.")
    if outside is None:
        count = f"{num_modes} modes" if num_modes > 1 else "no other mode"
        finding = f"{count} seen from {num_starts} starts; no search by tempering"
        return Check(name, None, finding, "Search: steingp.fit(model, explore=True).")
    finding = f"{num_modes} reached from {num_starts} tempered starts"
    if outside > 0.05:
        finding = (
            f"about {100 * outside:.0f} % of the mass was seen by the search in a mode "
            "that no draw is in"
        )
    remedy = "Fit again with another seed, or with more num_particles."
    return Check(name, outside <= 0.05, finding, remedy)


def ascended(
    log_densities: Float[np.ndarray, " steps"],
    bandwidths: Float[np.ndarray, " steps"],
    num_failed: int,
    num_free: int,
) -> Check:
    """Did plain SVGD climb, and stay where it came to?

    Args:
        log_densities: mean over particles at every step.
        bandwidths: of its kernel.
        num_failed: particles without a finite score at the last step.
        num_free: d; a Gaussian's log density has the sd sqrt(d / 2).
    """
    last = max(len(log_densities) // 10, 1)
    reached = float(np.mean(log_densities[-last:]))
    fallen = float(np.nanmax(log_densities)) - reached
    lost = not fallen < 10.0 + 6.0 * np.sqrt(num_free / 2.0)
    finding = (
        f"mean log density {reached:.1f}, bandwidth {bandwidths[-1]:.2g} at the end"
    )
    if num_failed:
        finding = f"{num_failed} particles are where the density is not finite"
    elif lost:
        finding = f"diverged: mean log density {fallen:.0f} below what it had been"
    remedy = f"Use a smaller step. {_PRIORS}"
    return Check("step", not (lost or num_failed), finding, remedy)


def bounds_spread(values: Float[np.ndarray, " J"] | None, num_free: int) -> Check:
    """Do bounds, with log priors, differ between particles as a posterior's would?

    A Gaussian's log density has the sd sqrt(d / 2); batches cannot see so little.
    """
    name, remedy = (
        "calibration",
        "Fit with full_pass=True, if the likelihood is Gaussian.",
    )
    if values is None:
        finding = "the spread of hyperparameters from batches is not calibrated"
        return Check(name, False, finding, remedy)
    ratio = float(np.std(values, ddof=1) / np.sqrt(0.5 * num_free))
    finding = f"bounds of particles spread {ratio:.2g} times as much as they should"
    return Check(name, bool(0.5 < ratio < 2.0), finding, remedy)


def little_jitter(extra: Float[np.ndarray, " S"]) -> Check:
    """Could covariances be factorised as they are, or nearly?"""
    most = float(np.max(extra))
    count = int(np.sum(~(extra <= 1e-9)))
    finding = "no covariance needed more than the model's jitter"
    if count:
        finding = (
            f"{count} of {len(extra)} covariances needed more jitter, up to {most:.0e} of "
            "the variance"
        )
    remedy = "Drop repeated rows, or keep the noise's prior away from 0, or set jitter."
    return Check("jitter", bool(most <= 1e-5), finding, remedy)

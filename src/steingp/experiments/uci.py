"""The UCI study, section 5.1: 20 sets, their splits, and every method on each.

`fit_one` is a job (`steingp.experiments.jobs`): one set, split and method. Classification
sets come twice, as they are and, named `<set>_rowid`, with the row number as an input as
the paper had them.
"""

import datetime
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from steingp import baselines, likelihoods, metrics
from steingp.compilation import Stopwatch
from steingp.experiments.datasets import CLASSIFICATION, Split, uci_split
from steingp.experiments.references import device_name
from steingp.inference import fit
from steingp.kernels import SquaredExponential
from steingp.models import SteinGP
from steingp.paper import SVGD
from steingp.posterior import Posterior
from steingp.prediction import Prediction
from steingp.threads import num_cores

REGRESSION = (
    "airfoil", "autompg", "boston", "challenger", "concrete", "concreteslump", "gas",
    "machine", "parkinsons", "servo", "skillcraft", "wine", "winered", "winewhite",
)  # fmt: skip
SETS = (*REGRESSION, *CLASSIFICATION, *(f"{name}_rowid" for name in CLASSIFICATION))
LARGE = ("gas", "parkinsons", "skillcraft", "winewhite")
"""More than 2000 rows: two splits."""
STEIN = {f"SteinGP{J}": J for J in (2, 5, 10, 20)}
"""The paper's own: plain SVGD, latents part of the particles where y is a label."""
METHODS = ("default", *STEIN, "VI", "ML", "HMC")
QUICK_METHODS = ("default", "SteinGP2", "SteinGP20", "VI", "ML", "HMC")
QUICK_SETS = ("challenger", "concreteslump", "servo", "fertility")
KEYS = ("set", "split", "method")

STEPS, RATE, NATURAL_RATE = 1000, 0.05, 0.1
"""The paper's."""
STARTS = 3
"""Of maximum likelihood."""
CHAINS, DRAWS = 2, 500
"""Of HMC, and as many draws again to warm up."""


def jobs(
    sets: tuple[str, ...] = SETS,
    methods: tuple[str, ...] = METHODS,
    splits: int | None = None,
    quick: bool = False,
) -> Iterator[dict[str, Any]]:
    """What there is to fit, one split of all sets after the other.

    Example:
        >>> from steingp.experiments import uci
        >>> some = list(uci.jobs(("servo", "blood"), ("ML", "HMC"), splits=1))
        >>> [(job["set"], job["method"]) for job in some]
        [('servo', 'ML'), ('blood', 'HMC')]
    """
    for split in range(splits or 5):
        for name in sets:
            if split >= (splits or (2 if name in LARGE else 5)):
                continue
            for method in methods:
                if method == ("ML" if is_classification(name) else "HMC"):
                    continue
                job = {"set": name, "split": split, "method": method}
                yield job | ({"quick": True} if quick else {})


def is_classification(name: str) -> bool:
    return name.removesuffix("_rowid") in CLASSIFICATION


def fit_one(job: dict[str, Any]) -> dict[str, Any]:
    """Fit one split by one method, and score its test part."""
    name, method, split = job["set"], job["method"], job["split"]
    data = uci_split(name, seed=split)
    watch = Stopwatch()
    posterior = _fit(
        data, is_classification(name), method, split, job.get("quick", False)
    )
    spent = watch.read()
    line = {
        "rows": len(data.y),
        "columns": data.X.shape[1],
        **spent,
        "draws": posterior.num_draws,
        **score(posterior.predict_y(data.X_test), data.y_test, is_classification(name)),
    }
    if posterior.report is not None:
        line["particles"] = posterior.report.num_particles
        line["num_gradients"] = posterior.report.num_gradients
        line["effective_size"] = posterior.report.effective_size
    if method == "default":
        line |= judgement(posterior)
    return line | about()


def judgement(posterior: Posterior) -> dict[str, Any]:
    """Whether a fit is trusted; if not, why."""
    verdict = posterior.diagnose()
    findings = [check.finding for check in verdict.failed]
    return {"trusted": verdict.trusted} | ({"findings": findings} if findings else {})


def _fit(data: Split, labels: bool, method: str, seed: int, quick: bool) -> Posterior:
    """By "default", "SteinGP<J>", "VI", "ML" or "HMC"; less of it, if `quick`."""
    steps = 150 if quick else STEPS
    joint = labels and (method in STEIN or method == "HMC")
    model = SteinGP(
        (data.X, data.y),
        SquaredExponential(),
        likelihoods.Bernoulli() if labels else None,
        latents="joint" if joint else "auto",
    )
    if method == "default":
        size = 100.0 if quick else None
        return fit(model, seed=seed, effective_size=size, progress=False)
    if method in STEIN:
        run = SVGD(model, n_particles=STEIN[method], seed=seed)
        run.run(steps, progress=False)
        return run.posterior()
    if method == "VI":
        return baselines.vi(
            model, num_steps=steps, learning_rate=RATE, natural_rate=NATURAL_RATE,
            progress=False,
        ).posterior  # fmt: skip
    if method == "ML":
        return baselines.maximum_likelihood(
            model, num_starts=1 if quick else STARTS, seed=seed, progress=False
        ).posterior
    if method == "HMC":
        num = 50 if quick else DRAWS
        return baselines.hmc(
            model, num_warmup=num, num_draws=num, num_chains=CHAINS, seed=seed,
            progress=False,
        ).posterior  # fmt: skip
    raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}.")


def score(prediction: Prediction, y: np.ndarray, labels: bool) -> dict[str, float]:
    """Test scores, in standardised units."""
    each = np.sort(prediction.log_prob(y))
    scores = {"log_density": float(each.mean())}
    if labels:
        probability = prediction.mean
        return scores | {
            "accuracy": metrics.accuracy(y, probability),
            "ece": metrics.expected_calibration_error(y, probability),
            "base_rate_log_density": _base_rate(y),
        }
    worst = -(-len(each) // 100)
    scores["log_density99"] = float(each[worst:].mean())
    scores["rmse"] = metrics.rmse(y, prediction.mean)
    scores["crps"] = _crps(prediction, y)
    place = np.abs(
        prediction.cdf(y) - 0.5
    )  # within a central interval up to half of it
    for level in (50, 90, 95):
        scores[f"coverage{level}"] = float(np.mean(place <= 0.005 * level))
    return scores


def _crps(prediction: Prediction, y: np.ndarray) -> float:
    """In closed form, of 200 of the mixture's Gaussians if there are more."""
    num = len(prediction.weights)
    some = np.unique(np.linspace(0, num - 1, min(num, 200)).astype(int))
    noise = prediction._slots["likelihood.variance"][some]
    return float(
        metrics.crps_gaussian_mixture(
            y, prediction.means[some], prediction.variances[some] + noise[:, None],
            prediction.weights[some],
        ).mean()
    )  # fmt: skip


def _base_rate(y: np.ndarray) -> float:
    """The best that one probability for all rows could do."""
    p = np.clip(y.mean(), 1e-9, 1 - 1e-9)
    return float(np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def about() -> dict[str, Any]:
    """Where, when and with what a line was made."""
    from steingp import __version__

    cores = {"cores": num_cores()} if jax.default_backend() == "cpu" else {}
    return {
        "device": device_name(),
        **cores,
        "jax": jax.__version__,
        "steingp": __version__,
        "date": datetime.date.today().isoformat(),
    }

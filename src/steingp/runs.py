"""A fit in a folder: begun, killed, gone on with, finished; and its predictions.

A run that was killed goes on from its checkpoint as if it had never stopped.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from steingp import io, kernels, likelihoods, tables
from steingp.fitting import Fit
from steingp.folders import Folder, RunError, Settings, checksum
from steingp.models import SteinGP
from steingp.posterior import Posterior
from steingp.precision import float64
from steingp.report import write_report
from steingp.tables import Rows, Table

if TYPE_CHECKING:
    import pandas as pd

KERNELS: Mapping[str, Callable[..., kernels.Kernel]] = {
    "matern52": kernels.Matern52,
    "matern32": kernels.Matern32,
    "matern12": kernels.Matern12,
    "squared-exponential": kernels.SquaredExponential,
    "se": kernels.SquaredExponential,
    "rational-quadratic": kernels.RationalQuadratic,
    "linear": kernels.Linear,
    "polynomial": kernels.Polynomial,
}
LIKELIHOODS: Mapping[str, type[likelihoods.Likelihood]] = {
    "gaussian": likelihoods.Gaussian,
    "student-t": likelihoods.StudentT,
    "bernoulli": likelihoods.Bernoulli,
    "poisson": likelihoods.Poisson,
    "negative-binomial": likelihoods.NegativeBinomial,
    "gamma": likelihoods.Gamma,
    "exponential": likelihoods.Exponential,
}
MOST_DENSE_ROWS = 5000
"""Rows up to which a fit without inducing points is not refused."""
_ROWS_AT_ONCE = 20_000
"""Of predictions."""


# --- data and model ---------------------------------------------------------------------


def read_again(folder: Folder, settings: Settings) -> tuple[Table, Rows]:
    """The data of a run that goes on.

    Raises:
        RunError: the file is not what it was.
        TableError: it is not there.
    """
    table = tables.read_table(settings.data, settings.layout)
    if checksum(settings.data) != settings.sha256:
        raise RunError(
            f"{settings.data} has changed since {folder.path} was begun, so that run "
            "cannot go on. Put the file back, or begin anew with steingp fit."
        )
    return table, tables.training_rows(
        table, settings.target, settings.inputs, exposure=settings.exposure
    )


def check_rows(table: Table, settings: Settings, rows: Rows) -> None:
    """Refuse data that the model cannot be fitted to.

    Raises:
        RunError: too many rows, or options that do not go together.
        TableError: a target that the likelihood cannot have.
    """
    name, y, N = settings.likelihood, rows.y, len(rows.y)
    if settings.inducing is None and N > MOST_DENSE_ROWS:
        raise RunError(
            f"{table.path} has {N:,} rows: without inducing points every step would "
            f"factorise {N:,} x {N:,} matrices. Pass --inducing 500, or up to 1000."
        )
    if settings.inducing is not None and settings.inducing > N:
        raise RunError(f"--inducing {settings.inducing} is more than the {N} rows.")
    if rows.exposure is not None and LIKELIHOODS[name].row_name != "exposure":
        raise RunError(
            "--exposure is for counts: pass --likelihood poisson or negative-binomial "
            f"with it; this is {name}."
        )
    whole = (y >= 0.0) & (y == np.round(y))
    good, expected, remedy = {
        "bernoulli": ((y == 0.0) | (y == 1.0), "0 or 1", "Code the labels so."),
        "poisson": (whole, "counts 0, 1, 2, ...", "See --likelihood."),
        "negative-binomial": (whole, "counts 0, 1, 2, ...", "See --likelihood."),
        "gamma": (y > 0.0, "positive numbers", "See --likelihood."),
        "exponential": (y > 0.0, "positive numbers", "See --likelihood."),
    }.get(name, (np.full(N, True), "", ""))
    tables.refuse_lines(table, settings.target, good, expected, remedy)


def make_model(settings: Settings, rows: Rows) -> SteinGP:
    """The model of a run.

    Raises:
        RunError: data or options that the model refuses.
    """
    likelihood = LIKELIHOODS[settings.likelihood]
    known = {} if rows.exposure is None else {"exposure": rows.exposure}
    try:
        return SteinGP(
            (rows.X, rows.y),
            KERNELS[settings.kernel](),
            likelihood(**known),
            inducing=settings.inducing,
            standardise=settings.standardise,
            seed=settings.seed,
        )
    except ValueError as error:
        raise RunError(str(error)) from error


# --- fitting ----------------------------------------------------------------------------


class _Keeper:
    """Writes the checkpoint now and then: when a stage ends, and every few seconds."""

    def __init__(self, fit: Fit, path: Path, every: float) -> None:
        self._fit, self._path, self._every = fit, path, every
        self._began = self._last = time.perf_counter()
        self._written, self._stage, self._arrays = fit.stage, fit.stage, {}

    def look(self, state: Any) -> None:
        """After a unit of work; what is between two units is never written."""
        del state
        now = time.perf_counter()
        seconds = np.asarray(self._fit.seconds + now - self._began)
        self._arrays = self._fit.state_dict() | {"seconds": seconds}
        self._stage = self._fit.stage
        if now - self._last >= self._every or self._stage != self._written:
            self.write()

    def write(self) -> None:
        if not self._arrays:
            return
        io.write_arrays(self._path, self._arrays, {"stage": self._stage})
        self._written, self._last = self._stage, time.perf_counter()


def advance(
    folder: Folder, settings: Settings, model: SteinGP, every: float, progress: bool
) -> Fit:
    """Run a fit to its end, from its checkpoint if there is one.

    Ctrl-C ends it early; what was reached is in the checkpoint then.

    Raises:
        RunError: a checkpoint that cannot be gone on from; data without any finite
            density.
    """
    try:
        arrays = {}
        if folder.checkpoint.exists():
            arrays, _ = io.read_arrays(folder.checkpoint)
        # their number is another on another device; the checkpoint has what was
        particles = len(arrays["0.particles"]) if arrays else settings.particles
        explore = False if arrays else settings.explore
        fit = Fit(model, particles, settings.effective_size, settings.seed, explore)
        if arrays:
            fit.load_state_dict(arrays)
    except ValueError as error:
        raise RunError(f"{error} Or begin anew with --force.") from error
    keeper = _Keeper(fit, folder.checkpoint, every)
    try:
        fit.run(progress=progress, callback=keeper.look)
    except FloatingPointError as error:
        raise RunError(f"{settings.data}: {error}") from error
    keeper.write()
    return fit


def finish(folder: Folder, posterior: Posterior) -> None:
    """Complete a posterior by what is asked for later, and write it."""
    posterior.diagnose()
    with contextlib.suppress(ValueError):  # too few draws for it: the report says so
        posterior.log_evidence()
    posterior.save(folder.posterior)


def write_page(folder: Folder, settings: Settings, posterior: Posterior) -> None:
    """The page of a run; figures are drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    facts = {
        "data": settings.data,
        "SHA-256 of the data": settings.sha256,
        "kernel": settings.kernel,
        "likelihood": settings.likelihood,
        "inducing points": settings.inducing or "none",
        "seed": settings.seed,
        "standardised": "yes" if settings.standardise else "no",
        "versions": ", ".join(f"{n} {v}" for n, v in settings.versions.items()),
    }
    title = f"{settings.target} of {Path(settings.data).name}"
    write_report(
        posterior, folder.report, title=title, target=settings.target, facts=facts
    )


# --- predictions ------------------------------------------------------------------------


def prediction_table(
    posterior: Posterior, X: "pd.DataFrame", exposure: np.ndarray | None = None
) -> "pd.DataFrame":
    """Mean, sd and the 5, 50 and 95 % points of new observations, a row for each of X.

    Of labels: the probability of 1, and those points of what is believed of it.

    Example:
        >>> import numpy as np, pandas as pd, steingp as sg
        >>> from steingp.runs import prediction_table
        >>> X = pd.DataFrame({"x": np.linspace(0, 1, 20)})
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = model.posterior(model.sample_prior(20))
        >>> list(prediction_table(posterior, X).columns)
        ['mean', 'sd', '5%', '50%', '95%']
    """
    import pandas as pd

    parts = []
    for first in range(0, len(X), _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        row = None if exposure is None else exposure[some]
        parts.append(_predicted(posterior, X.iloc[some], row))
    return pd.concat(parts, ignore_index=True)


def _predicted(
    posterior: Posterior, X: "pd.DataFrame", exposure: np.ndarray | None
) -> "pd.DataFrame":
    import pandas as pd

    points = {"5%": 0.05, "50%": 0.5, "95%": 0.95}
    prediction = posterior.predict_y(X.to_numpy(), per_row=exposure)
    likelihood = posterior._target.specification.likelihood
    if isinstance(likelihood, likelihoods.Bernoulli):
        f = posterior.predict_f(X.to_numpy())
        columns = {"probability": prediction.mean}
        for name, q in points.items():
            columns[name] = _probability(likelihood, f.quantile(q))
        return pd.DataFrame(columns)
    columns = {"mean": prediction.mean, "sd": np.sqrt(prediction.variance)}
    return pd.DataFrame(
        columns | {name: prediction.quantile(q) for name, q in points.items()}
    )


@float64
def _probability(likelihood: likelihoods.Bernoulli, f: np.ndarray) -> np.ndarray:
    values = jnp.asarray(f)
    return np.asarray(likelihood.conditional_mean(values, jnp.zeros_like(values)))

"""The posterior: draws of the hyperparameters (and latents), weighted, that predict."""

import copy
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from steingp import summaries
from steingp.checks import check_count
from steingp.data import Batch, Scaling, in_order
from steingp.diagnostics import Verdict
from steingp.evidence import Evidence, together
from steingp.prediction import Particles, Prediction, Uncertainty, predict
from steingp.svgd import SVGDInfo
from steingp.targets import LATENTS, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from steingp.baselines.check import AgainstNuts

FEWEST_DRAWS, MOST_DRAWS = 200, 1000
"""Between which predictions use draws by default: as many as are cheap."""

_CHEAP = 2e10
"""Multiplications, about a second on one core, within which draws are cheap."""


class FitReport(NamedTuple):
    """How a fit went."""

    stage: str
    """"done", or where it was stopped."""
    effective_size: float
    """Independent draws that the kept ones are worth, for the worst hyperparameter."""
    rhat: float
    """The largest over hyperparameters; particles are the chains."""
    num_particles: int
    """That moved at the same time; draws of one sweep stand together."""
    num_gradients: int
    """Of the log density of one particle, over all particles."""
    num_sweeps: int
    """Sweeps that were collected."""
    acceptance: float
    """Of trajectories, on the average; not of leaps."""
    num_replaced: int
    """Particles that were lost in regions of no mass and became copies of others."""
    pareto_k: float | None
    """Of the weights; None where f is integrated out exactly, or with inducing points."""
    weighted: bool
    seconds: float
    num_values: int = 0
    """Log densities of one particle without a gradient, over all particles."""


class Mode(NamedTuple):
    """A part of the posterior that moves do not leave."""

    mass: float
    """Its share of the posterior."""
    draws: np.ndarray
    """Row numbers of its draws: `posterior.subset(mode.draws)` is the mode alone."""
    evidence: Evidence | None = None
    """log of p(y, this mode | model); None where it was not needed for the mass."""


class Posterior:
    """Draws from p(theta, nu | X, y), and the predictions of their mixture.

    `particles` is a dictionary name -> constrained array with draws along the leading
    axis (`nu` are the whitened latents, where they are part of a particle), `weights`
    are theirs and sum to 1. `report` tells how the fit went, `checkpoint` is where it can
    be taken up again (`steingp.fit(model, resume=...)`), `history` holds the steps of
    plain SVGD. `paths` has the particles of the largest mode sweep by sweep, name ->
    constrained array (sweeps, J, ...), and `trace` one number per sweep: acceptance,
    step (NaN where a sweep has leaps alone), log density and more. `verdict` says what
    was checked.

    Predictions use evenly spaced draws: 1000 where they are cheap (up to 270 rows or
    inducing points), down to 200 where they are not, or `max_draws` of them.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.SquaredExponential())
        >>> posterior = sg.fit(model, effective_size=50, progress=False)
        >>> sorted(posterior.particles)
        ['kernel.lengthscales', 'kernel.variance', 'likelihood.variance']
        >>> posterior.particles["kernel.lengthscales"].shape[1]
        1
        >>> posterior.predict_y([[0.5]]).mean.shape
        (1,)
    """

    def __init__(
        self,
        target: Target,
        data: Batch,
        particles: Particles,
        weights: np.ndarray | None = None,
        *,
        scaling: Scaling | None = None,
        labels: list[str] | None = None,
        history: SVGDInfo | None = None,
        method: str = "",
        report: FitReport | None = None,
        checkpoint: Mapping[str, np.ndarray] | None = None,
        modes: list[Mode] | None = None,
        paths: Mapping[str, np.ndarray] | None = None,
        trace: Mapping[str, np.ndarray] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        self._target, self._data = target, data
        self.particles = {k: np.asarray(v, float) for k, v in particles.items()}
        self.num_draws = len(next(iter(self.particles.values())))
        self.weights = _normalise(weights, self.num_draws)
        self._scaling = scaling or Scaling()
        self.labels = labels or [str(i) for i in range(np.shape(data.X)[1])]
        self.history, self.method = history, method
        self.report, self.checkpoint = report, checkpoint
        self.modes: list[Mode] = modes or []
        self.paths, self.trace = dict(paths or {}), dict(trace or {})
        self.verdict = verdict
        self.evidence_of_modes: Callable[[], list[Evidence]] | None = None
        self._evidence: Evidence | None = None

    def predict_f(
        self,
        X: ArrayLike,
        *,
        batch_size: int | None = None,
        max_draws: int | None = None,
    ) -> Prediction:
        """The latent function at the rows of X.

        Args:
            X: (S, D), as wide as the data the model was made for.
            batch_size: rows at a time; chosen by memory if None.
            max_draws: draws to predict with; 200 to 1000 if None.
        """
        return self._predict(X, batch_size, None, max_draws, of_y=False)

    def predict_y(
        self,
        X: ArrayLike,
        *,
        per_row: ArrayLike | None = None,
        batch_size: int | None = None,
        max_draws: int | None = None,
    ) -> Prediction:
        """New observations at the rows of X.

        Args:
            X: (S, D), as wide as the data the model was made for.
            per_row: what the likelihood knows of each row (the exposure of counts, the
                known noise variance of Gaussian data); 1 and 0 respectively by default.
            batch_size: rows at a time; chosen by memory if None.
            max_draws: draws to predict with; 200 to 1000 if None.
        """
        return self._predict(X, batch_size, per_row, max_draws, of_y=True)

    def uncertainty(
        self,
        X: ArrayLike,
        *,
        per_row: ArrayLike | None = None,
        batch_size: int | None = None,
        max_draws: int | None = None,
    ) -> Uncertainty:
        """The variance of new observations at the rows of X, by its source.

        `noise`, `function`, `hyperparameters` and `modes` add up to the variance of
        `predict_y`. Arguments are those of `predict_y`.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 20)[:, None]
            >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
            >>> posterior = sg.fit(model, effective_size=50, progress=False)
            >>> parts = posterior.uncertainty([[0.5], [3.0]])
            >>> bool(parts.function[1] > parts.function[0])
            True
            >>> np.allclose(parts.total, posterior.predict_y([[0.5], [3.0]]).variance)
            True
        """
        prediction = self.predict_y(
            X, per_row=per_row, batch_size=batch_size, max_draws=max_draws
        )
        return prediction.uncertainty(self.mode_of[self._spaced(max_draws)])

    @property
    def mode_of(self) -> np.ndarray:
        """The number of the mode that each draw is of, from 0."""
        numbers = np.zeros(self.num_draws, int)
        for number, mode in enumerate(self.modes):
            numbers[mode.draws] = number
        return numbers

    def _predict(
        self,
        X: Any,
        batch_size: int | None,
        per_row: Any,
        max_draws: int | None,
        of_y: bool,
    ) -> Prediction:
        some = self._spaced(max_draws)
        particles = {name: values[some] for name, values in self.particles.items()}
        weights = self.weights[some] / self.weights[some].sum()
        return predict(
            self._target, self._data, particles, weights, self._scaling,
            in_order(X, self.labels), per_row, batch_size, of_y=of_y,
        )  # fmt: skip

    def log_evidence(self) -> Evidence:
        """log p(y | model), with its standard error; by bridge sampling.

        Where f is integrated out by an approximation it is that of the approximation,
        corrected as far as weights know of its error; with inducing points it is a bound.
        Computed when it is first asked for, at the cost of 1000 log densities per mode.

        Raises:
            ValueError: this posterior did not come from a complete `steingp.fit` in which
                f is integrated out on all rows.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(-3, 3, 30)[:, None]
            >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
            >>> posterior = sg.fit(model, effective_size=100, progress=False)
            >>> bool(posterior.log_evidence().error < 0.2)
            True
        """
        if self._evidence is not None:
            return self._evidence
        if self.evidence_of_modes is None:
            raise ValueError(
                "log_evidence() needs the draws of a complete fit in which f is "
                "integrated out on all rows: sg.fit(model) of a model without batches and "
                f'with latents="auto". This posterior: {self.method or "draws alone"}.'
            )
        self._evidence = together(self.evidence_of_modes())
        return self._evidence

    def diagnose(self) -> Verdict:
        """Whether to trust this posterior: every check, with reasons and remedies.

        The draws of `steingp.fit` were checked when they were made. Those of plain SVGD,
        or of hyperparameters given by hand, are compared with the scores of their
        density here.

        Raises:
            ValueError: the data are a stream, or batches, so that scores are not at hand.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 20)[:, None]
            >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
            >>> svgd = sg.SVGD(model, n_particles=10)
            >>> svgd.run(20, progress=False)
            >>> svgd.posterior().diagnose().trusted
            False
        """
        from steingp import judging

        if self.verdict is None:
            self.verdict = judging.judge_draws(self)
        elif all(check.name != "jitter" for check in self.verdict.checks):
            self.verdict = judging.with_factorisations(self, self.verdict)
        return self.verdict

    def check_against_nuts(
        self,
        *,
        num_warmup: int = 500,
        num_draws: int = 500,
        num_chains: int = 4,
        seed: int = 0,
        progress: bool = True,
    ) -> "AgainstNuts":
        """This posterior beside one by NUTS: the proof, at NUTS's cost.

        NUTS samples the density that these draws are to follow: with f integrated out
        where that is exact or the bound of inducing points, and else with the latent
        values as they are, so that the approximation of f's integral is checked as well.

        Args:
            num_warmup, num_draws, num_chains, seed, progress: of NUTS.

        Returns:
            Both side by side; print it.

        Raises:
            ValueError: the posterior's data were a stream or batches.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 15)[:, None]
            >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
            >>> posterior = sg.fit(model, effective_size=200, progress=False)
            >>> check = posterior.check_against_nuts(num_warmup=200, num_draws=100)
            >>> list(check.rows)
            ['kernel.lengthscales[0]', 'kernel.variance', 'likelihood.variance']
        """
        from steingp.baselines.check import check_against_nuts

        return check_against_nuts(
            self, num_warmup, num_draws, num_chains, seed, progress
        )

    def update(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        per_row: ArrayLike | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> "Posterior":
        """The posterior of the data with these rows added.

        Draws are weighted by p(y_new | y_old, theta). They stay where they are while
        the weights are worth 40 % of them; else particles start from the weighted draws
        and are corrected and collected as in `steingp.fit`. Either equals a fit to all
        rows within its error. Inducing points and scaling stay as they are.

        Args:
            X: new inputs (S, D).
            y: their observations (S,).
            per_row: as in `predict_y`.
            seed: of the moves, if there are any.
            progress: show a bar, on a terminal.

        Raises:
            ValueError: the posterior is from batches, a stream or has joint latents;
                rows that do not fit the model.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 20)[:, None]
            >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
            >>> posterior = sg.fit(model, effective_size=100, progress=False)
            >>> posterior.update([[1.05]], [np.sin(6.3)]).training_data[0].shape
            (21, 1)
        """
        from steingp.online import update

        return update(self, X, y, per_row=per_row, seed=seed, progress=progress)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, which `steingp.load(path)` reads.

        Data, draws, checkpoint and all: it predicts to the last bit what this one does,
        on another machine too, and a fit goes on from it. An older file of that name
        stays as it is until the new one is complete.

        Args:
            path: ends in `.steingp`, in a folder that exists.

        Raises:
            ValueError: another suffix or no such folder; a prior that cannot be written,
                by the hyperparameter's name; nothing is written then.

        Example:
            >>> import tempfile, numpy as np, steingp as sg
            >>> X = np.linspace(-3, 3, 30)[:, None]
            >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
            >>> posterior = model.posterior(model.sample_prior(5))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     posterior.save(f"{folder}/cosine.steingp")
            ...     sg.load(f"{folder}/cosine.steingp").num_draws
            5
        """
        from steingp.io import save

        save(self, path)

    def subset(self, which: ArrayLike) -> "Posterior":
        """These draws alone: row numbers, or a mask. The fit's report stays behind.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 20)[:, None]
            >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
            >>> sg.SVGD(model, n_particles=5).posterior().subset([0, 3]).num_draws
            2
        """
        rows = np.arange(self.num_draws)[np.asarray(which)]
        part = copy.copy(self)
        part.particles = {name: values[rows] for name, values in self.particles.items()}
        part.weights = _normalise(self.weights[rows], len(rows))
        part.num_draws = len(rows)
        # what is said of the whole fit need not hold of a part
        part.modes, part.evidence_of_modes, part._evidence = [], None, None
        part.report, part.checkpoint, part.verdict = None, None, None
        part.paths, part.trace, part.history = {}, {}, None
        part.method = f"{len(rows)} of {self.num_draws} draws"
        return part

    @property
    def training_data(self) -> tuple[np.ndarray, np.ndarray]:
        """X (N, D) and y (N,) of the fit, in the user's units; a stream's first block.

        Example:
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 100, 20)[:, None]
            >>> kernel = sg.kernels.Matern52()
            >>> model = sg.SteinGP((X, np.sin(X)), kernel, standardise=True)
            >>> posterior = sg.SVGD(model, n_particles=5).posterior()
            >>> bool(np.allclose(posterior.training_data[0], X))
            True
        """
        X, y = np.asarray(self._data.X), np.asarray(self._data.y)
        return self._scaling.inputs_back(X), self._scaling.outputs_back(y)

    def plot(self) -> "Figure":
        """One figure that suits this posterior: see `steingp.plots.overview`.

        Example:
            >>> import matplotlib; matplotlib.use("Agg")
            >>> import numpy as np, steingp as sg
            >>> X = np.linspace(0, 1, 20)[:, None]
            >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
            >>> figure = sg.SVGD(model, n_particles=5).posterior().plot()
        """
        from steingp import plots

        return plots.overview(self)

    def _spaced(self, max_draws: int | None) -> np.ndarray:
        """Row numbers of at most so many draws, evenly spaced."""
        if max_draws is None:
            size = self._target.matrix_size(len(self._data.y))
            max_draws = int(np.clip(_CHEAP / size**3, FEWEST_DRAWS, MOST_DRAWS))
        check_count("max_draws", max_draws)
        num = min(max_draws, self.num_draws)
        return np.floor(np.arange(num) * self.num_draws / num).astype(int)

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, sd and the 5, 50 and 95 % points of every hyperparameter.

        Vectors have a row per entry, named by the input column it belongs to. Latents
        are left out.
        """
        return summaries.summary(self._columns(), self.weights)

    def _free_names(self) -> list[str]:
        """Hyperparameters that were inferred, in the order of the draws."""
        free = {p.name for p in self._target.specification.hyperparameters.free}
        return [name for name in self.particles if name in free]

    def named_columns(self, name: str) -> list[tuple[str, np.ndarray]]:
        """A hyperparameter's entries one by one, named by the input column of each."""
        values = self.particles[name]
        if values.ndim == 1:
            return [(name, values)]
        free = self._target.specification.hyperparameters.free
        everything = tuple(range(values.shape[1]))
        columns = next((p.columns for p in free if p.name == name), everything)
        return [
            (f"{name}[{self.labels[column]}]", values[:, i])
            for i, column in enumerate(columns)
        ]

    def _columns(self) -> dict[str, np.ndarray]:
        """All hyperparameters' entries."""
        return dict(c for name in self._free_names() for c in self.named_columns(name))

    def groups(self) -> list[np.ndarray]:
        """Draws that lie apart from each other: row numbers of each group, largest first.

        A sign of several modes, not a proof: see `steingp.summaries.groups`.
        """
        return summaries.groups(list(self._columns().values()), self.weights)

    def __repr__(self) -> str:
        head = f"Posterior of {self.num_draws} draws"
        lines = [head + (f" ({self.method})" if self.method else "")]
        lines += summaries.table(self.summary())
        if LATENTS in self.particles:
            latents = self.particles[LATENTS].shape[1]
            lines.append(f"and {latents} whitened latent values per draw")
        lines += self._about_modes()
        if self.verdict is not None:
            lines.append(self.verdict.line)
        return "\n".join(lines)

    def _about_modes(self) -> list[str]:
        lines = []
        for number, mode in enumerate(self.modes if len(self.modes) > 1 else []):
            rows = self.subset(mode.draws).summary()
            means = ", ".join(
                f"{label} {row['50%']:.3g}" for label, row in rows.items()
            )
            known = mode.evidence
            value = f", log evidence {known.log_value:.2f}" if known else ""
            lines.append(
                f"mode {number + 1}: mass {mode.mass:.3f}{value}, medians {means}"
            )
        groups = self.groups() if not self.modes else []
        if len(groups) > 1:
            shares = ", ".join(f"{self.weights[part].sum():.2f}" for part in groups)
            lines.append(
                f"Draws fall into {len(groups)} groups, perhaps modes, of weight {shares}; "
                "these weights are not calibrated."
            )
        return lines


def _normalise(weights: np.ndarray | None, num: int) -> np.ndarray:
    if weights is None:
        return np.full(num, 1.0 / num)
    weights = np.asarray(weights, float)
    if weights.shape != (num,) or np.any(weights < 0) or not weights.sum() > 0:
        raise ValueError(
            f"weights must be {num} numbers >= 0, not all 0; got shape {weights.shape}."
        )
    return weights / weights.sum()

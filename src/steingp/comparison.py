"""Which model? By log evidence, by held-out data, by leaving one row out.

Three questions, which may have three answers. *Log evidence*: how probable the data are
under the model with its priors; it is what Bayes' rule asks of models, and it depends on
the priors. *Held-out log density*: how well new rows are predicted. *Leave-one-out*: the
same without any new rows, each one predicted from all others.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike
from scipy.special import softmax

from steingp.data import check_column, check_inputs
from steingp.evidence import Evidence
from steingp.leaving_out import leave_one_out
from steingp.posterior import Posterior


class Score(NamedTuple):
    """A sum of log densities over rows, and its standing against the best."""

    total: float
    error: float
    """Standard error of `total`."""
    behind: float
    """How far behind the best model, >= 0."""
    behind_error: float
    """Standard error of `behind`, from differences row by row."""


class Row(NamedTuple):
    """What is known of one model."""

    log_evidence: Evidence | None
    probability: float | None
    """Of the model, if all were equally probable before."""
    left_out: Score | None
    num_doubtful: int
    """Rows whose leave-one-out value leans on few draws: Pareto k above 0.7."""
    held_out: Score | None
    trusted: bool | None
    """The verdict on its posterior."""
    reasons: tuple[str, ...]
    """Why a figure is missing."""


class Comparison(NamedTuple):
    """Models side by side, best first by leave-one-out (or what there is)."""

    rows: dict[str, Row]
    num_rows: int

    def __repr__(self) -> str:
        width = max(max(len(name) for name in self.rows), 5)
        head = (
            f"{'model':{width}}  {'log evidence':>18}  {'prob.':>6}  "
            f"{'leave-one-out':>18}  {'behind':>14}  {'held out':>18}  verdict"
        )
        lines = [head, "-" * len(head)]
        notes = []
        for name, row in self.rows.items():
            evidence = row.log_evidence
            value = (
                "-" if evidence is None else _with(evidence.log_value, evidence.error)
            )
            share = "-" if row.probability is None else f"{row.probability:.3f}"
            out, held = row.left_out, row.held_out
            lines.append(
                f"{name:{width}}  {value:>18}  {share:>6}  "
                f"{'-' if out is None else _with(out.total, out.error):>18}  "
                f"{'-' if out is None else _with(out.behind, out.behind_error):>14}  "
                f"{'-' if held is None else _with(held.total, held.error):>18}  "
                f"{_VERDICTS[row.trusted]}"
            )
            notes += [f"{name}: {reason}" for reason in row.reasons]
            if row.num_doubtful:
                notes.append(
                    f"{name}: {row.num_doubtful} rows' leave-one-out values lean on few "
                    "draws"
                )
        lines.append(
            f"Sums over rows ({self.num_rows} to fit), +- standard errors; larger is "
            "better."
        )
        return "\n".join(lines + notes)


_VERDICTS = {True: "nothing against it", False: "do not trust it", None: "not judged"}


def _with(value: float, error: float) -> str:
    return f"{value:.2f} +- {error:.2f}"


def compare(
    posteriors: Mapping[str, Posterior],
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    per_row: ArrayLike | None = None,
) -> Comparison:
    """Posteriors of several models of the same data, side by side.

    Args:
        posteriors: name -> posterior.
        X_test, y_test: held-out rows, if there are any.
        per_row: as in `Posterior.predict_y`, for the held-out rows.

    Raises:
        ValueError: fewer than two posteriors, or of different data.

    Example:
        >>> import numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> y = np.cos(2 * X) + 0.1 * np.random.default_rng(0).normal(size=X.shape)
        >>> def fit(kernel):
        ...     model = sg.SteinGP((X, y), kernel)
        ...     return sg.fit(model, effective_size=100, progress=False)
        >>> found = sg.compare({"smooth": fit(sg.kernels.SquaredExponential()),
        ...                     "line": fit(sg.kernels.Linear())})
        >>> list(found.rows)
        ['smooth', 'line']
        >>> bool(found.rows["smooth"].probability > 0.99)
        True
    """
    _check(posteriors, X_test, y_test)
    evidences, outs, helds = {}, {}, {}
    reasons: dict[str, list[str]] = {name: [] for name in posteriors}
    for name, posterior in posteriors.items():
        for found, ask in ((evidences, Posterior.log_evidence), (outs, leave_one_out)):
            try:
                found[name] = ask(posterior)
            except ValueError as error:
                reasons[name].append(str(error))
        if X_test is not None and y_test is not None:
            prediction = posterior.predict_y(X_test, per_row=per_row)
            helds[name] = prediction.log_prob(y_test)
    shares = {}
    if len(evidences) == len(posteriors):
        values = softmax([e.log_value for e in evidences.values()])
        shares = dict(zip(evidences, values.tolist(), strict=True))
    left_out = _scores({name: out.log_density for name, out in outs.items()})
    held_out = _scores(helds)
    rows = {
        name: Row(
            log_evidence=evidences.get(name),
            probability=shares.get(name),
            left_out=left_out.get(name),
            num_doubtful=outs[name].num_doubtful if name in outs else 0,
            held_out=held_out.get(name),
            trusted=None if p.verdict is None else p.verdict.trusted,
            reasons=tuple(reasons[name]),
        )
        for name, p in posteriors.items()
    }
    order = sorted(rows, key=lambda name: -_rank(rows[name]))
    num = len(next(iter(posteriors.values())).training_data[1])
    return Comparison({name: rows[name] for name in order}, num)


def _rank(row: Row) -> float:
    for score in (row.left_out, row.held_out):
        if score is not None:
            return score.total
    return row.log_evidence.log_value if row.log_evidence is not None else -np.inf


def _scores(by_model: Mapping[str, np.ndarray]) -> dict[str, Score]:
    if not by_model:
        return {}
    best = max(by_model.values(), key=lambda values: float(values.sum()))
    scores = {}
    for name, values in by_model.items():
        gap, root = best - values, np.sqrt(len(values))
        scores[name] = Score(
            float(values.sum()),
            float(root * values.std(ddof=1)),
            float(gap.sum()),
            float(root * gap.std(ddof=1)),
        )
    return scores


def _check(posteriors: Mapping[str, Posterior], X_test: object, y_test: object) -> None:
    if not isinstance(posteriors, Mapping) or len(posteriors) < 2:
        raise ValueError(
            "posteriors must be a dictionary of at least two, name -> posterior; got "
            f"{posteriors!r:.80}."
        )
    for name, posterior in posteriors.items():
        if not isinstance(posterior, Posterior):
            raise ValueError(
                f"posteriors[{name!r}] must be a Posterior, such as steingp.fit(model) "
                f"returns; got {type(posterior).__name__}."
            )
    (first, one), *others = posteriors.items()
    for name, other in others:
        same = all(
            np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-9, atol=1e-9)
            for a, b in zip(one.training_data, other.training_data, strict=True)
        )
        if not same:
            raise ValueError(
                f"{first!r} and {name!r} were fitted to different data: neither evidence "
                "nor leave-one-out can be compared. Fit both to the same rows."
            )
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test belong together: give both, or neither.")
    if X_test is not None:
        values, _ = check_inputs(X_test, "X_test", one.training_data[0].shape[1])
        check_column(y_test, "y_test", len(values))

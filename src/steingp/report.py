"""A posterior as one HTML page that needs nothing else: tables, verdict, figures."""

import base64
import html
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from steingp import plots
from steingp.diagnostics import Verdict
from steingp.io import replace_file
from steingp.leaving_out import LARGEST_K, leave_one_out
from steingp.likelihoods import Gaussian
from steingp.posterior import Posterior
from steingp.prediction import Uncertainty

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS = 110
"""Per inch of the figures: sharp on a phone, and a page of about 1 MB."""
_MOST_ROWS = 1000
"""Of the data, evenly spaced, in figures that predict them."""
_MOST_BARS = 200

_STYLE = """
body { color: #222; background: #fff; font: 16px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; padding: .3rem 0; color: #555; }
th, td { padding: .3rem .7rem; text-align: left; border-bottom: 1px solid #ddd;
  vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.verdict { padding: .7rem 1rem; border-left: .4rem solid #009e73; background: #f4f8f6; }
.verdict.bad { border-color: #d55e00; background: #fdf3ec; }
.bad-cell { color: #a33c00; font-weight: 600; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: .9rem; }
"""


def write_report(
    posterior: Posterior,
    path: str | os.PathLike[str],
    *,
    title: str = "Posterior of a Gaussian process",
    target: str = "y",
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write a page about a posterior: data, table, modes, verdict, evidence, figures.

    The page is one file: figures are in it, and nothing is fetched when it is read.

    Args:
        posterior: any.
        path: of the page, in a folder that exists; a file of that name is replaced.
        title: of the page.
        target: what y is called.
        facts: more to say about the run, name -> value, at the end of the page.

    Returns:
        The path.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import tempfile, numpy as np, steingp as sg
        >>> from steingp.report import write_report
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = sg.SteinGP((X, np.sin(6 * X)), sg.kernels.Matern52())
        >>> posterior = sg.SVGD(model, n_particles=5).posterior()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_report(posterior, f"{folder}/page.html", title="A sine")
        ...     "<h1>A sine</h1>" in page.read_text()
        True
    """
    verdict = _verdict(posterior)
    body = [
        f"<h1>{_text(title)}</h1>",
        _verdict_box(verdict),
        _section("Data", _data(posterior, target)),
        _section("Posterior of the hyperparameters", _hyperparameters(posterior)),
        _section("Modes", _modes(posterior)),
        _section("What was checked", _checks(verdict)),
        _section("How well it explains the data", _evidence(posterior)),
        _section("Figures", "".join(_figures(posterior, target))),
        _section("How it was made", _making(posterior, facts or {})),
    ]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )
    place = Path(path)
    if not place.parent.is_dir():
        raise ValueError(f"there is no folder {place.parent}: make it first.")
    replace_file(place, [page.encode()])
    return place


# --- HTML -------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """Any text, made harmless: names of columns are the user's."""
    return html.escape(str(value))


def _section(heading: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{content}\n</section>"


def _note(words: str) -> str:
    return f'<p class="note">{_text(words)}</p>'


def _table(heads: Iterable[str], rows: Iterable[Iterable[Any]], caption: str) -> str:
    """A table; numbers stand to the right."""
    rows = [list(row) for row in rows]
    columns = zip(*rows, strict=True)
    numeric = [all(isinstance(v, float) for v in column) for column in columns]

    def cell(kind: str, value: Any, number: bool) -> str:
        shown = f"{value:.4g}" if isinstance(value, float) else value
        style = ' class="number"' if number else ""
        scope = ' scope="col"' if kind == "th" else ""
        return f"<{kind}{scope}{style}>{_text(shown)}</{kind}>"

    def line(kind: str, values: Iterable[Any]) -> str:
        cells = (cell(kind, v, n) for v, n in zip(values, numeric, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return (
        f'<div class="scroll"><table>\n<caption>{_text(caption)}</caption>\n'
        f"<thead>{line('th', heads)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


# --- words and numbers ------------------------------------------------------------------


def _verdict(posterior: Posterior) -> Verdict | None:
    try:
        return posterior.diagnose()
    except ValueError:  # batches: no scores at hand
        return posterior.verdict


def _verdict_box(verdict: Verdict | None) -> str:
    if verdict is None:
        return _note("Nothing was checked: this posterior is of batches or a stream.")
    style = "verdict" if verdict.trusted else "verdict bad"
    return (
        f'<p class="{style}" role="status"><strong>{_text(verdict.line)}</strong></p>'
    )


def _checks(verdict: Verdict | None) -> str:
    if verdict is None or not verdict.checks:
        return _note("Nothing was checked.")
    words = {True: "passed", False: "FAILED", None: "not checked"}
    rows = [
        (words[c.passed], c.name, c.finding, "" if c.passed else c.remedy)
        for c in verdict.checks
    ]
    found = _table(
        ("result", "check", "what was found", "what to do"), rows,
        "Every question that was asked of these draws",
    )  # fmt: skip
    return found.replace("<td>FAILED</td>", '<td class="bad-cell">FAILED</td>')


def _data(posterior: Posterior, target: str) -> str:
    X, y = posterior.training_data
    names, columns = [*posterior.labels, target], [*X.T, y]
    rows = [
        (name, "target" if i == len(columns) - 1 else "input", *map(float, (
            column.mean(), column.std(), column.min(), np.median(column), column.max(),
        )))
        for i, (name, column) in enumerate(zip(names, columns, strict=True))
    ]  # fmt: skip
    heads = ("column", "used as", "mean", "sd", "smallest", "median", "largest")
    return _table(heads, rows, f"{len(y):,} rows, in their own units")


def _hyperparameters(posterior: Posterior) -> str:
    rows = [(name, *row.values()) for name, row in posterior.summary().items()]
    if not rows:
        return _note("Every hyperparameter is fixed.")
    heads = ("hyperparameter", "mean", "sd", "5%", "50%", "95%")
    method = f" ({posterior.method})" if posterior.method else ""
    found = _table(heads, rows, f"{posterior.num_draws} draws{method}")
    scaling = posterior._scaling
    if np.any(np.asarray(scaling.x_scale) != 1.0) or scaling.y_scale != 1.0:
        found += _note(
            "Data were standardised: a lengthscale of 1 is one sd of its column, a "
            "variance of 1 the variance of a real-valued target."
        )
    return found


def _modes(posterior: Posterior) -> str:
    if len(posterior.modes) < 2:
        return _note(
            "One mode was found. A mode that no start reached cannot be seen."
            if posterior.modes
            else "Modes were not looked for."
        )
    rows = []
    for number, mode in enumerate(posterior.modes, 1):
        known = mode.evidence
        value = "" if known is None else f"{known.log_value:.2f} +- {known.error:.2f}"
        medians = posterior.subset(mode.draws).summary()
        shown = ", ".join(f"{name} {row['50%']:.3g}" for name, row in medians.items())
        rows.append((str(number), float(mode.mass), value, shown))
    heads = ("mode", "mass", "log evidence", "medians")
    return _table(heads, rows, "Parts of the posterior that lie apart")


def _evidence(posterior: Posterior) -> str:
    rows, left_out = [], []
    try:
        found = posterior.log_evidence()
        rows.append((
            "log evidence", f"{found.log_value:.2f} +- {found.error:.2f}",
            "log p(y | model): compare models of the same data by it",
        ))  # fmt: skip
    except ValueError as error:
        left_out.append(f"Log evidence: {error}")
    try:
        loo = leave_one_out(posterior)
        doubtful = f"; {loo.num_doubtful} rows are doubtful (Pareto k > {LARGEST_K})"
        rows.append((
            "leave-one-out log density", f"{loo.total:.2f} +- {loo.error:.2f}",
            f"sum over rows of log p(row | all others), {loo.total / len(loo.k):.3f} per "
            f"row{doubtful if loo.num_doubtful else ''}",
        ))  # fmt: skip
    except ValueError as error:
        left_out.append(f"Leave-one-out: {error}")
    table = _table(("figure", "value", "what it is"), rows, "Larger is better")
    return (table if rows else "") + "".join(map(_note, left_out))


def _making(posterior: Posterior, facts: Mapping[str, Any]) -> str:
    from steingp import __version__

    rows = [("steingp", __version__), *((k, str(v)) for k, v in facts.items())]
    report = posterior.report
    if report is not None:
        rows += [
            ("particles", str(report.num_particles)),
            ("effective size", f"{report.effective_size:.0f} independent draws"),
            ("gradients", f"{report.num_gradients:,}"),
            ("log densities alone", f"{report.num_values:,}"),
            ("acceptance", f"{report.acceptance:.2f}"),
            ("seconds", f"{report.seconds:.1f}"),
        ]
    return _table(("what", "value"), rows, "The run")


# --- figures ----------------------------------------------------------------------------


class _Figure(NamedTuple):
    heading: str
    caption: str
    draw: Callable[[], Any]


def _figures(posterior: Posterior, target: str) -> list[str]:
    import matplotlib.pyplot as plt

    parts = []
    for one in _suitable(posterior, target):
        # a dollar in a column's name is a dollar; a letter without a glyph is a box
        with plt.rc_context({"text.parse_math": False}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            drawn = one.draw()
            image = _png(drawn if hasattr(drawn, "savefig") else drawn.figure.figure)
        parts.append(
            f'<figure>\n<h3>{_text(one.heading)}</h3>\n<img alt="{_text(one.caption)}" '
            f'src="data:image/png;base64,{image}">\n'
            f"<figcaption>{_text(one.caption)}</figcaption>\n</figure>\n"
        )
    return parts


def _png(figure: "Figure") -> str:
    import matplotlib.pyplot as plt

    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def _suitable(posterior: Posterior, target: str) -> list[_Figure]:
    from steingp.plots.runs import panel_names

    found = _of_predictions(posterior, target)
    names = list(posterior.summary())
    if names:
        found.append(_Figure(
            "Hyperparameters", "The density of each hyperparameter's draws, beside its "
            "prior.", lambda: plots.marginals(posterior, names[:12]),
        ))  # fmt: skip
    if len(names) > 1:
        found.append(_Figure(
            "Hyperparameters in pairs", "Draws of every two of the first hyperparameters: "
            "what is known of them together.", lambda: plots.pairs(posterior, names[:4]),
        ))  # fmt: skip
    found += _of_observations(posterior, target)
    if panel_names(posterior):
        found.append(_Figure(
            "The run", "Particles sweep by sweep: they should mix and show no trend.",
            lambda: plots.traces(posterior),
        ))  # fmt: skip
    return found


def _of_predictions(posterior: Posterior, target: str) -> list[_Figure]:
    """A band for one input, maps for two, the relevance of each for more."""
    num_inputs = len(posterior.labels)
    if num_inputs == 1:
        return [_Figure(
            "Predictions", f"Data, mean and 90 % band of new observations of {target} "
            f"along {posterior.labels[0]}.",
            lambda: _named(plots.predictive_band(posterior), target),
        )]  # fmt: skip
    free = posterior._target.specification.hyperparameters.free
    ranked = any(p.name.endswith("lengthscales") and p.shape for p in free)
    relevance = _Figure(
        "Relevance of the inputs", "Lengthscales in units of each column's spread, with "
        "90 % intervals: the shorter, the more the prediction depends on the column.",
        lambda: plots.relevance(posterior),
    )  # fmt: skip
    maps = _Figure(
        "Predictions", f"Mean and sd of {target} over {posterior.labels[0]} and "
        f"{posterior.labels[1]}"
        + ("." if num_inputs == 2 else ", the other inputs held at their middle."),
        lambda: plots.maps(posterior),
    )  # fmt: skip
    if num_inputs == 2:
        return [maps, relevance] if ranked else [maps]
    return [relevance] if ranked else [maps]


def _named(axes: Any, target: str) -> Any:
    if axes.get_ylabel() == "y":
        axes.set_ylabel(target)
    return axes


def _of_observations(posterior: Posterior, target: str) -> list[_Figure]:
    X, y = posterior.training_data
    rows = np.linspace(0, len(y) - 1, min(len(y), _MOST_ROWS)).astype(int)
    prediction = posterior.predict_y(X[rows], per_row=_per_row(posterior, rows))

    def uncertainty() -> Any:
        split = prediction.uncertainty(posterior.mode_of[posterior._spaced(None)])
        x: Any = X[rows] if len(posterior.labels) == 1 else None
        if x is None:  # bars, of which there can be too many
            few = np.linspace(0, len(rows) - 1, min(len(rows), _MOST_BARS)).astype(int)
            split = Uncertainty(*(part[few] for part in split))
        axes = plots.uncertainty(split, x)
        axes.set_ylabel(f"variance of {target}")
        if x is not None:
            axes.set_xlabel(posterior.labels[0])
        return axes

    return [
        _Figure(
            "Calibration on the training rows",
            "Observed against promised, on rows that the model was fitted to: it flatters. "
            "Only rows that were held out can show how it does on new ones.",
            lambda: plots.calibration(prediction, y[rows]),
        ),
        _Figure(
            "Where uncertainty comes from",
            f"The variance of a new {target} at the training rows by its source: noise "
            "stays, the function's part shrinks with more data nearby.",
            uncertainty,
        ),
    ]


def _per_row(posterior: Posterior, rows: np.ndarray) -> np.ndarray | None:
    """What the likelihood knows of these rows of the data, in the user's units."""
    likelihood = posterior._target.specification.likelihood
    if likelihood.row_name is None:
        return None
    known = np.asarray(posterior._data.row)[rows]
    unit = posterior._scaling.y_scale**2 if isinstance(likelihood, Gaussian) else 1.0
    return known * unit

"""The command line: `steingp fit`, `predict`, `report`, `demo` and `reproduce`."""

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from steingp import reproduce, runs, tables
from steingp.folders import Folder, RunError, Settings, checksum, versions
from steingp.tables import Layout, Table, TableError

DEMO_SEED = 46
"""Under the paper's priors most simulated sets have one mode; this one has two."""
CHECKPOINT_EVERY = 10.0
"""Seconds."""

app = typer.Typer(
    help="Gaussian processes with their full posterior.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(reproduce.app, name="reproduce")


class KernelName(StrEnum):
    """Keys of `steingp.runs.KERNELS`."""

    matern52 = "matern52"
    matern32 = "matern32"
    matern12 = "matern12"
    squared_exponential = "squared-exponential"
    se = "se"
    rational_quadratic = "rational-quadratic"
    linear = "linear"
    polynomial = "polynomial"


class LikelihoodName(StrEnum):
    """Keys of `steingp.runs.LIKELIHOODS`."""

    gaussian = "gaussian"
    student_t = "student-t"
    bernoulli = "bernoulli"
    poisson = "poisson"
    negative_binomial = "negative-binomial"
    gamma = "gamma"
    exponential = "exponential"


def _show_version(wanted: bool) -> None:
    if wanted:
        from steingp import __version__

        typer.echo(f"steingp {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True,
                     help="Print the version."),
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps compiled code for later calls, such as "
                     "~/.cache/steingp."),
    ] = None,
) -> None:  # fmt: skip
    """Gaussian processes with their full posterior."""
    del version
    _without_triton()
    if cache is not None:
        from steingp.compilation import keep_compiled

        try:
            keep_compiled(cache)
        except ValueError as error:
            _say(f"error: --cache: {error}")
            raise typer.Exit(2) from None


def _without_triton() -> None:
    """On an NVIDIA GPU most of compiling is XLA trying its own products against cuBLAS's.

    Not where XLA might no longer know the flag, since it ends the process over that.
    """
    flags, flag = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_enable_triton_gemm"
    known = metadata.version("jax").startswith(("0.10.", "0.11."))
    if known and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}=false".strip()


# --- fit --------------------------------------------------------------------------------


@app.command()
def fit(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Argument(help="CSV file, plain or .csv.gz.")
    ] = None,
    target: Annotated[str, typer.Option(help="The column to predict.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a run to go on with.")
    ] = None,
    kernel: Annotated[
        KernelName, typer.Option(help="Covariance of the function.")
    ] = KernelName.matern52,
    likelihood: Annotated[
        LikelihoodName | None,
        typer.Option(help="What kind of number the target is.  [default: gaussian]"),
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Inputs, as in a,b,c.  [default: all but the target]")
    ] = "",
    drop: Annotated[str, typer.Option(help="Columns to leave out, as in id,name.")] = "",
    exposure: Annotated[
        str | None, typer.Option(help="Column with what counts were collected over.")
    ] = None,
    inducing: Annotated[
        int | None, typer.Option(help="Inducing points, for many rows.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same result.", min=0)] = 0,
    effective_size: Annotated[
        float | None,
        typer.Option(help="Independent draws to be worth.  [default: 1000, or 400 with "
                     "more than 3 hyperparameters]", min=1),
    ] = None,
    particles: Annotated[
        int | None, typer.Option(help="That move together.  [default: 20, GPU: 64]", min=2)
    ] = None,
    standardise: Annotated[
        bool, typer.Option(help="Work on columns of zero mean and unit sd.")
    ] = True,
    explore: Annotated[
        bool | None,
        typer.Option(help="Look for modes by tempering first.  [default: small data]"),
    ] = None,
    separator: Annotated[str, typer.Option(help="Between values; or: tab.")] = ",",
    decimal: Annotated[str, typer.Option(help="The decimal point.")] = ".",
    header: Annotated[
        bool, typer.Option(help="Whether the first line names the columns.")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Write into a folder that is not empty.")
    ] = False,
    checkpoint_every: Annotated[float, typer.Option(hidden=True)] = CHECKPOINT_EVERY,
) -> None:  # fmt: skip
    """Fit a table: standardise, find the posterior, write it and a page about it.

    Killed or stopped with Ctrl-C, a run goes on with `steingp fit --resume FOLDER`.
    """
    with _in_plain_words():
        if resume is not None:
            _check_alone(context)
            _go_on(Folder(resume), checkpoint_every)
            return
        if data is None or not target or out is None:
            raise RunError(
                "what to fit? steingp fit data.csv --target COLUMN --out FOLDER; or "
                "steingp fit --resume FOLDER."
            )
        folder = Folder(out)
        folder.check_free(force)
        options = {
            "kernel": str(kernel), "inducing": inducing, "standardise": standardise,
            "seed": seed, "effective_size": effective_size, "particles": particles,
            "explore": explore, "layout": Layout(separator, decimal, header),
        }  # fmt: skip
        _begin(
            folder, data, target, _split(columns), _split(drop), exposure, likelihood,
            options, checkpoint_every,
        )  # fmt: skip


def _begin(
    folder: Folder,
    data: Path,
    target: str,
    columns: list[str],
    drop: list[str],
    exposure: str | None,
    likelihood: LikelihoodName | None,
    options: dict[str, Any],
    every: float,
) -> None:
    table = tables.read_table(data, options["layout"])
    rows = tables.training_rows(table, target, columns, drop, exposure)
    settings = Settings(
        data=str(data.resolve()), sha256=checksum(data), num_columns=len(table.columns),
        inputs=list(rows.X.columns), target=target, exposure=exposure,
        likelihood=str(likelihood or "gaussian"), versions=versions(), **options,
    )  # fmt: skip
    runs.check_rows(table, settings, rows)
    if likelihood is None and np.all(np.isin(rows.y, (0.0, 1.0))):
        _say(
            f"note: target {target!r} is 0 or 1 in every row, and is fitted as a real "
            "number. For labels, pass --likelihood bernoulli."
        )
    with _spoken_warnings():
        model = runs.make_model(settings, rows)
    folder.begin(settings)
    typer.echo(
        f"{data}: {len(rows.y):,} rows; {target} from {', '.join(rows.X.columns)}."
    )
    _fit_to_the_end(folder, settings, model, every)


def _go_on(folder: Folder, every: float) -> None:
    settings = folder.read_settings()
    if folder.is_finished:
        typer.echo(
            f"{folder.path} is finished already: nothing was done. Its page is "
            f"{folder.report}."
        )
        return
    _, rows = runs.read_again(folder, settings)
    now = versions()
    for name, then in settings.versions.items():
        if now.get(name) != then:
            _say(
                f"note: the run was begun with {name} {then}, and this is "
                f"{now.get(name)}: the last digits may differ."
            )
    with _spoken_warnings():
        model = runs.make_model(settings, rows)
    _fit_to_the_end(folder, settings, model, every)


def _fit_to_the_end(
    folder: Folder, settings: Settings, model: Any, every: float
) -> None:
    try:
        with _spoken_warnings():
            run = runs.advance(folder, settings, model, every, progress=True)
            if run.stage != "done":
                raise KeyboardInterrupt
            posterior = run.posterior()
            runs.finish(folder, posterior)
    except KeyboardInterrupt:
        _say(f"\nstopped. Go on with: steingp fit --resume {folder.path}")
        raise typer.Exit(130) from None
    typer.echo(f"\n{posterior}")
    for check in posterior.verdict.failed if posterior.verdict else []:
        typer.echo(f"  {check.name}: {check.remedy}" if check.remedy else "")
    if posterior.verdict and posterior.verdict.failed:
        typer.echo(
            f'  (in Python, of posterior = steingp.load("{folder.posterior}") and model = '
            "steingp.SteinGP.of(posterior))"
        )
    runs.write_page(folder, settings, posterior)
    typer.echo("")
    for path in (folder.posterior, folder.report):
        typer.echo(f"wrote {path}")


def _check_alone(context: typer.Context) -> None:
    """With --resume everything comes from the run; other options would be ignored."""
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in ("resume", "checkpoint_every"):
            shown = "data.csv" if name == "data" else f"--{name.replace('_', '-')}"
            raise RunError(
                f"--resume takes all options from the run: leave out {shown}, or begin "
                "another run."
            )


# --- predict and report -----------------------------------------------------------------


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    new: Annotated[Path, typer.Argument(help="CSV file with the inputs.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write.  [default: the terminal]")
    ] = None,
    keep: Annotated[
        str, typer.Option(help="Columns of the file to copy, as in id,name.")
    ] = "",
    separator: Annotated[
        str | None, typer.Option(help="Of the file.  [default: as in the fit]")
    ] = None,
) -> None:
    """Predict new rows: mean, sd, 5, 50 and 95 % points, in the units of the data.

    Of labels: the probability of 1, with its 5, 50 and 95 % points.
    """
    import pandas as pd

    with _in_plain_words(), _spoken_warnings():
        folder = Folder(run)
        settings = folder.read_settings()
        layout = settings.layout
        if separator is not None:
            layout = layout._replace(separator=separator)
        if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
            raise RunError(f"--out {out} must be a file in a folder that exists.")
        if out is not None and out.resolve() == new.resolve():
            raise RunError(f"--out {out} is the file that is read: give another name.")
        table = tables.read_table(new, layout)
        _check_width(table, settings)
        kept = [tables.find(table, name, "--keep") for name in _split(keep)]
        X, exposure = tables.new_rows(table, settings.inputs, settings.exposure)
        posterior = folder.read_posterior()
        found = runs.prediction_table(posterior, X, exposure)
    found = pd.concat([table.frame[kept], found], axis=1)
    text = found.to_csv(index=False, float_format="%.10g")
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text)
    typer.echo(f"wrote {len(found):,} rows to {out}")


def _check_width(table: Table, settings: Settings) -> None:
    """Columns without names are told by their place, so all must be there."""
    width, num = len(table.columns), settings.num_columns
    target_last = settings.target == f"column{num}"
    if settings.layout.header or width == num or (target_last and width == num - 1):
        return
    raise RunError(
        f"{table.path} has {width} columns and the data of the fit had {num}; without a "
        "line of names they are told by their place. Give the same columns in the same "
        "order; put any number for the target."
    )


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
) -> None:
    """Write the page of a run anew: posterior, verdict, evidence, figures."""
    with _in_plain_words(), _spoken_warnings():
        folder = Folder(run)
        settings, posterior = folder.read_settings(), folder.read_posterior()
        runs.write_page(folder, settings, posterior)
    typer.echo(f"wrote {folder.report}")


# --- demo -------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path(
        "demo-output"
    ),
    seed: Annotated[int, typer.Option(help="Of the data and of the fit.")] = DEMO_SEED,
    particles: Annotated[int, typer.Option(help="How many, J.", min=1)] = 20,
    effective_size: Annotated[
        int, typer.Option(help="Independent draws to be worth.", min=1)
    ] = 1000,
) -> None:
    """Fit the paper's multimodal data: table, test scores, two figures and a page."""
    from rich.console import Console

    from steingp.experiments import multimodal
    from steingp.report import write_report

    console = Console()
    console.print(multimodal.demo_in_words(particles, effective_size))
    began = time.perf_counter()
    result = multimodal.fit_demo(seed, particles, effective_size)
    seconds = time.perf_counter() - began
    console.print(str(result.posterior), highlight=False, markup=False)
    console.print()
    console.print(multimodal.score_table(result, seconds))
    console.print(result.comment, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    paths = multimodal.write_figures(result, out)
    page = write_report(
        result.posterior, out / "report.html", title="Neal's data with outliers"
    )
    for path in (*paths, page):
        console.print(f"wrote {path}", highlight=False)


# --- words ------------------------------------------------------------------------------


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _say(words: str) -> None:
    typer.echo(words, err=True)


@contextmanager
def _in_plain_words() -> Iterator[None]:
    """What a user can mend is said in a line or two, without a traceback."""
    try:
        yield
    except (RunError, TableError, OSError) as error:  # or no permission, no room
        _say(f"error: {error}")
        raise typer.Exit(2) from None


@contextmanager
def _spoken_warnings() -> Iterator[None]:
    """Warnings as notes, without the line of code they came from."""

    def show(message: Any, *rest: Any, **more: Any) -> None:
        _say(f"note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def main() -> None:
    app(prog_name=Path(sys.argv[0]).name)

"""The command line: `steingp demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer

DEMO_SEED = 46
"""Under the paper's priors most simulated sets have one mode; this one has two."""

app = typer.Typer(
    help="Gaussian processes with their full posterior.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _version() -> None:
    """Gaussian processes with their full posterior."""


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
    """Fit the paper's multimodal data: table, test scores and two figures."""
    from rich.console import Console

    from steingp.experiments import multimodal

    console = Console()
    console.print(
        "[bold]Neal's data with outliers[/bold] (section 5.2 of the paper): 100 rows to "
        "fit, 100 held out. A Gaussian process with a squared exponential kernel and "
        "Gaussian noise. Modes of its three hyperparameters are looked for by "
        f"tempering; {particles} particles then move in each until their draws are worth "
        f"{effective_size} independent ones. (The default seed was picked for its two "
        "modes; most have one.)\n"
    )
    began = time.perf_counter()
    result = multimodal.fit_demo(seed, particles, effective_size)
    seconds = time.perf_counter() - began
    console.print(str(result.posterior), highlight=False, markup=False)
    console.print()
    console.print(multimodal.score_table(result, seconds))
    console.print(result.comment, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    for path in multimodal.write_figures(result, out):
        console.print(f"wrote {path}", highlight=False)


def main() -> None:
    app()

"""`steingp reproduce`: the paper's studies, one command each.

Every fit leaves a JSON line as it ends. A run that is stopped, by Ctrl-C or otherwise,
goes on where it was when the same command is given again.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

RESULTS = Path("results")

app = typer.Typer(
    help="The paper's studies: tables and figures beside what the paper reports.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(help="Folder for the lines of JSON.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small part of it, to see that it works.")
]
Processes = Annotated[
    int, typer.Option(min=1, help="Fits at the same time on this machine.")
]
Dask = Annotated[
    str | None,
    typer.Option(help="Scheduler of a Dask cluster, as in tcp://host:8786, whose workers "
                 "do the fits."),
]  # fmt: skip


@app.command()
def uci(
    datasets: Annotated[
        str, typer.Option(help="Sets, as in servo,boston.  [default: all 20, and those of "
                          "labels with the row number as an input]")
    ] = "",
    methods: Annotated[
        str, typer.Option(help="As in default,ML.  [default: all]")
    ] = "",
    splits: Annotated[
        int | None,
        typer.Option(help="Random splits.  [default: 5, and 2 with more than 2000 rows]",
                     min=1),
    ] = None,
    quick: Quick = False,
    processes: Processes = 1,
    dask: Dask = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download regression sets that are not there.")
    ] = False,
    out: Out = RESULTS,
    name: Annotated[
        str, typer.Option(help="Of the file, for a second machine: uci-gpu, for instance.")
    ] = "uci",
) -> None:  # fmt: skip
    """Section 5.1: twenty UCI sets by every method; log densities and run times."""
    from steingp.experiments import jobs, uci, uci_tables

    sets = _chosen(
        datasets, uci.SETS, "--datasets", uci.QUICK_SETS if quick else uci.SETS
    )
    ways = _chosen(
        methods, uci.METHODS, "--methods", uci.QUICK_METHODS if quick else uci.METHODS
    )
    _check_name(name, "uci")
    if quick:
        splits, name = splits or 1, f"{name}-quick"
    sets = _present(sets, fetch)
    lines = jobs.Lines(out / f"{name}.jsonl", uci.KEYS)
    todo = uci.jobs(sets, ways, splits, quick)
    _run(todo, uci.fit_one, lines, processes, dask, _say_uci)
    wanted = [d for d in lines.read() if d["set"] in sets and d["method"] in ways]
    typer.echo("\n" + uci_tables.in_words(wanted))
    typer.echo(f"\nwrote {lines.path}")


@app.command()
def multimodal(
    seeds: Annotated[
        str, typer.Option(help="Of the simulated sets, as in 0,1,2.  [default: twelve]")
    ] = "",
    quick: Quick = False,
    processes: Processes = 1,
    dask: Dask = None,
    out: Out = RESULTS,
    name: Annotated[
        str, typer.Option(help="Of the file: multimodal-gpu, for instance.")
    ] = "multimodal",
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures.  [default: that of --out]"),
    ] = None,
) -> None:
    """Section 5.2: Neal's data with outliers, beside the exact posterior on a grid."""
    from steingp.experiments import jobs
    from steingp.experiments import multimodal_study as study

    some = study.SEEDS[-2:] if quick else study.SEEDS
    if seeds:
        try:
            some = tuple(int(part) for part in seeds.split(","))
        except ValueError:
            _fail(f"--seeds {seeds}: whole numbers and commas, as in 0,1,2.")
    _check_name(name, "multimodal")
    lines = jobs.Lines(out / f"{name}{'-quick' if quick else ''}.jsonl", study.KEYS)
    _run(
        study.jobs(some, quick), study.fit_one, lines, processes, dask, _say_multimodal
    )
    found = [d for d in lines.read() if d["seed"] in some]
    typer.echo("\n" + study.in_words(found) + "\n")
    for path in (lines.path, *study.write_figures(found, figures or out)):
        typer.echo(f"wrote {path}")


def _say_multimodal(line: dict[str, Any]) -> None:
    what = f"seed {line['seed']:3d}  {line['method']:10s}"
    if "error" in line:
        typer.echo(f"{what} {line['error']}")
        return
    mass = (
        f"  mass {line['mass']:.3f} ({line['exact_mass']:.3f})"
        if "mass" in line
        else ""
    )
    typer.echo(
        f"{what} log density {line['log_density']:8.2f}  {line['seconds']:6.1f} s, "
        f"{line['compile_seconds']:.1f} of them compiling{mass}"
    )


@app.command("air-quality")
def air_quality(
    datasets: Annotated[
        str, typer.Option(help="uk, netherlands or both.  [default: both]")
    ] = "",
    methods: Annotated[
        str, typer.Option(help="As in default,SVI.  [default: all]")
    ] = "",
    splits: Annotated[int, typer.Option(help="Random splits.", min=1)] = 5,
    quick: Quick = False,
    processes: Processes = 1,
    dask: Dask = None,
    out: Out = RESULTS,
    name: Annotated[
        str, typer.Option(help="Of the file: air_quality-gpu, for instance.")
    ] = "air_quality",
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures.  [default: that of --out]"),
    ] = None,
) -> None:
    """Section 5.3: nitrogen dioxide in the UK and the Netherlands; wants a GPU."""
    from steingp.experiments import air_quality as study
    from steingp.experiments import air_quality_figures as pictures
    from steingp.experiments import jobs

    there = tuple(study.FILES)
    sets = _chosen(datasets, there, "--datasets", ("uk",) if quick else there)
    ways = _chosen(methods, study.METHODS, "--methods", study.METHODS)
    _check_name(name, "air_quality")
    try:
        for one in sets:
            study.table(one)
    except FileNotFoundError as error:
        _fail(str(error))
    lines = jobs.Lines(out / f"{name}{'-quick' if quick else ''}.jsonl", study.KEYS)
    todo = study.jobs(sets, ways, 1 if quick else splits, quick)
    _run(todo, study.fit_one, lines, processes, dask, _say_uci)
    found = [d for d in lines.read() if d["set"] in sets and d["method"] in ways]
    typer.echo("\n" + pictures.in_words(found) + "\n")
    for path in (lines.path, *pictures.write_figures(found, figures or out)):
        typer.echo(f"wrote {path}")


def _check_name(name: str, base: str) -> None:
    """Files of one study are told by the beginning of their names."""
    if name.endswith("-quick") or not (name == base or name.startswith(f"{base}-")):
        _fail(f"--name {name}: it must be {base} or begin with {base}-, and not end in "
              "-quick.")  # fmt: skip


def _chosen(
    given: str, there: tuple[str, ...], option: str, default: tuple[str, ...]
) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(",") if part.strip())
    for one in names:
        if one not in there:
            _fail(f"{option}: no {one!r}; there are {', '.join(there)}.")
    return names or default


def _present(sets: tuple[str, ...], fetch: bool) -> tuple[str, ...]:
    """Those of the sets that are in the data folder; says where to get the others."""
    from steingp.experiments import fetching
    from steingp.experiments.datasets import where_to_get

    if fetch and not os.environ.get("STEINGP_DATA"):
        folder = Path("steingp-data").absolute()
        typer.echo(f"STEINGP_DATA is not set; data go to {folder}.")
        os.environ["STEINGP_DATA"] = str(folder)
    default = str(Path("steingp-data").absolute())
    folder = Path(os.environ.setdefault("STEINGP_DATA", default))
    missing = [n for n in sets if not (folder / "uci" / f"{n}.csv.gz").is_file()]
    if fetch:
        for one in [n for n in missing if n in fetching.CHECKSUMS]:
            try:
                fetching.fetch(one, folder)
            except (OSError, ValueError) as error:
                _fail(str(error))
            missing.remove(one)
    if missing:
        typer.echo(where_to_get(missing, folder), err=True)
    left = tuple(n for n in sets if n not in missing)
    if not left:
        raise typer.Exit(2)
    return left


def _run(
    todo: Iterable[dict],
    work: Any,
    lines: Any,
    processes: int,
    dask: str | None,
    say: Any,
) -> None:
    from steingp.experiments import jobs

    try:
        failed = jobs.run(todo, work, lines, processes=processes, dask=dask, say=say)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; {lines.path} has what is done. Give the same command "
                   "again to go on.", err=True)  # fmt: skip
        raise typer.Exit(130) from None
    except (OSError, ValueError) as error:
        _fail(str(error))
        return
    if failed:
        typer.echo(
            f"{failed} fits failed; the same command tries them again.", err=True
        )
        if all("error" in line for line in lines.read()):
            raise typer.Exit(1)


def _say_uci(line: dict[str, Any]) -> None:
    what = f"{line['set']:20s} split {line['split']!s:8s}  {line['method']:14s}"
    if "error" in line:
        typer.echo(f"{what} {line['error']}")
        return
    typer.echo(
        f"{what} log density {line['log_density']:8.3f}  {line['seconds']:6.1f} s, "
        f"{line['compile_seconds']:.1f} of them compiling"
    )


def _fail(words: str) -> None:
    typer.echo(f"error: {words}", err=True)
    raise typer.Exit(2)

"""Imports go downward only: the layers of the library, read from its source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import steingp

ROOT = Path(steingp.__file__).parent

# A module may import, at its top, from the lines above its own.
LAYERS: list[set[str]] = [
    {"precision", "checks", "progress", "compilation"},
    {"linalg", "coordinates", "devices", "flights", "threads"},
    {"data", "priors", "stein"},
    {"kernels", "means", "likelihoods", "batches", "on_disk", "densities"},
    {"interop", "inducing", "observations", "targets", "svgd", "moves"},
    {"weights", "metrics", "summaries"},
    {"diagnostics", "descent", "modes", "evidence"},
    {"leaps"},
    {"run_state"},
    {"corrected"},
    {"tempering", "by_mode", "verdicts"},
    {"prediction", "flat"},
    {"judging"},
    {"posterior"},
    {"models", "leaving_out", "written"},
    {"comparison"},
    {"paper", "ensemble", "streamed"},
    {"fitting"},
    {"outcome"},
    {"inference"},
    {"baselines", "online"},
    {"plots", "io", "sklearn", "tables"},
    {"experiments", "report", "folders"},
    {"runs", "reproduce"},
    {"cli"},
    {"__init__", "__main__"},
]
HEIGHT = {module: height for height, line in enumerate(LAYERS) for module in line}

# These know nothing of Gaussian processes, at their top or inside a function.
GENERAL = {
    "stein",
    "svgd",
    "moves",
    "weights",
    "flights",
    "threads",
    "densities",
    "descent",
    "leaps",
    "run_state",
    "corrected",
    "modes",
    "evidence",
    "tempering",
    "by_mode",
    "diagnostics",
    "verdicts",
}
GAUSSIAN_PROCESS = {"kernels", "means", "likelihoods", "targets", "models"}


def theme(path: Path) -> str:
    """The module, or the folder it stands in: likelihoods for likelihoods/real.py."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_modules(nodes: Iterator[ast.AST], path: Path) -> set[str]:
    """Which modules of ours are imported by some statements of a file."""
    package = ["steingp", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join(stem + ([node.module] if node.module else []))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("steingp.")}
    # `from steingp import RBF` takes a name of __init__, not a module
    return {name if (name in HEIGHT) else "__init__" for name in found}


def top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements that run on import: not those in functions, or for types alone."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from top_level(child)


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downward(path: Path) -> None:
    module = theme(path)
    assert module in HEIGHT, f"add {module} to LAYERS in {Path(__file__).name}"
    tree = ast.parse(path.read_text())
    for other in imported_modules(top_level(tree), path) - {module}:
        assert HEIGHT[other] < HEIGHT[module], (
            f"{module} imports {other}, which is not below it; import it inside the "
            "function that needs it, or move what is shared down"
        )


@pytest.mark.parametrize(
    "path", [p for p in FILES if theme(p) in GENERAL], ids=lambda p: p.name
)
def test_inference_knows_nothing_of_gaussian_processes(path: Path) -> None:
    everything = imported_modules(ast.walk(ast.parse(path.read_text())), path)
    assert not everything & (GAUSSIAN_PROCESS | {"__init__"})


def test_the_reader_of_imports_sees_all_their_forms(tmp_path: Path) -> None:
    source = """
import numpy
import steingp.kernels
from steingp import linalg, RBF
from steingp.likelihoods.base import Likelihood
from . import means
from .priors import Slot
class A:
    from steingp import svgd
def late():
    from steingp import models
if TYPE_CHECKING:
    from steingp import models
"""
    tree = ast.parse(source)
    path = ROOT / "some.py"
    always = {"kernels", "linalg", "__init__", "likelihoods", "means", "priors", "svgd"}
    assert imported_modules(top_level(tree), path) == always
    assert imported_modules(ast.walk(tree), path) == always | {"models"}

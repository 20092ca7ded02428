"""The folder of a run, and what is in it.

| file | what |
|---|---|
| `settings.json` | every option, the data file and its checksum, columns, versions |
| `checkpoint.safetensors` | where the fit is; replaced every few seconds |
| `posterior.steingp` | at the end: `steingp.load` reads it |
| `report.html` | at the end: a page to read |
"""

import dataclasses
import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

from steingp import io
from steingp.posterior import Posterior
from steingp.tables import Layout

_PACKAGES = ("steingp", "jax", "numpy")


class RunError(ValueError):
    """A run that cannot be begun, read or gone on with; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that makes a run: with the data file, it is the run."""

    data: str
    """The file, from the root."""
    sha256: str
    layout: Layout
    num_columns: int
    """Of the file."""
    inputs: list[str]
    target: str
    exposure: str | None
    kernel: str
    likelihood: str
    inducing: int | None
    standardise: bool
    seed: int
    effective_size: float | None
    particles: int | None
    explore: bool | None
    versions: dict[str, str]

    def to_json(self) -> str:
        content = dataclasses.asdict(self)
        return json.dumps(content | {"layout": self.layout._asdict()}, indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> "Settings":
        content = json.loads(text)
        return Settings(**content | {"layout": Layout(**content["layout"])})


@dataclasses.dataclass(frozen=True)
class Folder:
    """The folder of a run, and its files.

    Example:
        >>> from pathlib import Path
        >>> from steingp.runs import Folder
        >>> Folder(Path("run")).posterior.name, Folder(Path("nowhere")).is_run
        ('posterior.steingp', False)
    """

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def posterior(self) -> Path:
        return self.path / "posterior.steingp"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def is_run(self) -> bool:
        return self.settings.is_file()

    @property
    def is_finished(self) -> bool:
        return self.is_run and self.posterior.is_file()

    def check_free(self, force: bool) -> None:
        """Refuse to write over what is there, unless that was asked for.

        Raises:
            RunError: the folder is not empty, or is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: give the name of a folder.")
        if force or not self.path.exists() or not any(self.path.iterdir()):
            return
        if self.is_finished:
            state = (
                "holds a finished run: give another --out, or replace it with --force"
            )
        elif self.is_run:
            state = (
                "holds a run that is not finished: go on with `steingp fit --resume "
                f"{self.path}`, or begin anew with --force"
            )
        else:
            state = (
                "is not empty and is no run of steingp: give another --out, or write the "
                "run beside what is there with --force"
            )
        raise RunError(f"{self.path} {state}.")

    def begin(self, settings: Settings) -> None:
        """Write the settings; results of an earlier run are removed, no other file."""
        self.path.mkdir(parents=True, exist_ok=True)
        for old in (self.posterior, self.checkpoint, self.report):
            old.unlink(missing_ok=True)
        io.replace_file(self.settings, [settings.to_json().encode()])

    def read_settings(self) -> Settings:
        """The settings of a run.

        Raises:
            RunError: no run, or settings that cannot be read.
        """
        if not self.is_run:
            raise RunError(
                f"{self.path} is no run of steingp: there is no {self.settings}. Make "
                f"one with `steingp fit data.csv --target y --out {self.path}`."
            )
        try:
            return Settings.from_json(self.settings.read_text())
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(
                f"{self.settings} is damaged, or of another version of steingp "
                f"({error}). Begin anew with steingp fit."
            ) from error

    def read_posterior(self) -> Posterior:
        """What came out of a run.

        Raises:
            RunError: no run, or one that is not finished, or a damaged file.
        """
        self.read_settings()
        if not self.is_finished:
            raise RunError(
                f"{self.path} is not finished: go on with `steingp fit --resume "
                f"{self.path}`."
            )
        try:
            return io.load(self.posterior)
        except ValueError as error:
            raise RunError(str(error)) from error


def checksum(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Of what results depend on to the last bit."""
    found = {name: version(name) for name in _PACKAGES}
    return found | {"python": platform.python_version()}

"""Files: a posterior in one file, and named arrays in another.

A file is a safetensors file, so that any safetensors reader sees its arrays. Its header
holds one JSON document (`steingp.written`) and a checksum of all bytes. Nothing in it is
run by reading: there is no pickle, and classes are looked up in a fixed table.

A file is written beside its place and then moved there: who reads sees the old one or the
new one, and one that was interrupted leaves the old one.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_of
from safetensors.numpy import save as bytes_of

from steingp.evidence import Evidence
from steingp.fitting import Fit
from steingp.posterior import Posterior
from steingp.precision import float64
from steingp.priors import Component
from steingp.written import read, read_target, write, write_target

SUFFIX = ".steingp"
FORMAT = 1
"""Raised when files change so that older versions could not read them."""

_DOCUMENT, _CHECKSUM = "steingp", "sha256"
_MARK = f'"{_CHECKSUM}":"'.encode()
"""What stands before the checksum; in the document, which is a text, quotes are escaped."""
_BLANK = b"0" * 64
"""Stands for the checksum while it is computed."""
_PLAIN = {np.dtype(kind) for kind in ("?", *"bBhHiIlLqQ", *"efd")}
"""What safetensors holds; arrays of other kinds are stored as their bytes."""

PathLike = str | os.PathLike[str]


# --- posteriors -------------------------------------------------------------------------


@float64
def save(posterior: Posterior, path: PathLike) -> None:
    """Write a posterior to a file: see `Posterior.save`."""
    if _as_path(path).suffix != SUFFIX:
        raise ValueError(
            f"path must end in {SUFFIX}, so that no other file is overwritten; got "
            f"{os.fspath(path)!r}."
        )
    arrays: dict[str, np.ndarray] = {}
    content = {
        name: write(getattr(posterior, name), name, arrays) for name in _ATTRIBUTES
    }
    for name, value in (
        ("data", posterior._data),
        ("scaling", posterior._scaling),
        ("evidence", posterior._evidence),
        ("has_evidence", posterior.evidence_of_modes is not None),
    ):
        content[name] = write(value, name, arrays)
    num_inputs = int(np.shape(posterior._data.X)[1])
    target = write_target(posterior._target, num_inputs, arrays)
    _check_readable(target, arrays, posterior)
    _write_file(path, arrays, {"posterior": {**content, "target": target}})


_ATTRIBUTES = (
    "particles", "weights", "labels", "method", "report", "history", "checkpoint",
    "modes", "paths", "trace", "verdict",
)  # fmt: skip


def _check_readable(
    target: Mapping[str, Any], arrays: Mapping[str, np.ndarray], posterior: Posterior
) -> None:
    """Refuse what could not be read again, before anything is written."""
    specification = posterior._target.specification
    parts = (specification.kernel, specification.mean, specification.likelihood)
    try:
        read_target(target, arrays, _classes_in(parts))
    except ValueError as error:
        raise ValueError(f"the posterior cannot be saved: {error}") from error


def _classes_in(value: Any) -> list[type[Component]]:
    """The classes of all parts of a model."""
    if isinstance(value, tuple | list):
        return [kind for part in value for kind in _classes_in(part)]
    if not isinstance(value, Component):
        return []
    return [type(value), *_classes_in(list(vars(value).values()))]


@float64
def load(path: PathLike, classes: Sequence[type[Component]] = ()) -> Posterior:
    """The posterior that `posterior.save(path)` wrote.

    It predicts and prints as it did, and `steingp.fit(SteinGP.of(posterior),
    resume=posterior.checkpoint)` goes on where the fit ended.

    Args:
        path: of the file.
        classes: kernels, means and likelihoods of your own that the model is made of;
            a file holds their names, not their code.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a steingp file, or one that is damaged, cut short, of a newer
            format, or that needs `classes`; the message says which.

    Example:
        >>> import tempfile, numpy as np, steingp as sg
        >>> X = np.linspace(-3, 3, 30)[:, None]
        >>> model = sg.SteinGP((X, np.cos(X)), sg.kernels.Matern32())
        >>> posterior = sg.fit(model, effective_size=50, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior.save(f"{folder}/cosine.steingp")
        ...     same = sg.load(f"{folder}/cosine.steingp")
        >>> bool(np.all(same.predict_y(X).mean == posterior.predict_y(X).mean))
        True
    """
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, Component)):
            raise ValueError(
                "classes must be kernels, means or likelihoods, the classes themselves; "
                f"got {kind!r}."
            )
    arrays, document = _read_file(path)
    if "posterior" not in document:
        raise ValueError(
            f"{path} holds arrays, not a posterior: read it with steingp.io.read_arrays."
        )
    try:
        return _posterior_of(document["posterior"], arrays, classes)
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be loaded: it is not what steingp writes ({error!r}). Save "
            "the posterior again."
        ) from error


def _posterior_of(
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    classes: Sequence[type[Component]],
) -> Posterior:
    target = read_target(content["target"], arrays, classes)
    names = ("data", "scaling", "evidence", "has_evidence", *_ATTRIBUTES)
    values = {name: read(content[name], arrays) for name in names}
    evidence, has_evidence = values.pop("evidence"), values.pop("has_evidence")
    posterior = Posterior(target, **values)
    posterior.weights = values["weights"]  # as they are, not normalised once more
    posterior._evidence = evidence
    if has_evidence:
        posterior.evidence_of_modes = lambda: _evidence_of_modes(posterior)
    return posterior


def _evidence_of_modes(posterior: Posterior) -> list[Evidence]:
    """What is known already, or else from the fit as its checkpoint has it."""
    known = [mode.evidence for mode in posterior.modes if mode.evidence is not None]
    if known and len(known) == len(posterior.modes):
        return known
    try:
        again = Fit.of(posterior).posterior().evidence_of_modes
    except ValueError as error:
        raise ValueError(
            f"log_evidence() cannot be computed after loading: {error} Or call "
            "log_evidence() before saving; the file keeps what it gave."
        ) from error
    assert again is not None
    return again()


# --- arrays -----------------------------------------------------------------------------


def write_arrays(
    path: PathLike, arrays: Mapping[str, Any], about: Mapping[str, Any]
) -> None:
    """Write named arrays to a file, and a dictionary of plain values about them.

    Args:
        path: in a folder that exists; a file of that name is replaced.
        arrays: name -> array of numbers, truth values or texts, of any shape.
        about: numbers, texts, lists, tuples and dictionaries, without arrays.

    Raises:
        ValueError: no such folder, or something that cannot be written.

    Example:
        >>> import tempfile, numpy as np
        >>> from steingp import io
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     io.write_arrays(f"{folder}/run", {"stage": "SVGD"}, {"step": 3})
        ...     io.read_arrays(f"{folder}/run")
        ({'stage': array('SVGD', dtype='<U4')}, {'step': 3})
    """
    if not isinstance(about, Mapping):
        raise ValueError(f"about must be a dictionary; got {type(about).__name__}.")
    inside: dict[str, np.ndarray] = {}
    document = {"about": write(about, "about", inside)}
    if inside:
        raise ValueError(f"{next(iter(inside))} is an array: put it among `arrays`.")
    _write_file(path, arrays, document)


def read_arrays(path: PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `write_arrays` wrote: the arrays, and what was said about them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not such a file, or one that is damaged, cut short or of a newer
            format.
    """
    arrays, document = _read_file(path)
    if "about" not in document:
        raise ValueError(f"{path} holds a posterior: read it with steingp.load.")
    return arrays, read(document["about"], {})


# --- the file ---------------------------------------------------------------------------


def _write_file(
    path: PathLike, arrays: Mapping[str, Any], document: dict[str, Any]
) -> None:
    place = _as_path(path)
    if not place.parent.is_dir():
        raise ValueError(
            f"there is no folder {place.parent}: make it, then save again."
        )
    if place.is_dir():
        raise ValueError(f"{place} is a folder: give the name of a file in it.")
    stored = {name: np.asarray(array) for name, array in arrays.items()}
    text = json.dumps(
        {
            "format": FORMAT,
            "version": _version(),
            "arrays": {name: array.dtype.str for name, array in stored.items()},
            **document,
        },
        allow_nan=False,
    )
    tensors = {name: _as_tensor(name, array) for name, array in stored.items()}
    blank = bytes_of(tensors, {_DOCUMENT: text, _CHECKSUM: _BLANK.decode()})
    at = blank.index(_MARK) + len(_MARK)
    replace_file(place, [blank[:at], _checksum(blank, at), blank[at + len(_BLANK) :]])


def _read_file(path: PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    place = _as_path(path)
    if place.is_dir():
        raise ValueError(f"{place} is a folder: give the name of a file in it.")
    if not place.exists():
        raise FileNotFoundError(f"there is no file {place}.")
    content = place.read_bytes()
    text = _document_in(content, place)
    document = json.loads(text)
    if document["format"] > FORMAT:
        raise ValueError(
            f"{place} was written by steingp {document['version']}, format "
            f"{document['format']}; this is steingp {_version()}, which reads formats up "
            f"to {FORMAT}: upgrade steingp."
        )
    try:
        tensors = tensors_of(content)
        arrays = {
            name: _from_tensor(tensors[name], np.dtype(kind))
            for name, kind in document["arrays"].items()
        }
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(place) from error
    return arrays, document


def _document_in(content: bytes, place: Path) -> str:
    """The JSON document of a file whose every byte is as it was written."""
    size = int.from_bytes(content[:8], "little")
    head = content[8 : 8 + size]
    try:
        about = json.loads(head)["__metadata__"]
        text = about[_DOCUMENT]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{place} is not a steingp file, or only the beginning of one: give a file "
            "that posterior.save(path) wrote, or save it again."
        ) from error
    at = content.find(_MARK, 0, 8 + size) + len(_MARK)
    if content[at : at + len(_BLANK)] != _checksum(content, at):
        raise _damaged(place)
    return text


def _damaged(place: Path) -> ValueError:
    return ValueError(
        f"{place} is damaged or cut short: it is not what was written. Take another copy "
        "of it, or save it again."
    )


def _checksum(content: bytes, at: int) -> bytes:
    """Of all bytes but the checksum's own, which stands at `at`."""
    view = memoryview(content)
    digest = hashlib.sha256(view[:at])
    digest.update(_BLANK)
    digest.update(view[at + len(_BLANK) :])
    return digest.hexdigest().encode()


def replace_file(place: Path, parts: list[bytes]) -> None:
    """Make a file of these parts appear at once, or not at all."""
    place = Path(os.path.realpath(place))  # a link stays a link
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        raise
    if os.name == "posix":  # the new name is on the disk, too
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _as_tensor(name: Any, array: np.ndarray) -> np.ndarray:
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"{name!r} cannot be the name of an array in a file.")
    array = np.asarray(array, order="C")
    if array.dtype in _PLAIN:
        return array
    if array.dtype.kind not in "USbiufc":
        raise ValueError(
            f"{name} is an array of {array.dtype}, which cannot be written to a file: use "
            "numbers or texts."
        )
    size = array.dtype.itemsize
    return np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, size)


def _from_tensor(tensor: np.ndarray, kind: np.dtype) -> np.ndarray:
    if kind not in _PLAIN:
        tensor = np.ndarray(tensor.shape[:-1], kind, tensor.tobytes())
    if tensor.dtype != kind:
        raise ValueError(f"expected {kind}, got {tensor.dtype}")
    return tensor.copy()  # what was read is not the caller's to change


def _as_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ValueError(f"path must be the name of a file; got {path!r}.")
    return Path(path)


def _version() -> str:
    from steingp import __version__

    return __version__

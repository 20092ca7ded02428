"""Getting the UCI regression sets from their public copy.

The copy is the repository treforevans/uci_datasets. What is checked are the numbers of a
table, not the bytes of its file, since compression may differ.
"""

import gzip
import hashlib
import io
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from steingp.progress import progress_bar

COPY = "https://github.com/treforevans/uci_datasets/raw/master/uci_datasets"
OTHER_NAMES = {"boston": "housing"}
"""Under which the copy has a set."""

CHECKSUMS = {
    "airfoil": "9d8a0d6fe2096c7cbe67fc4d64da556328935398d3225603011d3dc2fecd099a",
    "autompg": "943df8ad68b62b200b99d196918a39eaa2beb40f7946d44b4c26079e844be368",
    "boston": "3c83cc1c2675b1d8cb8ea5e67673cd92ab772af9c0d5110ab097764d961af35b",
    "challenger": "2121f3c08eebe480c4e14545c8503ab3c201aaafc50ad0ae6cb187aa72c85520",
    "concrete": "4fd659dca0529a1a62bbd169df260d4ab1e7594bb7df10d978eb30372da7f371",
    "concreteslump": "3600fc51fd34ee88ec56c75a8f25318e3d6251274545ca9820d63c87de304239",
    "gas": "416c19656ad586bee4b4c93d5544c13b8a4fb73788713894e312d631e9b9b49b",
    "machine": "36b2947c76a8eb25c0784ef0e774be204936a1eb2597814e696aa5606d587b36",
    "parkinsons": "371d7a1ab0ee3dda2dcdd0b180063e99e0f162bfd4f7e469cc383861968b25bb",
    "servo": "729f0593c6cbbca02aebdd32c314295adb6b59700b71308fe22af7246dabf5a3",
    "skillcraft": "b77fef868d635340c3b791dad7332dbf67d05409c43d0f012b0b58abcd255dd0",
    "wine": "d4ee74010d506a216e04f592623d641c085c9a83cb84e2da5e1c8824dbe2e03b",
}
"""Sets that can be fetched, and what `checksum` must say of their numbers."""

_BLOCK = 1 << 16


def checksum(table: np.ndarray) -> str:
    """Of the numbers of a table, row by row, as 64-bit floats."""
    numbers = np.ascontiguousarray(table, dtype="<f8")
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def fetch(name: str, folder: Path, copy: str = COPY, progress: bool = True) -> Path:
    """Download one regression set to `folder/uci/<name>.csv.gz`, unless it is there.

    Args:
        name: one of `CHECKSUMS`.
        folder: that STEINGP_DATA names, or will.
        copy: where the folders of the sets are.
        progress: show a bar (on a terminal only).

    Raises:
        ValueError: a set that the copy has not, or numbers that are not those we know.
        OSError: it cannot be reached.
    """
    path = folder / "uci" / f"{name}.csv.gz"
    if path.exists():
        return path
    if name not in CHECKSUMS:
        raise ValueError(
            f"{name!r} cannot be fetched; these can: {', '.join(sorted(CHECKSUMS))}."
        )
    url = f"{copy}/{OTHER_NAMES.get(name, name)}/data.csv.gz"
    try:
        content = _download(url, name, progress)
    except urllib.error.URLError as error:
        raise OSError(
            f"{url} cannot be reached ({error.reason}). Download it by hand to {path}."
        ) from error
    try:
        text = gzip.decompress(content).decode()
        table = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{url} is not a gzipped table of numbers: {error}."
        ) from error
    if checksum(table) != CHECKSUMS[name]:
        raise ValueError(
            f"{url} has {table.shape[0]} rows whose numbers are not those of the set that "
            "the results were made with; nothing was written."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".part")
    new.write_bytes(content)
    new.replace(path)
    return path


def _download(url: str, name: str, progress: bool) -> bytes:
    parts: list[bytes] = []
    with urllib.request.urlopen(url, timeout=60) as reply:
        size = int(reply.headers.get("Content-Length") or 0)
        with progress_bar(size, progress, f"fetching {name}", "bytes") as show:
            while part := reply.read(_BLOCK):
                parts.append(part)
                show(sum(map(len, parts)), "bytes")
    return b"".join(parts)

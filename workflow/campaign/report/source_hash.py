"""Hash of the code that makes results: the package, and the figures, templates and styles of a stage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def compute_source_hash(*further: Path) -> str:
    """Return the hash of the package's code and of further files and directories.

    Raises OSError if one of them is missing.
    """
    digest = hashlib.sha256(_hash_package())
    for path in further:
        _add_files(digest, path.parent, _list_files(path))
    return digest.hexdigest()[:12]


@cache
def _hash_package() -> bytes:
    digest = hashlib.sha256()
    # In an installed wheel, _shipped/ has copies of the files in `further`.
    _add_files(
        digest, _PACKAGE, (file for file in _list_files(_PACKAGE) if file.relative_to(_PACKAGE).parts[0] != "_shipped")
    )
    return digest.digest()


def _add_files(digest: hashlib._Hash, root: Path, files: Iterable[Path]) -> None:
    for file in files:
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")


def _list_files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")

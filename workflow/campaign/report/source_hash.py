"""What results are made by: a hash of the code, templates and styles right of the records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
ANALYSIS = ("documents", "statistics", "tables", "insight", "report", "wording.py")
"""Rooms and modules of the package that turn records into tables, figures and pages."""


def source_hash(*further: Path) -> str:
    """Hash of the content of the package's analysis code and of `further` files and directories; OSError if one is missing."""
    digest = hashlib.sha256()
    for path in (*(_PACKAGE / name for name in ANALYSIS), *further):
        for file in _files(path):
            digest.update(f"{file.relative_to(path.parent)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")

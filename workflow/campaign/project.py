"""Where the project's own files are: in a checkout beside the package, in an installed wheel inside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent

ROOT = _CHECKOUT if (_CHECKOUT / "Snakefile").is_file() else _PACKAGE / "_shipped"
CONFIG = ROOT / "config"
REPORTS = ROOT / "reports"
SCRIPTS = ROOT / "scripts"
PUBLISHED = ROOT / "data" / "published"

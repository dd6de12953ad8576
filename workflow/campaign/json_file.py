"""Small JSON documents that other processes write, move and remove meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_document(path: Path) -> dict[str, Any]:
    """The document in a file; empty where there is no file, or none that is a document."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}

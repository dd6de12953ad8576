"""What a real Slurm printed."""

from __future__ import annotations

from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parents[2] / "data" / "slurm"


def saved(name: str) -> str:
    return (_DIRECTORY / f"{name}.txt").read_text()

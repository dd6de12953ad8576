"""A budget, and how many compositions of everything it pays for. Pure.

What a budget paid for when a run began is kept as plan/budget.json (`BudgetChoice`), so that the same command resumes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from campaign.documents.cell import Cell
from campaign.documents.plan import BudgetChoice
from campaign.errors import ConfigError
from campaign.files import content_hash, load_json

_WORDS = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(device-hours?|device-h|hours?|h)\s*")

Unit = Literal["device-hours", "h"]


@dataclass(frozen=True)
class Budget:
    """So many device-hours, or hours from start to end."""

    amount: float
    unit: Unit

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit}"


def parse_budget(text: str) -> Budget:
    """'500 device-hours', '8 h'; ConfigError for anything else."""
    match = _WORDS.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"--budget: '{text}' is no budget; write a positive number and its unit: '500 device-hours', or '8 h' from start to end"
        )
    return Budget(float(match[1]), "device-hours" if match[2].startswith("device") else "h")


def kept_choice(path: Path) -> BudgetChoice | None:
    """What a budget paid for when a run was begun with it; None without such a file, or for one that is damaged."""
    try:
        return BudgetChoice.model_validate(load_json(path))
    except (OSError, ValueError):
        return None


def matrix_digest(cells: Sequence[Cell]) -> str:
    """Changes when a choice would be of another matrix."""
    return content_hash(sorted((cell.id, cell.settings.repetitions, cell.settings.compositions) for cell in cells))

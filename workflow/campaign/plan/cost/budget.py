"""A budget, and how many compositions of everything it pays for. Pure.

What a budget paid for when a run began is kept as plan/budget.json (`budget/2`), so that the same command resumes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from campaign.documents.cell import Cell
from campaign.documents.rounds import CellIn
from campaign.documents.run_numbers import compositions_of
from campaign.errors import ConfigError
from campaign.files import content_hash, load_json

SCHEMA = "budget/2"
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


@dataclass(frozen=True)
class BudgetChoice:
    """What a budget pays for: the first `compositions` of every configuration. cost, next_cost: in the budget's unit."""

    budget: str
    matrix: str
    compositions: int
    runs: int
    cost: float
    runs_left_out: int
    next_cost: float | None
    """What the first composition that is left out would cost; None where nothing is left out."""

    @property
    def left_out(self) -> str:
        """Why a run that it leaves out has no record."""
        return f"left out by the budget of {self.budget}"

    def document(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA, **asdict(self)}

    def is_of(self, budget: Budget, cells: Sequence[Cell]) -> bool:
        """Whether it is what this budget pays for of these cells."""
        return self.budget == str(budget) and self.matrix == matrix_digest(cells)

    def chosen(self, cells: Sequence[Cell]) -> frozenset[CellIn]:
        """The cells with the compositions that are to be measured."""
        return frozenset(
            (cell.id, number)
            for cell in cells
            for number in compositions_of(cell.settings)
            if number <= self.compositions
        )


def from_document(document: Any) -> BudgetChoice | None:
    """A choice as it was written down; None for anything else, also for one of an earlier version."""
    try:
        if document["schema_version"] != SCHEMA:
            return None
        return BudgetChoice(**{name: value for name, value in document.items() if name != "schema_version"})
    except (KeyError, TypeError):
        return None


def kept_choice(path: Path) -> BudgetChoice | None:
    """What a budget paid for when a run was begun with it; None without such a file, or for one that is damaged."""
    try:
        return from_document(load_json(path))
    except (OSError, ValueError):
        return None


def matrix_digest(cells: Sequence[Cell]) -> str:
    """Changes when a choice would be of another matrix."""
    return content_hash(sorted((cell.id, cell.settings.repetitions, cell.settings.compositions) for cell in cells))

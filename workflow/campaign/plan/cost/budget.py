"""What to measure for a budget: which runs tell most for the device-hours, or for the hours, that there are. Pure.

The rule, in full. First every level of every axis that no record has is covered: of all runs, the one with the most new levels for
its cost comes next. Then the run that adds most information for its cost, one by one (greedy D-optimal design, Fedorov 1972): the
information is that on the main effects of all axes on the logarithm of throughput,

    ln det(sum over cells of z z' / (cell^2 + run^2 / repetitions) + prior),

with what cells depart from main effects (10 %) and what repetitions differ by (3 %, both in `campaign.plan.cost.ranking`), so
that another
cell tells more than another repetition. The runs of a cell take turns over its compositions, and a lease that is not open yet costs
its composition, too. Equal ones come cheapest first,
then by the cells' ids. (Runs within a tenth of the best one count as equal to it.)
The order does not depend on the budget, and as many of its first runs are taken as the forecast says that the budget pays for:
whoever has more measures the same and more. What was chosen when a run began is kept as plan/budget.json (`budget/1`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from campaign.documents.cell import Cell
from campaign.documents.run_numbers import runs_of
from campaign.errors import ConfigError
from campaign.files import content_hash
from campaign.plan.cost.ranking import Design, Learned, Offer, Ranking

SCHEMA = "budget/1"
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
class Choice:
    """What a budget pays for. limits: repetitions, over its compositions in turn, of every cell that is to have any, by its id;
    cost: in the budget's unit."""

    budget: str
    matrix: str
    limits: Mapping[str, int]
    runs: int
    cost: float
    runs_left_out: int
    cells_left_out: int
    next_cost: float | None
    """What the first run that is left out would cost, composing included; None where nothing is left out."""
    bits: float
    bits_before: float
    bits_of_all: float
    """Information on main effects with the chosen runs, without them, and with the whole matrix."""
    axes: tuple[Learned, ...]

    @property
    def left_out(self) -> str:
        """Why a run that was not chosen has no record."""
        return f"left out by the budget of {self.budget}"

    @property
    def share_pct(self) -> float:
        """Of the information that the whole matrix would give, in percent."""
        return 100 * self.bits / self.bits_of_all if self.bits_of_all > 0 else 100.0

    @property
    def share_before_pct(self) -> float:
        """The same without the chosen runs."""
        return 100 * self.bits_before / self.bits_of_all if self.bits_of_all > 0 else 100.0

    def document(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA, **asdict(self)}

    def is_of(self, budget: Budget, cells: Sequence[Cell]) -> bool:
        """Whether it is what this budget chose of these cells."""
        return self.budget == str(budget) and self.matrix == matrix_digest(cells)

    def chosen(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        """The cells that are to be measured, each with as many repetitions as were chosen."""
        return limited(cells, self.limits)


def limited(cells: Sequence[Cell], limits: Mapping[str, int]) -> tuple[Cell, ...]:
    """Of some cells those that have a limit, repeated no more often."""
    kept = []
    for cell in cells:
        if most := limits.get(cell.id, 0):
            settings = cell.settings
            least, most = min(settings.repetitions_min, most), min(settings.repetitions, most)
            kept.append(replace(cell, settings=replace(settings, repetitions=most, repetitions_min=least)))
    return tuple(kept)


def from_document(document: Any) -> Choice | None:
    """A choice as it was written down; None for anything else."""
    try:
        if document["schema_version"] != SCHEMA:
            return None
        given = {name: value for name, value in document.items() if name != "schema_version"}
        limits = {str(name): int(count) for name, count in given["limits"].items()}
        return Choice(**{**given, "limits": limits, "axes": tuple(Learned(**axis) for axis in given["axes"])})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def kept_choice(path: Path) -> Choice | None:
    """What a budget chose when a run was begun with it; None without such a file, or for one that is damaged."""
    try:
        return from_document(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def matrix_digest(cells: Sequence[Cell]) -> str:
    """Changes when a choice would be of another matrix."""
    return content_hash(sorted((cell.id, cell.settings.repetitions, cell.settings.compositions) for cell in cells))


def choose(budget: Budget, offer: Offer) -> Choice:
    """The runs that the budget pays for. ConfigError when it pays for none though some are missing."""
    ranked = Ranking(offer).until(budget.amount)
    taken = 0
    # The same steps for every budget up to where it makes a difference: so more never pays for fewer runs, though leases that are
    # packed onto hosts can take longer for having less to do.
    for step in (2**n for n in reversed(range(len(ranked).bit_length()))):
        if taken + step <= len(ranked) and _cost(offer, ranked[: taken + step]) <= budget.amount:
            taken += step
    if ranked and not taken:
        raise ConfigError(
            f"--budget {budget}: pays for no run; the first one to measure needs {_cost(offer, ranked[:1]):.3g} {budget.unit}, "
            "composing included"
        )
    return _choice(budget, offer, ranked, taken)


def _cost(offer: Offer, runs: Sequence[tuple[int, int]]) -> float:
    """Of (lease, place in its work), each time one run more."""
    seconds = [0.0] * len(offer.works)
    opened = set()
    for lease, place in runs:
        seconds[lease] += offer.prices.run_s[lease][place] + (0.0 if lease in opened else offer.prices.once_s[lease])
        opened.add(lease)
    return offer.value(seconds)


def _choice(budget: Budget, offer: Offer, ranked: Sequence[tuple[int, int]], taken: int) -> Choice:
    chosen: dict[str, int] = {}
    for lease, place in ranked[:taken]:
        cell = offer.works[lease].runs[place][0]
        chosen[cell.id] = chosen.get(cell.id, 0) + 1
    limits = {}
    for cell in offer.cells:
        gone = offer.missing.get(cell.id, ())
        count = chosen.get(cell.id, 0)
        places = {run: number for number, run in enumerate(runs_of(cell.settings), 1)}
        most = places[gone[count - 1]] if count else 0
        # Records that are there already stay in the plan, up to the first one that is missing and not chosen.
        have = places[gone[count]] - 1 if count < len(gone) else max(most, offer.recorded.get(cell.id, 0))
        if limit := max(most, have):
            limits[cell.id] = limit
    design = Design(offer)
    before = {cell.id: offer.recorded.get(cell.id, 0) for cell in offer.cells}
    after = {name: count + chosen.get(name, 0) for name, count in before.items()}
    everything = {name: count + len(offer.missing.get(name, ())) for name, count in before.items()}
    runs_left = sum(len(gone) for gone in offer.missing.values()) - taken
    rest = ranked[: taken + 1]
    cost = _cost(offer, ranked[:taken]) if taken else 0.0
    return Choice(
        budget=str(budget),
        matrix=matrix_digest(offer.cells),
        limits=limits,
        runs=taken,
        cost=cost,
        runs_left_out=runs_left,
        cells_left_out=sum(not count for count in after.values()),
        next_cost=_cost(offer, rest) - cost if len(rest) > taken else None,
        bits=design.bits(after),
        bits_before=design.bits(before),
        bits_of_all=design.bits(everything),
        axes=design.learned(after),
    )

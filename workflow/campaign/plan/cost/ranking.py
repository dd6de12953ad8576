"""In which order the runs of a matrix are worth what they cost; the rule is that of `campaign.plan.cost.budget`. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from campaign.documents.cell import SHAPE_AXES, Cell
from campaign.documents.run_numbers import composition_of
from campaign.plan.cost.estimates import Prices, Work

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

EFFECT_SD = 1.0
"""Of a level of an axis, in ln(throughput), before anything is measured."""
CELL_SD = 0.1
"""By how much cells depart from the main effects."""
LEASE_SD = 0.02
"""By how much compositions of a configuration differ."""
RUN_SD = 0.03
"""By how much repetitions of a cell differ on one composition."""

# Of the best gain for its cost: what is as good as that is taken in one go (decreasing thresholds; Badanidiyuru & Vondrak 2014).
_GOOD_ENOUGH = 0.9
_PATIENCE = 50  # so many that have lost their worth in a row, and all are reckoned anew


@dataclass(frozen=True)
class Learned:
    """What is known of one axis with the chosen runs. error_pct: the standard error of the least known difference of two covered
    levels, by the design alone; None for fewer than two."""

    axis: str
    levels: int
    covered: int
    error_pct: float | None


@dataclass(frozen=True)
class Offer:
    """What there is to choose from: all cells of the matrix, which repetitions each has, and what leases and runs cost.

    recorded: repetitions with a record by cell id. works: leases in the order of the plan, with the runs that each is to do.
    missing: the runs that those are, by cell id, in planned order: they take turns over the leases of the cell. value: what some
    seconds of each lease are in the budget's unit; weights: what a second of each lease adds to it at least, for the order and to
    know when to stop.
    """

    cells: Sequence[Cell]
    axes: Sequence[str]
    recorded: Mapping[str, int]
    missing: Mapping[str, Sequence[int]]
    works: Sequence[Work]
    prices: Prices
    value: Callable[[Sequence[float]], float]
    weights: Sequence[float]


class Design:
    """Main effects of the axes of a matrix: one column a level of an axis that has several.

    An axis that divides the cells as an earlier one does tells nothing of its own. What a configuration has beyond its shape is no
    more than what any cell has beyond its axes.
    """

    def __init__(self, offer: Offer) -> None:
        import numpy as np

        self.cells = offer.cells
        axes = [cell.axes() for cell in offer.cells]
        levels: dict[str, dict[Any, int]] = {}
        divided: set[tuple[int, ...]] = set()
        size = 0
        for name in offer.axes:
            values = {value: place for place, value in enumerate(dict.fromkeys(each[name] for each in axes))}
            parts = tuple(values[each[name]] for each in axes)
            if len(values) > 1 and (parts not in divided or name == "configuration"):
                divided.add(parts)
                levels[name] = {value: size + place for value, place in values.items()}
                size += len(values)
        self.levels = levels
        self.size = size
        self.of_cell: Ints = np.array(
            [[places[each[name]] for name, places in levels.items()] for each in axes], dtype=np.int64
        ).reshape(len(axes), len(levels))
        self.prior: Floats = np.full(size, EFFECT_SD**-2)
        self.prior[list(levels.get("configuration", {}).values())] = CELL_SD**-2

    def information(self, repetitions: Mapping[str, int]) -> Floats:
        """Of so many repetitions of each cell; with none, that of the prior."""
        import numpy as np

        count = np.array([repetitions.get(cell.id, 0) for cell in self.cells], dtype=float)
        weight = _known(count, np.array([cell.settings.compositions for cell in self.cells], dtype=float))
        matrix = np.diag(self.prior)
        for one in self.of_cell.T:
            for other in self.of_cell.T:
                np.add.at(matrix, (one, other), weight)
        return matrix

    def bits(self, repetitions: Mapping[str, int]) -> float:
        """What so many repetitions of each cell tell beyond the prior."""
        import numpy as np

        if not self.size:
            return 0.0
        return float((np.linalg.slogdet(self.information(repetitions))[1] - np.log(self.prior).sum()) / (2 * np.log(2)))

    def learned(self, repetitions: Mapping[str, int]) -> tuple[Learned, ...]:
        """What so many repetitions of each cell tell of each axis."""
        import numpy as np

        cov = np.linalg.inv(self.information(repetitions)) if self.size else np.zeros((0, 0))
        ran = [number for number, cell in enumerate(self.cells) if repetitions.get(cell.id, 0)]
        found = []
        for position, (axis, places) in enumerate(self.levels.items()):
            # A configuration differs from another one by its shape, too.
            columns = [
                n
                for n, name in enumerate(self.levels)
                if n == position or (axis == "configuration" and name in SHAPE_AXES)
            ]
            effects: dict[int, Floats] = {}
            for number in ran:
                effect = np.zeros(self.size)
                effect[self.of_cell[number, columns]] = 1.0
                effects.setdefault(int(self.of_cell[number, position]), effect)
            error = None
            if len(effects) > 1:
                part = np.array(list(effects.values())) @ cov @ np.array(list(effects.values())).T
                spread = np.diag(part)[:, None] + np.diag(part)[None, :] - 2 * part
                error = 100 * float(np.sqrt(max(0.0, spread.max())))
            found.append(Learned(axis, len(places), len(effects), error))
        return tuple(found)


class Ranking:
    """The order in which runs are worth their cost: (lease, place of the cell in its work), one run each time."""

    def __init__(self, offer: Offer) -> None:
        import numpy as np

        self.offer = offer
        self.design = Design(offer)
        number_of = {cell.id: number for number, cell in enumerate(offer.cells)}
        self.places = [(lease, place) for lease, work in enumerate(offer.works) for place in range(len(work.runs))]
        works = [offer.works[lease].runs[place] for lease, place in self.places]
        ids = [cell.id for cell, _ in works]
        rows = np.array([number_of[name] for name in ids], dtype=np.int64)
        self.levels: Ints = self.design.of_cell[rows]
        # Of a cell, only the next run in planned order can be taken; it has its place in the lease of its composition.
        place_of = {(cell.id, cell.settings.composition or 1): number for number, (cell, _) in enumerate(works)}
        self.queues = {
            name: deque(place_of[name, composition_of(run)] for run in runs) for name, runs in offer.missing.items()
        }
        self.ids = ids
        self.left: Ints = np.zeros(len(ids), dtype=np.int64)
        self.left[[queue[0] for queue in self.queues.values() if queue]] = 1
        self.places_of: dict[str, list[int]] = {}
        for number, name in enumerate(ids):
            self.places_of.setdefault(name, []).append(number)
        self.done: Ints = np.array([offer.recorded.get(name, 0) for name in ids], dtype=np.int64)
        self.composed: Ints = np.array([offer.cells[row].settings.compositions for row in rows], dtype=np.int64)
        self.lease: Ints = np.array([lease for lease, _ in self.places], dtype=np.int64)
        self.name: Ints = np.argsort(np.argsort(np.array(ids))) if ids else np.zeros(0, np.int64)
        weight = np.array(offer.weights, dtype=float)[self.lease]
        each = np.array([offer.prices.run_s[lease][place] for lease, place in self.places], dtype=float)
        self.run_price: Floats = np.maximum(1e-12, weight * each)
        self.price: Floats = self.run_price + weight * np.array(offer.prices.once_s, dtype=float)[self.lease]
        self.cov: Floats = np.zeros((0, 0))
        if self.design.size:
            self.cov = np.asarray(np.linalg.inv(self.design.information(offer.recorded)), dtype=float)

    def until(self, amount: float) -> list[tuple[int, int]]:
        """All runs in order, or as many as surely cost more than an amount."""
        order, spent = [], 0.0
        for number in self._in_order():
            order.append(self.places[number])
            spent += float(self.price[number])
            self._take(number)
            if spent > amount * (1 + 1e-9):  # sums in another order differ in their last digits
                break
        return order

    def _in_order(self) -> Iterator[int]:
        """What is taken between two of these is known to the next one."""
        import numpy as np

        yield from self._covering()
        while (self.left > 0).any():
            worth = np.where(self.left > 0, self._gains() / self.price, -1.0)
            least = _GOOD_ENOUGH * worth.max()
            refused = 0
            for number in self._best_first(worth, np.flatnonzero((worth >= least) & (self.left > 0))):
                if self._gain(number) / self.price[number] >= least:
                    refused = 0
                    yield number
                elif (refused := refused + 1) > _PATIENCE:
                    break

    def _covering(self) -> Iterator[int]:
        """Until every level that can be measured was measured."""
        import numpy as np

        uncovered = np.zeros(self.design.size, dtype=bool)
        uncovered[self.levels[self.left > 0].ravel()] = True
        ran = [n for n, cell in enumerate(self.offer.cells) if self.offer.recorded.get(cell.id, 0)]
        uncovered[self.design.of_cell[ran].ravel()] = False
        while uncovered.any():
            new = np.where(self.left > 0, uncovered[self.levels].sum(axis=1), 0) / self.price
            best = self._best_first(new, np.flatnonzero(new >= new.max()))[0]
            uncovered[self.levels[best]] = False
            yield best

    def _best_first(self, worth: Floats, some: Ints) -> list[int]:
        import numpy as np

        order: list[int] = some[np.lexsort((self.name[some], self.price[some], -worth[some]))].tolist()
        return order

    def _gains(self) -> Floats:
        """Of one more run of each cell; for all at once."""
        import numpy as np

        variance = np.zeros(len(self.left))
        for number, one in enumerate(self.levels.T):
            variance += self.cov[one, one]
            for other in self.levels.T[number + 1 :]:
                variance += 2 * self.cov[one, other]
        gains: Floats = np.log1p(_added(self.done, self.composed) * variance)
        return gains

    def _gain(self, number: int) -> float:
        levels = self.levels[number]
        return math.log1p(
            _added(self.done[number], self.composed[number]) * float(self.cov[levels[:, None], levels].sum())
        )

    def _take(self, number: int) -> None:
        import numpy as np

        levels = self.levels[number]
        moved = self.cov[:, levels].sum(axis=1)
        weight = float(_added(self.done[number], self.composed[number]))
        self.cov -= np.outer(moved, moved * (weight / (1 + weight * moved[levels].sum())))
        queue = self.queues[self.ids[number]]
        queue.popleft()
        self.left[number] = 0
        if queue:
            self.left[queue[0]] = 1
        self.done[self.places_of[self.ids[number]]] += 1
        here = self.lease == self.lease[number]
        self.price[here] = self.run_price[here]


def _known(runs: Any, compositions: Any) -> Any:
    """What so many runs of a cell tell of it, one over their variance. They take turns over its compositions, so that the first run
    on another composition tells more than one more on the same."""
    import numpy as np

    some = np.maximum(runs, 1)
    variance = CELL_SD**2 + LEASE_SD**2 / np.minimum(some, compositions) + RUN_SD**2 / some
    return np.where(runs > 0, 1 / variance, 0.0)


def _added(done: Any, compositions: Any) -> Any:
    """What one more run adds to what a cell counts that had so many."""
    return _known(done + 1, compositions) - _known(done, compositions)

"""Adaptive repetitions while they are measured: what the runs of a cell have reached, and whether a target ends it.

`campaign.plan.repetitions` has the rule, and the files that keep what was reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any

from campaign.plan.missing_runs import is_measured
from campaign.plan.oom_frontier import Frontier, implied_record
from campaign.plan.repetitions import CellComposition, Reached, Stops, is_over, why
from campaign.spec.cell import Cell
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.record import Record, Store
from campaign.spec.run_numbers import in_composition, number_in_composition, runs_of


def reached(rates: Sequence[float | None], composition: int = 1) -> Reached:
    """What runs of one composition have reached. rates: throughput of run 1, 2, ..; None for a run that is not believed."""
    believed = [rate for rate in rates if rate is not None]
    failures = len(rates) - len(believed)
    mean = sum(believed) / len(believed) if believed else 0.0
    if len(believed) < 2 or mean <= 0:
        return Reached(len(rates), failures, None, composition)
    from campaign.common.intervals import student_interval  # loads SciPy, which most runs do without

    deviation = stdev(believed)
    _, high = student_interval(mean, deviation, len(believed))
    return Reached(len(rates), failures, math.ceil(1e6 * (float(high) - mean) / mean), composition)


class Repetitions:
    """The rule at work on one results directory. Every decision follows from the records that there are, so a killed driver's
    successor decides the same. Its cells are those of a lease: their settings are about one composition.

    metric: whose interval ends a cell; implied: whether what was not run for being implied counts as a run that failed.
    """

    def __init__(self, store: Store, *, implied: bool = True, metric: Metric = THROUGHPUT) -> None:
        self.store = store
        self.metric = metric
        self.implied = implied
        self.stops = Stops(store.results)
        self._stops: Mapping[CellComposition, Reached] = self.stops.index()
        self._rates: dict[CellComposition, dict[int, float | None]] = {}

    def begin(self, cell: Cell) -> None:
        """A run of the cell is about to change what it has reached."""
        if _get_composition(cell) in self._stops:
            self.stops.withdraw(*_get_composition(cell))

    def why_last(self, cell: Cell, record: Record) -> str:
        """For `Record.stopped`, before the record is written."""
        if cell.settings.target_half_width_pct is None:
            return ""
        return why(self._reached(cell, record), cell.settings)

    def is_over(self, cell: Cell, last: Record | None = None) -> bool:
        """Whether the cell needs no further run here, by its records (and a last one); then that is written down."""
        if cell.settings.target_half_width_pct is None:
            return False
        found = self._reached(cell, last)
        if over := is_over(found, cell.settings):
            self.stops.write(cell, found)
        return over

    def _value(self, record: Record) -> float | None:
        """The number of a run that is believed; its throughput where only tables work the metric out."""
        found = self.metric.of(record.throughput_per_s, record.metrics)
        return (record.throughput_per_s if found is None else found) if record.status == "ok" else None

    def _reached(self, cell: Cell, last: Record | None) -> Reached:
        """What the runs without a gap from the first one have reached; nothing while one of them is to be measured again."""
        key = _get_composition(cell)
        known = self._rates.get(key)
        if known is None:
            records = [
                self.store.read(cell.id, n)
                for n in runs_of(in_composition(cell.settings, key[1]))
                if self.store.has(cell.id, n, implied=self.implied)
            ]
            known = self._rates[key] = {number_in_composition(r.repetition): self._value(r) for r in records}
        if last is not None:
            known[number_in_composition(last.repetition)] = self._value(last)
        whole = sorted(known) == list(range(1, len(known) + 1))
        return reached([known[n] for n in sorted(known)] if whole else [], key[1])


def _get_composition(cell: Cell) -> CellComposition:
    return cell.id, cell.settings.composition or 1


def record_implied(
    frontier: Frontier,
    missing: Iterable[tuple[Cell, int]],
    specification: Callable[[Cell], Mapping[str, Any]],
    as_used: str,
    tell: Callable[[Cell, Record, bool], None],
    metric: Metric = THROUGHPUT,
) -> None:
    """Write the records of missing runs that are implied, and end the cells that have reached their target.

    as_used: hash of the campaign; tell: is told of each record, and whether the cell is over with it.
    """
    repetitions = Repetitions(frontier.store, implied=frontier.skip, metric=metric)
    over: dict[str, bool] = {}
    for cell, repetition in missing:
        if cell.id not in over:
            over[cell.id] = repetitions.is_over(cell)
        if over[cell.id] or (evidence := frontier.evidence(cell)) is None:
            continue
        record = implied_record(specification(cell), as_used, cell, repetition, evidence)
        record = record.model_copy(update={"stopped": repetitions.why_last(cell, record)})
        frontier.store.write(record)
        over[cell.id] = repetitions.is_over(cell, record)
        last = over[cell.id] or repetition == runs_of(cell.settings)[-1]
        tell(cell, record, last and is_measured(frontier.store, cell, implied=frontier.skip))

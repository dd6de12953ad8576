"""Adaptive repetitions during measurement: precision that the runs of a cell have reached, and the decision to end the cell.

`campaign.plan.repetitions` has the rule, and the files that keep the precision reached.
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
    """Return the number of runs, failures and the interval half-width that the runs of one composition have reached.

    Args:
        rates: throughput of run 1, 2, ..; None for a run whose number is not valid.
        composition: number of the composition, from 1.
    """
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
    """Rule of adaptive repetitions, applied to one results directory.

    Every decision follows from the existing records, so the successor of a killed driver decides the same. The cells are those
    of one
    lease: their settings apply to one composition.

    Args:
        store: records of the results directory.
        implied: whether runs that were skipped because their result is implied count as failed runs.
        metric: metric whose interval ends a cell.
    """

    def __init__(self, store: Store, *, implied: bool = True, metric: Metric = THROUGHPUT) -> None:
        self.store = store
        self.metric = metric
        self.implied = implied
        self.stops = Stops(store.results)
        self._stops: Mapping[CellComposition, Reached] = self.stops.index()
        self._rates: dict[CellComposition, dict[int, float | None]] = {}

    def begin(self, cell: Cell) -> None:
        """Remove the stored stop decision of a cell, because a new run is about to change what the cell has reached."""
        if _get_composition(cell) in self._stops:
            self.stops.withdraw(*_get_composition(cell))

    def why_last(self, cell: Cell, record: Record) -> str:
        """Return the reason why a run is the last one of its cell, for `Record.stopped`, before its record is written.

        The result is empty if the cell has no target precision or needs further runs.
        """
        if cell.settings.target_half_width_pct is None:
            return ""
        return why(self._reached(cell, record), cell.settings)

    def is_over(self, cell: Cell, last: Record | None = None) -> bool:
        """Return whether the cell needs no further run in this composition, and if so store that decision.

        Args:
            cell: cell of the lease.
            last: record of a run that may not be in the store yet.
        """
        if cell.settings.target_half_width_pct is None:
            return False
        found = self._reached(cell, last)
        if over := is_over(found, cell.settings):
            self.stops.write(cell, found)
        return over

    def _value(self, record: Record) -> float | None:
        """Return the metric of a valid run, or None if the run failed.

        The throughput stands in for a metric that only tables compute.
        """
        found = self.metric.of(record.throughput_per_s, record.metrics)
        return (record.throughput_per_s if found is None else found) if record.status == "ok" else None

    def _reached(self, cell: Cell, last: Record | None) -> Reached:
        """Summarize the uninterrupted sequence of runs of a cell from the first run on.

        The summary is empty while one of these runs is to be measured again.
        """
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
    """Write the records of missing runs whose result is implied, and end the cells that have reached their target.

    Args:
        frontier: cells that ran out of memory, from which results of other cells follow.
        missing: cell and run number of each missing run.
        specification: returns the specification of a cell.
        as_used: hash of the campaign.
        tell: called with each cell, its record, and whether the record completes the cell.
        metric: metric whose interval ends a cell.
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

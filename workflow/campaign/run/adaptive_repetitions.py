"""Adaptive repetitions during measurement: the precision that the runs of a cell have reached, and the end of the cell.

`campaign.plan.repetitions` defines the rule and the files that store the reached precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any

from campaign.plan.missing_runs import is_measured
from campaign.plan.oom_frontier import MemoryFrontier, build_implied_record
from campaign.plan.repetitions import CellComposition, CellProgress, StopFiles, explain_end, has_ended
from campaign.spec.cell import Cell
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.record import Record, RecordStore
from campaign.spec.run_numbers import get_number_in_composition, list_run_numbers, with_composition


def summarize_runs(rates: Sequence[float | None], composition: int = 1) -> CellProgress:
    """Summarize the runs of one composition: number of runs, number of failures, and half-width of the interval.

    Args:
        rates: throughput of run 1, 2, ..; None for a run without a valid value.
        composition: number of the composition, from 1.
    """
    valid_rates = [rate for rate in rates if rate is not None]
    failures = len(rates) - len(valid_rates)
    mean = sum(valid_rates) / len(valid_rates) if valid_rates else 0.0
    if len(valid_rates) < 2 or mean <= 0:
        return CellProgress(len(rates), failures, None, composition)
    from campaign.common.intervals import student_interval  # loads SciPy, which most runs do without

    deviation = stdev(valid_rates)
    _, high = student_interval(mean, deviation, len(valid_rates))
    return CellProgress(len(rates), failures, math.ceil(1e6 * (float(high) - mean) / mean), composition)


class RepetitionTracker:
    """Tracker that applies the rule of adaptive repetitions to one results directory.

    Every decision follows from the existing records, so the successor of a killed driver makes the same decisions. The cells are
    those of one lease, and their settings apply to one composition.

    Args:
        store: records of the results directory.
        implied: True if runs that were skipped because their result is implied count as failed runs.
        metric: metric whose interval ends a cell.
    """

    def __init__(self, store: RecordStore, *, implied: bool = True, metric: Metric = THROUGHPUT) -> None:
        self.store = store
        self.metric = metric
        self.implied = implied
        self.stops = StopFiles(store.results)
        self._stops: Mapping[CellComposition, CellProgress] = self.stops.read_all()
        self._rates: dict[CellComposition, dict[int, float | None]] = {}

    def withdraw_stop(self, cell: Cell) -> None:
        """Remove the stored stop decision of a cell, because a new run is about to change what the cell has reached."""
        if _get_composition(cell) in self._stops:
            self.stops.remove(*_get_composition(cell))

    def format_stop_reason(self, cell: Cell, last_record: Record) -> str:
        """Return the reason why a run is the last one of its cell (`Record.stopped`). Call it before the record is written.

        The result is empty if the cell has no target precision or needs further runs.
        """
        if cell.settings.target_half_width_pct is None:
            return ""
        return explain_end(self._summarize_cell(cell, last_record), cell.settings)

    def is_over(self, cell: Cell, last_record: Record | None = None) -> bool:
        """Return whether the cell needs no further run in this composition, and store the decision if so.

        Args:
            cell: cell of the lease.
            last_record: record of a run that may not be in the store yet.
        """
        if cell.settings.target_half_width_pct is None:
            return False
        progress = self._summarize_cell(cell, last_record)
        if is_complete := has_ended(progress, cell.settings):
            self.stops.write(cell, progress)
        return is_complete

    def _metric_value(self, record: Record) -> float | None:
        """Return the metric's value for a valid run, or None if the run failed.

        The throughput replaces a metric that only tables compute.
        """
        value = self.metric.read_value(record.throughput_per_s, record.metrics)
        return (record.throughput_per_s if value is None else value) if record.status == "ok" else None

    def _summarize_cell(self, cell: Cell, last_record: Record | None) -> CellProgress:
        """Summarize the runs of a cell. The summary is empty while one of the earlier runs has to be measured again."""
        key = _get_composition(cell)
        rates = self._rates.get(key)
        if rates is None:
            records = [
                self.store.read_latest(cell.id, n)
                for n in list_run_numbers(with_composition(cell.settings, key[1]))
                if self.store.has_record(cell.id, n, include_implied=self.implied)
            ]
            rates = self._rates[key] = {get_number_in_composition(r.repetition): self._metric_value(r) for r in records}
        if last_record is not None:
            rates[get_number_in_composition(last_record.repetition)] = self._metric_value(last_record)
        is_contiguous = sorted(rates) == list(range(1, len(rates) + 1))
        return summarize_runs([rates[n] for n in sorted(rates)] if is_contiguous else [], key[1])


def _get_composition(cell: Cell) -> CellComposition:
    return cell.id, cell.settings.composition or 1


def record_implied_runs(
    frontier: MemoryFrontier,
    missing: Iterable[tuple[Cell, int]],
    specification: Callable[[Cell], Mapping[str, Any]],
    campaign_hash: str,
    report: Callable[[Cell, Record, bool], None],
    metric: Metric = THROUGHPUT,
) -> None:
    """Write records for the missing runs whose result is implied, and end the cells that have reached their target.

    Args:
        frontier: cells that ran out of memory, from which results of other cells follow.
        missing: cell and run number of each missing run.
        specification: returns the specification of a cell.
        campaign_hash: hash of the campaign.
        report: called with each cell, its record, and whether the record completes the cell.
        metric: metric whose interval ends a cell.
    """
    repetitions = RepetitionTracker(frontier.store, implied=frontier.skip, metric=metric)
    completed: dict[str, bool] = {}
    for cell, repetition in missing:
        if cell.id not in completed:
            completed[cell.id] = repetitions.is_over(cell)
        if completed[cell.id] or (evidence := frontier.read_evidence(cell)) is None:
            continue
        record = build_implied_record(specification(cell), campaign_hash, cell, repetition, evidence)
        record = record.model_copy(update={"stopped": repetitions.format_stop_reason(cell, record)})
        frontier.store.write(record)
        completed[cell.id] = repetitions.is_over(cell, record)
        last = completed[cell.id] or repetition == list_run_numbers(cell.settings)[-1]
        report(cell, record, last and is_measured(frontier.store, cell, implied=frontier.skip))

"""Reading of stored logs with the current parsers of workloads. Nothing is run, and no record changes (`spec.readings`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from campaign import __version__
from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import ConfigError, LaunchError
from campaign.plan.campaign.resolve import Campaign, campaign_from_document
from campaign.spec.cell import Cell, Settings
from campaign.spec.hardware import Composition
from campaign.spec.readings import REREAD_FLAG, Reading, Readings, write_readings
from campaign.spec.record import Record, RecordStore
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Run, StepEnd, Workload

_PARSED_STATUSES = ("ok", "nan", "invalid", "incomplete")
"""Statuses that a parser can change. Runs with another status failed for reasons that no parser affects."""
_ENERGY_PER_SAMPLE = "energy_per_sample_j"


@dataclass(frozen=True)
class ParseSummary:
    """Summary of a repeated reading of stored logs.

    Args:
        path: path of the written document; None if no log was read.
        runs: number of runs that were read.
        changed: number of runs whose numbers changed.
        skipped: number of skipped runs by reason.
    """

    path: Path | None = None
    runs: int = 0
    changed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)


def parse_logs(campaign: Campaign, store: RecordStore) -> ParseSummary:
    """Read the stored logs of all runs again, and write the readings next to the records.

    Raises ConfigError if the campaign was imported, or if none of its workloads reads logs.
    """
    logs = _StoredLogs(store, _list_readers(campaign))
    readings: dict[str, Reading] = {}
    changed_runs, skipped = 0, Counter[str]()
    for cell_id, repetition in sorted(store.list_keys(include_implied=False)):
        try:
            reading = logs.parse_log(cell_id, repetition)
        except _UnreadLogError as reason:
            skipped[str(reason)] += 1
        else:
            changed_runs += logs.is_changed(cell_id, repetition, reading)
            readings[f"{cell_id}.{repetition}"] = reading
    if not readings:
        return ParseSummary(skipped=skipped)
    settings = {name: workload.parsing_document() for name, workload in logs.readers.items()}
    path = write_readings(
        store.results, Readings(made=time.time(), version=__version__, workloads=settings, runs=readings)
    )
    return ParseSummary(path, len(readings), changed_runs, skipped)


def _list_readers(campaign: Campaign) -> dict[str, Workload]:
    """Return the workloads that read logs. Raises ConfigError if there are none, or if the campaign was imported."""
    if campaign.file.imported:
        raise ConfigError(
            f"campaign {campaign.name}: its records come from imported logs; 'campaign import' reads these logs again"
        )
    readers = {name: workload for name, workload in campaign.workloads.items() if workload.parsing_keys}
    if not readers:
        raise ConfigError(
            f"campaign {campaign.name}: none of the workloads {', '.join(campaign.workloads)} has a parser; only workloads of "
            "`kind: command` have one"
        )
    return readers


class _UnreadLogError(Exception):
    """Error for a stored log that cannot be read again. The message completes 'runs ...'."""


class _StoredLogs:
    """Stored logs of a results directory, with the current workloads that read them."""

    def __init__(self, store: RecordStore, readers: Mapping[str, Workload]) -> None:
        self.readers = readers
        self._store = store
        self._campaign_as_used = cache(lambda name: campaign_from_document(store.read_shared_document(name)))

    def parse_log(self, cell_id: str, repetition: int) -> Reading:
        """Read the log of a run again. Raises _UnreadLogError if that is impossible."""
        record = self._store.read_measured(cell_id, repetition)
        workload = self.readers.get(record.cell.workload)
        if workload is None:
            raise _UnreadLogError("of workloads without a parser")
        if record.status not in _PARSED_STATUSES:
            raise _UnreadLogError("that failed before they printed their numbers")
        log = self._find_log(record)
        campaign_as_used = self._campaign_as_used(record.campaign)
        if campaign_as_used.workloads[workload.name].run_identity_document() != workload.run_identity_document():
            raise _UnreadLogError("of workloads whose command has changed")
        try:
            fields = _parse_record_fields(record, campaign_as_used, workload, Log(log))
        except LaunchError as error:
            raise _UnreadLogError("that were stopped according to their log") from error
        if fields is None:
            raise _UnreadLogError("whose log is no longer complete")
        return Reading(started=record.started, record=fields)

    def _find_log(self, record: Record) -> Path:
        """Return the path of a record's log.

        A record from another place may name any file, so a file outside of the results directory is rejected.
        """
        results = self._store.results.resolve()
        log = results / record.log if record.log else None
        if log is None or not log.is_file() or not log.resolve().is_relative_to(results):
            raise _UnreadLogError("without a stored log")
        return log

    def is_changed(self, cell_id: str, repetition: int, reading: Reading) -> bool:
        """Return whether a reading differs from the current numbers of the run, apart from flags."""
        names = {str(name) for name in reading.record}
        present = self._store.read_latest(cell_id, repetition).model_dump(mode="json", include=names)
        return any(value != present[name] for name, value in reading.record.items() if name != "flags")


def _parse_record_fields(
    record: Record, campaign_as_used: Campaign, current_workload: Workload, log: Log
) -> dict[Any, Any] | None:
    """Return the record's fields as if its log had been read by the current workload from the start.

    The result is None if the log no longer holds the numbers that were read originally.

    Args:
        record: record of the run.
        campaign_as_used: campaign as it was when the run was measured.
        current_workload: current workload.
        log: log of the run.
    """
    previous_workload, runs_on = (
        campaign_as_used.workloads[current_workload.name],
        campaign_as_used.device_model(record.requested_configuration).runs_on,
    )
    old_outcome, new_outcome = (
        _parse_outcome(record, workload, runs_on, log) for workload in (previous_workload, current_workload)
    )
    if record.status == "ok" and "ok" not in (old_outcome.status, new_outcome.status):
        return None
    if old_outcome.status == "ok" and new_outcome.status == "ok" and record.status == "invalid":
        # The run is invalid for a reason that is not in its log.
        new_outcome = replace(new_outcome, status="invalid", failure=record.failure)
    other_metrics = {name: value for name, value in record.metrics.items() if name not in old_outcome.metrics}
    if _ENERGY_PER_SAMPLE in other_metrics and record.throughput_per_s and new_outcome.throughput_per_s:
        # The energy is the same, but the number of samples has changed.
        other_metrics[_ENERGY_PER_SAMPLE] *= record.throughput_per_s / new_outcome.throughput_per_s
    flags = [flag for flag in record.flags if flag not in old_outcome.flags]
    fields = {
        "status": new_outcome.status,
        "failure": new_outcome.failure,
        "throughput_per_s": new_outcome.throughput_per_s,
        "step_times_s": new_outcome.step_times_s,
        "window_s": new_outcome.window_s,
        "metrics": {**other_metrics, **new_outcome.metrics},
        "flags": tuple(dict.fromkeys((*new_outcome.flags, *flags, REREAD_FLAG))),
    }
    return record.model_copy(update=fields).model_dump(mode="json", include=set(fields))


def _parse_outcome(record: Record, workload: Workload, runs_on: AcceleratorKind, log: Log) -> Outcome:
    """Return the outcome that a workload reads from the log of a run that ended normally."""
    cell, settings = record.cell, {key: record.specification[key] for key in ("warmup_steps", "measured_steps", "seed")}
    run = Run(
        Cell(
            record.cell_id,
            record.requested_configuration,
            cell.workload,
            cell.batch,
            cell.precision,
            cell.options,
            Settings(**settings),
        ),
        record.repetition,
        Composition(()),
        Path(),
        runs_on,
    )
    return workload.judge_run(run, StepEnd((0,), record.started, record.ended), log)

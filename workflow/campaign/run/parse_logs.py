"""Kept logs read again by the parsers that workloads have now. Nothing is run, and no record changes (`documents.readings`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from campaign import __version__
from campaign.accelerators import Kind
from campaign.config.resolve import Campaign, from_document
from campaign.documents.cell import Cell, Settings
from campaign.documents.readings import READ_AGAIN, Reading, Readings, keep
from campaign.documents.record import Record, Store
from campaign.errors import ConfigError, LaunchError
from campaign.fabrics.hardware import Composition
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run, Workload

_ENDED_WELL = ("ok", "nan", "invalid", "incomplete")
"""Of other runs, what they printed says why they failed, and a parser has no part in it."""
_PER_SAMPLE = "energy_per_sample_j"


@dataclass(frozen=True)
class LogsRead:
    """What became of reading logs again. path: of the document; changed: runs that say something else now; left: why others were
    not read, with their number."""

    path: Path | None = None
    runs: int = 0
    changed: int = 0
    left: Mapping[str, int] = field(default_factory=dict)


def parse_logs(campaign: Campaign, store: Store) -> LogsRead:
    """Read the kept logs of all runs again, and write what they say beside the records.

    ConfigError: the campaign was imported, or none of its workloads reads logs.
    """
    if campaign.file.imported:
        raise ConfigError(
            f"campaign {campaign.name}: its records are of imported logs; 'campaign import' reads those again"
        )
    readers = {name: workload for name, workload in campaign.workloads.items() if workload.reading_keys}
    if not readers:
        raise ConfigError(
            f"campaign {campaign.name}: none of {', '.join(campaign.workloads)} has a parser; workloads of `kind: command` have"
        )
    measured_as = cache(lambda name: from_document(store.shared_document(name)))
    found: dict[str, Reading] = {}
    changed, left, inside = 0, Counter[str](), store.results.resolve()
    for key in sorted(store.index(implied=False)):
        record = store.read_measured(*key)
        workload = readers.get(record.cell.workload)
        if workload is None:
            left["of workloads that read no log"] += 1
        elif record.status not in _ENDED_WELL:
            left["that failed before they printed their numbers"] += 1
        elif not record.log or not (log := inside / record.log).is_file() or not log.resolve().is_relative_to(inside):
            # A record from elsewhere may name any file of this machine.
            left["without a log here"] += 1
        elif (measured := measured_as(record.campaign)).workloads[workload.name].runs() != workload.runs():
            left["of another command"] += 1
        else:
            try:
                read = _read(record, measured, workload, Log(log))
            except LaunchError:
                left["whose log says that they were stopped"] += 1
                continue
            if read is None:
                left["whose log is not whole any more"] += 1
                continue
            now = store.read(*key).model_dump(mode="json", include=set(read))
            # Without the flag, which a run has from its first reading on.
            changed += any(read[name] != now[name] for name in read if name != "flags")
            found[f"{record.cell_id}.{record.repetition}"] = Reading(started=record.started, record=read)
    if not found:
        return LogsRead(left=left)
    how = {name: workload.reading() for name, workload in readers.items()}
    path = keep(store.results, Readings(made=time.time(), version=__version__, workloads=how, runs=found))
    return LogsRead(path, len(found), changed, left)


def _read(record: Record, measured: Campaign, now: Workload, log: Log) -> dict[Any, Any] | None:
    """What a run's record would say if its log had been read so from the start; None where the log has lost what was read then.

    measured: the campaign as it was then.
    """
    before, runs_on = measured.workloads[now.name], measured.device_of(record.requested).runs_on
    old, new = (_outcome(record, workload, runs_on, log) for workload in (before, now))
    if record.status == "ok" and "ok" not in (old.status, new.status):
        return None
    if old.status == "ok" and new.status == "ok" and record.status == "invalid":
        # It is not its log that makes it invalid.
        new = replace(new, status="invalid", failure=record.failure)
    beside = {name: value for name, value in record.metrics.items() if name not in old.metrics}
    if _PER_SAMPLE in beside and record.throughput_per_s and new.throughput_per_s:
        # The same energy, of more or fewer samples.
        beside[_PER_SAMPLE] *= record.throughput_per_s / new.throughput_per_s
    flags = [flag for flag in record.flags if flag not in old.flags]
    fields = {
        "status": new.status,
        "failure": new.failure,
        "throughput_per_s": new.throughput_per_s,
        "step_times_s": new.step_times_s,
        "window_s": new.window_s,
        "metrics": {**beside, **new.metrics},
        "flags": tuple(dict.fromkeys((*new.flags, *flags, READ_AGAIN))),
    }
    return record.model_copy(update=fields).model_dump(mode="json", include=set(fields))


def _outcome(record: Record, workload: Workload, runs_on: Kind, log: Log) -> Outcome:
    """What a workload reads of a run that ended well."""
    cell, settings = record.cell, {key: record.specification[key] for key in ("warmup_steps", "measured_steps", "seed")}
    run = Run(
        Cell(
            record.cell_id,
            record.requested,
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
    return workload.outcome(run, Ended((0,), record.started, record.ended), log)

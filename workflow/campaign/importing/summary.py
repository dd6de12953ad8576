"""What an import found, in rows: axes, cells, failed runs, and files that could not be read."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from campaign.documents.cell import Cell
from campaign.documents.metric import THROUGHPUT
from campaign.importing.scan_logs import Survey


def document(found: Survey) -> dict[str, Any]:
    """Everything that `campaign import` found, JSON-able."""
    return {
        "campaign": found.campaign.name,
        "system": found.campaign.system.name,
        "logs": {fate: len(found.of(fate)) for fate in ("new", "present", "unread")},
        "axes": axes(found),
        "cells": cells(found),
        "failures": failures(found),
        "unread": [{"log": entry.path, "why": entry.why} for entry in found.of("unread")],
        "records_without_cell": found.strays,
    }


def _runs(found: Survey) -> Iterator[tuple[Cell, str, float | None]]:
    """(cell, status, number of the primary metric) of every run that has or gets a record of a cell of this campaign."""
    metric = found.campaign.metric
    by_id = {entry.cell.id: entry.cell for entry in found.entries if entry.cell is not None}
    for record in found.records:
        if record.cell_id in by_id:
            value = metric.of(record.throughput_per_s, record.metrics)
            yield by_id[record.cell_id], record.status, value
    for entry in found.of("new"):
        if entry.cell is not None and entry.outcome is not None:
            value = metric.of(entry.outcome.throughput_per_s, entry.outcome.metrics)
            yield entry.cell, entry.outcome.status, value


def axes(found: Survey) -> list[dict[str, Any]]:
    """Cells and runs by axis and value."""
    names = ("configuration", "workload", "batch", "precision", *found.campaign.file.axes.options)
    ids: defaultdict[tuple[str, Any], set[str]] = defaultdict(set)
    runs: Counter[tuple[str, Any]] = Counter()
    for cell, _, _ in _runs(found):
        for name in names:
            ids[name, cell.axes()[name]].add(cell.id)
            runs[name, cell.axes()[name]] += 1
    return [
        {"axis": name, "value": value, "cells": len(ids[name, value]), "runs": runs[name, value]}
        for name in names
        for value in sorted({value for axis, value in ids if axis == name}, key=lambda value: (str(type(value)), value))
    ]


def cells(found: Survey) -> list[dict[str, Any]]:
    """Every cell with its runs, their outcomes and the median of what they printed."""
    metric = found.campaign.metric
    median = "median per s" if metric == THROUGHPUT else f"median {metric.axis}"
    by_cell: defaultdict[str, list[tuple[str, float | None]]] = defaultdict(list)
    known: dict[str, Cell] = {}
    for cell, status, rate in _runs(found):
        known[cell.id] = cell
        by_cell[cell.id].append((status, rate))
    rows = []
    for name, cell in known.items():
        rates = [rate for status, rate in by_cell[name] if status == "ok" and rate is not None]
        tally = Counter(status for status, _ in by_cell[name])
        rows.append(
            {
                **{axis: cell.axes()[axis] for axis in ("configuration", "workload", "batch", "precision")},
                **cell.options,
                "runs": f"{len(by_cell[name])} of {cell.settings.repetitions}",
                "outcomes": ", ".join(f"{count} {status}" for status, count in tally.most_common()),
                median: float(f"{statistics.median(rates):.6g}") if rates else None,
            }
        )
    return sorted(rows, key=lambda row: tuple(str(value).rjust(12) for value in row.values()))


def failures(found: Survey) -> list[dict[str, str]]:
    """New logs of runs that failed."""
    return [
        {"log": entry.path, "status": of.status, "why": of.failure.reason if of.failure else ""}
        for entry in found.of("new")
        if (of := entry.outcome) is not None and of.status != "ok"
    ]


def one_line(found: Survey, *, written: bool) -> str:
    """How many logs became what, in one line or two."""
    new = found.of("new")
    ok = sum(entry.outcome is not None and entry.outcome.status == "ok" for entry in new)
    strays = f"\n{found.strays} records of earlier imports belong to no cell of this map any more; the report leaves them out"
    return (
        f"{len(new)} {'records written' if written else 'new logs'} ({ok} ok, {len(new) - ok} failed), "
        f"{len(found.of('present'))} imported before, {len(found.of('unread'))} not read{strays if found.strays else ''}"
    )

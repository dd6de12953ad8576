"""The command `campaign import`: make records from logs that were written without this program."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from campaign.cli.echo import echo
from campaign.cli.options import PATH, dry_run_option, format_option, results_option
from campaign.cli.terminal import show, show_rows, table_of
from campaign.common.paths import Results
from campaign.importing.map_file import read_map
from campaign.importing.scan_logs import LogSurvey, survey
from campaign.importing.write import earlier, rehearse, write
from campaign.spec.cell import Cell
from campaign.spec.metric import THROUGHPUT


@click.command("import")
@click.argument("directory", type=PATH)
@click.option(
    "--map",
    "map_path",
    type=PATH,
    required=True,
    help="YAML file that describes the logs; docs/reference/import-map.md lists its keys.",
)
@results_option
@dry_run_option("Show the matrix and write nothing.")
@format_option("table", "json")
def import_logs(directory: Path, map_path: Path, results: Path, dry_run: bool, style: str) -> None:
    """Make records from the logs in DIRECTORY, which were written without this program.

    Failed runs become records too. Files that cannot be read are listed with the reason. No log is imported twice: run the same
    command again to add new logs. It writes a campaign file, which every other command accepts.

    \b
    campaign import logs/ --map map.yaml --dry-run
    campaign import logs/ --map map.yaml
    campaign report results/NAME/config/campaign.yaml
    """
    read = read_map(map_path)
    paths = Results(results, read.said.name)
    found = survey(directory, read, earlier(paths))
    # A full file system or a missing set of claims must already show in a dry run.
    rehearse(found, read, paths)
    written = None if dry_run else write(found, read, paths)
    if style == "json":
        echo(json.dumps({**_document(found), "file": None if written is None else str(written)}, indent=1))
        return
    show_rows("Axes", _axes(found))
    show_rows("Cells", _cells(found))
    unread = [{"file": entry.name, "why": entry.why} for entry in found.of("unread")]
    show(table_of("Failed runs", _failures(found)), table_of("Files that could not be read", unread))
    echo(_one_line(found, written=not dry_run))
    if written is None:
        echo("nothing was written (--dry-run)")
        return
    again = "" if results == Path("results") else f" --results {results}"
    echo(f"{written}\nnext: campaign report {written}{again}")


def _document(found: LogSurvey) -> dict[str, Any]:
    """Build the JSON-serialisable result of `campaign import`."""
    return {
        "campaign": found.campaign.name,
        "system": found.campaign.system.name,
        "logs": {fate: len(found.of(fate)) for fate in ("new", "present", "unread")},
        "axes": _axes(found),
        "cells": _cells(found),
        "failures": _failures(found),
        "unread": [{"log": entry.name, "why": entry.why} for entry in found.of("unread")],
        "records_without_cell": found.strays,
    }


def _runs(found: LogSurvey) -> Iterator[tuple[Cell, str, float | None]]:
    """Yield cell, status and primary metric of each run that has a record, or gets one.

    The metric is None if it is unknown. Records of cells outside this campaign are left out.
    """
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


def _axes(found: LogSurvey) -> list[dict[str, Any]]:
    """Count cells and runs by axis and value. Return one table row per value."""
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


def _cells(found: LogSurvey) -> list[dict[str, Any]]:
    """Return one table row per cell with its runs, their outcomes, and the median of the primary metric over valid runs."""
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


def _failures(found: LogSurvey) -> list[dict[str, str]]:
    """Return the new logs of failed runs, with status and reason."""
    return [
        {"log": entry.name, "status": of.status, "why": of.failure.reason if of.failure else ""}
        for entry in found.of("new")
        if (of := entry.outcome) is not None and of.status != "ok"
    ]


def _one_line(found: LogSurvey, *, written: bool) -> str:
    """Format the numbers of new, already imported and unread logs, and of records without a cell, in one or two lines.

    Args:
        log_survey: result of the survey of the logs.
        is_written: whether records were written, instead of a dry run.
    """
    new = found.of("new")
    ok = sum(entry.outcome is not None and entry.outcome.status == "ok" for entry in new)
    strays = f"\n{found.strays} records of earlier imports belong to no cell of this map any more; the report leaves them out"
    return (
        f"{len(new)} {'records written' if written else 'new logs'} ({ok} ok, {len(new) - ok} failed), "
        f"{len(found.of('present'))} imported before, {len(found.of('unread'))} not read{strays if found.strays else ''}"
    )

"""The command `campaign import`: create records from logs that were written without this program."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from campaign.cli.echo import echo
from campaign.cli.options import PATH, build_dry_run_option, build_format_option, results_option
from campaign.cli.terminal import build_table_from_rows, print_rows, print_tables
from campaign.common.paths import Results
from campaign.importing.map_file import read_map
from campaign.importing.scan_logs import LogSurvey, survey_logs
from campaign.importing.write import read_earlier_records, rehearse_import, write_import
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
@build_dry_run_option("Only show the matrix; write nothing.")
@build_format_option("table", "json")
def import_logs(directory: Path, map_path: Path, results: Path, dry_run: bool, style: str) -> None:
    """Create records from the logs in DIRECTORY, which were written without this program.

    Failed runs become records too. Files that cannot be read are listed with the reason. No log is imported twice, so run the same
    command again to add new logs. The command writes a campaign file, which every other command accepts.

    \b
    campaign import logs/ --map map.yaml --dry-run
    campaign import logs/ --map map.yaml
    campaign report results/NAME/config/campaign.yaml
    """
    log_map = read_map(map_path)
    paths = Results(results, log_map.import_file.name)
    log_survey = survey_logs(directory, log_map, read_earlier_records(paths))
    # A dry run must already reveal a full file system, and a missing set of claims must leave an earlier import unchanged.
    rehearse_import(log_survey, log_map, paths, with_records=dry_run)
    campaign_path = None if dry_run else write_import(log_survey, log_map, paths)
    if style == "json":
        echo(
            json.dumps(
                {**_build_document(log_survey), "file": None if campaign_path is None else str(campaign_path)}, indent=1
            )
        )
        return
    print_rows("Axes", _count_by_axis(log_survey))
    print_rows("Cells", _summarise_cells(log_survey))
    unread = [{"file": entry.name, "why": entry.reason} for entry in log_survey.select_entries("unread")]
    print_tables(
        build_table_from_rows("Failed runs", _list_failures(log_survey)),
        build_table_from_rows("Files that could not be read", unread),
    )
    echo(_format_summary(log_survey, is_written=not dry_run))
    if campaign_path is None:
        echo("nothing was written (--dry-run)")
        return
    results_argument = "" if results == Path("results") else f" --results {results}"
    echo(f"{campaign_path}\nnext: campaign report {campaign_path}{results_argument}")


def _build_document(log_survey: LogSurvey) -> dict[str, Any]:
    """Build the JSON-serialisable result of `campaign import`."""
    return {
        "campaign": log_survey.campaign.name,
        "system": log_survey.campaign.system.name,
        "logs": {
            entry_state: len(log_survey.select_entries(entry_state)) for entry_state in ("new", "present", "unread")
        },
        "axes": _count_by_axis(log_survey),
        "cells": _summarise_cells(log_survey),
        "failures": _list_failures(log_survey),
        "unread": [{"log": entry.name, "why": entry.reason} for entry in log_survey.select_entries("unread")],
        "records_without_cell": log_survey.stray_record_count,
    }


def _iterate_runs(log_survey: LogSurvey) -> Iterator[tuple[Cell, str, float | None]]:
    """Yield cell, status and primary metric of each run that has a record, or gets one.

    The metric is None if it is unknown. Records of cells outside this campaign are left out.
    """
    metric = log_survey.campaign.metric
    by_id = {entry.cell.id: entry.cell for entry in log_survey.entries if entry.cell is not None}
    for record in log_survey.records:
        if record.cell_id in by_id:
            value = metric.read_value(record.throughput_per_s, record.metrics)
            yield by_id[record.cell_id], record.status, value
    for entry in log_survey.select_entries("new"):
        if entry.cell is not None and entry.outcome is not None:
            value = metric.read_value(entry.outcome.throughput_per_s, entry.outcome.metrics)
            yield entry.cell, entry.outcome.status, value


def _count_by_axis(log_survey: LogSurvey) -> list[dict[str, Any]]:
    """Count cells and runs by axis and value. Return one table row per value."""
    names = ("configuration", "workload", "batch", "precision", *log_survey.campaign.file.axes.options)
    ids: defaultdict[tuple[str, Any], set[str]] = defaultdict(set)
    runs: Counter[tuple[str, Any]] = Counter()
    for cell, _, _ in _iterate_runs(log_survey):
        for name in names:
            ids[name, cell.axes()[name]].add(cell.id)
            runs[name, cell.axes()[name]] += 1
    return [
        {"axis": name, "value": value, "cells": len(ids[name, value]), "runs": runs[name, value]}
        for name in names
        for value in sorted({value for axis, value in ids if axis == name}, key=lambda value: (str(type(value)), value))
    ]


def _summarise_cells(log_survey: LogSurvey) -> list[dict[str, Any]]:
    """Return one table row per cell: its runs, their outcomes, and the median primary metric of valid runs."""
    metric = log_survey.campaign.metric
    median = "median per s" if metric == THROUGHPUT else f"median {metric.axis_label}"
    outcomes_by_cell: defaultdict[str, list[tuple[str, float | None]]] = defaultdict(list)
    cells: dict[str, Cell] = {}
    for cell, status, rate in _iterate_runs(log_survey):
        cells[cell.id] = cell
        outcomes_by_cell[cell.id].append((status, rate))
    rows = []
    for name, cell in cells.items():
        rates = [rate for status, rate in outcomes_by_cell[name] if status == "ok" and rate is not None]
        tally = Counter(status for status, _ in outcomes_by_cell[name])
        rows.append(
            {
                **{axis: cell.axes()[axis] for axis in ("configuration", "workload", "batch", "precision")},
                **cell.options,
                "runs": f"{len(outcomes_by_cell[name])} of {cell.settings.repetitions}",
                "outcomes": ", ".join(f"{count} {status}" for status, count in tally.most_common()),
                median: float(f"{statistics.median(rates):.6g}") if rates else None,
            }
        )
    return sorted(rows, key=lambda row: tuple(str(value).rjust(12) for value in row.values()))


def _list_failures(log_survey: LogSurvey) -> list[dict[str, str]]:
    """Return the new logs of failed runs, with status and reason."""
    return [
        {"log": entry.name, "status": outcome.status, "why": outcome.failure.reason if outcome.failure else ""}
        for entry in log_survey.select_entries("new")
        if (outcome := entry.outcome) is not None and outcome.status != "ok"
    ]


def _format_summary(log_survey: LogSurvey, *, is_written: bool) -> str:
    """Format the numbers of new, already imported and unread logs, and of records without a cell, in one or two lines.

    Args:
        log_survey: result of the survey of the logs.
        is_written: whether records were written, instead of a dry run.
    """
    new = log_survey.select_entries("new")
    ok = sum(entry.outcome is not None and entry.outcome.status == "ok" for entry in new)
    strays = (
        f"\n{log_survey.stray_record_count} records of earlier imports no longer "
        "belong to any cell of this map; the report leaves them out"
    )
    return (
        f"{len(new)} {'records written' if is_written else 'new logs'} ({ok} ok, {len(new) - ok} failed), "
        f"{len(log_survey.select_entries('present'))} imported before, {len(log_survey.select_entries('unread'))} "
        f"not read{strays if log_survey.stray_record_count else ''}"
    )

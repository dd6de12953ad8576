"""Progress lines of a campaign: completed runs, the latest result, and the remaining time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.common.files import append_json, load_json, read_json_lines
from campaign.common.paths import Results
from campaign.common.wording import format_duration, format_rate
from campaign.spec.cell import Cell
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.record import Record
from campaign.spec.run_numbers import list_run_numbers

_MIN_LINE_INTERVAL_S = 2.0  # keeps 5,000 short runs from printing 5,000 lines


class ProgressReporter:
    """Reporter that prints progress lines while the driver of one lease works."""

    def __init__(self, results: Results, lease: str, missing_runs: int, report: Callable[[str], None]) -> None:
        self.lease = lease
        self.report = report
        self.missing_runs = missing_runs
        self.lease_runs_done = self.runs_done = 0
        self.started_s = time.monotonic()
        self.last_report_s = -math.inf
        self.totals = read_totals(results)

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Add one progress line of this or another lease, and report it if the last report is old enough."""
        self.runs_done += 1
        if line["lease"] == self.lease:
            self.lease_runs_done += 1
            self.missing_runs -= line.get("left_out", 0)
        if self.totals:
            self.totals["runs"] -= line.get("left_out", 0)
            self.totals["runs_done"] += 1
            self.totals["cells_done"] += bool(line["cell_done"])
        is_last = self.lease_runs_done >= self.missing_runs
        if line["lease"] != self.lease or (
            time.monotonic() - self.last_report_s < _MIN_LINE_INTERVAL_S and not is_last
        ):
            return
        self.last_report_s = time.monotonic()
        self.report(self.format_line(line))

    def format_line(self, line: Mapping[str, Any]) -> str:
        """Format a progress line with totals, result and remaining time."""
        totals = self.totals or {
            "runs": self.missing_runs,
            "runs_done": self.lease_runs_done,
            "cells": 0,
            "cells_done": 0,
        }
        value, unit = line.get("value", line["throughput_per_s"]), line.get("unit", "samples/s")
        result = (
            f"{format_rate(value)} {unit}".rstrip() if value is not None and line["status"] == "ok" else line["status"]
        )
        cells = f" · cells {totals['cells_done']}/{totals['cells']}" if totals["cells"] else ""
        per_run_s = (time.monotonic() - self.started_s) / max(1, self.runs_done)
        remaining_s = per_run_s * max(0, totals["runs"] - totals["runs_done"])
        return (
            f"[{totals['runs_done']}/{totals['runs']} runs{cells}] {self.lease} · {line['what']}: {result}"
            f" · {'about ' if remaining_s >= 1 else ''}{format_duration(remaining_s)} left"
        )


def append_progress(
    results: Results, lease: str, cell: Cell, record: Record, *, cell_done: bool, metric: Metric = THROUGHPUT
) -> None:
    """Append one progress line for a record. A lost line does no harm, so it is not forced to disk."""
    line = {
        "time_s": record.ended,
        "lease": lease,
        "cell": record.cell_id,
        "repetition": record.repetition,
        "what": f"{record.cell.workload} · batch {record.cell.batch} · {record.cell.precision}",
        "status": record.status,
        "throughput_per_s": record.throughput_per_s,
        "value": metric.read_value(record.throughput_per_s, record.metrics),
        "unit": metric.unit,
        "wall_s": record.ended - record.started,
        "workload": record.cell.workload,
        "cell_done": cell_done,
        # Repetitions that are unnecessary because the target is reached.
        "left_out": sum(run > record.repetition for run in list_run_numbers(cell.settings)) if record.stopped else 0,
    }
    with suppress(OSError):
        append_json(results.progress_file, line)


@dataclass
class _PlanProgress:
    """Progress of a plan, as far as it has been read.

    Args:
        written_s: modification time of the plan, in Unix seconds.
        totals: totals of the plan.
        offset: position in the progress file up to which it was read, in bytes.
        lines: number of lines since the plan was written.
        left_out: number of runs that became unnecessary.
        cells: number of completed cells.
    """

    written_s: float
    totals: Mapping[str, int]
    offset: int = 0
    lines: int = 0
    left_out: int = 0
    cells: int = 0


_progress_by_plan: dict[Path, _PlanProgress] = {}  # a forked process inherits this state


def read_totals(results: Results) -> dict[str, int] | None:
    """Return the totals of the plan and the progress since it was written, or None if there is no plan.

    Only new lines of the progress file are read.
    """
    path = results.plan_file
    try:
        written_s = path.stat().st_mtime
        if (progress := _progress_by_plan.get(path)) is None or progress.written_s != written_s:
            progress = _progress_by_plan[path] = _PlanProgress(written_s, load_json(path)["totals"])
        lines, progress.offset = read_json_lines(results.progress_file, progress.offset)
    except (OSError, ValueError, KeyError):
        return None
    for line in lines:
        if line["time_s"] >= written_s:
            progress.lines += 1
            progress.left_out += line.get("left_out", 0)
            progress.cells += bool(line["cell_done"])
    plan = progress.totals
    return {
        "runs": plan["runs"] - progress.left_out,
        "cells": plan["cells"],
        "runs_done": plan["runs"] - plan["runs_without_record"] + progress.lines,
        "cells_done": plan["cells"] - plan["cells_without_record"] + progress.cells,
    }

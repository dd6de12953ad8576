"""Progress of a campaign for people: completed runs, the latest result, and the remaining time."""

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
from campaign.common.wording import format_duration
from campaign.spec.cell import Cell
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.record import Record
from campaign.spec.run_numbers import runs_of

_LINE_S = 2.0  # a line at most every two seconds: 5,000 short runs must not be 5,000 lines


class Progress:
    """Reporter that prints progress lines while the driver of one lease works."""

    def __init__(self, results: Results, lease: str, missing: int, say: Callable[[str], None]) -> None:
        self.lease = lease
        self.say = say
        self.missing = missing
        self.done_here = self.done = 0
        self.started = time.monotonic()
        self.shown = -math.inf
        self.totals = totals(results)

    def show(self, line: Mapping[str, Any]) -> None:
        """Add one progress line of this or another lease, and report it if the last report is old enough."""
        self.done += 1
        if line["lease"] == self.lease:
            self.done_here += 1
            self.missing -= line.get("left_out", 0)
        if self.totals:
            self.totals["runs"] -= line.get("left_out", 0)
            self.totals["runs_done"] += 1
            self.totals["cells_done"] += bool(line["cell_done"])
        last = self.done_here >= self.missing
        if line["lease"] != self.lease or (time.monotonic() - self.shown < _LINE_S and not last):
            return
        self.shown = time.monotonic()
        self.say(self.text(line))

    def text(self, line: Mapping[str, Any]) -> str:
        """Format a progress line with totals, result and remaining time."""
        totals = self.totals or {"runs": self.missing, "runs_done": self.done_here, "cells": 0, "cells_done": 0}
        value, unit = line.get("value", line["throughput_per_s"]), line.get("unit", "samples/s")
        what = f"{value:.4g} {unit}".rstrip() if value is not None and line["status"] == "ok" else line["status"]
        cells = f" · cells {totals['cells_done']}/{totals['cells']}" if totals["cells"] else ""
        per_run_s = (time.monotonic() - self.started) / max(1, self.done)
        left_s = per_run_s * max(0, totals["runs"] - totals["runs_done"])
        return (
            f"[{totals['runs_done']}/{totals['runs']} runs{cells}] {self.lease} · {line['what']}: {what}"
            f" · about {format_duration(left_s)} left"
        )


def note(
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
        "value": metric.of(record.throughput_per_s, record.metrics),
        "unit": metric.unit,
        "wall_s": record.ended - record.started,
        "workload": record.cell.workload,
        "cell_done": cell_done,
        # Repetitions that are unnecessary because the target is reached.
        "left_out": sum(run > record.repetition for run in runs_of(cell.settings)) if record.stopped else 0,
    }
    with suppress(OSError):
        append_json(results.progress_file, line)


@dataclass
class _Read:
    """Progress of a plan as read so far.

    Args:
        since: modification time of the plan, in Unix seconds.
        totals: totals of the plan.
        offset: position in the progress file up to which it was read, in bytes.
        lines: number of lines since the plan was written.
        left_out: number of runs that became unnecessary.
        cells: number of completed cells.
    """

    since: float
    totals: Mapping[str, int]
    offset: int = 0
    lines: int = 0
    left_out: int = 0
    cells: int = 0


_read: dict[Path, _Read] = {}  # a forked process inherits the state of its parent


def totals(results: Results) -> dict[str, int] | None:
    """Return the totals of the plan and the progress since it was written, or None if there is no plan.

    Only new lines of the progress file are read.
    """
    path = results.plan_file
    try:
        since = path.stat().st_mtime
        if (read := _read.get(path)) is None or read.since != since:
            read = _read[path] = _Read(since, load_json(path)["totals"])
        lines, read.offset = read_json_lines(results.progress_file, read.offset)
    except (OSError, ValueError, KeyError):
        return None
    for line in lines:
        if line["time_s"] >= since:
            read.lines += 1
            read.left_out += line.get("left_out", 0)
            read.cells += bool(line["cell_done"])
    plan = read.totals
    return {
        "runs": plan["runs"] - read.left_out,
        "cells": plan["cells"],
        "runs_done": plan["runs"] - plan["runs_without_record"] + read.lines,
        "cells_done": plan["cells"] - plan["cells_without_record"] + read.cells,
    }

"""Progress of a campaign for people: what is done, what ran last, how long it will take."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from campaign.paths import Results
from campaign.plan import duration

_LINE_S = 2.0  # a line at most every two seconds: 5,000 short runs must not be 5,000 lines


class Progress:
    """Prints a line now and then while the driver of one lease works."""

    def __init__(self, results: Results, lease: str, missing: int, say: Callable[[str], None]) -> None:
        self.lease = lease
        self.say = say
        self.missing = missing
        self.done_here = 0
        self.started = time.time()
        self.shown = 0.0
        self.totals = _totals(results)

    def show(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the driver's progress."""
        if line["lease"] == self.lease:
            self.done_here += 1
        if self.totals:
            self.totals["runs_done"] += 1
            self.totals["cells_done"] += bool(line["cell_done"])
        last = self.done_here >= self.missing
        if line["lease"] != self.lease or (time.time() - self.shown < _LINE_S and not last):
            return
        self.shown = time.time()
        self.say(self.text(line))

    def text(self, line: Mapping[str, Any]) -> str:
        totals = self.totals or {"runs": self.missing, "runs_done": self.done_here, "cells": 0, "cells_done": 0}
        rate = line["throughput_per_s"]
        what = f"{rate:.4g} samples/s" if rate is not None and line["status"] == "ok" else line["status"]
        cells = f" · cells {totals['cells_done']}/{totals['cells']}" if totals["cells"] else ""
        per_run_s = (time.time() - self.started) / max(1, self.done_here)
        left_s = per_run_s * max(0, totals["runs"] - totals["runs_done"])
        return (
            f"[{totals['runs_done']}/{totals['runs']} runs{cells}] {self.lease} · {line['what']}: {what}"
            f" · about {duration(left_s)} left"
        )


def _totals(results: Results) -> dict[str, int] | None:
    """Totals of the plan, with what has been done since it was written; None where there is no plan."""
    path = results.plan / "plan.json"
    try:
        totals = json.loads(path.read_bytes())["totals"]
        since = path.stat().st_mtime
        lines = (
            [json.loads(line) for line in results.progress.read_text().splitlines()]
            if results.progress.exists()
            else []
        )
    except (OSError, ValueError, KeyError):
        return None
    done = [line for line in lines if line["time_s"] >= since]
    return {
        "runs": totals["runs"],
        "cells": totals["cells"],
        "runs_done": totals["runs"] - totals["runs_without_record"] + len(done),
        "cells_done": totals["cells"] - totals["cells_without_record"] + sum(line["cell_done"] for line in done),
    }

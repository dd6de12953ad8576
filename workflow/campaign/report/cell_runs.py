"""Runs of each cell on the page, as compressed JSON that `reports/cells_table.js` unpacks when a row is opened."""

from __future__ import annotations

import gzip
import json
import math
import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from campaign.common.paths import Results
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import format_run_number

MAX_RUNS_WITH_STEPS = 5_000
"""Step times are on the page if the campaign has at most this number of runs."""
_MAX_STEPS_PER_RUN = 40
_STEP_LEVELS = 35  # one character of base 36 per step
_DIGITS = 6
_TEXT_COLUMNS = ("cell_id", "status", "failure_reason", "flags", "log")


@dataclass(frozen=True)
class ResultFiles:
    """Logs and records of results that a page links to.

    Args:
        directory: path of the results, relative to the page; empty for an archive, whose members are named, but not linked.
        paths: paths of the files, relative to that directory.
    """

    directory: str
    paths: frozenset[str]

    @classmethod
    def list(cls, results: Path, page: Path | None) -> ResultFiles:
        """List the logs and records of results for a page; for an archive, its extracted files and no page."""
        prefix = f"{results}{os.sep}"
        roots = (Results.from_directory(results).logs, Results.from_directory(results).records)
        return cls(
            "" if page is None else Path(os.path.relpath(results, page.parent)).as_posix(),
            frozenset(
                f"{directory}/{name}".removeprefix(prefix)
                for root in roots
                for directory, _, names in os.walk(root)
                for name in names
            ),
        )


def build_runs_document(
    runs: pd.DataFrame, cell_ids: Sequence[str], steps: pd.DataFrame, files: ResultFiles | None
) -> str:
    """Build the runs of all cells as JSON, compressed and in base64, with one list per property.

    Texts are numbers of a list of distinct ones.

    Args:
        runs: runs table.
        cell_ids: ids of the cells, in the order of the table of all cells.
        steps: table of step times, in seconds.
        files: logs and records that exist; None to name none.
    """
    row_by_cell = {cell_id: row for row, cell_id in enumerate(cell_ids)}
    listed_runs = runs[runs["cell_id"].astype(object).isin(cell_ids)]  # Searching a column of Arrow's strings is slow.
    # Lists, because iterating over a column of Arrow's strings is slow.
    columns = {name: listed_runs[name].fillna("").tolist() for name in _TEXT_COLUMNS}
    numbers = listed_runs["repetition"].tolist()
    format_path = RecordStore(Path()).format_path

    def select_existing(paths: Iterable[str]) -> list[str]:
        return [path if files is not None and path in files.paths else "" for path in paths]

    document: dict[str, Any] = {
        "cell": [row_by_cell[cell_id] for cell_id in columns["cell_id"]],
        "number": _number_texts(map(format_run_number, numbers)),
        "status": _number_texts(
            f"{status}: {reason}" if reason else status
            for status, reason in zip(columns["status"], columns["failure_reason"], strict=True)
        ),
        "value": [_round(value) for value in listed_runs["value"]],
        "flags": _number_texts(columns["flags"]),
        "log": select_existing(columns["log"]),
        "record": select_existing(map(format_path, columns["cell_id"], numbers)),
    }
    if not steps.empty and not omits_steps(runs, steps):
        document["steps"] = _draw_all_steps(listed_runs, steps)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def omits_steps(runs: pd.DataFrame, steps: pd.DataFrame) -> bool:
    """Tell whether there are step times, in seconds, of more runs than a page shows."""
    return len(runs) > MAX_RUNS_WITH_STEPS and not steps.empty


def _number_texts(texts: Iterable[str]) -> dict[str, Any]:
    """Replace texts by their numbers in the list of distinct ones."""
    numbers: dict[str, int] = {}
    return {"values": [numbers.setdefault(text, len(numbers)) for text in texts], "texts": list(numbers)}


def _round(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _draw_all_steps(runs: pd.DataFrame, steps: pd.DataFrame) -> list[str]:
    """Return the step times of each run as characters from 0 (no time) to z (the longest step of the cell)."""
    longest_s = steps.groupby("cell_id", observed=True)["time_s"].max()
    times_by_run = {
        key: times.tolist() for key, times in steps.groupby(["cell_id", "repetition"], observed=True)["time_s"]
    }
    return [
        _draw_steps(times_by_run.get((cell_id, run), ()), longest_s.get(cell_id, 0.0))
        for cell_id, run in zip(runs["cell_id"], runs["repetition"], strict=True)
    ]


def _draw_steps(times_s: Sequence[float], longest_s: float) -> str:
    """Return at most 40 characters. Of neighbouring steps that share one, the longest counts."""
    if not len(times_s) or not longest_s > 0:
        return ""
    groups = np.array_split(np.asarray(times_s), min(len(times_s), _MAX_STEPS_PER_RUN))
    return "".join(np.base_repr(round(_STEP_LEVELS * float(group.max()) / longest_s), 36).lower() for group in groups)

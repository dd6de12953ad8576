"""The three tables everything right of the records is made from: runs, cells and leases.

`runs`: one row a run. `cells`: one row a *planned* cell, measured or not. `leases`: one row a lease.
All rows have a fixed order and all fixed columns are there for empty input too, so files are equal byte for byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from campaign import statistics
from campaign.documents.cell import Cell
from campaign.documents.record import Record, RecordedCell
from campaign.errors import RecordError
from campaign.tables.frames import COUNT, NUMBER, TEXT, frame
from campaign.tables.idle_time import Busy, idle_before
from campaign.tables.port_counters import all_gb_per_s

RUN_COLUMNS: dict[str, str] = {
    "cell_id": TEXT,
    "repetition": COUNT,
    "configuration": TEXT,
    "hosts": COUNT,
    "devices_per_host": COUNT,
    "local_devices_per_host": COUNT,
    "devices_used": COUNT,
    "ranks": COUNT,
    "devices": COUNT,
    "device": TEXT,
    "attach": TEXT,
    "storage": TEXT,
    "workload": TEXT,
    "batch": COUNT,
    "batch_global": COUNT,
    "precision": TEXT,
    "status": TEXT,
    "failure_reason": TEXT,
    "throughput_per_s": NUMBER,
    "throughput_per_device_per_s": NUMBER,
    "throughput_printed_per_s": NUMBER,
    "step_median_s": NUMBER,
    "step_p95_s": NUMBER,
    "step_cv_pct": NUMBER,
    "wall_s": NUMBER,
    "started": NUMBER,
    "ended": NUMBER,
    "idle_before_s": NUMBER,
    "lease_id": TEXT,
    "host_names": TEXT,
    "flags": TEXT,
    "log": TEXT,
    "stopped": TEXT,
    "implied_by": TEXT,
}

# What becomes of a cell.
STATES = ("measured", "failed", "implied", "missing")

_AXIS_NAMES = (
    "cell_id",
    "configuration",
    "hosts",
    "devices_per_host",
    "local_devices_per_host",
    "devices_used",
    "ranks",
    "devices",
    "device",
    "attach",
    "storage",
    "workload",
    "batch",
    "batch_global",
    "precision",
)

PLAN_COLUMNS = {**{name: RUN_COLUMNS[name] for name in _AXIS_NAMES}, "n_planned": COUNT, "lease": TEXT}

LEASE_COLUMNS: dict[str, str] = {
    "lease_id": TEXT,
    "configuration": TEXT,
    "state": TEXT,
    "fabric_s": NUMBER,
    "visible_s": NUMBER,
    "readying_s": NUMBER,
    "compose_s": NUMBER,
    "held_s": NUMBER,
    "release_s": NUMBER,
    "ports_gb_per_s": NUMBER,
    "operations": COUNT,
    "retries": COUNT,
    "mismatches": COUNT,
    "faults": COUNT,
}


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell of the plan: how often it is to be run, under which lease, and why a repetition has no record (yet)."""

    cell: Cell
    repetitions: int
    lease: str
    missing: Mapping[int, str] = field(default_factory=dict)


def runs_table(records: Iterable[Record], others: Iterable[Busy] = ()) -> pd.DataFrame:
    """One row a run, in the order of (cell_id, repetition).

    throughput_per_s is there for runs that are `ok`; what another run printed is in throughput_printed_per_s, so that
    it cannot be averaged by accident. Step columns are of the slowest rank, which sets the pace of all. Options become
    `option_<name>`; metrics keep their name, or get the prefix `metric_` where it is taken. idle_before_s: from the end of the
    run before on the same lease, which may be one of the `others`; nan for the first run, and where nothing was started.
    log: relative to the results directory, of an imported run to the directory that was imported; empty where nothing was
    started. wall_s: nan where an imported log does not say it.
    """
    rows: list[dict[str, Any]] = []
    steps: list[tuple[float, ...]] = []
    for record in records:
        rows.append(_run_row(record))
        steps.append(_slowest_rank(record))
    table = frame(rows, RUN_COLUMNS, _step_columns(steps))
    table = table.sort_values(["cell_id", "repetition"], kind="stable", ignore_index=True)
    return table.assign(idle_before_s=idle_before(table, others))


def _run_row(record: Record) -> dict[str, Any]:
    cell = record.cell
    ranks = cell.hosts * cell.devices_used
    believed = record.status == "ok"
    rate = record.throughput_per_s
    return {
        "cell_id": record.cell_id,
        "repetition": record.repetition,
        **{name: getattr(cell, name) for name in RecordedCell.model_fields if name != "options"},
        "ranks": ranks,
        "devices": cell.hosts * cell.devices_per_host,
        "batch_global": cell.batch * ranks,
        **{f"option_{name}": value for name, value in cell.options.items()},
        "status": record.status,
        "failure_reason": record.failure.reason if record.failure else "",
        "throughput_per_s": rate if believed else None,
        "throughput_per_device_per_s": rate / ranks if believed and rate is not None else None,
        "throughput_printed_per_s": None if believed else rate,
        "wall_s": None if record.source is not None and not record.source.timed else record.ended - record.started,
        "started": record.started,
        "ended": record.ended,
        "lease_id": record.lease_id,
        "host_names": ", ".join(record.hosts),
        "flags": ", ".join(record.flags),
        "log": record.log or (record.source.path if record.source else ""),
        "stopped": record.stopped,
        "implied_by": record.implied_by,
        **{f"metric_{name}" if name in RUN_COLUMNS else name: value for name, value in record.metrics.items()},
    }


def _slowest_rank(record: Record) -> tuple[float, ...]:
    """Step times of the rank with the longest window; without windows, of the one with the largest sum."""
    if not record.step_times_s:
        return ()
    windows = record.window_s if len(record.window_s) == len(record.step_times_s) else [*map(sum, record.step_times_s)]
    return record.step_times_s[int(np.argmax(windows))]


def _step_columns(steps: Sequence[tuple[float, ...]]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Median, 95th percentile and CV of each row of steps; runs of equally many steps are computed together."""
    columns = {name: np.full(len(steps), np.nan) for name in ("step_median_s", "step_p95_s", "step_cv_pct")}
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for position, times in enumerate(steps):
        by_length[len(times)].append(position)
    for length, positions in by_length.items():
        if not length:
            continue
        block = np.array([steps[position] for position in positions])
        columns["step_median_s"][positions] = np.median(block, axis=1)
        columns["step_p95_s"][positions] = np.percentile(block, 95, axis=1)
        if length > 1:
            mean = block.mean(axis=1)
            columns["step_cv_pct"][positions] = 100.0 * block.std(axis=1, ddof=1) / np.where(mean > 0, mean, np.nan)
    return columns


def cells_table(planned: Iterable[PlannedCell], runs: pd.DataFrame) -> pd.DataFrame:
    """One row a planned cell, in the order of the plan: its axes, how many runs it has, and their summary.

    state: `measured` (a run is ok), `failed` (it was run, none is ok), `implied` (not run: a smaller batch ran out of memory) or
    `missing` (no run). n_ok counts the runs that are ok and have a throughput. Throughput columns (median,
    mean, sd, min, max; samples per second) are over ok runs; ci_low and ci_high bound the mean, median_low and median_high the
    median, at 95 %, and interval_method and median_method say how. n_outliers, outliers: the runs that lie far from the others
    (`campaign.statistics.outliers`), which count like any other.
    stopped: why a target, or the most repetitions under one, ended the cell.
    Runs of cells that are not planned are left out; repetitions beyond the planned number are measurements and count.
    """
    plan = list(planned)
    table = frame([_planned_row(entry) for entry in plan], PLAN_COLUMNS, {})
    ids = table["cell_id"]
    groups = runs.groupby("cell_id", sort=False)
    ok = runs[runs["status"] == "ok"].groupby("cell_id", sort=False)
    table["n_ok"] = _counts(ids, ok["throughput_per_s"].count())
    implied = runs[runs["status"] == "implied"].groupby("cell_id", sort=False)
    table["n_implied"] = _counts(ids, implied.size())
    table["n_failed"] = _counts(ids, groups.size()) - _counts(ids, ok.size()) - table["n_implied"]
    present = {(str(cell), int(n)) for cell, n in zip(runs["cell_id"], runs["repetition"], strict=True)}
    absent = [[n for n in range(1, e.repetitions + 1) if (e.cell.id, n) not in present] for e in plan]
    table["n_missing"] = np.array([len(each) for each in absent], dtype=np.int64)
    measured, ran = _counts(ids, ok.size()).to_numpy() > 0, table["n_failed"].to_numpy() > 0
    known = np.where(table["n_implied"] > 0, "implied", "missing")
    state = np.where(measured, "measured", np.where(ran, "failed", known))
    table["state"] = pd.Series(state, index=table.index, dtype="str")
    failed = runs[runs["status"] != "ok"]
    table["failures"] = _tallies(ids, failed, "status")
    table["failure_reasons"] = _tallies(ids, failed, "failure_reason")
    reasons = [tally([e.missing.get(n, "no record") for n in gone]) for e, gone in zip(plan, absent, strict=True)]
    table["missing_reasons"] = pd.Series(reasons, index=table.index, dtype="str")
    table["flags"] = _tallies(ids, runs[runs["flags"] != ""], "flags", count=False)
    # A cell that went on under another target has ended more than once; the last time counts.
    stopped = runs[runs["stopped"] != ""]
    ended = dict(zip(stopped["cell_id"], stopped["stopped"], strict=True))
    table["stopped"] = pd.Series([ended.get(i, "") for i in ids], index=ids.index, dtype="str")
    table["step_median_s"] = ids.map(ok["step_median_s"].median()).astype("float64")
    return _with_summary(table, runs[(runs["status"] == "ok") & runs["throughput_per_s"].notna()])


def _with_summary(table: pd.DataFrame, ok: pd.DataFrame) -> pd.DataFrame:
    places, names = pd.factorize(table["cell_id"])
    ok = ok.assign(place=pd.Index(names).get_indexer(ok["cell_id"]))
    ok = ok[ok["place"] >= 0]
    found = statistics.summaries(ok["throughput_per_s"], ok["place"], len(names))
    named = _outliers(ok[found.outlier], found.median)
    numbers = {
        "median": found.median,
        "mean": found.mean,
        "sd": found.sd,
        "min": found.minimum,
        "max": found.maximum,
        "cv_pct": found.cv_pct,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "interval_method": found.interval_method,
        "median_low": found.median_low,
        "median_high": found.median_high,
        "median_method": found.median_method,
        "n_outliers": np.bincount(ok["place"][found.outlier], minlength=len(names)),
        "outliers": np.array([named.get(place, "") for place in range(len(names))], dtype=object),
    }
    columns = {name: pd.Series(values[places], index=table.index) for name, values in numbers.items()}
    words = {name: column.astype("str") for name, column in columns.items() if column.dtype == object}
    return table.assign(**{**columns, **words})


def _outliers(runs: pd.DataFrame, medians: np.ndarray[Any, np.dtype[np.float64]]) -> dict[int, str]:
    """By place of their cell, which repetitions lie far from the others, and how far from the median: '3 (-12.4 %)'."""
    said: defaultdict[int, list[str]] = defaultdict(list)
    for place, repetition, rate in zip(runs["place"], runs["repetition"], runs["throughput_per_s"], strict=True):
        median = medians[place]
        away = f" ({100 * (rate / median - 1):+.1f} %)" if median else ""
        said[int(place)].append(f"{repetition}{away}")
    return {place: ", ".join(texts) for place, texts in said.items()}


def _planned_row(entry: PlannedCell) -> dict[str, Any]:
    cell, configuration = entry.cell, entry.cell.configuration
    return {
        "cell_id": cell.id,
        "configuration": configuration.name,
        **configuration.shape(),
        "ranks": configuration.ranks,
        "devices": configuration.devices,
        "workload": cell.workload,
        "batch": cell.batch,
        "batch_global": cell.batch_global,
        "precision": cell.precision,
        **{f"option_{name}": value for name, value in cell.options.items()},
        "n_planned": entry.repetitions,
        "lease": entry.lease,
    }


def leases_table(leases: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a lease in the given order: how long each part of composing it took, in seconds; nan where unknown.

    fabric_s: request to the fabric's last answer; visible_s: until the hosts see the devices; readying_s: until a run can
    start; compose_s: the three together; held_s: ready to the start of the release; release_s: the release itself.
    ports_gb_per_s: what the fabric's ports carried on average, all together.
    """
    return frame([_lease_row(lease) for lease in leases], LEASE_COLUMNS, {})


def _lease_row(lease: Mapping[str, Any]) -> dict[str, Any]:
    def between(start: str, end: str) -> float | None:
        first, last = lease.get(start), lease.get(end)
        return None if first is None or last is None else float(last) - float(first)

    releasing = "release_started_s" if lease.get("release_started_s") is not None else "released_s"
    return {
        "lease_id": lease["lease_id"],
        "configuration": lease["configuration"],
        "state": lease["state"],
        "fabric_s": between("requested_s", "fabric_done_s"),
        "visible_s": between("fabric_done_s", "host_visible_s"),
        "readying_s": between("host_visible_s", "ready_s"),
        "compose_s": between("requested_s", "ready_s"),
        "held_s": between("ready_s", releasing),
        "release_s": between("release_started_s", "released_s"),
        "ports_gb_per_s": all_gb_per_s(lease.get("readings") or ()),
        **{name: _size(lease.get(name)) for name in ("operations", "retries", "mismatches", "faults")},
    }


def _size(value: Any) -> int:
    """A count, or the length of what was counted."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int | float) else len(value)


def write_tables(directory: Path, runs: pd.DataFrame, cells: pd.DataFrame) -> None:
    """Write runs and cells as Parquet (types kept) and CSV (for people); RecordError when that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in (("runs", runs), ("cells", cells)):
            table.to_parquet(directory / f"{name}.parquet", engine="pyarrow", compression="zstd", index=False)
            table.to_csv(directory / f"{name}.csv", index=False, lineterminator="\n")
    except OSError as error:
        raise RecordError(f"{directory}: tables could not be written ({error.strerror or error})") from error


def tally(texts: Iterable[str]) -> str:
    """'oom_device x3, nan': each text with how often it came, in the order of its first coming."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(text if n == 1 else f"{text} x{n}" for text, n in counts.items() if text)


def _counts(ids: pd.Series[str], counts: Any) -> pd.Series[int]:
    return ids.map(counts).fillna(0).astype("int64")


def _tallies(ids: pd.Series[str], runs: pd.DataFrame, column: str, count: bool = True) -> pd.Series[str]:
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for cell_id, text in zip(runs["cell_id"], runs[column], strict=True):
        texts[cell_id].extend([text] if count else text.split(", "))
    joined = [tally(texts.get(i, ()) if count else dict.fromkeys(texts.get(i, ()))) for i in ids]
    return pd.Series(joined, index=ids.index, dtype="str")

"""Tables of runs and of their steps. Their columns are fixed, also if they are empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics.step_times import compute_ties_pct, compute_trend_pct
from campaign.analysis.tables.columns import MEASURED_COLUMNS, RUNS, STEPS, list_column_types
from campaign.analysis.tables.io import COUNT, NUMBER, TEXT, build_column, build_frame
from campaign.analysis.tables.leases import BusySpan, compute_idle_before
from campaign.plan.control_runs import hash_hardware
from campaign.spec.host_load import HostLoad
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.record import IMPORTED_LEASE_PREFIX, Record, RecordedCell
from campaign.spec.run_numbers import get_composition_number

RUN_COLUMNS = list_column_types(RUNS)


def build_runs_table(
    records: Iterable[Record],
    other_uses: Iterable[BusySpan] = (),
    metric: Metric = THROUGHPUT,
) -> pd.DataFrame:
    """Build the runs table: one row per run, in the order of (cell_id, repetition).

    value: primary metric of `ok` runs with a positive number. throughput_per_s: of `ok` runs; rates printed by other runs are
    in throughput_printed_per_s, so that they cannot be averaged by accident. Step columns are those of the slowest rank,
    which sets the pace of all. Options become `option_<name>`. Metrics keep their name, or get the prefix `metric_` if it is
    taken. idle_before_s: seconds since the end of the previous run on the same lease, which may be one of the other uses; nan
    for the first run, and if nothing was started. log: path relative to the results directory, or to the imported directory
    for an imported run; empty if nothing was started. wall_s: nan if it is missing from an imported log.

    Args:
        records: records of the runs.
        other_uses: times at which other runs used the same leases.
        metric: primary metric.
    """
    records = list(records)
    step_columns = _compute_step_columns([select_slowest_rank(record) for record in records])
    table = build_frame(_build_run_rows(records), RUN_COLUMNS, step_columns)
    table = table.sort_values(["cell_id", "repetition"], kind="stable", ignore_index=True)
    return table.assign(
        value=_select_metric_values(table, metric), idle_before_s=compute_idle_before(table, other_uses)
    )


def build_reference_table(records: Sequence[Record], metric: Metric = THROUGHPUT) -> pd.DataFrame:
    """Build the runs table of the reference; its `hardware` is equal for the same work on the same device model."""
    hardware_by_cell = {record.cell_id: hash_hardware(record.specification) for record in records}
    table = build_runs_table(records, metric=metric)
    return table.assign(hardware=table["cell_id"].map(hardware_by_cell).astype("str"))


def choose_metric_column(name: str) -> str:
    """Return the name of the column of the runs table that holds a given metric."""
    return f"metric_{name}" if name in RUN_COLUMNS and name not in MEASURED_COLUMNS else name


def _select_metric_values(table: pd.DataFrame, metric: Metric) -> pd.Series[float]:
    """Return the primary metric of valid runs; nan for others.

    Costs and ratios need a positive number, and no real measurement is zero.
    """
    column = choose_metric_column(metric.name)
    if column not in table.columns:
        return pd.Series(np.nan, index=table.index, dtype="float64")
    numbers = table[column].astype("float64")
    return numbers.where((table["status"] == "ok") & (numbers > 0) & np.isfinite(numbers))


_CELL_FIELDS = tuple(name for name in RecordedCell.model_fields if name != "options")


def _build_run_rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield one row per record. Cell values are built once for consecutive records of the same cell."""
    cell_values: dict[str, Any] = {}
    last: Record | None = None
    for record in records:
        if last is None or record.cell is not last.cell or record.specification is not last.specification:
            cell_values = _build_cell_values(record)
        last = record
        yield cell_values | _build_run_values(record, cell_values["ranks"])


def _build_cell_values(record: Record) -> dict[str, Any]:
    """Build the row values that all runs of a cell have in common."""
    cell, configuration = record.cell, record.requested_configuration
    warmup_steps = record.specification.get("warmup_steps", 0)
    return {
        "cell_id": record.cell_id,
        **{name: getattr(cell, name) for name in _CELL_FIELDS},
        "system": record.system,
        "version": record.specification.get("version", ""),
        "ranks": configuration.ranks,
        "devices": configuration.devices,
        "batch_global": cell.batch * configuration.ranks,
        "warmup_steps": warmup_steps,
        "warmup_steps_max": record.specification.get("warmup_steps_max", warmup_steps),
        **{f"option_{name}": value for name, value in cell.options.items()},
    }


def _build_run_values(record: Record, ranks: int) -> dict[str, Any]:
    """Build the row values that are specific to one run."""
    valid = record.status == "ok"
    rate = record.throughput_per_s
    measured_steps = max(map(len, record.step_times_s), default=0)
    values = {
        "repetition": record.repetition,
        "composition": get_composition_number(record.repetition),
        "status": record.status,
        "failure_reason": record.failure.reason if record.failure else "",
        "throughput_per_s": rate if valid else None,
        "throughput_per_device_per_s": rate / ranks if valid and rate is not None else None,
        "throughput_printed_per_s": None if valid else rate,
        "wall_s": None if record.source is not None and not record.source.timed else record.ended - record.started,
        "started": record.started,
        "ended": record.ended,
        "measured_steps": measured_steps,
        "measured_steps_min": record.specification["measured_steps"]
        if record.specification.get("measured_min_s")
        else measured_steps,
        "window_s": max(record.window_s, default=None),
        **_summarize_loads(record.loads),
        # Logs without a lease may all be of one composition, so they are not treated as several compositions.
        "lease_id": "" if record.lease_id.rpartition(".")[2].startswith(IMPORTED_LEASE_PREFIX) else record.lease_id,
        "host_names": ", ".join(record.hosts),
        "ran_on": ", ".join(record.ran_on),
        "in_force": ", ".join(f"{name} {record.in_force[name]}" for name in sorted(record.in_force)),
        "flags": ", ".join(flag.replace(", ", "; ") for flag in record.flags),
        "log": record.log or (record.source.path if record.source else ""),
        "stopped": record.stopped,
        "implied_by": record.implied_by,
        **{f"metric_{name}" if name in RUN_COLUMNS else name: value for name, value in record.metrics.items()},
    }
    return values if record.warmup_steps is None else values | {"warmup_steps": record.warmup_steps}


def _summarize_loads(loads: Sequence[HostLoad]) -> dict[str, float | None]:
    """Return the load columns of a run: seconds of all hosts, and the largest share of any host; None if unknown."""
    return {
        "own_load_s": sum(load.own_s for load in loads) if loads else None,
        "foreign_load_s": sum(load.foreign_s for load in loads) if loads else None,
        "own_load_pct": max((load.own_pct for load in loads), default=None),
        "foreign_load_pct": max((load.foreign_pct for load in loads), default=None),
    }


def _compute_step_columns(steps: Sequence[Sequence[float]]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Compute the step columns of all runs; runs with equally many steps are computed together."""
    names = ("step_median_s", "step_p95_s", "step_cv_pct", "step_error_pct", "step_trend_pct", "step_ties_pct")
    columns = {name: np.full(len(steps), np.nan) for name in names}
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
            cv_pct = 100.0 * block.std(axis=1, ddof=1) / np.where(mean > 0, mean, np.nan)
            columns["step_cv_pct"][positions] = cv_pct
            columns["step_error_pct"][positions] = cv_pct / np.sqrt(length)
        columns["step_trend_pct"][positions] = compute_trend_pct(block)
        columns["step_ties_pct"][positions] = compute_ties_pct(block)
    return columns


STEP_COLUMNS = list_column_types(STEPS)
MAX_STEPS = 200
"""Maximum number of steps per run in the table. Further steps are replaced by evenly spaced quantiles of their distribution."""


def select_slowest_rank(record: Record) -> Sequence[float]:
    """Return the step times of the rank with the longest window; without windows, those of the rank with the largest sum."""
    if not record.step_times_s:
        return ()
    windows = record.window_s if len(record.window_s) == len(record.step_times_s) else [*map(sum, record.step_times_s)]
    return record.step_times_s[max(range(len(windows)), key=windows.__getitem__)]


def build_step_times_table(records: Iterable[Record]) -> pd.DataFrame:
    """Build the table of steps of valid runs, one row per step, in ascending order of time within each run."""
    keys: list[tuple[str, int]] = []
    sizes: list[int] = []
    times = bytearray()  # Separate arrays per run take twice the memory.
    for record in records:
        steps = np.sort(np.array(select_slowest_rank(record) if record.status == "ok" else (), dtype=np.float64))
        if steps.size > MAX_STEPS:
            steps = np.quantile(steps, np.linspace(0.0, 1.0, MAX_STEPS))
        keys.append((record.cell_id, record.repetition))
        sizes.append(steps.size)
        times += steps.tobytes()
    cells, repetitions = ([key[part] for key in keys] for part in (0, 1))
    columns = {
        "cell_id": build_column(cells, TEXT).repeat(sizes).reset_index(drop=True),
        "repetition": build_column(np.repeat(np.array(repetitions, dtype=np.int64), sizes), COUNT),
        "time_s": build_column(np.frombuffer(times, dtype=np.float64), NUMBER),
    }
    return pd.DataFrame({name: columns[name] for name in STEP_COLUMNS})

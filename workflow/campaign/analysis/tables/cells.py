"""Table of planned cells, with one row per cell, measured or not. Its columns are fixed, also if it is empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons, summary
from campaign.analysis.statistics.step_times import summarize_windows
from campaign.analysis.tables.columns import PLANNED_COLUMNS, list_column_types
from campaign.analysis.tables.io import build_frame
from campaign.common import intervals
from campaign.spec.cell import Cell
from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.run_numbers import format_run_number

# States of a cell.
CELL_STATES = ("measured", "failed", "implied", "missing")


PLAN_COLUMNS = list_column_types(PLANNED_COLUMNS)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """Planned cell with its runs, its lease, and the reason why each missing run has no record.

    lease: lease of its first composition. missing: reason by run number. runs: numbers of the planned runs; empty for
    1, 2, .. in one composition. price_per_h: price of its composed devices, None without prices. version: version label
    of the campaign.
    """

    cell: Cell
    repetitions: int
    lease: str
    missing: Mapping[int, str] = field(default_factory=dict)
    runs: tuple[int, ...] = ()
    price_per_h: float | None = None
    version: str = ""

    @property
    def run_numbers(self) -> Sequence[int]:
        """Numbers of the planned runs."""
        return self.runs or range(1, self.repetitions + 1)


def build_cells_table(
    cell_plans: Iterable[CellPlan],
    runs: pd.DataFrame,
    metric: Metric = THROUGHPUT,
    earlier: Sequence[EarlierSpread] = (),
) -> pd.DataFrame:
    """Build the cells table: one row per planned cell, in the order of the plan, with its axes, numbers of runs and summary.

    state: `measured` (a run is ok), `failed` (it was run, none is ok), `implied` (not run, because a smaller batch ran out of
    memory) or `missing` (no run). n_ok: number of ok runs with a value of the primary metric. The summary (median, mean, sd,
    min, max) is over ok runs. mean is the harmonic one, total work over total time, with outliers clipped
    (`campaign.analysis.statistics.location`). ci_low and ci_high bound it, median_low and median_high bound the median, at 95
    %; interval_method and median_method are the methods. n_outliers, outliers: runs far from the others
    (`campaign.analysis.statistics.summary`). window: problems of the measured windows
    (`campaign.analysis.statistics.step_times.summarize_windows`). stopped: reason that ended the cell, which is a target or
    the maximum number of repetitions under one. Runs of cells that are not planned are left out; repetitions beyond the
    planned number are measurements and count.

    Args:
        cell_plans: planned cells.
        runs: runs table.
        metric: primary metric.
        earlier: spreads of compositions in earlier campaigns, which cells with one composition borrow.
    """
    plan = list(cell_plans)
    table = build_frame(map(_build_planned_row, plan), PLAN_COLUMNS, {})
    ids = table["cell_id"]
    groups = runs.groupby("cell_id", sort=False)
    ok = runs[runs["status"] == "ok"].groupby("cell_id", sort=False)
    table["n_ok"] = _map_counts(ids, ok["value"].count())
    implied_runs = runs[runs["status"] == "implied"].groupby("cell_id", sort=False)
    table["n_implied"] = _map_counts(ids, implied_runs.size())
    table["n_failed"] = _map_counts(ids, groups.size()) - _map_counts(ids, ok.size()) - table["n_implied"]
    present = {(str(cell), int(n)) for cell, n in zip(runs["cell_id"], runs["repetition"], strict=True)}
    absent = [[n for n in entry.run_numbers if (entry.cell.id, n) not in present] for entry in plan]
    table["n_missing"] = np.array([len(numbers) for numbers in absent], dtype=np.int64)
    is_measured, has_failed = _map_counts(ids, ok.size()).to_numpy() > 0, table["n_failed"].to_numpy() > 0
    unmeasured_state = np.where(table["n_implied"] > 0, "implied", "missing")
    state = np.where(is_measured, "measured", np.where(has_failed, "failed", unmeasured_state))
    table["state"] = pd.Series(state, index=table.index, dtype="str")
    failed_runs = runs[runs["status"] != "ok"]
    table["failures"] = _count_texts_by_cell(ids, failed_runs, "status")
    table["failure_reasons"] = _count_texts_by_cell(ids, failed_runs, "failure_reason")
    reasons = [
        count_texts([entry.missing.get(n, "no record") for n in absent_numbers])
        for entry, absent_numbers in zip(plan, absent, strict=True)
    ]
    table["missing_reasons"] = pd.Series(reasons, index=table.index, dtype="str")
    table["flags"] = _count_texts_by_cell(ids, runs[runs["flags"] != ""], "flags", count=False)
    marks = summarize_windows(runs)["window"].to_dict()
    table["window"] = pd.Series([marks.get(i, "") for i in ids], index=ids.index, dtype="str")
    # A cell that was continued under another target has ended more than once. The last time counts.
    stopped_runs = runs[runs["stopped"] != ""]
    stop_reasons = dict(zip(stopped_runs["cell_id"], stopped_runs["stopped"], strict=True))
    table["stopped"] = pd.Series([stop_reasons.get(i, "") for i in ids], index=ids.index, dtype="str")
    table["step_median_s"] = ids.map(ok["step_median_s"].median()).astype("float64")
    return _add_summary(table, runs, metric, earlier)


def _add_summary(
    table: pd.DataFrame, runs: pd.DataFrame, metric: Metric, earlier: Sequence[EarlierSpread]
) -> pd.DataFrame:
    """Add the summary of the primary metric to the cells table."""
    ok = runs[(runs["status"] == "ok") & runs["value"].notna()]
    places, names = pd.factorize(table["cell_id"])
    ok = ok.assign(place=pd.Index(names).get_indexer(ok["cell_id"]))
    ok = ok[ok["place"] >= 0]
    summaries = summary.summarize_samples(ok["value"], ok["place"], len(names))
    locations = _estimate_locations(names, runs, metric, earlier, summaries.median)
    outlier_texts = _describe_outliers(ok[summaries.outlier], summaries.median)
    numbers = {
        "median": summaries.median,
        "mean": locations["mean"],
        "sd": summaries.sd,
        "min": summaries.minimum,
        "max": summaries.maximum,
        "cv_pct": summaries.cv_pct,
        "ci_low": locations["ci_low"],
        "ci_high": locations["ci_high"],
        "interval_method": locations["interval_method"],
        # Over compositions, and not narrower than the interval over runs, which includes two modes and outliers.
        "median_low": np.fmin(locations["median_low"], summaries.median_low),
        "median_high": np.fmax(locations["median_high"], summaries.median_high),
        "median_method": np.where(locations["between"], locations["interval_method"], summaries.median_method),
        "n_outliers": np.bincount(ok["place"][summaries.outlier], minlength=len(names)),
        "outliers": np.array([outlier_texts.get(place, "") for place in range(len(names))], dtype=object),
    }
    columns = {name: pd.Series(values[places], index=table.index) for name, values in numbers.items()}
    words = {name: column.astype("str") for name, column in columns.items() if column.dtype == object}
    return table.assign(**{**columns, **words})


def _estimate_locations(
    names: Any,
    runs: pd.DataFrame,
    metric: Metric,
    earlier: Sequence[EarlierSpread],
    medians: np.ndarray[Any, np.dtype[np.float64]],
) -> dict[str, Any]:
    """Estimate the location of each cell with its interval, and the interval of its median.

    If the spread of compositions is known (`between`), the interval of the median includes it.
    """
    earlier_spreads = [spread for spread in earlier if spread.metric == metric.name]
    design = comparisons.build_design(runs, higher_is_better=metric.is_higher_better, earlier=earlier_spreads)
    index = design.cells.get_indexer(pd.Index(names))
    estimates, methods = design.estimate_locations()
    is_in_design = index >= 0
    columns = dict(zip(("mean", "ci_low", "ci_high"), estimates.compute_bounds(), strict=True))
    middle = np.full(design.cells.size, np.nan)
    middle[index[is_in_design]] = medians[is_in_design]
    columns |= dict(
        zip(("median", "median_low", "median_high"), design.estimate_medians(middle).compute_bounds(), strict=True)
    )
    locations = {
        name: np.where(is_in_design, values[index] if values.size else np.nan, np.nan)
        for name, values in columns.items()
    }
    words = np.where(is_in_design, methods[index] if methods.size else "", intervals.NO_INTERVAL_NO_RUN)
    return {**locations, "between": np.isfinite(locations["median_low"]), "interval_method": words.astype(object)}


def _describe_outliers(runs: pd.DataFrame, medians: np.ndarray[Any, np.dtype[np.float64]]) -> dict[int, str]:
    """Describe the outliers of each cell, by the index of the cell: number of the run and distance from the median."""
    descriptions: defaultdict[int, list[str]] = defaultdict(list)
    for place, repetition, rate in zip(runs["place"], runs["repetition"], runs["value"], strict=True):
        median = medians[place]
        distance = f" ({100 * (rate / median - 1):+.1f} %)" if median else ""
        descriptions[int(place)].append(f"{format_run_number(repetition)}{distance}")
    return {place: "; ".join(texts) for place, texts in descriptions.items()}


def _build_planned_row(entry: CellPlan) -> dict[str, Any]:
    """Build the values of the columns that describe one cell as planned."""
    cell, configuration = entry.cell, entry.cell.configuration
    return {
        "cell_id": cell.id,
        "configuration": configuration.name,
        "system": configuration.system,
        "version": entry.version,
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
        "price_per_h": entry.price_per_h,
    }


def count_texts(texts: Iterable[str]) -> str:
    """Count equal texts, in the order of first occurrence, such as 'oom_device x3, nan'."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(text if n == 1 else f"{text} x{n}" for text, n in counts.items() if text)


def _map_counts(ids: pd.Series[str], counts: Any) -> pd.Series[int]:
    """Look up the count of each cell id; ids without a count get 0."""
    return ids.map(counts).fillna(0).astype("int64")


def _count_texts_by_cell(ids: pd.Series[str], runs: pd.DataFrame, column: str, count: bool = True) -> pd.Series[str]:
    """Join the texts in a column over the runs of each cell, with counts or without repetition."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for cell_id, text in zip(runs["cell_id"], runs[column], strict=True):
        texts[cell_id].extend([text] if count else text.split(", "))
    cell_texts = [count_texts(texts.get(i, ()) if count else dict.fromkeys(texts.get(i, ()))) for i in ids]
    return pd.Series(cell_texts, index=ids.index, dtype="str")

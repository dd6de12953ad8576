"""What the requests of a service say of its cells: latencies, the share that meets all objectives, the highest rate that holds.

Requests have their latencies from when they were meant to be sent. One that failed is infinitely late: it misses every objective.
A series is what is equal but for the rate: its cells are points of one curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pandas as pd

from campaign.statistics import comparable_cells, comparisons
from campaign.statistics.comparisons import Design
from campaign.statistics.highest_rate import HighestRate, Objective, crossing, highest_rate
from campaign.statistics.intervals import ON_HOSTS
from campaign.statistics.latency_percentiles import Sample, quantile, samples, share_within

RATE = "option_rate_per_s"
LATENCIES = {"ttft_ms": "time to first token", "tpot_ms": "time per output token", "e2e_ms": "time of a whole request"}
MET = "met"
LATE_PCT, LATE_MS = 1.0, (2.0, 5.0)
"""A load generator is too late where the 99th percentile of its lateness is above this part of the median latency, or what of these
bounds is near: as the built-in one flags its runs."""
_OF_A_FAILED_RUN = 10_000  # requests without end, enough for any percentile


def latencies(requests: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Requests inside of the window with lease_id, ttft_ms, tpot_ms, e2e_ms and late_ms."""
    rows = requests[requests["in_window"]]
    rows = rows.merge(_with_leases(runs)[["cell_id", "repetition", "lease_id"]], on=["cell_id", "repetition"])
    failed = rows["error"].fillna("") != ""
    more = rows["output_tokens"] - 1
    of = {
        "ttft_ms": rows["first_s"] - rows["intended_s"],
        "tpot_ms": ((rows["last_s"] - rows["first_s"]) / more).where(more > 0),
        "e2e_ms": rows["last_s"] - rows["intended_s"],
    }
    late = {name: (1e3 * value).mask(failed, np.inf) for name, value in of.items()}
    found = rows[["cell_id", "repetition", "lease_id", "intended_s"]]
    return found.assign(**late, late_ms=1e3 * (rows["sent_s"] - rows["intended_s"]), failed=failed)


def _with_leases(runs: pd.DataFrame) -> pd.DataFrame:
    """Requests with lease_id; without one, all runs count as of one lease, as nothing says otherwise."""
    return runs.assign(lease_id=runs["lease_id"].where(runs["lease_id"] != "", "no lease of " + runs["configuration"]))


def lateness(rows: pd.DataFrame) -> pd.DataFrame:
    """Lateness of the load generator, by cell_id: late_ms (99th percentile), and whether the generator was too late
    for latencies to be the server's."""
    groups = rows.groupby("cell_id", sort=False)
    late, median = groups["late_ms"].quantile(0.99), groups["e2e_ms"].median()
    return pd.DataFrame({"late_ms": late, "too_late": late > (LATE_PCT / 100 * median).clip(*LATE_MS)})


def series_columns(cells: pd.DataFrame) -> list[str]:
    """What tells the series of a campaign from each other, the configuration first."""
    return [name for name in comparable_cells.naming_columns(cells) if name != RATE]


def rated(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with an offered rate: `rate_per_s`, and `series`, the id of the first cell of the same series."""
    rate = pd.to_numeric(cells[RATE], errors="coerce") if RATE in cells else pd.Series(np.nan, index=cells.index)
    rows = cells.assign(rate_per_s=rate)[rate > 0].sort_values("rate_per_s", kind="stable")
    names = series_columns(cells)
    first = rows.groupby(names, sort=False, dropna=False)["cell_id"].transform("first")
    return rows.assign(series=first).sort_index()


def met(rows: pd.DataFrame, cells: pd.DataFrame, objectives: Mapping[str, Sequence[Objective]]) -> pd.DataFrame:
    """One row a cell: `share` of requests that meet all limits of its workload, low and high (95 %); n_requests, n_errors.

    A limit is met by the request itself, whatever percentile the objective is of.
    """
    workload = rows["cell_id"].map(cells.drop_duplicates("cell_id").set_index("cell_id")["workload"])
    worst = pd.Series(np.nan, index=rows.index)
    for name, limits in objectives.items():
        for each in limits:
            # A request of one token has no time per token, and misses nothing by it.
            part = (rows[each.latency] / each.limit).fillna(0.0)
            larger = pd.Series(np.fmax(worst, part), index=rows.index)
            worst = worst.where(workload != name, larger)
    found = samples(rows.assign(**{MET: worst}), MET)
    errors = rows.groupby("cell_id")["failed"].sum()
    table = [
        (cell, *astuple(share_within(sample, 1.0)), sample.size, int(errors[cell])) for cell, sample in found.items()
    ]
    names = ["cell_id", "share", "share_low", "share_high", "n_requests", "n_errors"]
    return pd.DataFrame(table, columns=names)


def highest_rates(
    rows: pd.DataFrame, cells: pd.DataFrame, runs: pd.DataFrame, objectives: Mapping[str, Sequence[Objective]]
) -> pd.DataFrame:
    """One row a series with objectives: the columns of its first cell, and what `HighestRate` has of it.

    rate, rate_low, rate_high; found; decides; again; lowest, largest: measured rates; n_compositions, n_requests: fewest of a rate;
    n_without_requests: failed runs that no percentile holds, of cells with others.
    rows: of `latencies`; cells: of `rated`.
    """
    table = []
    for _, own in cells.groupby("series", sort=False):
        first = own.iloc[0]
        measured = _measured(rows, own, runs, objectives.get(str(first["workload"]), ()))
        if not measured:
            continue
        of = highest_rate(measured)
        by_rate = next(iter(measured.values()))
        fewest = min(each.clusters for each in by_rate.values())
        table.append(
            {
                **{str(name): value for name, value in first.items() if name not in ("rate_per_s", RATE)},
                **_columns(of),
                "lowest": min(by_rate),
                "largest": max(by_rate),
                "n_rates": len(by_rate),
                "n_compositions": fewest,
                "n_requests": min(each.size for each in by_rate.values()),
                "n_ok": int(own["n_ok"].min()),
                "n_without_requests": _without_requests(rows, own, runs),
            }
        )
    return pd.DataFrame(table)


def _columns(of: HighestRate) -> dict[str, Any]:
    return {
        "rate": of.value,
        "rate_low": of.low,
        "rate_high": of.high,
        "found": of.found,
        "decides": f"p{of.decides.percent:g} {of.decides.latency}",
        "limit": of.decides.limit,
        "again": ", ".join(f"{rate:g}" for rate in of.again),
    }


def _measured(
    rows: pd.DataFrame, cells: pd.DataFrame, runs: pd.DataFrame, objectives: Sequence[Objective]
) -> dict[Objective, dict[float, Sample]]:
    """The requests of the cells of one series, or of what is left of it, by objective and rate."""
    rates = cells.set_index("cell_id")["rate_per_s"]
    own = rows[rows["cell_id"].isin(rates.index)]
    found: dict[Objective, dict[float, Sample]] = {}
    for objective in objectives:
        of_cells = {**_of_failed(cells, runs, set(own["cell_id"].unique())), **samples(own, objective.latency)}
        by_rate = {float(rates[cell]): sample for cell, sample in of_cells.items()}
        if by_rate:
            found[objective] = dict(sorted(by_rate.items()))
    return found


def _of_failed(cells: pd.DataFrame, runs: pd.DataFrame, there: set[str]) -> dict[str, Sample]:
    """Samples of the rates at which every run failed: they meet no objective."""
    none = cells[(cells["n_ok"] == 0) & (cells["n_failed"] > 0) & ~cells["cell_id"].isin(there)]
    found = {}
    for cell, failed in runs[runs["cell_id"].isin(none["cell_id"])].groupby("cell_id", sort=False):
        endless = tuple(np.full(_OF_A_FAILED_RUN, np.inf) for _ in range(len(failed)))
        found[str(cell)] = Sample(endless, pd.factorize(failed["lease_id"])[0])
    return found


def _without_requests(rows: pd.DataFrame, cells: pd.DataFrame, runs: pd.DataFrame) -> int:
    known = rows.loc[rows["cell_id"].isin(cells["cell_id"]), ["cell_id", "repetition"]].drop_duplicates()
    failed = runs[runs["cell_id"].isin(known["cell_id"]) & ~runs["status"].isin(["ok", "implied"])]
    return len(failed) - len(failed.merge(known, on=["cell_id", "repetition"]))


def of_compositions(
    rows: pd.DataFrame, cells: pd.DataFrame, runs: pd.DataFrame, objectives: Mapping[str, Sequence[Objective]]
) -> pd.DataFrame:
    """A table like that of runs, for `campaign.statistics.comparisons`: one row a series and composition, with its highest rate.

    These are the jackknife's pseudo-values (Tukey, 1958): what a composition adds to the highest rate of all of them. The mean of
    their inverses is that of the highest rate, so that the ratio of two series is that of their highest rates. Where every series
    was measured on one composition, a row is one block of it. A series without a crossing, with all or without one, is left out.
    """
    several = rows.groupby("cell_id")["lease_id"].nunique().max() > 1
    known = _with_leases(runs).sort_values("repetition", kind="stable")
    by_unit = (
        each.set_index(
            each["lease_id"].to_numpy() + ("" if several else " " + each["repetition"].astype(str).to_numpy())
        )
        for each in (rows, known)
    )
    rows, known = by_unit
    table = []
    for series, own in cells.groupby("series", sort=False):
        limits = objectives.get(str(own["workload"].iloc[0]), ())
        of_rows, of_runs = (each[each["cell_id"].isin(own["cell_id"])] for each in (rows, known))
        keys = of_rows.index.unique()
        whole = _seconds(of_rows, own, of_runs, limits)
        without = np.array([_seconds(of_rows.drop(key), own, of_runs.drop(key), limits) for key in keys])
        parts = whole + (len(keys) - 1) * (without.mean() - without) if len(keys) > 1 else np.array([whole])
        if np.isfinite(parts).all() and (parts > 0).all():
            first = of_runs[~of_runs.index.duplicated()].loc[keys]
            table.append(first.assign(cell_id=series, status="ok", rate=1 / parts))
    columns = [*runs.columns.drop([RATE], errors="ignore"), "rate"]
    return pd.concat(table)[columns].reset_index(drop=True) if table else pd.DataFrame(columns=columns)


def _seconds(rows: pd.DataFrame, cells: pd.DataFrame, runs: pd.DataFrame, limits: Sequence[Objective]) -> float:
    """Seconds a request at the highest rate of a series; 0 where no rate fails, infinite where none holds, nan where unknown."""
    rate = min((_crossed(*each) for each in _measured(rows, cells, runs, limits).items()), default=np.nan)
    return float(np.inf if rate == 0 else 1 / rate)


def _crossed(objective: Objective, by_rate: Mapping[float, Sample]) -> float:
    curve = [quantile(sample, objective.percent / 100.0) for sample in by_rate.values()]
    return crossing(np.array(list(by_rate)), np.array(curve), objective.limit, "logarithm")


def against_baseline(table: pd.DataFrame, baseline: str, by: Design) -> pd.DataFrame:
    """Rows of `highest_rates` beside the baseline's of the same system, workload, precision, options: `ratio` of highest rates.

    baseline: one of each system, joined by ', '. by: design of the table `of_compositions`. Columns as in
    `campaign.statistics.comparable_cells`.
    """
    equal = ["system", *(name for name in series_columns(table) if name != "configuration")]
    base = table[table["configuration"].isin(baseline.split(", "))].drop_duplicates(equal)
    rows = table.merge(base[equal].assign(against_cell=base["series"]), on=equal, how="left")
    found = comparisons.ratios(rows["series"], rows["against_cell"], by)
    # Between the rates that are shown, as long as nothing is taken out of them.
    shown = (rows["rate"] / rows["against_cell"].map(table.set_index("series")["rate"])).to_numpy(dtype=np.float64)
    as_shown = np.isfinite(found.of.ratio) & (found.method != ON_HOSTS)
    found = replace(found, of=replace(found.of, ratio=np.where(as_shown, shown, found.of.ratio)))
    return rows.assign(**found.columns(rows.index))

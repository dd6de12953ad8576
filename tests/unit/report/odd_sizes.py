"""Campaigns of odd sizes, for tests of how figures look: few cells and many, one point, no interval, nothing valid, long names.

Rates and leases are those of `report_data`, links those of `links_data`, telemetry and software those of `metrics_data`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pandas as pd

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.leases import build_leases_table, build_operations_table
from campaign.analysis.tables.runs import build_runs_table, build_step_times_table
from campaign.report.context_schema import ForecastOutcome
from campaign.report.figure import FigureData
from campaign.spec.cell import Cell
from campaign.spec.record import Record
from tests.unit.observe.links import links_data
from tests.unit.report import metrics_data, service_data
from tests.unit.report import report_data as synthetic

KINDS = ("1 cell", "2 cells", "20 cells", "200 cells", "one point", "no interval", "all failed", "long names")


def long(name: str) -> str:
    """A name of 40 characters."""
    return f"{name}-{'as-the-site-names-it-in-its-own-inventory'}"[:40]


def data(kind: str) -> FigureData:
    """The tables of a training campaign of a kind."""
    plan = _plan(kind)
    with _long_workloads():
        records = [_counted(each) for each in (_failed(plan) if kind == "all failed" else synthetic.records(plan))]
    runs = build_runs_table(records)
    cells = build_cells_table(plan, runs)
    named = long if kind == "long names" else str
    there = set(cells["configuration"])
    leases, links = (
        [
            {**each, "configuration": named(each["configuration"])}
            for each in of
            if named(each["configuration"]) in there
        ]
        for of in (synthetic.leases(), [] if kind == "all failed" else links_data.links())
    )
    baseline = named(synthetic.BASELINE) if named(synthetic.BASELINE) in there else cells["configuration"].iloc[0]
    measured = [entry.cell for entry in plan[:40] if kind != "all failed"]
    return FigureData(
        runs,
        cells,
        build_leases_table(leases),
        baseline,
        synthetic.context_document()["campaign"]["protocol"],
        tuple(links),
        telemetry=_series(measured) if measured else pd.DataFrame(),
        steps=build_step_times_table(records),
        context={**metrics_data.context(), "forecast": [_forecast(each) for each in leases if each["ready_s"]]},
        operations=build_operations_table(leases),
    )


def _series(cells: Sequence[Cell]) -> pd.DataFrame:
    """Telemetry, of quantities with long names, too."""
    known = metrics_data.series(cells, points=30)
    more = known[known["quantity"] == "host_memory_mib"].assign(quantity="loopback_rx_gb_per_s")
    return pd.concat([known, more], ignore_index=True)


def services(kind: str) -> FigureData:
    """The tables of a campaign of services of a kind."""
    count = {"1 cell": 1, "one point": 1, "2 cells": 2, "200 cells": 12}.get(kind, 4)
    names = [
        ("1x4-local", "1x4-fabric", "2x4-local", "2x4-fabric")[n % 4] + (f"-{n // 4}" if n > 3 else "")
        for n in range(count)
    ]
    return service_data.figure_data(
        {(long(name) if kind == "long names" else name): 1.0 - 0.04 * n for n, name in enumerate(names)},
        rates={"1 cell": (20.0,), "one point": (20.0,), "200 cells": (5.0, 10.0, 20.0, 25.0)}.get(kind, (20.0, 25.0)),
        compositions=1 if kind == "no interval" else 2,
        runs=1,
        status="crashed" if kind == "all failed" else "ok",
    )


def _plan(kind: str) -> list[CellPlan]:
    whole = [replace(entry, missing={}) for entry in synthetic.planned(1 if kind == "no interval" else 2)]
    if kind == "200 cells":
        fit = [entry for entry in whole if entry.cell.batch == 8]
        more = [_of(entry, batch=batch) for batch in (4, 12) for entry in fit]
        return [*whole, *more][:200]
    first = [entry for entry in whole if entry.cell.batch == 8 and entry.cell.precision == "fp32"]
    if kind == "one point":
        return [entry for entry in whole if entry.cell.configuration.name == synthetic.BASELINE]
    # One workload is enough where the number of panels is not the subject.
    one = [entry for entry in first if entry.cell.workload == "resnet"]
    if kind == "long names":
        some = [entry for entry in whole if (entry.cell.batch, entry.cell.workload) == (8, "resnet")]
        return [
            _of(entry, workload=long(entry.cell.workload), name=long(entry.cell.configuration.name)) for entry in some
        ]
    if kind in ("1 cell", "2 cells"):
        pair = [entry for entry in one if entry.cell.configuration.name in (synthetic.BASELINE, "fabric-4")]
        return pair[: int(kind[0])]
    return {"20 cells": first[:20], "no interval": one}.get(kind, first)


def _of(entry: CellPlan, workload: str = "", batch: int = 0, name: str = "") -> CellPlan:
    of = entry.cell
    at = replace(of.configuration, name=name or of.configuration.name)
    return replace(entry, cell=synthetic.cell(at, workload or of.workload, batch or of.batch, of.precision))


@contextmanager
def _long_workloads() -> Iterator[None]:
    """Workloads of long names are as those of short ones."""
    known = synthetic.RATES, synthetic.ATTACH_TIME, synthetic.PARAMETERS, synthetic.SAMPLE_GFLOP
    with ExitStack() as stack:
        for numbers in known:
            stack.enter_context(mock.patch.dict(numbers, {long(name): of for name, of in numbers.items()}))  # type: ignore[arg-type]
        yield


def _failed(plan: list[CellPlan]) -> list[Record]:
    return [
        synthetic.record(entry.cell, n, None, "oom_device" if entry.cell.workload == "bert" else "crashed")
        for entry in plan
        for n in (1, 2)
    ]


def _counted(record: Record) -> Record:
    """With counters of links beside what a synthetic run has."""
    counters = {"pcie_rx_mean_gb_per_s": 9.0, "pcie_tx_mean_gb_per_s": 8.0, "loopback_rx_mean_gb_per_s": 0.2}
    more = counters if record.status == "ok" else {}
    return record.model_copy(update={"metrics": {**record.metrics, **more}})


def _forecast(lease: Mapping[str, Any]) -> dict[str, Any]:
    part = {"expected_s": 100.0, "low_s": 80.0, "high_s": 125.0, "actual_s": 110.0}
    of = {
        "lease": lease["lease_id"], "configuration": lease["configuration"], "runs_expected": 10, "runs": 10, "uses": 1,
        "basis": "earlier runs of these cells", "resumed": False, **part,
    }  # fmt: skip
    return ForecastOutcome.model_validate(of).model_dump()

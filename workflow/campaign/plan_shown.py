"""The plan as programs and people read it: a document, rows of text, counts by axis. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from campaign.plan import Plan, isolation
from campaign.plan_document import PLAN_SCHEMA, Counts, ImpossibleShape, LeaseCost, PlanDocument, RemovedCells, Totals
from campaign.repetitions import said


def counts_per_axis(plan: Plan) -> dict[str, dict[str, dict[str, int]]]:
    """For every axis and value: how many cells and runs."""
    names = ["configuration", "workload", "batch", "precision", *plan.campaign.file.axes.options]
    cells: dict[str, Counter[str]] = {name: Counter() for name in names}
    runs: dict[str, Counter[str]] = {name: Counter() for name in names}
    for lease, cell in plan.cells:
        values = {
            "configuration": cell.configuration.name,
            "workload": cell.workload,
            "batch": cell.batch,
            "precision": cell.precision,
            **cell.options,
        }
        for name in names:
            cells[name][str(values[name])] += 1
            runs[name][str(values[name])] += lease.repetitions(cell)
    return {
        name: {value: {"cells": count, "runs": runs[name][value]} for value, count in cells[name].items()}
        for name in names
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON (`plan/1`); estimates carry what they rest on."""
    document = PlanDocument(
        campaign=plan.campaign.name,
        system=plan.campaign.system.name,
        where=plan.where,
        totals=Totals(
            cells=sum(len(lease.cells) for lease in plan.leases),
            runs=plan.runs,
            runs_without_record=plan.missing,
            runs_without_record_least=plan.missing_least,
            runs_implied=sum(lease.implied for lease in plan.leases),
            cells_without_record=sum(lease.cells_missing for lease in plan.leases),
            leases=len(plan.leases),
            recompositions=plan.recompositions,
            recompositions_least=plan.recompositions_least,
            device_hours=round(plan.device_hours, 4),
            wall_s=round(plan.wall_s, 1),
            isolation=isolation(plan.campaign),
        ),
        axes={
            axis: {value: Counts(**counts) for value, counts in values.items()}
            for axis, values in counts_per_axis(plan).items()
        },
        removed=tuple(RemovedCells(rule=r.rule, why=r.why, cells=r.cells) for r in plan.removed),
        impossible=tuple(ImpossibleShape(shape=i.shape, why=i.why) for i in plan.impossible),
        does_not_fit=dict(plan.unfit),
        leases=tuple(
            LeaseCost(
                lease=lease.name,
                order=order,
                configuration=lease.configuration.name,
                devices=lease.devices(),
                cells=len(lease.cells),
                runs=lease.runs,
                runs_without_record=lease.missing,
                runs_without_record_least=lease.missing_least,
                runs_implied=lease.implied,
                expected_s=round(lease.expected_s, 1),
                expected_least_s=round(lease.expected_least_s, 1),
                basis=lease.basis,
                run_set=lease.digest,
            )
            for order, lease in enumerate(plan.leases, 1)
        ),
    )
    return document.model_dump(mode="json")


def plan_rows(plan: Plan) -> Iterator[list[str]]:
    """Every cell as one row of text, header first (`plan.tsv`)."""
    options = list(plan.campaign.file.axes.options)
    yield ["schema", "order", "lease", "cell_id", "configuration", "hosts", "devices_per_host", "devices_used", "ranks", "attach",
           "storage", "device", "workload", "batch", "batch_global", "precision", *options, "repetitions"]  # fmt: skip
    for order, lease in enumerate(plan.leases, 1):
        c = lease.configuration
        head = [PLAN_SCHEMA, str(order), lease.name]
        shape = [
            c.name,
            *map(str, (c.hosts, c.devices_per_host, c.devices_used, c.ranks)),
            c.attach,
            c.storage,
            c.device,
        ]
        for cell in lease.cells:
            values = [cell.workload, str(cell.batch), str(cell.batch_global), cell.precision]
            yield [
                *head,
                cell.id,
                *shape,
                *values,
                *(str(cell.options[o]) for o in options),
                said(cell.settings),
            ]

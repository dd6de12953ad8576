"""Plan as a document, as rows of text and as counts by axis, and its files in a results directory."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.files import hash_document, read_text
from campaign.common.paths import Results
from campaign.common.wording import neutralize_formula
from campaign.plan import analysis
from campaign.plan.concurrency import isolation
from campaign.plan.lease_plans import lease_plans, plan_digest
from campaign.plan.plan import Plan
from campaign.plan.repetitions import said
from campaign.spec.earlier_spread import keep
from campaign.spec.plan import (
    PLAN_SCHEMA,
    AxisCounts,
    ImpossibleShape,
    LeaseSummary,
    PlanDocument,
    RemovedCells,
    Totals,
)
from campaign.spec.record import Store


def counts_per_axis(plan: Plan) -> dict[str, dict[str, dict[str, int]]]:
    """Count cells and runs for every axis and value."""
    several = ["system"] if len(plan.campaign.systems) > 1 else []
    names = [*several, "configuration", "workload", "batch", "precision", *plan.campaign.file.axes.options]
    cells: dict[str, Counter[str]] = {name: Counter() for name in names}
    runs: dict[str, Counter[str]] = {name: Counter() for name in names}
    seen: set[str] = set()
    for lease, cell in plan.cells:
        values = cell.axes()
        first = cell.id not in seen
        seen.add(cell.id)
        for name in names:
            cells[name][str(values[name])] += first
            runs[name][str(values[name])] += lease.repetitions(cell)
    return {
        name: {value: {"cells": count, "runs": runs[name][value]} for value, count in cells[name].items()}
        for name in names
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """Build the JSON document of the plan (`plan/1`).

    Estimates are accompanied by their basis.
    """
    document = PlanDocument(
        campaign=plan.campaign.name,
        campaign_hash=hash_document(plan.campaign.document()),
        digest=plan_digest(plan),
        system=plan.campaign.system_names,
        where=plan.where,
        version=plan.campaign.file.version,
        without_hosts=plan.without_hosts,
        totals=Totals(
            cells=plan.cell_count,
            runs=plan.runs,
            runs_without_record=plan.missing,
            runs_without_record_least=plan.missing_least,
            runs_implied=sum(lease.implied for lease in plan.leases),
            cells_without_record=plan.cells_missing,
            leases=len(plan.leases),
            recompositions=plan.recompositions,
            recompositions_least=plan.recompositions_least,
            attached=plan.attached,
            device_hours=_rounded(plan.device_hours, 4),
            device_hours_low=_rounded(plan.interval(plan.device_hours)[0], 4),
            device_hours_high=_rounded(plan.interval(plan.device_hours)[1], 4),
            host_hours=_rounded(plan.host_hours, 4),
            host_hours_low=_rounded(plan.interval(plan.host_hours)[0], 4),
            host_hours_high=_rounded(plan.interval(plan.host_hours)[1], 4),
            price=plan.price,
            currency=plan.campaign.currency,
            wall_s=_rounded(plan.wall_s),
            wall_low_s=_rounded(plan.interval(plan.wall_s)[0]),
            wall_high_s=_rounded(plan.interval(plan.wall_s)[1]),
            learned_from=plan.learned_from,
            composing_from=plan.composing_from,
            runs_unknown=plan.unknown.run_count,
            isolation=isolation(plan.campaign),
        ),
        axes={
            axis: {value: AxisCounts(**counts) for value, counts in values.items()}
            for axis, values in counts_per_axis(plan).items()
        },
        cells=tuple(cell.id for cell in plan.matrix),
        removed=tuple(RemovedCells(rule=r.rule, why=r.why, cells=r.cells) for r in plan.removed),
        impossible=tuple(ImpossibleShape(shape=i.shape, why=i.why) for i in plan.impossible),
        does_not_fit=dict(plan.unfit),
        notes=plan.notes,
        leases=tuple(
            LeaseSummary(
                lease=lease.name,
                order=order,
                configuration=lease.configuration.name,
                composition=lease.composition,
                devices=lease.devices(),
                cells=sum(not cell.reference for cell in lease.cells),
                runs=lease.runs,
                runs_without_record=lease.missing,
                runs_without_record_least=lease.missing_least,
                runs_implied=lease.implied,
                expected_s=_rounded(lease.expected_s),
                expected_low_s=_rounded(lease.expected.low_s),
                expected_high_s=_rounded(lease.expected.high_s),
                expected_least_s=_rounded(lease.expected_least_s),
                composing_s=_rounded(lease.expected.parts["composing"]),
                charge=lease.charge,
                basis=lease.basis,
                attached=None if lease.work.operations is None else lease.work.operations.count("attach"),
                run_set=lease.digest,
                document=f"leases/{lease.name}.json",
            )
            for order, lease in enumerate(plan.leases, 1)
        ),
    )
    return document.model_dump(mode="json")


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def plan_rows(plan: Plan) -> Iterator[list[str]]:
    """Yield the header and then one row of text per cell (`plan.tsv`).

    Texts that a spreadsheet would read as formulas are neutralised.
    """
    options = list(plan.campaign.file.axes.options)
    yield ["schema", "order", "lease", "composition", "cell_id", "configuration", "hosts", "devices_per_host", "devices_used",
           "ranks", "attach", "storage", "device", "workload", "batch", "batch_global", "precision",
           *options, "repetitions"]  # fmt: skip
    for order, lease in enumerate(plan.leases, 1):
        c = lease.configuration
        head = [PLAN_SCHEMA, str(order), lease.name, str(lease.composition)]
        shape = [
            c.name,
            *map(str, (c.hosts, c.devices_per_host, c.devices_used, c.ranks)),
            c.attach,
            c.storage,
            c.device,
        ]
        for cell in (each for each in lease.cells if not each.reference):
            values = [cell.workload, str(cell.batch), str(cell.batch_global), cell.precision]
            own = [str(cell.options[option]) for option in options]
            yield list(map(neutralize_formula, [*head, cell.id, *shape, *values, *own, said(cell.settings)]))


def write_plan(plan: Plan, results: Results, renewed: Collection[str] | None = None) -> list[Path]:
    """Write the plan into a results directory and return the paths written.

    These are plan.json, plan.tsv and one document per lease. The analysis and the spread of compositions in earlier campaigns
    are written, too. A file whose content is unchanged is not rewritten, so that its readers are not disturbed and nothing is
    made again from it.

    Args:
        plan: the plan.
        results: results directory of the campaign.
        leases_to_rerun: names of leases that get a new token, so that Snakemake measures them; None for those with missing runs.
    """
    Store(results.directory).share(plan.campaign.document())
    files.make_directory(results.lease_plans)
    if not plan.is_race:
        results.race_file.unlink(missing_ok=True)
    analysis.keep(results, plan.campaign)
    keep(results.earlier_spread_file, plan.campaign.system_names, plan.earlier)
    again = {lease.name for lease in plan.leases if lease.missing} if renewed is None else renewed
    paths: list[Path] = []
    campaigns: dict[str, str] = {}
    for document in lease_plans(plan):
        path = results.lease_plan_file(document.lease)
        written = read_text(path) if path.exists() else ""
        token = secrets.token_hex(4) if document.lease in again else _token(written)
        text = document.model_copy(update={"token": token}).text(campaigns)
        if text != written:
            files.write_atomic(path, text)
        paths.append(path)
    tables = [results.plan_file, results.plan_table_file]
    planned_before = files.read_json(results.plan_file).get("digest")
    if again or planned_before != plan_digest(plan) or not all(path.exists() for path in tables):
        write_tables(plan, results.plan)
    return [*tables, *paths]


def write_tables(plan: Plan, directory: Path) -> list[Path]:
    """Write plan.json (`plan/1`) and plan.tsv (every cell), and return their paths."""
    files.make_directory(directory)
    document, table = directory / "plan.json", directory / "plan.tsv"
    files.write_atomic(table, "".join("\t".join(row) + "\n" for row in plan_rows(plan)))
    files.write_json(document, plan_document(plan), indent=1)
    return [document, table]


def _token(text: str) -> str:
    """Read the token from the text of a lease's document. Returns '' if the text cannot be read."""
    try:
        return str(json.loads(text).get("token", ""))
    except (ValueError, AttributeError):
        return ""

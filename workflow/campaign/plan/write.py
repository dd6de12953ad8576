"""Output of a plan as a document, as rows of text and as counts per axis, and its files in a results directory."""

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
from campaign.plan.concurrency import resolve_isolation
from campaign.plan.lease_plans import build_lease_plans, hash_plan
from campaign.plan.plan import Plan
from campaign.plan.repetitions import format_repetition_count
from campaign.spec.earlier_spread import write_spreads
from campaign.spec.plan import (
    PLAN_SCHEMA,
    AxisCounts,
    ImpossibleShape,
    LeaseSummary,
    PlanDocument,
    RemovedCells,
    Totals,
)
from campaign.spec.record import RecordStore


def count_per_axis(plan: Plan) -> dict[str, dict[str, dict[str, int]]]:
    """Count cells and runs for every axis and value."""
    several = ["system"] if len(plan.campaign.systems) > 1 else []
    names = [*several, "configuration", "workload", "batch", "precision", *plan.campaign.file.axes.options]
    cells: dict[str, Counter[str]] = {name: Counter() for name in names}
    runs: dict[str, Counter[str]] = {name: Counter() for name in names}
    counted_ids: set[str] = set()
    for lease, cell in plan.cells:
        values = cell.axes()
        first = cell.id not in counted_ids
        counted_ids.add(cell.id)
        for name in names:
            cells[name][str(values[name])] += first
            runs[name][str(values[name])] += lease.count_repetitions(cell)
    return {
        name: {value: {"cells": count, "runs": runs[name][value]} for value, count in cells[name].items()}
        for name in names
    }


def build_plan_document(plan: Plan) -> dict[str, Any]:
    """Build the JSON document of the plan (`plan/1`), in which estimates have their basis."""
    document = PlanDocument(
        campaign=plan.campaign.name,
        campaign_hash=hash_document(plan.campaign.to_document()),
        digest=hash_plan(plan),
        system=plan.campaign.system_names,
        where=plan.where,
        version=plan.campaign.file.version,
        without_hosts=plan.without_hosts,
        totals=Totals(
            cells=plan.cell_count,
            runs=plan.runs,
            runs_without_record=plan.missing,
            runs_without_record_least=plan.min_missing_runs,
            runs_implied=sum(lease.implied for lease in plan.leases),
            cells_without_record=plan.cells_missing,
            leases=len(plan.leases),
            recompositions=plan.recompositions,
            recompositions_least=plan.min_recompositions,
            attached=plan.attached_devices,
            device_hours=_round_or_none(plan.device_hours, 4),
            device_hours_low=_round_or_none(plan.estimate_interval(plan.device_hours)[0], 4),
            device_hours_high=_round_or_none(plan.estimate_interval(plan.device_hours)[1], 4),
            host_hours=_round_or_none(plan.host_hours, 4),
            host_hours_low=_round_or_none(plan.estimate_interval(plan.host_hours)[0], 4),
            host_hours_high=_round_or_none(plan.estimate_interval(plan.host_hours)[1], 4),
            price=plan.price,
            currency=plan.campaign.currency,
            wall_s=_round_or_none(plan.wall_s),
            wall_low_s=_round_or_none(plan.estimate_interval(plan.wall_s)[0]),
            wall_high_s=_round_or_none(plan.estimate_interval(plan.wall_s)[1]),
            learned_from=plan.learned_from,
            composing_from=plan.composing_from,
            runs_unknown=plan.unknown.run_count,
            isolation=resolve_isolation(plan.campaign),
        ),
        axes={
            axis: {value: AxisCounts(**counts) for value, counts in values.items()}
            for axis, values in count_per_axis(plan).items()
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
                devices=lease.describe_devices(),
                cells=sum(not cell.reference for cell in lease.cells),
                runs=lease.runs,
                runs_without_record=lease.missing,
                runs_without_record_least=lease.min_missing_runs,
                runs_implied=lease.implied,
                expected_s=_round_or_none(lease.expected_s),
                expected_low_s=_round_or_none(lease.expected.low_s),
                expected_high_s=_round_or_none(lease.expected.high_s),
                expected_least_s=_round_or_none(lease.expected_least_s),
                composing_s=_round_or_none(lease.expected.parts["composing"]),
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


def _round_or_none(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def format_plan_rows(plan: Plan) -> Iterator[list[str]]:
    """Yield the header and then one row of text per cell (`plan.tsv`). Spreadsheet formulas are neutralised."""
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
        for cell in (member for member in lease.cells if not member.reference):
            values = [cell.workload, str(cell.batch), str(cell.batch_global), cell.precision]
            option_values = [str(cell.options[option]) for option in options]
            yield list(
                map(
                    neutralize_formula,
                    [*head, cell.id, *shape, *values, *option_values, format_repetition_count(cell.settings)],
                )
            )


def write_plan(plan: Plan, results: Results, leases_to_rerun: Collection[str] | None = None) -> list[Path]:
    """Write the plan into a results directory and return the paths written.

    These are plan.json, plan.tsv and one document per lease. The analysis and the spread of compositions in earlier campaigns
    are written, too. A file with unchanged content is not rewritten, so that Snakemake does not rebuild its outputs.

    Args:
        plan: the plan.
        results: results directory of the campaign.
        leases_to_rerun: names of leases that get a new token, so that Snakemake measures them; None for those with missing runs.
    """
    RecordStore(results.directory).share_document(plan.campaign.to_document())
    files.make_directory(results.lease_plans)
    if not plan.is_race:
        results.race_file.unlink(missing_ok=True)
    analysis.record_analysis(results, plan.campaign)
    write_spreads(results.earlier_spread_file, plan.campaign.system_names, plan.earlier)
    rerun_names = {lease.name for lease in plan.leases if lease.missing} if leases_to_rerun is None else leases_to_rerun
    paths: list[Path] = []
    campaigns: dict[str, str] = {}
    for document in build_lease_plans(plan):
        path = results.lease_plan_file(document.lease)
        old_text = read_text(path) if path.exists() else ""
        token = secrets.token_hex(4) if document.lease in rerun_names else _read_token(old_text)
        text = document.model_copy(update={"token": token}).format_text(campaigns)
        if text != old_text:
            files.write_atomic(path, text)
        paths.append(path)
    tables = [results.plan_file, results.plan_table_file]
    planned_before = files.read_json(results.plan_file).get("digest")
    if rerun_names or planned_before != hash_plan(plan) or not all(path.exists() for path in tables):
        write_tables(plan, results.plan)
    return [*tables, *paths]


def write_tables(plan: Plan, directory: Path) -> list[Path]:
    """Write plan.json (`plan/1`) and plan.tsv (every cell), and return their paths."""
    files.make_directory(directory)
    document, table = directory / "plan.json", directory / "plan.tsv"
    files.write_atomic(table, "".join("\t".join(row) + "\n" for row in format_plan_rows(plan)))
    files.write_json(document, build_plan_document(plan), indent=1)
    return [document, table]


def _read_token(text: str) -> str:
    """Read the token from the text of a lease's document. Returns an empty string if the text cannot be read."""
    try:
        return str(json.loads(text).get("token", ""))
    except (ValueError, AttributeError):
        return ""

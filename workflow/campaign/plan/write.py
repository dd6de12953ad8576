"""Writes a plan into a results directory."""

from __future__ import annotations

from pathlib import Path

from campaign import files
from campaign.documents.earlier_spread import keep
from campaign.documents.record import Store
from campaign.documents.rounds import keep_rounds
from campaign.paths import Results
from campaign.plan.cost.budget import kept_choice
from campaign.plan.lease_plans import DocumentNames, lease_plans
from campaign.plan.plan import Plan
from campaign.plan.plan_table import plan_document, plan_rows


def write_plan(plan: Plan, results: Results) -> list[Path]:
    """Write the plan into a results directory: plan.json, plan.tsv, a document a lease, what a budget chose, and what earlier
    campaigns tell of the spread of compositions; gives the paths.

    A document that is there already is only replaced by one that says something else, so that whoever reads it is not disturbed.
    """
    Store(results.directory).share(plan.campaign.document())
    results.lease_plans.mkdir(parents=True, exist_ok=True)
    if plan.budget is None:
        results.budget.unlink(missing_ok=True)
    elif kept_choice(results.budget) != plan.budget:
        files.write_json(results.budget, plan.budget.document())
    if plan.rounds:
        keep_rounds(results, plan.rounds)
    keep(results.earlier_spread, plan.campaign.system_names, plan.earlier)
    paths, name = [], DocumentNames(plan.campaign)
    campaigns: dict[str, str] = {}
    for lease, document in zip(plan.leases, lease_plans(plan), strict=True):
        path = results.lease_plans / name(lease)
        text = document.text(campaigns)
        if not path.exists() or path.read_text() != text:
            files.write_atomic(path, text)
        paths.append(path)
    return [*write_tables(plan, results.plan), *paths]


def write_tables(plan: Plan, directory: Path) -> list[Path]:
    """plan.json (`plan/1`) and plan.tsv (every cell)."""
    directory.mkdir(parents=True, exist_ok=True)
    document, table = directory / "plan.json", directory / "plan.tsv"
    files.write_atomic(table, "".join("\t".join(row) + "\n" for row in plan_rows(plan)))
    files.write_json(document, plan_document(plan), indent=1)
    return [document, table]

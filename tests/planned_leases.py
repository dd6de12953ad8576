"""Lease plans of a campaign, as `campaign plan --write` makes them, for tests that need no records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.common.files import write_atomic
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import build_lease_plans
from campaign.plan.matrix import expand_matrix
from campaign.plan.plan import build_plan
from campaign.plan.request import PlanRequest
from campaign.run.measure_lease import measure_missing_runs
from campaign.spec.lease_plan import LeasePlan


def plans_of(campaign: Campaign) -> dict[str, LeasePlan]:
    """The plan of each lease, by its name; nothing has a record."""
    return {each.lease: each for each in build_lease_plans(build_plan(campaign, expand_matrix(campaign)))}


def written_plan(campaign: Campaign, results: Results, lease: str) -> Path:
    """The file of one lease's plan."""
    document = plans_of(campaign)[lease]
    path = results.lease_plan_file(lease)
    write_atomic(path, document.format_text())
    return path


def measured_here(asked: PlanRequest, lease: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """The measure job of one lease in this process, as Snakemake would start it; gives its manifest."""
    plan = read_plan(asked)
    (document,) = (each for each in build_lease_plans(plan) if each.lease == lease)
    return measure_missing_runs(document, Results(asked.results, plan.campaign.name), say)

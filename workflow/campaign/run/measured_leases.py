"""Summary and cleanup of a plan after its last lease. Leftover jobs are ended, and missing runs are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.common.errors import CampaignError
from campaign.common.files import hash_document
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.lease.campaign_leases import Site
from campaign.lease.fabric_calls import RELEASE_TIMEOUT_S, WaitBudget
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.lease_plans import campaign_from_lease_plan
from campaign.run.driver import Driver
from campaign.run.submitters import open_submitter
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.plan import read_plan_document
from campaign.spec.record import RecordStore


@dataclass(frozen=True)
class PlanSummary:
    """Summary of the runs of a plan.

    Args:
        runs: number of planned runs.
        leases: number of planned leases.
        missing: one line per lease with runs that have no record.
        records: hash of the existing records.
    """

    runs: int
    leases: int
    missing: tuple[str, ...]
    records: str

    def format_text(self) -> str:
        """Format the summary as readable text.

        The text differs whenever the records differ, so that Snakemake rebuilds the tables.
        """
        headline = f"{pluralize(self.runs, 'run')} on {pluralize(self.leases, 'lease')}: " + (
            f"runs without a record in {pluralize(len(self.missing), 'lease')}" if self.missing else "all have a record"
        )
        return "\n".join([headline, *self.missing, f"records: {self.records}"])


def summarize_plan(results: Results, plan: Path, missing: Sequence[str]) -> PlanSummary:
    """Summarize the runs of a plan.

    Args:
        results: results directory.
        plan: path of the plan.
        missing: one line per lease with runs that have no record.
    """
    plan_document = read_plan_document(plan)
    store = RecordStore(results.directory)
    record_keys = [
        (*key, store.path(*key).stat().st_mtime_ns) for key in sorted(store.list_keys(include_implied=False))
    ]
    leases = plan_document["leases"]
    return PlanSummary(sum(lease["runs"] for lease in leases), len(leases), tuple(missing), hash_document(record_keys))


def clean_up_after_plan(results: Results, plan: Path) -> Iterator[str]:
    """Return devices to their original places and end leftover jobs, for every system of a plan.

    Yields one line per failure.
    """
    leases = read_plan_document(plan)["leases"]
    campaign = campaign_from_lease_plan(read_lease_plan(plan.parent / leases[0]["document"]))
    systems = {configuration.name: configuration.system for configuration in campaign.configurations}
    # A system without planned leases may be out of reach.
    for name in dict.fromkeys(systems[lease["configuration"]] for lease in leases):
        yield from _clean_up_system(campaign.part_on(name), results)


def _clean_up_system(campaign: Campaign, results: Results) -> Iterator[str]:
    """Return devices and end leftover jobs on one system. Yields one line per failure."""
    try:
        with Site(campaign.system, results.root).open_fabric() as fabric:
            WaitBudget(RELEASE_TIMEOUT_S, 1.0, None).call_when_free(fabric.return_displaced_devices)
    except (CampaignError, OSError) as error:
        yield f"some devices may not be back in their original place (check with 'campaign fabric reconcile'): {error}"
    try:
        open_submitter(campaign, results, Driver).end_left_behind()
    except (CampaignError, OSError) as error:
        yield f"the search for leftover jobs failed: {error}"

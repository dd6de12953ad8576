"""Times of a fabric's operations out of the journals of a site's leases: a file that other results and other sites can use."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from campaign.documents.operation_times import OperationTimes, Session, Timed
from campaign.errors import ConfigError
from campaign.fabrics.moves import Steps
from campaign.fabrics.registry import fabric_kind
from campaign.lease.campaign_leases import Site
from campaign.lease.journal import Journal, journaled
from campaign.plan.cost.recorded_operations import timed_rows
from campaign.wording import plural


def journaled_times(site: Site) -> OperationTimes:
    """Of all leases of a system; a campaign is a session. Raises ConfigError where nothing was timed yet."""
    steps = fabric_kind(site.kind).steps or Steps()
    foreseen = {*steps.attach, *steps.move, *steps.detach, *steps.once}
    entries: defaultdict[str, list[tuple[float, dict[str, object]]]] = defaultdict(list)
    for name in journaled(site.journals):
        campaign = ""
        for entry in Journal(site.journals, name).entries():
            campaign = str(entry.get("campaign") or campaign)
            if isinstance(entry.get("timed"), dict):
                entries[campaign].append((float(entry["time_s"]), entry["timed"]))
    sessions = []
    for campaign, found in entries.items():
        found.sort(key=lambda each: each[0])
        rows: list[Timed] = []
        for group, (_, timed) in enumerate(found, 1):
            rows += timed_rows(timed, group, foreseen)
        began = datetime.fromtimestamp(found[0][0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        sessions.append(Session(campaign, tuple(rows), began))
    if not sessions:
        raise ConfigError(
            f"{site.system.name}: no lease of it has times of operations below {site.journals}; measure a campaign first, or "
            "give the results directory (--results)"
        )
    source = f"leases of {plural(len(sessions), 'campaign')} on {site.system.name}"
    return OperationTimes(site.kind, source, "", tuple(sorted(sessions, key=lambda session: session.began)))

"""Release of leases without an owner, after kill -9, a power failure, or a fabric that refused to release.

Only leases with a journal in this directory are changed, because only their lack of an owner is certain. Devices that another
campaign or another party holds are left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from campaign.common.errors import FabricError
from campaign.common.processes.signals import defer_ending_signals
from campaign.fabrics.errors import Conflict
from campaign.fabrics.protocol import Fabric, Tag
from campaign.lease.fabric_calls import RELEASE_TIMEOUT_S, release_all
from campaign.lease.journal import Journal, LeaseOwnership, LeaseState, list_journaled_leases

OrphanOutcome = Literal["would_release", "too_young", "released", "leaked", "failed", "other_owner"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """Lease without a live owner.

    Attributes:
        lease_id: id of the lease.
        campaign: campaign of the lease.
        owner: owner in the tag on the fabric or in the journal.
        state: last state in the journal.
        devices: fabric ids of the devices that it holds.
        left_s: Unix time of its last activity.
        outcome: result of the reconciliation.
        message: reason of the outcome.
    """

    lease_id: str
    campaign: str
    owner: str
    state: LeaseState | None
    devices: tuple[str, ...]
    left_s: float
    outcome: OrphanOutcome
    message: str = ""


def reconcile_leases(
    fabric: Fabric,
    journals_directory: Path,
    *,
    is_alive: Callable[[str], bool],
    dry_run: bool,
    grace_s: float = 0.0,
    unjournaled_owners: Collection[str] | None = None,
    wait_s: float = RELEASE_TIMEOUT_S,
    poll_s: float = 1.0,
) -> list[Orphan]:
    """List the leases without an owner and, unless `dry_run` is set, release them.

    Args:
        fabric: fabric of the system.
        journals_directory: directory of the lease journals.
        is_alive: function that returns True for the id of a lease with a live owner, such as `journal.is_owned`.
        dry_run: whether to list the leases without releasing them.
        grace_s: leases with activity in the last `grace_s` seconds are left alone.
        unjournaled_owners: owners whose leases to release even without a journal here. Leases of other owners without a journal are
            then listed. Without a journal, a live owner cannot be distinguished from a dead one. None ignores such leases.
        wait_s: time limit in seconds for a busy fabric.
        poll_s: poll interval in seconds.
    """
    tags, journaled_ids = fabric.list_lease_tags(), list_journaled_leases(journals_directory)
    unfinished_ids = [
        journaled_id
        for journaled_id in journaled_ids
        if journaled_id in tags or Journal(journals_directory, journaled_id).state not in (None, "RELEASED")
    ]
    orphans: list[Orphan] = []
    for lease_id in (
        *unfinished_ids,
        *(name for name in tags if unjournaled_owners is not None and name not in journaled_ids),
    ):
        if is_alive(lease_id):
            continue
        orphan = _make_orphan(lease_id, tags.get(lease_id), journals_directory)
        if (idle_s := time.time() - orphan.left_s) < grace_s:
            message = f"the lease was active {idle_s:.0f} s ago; --grace 0 releases it nevertheless"
            orphan = replace(orphan, outcome="too_young", message=message)
        elif lease_id not in journaled_ids and orphan.owner not in (unjournaled_owners or ()):
            message = f"the lease may be in use; ask its owner, and add --of {orphan.owner} if it is not"
            orphan = replace(orphan, outcome="other_owner", message=message)
        elif not dry_run:
            try:
                with defer_ending_signals():
                    orphan = _end_lease(orphan, fabric, journals_directory, wait_s, poll_s)
            except Conflict:
                continue  # Another process has just taken the lease over, so it is not an orphan.
            except FabricError as error:
                orphan = replace(orphan, outcome="failed", message=str(error))
        orphans.append(orphan)
    return orphans


def _make_orphan(lease_id: str, tag: Tag | None, journals_directory: Path) -> Orphan:
    """Build the description of a lease without an owner from its tag on the fabric and its journal."""
    journal = Journal(journals_directory, lease_id)
    document, entries = journal.make_document(), journal.read_last_use()
    last_s = entries[-1]["time_s"] if entries else 0.0
    tag = tag or Tag(lease_id, document["campaign"] or "", document["owner"] or "", 0.0, ())
    left_s = max(last_s, tag.since_s)
    return Orphan(lease_id, tag.campaign, tag.owner or "unknown", journal.state, tag.devices, left_s, "would_release")


def _end_lease(orphan: Orphan, fabric: Fabric, journals_directory: Path, wait_s: float, poll_s: float) -> Orphan:
    """Take ownership of an orphaned lease, release it, and return the orphan with the outcome."""
    ownership = LeaseOwnership(journals_directory, orphan.lease_id)
    try:
        journal = Journal(journals_directory, orphan.lease_id)
        if journal.state in (None, "RELEASED"):
            journal.enter_state("PLANNED", campaign=orphan.campaign, owner=orphan.owner)
        journal.enter_state("UNKNOWN", adopted_from=orphan.state)
        if fabric.read_back(orphan.lease_id) is None:
            journal.enter_state("FABRIC_FREE")
        else:
            journal.enter_state("DETACHING")
            if leaked_devices := release_all(fabric, journal, wait_s=wait_s, poll_s=poll_s):
                return replace(orphan, outcome="leaked", devices=leaked_devices, message=journal.first_fault)
        journal.enter_state("RELEASED")
        return replace(orphan, outcome="released")
    finally:
        ownership.close()

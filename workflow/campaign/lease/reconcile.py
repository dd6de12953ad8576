"""Ending leases that nobody owns any more: after kill -9, a power cut, or a fabric that would not let go.

Only leases with a journal in this directory are touched, because only for them a missing owner is known to be missing;
what another campaign or somebody else holds is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from campaign.common.errors import FabricError
from campaign.common.processes.signals import deferred
from campaign.fabrics.errors import Conflict
from campaign.fabrics.protocol import Fabric, Tag
from campaign.lease.fabric_calls import RELEASE_WAIT_S, give_back
from campaign.lease.journal import Journal, LeaseState, Ownership, journaled

OrphanOutcome = Literal["would_release", "too_young", "released", "leaked", "failed", "other_owner"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A lease without a live owner. `devices`: fabric ids it holds; `left_s`: Unix time of its last sign of life."""

    lease_id: str
    campaign: str
    owner: str
    state: LeaseState | None
    devices: tuple[str, ...]
    left_s: float
    outcome: OrphanOutcome
    message: str = ""


def reconcile(
    fabric: Fabric,
    journal_dir: Path,
    *,
    is_alive: Callable[[str], bool],
    dry_run: bool,
    grace_s: float = 0.0,
    unjournaled: Collection[str] | None = None,
    wait_s: float = RELEASE_WAIT_S,
    poll_s: float = 1.0,
) -> list[Orphan]:
    """List the leases without an owner and, unless `dry_run`, release them.

    is_alive: whether a lease has a live owner (`journal.is_owned` on this directory). grace_s: leave those alone that
    gave a sign of life less than this ago. unjournaled: also list leases that carry this program's mark but have no
    journal here, and release those of these owners; without a journal, a live owner cannot be told from a dead one.
    """
    held, known = fabric.held(), journaled(journal_dir)
    unfinished = [n for n in known if n in held or Journal(journal_dir, n).state not in (None, "RELEASED")]
    found: list[Orphan] = []
    for lease_id in (*unfinished, *(name for name in held if unjournaled is not None and name not in known)):
        if is_alive(lease_id):
            continue
        orphan = _orphan(lease_id, held.get(lease_id), journal_dir)
        if (idle_s := time.time() - orphan.left_s) < grace_s:
            message = f"active {idle_s:.0f} s ago; --grace 0 releases it all the same"
            orphan = replace(orphan, outcome="too_young", message=message)
        elif lease_id not in known and orphan.owner not in (unjournaled or ()):
            message = f"its owner may be using it, which only they can tell; if they do not, add --of {orphan.owner}"
            orphan = replace(orphan, outcome="other_owner", message=message)
        elif not dry_run:
            try:
                with deferred():
                    orphan = _end(orphan, fabric, journal_dir, wait_s, poll_s)
            except Conflict:
                continue  # somebody took it over in this moment, so it is no orphan
            except FabricError as error:
                orphan = replace(orphan, outcome="failed", message=str(error))
        found.append(orphan)
    return found


def _orphan(lease_id: str, tag: Tag | None, journal_dir: Path) -> Orphan:
    journal = Journal(journal_dir, lease_id)
    document, entries = journal.document(), journal.last_use()
    last_s = entries[-1]["time_s"] if entries else 0.0
    tag = tag or Tag(lease_id, document["campaign"] or "", document["owner"] or "", 0.0, ())
    left_s = max(last_s, tag.since_s)
    return Orphan(lease_id, tag.campaign, tag.owner or "unknown", journal.state, tag.devices, left_s, "would_release")


def _end(orphan: Orphan, fabric: Fabric, journal_dir: Path, wait_s: float, poll_s: float) -> Orphan:
    """Own the lease, release it, and say how that went."""
    ownership = Ownership(journal_dir, orphan.lease_id)
    try:
        journal = Journal(journal_dir, orphan.lease_id)
        if journal.state in (None, "RELEASED"):
            journal.advance("PLANNED", campaign=orphan.campaign, owner=orphan.owner)
        journal.advance("UNKNOWN", adopted_from=orphan.state)
        if fabric.read_back(orphan.lease_id) is None:
            journal.advance("FABRIC_FREE")
        else:
            journal.advance("DETACHING")
            if leaked := give_back(fabric, journal, wait_s=wait_s, poll_s=poll_s):
                return replace(orphan, outcome="leaked", devices=leaked, message=f"({journal.cause})")
        journal.advance("RELEASED")
        return replace(orphan, outcome="released")
    finally:
        ownership.close()

"""Integrity checks of a results directory: records, the documents they refer to, leases, journals and the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign.common.errors import CampaignError, ConfigError
from campaign.common.files import parse_json, read_bytes, require_json
from campaign.common.paths import Results
from campaign.lease.campaign_leases import find_lease_name
from campaign.lease.journal import TRANSITIONS
from campaign.plan.matrix import cell_id
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.readings import all_readings
from campaign.spec.record import IMPORTED, Record, Store

_CLOCKS_S = 5.0  # clocks of hosts may differ by this much
_AGAIN = "'campaign run' measures it again"
_RESTORE = "restore it from an archive"


def problems(results: Results) -> Iterator[str]:
    """Yield one sentence per damaged file, with its path and the remedy.

    Raises ConfigError if the directory holds no results.
    """
    store = Store(results.directory)
    keys = sorted(store.index())
    if not keys and not results.plan_file.exists():
        raise ConfigError(
            f"{results.directory}: holds neither records nor a plan; give the results directory of a campaign"
        )
    leases: dict[str, dict[str, Any]] = {}
    for path in sorted(results.leases.glob("*.json")):
        try:
            leases[path.stem] = require_json(path, _RESTORE)
        except CampaignError as error:
            yield str(error)
    for key in keys:
        try:
            record = store.read_measured(*key)
        except CampaignError as error:
            yield str(error)
            continue
        yield from _of_record(record, store.path(*key), results, leases.get(record.lease_id))
    yield from _of_shared(store)
    try:
        all_readings(results.directory)
    except CampaignError as error:
        yield str(error)
    for path in sorted(results.lease_plans.glob("*.json")):
        try:
            read_lease_plan(path)
        except CampaignError as error:
            yield str(error)
    others = [results.plan_file, *results.list_manifests()]
    for path in others:
        try:
            if path.exists():
                require_json(path, "remove it; 'campaign run' writes it again")
        except CampaignError as error:
            yield str(error)
    yield from _of_journals(results)


def _of_record(record: Record, path: Path, results: Results, lease: dict[str, Any] | None) -> Iterator[str]:
    """Yield the problems of one record, its shared documents, its telemetry file and its lease."""
    where = path.relative_to(results.directory)
    if cell_id(record.specification) != record.cell_id:
        yield f"{where}: its specification is not that of cell {record.cell_id}; move it away, and {_AGAIN}"
    named = ("composition", "environment", "campaign", "links", "software")
    for name in named:
        shared = getattr(record, name)
        if shared and not (results.shared_documents / f"{shared}.json").exists():
            yield f"{where}: shared/{shared}.json is missing ({name}); {_RESTORE}"
    if record.telemetry and not (results.directory / record.telemetry).exists():
        yield f"{where}: {record.telemetry} is missing; {_RESTORE}"
    if record.implied_by or IMPORTED in record.flags or lease is None:
        return
    ready, released = lease.get("ready_s"), lease.get("release_started_s")
    if (ready and record.started < ready - _CLOCKS_S) or (released and record.ended > released + _CLOCKS_S):
        yield (
            f"{where}: its run was not within its lease {record.lease_id} (leases/{record.lease_id}.json): what it ran on may have "
            f"been somebody else's; move it away, and {_AGAIN}"
        )


def _of_shared(store: Store) -> Iterator[str]:
    """Yield an error message per shared document that cannot be read."""
    for path in sorted(store.shared.glob("*.json")):
        try:
            store.shared_document(path.stem)
        except CampaignError as error:
            yield str(error)


def _of_journals(results: Results) -> Iterator[str]:
    """Yield the first problem of each journal of this campaign's leases, on any system."""
    for path in sorted((results.root / ".systems").glob("*/leases/*.jsonl")):
        if find_lease_name(results, path.stem) is None:
            continue
        state = None
        for number, line in enumerate(read_bytes(path).splitlines(), start=1):
            try:
                entry = parse_json(line)
                after = entry.get("state")
            except (ValueError, AttributeError):
                yield f"{path}:{number}: is no line of a journal; 'campaign release --orphans' ends what the lease still holds"
                break
            if after is not None:
                if after not in TRANSITIONS.get(state, ()):
                    before = state or "new"
                    yield f"{path}:{number}: a lease that is {before} cannot become {after}; lines of it are lost or changed"
                    break
                state = after

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
from campaign.plan.matrix import hash_specification
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.readings import read_all_readings
from campaign.spec.record import IMPORTED_FLAG, Record, RecordStore

_MAX_CLOCK_SKEW_S = 5.0  # tolerated difference between the clocks of hosts
_REMEASURE_HINT = "'campaign run' measures the run again"
_RESTORE_HINT = "restore it from an archive"


def find_problems(results: Results) -> Iterator[str]:
    """Yield one sentence for each damaged file, with its path and the remedy.

    Raises ConfigError if the directory holds no results.
    """
    store = RecordStore(results.directory)
    keys = sorted(store.list_keys())
    if not keys and not results.plan_file.exists():
        raise ConfigError(
            f"{results.directory}: this directory has neither records nor a plan; name the results directory of a campaign"
        )
    leases: dict[str, dict[str, Any]] = {}
    for path in sorted(results.leases.glob("*.json")):
        try:
            leases[path.stem] = require_json(path, _RESTORE_HINT)
        except CampaignError as error:
            yield str(error)
    for key in keys:
        try:
            record = store.read_measured(*key)
        except CampaignError as error:
            yield str(error)
            continue
        yield from _check_record(record, store.path(*key), results, leases.get(record.lease_id))
    yield from _check_shared_documents(store)
    try:
        read_all_readings(results.directory)
    except CampaignError as error:
        yield str(error)
    for path in sorted(results.lease_plans.glob("*.json")):
        try:
            read_lease_plan(path)
        except CampaignError as error:
            yield str(error)
    documents = [results.plan_file, *results.list_manifests()]
    for path in documents:
        try:
            if path.exists():
                require_json(path, "remove it; 'campaign run' writes it again")
        except CampaignError as error:
            yield str(error)
    yield from _check_journals(results)


def _check_record(record: Record, path: Path, results: Results, lease: dict[str, Any] | None) -> Iterator[str]:
    """Yield the problems of one record, its shared documents, its telemetry file and its lease."""
    location = path.relative_to(results.directory)
    if hash_specification(record.specification) != record.cell_id:
        yield f"{location}: the specification does not match cell {record.cell_id}; move the file away, and {_REMEASURE_HINT}"
    document_fields = ("composition", "environment", "campaign", "links", "software")
    for name in document_fields:
        document_hash = getattr(record, name)
        if document_hash and not (results.shared_documents / f"{document_hash}.json").exists():
            yield f"{location}: shared/{document_hash}.json is missing ({name}); {_RESTORE_HINT}"
    if record.telemetry and not (results.directory / record.telemetry).exists():
        yield f"{location}: {record.telemetry} is missing; {_RESTORE_HINT}"
    if record.implied_by or IMPORTED_FLAG in record.flags or lease is None:
        return
    ready_s, release_started_s = lease.get("ready_s"), lease.get("release_started_s")
    if (ready_s and record.started < ready_s - _MAX_CLOCK_SKEW_S) or (
        release_started_s and record.ended > release_started_s + _MAX_CLOCK_SKEW_S
    ):
        yield (
            f"{location}: the run was outside the time of its lease {record.lease_id} (leases/{record.lease_id}.json), so its "
            f"devices may have belonged to another lease; move the file away, and {_REMEASURE_HINT}"
        )


def _check_shared_documents(store: RecordStore) -> Iterator[str]:
    """Yield an error message for each shared document that cannot be read."""
    for path in sorted(store.shared.glob("*.json")):
        try:
            store.read_shared_document(path.stem)
        except CampaignError as error:
            yield str(error)


def _check_journals(results: Results) -> Iterator[str]:
    """Yield the first problem of each journal of this campaign's leases, on any system."""
    for path in sorted((results.root / ".systems").glob("*/leases/*.jsonl")):
        if find_lease_name(results, path.stem) is None:
            continue
        state = None
        for number, line in enumerate(read_bytes(path).splitlines(), start=1):
            try:
                entry = parse_json(line)
                next_state = entry.get("state")
            except (ValueError, AttributeError):
                yield (
                    f"{path}:{number}: this line is damaged; 'campaign release --orphans' releases what the lease still holds"
                )
                break
            if next_state is not None:
                if next_state not in TRANSITIONS.get(state, ()):
                    previous_state = state or "new"
                    yield (
                        f"{path}:{number}: a lease cannot change from {previous_state} to {next_state}; lines of this journal "
                        "are missing or were changed"
                    )
                    break
                state = next_state

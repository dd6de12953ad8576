"""Changes since the measurement that trigger no new measurement: updated software, edited inputs, changed parsers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from campaign.common.errors import ConfigError
from campaign.common.files import read_json
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.workload_inputs import (
    Inputs,
    describe_edited_files,
    inputs_from_document,
    workload_from_campaign_document,
)
from campaign.plan.plan import Plan
from campaign.run.environment import describe_environment, list_versions
from campaign.spec.readings import read_all_readings
from campaign.spec.record import CAMPAIGN_SCHEMA, RecordStore, read_campaigns_as_used

_SharedDocuments = Mapping[str, Mapping[str, Any]]
"""Shared documents of results by name."""


def find_changes(plan: Plan, results: Results) -> list[str]:
    """Return one sentence per change since the runs of the plan were measured."""
    campaign = plan.campaign
    if campaign.file.imported or not results.records.is_dir():
        return []
    store = RecordStore(results.directory)
    measured_inputs: Inputs = {}
    with suppress(ConfigError):  # The document may have another version.
        measured_inputs = inputs_from_document(next(read_campaigns_as_used(results.directory), {}).get("inputs", {}))
    shared_documents = {path.stem: read_json(path) for path in results.shared_documents.glob("*.json")}
    return [
        *describe_edited_files(campaign.workloads, campaign.inputs, measured_inputs),
        *_describe_changes(plan, store, shared_documents),
    ]


def _describe_changes(plan: Plan, store: RecordStore, shared_documents: _SharedDocuments) -> Iterator[str]:
    """Yield messages about updated software of this machine, and about workloads with another parser."""
    campaign = plan.campaign
    updates = _find_updates(campaign, shared_documents)
    current = {
        name: workload.parsing_document() for name, workload in campaign.workloads.items() if workload.parsing_keys
    }
    readings = _find_parser_settings(current, shared_documents)
    has_changed_parser = any(
        current[workload] != reading
        for settings_by_workload in readings.values()
        for workload, reading in settings_by_workload.items()
    )
    if not updates and not has_changed_parser:
        return
    cells_by_update: defaultdict[_Update, set[str]] = defaultdict(set)
    unread_runs: defaultdict[str, int] = defaultdict(int)
    read_again = {run: batch.workloads for batch in read_all_readings(store.results) for run in batch.runs}
    local = _list_local_systems(campaign)
    cells = {cell.id: cell for _, cell in plan.cells}
    for cell_id, run in sorted(key for key in store.list_keys(include_implied=False) if key[0] in cells):
        record, cell = read_json(store.path(cell_id, run)), cells[cell_id]
        update = updates.get(str(record.get("environment")))
        if update and cell.configuration.system in local:
            cells_by_update[update].add(cell_id)
        settings_by_workload = read_again.get(f"{cell_id}.{run}", readings.get(str(record.get("campaign")), {}))
        reading = settings_by_workload.get(cell.workload)
        is_unread = bool(record.get("log")) and reading is not None and reading != current.get(cell.workload)
        unread_runs[cell.workload] += is_unread
    for update, cell_ids in cells_by_update.items():
        yield _describe_update(update, len(cell_ids))
    for workload, count in unread_runs.items():
        if count:
            yield _describe_parser_change(workload, count, campaign)


def _list_local_systems(campaign: Campaign) -> set[str]:
    """List the systems whose runs start on this machine."""
    return {part.part for part in campaign.parts if part.system.launcher == "local"}


class _Update(NamedTuple):
    """Software versions that differ, such as 'nvidia driver 570.86' and 'nvidia driver 580.159'."""

    measured: str
    installed: str


def _find_updates(campaign: Campaign, shared_documents: _SharedDocuments) -> dict[str, _Update]:
    """Return the environments of this host, by name, whose software differs from the currently installed software."""
    if not _list_local_systems(campaign):
        return {}
    current = describe_environment()
    updates: dict[str, _Update] = {}
    for name, document in shared_documents.items():
        # The software of another host, or of an allocation, is unknown here.
        if all(document.get(key) == current[key] for key in ("schema_version", "host")):
            update = _compare_versions(list_versions(document), list_versions(current))
            if update:
                updates[name] = update
    return updates


def _compare_versions(measured: Mapping[str, str], installed: Mapping[str, str]) -> _Update | None:
    """Return the versions that differ for software that both have, or None if all versions are equal."""
    names = [name for name in measured if measured[name] != installed.get(name, measured[name])]
    if not names:
        return None
    return _Update(*(", ".join(f"{name} {side[name]}" for name in names) for side in (measured, installed)))


def _find_parser_settings(workloads: Collection[str], shared_documents: _SharedDocuments) -> dict[str, dict[str, Any]]:
    """Return the parser settings of these workloads in each version of the campaign."""
    readings: dict[str, dict[str, Any]] = {}
    for name, document in shared_documents.items():
        if document.get("schema_version") == CAMPAIGN_SCHEMA:
            stored_workloads = {workload: workload_from_campaign_document(document, workload) for workload in workloads}
            readings[name] = {
                workload: settings.parsing_document()
                for workload, settings in stored_workloads.items()
                if settings is not None
            }
    return readings


def _describe_update(update: _Update, cells: int) -> str:
    """Format the message about cells that were measured with software other than that installed now."""
    return (
        f"{pluralize(cells, 'cell')} {'was' if cells == 1 else 'were'} measured with {update.measured}; this machine has "
        f"{update.installed}. '--config version=LABEL' ('--version LABEL') measures them again and keeps the earlier records"
    )


def _describe_parser_change(workload: str, runs: int, campaign: Campaign) -> str:
    """Format the message about runs that were read by a parser other than the workload's current one."""
    return (
        f"workload '{workload}': the parser has changed since {pluralize(runs, 'run')} {'was' if runs == 1 else 'were'} read; "
        f"'campaign parse {campaign.path}' reads the stored logs again and measures nothing"
    )

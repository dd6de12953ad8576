"""Context document of the report, with the text and settings beside tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import yaml

from campaign.analysis.tables import provenance, run_notes, system_context
from campaign.analysis.tables.collected import Collected
from campaign.analysis.tables.flag_meanings import FLAG_MEANINGS
from campaign.analysis.tables.protocol_context import describe_protocol, list_adjustment_notes, list_target_notes
from campaign.plan import analysis
from campaign.plan.baseline import choose_baseline
from campaign.plan.campaign.primary_metric import declared_metrics
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.past_costs import measured_forecasts
from campaign.spec.record import SCHEMA as RECORD_SCHEMA


def context_document(collected: Collected) -> dict[str, Any]:
    """Build the context as a JSON-serialisable `campaign.report.context_schema.ContextDocument`."""
    campaign, records = collected.campaign, collected.records
    document = campaign.document()
    flags = {flag for record in records for flag in record.flags}
    environments, software = _read_environments(collected)
    return {
        "campaign": _describe_campaign(collected, document["campaign"]),
        "campaign_yaml": _format_yaml({key: value for key, value in document.items() if key != "references"}),
        "system": system_context.describe_system(campaign),
        "notes": _list_notes(collected),
        "conditions": list(
            dict.fromkeys(condition for part in campaign.parts for condition in system_context.list_conditions(part))
        ),
        "excluded": [
            *(
                {"rule": removed.rule, "why": removed.why, "cells": removed.cells}
                for removed in collected.matrix.removed
            ),
            *(
                {"rule": f"configuration {impossible.shape}", "why": impossible.why, "cells": 0}
                for impossible in campaign.impossible
            ),
        ],
        "hosts_left_out": [{"host": host, "why": why} for host, why in sorted(collected.hosts_left_out.items())],
        "launchers": run_notes.count_launchers(campaign, records, collected.store),
        "software": software,
        "environments": environments,
        "schema_versions": {"record": RECORD_SCHEMA, "campaign": campaign.file.schema_version},
        "flags": {flag: meaning for flag, meaning in FLAG_MEANINGS.items() if flag in flags},
        "forecast": measured_forecasts(collected.store.results),
        **({"race": collected.race.model_dump(mode="json")} if collected.race else {}),
        "references": document.get("references", []),
    }


def _describe_campaign(collected: Collected, document: dict[str, Any]) -> dict[str, Any]:
    """Return the campaign's name, question, baseline, metrics and protocol, with its versions of the analysis."""
    campaign = collected.campaign
    versions = list(analysis.said(collected.analysis, campaign))
    layout = document.get("report")
    return {
        "name": campaign.name,
        "title": campaign.file.title or campaign.name,
        "question": campaign.file.question,
        "system": campaign.system_names,
        "baseline": choose_baseline(campaign),
        **({"analysis": versions} if versions else {}),
        **({"report": layout} if layout else {}),
        "metric": campaign.metric.document(),
        **({"earlier_spread": [asdict(spread) for spread in collected.earlier]} if collected.earlier else {}),
        "metrics": [metric.document() for metric in declared_metrics(campaign.file, campaign.workloads).values()],
        "protocol": describe_protocol(collected),
    }


def _format_yaml(document: dict[str, Any]) -> str:
    """Return the document as YAML with its keys in order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _read_environments(collected: Collected) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the documents of environments and software by name, and list the packages of all hosts."""
    hosts = {record.environment for record in collected.records if record.environment}
    names = hosts | {record.software for record in collected.records if record.software}
    environments = {name: collected.store.shared_document(name) for name in sorted(names)}
    packages = {package for host in hosts for package in environments[host].get("packages", {}).items()}
    return environments, [{"name": name, "version": version} for name, version in sorted(packages)]


def _list_notes(collected: Collected) -> list[str]:
    """List all notes of the page: about each system, the protocol, the matrix, and the origin of numbers."""
    campaign, records, store = collected.campaign, collected.records, collected.store
    return [
        *_merge_notes(campaign, lambda part: _list_part_notes(collected, part)),
        *list_target_notes(collected.matrix),
        *list_adjustment_notes(collected),
        *(f"{note[0].upper()}{note[1:]}." for note in collected.matrix.notes),
        *run_notes.list_superseded_notes(collected.matrix, store),
        *provenance.read_again(records, store),
        *provenance.otherwise_read(campaign, records, store),
        *provenance.labels(campaign, records, store),
        *provenance.updates(records, store),
    ]


def _merge_notes(campaign: Campaign, list_notes: Callable[[Campaign], Sequence[str]]) -> list[str]:
    """List the notes about each system. A note that does not hold for all systems begins with the name of its system."""
    notes = {part.part: list_notes(part) for part in campaign.parts}
    common = set.intersection(*map(set, notes.values())) if notes else set()
    return list(
        dict.fromkeys(
            note if campaign.part or note in common else f"{name}: {note}"
            for name, part_notes in notes.items()
            for note in part_notes
        )
    )


def _list_part_notes(collected: Collected, part: Campaign) -> list[str]:
    """List the notes about the part of a campaign on one system."""
    records = [record for record in collected.records if record.system in ("", part.part)]
    names = {configuration.name for configuration in part.configurations}
    has_measured_links = any(links["configuration"] in names for links in collected.links)
    return [
        *system_context.list_system_notes(part, has_measured_links=has_measured_links),
        *run_notes.list_emulated_link_notes(part.system, records, collected.store),
        *run_notes.list_pace_notes(part.system, records),
        *system_context.list_storage_notes(part.system),
        *run_notes.list_device_evidence(part, records),
    ]

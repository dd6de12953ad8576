"""Context document of the report, with the text and settings beside tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import yaml

from campaign.analysis.tables import provenance, run_notes, system_context
from campaign.analysis.tables.collected import CampaignResults
from campaign.analysis.tables.flag_meanings import FLAG_MEANINGS
from campaign.analysis.tables.protocol_context import describe_protocol, list_adjustment_notes, list_target_notes
from campaign.plan import analysis
from campaign.plan.baseline import choose_baseline
from campaign.plan.campaign.primary_metric import collect_declared_metrics
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.past_costs import read_measured_forecasts
from campaign.spec.record import SCHEMA as RECORD_SCHEMA


def build_context_document(campaign_results: CampaignResults) -> dict[str, Any]:
    """Build the context as a JSON-serialisable `campaign.report.context_schema.ContextDocument`."""
    campaign, records = campaign_results.campaign, campaign_results.records
    document = campaign.to_document()
    flags = {flag for record in records for flag in record.flags}
    environments, software = _read_environments(campaign_results)
    return {
        "campaign": _describe_campaign(campaign_results, document["campaign"]),
        "campaign_yaml": _format_yaml({key: value for key, value in document.items() if key != "references"}),
        "system": system_context.describe_system(campaign),
        "notes": _list_notes(campaign_results),
        "conditions": list(
            dict.fromkeys(
                condition for part in campaign.parts for condition in system_context.list_hardware_substitutes(part)
            )
        ),
        "assumptions": _describe_assumptions(campaign_results),
        "excluded": [
            *(
                {"rule": removed_rule.rule, "why": removed_rule.why, "cells": removed_rule.cells}
                for removed_rule in campaign_results.matrix.removed
            ),
            *(
                {"rule": f"configuration {impossible.shape}", "why": impossible.why, "cells": 0}
                for impossible in campaign.impossible
            ),
        ],
        "hosts_left_out": [
            {"host": host, "why": reason} for host, reason in sorted(campaign_results.hosts_left_out.items())
        ],
        "launchers": run_notes.count_launchers(campaign, records, campaign_results.store),
        "software": software,
        "environments": environments,
        "schema_versions": {"record": RECORD_SCHEMA, "campaign": campaign.file.schema_version},
        "flags": {flag: meaning for flag, meaning in FLAG_MEANINGS.items() if flag in flags},
        "forecast": read_measured_forecasts(campaign_results.store.results),
        **({"race": campaign_results.race.model_dump(mode="json")} if campaign_results.race else {}),
        "references": document.get("references", []),
    }


def _describe_campaign(campaign_results: CampaignResults, document: dict[str, Any]) -> dict[str, Any]:
    """Return the campaign's name, question, baseline, metrics, protocol and analysis versions."""
    campaign = campaign_results.campaign
    versions = list(analysis.describe_versions(campaign_results.analysis, campaign))
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
        **(
            {"earlier_spread": [asdict(spread) for spread in campaign_results.earlier_spreads]}
            if campaign_results.earlier_spreads
            else {}
        ),
        "metrics": [
            metric.document() for metric in collect_declared_metrics(campaign.file, campaign.workloads).values()
        ],
        "protocol": describe_protocol(campaign_results),
    }


def _format_yaml(document: dict[str, Any]) -> str:
    """Return the document as YAML with its keys in order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _read_environments(campaign_results: CampaignResults) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the documents of environments and software by name, and list the packages of all hosts."""
    hosts = {record.environment for record in campaign_results.records if record.environment}
    names = hosts | {record.software for record in campaign_results.records if record.software}
    environments = {name: campaign_results.store.read_shared_document(name) for name in sorted(names)}
    packages = {package for host in hosts for package in environments[host].get("packages", {}).items()}
    return environments, [{"name": name, "version": version} for name, version in sorted(packages)]


def _list_notes(campaign_results: CampaignResults) -> list[str]:
    """List all notes for the page, on each system, the protocol, the matrix, and the provenance of numbers."""
    campaign, records, store = campaign_results.campaign, campaign_results.records, campaign_results.store
    return [
        *_merge_notes(campaign, lambda part: _list_part_notes(campaign_results, part)),
        *list_target_notes(campaign_results.matrix),
        *list_adjustment_notes(campaign_results),
        *(f"{note[0].upper()}{note[1:]}." for note in campaign_results.matrix.notes),
        *run_notes.list_superseded_notes(campaign_results.matrix, store),
        *provenance.list_reread_notes(records, store),
        *provenance.list_parser_mismatch_notes(campaign, records, store),
        *provenance.list_label_notes(campaign, records, store),
        *provenance.list_update_notes(records, store),
    ]


def _describe_assumptions(campaign_results: CampaignResults) -> dict[str, str]:
    """Describe the assumptions of emulations by subject, with those of several systems joined."""
    sentences: dict[str, dict[str, None]] = {}
    for part in campaign_results.campaign.parts:
        records = [record for record in campaign_results.records if record.system in ("", part.part)]
        for subject, sentence in run_notes.describe_assumptions(part.system, records, campaign_results.store).items():
            sentences.setdefault(subject, {})[sentence] = None
    return {subject: " ".join(texts) for subject, texts in sentences.items()}


def _merge_notes(campaign: Campaign, list_notes: Callable[[Campaign], Sequence[str]]) -> list[str]:
    """List the notes on all systems. A note that does not apply to every system starts with its system's name."""
    notes = {part.part: list_notes(part) for part in campaign.parts}
    common = set.intersection(*map(set, notes.values())) if notes else set()
    return list(
        dict.fromkeys(
            note if campaign.part or note in common else f"{name}: {note}"
            for name, part_notes in notes.items()
            for note in part_notes
        )
    )


def _list_part_notes(campaign_results: CampaignResults, part: Campaign) -> list[str]:
    """List the notes on the part of a campaign that ran on one system."""
    records = [record for record in campaign_results.records if record.system in ("", part.part)]
    names = {configuration.name for configuration in part.configurations}
    has_measured_links = any(links["configuration"] in names for links in campaign_results.links)
    return [
        *system_context.list_system_notes(part, has_measured_links=has_measured_links),
        *run_notes.list_emulated_link_notes(part.system, records, campaign_results.store),
        *run_notes.list_pace_notes(part.system, records),
        *run_notes.list_load_notes(records),
        *system_context.list_storage_notes(part.system),
        *run_notes.list_device_evidence_notes(part, records),
    ]

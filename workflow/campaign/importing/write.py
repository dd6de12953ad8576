"""Writing of the records that a survey found, and of the campaign's files next to them."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from campaign import __version__
from campaign.common.errors import ConfigError, RecordError, convert_os_error
from campaign.common.files import read_text, write_atomic
from campaign.common.paths import Results
from campaign.importing.campaign_files import make_system_document
from campaign.importing.log_facts import compute_run_span
from campaign.importing.map_file import ImportMap
from campaign.importing.scan_logs import LogSurvey, ScannedLog
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.matrix import Specifications
from campaign.plan.past_costs import collect_earlier_spread, read_costs
from campaign.spec.earlier_spread import write_spreads
from campaign.spec.record import IMPORTED_FLAG, IMPORTED_LEASE_PREFIX, Record, RecordedCell, RecordStore, Source

CONFIG_DIRECTORY = "config"
"""Name of the directory of the campaign's files in its results."""
_FILE_HEADER = "# Written by 'campaign import' from import.yaml in the same directory. The next import overwrites it.\n"


def read_earlier_records(results: Results) -> tuple[Record, ...]:
    """Return the records of earlier imports.

    Raises ConfigError if the results hold measured records, because measured and imported records are not mixed.
    """
    records = tuple(RecordStore(results.directory))
    if any(record.source is None for record in records):
        raise ConfigError(
            f"{results.directory}: contains measured records; give the map another name, or import into another --results directory"
        )
    return records


def rehearse_import(survey: LogSurvey, import_map: ImportMap, results: Results, *, with_records: bool = True) -> None:
    """Raise any error that `write_import` would raise, without writing anything permanently.

    Args:
        survey: result of the survey.
        import_map: map of the import.
        results: results directory of the campaign.
        with_records: also write the records, which reveals a full file system.
    """
    existing = next(path for path in (results.directory, *results.directory.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"{results.directory}: cannot be written; give another directory with --results")
    with tempfile.TemporaryDirectory(prefix="campaign-import-") as scratch:
        rehearsed_survey = survey if with_records else replace(survey, entries=())
        write_import(rehearsed_survey, import_map, Results(Path(scratch), results.campaign))


def write_import(survey: LogSurvey, import_map: ImportMap, results: Results) -> Path:
    """Write the new records and the campaign's files, and return the path of the campaign file.

    Args:
        survey: result of the survey.
        import_map: map of the import.
        results: results directory of the campaign.
    """
    store = RecordStore(results.directory)
    directory = results.directory / CONFIG_DIRECTORY
    system = make_system_document(import_map.import_file, import_map.declarations.workloads, make_notes(survey))
    try:
        campaign_file = _write_config_files(survey.campaign, directory, system, import_map.path)
    except OSError as error:
        raise convert_os_error(error, directory) from error
    environment = {
        "schema_version": "environment/1",
        "host": import_map.import_file.system.name,
        "imported_by": f"composable-campaign {__version__}",
        "packages": dict(import_map.import_file.software),
    }
    shared_documents = {
        "campaign": store.share_document(load_campaign(campaign_file).to_document()),
        "environment": store.share_document(environment),
    }
    # One for all records, because it hashes every workload of the campaign.
    specifications = Specifications(survey.campaign)
    composition_hashes: dict[tuple[str, ...], str] = {}
    for entry in survey.select_entries("new"):
        hosts = () if entry.identity is None else entry.identity.hosts
        if hosts not in composition_hashes:
            composition_hashes[hosts] = store.share_document(_make_composition(survey, hosts))
        documents = {**shared_documents, "composition": composition_hashes[hosts]}
        store.write(_make_record(survey, entry, specifications, documents))
    # Stored in the results, so that the borrowed spread of other campaigns is available wherever the results are moved.
    name = survey.campaign.system.name
    write_spreads(
        results.earlier_spread_file, name, collect_earlier_spread(read_costs(results), results.campaign, [name])
    )
    return campaign_file


def _write_config_files(campaign: Campaign, directory: Path, system: Mapping[str, Any], source: Path) -> Path:
    """Write the campaign's files into a directory, and return the path of campaign.yaml.

    These are campaign.yaml, the files of the system and the workloads, the sets of claims that are files of the map, and the
    map.

    Args:
        campaign: campaign of the records.
        directory: directory of the files.
        system: system file as a document.
        source: file of the map.
    """
    file = campaign.file.model_dump(mode="json", exclude_defaults=True)
    protocol = campaign.protocol
    file["protocol"] |= {"compositions": protocol.compositions, "lease_order": protocol.lease_order}
    reference_files: dict[str, Path] = {}
    if campaign.file.references:
        from campaign.spec.published_file import find_set_path, is_set_name

        own_names = [name for name in campaign.file.references if not is_set_name(name)]
        copies = {name: f"references/{number}-{Path(name).name}" for number, name in enumerate(own_names, 1)}
        reference_files = {copies[name]: find_set_path(name, source.parent) for name in own_names}
        file["references"] = [copies.get(name, name) for name in campaign.file.references]
    documents: dict[str, Mapping[str, Any]] = {
        "campaign.yaml": file,
        f"systems/{campaign.system.name}.yaml": system,
        **{
            f"workloads/{name}.yaml": file.model_dump(mode="json", exclude_defaults=True)
            for name, file in campaign.workloads.items()
        },
    }
    texts = {
        name: _FILE_HEADER + yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)
        for name, document in documents.items()
    }
    texts |= {name: read_text(path) for name, path in reference_files.items()}
    texts["import.yaml"] = read_text(source)
    for name, text in texts.items():
        write_atomic(directory / name, text)
    return directory / "campaign.yaml"


def make_notes(survey: LogSurvey) -> list[str]:
    """Return the notes for readers of the report on the origin of the records."""
    count = len(survey.records) + len(survey.select_entries("new"))
    texts = [
        f"All {count} records were read from logs of other programs ('campaign import'). Hardware, software and protocol are as "
        "stated in the map of the import. The actual compositions, links and telemetry are unknown."
    ]
    if unread_entries := survey.select_entries("unread"):
        # The list that the import prints has the details, such as the original of a copy.
        reasons = Counter(re.split(r" of (?=\S+[/.])|: |; ", entry.reason)[0] for entry in unread_entries).most_common(
            3
        )
        reasons_text = "; ".join(f"{reason} ({n})" for reason, n in reasons)
        texts.append(f"{len(unread_entries)} further files could not be imported: {reasons_text}.")
    return texts


def _make_composition(survey: LogSurvey, hosts: Collection[str]) -> dict[str, Any]:
    """Return the document of a composition. It has the hosts that both the log and the map name, with unknown devices."""
    return {
        "schema_version": "composition/1",
        "hosts": [
            {"name": name, "cores": group.cores, "memory_gib": group.memory_gib, "devices": [], "storage": []}
            for group in survey.campaign.system.hosts
            for name in group.list_names()
            if name in hosts
        ],
    }


def _make_record(
    survey: LogSurvey, entry: ScannedLog, specifications: Specifications, shared_documents: Mapping[str, str]
) -> Record:
    """Build the record of a new log. Raises RecordError if the log was not read.

    Args:
        survey: result of the survey.
        entry: the log.
        specifications: specifications of the cells of the survey's campaign.
        shared_documents: hashes of the documents that the record shares with others, by field.
    """
    cell, outcome, identity = entry.cell, entry.outcome, entry.identity
    if cell is None or outcome is None or identity is None:
        raise RecordError(f"{entry.path}: was not read")
    start_s, end_s, is_timed = compute_run_span(entry.facts, (survey.directory / entry.path).stat().st_mtime)
    return Record(
        cell_id=cell.id,
        repetition=entry.repetition,
        cell=RecordedCell.from_cell(cell),
        specification=specifications.build(cell),
        status=outcome.status,
        failure=outcome.failure,
        started=start_s,
        ended=end_s,
        lease_id=f"{survey.campaign.name}.{cell.configuration.name}."
        f"{identity.lease or IMPORTED_LEASE_PREFIX + _shorten_key(entry)}",
        hosts=identity.hosts,
        **shared_documents,
        throughput_per_s=outcome.throughput_per_s,
        step_times_s=outcome.step_times_s,
        window_s=outcome.window_s,
        metrics=dict(outcome.metrics),
        phases_s=dict(outcome.phases_s),
        flags=(IMPORTED_FLAG, *outcome.flags),
        source=Source(path=entry.path, sha256=entry.sha256, timed=is_timed, test=entry.test),
    )


def _shorten_key(entry: ScannedLog) -> str:
    """Return a short key of a log for the name of a lease."""
    return entry.sha256[:12] + (f"-{entry.test}" if entry.test else "")

"""Notes on the provenance of numbers, such as later readings of logs, labels, and updates of installed software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.workload_inputs import workload_from_campaign_document
from campaign.run.environment import list_versions
from campaign.spec.readings import REREAD_FLAG, read_all_readings
from campaign.spec.record import Record, RecordStore


def list_reread_notes(records: Sequence[Record], store: RecordStore) -> Iterator[str]:
    """Yield notes on runs whose logs were read again later, with the parser and the time."""
    if not any(REREAD_FLAG in record.flags for record in records):
        return
    newest = {run: reading for reading in read_all_readings(store.results) for run in reading.runs}
    runs = Counter(
        (
            reading.formatted_time,
            record.cell.workload,
            str(reading.workloads.get(record.cell.workload, {}).get("parser", "its own parsers")),
        )
        for record in records
        if REREAD_FLAG in record.flags and (reading := newest.get(f"{record.cell_id}.{record.repetition}"))
    )
    for (when, workload, parser), count in runs.items():
        yield (
            f"The logs of {pluralize(count, 'run')} of workload {workload} were "
            f"read again at {when} by {parser}. The numbers come from "
            "that reading; the records are unchanged."
        )


def list_parser_mismatch_notes(campaign: Campaign, records: Sequence[Record], store: RecordStore) -> Iterator[str]:
    """Yield notes on runs read by another parser than the workload's current one, as a mean may mix both."""
    readers = {
        name: workload.parsing_document() for name, workload in campaign.workloads.items() if workload.parsing_keys
    }
    runs = Counter(
        (record.campaign, record.cell.workload)
        for record in records
        if record.log and record.cell.workload in readers and REREAD_FLAG not in record.flags
    )
    runs_by_workload = Counter[str]()
    for (as_used, name), count in runs.items():
        workload_as_used = workload_from_campaign_document(store.read_shared_document(as_used), name)
        runs_by_workload[name] += (
            count if workload_as_used is not None and workload_as_used.parsing_document() != readers[name] else 0
        )
    for name, count in runs_by_workload.items():
        if count:
            yield (
                f"{pluralize(count, 'run')} of workload {name} "
                f"{'was' if count == 1 else 'were'} read by another parser than its "
                "present one; 'campaign parse' reads the logs again."
            )


def list_label_notes(campaign: Campaign, records: Sequence[Record], store: RecordStore) -> Iterator[str]:
    """Yield notes on labels that are part of the identity of cells."""
    if label := campaign.file.version:
        yield f"The cells were measured as version '{label}'. Runs with another label, or without a label, belong to other cells."
    files = [
        (name, text, label)
        for name, input_paths in campaign.inputs.items()
        for text in input_paths
        if (label := campaign.workloads[name].find_input_version(text))
    ]
    campaign_documents = (
        [store.read_shared_document(name) for name in sorted({record.campaign for record in records})] if files else []
    )
    for name, text, label in files:
        contents = {
            document.get("inputs", {}).get(name, {}).get(text, {}).get("sha256", "")[:12]
            for document in campaign_documents
        } - {""}
        yield (
            f"Input '{text}' of workload {name} is identified by its version '{label}' instead of its content. Its contents in "
            f"these runs (SHA-256): {', '.join(sorted(contents)) or 'unknown'}."
        )


def list_update_notes(records: Sequence[Record], store: RecordStore) -> Iterator[str]:
    """Yield notes on software that was updated on a host between runs of one mean."""
    installed_versions: dict[tuple[str, str], Counter[str]] = {}
    for name, count in Counter(record.environment for record in records if record.environment).items():
        document = store.read_shared_document(name)
        for package, version in list_versions(document).items():
            installed_versions.setdefault((str(document.get("host")), package), Counter())[version] += count
    for (host, package), counts in installed_versions.items():
        if len(counts) > 1:
            version_counts = ", ".join(f"{version} ({pluralize(count, 'run')})" for version, count in counts.items())
            yield (
                f"Runs on {host} used several versions of {package}: "
                f"{version_counts}. Set `version` in the campaign file to separate them."
            )

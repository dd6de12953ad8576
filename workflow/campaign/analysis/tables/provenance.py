"""Notes on the provenance of numbers, such as later readings of logs, labels, and updates of installed software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.workload_inputs import stored_workload
from campaign.run.environment import versions
from campaign.spec.readings import READ_AGAIN, all_readings
from campaign.spec.record import Record, Store


def read_again(records: Sequence[Record], store: Store) -> Iterator[str]:
    """Yield notes on runs whose logs were read again later, with the parser and the time."""
    if not any(READ_AGAIN in record.flags for record in records):
        return
    newest = {run: each for each in all_readings(store.results) for run in each.runs}
    runs = Counter(
        (
            each.when,
            record.cell.workload,
            str(each.workloads.get(record.cell.workload, {}).get("parser", "its own parsers")),
        )
        for record in records
        if READ_AGAIN in record.flags and (each := newest.get(f"{record.cell_id}.{record.repetition}"))
    )
    for (when, workload, parser), count in runs.items():
        yield (
            f"The logs of {pluralize(count, 'run')} of workload {workload} were "
            f"read again at {when}, by {parser}, without a run. The "
            "numbers are of that reading; the records stay as they were measured."
        )


def otherwise_read(campaign: Campaign, records: Sequence[Record], store: Store) -> Iterator[str]:
    """Yield notes on runs that were read by another parser than the workload has now, because one mean may mix both."""
    readers = {name: workload.reading() for name, workload in campaign.workloads.items() if workload.reading_keys}
    runs = Counter(
        (record.campaign, record.cell.workload)
        for record in records
        if record.log and record.cell.workload in readers and READ_AGAIN not in record.flags
    )
    others = Counter[str]()
    for (as_used, name), count in runs.items():
        measured = stored_workload(store.shared_document(as_used), name)
        others[name] += count if measured is not None and measured.reading() != readers[name] else 0
    for name, count in others.items():
        if count:
            yield (
                f"{pluralize(count, 'run')} of workload {name} "
                f"{'was' if count == 1 else 'were'} read by another parser than it has "
                "now; 'campaign parse' reads the logs again."
            )


def labels(campaign: Campaign, records: Sequence[Record], store: Store) -> Iterator[str]:
    """Yield notes on labels that are part of the identity of cells."""
    if label := campaign.file.version:
        yield f"Measured as version '{label}': runs under another label, or without one, are other cells."
    files = [
        (name, text, label)
        for name, of_workload in campaign.inputs.items()
        for text in of_workload
        if (label := campaign.workloads[name].version_of(text))
    ]
    used = [store.shared_document(name) for name in sorted({record.campaign for record in records})] if files else []
    for name, text, label in files:
        contents = {each.get("inputs", {}).get(name, {}).get(text, {}).get("sha256", "")[:12] for each in used} - {""}
        yield (
            f"Input '{text}' of workload {name} counts by its version '{label}', and not by its content. Contents in these runs "
            f"(SHA-256): {', '.join(sorted(contents)) or 'not known'}."
        )


def updates(records: Sequence[Record], store: Store) -> Iterator[str]:
    """Yield notes on software that was updated on a host between runs of one mean."""
    installed: dict[tuple[str, str], Counter[str]] = {}
    for name, count in Counter(record.environment for record in records if record.environment).items():
        document = store.shared_document(name)
        for what, version in versions(document).items():
            installed.setdefault((str(document.get("host")), what), Counter())[version] += count
    for (host, what), counts in installed.items():
        if len(counts) > 1:
            told = ", ".join(f"{version} ({pluralize(count, 'run')})" for version, count in counts.items())
            yield f"Runs on {host} are of several versions of {what}: {told}. A `version` of the campaign keeps them apart."

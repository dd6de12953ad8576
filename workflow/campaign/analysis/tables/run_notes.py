"""Notes for the report from records: emulated links and paces, evidence of devices, launchers, replaced runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from campaign.common.wording import pluralize
from campaign.emulators.hosts.emulation_plan import format_links_sentence as describe_links
from campaign.plan.campaign.resolve import Campaign, stored_systems
from campaign.plan.matrix import Matrix
from campaign.spec.host_load import describe_foreign_load
from campaign.spec.record import IMPORTED_FLAG, Record, RecordStore
from campaign.spec.superseded import list_superseded
from campaign.spec.system_file import SystemFile


def list_emulated_link_notes(system: SystemFile, records: Sequence[Record], store: RecordStore) -> list[str]:
    """Return a note for each way in which links were emulated during the recorded runs."""
    if system.emulation is None:
        return []
    runs = Counter[str]()
    for name, count in Counter(record.composition for record in records).items():
        links = store.read_shared_document(name).get("links")
        if links is not None:
            runs[json.dumps(links, sort_keys=True)] += count
    return [describe_links(json.loads(links), count, len(records)) for links, count in sorted(runs.items())]


def list_pace_notes(system: SystemFile, records: Sequence[Record]) -> list[str]:
    """Return a note on the compute rates of emulated devices and on the time lost to busy cores."""
    lost_pct = [
        record.metrics["pace_lost_pct"]
        for record in records
        if record.status == "ok" and "pace_lost_pct" in record.metrics
    ]
    if system.emulation is None or not lost_pct:
        return []
    rates = "; ".join(
        f"'{model}' {', '.join(f'{precision} {rate:g}' for precision, rate in paces.items())}"
        for model, paces in system.emulation.pace.items()
    )
    return [
        f"Emulated devices compute at a fixed pace below the speed of this machine's cores, in GFLOP/s: {rates}. Valid runs lost "
        f"at most {max(lost_pct):.2g} % of their time because a core was busy; the median is {median(lost_pct):.2g} %."
    ]


def list_load_notes(records: Iterable[Record]) -> list[str]:
    """Return a note on the load by other programs during valid runs, or no note if it was never measured."""
    note = describe_foreign_load(record.loads for record in records if record.status == "ok")
    return [note] if note else []


def describe_assumptions(system: SystemFile, records: Sequence[Record], store: RecordStore) -> dict[str, str]:
    """Describe the values of the system file that an emulation applied and that results therefore repeat, by subject.

    Returns at most one sentence each for 'precision' (paces of emulated devices) and 'links' (rates per direction).
    """
    if system.emulation is None or not records:
        return {}
    speeds = [
        f"{precision} {pace / paces['fp32']:.3g}× as fast as fp32"
        for paces in system.emulation.pace.values()
        for precision, pace in paces.items()
        if precision != "fp32" and "fp32" in paces
    ]
    composed_links = [
        store.read_shared_document(name).get("links") for name in sorted({r.composition for r in records})
    ]
    emulated_links: Mapping[str, Any] = next((links for links in composed_links if links and links["emulated"]), {})
    rates = [
        f"{rate:.3g} Gbit/s {meaning}"
        for link, meaning in (("local", "in a host"), ("fabric", "to the fabric"), ("network", "between hosts"))
        if (rate := emulated_links.get(f"{link}_gbit_per_s"))
    ]
    return {
        **({"precision": f"The system file makes {', '.join(dict.fromkeys(speeds))}."} if speeds else {}),
        **({"links": f"The system file sets the links: {', '.join(rates)}."} if rates else {}),
    }


def list_device_evidence_notes(campaign: Campaign, records: Iterable[Record]) -> list[str]:
    """Return a note on the evidence that runs used accelerators, or no note if no valid run used any."""
    kinds = {
        configuration.name: campaign.device_model(configuration).runs_on for configuration in campaign.configurations
    }
    valid = [
        record for record in records if record.status == "ok" and kinds.get(record.cell.configuration, "cpu") != "cpu"
    ]
    if not valid:
        return []
    has_reported_devices = [bool(record.ran_on) for record in valid]
    has_telemetry = ["device_utilisation_peak_pct" in record.metrics for record in valid]
    neither = len(valid) - sum(map(max, has_reported_devices, has_telemetry))
    lacking = (
        f" {pluralize(neither, 'run')} {'has' if neither == 1 else 'have'} neither, so the devices of their work are unknown."
        if neither
        else ""
    )
    return [
        "Evidence that the work ran on the devices, for "
        f"{pluralize(len(valid), 'valid run')}: in {sum(has_reported_devices)}, ranks reported the "
        "devices of their parameters, gradients and losses; in "
        f"{sum(has_telemetry)}, telemetry sampled the utilisation.{lacking}"
    ]


def list_superseded_notes(matrix: Matrix, store: RecordStore) -> list[str]:
    """Return a note for each time that runs of the matrix were remeasured, with the number of replaced records."""
    cells = {cell.id for cell in matrix.cells}
    counts = [(batch, sum(cell_id in cells for cell_id, _ in batch.runs)) for batch in list_superseded(store.results)]
    return [
        f"{pluralize(count, 'record')} {'was' if count == 1 else 'were'} set aside ({batch.reason}) at {batch.when} (UTC) to "
        f"measure the runs again. The results keep them in superseded/{batch.when}/, and no number here includes them."
        for batch, count in counts
        if count
    ]


def count_launchers(campaign: Campaign, records: Sequence[Record], store: RecordStore) -> dict[str, int]:
    """Count runs by launcher.

    The launcher is the one that was used, because a profile may have replaced that of the campaign.
    """
    if campaign.file.imported:
        return {IMPORTED_FLAG: len(records)}
    runs = Counter[str]()
    for (name, system), count in Counter((record.campaign, record.system) for record in records).items():
        systems: dict[str, Any] = stored_systems(store.read_shared_document(name))
        runs[systems.get(system, next(iter(systems.values())))["launcher"]] += count
    return dict(runs)

"""From a results directory to its tables and the words beside them. Needs no hardware and no system, so it works on archives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from campaign.budget import kept_choice
from campaign.config import launching
from campaign.config.resolve import Campaign
from campaign.costs import costs_of
from campaign.errors import RecordError
from campaign.fabrics import adapters
from campaign.frontier import CONTRADICTS
from campaign.launchers.links import FLAGS as LINK_FLAGS
from campaign.launchers.links import said
from campaign.learning import COSTS, measured_forecasts
from campaign.links.kept import links_of_uses
from campaign.matrix import Matrix, expand
from campaign.plan import Key, lease_name
from campaign.record import IMPORTED, Record, Store
from campaign.record import SCHEMA as RECORD_SCHEMA
from campaign.repetitions import said as often
from campaign.settled import Known, read_known
from campaign.slurm.excluded import Excluded
from campaign.superseded import RecordedHosts, all_set_aside

if TYPE_CHECKING:  # it brings pandas
    from campaign.idle import Busy
    from campaign.tableset import Tables

FLAGS = {
    "oversubscribed: more ranks than cores": "more ranks than processor cores took part, so ranks waited for each other's cores",
    CONTRADICTS: "it ran, though an otherwise equal cell with a smaller batch, or this one, ran out of memory before",
    IMPORTED: "it was read from a log that was made without this program; hardware and software are as its map states them",
    "exit_hang": "a rank measured well, then did not exit by itself and was ended",
    "storage emulated": "samples were read no faster than the system file says, in place of a link that is not there",
    "storage is the host's memory": "the storage's file system keeps its files in memory, so that nothing was read from a device",
    **LINK_FLAGS,
}


# What a caption says of the protocol; time limits and the like change no number.
_PROTOCOL = ("warmup_steps", "measured_steps", "repetitions", "order", "seed")


@dataclass(frozen=True)
class Collected:
    """Everything right of the record, before tables are made."""

    campaign: Campaign
    matrix: Matrix
    records: list[Record]
    leases: list[dict[str, Any]]
    reasons: Mapping[str, str]
    """Why a lease's runs have no record, by lease."""
    store: Store
    beside: Sequence[Busy] = ()
    """What else the leases of these records were busy with: runs of cells that are not asked for."""
    links: Sequence[Mapping[str, Any]] = ()
    """What was measured of the links of these leases (`campaign.links.of_use`), with the configuration of each."""
    known: Known = field(default_factory=Known)
    """What has a record, and what ended cells before their most repetitions."""
    hosts_left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a host that failed is not asked for any more, by host."""


def gather(campaign: Campaign, directory: Path, where: str | None = None, store: Store | None = None) -> Collected:
    """Read what the results directory holds of the campaign's cells; RecordError names a damaged file.

    store: of that directory, where one has read records already.
    """
    store = store or Store(directory)
    matrix = expand(campaign, where, hosts=RecordedHosts(store))
    known = read_known(campaign, store)
    present = known.measured
    wanted = sorted(key for key in _keys(matrix) if key in present)
    records = [store.read(*key) for key in wanted]
    used = {record.lease_id for record in records}
    names = {lease_name(campaign.protocol, cell) for cell in matrix.cells}
    leases = [
        lease
        for path in sorted((directory / "leases").glob("*.json"))
        if (lease := _document(path))["lease_id"] in used or lease.get("lease") in names
    ]
    leases.sort(key=lambda lease: (lease.get("requested_s") or 0.0, lease["lease_id"]))
    others = (store.read(*key) for key in sorted(present.difference(wanted)))
    beside = [(other.lease_id, other.started, other.ended) for other in others if other.lease_id in used]
    configurations = {record.lease_id: record.cell.configuration for record in records}
    links = [
        {**each, "configuration": configurations[each["lease_id"]]}
        for each in links_of_uses(directory, store)
        if each["lease_id"] in configurations
    ]
    left_out = Excluded(directory / "slurm").read()
    return Collected(campaign, matrix, records, leases, _reasons(directory), store, beside, links, known, left_out)


def _keys(matrix: Matrix) -> Iterator[Key]:
    for cell in matrix.cells:
        for repetition in range(1, cell.settings.repetitions + 1):
            yield cell.id, repetition


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path}: cannot be read ({error}); move it away, its lease is then shown as unknown"
        ) from error
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("lease_id"), str)
        or not isinstance(document.get("requested_s"), int | float | None)
    ):
        raise RecordError(f"{path}: is not a lease document; move it away, its lease is then shown as unknown")
    return document


def _reasons(directory: Path) -> dict[str, str]:
    reasons = {}
    for path in sorted(
        (directory / "manifests").glob("*/*.json"), key=lambda path: (path.parent.name, path.stat().st_mtime)
    ):
        try:
            document = json.loads(path.read_bytes())
            reasons[document["lease"]] = document["reason"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}: not a manifest ({error!r}); delete it, it is made again") from error
    return reasons


def context_document(collected: Collected) -> dict[str, Any]:
    """What the page needs beside tables and figures (`report_document.ContextDocument`), from records and campaign alone."""
    campaign, records = collected.campaign, collected.records
    shared = {name for record in records for name in (record.environment, record.software) if name}
    environments = {name: collected.store.shared_document(name) for name in sorted(shared)}
    hosts = [environments[name] for name in {record.environment for record in records}]
    software = {(name, version) for document in hosts for name, version in document.get("packages", {}).items()}
    document = campaign.document()
    flags = {flag for record in records for flag in record.flags}
    return {
        "campaign": {
            "name": campaign.name,
            "title": campaign.file.title or campaign.name,
            "question": campaign.file.question,
            "system": campaign.system.name,
            "baseline": baseline(campaign),
            "protocol": {
                name: document["campaign"]["protocol"][name]
                for name in _PROTOCOL
                if not (campaign.file.imported and name == "seed")  # stands for one that nobody knows
            },
        },
        "campaign_yaml": yaml.safe_dump(
            {key: value for key, value in document.items() if key != "references"},
            sort_keys=False,
            allow_unicode=True,
            width=100,
        ),
        "system": {
            "name": campaign.system.name,
            "description": campaign.system.description,
            "fabric": "not known (imported)" if campaign.file.imported else str(campaign.system.fabric.get("kind", "")),
        },
        "notes": [
            *campaign.system.notes,
            *_unverified(campaign),
            *launching.said(campaign.system, campaign.configurations),
            *_emulation(campaign),
            *_links(collected),
            *_emulated_links(collected),
            *_targets(collected.matrix),
            *_set_aside(collected),
        ],
        "excluded": [
            *({"rule": r.rule, "why": r.why, "cells": r.cells} for r in collected.matrix.removed),
            *({"rule": f"configuration {i.shape}", "why": i.why, "cells": 0} for i in campaign.impossible),
        ],
        "hosts_left_out": [{"host": host, "why": why} for host, why in sorted(collected.hosts_left_out.items())],
        "launchers": _launchers(collected),
        "software": [{"name": name, "version": version} for name, version in sorted(software)],
        "environments": environments,
        "schema_versions": {"record": RECORD_SCHEMA, "campaign": campaign.file.schema_version},
        "flags": {flag: meaning for flag, meaning in FLAGS.items() if flag in flags},
        "forecast": measured_forecasts(collected.store.results),
    }


def _targets(matrix: Matrix) -> list[str]:
    """What a reader of an interval should know where it was waited for."""
    asked = {
        (often(s), s.target_half_width_pct)
        for cell in matrix.cells
        if (s := cell.settings).target_half_width_pct is not None
    }
    return [
        f"Cells with {times.replace('-', ' to ')} repetitions ended once the 95 % interval of their mean throughput was within "
        f"±{target:g} % of it, or with the most of them. An interval that was waited for covers the true mean less often than its "
        "name says: simulated, in 90 to 95 of 100 cells."
        for times, target in sorted(asked)
    ]


def _set_aside(collected: Collected) -> list[str]:
    """What was measured again: its first records are kept, and take part in nothing."""
    asked = {cell.id for cell in collected.matrix.cells}
    times = [(t, sum(cell_id in asked for cell_id, _ in t.runs)) for t in all_set_aside(collected.store.results)]
    return [
        f"{count} records of runs with {each.where} were set aside at {each.when} (UTC), to measure these runs again; they are "
        f"kept in superseded/{each.when}/ of the results, and no number here holds them."
        for each, count in times
        if count
    ]


def _launchers(collected: Collected) -> dict[str, int]:
    """Runs by launcher, as the campaign was when they were measured: a profile may have chosen another than the system file."""
    runs: Counter[str] = Counter()
    if collected.campaign.file.imported:
        return {IMPORTED: len(collected.records)}
    for name, count in Counter(record.campaign for record in collected.records).items():
        runs[collected.store.shared_document(name)["system"]["launcher"]] += count
    return dict(runs)


def baseline(campaign: Campaign) -> str:
    """The configuration that overheads refer to: as named, or the largest local one on the fewest hosts."""
    if campaign.file.baseline:
        return campaign.file.baseline
    local = [
        c for c in campaign.configurations if c.attach == "local" and c.storage == "local"
    ] or campaign.configurations
    return max(local, key=lambda c: (c.ranks, -c.hosts)).name


def _unverified(campaign: Campaign) -> list[str]:
    kind = str(campaign.system.fabric["kind"])
    adapter = adapters().get(kind)
    if adapter is None or not adapter.unverified:
        return []
    return [f"The fabric adapter '{kind}' is unverified: {adapter.unverified}."]


def _emulation(campaign: Campaign) -> list[str]:
    models = sorted({c.device for c in campaign.configurations if campaign.device(c.device).runs_on == "cpu"})
    return [
        f"Each device of model '{model}' is emulated by one process on a CPU core: the numbers compare compositions of this "
        "machine, they are not those of GPUs."
        for model in models
    ]


def _links(collected: Collected) -> list[str]:
    """The system's links as its file gives them: what a reader holds an overhead against."""
    kinds = {"local": "between devices of a host", "fabric": "to devices behind the fabric", "network": "between hosts"}
    said = []
    for name, meaning in kinds.items():
        link = getattr(collected.campaign.system.links, name)
        if link is not None:
            latency = "" if link.latency_us is None else f", {link.latency_us:g} µs"
            source = f" ({link.source})" if link.source else ""
            said.append(f"{meaning} {link.gb_per_s:g} GB/s one way{latency}{source}")
    measured = "" if collected.links else ", not measured"
    return [f"Links by the system file{measured}: {'; '.join(said)}."] if said else []


def _emulated_links(collected: Collected) -> list[str]:
    """What became of the links that the system file asks to emulate, as the records say it."""
    if collected.campaign.system.emulation is None:
        return []
    runs: dict[str, tuple[dict[str, Any], int]] = {}
    for name, count in Counter(record.composition for record in collected.records).items():
        links = collected.store.shared_document(name).get("links")
        if links is not None:
            key = json.dumps(links, sort_keys=True)
            runs[key] = (links, runs.get(key, (links, 0))[1] + count)
    return [said(links, count, len(collected.records)) for _, (links, count) in sorted(runs.items())]


def tables_of(collected: Collected) -> Tables:
    """All tables of what was gathered."""
    from campaign.tables import PlannedCell, cells_table, runs_table
    from campaign.tableset import Tables
    from campaign.telemetry.series import sampled

    runs = runs_table(collected.records, collected.beside)
    present = {record.key for record in collected.records}
    budget = kept_choice(collected.store.results / "plan" / "budget.json")
    planned = []
    for cell in collected.matrix.cells:
        lease = lease_name(collected.campaign.protocol, cell)
        repetitions = collected.known.planned(cell)
        why = collected.reasons.get(lease) or (
            "no log of it was imported" if collected.campaign.file.imported else "not measured yet"
        )
        paid = repetitions if budget is None else budget.limits.get(cell.id, 0)
        missing = {
            r: why if budget is None or r <= paid else budget.left_out
            for r in range(1, repetitions + 1)
            if (cell.id, r) not in present
        }
        planned.append(PlannedCell(cell, repetitions, lease, missing))
    cells = cells_table(planned, runs)
    store, order = collected.store, [cell.id for cell in collected.matrix.cells]
    telemetry = sampled(collected.records, store.results, store.shared_document, order)
    tables = Tables(runs, cells, collected.leases, collected.links, context_document(collected), telemetry)
    if not collected.campaign.references:
        return tables
    from campaign.published.said import held_against

    published = held_against(collected.campaign.references, tables)
    return replace(tables, context={**tables.context, "published": published})


def collect(collected: Collected, out: Path) -> None:
    """Write tables/: runs and cells (Parquet and CSV), telemetry (Parquet), leases.json, links.json, context.json; and costs.json,
    what forecasts learn from."""
    from campaign.tableset import write

    write(tables_of(collected), out)
    campaign = collected.campaign
    found = costs_of(campaign.name, campaign.system.name, collected.records, collected.leases)
    (out / COSTS).write_text(json.dumps(found.document()) + "\n", encoding="utf-8")

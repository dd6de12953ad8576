"""What was read of a results directory (`Collected`), and what the report page is told of it beside tables and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml

from campaign import wording
from campaign.config import launch_prefix_rules
from campaign.config.open_fabric import recorded_times
from campaign.config.primary_metric import declared_metrics
from campaign.config.resolve import Campaign, systems_of
from campaign.documents.earlier_spread import EarlierSpread
from campaign.documents.operation_times import OPERATIONS
from campaign.documents.race import RaceDocument
from campaign.documents.readings import READ_AGAIN
from campaign.documents.record import IMPORTED, Record, Store
from campaign.documents.record import SCHEMA as RECORD_SCHEMA
from campaign.documents.run_numbers import BLOCK_ORDERS
from campaign.documents.superseded import all_set_aside
from campaign.errors import ConfigError
from campaign.fabrics import fabric_kind
from campaign.launch.emulation_plan import FLAGS as LINK_FLAGS
from campaign.launch.emulation_plan import sentence
from campaign.plan.analysis import Analysis, said
from campaign.plan.control_runs import hardware
from campaign.plan.matrix import Matrix
from campaign.plan.missing_runs import KnownRuns
from campaign.plan.oom_frontier import CONTRADICTS
from campaign.plan.past_costs import measured_forecasts
from campaign.plan.repetitions import said as often
from campaign.tables.provenance import labels, otherwise_read, read_again, updates
from campaign.workloads.steady_warmup import NOT_STEADY, SHORT_WINDOW

if TYPE_CHECKING:
    from campaign.tables.leases import BusySpan


@dataclass(frozen=True)
class Collected:
    """Records of a campaign with everything that its tables and its report need."""

    campaign: Campaign
    matrix: Matrix
    records: list[Record]
    leases: list[dict[str, Any]]
    reasons: Mapping[str, str]
    """Why a lease's runs have no record, by lease."""
    store: Store
    beside: Sequence[BusySpan] = ()
    """What else the leases of these records were busy with: runs of cells that are not asked for."""
    links: Sequence[Mapping[str, Any]] = ()
    """What was measured of the links of these leases (`campaign.observe.links.lease_links`), with the configuration of each."""
    known: KnownRuns = field(default_factory=KnownRuns)
    """What has a record, and what ended cells before their most repetitions."""
    reference: Sequence[Record] = ()
    """Runs of the reference in these leases; `records` are those of the matrix."""
    earlier: Sequence[EarlierSpread] = ()
    """How much compositions differed in earlier campaigns on the system."""
    analysis: Sequence[Analysis] = ()
    """The analysis as it was written down, and its later versions."""
    race: RaceDocument | None = None
    """How the race for the best configuration stands, where the campaign was measured for one."""
    hosts_left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a host that failed is not asked for any more, by host."""


FLAGS = {
    READ_AGAIN: "its numbers are of a later reading of its log by `campaign parse`; its record stays as it was measured",
    "oversubscribed: more ranks than cores": "more ranks than processor cores took part, so ranks waited for each other's cores",
    CONTRADICTS: "it ran, though an otherwise equal cell with a smaller batch, or this one, ran out of memory before",
    IMPORTED: "it was read from a log that was made without this program; hardware and software are as its map states them",
    NOT_STEADY: "step times still had a trend when the warm-up reached `warmup_steps_max`; the window was measured all the same",
    SHORT_WINDOW: "the measured steps took less time than `measured_min_s` asks for: they were faster than those of the warm-up",
    "exit_hang": "a rank measured well, then did not exit by itself and was ended",
    "storage emulated": "samples were read no faster than the system file says, in place of storage that is not there",
    "storage is the host's memory": "the storage's file system keeps its files in memory, so that nothing was read from a device",
    **LINK_FLAGS,
}

# What a caption says of the protocol; time limits and the like change no number.
_PROTOCOL = ("warmup_steps", "measured_steps", "repetitions", "compositions", "order", "lease_order", "seed")


def context_document(collected: Collected) -> dict[str, Any]:
    """JSON-serialisable; its form is `campaign.report.context_schema.ContextDocument`."""
    campaign, records = collected.campaign, collected.records
    shared = {name for record in records for name in (record.environment, record.software) if name}
    environments = {name: collected.store.shared_document(name) for name in sorted(shared)}
    hosts = [environments[name] for name in {record.environment for record in records} if name]
    software = {(name, version) for document in hosts for name, version in document.get("packages", {}).items()}
    document = campaign.document()
    # Of an import, both stand for what nobody knows.
    random_order = campaign.protocol.lease_order in BLOCK_ORDERS
    unknown = ("seed", *(() if random_order else ("lease_order",))) if campaign.file.imported else ()
    flags = {flag for record in records for flag in record.flags}
    return {
        "campaign": {
            "name": campaign.name,
            "title": campaign.file.title or campaign.name,
            "question": campaign.file.question,
            "system": campaign.system_names,
            "baseline": baseline(campaign),
            **({"analysis": analysis} if (analysis := list(said(collected.analysis, campaign))) else {}),
            **({"report": report} if (report := document["campaign"].get("report")) else {}),
            "metric": campaign.metric.document(),
            **({"earlier_spread": [asdict(each) for each in collected.earlier]} if collected.earlier else {}),
            "metrics": [each.document() for each in declared_metrics(campaign.file, campaign.workloads).values()],
            "protocol": {
                **{name: document["campaign"]["protocol"][name] for name in _PROTOCOL if name not in unknown},
                **_reference(collected),
            },
        },
        "campaign_yaml": yaml.safe_dump(
            {key: value for key, value in document.items() if key != "references"},
            sort_keys=False,
            allow_unicode=True,
            width=100,
        ),
        "system": _system(campaign),
        "notes": [
            *_of_each(campaign, lambda part: _notes(replace(collected, campaign=part), part)),
            *_targets(collected.matrix),
            *_not_adjusted(collected),
            *(f"{note[0].upper()}{note[1:]}." for note in collected.matrix.notes),
            *_set_aside(collected),
            *read_again(collected.records, collected.store),
            *otherwise_read(campaign, collected.records, collected.store),
            *labels(campaign, collected.records, collected.store),
            *updates(collected.records, collected.store),
        ],
        "conditions": list(dict.fromkeys(each for part in campaign.parts for each in _conditions(part))),
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
        **({"race": collected.race.model_dump(mode="json")} if collected.race else {}),
        "references": document.get("references", []),
    }


def _of_each(campaign: Campaign, said: Callable[[Campaign], Sequence[str]]) -> list[str]:
    """Sentences about each system; what does not hold for all of several begins with the name of its system."""
    sentences = {part.part: said(part) for part in campaign.parts}
    common = set.intersection(*map(set, sentences.values())) if sentences else set()
    return list(
        dict.fromkeys(
            each if campaign.part or each in common else f"{name}: {each}"
            for name, own in sentences.items()
            for each in own
        )
    )


def _notes(collected: Collected, campaign: Campaign) -> Sequence[str]:
    """Remarks about a campaign's only system, or about its part on one."""
    here = [record for record in collected.records if record.system in ("", campaign.part)]
    configurations = {each.name for each in campaign.configurations}
    links = [each for each in collected.links if each["configuration"] in configurations]
    collected = replace(collected, records=here, links=links)
    return [
        *campaign.system.notes,
        *_unverified(campaign),
        *launch_prefix_rules.said(campaign.system, campaign.configurations),
        *_emulation(campaign),
        *_links(collected),
        *_emulated_links(collected),
        *_paces(collected),
        *_storage(campaign),
        *device_evidence(campaign, collected.records),
    ]


def _system(campaign: Campaign) -> dict[str, Any]:
    """Name, description and fabric of the system; of several, those of each, and the first recordings of a fabric."""
    imported, parts = campaign.file.imported, campaign.parts

    def joined(of: Mapping[str, str], by: str) -> str:
        if campaign.part:
            return of[campaign.part]
        return by.join(f"{name}: {each}" for name, each in of.items() if each)

    return {
        "name": campaign.system_names,
        "description": joined({part.part: part.system.description for part in parts}, " "),
        "fabric": "not known (imported)"
        if imported
        else joined({part.part: str(part.system.fabric.get("kind", "")) for part in parts}, ", "),
        **next((times for part in parts if (times := _times(part))), {}),
        **({"currency": campaign.currency} if campaign.currency else {}),
    }


def _reference(collected: Collected) -> dict[str, Any]:
    """The reference as the protocol has it, and whether comparisons are adjusted by it."""
    if (asked := collected.campaign.protocol.reference) is None:
        return {}
    return {"reference": {**asked.model_dump(mode="json"), "adjust": asked.adjust and not _why_not_adjusted(collected)}}


def _why_not_adjusted(collected: Collected) -> str:
    """Why the reference cannot adjust comparisons; empty where it can."""
    kinds = {hardware(record.specification) for record in collected.reference if record.status == "ok"}
    if not kinds:
        return "no run of it is valid"
    if len(kinds) > 1 and collected.campaign.protocol.lease_order not in BLOCK_ORDERS:
        return (
            "compositions were not made in random order, and the reference ran on devices of several kinds, whose difference "
            "cannot be told from drift"
        )
    return ""


def _not_adjusted(collected: Collected) -> list[str]:
    asked = collected.campaign.protocol.reference
    if asked is None or not asked.adjust or not (why := _why_not_adjusted(collected)):
        return []
    return [f"Comparisons are not adjusted by the reference: {why}."]


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
        f"{count} records were set aside ({each.reason}) at {each.when} (UTC), to measure these runs again; they are "
        f"kept in superseded/{each.when}/ of the results, and no number here holds them."
        for each, count in times
        if count
    ]


def _launchers(collected: Collected) -> dict[str, int]:
    """Runs by launcher, as the campaign was when they were measured: a profile may have chosen another than the system file."""
    runs: Counter[str] = Counter()
    if collected.campaign.file.imported:
        return {IMPORTED: len(collected.records)}
    for (name, system), count in Counter((record.campaign, record.system) for record in collected.records).items():
        systems = systems_of(collected.store.shared_document(name))
        runs[systems.get(system, next(iter(systems.values())))["launcher"]] += count
    return dict(runs)


def baseline(campaign: Campaign) -> str:
    """The configuration that overheads refer to: as named, or the largest local one on the fewest hosts. Of several systems: one of
    each, joined by ', '."""
    if not campaign.part:
        return ", ".join(map(baseline, campaign.parts))
    if named := campaign.file.baselines.get(campaign.part) or campaign.file.baselines.get(""):
        return named
    local = [
        c for c in campaign.configurations if c.attach == "local" and c.storage == "local"
    ] or campaign.configurations
    return max(local, key=lambda c: (c.ranks, -c.hosts)).name


def _unverified(campaign: Campaign) -> list[str]:
    kind = str(campaign.system.fabric["kind"])
    try:
        unverified = fabric_kind(kind).unverified
    except ConfigError:  # of a package that is not installed here
        return []
    return [f"The fabric adapter '{kind}' is unverified: {unverified}."] if unverified else []


def _emulation(campaign: Campaign) -> list[str]:
    models = {c.device: campaign.device(c.device) for c in campaign.configurations}
    on_processors = {name: model for name, model in sorted(models.items()) if model.runs_on == "cpu"}
    return [
        f"Each device of model '{name}' is emulated by one process on a CPU core: the numbers compare compositions of this "
        "machine, they are not those of GPUs."
        if model.emulated
        else f"A device of model '{name}' is a processor or a share of one: its nodes have no accelerators."
        for name, model in on_processors.items()
    ]


def _paces(collected: Collected) -> list[str]:
    """The rates that emulated devices compute at, and how well they were held."""
    emulation = collected.campaign.system.emulation
    lost_pct = [
        r.metrics["pace_lost_pct"] for r in collected.records if r.status == "ok" and "pace_lost_pct" in r.metrics
    ]
    if emulation is None or not lost_pct:
        return []
    rates = "; ".join(
        f"'{model}' {', '.join(f'{precision} {rate:g}' for precision, rate in of_model.items())}"
        for model, of_model in emulation.pace.items()
    )
    return [
        f"Devices compute at a pace that is below what this machine's cores can do, in GFLOP/s: {rates}. Of a valid run at most "
        f"{max(lost_pct):.2g} % of the time was lost because a core was not free; the median is {median(lost_pct):.2g} %."
    ]


def _times(campaign: Campaign) -> dict[str, Any]:
    """Recorded times of such a fabric: what measured times stand beside."""
    if campaign.file.imported:
        return {}
    try:
        times = recorded_times(campaign.system, campaign.system_source.path)
    except ConfigError:  # the file stayed elsewhere
        return {}
    if times is None:
        return {}
    found = [
        {
            "operation": operation,
            "count": len(times.seconds(operation)),
            **{
                name: times.quantile(share, operation)
                for name, share in (("low_s", 0.05), ("median_s", 0.5), ("high_s", 0.95))
            },
        }
        for operation in OPERATIONS
        if times.seconds(operation)
    ]
    return {"times": {"source": times.source, "operations": found}}


def _conditions(campaign: Campaign) -> list[str]:
    """What stood for hardware, in words that fit every caption: a figure is read without its page."""
    if campaign.file.imported:
        return ["read from logs that were made without this program"]
    devices = [campaign.device_of(each) for each in campaign.configurations]
    emulated = any(device.runs_on == "cpu" and device.emulated for device in devices)
    return [
        *(["processes on CPU cores stand for devices"] if emulated else ()),
        *(["the fabric is simulated"] if campaign.system.fabric["kind"] == "simulated" else ()),
        *(["links are emulated"] if campaign.system.emulation is not None else ()),
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
            said.append(f"{meaning} {link.gb_per_s:g} GB/s{latency}{source}")
    measured = "" if collected.links else ", not measured"
    return [f"Links by the system file, one way{measured}: {'; '.join(said)}."] if said else []


def _storage(campaign: Campaign) -> list[str]:
    """Rates of storage as the system file gives them, and what ranks could read where it is emulated."""
    said: dict[str, list[str]] = {}
    for kind, place in campaign.system.storage.items():
        limit = campaign.system.storage_limit_gb_per_s(kind)
        if place.gb_per_s is None and limit is None:
            continue
        real = (
            ""
            if place.gb_per_s is None
            else f" {place.gb_per_s:g} GB/s" + (f" ({place.source})" if place.source else "")
        )
        emulated = (
            "" if limit is None else f"{',' if real else ''} emulated at {limit:.3g} GB/s for all ranks of a host"
        )
        said.setdefault(f"{real}{emulated}", []).append(kind)
    told = "; ".join(f"{' and '.join(kinds)}{rates}" for rates, kinds in said.items())
    return [f"Storage by the system file: {told}."] if said else []


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
    return [sentence(links, count, len(collected.records)) for _, (links, count) in sorted(runs.items())]


def device_evidence(campaign: Campaign, records: Iterable[Record]) -> list[str]:
    """A sentence; nothing where devices are processes on CPU cores, or no run is valid."""
    kinds = {each.name: campaign.device_of(each).runs_on for each in campaign.configurations}
    valid = [r for r in records if r.status == "ok" and kinds.get(r.cell.configuration, "cpu") != "cpu"]
    if not valid:
        return []
    told = [bool(record.ran_on) for record in valid]
    seen = ["device_utilisation_peak_pct" in record.metrics for record in valid]
    neither = len(valid) - sum(map(max, told, seen))
    lacking = f" {neither} have neither: that their work was on the devices is not known." if neither else ""
    return [
        f"Evidence that work was on the devices, of {wording.plural(len(valid), 'valid run')}: ranks of {sum(told)} reported the "
        f"devices of their parameters, gradients and losses; telemetry sampled how busy those of {sum(seen)} were.{lacking}"
    ]

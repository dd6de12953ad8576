"""System of a campaign as described in the report: name, fabric, recorded times, and notes from the system file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.common.errors import ConfigError
from campaign.fabrics import load_fabric_kind
from campaign.plan.campaign.launch_prefix_rules import describe_device_use as list_prefix_notes
from campaign.plan.campaign.open_fabric import find_recorded_times
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.operation_times import OPERATIONS
from campaign.spec.system_file import SystemFile

_LINK_MEANINGS = {
    "local": "between devices of one host",
    "fabric": "to devices behind the fabric",
    "network": "between hosts",
}
_TIME_QUANTILES = {"low_s": 0.05, "median_s": 0.5, "high_s": 0.95}


def describe_system(campaign: Campaign) -> dict[str, Any]:
    """Return the name, description and fabric of the system, with recorded times for the fabric if any exist.

    Texts of several systems are joined.
    """
    parts = campaign.parts
    descriptions = {part.part: part.system.description for part in parts}
    fabrics = {part.part: str(part.system.fabric.get("kind", "")) for part in parts}
    recorded_times_by_system = (_describe_recorded_times(part) for part in parts)
    return {
        "name": campaign.system_names,
        "description": _join_systems(campaign, descriptions, " "),
        "fabric": "unknown (imported)" if campaign.file.imported else _join_systems(campaign, fabrics, ", "),
        **next((times for times in recorded_times_by_system if times), {}),
        **({"currency": campaign.currency} if campaign.currency else {}),
    }


def _join_systems(campaign: Campaign, texts: Mapping[str, str], separator: str) -> str:
    """Join one text per system, each prefixed by the system's name if there are several systems."""
    if campaign.part:
        return texts[campaign.part]
    return separator.join(f"{name}: {text}" for name, text in texts.items() if text)


def _describe_recorded_times(campaign: Campaign) -> dict[str, Any]:
    """Return the recorded times of this kind of fabric, for comparison with measured times; {} if there are none."""
    if campaign.file.imported:
        return {}
    try:
        times = find_recorded_times(campaign.system, campaign.system_source.path)
    except ConfigError:  # The file of recorded times does not travel with results.
        return {}
    if times is None:
        return {}
    operations = [
        {
            "operation": operation,
            "count": len(times.select_seconds(operation)),
            **{name: times.quantile(share, operation) for name, share in _TIME_QUANTILES.items()},
        }
        for operation in OPERATIONS
        if times.select_seconds(operation)
    ]
    return {"times": {"source": times.source, "operations": operations}}


def list_hardware_substitutes(campaign: Campaign) -> list[str]:
    """List the emulations that replace hardware, in words that fit any caption.

    Captions state them because figures are read apart from the page.
    """
    if campaign.file.imported:
        return ["results were read from logs of other programs"]
    devices = [campaign.device_model(configuration) for configuration in campaign.configurations]
    has_emulated_devices = any(device.runs_on == "cpu" and device.emulated for device in devices)
    return [
        *(["devices are emulated by processes on CPU cores"] if has_emulated_devices else ()),
        *(["the fabric is simulated"] if campaign.system.fabric["kind"] == "simulated" else ()),
        *(["links are emulated"] if campaign.system.emulation is not None else ()),
    ]


def list_system_notes(campaign: Campaign, *, has_measured_links: bool) -> list[str]:
    """List the notes about one system: those of its file, fabric, launch prefixes, emulated devices and links."""
    return [
        *campaign.system.notes,
        *_list_adapter_notes(campaign),
        *list_prefix_notes(campaign.system, campaign.configurations),
        *_list_device_notes(campaign),
        *_list_link_notes(campaign.system, has_measured_links),
    ]


def _list_adapter_notes(campaign: Campaign) -> list[str]:
    """Return a note if the fabric's adapter was never tested on a real fabric."""
    kind = str(campaign.system.fabric["kind"])
    try:
        unverified_reason = load_fabric_kind(kind).unverified
    except ConfigError:  # The adapter's package is not installed here.
        return []
    return [f"The fabric adapter '{kind}' is unverified: {unverified_reason}."] if unverified_reason else []


def _list_device_notes(campaign: Campaign) -> list[str]:
    """Return one note per device model whose devices are processor cores."""
    models = {
        configuration.device: campaign.find_device_model(configuration.device)
        for configuration in campaign.configurations
    }
    on_processors = {name: model for name, model in sorted(models.items()) if model.runs_on == "cpu"}
    return [
        f"Each device of model '{name}' is emulated by one process on a CPU core. The numbers compare compositions of this "
        "machine; they are not GPU performance."
        if model.emulated
        else f"A device of model '{name}' is a processor or a part of a processor, because its nodes have no accelerators."
        for name, model in on_processors.items()
    ]


def _list_link_notes(system: SystemFile, has_measured_links: bool) -> list[str]:
    """Return a note with the rates of links in the system file, for comparison with overheads."""
    descriptions = []
    for name, meaning in _LINK_MEANINGS.items():
        link = getattr(system.links, name)
        if link is not None:
            latency = "" if link.latency_us is None else f", {link.latency_us:g} µs"
            descriptions.append(f"{meaning} {link.gb_per_s:g} GB/s{latency}{_format_source(link.source)}")
    measured_note = "" if has_measured_links else ", not measured"
    return (
        [f"One-way links according to the system file{measured_note}: {'; '.join(descriptions)}."]
        if descriptions
        else []
    )


def list_storage_notes(system: SystemFile) -> list[str]:
    """Return a note with the rates of storage in the system file, and with the emulated rates."""
    kinds_by_rate: dict[str, list[str]] = {}
    for kind, storage in system.storage.items():
        limit = system.get_storage_limit_gb_per_s(kind)
        rates = []
        if storage.gb_per_s is not None:
            rates.append(f" {storage.gb_per_s:g} GB/s{_format_source(storage.source)}")
        if limit is not None:
            rates.append(f" emulated at {limit:.3g} GB/s for all ranks of a host")
        if rates:
            kinds_by_rate.setdefault(",".join(rates), []).append(kind)
    descriptions = "; ".join(f"{' and '.join(kinds)}{rates}" for rates, kinds in kinds_by_rate.items())
    return [f"Storage according to the system file: {descriptions}."] if descriptions else []


def _format_source(source: str | None) -> str:
    """Format the source of a number in parentheses, or return an empty string if there is none."""
    return f" ({source})" if source else ""

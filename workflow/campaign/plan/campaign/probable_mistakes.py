"""Warnings about values that are valid but probably a mistake. Each warning has file, line, key and remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.common.errors import suggest_name
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.cell import Configuration
from campaign.spec.metric import THROUGHPUT, Metric, get_unit_words
from campaign.spec.site_hardware import expand_host_names
from campaign.spec.yaml_file import Location, YamlFile
from campaign.workloads.main_metrics import MAIN_METRICS
from campaign.workloads.protocol import Workload

# Lists that may contain the same value twice.
_KEYS_WITH_REPEATS = {
    "tensors",
    "command",
    "launch_options",
    "precision_arguments",
    "devices_command",
    "slurmd",
    "zip",
    "notes",
    "fabric",
    "failures",
}
# Options of fabrics that have one value per host.
_KEYS_BY_HOST = {"hosts", "ports", "interfaces"}
# Prefixes of metrics that every run has or that telemetry may report.
_BUILT_IN_METRIC_PREFIXES = (
    "throughput_", "step_", "wall_", "window_", "idle_", "device_", "host_", "cpu_", "pcie_", "nvlink_", "network_", "loopback_",
    "disk_", "energy_", "throttled_", "telemetry_",
)  # fmt: skip


def warn_of_campaign(file: CampaignFile, workloads: Mapping[str, Workload], source: YamlFile) -> Iterator[str]:
    """Yield warnings about a campaign file."""
    yield from _warn_of_duplicates(source)
    for index, override in enumerate(file.overrides):
        changes = override.model_dump(exclude={"when"}, exclude_none=True)
        if not any(value != {} for value in changes.values()):
            yield (
                f"{source.format_location('overrides', index)}: this override changes nothing; add a setting such as "
                "`repetitions: 5`, or remove the override"
            )
    yield from _warn_of_unnamed_metric(file, workloads, source)
    if file.metric is not None and (problem := _explain_unknown_metric(file.metric.name, workloads)):
        yield f"{source.format_location('metric', 'name')}: {problem}"


def _warn_of_unnamed_metric(file: CampaignFile, workloads: Mapping[str, Workload], source: YamlFile) -> Iterator[str]:
    """Yield a warning per workload that reports no throughput if the campaign names no other primary metric."""
    if file.metric is not None and file.metric.name != THROUGHPUT.name:
        return
    for name, workload in workloads.items():
        if (metrics := MAIN_METRICS.get(workload.log_parser or "")) and not workload.metrics:
            yield (
                f"{source.format_location('axes', 'workload')}: the parser '{workload.log_parser}' of workload '{name}' reports no "
                "throughput, which is the default primary metric, so no figure would show its runs; add "
                f"`metric: {{name: {metrics[0]}}}` here, or `metrics: {{{metrics[0]}: {{}}}}` to the workload file; depending on "
                f"the test, the parser reports {', '.join(metrics)}"
            )


def warn_of_unknown_scaling(
    leading: Metric, configurations: Sequence[Configuration], workloads: Mapping[str, Workload], source: YamlFile
) -> Iterator[str]:
    """Yield a warning if the number of devices varies and the scaling of the primary metric is unknown.

    `warn_of_campaign` warns about a metric that no workload is known to report.
    """
    varies = len({configuration.ranks for configuration in configurations}) > 1
    if leading.scaling is None and varies and not _explain_unknown_metric(leading.name, workloads):
        yield (
            f"{source.format_location('metric')}: it is unknown how '{leading.name}' scales with devices, so the report shows no "
            "efficiency, no ideal line and no scaling model; add `scaling: total_rate`, rate_per_device, time_of_fixed_work, "
            "time_per_device_work or none here, or under `metrics` in the workload file"
        )


def warn_of_system(source: YamlFile) -> Iterator[str]:
    """Yield warnings about a system file."""
    yield from _warn_of_duplicates(source)
    slurm = source.data.get("slurm") or {}
    for index, override in enumerate(slurm.get("overrides") or ()):
        if override.keys() <= {"when"}:
            yield (
                f"{source.format_location('slurm', 'overrides', index)}: this override changes nothing; add an option such as "
                "`qos: long`, or remove the override"
            )
    fabric = source.data.get("fabric") or {}
    hosts = [name for group in source.data["hosts"] for name in expand_host_names(group["name"])]
    for key in sorted(_KEYS_BY_HOST & fabric.keys()):
        for name in fabric[key] if isinstance(fabric[key], dict) else ():
            if name not in hosts:
                yield (
                    f"{source.format_location('fabric', key, name)}: the system has no host with this name; "
                    f"{suggest_name(name, hosts)}"
                )
    files: Mapping[tuple[str, ...], Any] = {
        ("ca_file",): fabric.get("ca_file"),
        ("credentials", "file"): (fabric.get("credentials") or {}).get("file"),
    }
    for place, path in files.items():
        if isinstance(path, str) and not Path(path).expanduser().is_file():
            yield (
                f"{source.format_location('fabric', *place)}: there is no file '{path}' on this machine; correct the path, or "
                "create the file"
            )


def warn_of_workload(workload: Workload, source: YamlFile) -> Iterator[str]:
    """Yield warnings about a workload file."""
    yield from _warn_of_duplicates(source)
    if workload.kind == "command" and workload.log_parser is None and not source.data.get("parsers"):
        yield (
            f"{source.format_location(name='workload')}: 'parser' and 'parsers' are missing, so no number is read from the output; "
            "add `parsers`, or a built-in `parser` ('campaign workload list' shows them)"
        )
    metric_counts = Counter(parser.get("metric") for parser in source.data.get("parsers") or ())
    for index, parser in enumerate(source.data.get("parsers") or ()):
        if metric_counts[name := parser.get("metric")] > 1:
            yield (
                f"{source.format_location('parsers', index, 'metric')}: several parsers report '{name}', and only the last one "
                "counts; rename one"
            )
            break
    for name in source.data.get("metrics") or () if metric_counts else ():
        if name not in metric_counts and not name.startswith(_BUILT_IN_METRIC_PREFIXES):
            yield (
                f"{source.format_location('metrics', name)}: no parser of this workload reports '{name}'; they report "
                f"{', '.join(metric_counts)}"
            )


def _warn_of_duplicates(source: YamlFile) -> Iterator[str]:
    for place, values in _find_lists(source.data, ()):
        plain = [str(value) for value in values if isinstance(value, str | int | float)]
        if duplicates := [value for value, count in Counter(plain).items() if count > 1]:
            yield f"{source.format_location(*place)}: {duplicates[0]} is listed twice but counts only once; remove one"


def _find_lists(
    data: Any, place: Location, zipped_keys: frozenset[str] = frozenset()
) -> Iterator[tuple[Location, list[Any]]]:
    """Yield every list whose values should differ. Lists that a zip advances together are left out."""
    if isinstance(data, dict):
        zipped_keys |= {name for names in data.get("zip") or () for name in names}
        for key, value in data.items():
            if key not in _KEYS_WITH_REPEATS and key not in zipped_keys:
                yield from _find_lists(value, (*place, key), zipped_keys)
    elif isinstance(data, list):
        yield place, data
        for index, value in enumerate(data):
            yield from _find_lists(value, (*place, index), zipped_keys)


def _explain_unknown_metric(name: str, workloads: Mapping[str, Workload]) -> str:
    """Explain why a metric will probably have no value, or return an empty string if it may have one."""
    printed_names = {metric_name for workload in workloads.values() for metric_name in workload.reported_metrics or ()}
    declared_names = {metric_name for workload in workloads.values() for metric_name in workload.metrics}
    if name in printed_names | declared_names or name.startswith(_BUILT_IN_METRIC_PREFIXES):
        return ""
    if get_unit_words(name) and any(workload.reported_metrics is None for workload in workloads.values()):
        return ""  # a built-in parser or program may report it
    return (
        f"no workload of this campaign is known to report '{name}'; correct the name, or declare it under `metrics` in a workload "
        "file"
    )

"""Primary metric of a campaign, from its file and the files of its workloads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from campaign.spec.campaign_file import CampaignFile
from campaign.spec.metric import THROUGHPUT, Metric, find_metric
from campaign.workloads.protocol import MetricProperties, Workload

_FROM_RATES = ("throughput_per_s", "step_time_s")


def choose_primary_metric(file: CampaignFile, workloads: Mapping[str, Workload]) -> Metric:
    """Return the metric that the campaign names, or the default.

    The default is throughput, or the first metric that all workloads print if none of them measures throughput.
    """
    if file.metric is not None:
        return _describe_metric(file, file.metric.name, workloads) or THROUGHPUT
    throughput = _describe_metric(file, THROUGHPUT.name, workloads) or THROUGHPUT
    names_by_workload = [workload.reported_metrics for workload in workloads.values()]
    if not names_by_workload or any(names is None or set(names) & set(_FROM_RATES) for names in names_by_workload):
        return throughput
    common_names = [
        name for name in names_by_workload[0] or () if all(name in (names or ()) for names in names_by_workload)
    ]
    return next(
        (candidate for name in common_names if (candidate := _describe_metric(file, name, workloads))), throughput
    )


def collect_declared_metrics(file: CampaignFile, workloads: Mapping[str, Workload]) -> dict[str, Metric]:
    """Collect the primary metric and the metrics whose unit or direction a workload file states, by name."""
    names = [
        choose_primary_metric(file, workloads).name,
        *(name for workload in workloads.values() for name in workload.metrics),
    ]
    metrics = {name: _describe_metric(file, name, workloads) for name in dict.fromkeys(names)}
    return {name: workload for name, workload in metrics.items() if workload is not None}


def find_metric_problems(
    file: CampaignFile, workloads: Mapping[str, Workload], format_location: Callable[..., str]
) -> Iterator[str]:
    """Yield error messages about the primary metric of the campaign file.

    Args:
        file: content of the campaign file.
        workloads: workloads by name.
        format_location: formats a key's position in the file.
    """
    primary_metric = choose_primary_metric(file, workloads)
    if primary_metric.has_efficiency and primary_metric.is_higher_better != (
        primary_metric.scaling in ("total_rate", "rate_per_device")
    ):
        yield (
            f"{format_location('metric')}: '{primary_metric.name}' has `better: {primary_metric.better}`, "
            f"which contradicts `scaling: {primary_metric.scaling}`; correct one of them, here or in the workload file"
        )
    if file.metric is None:
        return
    name = file.metric.name
    if _describe_metric(file, name, workloads) is None:
        yield (
            f"{format_location('metric', 'name')}: it is unknown which direction of '{name}' is better; add `better: higher` or "
            "`better: lower`"
        )
    # Built-in parsers and telemetry report metrics that no file declares, so only a name close to a known one is a mistake.
    metric_names = {metric_name for workload in workloads.values() for metric_name in workload.reported_metrics or ()}
    if name not in metric_names and (matches := difflib.get_close_matches(name, sorted(metric_names), n=1, cutoff=0.8)):
        yield f"{format_location('metric', 'name')}: no workload of this campaign reports '{name}'; did you mean '{matches[0]}'?"


def _describe_metric(file: CampaignFile, name: str, workloads: Mapping[str, Workload]) -> Metric | None:
    """Build a metric from the campaign file, or else from the workload files, or else from its name alone.

    Returns None if none of them gives its direction.
    """
    facts = [entry.metrics.get(name, MetricProperties()) for entry in workloads.values()]
    unit = next((entry.unit for entry in facts if entry.unit is not None), None)
    better = next((entry.better for entry in facts if entry.better is not None), None)
    # If workload files contradict each other, the scaling of a shared metric is unknown.
    scalings = {entry.scaling for entry in facts if entry.scaling is not None}
    scaling = next(iter(scalings), None)
    if (
        name == THROUGHPUT.name
        and unit is None
        and len(rates := {entry.rate_unit for entry in workloads.values()}) == 1
    ):
        (unit,) = rates
    campaign_metric = file.metric
    if campaign_metric is not None and campaign_metric.name == name:
        unit, better = (
            campaign_metric.unit if campaign_metric.unit is not None else unit,
            campaign_metric.better or better,
        )
        scaling = campaign_metric.scaling or scaling
        scalings = {campaign_metric.scaling} if campaign_metric.scaling else scalings
    result = find_metric(name, unit, better, scaling)
    return replace(result, scaling=None) if result is not None and len(scalings) > 1 else result

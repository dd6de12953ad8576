"""Primary metric of a campaign, from its file and the files of its workloads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from campaign.spec.campaign_file import CampaignFile
from campaign.spec.metric import THROUGHPUT, Metric, metric
from campaign.workloads.protocol import MetricFacts, Workload

_FROM_RATES = ("throughput_per_s", "step_time_s")


def primary_metric(file: CampaignFile, workloads: Mapping[str, Workload]) -> Metric:
    """Return the metric that the campaign names, or the default.

    The default is throughput, or the first metric that all workloads print if none of them measures throughput.
    """
    if file.metric is not None:
        return _of(file, file.metric.name, workloads) or THROUGHPUT
    throughput = _of(file, THROUGHPUT.name, workloads) or THROUGHPUT
    printed = [each.printed_metrics for each in workloads.values()]
    if not printed or any(names is None or set(names) & set(_FROM_RATES) for names in printed):
        return throughput
    shared = [name for name in printed[0] or () if all(name in (names or ()) for names in printed)]
    return next((found for name in shared if (found := _of(file, name, workloads))), throughput)


def declared_metrics(file: CampaignFile, workloads: Mapping[str, Workload]) -> dict[str, Metric]:
    """Return the primary metric and the metrics whose unit or direction a workload file gives, by name."""
    names = [primary_metric(file, workloads).name, *(name for each in workloads.values() for name in each.metrics)]
    found = {name: _of(file, name, workloads) for name in dict.fromkeys(names)}
    return {name: each for name, each in found.items() if each is not None}


def metric_problems(file: CampaignFile, workloads: Mapping[str, Workload], place: Callable[..., str]) -> Iterator[str]:
    """Yield error messages about the primary metric of the campaign file.

    Args:
        file: content of the campaign file.
        workloads: workloads by name.
        format_location: formats a key's position in the file.
    """
    leading = primary_metric(file, workloads)
    if leading.scales and leading.higher != (leading.scaling in ("total_rate", "rate_per_device")):
        yield (
            f"{place('metric')}: '{leading.name}' is better {leading.better}, and cannot be a {leading.scaling}; correct `scaling` "
            "or `better`, here or in the workload file"
        )
    if file.metric is None:
        return
    name = file.metric.name
    if _of(file, name, workloads) is None:
        yield (
            f"{place('metric', 'name')}: neither the name '{name}' nor a workload file says which direction is better; add "
            "`better: higher` or `better: lower`"
        )
    # Built-in parsers and telemetry give metrics that no file names, so that only a name that is nearly right is a mistake.
    printed = {each for workload in workloads.values() for each in workload.printed_metrics or ()}
    if name not in printed and (near := difflib.get_close_matches(name, sorted(printed), n=1, cutoff=0.8)):
        yield f"{place('metric', 'name')}: no workload of this campaign prints '{name}'; did you mean '{near[0]}'?"


def _of(file: CampaignFile, name: str, workloads: Mapping[str, Workload]) -> Metric | None:
    """Build a metric from the campaign file, else from the workload files, else from its name.

    Returns None if none of them gives its direction.
    """
    said = [each.metrics.get(name, MetricFacts()) for each in workloads.values()]
    unit = next((each.unit for each in said if each.unit is not None), None)
    better = next((each.better for each in said if each.better is not None), None)
    # Workload files that contradict each other tell nothing of a number that they share.
    declared = {each.scaling for each in said if each.scaling is not None}
    scaling = next(iter(declared), None)
    if name == THROUGHPUT.name and unit is None and len(rates := {each.rate_unit for each in workloads.values()}) == 1:
        (unit,) = rates
    chosen = file.metric
    if chosen is not None and chosen.name == name:
        unit, better = chosen.unit if chosen.unit is not None else unit, chosen.better or better
        scaling = chosen.scaling or scaling
        declared = {chosen.scaling} if chosen.scaling else declared
    found = metric(name, unit, better, scaling)
    return replace(found, scaling=None) if found is not None and len(declared) > 1 else found

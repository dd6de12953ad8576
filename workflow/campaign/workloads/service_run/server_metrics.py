"""The server's own numbers: what a page in the text format of Prometheus says before and after the load. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from campaign.workloads.service_run.specification import ServerMetrics

_GROWING = frozenset({"counter", "histogram", "summary"})


def metrics_of(wanted: ServerMetrics, before: str, after: str) -> tuple[dict[str, float], list[str]]:
    """The metrics `server_NAME`, and a flag for each that the page does not have; ValueError: it is no such page."""
    earlier, later = _series(before, wanted.read), _series(after, wanted.read)
    found, missing = {}, []
    for name, series in wanted.read.items():
        if series not in later:
            missing.append(f"the server's {wanted.path} has no {series}")
            continue
        grows, values = later[series]
        # A series with labels appears with its first event.
        found[f"server_{name}"] = sum(values) - sum(earlier.get(series, (grows, []))[1]) if grows else max(values)
    return found, missing


def _series(page: str, wanted: Mapping[str, str]) -> dict[str, tuple[bool, list[float]]]:
    """Of each series whether it only grows, and its values by label."""
    from prometheus_client.parser import text_string_to_metric_families

    names, found = set(wanted.values()), dict[str, tuple[bool, list[float]]]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in names:
                found.setdefault(sample.name, (family.type in _GROWING, []))[1].append(float(sample.value))
    return found

"""Selection of the link measurements that figures show, one per configuration, and comparisons of two configurations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons, verdict
from campaign.analysis.statistics.ratios import LogRatios, compute_unpaired_ratios
from campaign.common import wording


@dataclass(frozen=True, slots=True)
class SelectedLinks:
    """Link measurement (links/1 document) to show for one configuration."""

    configuration: str
    document: Mapping[str, Any]


def select_shown_links(links: Iterable[Mapping[str, Any]]) -> list[SelectedLinks]:
    """Select the link measurement to show for each configuration, in order of first appearance.

    It is the last measurement made before runs or, if there is none, the last of all.

    Args:
        links: measurements as `FigureData.links`, with `configuration`, `when` and `document`.
    """
    links_by_configuration: dict[str, Mapping[str, Any]] = {}
    for link in links:
        previous = links_by_configuration.get(link["configuration"])
        if previous is None or link["when"] == "before" or previous["when"] != "before":
            links_by_configuration[link["configuration"]] = link
    return [SelectedLinks(name, link["document"]) for name, link in links_by_configuration.items()]


def compare_allreduce(
    links: Iterable[Mapping[str, Any]], first: str, second: str, size_bytes: int, conditions: str
) -> str:
    """Describe the ratio of the all-reduce bus bandwidths of two configurations for a message size in a sentence, with its test.

    The test is adjusted over all pairs of configurations with the same number of devices.

    Args:
        links: link measurements.
        first: configuration with the highest bandwidth among those with the same number of devices.
        second: configuration with the lowest bandwidth among them.
        size_bytes: message size.
        conditions: conditions in words, such as 'on 4 devices at 64 MiB'.
    """
    links_with_size = [
        link for link in links if size_bytes in (link["document"]["allreduce"] or {"size_bytes": ()})["size_bytes"]
    ]
    ranks = {link["configuration"]: link["document"]["allreduce"]["ranks"] for link in links_with_size}
    equal_ranks = [link for link in links_with_size if ranks[link["configuration"]] == ranks[first]]
    rows = pd.DataFrame(
        {
            "cell_id": [link["configuration"] for link in equal_ranks],
            "configuration": [link["configuration"] for link in equal_ranks],
            "workload": "all-reduce",
            "lease_id": [link["lease_id"] for link in equal_ranks],
            "repetition": 1,
            "started": 0.0,
            "status": "ok",
            "value": [_read_allreduce_bandwidth(link["document"]["allreduce"], size_bytes) for link in equal_ranks],
        }
    )
    pair_ratios = comparisons.compute_ratios(pd.Series([first]), pd.Series([second]), comparisons.build_design(rows))
    return verdict.describe_extreme_ratio(
        pair_ratios,
        rows["cell_id"].nunique(),
        f"{first} reaches {{}} the all-reduce bandwidth of {second} {conditions}",
        f"difference of all-reduce bandwidth between {first} and {second} {conditions}",
    )


def _read_allreduce_bandwidth(allreduce: Mapping[str, Any], size_bytes: int) -> float:
    bandwidth: float = allreduce["busbw_gb_per_s"][allreduce["size_bytes"].index(size_bytes)]
    return bandwidth


def compare_link_kinds(links: Iterable[Mapping[str, Any]], configuration: str, kinds: tuple[str, str]) -> str:
    """Describe the ratio of the bandwidths of two kinds of links in a configuration in a sentence, with its interval.

    With several compositions, the sample is the ratio of medians of each composition. With one composition, it consists of pairs of
    devices, and both directions of a pair count as one.
    """
    documents = [
        item["document"] for item in links if item["configuration"] == configuration and item["document"]["matrices"]
    ]
    sides = [[list_pair_bandwidths(document, kind) for document in documents] for kind in kinds]
    ratios = [float(np.median(a) / np.median(b)) for a, b in zip(*sides, strict=True) if a and b]
    if len(ratios) > 1:
        logs = np.log(ratios)
        log_ratio = LogRatios(
            np.asarray(np.exp(logs.mean())), np.asarray(logs.var(ddof=1) / logs.size), np.asarray(logs.size - 1.0)
        )
        basis = f"within {len(ratios):,} compositions"
    else:
        first, second = sides[0][-1], sides[1][-1]
        spread = [
            (np.mean(item), np.std(item, ddof=1) if len(item) > 1 else np.nan, len(item)) for item in (first, second)
        ]
        log_ratio = compute_unpaired_ratios(*spread[0], *spread[1])
        basis = "within one composition, over pairs of devices"
    value, low, high = (float(bound) for bound in log_ratio.compute_bounds())
    statement = f"{kinds[0].capitalize()} links have {{}} the bandwidth of {kinds[1]} links in {configuration}"
    if not np.isfinite(low):
        return f"{statement.format(wording.format_ratio(value))} (one pair of devices, not tested)."
    p = float(log_ratio.compute_p_values())
    row = {
        "method": "",
        "tested": True,
        "ratio": value,
        "p": p,
        "p_holm": p,
        "n_tests": 1,
        "in_order": False,
        "unlike": "",
        "least_detectable_pct": float(log_ratio.compute_detectable_pct()),
    }
    effect = f"difference between {kinds[0]} and {kinds[1]} links in {configuration}"
    return verdict.describe_comparison(row, (value, low, high), statement, effect, subject=basis)


def list_pair_bandwidths(document: Mapping[str, Any], kind: str) -> list[float]:
    """List the bandwidths of device pairs joined by one kind of link, each the mean of both directions."""
    matrix, kinds = document["matrices"]["unidirectional_gb_per_s"], document["kinds"]
    bandwidths = []
    for first_index in range(len(kinds)):
        for second_index in range(first_index):
            directions = [
                matrix[a][b]
                for a, b in ((first_index, second_index), (second_index, first_index))
                if kinds[a][b] == kind and matrix[a][b] is not None
            ]
            bandwidths += [sum(directions) / len(directions)] if directions else []
    return bandwidths


def format_size(size_bytes: float) -> str:
    """Format a message size, such as '8 B', '64 KiB' or '256 MiB'."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:g} B"

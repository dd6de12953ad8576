"""Selection of the link measurements that figures show, one per configuration, and comparisons of two configurations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons, verdict
from campaign.analysis.statistics.ratios import LogRatios, unpaired
from campaign.common import wording


@dataclass(frozen=True, slots=True)
class LinksOf:
    """Link measurement (links/1 document) of one configuration."""

    configuration: str
    document: Mapping[str, Any]


def shown(links: Iterable[Mapping[str, Any]]) -> list[LinksOf]:
    """Return the link measurement to show for each configuration, in the order of first appearance.

    It is the last one before runs, or the last of all if there is none before runs.

    Args:
        links: measurements as `FigureData.links`, with `configuration`, `when` and `document`.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for each in links:
        before = found.get(each["configuration"])
        if before is None or each["when"] == "before" or before["when"] != "before":
            found[each["configuration"]] = each
    return [LinksOf(name, each["document"]) for name, each in found.items()]


def allreduce_ratio(links: Iterable[Mapping[str, Any]], first: str, second: str, size_bytes: int) -> str:
    """Describe the ratio of the all-reduce bus bandwidths of two configurations for a message size, with its test.

    first, second: the fastest and the slowest of all with as many devices; the test is adjusted over all pairs of them.
    """
    kept = [each for each in links if size_bytes in (each["document"]["allreduce"] or {"size_bytes": ()})["size_bytes"]]
    ranks = {each["configuration"]: each["document"]["allreduce"]["ranks"] for each in kept}
    alike = [each for each in kept if ranks[each["configuration"]] == ranks[first]]
    rows = pd.DataFrame(
        {
            "cell_id": [each["configuration"] for each in alike],
            "configuration": [each["configuration"] for each in alike],
            "workload": "all-reduce",
            "lease_id": [each["lease_id"] for each in alike],
            "repetition": 1,
            "started": 0.0,
            "status": "ok",
            "value": [_bandwidth(each["document"]["allreduce"], size_bytes) for each in alike],
        }
    )
    found = comparisons.ratios(pd.Series([first]), pd.Series([second]), comparisons.design(rows))
    return verdict.extremes(found, rows["cell_id"].nunique())


def _bandwidth(allreduce: Mapping[str, Any], size_bytes: int) -> float:
    found: float = allreduce["busbw_gb_per_s"][allreduce["size_bytes"].index(size_bytes)]
    return found


def kinds_ratio(links: Iterable[Mapping[str, Any]], configuration: str, kinds: tuple[str, str]) -> str:
    """Describe the ratio of the bandwidths of two kinds of links in a configuration, with its interval.

    With several compositions, the ratio of medians of each is used. With one composition, pairs of devices are the sample, and
    both
    directions of a pair count as one.
    """
    own = [
        each["document"] for each in links if each["configuration"] == configuration and each["document"]["matrices"]
    ]
    sides = [[pairs_of(document, kind) for document in own] for kind in kinds]
    ratios = [float(np.median(a) / np.median(b)) for a, b in zip(*sides, strict=True) if a and b]
    if len(ratios) > 1:
        logs = np.log(ratios)
        found = LogRatios(
            np.asarray(np.exp(logs.mean())), np.asarray(logs.var(ddof=1) / logs.size), np.asarray(logs.size - 1.0)
        )
        basis = f"within {len(ratios):,} compositions"
    else:
        first, second = sides[0][-1], sides[1][-1]
        spread = [
            (np.mean(each), np.std(each, ddof=1) if len(each) > 1 else np.nan, len(each)) for each in (first, second)
        ]
        found = unpaired(*spread[0], *spread[1])
        basis = "within one composition, over pairs of devices"
    value, low, high = (float(bound) for bound in found.bounds())
    if not np.isfinite(low):
        return f"{wording.format_ratio(value)} (one pair of devices, so no interval and no test)"
    p = float(found.p())
    row = {
        "tested": True,
        "p": p,
        "p_holm": p,
        "n_tests": 1,
        "least_detectable_pct": float(found.least_detectable_pct()),
    }
    said = wording.format_with_interval(value, low, high, wording.format_ratio, basis)
    return said + verdict.doubt(row, 100 * (low - 1), 100 * (high - 1))


def pairs_of(document: Mapping[str, Any], kind: str) -> list[float]:
    """Return the bandwidth of each pair of devices joined by a kind of link, as the mean of both directions."""
    matrix, kinds = document["matrices"]["unidirectional_gb_per_s"], document["kinds"]
    found = []
    for out in range(len(kinds)):
        for to in range(out):
            both = [matrix[a][b] for a, b in ((out, to), (to, out)) if kinds[a][b] == kind and matrix[a][b] is not None]
            found += [sum(both) / len(both)] if both else []
    return found


def size_words(size_bytes: float) -> str:
    """Format a message size, such as '8 B', '64 KiB' or '256 MiB'."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:g} B"

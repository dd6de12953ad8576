"""Which measurements of links figures show: one of each configuration; and how two configurations compare. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from campaign import wording
from campaign.statistics import comparisons, verdict


@dataclass(frozen=True, slots=True)
class Shown:
    """One configuration and its links/1 document."""

    configuration: str
    document: Mapping[str, Any]


def shown(links: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """The last measurement before runs of each configuration, else the last of all; in the order of first appearance.

    links: as `FigureData.links`, with `configuration`, `when` and `document`.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for each in links:
        before = found.get(each["configuration"])
        if before is None or each["when"] == "before" or before["when"] != "before":
            found[each["configuration"]] = each
    return [Shown(name, each["document"]) for name, each in found.items()]


def allreduce_ratio(links: Iterable[Mapping[str, Any]], first: str, second: str) -> str:
    """How many times as fast the highest bus bandwidth of one configuration is as another's, and what compositions say of it.

    first, second: the fastest and the slowest of all with as many devices; the test is adjusted over all pairs of them.
    """
    kept = [each for each in links if each["document"]["allreduce"]]
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
            "value": [max(each["document"]["allreduce"]["busbw_gb_per_s"]) for each in alike],
        }
    )
    found = comparisons.ratios(pd.Series([first]), pd.Series([second]), comparisons.design(rows))
    value, low, high = (float(bound[0]) for bound in found.of.bounds())
    if not found.tested[0]:
        return f"{wording.times(value)} as fast, measured on one composition each and not tested"
    pairs = rows["cell_id"].nunique() * (rows["cell_id"].nunique() - 1) // 2
    p = float(found.p()[0])
    row = {
        "p": p,
        "p_holm": min(1.0, p * pairs),
        "n_tests": pairs,
        "least_detectable_pct": float(found.least_detectable_pct()[0]),
    }
    said = wording.with_interval(value, low, high, wording.times)
    return f"{said} as fast{verdict.doubt(row, 100 * (low - 1), 100 * (high - 1))}"


def size_words(size_bytes: float) -> str:
    """A message size for people: '8 B', '64 KiB', '256 MiB'."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:g} B"

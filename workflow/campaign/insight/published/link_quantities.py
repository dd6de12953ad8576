"""Quantities of links for a claim: median and range over all pairs of devices of one host that are attached as claimed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from campaign.config.published_file import Here
from campaign.insight.published.selection import NotHere

_MATRIX = {
    "link_gb_per_s": "bidirectional_gb_per_s",
    "link_one_way_gb_per_s": "unidirectional_gb_per_s",
    "link_ratio": "bidirectional_gb_per_s",
    "link_latency_us": "latency_us",
}


def quantity(here: Here, links: Sequence[Mapping[str, Any]]) -> tuple[float, float, float, str, list[str]]:
    """(median, smallest, largest, of what, device models). NotHere: no such pair was measured.

    A ratio is that of two medians; its range is that of the smallest over the largest to the largest over the smallest.
    """
    if here.compute == "host_to_device_gb_per_s":
        known = [(value, "") for each in links for value in _copies(each["document"]) if value is not None]
        value, low, high = _middle([value for value, _ in known], "no copies from host to device were measured")
        return value, low, high, f"{len(known)} devices", []
    matrix = _MATRIX[here.compute]
    of = list(_pairs(links, matrix, here.ends))
    value, low, high = _middle([value for value, _ in of], _lacking(here.ends))
    models = list(dict.fromkeys(model for _, pair in of for model in pair))
    words = f"{len(of)} pairs {' and '.join(here.ends)}"
    if here.compute != "link_ratio":
        return value, low, high, words, models
    against = list(_pairs(links, matrix, here.against_ends))
    under, least, most = _middle([value for value, _ in against], _lacking(here.against_ends))
    return value / under, low / most, high / least, f"{words}, {len(against)} {' and '.join(here.against_ends)}", models


def _lacking(ends: Sequence[str]) -> str:
    return f"no link between a {' and a '.join(ends)} device of one host was measured"


def _middle(values: Sequence[float], lacking: str) -> tuple[float, float, float]:
    if not values:
        raise NotHere(lacking)
    return median(values), min(values), max(values)


def _copies(document: Mapping[str, Any]) -> Sequence[float | None]:
    copies = document.get("host_device") or {}
    return copies.get("h2d_gb_per_s") or ()


def _pairs(
    links: Sequence[Mapping[str, Any]], matrix: str, ends: Sequence[str]
) -> Iterator[tuple[float, tuple[str, str]]]:
    """Value and models of every measured pair of devices on one host, attached as `ends` in either order."""
    for each in links:
        document = each["document"]
        values = (document.get("matrices") or {}).get(matrix) or ()
        devices = document["devices"]
        for one, row in zip(devices, values, strict=False):
            for other, value in zip(devices, row, strict=False):
                alike = sorted((one["attach"], other["attach"])) == sorted(ends)
                if value is not None and one is not other and one["host"] == other["host"] and alike:
                    yield float(value), (one["model"], other["model"])

"""Links that are slower than expected for their kind. Pure.

A pair of devices is held against the slowest link on its way, as the system file has it (one direction; times the scale where links
are emulated). Where that has no number, against the median of the pairs of its kind in the same composition. What is compared is
the bandwidth of the largest measured size without the time of an empty message; where that size is too small to tell a bandwidth,
nothing is. Latencies are held against their like only: what the system file says of them is without any software.

Emulated links are judged by the median of their kind: on a busy machine, some single pair looks slow in any measurement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from statistics import median
from typing import Any

from campaign.observe.links.document import FABRIC, KINDS, LOCAL, TELLING_BYTES, links_of
from campaign.spec.system_file import Links

_MOST_FLAGS = 3
_FEWEST_PEERS = 3
_LATENCY_FACTOR = 3.0  # a copy through the host's memory instead of from device to device costs about as much
_LATENCY_SHARE = 0.5  # of a message's time; beyond it, its size says little of bandwidth
_OF_PEERS = "the median of {kind} links here"
_OF_SYSTEM = "{kind} links"
_OF_EMULATED = "emulated {kind} links"


_SlowLink = tuple[float, str]
"""One slow link: minus how much worse than expected, so that the worst sorts first, and what to say."""


def flags(document: Mapping[str, Any], links: Links, scale: float | None, tolerance_pct: float) -> tuple[str, ...]:
    """Return the flags for records measured over slow links, the worst first: at most three, and the number of further ones.

    CPU processes have only emulated links: each shaped kind is compared with its rate, and other paths are this machine's
    memory.

    Args:
        document: links/1 document.
        links: links of the system file.
        scale: scale of emulated links; None for real links.
        tolerance_pct: tolerated shortfall in percent.
    """
    expected = _rates(links, scale, document["runs_on"])
    least = 1 - tolerance_pct / 100
    if document["runs_on"] == "cpu":
        every = _slow_kinds(document, expected, least)
    else:
        every = chain(_slow(document, expected, least), _slow_hosts(document, expected, least), _late(document))
    found = sorted((round(excess, 6), text) for excess, text in every)
    said = tuple(f"links: {text}" for _, text in found[:_MOST_FLAGS])
    more = len(found) - _MOST_FLAGS
    return (*said, f"links: and {more} more below what is expected") if more > 0 else said


def _rates(links: Links, scale: float | None, runs_on: str) -> dict[str, float]:
    """Return the expected rate (GB/s) of each kind of path that the system file specifies."""
    if runs_on == "cpu" and scale is None:
        return {}
    known = {
        name: link.gb_per_s * (scale or 1.0) for name in (LOCAL, FABRIC, "network") if (link := getattr(links, name))
    }
    found = {}
    for kind in KINDS:
        crossed = [known[link] for link in links_of(kind) if link in known]
        if crossed and scale is not None and LOCAL in known:
            crossed.append(known[LOCAL])  # of local devices all ways cross it; a kind of way is judged as a whole
        # A real link that the file does not tell may be the slowest; an emulated one is not shaped then.
        if crossed and (scale is not None or len(crossed) == len(links_of(kind))):
            found[kind] = min(crossed)
    return found


def _pairs(document: Mapping[str, Any], matrix: str) -> Iterator[tuple[int, int, str, float]]:
    """Yield (from, to, kind, value) of every measured pair."""
    matrices = document.get("matrices")
    for out, row in enumerate(matrices[matrix] if matrices else ()):
        for to, value in enumerate(row):
            if value is not None and out != to:
                yield out, to, document["kinds"][out][to], value


def _slow(document: Mapping[str, Any], expected: Mapping[str, float], least: float) -> Iterator[_SlowLink]:
    """Yield the single pairs that are slower than this share of the expected rate."""
    for kind, of_kind in _told(document).items():
        named = {_pair(document, *pair): rate for pair, rate in of_kind.items()}
        yield from _under(kind, expected, named, least)


def _under(kind: str, expected: Mapping[str, float], rates: Mapping[str, float], least: float) -> Iterator[_SlowLink]:
    """Yield the links of a kind that are slower than the system file specifies, or else than their median."""
    if kind not in expected and len(rates) < _FEWEST_PEERS:
        return
    usual, whose = (expected[kind], _OF_SYSTEM) if kind in expected else (median(rates.values()), _OF_PEERS)
    for ends, rate in rates.items():
        if rate < usual * least:
            yield _slower(ends, rate, kind, usual, whose)


def _slow_kinds(document: Mapping[str, Any], expected: Mapping[str, float], least: float) -> Iterator[_SlowLink]:
    """Yield the kinds of path that are slow in the median; on a busy machine a single emulated link only looks slow."""
    for kind, of_kind in _told(document).items():
        rate = median(of_kind.values())
        if kind in expected and rate < expected[kind] * least:
            pairs = "pair" if len(of_kind) == 1 else "pairs"
            yield _slower(f"median of {len(of_kind)} {pairs}", rate, kind, expected[kind], _OF_EMULATED)


def _told(document: Mapping[str, Any]) -> dict[str, dict[tuple[int, int], float]]:
    """Return the bandwidth (GB/s) by kind and pair, without the time of an empty message, if the size is sufficient."""
    if (document["matrix_size_bytes"] or 0) < TELLING_BYTES:
        return {}
    latency_us = {(out, to): value for out, to, _, value in _pairs(document, "latency_us")}
    rates: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for out, to, kind, gb_per_s in _pairs(document, "unidirectional_gb_per_s"):
        seconds = document["matrix_size_bytes"] / (gb_per_s * 1e9)
        # There and back again with the receiver's word: see links.model.
        empty_s = 2e-6 * latency_us.get((out, to), 0.0)
        if empty_s <= _LATENCY_SHARE * seconds:
            rates[kind][out, to] = document["matrix_size_bytes"] / 1e9 / (seconds - empty_s)
    return rates


def _slow_hosts(document: Mapping[str, Any], expected: Mapping[str, float], least: float) -> Iterator[_SlowLink]:
    """Yield the slow copies between a host and its devices."""
    copies = document.get("host_device")
    if not copies:
        return
    # What the system file says of local links is between devices.
    known = {kind: rate for kind, rate in expected.items() if kind == FABRIC}
    for name, to_device in (("h2d_gb_per_s", True), ("d2h_gb_per_s", False)):
        by_kind: dict[str, dict[str, float]] = defaultdict(dict)
        for device, rate in zip(document["devices"], copies[name], strict=True):
            if rate is not None:
                ends = (device["host"], device["name"]) if to_device else (device["name"], device["host"])
                by_kind[device["attach"]][" to ".join(ends)] = rate
        for kind, rates in by_kind.items():
            yield from _under(kind, known, rates, least)


def _late(document: Mapping[str, Any]) -> Iterator[_SlowLink]:
    by_kind: dict[str, dict[str, float]] = defaultdict(dict)
    for out, to, kind, latency_us in _pairs(document, "latency_us"):
        by_kind[kind][_pair(document, out, to)] = latency_us
    for kind, found in by_kind.items():
        usual_us = median(found.values())
        for ends, latency_us in found.items() if len(found) >= _FEWEST_PEERS else ():
            if latency_us > _LATENCY_FACTOR * usual_us:
                text = (
                    f"{ends} {latency_us:.3g} us: {latency_us / usual_us:.1f} times the {usual_us:.3g} us of "
                    f"{_OF_PEERS.format(kind=kind)}"
                )
                yield usual_us / latency_us - 1, text


def _slower(ends: str, rate: float, kind: str, expected: float, whose: str) -> _SlowLink:
    under = 1 - rate / expected
    text = f"{ends} {rate:.3g} GB/s: {100 * under:.0f} % under the {expected:.3g} GB/s of {whose.format(kind=kind)}"
    return -under, text


def _pair(document: Mapping[str, Any], out: int, to: int) -> str:
    return f"{document['devices'][out]['name']} to {document['devices'][to]['name']}"

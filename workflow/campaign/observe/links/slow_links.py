"""Links that are slower than expected for their kind.

A pair of devices is compared with the rate of the slowest link on its path in the system file (one direction; multiplied by the
scale if links are emulated). If the file has no rate, the pair is compared with the median of the pairs of its kind in the same
composition. The compared bandwidth is that of the largest measured size, without the time of an empty message. If that size is too
small for a bandwidth, nothing is compared. Latencies are only compared with those of the same kind, because the latencies in the
system file exclude software.

Emulated links are judged by the median of their kind, because single pairs look slow in any measurement on a busy machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from statistics import median
from typing import Any

from campaign.observe.links.document import FABRIC, KINDS, LOCAL, MIN_BANDWIDTH_BYTES, split_link_kind
from campaign.spec.system_file import Links

_MAX_FLAGS = 3
_MIN_PEERS = 3
_LATENCY_FACTOR = 3.0
"""Ratio to the median above which a latency is high. Copies through the host's memory cost about as much."""
_MAX_LATENCY_SHARE = 0.5
"""Maximum share of latency in a message's time. Above it, the message gives no useful bandwidth."""
_PEER_REFERENCE = "the median {kind} link"
_SYSTEM_REFERENCE = "{kind} links"
_EMULATED_REFERENCE = "emulated {kind} links"


_SlowLink = tuple[float, str]
"""One slow link as a pair: its negative relative shortfall, so that the worst link sorts first, and a message."""


def flag_slow_links(
    document: Mapping[str, Any], links: Links, scale: float | None, tolerance_pct: float
) -> tuple[str, ...]:
    """Return flags for records that were measured over slow links: the three worst links, and the number of other ones.

    Links between CPU processes are only checked if they are emulated. Then each kind of link whose rate is limited is compared
    with that rate. All other paths are just the memory of this machine.

    Args:
        document: links/1 document with the measured links.
        links: links of the system file.
        scale: factor by which the rates of emulated links are scaled; None for real links.
        tolerance_pct: tolerated shortfall in percent.
    """
    expected_rates = _compute_expected_rates(links, scale, document["runs_on"])
    min_share = 1 - tolerance_pct / 100
    if document["runs_on"] == "cpu":
        slow_links = _find_slow_kinds(document, expected_rates, min_share)
    else:
        slow_links = chain(
            _find_slow_pairs(document, expected_rates, min_share),
            _find_slow_host_copies(document, expected_rates, min_share),
            _find_high_latencies(document),
        )
    sorted_links = sorted((round(excess, 6), text) for excess, text in slow_links)
    messages = tuple(f"links: {text}" for _, text in sorted_links[:_MAX_FLAGS])
    omitted_count = len(sorted_links) - _MAX_FLAGS
    return (*messages, f"links: {omitted_count} more are slower than expected") if omitted_count > 0 else messages


def _compute_expected_rates(links: Links, scale: float | None, runs_on: str) -> dict[str, float]:
    """Compute the expected rate (GB/s) of each kind of path whose links have a rate in the system file."""
    if runs_on == "cpu" and scale is None:
        return {}
    rates_by_link = {
        name: link.gb_per_s * (scale or 1.0) for name in (LOCAL, FABRIC, "network") if (link := getattr(links, name))
    }
    expected_rates = {}
    for kind in KINDS:
        crossed_rates = [rates_by_link[link] for link in split_link_kind(kind) if link in rates_by_link]
        if crossed_rates and scale is not None and LOCAL in rates_by_link:
            crossed_rates.append(
                rates_by_link[LOCAL]
            )  # Each kind of path has pairs whose emulated path crosses the local links.
        # A real link without a rate in the file may be the slowest. An emulated link without a rate is not shaped.
        if crossed_rates and (scale is not None or len(crossed_rates) == len(split_link_kind(kind))):
            expected_rates[kind] = min(crossed_rates)
    return expected_rates


def _iterate_pairs(document: Mapping[str, Any], matrix: str) -> Iterator[tuple[int, int, str, float]]:
    """Yield (from, to, kind of path, value) for each measured pair in one of the document's matrices."""
    matrices = document.get("matrices")
    for sender, row in enumerate(matrices[matrix] if matrices else ()):
        for receiver, value in enumerate(row):
            if value is not None and sender != receiver:
                yield sender, receiver, document["kinds"][sender][receiver], value


def _find_slow_pairs(
    document: Mapping[str, Any], expected_rates: Mapping[str, float], min_share: float
) -> Iterator[_SlowLink]:
    """Yield the pairs of devices whose bandwidth is below a minimum share of the expected rate."""
    for kind, rates_by_pair in _compute_pair_bandwidths(document).items():
        rates_by_name = {_format_pair(document, *pair): rate for pair, rate in rates_by_pair.items()}
        yield from _find_slow_links(kind, expected_rates, rates_by_name, min_share)


def _find_slow_links(
    kind: str, expected_rates: Mapping[str, float], rates: Mapping[str, float], min_share: float
) -> Iterator[_SlowLink]:
    """Yield the links of one kind that are slower than the system file's rate, or than their median if it has no rate."""
    if kind not in expected_rates and len(rates) < _MIN_PEERS:
        return
    reference_rate, reference = (
        (expected_rates[kind], _SYSTEM_REFERENCE)
        if kind in expected_rates
        else (median(rates.values()), _PEER_REFERENCE)
    )
    for ends, rate in rates.items():
        if rate < reference_rate * min_share:
            yield _describe_slow_link(ends, rate, kind, reference_rate, reference)


def _find_slow_kinds(
    document: Mapping[str, Any], expected_rates: Mapping[str, float], min_share: float
) -> Iterator[_SlowLink]:
    """Yield the kinds of paths whose median bandwidth is too low.

    Single links are not judged, because on a busy machine an emulated link may look slow without being slow.
    """
    for kind, rates_by_pair in _compute_pair_bandwidths(document).items():
        rate = median(rates_by_pair.values())
        if kind in expected_rates and rate < expected_rates[kind] * min_share:
            pairs = "pair" if len(rates_by_pair) == 1 else "pairs"
            yield _describe_slow_link(
                f"median of {len(rates_by_pair)} {pairs}", rate, kind, expected_rates[kind], _EMULATED_REFERENCE
            )


def _compute_pair_bandwidths(document: Mapping[str, Any]) -> dict[str, dict[tuple[int, int], float]]:
    """Compute bandwidths (GB/s) by kind of path and pair, after subtracting the time of an empty message.

    Pairs whose time is mostly latency are left out. The result is empty if the largest measured size is too small.
    """
    if (document["matrix_size_bytes"] or 0) < MIN_BANDWIDTH_BYTES:
        return {}
    latency_us = {(sender, receiver): value for sender, receiver, _, value in _iterate_pairs(document, "latency_us")}
    rates: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for sender, receiver, kind, gb_per_s in _iterate_pairs(document, "unidirectional_gb_per_s"):
        seconds = document["matrix_size_bytes"] / (gb_per_s * 1e9)
        # An empty message and the receiver's answer take two latencies (see `alpha_beta_model`).
        empty_s = 2e-6 * latency_us.get((sender, receiver), 0.0)
        if empty_s <= _MAX_LATENCY_SHARE * seconds:
            rates[kind][sender, receiver] = document["matrix_size_bytes"] / 1e9 / (seconds - empty_s)
    return rates


def _find_slow_host_copies(
    document: Mapping[str, Any], expected_rates: Mapping[str, float], min_share: float
) -> Iterator[_SlowLink]:
    """Yield the hosts and devices between which copies are slower than expected."""
    copies = document.get("host_device")
    if not copies:
        return
    # The rate of local links in the system file applies between devices, not between a device and its host.
    fabric_rates = {kind: rate for kind, rate in expected_rates.items() if kind == FABRIC}
    for name, to_device in (("h2d_gb_per_s", True), ("d2h_gb_per_s", False)):
        by_kind: dict[str, dict[str, float]] = defaultdict(dict)
        for device, rate in zip(document["devices"], copies[name], strict=True):
            if rate is not None:
                ends = (device["host"], device["name"]) if to_device else (device["name"], device["host"])
                by_kind[device["attach"]][" to ".join(ends)] = rate
        for kind, rates in by_kind.items():
            yield from _find_slow_links(kind, fabric_rates, rates, min_share)


def _find_high_latencies(document: Mapping[str, Any]) -> Iterator[_SlowLink]:
    """Yield the pairs whose latency is far above the median of their kind."""
    by_kind: dict[str, dict[str, float]] = defaultdict(dict)
    for sender, receiver, kind, latency_us in _iterate_pairs(document, "latency_us"):
        by_kind[kind][_format_pair(document, sender, receiver)] = latency_us
    for kind, latencies_us in by_kind.items():
        usual_us = median(latencies_us.values())
        for ends, latency_us in latencies_us.items() if len(latencies_us) >= _MIN_PEERS else ():
            if latency_us > _LATENCY_FACTOR * usual_us:
                text = (
                    f"{ends}: {latency_us:.3g} us, {latency_us / usual_us:.1f} times the {usual_us:.3g} us of "
                    f"{_PEER_REFERENCE.format(kind=kind)}"
                )
                yield usual_us / latency_us - 1, text


def _describe_slow_link(ends: str, rate: float, kind: str, expected_rate: float, reference: str) -> _SlowLink:
    """Build the entry of a slow link from its rate and the expected rate (GB/s)."""
    shortfall = 1 - rate / expected_rate
    text = f"{ends}: {rate:.3g} GB/s, {100 * shortfall:.0f} % below the {expected_rate:.3g} GB/s of {reference.format(kind=kind)}"
    return -shortfall, text


def _format_pair(document: Mapping[str, Any], sender: int, receiver: int) -> str:
    return f"{document['devices'][sender]['name']} to {document['devices'][receiver]['name']}"

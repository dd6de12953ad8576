"""Document of a link measurement (schema links/1), which the records of its composition share.

Matrices are [from][to] in the order of `devices`. They have None on the diagonal and for pairs that were not measured. Bandwidths
are those of the largest measured size (`matrix_size_bytes`), in GB/s of 1e9 bytes. `bidirectional_gb_per_s` is the sum of both
directions, as NVIDIA's p2pBandwidthLatencyTest prints it. A latency is half a round trip of the smallest size, as the median of the
repeats.

The kind of path between two local devices of a host is `local`, and `fabric` if a device is behind the fabric. Between hosts it is
`network`, or `fabric + network` if a device is behind the fabric. The slowest link of a path determines its rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import Field

from campaign.common.accelerators import AcceleratorKind
from campaign.observe.links.spec import LeftOut, LinkSpec, RankLinks
from campaign.spec.fields import ClosedModel

LinkMatrix = tuple[tuple[float | None, ...], ...]
_GB = 1e9
MIN_BANDWIDTH_BYTES = 2**16
"""Minimum message size from which a bandwidth is computed. The time of a smaller message is mostly latency."""


class MeasuredDevice(ClosedModel):
    """Device whose links are measured. `name` is a readable name that is unique in the document."""

    name: str
    host: str
    index: int
    attach: Literal["local", "fabric"]
    fabric_id: str
    model: str
    measured_as: str = Field(default="", description="name of the device as reported by the measuring program")


class Matrices(ClosedModel):
    """Bandwidths and latencies between all pairs of devices.

    p2p: whether one device can access the other's memory, for pairs of devices that are visible to one process.
    """

    unidirectional_gb_per_s: LinkMatrix
    bidirectional_gb_per_s: LinkMatrix
    latency_us: LinkMatrix
    p2p: tuple[tuple[bool | None, ...], ...]


class HostCopies(ClosedModel):
    """Bandwidths of copies between each device and the main memory of its host."""

    what: str
    size_bytes: int
    h2d_gb_per_s: tuple[float | None, ...]
    d2h_gb_per_s: tuple[float | None, ...]


class BandwidthCurve(ClosedModel):
    """Medians over all pairs with one kind of path, by message size. `time_s` is the time of an acknowledged message."""

    pairs: int
    size_bytes: tuple[int, ...]
    time_s: tuple[float, ...]
    unidirectional_gb_per_s: tuple[float, ...]
    bidirectional_gb_per_s: tuple[float, ...]


class AllReduce(ClosedModel):
    """Times of fp32 all-reduce operations over all ranks, by message size.

    time_s: time of the slowest rank, as the median over repeats; busbw: algbw x 2(n-1)/n, as in nccl-tests.
    """

    ranks: int
    size_bytes: tuple[int, ...]
    time_s: tuple[float, ...]
    algbw_gb_per_s: tuple[float, ...]
    busbw_gb_per_s: tuple[float, ...]


class FittedModel(ClosedModel):
    """Latency alpha and bandwidth B with their 95 % intervals (see `alpha_beta_model`).

    high_gb_per_s: upper bound of B, or None if it is unbounded; sizes: number of sizes in the fit; residual_pct: root mean
    square of the relative residuals.
    """

    alpha_us: float
    alpha_low_us: float
    alpha_high_us: float
    gb_per_s: float
    low_gb_per_s: float
    high_gb_per_s: float | None
    sizes: int
    residual_pct: float


class Models(ClosedModel):
    """Fitted latency-bandwidth models, present if enough sizes were measured. `messages` holds one model per kind of path."""

    allreduce: FittedModel | None = None
    messages: dict[str, FittedModel] = Field(default_factory=dict)


class LinksDocument(ClosedModel):
    """Results of one measurement of a composition's links. Values that were not measured are absent or None."""

    schema_version: Literal["links/1"] = "links/1"
    runs_on: AcceleratorKind
    devices: tuple[MeasuredDevice, ...]
    kinds: tuple[tuple[str | None, ...], ...] = Field(description="kinds of paths as [from][to]")
    settings: dict[str, Any] = Field(description="requested sizes, repeats, warm-up and time")
    matrix_size_bytes: int | None = None
    matrices: Matrices | None = None
    host_device: HostCopies | None = None
    curves: dict[str, BandwidthCurve] = Field(default_factory=dict, description="curves by kind of path")
    allreduce: AllReduce | None = None
    model: Models = Field(
        default=Models(), description="models fitted when the document is read, see `alpha_beta_model`"
    )
    left_out: tuple[LeftOut, ...] = ()
    problems: tuple[str, ...] = ()
    tools: tuple[str, ...] = Field(default=(), description="measuring programs, with their versions if known")
    foreign: dict[str, Any] = Field(
        default_factory=dict, description="readings of external programs, by program and host"
    )
    took_s: float = 0.0


SecondsByMessage = Mapping[tuple[int, int, int], float]
"""Median times in seconds by (from, to, bytes)."""


def build_measurements(
    spec: LinkSpec, devices: Sequence[MeasuredDevice], ranks: Sequence[RankLinks | None]
) -> dict[str, Any]:
    """Build the measured fields of a LinksDocument from the results of all ranks, which are None for ranks without one."""
    results_by_rank = {rank.rank: rank for rank in ranks if rank is not None}
    described_devices = [
        device.model_copy(update={"measured_as": results_by_rank[number].device_name})
        if number in results_by_rank
        else device
        for number, device in enumerate(devices)
    ]
    path_kinds = list_link_kinds([device.model_dump() for device in devices])
    latency, one_way, both_ways = (
        {
            (rank.rank, pair_times.peer, pair_times.size_bytes): median(pair_times.times_s)
            for rank in results_by_rank.values()
            for pair_times in getattr(rank, name)
        }
        for name in ("latency", "unidirectional", "bidirectional")
    )
    # One measurement in both directions at once applies to both orders of a pair.
    both_ways |= {(receiver, sender, size): seconds for (sender, receiver, size), seconds in both_ways.items()}
    return {
        "runs_on": spec.device,
        "devices": described_devices,
        "kinds": path_kinds,
        "settings": spec.model_dump(include={"sizes_bytes", "repeats", "warmup", "budget_s"}),
        **_build_matrices(ranks, latency, one_way, both_ways),
        "host_device": _summarize_host_copies(spec, ranks),
        "curves": _build_curves(one_way, both_ways, path_kinds),
        "allreduce": _summarize_allreduce(ranks),
        "left_out": results_by_rank[0].left_out if 0 in results_by_rank else (),
        "tools": tuple(
            dict.fromkeys(f"torch {rank.torch_version}, {rank.backend}" for rank in results_by_rank.values())
        ),
    }


def _build_matrices(
    ranks: Sequence[RankLinks | None], latency: SecondsByMessage, one_way: SecondsByMessage, both_ways: SecondsByMessage
) -> dict[str, Any]:
    """Build the bandwidth and latency matrices of a LinksDocument from median times. Empty if no pair was measured."""
    if not one_way:
        return {}
    size = _list_sizes(one_way)[-1]
    smallest = _list_sizes(latency)[0] if latency else 0
    numbers = range(len(ranks))

    def build_matrix(seconds: SecondsByMessage, size_bytes: int, convert: Callable[[float], float]) -> LinkMatrix:
        return tuple(
            tuple(
                round_digits(convert(seconds[sender, receiver, size_bytes]))
                if (sender, receiver, size_bytes) in seconds
                else None
                for receiver in numbers
            )
            for sender in numbers
        )

    return {
        "matrix_size_bytes": size,
        "matrices": Matrices(
            unidirectional_gb_per_s=build_matrix(one_way, size, lambda seconds: size / seconds / _GB),
            bidirectional_gb_per_s=build_matrix(both_ways, size, lambda seconds: 2 * size / seconds / _GB),
            latency_us=build_matrix(latency, smallest, lambda seconds: seconds * 1e6),
            p2p=tuple(tuple(rank.p2p.get(peer) if rank else None for peer in numbers) for rank in ranks),
        ),
    }


def _list_sizes(seconds: SecondsByMessage) -> list[int]:
    """Return the message sizes (bytes) that were measured, in ascending order."""
    return sorted({size for _, _, size in seconds})


def _build_curves(
    one_way: SecondsByMessage, both_ways: SecondsByMessage, path_kinds: Sequence[Sequence[str | None]]
) -> dict[str, BandwidthCurve]:
    """Build one bandwidth curve (bandwidth by message size) for each kind of path."""
    curves = {}
    for kind in KINDS:
        pairs = [(a, b) for a, row in enumerate(path_kinds) for b, way in enumerate(row) if way == kind]
        times = {}
        for size in _list_sizes(one_way):
            one_way_times, both_ways_times = (
                [times_by_message[*pair, size] for pair in pairs if (*pair, size) in times_by_message]
                for times_by_message in (one_way, both_ways)
            )
            if one_way_times and both_ways_times:
                times[size] = (median(one_way_times), median(both_ways_times))
        if times:
            curves[kind] = BandwidthCurve(
                pairs=len(pairs),
                size_bytes=tuple(times),
                time_s=tuple(round_digits(one_way_times) for one_way_times, _ in times.values()),
                unidirectional_gb_per_s=tuple(
                    round_digits(size / one_way_times / _GB) for size, (one_way_times, _) in times.items()
                ),
                bidirectional_gb_per_s=tuple(
                    round_digits(2 * size / both_ways_times / _GB) for size, (_, both_ways_times) in times.items()
                ),
            )
    return curves


def _summarize_allreduce(ranks: Sequence[RankLinks | None]) -> AllReduce | None:
    """Summarise the all-reduce times of all ranks by message size, or return None if no size was measured by all of them."""
    by_size: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for rank in ranks:
        for rank_times in rank.allreduce if rank else ():
            by_size[rank_times.size_bytes].append(rank_times.times_s)
    n = len(ranks)
    # An all-reduce is complete when the last rank has its sum.
    times = {
        size: median(map(max, zip(*times_by_rank, strict=True)))
        for size, times_by_rank in sorted(by_size.items())
        if len(times_by_rank) == n > 1
    }
    if not times:
        return None
    rates = [size / seconds / _GB for size, seconds in times.items()]
    return AllReduce(
        ranks=n,
        size_bytes=tuple(times),
        time_s=tuple(map(round_digits, times.values())),
        algbw_gb_per_s=tuple(map(round_digits, rates)),
        busbw_gb_per_s=tuple(round_digits(rate * 2 * (n - 1) / n) for rate in rates),
    )


def _summarize_host_copies(spec: LinkSpec, ranks: Sequence[RankLinks | None]) -> HostCopies | None:
    """Summarise the bandwidths of copies between hosts and devices, or return None if none were measured."""
    copies = {name: [rank and getattr(rank, name) for rank in ranks] for name in ("to_device", "from_device")}
    sizes = [times.size_bytes for times in copies["to_device"] if times]
    if not sizes:
        return None
    to_device, from_device = (
        tuple(times and round_digits(times.size_bytes / median(times.times_s) / _GB) for times in rank_times)
        for rank_times in copies.values()
    )
    pinned_description, cpu_description = "pinned host memory", "copy within main memory: the devices are CPU processes"
    return HostCopies(
        what=cpu_description if spec.device == "cpu" else pinned_description,
        size_bytes=max(sizes),
        h2d_gb_per_s=to_device,
        d2h_gb_per_s=from_device,
    )


def round_digits(value: float) -> float:
    """Round a value to six significant digits, the resolution of the clocks."""
    return float(f"{value:.6g}")


LOCAL, FABRIC, NETWORK = "local", "fabric", "network"
KINDS = (LOCAL, FABRIC, NETWORK, f"{FABRIC} + {NETWORK}")
"""Kinds of paths from the shortest to the longest."""


def find_link_kind(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Determine the kind of path between two devices of a links document from their `host` and `attach` fields."""
    links = []
    if FABRIC in (first["attach"], second["attach"]):
        links.append(FABRIC)
    if first["host"] != second["host"]:
        links.append(NETWORK)
    return " + ".join(links) or LOCAL


def list_link_kinds(devices: Sequence[Mapping[str, Any]]) -> list[list[str | None]]:
    """Determine the kind of path between every two devices as a matrix [from][to], with None on the diagonal."""
    return [[None if first is second else find_link_kind(first, second) for second in devices] for first in devices]


def split_link_kind(kind: str) -> list[str]:
    """Split a kind of path into the links that it consists of, by their names in a system file's `links`."""
    return kind.split(" + ")

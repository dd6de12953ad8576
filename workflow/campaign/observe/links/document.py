"""The document of a link measurement (schema links/1), which the records of its composition share. Pure.

Matrices are [from][to] in the order of `devices`; None on the diagonal and for what was not measured. Bandwidths are those of the
largest size that was measured (`matrix_size_bytes`), in GB/s of 1e9 bytes; `bidirectional_gb_per_s` is the sum of both directions,
as NVIDIA's p2pBandwidthLatencyTest prints it; latencies are half a round trip of the smallest size, median of the repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.observe.links.link_kinds import KINDS, kinds
from campaign.observe.links.spec import LeftOut, LinkSpec, PairTimes, RankLinks

Matrix = tuple[tuple[float | None, ...], ...]
_GB = 1e9


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasuredDevice(_Closed):
    """One end of links; name: for people, unique in the document."""

    name: str
    host: str
    index: int
    attach: Literal["local", "fabric"]
    fabric_id: str
    model: str
    measured_as: str = Field(default="", description="what the program that measured found there")


class Matrices(_Closed):
    """See the module; p2p: whether a device reaches the other's memory, where one process saw both."""

    unidirectional_gb_per_s: Matrix
    bidirectional_gb_per_s: Matrix
    latency_us: Matrix
    p2p: tuple[tuple[bool | None, ...], ...]


class HostDevice(_Closed):
    """Bandwidth of copies between each device and the memory of its host."""

    what: str
    size_bytes: int
    h2d_gb_per_s: tuple[float | None, ...]
    d2h_gb_per_s: tuple[float | None, ...]


class Curve(_Closed):
    """One kind of way by message size: medians over its pairs. time_s: of an answered message."""

    pairs: int
    size_bytes: tuple[int, ...]
    time_s: tuple[float, ...]
    unidirectional_gb_per_s: tuple[float, ...]
    bidirectional_gb_per_s: tuple[float, ...]


class AllReduce(_Closed):
    """Sum of fp32 over all ranks. time_s: median over repeats of the slowest rank's; busbw: algbw x 2(n-1)/n (as in nccl-tests)."""

    ranks: int
    size_bytes: tuple[int, ...]
    time_s: tuple[float, ...]
    algbw_gb_per_s: tuple[float, ...]
    busbw_gb_per_s: tuple[float, ...]


class FittedModel(_Closed):
    """See `campaign.observe.links.alpha_beta_model.Fit`."""

    alpha_us: float
    alpha_low_us: float
    alpha_high_us: float
    gb_per_s: float
    low_gb_per_s: float
    high_gb_per_s: float | None
    sizes: int
    residual_pct: float


class Models(_Closed):
    """Latency-bandwidth models, where enough sizes were measured; messages: by kind of way."""

    allreduce: FittedModel | None = None
    messages: dict[str, FittedModel] = Field(default_factory=dict)


class LinksDocument(_Closed):
    """One measurement of the links of one composition. Everything that was not measured is absent or None."""

    schema_version: Literal["links/1"] = "links/1"
    runs_on: Literal["cuda", "cpu"]
    devices: tuple[MeasuredDevice, ...]
    kinds: tuple[tuple[str | None, ...], ...] = Field(description="[from][to] the kind of way")
    settings: dict[str, Any] = Field(description="sizes, repeats, warm-up and time that were asked for")
    matrix_size_bytes: int | None = None
    matrices: Matrices | None = None
    host_device: HostDevice | None = None
    curves: dict[str, Curve] = Field(default_factory=dict, description="by kind of way")
    allreduce: AllReduce | None = None
    model: Models = Field(default=Models(), description="made from the rest whenever it is read, see `with_models`")
    left_out: tuple[LeftOut, ...] = ()
    problems: tuple[str, ...] = ()
    tools: tuple[str, ...] = Field(default=(), description="what measured, with its version where that is known")
    foreign: dict[str, Any] = Field(default_factory=dict, description="by program and host: what it printed")
    took_s: float = 0.0


@dataclass(frozen=True)
class _Pairs:
    """Median seconds by (from, to, bytes)."""

    seconds: Mapping[tuple[int, int, int], float]

    @classmethod
    def of(
        cls, ranks: Sequence[RankLinks | None], name: Literal["latency", "unidirectional", "bidirectional"]
    ) -> _Pairs:
        found = {}
        for rank in ranks:
            times: Iterable[PairTimes] = getattr(rank, name) if rank is not None else ()
            found.update({(rank.rank, each.peer, each.size_bytes): median(each.times_s) for each in times if rank})
        return cls(found)

    def both(self) -> _Pairs:
        """The same for (to, from): one measurement stands for both."""
        return _Pairs({**self.seconds, **{(to, out, size): s for (out, to, size), s in self.seconds.items()}})

    def sizes(self) -> list[int]:
        return sorted({size for _, _, size in self.seconds})

    def matrix(self, count: int, size: int, scale: float) -> Matrix:
        """scale / seconds; for a negative scale, -scale x seconds."""
        return tuple(
            tuple(
                None
                if (seconds := self.seconds.get((out, to, size))) is None
                else _digits(scale / seconds if scale > 0 else -scale * seconds)
                for to in range(count)
            )
            for out in range(count)
        )


def measured(spec: LinkSpec, devices: Sequence[MeasuredDevice], ranks: Sequence[RankLinks | None]) -> dict[str, Any]:
    """The parts of a LinksDocument that follow from the results of ranks; None: a rank without a result."""
    there = [rank for rank in ranks if rank is not None]
    names = {rank.rank: rank.device_name for rank in there}
    described = [
        device.model_copy(update={"measured_as": names.get(number, "")}) for number, device in enumerate(devices)
    ]
    ways = kinds([device.model_dump() for device in devices])
    one_way = _Pairs.of(ranks, "unidirectional")
    curves = _curves(one_way, _Pairs.of(ranks, "bidirectional").both(), ways)
    allreduce = _all_reduce(ranks)
    return {
        "runs_on": spec.device,
        "devices": described,
        "kinds": ways,
        "settings": spec.model_dump(include={"sizes_bytes", "repeats", "warmup", "budget_s"}),
        **_matrices(ranks, one_way),
        "host_device": _host_device(spec, ranks),
        "curves": curves,
        "allreduce": allreduce,
        "left_out": next((rank.left_out for rank in there if rank.rank == 0), ()),
        "tools": tuple(dict.fromkeys(f"torch {rank.torch_version}, {rank.backend}" for rank in there)),
    }


def _matrices(ranks: Sequence[RankLinks | None], one_way: _Pairs) -> dict[str, Any]:
    latency, count = _Pairs.of(ranks, "latency"), len(ranks)
    if not one_way.seconds:
        return {}
    size = one_way.sizes()[-1]
    smallest = latency.sizes()[0] if latency.seconds else 0
    return {
        "matrix_size_bytes": size,
        "matrices": Matrices(
            unidirectional_gb_per_s=one_way.matrix(count, size, size / _GB),
            bidirectional_gb_per_s=_Pairs.of(ranks, "bidirectional").both().matrix(count, size, 2 * size / _GB),
            latency_us=latency.matrix(count, smallest, -1e6),
            p2p=tuple(
                tuple(rank.p2p.get(other) if rank is not None else None for other in range(count)) for rank in ranks
            ),
        ),
    }


def _curves(one_way: _Pairs, both_ways: _Pairs, ways: Sequence[Sequence[str | None]]) -> dict[str, Curve]:
    found = {}
    for kind in KINDS:
        pairs = [(a, b) for a, row in enumerate(ways) for b, way in enumerate(row) if way == kind]
        there: dict[int, list[float]] = defaultdict(list)
        both: dict[int, list[float]] = defaultdict(list)
        for size in one_way.sizes():
            there[size] += [one_way.seconds[(*pair, size)] for pair in pairs if (*pair, size) in one_way.seconds]
            both[size] += [both_ways.seconds[(*pair, size)] for pair in pairs if (*pair, size) in both_ways.seconds]
        sizes = [size for size in one_way.sizes() if there[size] and both[size]]
        if sizes:
            times = [median(there[size]) for size in sizes]
            found[kind] = Curve(
                pairs=len(pairs),
                size_bytes=tuple(sizes),
                time_s=tuple(map(_digits, times)),
                unidirectional_gb_per_s=tuple(_digits(s / t / _GB) for s, t in zip(sizes, times, strict=True)),
                bidirectional_gb_per_s=tuple(_digits(2 * size / median(both[size]) / _GB) for size in sizes),
            )
    return found


def _all_reduce(ranks: Sequence[RankLinks | None]) -> AllReduce | None:
    whole = [rank for rank in ranks if rank is not None]
    if len(whole) < len(ranks) or len(ranks) < 2:
        return None
    by_size: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for rank in whole:
        for each in rank.allreduce:
            by_size[each.size_bytes].append(each.times_s)
    n, sizes = len(ranks), sorted(size for size, times in by_size.items() if len(times) == len(ranks))
    if not sizes:
        return None
    # It is over when the last rank has its sum.
    times = [median(max(repeat) for repeat in zip(*by_size[size], strict=True)) for size in sizes]
    rates = [size / seconds / _GB for size, seconds in zip(sizes, times, strict=True)]
    return AllReduce(
        ranks=n,
        size_bytes=tuple(sizes),
        time_s=tuple(map(_digits, times)),
        algbw_gb_per_s=tuple(map(_digits, rates)),
        busbw_gb_per_s=tuple(_digits(rate * 2 * (n - 1) / n) for rate in rates),
    )


def _host_device(spec: LinkSpec, ranks: Sequence[RankLinks | None]) -> HostDevice | None:
    sizes = {rank.to_device.size_bytes for rank in ranks if rank is not None and rank.to_device is not None}
    if not sizes:
        return None

    def rate(times: Any) -> float | None:
        return None if times is None else _digits(times.size_bytes / median(times.times_s) / _GB)

    cuda = spec.device == "cuda"
    return HostDevice(
        what="pinned host memory" if cuda else "copy within main memory: the devices are CPU processes",
        size_bytes=max(sizes),
        h2d_gb_per_s=tuple(rate(rank.to_device) if rank is not None else None for rank in ranks),
        d2h_gb_per_s=tuple(rate(rank.from_device) if rank is not None else None for rank in ranks),
    )


def with_models(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored links/1 document with models fitted to its measurements."""
    curves = {kind: Curve.model_validate(curve) for kind, curve in document["curves"].items()}
    allreduce = document["allreduce"] and AllReduce.model_validate(document["allreduce"])
    return {**document, "model": _models(curves, allreduce).model_dump(mode="json")}


def _models(curves: Mapping[str, Curve], allreduce: AllReduce | None) -> Models:
    # Here, so that planning and driving load no scipy.
    from campaign.observe.links.alpha_beta_model import Fit, fit_allreduce, fit_messages

    def kept(fit: Fit | None) -> FittedModel | None:
        if fit is None:
            return None
        said = {name: _digits(value) if isinstance(value, float) else value for name, value in fit.document().items()}
        return FittedModel.model_validate(said)

    messages = {kind: kept(fit_messages(curve.size_bytes, curve.time_s)) for kind, curve in curves.items()}
    return Models(
        allreduce=allreduce and kept(fit_allreduce(allreduce.size_bytes, allreduce.time_s, allreduce.ranks)),
        messages={kind: fit for kind, fit in messages.items() if fit is not None},
    )


def _digits(value: float) -> float:
    """Six significant digits: clocks know no more, and documents are read by people."""
    return float(f"{value:.6g}")

"""Made-up measurements of links, with rates that are known: local 36, fabric 12, network 2.5 GB/s one way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from campaign.observe.links.alpha_beta_model import add_models
from campaign.observe.links.document import LinksDocument, MeasuredDevice, build_measurements, find_link_kind
from campaign.observe.links.spec import CollectiveTimes, LeftOut, LinkSpec, PairTimes, RankLinks

RATES = {"local": 36.0, "fabric": 12.0, "network": 2.5, "fabric + network": 2.4}
LATENCY_US = {"local": 2.6, "fabric": 5.1, "network": 9.0, "fabric + network": 11.0}
SIZES = (8, 4096, 65536, 2**20, 2**24, 2**26)
REPEATS = 5


def links_document(
    *shape: tuple[int, int], noise: float = 0.02, seed: int = 5, sizes: Sequence[int] = SIZES
) -> dict[str, Any]:
    """links/1 of hosts with so many local and fabric devices each."""
    random = np.random.default_rng(seed)
    devices = [
        MeasuredDevice(
            name=f"host{host}.gpu{index}",
            host=f"host{host}",
            index=index,
            attach="local" if index < local else "fabric",
            fabric_id=f"gpu{host}{index}",
            model="A100",
        )
        for host, (local, fabric) in enumerate(shape, 1)
        for index in range(local + fabric)
    ]
    given = tuple(sizes)
    spec = LinkSpec(
        hosts=tuple(each.host for each in devices),
        sizes_bytes=given,
        repeats=REPEATS,
        warmup=2,
        budget_s=60.0,
        device="cuda",
        time_out_s=90.0,
    )

    def times(seconds: float) -> tuple[float, ...]:
        return tuple(seconds * (1 + noise * random.standard_normal(REPEATS)))

    ranks = []
    ways = [[find_link_kind(one.model_dump(), other.model_dump()) for other in devices] for one in devices]
    slowest = min(RATES[way] for row, line in enumerate(ways) for way in line[:row] or ["local"])
    for rank in range(len(devices)):
        peers = [(peer, ways[rank][peer]) for peer in range(len(devices)) if peer != rank]
        steps = 2 * (len(devices) - 1)
        ranks.append(
            RankLinks(
                rank=rank,
                world_size=len(devices),
                backend="nccl",
                torch_version="2.13.0",
                device_name="A100",
                latency=tuple(
                    PairTimes(peer=peer, size_bytes=given[0], times_s=times(LATENCY_US[way] * 1e-6))
                    for peer, way in peers
                ),
                unidirectional=tuple(
                    PairTimes(
                        peer=peer, size_bytes=size, times_s=times(2e-6 * LATENCY_US[way] + size / RATES[way] / 1e9)
                    )
                    for peer, way in peers
                    for size in given
                ),
                bidirectional=tuple(
                    PairTimes(
                        peer=peer, size_bytes=size, times_s=times(2e-6 * LATENCY_US[way] + size / RATES[way] / 0.95e9)
                    )
                    for peer, way in peers
                    if peer > rank
                    for size in given
                ),
                allreduce=tuple(
                    CollectiveTimes(
                        size_bytes=size, times_s=times(steps * 10e-6 + steps / len(devices) * size / slowest / 1e9)
                    )
                    for size in given
                    if len(devices) > 1
                ),
                to_device=CollectiveTimes(size_bytes=2**28, times_s=times(2**28 / 12e9)),
                from_device=CollectiveTimes(size_bytes=2**28, times_s=times(2**28 / 11e9)),
                p2p={peer: True for peer, way in peers if "network" not in way},
                left_out=(LeftOut(size_bytes=2**28, why="would exceed the time limit of the stage (60 s)"),),
            )
        )
    return add_models(LinksDocument(**build_measurements(spec, devices, ranks), took_s=42.0).model_dump(mode="json"))


def links() -> list[dict[str, Any]]:
    """Links of some configurations, as `FigureData.links` has them."""
    shapes = {
        "local-4": ((4, 0),),
        "hybrid-4": ((2, 2),),
        "fabric-4": ((0, 4),),
        "fabric-2x2": ((0, 2), (0, 2)),
        "fabric-8": ((0, 8),),
        "local-1": ((1, 0),),
    }
    return [
        {
            "configuration": name,
            "lease_id": f"lease-{name}",
            "lease": name,
            "when": "before",
            "document": links_document(*shape, seed=seed),
        }
        for seed, (name, shape) in enumerate(shapes.items())
    ]

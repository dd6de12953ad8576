"""Small cases, and a prior in which only what a test names costs anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.model.description import (
    ComputeTime,
    Network,
    NetworkLayer,
    RankPlace,
    StepCase,
    Topology,
    WorkSharing,
)
from campaign.model.parameters import DEFAULTS, UncertainNumber

MB = 10**6
_NO_LOSS = {
    **dict.fromkeys(
        ("start", "slowdown", "attach", "crowd", "jitter", "fixed", "launch", "cycle", "python", "latency"), 0.0
    ),
    **dict.fromkeys(("compute", "bus", "decode", "allocator"), 1.0),
    "copy": float("inf"),
}


def known(value: float) -> UncertainNumber:
    return UncertainNumber.known(value, "", "of the test")


def lossless(**values: float) -> dict[str, UncertainNumber]:
    """No losses and no latency but those that are named: `rate_local` stands for `rate[local]`."""
    prior = {name: known(_NO_LOSS.get(name.partition("[")[0], each.median)) for name, each in DEFAULTS.items()}
    for name, value in values.items():
        base, _, key = name.partition("_")
        prior[f"{base}[{key}]" if key else base] = known(value)
    return prior


def topology(hosts: int = 1, local: int = 2, fabric: int = 0, **more: Any) -> Topology:
    ranks = [RankPlace(host, fabric=place >= local) for host in range(hosts) for place in range(local + fabric)]
    return Topology(tuple(ranks), **more)


def case(
    network: Network,
    at: Topology | None = None,
    seconds: Mapping[int, float] | float = 1.0,
    batch: int = 8,
    **more: Any,
) -> StepCase:
    """seconds: of the batch on one device."""
    rows = {batch: seconds, 2 * batch: 2 * seconds} if isinstance(seconds, int | float) else seconds
    sharing = more.pop("sharing", WorkSharing())
    precision = more.pop("precision", "fp32")
    return StepCase(network, (ComputeTime("device", rows),), batch, precision, at or topology(), sharing, **more)


def layers(*tensors_mb: float, unit: bool = False) -> Network:
    """Layers with one tensor each, of so many MB in fp32; a forward pass of 1 and a backward pass of 2 shares each."""
    return Network(tuple(NetworkLayer((int(size * MB / 4),), 1.0, 2.0, unit) for size in tensors_mb))

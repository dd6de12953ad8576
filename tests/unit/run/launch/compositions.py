"""Compositions by their shape, and systems that emulate links or do not."""

from __future__ import annotations

import copy
from typing import Any

from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile
from tests.campaign_files import SYSTEM

LINKS = {"fabric": {"gb_per_s": 10.0}, "network": {"gb_per_s": 20.0}}


def composition(*shape: tuple[int, int]) -> Composition:
    """Hosts with so many local and fabric devices each: host1, host2 .."""
    return Composition(
        tuple(
            ComposedHost(
                f"host{number}",
                4,
                8.0,
                tuple(
                    Device(f"host{number}/{n}", "gpu", "cpu-rank", None, "", local=n < local)
                    for n in range(local + fabric)
                ),
            )
            for number, (local, fabric) in enumerate(shape, 1)
        )
    )


def system(**keys: Any) -> SystemFile:
    """The test bench's system; `emulation` and `links` make it an emulated one."""
    return SystemFile.model_validate({**copy.deepcopy(dict(SYSTEM)), **keys})


def emulated_system(scale: float = 0.001) -> SystemFile:
    """Fabric 0.08, network 0.16 Gbit/s."""
    return system(links=LINKS, emulation={"scale": scale})

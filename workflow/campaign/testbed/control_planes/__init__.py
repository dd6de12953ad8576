"""Emulated control planes: real HTTP servers with the composition semantics of the dialects, to learn on and to test against.

Each is strict where real peers are lax, and commits faults on request (`faults`). They know nothing of the adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.server import Dialect


@dataclass(frozen=True, slots=True)
class Emulator:
    """One entry of the table: the module, which has `open_dialect(rack, **options) -> Dialect`, and one line for people.

    options: what a system file says beside address and credentials to use it.
    """

    module: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)


EMULATORS: dict[str, Emulator] = {
    "redfish": Emulator(
        "campaign.testbed.control_planes.redfish", "DMTF Redfish composition: resource blocks, zones, composed systems"
    ),
    "redfish-zones": Emulator(
        "campaign.testbed.control_planes.redfish_zones", "a Falcon-like chassis: one Redfish zone a host port"
    ),
    "liqid": Emulator("campaign.testbed.control_planes.liqid", "Liqid Matrix REST v2"),
    "sunfish": Emulator(
        "campaign.testbed.control_planes.sunfish",
        "OFMF/Sunfish: connections through an agent, which can disagree with it",
    ),
    "cdi": Emulator(
        "campaign.testbed.control_planes.cdi",
        "Fujitsu CDI, fabric manager",
        {"tenant": "b3b65e79-ad41-4367-89d6-e4e7315141ef", "realm": "cdi", "client_id": "campaign"},
    ),
    "nec": Emulator("campaign.testbed.control_planes.nec", "NEC CDIM: layout-apply"),
}


def open_dialect(kind: str, rack: Rack, **options: Any) -> Dialect:
    """The emulated control plane of a kind, over a rack of hardware."""
    opened: Callable[..., Dialect] = import_module(EMULATORS[kind].module).open_dialect
    return opened(rack, **options)

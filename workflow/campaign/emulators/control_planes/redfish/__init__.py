"""An emulated Redfish service that composes (DSP2050) over a rack: strict, with the variants and oddities that peers have.

Hosts are compute blocks, of which systems are composed. What is attached is the rack's truth. Knows nothing of the adapters.

For real: sessions, tasks, paging and $expand; not for real: accounts, versions, events, updates.
"""

from __future__ import annotations

from typing import Any

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.redfish.composition import Variant
from campaign.emulators.control_planes.redfish.service import Redfish

__all__ = ["Redfish", "Variant", "open_emulator"]

COMPOSES = ("POST", "/redfish/v1/Systems")


def open_emulator(rack: Rack, **options: Any) -> Redfish:
    """options: the fields of `Variant`; `quirks` is any collection of their names."""
    return Redfish(rack, Variant(**options))

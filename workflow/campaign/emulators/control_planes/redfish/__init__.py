"""Emulated Redfish service that composes systems (DSP2050) over a rack.

The service is strict, but can have the variants and deviations of real services. Hosts are compute blocks, and systems are
composed of compute blocks and device blocks. The rack is the reference for attachments. The emulator imports nothing from the
adapters.

Implemented: sessions, tasks, paging and $expand. Not implemented: accounts, versions, events, updates.
"""

from __future__ import annotations

from typing import Any

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.redfish.composition import ServiceVariant
from campaign.emulators.control_planes.redfish.service import RedfishEmulator

__all__ = ["RedfishEmulator", "ServiceVariant", "open_emulator"]

COMPOSES = ("POST", "/redfish/v1/Systems")


def open_emulator(rack: Rack, **options: Any) -> RedfishEmulator:
    """Create the emulated service for a rack.

    Args:
        rack: emulated hardware.
        **options: fields of `ServiceVariant`; `quirks` may be any collection of names.
    """
    return RedfishEmulator(rack, ServiceVariant(**options))

"""Emulated control planes of the kinds of fabric, as named in the registry."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from campaign.common.errors import ConfigError
from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.server import HOSTS_PATH, ControlPlaneServer, Emulator
from campaign.fabrics.registry import fabric_kinds


def emulated_kinds() -> tuple[str, ...]:
    """Return the kinds of fabric that have an emulator."""
    return tuple(name for name, kind in fabric_kinds().items() if kind.emulator)


def emulator_module(kind: str) -> Any:
    """Import the module that emulates a kind of fabric; see `campaign.emulators.control_planes`.

    Raises ConfigError if the kind has no emulator.
    """
    if kind not in emulated_kinds():
        there = "\n".join(f"  {name}: {fabric_kinds()[name].summary}" for name in emulated_kinds())
        raise ConfigError(f"no emulator of kind {kind!r}; there are:\n{there}")
    return import_module(fabric_kinds()[kind].emulator)


def open_emulator(kind: str, rack: Rack, **options: Any) -> Emulator:
    """Create the emulated control plane of a kind over a rack of hardware."""
    return cast(Emulator, emulator_module(kind).open_emulator(rack, **options))


def reached(kind: str, server: ControlPlaneServer) -> dict[str, Any]:
    """Build the entries of a system file under `fabric` that locate an emulated control plane and the agent of its hosts."""
    ca = {"ca_file": str(server.ca_file.resolve())} if server.ca_file else {}
    address = getattr(emulator_module(kind), "address", lambda served: {"url": served.url} | ca)
    return {**address(server), "agent": {"kind": "http", "url": f"{server.url}{HOSTS_PATH}{{host}}/devices", **ca}}

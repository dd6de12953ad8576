"""Emulated control planes of the kinds of fabric, as named in the registry."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from campaign.common.errors import ConfigError
from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.server import HOSTS_PATH, ControlPlaneServer, Emulator
from campaign.fabrics.registry import load_fabric_kinds


def list_emulated_kinds() -> tuple[str, ...]:
    """Return the kinds of fabric that have an emulator."""
    return tuple(name for name, kind in load_fabric_kinds().items() if kind.emulator)


def load_emulator_module(kind: str) -> Any:
    """Import the module that emulates a kind of fabric; see `campaign.emulators.control_planes`.

    Raises ConfigError if the kind has no emulator.
    """
    if kind not in list_emulated_kinds():
        known_kinds = "\n".join(f"  {name}: {load_fabric_kinds()[name].summary}" for name in list_emulated_kinds())
        raise ConfigError(f"there is no emulator of kind {kind!r}; use one of:\n{known_kinds}")
    return import_module(load_fabric_kinds()[kind].emulator)


def open_emulator(kind: str, rack: Rack, **options: Any) -> Emulator:
    """Create an emulated control plane of this kind for a rack of hardware."""
    return cast(Emulator, load_emulator_module(kind).open_emulator(rack, **options))


def build_connection_options(kind: str, server: ControlPlaneServer) -> dict[str, Any]:
    """Build the entries of a system file under `fabric` that locate an emulated control plane and the agent of its hosts."""
    ca_option = {"ca_file": str(server.ca_file.resolve())} if server.ca_file else {}
    address = getattr(
        load_emulator_module(kind), "address", lambda started_server: {"url": started_server.url} | ca_option
    )
    return {
        **address(server),
        "agent": {"kind": "http", "url": f"{server.url}{HOSTS_PATH}{{host}}/devices", **ca_option},
    }

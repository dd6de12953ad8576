"""A small emulated Redfish service with its adapter, opened and closed by tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.redfish import RedfishEmulator
from campaign.emulators.control_planes.redfish import open_emulator as open_redfish
from campaign.emulators.control_planes.redfish.composition import ComposedSystem
from campaign.emulators.control_planes.server import ControlPlaneServer, WireFault
from campaign.fabrics.protocol import Selection
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import PoolSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import Bench

BLOCKS = "/redfish/v1/CompositionService/ResourceBlocks"
SYSTEMS = "/redfish/v1/Systems"

PEERS: dict[str, dict[str, Any]] = {
    "interface emulator 1.0.5": {
        "quirks": ["linked_root", "linked_members", "untyped", "text_reserved", "errors_with_200"],
        "names": "as_id",
        "creates": "object",
        "expand": False,
        "auth": False,
    },
    "mockup server 1.2.6": {"names": "kept", "creates": "no_content", "expand": False, "auth": False},
    "renames and numbers": {"names": "own", "creates": "object"},
    "cuts names": {"names": "cut", "creates": "no_content"},
}
"""What public services were seen to do, as far as they compose at all: DMTF/Redfish-Interface-Emulator (templates and *_api.py),
DMTF/Redfish-Mockup-Server (redfishMockupServer.py), and two that were reported."""


def wanted(count: int = 2, hosts: int = 1, **changes: Any) -> Configuration:
    return configuration(hosts=hosts, devices_per_host=count, devices_used=count * hosts, **changes)


class RedfishBench(Bench):
    """A bench before an emulated Redfish service."""

    @property
    def emulator(self) -> RedfishEmulator:
        return cast(RedfishEmulator, self.server.original_emulator)

    def asked(self, method: str) -> list[tuple[str, Any]]:
        """(path, body) of the requests of a method, without those that log in and out."""
        log = (asked for asked in self.server.log if asked.method == method and "Session" not in asked.path)
        return [(asked.path, asked.body) for asked in log]

    def verified(self, lease_id: str, selection: Selection) -> bool:
        """Whether the fabric reads back all of it."""
        found = self.fabric.read_back(lease_id)
        return found is not None and found.list_mismatches(selection.request.configuration) == ()


@contextmanager
def bench(
    tmp_path: Path, *, built: Rack | None = None, adapter: Mapping[str, Any] | None = None, **variant: Any
) -> Iterator[RedfishBench]:
    """Two hosts and eight a100 unless a rack is given; plain HTTP, no time between two looks."""
    hardware = built or build_rack(["host1", "host2"], [("gpu", "a100", 8), ("nvme", "ssd", 2)])
    with ControlPlaneServer(open_redfish(hardware, **variant), tls=False) as server:
        agent = {"kind": "http", "url": f"{server.url}/_hosts/{{host}}/devices"}
        options = {"agent": agent, "operation_s": 20.0, "poll_s": 0.01, **(adapter or {})}
        with RedfishBench(
            "redfish", server, hardware, options, tmp_path, [PoolSpec(kind="gpu", model="a100", count=8)]
        ) as made:
            yield made


def meanwhile(b: RedfishBench, method: str, path: str, happens: Callable[[], Any]) -> None:
    """Let something happen once, right before such a request is served."""
    real, left = b.server.faults.take_fault, [happens]

    def strike(asked: str, at: str) -> WireFault | None:
        if (asked, at) == (method, path) and left:
            left.pop()()
        return real(asked, at)

    b.server.faults.take_fault = strike  # type: ignore[method-assign]


def foreign(b: RedfishBench, name: str = "theirs", blocks: tuple[str, ...] = ("host2", "gpu3")) -> ComposedSystem:
    """A system that somebody else has composed."""
    return b.emulator.composition.compose_system(name, "", blocks)

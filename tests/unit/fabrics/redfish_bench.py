"""A small emulated Redfish service with its adapter, opened and closed by tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from campaign.documents.cell import Configuration
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.protocol import Request, Selection
from campaign.testbed.control_planes.faults import Fault
from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.redfish import Redfish
from campaign.testbed.control_planes.redfish import open_dialect as open_redfish
from campaign.testbed.control_planes.redfish.composition import Made
from campaign.testbed.control_planes.server import Server

BLOCKS = "/redfish/v1/CompositionService/ResourceBlocks"
SYSTEMS = "/redfish/v1/Systems"
USER, PASSWORD = "REDFISH_USER", "REDFISH_PASSWORD"

PEERS: dict[str, dict[str, Any]] = {
    "interface emulator 1.0.5": {
        "quirks": ["linked_root", "linked_members", "untyped", "text_reserved", "unreservable", "errors_with_200"],
        "names": "as_id",
        "creates": "object",
        "etags": "none",
        "expand": False,
        "auth": False,
    },
    "mockup server 1.2.6": {"names": "kept", "creates": "no_content", "etags": "none", "expand": False, "auth": False},
    "renames and numbers": {"names": "own", "creates": "object"},
    "cuts names": {"names": "cut", "creates": "no_content"},
}
"""What public services were seen to do, as far as they compose at all: DMTF/Redfish-Interface-Emulator (templates and *_api.py),
DMTF/Redfish-Mockup-Server (redfishMockupServer.py), and two that were reported."""


def wanted(count: int = 2, hosts: int = 1, **changes: Any) -> Configuration:
    fields: dict[str, Any] = {
        "name": "c",
        "hosts": hosts,
        "devices_per_host": count,
        "local_devices_per_host": 0,
        "devices_used": count * hosts,
        "device": "a100",
        "attach": "fabric",
        "storage": "local",
    }
    return Configuration(**(fields | changes))


@dataclass
class Bench:
    """One service with one adapter. `again`: another adapter on the same state, as another process has it."""

    server: Server
    dialect: Redfish
    rack: Rack
    fabric: ControlledFabric
    options: dict[str, Any]
    state_dir: Path

    def again(self, state_dir: Path | None = None, **options: Any) -> ControlledFabric:
        hosts = [HostSpec(name, 8, 32.0) for name in self.rack.hosts]
        pool = [PoolSpec("gpu", "a100", 8)]
        return cast(
            ControlledFabric, open_fabric("redfish", self.options | options, hosts, pool, state_dir or self.state_dir)
        )

    def selection(self, lease_id: str = "one", configuration: Configuration | None = None) -> Selection:
        request = Request(lease_id, "demo", "tester", configuration or wanted())
        return self.fabric.select(request, self.fabric.inventory())

    def compose(self, lease_id: str = "one", configuration: Configuration | None = None) -> Selection:
        selection = self.selection(lease_id, configuration)
        self.fabric.compose(selection)
        return selection

    def attached(self) -> dict[str, str]:
        return {name: device.attached_to for name, device in self.rack.devices.items() if device.attached_to}

    def asked(self, method: str) -> list[tuple[str, Any]]:
        """(path, body) of the requests of a method, without those that log in and out."""
        log = (asked for asked in self.server.log if asked.method == method and "Session" not in asked.path)
        return [(asked.path, asked.body) for asked in log]

    def verified(self, lease_id: str, selection: Selection) -> bool:
        """Whether the fabric reads back all of it."""
        found = self.fabric.read_back(lease_id)
        return found is not None and found.mismatches(selection.request.configuration) == ()


@contextmanager
def bench(
    tmp_path: Path, *, built: Rack | None = None, adapter: Mapping[str, Any] | None = None, **variant: Any
) -> Iterator[Bench]:
    """Two hosts and eight a100 unless a rack is given; plain HTTP, no time between two looks."""
    hardware = built or rack(["host1", "host2"], [("gpu", "a100", 8), ("nvme", "ssd", 2)])
    dialect = open_redfish(hardware, **variant)
    with Server(dialect, tls=False) as server:
        options: dict[str, Any] = {
            "url": server.url,
            "credentials": {"user_env": USER, "password_env": PASSWORD},
            "agent": {"kind": "http", "url": f"{server.url}/_hosts/{{host}}/devices"},
            "operation_s": 20.0,
            "poll_s": 0.01,
            **(adapter or {}),
        }
        made = Bench(server, dialect, hardware, cast(ControlledFabric, None), options, tmp_path)
        made.fabric = made.again()
        yield made
        made.fabric.close()


def meanwhile(b: Bench, method: str, path: str, happens: Callable[[], Any]) -> None:
    """Let something happen once, right before such a request is served."""
    real, left = b.server.faults.strike, [happens]

    def strike(asked: str, at: str) -> Fault | None:
        if (asked, at) == (method, path) and left:
            left.pop()()
        return real(asked, at)

    b.server.faults.strike = strike  # type: ignore[method-assign]


def foreign(b: Bench, name: str = "theirs", blocks: tuple[str, ...] = ("host2", "gpu3")) -> Made:
    """A system that somebody else has composed."""
    return b.dialect.machine.compose(name, "", blocks)

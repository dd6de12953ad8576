"""An emulated chassis with the adapter that is opened for it, and what the tests of both ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.fabrics import open_fabric
from campaign.fabrics.hardware import HostSpec
from campaign.fabrics.protocol import Request, Selection
from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.server import Asked, Reply, Server
from campaign.testbed.emulators import open_dialect
from tests.contract.fabric_fixtures import CREDENTIALS, configuration

ZONES = "/redfish/v1/Fabrics/PCIe/Zones"
ENDPOINTS = "/redfish/v1/Fabrics/PCIe/Endpoints"
FOUR = ("host1", "host2", "host3", "host4")


@dataclass
class Chassis:
    """An emulated chassis, and the adapter that is opened for it."""

    server: Server
    directory: Path
    hosts: tuple[str, ...]

    @property
    def rack(self) -> Rack:
        return self.server.dialect.rack

    def open(self, state: str = "state", known: tuple[str, ...] = (), **options: Any) -> Any:
        """known: the hosts that the system file names; default: all."""
        where = {"url": self.server.url, "credentials": CREDENTIALS, "poll_s": 0.01}
        if self.server.ca_file is not None:
            where["ca_file"] = str(self.server.ca_file)
        specs = [HostSpec(name, 8, 32.0) for name in known or self.hosts]
        return open_fabric("redfish-zones", {**where, **options}, specs, [], self.directory / state)

    def zone(self, number: int) -> dict[str, Any]:
        reply = self.server.dialect.resources.find(f"{ZONES}/{number}")  # type: ignore[attr-defined]
        assert isinstance(reply, dict)
        return reply

    def listed(self, number: int) -> list[str]:
        return [end["@odata.id"].rpartition("/")[2] for end in self.zone(number)["Links"]["Endpoints"]]

    def describe(self, port: str, text: str) -> None:
        """Let somebody else write the description of a port's zone."""
        self.server.dialect.switching.ports[port].description = text  # type: ignore[attr-defined]

    def sent(self) -> list[Any]:
        return [asked.body for asked in self.server.changing() if asked.method == "PATCH"]

    def before(self, method: str, action: Callable[[], None]) -> None:
        """Let somebody else do something right before the next request of a zone by this method."""
        answer, left = self.server.dialect.answer, [action]

        def interfered(asked: Asked) -> Reply:
            if asked.method == method and asked.path.startswith(f"{ZONES}/") and left:
                left.pop()()
            return answer(asked)

        self.server.dialect.answer = interfered  # type: ignore[method-assign]


Build = Callable[..., Chassis]


def chassis_in(tmp_path: Path) -> Iterator[Build]:
    """What the fixtures `build` give; every server is closed at the end."""
    servers: list[Server] = []

    def make(
        hosts: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ("host1", "host2"),
        devices: tuple[tuple[str, str, int], ...] = (("gpu", "a100", 4),),
        *,
        drawers: int = 2,
        tls: bool = False,
        **options: Any,
    ) -> Chassis:
        dialect = open_dialect("redfish-zones", rack(hosts, devices, drawers=drawers), **options)
        server = Server(dialect, tmp_path / f"tls{len(servers)}", tls=tls)
        servers.append(server)
        return Chassis(server, tmp_path, tuple(hosts))

    yield make
    for server in servers:
        server.close()


def request(
    lease_id: str = "one", devices: int = 2, hosts: int = 1, allowed: tuple[str, ...] = (), **changes: Any
) -> Request:
    return Request(lease_id, "demo", "tester", configuration(hosts=hosts, devices_per_host=devices, **changes), allowed)


def composed(fabric: Any, *args: Any, **named: Any) -> Selection:
    selection: Selection = fabric.select(request(*args, **named), fabric.inventory())
    fabric.compose(selection)
    return selection


def names(composition: Any) -> list[str]:
    return [device.fabric_id for device in composition.devices]

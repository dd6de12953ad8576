"""Number of requests to a control plane per lease."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from campaign.emulators.catalog import build_connection_options, open_emulator
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.protocol import LeaseRequest
from campaign.lease.lifecycle import acquire_lease, release_lease
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.contract.fabric_fixtures import options_of

DEVICES = 8
INVENTORIES = 4
"""Inventories per lease: before and after composing, before and after releasing. The adapter needs each to verify its state."""


@dataclass(frozen=True)
class MinimumRequests:
    """Requests that an interface needs to attach 8 GPUs to a host and to detach them.

    Attributes:
        inventory: requests of one inventory
        changes: requests that change the hardware
        further: other requests
    """

    inventory: int
    changes: int
    further: int

    @property
    def total(self) -> int:
        return INVENTORIES * self.inventory + self.changes + self.further


MINIMUM: Mapping[str, MinimumRequests] = {
    # Blocks and systems; POST and DELETE.
    "redfish": MinimumRequests(2, 2, 0),
    # Machine, predevice and device/info of two types; marks, pool and machine edits per device, as in Liqid's own SDK.
    "liqid": MinimumRequests(4, 4 * (DEVICES + 1) + 7 + (DEVICES + 1), 13),
}


@contextmanager
def open_emulated_fabric(
    kind: str, directory: Path, gpus: int
) -> Iterator[tuple[ControlledFabric, ControlPlaneServer]]:
    """Yield the adapter of an emulated control plane with a pool of `gpus` devices, and the emulator's server."""
    hosts = ("host1", "host2")
    hardware = build_rack(hosts, [("gpu", "a100", gpus)], drawers=2)
    with ControlPlaneServer(open_emulator(kind, hardware), directory / "tls") as server:
        options = {**options_of(kind), **build_connection_options(kind, server)}
        del options["agent"]
        specs = tuple(HostSpec(name=name, cores=8, memory_gib=32.0) for name in hosts)
        fabric = open_fabric(kind, options, specs, (PoolSpec(kind="gpu", model="a100", count=gpus),), directory)
        assert isinstance(fabric, ControlledFabric)
        try:
            yield fabric, server
        finally:
            fabric.close()


def count_requests(kind: str, directory: Path) -> int:
    """Count the requests of one lease: a host with 8 GPUs is composed, verified and released, after the login."""
    with open_emulated_fabric(kind, directory, DEVICES) as (fabric, server):
        fabric.read_inventory()
        before = len(server.log)
        configuration = Configuration("c", 1, DEVICES, 0, DEVICES, "a100", "fabric", "local")
        request = LeaseRequest("bench", "bench", "bench", configuration)
        lease = acquire_lease(fabric, request, directory / "leases", wait_s=0, poll_s=0)
        time.sleep(1.1)  # The adapter keeps an inventory for a second.
        assert release_lease(fabric, lease, poll_s=0)["state"] == "RELEASED"
        return len(server.log) - before


@pytest.mark.parametrize("kind", MINIMUM)
def test_a_lease_takes_at_most_three_requests_more_than_its_interface_needs(kind: str, tmp_path: Path) -> None:
    assert 0 <= count_requests(kind, tmp_path) - MINIMUM[kind].total <= 3

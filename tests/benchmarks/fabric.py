"""What composing costs beyond the fabric's own time: requests, time of ours, and looking at a large pool."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from campaign.emulators.catalog import build_connection_options, open_emulator
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.http.connection import HttpConnection
from campaign.fabrics.protocol import LeaseRequest
from campaign.lease.lifecycle import acquire_lease, release_lease
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.contract.fabric_fixtures import options_of

DEVICES = 8
LOOKS = 4
"""Before and after composing, before and after releasing: with fewer, a lie is believed or a stranger's device taken."""


@dataclass(frozen=True)
class Least:
    """Requests that the interface itself asks for when one host gets 8 GPUs and gives them back."""

    look: int
    changes: int
    further: int
    why: str

    @property
    def requests(self) -> int:
        return LOOKS * self.look + self.changes + self.further


LEAST: Mapping[str, Least] = {
    "redfish": Least(2, 2, 0, "blocks, systems; POST, DELETE"),
    "liqid": Least(
        4,
        4 * (DEVICES + 1) + 7 + (DEVICES + 1),
        13,
        "machine, predevice, device/info of two types; marks, pool and machine edits a device, as Liqid's own SDK",
    ),
}


@dataclass(frozen=True)
class Composed:
    requests: int
    total_s: float
    asked_s: float


@contextmanager
def emulated(kind: str, directory: Path, gpus: int) -> Iterator[tuple[ControlledFabric, ControlPlaneServer]]:
    """A pool of `gpus` devices behind an emulated control plane over TLS, and its adapter."""
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


@contextmanager
def asking() -> Iterator[list[float]]:
    """Seconds of each request that is sent within."""
    spent: list[float] = []
    exchange = HttpConnection.send_request

    def timed(*args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return exchange(*args, **named)
        finally:
            spent.append(time.perf_counter() - started)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpConnection, "send_request", timed)
        yield spent


def composed(kind: str, directory: Path) -> Composed:
    """One host with 8 GPUs: composed, verified, released; signed in before, and long enough apart for nothing to be remembered."""
    with emulated(kind, directory, DEVICES) as (fabric, server):
        fabric.read_inventory()
        before = len(server.log)
        configuration = Configuration("c", 1, DEVICES, 0, DEVICES, "a100", "fabric", "local")
        request = LeaseRequest("bench", "bench", "bench", configuration)
        with asking() as asked_s:
            started = time.perf_counter()
            lease = acquire_lease(fabric, request, directory / "leases", wait_s=0, poll_s=0)
            total_s = time.perf_counter() - started
            time.sleep(1.1)
            started = time.perf_counter()
            document = release_lease(fabric, lease, poll_s=0)
            total_s += time.perf_counter() - started
        assert document["state"] == "RELEASED"
        return Composed(len(server.log) - before, total_s, sum(asked_s))


def inventory_s(kind: str, directory: Path, gpus: int) -> float:
    """Looking at a pool, signing in included."""
    with emulated(kind, directory, gpus) as (fabric, _):
        started = time.perf_counter()
        assert len(fabric.read_inventory().devices) == gpus
        return time.perf_counter() - started


def fabric(project: Project) -> Iterable[Figure]:
    """Composing one host with 8 GPUs, looking at 2,000 devices, 10,000 random operations; emulated control planes over TLS."""
    for kind, least in LEAST.items():
        best = [composed(kind, project.directory / f"{kind}-{n}") for n in range(3)]
        beyond = best[0].requests - least.requests
        name = f"{kind}, 8-GPU host composed, verified, released"
        yield Figure(f"{name}: requests beyond the least", beyond, "", 3, least.requests, least.why)
        ours_s = min(each.total_s - each.asked_s for each in best)
        asked_s = min(each.asked_s for each in best)
        yield Figure(f"{name}: time of ours", ours_s * 1e3, "ms", 50, asked_s * 1e3, "the requests themselves")
        took = min(inventory_s(kind, project.directory / f"{kind}-large-{n}", 2_000) for n in range(2))
        yield Figure(f"{kind}, inventory of 2,000 devices", took, "s", 2)
    # Here, because importing them registers test cases.
    from tests.unit.fabrics.test_controlled_invariants import Site
    from tests.unit.fabrics.test_h3_habits import Operations

    yield operations("random operations", Site, 400, 25)
    yield operations("random operations on emulated Falcon boxes", Operations, 400, 25)


def operations(name: str, machine: type[RuleBasedStateMachine], sequences: int, steps: int) -> Figure:
    """Random sequences of compose, release, faults, kills and other people's changes; a violation raises."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=sequences, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    return Figure(f"{sequences * steps:,} {name}: violations", 0, "", 0)

"""Which devices a run uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from campaign.spec.cell import Configuration
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.workloads.protocol import Run
from tests.campaign_files import one_cell


def host(name: str, *devices: str) -> ComposedHost:
    found = [Device(d, "gpu", "a100", None, d, local=d.startswith("own")) for d in devices]
    return ComposedHost(name, 8, 32.0, tuple(found))


def devices(configuration: Configuration, *hosts: ComposedHost) -> tuple[str, ...]:
    run = Run(replace(one_cell(), configuration=configuration), 1, Composition(hosts), Path(), "cpu")
    return tuple(device.fabric_id for device in run.devices)


def test_part_of_a_hybrid_host_is_its_own_devices_first() -> None:
    three_of_four = Configuration("c", 2, 4, 2, 3, "a100", "hybrid", "local")
    hosts = host("host1", "slot1", "own1", "slot2", "own2"), host("host2", "own3", "own4", "slot3", "slot4")
    assert devices(three_of_four, *hosts) == ("own1", "own2", "slot1", "own3", "own4", "slot3")

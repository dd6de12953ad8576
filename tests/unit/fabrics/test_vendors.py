"""What the adapters of vendors promise alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.server import WireFault
from tests.unit.fabrics.bench import opened, tried
from tests.unit.fabrics.redfish_bench import SYSTEMS, RedfishBench, bench

CHANGES = {
    "cdi": {"compose": ("PATCH", "*"), "release": ("DELETE", "*")},
    "nec": {"compose": ("POST", "*"), "release": ("POST", "*")},
    "redfish": {"compose": ("POST", SYSTEMS), "release": ("DELETE", f"{SYSTEMS}/*")},
    "sunfish": {"compose": ("POST", "*/Connections*"), "release": ("DELETE", "*/Connections*")},
}
"""Method and path of what attaches and detaches, by kind."""


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "status", "lie", "garbage", "html"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("moment", ["compose", "release"])
@pytest.mark.parametrize("kind", CHANGES)
def test_no_fault_on_the_wire_leaves_a_device_behind(
    kind: str, moment: str, after: int, fault: Any, tmp_path: Path
) -> None:
    plane = bench(tmp_path) if kind == "redfish" else opened(kind, tmp_path, **({"looks": 1} if kind == "nec" else {}))
    with plane as b:
        selection = b.selection()
        if moment == "release":
            b.fabric.compose(selection)
        b.server.faults.add(WireFault(fault, *CHANGES[kind][moment], after=after, body="{}" if fault == "lie" else ""))
        composed = moment == "release" or tried(lambda: b.fabric.compose(selection))
        if kind == "nec":  # an apply attaches what is not known before it has ended
            assert b.ids() <= set(b.attached())
        else:
            assert len(b.ids()) == len(b.attached())
        assert b.ids() <= set(selection.ids)
        if composed and fault != "lie":
            assert len(b.attached()) == 2
        assert b.gave_back(tries=4)
        assert not isinstance(b, RedfishBench) or b.emulator.machine.systems == {}


LOOKS = {"cdi": 8 + 8 + 4 * (1 + 3), "nec": 2 * 2 + 6 * 2}
"""Requests for a host of eight. CDI: one a device, and around each change the machines, and how many are left of each of three
models. NEC: twice an apply and its status, and six looks, each of two lists."""


@pytest.mark.parametrize("kind", LOOKS)
def test_a_host_of_eight_costs_no_request_more_than_the_interface_needs(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path, gpus=8) as b:
        selection = b.selection(devices=8)
        before = len(b.server.log)
        b.fabric.compose(selection)
        b.fabric.read_back("one")
        b.fabric.release("one")
        assert len(b.server.log) - before <= LOOKS[kind]

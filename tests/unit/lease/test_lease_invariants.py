"""What holds for leases whatever happens: one device is in one lease, nothing is lost, and death at any moment is mended."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from campaign.common import files
from campaign.common.errors import FabricError
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.fabrics.simulated import FaultKind, SimulatedFabric, SimulatedOptions
from campaign.lease.journal import Journal, is_owned
from campaign.lease.lifecycle import HeldLease, acquire_lease, mark_in_use, release_lease
from campaign.lease.reconcile import reconcile_leases
from campaign.spec.site_hardware import DeviceSpec, HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration

HOSTS = [
    HostSpec(name=f"host{number}", cores=4, memory_gib=16.0, devices=(DeviceSpec(kind="gpu", model="a100", count=2),))
    for number in range(1, 5)
]
POOL = [
    PoolSpec(kind="gpu", model="a100", count=5),
    PoolSpec(kind="gpu", model="h100", count=1),
    PoolSpec(kind="nvme", model="ssd", count=2),
]
SHAPES = {
    "local": configuration("local", devices_per_host=2, local_devices_per_host=2, attach="local"),
    "hybrid": configuration("hybrid", devices_per_host=3, local_devices_per_host=1, attach="hybrid"),
    "pair": configuration("pair", hosts=2, devices_per_host=2),
    "drive": configuration("drive", storage="fabric-nvme"),
}


class Killed(BaseException):
    """Stands for SIGKILL: from here on this owner writes nothing, anywhere."""


@contextmanager
def mortal(writes: int) -> Iterator[None]:
    """Let the owner live for that many durable writes (journal lines and fabric states), then fail every further one."""
    left = writes

    def dying(original: Callable[..., None]) -> Callable[..., None]:
        def write(*arguments: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            original(*arguments, **options)

        return write

    with (
        patch("campaign.lease.journal.append_json", dying(files.append_json)),
        patch("campaign.fabrics.state_file.write_atomic", dying(files.write_atomic)),
    ):
        yield


def opened(directory: Path, *faults: dict[str, Any]) -> Fabric:
    return SimulatedFabric(SimulatedOptions.model_validate({"faults": faults}), HOSTS, POOL, directory)


def taken(fabric: Fabric, journals: Path, lease_id: str, shape: str) -> HeldLease:
    request = LeaseRequest(lease_id, "demo", "me", SHAPES[shape])
    return acquire_lease(fabric, request, journals, wait_s=0, poll_s=0, visibility_timeout_s=0)


def reconciled(fabric: Fabric, journals: Path) -> list[str]:
    alive = partial(is_owned, journals)
    return [
        orphan.outcome
        for orphan in reconcile_leases(fabric, journals, is_alive=alive, dry_run=False, wait_s=0, poll_s=0)
    ]


@pytest.mark.parametrize("heir", ["reconcile", "acquire"])
def test_death_before_any_write_of_a_lease_is_mended(heir: str, tmp_path: Path) -> None:
    lives = 0
    while True:
        directory = tmp_path / str(lives)
        fabric, journals = opened(directory), directory / "leases"
        try:
            with mortal(lives):
                lease = taken(fabric, journals, "one", "pair")
                mark_in_use(lease)
                release_lease(fabric, lease, wait_s=0, poll_s=0)
            break
        except Killed:
            # The kernel would have dropped the lock; in this one process the test does it.
            if is_owned(journals, "one"):
                lease.ownership.close()
        if heir == "acquire":
            again = taken(fabric, journals, "one", "pair")
            assert again.mismatches == ()
            assert release_lease(fabric, again, wait_s=0, poll_s=0)["state"] == "RELEASED"
        else:
            assert set(reconciled(fabric, journals)) <= {"released"}
        assert not fabric.list_lease_tags()
        assert {device.holder for device in fabric.read_inventory().devices} == {None}
        assert Journal(journals, "one").state in (None, "RELEASED")
        lives += 1
    assert lives > 20, "every write of a whole lease was a moment to die at"


class Leases(RuleBasedStateMachine):
    """Any order of requests, releases, faults and deaths."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.journals = self.directory / "leases"
        self.fabric = opened(self.directory)
        self.live: dict[str, HeldLease] = {}
        self.total = len(self.fabric.read_inventory().devices)

    def teardown(self) -> None:
        self.fabric = opened(self.directory)
        for lease in self.live.values():
            release_lease(self.fabric, lease, wait_s=0, poll_s=0)
        reconciled(self.fabric, self.journals)
        assert not self.fabric.list_lease_tags()
        assert {device.holder for device in self.fabric.read_inventory().devices} == {None}
        shutil.rmtree(self.directory)

    @rule(kind=st.sampled_from(get_args(FaultKind)), times=st.integers(1, 4), number=st.integers(0, 10**6))
    def something_will_go_wrong(self, kind: FaultKind, times: int, number: int) -> None:
        if kind == "device_fails":
            times = 1  # broken devices stay broken: not the whole pool
        self.fabric = opened(self.directory, {"kind": kind, "times": times, "after_s": number / 10**9})

    @rule(name=st.sampled_from("abcd"), shape=st.sampled_from(sorted(SHAPES)), lives=st.none() | st.integers(0, 30))
    def acquire(self, name: str, shape: str, lives: int | None) -> None:
        try:
            with mortal(10**9 if lives is None else lives):
                lease = taken(self.fabric, self.journals, name, shape)
        except Killed:
            return
        except FabricError:
            assert name in self.live or not is_owned(self.journals, name)
            return
        assert name not in self.live, "nobody gets a lease that has a live owner"
        self.live[name] = lease

    @precondition(lambda self: self.live)
    @rule(data=st.data(), dies=st.booleans())
    def end(self, data: st.DataObject, dies: bool) -> None:
        lease = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        if dies:
            lease.ownership.close()
        else:
            assert release_lease(self.fabric, lease, wait_s=0, poll_s=0)["state"] in ("RELEASED", "LEAKED")

    @rule()
    def reconcile(self) -> None:
        reconciled(self.fabric, self.journals)
        assert set(self.live) <= set(self.fabric.list_lease_tags())

    @invariant()
    def no_device_and_no_host_is_in_two_leases(self) -> None:
        compositions = [lease.composition for lease in self.live.values()]
        for names in (
            [device.fabric_id for composition in compositions for device in composition.devices],
            [host.name for composition in compositions for host in composition.hosts],
            [name for tag in self.fabric.list_lease_tags().values() for name in tag.devices],
        ):
            assert len(names) == len(set(names))

    @invariant()
    def what_is_free_and_what_is_held_are_all_there_is(self) -> None:
        free = [device for device in self.fabric.read_inventory().devices if device.holder is None]
        held = [name for tag in self.fabric.list_lease_tags().values() for name in tag.devices]
        assert len(free) + len(held) == self.total

    @invariant()
    def the_living_hold_what_they_were_given(self) -> None:
        held = self.fabric.list_lease_tags()
        for name, lease in self.live.items():
            assert {device.fabric_id for device in lease.composition.devices} == set(held[name].devices)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)

"""Whatever is composed, released, broken, killed or taken by others, in whatever order: no device has two holders, none is lost."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from campaign.common.errors import FabricError
from campaign.emulators.control_planes.hardware import build_rack
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.protocol import LeaseRequest
from campaign.lease.lifecycle import HeldLease, acquire_lease, release_lease
from campaign.lease.reconcile import reconcile_leases
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.memory_plane import Killed, MemoryPlane, RackAgent

HOSTS = tuple(HostSpec(name=f"host{number}", cores=8, memory_gib=32.0) for number in range(1, 4))
DEVICES = 6
FAULTS = st.lists(
    st.sampled_from(["busy", "partial", "lost_before", "lost_after", "killed_amid", "lie", "stuck"]), max_size=2
)


class Site(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="controlled"))
        self.journals = self.directory / "leases"
        self.plane = self.open_plane()
        self.fabric = self.open()
        self.leases: dict[str, HeldLease] = {}
        self.foreign: dict[str, str] = {}
        self.number = 0

    def open_plane(self) -> MemoryPlane:
        return MemoryPlane(build_rack([host.name for host in HOSTS], [("gpu", "a100", DEVICES)]))

    def open(self) -> ControlledFabric:
        return ControlledFabric(self.plane, HOSTS, self.directory / "state.json", RackAgent(self.plane))

    def teardown(self) -> None:
        self.plane.faults = []
        for name in list(self.leases):
            release_lease(self.fabric, self.leases.pop(name), poll_s=0)
        self.reconcile_all()
        try:
            held = [d.name for d in self.plane.rack.devices.values() if d.attached_to is not None]
            assert sorted(held) == sorted(self.foreign), (held, self.foreign)
            assert not self.fabric.list_lease_tags()
        finally:
            self.plane.close()
            shutil.rmtree(self.directory)

    def reconcile_all(self) -> None:
        reconcile_leases(
            self.fabric,
            self.journals,
            is_alive=lambda name: name in self.leases,
            dry_run=False,
            unjournaled_owners=["tester"],
            wait_s=0,
            poll_s=0,
        )

    def request(self, name: str, wanted: Configuration) -> LeaseRequest:
        return LeaseRequest(name, "demo", "tester", wanted)

    @rule(devices=st.integers(1, 4), hosts=st.integers(1, 2), faults=FAULTS)
    def compose(self, devices: int, hosts: int, faults: list[str]) -> None:
        self.number += 1
        name = f"lease{self.number}"
        request = self.request(name, configuration(hosts=hosts, devices_per_host=devices))
        self.plane.faults = list(faults)
        try:
            lease = acquire_lease(
                self.fabric, request, self.journals, wait_s=0, poll_s=0, visibility_timeout_s=0, max_attempts=2
            )
        except (FabricError, Killed):
            self.fabric = self.open()
            return
        self.leases[name] = lease
        assert len(lease.composition.devices) == devices * hosts
        for host in lease.composition.hosts:
            assert all(self.plane.rack.devices[d.fabric_id].attached_to == host.name for d in host.devices)

    @precondition(lambda self: self.leases)
    @rule(faults=FAULTS, data=st.data())
    def give_back(self, faults: list[str], data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases.pop(name)
        self.plane.faults = list(faults)
        try:
            document = release_lease(self.fabric, lease, wait_s=0, poll_s=0)
        except Killed:
            lease.ownership.close()  # the kernel does this for a dead process
            return
        assert document["state"] in ("RELEASED", "LEAKED")
        if document["state"] == "RELEASED":
            assert name not in self.fabric.list_lease_tags()

    @rule(faults=FAULTS)
    def clean_up(self, faults: list[str]) -> None:
        self.plane.faults = list(faults)
        try:
            self.reconcile_all()
        except Killed:
            self.fabric = self.open()

    @rule()
    def forget_the_state_file(self) -> None:
        """A results directory that was lost: the marks on the fabric are what is left."""
        if not self.leases:
            (self.directory / "state.json").unlink(missing_ok=True)

    @rule(device=st.integers(1, DEVICES), host=st.sampled_from([host.name for host in HOSTS]))
    def others_take(self, device: int, host: str) -> None:
        name = f"gpu{device}"
        if self.plane.rack.devices[name].attached_to is None and name not in self.plane.marks:
            self.plane.rack.attach(name, host)
            self.foreign[name] = host

    @precondition(lambda self: self.foreign)
    @rule(data=st.data())
    def others_give_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.foreign)))
        self.plane.rack.detach(name)
        del self.foreign[name]

    @invariant()
    def no_device_has_two_holders(self) -> None:
        held = [d.fabric_id for lease in self.leases.values() for d in lease.composition.devices]
        assert len(held) == len(set(held))
        assert not set(held) & set(self.foreign)

    @invariant()
    def what_others_attached_stays_where_it_is(self) -> None:
        for name, host in self.foreign.items():
            assert self.plane.rack.devices[name].attached_to == host

    @invariant()
    def every_device_is_somewhere(self) -> None:
        self.plane.faults = []
        devices = self.fabric.read_inventory().devices
        free = [d for d in devices if d.state == "free" and d.holder is None]
        held = [d for d in devices if d.holder is not None]
        assert len(free) + len(held) == DEVICES


Site.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestSite = Site.TestCase

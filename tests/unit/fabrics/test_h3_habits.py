"""The adapter of Falcon boxes against their habits, faults on the wire, and all answers to what nobody has published."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from campaign.common.errors import FabricError
from campaign.emulators.catalog import build_connection_options
from campaign.emulators.control_planes.h3 import EmulatedBoxes, open_emulator
from campaign.emulators.control_planes.h3.box import ALLOCATION_PATH, RESOURCES_PATH
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply, WireFault
from campaign.fabrics import open_fabric
from campaign.fabrics.http import client as http_client
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.protocol import LeaseRequest
from campaign.lease.lifecycle import HeldLease, acquire_lease, release_lease
from campaign.lease.reconcile import reconcile_leases
from campaign.spec.hardware import Composition
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import obtained
from tests.unit.fabrics.memory_plane import Killed

HOSTS = tuple(HostSpec(name=f"host{number}", cores=8, memory_gib=32.0) for number in range(1, 4))
DEVICES = 6
WRITES = ("POST", "DELETE")


class Falcon:
    """Two emulated boxes of three devices each, and an adapter for them."""

    def __init__(self, directory: Path, **options: Any) -> None:
        emulator = open_emulator(build_rack([host.name for host in HOSTS], [("gpu", "a100", DEVICES)]), **options)
        assert isinstance(emulator, EmulatedBoxes)
        self.emulator, self.directory = emulator, directory
        self.server = ControlPlaneServer(emulator)
        self.fabric = self.open()

    def open(self, **options: Any) -> Any:
        pool = tuple(
            PoolSpec(kind="gpu", model="a100", count=DEVICES // 2, drawer=drawer) for drawer in self.emulator.boxes
        )
        quick = {"poll_s": 0, "request_s": 10.0, "operation_s": 30.0}
        return open_fabric(
            "h3",
            {**build_connection_options("h3", self.server), **quick, **options},
            HOSTS,
            pool,
            self.directory / "state",
        )

    def close(self) -> None:
        self.fabric.close()
        self.server.close()

    def attached(self) -> dict[str, str]:
        """Host by UUID, as it is."""
        devices = self.emulator.rack.devices.values()
        return {f"GPU-{device.uuid}": device.attached_to for device in devices if device.attached_to}

    def has(self, composition: Composition) -> bool:
        attached = self.attached()
        return all(attached.get(str(d.host_id)) == host.name for host in composition.hosts for d in host.devices)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "RETRY_DELAYS_S", (0.0, 0.0, 0.0, 0.0))


@pytest.fixture
def falcon(tmp_path: Path) -> Iterator[Callable[..., Falcon]]:
    opened: list[Falcon] = []

    def make(**options: Any) -> Falcon:
        opened.append(Falcon(tmp_path / str(len(opened)), **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def request(name: str = "one", devices: int = 2, hosts: int = 1) -> LeaseRequest:
    return LeaseRequest(name, "demo", "tester", configuration(hosts=hosts, devices_per_host=devices))


# -- faults on the wire --------------------------------------------------------------------------------------------------

FAULTS = [
    WireFault("drop_before"),
    WireFault("drop_after"),
    WireFault("status", status=500),
    WireFault("status", status=503),
    WireFault("status_after", status=500, body="500"),
    WireFault("lie", body='{"action": "assign", "result": [ true ], "remark": "done"}'),
    WireFault("lie", body='{"action": "assign", "result": [ false ], "remark": "done"}'),
    WireFault("lie", status=204),
    WireFault("garbage"),
    WireFault("html"),
    WireFault("stale"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.status}")
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_no_fault_makes_a_lease_that_is_not_there_or_leaves_one_behind(
    falcon: Callable[..., Falcon], fault: WireFault, method: str
) -> None:
    site = falcon()
    fabric = site.fabric
    selection = fabric.select_devices(request(), fabric.read_inventory())
    if method == "DELETE":
        fabric.compose(selection)
    where = ("GET", RESOURCES_PATH) if fault.kind == "stale" else (method, ALLOCATION_PATH)
    site.server.faults.add_fault(WireFault(fault.kind, *where, 1, 0, fault.status, fault.body))
    try:
        fabric.compose(selection) if method == "POST" else fabric.release("one")
    except FabricError:
        assert list(fabric.list_lease_tags()) in (["one"], [])
    composition = fabric.read_back("one")
    assert composition is None or site.has(composition)
    site.server.faults.clear_faults()
    assert fabric.release("one") == ()
    assert site.attached() == {}
    assert not fabric.list_lease_tags()
    assert site.emulator.violations == []


# -- what nobody has published -------------------------------------------------------------------------------------------

SWITCHES: list[dict[str, Any]] = [
    *({"free_port": shown} for shown in ("empty", "no_key", "dash")),
    *({"free_port": shown, "attached": "all"} for shown in ("empty", "no_key", "no_record", "dash")),
    *({"answers": answer} for answer in ("recorded", "true", "false")),
    {"strange": True},
    {"status": 201},
    {"status": 500},
    {"renumber_after": 3},
    {"disturbed": "always"},
    {"disturbed": "always", "rate": 5.0},
]


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: "-".join(map(str, switch.values())))
def test_a_lease_is_composed_and_released_whatever_a_box_does(
    falcon: Callable[..., Falcon], switch: dict[str, Any]
) -> None:
    site = falcon(**switch)
    before = site.attached()
    for number in range(2):
        lease = acquire_lease(
            site.fabric, request(f"l{number}", 2, 2), site.directory / "leases", wait_s=0, poll_s=0, max_attempts=3
        )
        assert site.has(lease.composition)
        assert len(lease.composition.devices) == 4
        assert release_lease(site.fabric, lease, poll_s=0)["state"] == "RELEASED"
    assert set(site.attached()) <= set(before)
    assert site.emulator.violations == []


@pytest.mark.parametrize("refusal", ["false", "true", "empty", "status", "text"])
def test_what_a_box_does_not_do_is_no_lease_whatever_it_answers(falcon: Callable[..., Falcon], refusal: str) -> None:
    site = falcon(devices_max=1, refusal=refusal)
    selection = site.fabric.select_devices(request("one", 3), site.fabric.read_inventory())
    with pytest.raises(FabricError):
        site.fabric.compose(selection)
    composition = obtained(site.fabric)
    assert len(composition.devices) == len(site.attached()) < 3
    assert site.fabric.release("one") == ()
    assert (site.attached(), site.emulator.violations) == ({}, [])


def test_what_a_box_lists_and_the_host_does_not_see_is_no_lease(falcon: Callable[..., Falcon]) -> None:
    site = falcon()
    for device in site.emulator.rack.devices.values():
        device.quirks.add("never_visible")
    with pytest.raises(FabricError, match="not visible to the host"):
        acquire_lease(
            site.fabric,
            request(),
            site.directory / "leases",
            wait_s=0,
            poll_s=0,
            visibility_timeout_s=0,
            max_attempts=1,
        )
    assert site.attached() == {}


def test_a_device_that_is_not_listed_is_not_looked_for_under_a_number_that_may_be_anothers(
    falcon: Callable[..., Falcon],
) -> None:
    site = falcon(renumber_after=3, free_port="no_record", attached="all")
    before = site.attached()
    with pytest.raises(FabricError, match="H3's own tools"):
        site.fabric.compose(site.fabric.select_devices(request("one", 2, 2), site.fabric.read_inventory()))
    moved = {uuid for uuid, host in site.attached().items() if before[uuid] != host}
    composition = site.fabric.read_back("one")
    assert moved <= {str(d.host_id) for d in composition.devices} if composition else not moved
    assert site.emulator.violations == []


@pytest.mark.parametrize("missing", ["dev_type", "Dev_GID"])
def test_a_device_that_may_be_in_an_unreadable_record_is_not_released(
    missing: str, falcon: Callable[..., Falcon], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = falcon()
    site.fabric.compose(site.fabric.select_devices(request(), site.fabric.read_inventory()))
    attached, real = site.attached(), site.emulator.answer

    def answer(asked: HttpRequest) -> Reply | None:
        told = real(asked)
        if told is None or not asked.path.endswith("/resources"):
            return told
        records = json.loads(told.body) if isinstance(told.body, str) else told.body
        return replace(told, body=json.dumps(_without(records, missing)))

    with monkeypatch.context() as lying:
        lying.setattr(site.emulator, "answer", answer)
        with pytest.raises(FabricError, match=r"in an unknown format; .* of one may be one of them"):
            site.open().release("one")
    assert site.attached() == attached
    assert site.open().release("one") == ()
    assert site.attached() == {}


def _without(records: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != key} for record in records]


def test_a_box_that_demands_a_login_is_told_of_in_words(falcon: Callable[..., Falcon]) -> None:
    site = falcon()
    site.server.faults.add_fault(WireFault("status", "GET", RESOURCES_PATH, -1, status=401, body="Unauthorized\n"))
    with pytest.raises(FabricError, match="requires a login"):
        site.fabric.read_inventory()
    assert site.emulator.violations == []


def test_a_power_cycle_that_frees_all_devices_is_noticed(falcon: Callable[..., Falcon]) -> None:
    site = falcon()
    site.fabric.compose(site.fabric.select_devices(request(), site.fabric.read_inventory()))
    assert site.fabric.read_back("one") is not None  # may be what composing has just read
    for device in site.emulator.rack.devices:
        site.emulator.rack.detach(device)
    composition = site.fabric.read_back("one")
    assert composition is None or not composition.devices
    assert site.fabric.release("one") == ()
    assert not site.fabric.list_lease_tags()


# -- at random -----------------------------------------------------------------------------------------------------------

WIRE = st.lists(
    st.sampled_from(["drop_before", "drop_after", "status", "status_after", "garbage", "html", "lie", "killed"]),
    max_size=2,
)


class Operations(RuleBasedStateMachine):
    """Two boxes with all their habits: whatever is composed, released, broken, killed or taken by others, in whatever order."""

    @initialize(
        seed=st.integers(0, 2**16),
        free_port=st.sampled_from(["empty", "no_key", "dash"]),
        renumber_after=st.sampled_from([0, 0, 5]),
        strange=st.booleans(),
        disturbed=st.sampled_from(["overlap", "always"]),
        attached=st.sampled_from(["none", "all"]),
    )
    def switch_on(self, attached: str, **options: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="falcon"))
        if attached == "all":  # what is found may be moved, and what is detached is not listed
            options |= {"free_port": "no_record", "renumber_after": 0}
        self.site = Falcon(self.directory, refusal="true", attached=attached, **options)
        self.found = {name: one.attached_to for name, one in self.site.emulator.rack.devices.items() if one.attached_to}
        self.journals = self.directory / "leases"
        self.leases: dict[str, HeldLease] = {}
        self.foreign: dict[str, str] = {}
        self.number = 0
        self.deadly: list[int] = []

    def armed(self, faults: list[str]) -> None:
        """One fault for one of the next requests that change something, after as many others as its place in the list."""
        self.site.server.faults.clear_faults()
        for place, kind in enumerate(faults):
            if kind == "killed":
                self.deadly = [place + 1]
            else:
                method = WRITES[(place + self.number) % 2]
                self.site.server.faults.add_fault(WireFault(kind, method, ALLOCATION_PATH, 1, place, 500, ""))  # type: ignore[arg-type]

    def honest(self) -> None:
        self.site.server.faults.clear_faults()
        self.deadly.clear()

    def restarted(self) -> None:
        self.site.fabric.close()
        self.site.fabric = self.site.open()

    def mortal(self, act: Callable[[], Any]) -> Any:
        """Do it in a process that may die before or after one of its changing requests."""
        change = HttpClient.send_change
        left = self.deadly

        def deadly(client: HttpClient, *args: Any, **named: Any) -> Any:
            answer = change(client, *args, **named)
            if left and args[1] == ALLOCATION_PATH:
                left[0] -= 1
                if left[0] == 0:
                    left.clear()
                    raise Killed
            return answer

        HttpClient.send_change = deadly  # type: ignore[method-assign]
        try:
            return act()
        finally:
            HttpClient.send_change = change  # type: ignore[method-assign]

    @rule(devices=st.integers(1, 3), hosts=st.integers(1, 2), faults=WIRE)
    def compose(self, devices: int, hosts: int, faults: list[str]) -> None:
        self.number += 1
        name = f"lease{self.number}"
        self.armed(faults)
        try:
            lease = self.mortal(
                lambda: acquire_lease(
                    self.site.fabric,
                    request(name, devices, hosts),
                    self.journals,
                    wait_s=0,
                    poll_s=0,
                    visibility_timeout_s=0,
                    max_attempts=2,
                )
            )
        except (FabricError, Killed):
            self.honest()
            self.restarted()
            return
        self.honest()
        self.leases[name] = lease
        assert len(lease.composition.devices) == devices * hosts
        assert self.site.has(lease.composition)

    @precondition(lambda self: self.leases)
    @rule(faults=WIRE, data=st.data())
    def give_back(self, faults: list[str], data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases.pop(name)
        self.armed(faults)
        try:
            document = self.mortal(lambda: release_lease(self.site.fabric, lease, wait_s=0, poll_s=0))
        except Killed:
            lease.ownership.close()  # the kernel does this for a dead process
            self.restarted()
            return
        finally:
            self.honest()
        assert document["state"] in ("RELEASED", "LEAKED")

    @rule()
    def clean_up(self) -> None:
        with suppress(FabricError):
            reconcile_leases(
                self.site.fabric, self.journals, is_alive=lambda name: name in self.leases, dry_run=False,
                unjournaled_owners=["tester", "unknown"],
                wait_s=0, poll_s=0,
            )  # fmt: skip

    @rule(device=st.integers(1, DEVICES), host=st.sampled_from([host.name for host in HOSTS]))
    def others_take(self, device: int, host: str) -> None:
        """Somebody else attaches what nobody has, and nobody has claimed."""
        found = self.site.emulator.rack.devices[f"gpu{device}"]
        claimed = {
            name.rpartition("/")[2] for tag in self.site.fabric.list_lease_tags().values() for name in tag.devices
        }
        if not self.found and found.attached_to is None and f"GPU-{found.uuid}" not in claimed:
            self.site.emulator.rack.attach(found.name, host)
            self.foreign[found.name] = host

    @precondition(lambda self: self.foreign)
    @rule(data=st.data())
    def others_give_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.foreign)))
        self.site.emulator.rack.detach(name)
        del self.foreign[name]

    @invariant()
    def nothing_was_sent_that_no_client_ever_sent(self) -> None:
        assert self.site.emulator.violations == []

    @invariant()
    def no_device_has_two_holders(self) -> None:
        held = [d.fabric_id for lease in self.leases.values() for d in lease.composition.devices]
        assert len(held) == len(set(held))
        assert all(self.site.has(lease.composition) for lease in self.leases.values())

    @invariant()
    def what_others_attached_stays_where_it_is(self) -> None:
        for name, host in self.foreign.items():
            assert self.site.emulator.rack.devices[name].attached_to == host

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        try:
            for lease in self.leases.values():
                for _ in range(3):
                    with suppress(FabricError):
                        release_lease(self.site.fabric, lease, poll_s=0)
            self.leases.clear()
            for _ in range(3):
                self.clean_up()
                with suppress(FabricError):
                    self.site.fabric.return_displaced_devices()  # what was found on a host goes back to it
            held = {
                n: one.attached_to for n, one in self.site.emulator.rack.devices.items() if one.attached_to is not None
            }
            assert held == (self.found or self.foreign)
            assert not self.site.fabric.list_lease_tags()
            assert self.site.emulator.violations == []
        finally:
            self.site.close()
            shutil.rmtree(self.directory)


Operations.TestCase.settings = settings(
    max_examples=8, stateful_step_count=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestOperations = Operations.TestCase

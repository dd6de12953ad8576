"""The adapter of Liqid Matrix against an emulated one: exact requests, whose things are touched, and what faults leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from campaign.common.errors import ConfigError, FabricError
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.liqid import LiqidEmulator, open_emulator
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, WireFault
from campaign.fabrics import open_fabric
from campaign.fabrics.adapters.liqid.snapshot import make_machine_name
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure
from campaign.fabrics.protocol import LeaseRequest, Selection, Tag
from campaign.spec.site_hardware import HostSpec
from tests.contract.fabric_fixtures import CREDENTIALS, configuration
from tests.unit.fabrics import liqid_sdk
from tests.unit.fabrics.bench import obtained

BASE = "/liqid/api/v2/"
LEASE = "demo.c.1"
NAME = make_machine_name(LEASE, "host1")
TAG = Tag(LEASE, "demo", "tester", 1700000000.0, ())


@dataclass
class Site:
    """An emulated Matrix, and what it takes to open a fabric on it as often as needed."""

    server: ControlPlaneServer
    emulator: LiqidEmulator
    state_dir: Path

    def open(self, *, agent: bool = False, state: str = "state", **options: Any) -> ControlledFabric:
        given: dict[str, Any] = {
            "url": self.server.url,
            "credentials": CREDENTIALS,
            "poll_s": 0.01,
        }
        if agent:
            given["agent"] = {"kind": "http", "url": self.server.url + "/_hosts/{host}/devices"}
        hosts = tuple(HostSpec(name=name, cores=8, memory_gib=32.0) for name in self.emulator.rack.hosts)
        fabric = open_fabric("liqid", given | options, hosts, (), self.state_dir / state)
        assert isinstance(fabric, ControlledFabric)
        return fabric

    def changes(self) -> list[HttpRequest]:
        """Requests that changed something, logging in left out."""
        return [asked for asked in self.server.list_changes() if "/digest/" not in asked.path]

    def clean(self) -> bool:
        """Nothing of anybody's is anywhere."""
        matrix = self.emulator.matrix
        devices = matrix.devices.values()
        return (
            matrix.is_idle
            and not matrix.machines
            and not self.emulator.violations
            and len(self.emulator.rack.list_free_devices()) == len(self.emulator.rack.devices)
            and all((device.group, device.machine, device.description) == (None, None, "") for device in devices)
        )

    def composed(self, **options: Any) -> ControlledFabric:
        """A fabric with a lease of one host and two devices."""
        fabric = self.open(**options)
        fabric.compose(selected(fabric))
        return fabric

    def selecting(self, **changes: Any) -> tuple[ControlledFabric, Selection]:
        fabric = self.open()
        return fabric, selected(fabric, **changes)

    def given_back(self, fabric: ControlledFabric) -> bool:
        return fabric.release(LEASE) == () and self.clean()


@pytest.fixture(scope="module")
def server() -> Iterator[ControlPlaneServer]:
    """One for all tests: to end one takes longer than most of them."""
    with ControlPlaneServer(open_emulator(build_rack(["host1"], [])), tls=False) as server:
        yield server


@pytest.fixture
def serve(server: ControlPlaneServer, tmp_path: Path) -> Callable[..., Site]:
    """Put a new Matrix behind the server, instead of the last one."""

    def served(gpus: int = 4, drives: int = 0, hosts: int = 2, **behaviour: Any) -> Site:
        devices = [("gpu", "a100", gpus)] + ([("nvme", "ssd", drives)] if drives else [])
        emulator = open_emulator(build_rack([f"host{n}" for n in range(1, hosts + 1)], devices), **behaviour)
        server.emulator = emulator
        server.faults.clear_faults()
        server.log.clear()
        return Site(server, emulator, tmp_path)

    return served


@pytest.fixture
def site(serve: Callable[..., Site]) -> Site:
    return serve()


def selected(fabric: ControlledFabric, lease_id: str = LEASE, **changes: Any) -> Selection:
    request = LeaseRequest(lease_id, "demo", "tester", configuration(**{"devices_per_host": 2} | changes))
    return fabric.select_devices(request, fabric.read_inventory())


def told(asked: HttpRequest) -> str:
    """A request in one line: its method, its address, and what matters of its body."""
    query = "?" + "&".join(f"{name}={value}" for name, value in asked.query.items()) if asked.query else ""
    parts = [asked.method, asked.path.removeprefix(BASE) + query]
    body = asked.body
    if isinstance(body, dict):
        relator = body.get("groupDeviceRelator", body)
        if "deviceStatus" in relator:
            parts.append(f"{relator['deviceStatus']['name']} group={relator['group']['grp_id']}")
        if "machine" in body:
            parts.append(f"machine={body['machine']['mach_id']}")
        parts += [f"{name}={body[name]}" for name in ("coordinates", "fabr_id", "grp_id", "mach_id") if name in body]
        if "mach_name" in body:
            parts.append("named" if body["mach_name"] == NAME else body["mach_name"])
        if "udesc" in body:
            tag = lease_tag.decode_tag(body["udesc"])
            parts.append(f"tag {tag.lease_id if tag else body['udesc']}")
    return " ".join(parts)


# -- the wire -----------------------------------------------------------------------------------------------------------------

POOL = "coordinates={'rack': 0, 'shelf': 0, 'node': 0} fabr_id=1 grp_id=1"
VIEW = ["GET machine", "GET predevice", "GET device/info/cpu", "GET device/info/gpu"]
FIRST_VIEW = [*VIEW[:2], "GET group", *VIEW[2:]]
COMPOSE = [
    *VIEW,
    f"PUT device/udesc/comp/0x00000001 tag {LEASE}",
    f"PUT device/udesc/gpu/0x00001001 tag {LEASE}",
    f"PUT device/udesc/gpu/0x00001002 tag {LEASE}",
    "GET machine/nextid",
    "GET coordinates",
    "GET fabric/id",
    "POST machine fabr_id=1 grp_id=1 mach_id=1 named",
    f"POST pool/edit {POOL}",
    "GET status/compute?filter=false",
    "GET status/gpu?filter=false",
    "POST predevice/compute host1 group=1",
    "POST predevice/gpu gpu1 group=1",
    "POST predevice/gpu gpu2 group=1",
    f"POST pool/done {POOL}",
    "GET machine?mach_id=1",
    "POST fabric/edit fabr_id=1 grp_id=1 mach_id=1 named",
    "POST relate/compute host1 group=1 machine=1",
    "POST relate/gpu gpu1 group=1 machine=1",
    "POST relate/gpu gpu2 group=1 machine=1",
    "POST fabric/reprogram fabr_id=1 grp_id=1 mach_id=1 named",
]
RELEASE = [
    *VIEW,
    "GET machine/details/1",
    "DELETE machine/1",
    f"POST pool/edit {POOL}",
    "GET status/compute?filter=false",
    "GET status/gpu?filter=false",
    "DELETE predevice/compute host1 group=1",
    "DELETE predevice/gpu gpu1 group=1",
    "DELETE predevice/gpu gpu2 group=1",
    f"POST pool/done {POOL}",
    "GET predevice",
    "DELETE device/udesc/comp/0x00000001",
    "DELETE device/udesc/gpu/0x00001001",
    "DELETE device/udesc/gpu/0x00001002",
    *VIEW,
]


def test_composing_and_releasing_send_exactly_the_requests_of_the_sdk(site: Site) -> None:
    fabric, selection = site.selecting()
    site.server.log.clear()
    fabric.compose(selection)
    assert [told(asked) for asked in site.server.log] == COMPOSE
    site.server.log.clear()
    assert fabric.release(LEASE) == ()
    assert [told(asked) for asked in site.server.log] == RELEASE
    assert site.clean()


def test_every_request_is_one_of_the_vendors_client(serve: Callable[..., Site]) -> None:
    """Its address, and what it has as its body, by the recorded shapes of the SDKs."""
    for mode in ("reboot", "powered_off"):
        site = serve(drives=1, groups=())
        fabric = site.open(state=mode, create_group=True, attach_mode=mode)
        fabric.compose(selected(fabric, storage="fabric-nvme"))
        assert fabric.release(LEASE) == ()
        for asked in site.server.log:
            path = asked.path.removeprefix(BASE)
            body, _ = liqid_sdk.shapes_of(asked.method, path)
            assert (body is None) == (asked.body is None), path
            if body is not None:
                liqid_sdk.read(asked.body, body, path)


def test_peer_to_peer_is_set_once_and_read_back(serve: Callable[..., Site]) -> None:
    """After the devices are connected, since a machine needs two of them; a retry finds it set."""
    site = serve()
    fabric, selection = site.selecting(attach="fabric-p2p")
    composing, _ = fabric.preview_requests(selection)
    site.server.log.clear()
    fabric.compose(selection)
    sent = [f"{asked.method} {asked.path.removeprefix(BASE)}" for asked in site.changes()]
    assert sent[-2:] == ["POST fabric/reprogram", "POST machine/p2p"]
    assert [f"{each.method} {each.url.partition(BASE)[2]}" for each in composing] == sent
    told = site.changes()[-1]
    liqid_sdk.read(told.body, liqid_sdk.shapes_of("POST", "machine/p2p")[0], "machine/p2p")
    assert told.body["p2p"] == "on"
    composition = obtained(fabric, LEASE)
    assert composition.list_mismatches(selection.request.configuration) == ()
    assert composition.document()["hosts"][0]["p2p"] is True
    fabric.compose(selection)
    assert site.changes()[-1] is told
    assert site.given_back(fabric)


def test_peer_to_peer_that_is_not_as_asked_for_is_told(serve: Callable[..., Site]) -> None:
    """A Matrix that says yes and does nothing gives no lease; where somebody else has set it, runs are flagged."""
    site = serve()
    fabric = site.open()
    asked, plain = configuration(devices_per_host=2, attach="fabric-p2p"), configuration(devices_per_host=2)
    fabric.compose(selected(fabric, attach="fabric-p2p"))
    site.emulator.matrix.find_machine(1).p2p = "off"
    composition = obtained(fabric, LEASE)
    assert composition.list_shortfalls(asked) == ("host1: peer-to-peer through the fabric is off",)
    site.emulator.matrix.find_machine(1).p2p = "on"
    composition = obtained(fabric, LEASE)
    assert composition.list_shortfalls(plain) == ()
    assert composition.list_mismatches(plain) == ("host1: peer-to-peer is on but not requested",)
    assert fabric.release(LEASE) == ()


def test_objects_are_echoed_whole_and_a_new_machine_is_as_the_sdk_makes_it(site: Site) -> None:
    site.open().compose(selected(site.open()))
    sent = {(asked.method, asked.path.removeprefix(BASE)): asked.body for asked in site.server.log}
    made = sent["POST", "machine"]
    assert made == {
        "index": None,
        "mach_id": 1,
        "grp_id": 1,
        "fabr_id": 1,
        "fabr_gid": None,
        "port_gid": None,
        "swit_gid": None,
        "comp_name": NAME,
        "mach_name": NAME,
        "p2p": "off",
        "mtime": None,
        "connection_history": [],
    }
    assert sent["POST", "fabric/reprogram"]["site_note"] == f"made for {NAME}"
    assert sent["POST", "relate/gpu"]["groupDeviceRelator"]["deviceStatus"]["site_note"] == "in slot 2"


def test_logging_in_is_delete_then_post_with_basic_and_the_key_alone_afterwards(site: Site) -> None:
    site.open().read_inventory()
    first, second, *rest = site.server.log
    path = BASE + "digest/composable-campaign"
    assert [(asked.method, asked.path) for asked in (first, second)] == [("DELETE", path), ("POST", path)]
    headers = [{name.lower(): value for name, value in asked.headers.items()} for asked in site.server.log]
    assert all(each["authorization"].startswith("Basic ") and "x-api-key" not in each for each in headers[:2])
    assert all(each["x-api-key"].startswith("key-") and "authorization" not in each for each in headers[2:])
    assert len(rest) == len(FIRST_VIEW)


def test_looking_asks_as_often_for_two_thousand_devices_as_for_four(serve: Callable[..., Site]) -> None:
    site = serve(gpus=2000)
    fabric = site.open()
    assert len(fabric.read_inventory().devices) == 2000
    assert [told(asked) for asked in site.server.log if "/digest/" not in asked.path] == FIRST_VIEW


def test_a_group_that_is_new_is_looked_up(site: Site) -> None:
    fabric = site.open()
    fabric.read_inventory()
    site.server.log.clear()
    fabric.read_inventory()
    assert [told(asked) for asked in site.server.log] == VIEW
    foreign_machine(site, "gpu1")  # in a group that was not there
    site.server.log.clear()
    fabric.read_inventory()
    assert [told(asked) for asked in site.server.log][:3] == FIRST_VIEW[:3]


# -- what is obtained ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [{}, {"async_polls": 2}, {"error_status": 500}])
def test_what_is_composed_is_there_at_both_ends_and_gone_after_release(
    behaviour: dict[str, Any], serve: Callable[..., Site]
) -> None:
    site = serve(gpus=4, drives=2, **behaviour)
    fabric = site.open(agent=True)
    before = fabric.read_inventory()
    wanted = configuration(devices_per_host=2, storage="fabric-nvme")
    selection = selected(fabric, storage="fabric-nvme")
    fabric.compose(selection)
    composition = obtained(fabric, LEASE)
    assert composition.list_mismatches(wanted) == ()
    assert fabric.find_visible_devices(composition) == set(selection.fabric_ids)
    assert {device.name for device in site.emulator.rack.list_attached_devices("host1")} == set(selection.fabric_ids)
    assert fabric.list_lease_tags()[LEASE].campaign == "demo"
    assert fabric.release(LEASE) == ()
    assert fabric.read_inventory() == before
    assert site.clean()


def test_a_lease_of_two_hosts_has_a_machine_each(site: Site) -> None:
    fabric = site.open()
    fabric.compose(selected(fabric, hosts=2))
    names = {machine.name for machine in site.emulator.matrix.machines.values()}
    assert names == {make_machine_name(LEASE, "host1"), make_machine_name(LEASE, "host2")}
    assert {host: len(site.emulator.rack.list_attached_devices(host)) for host in ("host1", "host2")} == {
        "host1": 2,
        "host2": 2,
    }
    assert site.given_back(fabric)


def test_a_host_is_its_compute_device_and_models_are_renamed(serve: Callable[..., Site]) -> None:
    site = serve(computes={"host1": "pcpu0", "host2": "pcpu1"})
    fabric = site.open(hosts={"host1": "pcpu0", "host2": "pcpu1"}, models={"a100": "a100-40gb"})
    fabric.compose(selected(fabric, device="a100-40gb"))
    assert site.emulator.matrix.devices["pcpu0"].machine == 1
    assert site.emulator.rack.list_attached_devices("host1")


@pytest.mark.parametrize(
    ("mode", "after", "before"),
    [("hot", [], []), ("reboot", ["reboot"], []), ("powered_off", ["start"], ["shutdown"])],
)
def test_hosts_are_powered_as_the_mode_of_attachment_says(
    mode: str, after: list[str], before: list[str], site: Site
) -> None:
    fabric = site.open(attach_mode=mode)
    assert fabric.describe_capabilities().attach_mode == mode
    fabric.compose(selected(fabric))
    assert [what for what, _, _ in site.emulator.power] == after
    fabric.release(LEASE)
    assert site.emulator.power == [(what, 1, 1) for what in after + before]
    assert site.clean()


def test_a_matrix_that_renames_machines_is_refused_and_keeps_nothing(serve: Callable[..., Site]) -> None:
    site = serve(name_max=8)
    fabric = site.open()
    with pytest.raises(Incompatible, match=rf"changed the name of the new machine {NAME} to '{NAME[:8]}'"):
        fabric.compose(selected(fabric))
    assert site.given_back(fabric)


# -- options ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"label": "slurm"}, ConfigError, "reserved for Liqid's Slurm plugin"),
        ({"label": "SLURM"}, ConfigError, "reserved for Liqid's Slurm plugin"),
        ({"credentials": {}}, ConfigError, "user_env"),
        ({"hosts": {"host1": "pcpu7", "host2": "pcpu8"}}, Conflict, r"no compute device 'pcpu7' \(see `hosts`"),
    ],
)
def test_options_that_do_not_fit_are_told(
    options: dict[str, Any], error: type[Exception], words: str, site: Site
) -> None:
    with pytest.raises(error, match=words):
        selected(site.open(**options))


def test_a_missing_group_is_named_before_anything_is_changed_or_made_where_that_is_wanted(
    serve: Callable[..., Site],
) -> None:
    site = serve(groups=("lab",))
    fabric = site.open()
    with pytest.raises(Incompatible, match=r"no group 'campaign'; its groups are: lab.*create_group"):
        fabric.compose(selected(fabric))
    assert site.changes() == []
    willing = site.open(create_group=True, state="other")
    willing.compose(selected(willing))
    assert site.emulator.matrix.find_group(2).name == "campaign"
    assert site.given_back(willing)


def test_wrong_credentials_are_told_with_the_user_and_never_the_password(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_PASSWORD", "not-it-at-all")
    with pytest.raises(FabricError, match=r"login as 'campaign'.*Bad credentials") as caught:
        site.open().read_inventory()
    assert "not-it-at-all" not in str(caught.value)


def test_a_session_that_ended_is_begun_again_and_nothing_is_sent_twice(site: Site) -> None:
    fabric, selection = site.selecting()
    site.emulator.expire_sessions()
    fabric.compose(selection)
    site.emulator.expire_sessions()
    assert site.given_back(fabric)


def test_processes_that_end_each_others_sessions_all_get_on(serve: Callable[..., Site]) -> None:
    site = serve(gpus=8, hosts=4)
    failed: list[BaseException] = []

    def works(number: int) -> None:
        fabric = site.open(state=f"state{number}")
        try:
            for _ in range(5):
                fabric.read_inventory()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=works, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# -- whose is what ------------------------------------------------------------------------------------------------------------


def foreign_machine(site: Site, *devices: str, name: str = "production") -> int:
    """A machine that somebody else made in a group of his, with devices connected."""
    matrix = site.emulator.matrix
    group = matrix.add_group(len(matrix.groups) + 1, f"group of {name}")
    number = max(matrix.machines, default=40) + 1
    matrix.add_machine(number, group.number, name, name)
    matrix.begin_pool_edit(group.number)
    for device in devices:
        matrix.change_pool_member(group.number, device, add=True)
    matrix.finish_pool_edit(group.number, keep=True)
    matrix.begin_machine_edit(number)
    for device in devices:
        matrix.relate_device(number, device, add=True)
    matrix.reprogram_machine(number)
    return number


def test_machines_and_groups_of_others_hold_what_is_in_them(site: Site) -> None:
    foreign_machine(site, "host1", "gpu1")
    matrix = site.emulator.matrix
    matrix.begin_pool_edit(1)
    matrix.change_pool_member(1, "gpu2", add=True)
    matrix.finish_pool_edit(1, keep=True)
    inventory = site.open().read_inventory()
    shown = {d.fabric_id: (d.holder, d.attached_to, d.state) for d in inventory.devices}
    assert shown["gpu1"] == ("machine production", "host1", "in_use")
    assert shown["gpu2"] == ("group campaign", None, "reserved")
    assert shown["gpu3"] == (None, None, "free")
    assert {host.name: host.holder for host in inventory.hosts} == {"host1": "machine production", "host2": None}
    with pytest.raises(Conflict, match="machine production"):
        selected(site.open(), hosts=2, devices_per_host=1)


def test_what_somebody_took_between_choosing_and_composing_is_not_touched(site: Site) -> None:
    fabric, selection = site.selecting()
    number = foreign_machine(site, "host1", "gpu1")
    with pytest.raises(Conflict, match="machine production"):
        fabric.compose(selection)
    assert site.changes() == []
    assert site.emulator.matrix.machines[number].name == "production"
    assert fabric.list_lease_tags() == {}


def test_only_ours_leaves_our_group_and_our_machine(site: Site) -> None:
    fabric = site.composed()
    matrix = site.emulator.matrix
    matrix.begin_pool_edit(1)
    for name in ("gpu3", "gpu4"):
        matrix.change_pool_member(1, name, add=True)
    matrix.finish_pool_edit(1, keep=True)
    matrix.begin_machine_edit(1)
    matrix.relate_device(1, "gpu3", add=True)
    matrix.reprogram_machine(1)
    site.server.log.clear()
    assert fabric.release(LEASE) == ()
    asked = [told(each) for each in site.changes()]
    assert "DELETE machine/1" not in asked
    assert asked[1:4] == [
        f"DELETE relate/{each} group=1 machine=1" for each in ("compute host1", "gpu gpu1", "gpu gpu2")
    ]
    assert not any("gpu3" in each or "gpu4" in each for each in asked)
    shown = {name: (device.group, device.machine) for name, device in matrix.devices.items()}
    assert shown["gpu3"] == (1, 1)
    assert shown["gpu4"] == (1, None)
    assert shown["gpu1"] == shown["gpu2"] == shown["host1"] == (None, None)
    assert matrix.is_idle


def test_text_that_somebody_wrote_on_a_device_is_kept_and_comes_back(site: Site) -> None:
    matrix = site.emulator.matrix
    matrix.devices["gpu1"].description = "reseat me | often"
    fabric = site.composed()
    assert matrix.devices["gpu1"].description.startswith("reseat me | often | composable-campaign lease=")
    assert set(fabric.list_lease_tags()[LEASE].devices) == {"gpu1", "gpu2"}
    assert fabric.release(LEASE) == ()
    assert matrix.devices["gpu1"].description == "reseat me | often"


def test_a_lease_whose_state_file_is_lost_is_found_and_released_by_its_marks(site: Site) -> None:
    site.composed()
    stranger = site.open(state="elsewhere")
    assert set(stranger.list_lease_tags()[LEASE].devices) == {"gpu1", "gpu2"}
    with pytest.raises(Conflict, match=LEASE):
        selected(stranger, "other", hosts=2, devices_per_host=1)
    assert site.given_back(stranger)


def test_a_device_that_was_moved_away_loses_our_mark_and_nothing_else(site: Site) -> None:
    fabric = site.composed()
    matrix = site.emulator.matrix
    matrix.remove_machine(1)
    matrix.begin_pool_edit(1)
    for name in ("gpu1", "host1"):
        matrix.change_pool_member(1, name, add=False)
    matrix.finish_pool_edit(1, keep=True)
    foreign_machine(site, "host1", "gpu1")
    moved = fabric.read_inventory().find_device("gpu1")
    assert moved is not None
    assert moved.holder == "machine production"
    assert fabric.list_lease_tags()[LEASE].devices == ("gpu2",)
    assert fabric.release(LEASE) == ()
    gpu1 = matrix.devices["gpu1"]
    assert (matrix.machines[gpu1.machine or 0].name, gpu1.description) == ("production", "")
    assert matrix.devices["gpu2"].group is None
    assert [device.name for device in site.emulator.rack.list_attached_devices("host1")] == ["gpu1"]


def test_ends_that_disagree_are_unknown_and_never_a_verified_lease(site: Site) -> None:
    fabric, selection = site.selecting()
    fabric.compose(selection)
    details = '{"response": {"code": 0, "errors": null, "data": [{"mach_id": 1, "gpu-count": 1}]}}'
    site.server.faults.add_fault(WireFault("lie", "GET", "*/machine/details/1", times=-1, body=details))
    assert {device.state for device in fabric.read_inventory().devices[:2]} == {"unknown"}
    composition = obtained(fabric, LEASE)
    assert composition.list_shortfalls(configuration(devices_per_host=2)) == ("host1: 0 devices obtained, 2 requested",)
    assert site.given_back(fabric)


# -- one at a time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edited", ["the group", "another machine"])
def test_an_edit_of_somebody_else_is_busy_names_him_and_everything_is_taken_back(edited: str, site: Site) -> None:
    matrix = site.emulator.matrix
    fabric, selection = site.selecting(devices_per_host=1)
    if edited == "the group":
        matrix.begin_pool_edit(1)
    else:
        foreign_machine(site, "host2", "gpu4")
        matrix.begin_machine_edit(41)
    with pytest.raises(Busy) as caught:
        fabric.compose(selection)
    assert caught.value.holders == (
        ("an unknown user who edits group campaign",) if edited == "the group" else ("machine production",)
    )
    assert (matrix.find_group(1).editing, matrix.editing) == ((True, None) if edited == "the group" else (False, 41))
    assert fabric.list_lease_tags() == {}
    assert 1 not in matrix.machines
    assert (matrix.devices["gpu1"].group, matrix.devices["gpu1"].description) == (None, "")
    matrix.find_group(1).editing, matrix.editing = False, None
    fabric.compose(selection)
    assert fabric.read_back(LEASE) is not None


def test_a_group_that_is_edited_makes_a_release_busy_and_the_next_one_goes_on(site: Site) -> None:
    site.composed()
    stranger, matrix = site.open(state="elsewhere"), site.emulator.matrix
    matrix.begin_pool_edit(1)
    with pytest.raises(Busy):
        stranger.release(LEASE)
    assert matrix.find_group(1).editing
    matrix.finish_pool_edit(1, keep=False)
    assert site.given_back(stranger)


LANE = '{"response": {"code": 17, "errors": [{"code": 17, "message": "lane is down", "type": "E"}], "data": null}}'


@pytest.mark.parametrize(
    ("changes", "fault", "error", "words", "done"),
    [
        ({}, WireFault("lie", "POST", "*/relate/gpu", after=1, body=LANE), PartialFailure, "lane is down", ()),
        (
            {"hosts": 2},
            WireFault("status", "POST", "*/relate/compute", after=1, status=422),
            PartialFailure,
            "relate/compute",
            ("host1",),
        ),
        (
            {"attach": "fabric-p2p"},
            WireFault("status", "POST", "*/machine/p2p", status=422),
            PartialFailure,
            "machine/p2p",
            (),
        ),
        ({}, WireFault("status", "POST", "*/fabric/reprogram", status=400), OutcomeUnknown, "reprogram", None),
    ],
    ids=["within an edit", "at the second machine", "of peer-to-peer", "while reprogramming"],
)
def test_a_refusal_cancels_the_edit_and_says_which_devices(
    changes: dict[str, Any],
    fault: WireFault,
    error: type[FabricError],
    words: str,
    done: Any,
    serve: Callable[..., Site],
) -> None:
    site = serve()
    fabric, selection = site.selecting(**changes)
    site.server.faults.add_fault(replace(fault))
    with pytest.raises(error, match=words) as caught:
        fabric.compose(selection)
    assert site.emulator.matrix.is_idle
    if isinstance(caught.value, PartialFailure):
        attached = {name for host in selection.hosts if host.host in done for name in host.fabric_ids}
        assert (set(caught.value.completed_ids), set(caught.value.failed_ids)) == (
            attached,
            set(selection.fabric_ids) - attached,
        )
    assert site.given_back(fabric)


@pytest.mark.parametrize("end", ["404", "SUCCESS"])
def test_what_is_done_by_and_by_is_waited_for(end: str, serve: Callable[..., Site]) -> None:
    site = serve(async_polls=3, async_end=end)
    site.composed()
    assert len(site.emulator.rack.list_attached_devices("host1")) == 2
    polls = [asked for asked in site.server.log if asked.path.startswith(BASE + "async/")]
    assert len(polls) == 2 * 4


def test_what_fails_by_and_by_is_refused(serve: Callable[..., Site]) -> None:
    site = serve(async_polls=1, async_end="FAILURE")
    fabric = site.open()
    with pytest.raises(PartialFailure, match="pool/done: the operation failed: the switch did not answer"):
        fabric.compose(selected(fabric))
    assert site.emulator.rack.changes == 0


def test_what_never_ends_is_unknown_when_the_time_of_the_operation_is_over(
    serve: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = serve(async_polls=10**9)
    fabric = site.open()
    waits = iter([None] * 3)

    def sleep(seconds: float) -> None:
        if next(waits, "over") == "over":
            raise FabricError("not done after 600 s (operation_s)")

    monkeypatch.setattr(fabric.plane.client, "sleep", sleep)
    with pytest.raises(OutcomeUnknown, match=r"pool/done: the operation was accepted.*operation_s"):
        fabric.compose(selected(fabric))


# -- crashes and faults -------------------------------------------------------------------------------------------------------

COMPOSING = [f"{told.split()[0]} {told.split()[1]}" for told in COMPOSE if not told.startswith("GET")]
RELEASING = [f"{told.split()[0]} {told.split()[1]}" for told in RELEASE if not told.startswith("GET")]
KINDS = ["drop_before", "drop_after", "lie", "garbage", "html", "refused", "busy"]
ALIKE = (
    "POST predevice/compute",
    "POST relate/compute",
    "PUT device/udesc/gpu/0x00001002",
    "DELETE device/udesc/gpu/0x00001002",
)
"""Requests that are of the same kind as others, and sent by the same line: faults are tried on those."""


class Died(BaseException):
    """Stands for a kill: nothing that the program would do about it happens."""


def dies_at(site: Site, fabric: ControlledFabric, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the changing request of this number on, nothing of this process reaches the Matrix."""
    real, count = fabric.plane.client.send_change, iter(range(10**6))

    def change(*args: Any, **keywords: Any) -> Any:
        if next(count) >= number:
            raise Died
        return real(*args, **keywords)

    monkeypatch.setattr(fabric.plane.client, "send_change", change)


@pytest.mark.parametrize("number", range(1, len(COMPOSING)))
def test_a_composition_that_was_killed_is_gone_on_with_or_released(
    number: int, serve: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    for goes_on in (True, False):
        site = serve()
        first = site.open(state=f"state{goes_on}")
        selection = selected(first)
        dies_at(site, first, number, monkeypatch)
        with pytest.raises(Died):
            first.compose(selection)
        heir = site.open(state=f"state{goes_on}")
        if goes_on:
            heir.compose(selection)
            composition = obtained(heir, LEASE)
            assert composition.list_mismatches(configuration(devices_per_host=2)) == ()
            assert len(site.emulator.rack.list_attached_devices("host1")) == 2
            assert site.emulator.matrix.is_idle
        assert site.given_back(heir)


@pytest.mark.parametrize("number", range(1, len(RELEASING)))
def test_a_release_that_was_killed_is_found_and_gone_on_with(
    number: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.open()
    first.compose(selected(first))
    dies_at(site, first, number, monkeypatch)
    with pytest.raises(Died):
        first.release(LEASE)
    heir = site.open()
    assert LEASE in heir.list_lease_tags()
    assert site.given_back(heir)


def fault(kind: str, request: str) -> WireFault:
    method, path = request.split()
    target: dict[str, Any] = {"method": method, "path": f"*/{path}"}
    body = '{"response": {"code": 9, "errors": [{"code": 9, "message": "%s", "type": "E"}], "data": []}}'
    match kind:
        case "refused":
            return WireFault("lie", **target, body=body % "not now")
        case "busy":
            return WireFault("lie", **target, body=body % "Machine 0x0077 is already being edited")
        case _:
            return WireFault(kind, **target)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("request_", [each for each in dict.fromkeys(COMPOSING) if each not in ALIKE])
def test_a_fault_while_composing_never_makes_a_false_lease_and_leaks_nothing(
    request_: str, kind: str, site: Site
) -> None:
    fabric, selection = site.selecting()
    site.server.faults.add_fault(fault(kind, request_))
    outcome: FabricError | None = None
    try:
        fabric.compose(selection)
    except FabricError as error:
        outcome = error
    composition = fabric.read_back(LEASE)
    attached = {device.name for device in site.emulator.rack.list_attached_devices("host1")}
    if composition is not None and composition.list_mismatches(configuration(devices_per_host=2)) == ():
        assert attached == set(selection.fabric_ids)
    if isinstance(outcome, Busy | Conflict):
        assert fabric.list_lease_tags() == {}
        assert site.clean()
    if kind in ("drop_before", "drop_after", "garbage", "html") or (kind != "lie" and request_.endswith("reprogram")):
        assert isinstance(outcome, OutcomeUnknown)
    elif kind != "lie":
        assert isinstance(outcome, Busy if kind == "busy" else PartialFailure)
    assert site.given_back(fabric)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("request_", [each for each in dict.fromkeys(RELEASING) if each not in ALIKE])
def test_a_fault_while_releasing_is_told_and_the_next_release_leaves_nothing(
    request_: str, kind: str, site: Site
) -> None:
    fabric = site.composed()
    site.server.faults.add_fault(fault(kind, request_))
    stuck: tuple[str, ...] = ("it raised",)
    outcome: FabricError | None = None
    try:
        stuck = fabric.release(LEASE)
    except FabricError as error:
        outcome = error
    assert kind == "busy" or not isinstance(outcome, Busy)
    assert site.clean() or (stuck and LEASE in fabric.list_lease_tags())
    assert site.given_back(fabric)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_a_fault_while_logging_in_changes_nothing_and_the_next_one_does(method: str, kind: str, site: Site) -> None:
    fabric = site.open()
    site.server.faults.add_fault(fault(kind, f"{method} digest/composable-campaign"))
    with suppress(FabricError):
        fabric.read_inventory()
    assert len(fabric.read_inventory().devices) == 4
    assert site.changes() == []


def test_an_old_answer_about_devices_never_takes_a_mark_from_what_is_still_in_the_group(site: Site) -> None:
    fabric = site.composed()
    site.server.faults.add_fault(WireFault("stale", "GET", "*/predevice", after=1))
    stuck = fabric.release(LEASE)
    assert set(stuck) == {"gpu1", "gpu2", "host1"}
    assert LEASE in fabric.list_lease_tags()
    assert site.given_back(fabric)


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        ("", r"in machine \d+, but does not list this machine"),
        ('{"mach_id": 1, "mach_name": "a"}, {"mach_id": 1, "mach_name": "b"}', "two machines with the number 1"),
    ],
)
def test_a_list_of_machines_that_cannot_be_true_releases_nothing(machines: str, words: str, site: Site) -> None:
    fabric = site.composed()
    body = f'{{"response": {{"code": 0, "errors": [], "data": [{machines}]}}}}'
    site.server.faults.add_fault(WireFault("lie", "GET", "*/machine", times=-1, body=body))
    with pytest.raises(FabricError, match=words):
        fabric.release(LEASE)
    assert len(site.emulator.rack.list_attached_devices("host1")) == 2
    site.server.faults.clear_faults()
    assert LEASE in fabric.list_lease_tags()
    assert site.given_back(fabric)


@pytest.mark.parametrize("kind", ["html", "garbage"])
def test_a_list_that_is_none_is_no_empty_pool(kind: str, site: Site) -> None:
    fabric = site.open(operation_s=0.2)
    site.server.faults.add_fault(WireFault(kind, "GET", "*/predevice", times=-1))  # type: ignore[arg-type]
    with pytest.raises(FabricError):
        fabric.read_inventory()


def test_opening_talks_to_nobody(site: Site) -> None:
    fabric = site.open()
    assert site.server.log == []
    assert (fabric.describe_capabilities().verified, fabric.describe_capabilities().gives_host_id) == (False, False)

"""The adapter of Falcon boxes: what it sends, what it believes, and what it may take."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.common.errors import ConfigError, FabricError
from campaign.common.files import try_lock
from campaign.fabrics import open_fabric
from campaign.fabrics.adapters.h3 import control_plane
from campaign.fabrics.adapters.h3.box import parse_listing
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice
from campaign.fabrics.protocol import LeaseRequest, Selection
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import obtained
from tests.unit.fabrics.memory_plane import Killed
from tests.unit.fabrics.raw_server import RawServer

RECORDED = yaml.safe_load((Path(__file__).parents[2] / "data" / "fabrics" / "h3" / "recorded.yaml").read_text())
HOSTS = (HostSpec(name="host1", cores=8, memory_gib=32.0), HostSpec(name="host2", cores=8, memory_gib=32.0))
PORTS = {"host1": "0", "host2": "48"}
GIDS = ("000500", "000C00", "001300")
UUIDS = {(box, gid): f"GPU-{box}-{gid}" for box in "ab" for gid in GIDS}


class FakeBox:
    """One box at the wire, with one thing at a time to go wrong. ports: `Port#` by Dev_GID; asked: method and body of each order.

    lists: readings that come before the right ones, as functions of it. orders: what becomes of the next orders, and what is said.
    """

    def __init__(self, name: str, ports: dict[str, str]) -> None:
        self.name, self.ports = name, ports
        self.lists: list[Callable[[list[dict[str, str]]], Any]] = []
        self.orders: list[tuple[bool, str | None]] = []
        self.asked: list[tuple[str, str]] = []
        self.heads: list[str] = []
        self.reads = self.busy = self.most = 0
        self.server = RawServer(self.talk)

    def records(self) -> list[dict[str, str]]:
        gpus = [
            {"dev_type": "GPU", "Dev_GID": gid, "Host_Port#": port, "OB_GPU_GUID": UUIDS[self.name, gid]}
            for gid, port in self.ports.items()
            if port
        ]
        return [{"Port#": "0", "Port_GID": "00h"}, {"Port#": "48", "Port_GID": "30h"}, *gpus]

    def talk(self, peer: Any, request: bytes) -> None:
        self.busy += 1
        self.most = max(self.most, self.busy)
        time.sleep(0.002)
        try:
            text = self.answer(request)
        finally:
            self.busy -= 1
        if text is None:
            raise OSError
        peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    def answer(self, request: bytes) -> str | None:
        head, _, body = request.decode().partition("\r\n\r\n")
        self.heads.append(head)
        if head.startswith("GET"):
            self.reads += 1
            shown = self.records()
            shown = self.lists.pop(0)(shown) if self.lists else shown
            return shown if isinstance(shown, str) else json.dumps(shown)
        self.asked.append((head.split()[0], body))
        works, said = self.orders.pop(0) if self.orders else (True, "[true]")
        order = json.loads(body)
        if works:
            self.ports[order["dev_gid"]] = str(int(order["port_gid"][:-1], 16)) if "port_gid" in order else ""
        return (
            said if said is None or not said.startswith("[") else f'{{"action": "x", "result": {said}, "remark": "y"}}'
        )


class Agent:
    """Looks on hosts. busy: hosts whose devices are in use; taken: what was got out of use, where."""

    def __init__(self, boxes: dict[str, FakeBox]) -> None:
        self.boxes = boxes
        self.busy: set[str] = set()
        self.taken: list[tuple[str, str]] = []

    def list_devices(self, host: str) -> tuple[HostDevice, ...]:
        return tuple(
            HostDevice(UUIDS[name, gid])
            for name, box in self.boxes.items()
            for gid, port in box.ports.items()
            if port == PORTS[host]
        )

    def rescan(self, host: str) -> None:
        pass

    def detach(self, host: str, devices: Any, *, force: bool = False) -> None:
        if host in self.busy:
            raise HostBusy(f"{host}: in use by pid 4711", ("pid 4711",))
        self.taken += [(host, device.identity) for device in devices]

    def close(self) -> None:
        pass


class Site:
    """Boxes `a` and `b`, each with two devices on the port of host1 and one on that of host2."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.boxes = {name: FakeBox(name, dict(zip(GIDS, ("0", "0", "48"), strict=True))) for name in "ab"}
        self.agent: Agent | None = Agent(self.boxes)

    def open(self, **options: Any) -> ControlledFabric:
        told = {"boxes": {n: b.server.url for n, b in self.boxes.items()}, "hosts": PORTS, "poll_s": 0, **options}
        pool = (
            PoolSpec(kind="gpu", model="a100", count=3, drawer="a"),
            PoolSpec(kind="gpu", model="a100", count=3, drawer="b"),
        )
        fabric = open_fabric("h3", told, HOSTS, pool, self.directory)
        assert isinstance(fabric, ControlledFabric)
        fabric._host_view._agent = self.agent
        return fabric

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [each for box in self.boxes.values() for each in box.asked]

    def places(self) -> dict[str, str]:
        return {
            f"{name}/{UUIDS[name, gid]}": port for name, box in self.boxes.items() for gid, port in box.ports.items()
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    with ExitStack() as stack:
        for box in found.boxes.values():
            stack.enter_context(box.server)
        yield found


def asked(lease: str = "one", host: str = "host1", devices: int = 1) -> LeaseRequest:
    return LeaseRequest(lease, "demo", "tester", configuration(devices_per_host=devices), (host,))


def selected(fabric: ControlledFabric, request: LeaseRequest) -> Selection:
    return fabric.select_devices(request, fabric.read_inventory())


def name(box: str, number: int) -> str:
    return f"{box}/{UUIDS[box, GIDS[number]]}"


def test_a_move_is_a_detach_and_then_an_attach_byte_for_byte_as_the_recorded_client_sent_it(site: Site) -> None:
    fabric = site.open(movable=[UUIDS["a", GIDS[2]]])
    site.boxes["a"].ports = {"001300": "0"}
    site.boxes["b"].ports = {}
    fabric.compose(selected(fabric, asked(host="host2")))
    bodies = RECORDED["request_bodies"]
    assert site.asked == [("DELETE", bodies["detach"]), ("POST", bodies["attach"])]
    heads = [head for head in site.boxes["a"].heads if not head.startswith("GET")]
    assert all("content-type: text/plain\r" in head.lower() for head in heads)
    assert all(head.split("\r\n")[0].endswith(" /h3api/v1/allocation HTTP/1.1") for head in heads)


def test_only_what_the_system_file_gives_is_taken_from_a_host(site: Site) -> None:
    given = name("a", 2)
    fabric = site.open(movable=[given.partition("/")[2]])
    holders = {device.fabric_id: device.holder for device in fabric.read_inventory().devices}
    assert holders.pop(given) is None
    assert set(holders.values()) == {"an unknown user on host1", "an unknown user on host2"}
    # A host that has somebody's devices is not taken either.
    with pytest.raises(Conflict, match="an unknown user with"):
        selected(fabric, asked(host="host1"))
    for words, count in ((["a"], 3), (["host1"], 4), (["a", "b"], 6), (["a", "host2"], 4)):
        free = [d for d in site.open(movable=words).read_inventory().devices if d.state == "free"]
        assert len(free) == count
    site.boxes["a"].ports["001300"] = "16"  # a port of which nobody here knows the host
    assert given not in [d.fabric_id for d in site.open(movable=["a"]).read_inventory().devices if d.state == "free"]
    assert site.asked == []


def test_a_device_in_use_is_not_taken_from_its_host_nor_one_where_nobody_looks(site: Site) -> None:
    fabric = site.open(movable=["a", "b"])
    selection = selected(fabric, asked(host="host2", devices=3))
    assert site.agent is not None
    site.agent.busy = {"host1"}
    with pytest.raises(Conflict, match="pid 4711"):
        fabric.compose(selection)
    site.agent = None
    blind = site.open(movable=["a", "b"])
    with pytest.raises(Conflict, match="configure a host agent"):
        blind.compose(selected(blind, asked(host="host2", devices=3)))
    assert [body for method, body in site.asked if method == "POST"] == []
    assert {place for each, place in site.places().items() if each in selection.fabric_ids} <= {"0", "48"}


def test_devices_go_back_to_where_they_were_found(site: Site) -> None:
    before = site.places()
    fabric = site.open(movable=["a", "b"])
    fabric.compose(selected(fabric, asked(host="host2", devices=5)))
    assert list(site.places().values()).count("48") == 5
    assert site.places() != before
    assert fabric.list_displaced_devices() == {}  # their host has a lease
    assert fabric.release("one") == ()
    assert site.places() == before
    assert {device.attached_to for device in fabric.read_inventory().devices} == {"host1", "host2"}
    state = json.loads((site.directory / "h3.json").read_text())
    assert (state["devices"], state["detached"], state["homes"]) == ({}, {}, {})


@pytest.mark.parametrize("works", [True, False])
def test_devices_are_home_where_the_box_shows_them_though_the_answers_were_lost(site: Site, works: bool) -> None:
    before = site.places()
    fabric = site.open(movable=["a", "b"])
    fabric.compose(selected(fabric, asked(host="host2", devices=5)))
    home, fabric._return_displaced_devices = fabric._return_displaced_devices, lambda: None  # type: ignore[method-assign]
    fabric.release("one")
    fabric._return_displaced_devices = home  # type: ignore[method-assign]
    away = fabric.list_displaced_devices()
    assert len(away) >= 3
    for box in site.boxes.values():
        box.orders = [(works, None)] * 40  # no answer comes to any attach
    if works:
        fabric.return_displaced_devices()
    else:
        with pytest.raises(FabricError):
            fabric.return_displaced_devices()
        assert fabric.list_displaced_devices() == away
        for box in site.boxes.values():
            box.orders = []
        fabric.return_displaced_devices()
    assert fabric.list_displaced_devices() == {}
    assert site.places() == before
    assert json.loads((site.directory / "h3.json").read_text())["homes"] == {}


@pytest.mark.parametrize(("works", "said", "lease"), [
    (True, "[false]", True), (False, "[true]", False), (False, "[false]", False), (False, "[ ]", False),
])  # fmt: skip
def test_what_an_attach_answers_is_no_evidence(site: Site, works: bool, said: str, lease: bool) -> None:
    fabric = site.open(movable=["a", "b"])
    for box in site.boxes.values():
        box.ports = dict.fromkeys(GIDS, "48")
    selection = selected(fabric, asked())
    site.boxes["a"].orders = [(True, "[true]"), *[(works, said)] * 2]
    if lease:
        fabric.compose(selection)
    else:
        with pytest.raises(PartialFailure, match=r"does not show .* on port 0 of host1"):
            fabric.compose(selection)
    composition = obtained(fabric)
    assert len(composition.devices) == lease


@pytest.mark.parametrize("said", [None, "sh: syntax error: unexpected end of file"])
@pytest.mark.parametrize("works", [True, False])
def test_an_order_without_an_answer_is_read_back_and_given_once_more_if_need_be(
    site: Site, works: bool, said: str | None
) -> None:
    fabric = site.open(movable=["a", "b"])
    for box in site.boxes.values():
        box.ports = dict.fromkeys(GIDS, "48")
    selection = selected(fabric, asked())
    site.boxes["a"].orders = [(works, said), *([] if works else [(True, "[true]")]), (works, said)]
    with pytest.raises(OutcomeUnknown, match="allocation"):
        fabric.compose(selection)
    once = 1 if works else 2
    assert [method for method, _ in site.asked] == ["DELETE"] * once + ["POST"] * once
    composition = obtained(fabric)
    assert composition.list_mismatches(asked().configuration) == ()


def test_a_state_counts_when_two_readings_in_a_row_agree(site: Site) -> None:
    fabric = site.open(movable=["a", "b"])
    right = fabric.read_inventory()
    gpus_gone: Callable[[Any], Any] = lambda shown: shown[:2]  # noqa: E731
    shell: Callable[[Any], Any] = lambda shown: "/dev/shm/x: line 1: syntax error"  # noqa: E731
    moved: Callable[[Any], Any] = lambda shown: [*shown[:-1], {**shown[-1], "Host_Port#": "0"}]  # noqa: E731
    right_one: Callable[[Any], Any] = lambda shown: shown  # noqa: E731
    site.boxes["a"].lists = [gpus_gone, right_one, moved, shell]
    before = site.boxes["a"].reads
    assert fabric.read_inventory() == right
    assert site.boxes["a"].reads - before == 6
    site.boxes["a"].lists = [gpus_gone, right_one] * 20
    with pytest.raises(FabricError, match=r"a \(.*no two consecutive readings out of 4 agreed"):
        site.open(reads_max=4).read_inventory()
    site.boxes["a"].lists = [shell] * 20
    with pytest.raises(ProtocolViolation, match="syntax error"):
        site.open(reads_max=4).read_inventory()


def test_a_device_is_addressed_by_what_it_is_called_right_before(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dev_GIDs of a box changed within two weeks; nobody knows when. Here they do while a host is asked to let go."""
    monkeypatch.setattr(control_plane, "MAX_READING_AGE_S", 0.0)
    fabric = site.open(movable=["a", "b"])
    selection = selected(fabric, asked(host="host2", devices=6))
    box, agent = site.boxes["a"], site.agent
    assert agent is not None

    def renumbered(shown: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{**each, "Dev_GID": f"0F{each['Dev_GID'][2:]}"} if "Dev_GID" in each else each for each in shown]

    def letting_go(host: str, devices: Any, *, force: bool = False) -> None:
        box.lists = [renumbered] * 100

    monkeypatch.setattr(agent, "detach", letting_go)
    box.orders = [(False, "[true]")]
    with pytest.raises(FabricError):
        fabric.compose(selection)
    assert json.loads(box.asked[0][1])["dev_gid"].startswith("0F")


def test_a_process_that_dies_between_detach_and_attach_loses_no_device(site: Site) -> None:
    """What nobody has is not listed; the state file has what it was called."""
    fabric = site.open(movable=["a", "b"])
    selection = selected(fabric, asked(host="host2", devices=6))
    before = site.places()

    def dies(*_: Any) -> None:
        raise Killed

    fabric.plane.attach = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        fabric.compose(selection)
    fabric.close()
    assert "" in site.places().values()
    heir = site.open(movable=["a", "b"])
    assert {d.fabric_id for d in heir.read_inventory().devices if d.holder == "one"} == set(selection.fabric_ids)
    assert heir.list_lease_tags()["one"].devices == selection.fabric_ids
    heir.compose(selection)
    composition = obtained(heir)
    assert composition.list_mismatches(selection.request.configuration) == ()
    assert heir.release("one") == ()
    assert site.places() == before


def test_one_thing_at_a_time_is_asked_of_a_box(site: Site) -> None:
    fabrics = [site.open(movable=["a", "b"]) for _ in range(3)]
    threads = [threading.Thread(target=fabric.read_inventory) for fabric in fabrics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [box.most for box in site.boxes.values()] == [1, 1]
    with try_lock(site.directory / "h3-a.lock"), pytest.raises(FabricError, match="a: another process"):
        site.open(operation_s=0.1).read_inventory()


def test_what_is_not_known_is_passed_over(site: Site) -> None:
    fabric = site.open(movable=["a", "b"])
    right = fabric.read_inventory()
    strange = [
        {"dev_type": "NVMe", "Dev_GID": "002200", "Host_Port#": "0"},
        {"dev_type": "GPU", "Dev_GID": "002300", "Host_Port#": "0"},
        {"Slot": "7", "Serial": "1234567890", "address": "10.0.0.7"},
        {"dev_type": "GPU", "Dev_GID": 7, "OB_GPU_GUID": None},
    ]
    for box in site.boxes.values():
        box.lists = [lambda shown: [{**each, "Link": "x16"} for each in [*shown, *strange]]] * 2
    assert fabric.read_inventory() == right
    found = parse_listing([*site.boxes["a"].records(), *strange])
    assert found is not None
    assert found.skipped_records == len(strange)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"boxes": {}}, "boxes"),
        ({"boxes": {"a": "ftp://x"}}, "boxes: .*a: 'ftp://x' is not a valid address"),
        ({"hosts": {"host9": "0"}}, "hosts: unknown host 'host9'; use one of: host1, host2"),
        ({"ports": {"c": {"host1": "0"}}}, "ports: unknown box 'c'; use one of: a, b"),
        ({"ports": {"a": {"mars": "0"}}}, "ports: a: unknown host 'mars'"),
        ({"modes": {"falcon1/c": "advanced"}}, "modes: unknown box 'falcon1/c'; use one of: a, b"),
        ({"movable": ["c"]}, "movable: unknown box or host 'c'; use one of: a, b, host1, host2"),
        ({"hosts": {"host1": "0", "host2": "0"}}, "host2 and host1 both use port 0 of a"),
    ],
)
def test_names_that_are_none_are_refused_with_what_there_is(site: Site, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        site.open(**options)


def test_plans_know_boxes_ports_and_modes(site: Site) -> None:
    two = replace(asked(), configuration=configuration(hosts=2, devices_per_host=2), allowed_hosts=())
    assert len(site.open().select_planned_devices(two).hosts) == 2
    one_host = site.open(modes={"a": "standard_one_host", "b": "standard_one_host"})
    selection = one_host.select_planned_devices(two)
    assert len({name.partition("/")[0] for name in selection.hosts[0].fabric_ids}) == 1
    few = replace(two, configuration=configuration(hosts=2))
    with pytest.raises(Incompatible, match="standard_one_host"):
        site.open(modes={"a": "standard_one_host"}, ports={"b": {}}).select_planned_devices(few)
    with pytest.raises(ConfigError, match="pool: drawer: unknown box 'c'; use one of: a"):
        open_fabric(
            "h3",
            {"boxes": {"a": "http://a"}},
            HOSTS,
            (PoolSpec(kind="gpu", model="a100", count=1, drawer="c"),),
            site.directory,
        )


def test_two_names_for_one_box_are_noticed(site: Site) -> None:
    url = site.boxes["a"].server.url
    with pytest.raises(ProtocolViolation, match="a and b both list"):
        site.open(boxes={"a": url, "b": url}).read_inventory()


def test_a_host_without_a_port_in_the_box_is_told_before_anything_is_asked(site: Site) -> None:
    fabric = site.open(movable=["a", "b"], hosts={"host1": "0", "host2": "16"})
    site.boxes["a"].ports = dict.fromkeys(GIDS, "0")
    site.boxes["b"].ports = dict.fromkeys(GIDS, "0")
    with pytest.raises(Incompatible, match=r"does not list port 16 of host2; .*to one of: 0, 48"):
        selected(fabric, asked(host="host2"))


def test_a_rehearsal_shows_every_request_and_sends_none(site: Site) -> None:
    fabric = site.open(movable=["a", "b"])
    for box in site.boxes.values():
        box.ports = dict.fromkeys(GIDS, "48")
    site.boxes["b"].ports[GIDS[1]] = "0"  # in the way of a lease of one device
    before = site.places()
    composing, releasing = fabric.preview_requests(selected(fabric, asked()))
    assert [sent.method for sent in (*composing, *releasing)] == ["DELETE", "DELETE", "POST", "DELETE"]
    assert composing[2].body == '{"gep" : "0", "port_gid" : "00h", "dev_gid" : "000500"}'
    assert composing[2].headers == {"Content-Type": "text/plain"}
    assert site.asked == []
    fabric.compose(selected(fabric, asked()))
    assert sorted(site.asked) == sorted((sent.method, sent.body) for sent in composing)
    fabric.release("one")
    assert site.places() == before

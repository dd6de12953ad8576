"""The emulated Matrix by plain requests: it allows what a Matrix allows, and nothing that only this project's adapter would ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from campaign.emulators.catalog import open_emulator
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.liqid import LiqidEmulator
from campaign.emulators.control_planes.server import ControlPlaneServer
from tests.unit.fabrics import liqid_sdk

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "liqid"
PARTS = [("gpu", "a100", 4), ("nvme", "ssd", 1)]
POOL = {"coordinates": {"rack": 0, "shelf": 0, "node": 0}, "fabr_id": 1, "grp_id": 1}


class Matrix:
    """A client that knows the envelope, and nothing else."""

    def __init__(self, parts: Sequence[tuple[str, str, int]] = PARTS, **behaviour: Any) -> None:
        emulator = open_emulator("liqid", build_rack(["host1", "host2"], parts), **behaviour)
        assert isinstance(emulator, LiqidEmulator)
        self.emulator = emulator
        self.server = ControlPlaneServer(emulator, tls=False)
        self.http = httpx.Client(base_url=self.server.url + "/liqid/api/v2/", trust_env=False)
        self.basic = httpx.BasicAuth("campaign", "learn-2-compose")

    def login(self, label: str = "mine") -> None:
        made = self.http.post(f"digest/{label}", auth=self.basic).json()["response"]["data"][0]
        assert made["digest_label"] == label
        self.http.headers["X-API-Key"] = made["digest_key"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The data; or the first error's message, where it is one."""
        answer = self.http.request(method, path, json=body).json()["response"]
        assert (answer["code"] == 0) == (not answer["errors"])
        return answer["errors"][0]["message"] if answer["errors"] else answer["data"]

    def close(self) -> None:
        self.http.close()
        self.server.close()

    # -- shortcuts -------------------------------------------------------------------------------------------------------------

    def group(self) -> Any:
        return self.ask("GET", "group")[0]

    def status(self, path: str, name: str) -> Any:
        return next(each for each in self.ask("GET", f"status/{path}") if each["name"] == name)

    def machine(self, number: int = 1) -> Any:
        (found,) = self.ask("GET", f"machine?mach_id={number}")
        return found

    def make_machine(self, number: int = 1, name: str = "m1") -> Any:
        return self.ask("POST", "machine", {"mach_id": number, "grp_id": 1, "mach_name": name, "fabr_id": 1})

    def pooled(self, *devices: tuple[str, str]) -> None:
        assert self.ask("POST", "pool/edit", POOL) == [POOL]
        for path, name in devices:
            body = {"deviceStatus": self.status(path, name), "group": self.group()}
            assert self.ask("POST", f"predevice/{path}", body) == [{}]
        assert self.ask("POST", "pool/done", POOL) == [{}]

    def relate(self, path: str, name: str, method: str = "POST", number: int = 1) -> Any:
        relator = {"deviceStatus": self.status(path, name), "group": self.group()}
        return self.ask(method, f"relate/{path}", {"groupDeviceRelator": relator, "machine": self.machine(number)})

    def composed(self) -> None:
        """host1 with gpu1, in machine 1."""
        self.make_machine()
        self.pooled(("compute", "host1"), ("gpu", "gpu1"))
        self.ask("POST", "fabric/edit", self.machine())
        assert self.relate("compute", "host1") == [{}]
        assert self.relate("gpu", "gpu1") == [{}]
        assert self.ask("POST", "fabric/reprogram", self.machine()) == [{}]


@pytest.fixture
def matrix() -> Iterator[Matrix]:
    matrix = Matrix()
    matrix.login()
    yield matrix
    matrix.close()


@pytest.fixture
def fresh() -> Iterator[Matrix]:
    matrix = Matrix()
    yield matrix
    matrix.close()


# -- sessions and envelope ----------------------------------------------------------------------------------------------------


def test_a_session_is_needed_and_its_key_alone_is_sent(fresh: Matrix) -> None:
    assert fresh.http.get("group").status_code == 401
    fresh.login()
    assert fresh.ask("GET", "group")[0]["group_name"] == "campaign"
    assert fresh.http.get("group", auth=fresh.basic).status_code == 401
    assert fresh.http.delete("digest/mine", auth=fresh.basic).json()["response"]["code"] == 0
    assert fresh.http.get("group").status_code == 401


@pytest.mark.parametrize(
    ("label", "password", "message"),
    [("slurm", "learn-2-compose", "Permission denied"), ("mine", "wrong", "Bad credentials")],
)
def test_who_may_not_log_in_is_told_with_http_200(label: str, password: str, message: str, fresh: Matrix) -> None:
    answer = fresh.http.post(f"digest/{label}", auth=httpx.BasicAuth("campaign", password))
    assert answer.status_code == 200
    assert answer.json()["response"]["errors"][0]["message"] == message


def test_a_label_is_used_by_one_session_at_a_time(fresh: Matrix) -> None:
    fresh.login()
    assert fresh.http.post("digest/mine", auth=fresh.basic).json()["response"]["code"] != 0
    fresh.http.delete("digest/mine", auth=fresh.basic)
    fresh.login()


@pytest.mark.parametrize(("method", "path"), [("GET", "elsewhere"), ("POST", "pool"), ("GET", "status/toasters")])
def test_other_addresses_are_not_there(method: str, path: str, matrix: Matrix) -> None:
    assert matrix.http.request(method, path).status_code == 404


def test_what_resets_everything_is_a_violation(matrix: Matrix) -> None:
    assert matrix.ask("POST", "group/clear") == "Permission denied"
    assert matrix.emulator.violations == ["POST group/clear"]


def test_objects_have_at_least_the_members_that_the_sdk_sends(matrix: Matrix) -> None:
    recorded = json.loads((DATA / "sdk_relate_gpu.json").read_text())
    matrix.make_machine()
    given = {"deviceStatus": matrix.status("gpu", "gpu1"), "group": matrix.group()}
    for name, value in given.items():
        assert set(recorded["groupDeviceRelator"][name]) <= set(value)
    assert set(recorded["machine"]) <= set(matrix.machine())


# -- the vendor's client ------------------------------------------------------------------------------------------------------


class Sdk:
    """Liqid's public SDK, by its recorded shapes: it understands every answer, and sends back only what it knows."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix

    def ask(self, method: str, path: str, body: Any = None) -> list[Any]:
        bare = path.partition("?")[0]
        asks, gets = liqid_sdk.shapes_of(method, bare)
        sent = None if asks is None else liqid_sdk.read(body, asks, bare)
        answer = self.matrix.http.request(method, path, json=sent)
        while answer.status_code == 202:
            href = answer.json()["response"]["data"][0]["links"][0]["href"]
            answer = httpx.get(href, headers=self.matrix.http.headers)  # as it is, so it must be whole
            if answer.status_code == 404:
                return []
            state = answer.json()["response"]["data"][0]["command_execution_state"]
            if state == "Pending":
                answer = httpx.Response(202, json={"response": {"data": [{"links": [{"href": href}]}]}})
        found = liqid_sdk.answered(answer.json(), gets, f"{method} {path}")
        assert found or method == "GET", f"{method} {path}: no first object"
        return found

    def device(self, path: str) -> Any:
        return self.ask("GET", f"status/{path}?filter=false")[0]

    def group(self, number: int) -> Any:
        return next(each for each in self.ask("GET", "group") if each["grp_id"] == number)

    def machine(self, number: int) -> Any:
        return self.ask("GET", f"machine?mach_id={number}")[0]


@pytest.mark.parametrize("behaviour", [{}, {"async_polls": 1}, {"async_polls": 1, "async_end": "SUCCESS"}])
def test_the_vendors_client_understands_every_answer_and_composes(behaviour: dict[str, Any]) -> None:
    parts = [("gpu", "a100", 2), ("nvme", "ssd", 1), ("nic", "cx6", 1), ("fpga", "u250", 1)]
    matrix = Matrix(parts, **behaviour)
    kinds = ("compute", "gpu", "storage", "network", "fpga")
    try:
        matrix.login()
        sdk = Sdk(matrix)
        for path in ("device/info/cpu", "device/info/gpu", "device/info/ssd", "device/info/link", "device/info/fpga"):
            assert {each["udesc"] for each in sdk.ask("GET", path)} == {""}
        (number,) = sdk.ask("GET", "group/nextid")
        (where,) = sdk.ask("GET", "coordinates")
        (fabric,) = sdk.ask("GET", "fabric/id")
        sdk.ask("POST", "group", {"fabr_id": fabric, "grp_id": number, "group_name": "theirs", "pod_id": -1})
        pool = {"coordinates": where, "fabr_id": fabric, "grp_id": number}
        (mach_id,) = map(int, sdk.ask("GET", "machine/nextid"))
        sdk.ask("POST", "machine", {"mach_id": mach_id, "grp_id": number, "fabr_id": fabric, "mach_name": "m1"})
        sdk.ask("POST", "pool/edit", pool)
        for path in kinds:
            sdk.ask("POST", f"predevice/{path}", {"deviceStatus": sdk.device(path), "group": sdk.group(number)})
        sdk.ask("POST", "pool/done", pool)
        sdk.ask("POST", "fabric/edit", sdk.machine(mach_id))
        for path in kinds:
            relator = {"deviceStatus": sdk.device(path), "group": sdk.group(number)}
            sdk.ask("POST", f"relate/{path}", {"groupDeviceRelator": relator, "machine": sdk.machine(mach_id)})
        sdk.ask("POST", "fabric/reprogram", sdk.machine(mach_id))
        inside = {each["name"] for each in sdk.ask("GET", "predevice") if each["mach_id"] == str(mach_id)}
        assert inside == {"host1", "gpu1", "nvme1", "nic1", "fpga1"}
        (details,) = sdk.ask("GET", f"machine/details/{mach_id}")
        assert (details["gpu-count"], details["storage-drive-count"]) == (1, 1)
        assert sdk.ask("GET", "group/mapper?group-name=theirs") == [number]
        (group,) = sdk.ask("GET", f"group/details/{number}")
        assert (group["total-machines"], group["storage-drive-count"], group["cpu-count"]) == (1, 1, 1)
        # One call: its machines go, and its devices go to the pool of the system.
        sdk.ask("DELETE", f"group/{number}")
        assert sdk.ask("GET", "machine") == []
        assert {each["grp_id"] for each in sdk.ask("GET", "predevice")} == {0}
        assert matrix.emulator.rack.list_free_devices() == list(matrix.emulator.rack.devices)
        assert matrix.emulator.matrix.is_idle
    finally:
        matrix.close()


def test_what_the_vendors_client_asks_about_the_whole_matrix_is_there(matrix: Matrix) -> None:
    sdk = Sdk(matrix)
    (counts,) = sdk.ask("GET", "devices/count")
    assert (counts["comp_cnt"], counts["gpu_cnt"], counts["targ_cnt"], counts["plx_cnt"]) == (2, 4, 1, 0)
    assert len(sdk.ask("GET", "status")) == 7
    assert [each["digest_label"] for each in sdk.ask("GET", "digest")] == ["mine"]
    assert sdk.ask("GET", "version")[0]["version"]
    assert sdk.ask("GET", "coordinates/available")[0]["coordinates"] == POOL["coordinates"]


def test_a_group_is_not_deleted_while_it_is_edited(matrix: Matrix) -> None:
    matrix.ask("POST", "pool/edit", POOL)
    assert matrix.ask("DELETE", "group/1") == "Group 1 is already being edited"


# -- groups -------------------------------------------------------------------------------------------------------------------


def test_devices_enter_a_group_only_while_it_is_edited_and_when_that_is_done(matrix: Matrix) -> None:
    body = {"deviceStatus": matrix.status("gpu", "gpu1"), "group": matrix.group()}
    assert matrix.ask("POST", "predevice/gpu", body) == "Group 1 is not in edit mode"
    matrix.ask("POST", "pool/edit", POOL)
    assert matrix.ask("POST", "pool/edit", POOL) == "Group 1 is already being edited"
    assert matrix.ask("POST", "predevice/gpu", body) == [{}]
    assert matrix.emulator.matrix.devices["gpu1"].group is None
    matrix.ask("POST", "pool/done", POOL)
    assert matrix.ask("GET", "predevice?grp_id=1")[0]["name"] == "gpu1"
    assert "gpu1" not in {each["name"] for each in matrix.ask("GET", "status/gpu?filter=true")}
    assert "gpu1" in {each["name"] for each in matrix.ask("GET", "status/gpu?filter=false")}


def test_what_is_cancelled_did_not_happen(matrix: Matrix) -> None:
    matrix.ask("POST", "pool/edit", POOL)
    body = {"deviceStatus": matrix.status("gpu", "gpu1"), "group": matrix.group()}
    matrix.ask("POST", "predevice/gpu", body)
    assert matrix.ask("POST", "pool/cancel", POOL) == [{}]
    assert matrix.ask("POST", "pool/cancel", POOL) == "Group 1 is not in edit mode"
    assert matrix.emulator.matrix.devices["gpu1"].group is None
    assert matrix.emulator.matrix.is_idle


def test_a_device_is_in_one_group(matrix: Matrix) -> None:
    matrix.pooled(("gpu", "gpu1"))
    assert matrix.ask("GET", "group/nextid") == [2]
    matrix.ask("POST", "group", {"grp_id": 2, "group_name": "other", "fabr_id": 1})
    other = matrix.ask("GET", "group")[1]
    matrix.ask("POST", "pool/edit", POOL | {"grp_id": 2})
    body = {"deviceStatus": matrix.status("gpu", "gpu1"), "group": other}
    assert "belongs to group 1" in matrix.ask("POST", "predevice/gpu", body)


def test_what_is_in_a_machine_does_not_leave_its_group(matrix: Matrix) -> None:
    matrix.composed()
    matrix.ask("POST", "pool/edit", POOL)
    body = {"deviceStatus": matrix.status("gpu", "gpu1"), "group": matrix.group()}
    assert "is not in the free pool of group 1" in matrix.ask("DELETE", "predevice/gpu", body)


# -- machines -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"mach_id": 0}, "Machine id 0"),
        ({"mach_id": 0x4000}, "Machine id 16384"),
        ({"mach_name": "a-b"}, "letters and digits"),
        ({"grp_id": 7}, "Group 7 does not exist"),
    ],
)
def test_machines_have_ids_and_names_within_limits(body: dict[str, Any], message: str, matrix: Matrix) -> None:
    whole = {"mach_id": 1, "grp_id": 1, "mach_name": "m1", "fabr_id": 1}
    assert message in matrix.ask("POST", "machine", whole | body)
    matrix.make_machine()
    assert "Machine id 1" in matrix.make_machine(1, "m2")
    assert "exists already" in matrix.make_machine(2, "m1")


def test_nothing_is_connected_before_the_machine_is_reprogrammed(matrix: Matrix) -> None:
    matrix.make_machine()
    matrix.pooled(("compute", "host1"), ("gpu", "gpu1"))
    assert "is not being edited" in matrix.relate("gpu", "gpu1")
    matrix.ask("POST", "fabric/edit", matrix.machine())
    matrix.relate("compute", "host1")
    matrix.relate("gpu", "gpu1")
    assert matrix.emulator.rack.list_attached_devices("host1") == []
    assert matrix.ask("GET", "predevice?mach_id=1") == []
    matrix.ask("POST", "fabric/reprogram", matrix.machine())
    assert [device.name for device in matrix.emulator.rack.list_attached_devices("host1")] == ["gpu1"]
    assert {each["name"] for each in matrix.ask("GET", "predevice?mach_id=1")} == {"host1", "gpu1"}
    assert matrix.ask("GET", "machine/details/1")[0]["gpu-count"] == 1


def test_one_machine_is_edited_at_a_time_and_cancelling_reverts(matrix: Matrix) -> None:
    matrix.make_machine()
    matrix.make_machine(2, "m2")
    matrix.pooled(("gpu", "gpu1"))
    matrix.ask("POST", "fabric/edit", matrix.machine())
    matrix.relate("gpu", "gpu1")
    assert matrix.ask("POST", "fabric/edit", matrix.machine(2)) == "Machine 0x0001 is already being edited"
    assert matrix.ask("DELETE", "machine/1") == "Machine 0x0001 is already being edited"
    assert matrix.ask("POST", "fabric/edit/cancel", matrix.machine()) == [matrix.machine()]
    assert matrix.ask("GET", "predevice?mach_id=1") == []
    assert matrix.emulator.matrix.is_idle


def test_objects_must_come_back_whole_and_may_have_more(matrix: Matrix) -> None:
    matrix.make_machine()
    machine = matrix.machine()
    lacking = {name: value for name, value in machine.items() if name != "port_gid"}
    assert matrix.ask("POST", "fabric/edit", lacking) == "Machine is not whole: port_gid"
    assert matrix.ask("POST", "fabric/edit", machine | {"compName": "m1", "more": 1})[0]["mach_id"] == 1


def test_a_device_is_asked_for_under_its_type(matrix: Matrix) -> None:
    matrix.ask("POST", "pool/edit", POOL)
    body = {"deviceStatus": matrix.status("gpu", "gpu1"), "group": matrix.group()}
    assert matrix.ask("POST", "predevice/storage", body) == "Device gpu1 is not of type storage"


def test_a_machine_has_one_compute_device(matrix: Matrix) -> None:
    matrix.make_machine()
    matrix.pooled(("compute", "host1"), ("compute", "host2"))
    matrix.ask("POST", "fabric/edit", matrix.machine())
    matrix.relate("compute", "host1")
    matrix.relate("compute", "host2")
    assert "2 compute devices" in matrix.ask("POST", "fabric/reprogram", matrix.machine())


def test_deleting_a_machine_leaves_its_devices_in_the_group(matrix: Matrix) -> None:
    matrix.composed()
    assert matrix.ask("DELETE", "machine/1") == [{}]
    assert matrix.emulator.rack.list_attached_devices("host1") == []
    assert {each["name"] for each in matrix.ask("GET", "predevice?grp_id=1")} == {"host1", "gpu1"}
    assert matrix.ask("DELETE", "machine/1") == "Machine 1 does not exist"


def test_devices_are_taken_out_one_by_one_too(matrix: Matrix) -> None:
    matrix.composed()
    matrix.ask("POST", "fabric/edit", matrix.machine())
    assert matrix.relate("gpu", "gpu1", "DELETE") == [{}]
    assert len(matrix.emulator.rack.list_attached_devices("host1")) == 1
    matrix.ask("POST", "fabric/reprogram", matrix.machine())
    assert matrix.emulator.rack.list_attached_devices("host1") == []
    assert {each["name"] for each in matrix.ask("GET", "predevice?mach_id=1")} == {"host1"}


def test_descriptions_are_kept_by_type_and_id(matrix: Matrix) -> None:
    assert matrix.ask("PUT", "device/udesc/gpu/0x00001001", {"udesc": "mine"}) == [{"udesc": "mine"}]
    assert matrix.ask("GET", "device/info/gpu")[0]["udesc"] == "mine"
    assert "does not exist" in matrix.ask("PUT", "device/udesc/comp/0x00001001", {"udesc": "mine"})
    matrix.ask("DELETE", "device/udesc/gpu/0x00001001")
    assert matrix.ask("GET", "device/info/gpu")[0]["udesc"] == ""


def test_hosts_are_powered_by_group_and_machine_without_a_body(matrix: Matrix) -> None:
    matrix.make_machine()
    assert matrix.ask("PUT", "power/reboot/1/1") == [{}]
    assert "expected" in matrix.ask("PUT", "power/reboot/2/1")
    assert "expected" in matrix.ask("PUT", "power/reboot/1/1", {"mach_id": 1})
    assert matrix.emulator.power == [("reboot", 1, 1)]


# -- by and by ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "last", "done"),
    [("404", (404, None), True), ("SUCCESS", (200, "SUCCESS"), True), ("FAILURE", (200, "FAILURE"), False)],
)
def test_commits_are_done_when_they_were_asked_about_often_enough(
    end: str, last: tuple[int, str | None], done: bool
) -> None:
    matrix = Matrix(async_polls=2, async_end=end)
    try:
        matrix.login()
        matrix.ask("POST", "pool/edit", POOL)
        matrix.ask("POST", "predevice/gpu", {"deviceStatus": matrix.status("gpu", "gpu1"), "group": matrix.group()})
        begun = matrix.http.post("pool/done", json=POOL)
        assert begun.status_code == 202
        href = begun.json()["response"]["data"][0]["links"][0]["href"]
        for _ in range(2):
            state = matrix.http.get(href).json()["response"]["data"][0]
            assert state["command_execution_state"] == "Pending"
            assert matrix.emulator.matrix.devices["gpu1"].group is None
        answer = matrix.http.get(href)
        data = answer.json()["response"]["data"]
        assert (answer.status_code, data[0]["command_execution_state"] if data else None) == last
        assert (matrix.emulator.matrix.devices["gpu1"].group == 1) == done
    finally:
        matrix.close()

"""Programs of others judge the emulated Redfish service and the adapter: clients, a conformance test, and a server of trees.

Skipped where they are not installed: redfish, sushy, sushy-tools, redfish-protocol-validator (the test extra has them).
"""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.redfish import RedfishEmulator, ServiceVariant, open_emulator
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest
from campaign.fabrics import open_fabric
from campaign.fabrics.adapters.redfish.compose import HostPower
from campaign.fabrics.adapters.redfish.service import RedfishOptions, RedfishService
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.protocol import LeaseRequest
from campaign.spec.site_hardware import HostSpec
from tests.unit.fabrics.redfish_bench import wanted

BLOCKS = "/redfish/v1/CompositionService/ResourceBlocks"
SYSTEMS = "/redfish/v1/Systems"
PASSWORD = ServiceVariant().password


@pytest.fixture
def emulator() -> RedfishEmulator:
    return open_emulator(build_rack(["host1", "host2"], [("gpu", "a100", 4), ("nvme", "ssd", 1)]), sessions_max=64)


@pytest.fixture
def server(emulator: RedfishEmulator, tmp_path: Path) -> Iterator[ControlPlaneServer]:
    with ControlPlaneServer(emulator, tmp_path) as running:
        yield running


def links(*names: str) -> dict[str, Any]:
    return {"ResourceBlocks": [{"@odata.id": f"{BLOCKS}/{name}"} for name in names]}


def test_the_client_of_the_standards_body_composes(server: ControlPlaneServer, emulator: RedfishEmulator) -> None:
    redfish = pytest.importorskip("redfish")
    client = redfish.redfish_client(
        base_url=server.url, username="campaign", password=PASSWORD, cafile=str(server.ca_file)
    )
    client.login(auth="session")
    assert client.get(BLOCKS).dict["Members@odata.count"] == 7
    made = client.post(SYSTEMS, body={"Name": "theirs", "Links": links("host1", "gpu1")})
    assert made.status == 201
    at = made.getheader("Location")
    assert client.get(f"{BLOCKS}/gpu1").dict["CompositionStatus"]["CompositionState"] == "Composed"
    again = client.post(SYSTEMS, body={"Name": "more", "Links": links("host2", "gpu1")})
    assert again.status == 409
    assert again.dict["error"]["@Message.ExtendedInfo"][0]["MessageId"].endswith(".ResourceBlockInUse")
    assert client.delete(at).status == 204
    assert emulator.rack.list_free_devices() == list(emulator.rack.devices)
    client.logout()
    assert emulator.access.sessions == {}


def test_a_client_of_an_openstack_project_reads_and_switches(
    server: ControlPlaneServer, emulator: RedfishEmulator
) -> None:
    sushy = pytest.importorskip("sushy")
    resourceblock = pytest.importorskip("sushy.resources.compositionservice.resourceblock")
    emulator.composition.compose_system("theirs", "", ["host1", "gpu1"])
    # With a session it would end it whenever it is collected as garbage, and wait half a minute for a server that is gone.
    auth = pytest.importorskip("sushy.auth").BasicAuth("campaign", PASSWORD)
    root = sushy.Sushy(server.url, auth=auth, verify=str(server.ca_file))
    (system,) = root.get_system_collection().get_members()
    assert (system.name, system.power_state) == ("theirs", sushy.POWER_STATE_ON)
    system.reset_system(sushy.RESET_FORCE_OFF)
    assert emulator.composition.systems["1"].power_next == "Off"
    service = root.get_composition_service()
    assert service.service_enabled
    # Its own property for the collection of blocks cannot be read in release 5.14.
    blocks = resourceblock.ResourceBlockCollection(
        service._conn,
        BLOCKS,
        redfish_version=service.redfish_version,
        registries=service.registries,
        root=service.root,
    ).get_members()
    states = {block.identity: block.composition_status.composition_state.value for block in blocks}
    assert states == {name: "Composed" if name in ("host1", "gpu1") else "Unused" for name in states}
    assert len(states) == 7


# Looks for services in the network, which nobody asked of a test, and waits for them for twenty seconds.
_VALIDATE = """
from redfish_protocol_validator import console_scripts, utils
utils.discover_ssdp = lambda *arguments, **options: {}
console_scripts.main()
"""


def test_the_protocol_validator_finds_no_fault(server: ControlPlaneServer, tmp_path: Path) -> None:
    pytest.importorskip("redfish_protocol_validator")
    command = [sys.executable, "-c", _VALIDATE, "--rhost", server.url, "-u", "campaign", "-p", PASSWORD]
    command += ["--ca-bundle", str(server.ca_file), "--avoid-http-redirect", "--report-type", "tsv"]
    subprocess.run(
        [*command, "--report-dir", str(tmp_path / "report")],
        env=os.environ | {"REQUESTS_CA_BUNDLE": str(server.ca_file)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=120,
    )
    (report,) = (tmp_path / "report").glob("*.tsv")
    with report.open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    verdicts = [cell for row in rows for cell in row if cell in ("PASS", "FAIL", "WARN", "NOT_TESTED")]
    # It has one account, and no service to administer more.
    assert {row[0] for row in rows if "FAIL" in row} == {"SEC_PRIV_SUPPORT_PREDEFINED_ROLES"}
    assert verdicts.count("PASS") > 150


# -- a server of others ----------------------------------------------------------------------------------------------------


def tree(emulator: RedfishEmulator, directory: Path) -> None:
    """Everything that the emulator answers to a GET, as the files that servers of trees serve."""
    waiting, seen = ["/redfish/v1"], set[str]()
    while waiting:
        path = waiting.pop().rstrip("/")
        if path in seen:
            continue
        seen.add(path)
        reply = emulator.answer(HttpRequest("GET", path, {}, {}, None, ""))
        assert reply.status == 200, path
        place = directory / path.removeprefix("/redfish/v1").strip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "index.json").write_text(json.dumps(_plain(reply.body)))
        waiting += [found for found in references(reply.body) if found.startswith("/redfish/v1")]


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Without what such a server cannot do: it has files, no queries."""
    return {name: value for name, value in document.items() if name != "ProtocolFeaturesSupported"}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("@odata.id"), str):
            yield value["@odata.id"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


@pytest.fixture
def static(tmp_path: Path) -> Iterator[tuple[str, RedfishEmulator]]:
    """A foreign server of a tree that the emulator has written, with one system composed."""
    pytest.importorskip("sushy_tools")
    emulator = open_emulator(build_rack(["host1", "host2"], [("gpu", "a100", 4), ("nvme", "ssd", 1)]), auth=False)
    emulator.composition.compose_system("theirs", "", ["host2", "gpu2"])
    emulator.composition.reserved.add("gpu3")
    tree(emulator, tmp_path / "tree")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = "import sys; from sushy_tools.static.main import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "-i", "127.0.0.1", "-p", str(port), "-m", str(tmp_path / "tree")]
    with (tmp_path / "static.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            await_answer(f"{url}/redfish/v1", process, tmp_path / "static.log")
            yield url, emulator
        finally:
            process.terminate()


FAKE_SYSTEM = """
SUSHY_EMULATOR_FAKE_DRIVER = True
SUSHY_EMULATOR_FAKE_SYSTEMS = [
    {"uuid": "8d35cd2b-9a0a-4c24-8a4c-3e4d3f1b6a11", "name": "host1", "power_state": "On", "nics": []}
]
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[str]:
    """A foreign server of one machine that can be switched, which takes its time; gives its address."""
    pytest.importorskip("sushy_tools")
    (tmp_path / "fake.conf").write_text(FAKE_SYSTEM)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = "import sys; from sushy_tools.emulator.main import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        script,
        "-i",
        "127.0.0.1",
        "-p",
        str(port),
        "--config",
        str(tmp_path / "fake.conf"),
    ]
    with (tmp_path / "fake.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            await_answer(f"{url}/redfish/v1", process, tmp_path / "fake.log")
            yield url
        finally:
            process.terminate()


def test_a_machine_of_others_is_switched_off(machine: str) -> None:
    """It takes up to eleven seconds, by chance; switching on is the same request."""
    options = RedfishOptions(url=machine, attach_mode="powered_off", poll_s=0.05, auth="basic")
    service = RedfishService(HttpClient(options), options.auth)
    (system,) = service.read_members(SYSTEMS)
    path = system["@odata.id"]
    power = HostPower(service, options)
    with service.client.limit_time(60):
        power.switch_off(path)
        assert service.get_resource(path)["PowerState"] == "Off"
    service.client.close()


def await_answer(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{url}: {error}") from error
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)


def test_a_server_of_others_is_read_as_our_own(static: tuple[str, RedfishEmulator], tmp_path: Path) -> None:
    url, emulator = static
    hosts = [HostSpec(name=name, cores=8, memory_gib=32.0) for name in ("host1", "host2")]
    theirs = open_fabric("redfish", {"url": url}, hosts, [], tmp_path / "theirs")
    found = theirs.read_inventory()
    with ControlPlaneServer(emulator, tls=False) as server:
        ours = open_fabric("redfish", {"url": server.url}, hosts, [], tmp_path / "ours")
        expected = ours.read_inventory()
        ours.close()
    theirs.close()
    # A service without $expand is asked for parts once, and what changes of them is not told: links.
    assert [(d.fabric_id, d.model, d.host_id, d.state, d.holder, d.attached_to, d.location) for d in found.devices] == [
        (d.fabric_id, d.model, d.host_id, d.state, d.holder, d.attached_to, d.location) for d in expected.devices
    ]
    assert found.hosts == expected.hosts
    assert {d.fabric_id: d.state for d in found.devices} == {
        "gpu1": "free",
        "gpu2": "in_use",
        "gpu3": "reserved",
        "gpu4": "free",
        "nvme1": "free",
    }


def test_a_server_that_says_yes_and_does_nothing_is_not_believed(
    static: tuple[str, RedfishEmulator], tmp_path: Path
) -> None:
    url, _ = static  # it answers 204 to every POST and PATCH
    fabric = open_fabric(
        "redfish", {"url": url}, [HostSpec(name="host1", cores=8, memory_gib=32.0)], [], tmp_path / "theirs"
    )
    request = LeaseRequest("one", "demo", "tester", wanted(1))
    fabric.compose(fabric.select_devices(request, fabric.read_inventory()))
    composition = fabric.read_back("one")
    assert composition is not None
    assert composition.list_shortfalls(request.configuration) == ("host1: 0 devices obtained, 1 requested",)
    assert fabric.release("one") == ()
    fabric.close()

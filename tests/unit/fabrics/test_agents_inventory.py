"""A service of the site that tells what hosts enumerate: read over TLS, and never believed when it makes no sense."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError, FabricError
from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply, WireFault
from campaign.fabrics.host_agents import AgentOptions, open_agent
from campaign.fabrics.host_agents.protocol import HostAgent, HostBusy
from campaign.spec.hardware import Link


class Site:
    """A service that answers whatever it is told to; the hosts' own part of the server is the rack's."""

    def __init__(self) -> None:
        self.rack: Rack = build_rack(["c1", "c2"], [("gpu", "a100", 4), ("nvme", "ssd", 2)])
        self.reply = Reply(200, [])

    def answer(self, asked: HttpRequest) -> Reply:
        return self.reply


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlPlaneServer]:
    with ControlPlaneServer(Site(), tmp_path) as server:
        yield server


def agent(server: ControlPlaneServer, path: str = "/_hosts/{host}/devices", **options: Any) -> HostAgent:
    fields = {"kind": "http", "url": server.url + path, "ca_file": str(server.ca_file)} | options
    opened = open_agent(AgentOptions(**fields), 1)
    assert opened is not None
    return opened


def test_it_tells_what_the_rack_has_attached(server: ControlPlaneServer) -> None:
    hardware = server.emulator.rack
    looks = agent(server)
    assert looks.list_devices("c1") == ()
    hardware.attach("gpu1", "c1")
    hardware.attach("nvme1", "c1")
    gpu, drive = looks.list_devices("c1")
    assert (gpu.identity, gpu.kind, gpu.model, gpu.link) == (
        f"GPU-{hardware.devices['gpu1'].uuid}",
        "gpu",
        "a100",
        Link(16, 4, 16, 4),
    )
    assert (drive.identity, drive.kind) == (hardware.devices["nvme1"].serial, "nvme")
    assert looks.list_devices("c2") == ()
    looks.close()


def test_a_host_that_it_does_not_know_is_an_error_and_its_name_stays_one_word(server: ControlPlaneServer) -> None:
    with pytest.raises(
        FabricError,
        match=r"GET https.*/_hosts/mars/devices: the service refuses the request: HTTP 404 .*hosts are c1, c2",
    ):
        agent(server).list_devices("mars")
    with pytest.raises(FabricError, match="404"):
        agent(server).list_devices("c2/../c1")
    assert server.log[-1].path == "/_hosts/c2%2F..%2Fc1/devices"


NONSENSE: list[Any] = [
    None,
    "",
    "<html>",
    500,
    {"devices": []},
    ["GPU-1"],
    [{}],
    [{"identity": 7}],
    [{"identity": "GPU-1", "kind": None}],
    [{"identity": "GPU-1", "ready": "no"}],
    [{"identity": "GPU-1", "link": {"width": 16}}],
    [{"identity": "GPU-1", "link": {"width": "16", "gen": 4, "width_max": 16, "gen_max": 4}}],
    [{"identity": "GPU-1", "link": "x16"}],
    [{"identity": "GPU-1", "users": "alice"}],
    "[" * 100_000,
]


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
def test_what_describes_no_devices_is_an_error_that_names_the_address(body: Any, server: ControlPlaneServer) -> None:
    assert isinstance(server.emulator, Site)
    server.emulator.reply = Reply(200, body)
    with pytest.raises(
        FabricError, match=r"/site/c1: (the answer is not a JSON list of devices|an entry is not a valid device)"
    ):
        agent(server, "/site/{host}").list_devices("c1")


def test_members_that_are_not_known_and_those_that_lack_are_no_error(server: ControlPlaneServer) -> None:
    assert isinstance(server.emulator, Site)
    server.emulator.reply = Reply(200, [{"identity": "GPU-1", "colour": "blue", "link": None, "users": None}])
    (device,) = agent(server, "/site/{host}").list_devices("c1")
    assert (device.identity, device.address, device.kind, device.link, device.ready) == ("GPU-1", "", "gpu", None, True)


def test_users_that_it_tells_of_keep_a_device(server: ControlPlaneServer) -> None:
    assert isinstance(server.emulator, Site)
    entries = [{"identity": "GPU-AB", "users": ["pid 4711 python"]}, {"identity": "GPU-CD"}]
    server.emulator.reply = Reply(200, entries)
    looks = agent(server, "/site/{host}")
    used, free = looks.list_devices("c1")
    looks.detach("c1", [free])
    looks.detach("c1", [])
    with pytest.raises(HostBusy, match="c1: devices are in use: GPU-AB by pid 4711 python") as caught:
        looks.detach("c1", [free, replace(used, model="x")])
    assert caught.value.holders == ("pid 4711 python",)
    looks.detach("c1", [used], force=True)
    server.emulator.reply = Reply(200, [entries[1]])
    looks.list_devices("c1")
    looks.detach("c1", [used])
    server.emulator.reply = Reply(200, entries)
    with pytest.raises(HostBusy):  # whoever has not looked yet does
        agent(server, "/site/{host}").detach("c1", [used])
    assert server.list_changes() == []


def test_redirects_and_failures_are_refused(server: ControlPlaneServer) -> None:
    assert isinstance(server.emulator, Site)
    for status in (302, 401, 500, 503):
        server.emulator.reply = Reply(status, "[]", {"Location": "/site/c1"})
        with pytest.raises(FabricError, match=f"refuses the request: HTTP {status}"):
            agent(server, "/site/{host}").list_devices("c1")


def test_nobody_there_and_a_foreign_certificate_are_errors(server: ControlPlaneServer) -> None:
    with pytest.raises(FabricError, match="the certificate cannot be verified"):
        agent(server, ca_file=None).list_devices("c1")
    looks = agent(server)
    server.close()
    with pytest.raises(FabricError, match=r"https.*: the service cannot be reached \(Connection refused"):
        looks.list_devices("c1")


def test_an_answer_that_takes_too_long_or_is_cut_is_an_error(server: ControlPlaneServer) -> None:
    assert isinstance(server.emulator, Site)
    server.emulator.reply = Reply(200, [{"identity": "GPU-1"}] * 20)
    server.faults.add_fault(WireFault("slow", delay_s=0.02))
    with pytest.raises(FabricError, match=r"no complete answer arrived within 0\.3 s"):
        agent(server, "/site/{host}", look_s=0.3).list_devices("c1")
    server.faults.add_fault(WireFault("delay", delay_s=1))
    with pytest.raises(FabricError, match=r"no complete answer arrived within"):
        agent(server, "/site/{host}", look_s=0.3).list_devices("c1")
    server.faults.add_fault(WireFault("garbage", times=-1))
    with pytest.raises(FabricError, match=r"expected|broken|ended"):
        agent(server, "/site/{host}").list_devices("c1")
    server.faults.clear_faults()
    assert len(agent(server, "/site/{host}").list_devices("c1")) == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs a url"),
        ({"url": "https://inventory.example/devices"}, r"url: .* \{host\}"),
        ({"url": "ftp://inventory.example/{host}"}, "must be an http"),
        ({"url": "https://x.example/{host}", "ca_file": "/no/such/file"}, "ca_file: /no/such/file: .*No such file"),
        ({"url": "https://x.example/{host}", "ca_file": __file__}, "no certificates"),
        ({"url": "https://user:word@x.example/{host}"}, "must not contain a user"),
    ],
)
def test_options_that_do_not_say_enough(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_agent(AgentOptions(kind="http", **options), 1)

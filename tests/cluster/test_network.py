"""Emulated hosts move real bytes at the rates they were given, as root and as nobody, and leave nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from campaign.common.errors import LaunchError
from campaign.emulators.hosts import network
from campaign.emulators.hosts.network import EmulatedHost, EmulationSpec, LinkRates, check_availability, emulate_hosts
from tests.cluster.probe import prefix

_REPOSITORY = Path(__file__).resolve().parents[2]
Person = tuple[list[str], str]

pytestmark = pytest.mark.usefixtures("hosts_can_be_emulated")


def hosts(*shape: tuple[int, int]) -> tuple[EmulatedHost, ...]:
    return tuple(
        EmulatedHost(name=f"host{i}", local_devices=local, fabric_devices=fabric)
        for i, (local, fabric) in enumerate(shape)
    )


MIXED = EmulationSpec(
    hosts=hosts((2, 2), (1, 1)), rates=LinkRates(fabric_gb_per_s=10, network_gb_per_s=20, scale=0.001)
)
"""Ranks: 0 1 on host0, 2 3 on its fabric; 4 on host1, 5 on its fabric. Fabric 0.08, network 0.16 Gbit/s."""


def asked(person: Person, tmp_path: Path, specs: Sequence[EmulationSpec], *words: str) -> dict[str, object]:
    """What the probe prints when that person starts it."""
    become, python = person
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(parent.stat().st_mode | 0o055)
    file = tmp_path / "specs.json"
    file.write_text(json.dumps([spec.model_dump(mode="json") for spec in specs]))
    done = subprocess.run(
        [*become, python, "-m", "tests.cluster.probe", words[0], str(file), *words[1:]],
        capture_output=True,
        text=True,
        cwd=_REPOSITORY,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("sender", "receiver", "gbit_per_s"),
    [(0, 4, 0.16), (0, 2, 0.08), (2, 3, 0.08), (2, 5, 0.08)],
    ids=["across the network", "host to its fabric", "fabric to fabric", "fabric to another host's fabric"],
)
def test_a_stream_moves_what_its_slowest_link_allows(
    person: Person, tmp_path: Path, sender: int, receiver: int, gbit_per_s: float
) -> None:
    size = round(gbit_per_s * 1e9 / 8)
    answer = asked(person, tmp_path, [MIXED], "stream", str(sender), str(receiver), str(size))
    assert answer["gbit_per_s"] == [pytest.approx(gbit_per_s, rel=0.25)]
    assert answer["mode"] == ("root" if answer["user"] == 0 else "user namespace")


def test_the_network_carries_what_the_ring_of_a_training_step_sends(tmp_path: Path) -> None:
    whoever: Person = ([], sys.executable)
    spec = EmulationSpec(hosts=hosts((2, 0), (2, 0)), rates=LinkRates(network_gb_per_s=20, scale=0.01))
    counted = asked(whoever, tmp_path, [spec], "bytes")["bytes"]
    assert isinstance(counted, dict)
    # One rank of each host sends to the other host, and TCP adds its headers and answers.
    assert counted["sent"] == pytest.approx(counted["of_rank"], rel=0.05)


def test_devices_of_one_host_talk_freely(person: Person, tmp_path: Path) -> None:
    answer = asked(person, tmp_path, [MIXED], "stream", "0", "1", str(64 << 20))
    rates = answer["gbit_per_s"]
    assert isinstance(rates, list)
    assert rates[0] > 1.0


def test_rates_of_local_fabric_and_network_links_stand_in_their_ratio(person: Person, tmp_path: Path) -> None:
    """A host with two local devices and one on its fabric, and a second host."""
    rates = LinkRates(local_gb_per_s=40, fabric_gb_per_s=10, network_gb_per_s=20, scale=0.001)
    spec = EmulationSpec(hosts=hosts((2, 1), (1, 0)), rates=rates)

    def measured() -> dict[str, float]:
        words = [word for to, size in (("1", 16), ("2", 4), ("3", 8)) for word in ("0", to, f"{size}000000")]
        streams = asked(person, tmp_path, [spec], "stream", *words)["gbit_per_s"]
        assert isinstance(streams, list)
        return dict(zip(("local", "fabric", "network"), streams, strict=True))

    for _ in range(3):  # what else the machine does only makes streams slower
        found = measured()
        ratios = (found["local"] / found["network"], found["network"] / found["fabric"])
        if ratios == pytest.approx((2, 2), rel=0.05):
            break
    assert ratios == pytest.approx((2, 2), rel=0.05), found
    assert found["local"] == pytest.approx(0.32, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("person", ["nobody"], indirect=True)
def test_training_slows_with_every_link_on_its_way(person: Person, tmp_path: Path) -> None:
    """Four ranks. On one host no link, on more hosts the network, behind the fabric a slower one.

    The same of root's hosts: test_training_campaign.
    """
    rates = LinkRates(fabric_gb_per_s=12.235, network_gb_per_s=25.0, scale=0.001)
    shapes = {"1x4": hosts((4, 0)), "2x2": hosts((2, 0), (2, 0)), "4x1": hosts(*[(1, 0)] * 4), "fabric": hosts((0, 4))}
    answer = asked(person, tmp_path, [EmulationSpec(hosts=shape, rates=rates) for shape in shapes.values()], "steps")
    times = answer["step_times_s"]
    assert isinstance(times, list)
    # The fastest: what else the machine does only makes steps longer.
    step_s = {name: min(each) for name, each in zip(shapes, times, strict=True)}
    print(step_s)
    assert step_s["1x4"] * 1.2 < step_s["2x2"]
    # A ring crosses each host's link once each way, however many ranks the host has: 2x2 and 4x1 load their links alike.
    assert step_s["1x4"] * 1.2 < step_s["4x1"] < step_s["fabric"]
    assert step_s["2x2"] < step_s["fabric"]


def test_a_rank_has_the_address_under_which_others_reach_it() -> None:
    with emulate_hosts(MIXED) as emulation:
        seen = [
            json.loads(
                subprocess.run(
                    [*prefix(emulation, rank), "ip", "-j", "-4", "address", "show", "eth0"], capture_output=True
                ).stdout
            )
            for rank in (0, 2, 4)
        ]
        addresses = [interface[0]["addr_info"][0]["local"] for interface in seen]
        assert addresses == [emulation.get_rank_address(rank) for rank in (0, 2, 4)]
        with pytest.raises(LaunchError, match="6 devices"):
            emulation.get_rank_address(6)


def outside() -> tuple[list[str], str, list[str]]:
    """What a process outside can see of network and mounts; without the interfaces of other tests' clusters."""
    shown = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    links = [line for line in shown.splitlines() if not re.match(r"\d+: campaign\d", line)]
    here = [path.name for path in Path("/run").glob("netns")]
    return links, Path("/proc/self/mounts").read_text(), here


def gone(pid: int, patience_s: float = 5.0) -> bool:
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_nothing_is_seen_outside_and_nothing_is_left() -> None:
    before = outside()
    with emulate_hosts(MIXED) as emulation:
        assert outside() == before
        keeper = int(prefix(emulation, 0)[-2].split("/")[2])
        left = subprocess.Popen(
            [*prefix(emulation, 2), "sh", "-c", "echo in; sleep 1000"], stdout=subprocess.PIPE, text=True
        )
        assert left.stdout is not None
        assert left.stdout.readline() == "in\n"
    assert left.wait(5) == -signal.SIGKILL
    assert gone(keeper)
    assert outside() == before


def test_an_error_inside_the_block_ends_it_too() -> None:
    def fails() -> None:
        with emulate_hosts(MIXED) as emulation:
            started.append(subprocess.Popen([*prefix(emulation, 0), "sleep", "1000"]))
            raise RuntimeError("on the way")

    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(RuntimeError, match="on the way"):
        fails()
    # Killed, or it did not find the namespace any more: it may not have come so far yet.
    assert started[0].wait(5) != 0


_OWNER = """
import subprocess, sys, time
from campaign.emulators.hosts.network import emulate_hosts
from campaign.emulators.hosts.topology import EmulationSpec
from tests.cluster.probe import prefix
with emulate_hosts(EmulationSpec.model_validate_json(sys.argv[1])) as emulation:
    rank = subprocess.Popen([*prefix(emulation, 2), "sleep", "1000"])
    print(prefix(emulation, 0)[-2].split("/")[2], rank.pid, flush=True)
    time.sleep(1000)
"""


def test_an_owner_that_is_killed_leaves_nothing() -> None:
    before = outside()
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, MIXED.model_dump_json()], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    keeper, rank = map(int, owner.stdout.readline().split())
    owner.kill()
    owner.wait()
    assert gone(keeper)
    assert gone(rank)
    assert outside() == before


def test_a_setup_that_fails_halfway_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = outside()
    good = network.find_program
    # The links are made, and then nothing shapes them.
    monkeypatch.setattr(network, "find_program", lambda name: "/bin/false" if name == "tc" else good(name))
    with pytest.raises(network.EmulationUnavailable, match="/bin/false"), emulate_hosts(MIXED):
        pytest.fail("not reached")
    assert outside() == before


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(network, "_ADMIN_PATHS", ())
    with pytest.raises(network.EmulationUnavailable, match="`ip`, which is not installed"), emulate_hosts(MIXED):
        pytest.fail("not reached")


def test_a_kernel_that_refuses_is_quoted_with_its_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "unprivileged_userns_clone"
    switch.write_text("0\n")
    monkeypatch.setattr(network, "_KERNEL_SWITCHES", {str(switch): ("0", "sysctl kernel.unprivileged_userns_clone=1")})
    said = network.format_refusal("a user namespace: Operation not permitted", "kernel")
    assert "Operation not permitted" in said
    assert "sysctl kernel.unprivileged_userns_clone=1" in said


def test_availability_says_how() -> None:
    assert check_availability().mode == ("root" if os.geteuid() == 0 else "user namespace")

"""Each command that may change hardware, ended by each signal while the control plane is at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.cli.cluster import read_system_file
from campaign.common.processes.signals import ENDING_SIGNALS
from campaign.emulators.control_planes.server import WireFault
from campaign.lease.campaign_leases import Site
from tests.unit.cli.test_fabric_commands import Place

SLOW_S = 60.0  # only spent when something is broken


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A Falcon box whose devices are all attached, so that a device that goes to another host is moved aside first; or a kind."""
    kind = getattr(request, "param", "h3")
    found = Place(tmp_path, kind, attached="all") if kind == "h3" else Place(tmp_path, kind)
    if kind == "h3":
        found.write(poll_s=0)
    yield found
    found.server.close()


def attachments(place: Place) -> dict[str, object]:
    return {name: device.attached_to for name, device in place.rack.devices.items()}


def started(place: Place, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "campaign.cli", *words, "--results", str(place.directory / "results")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place.directory)


def words_of(place: Place, command: str) -> list[str]:
    """Return the arguments of a command; what must be held before it is composed here."""
    system, campaign = str(place.path), ["--campaign", str(place.campaign)]
    with Site(read_system_file(system), place.directory / "results").open_fabric() as fabric:
        device = next(d.fabric_id for d in fabric.read_inventory().devices if d.attached_to != "host1")
    if command in ("release", "release --orphans", "fabric reconcile"):
        assert place.compose().exit_code == 0
    if command in ("release --orphans", "fabric reconcile"):  # the lease is one that nobody keeps
        for mark in (place.directory / "results").rglob("*.kept"):
            mark.unlink()
    return {
        "compose": ["compose", "pair", *campaign],
        "release": ["release", "pair", *campaign],
        "release --orphans": ["release", "--orphans", *campaign],
        "fabric check": ["fabric", "check", system, "--yes"],
        "fabric record": ["fabric", "record", system, "--yes", "--trial", device, "host1"],
        "fabric reconcile": ["fabric", "reconcile", system, "--release", "--grace", "0"],
    }[command]


COMMANDS = ["compose", "release", "release --orphans", "fabric check", "fabric record", "fabric reconcile"]


def choose_signals(place: int) -> tuple[signal.Signals, ...]:
    """Choose the signals for the command at a place: all for the first, one that rotates for others, unless CAMPAIGN_EXPLORE=1."""
    if place == 0 or "CAMPAIGN_EXPLORE" in os.environ:
        return tuple(ENDING_SIGNALS)
    return (tuple(ENDING_SIGNALS)[place % len(ENDING_SIGNALS)],)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(command, number, id=f"{command}-{number.name}")
        for place, command in enumerate(COMMANDS)
        for number in choose_signals(place)
    ],
)
def test_a_command_that_is_ended_leaves_each_device_where_it_was(
    command: str, number: signal.Signals, place: Place
) -> None:
    before = attachments(place)
    words = words_of(place, command)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        place.server.faults.add_fault(WireFault("delay", method, "*", -1, delay_s=0.3))
    count, until = len(place.server.list_changes()), time.monotonic() + SLOW_S
    with started(place, *words) as process:
        while len(place.server.list_changes()) <= count:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(number)
        said = process.communicate(timeout=SLOW_S)[0]
    assert process.returncode == 128 + number, said
    assert f"ended by {number.name}" in said
    assert attachments(place) == before, said
    place.server.faults.clear_faults()
    assert place.fabric("reconcile", "--grace", "0").output == "no lease was left behind\n"


@pytest.mark.parametrize("place", ["h3", "redfish", "liqid"], indirect=True)
@pytest.mark.parametrize("command", ["compose", "fabric check", "fabric record"])
def test_what_a_killed_command_leaves_is_found_and_given_back(command: str, place: Place) -> None:
    before = attachments(place)
    words = words_of(place, command)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        place.server.faults.add_fault(WireFault("delay", method, "*", -1, delay_s=0.3))
    until = time.monotonic() + SLOW_S
    with started(place, *words) as process:
        while attachments(place) == before:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.005)
        process.kill()
        process.communicate(timeout=SLOW_S)
    place.server.faults.clear_faults()
    assert "would release" in place.fabric("reconcile", "--grace", "0").output
    done = place.fabric("reconcile", "--release", "--grace", "0")
    assert done.exit_code == 0, done.output
    assert attachments(place) == before, done.output

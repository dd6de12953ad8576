"""Nothing is composed for a job that could not start: which hosts are free, and how often Slurm is asked for all processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import HostFailed, LaunchError
from campaign.common.processes.command import CompletedCommand
from campaign.slurm import free_hosts
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.free_hosts import FreeHosts
from campaign.slurm.strategies.controller import Controller
from campaign.spec.system_file import SystemFile
from tests.unit.slurm.strategies.test_controller_state import line


class Sinfo(SlurmCommands):
    """Answers with the states of hosts, from one answer to the next."""

    def __init__(self, *states: Sequence[str]) -> None:
        super().__init__()
        self.states = list(states)
        self.asked = 0

    def __call__(self, *argv: str, timeout_s: float = 60.0) -> CompletedCommand:
        assert argv[0] == "sinfo"
        self.asked += 1
        states = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return CompletedCommand(
            0, "".join(line(f"host{n}", state, "gpu:2", "none") for n, state in enumerate(states, 1)), ""
        )


def site(fabric: str = "simulated", launcher: str = "slurm", **slurm: Any) -> SystemFile:
    hosts = [{"name": "host[1-3]"}]
    document = {"name": "site", "launcher": launcher, "fabric": {"kind": fabric}, "hosts": hosts}
    return SystemFile.model_validate({**document, "slurm": {"poll_s": 1, **slurm}})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_hosts, "_POLL_INTERVAL_S", 0.01)


def hosts(directory: Path, slurm: Sinfo, count: int = 1, among: Sequence[str] = (), **settings: Any) -> tuple[str, ...]:
    said: list[str] = []
    found = FreeHosts(site(**settings), slurm, directory, said.append)
    try:
        return found.wait_until_free(among, count)
    finally:
        directory.joinpath("said").write_text("\n".join(said))


@pytest.mark.parametrize(
    ("state", "free"),
    [
        ("idle", True),
        ("idle+cloud+powered_down", True),
        ("mixed", False),
        ("allocated", False),
        ("completing", False),
        ("idle+completing", False),
        ("idle+planned", False),
        ("idle+reserved", False),
        ("idle+maint", False),
        ("idle+drain", False),
        ("down", False),
    ],
)
def test_which_hosts_are_free(tmp_path: Path, state: str, free: bool) -> None:
    assert ("host2" in hosts(tmp_path, Sinfo(("idle", state, "allocated")))) is free


def test_a_shared_host_and_a_reservation_of_ones_own_are_free(tmp_path: Path) -> None:
    assert hosts(tmp_path, Sinfo(("mixed", "allocated", "idle")), exclusive=False) == ("host1", "host3")
    settings = {"additional": {"reservation": "ours"}}
    assert hosts(tmp_path / "r", Sinfo(("idle+reserved", "idle", "down")), **settings) == ("host1", "host2")


def test_it_waits_until_enough_are_free_and_says_for_whom(tmp_path: Path) -> None:
    slurm = Sinfo(("allocated", "idle", "mixed"), ("idle", "idle", "mixed"))
    assert hosts(tmp_path, slurm, 2) == ("host1", "host2")
    assert (
        "waits for 2 suitable free hosts; not free: host1 (allocated), host3 (mixed)" in (tmp_path / "said").read_text()
    )


def test_it_waits_for_hosts_that_would_do(tmp_path: Path) -> None:
    slurm = Sinfo(("allocated", "idle", "idle"), ("allocated", "idle", "idle"), ("idle", "idle", "idle"))
    asked: list[tuple[str, ...]] = []

    def able(names: tuple[str, ...]) -> bool:
        asked.append(names)
        return "host1" in names

    found = FreeHosts(site(), slurm, tmp_path, print)
    assert found.wait_until_free((), 1, able) == ("host1", "host2", "host3")
    assert asked == [("host2", "host3")]
    with pytest.raises(HostFailed):  # the only one that would do is down
        FreeHosts(site(), Sinfo(("down", "idle", "idle")), tmp_path / "down", print).wait_until_free((), 1, able)


def test_the_processes_of_a_campaign_ask_once_an_interval(tmp_path: Path) -> None:
    slurm = Sinfo(("idle", "idle", "idle"))
    for _ in range(300):
        hosts(tmp_path, slurm, poll_s=30)
    assert slurm.asked == 1


def test_hosts_of_which_a_controller_that_just_started_knows_nothing_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Controller, "query_settled_nodes", Controller.query_nodes)
    assert hosts(tmp_path, Sinfo(("unknown", "unknown", "unknown"), ("idle", "unknown", "down"))) == ("host1",)
    assert "host1 (unknown), host2 (unknown), host3 (unknown)" in (tmp_path / "said").read_text()


@pytest.mark.parametrize("state", ["down", "idle+not_responding", "idle+drain"])
def test_what_befalls_all_hosts_is_waited_for_and_blames_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(Controller, "query_settled_nodes", Controller.query_nodes)  # its patience is that of a host
    assert hosts(tmp_path, Sinfo((state,) * 3, (state, "idle", state))) == ("host2",)
    assert "waits for 1 suitable free host; not free: host1 (" in (tmp_path / "said").read_text()
    monkeypatch.setattr(free_hosts, "_OUTAGE_TIMEOUT_S", 0.05)
    with pytest.raises(LaunchError, match="no host of system site could run jobs") as failed:
        hosts(tmp_path / "long", Sinfo((state,) * 3))
    assert not isinstance(failed.value, HostFailed)


def test_hosts_that_cannot_come_back_are_named(tmp_path: Path) -> None:
    with pytest.raises(HostFailed) as failed:
        hosts(tmp_path, Sinfo(("idle", "down", "idle+drain")), 2)
    assert set(failed.value.hosts) == {"host2", "host3"}
    # Of a host that it does not know, Slurm itself says so.
    assert hosts(tmp_path / "u", Sinfo(("down", "down")), 1, ("host1", "host3")) == ("host3",)


@pytest.mark.parametrize(
    ("settings", "matter"),
    [
        ({}, True),
        ({"fabric": "static"}, False),
        ({"fabric": "static", "placement": "pinned"}, True),
        ({"placement": "scheduler"}, False),
        ({"launcher": "local"}, False),
        ({"strategy": "reservation"}, False),
        ({"strategy": "resume"}, False),
    ],
)
def test_it_matters_where_nothing_else_keeps_hosts_for_the_job(
    tmp_path: Path, settings: dict[str, Any], matter: bool
) -> None:
    assert FreeHosts(site(**settings), Sinfo(()), tmp_path, print).is_needed is matter

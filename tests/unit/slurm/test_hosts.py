"""Hosts that failed while others did not are left out, until they are healthy again, or a person takes them back."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from campaign.common.errors import FabricError, HostFailed
from campaign.common.files import write_json
from campaign.common.processes.command import CompletedCommand
from campaign.slurm import excluded_hosts as module
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.slurm.strategies.controller import Controller
from campaign.spec.driver_messages import DriverResult
from tests.unit.slurm.strategies.test_controller_state import line
from tests.unit.slurm.test_sbatch_options import system


def add(excluded: ExcludedHosts, **failed: str) -> dict[str, Path]:
    return excluded.exclude_hosts(failed, "1x2-local", system())


def aged(path: Path, seconds: float) -> None:
    document = json.loads(path.read_text())
    write_json(path, {**document, "time_s": document["time_s"] - seconds})


class OneHost(SlurmCommands):
    """Knows one host by its state, and runs jobs there, or not."""

    def __init__(self, state: str, healthy: bool) -> None:
        super().__init__()
        self.state, self.healthy = state, healthy
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *argv: str, timeout_s: float = 60.0) -> CompletedCommand:
        self.asked.append(argv)
        if argv[0] == "sinfo":
            return CompletedCommand(0, "".join(line(f"host{n}", self.state, "gpu:2", "none") for n in (2, 3)), "")
        return CompletedCommand(int(not self.healthy), "", "")


def controller(state: str, healthy: bool = True) -> Controller:
    return Controller(OneHost(state, healthy), print, 1.0)


@pytest.fixture
def excluded(tmp_path: Path) -> ExcludedHosts:
    return ExcludedHosts(tmp_path)


def test_all_hosts_may_be_used_at_first(tmp_path: Path) -> None:
    assert ExcludedHosts(tmp_path / "none").read_all() == {}
    assert ExcludedHosts(tmp_path / "none").list_usable(system()) == ()


def test_a_host_is_left_out_until_its_file_is_removed(tmp_path: Path, excluded: ExcludedHosts) -> None:
    path = add(excluded, host2="not responding")["host2"]
    assert ExcludedHosts(tmp_path).read_current() == {"host2": "not responding"}
    assert excluded.list_usable(system()) == ("host1", "host3", "host4")
    path.unlink()
    assert excluded.list_usable(system()) == ()


def test_the_last_reason_counts(excluded: ExcludedHosts) -> None:
    add(excluded, host2="down")
    add(excluded, host2="drained")
    assert excluded.read_all() == {"host2": "drained"}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null"])
def test_a_damaged_file_still_leaves_the_host_out(excluded: ExcludedHosts, content: str) -> None:
    add(excluded, host2="down")["host2"].write_text(content)
    assert excluded.read_current() == {"host2": "unknown"}
    assert excluded.readmit_hosts(controller("down"), system()) == {"host2": "its exclusion ended after 60 minutes"}


@pytest.mark.parametrize("at_once", [True, False])
def test_what_befalls_all_hosts_is_no_hosts_fault(excluded: ExcludedHosts, at_once: bool) -> None:
    failed = {f"host{number}": "down" for number in range(1, 5)}
    for part in [failed] if at_once else [{host: why} for host, why in failed.items()]:
        paths = add(excluded, **part)
    assert paths == excluded.read_current() == {}
    assert excluded.list_usable(system()) == ()
    assert set(excluded.read_all()) == ({*()} if at_once else {"host1", "host2", "host3"}), "the report names them"


def test_without_any_host_left_it_says_why_and_what_to_do(tmp_path: Path, excluded: ExcludedHosts) -> None:
    for number in range(1, 5):
        write_json(excluded.path(f"host{number}"), {"why": f"broke {number}", "time_s": time.time()})
    with pytest.raises(FabricError, match=rf"host1: broke 1; .*host4: broke 4.*rm {tmp_path}/excluded/\*\.json"):
        excluded.list_usable(system())
    write_json(excluded.path("host3"), {"why": "broke 3", "time_s": time.time() - module._CHECK_INTERVAL_S})
    assert set(excluded.readmit_hosts(controller("idle"), system())) == {"host3"}
    assert excluded.list_usable(system()) == ("host3",)


@pytest.mark.parametrize(
    ("state", "healthy", "age_s", "used_again"),
    [
        ("idle", True, module._CHECK_INTERVAL_S, True),
        ("idle", True, 0.0, False),
        ("idle", False, module._CHECK_INTERVAL_S, False),
        ("down", True, module._CHECK_INTERVAL_S, False),
        ("idle+drain", True, module._CHECK_INTERVAL_S, False),
        ("idle+not_responding", True, module._CHECK_INTERVAL_S, False),
        ("unknown", True, module._CHECK_INTERVAL_S, False),
        ("down", False, module._EXCLUSION_S, True),
    ],
)
def test_a_host_is_used_again_when_it_is_healthy_or_after_an_hour(
    excluded: ExcludedHosts, state: str, healthy: bool, age_s: float, used_again: bool
) -> None:
    aged(add(excluded, host2="down")["host2"], age_s)
    slurm = controller(state, healthy)
    assert (set(excluded.readmit_hosts(slurm, system(), ["--partition=gpu"])) == {"host2"}) is used_again
    assert (excluded.read_current() == {}) is used_again
    assert excluded.read_all() == {"host2": "down"}
    checks = [argv for argv in slurm.slurm.asked if "srun" in argv]  # type: ignore[attr-defined]
    assert all({"--nodelist=host2", "--partition=gpu", "true"} <= {*argv} for argv in checks)
    assert len(checks) == (state == "idle" and 0 < age_s < module._EXCLUSION_S)


def test_a_host_that_fails_again_after_a_check_is_left_out_for_an_hour(excluded: ExcludedHosts) -> None:
    for lifted in ({"host2"}, set()):
        aged(add(excluded, host2="wrong devices")["host2"], module._CHECK_INTERVAL_S)
        assert set(excluded.readmit_hosts(controller("idle"), system())) == lifted
    aged(excluded.path("host2"), module._EXCLUSION_S)
    assert excluded.readmit_hosts(controller("idle"), system()) == {"host2": "its exclusion ended after 60 minutes"}


def test_a_driver_can_blame_hosts() -> None:
    told = DriverResult(error=HostFailed("lost", {"host2": "not responding"})).document()
    error = DriverResult.from_document(json.loads(json.dumps(told))).error
    assert isinstance(error, HostFailed)
    assert (str(error), error.hosts) == ("lost", {"host2": "not responding"})

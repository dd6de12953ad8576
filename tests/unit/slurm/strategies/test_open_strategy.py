"""Strategies are opened by name, and refuse at once what could only fail in the middle of a recomposition."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError, HostFailed, LaunchError
from campaign.common.processes.command import CompletedCommand
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.strategies import STRATEGIES, open_strategy
from campaign.slurm.strategies.controller import Controller, make_reservation_name
from campaign.spec.system_file import SlurmSettings, SystemFile

SLURMD = {"stop": ["ssh", "{host}", "stop"], "start": ["ssh", "{host}", "start {gres} {devices} {fabric_devices}"]}


class Scripted(SlurmCommands):
    """Answers every command alike, and keeps what was asked."""

    def __init__(self, *answers: CompletedCommand) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *argv: str, timeout_s: float = 60.0) -> CompletedCommand:
        self.asked.append(argv)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def system(strategy: str, launcher: str = "slurm", **slurm: Any) -> SystemFile:
    return SystemFile.model_validate(
        {
            "name": "bench",
            "launcher": launcher,
            "fabric": {"kind": "simulated"},
            "hosts": [{"name": "host1"}],
            "slurm": {"strategy": strategy, **slurm},
        }
    )


def test_the_table_has_every_strategy_of_the_system_file() -> None:
    assert set(STRATEGIES) == set(get_args(SlurmSettings.model_fields["strategy"].annotation))


@pytest.mark.parametrize(
    ("strategy", "options", "by_slurm"),
    [
        ("static", {}, False),
        ("reservation", {"reservation": "lease.1"}, False),
        ("dynamic", {"reservation": "lease.1"}, False),
        ("resume", {}, True),
    ],
)
def test_a_strategy_says_what_its_jobs_need(strategy: str, options: dict[str, str], by_slurm: bool) -> None:
    opened = open_strategy(system(strategy, slurmd=SLURMD), SlurmCommands())
    assert (opened.options("lease.1"), opened.composed_by_slurm) == (options, by_slurm)


@pytest.mark.parametrize("strategy", ["static", "resume"])
def test_what_needs_nothing_said_asks_slurm_nothing(strategy: str) -> None:
    slurm = Scripted(CompletedCommand(1, "", "must not be asked"))
    opened = open_strategy(system(strategy), slurm)
    opened.begin(["host1"], "lease.1")
    opened.end(["host1"], "lease.1")
    assert slurm.asked == []


def test_without_slurm_nobody_is_told() -> None:
    opened = open_strategy(system("reservation", launcher="local"), SlurmCommands())
    assert opened.options("lease.1") == {}


@pytest.mark.parametrize(
    ("slurmd", "complaint"),
    [
        (None, r"slurm\.slurmd\.stop and slurm\.slurmd\.start"),
        ({"stop": ["stop", "{hosts}"], "start": ["start"]}, "'{hosts}'"),
        ({"stop": ["stop"], "start": ["sh", "-c", "${x}"]}, r"'\$\{x\}'"),
        ({"stop": ["stop"], "start": ["{"]}, "double all other braces"),
    ],
)
def test_commands_that_cannot_be_filled_in_are_refused_at_once(slurmd: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_strategy(system("dynamic", slurmd=slurmd), SlurmCommands())


def test_a_host_that_the_file_forgot_is_named() -> None:
    opened = open_strategy(system("dynamic", slurmd=SLURMD), Scripted(CompletedCommand(0, "", "")))
    with pytest.raises(HostFailed, match=r"host9.*the system file no longer lists this host"):
        opened.end(["host9"], "lease.1")


def test_a_newly_reserved_host_that_slurm_does_not_know_is_named() -> None:
    opened = open_strategy(system("reservation"), Scripted(CompletedCommand(0, "", "")))
    with pytest.raises(HostFailed, match=r"host1 \(unknown to Slurm\)"):
        opened.begin(["host1"], "lease.1")


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5, unique=True))
def test_reservations_are_named_apart_in_plain_characters(leases: list[str]) -> None:
    names = [make_reservation_name(lease) for lease in leases]
    assert len(set(names)) == len(leases)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in names)


def test_a_controller_that_stays_away_is_a_failure_after_a_while() -> None:
    away = CompletedCommand(1, "", "slurm_load_node: Unable to contact slurm controller (connect failure)")
    controller = Controller(Scripted(away), print, poll_s=0.01)
    controller.max_unreachable_s = 0.05
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        controller.query_nodes(["host1"])


def test_a_controller_that_comes_back_is_asked_again() -> None:
    slurm = Scripted(
        CompletedCommand(124, "", "no answer"),
        CompletedCommand(1, "", "Socket timed out on send/recv operation"),
        CompletedCommand(0, "", ""),
    )
    assert Controller(slurm, print, poll_s=0.01).query_nodes(["host1"]) == {}
    assert len(slurm.asked) == 3


def test_what_slurm_does_not_let_us_do_says_who_may() -> None:
    slurm = Scripted(
        CompletedCommand(0, "No reservations in the system", ""), CompletedCommand(1, "", "Access/permission denied")
    )
    with pytest.raises(LaunchError, match="adminlevel=operator"):
        Controller(slurm, print, poll_s=0.01).reserve_hosts("lease.1", ["host1"])

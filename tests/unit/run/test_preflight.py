from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from campaign.errors import ConfigError
from campaign.launch.emulation.network import Availability
from campaign.run import preflight as preflight_module
from campaign.run.preflight import not_emulated, preflight
from tests.campaign_files import load
from tests.fake_slurm import FakeSlurm

PROGRAM = {"campaign.axes.workload": ["program", "steps"]}


@pytest.mark.parametrize("program", ["echo", "/bin/sh", "{size}"])
def test_what_is_there_passes(tmp_path: Path, program: str) -> None:
    assert preflight(load(tmp_path, {**PROGRAM, "workloads.program.command": [program]})) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/etc/passwd"])
def test_a_missing_program_is_told_before_anything_is_composed(tmp_path: Path, program: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"workloads/program\.yaml:1: command: '{program}' was not found on this machine"
    ):
        preflight(load(tmp_path, {**PROGRAM, "workloads.program.command": [program]}))


def test_everything_that_lacks_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "campaign.axes.workload": ["program", "nano"],
        "workloads.program.command": ["no-such-program"],
    }
    campaign = load(tmp_path, changes)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        preflight(campaign)
    assert [
        "no-such-program" in line or "PyTorch is not installed" in line for line in str(caught.value).splitlines()
    ] == [True, True]


@pytest.mark.usefixtures("fake_slurm")
def test_another_machine_may_have_what_this_one_lacks(tmp_path: Path) -> None:
    changes = {**PROGRAM, "workloads.program.command": ["no-such-program"], "system.launcher": "slurm"}
    assert preflight(load(tmp_path, changes)) is None  # type: ignore[func-returns-value]


EMULATED = {"system.links": {"fabric": {"gb_per_s": 10.0}}, "system.emulation": {"scale": 0.01}}


def test_a_machine_that_cannot_emulate_hosts_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_module, "availability", lambda: Availability(None, "no `tc` here"))
    said = not_emulated(load(tmp_path / "a", EMULATED))
    assert said.startswith("links are not emulated")
    assert said.endswith("no `tc` here")
    assert not_emulated(load(tmp_path / "b")) == ""
    assert not_emulated(load(tmp_path / "c", {**EMULATED, "system.launcher": "slurm"})) == ""


def test_a_machine_that_can_emulate_hosts_needs_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "availability", lambda: Availability("root"))
    assert not_emulated(load(tmp_path, EMULATED)) == ""


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"overrides": [{"when": "hots > 1", "partition": "wide"}]}, r"slurm\.overrides\.0\.when: .*hots"),
        ({"additional": {"comment": "mine"}}, "additional: comment: is set by the campaign"),
        (
            {"overrides": [{"when": "devices == 2", "additional": {"output": "x"}}]},
            "additional: output: is set by the campaign",
        ),
    ],
)
def test_what_means_nothing_to_slurm_is_told_before_anything_is_composed(
    slurm: dict[str, Any], words: str, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    with pytest.raises(ConfigError, match=words):
        preflight(load(tmp_path, {"system.launcher": "slurm", "system.slurm": slurm}))
    assert fake_slurm.calls("sbatch") == []

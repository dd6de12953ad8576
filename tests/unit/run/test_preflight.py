from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.emulators.hosts.network import EmulationAvailability
from campaign.run import preflight as preflight_module
from campaign.run.preflight import check_campaign_files, describe_missing_emulation, find_missing_software
from campaign.workloads.trainer_runs import missing_torch_requirement
from tests.campaign_files import load
from tests.fake_slurm import FakeSlurm

PROGRAM = {"campaign.axes.workload": ["program", "steps"]}


@pytest.mark.parametrize("program", ["echo", "/bin/sh", "{size}"])
def test_what_is_there_passes(tmp_path: Path, program: str) -> None:
    assert find_missing_software(load(tmp_path, {**PROGRAM, "workloads.program.command": [program]})) == []


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/etc/passwd"])
def test_a_missing_program_is_told_before_anything_is_composed(tmp_path: Path, program: str) -> None:
    (told,) = find_missing_software(load(tmp_path, {**PROGRAM, "workloads.program.command": [program]}))
    assert f"workloads/program.yaml:1: command: '{program}' was not found on this machine" in told


def test_everything_that_lacks_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "campaign.axes.workload": ["program", "nano"],
        "workloads.program.command": ["no-such-program"],
    }
    campaign = load(tmp_path, changes)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert [
        "no-such-program" in line or "PyTorch is not installed" in line for line in find_missing_software(campaign)
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu"])
def test_a_build_of_torch_for_the_cpu_and_a_missing_tool_are_told_of_devices(tmp_path: Path, kind: str) -> None:
    changes = {"campaign.axes.workload": "nano", "system.devices": {"cpu-rank": {"runs_on": kind}}}
    build, tool = find_missing_software(load(tmp_path, changes))
    assert re.search(rf"nano\.yaml:1: PyTorch \S+ is not built for \w+ GPUs \(`runs_on: {kind}`\); install", build)
    assert "which lists the devices" in tool
    assert f"`runs_on: {kind}`" in tool


def test_a_build_of_torch_for_the_device_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.12.0'\ncuda = '13.0'\nhip = None\n")
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch is not to be loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert missing_torch_requirement(["cuda", "cpu"]) is None
    assert "not built for AMD GPUs" in str(missing_torch_requirement(["rocm"]))


def test_packages_of_fabric_and_launcher_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "submitit" else find(name))
    (told,) = find_missing_software(load(tmp_path, {**PROGRAM, "system.launcher": "slurm"}))
    assert "needs the package submitit; run: " in told
    assert "pip install submitit" in told


@pytest.mark.usefixtures("fake_slurm")
def test_another_machine_may_have_what_this_one_lacks(tmp_path: Path) -> None:
    changes = {**PROGRAM, "workloads.program.command": ["no-such-program"], "system.launcher": "slurm"}
    check_campaign_files(campaign := load(tmp_path, changes))
    assert find_missing_software(campaign) == []


EMULATED = {"system.links": {"fabric": {"gb_per_s": 10.0}}, "system.emulation": {"scale": 0.01}}


def test_a_machine_that_cannot_emulate_hosts_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_module, "check_availability", lambda: EmulationAvailability(None, "no `tc` here"))
    said = describe_missing_emulation(load(tmp_path / "a", EMULATED))
    assert said.startswith("links are not emulated")
    assert said.endswith("no `tc` here")
    assert describe_missing_emulation(load(tmp_path / "b")) == ""
    assert describe_missing_emulation(load(tmp_path / "c", {**EMULATED, "system.launcher": "slurm"})) == ""


def test_a_machine_that_can_emulate_hosts_needs_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "check_availability", lambda: EmulationAvailability("root"))
    assert describe_missing_emulation(load(tmp_path, EMULATED)) == ""


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"overrides": [{"when": "hots > 1", "partition": "wide"}]}, r"slurm\.overrides\.0\.when: .*hots"),
        ({"additional": {"comment": "mine"}}, "additional.comment: option 'comment' is set by the campaign"),
        (
            {"overrides": [{"when": "devices == 2", "additional": {"output": "x"}}]},
            "additional.output: option 'output' is set by the campaign",
        ),
    ],
)
def test_what_means_nothing_to_slurm_is_told_before_anything_is_composed(
    slurm: dict[str, Any], words: str, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_campaign_files(load(tmp_path, {"system.launcher": "slurm", "system.slurm": slurm}))
    assert fake_slurm.calls("sbatch") == []

"""What hosts tell of their devices, compared with the composition; samples are of nvidia-smi 535 to 570."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.common.accelerators import DetectedDevice
from campaign.common.accelerators.nvidia import CUDA
from campaign.common.errors import HostFailed, LaunchError
from campaign.slurm import verify_devices
from campaign.slurm.run_on_hosts import HostAnswers
from campaign.slurm.verify_devices import (
    DeviceMismatchError,
    build_devices_script,
    compare_devices,
    verify_devices_of_hosts,
)
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile

UUID = "GPU-5f6b2f1c-0e0f-3c1f-8d3e-{:012d}"
A100 = "NVIDIA A100-PCIE-40GB"


def lines(*models: str, code: int = 0) -> tuple[str, ...]:
    return (*(f"device {UUID.format(i)}, {model}" for i, model in enumerate(models)), f"exit {code}")


def system(**more: object) -> SystemFile:
    base = {"name": "s", "fabric": {"kind": "static"}, "hosts": [{"name": "host[1-2]"}]}
    devices = {"a100": {"reported_as": A100}, "core": {"runs_on": "cpu"}}
    return SystemFile.model_validate({**base, "devices": devices, **more})


def composed(count: int = 2, model: str = "a100", known: bool = True) -> Composition:
    devices = tuple(
        Device(f"slot{i}", "gpu", model, UUID.format(i) if known else None, "drawer1", False) for i in range(count)
    )
    return Composition((ComposedHost("host1", 4, 8.0, devices),))


def problem(said: tuple[str, ...], composition: Composition, identified: bool = True, **more: object) -> str | None:
    found = compare_devices(system(**more), composition, {"host1": said}, is_identified=identified)
    return found.problems.get("host1")


def test_nvidia_smi_is_understood() -> None:
    lines = f"{UUID.format(1)}, {A100}", "0000:3B:00.0, Tesla V100, 16 GB "
    assert CUDA.parse_devices(lines) == (
        DetectedDevice(UUID.format(1), A100),
        DetectedDevice("0000:3B:00.0", "Tesla V100, 16 GB"),
    )


@pytest.mark.parametrize(
    ("said", "composition"),
    [
        (lines(A100, A100), composed()),
        (lines(A100, A100, "Tesla T4"), composed()),
        (lines("Tesla T4", A100, A100), composed(known=False)),
        (lines("anything", "else"), composed(model="v100")),
    ],
)
def test_devices_as_composed_are_no_problem_nor_are_more(said: tuple[str, ...], composition: Composition) -> None:
    assert problem(said, composition) is None


def test_an_identity_is_the_same_however_the_fabric_writes_it() -> None:
    (host,) = composed().hosts
    theirs = tuple(
        replace(d, host_id=str(d.host_id).removeprefix("GPU-").upper() if d.host_id else None) for d in host.devices
    )
    assert any(device.host_id for device in theirs)
    assert problem(lines(A100, A100), Composition((replace(host, devices=theirs),))) is None


@pytest.mark.parametrize(
    ("said", "composition", "what"),
    [
        (lines(A100), composed(), "only 1 of 2 devices found"),
        (lines(), composed(), "only 0 of 2 devices found"),
        (lines(A100, "Tesla T4"), composed(), f"1 of 2 a100 devices report '{A100}'; the host lists Tesla T4"),
        (lines(A100, A100)[1:], composed(1), f"missing: slot0 ({UUID.format(0)}); listed: {UUID.format(1)}"),
        (("device NVIDIA-SMI has failed because it couldn't communicate", "exit 9"), composed(), "exit code 9"),
        (("device sh: nvidia-smi: not found", "exit 127"), composed(), "nvidia-smi: not found"),
        ((), composed(), "exit code unknown"),
    ],
)
def test_fewer_and_other_devices_are_a_problem(said: tuple[str, ...], composition: Composition, what: str) -> None:
    assert what in (problem(said, composition) or "")


def test_devices_that_only_count_are_counted() -> None:
    assert problem(("device 0", "device 1", "exit 0"), composed(model="core"), identified=False) is None
    assert "only 1 of" in (problem(("device 0", "exit 0"), composed(model="core"), identified=False) or "")
    # Slurm tells nothing of a gres that is not called gpu; that it granted the step is all that is known.
    assert problem(("exit 0",), composed(model="core"), identified=False, slurm={"gres": "fgpu"}) is None


def test_emulated_devices_are_not_known_by_the_fabrics_names() -> None:
    said = ("device host1/gpu0, core", "device host1/gpu1, core", "exit 0")
    assert problem(said, composed(model="core")) is None


def test_who_is_asked_follows_from_the_devices() -> None:
    assert " ".join(CUDA.list_command) in build_devices_script(system(), composed())[0]
    assert build_devices_script(system(), composed(model="core"))[1] is False
    own = system(slurm={"devices_command": ["list devices", "--all"]})
    assert "'list devices' --all" in build_devices_script(own, composed(model="core"))[0]


def shell(script: str, **environment: str) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if "VISIBLE_DEVICES" not in name}
    done = subprocess.run(
        ["sh", "-c", script], env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("granted", "count"), [({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3), ({"CUDA_VISIBLE_DEVICES": ""}, 0), ({}, 0),
                           ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0), ({"ROCR_VISIBLE_DEVICES": "4"}, 1)],
)  # fmt: skip
def test_what_slurm_granted_is_counted(granted: dict[str, str], count: int) -> None:
    script, identified = build_devices_script(system(), composed(model="core"))
    assert not identified
    assert len(shell(script, **granted)) == count + 1


@pytest.mark.parametrize(("program", "expected"), [("echo GPU-1, a; exit 0", ["device GPU-1, a", "exit 0"]),
                                                  ("echo bad >&2; exit 9", ["device bad", "exit 9"])])  # fmt: skip
def test_a_sites_own_command_is_run(program: str, expected: list[str]) -> None:
    script, identified = build_devices_script(system(slurm={"devices_command": ["sh", "-c", program]}), composed())
    assert identified
    assert shell(script) == expected


def answering(monkeypatch: pytest.MonkeyPatch, answers: HostAnswers) -> None:
    monkeypatch.setattr(verify_devices, "run_script_on_hosts", lambda *_, **__: answers)


def test_what_was_seen_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, HostAnswers({"host1": lines(A100, A100)}))
    assert [seen.model for seen in verify_devices_of_hosts(system(), composed(), tmp_path / "work").hosts["host1"]] == [
        A100,
        A100,
    ]
    assert UUID.format(1) in (tmp_path / "work" / "devices.txt").read_text()


@pytest.mark.parametrize(
    ("answers", "kind", "hosts"),
    [
        (HostAnswers({"host1": lines(A100)}), DeviceMismatchError, {"host1": "only 1 of 2 devices found"}),
        (HostAnswers({}, "failed", {"host1": "connection failure"}), HostFailed, {"host1": "connection failure"}),
    ],
)  # fmt: skip
def test_a_host_that_is_wrong_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: HostAnswers,
    kind: type[HostFailed],
    hosts: dict[str, str],
) -> None:
    answering(monkeypatch, answers)
    with pytest.raises(kind, match="host1") as raised:
        verify_devices_of_hosts(system(), composed(), tmp_path)
    assert raised.value.hosts == hosts


def test_a_step_that_slurm_refuses_names_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, HostAnswers({}, "Invalid generic resource (gres) specification"))
    with pytest.raises(LaunchError, match="Invalid generic resource") as raised:
        verify_devices_of_hosts(system(), composed(), tmp_path)
    assert not isinstance(raised.value, HostFailed)


def test_unequal_hosts_are_asked_for_as_many_devices_as_each_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One number for all would be refused by the smaller host, or find too few on the larger one."""
    asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def answer(hosts: list[str], _: str, *, device_options: list[str], **__: object) -> HostAnswers:
        asked.append((tuple(hosts), tuple(device_options)))
        count = int(device_options[0].rpartition("=")[2])
        return HostAnswers({host: (*(f"device {i}" for i in range(count)), "exit 0") for host in hosts})

    monkeypatch.setattr(verify_devices, "run_script_on_hosts", answer)
    parts = [("host1", 2), ("host2", 1), ("host3", 2)]
    hosts = [replace(composed(count, "core", known=False).hosts[0], name=name) for name, count in parts]
    found = verify_devices_of_hosts(system(hosts=[{"name": "host[1-3]"}]), Composition(tuple(hosts)), tmp_path)
    assert asked == [
        (("host1", "host3"), ("--gpus-per-task=2", "--gpu-bind=none")),
        (("host2",), ("--gpus-per-task=1", "--gpu-bind=none")),
    ]
    assert {host: len(seen) for host, seen in found.hosts.items()} == dict(parts)


def test_other_vendors_devices_are_listed_and_compared() -> None:
    amd = system(devices={"a100": {"runs_on": "rocm", "reported_as": "AMD Instinct MI300X"}})
    assert "amd-smi list --csv" in build_devices_script(amd, composed())[0]
    header = "device gpu,gpu_bdf,gpu_uuid,kfd_id"
    rows = tuple(f"device {i},0000:c{i}:00.0,{UUID.format(i).removeprefix('GPU-')},7" for i in range(2))
    assert compare_devices(amd, composed(), {"host1": (header, *rows, "exit 0")}, is_identified=True).problems == {}
    one = compare_devices(amd, composed(), {"host1": (header, rows[0], "exit 0")}, is_identified=True).problems
    assert one == {"host1": "only 1 of 2 devices found"}
    tiles = Composition((replace(composed().hosts[0], devices=numbered(composed(), "0.{}")),))
    intel = system(devices={"a100": {"runs_on": "xpu", "reported_as": "Intel(R) Data Center GPU Max 1550"}})
    card = 'device "00000000-0000-0029-0000-002f0bd58086","0000:29:00.0","Intel(R) Data Center GPU Max 1550"'
    assert compare_devices(intel, tiles, {"host1": (card, "exit 0")}, is_identified=True).problems == {}, (
        "a card has two tiles"
    )


def numbered(composition: Composition, name: str) -> tuple[Device, ...]:
    return tuple(replace(d, host_id=name.format(n)) for n, d in enumerate(composition.hosts[0].devices))

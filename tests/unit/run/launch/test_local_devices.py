"""Runs of this machine are on the devices of their lease: listed by a stand-in of nvidia-smi, compared, named and masked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.run.launchers import open_launcher
from campaign.run.local_devices import verify_local_devices
from campaign.slurm.verify_devices import DeviceMismatchError
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step
from tests.unit.run.launch.compositions import composition

UUID = "GPU-5f6b2f1c-0e0f-3c1f-8d3e-{:012d}"
ECHO = "import json,os; print(json.dumps({k: v for k, v in os.environ.items() if 'VISIBLE' in k or k == 'LOCAL_RANK'}))"


def system(kind: str = "cuda", hosts: str = "host1", count: int = 4) -> SystemFile:
    own = [
        {"name": hosts, "devices": [{"model": "ssd", "kind": "nvme", "count": 1}, {"model": "a100", "count": count}]}
    ]
    devices = {"a100": {"runs_on": kind}}
    return SystemFile.model_validate({"name": "s", "fabric": {"kind": "static"}, "hosts": own, "devices": devices})


def composed(*names: str, known: tuple[int, ...] = (), local: bool = True) -> Composition:
    """One host with devices such as host1/gpu2; known: numbers of those that the fabric calls by their UUID."""
    return Composition(
        (
            ComposedHost(
                "host1",
                4,
                8.0,
                tuple(
                    Device(name, "gpu", "a100", UUID.format(n) if n in known else None, "", local)
                    for n, name in enumerate(names)
                ),
            ),
        )
    )


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has nvidia-smi list GPUs of these numbers."""

    def lists(*numbers: int, code: int = 0) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        lines = "".join(f"{UUID.format(n)}, NVIDIA A100\\n" for n in numbers)
        program.write_text(f"#!/bin/sh\nprintf '{lines}'\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    return lists


def names(found: Composition) -> list[str | None]:
    return [device.host_id for device in found.devices]


def test_own_devices_are_named_by_their_number_on_the_host(listed: Any, tmp_path: Path) -> None:
    listed(10, 11, 12, 13)
    found = verify_local_devices(system(), composed("host1/gpu1", "host1/gpu3"), tmp_path / "work")
    assert names(found) == [UUID.format(11), UUID.format(13)]
    assert (tmp_path / "work" / "devices.txt").read_text().count("device GPU-") == 4


def test_names_that_the_fabric_tells_stay_and_are_compared(listed: Any, tmp_path: Path) -> None:
    listed(1, 0, 7)
    given = composed("slot0", "slot1", known=(0, 1), local=False)
    assert names(verify_local_devices(system(), given, tmp_path)) == [UUID.format(0), UUID.format(1)]
    listed(1, 7)
    with pytest.raises(DeviceMismatchError, match=rf"slot0 \({UUID.format(0)}\); listed") as caught:
        verify_local_devices(system(), given, tmp_path)
    assert [device.fabric_id for device in caught.value.missing_devices] == ["slot0"]
    assert caught.value.hosts == {}, "this machine is not left out for it"


def test_pooled_devices_without_names_are_told_only_where_there_are_no_others(listed: Any, tmp_path: Path) -> None:
    listed(4, 5)
    assert names(verify_local_devices(system(), composed("slot0", "slot1", local=False), tmp_path)) == [
        UUID.format(4),
        UUID.format(5),
    ]
    listed(4, 5, 6)
    assert names(verify_local_devices(system(), composed("slot0", "slot1", local=False), tmp_path)) == [None, None]


def test_names_that_a_simulated_fabric_invents_are_no_evidence(listed: Any, tmp_path: Path) -> None:
    simulated = SystemFile.model_validate({**system().model_dump(), "fabric": {"kind": "simulated"}})
    given = composed("slot0", "slot1", known=(0, 1), local=False)
    listed(7, 8)
    assert names(verify_local_devices(simulated, given, tmp_path)) == [UUID.format(7), UUID.format(8)]
    listed(7)
    with pytest.raises(LaunchError, match="only 1 of 2 devices found"):
        verify_local_devices(simulated, given, tmp_path)
    listed(0, 7)
    with pytest.raises(DeviceMismatchError, match="slot1"):  # those of some are real
        verify_local_devices(simulated, given, tmp_path)


def test_too_few_devices_and_a_tool_that_fails_measure_nothing(listed: Any, tmp_path: Path) -> None:
    listed(0)
    with pytest.raises(LaunchError, match=r"only 1 of 2 devices found\. Nothing was measured"):
        verify_local_devices(system(), composed("host1/gpu0", "host1/gpu1"), tmp_path)
    listed(code=9)
    with pytest.raises(LaunchError, match=r"failed \(exit code 9\)"):
        verify_local_devices(system(), composed("host1/gpu0"), tmp_path)


def test_a_machine_without_the_tool_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere:/bin:/usr/bin")
    with pytest.raises(LaunchError, match="nvidia-smi"):
        verify_local_devices(system(), composed("host1/gpu0"), tmp_path)


def test_cores_that_stand_for_devices_are_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    given = composed("host1/gpu0")
    assert verify_local_devices(system("cpu"), given, tmp_path) is given


def environments(found: Composition, step: Step, tmp_path: Path, kind: str = "cuda") -> list[dict[str, str]]:
    launcher = open_launcher("local", system(kind), found)
    try:
        launcher.run(step, "test-mask", tmp_path / "log", tmp_path, StepLimits(30.0))
    finally:
        launcher.close()
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    return sorted(told, key=lambda each: each.get("LOCAL_RANK", ""))


def test_ranks_see_the_devices_of_their_lease_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    found = composed("slot0", "slot1", "slot2", known=(0, 1, 2))
    own = {"CUDA_VISIBLE_DEVICES": "what the workload says"}
    first, second = environments(found, Step(("python3", "-c", ECHO), own, {"host1": 2}), tmp_path)
    mask = f"{UUID.format(0)},{UUID.format(1)}"
    assert first == {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": mask}
    assert second == {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": mask}


def test_hosts_that_are_names_of_this_machine_number_their_devices_through(tmp_path: Path) -> None:
    one, other = (composed("slot0", known=(0,)).hosts[0], composed("a", "slot1", known=(1,)).hosts[0])
    both = Composition((one, replace(other, name="host2", devices=other.devices[1:])))
    for per_rank in (True, False):
        step = Step(("python3", "-c", ECHO), {}, {"host1": 1, "host2": 1}, per_rank)
        found = environments(both, step, tmp_path)
        assert {each["CUDA_VISIBLE_DEVICES"] for each in found} == {f"{UUID.format(0)},{UUID.format(1)}"}
        (tmp_path / "log").unlink()


def test_a_kind_that_needs_it_gets_a_mask_for_each_rank(tmp_path: Path) -> None:
    devices = tuple(replace(d, host_id=f"{n}.1") for n, d in enumerate(composed("a", "b").devices))
    found = Composition((replace(composed().hosts[0], devices=devices),))
    masks = []
    for rank in environments(found, Step(("sh", "-c", PRINT), {}, {"host1": 2}), tmp_path, "xpu"):
        masks.append(rank["ZE_AFFINITY_MASK"])
    assert sorted(masks) == ["0.1", "1.1"]


PRINT = 'printf \'{"ZE_AFFINITY_MASK": "%s"}\\n\' "$ZE_AFFINITY_MASK"'


def test_devices_without_known_names_and_cores_get_no_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    (rank,) = environments(composed("slot0"), Step(("python3", "-c", ECHO), {}, {"host1": 1}), tmp_path)
    assert rank["CUDA_VISIBLE_DEVICES"] == "7"
    (tmp_path / "log").unlink()
    (core,) = environments(composition((1, 0)), Step(("python3", "-c", ECHO), {}, {"host1": 1}), tmp_path, "cpu")
    assert core["CUDA_VISIBLE_DEVICES"] == "7"

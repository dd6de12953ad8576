"""What is recorded of the machine that measures."""

from __future__ import annotations

import pytest

from campaign.observe import device_state
from campaign.run import environment
from campaign.run.environment import describe_environment
from tests.unit.observe.telemetry.fake_nvml import FakeNvml, Gpu

WHOLE, PART = "GPU-3a1b0c7e-0000-4000-8000-00000000000a", "MIG-11111111-0000-4000-8000-00000000000b"


def test_what_gpus_are_set_to_is_of_the_environment_and_what_changes_by_itself_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = [Gpu("GPU-a", processes=[(1, 5)]), Gpu(WHOLE, parts=[Gpu(PART)])]
    monkeypatch.setattr(device_state, "load_nvml", lambda: (FakeNvml(gpus), ""))
    document = describe_environment()
    devices = {each["uuid"]: each for each in document["devices"]}
    assert list(devices) == ["GPU-a", WHOLE, PART]
    assert (devices[PART]["part_of"], devices[WHOLE]["mig"], devices["GPU-a"]["mig"]) == (WHOLE, True, False)
    first = devices["GPU-a"]
    assert (first["power_limit_w"], first["power_limit_default_w"], first["driver"]) == (600, 700, "580.65.06")
    gpus[0].processes = []
    gpus[0].fields |= {197: 99}
    assert describe_environment() == document, "records of a lease share it"


def test_what_tunes_cuda_nccl_and_torch_is_recorded_without_secrets_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "NCCL_ALGO": "Ring",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_AUTH_TOKEN": "abc123",
        "TORCH_URL": "https://me:hunter2@host/",
        "CUDA_VISIBLE_DEVICES": "3",
        "HOME_TOWN": "x",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = describe_environment()["variables"]
    assert found == found | {
        "NCCL_ALGO": "Ring",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_AUTH_TOKEN": "***",
        "TORCH_URL": "https://me:***@host/",
    }
    assert not {"CUDA_VISIBLE_DEVICES", "HOME_TOWN"} & found.keys()


def test_libraries_that_torch_brings_are_known_by_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.13.0", "nvidia-cudnn-cu13": "9.20.0", "nvidia-nccl-cu13": "2.29.1"}
    monkeypatch.setattr(environment, "_find_version", installed.get)
    environment.package_versions.cache_clear()
    try:
        assert environment.package_versions() == installed
    finally:
        environment.package_versions.cache_clear()

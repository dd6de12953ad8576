"""Which device a rank takes, and what it says of where its work was. GPUs of all vendors are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import ConfigError
from campaign.workloads.trainer import rank_device
from campaign.workloads.trainer.rank_device import (
    bind_to_socket,
    choose_device,
    describe_foreign_devices,
    identify_device,
    list_replica_uuids,
    locate_tensors,
    read_library_versions,
)


class Module(SimpleNamespace):
    """`torch.xpu` or `torch.cuda` with some devices."""

    chosen: torch.device | None = None

    def device_count(self) -> int:
        return int(self.count)

    def set_device(self, device: torch.device) -> None:
        self.chosen = device

    def get_device_properties(self, device: torch.device) -> Any:
        return SimpleNamespace(name="Intel(R) Data Center GPU Max 1550", uuid=bytes(range(16)))


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module(count=2)
    monkeypatch.setattr(rank_device, "get_device_module", lambda torch_type: module)
    return module


@pytest.mark.parametrize(("count", "local_rank", "index"), [(1, 3, 0), (2, 1, 1)])
def test_a_rank_takes_the_device_it_is_shown_or_that_of_its_number(
    xpu: Module, count: int, local_rank: int, index: int
) -> None:
    xpu.count = count
    device = choose_device("xpu", local_rank)
    assert device == xpu.chosen == torch.device("xpu", index)
    assert identify_device(device) == {
        "device_name": "Intel(R) Data Center GPU Max 1550",
        "device_uuid": "000102030405060708090a0b0c0d0e0f",
    }


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        ({"pci_domain_id": 0, "pci_bus_id": 0x17, "pci_device_id": 0, "uuid": "5f6b"}, "0000:17:00.0"),
        ({"uuid": "5f6b"}, "0000:ca:00.0"),  # by the driver's list, where torch does not tell it
        ({}, ""),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_rank_is_bound_to_the_socket_of_its_device(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any], address: str, beside: bool
) -> None:
    module = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(**properties))
    monkeypatch.setattr(rank_device, "get_device_module", lambda torch_type: module)
    monkeypatch.setattr(rank_device, "find_nvidia_pci_address", lambda uuid: "0000:ca:00.0" if uuid == "5f6b" else "")
    bound: list[str] = []

    def bind(address: str) -> tuple[str, bool]:
        bound.append(address)
        return "device in node 1, rank in 0", beside

    monkeypatch.setattr(rank_device, "bind_near_device", bind)
    said, flag = bind_to_socket(torch.device("cuda", 0))
    assert (bound, said) == ([address], "device in node 1, rank in 0")
    assert bool(flag) is not beside
    assert bind_to_socket(torch.device("cpu")) == ("", "")
    assert bound == [address], "what runs on the CPU is left as it is"


def test_what_torch_has_loaded_for_a_gpu_is_told_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 1))
    assert read_library_versions(torch.device("cuda", 0)) == {"cuda": "13.0", "cudnn": "92000", "nccl": "2.29.1"}
    assert read_library_versions(torch.device("cpu")) == {}


def test_one_process_with_several_devices_says_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(uuid=f"uuid-{device.index}"))
    monkeypatch.setattr(rank_device, "get_device_module", lambda torch_type: module)
    assert list_replica_uuids(torch.device("cuda", 0), 3) == ("uuid-1", "uuid-2")
    assert list_replica_uuids(torch.device("cuda", 0), 1) == list_replica_uuids(torch.device("cpu"), 3) == ()


@pytest.mark.parametrize(
    ("count", "local_rank", "devices", "words"),
    [(0, 0, 1, "sees no device.*ZE_AFFINITY_MASK"), (2, 2, 1, "local rank 2"), (2, 0, 3, "sees only 2 of 3")],
)
def test_a_device_that_is_not_there_is_no_cpu(
    xpu: Module, count: int, local_rank: int, devices: int, words: str
) -> None:
    xpu.count = count
    with pytest.raises(ConfigError, match=words):
        choose_device("xpu", local_rank, devices)


@pytest.mark.parametrize(
    ("kind", "hip", "cuda", "words"), [("cuda", "6.4", None, "runs_on: rocm"), ("rocm", None, "13.0", "built for CUDA")]
)
def test_a_torch_of_the_other_vendor_is_told_apart(
    xpu: Module, monkeypatch: pytest.MonkeyPatch, kind: AcceleratorKind, hip: str | None, cuda: str | None, words: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(ConfigError, match=words):
        choose_device(kind, 0)


def test_tensors_elsewhere_are_told_from_those_on_the_device() -> None:
    model = torch.nn.Linear(2, 2)
    on_cpu = locate_tensors({"parameters": model.parameters(), "gradients": []})
    assert on_cpu == {"parameters": ("cpu",)}
    assert describe_foreign_devices(torch.device("cpu"), on_cpu) == ""
    assert describe_foreign_devices(torch.device("xpu", 1), on_cpu) == "parameters on cpu"
    mixed = locate_tensors({"losses": [torch.zeros(1, device="meta"), torch.zeros(1)]})
    assert describe_foreign_devices(torch.device("meta"), mixed) == "losses on cpu"
    assert describe_foreign_devices(torch.device("xpu", 1), {"losses": ("xpu:0", "xpu:1")}) == "losses on xpu:0"
    assert describe_foreign_devices(torch.device("xpu"), {"losses": ("xpu:0",)}) == ""

"""What hosts print, as values. The samples are written after the tools' documentation and known outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents import parse
from campaign.spec.hardware import Link

SAMPLES = Path(__file__).resolve().parents[2] / "data/fabrics/hosts"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


@pytest.mark.parametrize("text", ["0000:3b:00.0", "00000000:3B:00.0", "3b:00.0", " 0000:3B:00.0\n", "0:3b:00.0"])
def test_addresses_are_written_as_sysfs_does(text: str) -> None:
    assert parse.normalize_pci_address(text) == "0000:3b:00.0"


def test_a_domain_is_kept() -> None:
    assert parse.normalize_pci_address("00000001:1A:00.1") == "0001:1a:00.1"


@pytest.mark.parametrize("text", ["", "GPU-1", "0000:3b:00", "0000:3b:00.8", "../../x", "0000:3b:00.0; rm -rf /"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match="not a PCI address"):
        parse.normalize_pci_address(text)


def test_gpus_as_nvidia_smi_lists_them() -> None:
    found = {gpu.address: gpu for gpu in parse.parse_gpus(sample("nvidia-smi.csv").splitlines())}
    assert [(g.identity[:12], g.model, g.link) for g in found.values()] == [
        ("GPU-5e2c1a7b", "NVIDIA A100-PCIE-40GB", Link(16, 4, 16, 4)),
        ("GPU-0b1c2d3e", "NVIDIA A100-PCIE-40GB", Link(8, 3, 16, 4)),
        ("GPU-77aa88bb", "NVIDIA L40S", Link(16, 4, 16, 4)),  # idle: its generation 1 is no evidence
        ("GPU-12121212", "Graphics Device, rev A", None),
        ("", "", None),
    ]
    assert list(found)[3:] == ["0001:1a:00.0", "0000:5e:00.0"]


@pytest.mark.parametrize("name", ["nvidia-smi-none.txt", "nvidia-smi-no-driver.txt"])
def test_no_device_and_no_driver_are_no_gpus(name: str) -> None:
    assert parse.parse_gpus(sample(name).splitlines(), 9) == ()


def test_any_other_failure_of_nvidia_smi_is_not_taken_for_no_gpus() -> None:
    with pytest.raises(FabricError, match=r"ended with exit code 15: Unable to determine .* GPU is lost"):
        parse.parse_gpus(sample("nvidia-smi-lost.txt").splitlines(), 15)


def test_devices_of_a_host() -> None:
    found = {device.address: device for device in parse.parse_devices(sample("look.txt"))}
    gpus = [device for device in found.values() if device.kind == "gpu"]
    assert [(d.address, d.identity[:12], d.ready) for d in gpus] == [
        ("0000:3b:00.0", "GPU-5e2c1a7b", True),
        ("0000:3c:00.0", "GPU-0b1c2d3e", False),  # drained: only the driver still knows it
        ("0000:3d:00.0", "", False),  # the driver has not met it
        ("0000:d8:00.0", "GPU-77aa88bb", True),
    ]
    assert found["0000:3c:00.0"].model == "NVIDIA A100-PCIE-40GB"
    assert found["0000:d8:00.0"].link == Link(8, 4, 16, 4)  # from sysfs; the port above is of generation 4
    drive = found["0000:5e:00.0"]
    assert (drive.kind, drive.identity, drive.model) == ("nvme", "S64ANE0R500123", "SAMSUNG MZQL23T8HCLS-00A07")
    assert drive.link == Link(4, 3, 4, 4)
    assert drive.link.is_degraded
    assert found["0000:86:00.0"].link == Link(16, 3, 16, 3)
    assert (found["0000:86:00.0"].kind, found["0000:86:00.0"].identity) == ("nic", "0c:42:a1:00:00:01")
    assert found["0000:00:03.0"].link is None
    assert found["0000:18:00.0"].link is None  # no link is up: 0 lanes


def test_half_an_answer_is_not_few_devices() -> None:
    text = sample("look.txt")
    for cut in range(0, len(text) - len("== end\n"), 97):
        with pytest.raises(FabricError, match="output is incomplete"):
            parse.parse_devices(text[:cut])


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("5.0 GT/s PCIe", 2),
        ("8 GT/s", 3),
        ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
    ],
)
def test_generations(speed: str, generation: int) -> None:
    assert parse.parse_generation(speed) == generation


@pytest.mark.parametrize("speed", ["", "Unknown", "Unknown speed"])
def test_an_unknown_speed_is_no_generation(speed: str) -> None:
    assert parse.parse_generation(speed) == 0
    assert parse.parse_sysfs_link(["16", "16", "8.0 GT/s PCIe", speed, "", ""]) is None


def test_lanes_that_no_link_has_are_no_link() -> None:
    assert parse.parse_sysfs_link(["255", "16", "8.0 GT/s PCIe", "8.0 GT/s PCIe"]) is None
    assert parse.parse_sysfs_link(["8", "16", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "8", "8.0 GT/s PCIe"]) == Link(
        8, 3, 8, 3
    )


def test_users_of_a_gpu() -> None:
    seen = parse.parse_usage(sample("users-gpu.txt"))
    assert (seen.present, seen.driver, seen.draining, seen.persistent) == (True, "nvidia", False, True)
    assert seen.gpus == ("0000:3b:00.0", "0000:3c:00.0")
    assert (seen.modules, seen.nodes) == (("nvidia_modeset", "nvidia_uvm"), ("/dev/nvidia0",))
    assert seen.computing == ("pid 4711 /usr/bin/python3 (computing)", "pid 4712 [Not Found] (computing)")
    assert seen.files == (
        "pid 812 (nvidia-persistenced) /usr/bin/nvidia-persistenced --user nvidia-persistenced",
        "pid 4711 (alice) python3 train.py --out runs",
    )
    assert (seen.claimed, seen.addresses, seen.removing) == ((), (), ())


def test_users_of_a_drive() -> None:
    seen = parse.parse_usage(sample("users-drive.txt"))
    assert seen.claimed == (
        "mounted on /scratch",
        "mounted on /var/lib/containers/x/merged",
        "swap on nvme1n1p2",
        "dm-0 is built on nvme1n1p3",
    )
    assert seen.removing == ("pid 4242 (removal in progress)",)
    assert seen.nodes == ("/dev/nvme1n1", "/dev/nvme1n1p1", "/dev/nvme1")


def test_users_of_a_card() -> None:
    seen = parse.parse_usage(sample("users-card.txt"))
    assert seen.claimed == ("ib0 is part of bond0", "default route through eth2")
    assert seen.addresses == (
        "eth2 has address fd00:0000:0000:0000:0000:0000:0000:0002",
        "eth2 has address 192.0.2.2/24",
    )


def test_half_an_answer_is_not_no_users() -> None:
    text = sample("users-gpu.txt")
    with pytest.raises(FabricError, match="output is incomplete"):
        parse.parse_usage(text[: text.index("== files")])


def test_a_failed_look_for_load_is_not_no_load() -> None:
    assert parse.parse_computing_processes(["No devices were found"], 6) == ()
    assert parse.parse_computing_processes([], 0) == ()
    assert parse.parse_computing_processes(["[N/A], [Insufficient Permissions]"]) == (
        "pid [N/A] [Insufficient Permissions] (computing)",
    )
    with pytest.raises(FabricError, match="ended with exit code 255: Unknown Error"):
        parse.parse_computing_processes(["Unknown Error"], 255)


@pytest.mark.parametrize(
    ("text", "draining"),
    [
        ("The current drain state of GPU 00000000:3B:00.0 is: draining.", True),
        ("The current drain state of GPU 00000000:3B:00.0 is: not draining.", False),
        ("Failed to query drain state: Not Supported", False),
        ("", False),
    ],
)
def test_drain_state(text: str, draining: bool) -> None:
    assert parse.is_draining(text.splitlines()) is draining

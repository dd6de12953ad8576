"""Drives and network cards leave a host through sysfs, never with a file system or a default route; what hangs is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from campaign.fabrics.host_agents.drain import HostCommandResult, build_script_command
from campaign.fabrics.host_agents.protocol import HostBusy
from campaign.fabrics.host_agents.shell import run_locally
from tests.unit.fabrics.emulated_host import EmulatedHost, Hosts, one


@contextmanager
def hanging(host: EmulatedHost, address: str) -> Iterator[None]:
    """A kernel that waits: nobody reads the pipe that stands for a device's `remove`."""
    file = (host.root / "sys/bus/pci/devices" / address / "remove").resolve()
    file.unlink()
    os.mkfifo(file)
    try:
        yield
    finally:
        reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # whoever still hangs may go
        time.sleep(0.1)
        os.close(reader)


def test_a_removal_that_hangs_is_told_and_not_begun_twice(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.drive())
    with hanging(host, device.address):
        for attempt in (1, 2):
            with pytest.raises(HostBusy, match="is still being removed, because the kernel waits") as caught:
                host.agent(processes=Path("/proc")).detach("c1", [device])
            (holder,) = caught.value.holders
            assert Path(f"/proc/{holder.split()[1]}").exists()
            assert len(host.changes) == 1, f"attempt {attempt}"


def test_modules_are_unloaded_again_while_the_removal_of_the_last_gpu_hangs(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    (host.state / "keep/nvidia_uvm").touch()

    def way(name: str, command: Sequence[str], timeout_s: float) -> HostCommandResult:
        done = run_locally(name, command, timeout_s)
        if "campaign-remove" in command:
            assert done.code == 75
            (host.state / "keep/nvidia_uvm").unlink()
        return done

    host.way = way
    with hanging(host, device.address), pytest.raises(HostBusy, match="is still being removed"):
        host.agent(processes=Path("/proc")).detach("c1", [device], force=True)
    assert host.changes[-2:] == [
        f"campaign-remove /sys/bus/pci/devices/{device.address}/remove 1",
        "modprobe -r nvidia_uvm",
    ]
    assert host.modules == []


def test_watching_a_removal_ends_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "remove"
    file.touch()
    assert run_locally("c1", build_script_command("remove", str(file), "9"), 20) == HostCommandResult(0)
    assert file.read_text() == "1\n"
    assert run_locally("c1", build_script_command("remove", str(tmp_path / "gone"), "9"), 20) == HostCommandResult(0)
    (tmp_path / "directory").mkdir()
    refused = run_locally("c1", build_script_command("remove", str(tmp_path / "directory"), "9"), 20)
    assert refused.code not in (0, 75)
    assert "directory" in refused.err


def test_a_drive_without_users_goes_through_sysfs(emulated: Hosts) -> None:
    host = emulated()
    host.agent().detach("c1", [one(host, host.drive())])
    assert host.changes == ["campaign-remove /sys/bus/pci/devices/0000:5e:00.0/remove 1"]
    assert host.functions == []


def _opened(host: EmulatedHost) -> None:
    host.process(4711, "fio --name=x")
    host.opens(4711, "dev/nvme0n1")


USED_DRIVES: dict[str, tuple[Callable[[EmulatedHost], object], str, bool]] = {
    "mounted, by number, in a name space of its own": (
        lambda host: host.process(9, "x", mountinfo="36 35 259:7771 / /scratch rw - xfs /dev/disk/by-id/x rw\n"),
        "mounted on /scratch",
        True,
    ),
    "mounted, by name": (
        lambda host: host.write("proc/mounts", "/dev/nvme0n1p1 /data ext4 rw 0 0\n"),
        "mounted on /data",
        True,
    ),
    "swap": (
        lambda host: host.write("proc/swaps", "Filename Type\n/dev/nvme0n1p1 partition 1 0 -2\n"),
        "swap on nvme0n1p1",
        True,
    ),
    "a volume": (
        lambda host: host.write("sys/class/block/nvme0n1p1/holders/dm-3", ""),
        "dm-3 is built on nvme0n1p1",
        True,
    ),
    "btrfs": (lambda host: host.write("sys/fs/btrfs/7e/devices/nvme0n1p1", ""), "mounted btrfs has nvme0n1p1", True),
    "ZFS": (
        lambda host: (
            host.write("run/udev/data/b259:7771", "E:ID_FS_TYPE=zfs_member\n"),
            host.write("sys/module/zfs/x", ""),
        ),
        "ZFS may have a pool",
        True,
    ),
    "open": (_opened, r"pid 4711 \(.*\) fio --name=x", False),
}


@pytest.mark.parametrize("case", USED_DRIVES)
def test_a_drive_in_use_stays_and_with_a_file_system_by_force_too(case: str, emulated: Hosts) -> None:
    use, words, always = USED_DRIVES[case]
    host = emulated()
    device = one(host, host.drive())
    use(host)
    with pytest.raises(HostBusy, match=words):
        host.agent().detach("c1", [device])
    if always:
        with pytest.raises(HostBusy, match=words):
            host.agent().detach("c1", [device], force=True)
        assert host.changes == []
    else:
        host.agent().detach("c1", [device], force=True)
        assert host.functions == []


ROUTE = "eth7\t{target}\t010200C0\t0003\t0\t0\t0\t{mask}\t0\t0\t0\n"
USED_CARDS = {
    "default route": ("proc/net/route", ROUTE.format(target="0" * 8, mask="0" * 8), "default route through eth7", True),
    "default route, IPv6": (
        "proc/net/ipv6_route",
        f"{'0' * 32} 00 {'0' * 32} 00 fd 0 0 0 0     eth7\n",
        "default route",
        True,
    ),
    "a route": ("proc/net/route", ROUTE.format(target="000200C0", mask="00FFFFFF"), "eth7 has a route", False),
    "an address": ("proc/net/if_inet6", f"fd{'0' * 30} 04 40 00 82     eth7\n", "eth7 has address fd00:0000", False),
    "a bond": ("sys/class/net/eth7/master/x", "", "eth7 is part of master", True),
}


@pytest.mark.parametrize("case", USED_CARDS)
def test_a_card_in_use_stays(case: str, emulated: Hosts) -> None:
    path, text, words, always = USED_CARDS[case]
    host = emulated()
    device = one(host, host.card())
    host.write(path, text)
    for force in [False, True] if always else [False]:
        with pytest.raises(HostBusy, match=words):
            host.agent().detach("c1", [device], force=force)
        assert host.changes == []


def test_a_card_without_users_goes(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.card())
    host.write("proc/net/if_inet6", f"fe80{'0' * 28} 04 40 20 80     eth7\n")  # of scope link: nobody was told of it
    host.write("proc/net/route", ROUTE.replace("eth7", "eth1").format(target="0" * 8, mask="0" * 8))
    host.agent().detach("c1", [device])
    assert host.functions == []


def test_of_two_without_an_identity_the_one_at_the_address_goes(emulated: Hosts) -> None:
    host = emulated()
    host.gpu(1, driver="")
    host.gpu(2, driver="")
    first, second = host.agent().list_devices("c1")
    assert (first.identity, second.identity) == ("", "")
    host.agent().detach("c1", [second])
    assert host.functions == [first.address]

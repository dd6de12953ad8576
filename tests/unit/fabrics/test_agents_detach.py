"""Devices leave a host in the order that drivers survive, wherever the one who takes them off is stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents import drain
from campaign.fabrics.host_agents.drain import HostCommandResult
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice, match_devices
from campaign.fabrics.host_agents.shell import run_locally
from campaign.spec.hardware import Device
from tests.unit.fabrics.emulated_host import MODULES, Hosts, Stopped, one

OFF = ["nvidia-smi -i {uuid} -pm 0", "nvidia-smi drain -p {bus} -m 1", "rm -f /dev/nvidia{minor}"]
REMOVED = "campaign-remove /sys/bus/pci/devices/{address}/remove 1"
LAST = [f"modprobe -r {module}" for module in MODULES]


@pytest.mark.parametrize(
    ("number", "others", "virtual", "then"),
    [
        (1, [2], False, ["nvidia-smi drain -p {bus} -r"]),
        (0xB, [], False, [*LAST, REMOVED]),
        (1, [2], True, [REMOVED]),
    ],
    ids=["others remain", "the last", "virtual machine"],
)
def test_the_order_in_which_a_gpu_leaves(
    number: int, others: list[int], virtual: bool, then: list[str], emulated: Hosts
) -> None:
    host = emulated(virtual=virtual)
    uuid = host.gpu(number)
    for other in others:
        host.gpu(other)
    host.agent().detach("c1", [one(host, uuid)])
    address = f"0000:3{number:x}:00.0"
    names = {"uuid": uuid, "bus": address.upper(), "minor": number, "address": address}
    assert host.changes == [each.format(**names) for each in (*OFF, *then)]
    assert host.functions == [f"0000:3{other}:00.0" for other in others]
    assert (host.modules, host.wounds) == (sorted(MODULES) if others else [], [])


def test_a_drain_that_is_not_supported_matters_outside_virtual_machines_only(emulated: Hosts) -> None:
    for virtual in (True, False):
        host = emulated(f"virtual-{virtual}", virtual=virtual)
        device = one(host, host.gpu(1))
        (host.state / "undrainable").touch()
        if virtual:
            host.agent().detach("c1", [device])
            assert host.functions == []
        else:
            with pytest.raises(FabricError, match=r"`nvidia-smi drain -m 1` ended with exit code 3: .*Not Supported"):
                host.agent().detach("c1", [device])
            assert host.functions == ["0000:31:00.0"]


def test_when_all_gpus_go_the_last_of_them_is_the_last_one(emulated: Hosts) -> None:
    host = emulated()
    both = [host.gpu(1), host.gpu(2)]
    host.agent().detach("c1", [one(host, uuid) for uuid in both])
    assert [words for words in host.changes if words.endswith("-r") or "remove" in words] == [
        "nvidia-smi drain -p 0000:31:00.0 -r",
        "campaign-remove /sys/bus/pci/devices/0000:32:00.0/remove 1",
    ]
    assert (host.functions, host.wounds) == ([], [])


@pytest.mark.parametrize("case", ["others remain", "all go", "virtual machine"])
def test_stopped_anywhere_and_begun_again_it_ends_the_same(case: str, emulated: Hosts) -> None:
    # Where others remain is the whole way; the other cases begin where they leave it.
    first, stopped = {"others remain": 0, "all go": 6, "virtual machine": 3}[case], True
    dies_at = first
    while stopped:
        host = emulated(f"host{dies_at}", virtual=case == "virtual machine")
        uuids = [host.gpu(1), *([host.gpu(2)] if case == "all go" else [])]
        if case != "all go":
            host.gpu(3)
        fabric = [Device(uuid, "gpu", "a100", uuid, "drawer1/slot1", local=False) for uuid in uuids]
        host.dies_at, stopped = dies_at, False
        try:
            host.agent().detach("c1", [one(host, uuid) for uuid in uuids])
        except Stopped:
            stopped = True
        host.dies_at = None
        # As whoever comes next does it: with the fabric's identities, and what the host shows now.
        agent = host.agent()
        agent.detach("c1", list(match_devices(fabric, agent.list_devices("c1")).values()))
        assert (host.functions, host.wounds) == ([] if case == "all go" else ["0000:33:00.0"], []), host.changes
        if dies_at == first:  # later it is the same host as then
            done = len(host.changes)
            agent.detach("c1", list(match_devices(fabric, agent.list_devices("c1")).values()))
            assert len(host.changes) == done, "what is off the bus is left alone"
        dies_at += 1
    assert dies_at >= {"others remain": 5, "all go": 12, "virtual machine": 5}[case]


def test_who_computes_is_named_and_nothing_is_changed_to_any_device(emulated: Hosts) -> None:
    host = emulated()
    both = [one(host, uuid) for uuid in (host.gpu(1), host.gpu(2))]
    (host.state / "gpus/0000:32:00.0/apps").write_text("4711, /usr/bin/python3\n")
    with pytest.raises(HostBusy, match=r"c1: gpu GPU-00000002.* pid 4711 /usr/bin/python3") as caught:
        host.agent().detach("c1", both)
    assert caught.value.holders == ("pid 4711 /usr/bin/python3 (computing)",)
    assert host.changes == []


def test_a_process_that_holds_a_gpu_open_is_named_and_waited_for(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    host.gpu(2)
    code = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(host.root / "dev/nvidia1"), "the-one-who-holds-it"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            with pytest.raises(HostBusy, match=f"pid {holder.pid} ") as caught:
                host.agent(processes=Path("/proc")).detach("c1", [device])
            assert len(caught.value.holders) == 1
            assert host.changes == [f"nvidia-smi -i {device.identity} -pm 0"]
            assert "0000:31:00.0" in host.functions
        finally:
            holder.communicate("")
    host.agent(processes=Path("/proc")).detach("c1", [device])
    assert (host.functions, host.wounds) == (["0000:32:00.0"], [])


def test_it_goes_on_as_soon_as_the_holder_ends(emulated: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    host.gpu(2)
    host.process(812, "/usr/bin/nvidia-persistenced")
    host.opens(812, "dev/nvidia1")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        (host.processes / "812/fd/7").unlink()

    monkeypatch.setattr(drain, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    host.agent(detach_s=60).detach("c1", [device])
    assert len(waits) == 1
    assert host.functions == ["0000:32:00.0"]


def test_a_daemon_that_keeps_persistence_is_named_with_what_to_do(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    host.process(812, "/usr/bin/nvidia-persistenced --verbose")
    host.opens(812, "dev/nvidia1")
    with pytest.raises(
        HostBusy, match=r"pid 812 \(.*\) /usr/bin/nvidia-persistenced.*systemctl stop nvidia-persistenced"
    ):
        host.agent().detach("c1", [device])
    assert host.functions == ["0000:31:00.0"]


def test_who_comes_between_the_look_and_the_drain_is_found(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    (host.bin / "rm").write_text("#!/bin/sh\n")  # the file stays, so that it can be found by itself
    (host.bin / "rm").chmod(0o755)

    def way(name: str, command: Sequence[str], timeout_s: float) -> HostCommandResult:
        done = run_locally(name, command, timeout_s)
        if command[-2:] == ("-m", "1"):
            host.process(4711, "python3 late.py")
            host.opens(4711, "dev/nvidia1")
        return done

    host.way = way
    with pytest.raises(HostBusy, match=r"pid 4711 \(.*\) python3 late.py"):
        host.agent().detach("c1", [device])
    assert host.functions == ["0000:31:00.0"]
    assert not [words for words in host.changes if "modprobe" in words]


def test_who_has_a_gpu_open_by_another_file_is_found_by_its_number(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(0xB))
    host.process(4711, "python3 in-a-container.py")
    (host.processes / "4711/fd/7").symlink_to(
        "/dev/null"
    )  # some device; `stat` says which, as only a GPU's driver could
    (host.bin / "stat").write_text(
        '#!/bin/sh\ncase "$*" in *%t:%T*) shift 3; printf "c3:b %s\\n" "$@" ;; *) echo alice ;; esac\n'
    )
    (host.bin / "stat").chmod(0o755)
    with pytest.raises(HostBusy, match=r"pid 4711 \(alice\) python3 in-a-container.py"):
        host.agent().detach("c1", [device])
    assert host.functions == ["0000:3b:00.0"]


def test_force_asks_nobody_and_keeps_the_order(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    (host.state / "gpus/0000:31:00.0/apps").write_text("4711, /usr/bin/python3\n")
    host.process(4711, "/usr/bin/python3")
    host.opens(4711, "dev/nvidia1")
    host.agent().detach("c1", [device], force=True)
    assert [words.split()[0] for words in host.changes] == [
        "nvidia-smi",
        "nvidia-smi",
        "rm",
        *["modprobe"] * 3,
        "campaign-remove",
    ]
    assert (host.functions, host.wounds) == ([], [])


def test_a_module_that_is_in_use_keeps_the_last_gpu(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    (host.state / "keep/nvidia_uvm").touch()
    with pytest.raises(HostBusy, match="Module nvidia_uvm is in use"):
        host.agent().detach("c1", [device])
    assert host.functions == ["0000:31:00.0"]
    (host.state / "keep/nvidia_uvm").unlink()
    host.agent().detach("c1", [device])
    assert (host.functions, host.wounds) == ([], [])


def test_a_gpu_that_another_driver_has_is_not_taken(emulated: Hosts) -> None:
    host = emulated()
    host.gpu(1, driver="vfio-pci")
    (device,) = host.agent().list_devices("c1")
    assert (device.identity, device.ready) == ("0000:31:00.0", False)
    with pytest.raises(HostBusy, match="driver vfio-pci"):
        host.agent().detach("c1", [device])
    assert host.changes == []


def test_what_came_to_the_address_meanwhile_is_left_alone(emulated: Hosts) -> None:
    host = emulated()
    host.gpu(1)
    host.agent().detach("c1", [HostDevice("GPU-99999999-0000-0000-0000-000000000000", "0000:31:00.0")])
    assert (host.changes, host.functions) == ([], ["0000:31:00.0"])


def test_a_step_that_fails_names_itself(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    (host.bin / "rm").write_text("#!/bin/sh\necho 'rm: Operation not permitted' >&2\nexit 1\n")
    (host.bin / "rm").chmod(0o755)
    with pytest.raises(
        FabricError, match=r"c1: gpu GPU-.* `rm -f .*nvidia1` ended with exit code 1: rm: Operation not permitted"
    ):
        host.agent().detach("c1", [device])
    assert host.functions == ["0000:31:00.0"]


def test_what_needs_root_goes_through_sudo(emulated: Hosts) -> None:
    host = emulated()
    device = one(host, host.gpu(1))
    host.gpu(2)
    asked = host.state / "asked"
    (host.bin / "sudo").write_text(f'#!/bin/sh\n[ "$1" = -n ] || exit 1\nshift\necho "$1" >> {asked}\nexec "$@"\n')
    (host.bin / "sudo").chmod(0o755)
    host.agent(sudo=("sudo", "-n")).detach("c1", [device])
    assert host.functions == ["0000:32:00.0"]
    assert set(asked.read_text().split()) == {"sh", "nvidia-smi", "rm"}
    assert asked.read_text().split().count("nvidia-smi") == 3

"""NUMA nodes of devices and processes, on copies of what the kernel shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.processes.numa import (
    bind_near_device,
    find_nvidia_pci_address,
    find_pci_node,
    format_number_list,
    list_node_processors,
    list_process_nodes,
    list_socket_processors,
    parse_number_list,
)

ADDRESS = "0000:17:00.0"


@pytest.fixture
def sys_of(tmp_path: Path) -> Path:
    """A host of two nodes in one socket, the second of which has a device; the processors of this process are in the first."""
    for node, cpus in enumerate((format_number_list(os.sched_getaffinity(0)), "900-901")):
        directory = tmp_path / f"devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cpus}\n")
    topology = tmp_path / "devices/system/cpu/cpu900/topology"
    topology.mkdir(parents=True)
    (topology / "package_cpus_list").write_text("898-901\n")
    device = tmp_path / "bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    return tmp_path


def test_a_device_is_in_a_node_and_a_node_in_a_socket(sys_of: Path) -> None:
    assert find_pci_node(ADDRESS, sys_of) == 1
    assert list_node_processors(1, sys_of) == {900, 901}
    assert list_socket_processors(1, sys_of) == {898, 899, 900, 901}
    assert list_process_nodes(sys_of) == {0}


@pytest.mark.parametrize("told", ["-1\n", "", "x"])
def test_a_host_that_does_not_tell_has_no_nodes(sys_of: Path, told: str) -> None:
    (sys_of / "bus/pci/devices" / ADDRESS / "numa_node").write_text(told)
    assert find_pci_node(ADDRESS, sys_of) is None
    assert find_pci_node("0000:ff:00.0", sys_of) is None
    assert find_pci_node("", sys_of) is None
    assert list_socket_processors(7, sys_of) == set()


@given(st.sets(st.integers(0, 300)))
def test_lists_of_processors_are_read_as_they_are_written(numbers: set[int]) -> None:
    assert parse_number_list(format_number_list(numbers)) == numbers


def test_a_process_is_bound_with_its_threads_where_the_socket_has_processors_of_it(sys_of: Path) -> None:
    own = min(os.sched_getaffinity(0))
    (sys_of / "devices/system/node/node0/cpulist").write_text(f"{own}\n")
    code = f"""
import os, threading
from pathlib import Path
from campaign.common.processes.numa import bind_to_socket
wait = threading.Event()
threading.Thread(target=wait.wait).start()
before = os.sched_getaffinity(0)
assert not bind_to_socket(1, Path({str(sys_of)!r})), "the socket of node 1 has none of its processors"
assert os.sched_getaffinity(0) == before
assert bind_to_socket(0, Path({str(sys_of)!r}))
print([sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()])
wait.set()
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == str([[own]] * 2)


def test_a_rank_that_has_no_processor_beside_its_device_stays_and_says_so(sys_of: Path) -> None:
    processors = format_number_list(os.sched_getaffinity(0))
    assert bind_near_device(ADDRESS, sys_of) == (f"device in node 1, rank in 0 on processors {processors}", False)
    assert format_number_list(os.sched_getaffinity(0)) == processors
    assert bind_near_device("0000:ff:00.0", sys_of) == ("", True), "a host that does not tell is left as it is"


def test_the_driver_lists_devices_by_their_addresses(tmp_path: Path) -> None:
    for address, uuid in ((ADDRESS, "GPU-5f6b0000-0000-4000-8000-00000000000a"), ("0000:ca:00.0", "GPU-7a2c")):
        (tmp_path / address).mkdir()
        text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n"
        (tmp_path / address / "information").write_text(text)
    assert find_nvidia_pci_address("5F6B0000-0000-4000-8000-00000000000A", tmp_path) == ADDRESS
    assert find_nvidia_pci_address("GPU-7a2c", tmp_path) == "0000:ca:00.0"
    assert (find_nvidia_pci_address("", tmp_path), find_nvidia_pci_address("GPU-1", tmp_path)) == ("", "")

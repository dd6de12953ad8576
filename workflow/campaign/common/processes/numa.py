"""NUMA placement: the processors near a device, found by its PCI address, and the binding of a process to them.

Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-devices-node of the kernel. Without NUMA information (one node, a
virtual machine), the kernel reports -1, and nothing is bound.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SYSFS = Path("/sys")


def find_pci_node(address: str, sysfs: Path = _SYSFS) -> int | None:
    """Return the NUMA node of a device by its PCI address (`0000:17:00.0`), or None if the host does not report it."""
    with suppress(OSError, ValueError):
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text(encoding="utf-8")) if address else -1
        return node if node >= 0 else None
    return None


def find_nvidia_pci_address(uuid: str, gpus_directory: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return the PCI address of an NVIDIA GPU, or an empty string if the driver does not report it.

    Source: README of NVIDIA's driver, The /proc filesystem interface.

    Args:
        uuid: UUID of the GPU, with or without `GPU-`.
        gpus_directory: directory of the driver's files.
    """
    for file in gpus_directory.glob("*/information"):
        with suppress(OSError):
            if f"gpu-{uuid.lower().removeprefix('gpu-')}" in file.read_text(encoding="utf-8").lower().split():
                return file.parent.name
    return ""


def list_node_processors(node: int, sysfs: Path = _SYSFS) -> set[int]:
    """Return the processors of a NUMA node. The set is empty if the host does not report them."""
    with suppress(OSError, ValueError):
        return parse_number_list((sysfs / f"devices/system/node/node{node}/cpulist").read_text(encoding="utf-8"))
    return set()


def list_socket_processors(node: int, sysfs: Path = _SYSFS) -> set[int]:
    """Return the processors of the socket that a NUMA node belongs to.

    A socket may have several nodes (sub-NUMA clustering, NPS4).
    """
    node_processors = list_node_processors(node, sysfs)
    with suppress(OSError, ValueError):
        socket_file = sysfs / f"devices/system/cpu/cpu{min(node_processors, default=-1)}/topology/package_cpus_list"
        return parse_number_list(socket_file.read_text(encoding="utf-8")) or node_processors
    return node_processors


def parse_number_list(text: str) -> set[int]:
    """Parse a list of numbers as the kernel writes it, such as `0-3,8`. Raises ValueError for any other text."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def format_number_list(numbers: set[int]) -> str:
    """Format numbers as the kernel writes them, such as `0-3,8`. This reverses `parse_number_list`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def bind_to_socket(node: int, sysfs: Path = _SYSFS) -> bool:
    """Bind this process and its threads to those of its processors that are in the socket of a node.

    Returns False if none of its processors is.
    """
    processors = os.sched_getaffinity(0) & list_socket_processors(node, sysfs)
    if not processors:
        return False
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # The thread may have ended.
            os.sched_setaffinity(int(task.name), processors)
    return True


def list_process_nodes(sysfs: Path = _SYSFS) -> set[int]:
    """Return the NUMA nodes of this process's processors. The set is empty if the host does not report them."""
    processors = os.sched_getaffinity(0)
    nodes = (int(path.name.removeprefix("node")) for path in (sysfs / "devices/system/node").glob("node[0-9]*"))
    return {node for node in nodes if list_node_processors(node, sysfs) & processors}


def bind_near_device(address: str, sysfs: Path = _SYSFS) -> tuple[str, bool]:
    """Bind this process to the socket of a device.

    Returns a description of both locations, and True if the process is in that socket now. The description is empty if the
    host does not report the node of the device.
    """
    node = find_pci_node(address, sysfs)
    if node is None:
        return "", True
    is_near = bind_to_socket(node, sysfs)
    nodes = format_number_list(list_process_nodes(sysfs)) or "not known"
    return (
        f"device in node {node}, rank in {nodes} on processors {format_number_list(os.sched_getaffinity(0))}",
        is_near,
    )

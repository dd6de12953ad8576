"""NUMA placement: the processors near a device, found by its PCI address, and the binding of a process to them.

Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-devices-node of the kernel. Without NUMA information (one node, a
virtual
machine), the kernel reports -1, and nothing is bound.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SYS = Path("/sys")


def node_of_pci(address: str, sys: Path = _SYS) -> int | None:
    """Return the NUMA node of a device by its PCI address (`0000:17:00.0`), or None if the host does not report it."""
    with suppress(OSError, ValueError):
        node = int((sys / "bus/pci/devices" / address / "numa_node").read_text(encoding="utf-8")) if address else -1
        return node if node >= 0 else None
    return None


def pci_of_nvidia(uuid: str, gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return the PCI address of an NVIDIA GPU, or an empty string if the driver does not report it.

    Source: README of NVIDIA's driver, The /proc filesystem interface.

    Args:
        uuid: UUID of the GPU, with or without `GPU-`.
        gpus_directory: directory of the driver's files.
    """
    for file in gpus.glob("*/information"):
        with suppress(OSError):
            if f"gpu-{uuid.lower().removeprefix('gpu-')}" in file.read_text(encoding="utf-8").lower().split():
                return file.parent.name
    return ""


def processors_of(node: int, sys: Path = _SYS) -> set[int]:
    """Return the processors of a NUMA node. The set is empty if the host does not report them."""
    with suppress(OSError, ValueError):
        return parse_list((sys / f"devices/system/node/node{node}/cpulist").read_text(encoding="utf-8"))
    return set()


def socket_of(node: int, sys: Path = _SYS) -> set[int]:
    """Return the processors of the socket that a NUMA node belongs to.

    A socket may have several nodes (sub-NUMA clustering, NPS4).
    """
    own = processors_of(node, sys)
    with suppress(OSError, ValueError):
        siblings = sys / f"devices/system/cpu/cpu{min(own, default=-1)}/topology/package_cpus_list"
        return parse_list(siblings.read_text(encoding="utf-8")) or own
    return own


def parse_list(text: str) -> set[int]:
    """Parse a list of numbers as the kernel writes it, such as `0-3,8`. Raises ValueError for any other text."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            found.update(range(int(first), int(last or first) + 1))
    return found


def written(numbers: set[int]) -> str:
    """Format numbers as the kernel writes them, such as `0-3,8`. This reverses `parse_number_list`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def bind_to(node: int, sys: Path = _SYS) -> bool:
    """Bind this process and its threads to those of its processors that are in the socket of a node.

    Returns False if none of its processors is.
    """
    allowed = os.sched_getaffinity(0) & socket_of(node, sys)
    if not allowed:
        return False
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            os.sched_setaffinity(int(task.name), allowed)
    return True


def nodes_of_process(sys: Path = _SYS) -> set[int]:
    """Return the NUMA nodes of this process's processors. The set is empty if the host does not report them."""
    allowed = os.sched_getaffinity(0)
    nodes = (int(path.name.removeprefix("node")) for path in (sys / "devices/system/node").glob("node[0-9]*"))
    return {node for node in nodes if processors_of(node, sys) & allowed}


def bound_beside(address: str, sys: Path = _SYS) -> tuple[str, bool]:
    """Bind this process to the socket of a device.

    Returns a description of both locations, and True if the process is in that socket now. The description is empty if the host
    does
    not report the node of the device.
    """
    node = node_of_pci(address, sys)
    if node is None:
        return "", True
    beside = bind_to(node, sys)
    nodes = written(nodes_of_process(sys)) or "not known"
    return f"device in node {node}, rank in {nodes} on processors {written(os.sched_getaffinity(0))}", beside

"""NUMA: the processors of a device's memory node, by its PCI address, and the binding of a process to them.

Source: Documentation/ABI/testing/sysfs-bus-pci and sysfs-devices-node of the kernel. A host that does not tell (one node, a virtual
machine) says -1, and nothing is bound there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SYS = Path("/sys")


def node_of_pci(address: str, sys: Path = _SYS) -> int | None:
    """The NUMA node of a device, by its address (`0000:17:00.0`); None where the host does not tell."""
    with suppress(OSError, ValueError):
        node = int((sys / "bus/pci/devices" / address / "numa_node").read_text(encoding="utf-8")) if address else -1
        return node if node >= 0 else None
    return None


def pci_of_nvidia(uuid: str, gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """The PCI address of an NVIDIA GPU, by its UUID with or without `GPU-`; empty where the driver does not tell.

    Source: README of NVIDIA's driver, The /proc filesystem interface.
    """
    for file in gpus.glob("*/information"):
        with suppress(OSError):
            if f"gpu-{uuid.lower().removeprefix('gpu-')}" in file.read_text(encoding="utf-8").lower().split():
                return file.parent.name
    return ""


def processors_of(node: int, sys: Path = _SYS) -> set[int]:
    """Processors of a node; empty where the host does not tell."""
    with suppress(OSError, ValueError):
        return parse_list((sys / f"devices/system/node/node{node}/cpulist").read_text(encoding="utf-8"))
    return set()


def socket_of(node: int, sys: Path = _SYS) -> set[int]:
    """Processors of the socket that a node is in: a socket may have several nodes (sub-NUMA clustering, NPS4)."""
    own = processors_of(node, sys)
    with suppress(OSError, ValueError):
        siblings = sys / f"devices/system/cpu/cpu{min(own, default=-1)}/topology/package_cpus_list"
        return parse_list(siblings.read_text(encoding="utf-8")) or own
    return own


def parse_list(text: str) -> set[int]:
    """Numbers of a list as the kernel writes it: `0-3,8`. ValueError: it is none."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            found.update(range(int(first), int(last or first) + 1))
    return found


def written(numbers: set[int]) -> str:
    """The reverse of `parse_list`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def bind_to(node: int, sys: Path = _SYS) -> bool:
    """Bind this process and its threads to those of its processors that are in the socket of a node; False: none is."""
    allowed = os.sched_getaffinity(0) & socket_of(node, sys)
    if not allowed:
        return False
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            os.sched_setaffinity(int(task.name), allowed)
    return True


def nodes_of_process(sys: Path = _SYS) -> set[int]:
    """Nodes that this process's processors are in; empty where the host does not tell."""
    allowed = os.sched_getaffinity(0)
    nodes = (int(path.name.removeprefix("node")) for path in (sys / "devices/system/node").glob("node[0-9]*"))
    return {node for node in nodes if processors_of(node, sys) & allowed}


def bound_beside(address: str, sys: Path = _SYS) -> tuple[str, bool]:
    """Bind this process to the socket of a device; gives both places in words, empty where the host does not tell, and whether the
    process is in that socket now."""
    node = node_of_pci(address, sys)
    if node is None:
        return "", True
    beside = bind_to(node, sys)
    nodes = written(nodes_of_process(sys)) or "not known"
    return f"device in node {node}, rank in {nodes} on processors {written(os.sched_getaffinity(0))}", beside

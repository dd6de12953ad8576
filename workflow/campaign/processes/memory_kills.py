"""The kernel's count of processes that it has killed for want of memory: the evidence that a SIGKILL was one of these."""

from __future__ import annotations

import re
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def memory_kills(root: Path = Path("/")) -> int:
    """Of this process's control group where it is counted, otherwise of the whole host; 0 where nobody counts.

    A program that it starts is in the same group or in one below, which counts here too (version 2). root: for tests.
    """
    for path in [*_groups(root), root / "proc/vmstat"]:
        try:
            if found := _COUNT.search(path.read_text()):
                return int(found[1])
        except OSError:
            continue
    return 0


def _groups(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append(root / "sys/fs/cgroup/memory" / path.strip("/") / "memory.oom_control")
        elif not controllers:
            # A group without the controller is counted by the nearest one above that has it.
            top = root / "sys/fs/cgroup"
            group = top / path.strip("/")
            found += [each / "memory.events" for each in (group, *group.parents) if each.is_relative_to(top)]
    return found

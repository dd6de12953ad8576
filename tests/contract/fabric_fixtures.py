"""Small systems, one per fabric of the table, each with room for exactly one lease of its configuration.

Run as a module, with an action, a fabric, a directory and a lease id, it is the other process of the tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.cell import Configuration
from campaign.fabrics import open_fabric
from campaign.fabrics.errors import Busy, Conflict
from campaign.fabrics.protocol import DeviceSpec, Fabric, HostSpec, PoolSpec, Request, Selection
from campaign.lease import acquire

ATTACH_S = 0.0123
ROOT = Path(__file__).resolve().parents[2]


def configuration(name: str = "c", **changes: Any) -> Configuration:
    """One host, one pooled a100; change what matters."""
    fields: dict[str, Any] = {
        "hosts": 1,
        "devices_per_host": 1,
        "local_devices_per_host": 0,
        "devices_used": changes.get("devices_per_host", 1),
        "device": "a100",
        "attach": "fabric",
        "storage": "local",
    }
    return Configuration(name=name, **(fields | changes))


@dataclass(frozen=True)
class System:
    """What a fabric is opened with, and the configuration that fits into it once."""

    fabric: str
    hosts: tuple[HostSpec, ...]
    pool: tuple[PoolSpec, ...]
    fits_once: Configuration
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, state_dir: Path, **options: Any) -> Fabric:
        return open_fabric(self.fabric, self.options | options, self.hosts, self.pool, state_dir)

    def request(self, lease_id: str = "demo.c.1", **changes: Any) -> Request:
        fields = {"campaign": "demo", "owner": "tester", "configuration": self.fits_once} | changes
        return Request(lease_id=lease_id, **fields)


SYSTEMS = {
    "static": System(
        "static",
        (HostSpec("host1", 8, 32.0, (DeviceSpec("gpu", "a100", 2), DeviceSpec("nvme", "ssd", 1))),),
        (),
        configuration(devices_per_host=2, local_devices_per_host=2, attach="local", storage="nvme"),
    ),
    "simulated": System(
        "simulated",
        (HostSpec("host1", 8, 32.0), HostSpec("host2", 8, 32.0)),
        (PoolSpec("gpu", "a100", 2), PoolSpec("nvme", "ssd", 1)),
        configuration(devices_per_host=2, storage="fabric-nvme"),
    ),
}


class DiesInCompose:
    """A fabric whose process is killed around compose: before anything is changed, or when all is changed."""

    def __init__(self, fabric: Fabric, *, after: bool) -> None:
        self._fabric = fabric
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fabric, name)

    def compose(self, selection: Selection) -> None:
        if self._after:
            self._fabric.compose(selection)
        os.kill(os.getpid(), signal.SIGKILL)


slept: list[float] = []


def dies_at_second_attachment(seconds: float) -> None:
    """Stands for time.sleep: the simulated fabric sleeps ATTACH_S for each device that it attaches."""
    slept.append(seconds)
    if slept.count(ATTACH_S) == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def start(action: str, system: str, directory: Path, lease_id: str) -> subprocess.Popen[str]:
    """Start another process on the same state; its exit status and output say how it went."""
    command = [sys.executable, "-m", "tests.contract.fabric_fixtures", action, system, str(directory), lease_id]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main(action: str, name: str, directory: str, lease_id: str) -> int:
    system, state_dir = SYSTEMS[name], Path(directory)
    options = {"attach_s": ATTACH_S} if name == "simulated" and action == "die_amid" else {}
    fabric: Any = system.open(state_dir, **options)
    if action in ("die_before", "die_after"):
        fabric = DiesInCompose(fabric, after=action == "die_after")
    if action == "die_amid":
        time.sleep = dies_at_second_attachment
    if action == "race":
        (state_dir / f"{lease_id}.there").touch()
        while not (state_dir / "go").exists():
            time.sleep(0.001)
    try:
        acquire(fabric, system.request(lease_id), state_dir / "leases", wait_s=0, poll_s=0)
    except (Busy, Conflict) as error:
        print(f"{type(error).__name__}: {error}")
        return 3
    print("READY", flush=True)
    if action in ("hold", "race"):
        time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

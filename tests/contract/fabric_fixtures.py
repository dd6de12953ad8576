"""Small systems, one per fabric of the table, each with room for exactly one lease of its configuration.

Run as a module, with an action, a fabric, a directory and a lease id, it is the other process of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.documents.cell import Configuration
from campaign.fabrics import open_fabric
from campaign.fabrics.errors import Busy, Conflict
from campaign.fabrics.protocol import DeviceSpec, Fabric, HostSpec, PoolSpec, Request, Selection
from campaign.lease.lifecycle import acquire
from campaign.testbed.control_planes import EMULATORS, open_dialect
from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.server import Server

ATTACH_S = 0.0123
SERVERS: dict[Path, Server] = {}
"""The emulated control planes of this process, by the directory of the state that is with them."""
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
    emulated: bool = False

    def open(self, state_dir: Path, **options: Any) -> Fabric:
        """Open it; another process that opens it in the same directory meets the same control plane."""
        where = reached(self, state_dir) if self.emulated else {}
        return open_fabric(self.fabric, {**self.options, **where, **options}, self.hosts, self.pool, state_dir)

    def rack(self) -> Rack:
        """The hardware that its emulated control plane stands before."""
        devices = [(spec.kind, spec.model, spec.count) for spec in self.pool]
        return rack([host.name for host in self.hosts], devices)

    def request(self, lease_id: str = "demo.c.1", **changes: Any) -> Request:
        fields = {"campaign": "demo", "owner": "tester", "configuration": self.fits_once} | changes
        return Request(lease_id=lease_id, **fields)


def reached(system: System, state_dir: Path) -> dict[str, Any]:
    """How the control plane of a directory is reached; it is started by whoever comes first."""
    note = state_dir / "emulator.txt"
    if not note.exists():
        state_dir.mkdir(parents=True, exist_ok=True)
        server = SERVERS[state_dir] = Server(open_dialect(system.fabric, system.rack()), state_dir / "tls")
        agent = {"kind": "http", "url": f"{server.url}/_hosts/{{host}}/devices", "ca_file": str(server.ca_file)}
        note.write_text(json.dumps({"url": server.url, "ca_file": str(server.ca_file), "agent": agent}))
    found: dict[str, Any] = json.loads(note.read_text())
    return found


def stop_emulators() -> None:
    while SERVERS:
        SERVERS.popitem()[1].close()


os.environ |= {"FABRIC_USER": "campaign", "FABRIC_PASSWORD": "learn-2-compose"}
EMULATED = ("redfish", "redfish-zones", "liqid", "sunfish", "cdi", "nec")
FURTHER: dict[str, dict[str, Any]] = {
    "nec": {"poll_s": 0.05},
    "liqid": {"poll_s": 0.05},
    "cdi": {"settle_s": 0.2},
}
COMPOSING = {
    "redfish": ("POST", "/redfish/v1/Systems"),
    "redfish-zones": ("PATCH", "*/Zones/*"),
    "liqid": ("POST", "*/fabric/reprogram"),
    "sunfish": ("POST", "*/Connections"),
    "cdi": ("PATCH", "*/update"),
    "nec": ("POST", "*/layout-apply"),
}
"""The request that composes, by dialect: method and path."""
ONE_CHANGE = ("nec", "redfish-zones")
"""Dialects that compose with one request."""
CREDENTIALS = {"user_env": "FABRIC_USER", "password_env": "FABRIC_PASSWORD"}

SYSTEMS = {
    **{
        kind: System(
            kind,
            (HostSpec("host1", 8, 32.0), HostSpec("host2", 8, 32.0)),
            (PoolSpec("gpu", "a100", 2), PoolSpec("nvme", "ssd", 1)),
            configuration(devices_per_host=2, storage="fabric-nvme"),
            options={
                "url": "http://127.0.0.1:1",
                "credentials": CREDENTIALS,
                **EMULATORS[kind].options,
                **FURTHER.get(kind, {}),
            },
            emulated=True,
        )
        for kind in EMULATED
    },
    "static": System(
        "static",
        (HostSpec("host1", 8, 32.0, (DeviceSpec("gpu", "a100", 2), DeviceSpec("nvme", "ssd", 1))),),
        (),
        configuration(devices_per_host=2, local_devices_per_host=2, attach="local", storage="nvme"),
    ),
    "prefix": System(
        "prefix",
        tuple(HostSpec(name, 8, 32.0, (DeviceSpec("nvme", "ssd", 1),)) for name in ("host1", "host2")),
        (PoolSpec("gpu", "a100", 1, "server1"),),
        configuration(devices_per_host=2, storage="nvme"),
        {"launch": [{"device": "a100", "fraction": "1/2", "prefix": ["remote", "{devices}", "--"]}]},
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


def dies_in_its_changes(plane: Any, most: int) -> None:
    """Let the process be killed when so many of the requests that attach have been sent and answered."""
    change, attach, changes = plane.client.change, plane.attach, []

    def deadly(*args: Any, **named: Any) -> Any:
        answer = change(*args, **named)
        changes.append(answer)
        if len(changes) == most:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def attaching(*args: Any) -> None:
        plane.client.change = deadly
        attach(*args)

    plane.attach = attaching


def start(action: str, system: str, directory: Path, lease_id: str) -> subprocess.Popen[str]:
    """Start another process on the same state; its exit status and output say how it went."""
    if SYSTEMS[system].emulated:
        reached(SYSTEMS[system], directory)  # the control plane outlives its clients
    command = [sys.executable, "-m", "tests.contract.fabric_fixtures", action, system, str(directory), lease_id]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main(action: str, name: str, directory: str, lease_id: str) -> int:
    system, state_dir = SYSTEMS[name], Path(directory)
    options = {"attach_s": ATTACH_S} if name == "simulated" and action == "die_amid" else {}
    fabric: Any = system.open(state_dir, **options)
    if action in ("die_before", "die_after"):
        fabric = DiesInCompose(fabric, after=action == "die_after")
    if action == "die_amid" and system.emulated:
        dies_in_its_changes(fabric.plane, 1 if name in ONE_CHANGE else 2)
    elif action == "die_amid":
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

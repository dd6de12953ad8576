"""Small systems, one per fabric of the table, each with room for exactly one lease of its configuration; and the other process of
the tests."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from campaign.emulators import catalog
from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer
from campaign.fabrics import list_fabric_modules, load_fabric_kind, open_fabric
from campaign.fabrics.control_plane.protocol import OptionsWithoutLogin
from campaign.fabrics.errors import Busy, Conflict
from campaign.fabrics.protocol import Fabric, LeaseRequest, Selection
from campaign.lease.lifecycle import acquire_lease
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec, PoolSpec

SERVERS: dict[Path, ControlPlaneServer] = {}
"""The emulated control planes of this process, by the directory of the state that is with them."""


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
    options: dict[str, Any]
    emulated: bool
    name: str = ""
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def composes(self) -> tuple[str, str]:
        """The request that composes."""
        found: tuple[str, str] = catalog.load_emulator_module(self.fabric).COMPOSES
        return found

    def open(self, state_dir: Path, **options: Any) -> Fabric:
        """Open it; another process that opens it in the same directory meets the same control plane."""
        where = reached(self, state_dir) if self.emulated else {}
        return open_fabric(self.fabric, {**self.options, **where, **options}, self.hosts, self.pool, state_dir)

    def rack(self) -> Rack:
        """The hardware that its emulated control plane stands before."""
        devices = [(spec.kind, spec.model, spec.count) for spec in self.pool]
        return build_rack([host.name for host in self.hosts], devices)

    def request(self, lease_id: str = "demo.c.1", **changes: Any) -> LeaseRequest:
        fields = {"campaign": "demo", "owner": "tester", "configuration": self.fits_once} | changes
        return LeaseRequest(lease_id=lease_id, **fields)


def reached(system: System, state_dir: Path) -> dict[str, Any]:
    """How the control plane of a directory is reached; it is started by whoever comes first."""
    note = state_dir / "emulator.txt"
    if not note.exists():
        state_dir.mkdir(parents=True, exist_ok=True)
        server = SERVERS[state_dir] = ControlPlaneServer(
            catalog.open_emulator(system.fabric, system.rack(), **system.variant), state_dir / "tls"
        )
        note.write_text(json.dumps(catalog.build_connection_options(system.fabric, server)))
    found: dict[str, Any] = json.loads(note.read_text())
    return found


def stop_emulators() -> None:
    while SERVERS:
        SERVERS.popitem()[1].close()


os.environ |= {"FABRIC_USER": "campaign", "FABRIC_PASSWORD": "learn-2-compose"}
QUICK = {"poll_s": 0.05, "settle_s": 0.2}
"""Options that tests set where a kind has them."""
CREDENTIALS = {"user_env": "FABRIC_USER", "password_env": "FABRIC_PASSWORD"}


def options_of(name: str) -> dict[str, Any]:
    """What a system file says under `fabric`, but for the address: the example's options, quick ones, and credentials."""
    kind = load_fabric_kind(name)
    quick = {key: value for key, value in QUICK.items() if key in kind.options.model_fields}
    asks = kind.emulator and not issubclass(kind.options, OptionsWithoutLogin)
    return {**kind.example.options, **quick, **({"credentials": CREDENTIALS} if asks else {})}


def system_of(name: str) -> System:
    """The example of a kind."""
    kind = load_fabric_kind(name)
    example = kind.example
    options = options_of(name)
    return System(name, example.hosts, example.pool, example.configuration, options, bool(kind.emulator), name)


SYSTEMS = {name: system_of(name) for name in list_fabric_modules()}
"""Every kind there is, those of other installed packages included; and a Redfish service as odd as public ones are together."""
ODD = {
    "quirks": ["linked_root", "linked_members", "untyped", "text_reserved", "errors_with_200"],
    "names": "own",
    "creates": "object",
    "expand": False,
}
SYSTEMS["odd redfish"] = replace(SYSTEMS["redfish"], name="odd redfish", variant=ODD)


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


def dies_in_its_changes(fabric: Any, request: LeaseRequest) -> None:
    """Let the process be killed when its second request that attaches is answered, or the only one."""
    composing, _ = fabric.control_plane_access.preview_requests(fabric.select_devices(request, fabric.read_inventory()))
    plane, most, changes = fabric.plane, min(2, len(composing)), list[Any]()
    change, attach = plane.client.send_change, plane.attach

    def deadly(*args: Any, **named: Any) -> Any:
        answer = change(*args, **named)
        changes.append(answer)
        if len(changes) == most:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def attaching(*args: Any) -> None:
        plane.client.send_change = deadly
        attach(*args)

    plane.attach = attaching


def dies_at_second_device(fabric: Any) -> None:
    """Let the process be killed when a fabric of this program attaches its second device."""
    attach, attached = fabric.attach, list[Any]()

    def deadly(*args: Any) -> None:
        attached.append(args)
        if len(attached) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        attach(*args)

    fabric.attach = deadly


class Other:
    """Another process on the same state, forked from a server that has imported this module: interpreters take seconds."""

    def __init__(self, *words: str) -> None:
        self._hears, says = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_live, args=(says, *words))
        self._process.start()
        says.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float = 30) -> int | None:
        self._process.join(timeout_s)
        return self._process.exitcode

    def says(self, timeout_s: float = 30) -> str:
        """What it says next; empty when it has ended."""
        try:
            return str(self._hears.recv()) if self._hears.poll(timeout_s) else "nothing yet"
        except EOFError:
            return ""

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._hears.close()


def start(action: str, system: str, directory: Path, lease_id: str) -> Other:
    """Start another process on the same state; its exit status and what it says tell how it went."""
    if SYSTEMS[system].emulated:
        reached(SYSTEMS[system], directory)  # the control plane outlives its clients
    return Other(action, system, str(directory), lease_id)


def _live(says: Connection, action: str, name: str, directory: str, lease_id: str) -> None:
    system, state_dir = SYSTEMS[name], Path(directory)
    fabric: Any = system.open(state_dir)
    if action in ("die_before", "die_after"):
        fabric = DiesInCompose(fabric, after=action == "die_after")
    elif action == "die_amid" and fabric.control_plane_access is not None:
        dies_in_its_changes(fabric, system.request(lease_id))
    elif action == "die_amid":
        dies_at_second_device(fabric)
    if action == "race":
        (state_dir / f"{lease_id}.there").touch()
        while not (state_dir / "go").exists():
            time.sleep(0.001)
    try:
        acquire_lease(fabric, system.request(lease_id), state_dir / "leases", wait_s=0, poll_s=0)
    except (Busy, Conflict) as error:
        says.send(f"{type(error).__name__}: {error}")
        sys.exit(3)
    says.send("READY")
    if action in ("hold", "race"):
        time.sleep(60)


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", __name__])

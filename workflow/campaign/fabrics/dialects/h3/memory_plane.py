"""Boxes of memory modules as one control plane. Unverified from end to end: no recording of such a box is public."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from campaign.errors import FabricError
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.h3.layout import Layout
from campaign.fabrics.dialects.h3.memory_box import MemoryBox, Module, Modules, entry
from campaign.fabrics.dialects.h3.options import Options
from campaign.fabrics.errors import Conflict, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.hardware import MEMORY_KIND, Device, HostSpec, PoolSpec
from campaign.fabrics.http.client import Client
from campaign.fabrics.operation_log import timing
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import StateFile

NOTE = (
    "memory boxes follow one public client, never a box. Whole modules only; hosts are not asked whether they use a module, so "
    "that they must have it offline before its lease ends"
)
ASKED = "?"
"""Remembered of a module before it is composed, in place of the id of its memory."""


class MemoryPlane(ControlPlane):
    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        options.fit(hosts, pool)
        self._options = options
        self._layout = Layout(options, tuple(host.name for host in hosts), tuple(pool))
        first, *others = options.boxes
        self.client = Client(options.connection(first))
        beside = {name: Client(options.connection(name), beside=self.client) for name in others}
        self._boxes = {
            name: MemoryBox(name, client, state.path.parent, poll_s=options.poll_s, reads_max=options.reads_max)
            for name, client in {first: self.client, **beside}.items()
        }
        self._seen: dict[str, Modules] = {}

    def capabilities(self) -> Capabilities:
        return Capabilities(max_devices_per_host=sum(len(seen.modules) for seen in self._seen.values()), note=NOTE)

    def view(self) -> View:
        with self.client.operation():
            self._seen = {name: box.read() for name, box in self._boxes.items()}
        return View(tuple(device for box, seen in self._seen.items() for device in self._devices(box, seen)))

    def _devices(self, box: str, seen: Modules) -> Iterator[Device]:
        for module in seen.modules:
            ends = [memory for memory in seen.memories if memory.port == module.port]
            for host_port in [memory.host_port for memory in ends] or [None]:
                yield self._device(box, module, host_port, composed=bool(ends))

    def _device(self, box: str, module: Module, host_port: str | None, *, composed: bool) -> Device:
        attached = None if host_port is None else self._layout.end(box, host_port)
        taken = composed or module.state != 0
        return Device(
            f"{box}/memory{module.port}",
            MEMORY_KIND,
            self._layout.model(box, MEMORY_KIND) or f"cxl-{module.capacity_gib}gib",
            None,
            f"{box}/slot{module.port}",
            local=False,
            attached_to=attached,
            state="unavailable"
            if entry(module.port) is None
            else "in_use"
            if attached
            else "reserved"
            if taken
            else "free",
            others=("somebody: the box says that it is shared",) if module.state > 1 else (),
        )

    def banks(self, view: View) -> Sequence[Bank]:
        return self._layout.banks(view.devices)

    def planned(self, pool: Sequence[PoolSpec], hosts: Sequence[str]) -> tuple[Sequence[Device], Sequence[Bank]]:
        return self._layout.planned()

    def objection(self, change: Change, view: View) -> str | None:
        if not self._options.offline:
            return (
                "nobody looks whether a host uses a memory module: have hosts take it offline, and say `offline: true`"
            )
        for box, host in {(self._split(name)[0], host) for host, names in change.hosts.items() for name in names}:
            port, seen = self._layout.port(box, host), self._seen.get(box)
            if seen is not None and port not in seen.hosts:
                there = ", ".join(sorted(seen.hosts)) or "none"
                return f"{box} has no host on port {port} for {host} (see `hosts` and `ports`); there are: {there}"
        return None

    def attach(self, change: Change, remember: Remember) -> None:
        self._each(change, "attached", lambda name, host: self._attach(name, host, change, remember))

    def _attach(self, name: str, host: str, change: Change, remember: Remember) -> None:
        (box, port), wanted = self._split(name), str(self._layout.port(self._split(name)[0], host))
        memory = self._boxes[box].read().memory(port)
        if memory is not None and memory.host_port == wanted:
            return
        if memory is not None and (memory.host_port is not None or change.handles.get(name) not in (ASKED, memory.id)):
            raise Conflict(f"{name} is composed by somebody else", (memory.host_port or "somebody",))
        with timing("attach", MEMORY_KIND, box):
            if memory is None:
                remember(name, ASKED)
                told = self._stepped(lambda: self._boxes[box].compose(port))
                memory_id = str(told) if self.client.rehearses else self._id(box, port)
                remember(name, memory_id)
            else:
                memory_id = memory.id
            self._stepped(lambda: self._boxes[box].assign(memory_id, wanted))
        if not self.client.rehearses:
            now = self._boxes[box].read().memory(port)
            if now is None or now.host_port != wanted:
                raise ProtocolViolation(f"{box} does not show it on port {wanted} of {host}")

    def _id(self, box: str, port: str) -> str:
        """Of the memory that was composed there, as the box shows it. Raises FabricError where there is none."""
        memory = self._boxes[box].read().memory(port)
        if memory is None:
            raise FabricError(f"{box} composed nothing at port {port}")
        return memory.id

    def detach(self, change: Change) -> tuple[str, ...]:
        self._each(change, "detached", lambda name, host: self._detach(name, host, change.handles.get(name)))
        return ()

    def _detach(self, name: str, host: str, handle: str | None) -> None:
        box, port = self._split(name)
        memory, wanted = self._boxes[box].read().memory(port), self._layout.port(box, host)
        if self.client.rehearses and memory is None:
            self._boxes[box].unassign(str(handle))
            self._boxes[box].delete(str(handle))
            return
        if memory is None or memory.host_port not in (None, wanted):
            return
        if memory.host_port is None and handle not in (ASKED, memory.id):
            return  # somebody else is composing it
        with timing("detach", MEMORY_KIND, box):
            if memory.host_port is not None:
                self._stepped(lambda: self._boxes[box].unassign(memory.id))
                now = self._boxes[box].read().memory(port)
                if now is not None and now.host_port is not None and not self.client.rehearses:
                    raise FabricError(f"{box} still shows it on port {now.host_port}")
            self._stepped(lambda: self._boxes[box].delete(memory.id))
        if not self.client.rehearses and self._boxes[box].read().memory(port) is not None:
            raise FabricError(f"{box} still shows it")

    def _stepped(self, step: Callable[[], str | None]) -> str | None:
        """What a step gives; None where its answer was lost, so that reading back decides."""
        try:
            return step()
        except OutcomeUnknown:
            return None

    def _each(self, change: Change, what: str, act: Callable[[str, str], None]) -> None:
        """Do it for each device. Raises the first Conflict where nothing was done, PartialFailure (itemised) otherwise."""
        done, failed = list[str](), dict[str, FabricError]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    act(name, host)
                except FabricError as error:
                    if isinstance(error, Conflict) and not done and not failed:
                        raise
                    failed[name] = error
                else:
                    done.append(name)
        if failed:
            words = "; ".join(f"{name}: {error}" for name, error in failed.items())
            raise PartialFailure(f"{change.tag.lease_id}: could not be {what}: {words}", done, failed)

    def _split(self, fabric_id: str) -> tuple[str, str]:
        """Box and device port of a module."""
        box, _, module = fabric_id.rpartition("/")
        return box, module.removeprefix("memory")

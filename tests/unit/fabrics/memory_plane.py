"""A control plane without a protocol: a rack, tags in memory, and faults at the moments that matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from campaign.emulators.control_planes.hardware import Rack
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import ControlPlane, FabricView, LeaseChange, RememberHandle
from campaign.fabrics.errors import Busy, OutcomeUnknown, PartialFailure
from campaign.fabrics.host_agents.protocol import HostBusy, HostDevice
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.http.options import ConnectionOptions
from campaign.fabrics.protocol import Capabilities, Tag
from campaign.spec.hardware import Device, Link


class Killed(BaseException):
    """Stands for the death of the process: nothing catches it."""


class MemoryPlane(ControlPlane):
    """faults: what goes wrong next, in order, each once (see `attach` and `detach`)."""

    def __init__(self, rack: Rack, *, tags: bool = True) -> None:
        self.client = HttpClient(ConnectionOptions(url="http://127.0.0.1:1"))
        self.rack = rack
        self.marks: dict[str, Tag] = {}
        self.tagging = tags
        self.faults: list[str] = []
        self.log: list[str] = []

    def describe_capabilities(self) -> Capabilities:
        return Capabilities(gives_host_id=True)

    def read_view(self) -> FabricView:
        devices = tuple(
            Device(
                fabric_id=device.name,
                kind=device.kind,
                model=device.model,
                host_id=device.uuid if device.kind == "gpu" else device.serial,
                location=f"{device.drawer}/slot{device.slot}",
                local=False,
                attached_to=device.attached_to,
                holder=self.marks[device.name].lease_id if device.name in self.marks else None,
                state="free" if device.attached_to is None else "in_use",
                health="critical" if "broken" in device.quirks else "ok",
                link=Link(16, 4, 16, 4),
            )
            for device in self.rack.devices.values()
        )
        tags: dict[str, Tag] = {}
        for name, tag in self.marks.items():
            before = tags.get(tag.lease_id, replace(tag, devices=()))
            tags[tag.lease_id] = replace(before, devices=(*before.devices, name))
        return FabricView(devices, {}, tags)

    def list_banks(self, view: FabricView) -> Sequence[Bank]:
        drawers: dict[str, set[int]] = {}
        for device in self.rack.devices.values():
            drawers.setdefault(device.drawer, set()).add(device.slot)
        hosts = tuple(self.rack.hosts)
        return [Bank(name, name, "advanced", frozenset(slots), hosts, len(hosts)) for name, slots in drawers.items()]

    def find_rule_violation(self, change: LeaseChange, view: FabricView) -> str | None:
        return None

    def _strikes(self, *faults: str) -> str | None:
        return self.faults.pop(0) if self.faults and self.faults[0] in faults else None

    def attach(self, change: LeaseChange, remember: RememberHandle) -> None:
        fault = self._strikes("busy", "partial", "lost_before", "lost_after", "killed_amid", "lie")
        if fault == "busy":
            raise Busy("another transaction", ("another",))
        if fault == "lost_before":
            raise OutcomeUnknown("no answer")
        wanted = [(name, host) for host, names in change.hosts.items() for name in names]
        for number, (name, host) in enumerate(wanted):
            if fault == "killed_amid" and number == len(wanted) // 2:
                raise Killed
            if fault in ("partial", "lie") and number == len(wanted) - 1:
                break
            if self.rack.devices[name].attached_to != host:
                self.rack.attach(name, host)
                self.log.append(f"attach {name}")
            if self.tagging:
                self.marks[name] = change.tag
            remember(host, f"machine of {host}")
        if fault == "partial":
            raise PartialFailure("not all", [name for name, _ in wanted[:-1]], [wanted[-1][0]] if wanted else [])
        if fault == "lost_after":
            raise OutcomeUnknown("the answer was lost")

    def detach(self, change: LeaseChange) -> tuple[str, ...]:
        fault = self._strikes("busy", "lost_before", "lost_after", "killed_amid", "stuck", "silent")
        if fault == "busy":
            raise Busy("another transaction", ("another",))
        if fault == "lost_before":
            raise OutcomeUnknown("no answer")
        wanted = [(name, host) for host, names in change.hosts.items() for name in names]
        left: list[str] = []
        for number, (name, host) in enumerate(wanted):
            if fault == "killed_amid" and number == len(wanted) // 2:
                raise Killed
            if self.rack.devices[name].attached_to != host:
                self.marks.pop(name, None)
                continue
            if fault in ("stuck", "silent") and not left:
                left.append(name)
                continue
            self.rack.detach(name)
            self.log.append(f"detach {name}")
            self.marks.pop(name, None)
        if fault == "lost_after":
            raise OutcomeUnknown("the answer was lost")
        return () if fault == "silent" else tuple(left)

    def close(self) -> None:
        self.client.close()


class RackAgent:
    """Looks on the hosts of a rack. busy: host -> who uses its devices."""

    def __init__(self, plane: MemoryPlane) -> None:
        self.plane = plane
        self.busy: Mapping[str, str] = {}

    def list_devices(self, host: str) -> tuple[HostDevice, ...]:
        return tuple(
            HostDevice(d["identity"], d["address"], d["kind"], d["model"], Link(**d["link"]))
            for d in self.plane.rack.list_visible_devices(host)
        )

    def rescan(self, host: str) -> None:
        self.plane.rack.rescan_host(host)

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        if host in self.busy and not force:
            raise HostBusy(f"{host}: in use by {self.busy[host]}", (self.busy[host],))
        self.plane.log += [f"drain {device.identity}" for device in devices]

    def close(self) -> None:
        pass

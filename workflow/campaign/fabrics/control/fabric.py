"""A fabric whose control plane somebody else runs: claims first, then requests, then what both ends and the hosts show.

Whose a device is, is known from two places: the mark that the fabric carries (`control.tags`), and the claims in a state file that
all campaigns on this system share, written before the first request. A device is ours only where neither contradicts the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from campaign.errors import FabricError
from campaign.fabrics import placement
from campaign.fabrics.agents.protocol import HostAgent
from campaign.fabrics.chassis import UNLIMITED, Bank
from campaign.fabrics.control.http import Sent
from campaign.fabrics.control.plane import Change, ControlPlane, Reading, View
from campaign.fabrics.control.sight import Sight
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, PartialFailure, ProtocolViolation, Unhealthy
from campaign.fabrics.holding import claim, composed, occupy, own_devices
from campaign.fabrics.protocol import (
    STORAGE_KIND,
    Capabilities,
    Composition,
    Device,
    Host,
    HostSpec,
    Inventory,
    PoolSpec,
    Request,
    Selection,
    Tag,
)
from campaign.fabrics.state import HeldHost, Holding, State, StateFile

_RECENT_S = 1.0


class ControlledFabric:
    """See `protocol.Fabric`. `plane` is the dialect; `agent` looks on the hosts, None: nobody does.

    pool: what the system file says is there; planning goes by it, so that a plan needs no control plane. force: hosts are made to
    let go of devices that are in use; never set but by a person. telemetry: read how links are doing before and after a lease.
    """

    force = False

    def __init__(
        self,
        plane: ControlPlane,
        hosts: Sequence[HostSpec],
        state_file: Path,
        agent: HostAgent | None = None,
        pool: Sequence[PoolSpec] = (),
        *,
        telemetry: bool = False,
    ) -> None:
        self.telemetry = telemetry
        self.plane = plane
        self._pool = tuple(pool)
        self._hosts = {host.name: host for host in hosts}
        self._own = tuple(device for host in hosts for device in own_devices(host))
        self._state = StateFile(state_file)
        own: dict[str, set[str]] = {}
        for device in self._own:
            own.setdefault(device.location, set()).add(device.kind)
        self._sight = Sight(agent, self._state, {host: frozenset(kinds) for host, kinds in own.items()})
        self._recent: tuple[str, float, View] | None = None

    def capabilities(self) -> Capabilities:
        return self.plane.capabilities()

    # -- looking -----------------------------------------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        with self.plane.client.operation():
            return self._inventory(self._look("reading back"), self._state.read())

    def _look(self, after: str) -> View:
        """What the control plane shows now; what it showed a moment ago will do once, for a next step that changes nothing."""
        recent, self._recent = self._recent, None
        if recent is not None and recent[0] == after and time.monotonic() - recent[1] < _RECENT_S:
            return recent[2]
        return self._view()

    def _view(self) -> View:
        """What the control plane shows now; one that shows what no dialect foresaw is at fault, not this program."""
        try:
            return self.plane.view()
        except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
            raise ProtocolViolation(
                f"{self.plane.client.base}: what it shows cannot be understood ({type(error).__name__}: {error})"
            ) from error

    def _keep(self, step: str, view: View) -> None:
        self._recent = (step, time.monotonic(), view)

    def _inventory(self, view: View, state: State) -> Inventory:
        hosts = tuple(
            Host(
                spec.name,
                spec.cores,
                spec.memory_gib,
                spec.ports,
                state.holder_of_host(spec.name) or view.holders.get(spec.name),
            )
            for spec in self._hosts.values()
        )
        local = (occupy(device, state) for device in self._own)
        return Inventory(hosts, (*local, *(self._owned(device, view, state) for device in view.devices)))

    def _owned(self, device: Device, view: View, state: State) -> Device:
        """A pooled device with its holder: by the fabric's mark, else by our claim where the fabric does not contradict it."""
        claimed = state.devices.get(device.fabric_id)
        ours = claimed is not None and device.holder is None and device.attached_to in (None, claimed.host)
        if claimed is not None and claimed.lease is not None and ours:
            return replace(device, holder=claimed.lease, state=device.state if device.attached_to else "composing")
        if device.holder is None and device.attached_to is not None:
            return replace(device, holder=f"somebody, on {device.attached_to}")
        if device.holder is None and device.state == "reserved":
            return replace(device, holder="somebody who reserved it")
        return device

    def select(self, request: Request, inventory: Inventory) -> Selection:
        view = View(tuple(device for device in inventory.devices if not device.local))
        selection = placement.select(request, inventory, self.plane.banks(view))
        change = Change(
            _tag(request), {host.host: _moving(host.fabric, host.storage, view) for host in selection.hosts}
        )
        if rule := self.plane.objection(change, view):
            raise Incompatible(f"{request.lease_id}: {rule}", rule)
        return selection

    def select_planned(self, request: Request) -> Selection:
        """As `select`, on nothing but the system file: whether the request could fit if nobody else used the system.

        Rules that only the control plane knows are not in it.
        """
        pool, banks = planned_pool(self._pool, list(self._hosts))
        hosts = tuple(Host(spec.name, spec.cores, spec.memory_gib, spec.ports) for spec in self._hosts.values())
        return placement.select(request, Inventory(hosts, (*self._own, *pool)), banks)

    def read_back(self, lease_id: str) -> Composition | None:
        with self.plane.client.operation():
            view = self._look("release")
            self._keep("reading back", view)
            return self._read_back(lease_id, view)

    def _read_back(self, lease_id: str, view: View) -> Composition | None:
        state = self._state.read()
        holding = state.leases.get(lease_id)
        if holding is None and lease_id not in view.tags:
            return None
        own = {d.fabric_id: occupy(d, state) for d in self._own if state.slot(d.fabric_id).lease == lease_id}
        # What its two ends disagree about was not obtained; releasing it is another matter.
        pooled = {d.fabric_id: d for d in self._attached(lease_id, view, state) if d.state != "unknown"}
        hosts = [_as_attached(host, pooled) for host in holding.hosts] if holding else []
        for name in dict.fromkeys(d.attached_to for d in pooled.values()):
            if name in self._hosts and name not in {host.name for host in hosts}:
                hosts.append(_as_attached(HeldHost(name=str(name)), pooled))
        found = composed(self._hosts, (host for host in hosts if host.name in self._hosts), own | pooled)
        return Composition(tuple(self._sight.told(host) for host in found.hosts))

    def _attached(self, lease_id: str, view: View, state: State) -> list[Device]:
        """Pooled devices that the lease has, each attached to the host that it was claimed for.

        Where the fabric chooses, and marks what it chose as the lease's, any host of the lease will do.
        """
        holding = state.leases.get(lease_id)
        hosts = {host.name for host in holding.hosts} if holding else set(self._hosts)
        found = []
        for shown in view.devices:
            device = self._owned(shown, view, state)
            right = state.slot(device.fabric_id).host in (None, device.attached_to)
            marked = shown.holder == lease_id and device.attached_to in hosts
            if device.holder == lease_id and device.attached_to is not None and (right or marked):
                found.append(device)
        return found

    def host_sees(self, composition: Composition) -> frozenset[str]:
        return self._sight.seen(composition)

    def rescan(self, composition: Composition) -> None:
        self._sight.rescan(composition)

    def readings(self) -> tuple[Reading, ...]:
        """How links and parts are doing, where the control plane tells it and its options ask for it; otherwise nothing."""
        told: Callable[[], tuple[Reading, ...]] | None = getattr(self.plane, "readings", None)
        if told is None or not self.telemetry:
            return ()
        with self.plane.client.operation():
            return told()

    def held(self) -> Mapping[str, Tag]:
        with self.plane.client.operation():
            claims, marks = self._state.read().tags(), self._view().tags
        # A mark may have had no room for its owner.
        told = {lease: mark if mark.owner else claims.get(lease, mark) for lease, mark in marks.items()}
        return {**claims, **told}

    # -- changing ----------------------------------------------------------------------------------------------------------

    def compose(self, selection: Selection) -> None:
        lease_id = selection.request.lease_id
        with self._state.transaction(lease_id), self.plane.client.operation():
            # Never an older one: some fabrics give one device to two hosts when they are told to.
            view, self._recent = self._view(), None
            self._refuse(selection, view)
            before = self._sight.before(
                {
                    host.host: [device for name in host.ids if (device := view.device(name)) is not None]
                    for host in selection.hosts
                }
            )
            with self._state.change() as state:
                new = claim(state, selection)
                if new:
                    for host in selection.hosts:
                        for name in host.ids:
                            slot = state.slot(name)
                            slot.lease, slot.host = lease_id, host.host
                            slot.state = "composing" if view.device(name) else "in_use"
                    state.leases[lease_id].seen_before = before
                change = self._change(state.leases[lease_id], _tag(selection.request, state), view)
            try:
                self.plane.attach(change, lambda name, handle: self._remember(lease_id, name, handle))
            except (Busy, Conflict):
                if new:  # the fabric changed nothing, so there is nothing to give back
                    self._drop(lease_id)
                raise

    def _refuse(self, selection: Selection, view: View) -> None:
        """Raise what forbids the change now, before anything is claimed: time has passed since it was selected."""
        lease_id = selection.request.lease_id
        devices = {device.fabric_id: device for device in self._inventory(view, self._state.read()).devices}
        if unknown := [name for name in selection.ids if name not in devices]:
            raise NoMatch(f"{lease_id}: the fabric no longer has {', '.join(unknown)}")
        chosen = [devices[name] for name in selection.ids]
        if taken := [d for d in chosen if d.holder not in (None, lease_id)]:
            what = ", ".join(f"{d.fabric_id} by {d.holder}" for d in taken)
            raise Conflict(f"{lease_id}: held meanwhile: {what}", dict.fromkeys(str(d.holder) for d in taken))
        if broken := [d.fabric_id for d in chosen if d.health == "critical"]:
            raise Unhealthy(f"{lease_id}: broken meanwhile: {', '.join(broken)}", broken)
        if odd := [d for d in chosen if d.holder is None and d.state not in ("free",)]:
            what = ", ".join(f"{d.fabric_id} is {d.state}" for d in odd)
            raise Conflict(f"{lease_id}: not free on the fabric: {what}", ("the fabric",))
        holders = {host.host: view.holders.get(host.host, lease_id) for host in selection.hosts}
        if others := {name: holder for name, holder in holders.items() if holder != lease_id}:
            what = ", ".join(f"{name} by {holder}" for name, holder in others.items())
            raise Conflict(f"{lease_id}: held meanwhile: {what}", dict.fromkeys(others.values()))

    def release(self, lease_id: str) -> tuple[str, ...]:
        with self.plane.client.operation():
            if lease_id not in self._state.read().leases and lease_id not in self._view().tags:
                return ()
        with self._state.transaction(lease_id), self.plane.client.operation():
            view, state = self._view(), self._state.read()
            change = self._held_change(lease_id, view, state)
            self._drain(change, view)
            told: PartialFailure | None = None
            try:
                stuck = set(self.plane.detach(change))
            except PartialFailure as error:
                stuck, told = set(error.failed), error
            after = self._view()
            stuck |= {device.fabric_id for device in self._attached(lease_id, after, state)}
            stuck |= self._doubtful(lease_id, after, state)
            if not stuck and lease_id in after.tags:
                raise FabricError(f"{lease_id}: the fabric still carries its mark after it was released")
            self._drop(lease_id, keeping=stuck)
            self._keep("release", after)
            if told is not None:
                raise told  # what is given back is given back; its words say why the rest is not
            return tuple(sorted(stuck))

    def _doubtful(self, lease_id: str, view: View, state: State) -> set[str]:
        """What was ours and is attached somewhere as the fabric has it, only that it does not say where, or contradicts itself."""
        claimed = set(state.held_by(lease_id))
        return {
            device.fabric_id
            for device in view.devices
            if device.fabric_id in claimed
            and device.holder in (None, lease_id)
            and device.attached_to is not None
            and (device.state == "unknown" or device.attached_to not in self._hosts)
        }

    def rehearse(self, selection: Selection) -> tuple[list[Sent], list[Sent]]:
        """The exact requests that compose and release would send now; none is sent, and nothing is claimed."""
        with self.plane.client.operation():
            view = self._view()
            self._refuse(selection, view)
            holding = Holding(
                campaign=selection.request.campaign,
                owner=selection.request.owner,
                since_s=time.time(),
                hosts=tuple(
                    HeldHost(name=h.host, devices=(*h.local, *h.fabric), storage=h.storage) for h in selection.hosts
                ),
            )
            change = self._change(holding, _tag(selection.request), view)
            handles: dict[str, str] = {}
            with self.plane.client.rehearsal() as composing:
                self.plane.attach(change, handles.__setitem__)
            with self.plane.client.rehearsal() as releasing:
                self.plane.detach(replace(change, handles=handles))
            return composing, releasing

    def close(self) -> None:
        self.plane.close()
        self.plane.client.close()
        self._sight.close()

    def _change(self, holding: Holding, tag: Tag, view: View) -> Change:
        moving = {host.name: _moving(host.devices, host.storage, view) for host in holding.hosts}
        ids = tuple(name for names in moving.values() for name in names)
        return Change(replace(tag, devices=ids), moving, dict(holding.handles))

    def _held_change(self, lease_id: str, view: View, state: State) -> Change:
        """Everything that a lease has or may have: what it claimed, and what the fabric marks as its."""
        holding = state.leases.get(lease_id)
        hosts: dict[str, list[str]] = {}
        if holding is not None:
            hosts = {h.name: list(_moving(h.devices, h.storage, view)) for h in holding.hosts}
        for device in self._attached(lease_id, view, state):
            names = hosts.setdefault(str(device.attached_to), [])
            if device.fabric_id not in names:
                names.append(device.fabric_id)
        for name, holder in view.holders.items():
            if holder == lease_id:
                hosts.setdefault(name, [])
        # A device that somebody else has by now was never ours to detach.
        owned = {d.fabric_id: self._owned(d, view, state).holder for d in view.devices}
        mine = {host: tuple(n for n in names if owned.get(n) in (None, lease_id)) for host, names in hosts.items()}
        tag = state.tags().get(lease_id) or view.tags[lease_id]
        ids = tuple(name for names in mine.values() for name in names)
        return Change(replace(tag, devices=ids), mine, dict(holding.handles) if holding else {})

    def _drain(self, change: Change, view: View) -> None:
        """Get what is attached out of use on its host, before the fabric takes it away."""
        for host, names in change.hosts.items():
            there = [d for d in view.devices if d.fabric_id in names and d.attached_to == host]
            self._sight.drain(host, there, force=self.force)

    def _remember(self, lease_id: str, name: str, handle: str) -> None:
        with self._state.change() as state:
            state.leases[lease_id].handles[name] = handle

    def _drop(self, lease_id: str, keeping: set[str] | frozenset[str] = frozenset()) -> None:
        """Forget the claims of a lease; what is stuck stays with it, and so do the hosts that it is stuck on."""
        with self._state.change() as state:
            for name in state.held_by(lease_id):
                if name not in keeping:
                    del state.devices[name]
            holding = state.leases.get(lease_id)
            if holding is None:
                return
            holding.hosts = tuple(h for h in holding.hosts if {*h.devices, *h.storage} & keeping)
            if not holding.hosts:
                del state.leases[lease_id]


def planned_pool(pool: Sequence[PoolSpec], hosts: Sequence[str]) -> tuple[tuple[Device, ...], tuple[Bank, ...]]:
    """The pool of a system file as devices, and its drawers as banks that every host reaches."""
    slots: dict[str, list[Device]] = {}
    for spec in pool:
        drawer = spec.drawer or "pool"
        for _ in range(spec.count):
            there = slots.setdefault(drawer, [])
            location = f"{drawer}/slot{len(there) + 1}"
            there.append(Device(location, spec.kind, spec.model, None, location, local=False))
    banks = tuple(
        Bank(drawer, drawer, "advanced", frozenset(range(1, len(there) + 1)), tuple(hosts), UNLIMITED)
        for drawer, there in slots.items()
    )
    return tuple(device for there in slots.values() for device in there), banks


def _tag(request: Request, state: State | None = None) -> Tag:
    holding = state.leases.get(request.lease_id) if state else None
    since_s = holding.since_s if holding else time.time()
    return Tag(request.lease_id, request.campaign, request.owner, since_s, ())


def _moving(devices: Sequence[str], storage: Sequence[str], view: View) -> tuple[str, ...]:
    """Those that come from the pool."""
    pooled = {device.fabric_id for device in view.devices}
    return tuple(name for name in (*devices, *storage) if name in pooled)


def _as_attached(host: HeldHost, pooled: Mapping[str, Device]) -> HeldHost:
    """A stored host with what the fabric attached to it, instead of and beyond what was asked for."""

    def there(asked: Sequence[str]) -> list[str]:
        return [name for name in asked if name not in pooled or pooled[name].attached_to == host.name]

    asked = {*host.devices, *host.storage}
    others = [d for name, d in pooled.items() if name not in asked and d.attached_to == host.name]
    return host.model_copy(
        update={
            "devices": (*there(host.devices), *(d.fabric_id for d in others if d.computes)),
            "storage": (*there(host.storage), *(d.fabric_id for d in others if d.kind == STORAGE_KIND)),
        }
    )

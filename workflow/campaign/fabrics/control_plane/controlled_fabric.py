"""A fabric whose control plane somebody else runs: claims first, then requests, then what both ends and the hosts show.

Whose a device is, is known from two places: the mark that the fabric carries (`lease_tag`), and the claims in a state file that
all campaigns on this system share, written before the first request. A device is ours only where neither contradicts the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.host_view import HostView
from campaign.fabrics.control_plane.ownership import ClaimedView, distinct, moving_of
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, View
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.host_agents import open_agent
from campaign.fabrics.host_agents.protocol import HostAgent, HostBusy
from campaign.fabrics.operations import timing
from campaign.fabrics.placement.selection import select
from campaign.fabrics.protocol import Capabilities, Fabric, RecordedRequest, Request, Selection, Sent, Tag
from campaign.fabrics.state_file import State, StateFile, claim, in_the_way, occupy_slots
from campaign.spec.hardware import Composition, Device, Host, Inventory, own_devices
from campaign.spec.site_hardware import HostSpec, PoolSpec

_RECENT_S = 1.0


class ControlledFabric(Fabric):
    """`plane` speaks to the fabric; `agent` looks on the hosts, None: nobody does. pool: of the system file; plans go by it.

    model: the system file's name of what the fabric calls a model.
    """

    force = False

    def __init__(
        self,
        plane: ControlPlane,
        hosts: Sequence[HostSpec],
        state_file: Path,
        agent: HostAgent | None = None,
        pool: Sequence[PoolSpec] = (),
        model: Callable[[str], str] = str,
    ) -> None:
        self.plane = plane
        self._model = model
        self._pool = tuple(pool)
        self._hosts = {host.name: host for host in hosts}
        self._own = tuple(device for host in hosts for device in own_devices(host))
        self._state = StateFile(state_file)
        own: dict[str, set[str]] = {}
        for device in self._own:
            own.setdefault(device.location, set()).add(device.kind)
        self._host_view = HostView(agent, self._state, {host: frozenset(kinds) for host, kinds in own.items()})
        self._recent: tuple[str, float, View] | None = None

    def capabilities(self) -> Capabilities:
        return self.plane.capabilities()

    def inventory(self) -> Inventory:
        with self.plane.client.operation():
            return self._beside_claims(self._look("reading back")).inventory()

    def _look(self, after: str) -> View:
        """What the control plane shows now; what it showed a moment ago will do once, for a next step that changes nothing."""
        recent, self._recent = self._recent, None
        if recent is not None and recent[0] == after and time.monotonic() - recent[1] < _RECENT_S:
            return recent[2]
        return self._view()

    def _view(self) -> View:
        """What the control plane shows now; one that shows what no adapter foresaw is at fault, not this program."""
        try:
            with timing("inventory"):
                shown = self.plane.view()
            view = distinct(shown, self._state.read())
            named = (replace(device, model=self._model(device.model), called=device.model) for device in view.devices)
            return replace(view, devices=tuple(named))
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ProtocolViolation(
                f"{self.plane.client.base}: unexpected data from the control plane ({type(error).__name__}: {error})"
            ) from error

    def _keep(self, step: str, view: View) -> None:
        self._recent = (step, time.monotonic(), view)

    def _beside_claims(self, view: View) -> ClaimedView:
        return ClaimedView(view, self._state.read(), self._hosts, self._own)

    def select(self, request: Request, inventory: Inventory) -> Selection:
        # What is movable makes way.
        pooled = (device for device in inventory.devices if not device.local)
        view = View(tuple(replace(device, attached_to=None) if device.movable else device for device in pooled))
        selection = select(request, inventory, self.plane.banks(view))
        change = Change(
            _tag(request), {host.host: moving_of(host.fabric, host.storage, view) for host in selection.hosts}
        )
        if rule := self.plane.objection(change, view):
            raise Incompatible(f"{request.lease_id}: {rule}", rule)
        return selection

    def inventory_planned(self) -> Inventory:
        hosts = tuple(Host(spec.name, spec.cores, spec.memory_gib) for spec in self._hosts.values())
        return Inventory(hosts, (*self._own, *self._planned[0]))

    def select_planned(self, request: Request) -> Selection:
        """Select by the rules that the system file tells, without those that only the control plane knows."""
        return select(request, self.inventory_planned(), self._planned[1])

    @cached_property
    def _planned(self) -> tuple[Sequence[Device], Sequence[Bank]]:
        return self.plane.planned(self._pool, tuple(self._hosts))

    def read_back(self, lease_id: str) -> Composition | None:
        if not self.plane.marks_leases and lease_id not in self._state.read().leases:
            return None
        with self.plane.client.operation():
            view = self._look("release")
            self._keep("reading back", view)
            found = self._beside_claims(view).composition(lease_id)
            hosts = tuple(self._host_view.told(host) for host in found.hosts) if found else ()
            return None if found is None else replace(found, hosts=hosts)

    def host_sees(self, composition: Composition) -> frozenset[str]:
        return self._host_view.seen(composition)

    def looked_for(self, composition: Composition) -> frozenset[str]:
        return self._host_view.looked_for(composition)

    def rescan(self, composition: Composition) -> None:
        self._host_view.rescan(composition)

    @property
    def controlled(self) -> ControlledFabric:
        return self

    @property
    def requests(self) -> int:
        return self.plane.client.requests

    def operation(self) -> AbstractContextManager[None]:
        return self.plane.client.operation()

    def banks(self) -> Sequence[Bank]:
        return self.plane.banks(self.plane.view())

    def out_of_reach(self) -> Mapping[tuple[str, str], str]:
        return self.plane.out_of_reach()

    def host_devices(self, host: str) -> Sequence[tuple[str, str]] | None:
        return self._host_view.listed(host)

    def recording(self) -> AbstractContextManager[list[RecordedRequest]]:
        return self.plane.client.recording()

    def scrub(self, text: str) -> str:
        return self.plane.client.scrub(text)

    def held(self) -> Mapping[str, Tag]:
        if not self.plane.marks_leases:
            return self._state.read().tags()
        with self.plane.client.operation():
            claims, marks = self._state.read().tags(), self._view().tags
        # A mark may have had no room for its owner.
        told = {lease: mark if mark.owner else claims.get(lease, mark) for lease, mark in marks.items()}
        return {**claims, **told}

    def compose(self, selection: Selection) -> None:
        lease_id = selection.request.lease_id
        with self._state.transaction(lease_id), self.plane.client.operation():
            # Never an older one: some fabrics give one device to two hosts when they are told to.
            view, self._recent = self._view(), None
            look = self._beside_claims(view)
            look.refuse(selection)
            devices = {host.host: [d for d in view.devices if d.fabric_id in host.ids] for host in selection.hosts}
            before = self._host_view.before(devices)
            with self._state.change() as state:
                new, change, leaving = self._enter(state, look, selection)
                if new:
                    state.leases[lease_id].seen_before = before
            try:
                self._make_way(view, leaving, change.tag)
                self.plane.attach(change, lambda name, handle: self._remember(lease_id, name, handle))
            except (Busy, Conflict):
                if new:  # the fabric changed nothing, so there is nothing to give back
                    self._drop(lease_id)
                raise
            except HostBusy as busy:  # before anything was attached; whoever uses what was found there may end
                if new:
                    self._drop(lease_id)
                raise Conflict(f"{lease_id}: {busy}", busy.holders or ("a host",)) from busy

    def _enter(self, state: State, look: ClaimedView, selection: Selection) -> tuple[bool, Change, Mapping[str, str]]:
        """Enter a selection into the state: whether it is new, what is to be attached, and what leaves which host before that."""
        lease_id, view = selection.request.lease_id, look.view
        _forget_moved(state, view)
        _take_over(state, view, selection)
        if new := claim(state, selection):
            occupy_slots(state, selection, {device.fabric_id for device in view.devices})
        change = look.change(state.leases[lease_id], _tag(selection.request, state))
        change = replace(change, p2p=selection.request.configuration.p2p)
        return new, change, in_the_way(state, lease_id)

    def release(self, lease_id: str) -> tuple[str, ...]:
        with self.plane.client.operation():
            if lease_id not in self._state.read().leases and lease_id not in self._view().tags:
                return ()
        with self._state.transaction(lease_id), self.plane.client.operation():
            look = self._beside_claims(self._view())
            change = look.held_change(lease_id)
            for host, names in change.hosts.items():  # out of use on its host, before the fabric takes it away
                there = [d for d in look.view.devices if d.fabric_id in names and d.attached_to == host]
                self._host_view.drain(host, there, force=self.force)
            told: PartialFailure | None = None
            try:
                stuck = set(self.plane.detach(change))
            except PartialFailure as error:
                stuck, told = set(error.failed), error
            after = replace(look, view=self._view())
            stuck |= {device.fabric_id for device in after.attached(lease_id)} | after.doubtful(lease_id)
            if not stuck and lease_id in after.view.tags:
                raise FabricError(
                    f"{lease_id}: the fabric still shows its mark; run 'campaign fabric reconcile --release'"
                )
            self._drop(lease_id, keeping=stuck, shown=after.view)
            self._keep("release", after.view)
            if told is not None:
                raise told  # what is given back is given back; its words say why the rest is not
            self._bring_home()
            return tuple(sorted(stuck))

    def away(self) -> Mapping[str, str]:
        return self._state.read().away()

    def bring_home(self) -> Mapping[str, str]:
        if not self._state.read().away():
            return {}
        with self._state.transaction("what was found on hosts"), self.plane.client.operation():
            return self._bring_home()

    def _bring_home(self) -> Mapping[str, str]:
        if not self._state.read().away():
            return {}
        view, self._recent = self._view(), None
        hosts: dict[str, tuple[str, ...]] = {}
        with self._state.change() as state:
            for name, host in state.away().items():
                device = view.device(name)
                if device is None or device.attached_to is not None:
                    _is_home(state, name)  # somebody has found a place for it
                else:
                    hosts[host] = (*hosts.get(host, ()), name)
        if not hosts:
            return {}
        told: FabricError | None = None
        try:
            self.plane.attach(Change(Tag("", "", "", time.time(), ()), hosts), lambda name, handle: None)
        except (OutcomeUnknown, PartialFailure) as error:
            # Lost answers say nothing of devices; what the fabric shows by now does.
            told, view = error, self._view()
        away = False
        with self._state.change() as state:
            for name, host in ((name, host) for host, names in hosts.items() for name in names):
                device = view.device(name)
                if told is None or (device is not None and device.attached_to == host):
                    _is_home(state, name)
                else:
                    away = True
        if told is not None and away:
            raise told
        return {name: host for host, names in hosts.items() for name in names}

    def _make_way(self, view: View, devices: Mapping[str, str], tag: Tag) -> None:
        """Detach devices from where they were found, by fabric id and host. Raises PartialFailure for what would not go."""
        hosts: dict[str, list[Device]] = {}
        for name, host in devices.items():
            if (device := view.device(name)) is not None:
                hosts.setdefault(host, []).append(device)
        if hosts and not self._host_view.looks and not self.force:
            who = ", ".join(device.fabric_id for there in hosts.values() for device in there)
            raise HostBusy(
                f"whether {who} are in use on {', '.join(hosts)} is unknown: nobody looks there (see `agent`)"
            )
        for host, there in hosts.items():
            self._host_view.drain(host, there, force=self.force)
            names = tuple(device.fabric_id for device in there)
            stuck = self.plane.detach(Change(replace(tag, devices=names), {host: names}))
            with self._state.change() as state:
                for name in set(names) - set(stuck):
                    state.taken(name)
            if stuck:
                raise PartialFailure(f"{tag.lease_id}: {', '.join(stuck)} would not leave {host}", failed=stuck)

    def rehearse(self, selection: Selection) -> tuple[list[Sent], list[Sent]]:
        """The exact requests that compose and release would send now; none is sent, and nothing is claimed."""
        with self.plane.client.operation():
            look = self._beside_claims(self._view())
            look.refuse(selection)
            # Into a state that is not written.
            _, change, leaving = self._enter(self._state.read(), look, selection)
            handles: dict[str, str] = {}
            with self.plane.client.rehearsal() as composing:
                for name, host in leaving.items():
                    self.plane.detach(replace(change, hosts={host: (name,)}))
                self.plane.attach(change, handles.__setitem__)
            with self.plane.client.rehearsal() as releasing:
                self.plane.detach(replace(change, handles=handles))
            return composing, releasing

    def close(self) -> None:
        self.plane.close()
        self.plane.client.close()
        self._host_view.close()

    def _remember(self, lease_id: str, name: str, handle: str) -> None:
        with self._state.change() as state:
            state.leases[lease_id].handles[name] = handle

    def _drop(self, lease_id: str, keeping: Collection[str] = (), shown: View | None = None) -> None:
        with self._state.change() as state:
            if shown is not None:
                _forget_moved(state, shown)
            state.drop(lease_id, keeping)


def _tag(request: Request, state: State | None = None) -> Tag:
    holding = state.leases.get(request.lease_id) if state else None
    since_s = holding.since_s if holding else time.time()
    return Tag(request.lease_id, request.campaign, request.owner, since_s, ())


def _is_home(state: State, name: str) -> None:
    del state.homes[name]
    if (slot := state.devices.get(name)) is not None and slot.lease is None:
        state.free(name)


def _forget_moved(state: State, view: View) -> None:
    """Pass over what others have moved since it was found."""
    for name, slot in tuple(state.devices.items()):
        shown, lent = view.device(name), slot.lease is None and name not in view.movable
        if slot.found is not None and (lent or shown is None or shown.attached_to != slot.found):
            state.taken(name)


def _take_over(state: State, view: View, selection: Selection) -> None:
    """Remember where what is movable was found, if it is in the selection or in its way."""
    hosts = {host.host for host in selection.hosts}
    for device in view.devices:
        if device.fabric_id in view.movable and (device.fabric_id in selection.ids or device.attached_to in hosts):
            slot = state.slot(device.fabric_id)
            if slot.lease is None and slot.found is None:
                slot.found = state.homes[device.fabric_id] = str(device.attached_to)


def opening(
    plane: Callable[[Any, Sequence[HostSpec], Sequence[PoolSpec], StateFile], ControlPlane], kind: str
) -> Callable[[Any, Sequence[HostSpec], Sequence[PoolSpec], Path], ControlledFabric]:
    """What opens a vendor adapter (`FabricKind.open`); its control plane is not asked anything yet."""

    def open_fabric(
        options: Any, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
    ) -> ControlledFabric:
        state = state_dir / f"{kind}.json"
        agent = open_agent(options.agent, len(hosts))
        return ControlledFabric(plane(options, hosts, pool, StateFile(state)), hosts, state, agent, pool, options.model)

    return open_fabric

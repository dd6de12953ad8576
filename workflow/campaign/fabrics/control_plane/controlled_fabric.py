"""Fabric behind an external control plane: first claims, then requests, then a check of both ends and of the hosts.

The owner of a device follows from two sources: the mark on the fabric (`lease_tag`), and the claims in a state file. All
campaigns on this system share the state file, and it is written before the first request. A device is ours only if neither
contradicts the
other.
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
    """Fabric behind an external control plane; see `protocol.Fabric`."""

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
        """Open the fabric of a control plane.

        Args:
            plane: adapter that communicates with the control plane.
            hosts: hosts of the system.
            state_file: path of the file with the claims.
            agent: host agent, or None if hosts are not inspected.
            pool: pool of the system file, used for plans.
            map_model: function that maps the fabric's name of a device model to the name in the system file.
        """
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
        """Return the capabilities of the control plane."""
        return self.plane.capabilities()

    def inventory(self) -> Inventory:
        """Read the hosts and devices from the control plane, with the holders of marks and claims."""
        with self.plane.client.operation():
            return self._beside_claims(self._look("reading back")).inventory()

    def _look(self, after: str) -> View:
        """Return the view of the control plane, reusing one that an earlier step kept a moment ago.

        A kept view is reused at most once, by a next step that changes nothing.
        """
        recent, self._recent = self._recent, None
        if recent is not None and recent[0] == after and time.monotonic() - recent[1] < _RECENT_S:
            return recent[2]
        return self._view()

    def _view(self) -> View:
        """Read the state that the control plane reports now.

        Raises ProtocolViolation if the data are unexpected, because then the control plane is at fault and not this program.
        """
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
        """Keep a view for the next step."""
        self._recent = (step, time.monotonic(), view)

    def _beside_claims(self, view: View) -> ClaimedView:
        """Combine a view of the control plane with the claims in the state file."""
        return ClaimedView(view, self._state.read(), self._hosts, self._own)

    def select(self, request: Request, inventory: Inventory) -> Selection:
        # Movable devices count as detached.
        """Choose the devices for a request, counting movable devices as free.

        Raises Incompatible if the change would break a rule of the fabric.
        """
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
        """Build the inventory of the system file without any holders."""
        hosts = tuple(Host(spec.name, spec.cores, spec.memory_gib) for spec in self._hosts.values())
        return Inventory(hosts, (*self._own, *self._planned[0]))

    def select_planned(self, request: Request) -> Selection:
        """Choose devices by the rules of the system file, without rules that only the control plane has."""
        return select(request, self.inventory_planned(), self._planned[1])

    @cached_property
    def _planned(self) -> tuple[Sequence[Device], Sequence[Bank]]:
        """Devices and banks of the pool in the system file."""
        return self.plane.planned(self._pool, tuple(self._hosts))

    def read_back(self, lease_id: str) -> Composition | None:
        """Read the composition that the fabric and the claims show for the lease, with the data that its hosts report.

        Returns None if neither of them has the lease.
        """
        if not self.plane.marks_leases and lease_id not in self._state.read().leases:
            return None
        with self.plane.client.operation():
            view = self._look("release")
            self._keep("reading back", view)
            found = self._beside_claims(view).composition(lease_id)
            hosts = tuple(self._host_view.told(host) for host in found.hosts) if found else ()
            return None if found is None else replace(found, hosts=hosts)

    def host_sees(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices that their hosts can use now."""
        return self._host_view.seen(composition)

    def looked_for(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of the devices that are verified on their hosts."""
        return self._host_view.looked_for(composition)

    def rescan(self, composition: Composition) -> None:
        """Make the hosts of the composition scan for devices."""
        self._host_view.rescan(composition)

    @property
    def controlled(self) -> ControlledFabric:
        """Operations beyond `Fabric`, which this class offers itself."""
        return self

    @property
    def requests(self) -> int:
        """Number of requests sent to the control plane so far."""
        return self.plane.client.requests

    def operation(self) -> AbstractContextManager[None]:
        """Apply one common time limit to all requests inside the block."""
        return self.plane.client.operation()

    def banks(self) -> Sequence[Bank]:
        """Read which hosts can reach which devices."""
        return self.plane.banks(self.plane.view())

    def out_of_reach(self) -> Mapping[tuple[str, str], str]:
        """Return the reason why a host cannot reach a drawer, by drawer and host, as of the last reading."""
        return self.plane.out_of_reach()

    def host_devices(self, host: str) -> Sequence[tuple[str, str]] | None:
        """Return (identity, model) of each device that the host lists now, or None if no host agent is configured."""
        return self._host_view.listed(host)

    def recording(self) -> AbstractContextManager[list[RecordedRequest]]:
        """Record every request with its answer inside the block."""
        return self.plane.client.recording()

    def scrub(self, text: str) -> str:
        """Remove the secrets of the control plane from a text."""
        return self.plane.client.scrub(text)

    def held(self) -> Mapping[str, Tag]:
        """Return the tags of all leases, from the marks on the fabric and the claims in the state file."""
        if not self.plane.marks_leases:
            return self._state.read().tags()
        with self.plane.client.operation():
            claims, marks = self._state.read().tags(), self._view().tags
        # Some marks have no room for the owner.
        told = {lease: mark if mark.owner else claims.get(lease, mark) for lease, mark in marks.items()}
        return {**claims, **told}

    def compose(self, selection: Selection) -> None:
        """Claim the selection, detach devices that block it, and attach its devices.

        Raises Busy or Conflict if nothing was changed, PartialFailure with the devices that failed, or OutcomeUnknown.
        """
        lease_id = selection.request.lease_id
        with self._state.transaction(lease_id), self.plane.client.operation():
            # The view must be current: some fabrics attach one device to two hosts on request.
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
                if new:  # the fabric changed nothing, so there is nothing to release
                    self._drop(lease_id)
                raise
            except HostBusy as busy:  # nothing is attached yet; the users of devices found on the host may finish
                if new:
                    self._drop(lease_id)
                raise Conflict(f"{lease_id}: {busy}", busy.holders or ("a host",)) from busy

    def _enter(self, state: State, look: ClaimedView, selection: Selection) -> tuple[bool, Change, Mapping[str, str]]:
        """Enter a selection into the state.

        Returns a tuple: True if the claim is new, the attachments to change, and the hosts that devices must leave first, by
        fabric id.
        """
        lease_id, view = selection.request.lease_id, look.view
        _forget_moved(state, view)
        _take_over(state, view, selection)
        if new := claim(state, selection):
            occupy_slots(state, selection, {device.fabric_id for device in view.devices})
        change = look.change(state.leases[lease_id], _tag(selection.request, state))
        change = replace(change, p2p=selection.request.configuration.p2p)
        return new, change, in_the_way(state, lease_id)

    def release(self, lease_id: str) -> tuple[str, ...]:
        """Take the devices of the lease out of use, detach them, and return displaced devices to their hosts.

        Returns the fabric ids of devices that could not be released. Raises FabricError if the fabric still shows the mark of
        the lease.
        """
        with self.plane.client.operation():
            if lease_id not in self._state.read().leases and lease_id not in self._view().tags:
                return ()
        with self._state.transaction(lease_id), self.plane.client.operation():
            look = self._beside_claims(self._view())
            change = look.held_change(lease_id)
            for host, names in change.hosts.items():  # hosts stop using the devices before the fabric detaches them
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
                raise told  # the released devices stay released; the error explains the others
            self._bring_home()
            return tuple(sorted(stuck))

    def away(self) -> Mapping[str, str]:
        """Return the original host of each displaced device, by fabric id."""
        return self._state.read().away()

    def bring_home(self) -> Mapping[str, str]:
        """Attach displaced devices to their original hosts, and return their hosts by fabric id."""
        if not self._state.read().away():
            return {}
        with self._state.transaction("what was found on hosts"), self.plane.client.operation():
            return self._bring_home()

    def _bring_home(self) -> Mapping[str, str]:
        """Attach displaced devices to their original hosts, and return their hosts by fabric id.

        The caller holds the transaction lock.
        """
        if not self._state.read().away():
            return {}
        view, self._recent = self._view(), None
        hosts: dict[str, tuple[str, ...]] = {}
        with self._state.change() as state:
            for name, host in state.away().items():
                device = view.device(name)
                if device is None or device.attached_to is not None:
                    _is_home(state, name)  # another user has attached it
                else:
                    hosts[host] = (*hosts.get(host, ()), name)
        if not hosts:
            return {}
        told: FabricError | None = None
        try:
            self.plane.attach(Change(Tag("", "", "", time.time(), ()), hosts), lambda name, handle: None)
        except (OutcomeUnknown, PartialFailure) as error:
            # A lost answer says nothing about single devices, so the view is read again.
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
        """Detach devices from the hosts where they were found, given by fabric id.

        Raises PartialFailure if the fabric does not release devices, and HostBusy if they may be in use.
        """
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
        """Return the exact requests that composing and releasing the selection would send now.

        Nothing is sent or claimed.
        """
        with self.plane.client.operation():
            look = self._beside_claims(self._view())
            look.refuse(selection)
            # This copy of the state is not written.
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
        """Close the control plane, its HTTP client and the host agent."""
        self.plane.close()
        self.plane.client.close()
        self._host_view.close()

    def _remember(self, lease_id: str, name: str, handle: str) -> None:
        """Store the id of an object that the fabric created for a lease."""
        with self._state.change() as state:
            state.leases[lease_id].handles[name] = handle

    def _drop(self, lease_id: str, keeping: Collection[str] = (), shown: View | None = None) -> None:
        """Remove the claims of a lease, except those of the devices to keep."""
        with self._state.change() as state:
            if shown is not None:
                _forget_moved(state, shown)
            state.drop(lease_id, keeping)


def _tag(request: Request, state: State | None = None) -> Tag:
    """Build the tag of a request, with the start time of its claim if there is one."""
    holding = state.leases.get(request.lease_id) if state else None
    since_s = holding.since_s if holding else time.time()
    return Tag(request.lease_id, request.campaign, request.owner, since_s, ())


def _is_home(state: State, name: str) -> None:
    """Forget the original host of a device that is no longer displaced."""
    del state.homes[name]
    if (slot := state.devices.get(name)) is not None and slot.lease is None:
        state.free(name)


def _forget_moved(state: State, view: View) -> None:
    """Forget the original hosts of devices that other clients have moved since they were found."""
    for name, slot in tuple(state.devices.items()):
        shown, lent = view.device(name), slot.lease is None and name not in view.movable
        if slot.found is not None and (lent or shown is None or shown.attached_to != slot.found):
            state.taken(name)


def _take_over(state: State, view: View, selection: Selection) -> None:
    """Record the hosts of movable devices that are selected or attached to selected hosts."""
    hosts = {host.host for host in selection.hosts}
    for device in view.devices:
        if device.fabric_id in view.movable and (device.fabric_id in selection.ids or device.attached_to in hosts):
            slot = state.slot(device.fabric_id)
            if slot.lease is None and slot.found is None:
                slot.found = state.homes[device.fabric_id] = str(device.attached_to)


def opening(
    plane: Callable[[Any, Sequence[HostSpec], Sequence[PoolSpec], StateFile], ControlPlane], kind: str
) -> Callable[[Any, Sequence[HostSpec], Sequence[PoolSpec], Path], ControlledFabric]:
    """Return a function that opens a vendor adapter (`FabricKind.open`). Opening sends no request to the control plane.

    Args:
        open_plane: function that creates the control plane of the adapter.
        kind: kind of the fabric, which names the state file.
    """

    def open_fabric(
        options: Any, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
    ) -> ControlledFabric:
        """Open the adapter with its state file and host agent."""
        state = state_dir / f"{kind}.json"
        agent = open_agent(options.agent, len(hosts))
        return ControlledFabric(plane(options, hosts, pool, StateFile(state)), hosts, state, agent, pool, options.model)

    return open_fabric

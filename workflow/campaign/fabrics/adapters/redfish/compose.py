"""Changing what hosts have: a system is composed, its address remembered, and deleted; or the physical system is expanded.

A physical system is never deleted: only its list of blocks is changed. Devices are marked as reserved meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from campaign.errors import FabricError
from campaign.fabrics.adapters.redfish import resources
from campaign.fabrics.adapters.redfish.answers import Missing, Stale, local, uri
from campaign.fabrics.adapters.redfish.ownership import (
    ASKED,
    Seat,
    ServiceView,
    address_of,
    handle_of,
    is_at,
    made,
    name_of,
)
from campaign.fabrics.adapters.redfish.resources import Block, System
from campaign.fabrics.adapters.redfish.service import RedfishOptions, Service
from campaign.fabrics.control_plane.lease_tag import encode
from campaign.fabrics.control_plane.protocol import Change, Remember
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, PartialFailure
from campaign.fabrics.http.client import Answer
from campaign.fabrics.http.response import at, mapping

_RESERVED = "reserved"
_ORDINARY = {"gpu": "GPU", "fpga": "FPGA"}


class Power:
    """Hosts off before their devices change, and on after (ComputerSystem.Reset); nothing unless `attach_mode` is powered_off."""

    def __init__(self, service: Service, options: RedfishOptions) -> None:
        self._service = service
        self._wanted = options.attach_mode == "powered_off"
        self._poll_s = options.poll_s

    def off(self, path: str) -> None:
        self._reset(path, "ForceOff", "Off")

    def on(self, path: str) -> None:
        self._reset(path, "On", "On")

    def _reset(self, path: str, kind: str, until: str) -> None:
        """Raises OutcomeUnknown when it is not so before the operation's time is over."""
        if not self._wanted:
            return
        rehearses = self._service.client.rehearses
        system = None if rehearses else resources.system(self._service.get(path))
        if system is not None and system.power == until:
            return
        target = (system.reset if system is not None else None) or f"{path}/Actions/ComputerSystem.Reset"
        self._service.change("POST", target, {"ResetType": kind}, assumed={})
        while not rehearses and resources.system(self._service.get(path)).power != until:
            try:
                self._service.client.sleep(self._poll_s)
            except FabricError as error:
                raise OutcomeUnknown(f"{path}: not {until} in time ({error})") from error


class Composing:
    """One change of one lease. constrained: the service chooses the devices, of the same models."""

    def __init__(self, service: Service, seen: ServiceView, options: RedfishOptions, change: Change) -> None:
        self._service, self._seen, self._change = service, seen, change
        self._power = Power(service, options)
        self.constrained = options.composition == "constrained" or (
            options.composition == "auto" and seen.constrained()
        )

    def attach(self, seat: Seat, remember: Remember) -> None:
        """Expand the host's physical system, compose one for it, or complete the one that a former try has left."""
        names = self._change.hosts[seat.host]
        if seat.system is not None:
            self._expand(seat.system, names, attaches=True)
            return
        assert seat.block is not None
        blocks = {self._seen.blocks[name].uri: self._seen.blocks[name] for name in names}
        there = self._seen.system_of(self._change.tag.lease_id, seat.host)
        if there is not None:
            self._complete(there, blocks, names)
            return
        for inside in seat.block.own_systems:
            self._power.off(inside)
        handle = handle_of(seat.host)
        remember(handle, ASKED)
        try:
            answer = self._compose(seat.host, self._requested(seat.block, blocks))
        except (Busy, Conflict, Incompatible, NoMatch):
            remember(handle, "")
            raise
        path = self._address(answer)
        if path is not None:
            remember(handle, path)
            if (system := self._made(path, answer.body)) is not None:
                remember(handle, made(path, system))
            self._power.on(path)

    def _address(self, answer: Answer) -> str | None:
        """Where the answer says that the new system is; what was there before is none, whatever it says."""
        location, known = answer.header("Location"), self._seen.reading
        path = local(location).rstrip("/") if location else uri(answer.body)
        return None if path is None or path in known.systems or path == known.systems_at else path

    def _made(self, path: str, body: Any) -> resources.System | None:
        """The system as the service has made it; None where it does not show it."""
        if at(body, "SystemType") is None and not self._service.client.rehearses:
            with suppress(FabricError):
                body = self._service.find(path)
        return None if at(body, "SystemType") is None else resources.system(mapping(body))

    def detach(self, host: str, seat: Seat | None, names: tuple[str, ...]) -> None:
        """Take devices out of a physical system; else delete the system that this lease composed, unless it is gone."""
        if seat is not None and seat.system is not None:
            self._expand(seat.system, names, attaches=False)
            return
        system = self._seen.system_of(self._change.tag.lease_id, host)
        path = system.uri if system is not None else self._unlisted(host, seat, names)
        if path is None:
            return
        try:
            self._power.off(path)
            self._service.change("DELETE", path, assumed=None)
        except Missing:
            return

    def _unlisted(self, host: str, seat: Seat | None, names: Sequence[str]) -> str | None:
        """The address of a system that the service made and does not list; None where it has none, or somebody else's by now."""
        handle = self._change.handles.get(handle_of(host), "")
        path = address_of(handle)
        if path is None or self._service.client.rehearses:
            return path
        found = None if path in self._seen.reading.systems else self._service.find(path)
        blocks = {self._seen.blocks[name].uri for name in names if name in self._seen.blocks}
        wanted = blocks | ({seat.block.uri} if seat is not None and seat.block is not None else set())
        return path if found is not None and is_at(resources.system(found), handle, wanted) else None

    def _compose(self, host: str, requested: dict[str, Any]) -> Answer:
        where, name = self._seen.reading.systems_at, name_of(self._change.tag.lease_id, host)
        body = requested | {"Name": name, "Description": encode(self._change.tag)}
        assumed = {"@odata.id": f"{where}/<{name}>"}
        try:
            return self._service.change("POST", where, body, assumed=assumed)
        except Incompatible as error:
            if "Description" not in str(error):
                raise
            # The Name says whose it is as well; campaign and owner are in the state file.
            del body["Description"]
            return self._service.change("POST", where, body, assumed=assumed)

    def _requested(self, host: Block, blocks: Mapping[str, Block]) -> dict[str, Any]:
        if not self.constrained:
            return _links(host.uri, *blocks)
        body = _links(host.uri)
        zones = self._seen.common(Seat("", host), blocks.values())
        if self._seen.reading.affinity and zones:
            body["@Redfish.ZoneAffinity"] = zones[0].id
        for collection, wanted in self._requests(blocks):
            body.setdefault(collection, {"Members": []})["Members"].append(wanted)
        return body

    def _requests(self, blocks: Mapping[str, Block]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(collection, what is asked of it), one for each kind and model: as many as were selected."""
        parts = (part for path in blocks for part in self._seen.reading.parts.get(path, ()))
        for (kind, model), count in Counter((part.kind, part.model) for part in parts).items():
            wanted: dict[str, Any] = {"@Redfish.RequestedCount": count, "@Redfish.AllowOverprovisioning": False}
            if model is not None:
                wanted["Model"] = model
            if kind in ("nvme", "nic"):
                yield "Storage" if kind == "nvme" else "EthernetInterfaces", wanted
            else:
                yield "Processors", wanted | {"ProcessorType": _ORDINARY.get(kind, kind)}

    def _complete(self, system: System, blocks: Mapping[str, Block], names: tuple[str, ...]) -> None:
        """A system of a former try has everything, or is given what it lacks with the whole list of its blocks."""
        there = system.blocks or ()
        missing = [path for path in blocks if path not in there]
        if not missing or self.constrained:
            return
        try:
            self._power.off(system.uri)
            self._service.change("PATCH", system.uri, _links(*there, *missing), assumed={})
            self._power.on(system.uri)
        except (Conflict, Incompatible) as error:
            failed = [name for name in names if self._seen.blocks[name].uri in missing]
            done = [name for name in names if name not in failed]
            raise PartialFailure(
                f"{system.name}: composed before without {', '.join(failed)}: {error}", done, failed
            ) from error

    def _expand(self, system: System, names: tuple[str, ...], *, attaches: bool) -> None:
        """Add blocks to a physical system or remove them: by actions where it advertises them, else by the whole list."""
        there, rehearses = system.blocks or (), self._service.client.rehearses
        moving: dict[str, list[str]] = {}
        for name in names:
            path = self._seen.blocks[name].uri
            if path not in there if attaches else path in there or rehearses:
                moving.setdefault(path, []).append(name)
        if not moving:
            return
        target = system.add if attaches else system.remove
        self._power.off(system.uri)
        try:
            if target is not None:
                self._act(system, target, moving)
                return
            try:
                self._list(system, moving, attaches)
            except Stale:
                # Somebody changed the list since it was read; the next try is made from what it is now.
                self._list(resources.system(self._service.get(system.uri)), moving, attaches)
        finally:
            # Off is no way to leave a host; whether the change was done is not its matter.
            self._power.on(system.uri)

    def _act(self, system: System, target: str, moving: dict[str, list[str]]) -> None:
        """One action a block. Raises Busy or Conflict when the first is refused, PartialFailure for a later one."""
        done: list[str] = []
        for path, names in moving.items():
            etag = self._service.etag(path)
            body = {"ResourceBlock": {"@odata.id": path}} | ({} if etag is None else {"ResourceBlockETag": etag})
            try:
                self._service.change("POST", target, body, assumed={})
            except (Busy, Conflict, Incompatible) as error:
                if not done:
                    raise
                failed = [name for names in moving.values() for name in names if name not in done]
                raise PartialFailure(f"{system.id}: {error}", done, failed) from error
            done.extend(names)

    def _list(self, system: System, moving: Collection[str], attaches: bool) -> None:
        """Send the whole list: services differ in what an element left out, or an empty one, means to them."""
        there = system.blocks or ()
        whole = dict.fromkeys((*there, *moving)) if attaches else [path for path in there if path not in moving]
        self._service.change("PATCH", system.uri, _links(*whole), assumed={})


def _links(*blocks: str) -> dict[str, Any]:
    return {"Links": {"ResourceBlocks": [{"@odata.id": path} for path in blocks]}}


class Reserving:
    """The marks `Reserved` of one change: a courtesy to other clients of the service, which protects nothing (DSP2050).

    Which were set is remembered before the first is. Only devices are marked, never hosts: so a mark on a host is somebody else's,
    in every process that reads it. A block that is marked, not composed and not remembered is foreign.
    """

    def __init__(self, service: Service, seen: ServiceView, change: Change, wanted: bool) -> None:
        self._service = service
        self._seen = seen
        self._change = change
        self._wanted = wanted
        self._ours = set(change.handles.get(_RESERVED, "").split())

    def begin(self, remember: Remember) -> None:
        """Remember every block that will be marked: after a crash nobody could tell whose marks they are."""
        blocks = self._blocks(name for names in self._change.hosts.values() for name in names)
        new = {block.uri for block in blocks if not block.reserved and not self._seen.reading.listing(block)}
        if self._wanted and new - self._ours:
            self._ours |= new
            remember(_RESERVED, " ".join(sorted(self._ours)))

    def reserve(self, names: Iterable[str]) -> None:
        """Mark the blocks of a host. Raises Conflict or Busy with none of them marked."""
        done: list[Block] = []
        for block in self._blocks(names) if self._wanted else ():
            if (block.reserved and block.uri in self._ours) or self._seen.reading.listing(block):
                continue  # marked or attached before
            try:
                if block.reserved:
                    raise Conflict(f"{block.id} is reserved by another client", ("another client that reserved it",))
                self._mark(block)
            except (Busy, Conflict):
                self._unmark(done)
                raise
            except (Incompatible, Missing):
                # A service on which marks cannot be set has none that anybody would look at.
                self._wanted = False
                return
            done.append(block)

    def _mark(self, block: Block) -> None:
        try:
            self._set(block, True)
        except Stale:
            now = resources.block(self._service.get(block.uri))
            if now.reserved or now.systems:
                raise Conflict(f"{block.id} was taken by another client", ("somebody",)) from None
            self._set(block, True)

    def _set(self, block: Block, value: bool) -> None:
        if not value:  # composing and decomposing changed it since it was read, which is nobody else's doing
            self._service.forget(block.uri)
        self._service.change("PATCH", block.uri, {"CompositionStatus": {"Reserved": value}}, assumed={})

    def take_back(self, names: Iterable[str]) -> None:
        """Unmark the blocks of a host that was not composed after all. Raises PartialFailure when one stays marked."""
        if self._wanted:
            self._unmark([block for block in self._blocks(names) if block.uri in self._ours])

    def _unmark(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            try:
                self._set(block, False)
            except OutcomeUnknown:
                raise
            except FabricError as error:
                names = [name for name, one in self._seen.blocks.items() if one.uri == block.uri]
                raise PartialFailure(f"{block.id}: its mark cannot be taken back: {error}", (), names) from error

    def clear(self, names: Sequence[str]) -> tuple[str, ...]:
        """Take away the marks on devices that were given back; gives those that the service would not unmark.

        Ours are those that were remembered, and those on blocks that our own system had: decomposing leaves them marked.
        """
        stuck: list[str] = []
        for block in self._blocks(names):
            ours = block.uri in self._ours or self._composed_by_us(block)
            if not ours or not (block.reserved or self._service.client.rehearses):
                continue
            try:
                self._set(block, False)
            except Missing:
                continue
            except (Busy, Conflict, Incompatible):
                stuck.extend(name for name in names if self._seen.blocks[name].uri == block.uri)
        return tuple(stuck)

    def _composed_by_us(self, block: Block) -> bool:
        leased = (self._seen.leased.get(path) for path in self._seen.reading.listing(block))
        return block.reserved and any(
            one is not None and one.tag.lease_id == self._change.tag.lease_id for one in leased
        )

    def _blocks(self, names: Iterable[str]) -> list[Block]:
        """The blocks of devices, each once."""
        found = (self._seen.blocks[name] for name in names if name in self._seen.blocks)
        return list({block.uri: block for block in found}.values())

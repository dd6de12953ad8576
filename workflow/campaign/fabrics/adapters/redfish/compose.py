"""Changing what hosts have: a system is composed of exact blocks, its address remembered, and deleted (DSP2050).

Only a system that a lease composed is deleted. Nothing is marked as `Reserved`: the mark protects nothing, and outlives the system.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.redfish import resources
from campaign.fabrics.adapters.redfish.answers import Missing, local, uri
from campaign.fabrics.adapters.redfish.ownership import (
    ASKED,
    ServiceView,
    address_of,
    handle_of,
    is_at,
    made,
    name_of,
)
from campaign.fabrics.adapters.redfish.resources import Block
from campaign.fabrics.adapters.redfish.service import RedfishOptions, Service
from campaign.fabrics.control_plane.lease_tag import encode
from campaign.fabrics.control_plane.protocol import Change, Remember
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, PartialFailure
from campaign.fabrics.http.client import Answer
from campaign.fabrics.http.response import at, mapping


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
    """One change of one lease."""

    def __init__(self, service: Service, seen: ServiceView, options: RedfishOptions, change: Change) -> None:
        self._service, self._seen, self._change = service, seen, change
        self._power = Power(service, options)

    def attach(self, host: str, own: Block, remember: Remember) -> None:
        """Compose a system of a host's own block and its devices, unless a former try has left one.

        Raises PartialFailure where that one lacks devices.
        """
        names = self._change.hosts[host]
        blocks = {self._seen.blocks[name].uri: self._seen.blocks[name] for name in names}
        there = self._seen.system_of(self._change.tag.lease_id, host)
        if there is not None:
            failed = [name for name in names if self._seen.blocks[name].uri not in there.blocks]
            if failed:
                done = [name for name in names if name not in failed]
                raise PartialFailure(f"{there.name}: composed before without {', '.join(failed)}", done, failed)
            return
        for inside in own.own_systems:
            self._power.off(inside)
        handle = handle_of(host)
        remember(handle, ASKED)
        try:
            answer = self._compose(host, (own.uri, *blocks))
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

    def detach(self, host: str) -> None:
        """Delete the system that this lease composed for a host, unless it is gone."""
        system = self._seen.system_of(self._change.tag.lease_id, host)
        path = system.uri if system is not None else self._unlisted(host)
        if path is None:
            return
        try:
            self._power.off(path)
            self._service.change("DELETE", path, assumed=None)
        except Missing:
            return

    def _unlisted(self, host: str) -> str | None:
        """The address of a system that the service made and does not list; None where it has none, or somebody else's by now."""
        handle = self._change.handles.get(handle_of(host), "")
        path = address_of(handle)
        if path is None or self._service.client.rehearses:
            return path
        found = None if path in self._seen.reading.systems else self._service.find(path)
        known = [self._seen.blocks.get(name) for name in self._change.hosts.get(host, ())]
        wanted = {block.uri for block in (*known, self._seen.hosts.get(host)) if block is not None}
        return path if found is not None and is_at(resources.system(found), handle, wanted) else None

    def _compose(self, host: str, blocks: Collection[str]) -> Answer:
        where, name = self._seen.reading.systems_at, name_of(self._change.tag.lease_id, host)
        links = {"ResourceBlocks": [{"@odata.id": path} for path in blocks]}
        body = {"Links": links, "Name": name, "Description": encode(self._change.tag)}
        assumed = {"@odata.id": f"{where}/<{name}>"}
        try:
            return self._service.change("POST", where, body, assumed=assumed)
        except Incompatible as error:
            if "Description" not in str(error):
                raise
            # The Name says whose it is as well; campaign and owner are in the state file.
            del body["Description"]
            return self._service.change("POST", where, body, assumed=assumed)

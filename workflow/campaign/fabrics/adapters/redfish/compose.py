"""Composition and deletion of systems on a Redfish service (DSP2050).

A system is composed of exact blocks, and its address is remembered. Only systems that a lease composed are deleted. Nothing is
marked as `Reserved`, because the mark protects nothing and outlives the system.
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
    """Switching of hosts off before their devices change, and on after it (ComputerSystem.Reset).

    It does nothing unless `attach_mode` is `powered_off`.
    """

    def __init__(self, service: Service, options: RedfishOptions) -> None:
        """Prepare the switching, which is enabled by the attach mode `powered_off`."""
        self._service = service
        self._wanted = options.attach_mode == "powered_off"
        self._poll_s = options.poll_s

    def off(self, path: str) -> None:
        """Switch off the Redfish system at a path and wait until it is off."""
        self._reset(path, "ForceOff", "Off")

    def on(self, path: str) -> None:
        """Switch on the Redfish system at a path and wait until it is on."""
        self._reset(path, "On", "On")

    def _reset(self, path: str, kind: str, until: str) -> None:
        """Send a ComputerSystem.Reset and wait for the power state.

        Raises OutcomeUnknown if the system does not reach the state before the time limit of the operation.

        Args:
            path: path of the system.
            reset_type: ResetType of the request.
            target_state: PowerState to wait for.
        """
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
    """Composition and deletion of the systems of one lease's change, host by host."""

    def __init__(self, service: Service, seen: ServiceView, options: RedfishOptions, change: Change) -> None:
        """Prepare the composition or deletion of the systems of one change."""
        self._service, self._seen, self._change = service, seen, change
        self._power = Power(service, options)

    def attach(self, host: str, own: Block, remember: Remember) -> None:
        """Compose a Redfish system of a host's block and its devices, unless an earlier attempt has composed it.

        Raises PartialFailure if the earlier system lacks devices.

        Args:
            host: name of the host.
            host_block: block that is composed for the host.
            remember: function that writes the address of the new system into the state file.
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
        """Return the path of the newly composed system from an answer, or None if the answer has none.

        A path that existed before is never that of the new system.
        """
        location, known = answer.header("Location"), self._seen.reading
        path = local(location).rstrip("/") if location else uri(answer.body)
        return None if path is None or path in known.systems or path == known.systems_at else path

    def _made(self, path: str, body: Any) -> resources.System | None:
        """Return the new system as the service shows it, or None if the service does not show it."""
        if at(body, "SystemType") is None and not self._service.client.rehearses:
            with suppress(FabricError):
                body = self._service.find(path)
        return None if at(body, "SystemType") is None else resources.system(mapping(body))

    def detach(self, host: str) -> None:
        """Delete the Redfish system that this lease composed for a host, if it still exists."""
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
        """Return the path of this lease's system if the service has it but does not list it, otherwise None.

        None means that there is no such system, or that its address now belongs to another one.
        """
        handle = self._change.handles.get(handle_of(host), "")
        path = address_of(handle)
        if path is None or self._service.client.rehearses:
            return path
        found = None if path in self._seen.reading.systems else self._service.find(path)
        known = [self._seen.blocks.get(name) for name in self._change.hosts.get(host, ())]
        wanted = {block.uri for block in (*known, self._seen.hosts.get(host)) if block is not None}
        return path if found is not None and is_at(resources.system(found), handle, wanted) else None

    def _compose(self, host: str, blocks: Collection[str]) -> Answer:
        """Send the request that composes a Redfish system of the blocks at these paths, and return the answer.

        If the service refuses the Description, the request is sent again without it.
        """
        where, name = self._seen.reading.systems_at, name_of(self._change.tag.lease_id, host)
        links = {"ResourceBlocks": [{"@odata.id": path} for path in blocks]}
        body = {"Links": links, "Name": name, "Description": encode(self._change.tag)}
        assumed = {"@odata.id": f"{where}/<{name}>"}
        try:
            return self._service.change("POST", where, body, assumed=assumed)
        except Incompatible as error:
            if "Description" not in str(error):
                raise
            # The Name also identifies the lease. Campaign and owner are in the state file.
            del body["Description"]
            return self._service.change("POST", where, body, assumed=assumed)

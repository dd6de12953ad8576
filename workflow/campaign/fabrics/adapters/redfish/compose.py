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
from campaign.fabrics.adapters.redfish.answers import ResourceMissingError, get_reference_path, strip_origin
from campaign.fabrics.adapters.redfish.ownership import (
    PENDING_HANDLE,
    ServiceView,
    build_handle,
    build_handle_name,
    build_system_name,
    get_handle_path,
    matches_handle,
)
from campaign.fabrics.adapters.redfish.resources import ResourceBlock
from campaign.fabrics.adapters.redfish.service import RedfishOptions, RedfishService
from campaign.fabrics.control_plane.lease_tag import encode_tag
from campaign.fabrics.control_plane.protocol import LeaseChange, RememberHandle
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, PartialFailure
from campaign.fabrics.http.client import Answer
from campaign.fabrics.http.response import get_mapping, get_nested


class HostPower:
    """Power control for hosts, which must be off while their devices change (ComputerSystem.Reset).

    It does nothing unless `attach_mode` is `powered_off`.
    """

    def __init__(self, service: RedfishService, options: RedfishOptions) -> None:
        """Prepare power control, which the attach mode `powered_off` enables."""
        self._service = service
        self._is_enabled = options.attach_mode == "powered_off"
        self._poll_s = options.poll_s

    def switch_off(self, path: str) -> None:
        """Switch off the Redfish system at a path and wait until it is off."""
        self._change_power_state(path, "ForceOff", "Off")

    def switch_on(self, path: str) -> None:
        """Switch on the Redfish system at a path and wait until it is on."""
        self._change_power_state(path, "On", "On")

    def _change_power_state(self, path: str, reset_type: str, target_state: str) -> None:
        """Send a ComputerSystem.Reset and wait for the power state.

        Raises OutcomeUnknown if the system does not reach the state before the time limit of the operation.

        Args:
            path: path of the system.
            reset_type: ResetType of the request.
            target_state: PowerState to wait for.
        """
        if not self._is_enabled:
            return
        is_rehearsing = self._service.client.is_rehearsing
        system = None if is_rehearsing else resources.parse_system(self._service.get_resource(path))
        if system is not None and system.power_state == target_state:
            return
        action_path = (system.reset_path if system is not None else None) or f"{path}/Actions/ComputerSystem.Reset"
        self._service.send_change("POST", action_path, {"ResetType": reset_type}, rehearsal_body={})
        while (
            not is_rehearsing and resources.parse_system(self._service.get_resource(path)).power_state != target_state
        ):
            try:
                self._service.client.sleep(self._poll_s)
            except FabricError as error:
                raise OutcomeUnknown(
                    f"{path}: the system did not reach power state {target_state} in time ({error})"
                ) from error


class SystemComposer:
    """Composer that creates and deletes the systems of one lease's change, host by host."""

    def __init__(
        self, service: RedfishService, service_view: ServiceView, options: RedfishOptions, change: LeaseChange
    ) -> None:
        """Prepare to compose or delete the systems of one change."""
        self._service, self._service_view, self._change = service, service_view, change
        self._power = HostPower(service, options)

    def compose_system(self, host: str, host_block: ResourceBlock, remember: RememberHandle) -> None:
        """Compose a Redfish system from a host's block and devices, unless an earlier attempt has composed it.

        Raises PartialFailure if the earlier system is missing devices.

        Args:
            host: name of the host.
            host_block: block that is composed for the host.
            remember: function that writes the address of the new system into the state file.
        """
        names = self._change.hosts[host]
        blocks = {self._service_view.blocks[name].uri: self._service_view.blocks[name] for name in names}
        existing_system = self._service_view.find_system(self._change.tag.lease_id, host)
        if existing_system is not None:
            missing_ids = [name for name in names if self._service_view.blocks[name].uri not in existing_system.blocks]
            if missing_ids:
                attached_ids = [name for name in names if name not in missing_ids]
                raise PartialFailure(
                    f"{existing_system.name}: an earlier attempt composed this system without {', '.join(missing_ids)}",
                    attached_ids,
                    missing_ids,
                )
            return
        for system_path in host_block.own_systems:
            self._power.switch_off(system_path)
        handle_name = build_handle_name(host)
        remember(handle_name, PENDING_HANDLE)
        try:
            answer = self._request_system(host, (host_block.uri, *blocks))
        except (Busy, Conflict, Incompatible, NoMatch):
            remember(handle_name, "")
            raise
        path = self._find_new_path(answer)
        if path is not None:
            remember(handle_name, path)
            if (system := self._read_new_system(path, answer.body)) is not None:
                remember(handle_name, build_handle(path, system))
            self._power.switch_on(path)

    def _find_new_path(self, answer: Answer) -> str | None:
        """Return the path of the newly composed system from an answer, or None if the answer has none.

        A path that existed before is never that of the new system.
        """
        location, reading = answer.get_header("Location"), self._service_view.reading
        path = strip_origin(location).rstrip("/") if location else get_reference_path(answer.body)
        return None if path is None or path in reading.systems or path == reading.systems_path else path

    def _read_new_system(self, path: str, body: Any) -> resources.ComputerSystem | None:
        """Return the new system as the service reports it, or None if the service does not report it."""
        if get_nested(body, "SystemType") is None and not self._service.client.is_rehearsing:
            with suppress(FabricError):
                body = self._service.find_resource(path)
        return None if get_nested(body, "SystemType") is None else resources.parse_system(get_mapping(body))

    def delete_system(self, host: str) -> None:
        """Delete the Redfish system that this lease composed for a host, if it still exists."""
        system = self._service_view.find_system(self._change.tag.lease_id, host)
        path = system.uri if system is not None else self._find_unlisted_path(host)
        if path is None:
            return
        try:
            self._power.switch_off(path)
            self._service.send_change("DELETE", path, rehearsal_body=None)
        except ResourceMissingError:
            return

    def _find_unlisted_path(self, host: str) -> str | None:
        """Return the path of this lease's system if the service has it but does not list it, otherwise None.

        None means that there is no such system, or that its address now belongs to another one.
        """
        handle = self._change.handles.get(build_handle_name(host), "")
        path = get_handle_path(handle)
        if path is None or self._service.client.is_rehearsing:
            return path
        document = None if path in self._service_view.reading.systems else self._service.find_resource(path)
        device_blocks = [self._service_view.blocks.get(name) for name in self._change.hosts.get(host, ())]
        block_paths = {block.uri for block in (*device_blocks, self._service_view.hosts.get(host)) if block is not None}
        return (
            path
            if document is not None and matches_handle(resources.parse_system(document), handle, block_paths)
            else None
        )

    def _request_system(self, host: str, blocks: Collection[str]) -> Answer:
        """Send the request that composes a Redfish system from the blocks at these paths, and return the answer.

        If the service refuses the Description, the request is sent again without it.
        """
        systems_path, name = self._service_view.reading.systems_path, build_system_name(self._change.tag.lease_id, host)
        links = {"ResourceBlocks": [{"@odata.id": path} for path in blocks]}
        body = {"Links": links, "Name": name, "Description": encode_tag(self._change.tag)}
        rehearsal_body = {"@odata.id": f"{systems_path}/<{name}>"}
        try:
            return self._service.send_change("POST", systems_path, body, rehearsal_body=rehearsal_body)
        except Incompatible as error:
            if "Description" not in str(error):
                raise
            # The Name also identifies the lease. Campaign and owner are in the state file.
            del body["Description"]
            return self._service.send_change("POST", systems_path, body, rehearsal_body=rehearsal_body)

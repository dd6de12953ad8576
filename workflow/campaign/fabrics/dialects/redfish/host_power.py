"""Hosts are switched off before their devices change, and on after (ComputerSystem.Reset): not every service attaches hot."""

from __future__ import annotations

from campaign.errors import FabricError
from campaign.fabrics.dialects.redfish import resources
from campaign.fabrics.dialects.redfish.options import Options
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.errors import OutcomeUnknown


class Power:
    """Of systems that a lease holds; does nothing unless `attach_mode` is powered_off."""

    def __init__(self, service: Service, options: Options) -> None:
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
        body = None if rehearses else self._service.get(path)
        system = resources.system(body) if body is not None else None
        if system is not None and system.power == until:
            return
        target = (system.reset if system is not None else None) or f"{path}/Actions/ComputerSystem.Reset"
        self._service.change("POST", target, {"ResetType": kind}, assumed={})
        while not rehearses and resources.system(self._service.get(path)).power != until:
            try:
                self._service.client.sleep(self._poll_s)
            except FabricError as error:
                raise OutcomeUnknown(f"{path}: not {until} in time ({error})") from error

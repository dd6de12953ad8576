"""Devices of a system that failed under runs: leases choose others for a day. One JSON file each, which campaigns on it share.

A fence on suspicion is made where a program could be at fault as well. The run is repeated on another device; where it fails alike,
or where there is no other, the fence is lifted. It stays as a file, so that later runs of the workload are believed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from campaign.common.errors import ConfigError
from campaign.common.files import load_json, write_json
from campaign.fabrics.errors import Unhealthy
from campaign.spec.fields import ClosedModel
from campaign.spec.hardware import Device, Inventory, normal

EXPIRES_S = 24 * 3600.0


class Fence(ClosedModel):
    """Why a device is left out. Times are Unix seconds."""

    device: str
    """Its id on the fabric; of a part of a device, that of the whole."""
    uuid: str = ""
    """What its host calls it; empty where that is not known."""
    model: str
    """Device model."""
    host: str
    """Where it failed."""
    why: str
    """What the run said."""
    campaign: str
    """Campaign of the run."""
    workload: str
    """Its workload."""
    run: str
    """The run: cell id and repetition."""
    suspected: bool
    """Whether the program may be at fault."""
    time_s: float
    """When it was made."""
    lifted: str = ""
    """Why the device is used again before the fence expires; empty while it is not."""

    @property
    def name(self) -> str:
        return self.uuid or self.device

    def words(self) -> str:
        """The device, where it is, and what happened, for people."""
        kind = "suspected of a fault" if self.suspected else "failed"
        uuid = f", {self.uuid}" if self.uuid else ""
        return f"{self.device} ({self.model}{uuid}) {kind} on {self.host}: {self.why}"

    def stands(self) -> bool:
        return not self.lifted and 0 <= time.time() - self.time_s < EXPIRES_S

    def is_of(self, device: Device) -> bool:
        """Whether a device is the fenced one: by its UUID where both are known, for a slot may have another device by now."""
        if self.uuid and device.host_id and device.launch is None:
            return normal(self.uuid) == normal(device.host_id)
        return self.device == device.physical


@dataclass(frozen=True, slots=True)
class FencedDevices:
    """The fences of a system. state: directory that campaigns on it share (`Results.system_state`)."""

    state: Path

    def all(self) -> list[Fence]:
        """Also those that were lifted or have expired."""
        paths = sorted((self.state / "fenced").glob("*.json"))
        return [Fence.model_validate(load_json(path)) for path in paths]

    def current(self) -> list[Fence]:
        return [fence for fence in self.all() if fence.stands()]

    def add(self, fence: Fence) -> None:
        """Fence a device, in place of an earlier fence of it."""
        write_json(self.state / "fenced" / f"{quote(fence.device, safe='')}.json", fence.model_dump())

    def lift(self, wanted: Callable[[Fence], bool], why: str) -> list[Fence]:
        """Use the devices of some of the fences again; gives these."""
        lifted = [fence for fence in self.current() if wanted(fence)]
        for fence in lifted:
            self.add(fence.model_copy(update={"lifted": why}))
        return lifted

    def lift_by_hand(self, name: str) -> Fence:
        """Use a device again, by its id on the fabric or its UUID. ConfigError: no such device is fenced."""
        lifted = self.lift(lambda fence: name in (fence.device, fence.uuid), "by hand")
        if not lifted:
            known = ", ".join(each.device for each in self.current()) or "none"
            raise ConfigError(f"{name}: is not fenced; fenced are: {known}")
        return lifted[0]

    def mark(self, inventory: Inventory) -> Inventory:
        """The inventory, in which fenced devices are failed ones, which no selection takes."""
        if not (fences := self.current()):
            return inventory
        return replace(
            inventory,
            devices=tuple(
                replace(device, health="critical", state="failed" if device.holder is None else device.state)
                if any(fence.is_of(device) for fence in fences)
                else device
                for device in inventory.devices
            ),
        )

    def lift_suspected(self, error: Unhealthy) -> None:
        """Lift the fences on suspicion where `error` leaves no other device, on which a run could be repeated.

        Raises Unhealthy with the reasons of all fences where none is on suspicion.
        """
        if self.lift(lambda fence: fence.suspected, "there was no other device to repeat the run on"):
            return
        if words := "; ".join(fence.words() for fence in self.current()):
            remedy = "'campaign fabric fences SYSTEM --lift DEVICE' uses one again"
            raise Unhealthy(f"{error}; fenced for a day: {words} ({remedy})", error.devices) from error
        raise error

"""Devices of a system that failed during runs. Leases avoid them for a day.

Each fence is a JSON file that campaigns on the system share. A fence is only a suspicion if the program could also be at fault.
The run is then repeated on another device. If it fails in the same way there, or if there is no other device, the fence is
lifted. The file is kept, so that failures of later runs of the workload are accepted at once.
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
from campaign.spec.hardware import Device, Inventory, normalize_identity

FENCE_LIFETIME_S = 24 * 3600.0


class Fence(ClosedModel):
    """Reason why a device is avoided. Times are Unix seconds."""

    device: str
    """Fabric id of the device. For a part of a device, the id of the whole device."""
    uuid: str = ""
    """UUID that the host reports, empty if unknown."""
    model: str
    """Device model."""
    host: str
    """Host on which the device failed."""
    why: str
    """Failure that the run reported."""
    campaign: str
    """Campaign of the run."""
    workload: str
    """Workload of the run."""
    run: str
    """Cell id and repetition of the run."""
    suspected: bool
    """True if the program may be at fault."""
    time_s: float
    """Time at which the fence was made."""
    lifted: str = ""
    """Reason why the fence was lifted before it expired, empty if it was not lifted."""

    @property
    def name(self) -> str:
        """UUID of the device, or its fabric id if the UUID is unknown."""
        return self.uuid or self.device

    def describe(self) -> str:
        """Describe the device, its host and the failure in words."""
        kind = "suspected of a fault" if self.suspected else "failed"
        uuid = f", {self.uuid}" if self.uuid else ""
        return f"{self.device} ({self.model}{uuid}) {kind} on {self.host}: {self.why}"

    def is_active(self) -> bool:
        """Return True if the fence is neither lifted nor expired."""
        return not self.lifted and 0 <= time.time() - self.time_s < FENCE_LIFETIME_S

    def applies_to(self, device: Device) -> bool:
        """Return True if a device is the fenced one.

        If both UUIDs are known, they are compared, because a slot may contain another device by now.
        """
        if self.uuid and device.host_id and device.launch is None:
            return normalize_identity(self.uuid) == normalize_identity(device.host_id)
        return self.device == device.physical_id


@dataclass(frozen=True, slots=True)
class FencedDevices:
    """Fences of the devices of a system.

    Attributes:
        state_directory: directory that campaigns on the system share (`Results.system_state_directory`).
    """

    state_directory: Path

    def read_all(self) -> list[Fence]:
        """Read all fences, including those that were lifted or have expired."""
        paths = sorted((self.state_directory / "fenced").glob("*.json"))
        return [Fence.model_validate(load_json(path)) for path in paths]

    def read_active(self) -> list[Fence]:
        """Read the fences that are active."""
        return [fence for fence in self.read_all() if fence.is_active()]

    def add_fence(self, fence: Fence) -> None:
        """Add a fence. It replaces an earlier fence of the same device."""
        write_json(self.state_directory / "fenced" / f"{quote(fence.device, safe='')}.json", fence.model_dump())

    def lift_fences(self, condition: Callable[[Fence], bool], reason: str) -> list[Fence]:
        """Lift the active fences that meet a condition, and return them.

        Args:
            condition: returns True for a fence to lift.
            reason: reason that is stored in the fences.
        """
        fences = [fence for fence in self.read_active() if condition(fence)]
        for fence in fences:
            self.add_fence(fence.model_copy(update={"lifted": reason}))
        return fences

    def lift_by_name(self, name: str) -> Fence:
        """Lift the fence of a device by its fabric id or its UUID. Raises ConfigError if no such device is fenced."""
        fences = self.lift_fences(lambda fence: name in (fence.device, fence.uuid), "by hand")
        if not fences:
            fenced_names = ", ".join(active_fence.device for active_fence in self.read_active()) or "none"
            raise ConfigError(f"{name} is not fenced; fenced devices: {fenced_names}")
        return fences[0]

    def mark_fenced(self, inventory: Inventory) -> Inventory:
        """Return the inventory with fenced devices marked as failed, so that no selection uses them."""
        if not (fences := self.read_active()):
            return inventory
        return replace(
            inventory,
            devices=tuple(
                replace(device, health="critical", state="failed" if device.holder is None else device.state)
                if any(fence.applies_to(device) for fence in fences)
                else device
                for device in inventory.devices
            ),
        )

    def lift_suspected(self, error: Unhealthy) -> None:
        """Lift the suspected fences after `error` has shown that no other device can repeat a run.

        Raises Unhealthy, with the reasons of all fences, if no fence is only a suspicion.
        """
        if self.lift_fences(lambda fence: fence.suspected, "there was no other device to repeat the run on"):
            return
        if fences_text := "; ".join(fence.describe() for fence in self.read_active()):
            remedy = "'campaign fabric fences SYSTEM --lift DEVICE' lifts a fence"
            raise Unhealthy(f"{error}; fenced for a day: {fences_text} ({remedy})", error.devices) from error
        raise error

"""What can go wrong with a fabric, by what the caller can do about it: wait, choose otherwise, compensate, read back."""

from __future__ import annotations

from collections.abc import Iterable

from campaign.common.errors import FabricError


class HeldByOthers(FabricError):
    """Other owners, the `holders`, hold what is requested. Nothing was changed, and waiting helps."""

    def __init__(self, message: str, holders: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


class OfDevices(FabricError):
    """What is wrong with `devices` (fabric ids)."""

    def __init__(self, message: str, devices: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.devices = tuple(devices)


class Busy(HeldByOthers):
    """The fabric runs another transaction."""


class Conflict(HeldByOthers):
    """Devices or hosts that would do are held by `holders`."""


class NoMatch(FabricError):
    """The system does not have such hosts or devices, or too few of them. Waiting does not help."""


class Incompatible(FabricError):
    """A rule of the fabric (mode, cabling, kind of attachment) forbids the configuration. Waiting does not help."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class Unhealthy(OfDevices):
    """Devices that would do, or that were obtained, are broken."""


class PartialFailure(FabricError):
    """Some devices (`done`, fabric ids) were attached or released, others (`failed`) were not."""

    def __init__(self, message: str, done: Iterable[str] = (), failed: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.done = tuple(done)
        self.failed = tuple(failed)


class Refused(FabricError):
    """The control plane refuses a request as it is (HTTP 400, 401, 404 ..). Neither waiting nor another try helps."""


class OutcomeUnknown(FabricError):
    """The reply was lost; the operation may or may not have happened. Only reading back tells."""


class HostNotVisible(OfDevices):
    """The fabric says attached, the host does not see it, also after a rescan."""


class ProtocolViolation(FabricError):
    """The fabric reported success and reads back otherwise, or its state cannot be understood."""

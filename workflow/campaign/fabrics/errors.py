"""Errors of fabrics, one class per remedy: wait, choose other devices, compensate, or read the state back."""

from __future__ import annotations

from collections.abc import Iterable

from campaign.common.errors import FabricError


class HeldByOthers(FabricError):
    """Error of an operation that other users (`holders`) block.

    Nothing was changed. Waiting helps.
    """

    def __init__(self, message: str, holders: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


class DeviceError(FabricError):
    """Error about `devices` (fabric ids)."""

    def __init__(self, message: str, devices: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.devices = tuple(devices)


class Busy(HeldByOthers):
    """The fabric is running another transaction."""


class Conflict(HeldByOthers):
    """Suitable devices or hosts are held by `holders`."""


class NoMatch(FabricError):
    """The system does not have the requested hosts or devices, or has too few of them. Waiting does not help."""


class Incompatible(FabricError):
    """A rule of the fabric (mode, cabling, kind of attachment) forbids the configuration. Waiting does not help."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class Unhealthy(DeviceError):
    """Failure of devices that were suitable or already obtained."""


class PartialFailure(FabricError):
    """Error of an operation that attached or released only some devices.

    `completed_ids` and `failed_ids` list the fabric ids of the devices that were and were not attached or released.
    """

    def __init__(self, message: str, completed_ids: Iterable[str] = (), failed_ids: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.completed_ids = tuple(completed_ids)
        self.failed_ids = tuple(failed_ids)


class Refused(FabricError):
    """The control plane refuses a request as it is (HTTP 400, 401, 404 ..). Neither waiting nor another try helps."""


class OutcomeUnknown(FabricError):
    """Error of an operation whose reply was lost.

    The operation may or may not have happened. Only reading the state back shows which.
    """


class HostNotVisible(DeviceError):
    """The fabric reports devices as attached, but the host does not list them, not even after a rescan."""


class ProtocolViolation(FabricError):
    """The fabric reported success but its state differs, or its state cannot be interpreted."""

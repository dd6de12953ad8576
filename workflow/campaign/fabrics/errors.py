"""Errors of fabrics, with one class per remedy: wait, choose other devices, compensate, or read the state back."""

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
    """Error for a fabric that is running another transaction."""


class Conflict(HeldByOthers):
    """Error for a request whose suitable devices or hosts are held by `holders`."""


class NoMatch(FabricError):
    """Error for a request that needs other or more hosts or devices than the system has. Waiting does not help."""


class Incompatible(FabricError):
    """Error for a configuration that a rule of the fabric (mode, cabling, attachment) forbids. Waiting does not help."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class Unhealthy(DeviceError):
    """Error for devices that failed after they were found suitable or obtained."""


class PartialFailure(FabricError):
    """Error of an operation that attached or released only some devices.

    `completed_ids` and `failed_ids` list the fabric ids of the devices that were and were not attached or released.
    """

    def __init__(self, message: str, completed_ids: Iterable[str] = (), failed_ids: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.completed_ids = tuple(completed_ids)
        self.failed_ids = tuple(failed_ids)


class Refused(FabricError):
    """Error for a request that the control plane refuses (HTTP 400, 401, 404 ..). Neither waiting nor a retry helps."""


class OutcomeUnknown(FabricError):
    """Error of an operation whose reply was lost.

    The operation may or may not have happened. Only reading the state back shows which.
    """


class HostNotVisible(DeviceError):
    """Error for devices that the fabric reports as attached, but that the host does not list even after a rescan."""


class ProtocolViolation(FabricError):
    """Error for a fabric whose state differs from the success that it reported, or cannot be interpreted."""

"""What a lease is expected to take by part, and what a site charges for it, as plans write it down."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PartForecast(_Closed):
    """Expected duration of a part of a lease: `composing`, `queue`, `start`, `runs`, `between`, `release`."""

    part: str
    """Name of the part."""
    expected_s: float | None
    """Expected duration in seconds; null where it is unknown."""
    low_s: float | None
    """Lower end of its 95 % interval; null where the duration is unknown or assumed."""
    high_s: float | None
    """Upper end of it."""
    devices: float
    """Devices that are held in this part, used or idle; of several leases, 0."""
    hosts: float
    """Hosts that are held in it; of several leases, 0."""


class LeaseCharge(_Closed):
    """What a site charges for a lease, and what its allocation asks of Slurm."""

    hosts: int
    """Hosts of the composition."""
    donors: int = 0
    """Further hosts that are held because a device of theirs is composed (`home` of a pool entry)."""
    devices: float
    """Most devices that are held at a time."""
    devices_idle: float
    """Of them, those that no run uses."""
    partition: str
    """Partition; empty for the default one, and without Slurm."""
    time_limit_min: int | None
    """Time limit of the allocation in minutes; null without Slurm."""
    gres: str
    """Generic resource that is asked for on each host, such as `gpu:4`; empty without Slurm."""
    exclusive: bool
    """Whether whole hosts are asked for."""
    device_hours: float | None
    """Expected device-hours held; null where they are unknown."""
    host_hours: float | None
    """Expected host-hours held; null where they are unknown."""

"""The hosts and devices of a site, as its system file lists them and as fabrics are opened with them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from campaign.spec.fields import HOSTS_PATTERN, Count, FileModel, Name

DeviceKind = Literal["gpu", "nvme", "nic"]
MAX_HOSTS_PER_RANGE = 4096


class DeviceSpec(FileModel):
    """Devices of one model that are built into a host."""

    kind: DeviceKind = "gpu"
    """Kind of device."""
    model: Name
    """Device model."""
    count: Count
    """Number of devices."""


class PoolSpec(DeviceSpec):
    """Devices of one model in the fabric's pool."""

    drawer: str | None = None
    """Location, for fabrics with drawers: `falcon1/drawer1`."""
    home: Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)] | None = None
    """Hosts that these devices belong to when nothing is composed, ranges as in `hosts`; each has an equal part of them. Give it
    where the site reserves or drains such a host while its device is elsewhere: plans then charge the host, too."""


class HostSpec(FileModel):
    """One host, or several of the same kind: `host[1-4]` stands for host1 to host4, `host[1,3-4]` for three of them."""

    name: Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)]
    """Host name, with optional numbers and ranges at the end."""
    cores: Count = 1
    """CPU cores."""
    memory_gib: Annotated[float, Field(gt=0)] = 1.0
    """Memory in GiB."""
    devices: tuple[DeviceSpec, ...] = ()
    """Built-in devices, which need no fabric."""

    def names(self) -> tuple[str, ...]:
        """Return all host names that the entry stands for."""
        return expand_host_names(self.name)

    def split_hosts(self) -> tuple[HostSpec, ...]:
        """Return one entry per host."""
        return tuple(self.model_copy(update={"name": name}) for name in self.names())

    @field_validator("name")
    @classmethod
    def _check_range(cls, name: str) -> str:
        expand_host_names(name)
        return name


def expand_host_names(text: str) -> tuple[str, ...]:
    """Return the names that a text such as `host[1,3-4]` stands for.

    Raises ValueError if a range runs backwards or is too long.
    """
    match = re.fullmatch(r"(.+)\[([\d,-]+)\]", text)
    if not match:
        return (text,)
    names: list[str] = []
    for part in match[2].split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= last - first < MAX_HOSTS_PER_RANGE:
            raise ValueError(
                f"{text}: a range counts upwards over at most {MAX_HOSTS_PER_RANGE} hosts; write it like host[1-4]"
            )
        names += (f"{match[1]}{number:0{len(low)}d}" for number in range(first, last + 1))
    return tuple(names)

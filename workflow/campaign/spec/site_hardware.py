"""Hosts and devices of a site, as its system file lists them."""

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
    """Kind of the devices."""
    model: Name
    """Device model."""
    count: Count
    """Number of devices."""


class PoolSpec(DeviceSpec):
    """Devices of one model in the fabric's pool."""

    drawer: str | None = None
    """Location of the devices, for fabrics with drawers, such as `falcon1/drawer1`. If the fabric does not name its devices, their
    ids (`device.fabric_id` in an adapter) are `<drawer>/slot1`, `<drawer>/slot2` and so on, in the order of the pool, and
    `pool/slot1` and so on without a drawer. `campaign check` and `campaign inventory` print these ids."""
    home: Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)] | None = None
    """Hosts to which these devices belong when nothing is composed, with ranges as in `hosts`. Each host has an equal number of
    them. If the site reserves or drains such a host while its devices are elsewhere, set this key so that plans charge the host as
    well."""


class HostSpec(FileModel):
    """One host, or several hosts of the same kind. `host[1-4]` stands for host1 to host4, and `host[1,3-4]` for three of them."""

    name: Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)]
    """Host name, optionally with numbers and ranges at the end."""
    cores: Count = 1
    """Number of CPU cores."""
    memory_gib: Annotated[float, Field(gt=0)] = 1.0
    """Memory in GiB."""
    devices: tuple[DeviceSpec, ...] = ()
    """Devices built into the host."""

    def list_names(self) -> tuple[str, ...]:
        """Return the names of all hosts of the entry."""
        return expand_host_names(self.name)

    def split_hosts(self) -> tuple[HostSpec, ...]:
        """Split the entry into one entry per host."""
        return tuple(self.model_copy(update={"name": name}) for name in self.list_names())

    @field_validator("name")
    @classmethod
    def _check_range(cls, name: str) -> str:
        expand_host_names(name)
        return name


def expand_host_names(text: str) -> tuple[str, ...]:
    """Return the host names in a text such as `host[1,3-4]`. Raises ValueError if a range is descending or too long."""
    match = re.fullmatch(r"(.+)\[([\d,-]+)\]", text)
    if not match:
        return (text,)
    names: list[str] = []
    for part in match[2].split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= last - first < MAX_HOSTS_PER_RANGE:
            raise ValueError(
                f"{text}: a range must be ascending and have at most {MAX_HOSTS_PER_RANGE} hosts, such as host[1-4]"
            )
        names += (f"{match[1]}{number:0{len(low)}d}" for number in range(first, last + 1))
    return tuple(names)

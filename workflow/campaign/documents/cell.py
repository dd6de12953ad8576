"""The two nouns that everything else is about: a configuration (requested hardware) and a cell (one point of the matrix)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

Attach = Literal["local", "hybrid", "fabric", "hybrid-p2p", "fabric-p2p"]
Storage = Literal["local", "nvme", "fabric-nvme"]
Scalar = str | int | float | bool

SHAPE_AXES: Mapping[str, str] = {
    "hosts": "hosts of the configuration",
    "devices_per_host": "devices composed onto each host",
    "devices_used": "devices of each host that a run uses",
    "devices": "devices composed over all hosts",
    "ranks": "devices that a run uses over all hosts, one rank each",
    "device": "device model",
    "attach": "`local`, `hybrid` or `fabric`; with `-p2p`: peer-to-peer through the fabric is on",
    "storage": "`local`, `nvme` or `fabric-nvme`",
}
"""What an expression can name of a configuration."""

AXES: Mapping[str, str] = {
    "configuration": "name of the configuration",
    "system": "name of the system that the configuration is on",
    "workload": "name of the workload",
    "batch": "samples a device takes in one step",
    "batch_global": "`batch` times `ranks`",
    "precision": "number format",
    **SHAPE_AXES,
}
"""What an expression can name of every cell (`Cell.axes`), beside the options that are axes."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of one model on a host: so many of its own, so many of the pool."""

    model: str
    local: int = 0
    fabric: int = 0


@dataclass(frozen=True, slots=True)
class HostShape:
    """What one host is to have, and how many of it a run uses: the host's own devices first, each kind in this order."""

    devices: tuple[Devices, ...]
    used: int

    @property
    def count(self) -> int:
        return self.local + self.fabric

    @property
    def local(self) -> int:
        return sum(each.local for each in self.devices)

    @property
    def fabric(self) -> int:
        return sum(each.fabric for each in self.devices)


_GROUP = re.compile(r"(\d+) x ([^|,]+)(?:, (\d+) used)?")
_PART = re.compile(r"(\d+) (local|fabric) (\S+)")


def layout_text(hosts: Sequence[HostShape]) -> str:
    """Hosts that differ, in one line; models in order of their names. `layout_hosts` reads it.

    Such as '1 x 2 local a100 & 1 fabric a100, 2 used | 2 x 1 fabric t4'.
    """
    groups = []
    for shape, equal in groupby(hosts):
        parts = [
            f"{count} {where} {each.model}"
            for where in ("local", "fabric")
            for each in sorted(shape.devices, key=lambda each: each.model)
            if (count := getattr(each, where))
        ]
        used = "" if shape.used == shape.count else f", {shape.used} used"
        groups.append(f"{len(list(equal))} x {' & '.join(parts)}{used}")
    return " | ".join(groups)


@lru_cache(maxsize=4096)
def layout_hosts(text: str) -> tuple[HostShape, ...]:
    """One entry a host. ValueError for what `layout_text` did not write."""
    hosts: list[HostShape] = []
    for group in text.split(" | "):
        found = _GROUP.fullmatch(group)
        if found is None:
            raise ValueError(f"'{group}' is no layout of hosts")
        models: dict[str, Devices] = {}
        for count, where, model in _PART.findall(found[2]):
            kind = models.get(model, Devices(model))
            is_local = where == "local"
            models[model] = replace(kind, local=int(count)) if is_local else replace(kind, fabric=int(count))
        shape = HostShape(tuple(models.values()), 0)
        hosts += [replace(shape, used=int(found[3] or shape.count))] * int(found[1])
    return tuple(hosts)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Requested hardware: a shape of `hosts` equal hosts, or of hosts that differ (`layout`, as `layout_text` writes it).

    devices_per_host: devices composed onto each host; local_devices_per_host of them are the host's own,
    the rest comes from the fabric's pool. devices_used: how many of a host's devices a run uses (part of a host): its own first.
    With a layout these are the most of any host, and `device` is all models, joined by '+'. system: name of the system
    that it is on.
    """

    name: str
    hosts: int
    devices_per_host: int
    local_devices_per_host: int
    devices_used: int
    device: str
    attach: Attach
    storage: Storage
    layout: str = ""
    system: str = ""

    @property
    def host_shapes(self) -> tuple[HostShape, ...]:
        """What each host is to have, host by host."""
        if self.layout:
            return layout_hosts(self.layout)
        devices = Devices(self.device, self.local_devices_per_host, self.fabric_devices_per_host)
        return (HostShape((devices,), self.devices_used),) * self.hosts

    @property
    def models(self) -> tuple[str, ...]:
        """Device models, in the order of the hosts."""
        if not self.layout:
            return (self.device,)
        return tuple(dict.fromkeys(each.model for host in self.host_shapes for each in host.devices))

    @property
    def fabric_devices(self) -> int:
        """Devices of the pool over all hosts."""
        if not self.layout:
            return self.hosts * self.fabric_devices_per_host
        return sum(host.fabric for host in self.host_shapes)

    @property
    def fabric_devices_per_host(self) -> int:
        """The most of any host."""
        if self.layout:
            return max(host.fabric for host in self.host_shapes)
        return self.devices_per_host - self.local_devices_per_host

    @property
    def p2p(self) -> bool:
        """Whether pooled devices of a host reach each other through the fabric, and not by way of the host."""
        return self.attach.endswith("-p2p")

    @property
    def devices(self) -> int:
        """Devices composed over all hosts."""
        return sum(host.count for host in self.host_shapes) if self.layout else self.hosts * self.devices_per_host

    @property
    def ranks(self) -> int:
        """Devices that a run uses over all hosts, one rank each."""
        return sum(host.used for host in self.host_shapes) if self.layout else self.hosts * self.devices_used

    @property
    def hardware(self) -> str:
        """Device model, with the layout where hosts differ: what tables know as the device, so that only equals are compared."""
        return f"{self.device} ({self.layout})" if self.layout else self.device

    def words(self) -> str:
        """'2 hosts with 2 local + 2 fabric a100 each, 2 used, fabric-nvme'."""
        p2p = ", peer-to-peer through the fabric" if self.p2p else ""
        storage = "" if self.storage == "local" else f", {self.storage}"
        if self.layout:
            return f"{self.hosts} host{'s' if self.hosts > 1 else ''}: {self.layout}{p2p}{storage}"
        kinds = {"local": self.local_devices_per_host, "fabric": self.fabric_devices_per_host}
        parts = " + ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        used = "" if self.devices_used == self.devices_per_host else f", {self.devices_used} used"
        host, each = ("1 host", "") if self.hosts == 1 else (f"{self.hosts} hosts", " each")
        return f"{host} with {parts} {self.device}{each}{used}{p2p}{storage}"

    def first_device(self) -> Configuration:
        """Its first device alone, under the same name."""
        first = self.host_shapes[0].devices
        mine = next((each for each in first if each.local), first[0])
        local = min(1, mine.local)
        attach: Attach = "local" if local else "fabric"
        return Configuration(self.name, 1, 1, local, 1, mine.model, attach, self.storage, system=self.system)

    def axes(self) -> dict[str, Scalar]:
        """What an expression over shapes can name."""
        return {**self.shape(), "devices": self.devices, "ranks": self.ranks}

    def shape(self) -> dict[str, Scalar]:
        """Everything but the name and the system: two configurations of one shape are the same hardware."""
        # Equal hosts have the identity that they had before there were others: without a layout.
        hidden = ("name", "system") if self.layout else ("name", "system", "layout")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in hidden}


@dataclass(frozen=True, slots=True)
class Settings:
    """How one cell is measured: the protocol with the overrides that select the cell.

    warmup_steps_max: None where every warm-up has warmup_steps. repetitions: in all compositions together; the most, where there is
    a target for the half-width of the interval (percent of the mean). compositions: how many compositions of the configuration they
    are spread over. composition: the one that these settings are about, as in the plan of a lease; None: all of them. warmup_min_s,
    measured_min_s: seconds that the warm-up and the measured steps last at least; None for a workload that counts no steps by time,
    and, before a cell has them, where its kind of device decides.
    """

    warmup_steps: int = 5
    warmup_steps_max: int | None = None
    measured_steps: int = 20
    repetitions: int = 3
    repetitions_min: int = 3
    compositions: int = 1
    composition: int | None = None
    target_half_width_pct: float | None = None
    seed: int = 1234
    time_limit_s: float = 900.0
    warmup_min_s: float | None = None
    measured_min_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the matrix. `id` is the hash of its whole specification, so it survives new axes and renamed files.

    reference: of the campaign's reference cell, which is no point of the matrix, hash of the lease shape that it is measured on;
    its configuration is the one device that it uses.
    """

    id: str
    configuration: Configuration
    workload: str
    batch: int
    precision: str
    options: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Settings = Settings()
    reference: str = ""

    @property
    def batch_global(self) -> int:
        return self.batch * self.configuration.ranks

    def axes(self) -> dict[str, Any]:
        """Axis values as a flat mapping; this is what an expression (`--where`, exclusions) can name."""
        configuration = self.configuration
        return {
            "configuration": configuration.name,
            "system": configuration.system,
            "workload": self.workload,
            "batch": self.batch,
            "precision": self.precision,
            "hosts": configuration.hosts,
            "devices_per_host": configuration.devices_per_host,
            "devices_used": configuration.devices_used,
            "devices": configuration.devices,
            "ranks": configuration.ranks,
            "device": configuration.device,
            "attach": configuration.attach,
            "storage": configuration.storage,
            "batch_global": self.batch_global,
            **self.options,
        }

    def label(self) -> str:
        """One line for people: 'spread-2x2 · bert-nano · batch 8 · fp32'."""
        extra = "".join(f" · {name} {value}" for name, value in self.options.items())
        return f"{self.configuration.name} · {self.workload} · batch {self.batch} · {self.precision}{extra}"

"""The two nouns that everything else is about: a configuration (requested hardware) and a cell (one point of the matrix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from campaign.common.errors import ConfigError

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
class Configuration:
    """Requested hardware: a shape of equal hosts.

    devices_per_host: devices composed onto each host; local_devices_per_host of them are the host's own,
    the rest comes from the fabric's pool. devices_used: how many of a host's devices a run uses (part of a host): its own first.
    system: name of the system that it is on.
    """

    name: str
    hosts: int
    devices_per_host: int
    local_devices_per_host: int
    devices_used: int
    device: str
    attach: Attach
    storage: Storage
    system: str = ""

    @property
    def fabric_devices(self) -> int:
        """Devices of the pool over all hosts."""
        return self.hosts * self.fabric_devices_per_host

    @property
    def fabric_devices_per_host(self) -> int:
        """Devices of the pool on each host."""
        return self.devices_per_host - self.local_devices_per_host

    @property
    def p2p(self) -> bool:
        """Whether pooled devices of a host reach each other through the fabric, and not by way of the host."""
        return self.attach.endswith("-p2p")

    @property
    def devices(self) -> int:
        """Devices composed over all hosts."""
        return self.hosts * self.devices_per_host

    @property
    def ranks(self) -> int:
        """Devices that a run uses over all hosts, one rank each."""
        return self.hosts * self.devices_used

    def words(self) -> str:
        """'2 hosts with 2 local + 2 fabric a100 each, 2 used, fabric-nvme'."""
        p2p = ", peer-to-peer through the fabric" if self.p2p else ""
        storage = "" if self.storage == "local" else f", {self.storage}"
        kinds = {"local": self.local_devices_per_host, "fabric": self.fabric_devices_per_host}
        parts = " + ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        used = "" if self.devices_used == self.devices_per_host else f", {self.devices_used} used"
        host, each = ("1 host", "") if self.hosts == 1 else (f"{self.hosts} hosts", " each")
        return f"{host} with {parts} {self.device}{each}{used}{p2p}{storage}"

    def first_device(self) -> Configuration:
        """Its first device alone, under the same name."""
        local = min(1, self.local_devices_per_host)
        attach: Attach = "local" if local else "fabric"
        return Configuration(self.name, 1, 1, local, 1, self.device, attach, self.storage, self.system)

    def axes(self) -> dict[str, Scalar]:
        """What an expression over shapes can name."""
        return {**self.shape(), "devices": self.devices, "ranks": self.ranks}

    def shape(self) -> dict[str, Scalar]:
        """Everything but the name and the system: two configurations of one shape are the same hardware."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("name", "system")}


def drop_layout(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration without `layout`, which earlier versions wrote: empty where all hosts were equal.

    Raises ConfigError if the hosts differ.
    """
    if document.get("layout"):
        raise ConfigError(f"configuration {document.get('name')!r}: its hosts differ; only equal hosts can be composed")
    return {name: value for name, value in document.items() if name != "layout"}


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

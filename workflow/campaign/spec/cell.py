"""Configurations (requested hardware) and cells (points of the matrix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from campaign.common.errors import ConfigError

Attach = Literal["local", "hybrid", "fabric", "hybrid-p2p", "fabric-p2p"]
Storage = Literal["local", "nvme", "fabric-nvme"]
Scalar = str | int | float | bool

SHAPE_AXES: Mapping[str, str] = {
    "hosts": "number of hosts of the configuration",
    "devices_per_host": "number of devices composed onto each host",
    "devices_used": "number of devices per host that a run uses",
    "devices": "number of devices composed on all hosts",
    "ranks": "number of devices that a run uses on all hosts, with one rank each",
    "device": "device model",
    "attach": "`local`, `hybrid` or `fabric`, with `-p2p` if peer-to-peer through the fabric is on",
    "storage": "`local`, `nvme` or `fabric-nvme`",
}
"""Names that an expression over configurations can use, with their meaning."""

AXES: Mapping[str, str] = {
    "configuration": "name of the configuration",
    "system": "name of the configuration's system",
    "workload": "name of the workload",
    "batch": "samples per device and step",
    "batch_global": "`batch` times `ranks`",
    "precision": "number format",
    **SHAPE_AXES,
}
"""Names that an expression over cells can use, with their meaning (`Cell.axes`). Options that are axes are added to them."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Requested hardware, a shape of equal hosts.

    Attributes:
        devices_per_host: number of devices composed onto each host.
        local_devices_per_host: number of them that are built into the host. The others come from the fabric's pool.
        devices_used: number of devices per host that a run uses, local devices first.
        system: name of its system.
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
        """Number of pooled devices on all hosts."""
        return self.hosts * self.fabric_devices_per_host

    @property
    def fabric_devices_per_host(self) -> int:
        """Number of pooled devices on each host."""
        return self.devices_per_host - self.local_devices_per_host

    @property
    def p2p(self) -> bool:
        """True if pooled devices of a host reach each other through the fabric instead of through the host."""
        return self.attach.endswith("-p2p")

    @property
    def devices(self) -> int:
        """Number of devices composed on all hosts."""
        return self.hosts * self.devices_per_host

    @property
    def ranks(self) -> int:
        """Number of devices that a run uses on all hosts, with one rank each."""
        return self.hosts * self.devices_used

    def describe(self) -> str:
        """Describe the configuration, such as '2 hosts with 2 local + 2 fabric a100 each, 2 used, fabric-nvme'."""
        p2p = ", peer-to-peer through the fabric" if self.p2p else ""
        storage = "" if self.storage == "local" else f", {self.storage}"
        kinds = {"local": self.local_devices_per_host, "fabric": self.fabric_devices_per_host}
        parts = " + ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        usage = "" if self.devices_used == self.devices_per_host else f", {self.devices_used} used"
        host, per_host = ("1 host", "") if self.hosts == 1 else (f"{self.hosts} hosts", " each")
        return f"{host} with {parts} {self.device}{per_host}{usage}{p2p}{storage}"

    def with_first_device(self) -> Configuration:
        """Return the configuration reduced to its first device, with the same name."""
        local = min(1, self.local_devices_per_host)
        attach: Attach = "local" if local else "fabric"
        return Configuration(self.name, 1, 1, local, 1, self.device, attach, self.storage, self.system)

    def axes(self) -> dict[str, Scalar]:
        """Return the values of the names in SHAPE_AXES."""
        return {**self.shape(), "devices": self.devices, "ranks": self.ranks}

    def shape(self) -> dict[str, Scalar]:
        """Return all fields except the name and the system. Configurations of equal shape request the same hardware."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("name", "system")}


def drop_layout(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration without `layout`, a key of earlier versions that is empty if all hosts are equal.

    Raises ConfigError if the hosts differ.
    """
    if document.get("layout"):
        raise ConfigError(
            f"configuration {document.get('name')!r} has hosts that differ; only equal hosts can be composed"
        )
    return {name: value for name, value in document.items() if name != "layout"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Measurement settings of one cell, which are the protocol with all overrides that match the cell.

    Attributes:
        warmup_steps_max: maximum number of warm-up steps, or None if every warm-up has `warmup_steps`.
        repetitions: number of runs in all compositions, or its maximum if there is a target.
        compositions: number of compositions of the configuration over which the runs are distributed.
        composition: number of the only composition that these settings are for, as in a lease plan, or None for all of them.
        target_half_width_pct: target for the half-width of the 95 % interval, in percent of the mean.
        warmup_min_s: minimum duration of the warm-up. It is None if the workload does not extend steps by time, or if the kind
            of device decides and is not yet known.
        measured_min_s: minimum duration of the measured steps, or None as for `warmup_min_s`.
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
    """One point of the matrix.

    Attributes:
        id: hash of the whole specification, so that new axes and renamed files do not change it.
        reference: hash of the lease shape on which the campaign's reference cell is measured, or '' for all other cells. The
            configuration of a reference cell is the one device that it uses.
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
        """Return all axis values by name, as an expression (`--where`, exclusions) can use them."""
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
        """Return a label such as 'spread-2x2 · bert-nano · batch 8 · fp32'."""
        extra = "".join(f" · {name} {value}" for name, value in self.options.items())
        return f"{self.configuration.name} · {self.workload} · batch {self.batch} · {self.precision}{extra}"

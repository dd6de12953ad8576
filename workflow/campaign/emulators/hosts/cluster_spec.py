"""Specification of an emulated Slurm cluster, and description of a running one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from campaign.emulators.hosts.network import HeldNamespaces
from campaign.emulators.hosts.topology import EmulatedHost, EmulationSpec, LinkRates, list_namespaces

DESCRIPTION_FILE = "cluster.json"
"""File in a cluster's directory that describes it."""

Registration = Literal["static", "dynamic", "cloud"]


class ClusterHost(BaseModel):
    """One host of an emulated cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,30}$", description="host name, which is also Slurm's node name")
    devices: int = Field(default=0, ge=0, le=64, description="number of devices (gres `gpu`) that the host registers")
    devices_max: int = Field(
        default=0,
        ge=0,
        le=64,
        description="number of existing device files, for later registrations; at least `devices`",
    )
    fabric_ports: int = Field(
        default=0, ge=0, le=64, description="number of ports behind links with the rate of the fabric: NAME-fabric0 .."
    )
    local_ports: int = Field(
        default=0,
        ge=0,
        le=64,
        description="number of ports for built-in devices, if local links have a rate: NAME-local0 ..",
    )
    registration: Registration = "static"
    """static: in slurm.conf; dynamic: registers itself and can register again with other devices; cloud: in slurm.conf as CLOUD,
    and the site's ResumeProgram starts its slurmd."""

    @property
    def slots(self) -> int:
        """Number of device files of the host."""
        return max(self.devices, self.devices_max)


class ClusterSpec(BaseModel):
    """Specification of a whole Slurm cluster on one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[ClusterHost, ...] = Field(
        min_length=1, max_length=32, description="hosts, each of which has its own slurmd"
    )
    name: str = Field(default="emulated", pattern=r"^[a-z][a-z0-9_]{0,30}$", description="ClusterName")
    partition: str = Field(default="main", pattern=r"^[a-z][a-z0-9_]{0,30}$", description="name of the partition")
    device: str | None = Field(
        default=None, pattern=r"^[a-z][a-z0-9_]{0,30}$", description="gres type of the devices; default: untyped"
    )
    model: str = "gpu"  # name of a device in `campaign cluster devices`
    cpus: int = Field(
        default=16, ge=1, le=256, description="number of CPUs that a host offers, independent of the machine"
    )
    memory_mib: int = Field(
        default=16384, ge=256, description="memory in MiB that a host offers, independent of the machine"
    )
    accounting: bool = True  # True to run slurmdbd and its database, which `sacct` needs
    rates: LinkRates = LinkRates()  # rates of the links between hosts and to fabric ports
    slurm_conf: tuple[str, ...] = ()  # further lines of slurm.conf, such as MaxArraySize or ResumeProgram

    @model_validator(mode="after")
    def _check_hosts(self) -> ClusterSpec:
        """Raise ValueError if host names are not unique, or if there are more than 200 hosts and ports."""
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names) or "control" in names:
            raise ValueError(
                f"host names must be unique, and `control` is reserved for the controller: {', '.join(names)}"
            )
        if len(list_namespaces(self.to_emulation_spec())) > 200:
            raise ValueError("the cluster has more than 200 hosts and ports; use fewer")
        return self

    def to_emulation_spec(self) -> EmulationSpec:
        """Return the hosts and links that the cluster is built on."""
        hosts = [
            EmulatedHost(name=host.name, local_devices=host.local_ports, fabric_devices=host.fabric_ports)
            for host in self.hosts
        ]
        return EmulationSpec(hosts=tuple(hosts), rates=self.rates)

    def find_host(self, name: str) -> ClusterHost:
        """Return the host with this name. Raises KeyError if there is no such host."""
        return {host.name: host for host in self.hosts}[name]

    def format_gres(self, devices: int) -> str:
        """Return the Gres string of a host with this number of devices, in Slurm's syntax."""
        return f"gpu:{self.device}:{devices}" if self.device else f"gpu:{devices}"


class Cluster(BaseModel):
    """Running cluster, with everything that a root process needs to use it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path  # directory of all its files
    spec: ClusterSpec  # specification from which it was started
    held: HeldNamespaces  # its namespaces
    control_address: str  # address of the controller
    addresses: dict[str, str]  # address of each host and port
    interface: str  # only interface that is visible outside

    @property
    def slurm_conf(self) -> Path:
        """Path of the cluster's slurm.conf."""
        return self.directory / "etc" / "slurm.conf"

    def get_log_path(self, name: str) -> Path:
        """Return the path of a daemon's log."""
        return self.directory / "log" / f"{name}.log"

    def build_command_prefix(self, host: str) -> tuple[str, ...]:
        """Return the command prefix that runs a command on a host, from outside the cluster."""
        return self.held.build_command_prefix(host)

    def build_port_prefix(self, port: str) -> tuple[str, ...]:
        """Return the command prefix that places a rank behind a port, such as host1-fabric0, in a job run by root."""
        return self.held.build_inner_command_prefix(port)


def build_slurm_environment(cluster: Cluster) -> dict[str, str]:
    """Return the environment in which Slurm's commands use this cluster."""
    return {"SLURM_CONF": str(cluster.slurm_conf)}


def find_cluster_in_environment() -> Cluster | None:
    """Return the emulated cluster named by SLURM_CONF, inside or outside a job.

    The result is None for any other Slurm.
    """
    conf = os.environ.get("SLURM_CONF")
    description = Path(conf).parent.parent / DESCRIPTION_FILE if conf else None
    if description is None or not description.is_file():
        return None
    return Cluster.model_validate_json(description.read_text(encoding="utf-8"))

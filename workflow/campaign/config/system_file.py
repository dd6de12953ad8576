"""What a system file may say. Every key has a description: the reference and the JSON Schema are made from them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from campaign.documents.cell import Scalar, Storage
from campaign.documents.fields import HOSTS_PATTERN, Count, Model, Name, Precision


class DeviceCount(Model):
    """Devices of one model that a host owns."""

    kind: Literal["gpu", "nvme", "nic"] = "gpu"
    """Kind of device."""
    model: Name
    """Device model."""
    count: Count
    """How many."""


class HostGroup(Model):
    """One host, or several alike: `host[1-4]` stands for host1 to host4."""

    name: Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)]
    """Name, with an optional range at the end."""
    cores: Count = 1
    """CPU cores."""
    memory_gib: Annotated[float, Field(gt=0)] = 1.0
    """Memory in GiB."""
    devices: tuple[DeviceCount, ...] = ()
    """Devices of its own, which need no fabric."""

    def names(self) -> tuple[str, ...]:
        """All host names that the group stands for; ValueError for a range that runs backwards or is too long."""
        match = re.fullmatch(r"(.+)\[(\d+)-(\d+)\]", self.name)
        if not match:
            return (self.name,)
        first, last = int(match[2]), int(match[3])
        if not 0 <= last - first < 4096:
            raise ValueError(f"{self.name}: a range counts upwards over at most 4096 hosts")
        return tuple(f"{match[1]}{number:0{len(match[2])}d}" for number in range(first, last + 1))

    @field_validator("name")
    @classmethod
    def _range(cls, value: str) -> str:
        cls.model_construct(name=value).names()
        return value


class PoolEntry(Model):
    """Devices of one model in the fabric's pool."""

    kind: Literal["gpu", "nvme", "nic"] = "gpu"
    """Kind of device."""
    model: Name
    """Device model."""
    count: Count
    """How many."""
    drawer: str | None = None
    """Where they are, for fabrics with drawers: `falcon1/drawer1`."""


class PcieLink(Model):
    """A PCIe link, such as `{width: 16, gen: 4}`."""

    width: Annotated[int, Field(ge=1, le=32)]
    """Lanes."""
    gen: Annotated[int, Field(ge=1, le=8)]
    """Generation."""


class StoragePlace(Model):
    """Where runs find a kind of storage on the hosts."""

    path: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")]
    """Directory on it that runs may write to; each writes below it, and removes what it wrote."""
    emulated_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Read no faster than this, in GB/s for all ranks of a host together: stands for storage behind a link where there is none.
    Identity: another rate is another measurement, and records say that it is emulated."""


class DeviceModel(Model):
    """What is known of a device model."""

    runs_on: Literal["cuda", "cpu"] = "cuda"
    """`cuda`: a GPU; `cpu`: each device is emulated by one process on a CPU core, which the report says."""
    precisions: tuple[Precision, ...] | None = None
    """Precisions that it can do, where that is less than the software tells."""
    reported_as: str | None = None
    """What the host's own tools call it, such as `NVIDIA A100-PCIE-40GB`; one that reports another name is not taken for it."""
    peak_tflops: dict[Precision, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Dense peak in TFLOP/s by precision, for the share of it that a run reaches. Default: the vendor's, for known models."""
    pcie: PcieLink | None = None
    """The PCIe link that it should have; records measured over less say so. One below what its ends can do is told anyway."""


class Link(Model):
    """A kind of link, one way."""

    gb_per_s: Annotated[float, Field(gt=0)]
    """Bandwidth in GB/s (1e9 bytes), one direction."""
    latency_us: Annotated[float, Field(ge=0)] | None = None
    """Latency in microseconds."""
    source: str = ""
    """Where the numbers come from."""


class Links(Model):
    """Links that a composition's traffic crosses: the report repeats them, and `emulation` slows them down."""

    local: Link | None = None
    """Between devices of one host."""
    fabric: Link | None = None
    """Between a host and a device behind the fabric."""
    network: Link | None = None
    """Between hosts."""


class Emulation(Model):
    """Hosts emulated on one Linux machine: network namespaces, joined by links that are slowed down to a fraction of the real ones.

    Devices of one host talk freely; one behind the fabric has a link of its own at the rate of `links.fabric`, a host one at that
    of `links.network`. It takes root or user namespaces, and `ip` and `tc`; where it is not possible, runs share one loopback, and
    say so. For devices that run on cpu."""

    scale: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Emulated rate over the rate in `links`, the same for every link. Identity: another scale is another measurement."""


class SlurmOptions(Model):
    """What an allocation asks of Slurm; operations, not identity: a change re-measures nothing."""

    partition: str | None = None
    """Partition."""
    account: str | None = None
    """Account."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Node features."""
    time_min: Annotated[int, Field(ge=1)] | None = None
    """Time limit of an allocation in minutes; computed from the plan when left out."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory a host, in GiB; all of it when left out."""
    cpus_per_device: Count | None = None
    """CPUs for each device that a run uses; left to Slurm when left out."""
    additional: dict[str, Scalar] = Field(default_factory=dict)
    """Further sbatch options, by long name."""


class SlurmOverride(SlurmOptions):
    """Other options for some configurations."""

    when: str
    """Predicate over the configuration's shape, such as `hosts > 4`."""


class SlurmdCommands(Model):
    """How the site stops and starts a host's slurmd, with `{host}`, `{devices}` (their number), `{gres}` (`gpu:4`) and
    `{fabric_devices}` filled in."""

    stop: tuple[str, ...]
    """Command that stops it, such as `[ssh, "{host}", systemctl, stop, slurmd]`; one that is stopped already is no error."""
    start: tuple[str, ...]
    """Command that starts it, so that it registers with these devices."""


class SlurmSettings(SlurmOptions):
    """How leases are measured through Slurm; operations, not identity: a change re-measures nothing."""

    gres: str = "gpu"
    """Name of the generic resource that devices are, with its type where it has one: `gpu:a100`."""
    exclusive: bool = True
    """Whole hosts, so that nobody else's job disturbs a measurement."""
    placement: Literal["pinned", "scheduler"] | None = None
    """Who chooses the hosts: `pinned`: the fabric's composition; `scheduler`: Slurm. Default: `scheduler` on a static fabric."""
    strategy: Literal["static", "dynamic", "resume", "reservation"] = "static"
    """How Slurm learns of composed devices. `static`: it knows them from its gres.conf; `dynamic`: hosts are registered anew with
    them; `resume`: Slurm itself has them composed by its ResumeProgram; `reservation`: as static, and hosts are reserved from
    before they are recomposed until they are released."""
    slurmd: SlurmdCommands | None = None
    """For `dynamic`."""
    devices_command: tuple[str, ...] | None = None
    """Run on every host at the start of an allocation: prints a line `identity, model` for each device that the host sees. Default:
    nvidia-smi for devices that run on cuda; otherwise devices are counted by what Slurm granted."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment of every rank, such as `NCCL_SOCKET_IFNAME`."""
    max_jobs: Annotated[int, Field(ge=1)] | None = None
    """At most so many allocations of the campaign in the queue at once."""
    poll_s: Annotated[float, Field(ge=1)] = 30.0
    """Seconds between two looks at the queue, for the whole campaign."""
    latency_s: Annotated[float, Field(ge=0)] = 60.0
    """How late files may appear on the shared file system."""
    overrides: tuple[SlurmOverride, ...] = ()
    """Other options for some configurations; later ones win. What the profile or `--config slurm=...` says wins over all."""


class Tenancy(Model):
    """What is ours of a system that others use too; what is outside is refused before the fabric is asked anything."""

    owner: Name | None = None
    """In whose name leases are held and counted. Default: the user who measures."""
    quota: dict[Name, Count] = Field(default_factory=dict)
    """Most pooled devices of a model that this owner's leases may hold at one time."""
    allowed_hosts: tuple[Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)], ...] = ()
    """Hosts that may be composed, ranges as in `hosts`. Default: all."""


class SystemFile(Model):
    """A system: one site's hosts, fabric, pool and scheduler."""

    schema_version: Literal["system/1"] = "system/1"
    """Version of this format."""
    name: Name
    """Equal to the file's name."""
    description: str = ""
    """Shown in the report."""
    launcher: Literal["local", "slurm"] = "local"
    """Who starts runs: this machine, or Slurm through submitit."""
    fabric: dict[str, Any]
    """The control plane: `kind` names the adapter, the rest are its options."""
    hosts: tuple[HostGroup, ...] = Field(min_length=1)
    """The hosts."""
    pool: tuple[PoolEntry, ...] = ()
    """Devices behind the fabric."""
    tenancy: Tenancy = Tenancy()
    """What of the system may be used, and in whose name."""
    devices: dict[Name, DeviceModel] = Field(default_factory=dict)
    """What is known of the device models; one that is not named is a GPU."""
    links: Links = Links()
    """Link rates as the site knows them; the report repeats them."""
    storage: dict[Storage, StoragePlace] = Field(default_factory=dict)
    """Where hosts have each kind of storage; runs that read their samples from files need it."""
    slurm: SlurmSettings = SlurmSettings()
    """Settings for `launcher: slurm`."""
    emulation: Emulation | None = None
    """Emulate the hosts on this machine, where no real ones are meant."""
    notes: tuple[str, ...] = ()
    """Sentences that the report shows, such as what is emulated."""

    @model_validator(mode="after")
    def _unique_hosts(self) -> SystemFile:
        names = Counter(name for group in self.hosts for name in group.names())
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise ValueError(f"host names stand twice: {', '.join(twice)}")
        if unknown := sorted(set(self.allowed_hosts()) - set(names)):
            raise ValueError(f"tenancy: allowed_hosts: no host {', '.join(unknown)}; there are: {', '.join(names)}")
        return self

    def allowed_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that may be composed; empty for all."""
        return tuple(name for each in self.tenancy.allowed_hosts for name in HostGroup(name=each).names())

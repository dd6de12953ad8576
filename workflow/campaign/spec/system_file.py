"""The keys of a system file. The text under each key is its description in the reference and the JSON Schema."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import suggest_name
from campaign.spec.cell import Configuration, Scalar, Storage
from campaign.spec.fields import HOSTS_PATTERN, OPERAND_PATTERN, Count, FileModel, Name, Precision, Variables
from campaign.spec.site_hardware import HostSpec, PoolSpec, expand_host_names


class PcieLink(FileModel):
    """A PCIe link, such as `{width: 16, gen: 4}`."""

    width: Annotated[int, Field(ge=1, le=32)]
    """Lanes."""
    gen: Annotated[int, Field(ge=1, le=8)]
    """Generation."""


class StoragePlace(FileModel):
    """Location of a kind of storage on the hosts."""

    path: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")]
    """Directory that runs may write to. Each run writes below it and removes its files afterwards."""
    gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Read rate in GB/s of the real storage, for all ranks of a host together. The report repeats it. Under `emulation`, ranks read
    no faster than this times the scale; that rate is part of a cell's identity, and records state that it is emulated."""
    source: str = ""
    """Source of the rate."""
    emulated_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Limit of the read rate as it is, without a scale, also without `emulation`. `gb_per_s` replaces it under `emulation`."""

    @model_validator(mode="after")
    def _one_rate(self) -> StoragePlace:
        if self.gb_per_s is not None and self.emulated_gb_per_s is not None:
            raise ValueError(
                "gives gb_per_s and emulated_gb_per_s; keep gb_per_s, the rate of the real storage, which `emulation` scales"
            )
        return self


class DeviceModel(FileModel):
    """Properties of a device model."""

    runs_on: AcceleratorKind = "cuda"
    """`cuda`: an NVIDIA GPU; `rocm`: an AMD GPU; `xpu`: an Intel GPU, or one tile of it; `cpu`: one process on a CPU core emulates
    each device, and the report says so, unless `emulated` is false."""
    emulated: bool = True
    """With `runs_on: cpu`: whether devices stand for GPUs. `false` for nodes without accelerators, whose device is the processor or
    a share of it."""
    precisions: tuple[Precision, ...] | None = None
    """Supported precisions, if fewer than the software reports."""
    reported_as: str | None = None
    """Name that the host's tools report, such as `NVIDIA A100-PCIE-40GB`. A device with another name is not accepted."""
    peak_tflops: dict[Precision, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Dense peak in TFLOP/s by precision, to compute the share that a run reaches. Default: the vendor's figure, if known."""
    price_per_h: Annotated[float, Field(gt=0)] | None = None
    """Price of one device for an hour, in `currency`. Reports and recommendations then compare what samples cost."""
    pcie: PcieLink | None = None
    """Expected PCIe link. Records measured over a lesser link are flagged, as are links below the maximum of both ends."""


class SiteLink(FileModel):
    """A type of link, in one direction."""

    gb_per_s: Annotated[float, Field(gt=0)]
    """Bandwidth in GB/s (1e9 bytes), one direction."""
    latency_us: Annotated[float, Field(ge=0)] | None = None
    """Latency in microseconds."""
    source: str = ""
    """Source of the numbers."""


class Links(FileModel):
    """Links that the traffic of a composition crosses. The report repeats them, and `emulation` scales them down."""

    local: SiteLink | None = None
    """Between devices of one host."""
    fabric: SiteLink | None = None
    """Between a host and a device behind the fabric."""
    network: SiteLink | None = None
    """Between hosts."""


class Emulation(FileModel):
    """Emulate the hosts on one Linux machine: network namespaces, joined by links at a fraction of the real rates.

    A device behind the fabric has a link at the scaled rate of `links.fabric`, and a host has one at the scaled rate of
    `links.network`. Where `links.local` has a rate, each device of a host's own has a link at its scaled rate; without it, traffic
    inside a host is not limited. Needs root or user namespaces, `ip` and `tc`; without them, runs share one loopback
    interface and records say so. Only for devices that run on `cpu`."""

    scale: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Emulated rate divided by the rate in `links`, for every link. The scale is part of a cell's identity."""
    pace: dict[Name, dict[Precision, Annotated[float, Field(gt=0, le=1e9)]]] = Field(default_factory=dict)
    """Rate of an emulated device in GFLOP/s, by device model and precision: `{cpu-rank: {fp32: 2, bf16: 4}}`. Built-in training is
    slowed down to it, so that devices on one machine do not disturb each other. A precision without a rate has that of fp32. The
    rate is part of a cell's identity."""

    def paces(self, precision: str) -> dict[str, float]:
        """GFLOP/s in this precision of the device models that have a pace."""
        return {
            model: {str(p): r for p, r in own.items()}.get(precision, own["fp32"]) for model, own in self.pace.items()
        }


_Operand = Annotated[str, StringConstraints(pattern=OPERAND_PATTERN)]


# Without these as they are, a driver is not found again, not warned, or not told from its caller's mistake.
_SET_BY_CAMPAIGN = frozenset(
    {
        *("array", "comment", "error", "job_name", "open_mode", "output"),
        *("parsable", "quiet", "signal", "test_only", "wait", "wrap"),
    }
)


def plain_option(name: str) -> str:
    """Return an option of sbatch as submitit spells it: an option under two spellings would be given twice."""
    return name.replace("-", "_")


class SlurmOptions(FileModel):
    """Slurm options of an allocation. They are not part of a cell's identity: changing them repeats no measurement."""

    partition: _Operand | None = None
    """Partition."""
    account: _Operand | None = None
    """Account."""
    qos: _Operand | None = None
    """Quality of service."""
    constraint: _Operand | None = None
    """Node features."""
    time_min: Annotated[int, Field(ge=1)] | None = None
    """Time limit of an allocation in minutes. Default: computed from the plan."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory per host in GiB. Default: all of it."""
    cpus_per_device: Count | None = None
    """CPUs for each device that a run uses. Default: Slurm decides."""
    additional: dict[str, Scalar] = Field(default_factory=dict)
    """Further options of sbatch, by long name."""

    @field_validator("additional")
    @classmethod
    def _refuse_options_of_campaign(cls, additional: dict[str, Scalar]) -> dict[str, Scalar]:
        for name in additional:
            if plain_option(name) in _SET_BY_CAMPAIGN:
                raise ValueError(f"{name}: is set by the campaign; remove it")
        return additional


class SlurmOverride(SlurmOptions):
    """Options for some configurations."""

    when: str
    """Predicate over the configuration's shape, such as `hosts > 4`."""


class SlurmdCommands(FileModel):
    """Commands of the site that stop and start slurmd on a host. `{host}`, `{devices}` (their number), `{gres}` (`gpu:4`) and
    `{fabric_devices}` are filled in."""

    stop: tuple[str, ...] = Field(min_length=1)
    """Command that stops slurmd, such as `[ssh, "{host}", systemctl, stop, slurmd]`. It also succeeds if slurmd is stopped."""
    start: tuple[str, ...] = Field(min_length=1)
    """Command that starts slurmd, which then registers these devices."""


class SlurmSettings(SlurmOptions):
    """How leases are measured through Slurm. Not part of a cell's identity: a change repeats no measurement."""

    gres: str = "gpu"
    """Generic resource (GRES) of the devices, with its type if it has one: `gpu:a100`."""
    exclusive: bool = True
    """Request whole hosts, so that no other job disturbs a measurement."""
    placement: Literal["pinned", "scheduler"] | None = None
    """What chooses the hosts. `pinned`: the composition; `scheduler`: Slurm. Default: `scheduler` on a static fabric."""
    strategy: Literal["static", "dynamic", "resume", "reservation"] = "static"
    """How Slurm learns of composed devices. `static`: from its gres.conf, and composed devices go to free hosts only; `dynamic`:
    hosts are registered again with their devices; `resume`: Slurm's ResumeProgram composes them; `reservation`: as static, with the
    hosts reserved from before they are recomposed until they are released."""
    slurmd: SlurmdCommands | None = None
    """Commands for the strategy `dynamic`."""
    devices_command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Command that prints a line `identity, model` for each device that a host sees; it runs on every host at the start of an
    allocation. Default: nvidia-smi, amd-smi or xpu-smi by the kind of the devices; with `cpu`, the devices that Slurm granted are
    counted."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables of every rank, such as `NCCL_SOCKET_IFNAME`; `HF_TOKEN: {from: environment}` takes a secret from the
    environment that the campaign is started in."""
    max_jobs: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of the campaign's allocations in the queue at the same time."""
    poll_s: Annotated[float, Field(ge=1)] = 30.0
    """Seconds between two queries of the queue, for the whole campaign."""
    latency_s: Annotated[float, Field(ge=0)] = 60.0
    """Maximum delay in seconds until a file written on one host appears on another (shared file system)."""
    overrides: tuple[SlurmOverride, ...] = ()
    """Options for some configurations. Later entries win; options of the profile or `--config slurm=...` win over all of them."""


class Tenancy(FileModel):
    """Limits on a system that is shared with others. Requests outside of them are refused before the fabric is asked."""

    owner: Name | None = None
    """Owner in whose name leases are held and counted. Default: the user who starts the campaign."""
    quota: dict[Name, Count] = Field(default_factory=dict)
    """Maximum number of pooled devices per model that this owner's leases may hold at the same time."""
    allowed_hosts: tuple[Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)], ...] = ()
    """Hosts that may be composed, ranges as in `hosts`. Default: all."""


class SystemFile(FileModel):
    """A system: one site's hosts, fabric, pool and scheduler."""

    schema_version: Literal["system/1"] = "system/1"
    """Version of this format."""
    name: Name
    """Equal to the file's name."""
    description: str = ""
    """Shown in the report."""
    launcher: Literal["local", "slurm"] = "local"
    """What starts runs: this machine (`local`), or Slurm."""
    machine_lock: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")] | None = None
    """File that all users who measure on this machine lock, so that one lease is measured there at a time (`isolation:
    machine`). In a directory that only a group can enter, nobody else can hold it. Default: `/tmp/composable-campaign.lock`,
    whatever TMPDIR is."""
    fabric: dict[str, Any]
    """The control plane: `kind` names the adapter, the rest are its options."""
    times: str = ""
    """File with recorded times of the fabric's operations (`campaign fabric times`), relative to this one, to forecast composing.
    Default: recordings of this kind of fabric that come with the program, if there are any."""
    times_factor: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Factor of these times, for a fabric that is emulated faster than it was recorded."""
    hosts: tuple[HostSpec, ...] = Field(min_length=1)
    """The hosts."""
    pool: tuple[PoolSpec, ...] = ()
    """Devices behind the fabric."""
    tenancy: Tenancy = Tenancy()
    """Limits of use, and the owner of leases."""
    devices: dict[Name, DeviceModel] = Field(default_factory=dict)
    """Properties of device models. A model without an entry is a GPU."""
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] | None = None
    """Currency of all prices, such as EUR. Prices are those of devices alone, composed ones that a run leaves idle included."""
    links: Links = Links()
    """Link rates of the site. The report repeats them."""
    storage: dict[Storage, StoragePlace] = Field(default_factory=dict)
    """Location of each kind of storage on the hosts. Runs that read samples from files need it."""
    slurm: SlurmSettings = SlurmSettings()
    """Settings for `launcher: slurm`."""
    emulation: Emulation | None = None
    """Emulate the hosts on this machine instead of using real ones."""
    notes: tuple[str, ...] = ()
    """Remarks for the report, such as what is emulated."""

    @model_validator(mode="after")
    def _unique_hosts(self) -> SystemFile:
        names: set[str] = set()
        for index, group in enumerate(self.hosts):
            counts = Counter(group.names())
            if twice := sorted({*(name for name, count in counts.items() if count > 1), *(names & counts.keys())}):
                raise ValueError(
                    f"duplicate host names in 'hosts.{index}': {', '.join(twice)}; give each host one entry"
                )
            names |= counts.keys()
        try:
            allowed = set(self.allowed_hosts())
        except ValueError as error:
            raise ValueError(f"'tenancy.allowed_hosts': {error}") from error
        if unknown := sorted(allowed - names):
            raise ValueError(
                f"'tenancy.allowed_hosts' has no host {', '.join(unknown)}; there are: {', '.join(sorted(names))}"
            )
        priced = sorted(name for name, model in self.devices.items() if model.price_per_h is not None)
        if priced and self.currency is None:
            raise ValueError(f"'devices.{priced[0]}.price_per_h' is a price; add its currency, such as `currency: EUR`")
        homes = {name for entry in self.pool if entry.home for name in expand_host_names(entry.home)}
        if unknown := sorted(homes - names):
            raise ValueError(f"'pool' has a home {unknown[0]} that is no host; there are: {', '.join(sorted(names))}")
        if unknown := sorted(self.tenancy.quota.keys() - {entry.model for entry in self.pool}):
            raise ValueError(
                f"'tenancy.quota.{unknown[0]}' names no model of the pool; {suggest_name(unknown[0], (e.model for e in self.pool))}"
            )
        return self

    def price_per_h(self, configuration: Configuration) -> float | None:
        """Price of all composed devices for an hour; None where their model has none."""
        price = self.devices.get(configuration.device, DeviceModel()).price_per_h
        return None if price is None else price * configuration.devices

    @property
    def pins_hosts(self) -> bool:
        """Whether the composition chooses the hosts, and not Slurm."""
        chosen = self.slurm.placement or ("scheduler" if self.fabric["kind"] == "static" else "pinned")
        return chosen == "pinned" and self.slurm.strategy != "resume"

    def storage_limit_gb_per_s(self, kind: Storage) -> float | None:
        """What all ranks of a host together read from a kind of storage at most, where that is emulated."""
        place = self.storage.get(kind)
        if place is None:
            return None
        if place.gb_per_s is None or self.emulation is None:
            return place.emulated_gb_per_s
        # Rounded, so that a rate and its scale make the same cells as their product.
        return float(f"{place.gb_per_s * self.emulation.scale:.12g}")

    def usable_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that may be composed."""
        return self.allowed_hosts() or tuple(name for group in self.hosts for name in group.names())

    def allowed_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that may be composed; empty for all."""
        return tuple(name for each in self.tenancy.allowed_hosts for name in expand_host_names(each))

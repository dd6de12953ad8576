"""Keys of a system file. The text under each key is its description in the reference page and in the JSON Schema."""

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
    """PCIe link, such as `{width: 16, gen: 4}`."""

    width: Annotated[int, Field(ge=1, le=32)]
    """Number of lanes."""
    gen: Annotated[int, Field(ge=1, le=8)]
    """PCIe generation."""


class StoragePlace(FileModel):
    """Location of a kind of storage on the hosts."""

    path: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")]
    """Directory in which runs may write. Each run writes to a subdirectory and removes its files afterwards."""
    gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Read rate of the real storage in GB/s, for all ranks of a host together. It is shown in the report. Under `emulation`, the
    read rate is limited to this value times the scale. The limit is part of a cell's identity, and records state that it is
    emulated."""
    source: str = ""
    """Source of the rate."""
    emulated_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Limit of the read rate in GB/s that is not scaled and needs no `emulation`. It excludes `gb_per_s`."""

    @model_validator(mode="after")
    def _check_rates(self) -> StoragePlace:
        if self.gb_per_s is not None and self.emulated_gb_per_s is not None:
            raise ValueError(
                "gb_per_s and emulated_gb_per_s exclude each other; keep gb_per_s, the rate of the real storage, which "
                "`emulation` scales"
            )
        return self


class DeviceModel(FileModel):
    """Properties of a device model."""

    runs_on: AcceleratorKind = "cuda"
    """Kind of device. `cuda`: an NVIDIA GPU; `rocm`: an AMD GPU; `xpu`: an Intel GPU, or one tile of it; `cpu`: one process on a
    CPU core, which emulates a device unless `emulated` is false. The report states that devices are emulated."""
    emulated: bool = True
    """Devices with `runs_on: cpu` stand for GPUs. `false` is for nodes without accelerators, whose device is the processor or a
    part of it."""
    precisions: tuple[Precision, ...] | None = None
    """Supported precisions, if they are fewer than the software reports."""
    reported_as: str | None = None
    """Name that the tools of the host report, such as `NVIDIA A100-PCIE-40GB`. A device with another name is rejected."""
    peak_tflops: dict[Precision, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Dense peak rate in TFLOP/s by precision, from which the utilisation of a run is computed. Default: the figure of the vendor,
    if known."""
    price_per_h: Annotated[float, Field(gt=0)] | None = None
    """Price of one device per hour, in `currency`. With it, reports and recommendations compare the price per sample."""
    pcie: PcieLink | None = None
    """Expected PCIe link. Records are flagged if a link is narrower or slower than this, or below the maximum of both its ends."""


class SiteLink(FileModel):
    """One type of link, in one direction."""

    gb_per_s: Annotated[float, Field(gt=0)]
    """Bandwidth in one direction in GB/s (1e9 bytes per second)."""
    latency_us: Annotated[float, Field(ge=0)] | None = None
    """Latency in microseconds."""
    source: str = ""
    """Source of these numbers."""


class Links(FileModel):
    """Types of links that the traffic of a composition uses. They are shown in the report, and `emulation` scales them down."""

    local: SiteLink | None = None
    """Link between devices of one host."""
    fabric: SiteLink | None = None
    """Link between a host and a device behind the fabric."""
    network: SiteLink | None = None
    """Link between hosts."""


class Emulation(FileModel):
    """Emulation of the hosts on one Linux machine, as network namespaces with links at a fraction of the real rates.

    Each device behind the fabric has a link with the scaled rate of `links.fabric`, and each host has a link with the scaled rate
    of `links.network`. Each device built into a host has a link with the scaled rate of `links.local`. If `links.local` is missing,
    traffic within a host is not limited. Emulation needs root or user namespaces, `ip` and `tc`. Without them, all runs share one
    loopback interface, and records state this. It is only for devices with `runs_on: cpu`.
    """

    scale: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Ratio of the emulated rate to the rate in `links`, for all links. The scale is part of a cell's identity."""
    pace: dict[Name, dict[Precision, Annotated[float, Field(gt=0, le=1e9)]]] = Field(default_factory=dict)
    """Rate of an emulated device in GFLOP/s, by device model and precision: `{cpu-rank: {fp32: 2, bf16: 4}}`. Built-in training is
    slowed down to this rate, so that devices on the same machine do not disturb each other. The rate of fp32 applies to precisions
    without a rate. The rate is part of a cell's identity."""

    def get_paces(self, precision: str) -> dict[str, float]:
        """Return the rate in GFLOP/s for a precision, by device model that has a pace."""
        return {
            model: {str(p): r for p, r in model_paces.items()}.get(precision, model_paces["fp32"])
            for model, model_paces in self.pace.items()
        }


_Operand = Annotated[str, StringConstraints(pattern=OPERAND_PATTERN)]


# With other values of these options, a driver could not be found again, would get no signal before its end, or its failure would
# look like an error of the caller.
_SET_BY_CAMPAIGN = frozenset(
    {
        *("array", "comment", "error", "job_name", "open_mode", "output"),
        *("parsable", "quiet", "signal", "test_only", "wait", "wrap"),
    }
)


def normalize_option_name(name: str) -> str:
    """Return the name of an sbatch option in the spelling of submitit, so that no option is passed under two spellings."""
    return name.replace("-", "_")


class SlurmOptions(FileModel):
    """Slurm options of an allocation. They are not part of a cell's identity, so changing them repeats no measurement."""

    partition: _Operand | None = None
    """Partition of the allocation."""
    account: _Operand | None = None
    """Account of the allocation."""
    qos: _Operand | None = None
    """Quality of service (QOS)."""
    constraint: _Operand | None = None
    """Required node features."""
    time_min: Annotated[int, Field(ge=1)] | None = None
    """Time limit of an allocation in minutes. Default: computed from the plan."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory per host in GiB. Default: all memory of the host."""
    cpus_per_device: Count | None = None
    """CPUs per device that a run uses. Default: the number that Slurm chooses."""
    additional: dict[str, Scalar] = Field(default_factory=dict)
    """Further options of sbatch, by their long name."""

    @field_validator("additional")
    @classmethod
    def _reject_campaign_options(cls, additional: dict[str, Scalar]) -> dict[str, Scalar]:
        for name in additional:
            if normalize_option_name(name) in _SET_BY_CAMPAIGN:
                raise ValueError(f"option '{name}' is set by the campaign; remove it")
        return additional


class SlurmOverride(SlurmOptions):
    """Slurm options for some of the configurations."""

    when: str
    """Predicate over the shape of the configuration, such as `hosts > 4`."""


class SlurmdCommands(FileModel):
    """Commands of the site that stop and start slurmd on a host.

    `{host}`, `{devices}` (their number), `{gres}` (`gpu:4`) and `{fabric_devices}` are filled in.
    """

    stop: tuple[str, ...] = Field(min_length=1)
    """Command that stops slurmd, such as `[ssh, "{host}", systemctl, stop, slurmd]`. It must also succeed if slurmd is not
    running."""
    start: tuple[str, ...] = Field(min_length=1)
    """Command that starts slurmd, which then registers these devices."""


class SlurmSettings(SlurmOptions):
    """Settings of measurements through Slurm. They are not part of a cell's identity, so changing them repeats no measurement."""

    gres: str = "gpu"
    """Generic resource (GRES) of the devices, with its type if it has one, such as `gpu:a100`."""
    exclusive: bool = True
    """Request whole hosts, so that no other job disturbs a measurement."""
    placement: Literal["pinned", "scheduler"] | None = None
    """Selection of the hosts: by the composition (`pinned`) or by Slurm (`scheduler`). Default: `scheduler` on a static fabric,
    otherwise `pinned`."""
    strategy: Literal["static", "dynamic", "resume", "reservation"] = "static"
    """Method by which Slurm learns about composed devices. `static`: Slurm uses its gres.conf, and devices are composed only onto
    free hosts; `dynamic`: hosts register again with their devices; `resume`: the ResumeProgram of Slurm composes the devices;
    `reservation`: like `static`, but the hosts are reserved from before their recomposition until their release."""
    slurmd: SlurmdCommands | None = None
    """Commands for the strategy `dynamic`."""
    devices_command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Command that prints a line `identity, model` for each device of a host. It runs on every host at the start of an allocation.
    Default: nvidia-smi, amd-smi or xpu-smi, by kind of device. With `cpu`, the devices that Slurm allocated are counted."""
    environment: Variables = Field(default_factory=dict)
    """Environment variables of every rank, such as `NCCL_SOCKET_IFNAME`. `HF_TOKEN: {from: environment}` takes a secret from the
    environment in which the campaign is started."""
    max_jobs: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of allocations of the campaign in the queue at the same time."""
    poll_s: Annotated[float, Field(ge=1)] = 30.0
    """Seconds between two queries of the queue, for the whole campaign."""
    latency_s: Annotated[float, Field(ge=0)] = 60.0
    """Maximum delay in seconds until a file written on one host is visible on another (shared file system)."""
    overrides: tuple[SlurmOverride, ...] = ()
    """Options for some of the configurations. Later entries take precedence, and options of the profile or `--config slurm=...`
    take precedence over all entries."""


class Tenancy(FileModel):
    """Limits on a system that is shared with others. Requests beyond these limits are rejected before the fabric is contacted."""

    owner: Name | None = None
    """Owner of the leases, for whom the quota is counted. Default: the user who starts the campaign."""
    quota: dict[Name, Count] = Field(default_factory=dict)
    """Maximum number of pooled devices that leases of this owner may hold at the same time, by model."""
    allowed_hosts: tuple[Annotated[str, StringConstraints(pattern=HOSTS_PATTERN, max_length=80)], ...] = ()
    """Hosts that may be composed, with ranges as in `hosts`. Default: all hosts."""


class SystemFile(FileModel):
    """System: hosts, fabric, pool and scheduler of one site."""

    schema_version: Literal["system/1"] = "system/1"
    """Version of this format."""
    name: Name
    """Name of the system, which must be the file's name without `.yaml`."""
    description: str = ""
    """Description for the report."""
    launcher: Literal["local", "slurm"] = "local"
    """Launcher of the runs: this machine (`local`) or Slurm (`slurm`)."""
    machine_lock: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")] | None = None
    """Lock file shared by all users who measure on this machine, so that only one lease is measured at a time (`isolation:
    machine`). Put it into a directory that only a group can access to keep other users from holding the lock. Default:
    `/tmp/composable-campaign.lock`, whatever TMPDIR is."""
    fabric: dict[str, Any]
    """Control plane of the fabric. `kind` selects the adapter, and the other keys are its options."""
    times: str = ""
    """File with recorded times of fabric operations (`campaign fabric times`), relative to this file. It is used to forecast
    composing times. Default: the recordings for this kind of fabric that come with the program, if any."""
    times_factor: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Factor for these times, for an emulated fabric that is faster than the recorded one."""
    hosts: tuple[HostSpec, ...] = Field(min_length=1)
    """Hosts of the system."""
    pool: tuple[PoolSpec, ...] = ()
    """Devices behind the fabric."""
    tenancy: Tenancy = Tenancy()
    """Limits of use, and the owner of leases."""
    devices: dict[Name, DeviceModel] = Field(default_factory=dict)
    """Properties of device models. A model without an entry is a GPU."""
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] | None = None
    """Currency of all prices, such as EUR. Prices cover only devices, including composed devices that a run does not use."""
    links: Links = Links()
    """Link rates of the site, shown in the report."""
    storage: dict[Storage, StoragePlace] = Field(default_factory=dict)
    """Location of each kind of storage on the hosts, required by runs that read samples from files."""
    slurm: SlurmSettings = SlurmSettings()
    """Settings for `launcher: slurm`."""
    emulation: Emulation | None = None
    """Emulation of the hosts on this machine. Default: the hosts are real."""
    notes: tuple[str, ...] = ()
    """Remarks for the report, such as what is emulated."""

    @model_validator(mode="after")
    def _check_consistency(self) -> SystemFile:
        names: set[str] = set()
        for index, group in enumerate(self.hosts):
            counts = Counter(group.list_names())
            if duplicates := sorted({*(name for name, count in counts.items() if count > 1), *(names & counts.keys())}):
                raise ValueError(
                    f"'hosts.{index}' has duplicate host names: {', '.join(duplicates)}; list each host once"
                )
            names |= counts.keys()
        try:
            allowed_names = set(self.list_allowed_hosts())
        except ValueError as error:
            raise ValueError(f"'tenancy.allowed_hosts': {error}") from error
        if unknown := sorted(allowed_names - names):
            raise ValueError(
                f"'tenancy.allowed_hosts' has unknown hosts: {', '.join(unknown)}; there are: {', '.join(sorted(names))}"
            )
        priced_models = sorted(name for name, model in self.devices.items() if model.price_per_h is not None)
        if priced_models and self.currency is None:
            raise ValueError(
                f"'devices.{priced_models[0]}.price_per_h' needs a currency; add one, such as `currency: EUR`"
            )
        homes = {name for entry in self.pool if entry.home for name in expand_host_names(entry.home)}
        if unknown := sorted(homes - names):
            raise ValueError(
                f"'pool' has the home '{unknown[0]}', which is not a host; there are: {', '.join(sorted(names))}"
            )
        if unknown := sorted(self.tenancy.quota.keys() - {entry.model for entry in self.pool}):
            raise ValueError(
                f"'tenancy.quota.{unknown[0]}' is not a model in the pool; {suggest_name(unknown[0], (e.model for e in self.pool))}"
            )
        return self

    def compute_price_per_h(self, configuration: Configuration) -> float | None:
        """Return the price of all composed devices per hour, or None if their model has no price."""
        price = self.devices.get(configuration.device, DeviceModel()).price_per_h
        return None if price is None else price * configuration.devices

    @property
    def are_hosts_pinned(self) -> bool:
        """True if the composition selects the hosts, and False if Slurm does."""
        placement = self.slurm.placement or ("scheduler" if self.fabric["kind"] == "static" else "pinned")
        return placement == "pinned" and self.slurm.strategy != "resume"

    def get_storage_limit_gb_per_s(self, kind: Storage) -> float | None:
        """Return the emulated read limit of a kind of storage in GB/s for all ranks of a host, or None if it has no limit."""
        place = self.storage.get(kind)
        if place is None:
            return None
        if place.gb_per_s is None or self.emulation is None:
            return place.emulated_gb_per_s
        # The limit is rounded, so that a rate with a scale gives the same cells as their product.
        return float(f"{place.gb_per_s * self.emulation.scale:.12g}")

    def list_usable_hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts that may be composed."""
        return self.list_allowed_hosts() or tuple(name for group in self.hosts for name in group.list_names())

    def list_allowed_hosts(self) -> tuple[str, ...]:
        """Return the names in `tenancy.list_allowed_hosts`. The result is empty if all hosts may be composed."""
        return tuple(name for each in self.tenancy.allowed_hosts for name in expand_host_names(each))

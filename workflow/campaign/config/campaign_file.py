"""What a campaign file may say. Every key has a description: the reference and the JSON Schema are made from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from campaign.documents.cell import Attach, Scalar, Storage
from campaign.documents.fields import AxisName, Count, Many, Model, Name, Precision


class Shape(Model):
    """Requested hardware, declared by shape. A list in any key expands to one configuration a value (product, or `zip`)."""

    name: Name | None = None
    """Only for a declaration of a single shape; otherwise names follow from the shape, such as `2x2-fabric`."""
    hosts: Many[Count] = (1,)
    """How many hosts."""
    devices_per_host: Many[Count] = (1,)
    """Devices composed onto each host."""
    devices_used: Many[Count | Literal["all"]] = ("all",)
    """How many of a host's devices a run uses (part of a host)."""
    device: Many[Name] | None = None
    """Device model; may be left out when the system has only one."""
    attach: Many[Attach] = ("local",)
    """`local`: the hosts' own devices; `fabric`: from the pool; `hybrid`: both."""
    local_devices_per_host: Many[Annotated[int, Field(ge=0, le=4096)]] | None = None
    """For `hybrid`: how many of `devices_per_host` are the host's own; half of them when left out."""
    storage: Many[Storage] = ("local",)
    """`local` disk, the host's own `nvme`, or a `fabric-nvme` attached from the pool."""
    zip: tuple[tuple[str, ...], ...] = ()
    """Keys whose lists go together instead of being multiplied, such as `[hosts, devices_per_host]`."""


class Axes(Model):
    """The axes of the matrix; a list in any of them expands."""

    configuration: Many[Name] | None = None
    """Names of configurations to measure; all that are declared when left out."""
    workload: Many[Name]
    """Names of workload files."""
    batch: Many[Count] = (1,)
    """Samples a device takes in one step; the global batch is this times the ranks."""
    precision: Many[Precision] = ("fp32",)
    """Number format of the arithmetic."""
    options: dict[AxisName, Many[Scalar]] = Field(default_factory=dict)
    """Further axes: options that every workload of the campaign has."""


class AxesOverride(Model):
    """Values that replace those of the campaign's axes."""

    batch: Many[Count] | None = None
    """Other batches."""
    precision: Many[Precision] | None = None
    """Other precisions."""


class Override(Model):
    """Other settings for the cells that a predicate selects."""

    when: str
    """Predicate over the axes. With `axes`, it may name the workload and the configuration's shape only."""
    axes: AxesOverride | None = None
    """Other values of an axis for these cells."""
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Replaces the protocol's."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Replaces the protocol's."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Replaces the protocol's."""
    target_half_width_pct: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Replaces the protocol's."""
    repetitions_min: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Replaces the protocol's."""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Replaces the protocol's."""


class Exclusion(Model):
    """Cells that are not to be measured, and why."""

    when: str
    """Predicate over the axes, such as `precision == 'tf32' and device == 'p100'`."""
    why: str
    """The reason; it is shown in the plan and in the report."""


class LinkMeasurement(Model):
    """The stage that measures the links of every composition: matrices of bandwidth and latency between its devices and to their
    hosts, and all-reduce against message size."""

    when: tuple[Literal["before", "after"], ...] | None = None
    """Before the runs of a composition, after them, or both; `[]`: never. Default: before, where the campaign has a `train`
    workload (the stage needs PyTorch too)."""
    sizes_bytes: Many[Annotated[int, Field(ge=8, le=2**30)]] = (8, 4096, 65536, 2**20, 2**24, 2**26, 2**28)
    """Message sizes, each rounded down to whole fp32 numbers. The smallest gives the latency, the largest the bandwidth."""
    repeats: Annotated[int, Field(ge=3, le=1000)] = 5
    """Timed repeats of each size; their median counts."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    """Repeats before them that do not count."""
    budget_s: Annotated[float, Field(gt=0)] = 30.0
    """How long the stage may take; sizes that do not fit are left out, and named."""
    tools: Many[Literal["torch", "p2pBandwidthLatencyTest", "nvbandwidth", "nccl-tests", "osu"]] = ("torch",)
    """What measures: the built-in `torch`, or programs that are installed on the hosts; one that is not there is named."""
    tolerance_pct: Annotated[float, Field(gt=0, lt=100)] = 25.0
    """A link that is slower than its kind's expectation by more than this is flagged in every record of the composition."""


class Protocol(Model):
    """How each cell is measured."""

    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 5
    """Steps before the measurement that do not count."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Steps that are timed."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 3
    """Runs a cell; with `target_half_width_pct`, the most of them."""
    target_half_width_pct: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Stop repeating a cell once the 95 % interval of its mean throughput reaches no further than this to either side, in percent
    of the mean. An interval that was waited for covers the true mean less often than its name says: simulated, 90 to 95 of 100
    times, by noise and target; more of `repetitions_min` helps. Default: every cell is repeated equally often."""
    repetitions_min: Annotated[int, Field(ge=2, le=1000)] = 3
    """With `target_half_width_pct`: the fewest repetitions; and so many that fail end a cell too."""
    seed: int = 1234
    """Seed of weights, data and order."""
    order: Literal["blocks", "sequential"] = "blocks"
    """`blocks`: every repetition is a block with all cells of the lease in random order, so that drift does not pose as
    an effect; `sequential`: all repetitions of a cell in a row."""
    lease_per: Literal["configuration", "workload", "cell"] = "configuration"
    """What shares one composition: all cells of a configuration, those of one workload on it, or one cell."""
    isolation: Literal["machine", "host", "none"] | None = None
    """What may be measured at the same time: `machine`: one lease at a time; `host`: leases on different hosts;
    `none`: whatever the pool allows. Default: `machine` where the system launches locally or is emulated, otherwise `host`."""
    time_limit_s: Annotated[float, Field(gt=0)] = 900.0
    """A run that takes longer is stopped and recorded as `time_limit`."""
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None
    """A run whose processes hold more memory on a host is stopped and recorded as `oom_host`."""
    skip_implied: bool = True
    """Once a batch has run out of memory, larger ones that are otherwise equal are not run but recorded as `implied`, with the
    run that shows it. `false` runs them."""
    telemetry_s: Annotated[float, Field(ge=0.1, le=3600)] | None = 1.0
    """Seconds between two samples of the counters of devices and hosts beside every run; null: none."""
    links: LinkMeasurement = LinkMeasurement()
    """How the links of every composition are measured."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """How often a lease is tried when the apparatus (fabric, scheduler, host) fails; the subject's failures are data."""
    compose_wait_s: Annotated[float, Field(ge=0)] = 600.0
    """How long to wait in turn for devices that somebody else holds."""


class CampaignFile(Model):
    """A campaign: what is compared, on which system, and how it is measured."""

    schema_version: Literal["campaign/1"] = "campaign/1"
    """Version of this format."""
    name: Name
    """Results go to `results/<name>`."""
    title: str = ""
    """Title of the report."""
    question: str = ""
    """What the campaign is to answer; stands at the top of the report."""
    system: Name
    """Name of a system file."""
    baseline: Name | None = None
    """Configuration that local/hybrid/fabric overheads refer to; the largest local one when left out."""
    configurations: tuple[Shape, ...] = Field(min_length=1)
    """Requested hardware, by shape."""
    axes: Axes
    """The axes of the matrix."""
    zip: tuple[tuple[str, ...], ...] = ()
    """Axes whose lists go together instead of being multiplied, such as `[workload, batch]`."""
    exclude: tuple[Exclusion, ...] = ()
    """Cells that are left out."""
    overrides: tuple[Override, ...] = ()
    """Other settings for some cells; later ones win."""
    protocol: Protocol = Protocol()
    """How each cell is measured."""
    references: tuple[str, ...] = ()
    """Sets of published claims that the report holds its own numbers against: `falcon`, `faster`, `bitfusion`, or paths of YAML
    files, relative to this one."""
    imported: bool = False
    """Its records were made from logs by `campaign import`, so that nothing of it is measured here."""

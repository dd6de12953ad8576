"""The keys of a campaign file. The text under each key is its description in the reference and the JSON Schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.paths import SCRIPTS
from campaign.spec.cell import Attach, Scalar, Storage
from campaign.spec.fields import AxisName, Count, FileModel, Label, Many, Name, Precision, as_typed
from campaign.spec.metric import Better, Scaling


class Shape(FileModel):
    """Requested hardware, declared by shape. A list in any key expands to one configuration per value (their product, or `zip`)."""

    name: Name | None = None
    """Name of the configuration, for a single shape without lists. Default: a name made from the shape, such as `2x2-fabric`. With
    several systems, the name begins with that of the system, unless `system` names one: `grace-2x2-local`."""
    system: Many[Name] | None = None
    """Of several systems, the one, or those, that the shape is for. Default: each that can hold it; the plan lists the others."""
    hosts: Many[Count] = (1,)
    """Number of hosts. All have the same devices."""
    devices_per_host: Many[Count] = (1,)
    """Devices attached to each host."""
    devices_used: Many[Count | Literal["all"]] = ("all",)
    """Devices of each host that a run uses; fewer than `devices_per_host` measure part of a host. The host's own are used first."""
    device: Many[Name] | None = None
    """Device model. Default: the only model of the system."""
    attach: Many[Attach] = ("local",)
    """`local`: devices built into the hosts; `fabric`: devices from the pool; `hybrid`: both. `fabric-p2p` and `hybrid-p2p`: pooled
    devices of a host also reach each other through the fabric, where its control plane can set that; without, it is off there."""
    local_devices_per_host: Many[Annotated[int, Field(ge=0, le=4096)]] | None = None
    """With `hybrid` or `hybrid-p2p`: how many of `devices_per_host` are built into the host. Default: half."""
    storage: Many[Storage] = ("local",)
    """`local`: the host's disk; `nvme`: its own NVMe drive; `fabric-nvme`: a drive attached from the pool."""
    zip: tuple[tuple[str, ...], ...] = ()
    """Keys whose lists advance together instead of being multiplied, such as `[hosts, devices_per_host]`."""


class Axes(FileModel):
    """The axes of the matrix. A list in any of them expands."""

    configuration: Many[Name] | None = None
    """Configurations to measure, by name. Default: all that are declared."""
    workload: Many[Name]
    """Names of workload files."""
    batch: Many[Count] = (1,)
    """Samples per device and step. The global batch is this times the number of ranks. Cells of services have batch 1."""
    precision: Many[Precision] = ("fp32",)
    """Number format of the arithmetic."""
    options: dict[AxisName, Many[Scalar]] = Field(default_factory=dict)
    """Further axes: options that every workload of the campaign knows."""


class AxesOverride(FileModel):
    """Values that replace those of the campaign's axes."""

    batch: Many[Count] | None = None
    """Other batches."""
    precision: Many[Precision] | None = None
    """Other precisions."""


class Override(FileModel):
    """Settings for the cells that a predicate selects."""

    when: str
    """Predicate over the axes. With `axes`, it may use only the workload and the shape of the configuration."""
    axes: AxesOverride | None = None
    """Other values of an axis for these cells."""
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Replaces the protocol's."""
    warmup_steps_max: Annotated[int, Field(ge=20, le=1_000_000)] | None = None
    """Replaces the protocol's."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Replaces the protocol's."""
    warmup_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Replaces the protocol's."""
    measured_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Replaces the protocol's."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Replaces the protocol's."""
    compositions: Annotated[int, Field(ge=1, le=999)] | None = None
    """Replaces the protocol's."""
    target_half_width_pct: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Replaces the protocol's."""
    repetitions_min: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Replaces the protocol's."""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Replaces the protocol's."""


class Exclusion(FileModel):
    """Cells that are not measured, and the reason."""

    when: str
    """Predicate over the axes, such as `precision == 'tf32' and device == 'p100'`."""
    why: str
    """The reason. The plan and the report show it."""


class LinkMeasurement(FileModel):
    """The stage that measures the links of compositions: matrices of bandwidth and latency between its devices and to their
    hosts, and all-reduce against message size."""

    when: tuple[Literal["before", "after"], ...] | None = None
    """Before the runs of a composition, after them, or both; `[]`: never. Default: before, if the campaign has a `train`
    workload, since the stage needs PyTorch."""
    compositions: Literal["first", "all"] = "first"
    """With several compositions of a configuration: measure the links of the first one, or of each. The stage takes as long as
    several runs."""
    sizes_bytes: Many[Annotated[int, Field(ge=8, le=2**30)]] | None = None
    """Message sizes, each rounded down to whole fp32 numbers. The smallest gives the latency, the largest the bandwidth. Default:
    8 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB, 64 MiB, and between GPUs 256 MiB; on CPU cores, 64 MiB are beyond every cache."""
    repeats: Annotated[int, Field(ge=3, le=1000)] = 5
    """Timed repeats of each size; their median counts."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    """Warm-up repeats of each size, which are not timed."""
    budget_s: Annotated[float, Field(gt=0)] = 30.0
    """Time limit of the stage. Sizes that do not fit are left out and reported."""
    tools: Many[Literal["torch", "p2pBandwidthLatencyTest", "nvbandwidth", "nccl-tests", "osu"]] = ("torch",)
    """Measuring programs: the built-in `torch`, or programs installed on the hosts. Missing programs are reported."""
    tolerance_pct: Annotated[float, Field(gt=0, lt=100)] = 25.0
    """A link that is slower than expected for its type by more than this is flagged in every record of the composition."""

    def sizes_on(self, runs_on: AcceleratorKind) -> tuple[int, ...]:
        return self.sizes_bytes or (8, 4096, 65536, 2**20, 2**24, 2**26, *([] if runs_on == "cpu" else [2**28]))


class ReferenceMeasurement(FileModel):
    """One cell that is measured in every composition, whatever the configuration: on the first device of its first host. It shows
    whether the system drifts while the campaign lasts. Its runs are in no figure of the matrix."""

    workload: Name
    """One of the campaign's workloads. A short one costs least."""
    batch: Count = 1
    """Samples per step."""
    precision: Precision = "fp32"
    """Number format of the arithmetic."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options of the workload, where they differ from its file."""
    repetitions: Annotated[int, Field(ge=1, le=99)] = 2
    """Runs in every composition, spread evenly over its time: of two, one is the first and one the last of all runs there."""
    adjust: bool = False
    """Divide the cost of each run (its time per unit of work) by that of the reference in the same composition before cells are
    compared. This removes drift, and adds the noise of the reference; captions say so. For primary metrics that are rates or times.
    Changing it measures nothing again."""


class Requirement(FileModel):
    """What a composition has to reach before anything else is measured on it, such as a least rate of HPL or of a test of links.
    Where it does not, nothing is recorded of it. It is composed and tried again (`attempts`); the manifest has the reason."""

    workload: Name
    """One of the campaign's workloads. All its cells of a configuration have to pass; the first run of each is made first."""
    metric: AxisName = "throughput_per_s"
    """The number that counts."""
    at_least: float | None = None
    """Its least value; either this or `at_most`."""
    at_most: float | None = None
    """Its largest value, for latencies and times."""
    per_device: bool = False
    """The value is for each device of the run: 2 devices have to reach twice as much."""
    when: str | None = None
    """Predicate over the axes of the workload's cells, such as `device == 'a100-40gb'`. Default: all."""

    @model_validator(mode="after")
    def _one_limit(self) -> Requirement:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give either 'at_least' or 'at_most'")
        return self


class Protocol(FileModel):
    """How each cell is measured."""

    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 5
    """Warm-up steps, which are not timed."""
    warmup_steps_max: Annotated[int, Field(ge=20, le=1_000_000)] | None = None
    """Go on warming up, `warmup_steps` at a time (at least 4), until step times show no trend, but make no more warm-up steps than
    this. At least 5 such chunks are made. A run that reaches the maximum with a trend is measured and flagged. For `train` and
    `synthetic` workloads; other programs make their own warm-up. Default: every warm-up has `warmup_steps`."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Steps that are timed."""
    warmup_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Seconds that a warm-up lasts at least, its first step aside: more warm-up steps are made until then. For `train` workloads.
    Default: 5 on GPUs, so that clocks and temperatures settle; 0 on CPU devices."""
    measured_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Seconds that the timed steps of a run last together, at least: `measured_steps` is then the least number of steps, and more
    are counted from the steps of the warm-up, the same number on all ranks. For `train` workloads; other programs time the steps
    that they are told. Default: 5 on GPUs, since power and utilisation are sampled about once a second; 0 on CPU devices."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 3
    """Runs per cell, in all its compositions together; with `target_half_width_pct`, the maximum."""
    compositions: Annotated[int, Field(ge=1, le=999)] = 3
    """How often every configuration is composed. The runs of a cell take turns over its compositions: 5 runs in 3 compositions are
    2, 2 and 1. Differences between configurations need at least 2: with one composition each, a difference of two leases cannot be
    told from a difference of two configurations. Raising it repeats no measurement."""
    target_half_width_pct: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Stop repeating a cell in a composition when the half-width of the 95 % confidence interval of the mean throughput of its runs
    there is at most this percentage of the mean. Checking the interval after every run lowers its coverage: 90 to 95 % in
    simulations, depending on noise and target. A higher `repetitions_min` helps. Default: every cell is repeated equally often."""
    repetitions_min: Annotated[int, Field(ge=2, le=1000)] = 3
    """With `target_half_width_pct`: the minimum of repetitions, shared by the compositions (at least 2 in each). This many failed
    runs also end a cell."""
    seed: int = 1234
    """Seed of weights, data and the order of runs."""
    order: Literal["blocks", "sequential"] = "blocks"
    """Order of runs in a lease. `blocks`: every repetition is a block with all cells of the lease in random order, so that drift is
    not mistaken for an effect; `sequential`: all repetitions of a cell in a row."""
    lease_order: Literal["blocks", "random-blocks", "least-recomposition"] = "blocks"
    """Order of leases. `blocks`: the first composition of every configuration, then the second of every one, and so on, so that
    drift over the campaign is not mistaken for an effect. Within a block the order is random. `random-blocks`: the same.
    `least-recomposition`: in the order of the file; drift over the campaign cannot be told from differences between
    configurations."""
    lease_per: Literal["configuration", "workload", "cell"] = "configuration"
    """Cells that share one composition: all cells of a configuration, those of one workload on it, or a single cell."""
    isolation: Literal["machine", "host", "none"] | None = None
    """Leases that may be measured at the same time. `machine`: one; `host`: those on different hosts; `none`: as many as the pool
    allows. Default: `machine` if the system launches locally or is emulated, otherwise `host`. With
    `host`, trainings at the `pace` of an emulated system run side by side, two ranks a core; their runs report what they lost of
    the pace (`pace_lost_pct`)."""
    time_limit_s: Annotated[float, Field(gt=0)] = 900.0
    """A run that takes longer is stopped and recorded as `time_limit`."""
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None
    """A run whose processes use more memory than this on a host is stopped and recorded as `oom_host`."""
    skip_implied: bool = True
    """After a batch has run out of memory, larger batches of an otherwise equal cell are recorded as `implied` with a reference to
    that run, and not run. `false` runs them."""
    telemetry_s: Annotated[float, Field(ge=0.1, le=3600)] | None = 1.0
    """Seconds between two telemetry samples of devices and hosts during a run, longer where samples cost much; null: no
    telemetry."""
    reference: ReferenceMeasurement | None = None
    """A cell that is measured in every composition, to show drift over the campaign. Default: none."""
    links: LinkMeasurement = LinkMeasurement()
    """Measurement of the links of compositions."""
    require: tuple[Requirement, ...] = ()
    """What every composition has to reach before its cells are measured."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Attempts per lease when the fabric, the scheduler or a host fails. Failures of the workload are results and not retried."""
    compose_wait_s: Annotated[float, Field(ge=0)] = 600.0
    """How long to wait for devices that another lease holds."""


NO_VERSION = "none"
"""What names the runs that have no label of what was installed."""


class PrimaryMetric(FileModel):
    """The number of a run that figures, tables and comparisons are about."""

    name: AxisName
    """Name of a metric of the campaign's workloads, or a column of the runs table such as `step_median_s`."""
    unit: str | None = None
    """Unit for axes and captions. Default: as the end of the name says (`_us`: µs)."""
    better: Better | None = None
    """`higher` or `lower`. Default: as the workload file says, or the unit: rates are better higher, times and energies lower."""
    scaling: Scaling | None = None
    """How it scales with devices: `total_rate` (of all devices together), `rate_per_device`, `time_of_fixed_work` (the same work on
    any number of devices), `time_per_device_work` (as much work for each device), or `none`. Default: as the workload file says, or
    as is known of the name; otherwise nothing is said of its efficiency."""


class ReportLayout(FileModel):
    """Which figures the report shows, and in which order."""

    open: tuple[Name, ...] = ()
    """Figures that stand open under Answers, in this order, such as `[precision, scaling]`; the others are folded. Default: those
    that their files put there. `campaign figures --only` lists the names."""
    hide: tuple[Name, ...] = ()
    """Figures that the page leaves out."""

    @model_validator(mode="after")
    def _names_figures(self) -> ReportLayout:
        known = sorted(path.stem for path in (SCRIPTS / "figures").glob("[a-z]*.py"))
        for key, names in (("open", self.open), ("hide", self.hide)):
            for name in names:
                if name.replace("-", "_") not in known:
                    raise ValueError(f"'{key}' names no figure '{name}'; there are: {', '.join(known)}")
        if both := set(self.open) & set(self.hide):
            raise ValueError(f"'open' and 'hide' both name {', '.join(sorted(both))}; remove it from one")
        return self


class CampaignFile(FileModel):
    """A campaign: what is compared, on which system or systems, and how it is measured."""

    schema_version: Literal["campaign/1"] = "campaign/1"
    """Version of this format."""
    name: Name
    """Name of the campaign. Results are written to `results/<name>`."""
    title: str = ""
    """Title of the report."""
    question: str = ""
    """The question that the campaign answers, shown at the top of the report."""
    system: Name = ""
    """Name of a system file."""
    systems: tuple[Name, ...] = ()
    """Names of several system files, in place of `system`: `[faster, grace]`. Each shape is measured on every system that can hold
    it, and equally many devices of two systems are compared."""
    version: Annotated[Label, BeforeValidator(as_typed)] | None = None
    """Label of the installed driver, firmware or libraries, such as `driver-580`; no number with a point. It is part of every
    cell's identity: another label measures all cells again, and keeps what was measured. `--config version=LABEL` sets it for one
    invocation, `none` unsets it. Default: no label."""
    metric: PrimaryMetric | None = None
    """The primary metric, such as `{name: latency_us, better: lower}`. Default: `throughput_per_s`; of workloads that only print
    other numbers, the first of their `parsers`."""
    baseline: Name | dict[Name, Name] | None = None
    """Configuration that overheads refer to. Default: the largest local one. With several systems, one for each:
    `{faster: faster-1x4-fabric, grace: grace-1x4-local}`."""
    configurations: tuple[Shape, ...] = Field(min_length=1)
    """Requested hardware, by shape."""
    axes: Axes
    """The axes of the matrix."""
    zip: tuple[tuple[str, ...], ...] = ()
    """Axes whose lists advance together instead of being multiplied, such as `[workload, batch]`."""
    exclude: tuple[Exclusion, ...] = ()
    """Cells that are not measured."""
    overrides: tuple[Override, ...] = ()
    """Settings for some cells. Later entries win."""
    protocol: Protocol = Protocol()
    """How each cell is measured."""
    report: ReportLayout = ReportLayout()
    """Which figures the report shows, and in which order."""
    references: tuple[str, ...] = ()
    """Sets of published claims to compare with: `falcon`, `faster`, `bitfusion`, or paths of YAML files relative to this one."""
    imported: bool = False
    """Set by `campaign import`: the records come from logs, and nothing is measured."""

    @model_validator(mode="after")
    def _named_systems(self) -> CampaignFile:
        if self.version == NO_VERSION:
            raise ValueError(f"'version: {NO_VERSION}' stands for no label; remove the key")
        if self.system and self.systems:
            raise ValueError("'system' names one system, and 'systems' several; give one of the two keys")
        if not self.systems and "systems" in self.model_fields_set:
            raise ValueError("'systems' is empty; name system files, or one with the key 'system'")
        if len(set(self.systems)) < len(self.systems):
            raise ValueError(f"'systems' names a system twice; there are: {', '.join(sorted(set(self.systems)))}")
        return self

    @property
    def system_names(self) -> tuple[str, ...]:
        """The system, or all of them."""
        return self.systems or (self.system,)

    @property
    def baselines(self) -> dict[str, str]:
        """The configurations that overheads refer to, by system; by '' where it is not said of which."""
        return {"": self.baseline} if isinstance(self.baseline, str) else dict(self.baseline or {})

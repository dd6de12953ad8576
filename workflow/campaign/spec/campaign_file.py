"""Keys of a campaign file. The text under each key is its description in the reference page and in the JSON Schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.paths import find_figure_files
from campaign.spec.cell import Attach, Scalar, Storage
from campaign.spec.fields import AxisName, Count, FileModel, Label, Name, OneOrMore, Precision, check_label_spelling
from campaign.spec.metric import Better, Scaling


class Shape(FileModel):
    """Shape of the requested hardware. Lists expand to one configuration per combination of their values, or per `zip` step."""

    name: Name | None = None
    """Name of the configuration, for a single shape without lists. Default: a name made from the shape, such as `2x2-fabric`. If
    the campaign has several systems and `system` does not name one, the name begins with that of the system: `grace-2x2-local`."""
    system: OneOrMore[Name] | None = None
    """Systems that the shape is for, if the campaign has several. Default: every system with enough devices. The plan lists the
    systems that are left out."""
    hosts: OneOrMore[Count] = (1,)
    """Number of hosts. All hosts have the same devices."""
    devices_per_host: OneOrMore[Count] = (1,)
    """Number of devices attached to each host."""
    devices_used: OneOrMore[Count | Literal["all"]] = ("all",)
    """Number of devices per host that a run uses. A number below `devices_per_host` measures a part of each host; local devices are
    used first."""
    device: OneOrMore[Name] | None = None
    """Device model. Default: the model of the system, if it has only one."""
    attach: OneOrMore[Attach] = ("local",)
    """Attachment of the devices. `local`: devices built into the hosts; `fabric`: devices from the pool; `hybrid`: both.
    `fabric-p2p` and `hybrid-p2p` turn on peer-to-peer transfers between the pooled devices of a host through the fabric. Without
    `-p2p`, these are turned off, if the control plane can set this."""
    local_devices_per_host: OneOrMore[Annotated[int, Field(ge=0, le=4096)]] | None = None
    """Number of the `devices_per_host` that are built into the host, with `hybrid` or `hybrid-p2p`. Default: half of them."""
    storage: OneOrMore[Storage] = ("local",)
    """Storage that runs use. `local`: the disk of the host; `nvme`: an NVMe drive built into the host; `fabric-nvme`: a drive
    attached from the pool."""
    zip: tuple[tuple[str, ...], ...] = ()
    """Groups of keys whose lists advance together instead of being multiplied, such as `[hosts, devices_per_host]`."""


class Axes(FileModel):
    """Axes of the matrix. Every combination of the listed values is a cell."""

    configuration: OneOrMore[Name] | None = None
    """Names of the configurations to measure. Default: all declared configurations."""
    workload: OneOrMore[Name]
    """Names of workload files."""
    batch: OneOrMore[Count] = (1,)
    """Samples per device and step. The global batch is this number times the number of ranks. Cells of services have batch 1."""
    precision: OneOrMore[Precision] = ("fp32",)
    """Number format of the arithmetic."""
    options: dict[AxisName, OneOrMore[Scalar]] = Field(default_factory=dict)
    """Further axes. Each must be an option of every workload in the campaign."""


class AxesOverride(FileModel):
    """Axis values that replace those of the campaign."""

    batch: OneOrMore[Count] | None = None
    """Batches for these cells."""
    precision: OneOrMore[Precision] | None = None
    """Precisions for these cells."""


class Override(FileModel):
    """Settings for the cells that a predicate selects."""

    when: str
    """Predicate over the axes. With `axes`, it may use only the workload and the shape of the configuration."""
    axes: AxesOverride | None = None
    """Axis values that replace those of the campaign for these cells."""
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Replaces `protocol.warmup_steps`."""
    warmup_steps_max: Annotated[int, Field(ge=20, le=1_000_000)] | None = None
    """Replaces `protocol.warmup_steps_max`."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Replaces `protocol.measured_steps`."""
    warmup_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Replaces `protocol.warmup_min_s`."""
    measured_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Replaces `protocol.measured_min_s`."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Replaces `protocol.repetitions`."""
    compositions: Annotated[int, Field(ge=1, le=999)] | None = None
    """Replaces `protocol.compositions`."""
    target_half_width_pct: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Replaces `protocol.target_half_width_pct`."""
    repetitions_min: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Replaces `protocol.repetitions_min`."""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Replaces `protocol.time_limit_s`."""


class Exclusion(FileModel):
    """Cells that are not measured, with the reason."""

    when: str
    """Predicate over the axes, such as `precision == 'tf32' and device == 'p100'`."""
    why: str
    """Reason, shown in the plan and in the report."""


class LinkMeasurement(FileModel):
    """Stage that measures the links of a composition.

    It measures bandwidth and latency between all devices and to their hosts, and all-reduce by message size.
    """

    when: tuple[Literal["before", "after"], ...] | None = None
    """Time of the stage: before the runs of a composition, after them, or both. `[]` turns the stage off. Default: before, if the
    campaign has a `train` workload, because the stage needs PyTorch; otherwise off."""
    compositions: Literal["first", "all"] = "first"
    """Compositions of a configuration whose links are measured: the first one or all. The stage takes as long as several runs."""
    sizes_bytes: OneOrMore[Annotated[int, Field(ge=8, le=2**30)]] | None = None
    """Message sizes in bytes, each rounded down to whole fp32 numbers. The smallest size gives the latency, the largest the
    bandwidth. Default: 8 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB and 64 MiB, and 256 MiB as well between GPUs."""
    repeats: Annotated[int, Field(ge=3, le=1000)] = 5
    """Timed repeats per message size. The result is their median."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    """Untimed warm-up repeats per message size."""
    budget_s: Annotated[float, Field(gt=0)] = 30.0
    """Time limit of the stage in seconds. Sizes that do not fit into it are left out and reported."""
    tools: OneOrMore[Literal["torch", "p2pBandwidthLatencyTest", "nvbandwidth", "nccl-tests", "osu"]] = ("torch",)
    """Benchmark programs: the built-in `torch`, or programs installed on the hosts. Missing programs are reported."""
    tolerance_pct: Annotated[float, Field(gt=0, lt=100)] = 25.0
    """Tolerance in percent. A link that is slower than expected for its type by more than this is flagged in every record of the
    composition."""

    def get_message_sizes(self, runs_on: AcceleratorKind) -> tuple[int, ...]:
        """Return the message sizes in bytes for this kind of device."""
        # CPU caches are smaller than 64 MiB. GPUs need larger messages to reach their full bandwidth.
        return self.sizes_bytes or (8, 4096, 65536, 2**20, 2**24, 2**26, *([] if runs_on == "cpu" else [2**28]))


class ReferenceMeasurement(FileModel):
    """Reference cell, measured in every composition on the first device of the first host.

    It shows whether the system drifts during the campaign. Figures of the matrix do not contain its runs.
    """

    workload: Name
    """One of the campaign's workloads, preferably a short one."""
    batch: Count = 1
    """Samples per step."""
    precision: Precision = "fp32"
    """Number format of the arithmetic."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options of the workload that differ from its file."""
    repetitions: Annotated[int, Field(ge=1, le=99)] = 2
    """Runs per composition, spread evenly over its duration. With 2, they are the first and the last run of the composition."""
    adjust: bool = False
    """Divide the cost of each run (its time per unit of work) by the cost of the reference in the same composition before cells are
    compared. This removes drift but adds the noise of the reference, as captions state. It requires a primary metric that is a rate
    or a time. Changing this key repeats no measurement."""


class Requirement(FileModel):
    """Requirement that every composition must meet before its cells are measured, such as a minimum HPL rate.

    If a composition does not meet it, nothing is recorded on it, and the lease is composed again (`attempts`). The manifest states
    the reason.
    """

    workload: Name
    """One of the campaign's workloads. All its cells on the configuration must pass. Their first runs are the first runs of the
    composition."""
    metric: AxisName = "throughput_per_s"
    """Metric that is checked."""
    at_least: float | None = None
    """Minimum of the metric. Give either this or `at_most`."""
    at_most: float | None = None
    """Maximum of the metric, for latencies and times."""
    per_device: bool = False
    """Apply the limit per device of the run, so that 2 devices must reach twice the value."""
    when: str | None = None
    """Predicate that selects cells of the workload, such as `device == 'a100-40gb'`. Default: all its cells."""

    @model_validator(mode="after")
    def _check_limits(self) -> Requirement:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("either 'at_least' or 'at_most' is required, and not both")
        return self


class Protocol(FileModel):
    """Protocol by which each cell is measured."""

    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 5
    """Warm-up steps, which are not timed."""
    warmup_steps_max: Annotated[int, Field(ge=20, le=1_000_000)] | None = None
    """Maximum number of warm-up steps. The warm-up continues in chunks of `warmup_steps` (at least 4 steps each, at least 5 chunks)
    until step times show no trend. A run that reaches the maximum with a trend is measured and flagged. This applies to `train` and
    `synthetic` workloads, because other programs do their own warm-up. Default: every warm-up has exactly `warmup_steps`."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Timed steps per run."""
    warmup_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Minimum duration of the warm-up in seconds, without its first step. Further warm-up steps are added until it is reached. For
    `train` workloads. Default: 5 on GPUs, so that clocks and temperatures settle, and 0 on CPU devices."""
    measured_min_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Minimum total duration of the timed steps of a run in seconds. The number of steps is computed from the step times of the
    warm-up. It is the same on all ranks and at least `measured_steps`. For `train` workloads; other programs time the requested
    number of steps. Default: 5 on GPUs, because power and utilisation are sampled about once a second, and 0 on CPU devices."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 3
    """Runs per cell over all its compositions. With `target_half_width_pct`, this is the maximum."""
    compositions: Annotated[int, Field(ge=1, le=999)] = 3
    """Number of times that each configuration is composed. The runs of a cell are distributed over its compositions in turn: 5
    runs in 3 compositions become 2, 2 and 1. Comparisons between configurations need at least 2 compositions. With one each, a
    difference between leases looks like a difference between configurations. Raising this number repeats no measurement."""
    target_half_width_pct: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Target for the half-width of the 95 % confidence interval of a cell's mean throughput, in percent of the mean. A cell is not
    repeated further in a composition once its runs there reach the target. Checking the interval after every run lowers its
    coverage to 90 to 95 % in simulations, depending on noise and target. A higher `repetitions_min` helps. Default: every cell has
    the same number of repetitions."""
    repetitions_min: Annotated[int, Field(ge=2, le=1000)] = 3
    """Minimum number of repetitions with `target_half_width_pct`, distributed over the compositions (at least 2 in each). A cell
    also ends after this many failed runs."""
    seed: int = 1234
    """Seed for weights, data and the order of runs."""
    order: Literal["blocks", "sequential"] = "blocks"
    """Order of runs in a lease. `blocks`: every repetition is a block with all cells of the lease in random order, so that drift
    does not look like an effect; `sequential`: all repetitions of a cell follow each other."""
    lease_order: Literal["blocks", "random-blocks", "least-recomposition"] = "blocks"
    """Order of leases. `blocks`: all configurations are composed once in random order, then all of them a second time, and so on,
    so that drift over the campaign does not look like an effect. `random-blocks`: the same as `blocks`. `least-recomposition`: the
    order of the file, in which drift over the campaign can look like a difference between configurations."""
    lease_per: Literal["configuration", "workload", "cell"] = "configuration"
    """Cells that share one composition: all cells of a configuration, all cells of one workload on it, or a single cell."""
    isolation: Literal["machine", "host", "none"] | None = None
    """Leases that may be measured at the same time. `machine`: one; `host`: leases on different hosts; `none`: as many as the pool
    allows. Default: `machine` if the system launches locally or is emulated, otherwise `host`. With `host`, training at the `pace`
    of an emulated system runs side by side with three ranks per core, and each run reports the pace that it lost
    (`pace_lost_pct`)."""
    time_limit_s: Annotated[float, Field(gt=0)] = 900.0
    """Time limit of a run in seconds. A run that takes longer is stopped and recorded as `time_limit`."""
    memory_limit_mib: Annotated[int, Field(ge=1)] | None = None
    """Memory limit of a run's processes per host in MiB. A run that exceeds it is stopped and recorded as `oom_host`."""
    skip_implied: bool = True
    """Skip larger batches of an otherwise equal cell after a batch has run out of memory. They are recorded as `implied` with a
    reference to that run. `false` runs them."""
    telemetry_s: Annotated[float, Field(ge=0.1, le=3600)] | None = 1.0
    """Seconds between two telemetry samples of devices and hosts during a run. The interval grows if sampling is expensive. `null`
    turns telemetry off, except for the load of the hosts."""
    reference: ReferenceMeasurement | None = None
    """Reference cell that is measured in every composition to show drift over the campaign. Default: none."""
    links: LinkMeasurement = LinkMeasurement()
    """Measurement of the links of compositions."""
    require: tuple[Requirement, ...] = ()
    """Requirements that every composition must meet before its cells are measured."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Attempts per lease if the fabric, the scheduler or a host fails, and per run if something outside disturbs it. Failures of
    the workload are results and are not retried."""
    compose_wait_s: Annotated[float, Field(ge=0)] = 600.0
    """Maximum wait in seconds for devices that another lease holds."""


NO_VERSION = "none"
"""Version label that selects the runs without a label."""


class PrimaryMetric(FileModel):
    """Metric of a run that figures, tables and comparisons show."""

    name: AxisName
    """Name of a metric of the campaign's workloads, or a column of the runs table such as `step_median_s`."""
    unit: str | None = None
    """Unit for axes and captions. Default: derived from the end of the name (`_us` is µs)."""
    better: Better | None = None
    """Better direction: `higher` or `lower`. Default: the direction in the workload file, or that of the unit. Higher is better for
    rates, and lower for times and energies."""
    scaling: Scaling | None = None
    """Scaling with the number of devices: `total_rate` (of all devices together), `rate_per_device`, `time_of_fixed_work` (the
    same work on any number of devices), `time_per_device_work` (the same work per device), or `none`. Default: the scaling in the
    workload file, or that of a known name. Without either, no efficiency is computed."""


class ReportLayout(FileModel):
    """Selection and order of the figures in the report."""

    open: tuple[Name, ...] = ()
    """Figures that are unfolded under Answers, in this order, such as `[precision, scaling]`. All other figures are folded.
    Default: the figures that are placed there by their own files. `campaign figures --only` lists the names."""
    hide: tuple[Name, ...] = ()
    """Figures that are left out of the report."""

    @model_validator(mode="after")
    def _check_figure_names(self) -> ReportLayout:
        figure_names = list(find_figure_files())
        for key, names in (("open", self.open), ("hide", self.hide)):
            for name in names:
                if name.replace("-", "_") not in figure_names:
                    raise ValueError(f"'{key}' has an unknown figure '{name}'; there are: {', '.join(figure_names)}")
        if repeated_names := set(self.open) & set(self.hide):
            raise ValueError(
                f"'open' and 'hide' both have {', '.join(sorted(repeated_names))}; remove it from one of them"
            )
        return self


class CampaignFile(FileModel):
    """Campaign: the comparison, its systems, and the measurement protocol."""

    schema_version: Literal["campaign/1"] = "campaign/1"
    """Version of this format."""
    name: Name
    """Name of the campaign. Results are written to `results/<name>`."""
    title: str = ""
    """Title of the report."""
    question: str = ""
    """Question that the campaign answers, shown at the top of the report."""
    system: Name = ""
    """Name of a system file."""
    systems: tuple[Name, ...] = ()
    """Names of several system files, instead of `system`, such as `[faster, grace]`. Each shape is measured on every system with
    enough devices. Configurations of two systems with equal numbers of devices are compared."""
    version: Annotated[Label, BeforeValidator(check_label_spelling)] | None = None
    """Label of the installed driver, firmware or libraries, such as `driver-580`. It cannot be a decimal number. The label is part
    of every cell's identity: a new label measures all cells again and keeps the earlier runs. `--config version=LABEL` sets it for
    one invocation, and `none` removes it. Default: no label."""
    metric: PrimaryMetric | None = None
    """Primary metric, such as `{name: latency_us, better: lower}`. Default: `throughput_per_s`, or the first of the `parsers` if
    the workloads print only other metrics."""
    baseline: Name | dict[Name, Name] | None = None
    """Configuration to which overheads refer. With several systems, one per system: `{faster: faster-1x4-fabric, grace:
    grace-1x4-local}`. Default: the largest local configuration."""
    configurations: tuple[Shape, ...] = Field(min_length=1)
    """Shapes of the requested hardware."""
    axes: Axes
    """Axes of the matrix."""
    zip: tuple[tuple[str, ...], ...] = ()
    """Groups of axes whose lists advance together instead of being multiplied, such as `[workload, batch]`."""
    exclude: tuple[Exclusion, ...] = ()
    """Cells that are not measured."""
    overrides: tuple[Override, ...] = ()
    """Settings for some of the cells. Later entries take precedence."""
    protocol: Protocol = Protocol()
    """Protocol by which each cell is measured."""
    report: ReportLayout = ReportLayout()
    """Selection and order of the figures in the report."""
    references: tuple[str, ...] = ()
    """Sets of published claims to compare with: `falcon`, `faster`, `bitfusion`, or paths of YAML files relative to this file."""
    imported: bool = False
    """True in files written by `campaign import`: the records come from logs, and nothing is measured."""

    @model_validator(mode="after")
    def _check_systems(self) -> CampaignFile:
        if self.version == NO_VERSION:
            raise ValueError(f"'version: {NO_VERSION}' means that there is no label; remove the key")
        if self.system and self.systems:
            raise ValueError("'system' and 'systems' exclude each other; remove one of them")
        if not self.systems and "systems" in self.model_fields_set:
            raise ValueError("'systems' is empty; add names of system files, or use the key 'system' for a single one")
        if len(set(self.systems)) < len(self.systems):
            raise ValueError(
                f"'systems' has a system twice; remove the duplicate (distinct names: {', '.join(sorted(set(self.systems)))})"
            )
        return self

    @property
    def system_names(self) -> tuple[str, ...]:
        """Names of all systems of the campaign."""
        return self.systems or (self.system,)

    @property
    def baselines(self) -> dict[str, str]:
        """Configurations to which overheads refer, by system. The key is '' if the file names no system."""
        return {"": self.baseline} if isinstance(self.baseline, str) else dict(self.baseline or {})

"""Base class of workloads, and the records of a run: its input (`Run`), its process (`Step`), its end and its outcome."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind, find_fallback
from campaign.spec.cell import Cell, Scalar
from campaign.spec.fields import AxisName, FileModel, InputFiles, Name, Precision
from campaign.spec.hardware import Composition, Device
from campaign.spec.metric import Better, Scaling
from campaign.spec.record import Failure, Status
from campaign.workloads.command_template import WORKLOAD_DIR_PREFIX
from campaign.workloads.failures import classify_failure
from campaign.workloads.log_reader import Log

if TYPE_CHECKING:  # a plan reads no logs
    from campaign.workloads.parsers.expressions import Parser
    from campaign.workloads.parsers.reading import LogReading

CPU_FALLBACK_REASON = "the framework reports that the CPU did work instead of the"


@dataclass(frozen=True)
class RunStorage:
    """Directory on the kind of storage that a configuration selects.

    Attributes:
        path: the directory.
        gb_per_s: maximum read rate per host (GB/s) if the storage is emulated; None otherwise.
    """

    path: Path
    gb_per_s: float | None = None


@dataclass(frozen=True)
class Run:
    """One run that is about to be launched.

    Attributes:
        directory: working directory used only by this run, empty at the start.
        runs_on: kind of the devices.
        storage: storage that the configuration selects, or None if the system file does not state its location.
        peak_tflops: peak rate of a device in the cell's precision, in TFLOP/s.
        launcher: launcher that starts the run.
        files: paths of the input files by their names in the workload file.
        pace: rates of emulated devices (GFLOP/s) in the cell's precision, by device model.
        workload_dir: directory of the workload file.
        is_saved_log: true if only the log of an earlier run is available.
    """

    cell: Cell
    repetition: int
    composition: Composition
    directory: Path
    runs_on: AcceleratorKind
    storage: RunStorage | None = None
    peak_tflops: float | None = None
    launcher: Literal["local", "slurm"] = "local"
    files: Mapping[str, str] = field(default_factory=dict)
    pace: Mapping[str, float] = field(default_factory=dict)
    workload_dir: str = ""
    is_saved_log: bool = False

    @property
    def ranks_by_host(self) -> Mapping[str, int]:
        """Number of ranks (one per device) that the run uses on each host, by host name."""
        configuration = self.cell.configuration
        return {host.name: configuration.devices_used for host in self.composition.hosts[: configuration.hosts]}

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that the run uses, in rank order.

        These are the first devices of each host. Local devices come before devices of the pool.
        """
        counts = self.ranks_by_host
        return tuple(
            device for host in self.composition.hosts for device in host.ordered_devices[: counts.get(host.name, 0)]
        )


@dataclass(frozen=True)
class Step:
    """Command that a launcher starts, as one process or as one process per rank.

    Attributes:
        preload: package whose `forkserver` forks the ranks. A launcher that cannot use it starts `argv` instead.
        takes_devices: false for a program that only emulates devices and is given none.
        srun: additional arguments if srun starts the ranks.
        program_at: index in `argv` of the program that a wrapper starts; None if there is no wrapper.
        wrapped_ranks: total number of ranks that the wrappers of the step start.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ranks_by_host: Mapping[str, int]
    per_rank: bool = True
    preload: str | None = None
    takes_devices: bool = True
    srun: tuple[str, ...] = ()
    program_at: int | None = None
    wrapped_ranks: int = 1

    @property
    def rank_locations(self) -> list[tuple[str, int]]:
        """Host and local rank of every rank, in rank order."""
        return [(host, number) for host, count in self.ranks_by_host.items() for number in range(count)]

    @property
    def process_count(self) -> int:
        """Number of processes that the launcher itself starts."""
        return len(self.rank_locations) if self.per_rank else 1


@dataclass(frozen=True)
class StepEnd:
    """Information on how a step ended.

    Attributes:
        codes: exit codes by rank, or that of the single process; negative after a signal, None if the process never ended by
            itself.
        started: start of the step in Unix seconds.
        ended: end of the step in Unix seconds.
        exit_hang: ranks that hung while exiting.
        flags: remarks on the launch that readers of the results should see.
        memory_kills: number of processes that the kernel killed during the step for lack of memory.
        disturbance: description of an outside event that made the measured times unusable; empty if there was none.
        has_exit_codes: true if the codes were observed; false if they are assumed, as for a saved log.
    """

    codes: tuple[int | None, ...]
    started: float
    ended: float
    timed_out: bool = False
    memory_limit_hit: bool = False
    exit_hang: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
    memory_kills: int = 0
    disturbance: str = ""
    has_exit_codes: bool = True

    def failure_outcome(self, log: Log) -> Outcome | None:
        """Return the outcome of a run that failed, or None if the step ended without a failure.

        The cause is determined from the limits, the exit codes and the log.
        """
        cause = classify_failure(
            log,
            self.codes,
            timed_out=self.timed_out,
            killed_by_launcher=self.timed_out or self.memory_limit_hit,
            memory_limit_hit=self.memory_limit_hit,
            memory_kills=self.memory_kills,
        )
        return Outcome(*cause) if cause else None


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run. Rates are per second, for all ranks together.

    Attributes:
        warmup_steps: number of warm-up steps that were done.
        steady: start and end (Unix seconds, by the hosts' clocks) of the period in which all ranks were measured; None if unknown.
        ran_on: devices of the run, see `Record`.
        in_force: settings in force, see `Record`.
    """

    status: Status
    failure: Failure | None = None
    throughput_per_s: float | None = None
    step_times_s: tuple[tuple[float, ...], ...] = ()
    warmup_steps: int | None = None
    window_s: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    numa: tuple[str, ...] = ()
    steady: tuple[float, float] | None = None
    flags: tuple[str, ...] = ()
    ran_on: tuple[str, ...] = ()
    in_force: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidationContext:
    """Properties of the campaign that a workload file is validated against.

    Attributes:
        format_location: function that formats the location of a key of the workload file for messages.
        format_axis_location: function that formats the location of an option axis of the campaign for messages.
        system: name of the system.
        launcher: launcher of the system.
    """

    format_location: Callable[..., str]
    format_axis_location: Callable[..., str]
    axes: Mapping[str, Sequence[Scalar]]
    """Values of those options that are axes of the campaign, by option."""
    system: str
    launcher: Literal["local", "slurm"]


class ReferenceTable(NamedTuple):
    """Table on the reference page of a kind of workload."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class MetricProperties(FileModel):
    """Properties of a metric that its name does not determine."""

    unit: str | None = None
    """Unit for axes and captions."""
    better: Better | None = None
    """Better direction: `higher` or `lower`."""
    scaling: Scaling | None = None
    """Scaling with the number of devices: `total_rate` (of all devices together), `rate_per_device`, `time_of_fixed_work` (the same
    work on any number of devices), `time_per_device_work` (the same work for each device), or `none`. The default is known for
    throughput, step times and the metrics of built-in parsers; for other metrics, no efficiency is reported."""


class Workload(FileModel):
    """Base class of all kinds of workloads. Its fields are the keys of the YAML file.

    A kind defines `introduction`, `example`, `kind: Literal[...]`, `step` and `read`; everything else has a default. The docstring
    of a field is its description in the reference and in the JSON Schema. A key with its default value is not part of a cell's
    identity, so a default can never change.
    """

    introduction: ClassVar[str] = ""
    """Markdown for the reference."""
    example: ClassVar[str] = ""
    """A YAML file of this kind that runs on a CPU in a few seconds."""
    needs_torch: ClassVar[bool] = False
    """True if runs use PyTorch, so that links can be measured with it, too."""
    extends_warmup: ClassVar[bool] = False
    """True if runs extend their warm-up until they are steady (`warmup_steps_max`)."""
    supports_min_durations: ClassVar[bool] = False
    """True if runs support minimum durations (`warmup_min_s`, `measured_min_s`)."""
    serves_requests: ClassVar[bool] = False
    """True if runs consist of requests instead of steps. The batch of a cell is then 1."""
    parsing_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that determine only how stored logs are parsed, not what is run."""
    rate_unit: ClassVar[str] = "samples/s"
    """Unit of `throughput_per_s`."""

    schema_version: Literal["workload/1"] = "workload/1"
    """Version of this format."""
    name: Name
    """Name of the workload, which must equal the name of the file."""
    description: str = ""
    """Description for the report."""
    precisions: tuple[Precision, ...] = Field(min_length=1)
    """Supported precisions. The plan excludes cells with other precisions."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options with their default values. A campaign may vary them under `axes.options`."""
    metrics: dict[AxisName, MetricProperties] = Field(default_factory=dict)
    """Unit, better direction and scaling of metrics whose names do not determine them, such as `score: {better: higher}`."""
    inputs: InputFiles | None = None
    """Files whose content is part of a cell's identity, so that cells are measured again after an edit. Paths are relative to the
    workload file or the project; `{name}` is replaced by an option. Default: the scripts in the command line of a `command`
    workload. `[]`: no files. `{train.py: v3}`: the version replaces the content; with null, the content counts. If the version is
    the SHA-256 of an earlier content, the measurements with that content stay valid."""
    run_s: Annotated[float, Field(gt=0)] | None = None
    """Expected duration of a run in seconds, for plans before a similar run was measured. Default: unknown."""
    kind: str
    """Kind of the workload."""

    @classmethod
    def reference_tables(cls) -> Iterable[ReferenceTable]:
        """Return the tables for the reference page of this kind of workload."""
        return ()

    @property
    def variable_options(self) -> Collection[str]:
        """Names of the options that may be axes of a campaign."""
        return self.options

    @property
    def starts_single_process(self) -> bool:
        """True if a single program is started for all devices of a run, false if there is one per device."""
        return False

    @property
    def needs_slurm(self) -> bool:
        """True if only Slurm can start the workload."""
        return False

    @property
    def reads_log(self) -> bool:
        """True if the results are read from the printed output, so that a saved log is enough to read them."""
        return False

    @property
    def log_parser(self) -> str | None:
        """Name of the built-in parser that reads the log, or None."""
        return None

    @property
    def custom_parsers(self) -> Sequence[Parser]:
        """Expression parsers defined in the workload file, which read the log."""
        return ()

    @property
    def log_test(self) -> int | Literal["last"] | None:
        """Test in the log that counts (its number from 1, or 'last'), or None if the workload file selects none."""
        return None

    def parse_tests(self, log: Log) -> Sequence[LogReading]:
        """Parse all tests in a log with the built-in parser, and return one reading per test.

        If the workload file selects a test, only its reading is returned.
        """
        return ()

    def with_test(self, test_number: int) -> Self:
        """Return a copy of the workload that reads only the test with this number (from 1) from its logs."""
        return self

    @property
    def runs_in_container(self) -> bool:
        """True if the programs run in a container image, and therefore see the image's files."""
        return False

    def input_names(self) -> Sequence[str]:
        """Return the names of the input files, in which names of options may appear in braces.

        If `inputs` is None, these are the words of the command that may be names of scripts.
        """
        return tuple(self.inputs or ())

    def find_input_version(self, input_name: str) -> str | None:
        """Return the version that stands for the content of an input file in a cell's identity.

        Returns None if the content itself is part of the identity.

        Args:
            input_name: name of the input file, with its options filled in.
        """
        versions = self.inputs if isinstance(self.inputs, Mapping) else {}
        patterns = {
            word: ".*".join(map(re.escape, re.split(r"\{[^}]*\}", word.removeprefix(WORKLOAD_DIR_PREFIX))))
            for word in versions
        }
        return next((versions[word] for word, pattern in patterns.items() if re.fullmatch(pattern, input_name)), None)

    def script_names(self) -> Sequence[str]:
        """Return those `input_names` that count as scripts only if a file of that name exists before the run starts.

        The list is empty if the workload file has the key `inputs`.
        """
        return ()

    @property
    def reported_metrics(self) -> Sequence[str] | None:
        """Names of all metrics that the workload can report, or None if they are not known beforehand."""
        return None

    def list_columns(self) -> Mapping[str, Any]:
        """Return the columns of this workload in `campaign workload list`: model or program, parameters, launch, parser."""
        return {}

    def problems(self, context: ValidationContext) -> Iterable[str]:
        """Yield an error message for each inconsistency within the workload file, or between it and the campaign or system.

        Args:
            context: axes, system and launcher that the workload is validated against.
        """
        return ()

    def identity_document(self) -> dict[str, Any]:
        """Return those keys of the workload file that are part of the identity of a cell.

        Options are not included, because the identity contains them separately, with the values of the cell.
        """
        # Descriptive texts and the list of possible precisions may change without a new measurement.
        # A key at its default is left out, so a key that a later version adds does not change earlier identities.
        excluded_keys = {"description", "precisions", "schema_version", "options", "metrics", "inputs", "run_s"}
        return self.model_dump(mode="json", exclude=excluded_keys, exclude_defaults=True)

    def run_identity_document(self) -> dict[str, Any]:
        """Return the part of the identity document that determines how runs are executed, without keys on log parsing."""
        return {key: value for key, value in self.identity_document().items() if key not in self.parsing_keys}

    def parsing_document(self) -> dict[str, Any]:
        """Return those keys of the workload file that only determine how logs are parsed."""
        return self.model_dump(mode="json", include=set(self.parsing_keys), exclude_defaults=True)

    def select_identity_options(self, options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Select the options of a cell that are part of its identity.

        Args:
            options: options of the workload file, overridden by those of the cell.
        """
        return options

    def reads_storage(self, options: Mapping[str, Scalar]) -> bool:
        """Return whether runs with these options read from the storage that the configuration selects."""
        return False

    def missing_requirements(self, kinds: Collection[AcceleratorKind] = ()) -> str | None:
        """Return a message that states which requirements for these kinds of devices are not met, and the remedy.

        Returns None if this machine meets all requirements.
        """
        return None

    def software_document(self, options: Mapping[str, Scalar], cache: Path) -> dict[str, Any] | None:
        """Describe the software environment of runs with these options. Returns None if they use the host's software.

        Raises LaunchError if the environment does not exist.

        Args:
            options: options of a cell.
            cache: directory in which results that are expensive to compute are cached.
        """
        return None

    def find_program_mismatch(self, reading: LogReading, options: Mapping[str, Scalar]) -> str:
        """Explain why a reading seems to be from a program that runs with these options do not start.

        Returns an empty string if nothing suggests that.
        """
        return ""

    def explain_missing_values(self, log: Log) -> Sequence[str]:
        """Return possible reasons why the log of an incomplete run contains no results."""
        return ()

    def unsupported_reason(self, cell: Cell, runs_on: AcceleratorKind) -> str | None:
        """Return the reason why a cell can never run on this kind of device, or None if it can.

        A cell that cannot run gets the status `unsupported`.
        """
        return None

    @abstractmethod
    def step(self, run: Run) -> Step:
        """Build the step that measures a run. The method may write files that the step needs into `run.directory`."""

    def preparation_steps(self, run: Run) -> Sequence[Step]:
        """Return the steps that prepare a run, to be executed before the measuring step.

        If one of them fails, the run has no result and is repeated.
        """
        return ()

    def cleanup_steps(self, run: Run) -> Sequence[Step]:
        """Return the steps that clean up after a run, to be executed however the measuring step ended.

        If one of them fails, the run is flagged.
        """
        return ()

    def result_file(self, run: Run) -> str | None:
        """Return the name of a file in the run's directory that is read in addition to the program's output, or None.

        The name may contain wildcards.
        """
        return None

    def judge_run(self, run: Run, step_end: StepEnd, log: Log) -> Outcome:
        """Determine the outcome of a run with `read`, and check its plausibility.

        The outcome becomes `invalid` if the CPU did work instead of a device, or if the rate is not positive.
        """
        outcome = self.read(run, step_end, log)
        if outcome.status == "ok" and (line := find_fallback(ACCELERATORS[run.runs_on], log.read_lines)):
            failure = Failure(reason=f"{CPU_FALLBACK_REASON} {ACCELERATORS[run.runs_on].title}", evidence=line[:500])
            return replace(outcome, status="invalid", failure=failure)
        rate = outcome.throughput_per_s
        if outcome.status != "ok" or rate is None or rate > 0:
            return outcome
        failure = Failure(reason=f"throughput_per_s is {rate:g}; it must be positive", evidence=log.read_tail())
        return replace(outcome, status="invalid", failure=failure)

    @abstractmethod
    def read(self, run: Run, step_end: StepEnd, log: Log) -> Outcome:
        """Determine the outcome of a run from its end and its log. A failed workload is an outcome, not an exception."""

"""What every kind of workload has: its file, the step that measures one run, and what is read from the run's remains."""

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
from campaign.workloads.command_template import BESIDE
from campaign.workloads.failures import classify
from campaign.workloads.log_reader import Log

if TYPE_CHECKING:  # a plan reads no logs
    from campaign.workloads.parsers.expressions import Parser
    from campaign.workloads.parsers.reading import LogReading

FELL_BACK = "the framework reports that the CPU did work of the"


@dataclass(frozen=True)
class RunStorage:
    """A directory on the configuration's kind of storage; gb_per_s: what a host reads from it at most, where emulated."""

    path: Path
    gb_per_s: float | None = None


@dataclass(frozen=True)
class Run:
    """One run about to be launched. `directory` is the run's own and empty; `runs_on`: what the devices are.

    storage: of the configuration's kind, where the system file says where that is; peak_tflops: of a device in the cell's
    precision; launcher: who starts it; files: paths of its input files, by their name in the workload's file; pace: GFLOP/s of
    emulated devices in the cell's precision, by model; workload_dir: where the workload's file stands. saved: only its log was
    kept.
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
    saved: bool = False

    @property
    def ranks_by_host(self) -> Mapping[str, int]:
        """How many of each host's devices the run uses, one rank each."""
        wanted = self.cell.configuration
        return {host.name: wanted.devices_used for host in self.composition.hosts[: wanted.hosts]}

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the run uses, by rank: the first ones of each host, its own before those of the pool."""
        counts = self.ranks_by_host
        return tuple(d for host in self.composition.hosts for d in host.in_order[: counts.get(host.name, 0)])


@dataclass(frozen=True)
class Step:
    """What a launcher starts: one process, or one a rank.

    preload: a package whose `forkserver` forks ranks; a launcher that cannot use it starts `argv`. takes_devices: False for a
    program that only stands for devices, and is given nothing for them; srun: further words for an srun that starts the ranks;
    program_at: where the program stands in `argv` behind a wrapper that starts it, None without one; wrapped_ranks: how often the
    wrappers of the step start it altogether.
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
    def ranks(self) -> list[tuple[str, int]]:
        """The host of each rank, and its number there."""
        return [(host, number) for host, count in self.ranks_by_host.items() for number in range(count)]

    @property
    def processes(self) -> int:
        return len(self.ranks) if self.per_rank else 1


@dataclass(frozen=True)
class Ended:
    """How a step ended. codes: by rank (or of the one process), negative for a signal, None when it never ended by itself.

    flags: what a reader of the run's numbers should know of how it was launched. memory_kills: processes that the kernel has killed
    meanwhile for want of memory; disturbed: what from outside has made its times worthless, in words, empty for nothing.
    known: whether the codes are those of the step, and not assumed of a log that was found.
    """

    codes: tuple[int | None, ...]
    started: float
    ended: float
    timed_out: bool = False
    memory_limit_hit: bool = False
    exit_hang: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
    memory_kills: int = 0
    disturbed: str = ""
    known: bool = True

    def failure(self, log: Log) -> Outcome | None:
        """The outcome of a run that did not end well, by its limits, exit codes and log; None for one that did."""
        found = classify(
            log,
            self.codes,
            timed_out=self.timed_out,
            killed_by_us=self.timed_out or self.memory_limit_hit,
            memory_limit_hit=self.memory_limit_hit,
            memory_kills=self.memory_kills,
        )
        return Outcome(*found) if found else None


@dataclass(frozen=True)
class Outcome:
    """What a run gave. Rates are per second over all ranks.

    warmup_steps: how many were made; steady: Unix seconds between which all ranks were measured, by the clocks of their hosts; None
    where that is not known; ran_on, in_force: see `Record`.
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
class Surroundings:
    """What a workload file is checked against.

    place, axis_place: name a key for a message, one of the workload's file and one of the campaign's option axes.
    """

    place: Callable[..., str]
    axis_place: Callable[..., str]
    axes: Mapping[str, Sequence[Scalar]]
    """Option -> the values that the campaign gives it."""
    system: str
    launcher: Literal["local", "slurm"]


class ReferenceTable(NamedTuple):
    """A table in the reference of a kind."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class MetricFacts(FileModel):
    """What the name of a metric does not tell."""

    unit: str | None = None
    """Unit for axes and captions."""
    better: Better | None = None
    """`higher` or `lower`."""
    scaling: Scaling | None = None
    """How it scales with devices: `total_rate` (of all devices together), `rate_per_device`, `time_of_fixed_work` (the same work on
    any number of devices), `time_per_device_work` (as much work for each device), or `none`. Default: known for throughput, step
    times and the numbers of built-in parsers; otherwise unknown, and nothing is said of its efficiency."""


class Workload(FileModel):
    """A kind of workload: its fields are the keys of its YAML file, its methods what the campaign asks of it.

    A kind gives `introduction`, `example`, `kind: Literal[...]`, `step` and `read`; everything else has a default. The text under a
    field is its description in the reference and the JSON Schema. A key at its default is no part of a cell's identity, so that a
    default can never change.
    """

    introduction: ClassVar[str] = ""
    """Markdown for the reference."""
    example: ClassVar[str] = ""
    """A YAML file of this kind that runs on a CPU in a few seconds."""
    needs_torch: ClassVar[bool] = False
    """Whether it runs with PyTorch, so that links can be measured with it, too."""
    lengthens_warmup: ClassVar[bool] = False
    """Whether its runs go on warming up until they are steady (`warmup_steps_max`)."""
    steps_by_time: ClassVar[bool] = False
    """Whether its runs make as many steps as some seconds take (`warmup_min_s`, `measured_min_s`)."""
    serves_requests: ClassVar[bool] = False
    """Whether its runs are made of requests, and not of steps: then its cells have no batch, which is 1 for them."""
    reading_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that say how its kept logs are read, and nothing of what is run."""
    rate_unit: ClassVar[str] = "samples/s"
    """Unit of `throughput_per_s`."""

    schema_version: Literal["workload/1"] = "workload/1"
    """Version of this format."""
    name: Name
    """Equal to the file's name."""
    description: str = ""
    """Shown in the report."""
    precisions: tuple[Precision, ...] = Field(min_length=1)
    """Supported precisions. The plan excludes cells with others."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options with their default values. A campaign may vary them under `axes.options`."""
    metrics: dict[AxisName, MetricFacts] = Field(default_factory=dict)
    """Unit, better direction and scaling of metrics whose names do not tell them, such as `score: {better: higher}`."""
    inputs: InputFiles | None = None
    """Files whose content is part of a cell's identity, so that an edited one is measured anew. Relative to the workload file or
    the project; `{name}` is replaced by an option. Default: of a `command` workload the scripts in its command line. `[]`: none.
    `{train.py: v3}`: the version counts in place of the content; null: the content. A version that is the SHA-256 of an earlier
    content keeps what was measured with that."""
    run_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds of a run that plans expect while nothing like it was measured. Default: unknown."""
    kind: str
    """Kind of the workload."""

    @classmethod
    def tables(cls) -> Iterable[ReferenceTable]:
        """Tables for the reference."""
        return ()

    @property
    def variable_options(self) -> Collection[str]:
        """Options that an axis of a campaign may vary."""
        return self.options

    @property
    def one_process_for_all(self) -> bool:
        """Whether one program is started for all devices of a run, rather than one for each."""
        return False

    @property
    def needs_slurm(self) -> bool:
        """Whether only Slurm can start it."""
        return False

    @property
    def reads_log(self) -> bool:
        """Whether its numbers come from what it prints, so that a saved log is enough to read them."""
        return False

    @property
    def log_parser(self) -> str | None:
        """The built-in parser that reads its log."""
        return None

    @property
    def own_parsers(self) -> Sequence[Parser]:
        """The expressions that read its log."""
        return ()

    @property
    def log_test(self) -> int | Literal["last"] | None:
        """Which test of its log counts, where the file chooses one."""
        return None

    def tests(self, log: Log) -> Sequence[LogReading]:
        """Return what a built-in parser reads of each test in a log: of the chosen one alone, if the file chooses one."""
        return ()

    def of_test(self, number: int) -> Self:
        """The workload that reads only this test of its logs, from 1."""
        return self

    @property
    def in_container(self) -> bool:
        """Whether its programs see the files of an image, and not those of the host alone."""
        return False

    def input_words(self) -> Sequence[str]:
        """Names of input files, with options in braces. Where `inputs` is None: words that may be the name of a script."""
        return tuple(self.inputs or ())

    def version_of(self, text: str) -> str | None:
        """The version that counts in place of an input file's content; None where the content does. text: its name, filled in."""
        versions = self.inputs if isinstance(self.inputs, Mapping) else {}
        patterns = {
            word: ".*".join(map(re.escape, re.split(r"\{[^}]*\}", word.removeprefix(BESIDE)))) for word in versions
        }
        return next((versions[word] for word, pattern in patterns.items() if re.fullmatch(pattern, text)), None)

    def script_words(self) -> Sequence[str]:
        """The `input_words` that, where `inputs` is None, name a script only if it is there before a run starts."""
        return ()

    @property
    def printed_metrics(self) -> Sequence[str] | None:
        """All metrics that it can give, where its file says so; None where that is not known beforehand."""
        return None

    def summary(self) -> Mapping[str, Any]:
        """Its columns in `campaign workload list`: model or program, parameters, launch, parser."""
        return {}

    def problems(self, around: Surroundings) -> Iterable[str]:
        """Messages about what does not fit together: its own keys, the campaign's axes, the system."""
        return ()

    def identity(self) -> dict[str, Any]:
        """What of its file is part of a cell's identity; options stand beside it, with the values that the cell has."""
        # Words for people and the list of possible precisions may change without a new measurement.
        # A key at its default is left out, so that one that a later version adds changes nothing of what was measured before.
        words = {"description", "precisions", "schema_version", "options", "metrics", "inputs", "run_s"}
        return self.model_dump(mode="json", exclude=words, exclude_defaults=True)

    def runs(self) -> dict[str, Any]:
        """The part of `identity` that says what is run, and not how its logs are read."""
        return {key: value for key, value in self.identity().items() if key not in self.reading_keys}

    def reading(self) -> dict[str, Any]:
        """What of its file says how logs are read."""
        return self.model_dump(mode="json", include=set(self.reading_keys), exclude_defaults=True)

    def counted_options(self, options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """The options of a cell that are part of its identity. options: the file's, with the cell's own on top."""
        return options

    def reads_storage(self, options: Mapping[str, Scalar]) -> bool:
        """Whether runs with these options read from the configuration's storage."""
        return False

    def missing(self, kinds: Collection[AcceleratorKind] = ()) -> str | None:
        """What this machine lacks to run it on such devices, and the remedy; None when nothing."""
        return None

    def software_document(self, options: Mapping[str, Scalar], cache: Path) -> dict[str, Any] | None:
        """The software that runs with these options start in; None when it is the host's.

        cache: directory for what is expensive to find out. LaunchError when it is not there.
        """
        return None

    def other_program(self, reading: LogReading, options: Mapping[str, Scalar]) -> str:
        """Why what was read is of another program than the one that runs with these options; empty where nothing says so."""
        return ""

    def hints(self, log: Log) -> Sequence[str]:
        """Why nothing was found in the log of an incomplete run."""
        return ()

    def objection(self, cell: Cell, runs_on: AcceleratorKind) -> str | None:
        """Why this cell cannot be run at all on such a device (`unsupported`), or None."""
        return None

    @abstractmethod
    def step(self, run: Run) -> Step:
        """The step that measures the run; may write what it needs into `run.directory`."""

    def before(self, run: Run) -> Sequence[Step]:
        """Steps before the one that measures. Where one fails, the run says nothing of its subject and is repeated."""
        return ()

    def after(self, run: Run) -> Sequence[Step]:
        """Steps after the one that measures, however it ended. Where one fails, the run is flagged."""
        return ()

    def result_file(self, run: Run) -> str | None:
        """Name of a file in the run's directory that is part of what its program printed; may hold wildcards."""
        return None

    def outcome(self, run: Run, ended: Ended, log: Log) -> Outcome:
        """What `read` gives; work on the CPU in the place of a device, and a rate that no work can have, are failures."""
        found = self.read(run, ended, log)
        if found.status == "ok" and (line := find_fallback(ACCELERATORS[run.runs_on], log.lines)):
            failure = Failure(reason=f"{FELL_BACK} {ACCELERATORS[run.runs_on].title}", evidence=line[:500])
            return replace(found, status="invalid", failure=failure)
        rate = found.throughput_per_s
        if found.status != "ok" or rate is None or rate > 0:
            return found
        failure = Failure(
            reason=f"throughput_per_s is {rate:g}; a run that did work has a positive one", evidence=log.tail()
        )
        return replace(found, status="invalid", failure=failure)

    @abstractmethod
    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        """The outcome of a run; failures of the subject are outcomes, not exceptions."""

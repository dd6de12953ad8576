"""Keys of an import map, which defines how logs of other tools become records."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from campaign.common.errors import suggest_name
from campaign.spec.campaign_file import PrimaryMetric, Shape
from campaign.spec.cell import SHAPE_AXES, Scalar
from campaign.spec.fields import Argument, AxisName, FileModel, Name, OneOrMore
from campaign.spec.site_hardware import HostSpec, PoolSpec
from campaign.spec.system_file import DeviceModel, Links
from campaign.workloads.parsers import SERVICE_PARSERS, ParserName
from campaign.workloads.parsers.expressions import Parser
from campaign.workloads.protocol import MetricProperties

IDENTITY_NAMES = ("configuration", "workload", "batch", "batch_global", "precision", "repetition", "host", "lease")
"""Properties of a log, in addition to the shape of its configuration and the options of its workload."""


def _validate_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"'{text}' is not a regular expression: {error}") from error
    return text


def _require_one_group(regex: str) -> str:
    if (groups := re.compile(_validate_regex(regex)).groups) != 1:
        raise ValueError(f"'{regex}' has {groups} groups; exactly one must hold the value")
    return regex


def _validate_time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"'{name}' is not a time zone; write a name such as UTC or Europe/Berlin") from error
    return name


def _require_relative_path(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("the path must be relative to the imported directory and must not leave it")
    return path


_ValueRegex = Annotated[str, AfterValidator(_require_one_group)]


class ImportedSystem(FileModel):
    """System that the logs come from, as its owner describes it. It is not contacted."""

    name: Name
    """Name of the system."""
    description: str = ""
    """Description of the system, shown in the report."""
    hosts: tuple[HostSpec, ...] = Field(min_length=1)
    """Hosts with their built-in and attached devices."""
    pool: tuple[PoolSpec, ...] = ()
    """Devices behind the fabric."""
    devices: dict[Name, DeviceModel] = Field(default_factory=dict)
    """Properties of device models. A model without an entry is a GPU."""
    links: Links = Links()
    """Link rates of the site, shown in the report."""
    notes: tuple[str, ...] = ()
    """Remarks, shown in the report."""


class ImportedWorkload(FileModel):
    """Program that was run. Without `parser` and `parsers`, the workload file of this name is used."""

    parser: ParserName | None = None
    """Built-in parser for the logs. `campaign workload parse` tries it on a single log. A workload with the parser of a load
    generator (`vllm`, `sglang`, `aiperf`) is a service: it has no batch, and its option `rate_per_s` is the request rate."""
    test: Literal["only", "last"] | Annotated[int, Field(ge=1)] = "only"
    """Test that counts if each log contains several that `parser` reads: a number from 1, or `last`. With `tests` of a pattern,
    each test becomes a run instead."""
    parsers: tuple[Parser, ...] = ()
    """Expressions that read the logs, instead of `parser`."""
    description: str = ""
    """Description of the workload, shown in the report."""
    command: tuple[Argument, ...] = Field(default=("unknown",), min_length=1)
    """Command that was run, if known. It is shown in the report and never started."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options with their default values, which apply if a log gives no other value."""
    metrics: dict[AxisName, MetricProperties] = Field(default_factory=dict)
    """Unit and better direction of metrics whose names do not show them, such as `score: {better: higher}`."""

    @property
    def is_service(self) -> bool:
        """True if the logs come from a client that sent requests to a server."""
        return self.parser in SERVICE_PARSERS

    @model_validator(mode="after")
    def _check_parser_keys(self) -> ImportedWorkload:
        if self.parser is not None and self.parsers:
            raise ValueError("give either 'parser' or 'parsers'")
        given_keys = self.model_fields_set - {"parser", "parsers"}
        if self.parser is None and not self.parsers and given_keys:
            raise ValueError(
                "add 'parser' or 'parsers'; without them, the workload file of this name is used and no other key is allowed"
            )
        return self


class LogTimes(FileModel):
    """Start and end of a run, read from its log. Default: the run ended when the file was last written, after an unknown time."""

    start: _ValueRegex | None = None
    """Regular expression with one group for the start time; the first match counts."""
    end: _ValueRegex | None = None
    """Regular expression with one group for the end time; the last match counts."""
    duration_s: _ValueRegex | None = None
    """Regular expression with one group for the seconds from start to end, as a number or as h:mm:ss; the last match counts."""
    form: str = "iso"
    """Format of the times: `iso`, `unix` (seconds), or a strptime pattern such as `%d/%b/%Y %H:%M:%S`."""
    timezone: Annotated[str, AfterValidator(_validate_time_zone)] = "UTC"
    """Time zone of times without one, such as `Europe/Berlin`."""


class LogPattern(FileModel):
    """Logs of one kind: their paths, and the source of each log's configuration, workload and other properties."""

    path: Annotated[str, Field(min_length=1), AfterValidator(_require_relative_path)]
    """Path below the directory, with names in braces: `{configuration}/{workload}-b{batch}-{precision}-r{repetition}.log`. A name
    matches text without `/`, `*` matches anything without `/`, and `**/` matches any directories. Names: `configuration` (or keys
    of its shape, such as `hosts` and `devices_per_host`), `workload`, `batch` or `batch_global`, `precision`, `repetition`
    (default: numbered by path), `host` (one, or several joined by `+` or `,`), `lease` (runs that shared a composition), and
    options."""
    values: dict[str, Scalar] = Field(default_factory=dict)
    """Values that apply to all these logs, by the same names."""
    read: dict[str, _ValueRegex] = Field(default_factory=dict)
    """Values read from the log: name -> regular expression with one group. A log that contradicts its path is not imported."""
    words: dict[str, dict[str, Scalar]] = Field(default_factory=dict)
    """Translations: name -> word in the log -> value, such as `{precision: {amp: fp16, o0: fp32}}`."""
    tests: Literal["one", "repetitions"] | AxisName = "one"
    """Treatment of a log with several tests (of `parser`). `one` rejects the log and lists its tests. `repetitions` makes each test
    a run of the cell. The name of an option makes each test a run of the cell whose option is the test's name, such as
    `all_reduce_perf`. Start and end of the runs in one log are then unknown."""
    times: LogTimes = LogTimes()
    """Start and end of runs."""
    exit_code: _ValueRegex | None = None
    """Regular expression with one group for the exit code. Default: a run that printed its result counts as successful."""
    timed_out: Annotated[str, AfterValidator(_validate_regex)] | None = None
    """Regular expression that matches only in logs of runs that were stopped at a time limit. Slurm's messages are recognised."""


class ImportedProtocol(FileModel):
    """Protocol of the runs, as far as it is known."""

    warmup_steps: Annotated[int, Field(ge=0, le=100_000)]
    """Number of warm-up steps, which were not timed."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of timed steps."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Planned runs per cell, in all its compositions together. Default: the number of logs of each cell, so that no run is
    missing."""
    order: Literal["blocks", "sequential"] = "sequential"
    """`blocks`: each repetition was one round over all cells of a composition, so that runs of a round are compared in pairs."""
    lease_order: Literal["blocks", "least-recomposition"] = "least-recomposition"
    """`blocks`: all configurations were composed once, in random order, before any was composed again, so that drift does not look
    like a difference. Compositions are distinguished by `lease` of the logs. The default also means that the order is unknown."""
    seed: int = 1234
    """Seed of the programs, if any."""


class ImportFile(FileModel):
    """Map from logs to a campaign."""

    schema_version: Literal["import/1"] = "import/1"
    """Version of this format."""
    name: Name
    """Name of the resulting campaign. Its results are written to `results/<name>`."""
    title: str = ""
    """Title of the report."""
    question: str = ""
    """The question that the campaign answers, shown at the top of the report."""
    system: ImportedSystem
    """System that the logs come from."""
    software: dict[str, str] = Field(default_factory=dict)
    """Packages of the runs and their versions, if known: `{tensorflow: 2.4.1}`."""
    baseline: Name | None = None
    """Configuration that overheads refer to. Default: the largest local configuration."""
    metric: PrimaryMetric | None = None
    """Primary metric, as in a campaign file."""
    references: tuple[str, ...] = ()
    """Sets of published claims to compare with: `falcon`, `faster`, `bitfusion`."""
    configurations: tuple[Shape, ...] = Field(min_length=1)
    """Hardware of the runs as shapes, as in a campaign file."""
    workloads: dict[Name, ImportedWorkload] = Field(min_length=1)
    """Programs that were run, by name."""
    logs: OneOrMore[LogPattern]
    """Patterns of the logs. The first pattern that matches a path is used."""
    ignore: OneOrMore[str] = ("**/.*",)
    """Patterns of paths that are not logs of runs. These paths are not listed as unread."""
    protocol: ImportedProtocol
    """Protocol of the runs."""
    matrix: Literal["found", "full"] = "found"
    """`found`: cells without a log are excluded with that reason; `full`: they are reported as missing."""

    @model_validator(mode="after")
    def _check_names(self) -> ImportFile:
        options = {name for workload in self.workloads.values() for name in workload.options}
        files = any(imported.parser is None and not imported.parsers for imported in self.workloads.values())
        valid_names = {*IDENTITY_NAMES, *SHAPE_AXES, *options}
        for number, pattern in enumerate(self.logs):
            tests = [] if pattern.tests in ("one", "repetitions") else [pattern.tests]
            for name in [*pattern.values, *pattern.read, *pattern.words, *tests]:
                if name not in valid_names and not files:
                    raise ValueError(
                        f"logs.{number}: '{name}' is not a property of a log; {suggest_name(name, valid_names)}"
                    )
        return self

"""What an import map may say: how logs that were made without us become records. Every key has a description."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from campaign.config.campaign_file import Shape
from campaign.config.system_file import DeviceModel, HostGroup, Links, PoolEntry
from campaign.documents.cell import SHAPE_AXES, Scalar
from campaign.documents.fields import Argument, AxisName, Many, Model, Name
from campaign.workloads.parsers import ParserName
from campaign.workloads.parsers.expressions import Parser

IDENTITY = ("configuration", "workload", "batch", "batch_global", "precision", "repetition", "host", "lease")
"""What can be said of a log beside the shape of its configuration and the options of its workload."""


class ImportedSystem(Model):
    """The system that the logs come from, as its owner knows it; nothing of it is looked at."""

    name: Name
    """Name of the system."""
    description: str = ""
    """Shown in the report."""
    hosts: tuple[HostGroup, ...] = Field(min_length=1)
    """The hosts, with the devices that they own or had composed."""
    pool: tuple[PoolEntry, ...] = ()
    """Devices behind the fabric."""
    devices: dict[Name, DeviceModel] = Field(default_factory=dict)
    """What is known of the device models; one that is not named is a GPU."""
    links: Links = Links()
    """Link rates as the site knows them; the report repeats them."""
    notes: tuple[str, ...] = ()
    """Sentences that the report shows."""


class ImportedWorkload(Model):
    """What was run. Without `parser` and `parsers`: the workload file of this name, which is looked for as a campaign's is."""

    parser: ParserName | None = None
    """Who reads its logs: one of the built-in parsers. `campaign workload parse` tries it on a single log."""
    parsers: tuple[Parser, ...] = ()
    """Instead of `parser`: what is read from its logs."""
    description: str = ""
    """Shown in the report."""
    command: tuple[Argument, ...] = Field(default=("unknown",), min_length=1)
    """What was started, as far as that is known; for readers, it is never started."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options with the values that they have where a log says nothing else."""

    @model_validator(mode="after")
    def _one_way(self) -> ImportedWorkload:
        if self.parser is not None and self.parsers:
            raise ValueError("give either 'parser' or 'parsers'")
        own = self.description or self.options or self.command != ("unknown",)
        if self.parser is None and not self.parsers and own:
            raise ValueError(
                "give a 'parser' or 'parsers'; without them nothing else is said here: the workload file of this name says it"
            )
        return self


class LogTimes(Model):
    """When a run began and ended, by its log. Default: it ended when the file was last written, and how long it took is unknown."""

    start: str | None = None
    """Regular expression with one group, the time; its first match counts."""
    end: str | None = None
    """Likewise; the last match counts."""
    duration_s: str | None = None
    """Likewise, seconds from start to end; the last match counts."""
    form: str = "iso"
    """How the times are written: `iso`, `unix` (seconds), or a pattern of strptime such as `%d/%b/%Y %H:%M:%S`."""
    timezone: str = "UTC"
    """Where they are local times, when they do not say it themselves: a name such as `Europe/Berlin`."""

    @field_validator("start", "end", "duration_s")
    @classmethod
    def _one_group(cls, value: str | None) -> str | None:
        return value if value is None else one_group(value)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"'{value}' is no time zone; write a name such as UTC or Europe/Berlin") from error
        return value


class LogPattern(Model):
    """Logs of one kind: where they are, and how each says what it is a log of."""

    path: str = Field(min_length=1)
    """Path below the directory with names in braces, such as `{configuration}/{workload}-b{batch}-{precision}-r{repetition}.log`.
    A name stands for a part without `/`; `*` is anything without `/`, `**/` any directories. Names: `configuration` (or of its
    shape, such as `hosts` and `devices_per_host`), `workload`, `batch` or `batch_global`, `precision`, `repetition` (numbered by
    path when left out), `host` (one, or several joined by `+` or `,`), `lease` (what shared a composition), and options."""
    values: dict[str, Scalar] = Field(default_factory=dict)
    """What holds for all these logs, by the same names."""
    read: dict[str, str] = Field(default_factory=dict)
    """What stands in the log: name -> regular expression with one group. A log that contradicts its path is not imported."""
    words: dict[str, dict[str, Scalar]] = Field(default_factory=dict)
    """Name -> word found -> what it is called here, such as `{precision: {amp: fp16, o0: fp32}}`."""
    times: LogTimes = LogTimes()
    """When runs began and ended."""
    exit_code: str | None = None
    """Regular expression for the run's exit code. Without one, a run that printed its result has ended well."""
    timed_out: str | None = None
    """Regular expression that is found only in logs of runs that were ended at a time limit. Slurm's own words are known."""

    @field_validator("read")
    @classmethod
    def _groups(cls, value: dict[str, str]) -> dict[str, str]:
        return {name: one_group(regex) for name, regex in value.items()}

    @field_validator("exit_code")
    @classmethod
    def _one_group(cls, value: str | None) -> str | None:
        return value if value is None else one_group(value)

    @field_validator("timed_out")
    @classmethod
    def _regex(cls, value: str | None) -> str | None:
        return value if value is None else _compiled(value).pattern

    @field_validator("path")
    @classmethod
    def _relative(cls, value: str) -> str:
        if value.startswith("/") or ".." in value.split("/"):
            raise ValueError("a path is relative to the directory that is imported, and stays in it")
        return value


class ImportedProtocol(Model):
    """How the runs were made, as far as it is known."""

    warmup_steps: Annotated[int, Field(ge=0, le=100_000)]
    """Steps before the measurement that did not count."""
    measured_steps: Annotated[int, Field(ge=1, le=1_000_000)]
    """Steps that were timed."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Runs that were planned for each cell. Default: as many as the cell of the same workload that has the most."""
    order: Literal["blocks", "sequential"] = "sequential"
    """`blocks`: each repetition was one round over all cells of a composition, so that runs of a round compare in pairs."""
    seed: int = 1234
    """Seed, where the programs were given one."""


class ImportFile(Model):
    """A map from logs to a campaign."""

    schema_version: Literal["import/1"] = "import/1"
    """Version of this format."""
    name: Name
    """Name of the campaign that is made; its results go to `results/<name>`."""
    title: str = ""
    """Title of the report."""
    question: str = ""
    """What the campaign is to answer; stands at the top of the report."""
    system: ImportedSystem
    """Where the logs come from."""
    software: dict[str, str] = Field(default_factory=dict)
    """Packages and their versions that the runs were made with, as far as they are known: `{tensorflow: 2.4.1}`."""
    baseline: Name | None = None
    """Configuration that overheads refer to; the largest local one when left out."""
    references: tuple[Name, ...] = ()
    """Sets of published claims that the report holds these numbers against: `falcon`, `faster`, `bitfusion`."""
    configurations: tuple[Shape, ...] = Field(min_length=1)
    """The hardware of the runs, by shape, as in a campaign."""
    workloads: dict[Name, ImportedWorkload] = Field(min_length=1)
    """What was run, by name."""
    logs: Many[LogPattern]
    """Where the logs are. The first pattern that fits a path counts."""
    ignore: Many[str] = ("**/.*",)
    """Patterns of paths that are no logs of runs, and are not listed as unread."""
    protocol: ImportedProtocol
    """How the runs were made."""
    matrix: Literal["found", "full"] = "found"
    """`found`: cells without any log are left out, with that reason; `full`: they are cells that are missing."""

    @model_validator(mode="after")
    def _known_names(self) -> ImportFile:
        options = {name for workload in self.workloads.values() for name in workload.options}
        files = any(each.parser is None and not each.parsers for each in self.workloads.values())
        known = {*IDENTITY, *SHAPE_AXES, *options}
        for number, pattern in enumerate(self.logs):
            for name in [*pattern.values, *pattern.read, *pattern.words]:
                if name not in known and not files:
                    from campaign.errors import nearest

                    raise ValueError(f"logs.{number}: '{name}' can be said of no log; {nearest(name, known)}")
        return self


def one_group(regex: str) -> str:
    """The regular expression; ValueError unless it is one with one group."""
    groups = _compiled(regex).groups
    if groups != 1:
        raise ValueError(f"'{regex}' has {groups} groups; exactly one must hold the value")
    return regex


def _compiled(regex: str) -> re.Pattern[Any]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise ValueError(f"'{regex}' is not a regular expression: {error}") from error

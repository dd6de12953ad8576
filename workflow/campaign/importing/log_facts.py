"""Reading of one log: values that the map looks for, times, end and outcome of the run, and its cell and run number.

A log is read in the same way as that of a run just measured, except for facts that only the launcher has.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from campaign.common.errors import LaunchError, suggest_name
from campaign.common.files import open_regular
from campaign.importing.stated_settings import StatedSettings, find_contradiction
from campaign.plan.campaign.import_file import IDENTITY_NAMES, LogPattern, LogTimes
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import SHAPE_AXES, Cell, Configuration, Scalar
from campaign.spec.fields import Precision
from campaign.spec.hardware import ComposedHost, Composition
from campaign.spec.run_numbers import MAX_RUNS_PER_COMPOSITION
from campaign.workloads.failures import classify_failure
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers.expressions import parse_duration_s
from campaign.workloads.protocol import Outcome, Run, StepEnd, Workload


class LogImportError(Exception):
    """Reason why a file does not become a record."""


@dataclass(frozen=True)
class LogFacts:
    """Facts in one log.

    Attributes:
        values: text by name. Several different texts are joined by commas.
        start_s: start of the run in Unix seconds, or None if the log has none.
        end_s: end of the run in Unix seconds, or None if the log has none.
        duration_s: duration in seconds, or None if the log has none.
        exit_code: exit code, or None if the log has none.
        timed_out: True if the log mentions a time limit that was reached.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    start_s: float | None = None
    end_s: float | None = None
    duration_s: float | None = None
    exit_code: int | None = None
    timed_out: bool = False
    problems: tuple[str, ...] = ()
    """Times that cannot be read."""
    settings: StatedSettings = field(default_factory=StatedSettings)
    """Settings of the program as stated in the log."""


def read_log_facts(pattern: LogPattern, log: Log) -> LogFacts:
    """Read everything that a pattern of the map looks for from a log, in one pass."""
    times = pattern.times
    names: dict[str, str | None] = {f"read.{name}": regex for name, regex in pattern.read.items()}
    names |= {"start": times.start, "end": times.end, "duration_s": times.duration_s}
    names |= {"exit_code": pattern.exit_code, "timed_out": pattern.timed_out}
    regexes = {name: re.compile(regex) for name, regex in names.items() if regex is not None}
    texts_by_name: dict[str, list[str]] = {name: [] for name in names}
    for line in log.read_lines() if regexes else ():
        for name, regex in regexes.items():
            for match in regex.finditer(line):
                text = match[1] if regex.groups else match[0]
                if text is not None and (not texts_by_name[name] or text != texts_by_name[name][-1]):
                    texts_by_name[name].append(text.strip())
    problems: list[str] = []
    start_s = _parse_time(texts_by_name["start"][:1], times, problems)
    end_s = _parse_time(texts_by_name["end"][-1:], times, problems)
    duration_s = _parse_number(texts_by_name["duration_s"], "duration_s", problems)
    exit_code = _parse_number(texts_by_name["exit_code"], "exit_code", problems)
    return LogFacts(
        {
            name: ",".join(dict.fromkeys(texts_by_name[f"read.{name}"]))
            for name in pattern.read
            if texts_by_name[f"read.{name}"]
        },
        start_s,
        end_s,
        duration_s if duration_s is None or duration_s >= 0 else None,
        None if exit_code is None else int(exit_code),
        bool(texts_by_name["timed_out"]),
        tuple(problems),
    )


def compute_run_span(facts: LogFacts, written_s: float) -> tuple[float, float, bool]:
    """Return (start, end, True if both are known) of a run in Unix seconds.

    Args:
        facts: facts in the log.
        written_s: time of the last change of the log, which is used if the end is unknown.
    """
    start, end, duration = facts.start_s, facts.end_s, facts.duration_s
    if end is None and start is not None and duration is not None:
        end = start + duration
    last = max(written_s, start or written_s) if end is None else end
    if start is None and duration is not None:
        return last - duration, last, True
    if start is None or end is None or start > end:
        return last, last, False
    return start, end, True


def _parse_time(texts: list[str], times: LogTimes, problems: list[str]) -> float | None:
    """Parse the first of several times found in a log as Unix seconds.

    Returns None if there is none or it is malformed. A malformed one is added to `problems`.
    """
    if not texts:
        return None
    try:
        if times.form == "unix":
            return float(texts[0])
        parsed_time = (
            datetime.datetime.fromisoformat(texts[0])
            if times.form == "iso"
            else datetime.datetime.strptime(texts[0], times.form)
        )
    except (ValueError, OverflowError):
        problems.append(f"the time '{texts[0]}' does not have the form '{times.form}'")
        return None
    return (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=ZoneInfo(times.timezone))).timestamp()


def _parse_number(texts: list[str], name: str, problems: list[str]) -> float | None:
    """Parse the last of several numbers found in a log.

    Returns None if there is none or it is malformed. A malformed one is added to `problems`.
    """
    if not texts:
        return None
    try:
        seconds = parse_duration_s(texts[-1]) if name == "duration_s" else None
        return float(texts[-1]) if seconds is None else seconds
    except ValueError:
        problems.append(f"{name} is '{texts[-1]}', which is not a number")
        return None


def hash_log(path: Path) -> str:
    """Return the SHA-256 of a log. Raises LogImportError if the file is empty, not text, or unreadable."""
    try:
        with open_regular(path) as file:
            head = file.read(1 << 16)
            if not head.strip():
                raise LogImportError("is empty")
            if b"\0" in head or head.startswith(b"\x1f\x8b"):
                raise LogImportError("is not a text file; decompress it first")
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LogImportError(f"cannot be read ({error.strerror or error})") from error


def read_outcome(campaign: Campaign, cell: Cell, path: Path, facts: LogFacts, test: int | None = None) -> Outcome:
    """Return the outcome of a run of this cell according to its log.

    Raises LogImportError if the host, the network or the scheduler failed, because the log then has no result.

    Args:
        campaign: the campaign.
        cell: cell of the run.
        path: log of the run.
        facts: facts in the log.
        test: number of the run among the tests in the log, or None if the log has one test.
    """
    composition = Composition(tuple(ComposedHost(f"host{n + 1}", 1, 1.0, ()) for n in range(cell.configuration.hosts)))
    run = Run(cell, 1, composition, path.parent, campaign.device_model(cell.configuration).runs_on, is_saved_log=True)
    workload, log = campaign.workloads[cell.workload], Log(path)
    if test is not None:
        workload = workload.with_test(test)
    try:
        if facts.timed_out or facts.exit_code is not None:
            return workload.judge_run(run, StepEnd((facts.exit_code,), 0.0, 0.0, timed_out=facts.timed_out), log)
        outcome = workload.judge_run(run, StepEnd((0,), 0.0, 0.0, has_exit_codes=False), log)
        if outcome.status != "incomplete":
            return outcome
        # The exit status was not kept, so only failures that appear in the log itself count.
        cause = classify_failure(log, (None,), timed_out=False, killed_by_launcher=False)
    except LaunchError as error:
        message = str(error).partition("; run the same command")[0]
        raise LogImportError(f"host, network or scheduler failed, so the log has no result: {message}") from error
    if cause is None or cause[1].evidence.startswith("exit codes by rank"):
        return outcome
    return replace(outcome, status=cause[0], failure=cause[1])


INTEGER_NAMES = frozenset(
    {"batch", "batch_global", "repetition", "hosts", "devices_per_host", "devices_used", "devices", "ranks"}
)
PRECISIONS: tuple[str, ...] = typing.get_args(Precision)
CellPoint = tuple[str, str, int, str, tuple[tuple[str, Scalar], ...]]
"""Cell before the campaign exists: configuration, workload, batch, precision, and options as (name, value)."""


class DuplicateLogError(LogImportError):
    """Error for a log whose run already has a record from another log."""


@dataclass(frozen=True)
class LogIdentity:
    """Run that a log belongs to.

    Attributes:
        point: cell of the run.
        repetition: number of the run, or None if nothing states it.
        hosts: hosts of the run, empty if unknown.
        lease: name of the lease, empty if unknown.
    """

    point: CellPoint
    repetition: int | None = None
    hosts: tuple[str, ...] = ()
    lease: str = ""


@dataclass(frozen=True)
class MapDeclarations:
    """Declarations of the map, with the workload files that it names.

    Attributes:
        configurations: declared configurations.
        workloads: workloads by name.
    """

    configurations: Sequence[Configuration]
    workloads: Mapping[str, Workload]

    def list_names(self) -> set[str]:
        """Return the names of all values that this map can provide for a log."""
        return {*IDENTITY_NAMES, *SHAPE_AXES, *(option for file in self.workloads.values() for option in file.options)}

    def list_words(self, pattern: LogPattern) -> dict[str, set[str]]:
        """Return the known texts by name for a pattern of the map."""
        words = {
            "configuration": {c.name for c in self.configurations},
            "workload": set(self.workloads),
            "precision": set(PRECISIONS),
            **{name: {str(getattr(c, name)) for c in self.configurations} for name in ("device", "attach", "storage")},
        }
        return {name: words.get(name, set()) | set(pattern.words.get(name, ())) for name in {*words, *pattern.words}}


def identify_run(
    declarations: MapDeclarations, pattern: LogPattern, path_values: Mapping[str, str], facts: LogFacts
) -> LogIdentity:
    """Identify the run that a log belongs to. Raises LogImportError if a value is missing, unknown or contradictory.

    Args:
        declarations: declarations of the map.
        pattern: pattern of the map that matches the log.
        path_values: text by name in the path of the log.
        facts: facts in the log.
    """
    values = _merge_values(pattern, path_values, facts)
    configuration = _find_configuration(declarations, values)
    workload = str(_require_value(values, "workload"))
    if workload not in declarations.workloads:
        raise LogImportError(f"the map has no workload '{workload}'; {suggest_name(workload, declarations.workloads)}")
    precision = str(_require_value(values, "precision"))
    if precision not in PRECISIONS:
        raise LogImportError(
            f"'{precision}' is not a precision; there are: {', '.join(PRECISIONS)} ('words' in the map translates other spellings)"
        )
    file = declarations.workloads[workload]
    option_names = sorted(file.options.keys() & values.keys())
    options = tuple((name, _convert_option(name, values[name], file.options[name])) for name in option_names)
    repetition = values.get("repetition")
    if repetition is not None and not 1 <= int(repetition) <= 999_999:
        raise LogImportError(f"repetition {repetition} is not between 1 and 999999; number all repetitions from 1")
    hosts = tuple(filter(None, re.split(r"[+,\s]+", str(values.get("host", "")))))
    if hosts and len(set(hosts)) != configuration.hosts:
        raise LogImportError(
            f"the run has the hosts {', '.join(hosts)}, but configuration '{configuration.name}' has {configuration.hosts} hosts"
        )
    batch = 1 if file.serves_requests else _find_batch(values, configuration)
    point = (configuration.name, workload, batch, precision, options)
    labels = {"precision": precision, **values, "hosts": configuration.hosts, "ranks": configuration.ranks}
    if not file.serves_requests:
        labels["batch"] = batch
    if problem := find_contradiction(facts.settings, labels, file.options):
        raise LogImportError(problem)
    # Runs with other numbers, such as dates, get free numbers.
    number = None if repetition is None or int(repetition) > MAX_RUNS_PER_COMPOSITION else int(repetition)
    return LogIdentity(point, number, hosts, str(values.get("lease", "")))


def _merge_values(pattern: LogPattern, path_values: Mapping[str, str], facts: LogFacts) -> dict[str, Scalar]:
    """Merge the values from the path, the log and the map. Raises LogImportError if two of them differ."""
    sourced_values: dict[str, tuple[Scalar, str]] = {}
    for source, values in (("path", path_values), ("log", facts.values), ("map", pattern.values)):
        for name, text in values.items():
            value: Scalar = pattern.words.get(name, {}).get(str(text), text)
            if name in INTEGER_NAMES:
                try:
                    value = int(value)
                except ValueError:
                    raise LogImportError(f"{name} is '{value}', which is not an integer") from None
            if name in sourced_values and str(sourced_values[name][0]) != str(value):
                first_value, first_source = sourced_values[name]
                raise LogImportError(f"{name} is {first_value} in its {first_source}, but {value} in the {source}")
            sourced_values.setdefault(name, (value, source))
    return {name: value for name, (value, _) in sourced_values.items()}


def _require_value(values: Mapping[str, Scalar], name: str) -> Scalar:
    """Return the value of a name. Raises LogImportError if it is missing."""
    if name not in values:
        raise LogImportError(
            f"its {name} is unknown; put {{{name}}} into the pattern's path, or give it under 'read' or 'values'"
        )
    return values[name]


def _find_configuration(declarations: MapDeclarations, values: Mapping[str, Scalar]) -> Configuration:
    """Find the declared configuration that matches the values of a log. Raises LogImportError unless exactly one does."""
    names = [c.name for c in declarations.configurations]
    if "configuration" in values and values["configuration"] not in names:
        name = str(values["configuration"])
        raise LogImportError(f"the map has no configuration '{name}'; {suggest_name(name, names)}")
    shape = {name: values[name] for name in SHAPE_AXES if name in values}
    if not shape and "configuration" not in values and len(names) > 1:
        _require_value(values, "configuration")
    matches = [
        c
        for c in declarations.configurations
        if values.get("configuration", c.name) == c.name
        and all(str(Cell("", c, "", 1, "").axes()[name]) == str(value) for name, value in shape.items())
    ]
    if len(matches) == 1:
        return matches[0]
    shape_and_name = {**shape, "configuration": values.get("configuration")}
    description = ", ".join(f"{name} {value}" for name, value in shape_and_name.items() if value)
    if not matches:
        raise LogImportError(f"no configuration in the map has {description}")
    raise LogImportError(
        f"{', '.join(c.name for c in matches)} all have {description}; give the name of one as 'configuration'"
    )


def _find_batch(values: Mapping[str, Scalar], configuration: Configuration) -> int:
    """Return the batch per device, also from a global batch. Raises LogImportError if it is missing or invalid."""
    if "batch_global" in values:
        batch, remainder = divmod(int(values["batch_global"]), configuration.ranks)
        if remainder or int(values.get("batch", batch)) != batch:
            requirement = f"{values['batch']} times" if "batch" in values else "a multiple of"
            raise LogImportError(
                f"a global batch of {values['batch_global']} is not {requirement} {configuration.ranks} ranks"
            )
    else:
        batch = int(_require_value(values, "batch"))
    if not 1 <= batch <= 4096:
        raise LogImportError(f"batch {batch} is not between 1 and 4096 samples per device and step")
    return batch


def _convert_option(name: str, value: Scalar, default: Scalar) -> Scalar:
    """Convert an option's value to the type of its default, such as '384' to a number."""
    if isinstance(value, str) and not isinstance(default, str):
        try:
            return value.lower() in ("true", "yes", "1") if isinstance(default, bool) else type(default)(value)
        except ValueError:
            raise LogImportError(f"{name} is '{value}', but the workload's default {default!r} is a number") from None
    return value

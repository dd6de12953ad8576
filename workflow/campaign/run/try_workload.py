"""Trial of one workload without a campaign: one run on this machine, or one saved log."""

from __future__ import annotations

import os
import statistics
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from campaign.common.errors import ConfigError, suggest_name
from campaign.plan.campaign.check import Sources
from campaign.plan.campaign.load import LoadedFile, list_config_directories, load_named, validate
from campaign.plan.campaign.resolve import Campaign, resolve_campaign
from campaign.plan.campaign.workload_inputs import find_workload_directories, read_inputs, select_inputs
from campaign.plan.matrix import expand_matrix
from campaign.run.launched_run import LaunchedRun
from campaign.run.launchers import open_launcher
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.cell import Cell, Scalar
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.record import Failure
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile, read_yaml
from campaign.workloads.failures import classify_failure
from campaign.workloads.launcher import StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, LogReading, RunContext, read_log
from campaign.workloads.parsers.expressions import MatchCounts, collect_hints, run_parsers
from campaign.workloads.protocol import Outcome, Run, StepEnd, Workload

DEFAULT_CAMPAIGN_PATH = Path("config/campaign.yaml")
"""Path of an assumed campaign file. Workloads are looked up in the directories that it could use."""
_MAX_STEPS = 1_000_000
"""Number of steps of a saved log if the number of measured steps is not given."""


@dataclass(frozen=True)
class TrialRequest:
    """Parameters of a trial run.

    Args:
        batch: batch size per rank.
        precision: precision; None for the first one of the workload.
        devices: devices per host.
        hosts: number of hosts.
        options: options that replace the workload's defaults.
        warmup_steps: number of steps before measurement.
        measured_steps: number of measured steps.
        time_limit_s: time limit in seconds.
    """

    batch: int = 1
    precision: str | None = None
    devices: int = 1
    hosts: int = 1
    options: Mapping[str, Scalar] = field(default_factory=dict)
    warmup_steps: int = 5
    measured_steps: int = 10
    time_limit_s: float = 900.0


def list_workload_names() -> list[str]:
    """List the names of all workload files that can be found from the current directory."""
    return sorted(
        {
            path.stem
            for directory in list_config_directories(DEFAULT_CAMPAIGN_PATH)
            for path in (directory / "workloads").glob("*.yaml")
        }
    )


def find_workload(name: str) -> LoadedFile[Workload]:
    """Load a workload from its file, or by its name under config/workloads."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return load_named(Workload, name, DEFAULT_CAMPAIGN_PATH)
    source = read_yaml(path)
    return LoadedFile(validate(source, Workload, path.stem), source)


def describe_this_machine(devices: int) -> SystemFile:
    """Describe this machine as a system whose devices are ranks on its cores."""
    cores = len(os.sched_getaffinity(0))
    host = {"name": "here", "cores": cores, "devices": [{"model": "cpu-rank", "count": devices}]}
    document = {"name": "this-machine", "fabric": {"kind": "simulated"}, "hosts": [host]}
    return SystemFile.model_validate({**document, "devices": {"cpu-rank": {"runs_on": "cpu"}}})


def build_trial_campaign(
    workload: LoadedFile[Workload],
    request: TrialRequest,
    system: SystemFile | None,
    launcher: Literal["local", "slurm"] = "local",
) -> Campaign:
    """Build a campaign with a single cell, applying the usual validation.

    Raises ConfigError if the request does not fit the workload or the system.
    """
    base_system = system or describe_this_machine(request.devices)
    trial_system = base_system.model_copy(update={"launcher": launcher, "emulation": None})
    model = next((group.model for host in trial_system.hosts for group in host.devices), None)
    attach = "local" if model else "fabric"
    model = model or next((group.model for group in trial_system.pool if group.kind == "gpu"), None)
    configuration = {
        "name": "once",
        "hosts": [request.hosts],
        "devices_per_host": [request.devices],
        "attach": [attach],
    }
    precision = request.precision or workload.model.precisions[0]
    if precision not in workload.model.precisions:
        precisions = ", ".join(workload.model.precisions)
        raise ConfigError(f"workload '{workload.model.name}' does not support '{precision}'; it supports {precisions}")
    document = {
        "name": "once",
        "system": trial_system.name,
        "configurations": [{**configuration, **({"device": [model]} if model else {})}],
        "axes": {
            "workload": [workload.model.name],
            "batch": [request.batch],
            "precision": [precision],
            "options": {name: [value] for name, value in request.options.items()},
        },
        "protocol": {name: getattr(request, name) for name in ("warmup_steps", "measured_steps", "time_limit_s")},
    }
    source = YamlFile(Path("once"), document, {})
    campaign_file = validate(source, CampaignFile)
    sources = Sources(
        source, {trial_system.name: YamlFile(Path(trial_system.name), {}, {})}, {workload.model.name: workload.source}
    )
    return resolve_campaign(Path("once"), campaign_file, [trial_system], {workload.model.name: workload.model}, sources)


def _add_inputs(campaign: Campaign, workload: LoadedFile[Workload]) -> Campaign:
    """Return the campaign with the input files of its workload."""
    source = workload.source
    sources = Sources(source, {}, {workload.model.name: source})
    axes = campaign.file.axes.options
    inputs = read_inputs(source.path, campaign.workloads, axes, sources)
    return replace(campaign, inputs=inputs, workload_dirs=find_workload_directories(campaign.workloads, sources))


def get_only_cell(campaign: Campaign) -> Cell:
    """Return the only cell of a trial campaign.

    Raises ConfigError if the system cannot provide its configuration.
    """
    if campaign.impossible:
        raise ConfigError(f"{campaign.system.name}: {campaign.impossible[0].why}")
    (cell,) = expand_matrix(campaign).cells
    return cell


def build_trial_run(
    campaign: Campaign,
    cell: Cell,
    directory: Path,
    launcher: Literal["local", "slurm"] = "local",
    pace: Mapping[str, float] | None = None,
) -> Run:
    """Build the run of a trial campaign's cell, on hosts with placeholder names.

    Args:
        campaign: trial campaign.
        cell: its only cell.
        directory: working directory of the run.
        launcher: launcher for which the run is built.
        pace: rate by device model; if given, the composition lists the devices.
    """
    configuration = cell.configuration
    names = [f"host{number}" for number in range(1, configuration.hosts + 1)]
    count = configuration.devices_used if pace else 0
    devices = [Device(f"{number}", "gpu", configuration.device, None, "", local=True) for number in range(count)]
    composition = Composition(tuple(ComposedHost(name, 1, 1.0, tuple(devices)) for name in names))
    runs_on = campaign.device_model(cell.configuration).runs_on
    workload = campaign.workloads[cell.workload]
    files = select_inputs(workload, {**workload.options, **cell.options}, campaign.inputs)
    paths = {text: file.path for text, file in files.items()}
    return Run(
        cell,
        1,
        composition,
        directory,
        runs_on,
        launcher=launcher,
        files=paths,
        pace=pace or {},
        workload_dir=campaign.workload_dirs.get(cell.workload, ""),
    )


@dataclass(frozen=True)
class TrialResult:
    """Result of one trial run or one saved log.

    Args:
        workload: name of the workload or parser.
        outcome: outcome of the run.
        reading: reading of a built-in parser, which may include matrices and curves.
        log: path of the log.
        command: command of the run.
        wall_s: duration in seconds.
        software: software document.
        hints: hints for the user.
        matches: matches of the workload's own parsers in a saved log.
    """

    workload: str
    outcome: Outcome
    reading: LogReading | None = None
    log: Path | None = None
    command: tuple[str, ...] = ()
    wall_s: float | None = None
    software: Mapping[str, Any] | None = None
    hints: tuple[str, ...] = ()
    matches: tuple[MatchCounts, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dict. Unknown values are left out."""
        outcome = self.outcome
        document: dict[str, Any] = {
            "workload": self.workload,
            "status": outcome.status,
            "failure": outcome.failure.model_dump(mode="json") if outcome.failure else None,
            "throughput_per_s": outcome.throughput_per_s,
            "steps": _summarize_steps(outcome),
            "phases_s": dict(outcome.phases_s),
            "metrics": dict(outcome.metrics),
            "flags": list(outcome.flags),
            "matrices": {} if self.reading is None else {n: vars(m) for n, m in self.reading.matrices.items()},
            "curves": {} if self.reading is None else {n: vars(c) for n, c in self.reading.curves.items()},
            "wall_s": self.wall_s,
            "command": list(self.command),
            "software": self.software,
            "log": str(self.log) if self.log else None,
            "hints": list(self.hints),
            "matches": [
                {
                    "metric": parser_matches.parser.metric,
                    "pattern": parser_matches.parser.pattern,
                    "found": parser_matches.total,
                    "skipped": parser_matches.skipped,
                    "counted": parser_matches.counted,
                    "take": parser_matches.parser.take,
                }
                for parser_matches in self.matches
            ],
        }
        return {name: value for name, value in document.items() if value not in (None, {}, [])}


def _summarize_steps(outcome: Outcome) -> dict[str, float]:
    """Return the number of ranks and steps, and the median, shortest and longest step time in seconds."""
    steps = [step for rank in outcome.step_times_s for step in rank]
    if not steps:
        return {}
    counts = {"ranks": len(outcome.step_times_s), "measured": max(map(len, outcome.step_times_s))}
    return {**counts, "median_s": statistics.median(steps), "shortest_s": min(steps), "longest_s": max(steps)}


def run_workload_once(
    workload: LoadedFile[Workload], request: TrialRequest, system: SystemFile | None, log: Path
) -> TrialResult:
    """Run a workload once with the local launcher, and return its result.

    Raises LaunchError if the workload could not be started.

    Args:
        workload: workload to run.
        request: parameters of the run.
        system: system whose hosts are used; None for this machine.
        log: file for the output.
    """
    campaign = _add_inputs(build_trial_campaign(workload, request, system), workload)
    cell = get_only_cell(campaign)
    file = workload.model
    pace = system.emulation.get_paces(cell.precision) if system and system.emulation else None
    with tempfile.TemporaryDirectory(prefix="campaign-run-") as scratch:
        run = build_trial_run(campaign, cell, Path(scratch), pace=pace)
        if objection := file.unsupported_reason(cell, run.runs_on):
            raise ConfigError(f"workload '{file.name}': {objection}")
        software = file.software_document(cell.options, log.parent)
        step = file.step(run)
        launcher = open_launcher("local", campaign.system, run.composition)
        try:
            mark = f"once-{uuid.uuid4().hex}"
            step_result = LaunchedRun(launcher, file, run, mark, log, StepLimits(request.time_limit_s)).execute(step)
        finally:
            launcher.close()
        log_text = Log(log)
        outcome = file.judge_run(run, step_result, log_text)
    ranks = request.devices * request.hosts
    scope = RunContext(
        ranks,
        request.hosts,
        request.batch,
        request.batch * ranks,
        request.warmup_steps,
        request.measured_steps,
        file.log_test,
        set(step_result.codes) == {0},
    )
    reading = read_log(file.log_parser, log_text, scope) if file.log_parser else None
    disturbance_hints = (f"the times are not valid: {step_result.disturbance}",) if step_result.disturbance else ()
    return TrialResult(
        file.name,
        outcome,
        reading,
        log,
        step.argv,
        step_result.ended - step_result.started,
        software,
        (*disturbance_hints, *(file.explain_missing_values(log_text) if outcome.status == "incomplete" else ())),
    )


def read_saved_log(name: str, log: Path, scope: RunContext, precision: str | None = None) -> TrialResult:
    """Read a saved log with the workload or built-in parser of this name.

    The log does not show how the program ended. Raises ConfigError if the log is missing, or if no workload or parser of this
    name reads logs.
    """
    if not log.is_file():
        raise ConfigError(f"{log}: no such file")
    log_text = Log(log)
    if name in PARSERS and name not in list_workload_names():
        return _read_with_parser(name, name, log_text, log, scope)
    if name not in list_workload_names() and Path(name).suffix not in (".yaml", ".yml"):
        known_names = sorted({*list_workload_names(), *PARSERS})
        raise ConfigError(f"'{name}' is neither a workload nor a parser; {suggest_name(name, known_names)}")
    workload = find_workload(name)
    file = workload.model
    if not file.reads_log:
        raise ConfigError(
            f"workload '{file.name}' ({file.kind}) writes its numbers to separate files and not to its log"
        )
    if file.log_parser is not None:
        scope = replace(scope, test=file.log_test) if scope.test is None else scope
        return _read_with_parser(file.name, file.log_parser, log_text, log, scope, file)
    steps = scope.measured_steps or _MAX_STEPS
    request = TrialRequest(scope.batch or 1, precision, scope.ranks or 1, measured_steps=steps)
    campaign = build_trial_campaign(workload, request, None, "slurm")
    run = replace(build_trial_run(campaign, get_only_cell(campaign), log.parent), is_saved_log=True)
    outcome = file.judge_run(run, StepEnd((0,), 0.0, 0.0, has_exit_codes=False), log_text)
    hint_texts = tuple(file.explain_missing_values(log_text)) if outcome.status == "incomplete" else ()
    matches = run_parsers(file.custom_parsers, log_text, scope.ranks or 1).matches
    return TrialResult(file.name, outcome, log=log, hints=hint_texts, matches=matches)


def _read_with_parser(
    workload: str, parser: str, log_text: Log, log: Path, scope: RunContext, file: Workload | None = None
) -> TrialResult:
    """Read a log with a built-in parser, and return the result with hints on failures."""
    reading = read_log(parser, log_text, scope)
    if file is not None and reading.status == "ok" and (problem := file.find_program_mismatch(reading, file.options)):
        reading = replace(reading, status="invalid", problem=problem)
    failure = None if reading.status == "ok" else Failure(reason=reading.problem, evidence=log_text.read_tail())
    outcome = Outcome(
        reading.status,
        failure,
        reading.throughput_per_s,
        reading.step_times_s,
        metrics=reading.metrics,
        steady=reading.steady,
        flags=reading.flags,
    )
    log_hints: list[str] = []
    # The exit code was not saved, so only a failure that the log itself shows is reported.
    cause = (
        None if reading.status == "ok" else classify_failure(log_text, (1,), timed_out=False, killed_by_launcher=False)
    )
    if cause and cause[0] != "crashed":
        log_hints.append(f"the log shows the reason: {cause[1].reason}: {cause[1].evidence}")
    if reading.status == "incomplete":
        log_hints += collect_hints(log_text, parser, ())
    return TrialResult(workload, outcome, reading, log, hints=tuple(log_hints))

"""The commands of `campaign workload`: show workloads, run one once on this machine, or read a saved log."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import yaml

from campaign.cli.cluster import read_system_file
from campaign.cli.options import (
    EXISTING_FILE,
    PATH,
    STEP_COUNT,
    WARMUP_STEP_COUNT,
    Command,
    FiniteNumber,
    add_workload_option,
    build_format_option,
)
from campaign.cli.terminal import TextTable, print_rows, print_tables, print_text, show_log_status
from campaign.common.errors import ConfigError, convert_os_error
from campaign.common.wording import escape_control_characters
from campaign.plan.campaign.load import LoadedFile
from campaign.run import try_workload
from campaign.run.try_workload import TrialRequest, TrialResult
from campaign.spec.system_file import SystemFile
from campaign.workloads.parsers import Curve, RunContext
from campaign.workloads.protocol import Workload

# This is the same range as in campaign files.
_COUNT_RANGE = click.IntRange(1, 4096)


def _add_json_option(command: Command) -> Command:
    """Add `--format` and its short form `--json` to a command, which receives them as `as_json`."""

    @functools.wraps(command)
    def wrapper(style: str, as_json: bool, **arguments: Any) -> Any:
        return command(as_json=as_json or style == "json", **arguments)

    return build_format_option("table", "json")(
        click.option("--json", "as_json", is_flag=True, help="As --format json.")(wrapper)
    )


@click.group()
def workload() -> None:
    """List and show workloads, run one once on this machine, or read a saved log.

    NAME is a workload file, or its name under config/workloads.
    """


@workload.command("list")
@_add_json_option
def list_workloads(as_json: bool) -> None:
    """List all workloads that a campaign here can use."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    columns = {"model or program": "", "parameters": None, "launch": None, "parser": None}
    for name in try_workload.list_workload_names():
        try:
            file = try_workload.find_workload(name).model
        except ConfigError as error:
            problems.append(str(error))
        else:
            precisions = list(file.precisions) if as_json else " ".join(file.precisions)
            rows.append(
                {"name": file.name, "kind": file.kind, **columns, **file.list_columns(), "precisions": precisions}
            )
    print_rows("Workloads", rows, "json" if as_json else "table")
    if problems:
        raise ConfigError("\n".join(problems))


@workload.command("show")
@click.argument("name")
@_add_json_option
def show_workload(name: str, as_json: bool) -> None:
    """Show NAME with all defaults, and its command on two hosts with two devices each."""
    workload_file = try_workload.find_workload(name)
    document: dict[str, Any] = workload_file.model.model_dump(mode="json", exclude_none=True)
    document["example"] = _build_example(workload_file)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        text = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
        click.echo(escape_control_characters(f"# {workload_file.source.path}\n{text}"), nl=False)


def _build_example(workload_file: LoadedFile[Workload]) -> dict[str, Any]:
    """Build an example of the workload's command under Slurm for each precision."""
    hosts = [{"name": "host[1-2]", "cores": 64, "devices": [{"model": "gpu", "count": 2}]}]
    system = SystemFile.model_validate({"name": "two-hosts", "fabric": {"kind": "simulated"}, "hosts": hosts})
    steps: dict[str, Any] = {}
    for precision in workload_file.model.precisions:
        wish = TrialRequest(batch=8, precision=precision, devices=2, hosts=2)
        campaign = try_workload.build_trial_campaign(workload_file, wish, system, "slurm")
        with tempfile.TemporaryDirectory() as scratch:
            run = try_workload.build_trial_run(campaign, try_workload.get_only_cell(campaign), Path(scratch), "slurm")
            step = workload_file.model.step(run)
        launcher = ["srun", *step.srun, "..."] if step.srun else []
        variables = {name: value for name, value in step.environment.items() if name != "PATH"}
        steps[precision] = {
            **({"environment": variables} if variables else {}),
            "command": " ".join([*launcher, shlex.join(step.argv)]),
            "started": "once a rank" if step.per_rank else "once",
        }
    return {"of": "2 hosts with 2 devices each, batch 8, under Slurm", **steps}


@workload.command("try")
@click.argument("name")
@click.option("--batch", type=_COUNT_RANGE, default=1, help="Samples per device and step.")
@click.option("--precision", help="Number format. Default: the first precision of the workload.")
@click.option("--devices", type=_COUNT_RANGE, default=1, help="Number of devices, with one rank each.")
@add_workload_option
@click.option(
    "--system",
    help="System file that describes the devices, or its name under config/systems. Default: cores of this machine.",
)
@click.option(
    "--warmup", "warmup_steps", type=WARMUP_STEP_COUNT, default=5, help="Number of steps before the measurement."
)
@click.option("--steps", "measured_steps", type=STEP_COUNT, default=10, help="Number of timed steps.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=FiniteNumber(0, min_open=True),
    default=900.0,
    metavar="SECONDS",
    help="Time after which the run is stopped.",
)
@click.option("--log", type=PATH, help="File for the output. Default: a new file in the temporary directory.")
@_add_json_option
def try_once(name: str, system: str | None, log: Path | None, as_json: bool, **settings: Any) -> None:
    """Run NAME once on this machine, without Slurm and without a fabric, and show its results.

    Exits with 1 if the run fails. Nothing is recorded.
    """
    workload_file = try_workload.find_workload(name)
    request = TrialRequest(**settings)
    log = log or Path(tempfile.mkdtemp(prefix="campaign-try-")) / f"{workload_file.model.name}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        raise convert_os_error(error, log) from error
    with show_log_status(workload_file.model.name, log):
        trial = try_workload.run_workload_once(
            workload_file, request, read_system_file(system) if system else None, log
        )
    _print_result(trial, as_json)


@workload.command()
@click.argument("name", metavar="NAME|PARSER")
@click.argument("log", metavar="LOGFILE", type=EXISTING_FILE)
@click.option("--ranks", type=_COUNT_RANGE, help="Number of ranks of the run, if the log does not contain it.")
@click.option("--hosts", type=_COUNT_RANGE, help="Number of hosts of the run.")
@click.option("--batch", type=_COUNT_RANGE, help="Samples per device and step.")
@click.option("--precision", help="Number format. Default: the first precision of the workload.")
@click.option("--warmup", "warmup_steps", type=WARMUP_STEP_COUNT, help="Number of steps before the measurement.")
@click.option("--steps", "measured_steps", type=STEP_COUNT, help="Number of timed steps.")
@click.option("--test", type=click.IntRange(min=1), help="Number of the test to read, if the log contains several.")
@_add_json_option
def parse(name: str, log: Path, precision: str | None, as_json: bool, **settings: int | None) -> None:
    """Read a saved LOGFILE with the parser of workload NAME, or with a built-in PARSER. Nothing is run.

    Exits with 1 if the status of the run is not ok.
    """
    batch, ranks = settings["batch"], settings["ranks"]
    batch_global = batch * ranks if batch is not None and ranks is not None else None
    # It is unknown how the program ended.
    scope = RunContext(**settings, batch_global=batch_global, ended_normally=False)
    _print_result(try_workload.read_saved_log(name, log, scope, precision), as_json)


def _print_result(trial: TrialResult, as_json: bool) -> None:
    """Print the result of a trial run or of a saved log. Exit with 1 if the status of the run is not ok."""
    if as_json:
        click.echo(json.dumps(trial.to_dict(), indent=1))
    else:
        _print_trial(trial)
    if trial.outcome.status != "ok":
        sys.exit(1)


def _print_trial(trial: TrialResult) -> None:
    """Print the status of a run, the values read from its log, and the path of the log."""
    outcome = trial.outcome
    print_text(f"{trial.workload}: {outcome.status}", "bold green" if outcome.status == "ok" else "bold red")
    if outcome.failure:
        print_text(outcome.failure.reason)
        for line in outcome.failure.evidence.splitlines()[-10:]:
            print_text(f"  {line}")
    for hint in trial.hints:
        print_text(hint)
    if trial.command:
        print_text(shlex.join(trial.command))
    print_text("")
    rows: dict[str, Any] = {"throughput_per_s": outcome.throughput_per_s, "wall_s": trial.wall_s}
    rows |= {f"step {name}": value for name, value in trial.to_dict().get("steps", {}).items()}
    rows |= {f"phase {name}_s": value for name, value in outcome.phases_s.items()}
    rows |= dict(sorted(outcome.metrics.items()))
    print_tables(
        TextTable(
            "Results", ["quantity", "value"], [(name, _format_number(v)) for name, v in rows.items() if v is not None]
        )
    )
    if matches := trial.to_dict().get("matches"):
        print_rows("Matches of the workload's own parsers", matches)
    if trial.reading is not None:
        for name, matrix in trial.reading.matrices.items():
            # The name is not the title of the table, because a narrow table would wrap it.
            print_text(f"{name} ({matrix.unit})", "bold")
            lines = zip(matrix.rows, matrix.values, strict=True)
            print_tables(
                TextTable("", ["", *matrix.columns], [(row, *map(_format_number, values)) for row, values in lines])
            )
        if trial.reading.curves:
            print_rows("Results by message size", _build_curve_rows(dict(trial.reading.curves)))
    for flag in outcome.flags:
        print_text(f"note: {flag}")
    if trial.software:
        packages = trial.software.get("packages", {})
        texts = {key: value for key, value in trial.software.items() if isinstance(value, str)}
        parts = [f"{key} {value}" for key, value in texts.items() if key != "schema_version"]
        print_text(f"software: {', '.join(parts)}" + (f", {len(packages)} packages" if packages else ""))
    if trial.log:
        print_text(f"log: {trial.log}")


def _build_curve_rows(curves: dict[str, Curve]) -> list[dict[str, str]]:
    """Build a table with one row per message size and one column per curve."""
    sizes = sorted({size for curve in curves.values() for size, _ in curve.points})
    values = {name: dict(curve.points) for name, curve in curves.items()}
    columns = {name: name if name.endswith(curve.unit) else f"{name} ({curve.unit})" for name, curve in curves.items()}
    return [
        {"size_bytes": str(size), **{columns[name]: _format_number(values[name].get(size)) for name in curves}}
        for size in sizes
    ]


def _format_number(value: float | None) -> str:
    """Format a whole number with separators, another number with six significant digits, and None as '-'."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"

"""`campaign workload`: what can be measured, for people: look at it, run it once here, read a log of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from campaign.documents.cell import Scalar
    from campaign.run.try_workload import Found
    from campaign.workloads.protocol import Workload

_Command = Callable[..., Any]
# What a campaign file takes.
_COUNT = click.IntRange(1, 4096)
_STEPS = click.IntRange(1, 1_000_000)
_WARMUP = click.IntRange(0, 100_000)


@click.group()
def workload() -> None:
    """List and show workloads, run one once on this machine, or read a saved log.

    NAME is a workload file, or its name under config/workloads.
    """


def _json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print a JSON document.")(command)


@workload.command("list")
@_json_option
def list_workloads(as_json: bool) -> None:
    """List all workloads that a campaign here can use."""
    from campaign.cli.terminal import show_rows
    from campaign.errors import ConfigError
    from campaign.run.try_workload import find_workload, workload_names

    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for name in workload_names():
        try:
            rows.append(_row(find_workload(name).model))
        except ConfigError as error:
            problems.append(str(error))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        show_rows("Workloads", [{**row, "precisions": " ".join(row["precisions"])} for row in rows])
    if problems:
        raise ConfigError("\n".join(problems))


def _row(file: Workload) -> dict[str, Any]:
    columns = {"model or program": "", "parameters": None, "launch": None, "parser": None}
    return {"name": file.name, "kind": file.kind, **columns, **file.summary(), "precisions": list(file.precisions)}


@workload.command()
@click.argument("name")
@_json_option
def show(name: str, as_json: bool) -> None:
    """Show NAME with all defaults, and its command on two hosts with two devices each."""
    from campaign.run.try_workload import find_workload

    found = find_workload(name)
    document: dict[str, Any] = found.model.model_dump(mode="json", exclude_none=True)
    document["example"] = _example(found)
    if as_json:
        click.echo(json.dumps(document, indent=1))
        return
    import yaml

    click.echo(f"# {found.source.path}")
    click.echo(yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True), nl=False)


def _example(found: Any) -> dict[str, Any]:
    """The command by precision, under Slurm."""
    import shlex
    import tempfile

    from campaign.run.try_workload import Wish, campaign_of, only_cell, run_of

    steps = {}
    for precision in found.model.precisions:
        wish = Wish(batch=8, precision=precision, devices=2, hosts=2)
        campaign = campaign_of(found, wish, _two_hosts(), "slurm")
        with tempfile.TemporaryDirectory() as scratch:
            step = found.model.step(run_of(campaign, only_cell(campaign), Path(scratch), "slurm"))
        started = ["srun", *step.srun, "..."] if step.srun else []
        variables = {name: value for name, value in step.environment.items() if name != "PATH"}
        steps[precision] = {
            **({"environment": variables} if variables else {}),
            "command": " ".join([*started, shlex.join(step.argv)]),
            "started": "once a rank" if step.per_rank else "once",
        }
    return {"of": "2 hosts with 2 devices each, batch 8, under Slurm", **steps}


def _two_hosts() -> Any:
    from campaign.config.system_file import SystemFile

    hosts = [{"name": "host[1-2]", "cores": 64, "devices": [{"model": "gpu", "count": 2}]}]
    return SystemFile.model_validate({"name": "two-hosts", "fabric": {"kind": "simulated"}, "hosts": hosts})


@workload.command("try")
@click.argument("name")
@click.option("--batch", type=_COUNT, default=1, show_default=True, help="Samples a device takes in one step.")
@click.option("--precision", help="Number format. Default: the first precision of the workload.")
@click.option("--devices", type=_COUNT, default=1, show_default=True, help="Devices, one rank each.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the workload; may be repeated."
)
@click.option(
    "--system",
    help="System file, or its name under config/systems: what the devices are. Default: cores of this machine.",
)
@click.option("--warmup", type=_WARMUP, default=5, show_default=True, help="Steps before the measurement.")
@click.option("--steps", type=_STEPS, default=10, show_default=True, help="Steps that are timed.")
@click.option("--time-limit", "time_limit_s", type=click.FloatRange(min=0, min_open=True), default=900.0, show_default=True,
              metavar="SECONDS")  # fmt: skip
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Where its output goes. Default: a new file in the temporary directory.",
)
@_json_option
def try_once(
    name: str,
    batch: int,
    precision: str | None,
    devices: int,
    options: tuple[str, ...],
    system: str | None,
    warmup: int,
    steps: int,
    time_limit_s: float,
    log: Path | None,
    as_json: bool,
) -> None:
    """Run NAME once on this machine, without Slurm and fabric, and show its results.

    Exits with 1 when the run is not ok. Nothing is recorded.
    """
    import tempfile

    from campaign.cli.cluster import read_system_file
    from campaign.cli.terminal import following
    from campaign.errors import unwritable
    from campaign.run.try_workload import Wish, find_workload, run_once

    found = find_workload(name)
    wish = Wish(batch, precision, devices, 1, dict(map(_option, options)), warmup, steps, time_limit_s)
    log = log or Path(tempfile.mkdtemp(prefix="campaign-try-")) / f"{found.model.name}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        raise unwritable(error, log) from error
    with following(found.model.name, log):
        tried = run_once(found, wish, read_system_file(system) if system else None, log)
    _show_result(tried, as_json)


@workload.command()
@click.argument("name", metavar="NAME|PARSER")
@click.argument("log", metavar="LOGFILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--ranks", type=_COUNT, help="Ranks of the run, if the log does not tell.")
@click.option("--hosts", type=_COUNT, help="Hosts of the run.")
@click.option("--batch", type=_COUNT, help="Samples a device took in one step.")
@click.option("--precision", help="Number format. Default: the first that the workload names.")
@click.option("--warmup", type=_WARMUP, help="Steps before the measurement.")
@click.option("--steps", type=_STEPS, help="Steps that were timed.")
@_json_option
def parse(
    name: str,
    log: Path,
    ranks: int | None,
    hosts: int | None,
    batch: int | None,
    precision: str | None,
    warmup: int | None,
    steps: int | None,
    as_json: bool,
) -> None:
    """Read a saved LOGFILE with the parser of workload NAME, or with a built-in PARSER. Nothing is run.

    Exits with 1 when the status of the run is not ok.
    """
    from campaign.run.try_workload import read_saved
    from campaign.workloads.parsers import Scope

    batch_global = batch * ranks if batch is not None and ranks is not None else None
    scope = Scope(ranks, hosts, batch, batch_global, warmup, steps)
    _show_result(read_saved(name, log, scope, precision), as_json)


def _show_result(found: Found, as_json: bool) -> None:
    from campaign.cli.workload_result import show_result

    if as_json:
        click.echo(json.dumps(found.document(), indent=1))
    else:
        show_result(found)
    if found.outcome.status != "ok":
        sys.exit(1)


def _option(text: str) -> tuple[str, Scalar]:
    import yaml

    from campaign.errors import ConfigError

    key, equals, value = text.partition("=")
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        read = value
    if not key or not equals:
        raise ConfigError(f"--option {text}: write KEY=VALUE, as in --option image_px=64")
    return key, read if isinstance(read, str | int | float | bool) else value

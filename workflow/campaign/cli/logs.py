"""The command `campaign logs`: why runs failed or are missing, where their logs are, and the last lines of these."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from campaign.cli.options import add_source_options, build_format_option
from campaign.cli.source import find_results, is_archive
from campaign.cli.terminal import print_json, print_text
from campaign.common.errors import ConfigError
from campaign.common.files import open_regular
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.spec.readings import REREAD_FLAG
from campaign.spec.record import Record, RecordStore
from campaign.spec.run_numbers import format_run_number, get_composition_number, get_number_in_composition
from campaign.workloads.log_reader import strip_terminal_codes

_TAIL_BYTES = 64 * 1024
_MAX_RUNS_PER_GROUP = 5  # runs of a group whose logs are listed


@click.command()
@add_source_options()
@click.option(
    "--of",
    "wanted",
    metavar="NAME",
    multiple=True,
    help="Show all runs, including valid ones, of this configuration, workload, lease ('1x2-fabric.c1') or cell (first digits of "
    "its id). May be repeated.",
)
@click.option(
    "--lines", type=click.IntRange(0, 10_000), default=10, help="Number of lines shown from the end of each log."
)
@build_format_option("table", "json")
def logs(campaign: Path, results: Path, wanted: tuple[str, ...], lines: int, style: str) -> None:
    """Show why runs failed or are missing, where their logs are, and the last lines of these.

    Runs that failed for the same reason are shown together, with the log of the first one. An archive contains no logs, so the
    recorded evidence is shown instead.

    \b
    campaign logs my-campaign.yaml
    campaign logs results/first --of 1x2-fabric.c1 --lines 40
    """
    paths = find_results(campaign, results)
    runs = list(_select_runs(paths, wanted))
    if wanted and not runs:
        raise ConfigError(f"--of {', '.join(wanted)}: no run with a record matches; 'campaign status' lists the leases")
    missing = [] if wanted else list(_find_incomplete_leases(paths, lines))
    if style == "json":
        print_json({"runs": [_build_run_document(run, paths, lines) for run in runs], "missing": missing})
        return
    for group in _group_runs(runs, separately=bool(wanted)):
        _print_group(group, paths, lines)
    for entry in missing:
        print_text(entry["why"], "bold")
        _print_tail(entry["log"], entry["end"])
    if not is_archive() and (failed_runs := [run for run in runs if run.status not in ("ok", "implied")]):
        print_text(f"to measure the failed runs again: {_build_redo_command(campaign, results, failed_runs)}")
    if not runs and not missing:
        print_text(f"{paths.directory}: no run failed, and no attempted run is missing; --of shows the logs of any run")


def _select_runs(results: Results, names: Sequence[str]) -> Iterator[Record]:
    """Yield the failed runs, or the runs with one of the given names, in the order in which they ended.

    Args:
        results: results of the campaign.
        names: names of configurations, workloads or leases, or first digits of cell ids; empty for failed runs.
    """
    for record in sorted(RecordStore(results.directory), key=lambda record: record.ended):
        lease = _get_lease_name(record)
        cell = record.cell
        if names:
            if any(
                name in (cell.configuration, cell.workload, lease)
                or f"{record.cell_id}.{record.repetition}".startswith(name)
                for name in names
            ):
                yield record
        elif record.status not in ("ok", "implied"):
            yield record


def _get_lease_name(record: Record) -> str:
    """Return the name of a run's lease.

    It is the directory of its log. Without a log, it is derived from configuration and composition.
    """
    return Path(record.log).parent.name or f"{record.cell.configuration}.c{get_composition_number(record.repetition)}"


def _group_runs(runs: Iterable[Record], *, separately: bool) -> list[list[Record]]:
    """Group runs that failed with the same status and reason. `separately` puts each run in its own group."""
    groups: dict[object, list[Record]] = {}
    for run in runs:
        groups.setdefault(run.key if separately else (run.status, _get_failure_reason(run)), []).append(run)
    return list(groups.values())


def _build_redo_command(campaign: Path, results: Path, runs: Sequence[Record]) -> str:
    """Build the command that sets failed runs aside: a single one by its numbers, several by the names of their cells."""
    words = ["campaign", "redo", str(campaign), "--failed"]
    if not campaign.is_dir() and results != Path("results"):
        words += ["--results", str(results)]
    if len(runs) == 1:
        number = runs[0].repetition
        words += [
            "--where",
            f"cell == '{runs[0].cell_id}' and composition == {get_composition_number(number)} and run == "
            f"{get_number_in_composition(number)}",
        ]
    return shlex.join(words)


def _get_failure_reason(run: Record) -> str:
    """Return the reason why a run failed, or an empty string."""
    return run.failure.reason if run.failure else ""


def _describe_run(run: Record) -> str:
    """Return a line that identifies a run by lease, workload, batch, precision, options and number."""
    cell = run.cell
    options = "".join(f" · {name} {value}" for name, value in cell.options.items())
    number = format_run_number(run.repetition)
    return f"{_get_lease_name(run)} · {cell.workload} · batch {cell.batch} · {cell.precision}{options} · {number}"


def _print_group(runs: Sequence[Record], results: Results, lines: int) -> None:
    """Print a group of runs with the same outcome, the paths of their logs, and the end of the first log."""
    first = runs[0]
    count_text = f"{pluralize(len(runs), 'run')}: " if len(runs) > 1 else ""
    print_text(
        f"{count_text}{first.status}{': ' if _get_failure_reason(first) else ''}{_get_failure_reason(first)}", "bold"
    )
    for run in runs[:_MAX_RUNS_PER_GROUP]:
        log = results.directory / run.log
        log_text = (
            "nothing was started, so there is no log"
            if not run.log
            else log
            if log.exists()
            else "the log is not available here"
        )
        reading_note = "; read again by 'campaign parse'" if REREAD_FLAG in run.flags else ""
        print_text(f"  {_describe_run(run)}: {log_text}{reading_note}")
        if run.flags:
            print_text(f"    flags: {'; '.join(run.flags)}")
    if len(runs) > _MAX_RUNS_PER_GROUP:
        print_text(f"  ... and {len(runs) - _MAX_RUNS_PER_GROUP} more; --of CONFIGURATION shows all")
    document = _build_run_document(first, results, lines)
    _print_tail("", document["end"] or (first.failure.evidence.splitlines() if first.failure else []))


def _print_tail(log: str | None, end: Sequence[str]) -> None:
    """Print the path of a log, if there is one, and its last lines."""
    print_text("\n".join([*([f"  {log}"] if log else []), *(f"    | {line}" for line in end)]) + "\n")


def _build_run_document(run: Record, results: Results, lines: int) -> dict[str, Any]:
    """Build the JSON-serialisable description of a run, with the last lines of its log."""
    path = results.directory / run.log if run.log else None
    return {
        "cell": run.cell_id,
        "repetition": run.repetition,
        "lease": _get_lease_name(run),
        "run": _describe_run(run),
        "status": str(run.status),
        "why": _get_failure_reason(run),
        "evidence": run.failure.evidence if run.failure else "",
        "hosts": list(run.hosts),
        "flags": list(run.flags),
        "loads": [load.model_dump() for load in run.loads],
        "log": path and str(path),
        "end": _read_tail(path, lines) if path else [],
    }


def _find_incomplete_leases(results: Results, lines: int) -> Iterator[dict[str, Any]]:
    """Yield the attempted leases that have runs without a record, with the reason and their log."""
    from campaign.report.campaign_summary import list_missing_reasons

    for reason in (
        list_missing_reasons(results.directory) if results.manifests.is_dir() and results.plan_file.exists() else ()
    ):
        lease = reason.partition(":")[0]
        log_paths = sorted((results.logs / "measure").rglob(f"{lease}*.log"), key=lambda path: path.stat().st_mtime)
        log = log_paths[-1] if log_paths else None
        yield {"lease": lease, "why": reason, "log": log and str(log), "end": _read_tail(log, lines) if log else []}


def _read_tail(path: Path, lines: int) -> list[str]:
    """Return the last non-empty lines of a log without control sequences, or an empty list if the log cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = strip_terminal_codes(file.read()).decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:] if lines else []

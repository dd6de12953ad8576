"""The command `campaign logs`: why runs failed or are missing, where their logs are, and how these end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from campaign.cli.options import format_option, source_options
from campaign.cli.source import results_of
from campaign.cli.terminal import say, show_json
from campaign.common.errors import ConfigError
from campaign.common.files import open_regular
from campaign.common.paths import Results
from campaign.common.wording import plural
from campaign.spec.readings import READ_AGAIN
from campaign.spec.record import Record, Store
from campaign.spec.run_numbers import composition_of
from campaign.workloads.log_reader import plain

_TAIL_BYTES = 64 * 1024
_PATHS = 5  # runs of a group whose logs are listed


@click.command()
@source_options()
@click.option(
    "--of",
    "wanted",
    metavar="NAME",
    multiple=True,
    help="Each run, also a valid one, of this configuration, workload, lease ('1x2-fabric.c1') or cell (first digits of its id). "
    "May be repeated.",
)
@click.option("--lines", type=click.IntRange(0, 10_000), default=10, help="Lines shown of the end of each log.")
@format_option("table", "json")
def logs(campaign: Path, results: Path, wanted: tuple[str, ...], lines: int, style: str) -> None:
    """Show why runs failed or are missing, where their logs are, and how these end.

    Runs that failed for the same reason are shown together, with the log of the first one. An archive holds no logs: the evidence
    that was recorded is shown in their place.

    \b
    campaign logs my-campaign.yaml
    campaign logs results/first --of 1x2-fabric.c1 --lines 40
    """
    place = results_of(campaign, results)
    runs = list(_runs(place, wanted))
    if wanted and not runs:
        raise ConfigError(
            f"--of {', '.join(wanted)}: no run of this name has a record; 'campaign status' lists the leases"
        )
    missing = [] if wanted else list(_missing(place, lines))
    if style == "json":
        show_json({"runs": [_document(run, place, lines) for run in runs], "missing": missing})
        return
    for alike in _groups(runs, apart=bool(wanted)):
        _show(alike, place, lines)
    for each in missing:
        say(each["why"], "bold")
        _show_tail(each["log"], each["end"])
    if not runs and not missing:
        say(f"{place.directory}: no run failed, and none that was tried is missing; --of shows the logs of any run")


def _runs(results: Results, wanted: Sequence[str]) -> Iterator[Record]:
    """Yield the failed runs, or the runs with one of the given names, in the order in which they ended.

    Args:
        results: results of the campaign.
        names: names of configurations, workloads or leases, or first digits of cell ids; empty for failed runs.
    """
    for record in sorted(Store(results.directory), key=lambda record: record.ended):
        lease = _lease(record)
        cell = record.cell
        if wanted:
            if any(name in (cell.configuration, cell.workload, lease) or f"{record.cell_id}.{record.repetition}".startswith(name)
                   for name in wanted):  # fmt: skip
                yield record
        elif record.status not in ("ok", "implied"):
            yield record


def _lease(record: Record) -> str:
    """Return the name of a run's lease.

    It is the directory of its log. Without a log, it is derived from configuration and composition.
    """
    return Path(record.log).parent.name or f"{record.cell.configuration}.c{composition_of(record.repetition)}"


def _groups(runs: Iterable[Record], *, apart: bool) -> list[list[Record]]:
    """Group runs that failed with the same status and reason. `separately` puts each run in a group of its own."""
    groups: dict[object, list[Record]] = {}
    for run in runs:
        groups.setdefault(run.key if apart else (run.status, _why(run)), []).append(run)
    return list(groups.values())


def _why(run: Record) -> str:
    """Return the reason why a run failed, or an empty string."""
    return run.failure.reason if run.failure else ""


def _words(run: Record) -> str:
    """Return a line that identifies a run by lease, workload, batch, precision, options and number."""
    cell = run.cell
    options = "".join(f" · {name} {value}" for name, value in cell.options.items())
    return f"{_lease(run)} · {cell.workload} · batch {cell.batch} · {cell.precision}{options} · run {run.repetition}"


def _show(runs: Sequence[Record], results: Results, lines: int) -> None:
    """Print a group of runs that ended alike, the paths of their logs, and the end of the first log."""
    first = runs[0]
    about = f"{plural(len(runs), 'run')}: " if len(runs) > 1 else ""
    say(f"{about}{first.status}{': ' if _why(first) else ''}{_why(first)}", "bold")
    for run in runs[:_PATHS]:
        log = results.directory / run.log
        where = (
            "nothing was started, so there is no log" if not run.log else log if log.exists() else "its log is not here"
        )
        again = "; read again by 'campaign parse'" if READ_AGAIN in run.flags else ""
        say(f"  {_words(run)}: {where}{again}")
    if len(runs) > _PATHS:
        say(f"  ... and {len(runs) - _PATHS} more; --of CONFIGURATION shows each")
    shown = _document(first, results, lines)
    _show_tail("", shown["end"] or (first.failure.evidence.splitlines() if first.failure else []))


def _show_tail(log: str | None, end: Sequence[str]) -> None:
    """Print the path of a log, if there is one, and its last lines."""
    say("\n".join([*([f"  {log}"] if log else []), *(f"    | {line}" for line in end)]) + "\n")


def _document(run: Record, results: Results, lines: int) -> dict[str, Any]:
    """Build the JSON-serialisable description of a run, with the last lines of its log."""
    path = results.directory / run.log if run.log else None
    return {
        "cell": run.cell_id, "repetition": run.repetition, "lease": _lease(run), "run": _words(run), "status": str(run.status),
        "why": _why(run), "evidence": run.failure.evidence if run.failure else "", "hosts": list(run.hosts),
        "log": path and str(path), "end": _tail(path, lines) if path else [],
    }  # fmt: skip


def _missing(results: Results, lines: int) -> Iterator[dict[str, Any]]:
    """Yield the leases that were tried and have runs without a record, with the reason and their log."""
    from campaign.report.campaign_summary import missing_reasons

    for why in (
        missing_reasons(results.directory) if results.manifests.is_dir() and results.plan_document.exists() else ()
    ):
        lease = why.partition(":")[0]
        found = sorted((results.logs / "measure").rglob(f"{lease}*.log"), key=lambda path: path.stat().st_mtime)
        log = found[-1] if found else None
        yield {"lease": lease, "why": why, "log": log and str(log), "end": _tail(log, lines) if log else []}


def _tail(path: Path, lines: int) -> list[str]:
    """Return the last non-empty lines of a log without control sequences, or an empty list if the log cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = plain(file.read()).decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:] if lines else []

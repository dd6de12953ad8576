"""The commands of `campaign fabric`, which check and emulate the control plane of a site."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from campaign.cli.cluster import read_system_file
from campaign.cli.echo import confirm, echo
from campaign.cli.options import PATH, FiniteNumber, build_format_option, build_output_option, results_option
from campaign.cli.terminal import print_json
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.common.processes.signals import raise_on_ending_signal
from campaign.common.wording import escape_control_characters, pluralize
from campaign.emulators.serve_control_plane import EmulatorRequest, serve_control_plane
from campaign.lease import check_site as sites
from campaign.lease import record_site
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import collect_operation_times
from campaign.lease.fenced_devices import FENCE_LIFETIME_S
from campaign.spec.operation_times import OPERATIONS

_VERDICT_MARKS = {
    "ok": ("ok  ", "green"),
    "note": ("note", "yellow"),
    "problem": ("FAIL", "red"),
    "stop": ("FAIL", "red"),
}


@click.group()
def fabric() -> None:
    """Check a site's fabric, release what a crash left behind, or start an emulated fabric.

    SYSTEM is a system file, or its name under config/systems.
    """


def _load_site(system: str, results: Path) -> Site:
    """Load the site of a system file and its results."""
    return Site(read_system_file(system), results)


@fabric.command()
@click.argument("system")
@results_option
@click.option("--yes", is_flag=True, help="Compose and release one free device without asking.")
@click.option("--look-only", is_flag=True, help="Only read. No device is composed.")
@raise_on_ending_signal()
def check(system: str, results: Path, yes: bool, look_only: bool) -> None:
    """Check whether SYSTEM's control plane is reachable and matches its system file.

    The command first only reads. After a question, it composes one free device onto a free host, releases it, and prints the
    durations. Exits with 1 if something must be fixed. 'campaign check' makes the same checks without composing, and also checks
    hosts, Slurm and the results directory.
    """
    site = _load_site(system, results)
    problems, notes = print_findings(sites.check_fabric(site))
    if problems:
        echo(f"\nNot ready: {pluralize(problems, 'problem')} to fix first; nothing was changed.")
        sys.exit(1)
    if not look_only and (yes or confirm("\nCompose one free device onto a free host, and release it?")):
        trial_problems, trial_notes = print_findings(sites.run_trial(site, echo))
        problems, notes = problems + trial_problems, notes + trial_notes
        outcome = "one device was composed and released"
    else:
        outcome = "nothing was composed, so it is unknown whether this account may compose"
    if problems:
        echo(f"\nNot ready: {pluralize(problems, 'problem')} to fix.")
        sys.exit(1)
    echo(f"\nReady{format_note_count(notes)}: {outcome}.")


def format_note_count(count: int) -> str:
    """Return ', with 1 note to read' for this number of notes, or an empty string for none."""
    return f", with {pluralize(count, 'note')} to read" if count else ""


def print_findings(findings: Iterable[sites.Finding]) -> tuple[int, int]:
    """Print findings as they arrive. Return the number of problems and the number of notes."""
    counts = dict.fromkeys(_VERDICT_MARKS, 0)
    for finding in findings:
        mark, colour = _VERDICT_MARKS[finding.verdict]
        click.echo(click.style(mark, fg=colour), nl=False)
        echo(f"  {finding.what:<10} {finding.words}")
        counts[finding.verdict] += 1
    return counts["problem"] + counts["stop"], counts["note"]


@fabric.command()
@click.argument("system")
@results_option
@build_output_option("Recording to write. Default: SYSTEM-recording.yaml.")
@click.option("--trial", nargs=2, metavar="DEVICE HOST",
              help="Also attach this device (its id on the fabric) to this host, and detach it.")  # fmt: skip
@click.option("--keep", multiple=True, metavar="WORD", help="Do not replace this word. May be repeated.")
@click.option("--yes", is_flag=True, help="Write the file without asking.")
@raise_on_ending_signal()
def record(
    system: str, results: Path, output: Path | None, trial: tuple[str, str] | None, keep: tuple[str, ...], yes: bool
) -> None:
    """Record the requests to SYSTEM's control plane and its answers in an anonymised file, for the authors of its adapter.

    Without --trial, the command only reads. Names, addresses, serial numbers and all other words outside a known interface are
    replaced, each always by the same word. Passwords and tokens are masked. The list of replaced words is shown before the file is
    written. 'campaign fabric emulate FILE' answers requests from the file.
    """
    site = _load_site(system, results)
    recording = record_site.record_site(site, keep, trial, echo)
    problems, _ = print_findings(recording.findings)
    exchanges = recording.document["exchanges"]
    echo(f"\n{pluralize(len(exchanges), 'request')} recorded. Replaced words:")
    for word, stand_in in {**recording.anonymizer.addresses, **recording.anonymizer.stand_ins}.items():
        echo(f"  {word} -> {stand_in}")
    path = output or Path(f"{site.system.name}-recording.yaml")
    if yes or confirm(f"\n{'Replace' if path.exists() else 'Write'} {path}?", default=not path.exists()):
        path.write_text(yaml.safe_dump(recording.document, sort_keys=False, width=120, allow_unicode=True), "utf-8")
        echo(f"{path}: read this file before you send it to anyone")
    if problems:
        sys.exit(1)


@fabric.command()
@click.argument("system")
@results_option
@click.option(
    "--lift", metavar="DEVICE", help="Use this device again now. DEVICE is its id on the fabric, or its UUID."
)
@build_format_option("table", "json")
def fences(system: str, results: Path, lift: str | None, style: str) -> None:
    """List the devices of SYSTEM that failed during runs and are excluded for a day. Use one again with --lift.

    A device is fenced after an uncorrectable memory error, after an Xid that no program can cause, or after its host has lost it.
    After an illegal access, which a program can also cause, it is fenced until the run has failed the same way on another device.
    """
    fenced_devices = _load_site(system, results).fenced_devices
    if lift is not None:
        echo(f"no longer fenced: {fenced_devices.lift_by_name(lift).describe()}")
        return
    active_fences = fenced_devices.read_active()
    if style == "json":
        print_json([fence.model_dump() for fence in active_fences])
    for fence in active_fences if style == "table" else ():
        ends = time.strftime("%F %R", time.localtime(fence.time_s + FENCE_LIFETIME_S))
        echo(f"{fence.describe()}; until {ends}")
    if not active_fences and style == "table":
        echo("no device is fenced")


@fabric.command()
@click.argument("system")
@results_option
@click.option("--release", "releases", is_flag=True, help="Release the listed leases.")
@click.option("--grace", "grace_s", type=FiniteNumber(0), default=600.0, metavar="SECONDS",
              help="Skip leases that were active within this time.")  # fmt: skip
@click.option(
    "--unjournaled",
    is_flag=True,
    help="Also list this program's leases that have no journal here, e.g. because a results directory was lost.",
)
@click.option("--of", "owners", multiple=True, metavar="OWNER",
              help="With --unjournaled: release leases of this owner, who must not be using them. May be repeated.")  # fmt: skip
@click.option(
    "--force",
    is_flag=True,
    help="Detach devices even if a process on their host uses them and will fail, or if the host does not respond.",
)
@build_format_option("table", "json")
@raise_on_ending_signal()
def reconcile(
    system: str,
    results: Path,
    releases: bool,
    grace_s: float,
    unjournaled: bool,
    owners: tuple[str, ...],
    force: bool,
    style: str,
) -> None:
    """List the leases that a crash left behind on SYSTEM's fabric, and release them with --release.

    Devices that a lease took from a host are attached to that host again. Leases of other owners are listed but never changed.
    """
    if owners and not unjournaled:
        raise ConfigError(f"--of {owners[0]} selects leases without a journal; add --unjournaled")
    orphans, foreign, reattachments = sites.clean_up_site(
        _load_site(system, results),
        dry_run=not releases,
        grace_s=grace_s,
        unjournaled_owners=owners if unjournaled else None,
        force=force,
    )
    if style == "json":
        print_json({"orphans": [asdict(orphan) for orphan in orphans], "not_changed": foreign, "away": reattachments})
    for orphan in orphans if style == "table" else ():
        device_names = ", ".join(orphan.devices) or "no device"
        echo(
            f"{orphan.lease_id} of {orphan.owner}: {orphan.outcome.replace('_', ' ')}: {device_names}"
            + (f" ({orphan.message})" if orphan.message else "")
        )
    for line in reattachments if style == "table" else ():
        echo(f"{'attached again' if releases else 'would attach again'}: {line}")
    for line in foreign if style == "table" else ():
        echo(f"not changed, held by {line}")
    if not orphans and style == "table":
        echo("no lease was left behind")
    if any(orphan.outcome in ("leaked", "failed") for orphan in orphans):
        sys.exit(1)


@fabric.command()
@click.argument("system")
@results_option
@build_output_option("Output file. Default: standard output.")
def times(system: str, results: Path, output: Path | None) -> None:
    """Collect the durations of operations on SYSTEM's fabric from the journals of its leases.

    A plan uses the file to forecast composing times if the system file names it: `times: FILE`.
    """
    operation_times = collect_operation_times(_load_site(system, results))
    text = yaml.safe_dump(operation_times.document(), sort_keys=False, default_flow_style=None, width=120)
    if output is None:
        click.echo(escape_control_characters(text), nl=False)
        return
    output.write_text(text, encoding="utf-8")
    for operation in OPERATIONS:
        if seconds := operation_times.select_seconds(operation):
            low, middle, high = (
                wording.format_seconds(operation_times.quantile(share, operation)) for share in (0.05, 0.5, 0.95)
            )
            echo(f"{operation.replace('_', ' ')}: {len(seconds)} times, median {middle} (5 to 95 %: {low} to {high})")
    echo(output)


@fabric.command()
@click.argument("kind")
@click.option("--directory", type=PATH, help="Directory for the emulator's files. Default: campaign-emulator-KIND.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=False,
    help="Port on the loopback interface. Default: any free port.",
)
@click.option("--host", "hosts", default="host[1-4]", help="Names of the hosts, as in a system file.")
@click.option("--device", "devices", multiple=True, metavar="KIND:MODEL:COUNT",
              help="Pooled devices. May be repeated. Default: gpu:cpu-rank:14 and nvme:nvme-4tb:2.")  # fmt: skip
@click.option("--fault", "faults", multiple=True, metavar="KIND,METHOD,PATH[,TIMES]",
              help="Network fault to inject, e.g. 'drop_after,POST,/redfish/*,1'. May be repeated.")  # fmt: skip
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE",
              help="Option of the emulator, e.g. 'factor=0.1' for h3. For other kinds, 'times=h3' makes operations take "
                   "the recorded times of Falcon boxes, multiplied by 'factor'. May be repeated.")  # fmt: skip
def emulate(
    kind: str,
    directory: Path | None,
    port: int,
    hosts: str,
    devices: tuple[str, ...],
    faults: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    """Start an emulated control plane of KIND (h3, liqid or redfish) on this machine. Ctrl-C stops it.

    It is an HTTP server that composes as the vendor's control plane does, but without hardware. It writes a system file that
    describes it. KIND may also be a file from 'campaign fabric record'. Requests are then answered from the recording.
    """
    directory = directory or Path(f"campaign-emulator-{Path(kind).stem}")
    serve_control_plane(EmulatorRequest(kind, directory, port, hosts, devices, faults, options), echo)

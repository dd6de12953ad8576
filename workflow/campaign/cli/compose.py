"""The commands that list hardware and compose by hand: `campaign systems`, `inventory`, `compose`, `release` and `verify`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from campaign.cli.echo import echo
from campaign.cli.options import (
    add_source_options,
    build_dry_run_option,
    build_format_option,
    campaign_argument,
    campaign_option,
    name_option,
    results_option,
)
from campaign.cli.source import resolve_source
from campaign.cli.terminal import TextTable, build_table_from_rows, print_json, print_tables, print_text
from campaign.common.errors import CampaignError, ConfigError
from campaign.common.paths import Results
from campaign.common.processes.signals import raise_on_ending_signal
from campaign.common.wording import pluralize
from campaign.lease import manual
from campaign.plan.campaign.load import list_config_directories, validate
from campaign.run import check_results
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import read_yaml

_MAX_PROBLEMS = 20


@click.command()
@campaign_argument
@build_format_option("table", "json")
def systems(campaign: Path, style: str) -> None:
    """List the systems that a campaign can name.

    They are in systems/ next to CAMPAIGN, above it, in config/, and in the package.
    """
    rows: list[dict[str, object]] = []
    for directory in list_config_directories(campaign):
        for path in sorted((directory / "systems").glob("*.yaml")):
            if all(row["system"] != path.stem for row in rows):
                rows.append(_build_system_row(path))
    if style == "json":
        print_json(rows)
    else:
        print_tables(replace(build_table_from_rows("Systems", rows), optional_columns=("description",)), max_rows=None)


def _build_system_row(path: Path) -> dict[str, object]:
    """Build the table row of a system file with its fabric, hosts and devices, or with the error if the file is invalid."""
    file = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    try:
        system = validate(read_yaml(path), SystemFile, path.stem)
    except CampaignError as error:
        message = str(error).partition("\n")[0]
        return {
            "system": path.stem,
            "fabric": "invalid",
            "hosts": "",
            "devices": "",
            "description": message,
            "file": str(path),
        }
    host_devices = sum(device.count * len(group.list_names()) for group in system.hosts for device in group.devices)
    pooled_devices = sum(entry.count for entry in system.pool if entry.kind == "gpu")
    return {
        "system": system.name,
        "fabric": str(system.fabric["kind"]),
        "hosts": sum(len(group.list_names()) for group in system.hosts),
        "devices": f"{host_devices} + {pooled_devices} pooled" if pooled_devices else str(host_devices),
        "description": system.description,
        "file": file,
    }


@click.command()
@click.argument("configuration")
@add_source_options(changes_results=True)
@campaign_option
@click.option(
    "--hosts",
    metavar="HOST,HOST..",
    default="",
    show_default=False,
    help="Hosts to compose onto. Default: any that fit.",
)
@name_option
@build_dry_run_option("Only print the exact requests to the fabric. Nothing is changed.")
@raise_on_ending_signal()
def compose(
    configuration: str, campaign: Path, option: Path | None, results: Path, hosts: str, name: str | None, dry_run: bool
) -> None:
    """Compose one CONFIGURATION of CAMPAIGN by hand, and keep it until 'campaign release'.

    Campaigns wait for devices that are held this way.
    """
    arguments = option or campaign, results, configuration, tuple(filter(None, hosts.split(","))), name
    if dry_run:
        echo("\n".join(manual.rehearse_compose(*arguments)))
        return
    lease = manual.compose_kept_lease(*arguments)
    rows = [
        (host["name"], device["fabric_id"], device["model"], device["location"])
        for host in lease["obtained"]["hosts"]
        for device in (*host["devices"], *host["storage"])
    ]
    print_tables(TextTable(lease["lease_id"], ["host", "device", "model", "location"], rows))
    times = lease["times"]
    print_text(f"composed in {times['ready_s'] - times['requested_s']:.2f} s, {lease['operations']} operations")
    for mismatch in lease["mismatches"]:
        print_text(f"differs from the request: {mismatch}")


@click.command()
@click.argument("configuration", required=False)
@add_source_options(changes_results=True)
@campaign_option
@click.option(
    "--orphans", is_flag=True, help="Release the leases that dead processes left behind, instead of a configuration."
)
@build_dry_run_option("With --orphans: only list these leases.")
@name_option
@raise_on_ending_signal()
def release(
    configuration: str | None,
    campaign: Path,
    option: Path | None,
    results: Path,
    orphans: bool,
    dry_run: bool,
    name: str | None,
) -> None:
    """Release a CONFIGURATION of CAMPAIGN that 'campaign compose' keeps.

    'campaign release --orphans CAMPAIGN' instead releases the leases that dead processes left behind.
    """
    campaign = option or campaign
    if orphans and configuration is not None:
        campaign, configuration = Path(configuration), None
    elif not orphans and configuration is None:
        raise ConfigError("give a configuration, or --orphans")
    if configuration is not None:
        echo(manual.release_kept_lease(campaign, results, configuration, name))
        return
    lines = manual.release_orphans(campaign, results, dry_run=dry_run)
    echo("\n".join(lines) or "no lease was left behind")


@click.command()
@add_source_options()
@build_format_option("table", "json")
def inventory(campaign: Path, results: Path, style: str) -> None:
    """List the hosts and devices that the fabric of a system reports now, and who holds them.

    CAMPAIGN may also be a system file. 'campaign verify' compares the held devices with the requested ones.
    """
    system, capabilities, fabric_inventory = manual.read_inventory(campaign, results)
    if style == "json":
        print_json({"system": system, "capabilities": asdict(capabilities), **asdict(fabric_inventory)})
        return
    hosts = [(h.name, h.cores, h.memory_gib, ", ".join(h.ports), h.holder) for h in fabric_inventory.hosts]
    devices = [
        (d.fabric_id, d.kind, d.model, d.location, d.attached_to, d.state, d.health, d.holder)
        for d in fabric_inventory.devices
    ]
    columns = ["device", "kind", "model", "location", "attached to", "state", "health", "held by"]
    numbers = ["cores", "memory GiB"]
    print_tables(
        TextTable(f"Hosts of {system}", ["host", *numbers, "ports", "held by"], hosts, numbers),
        TextTable("Devices", columns, devices),
    )
    status_text = "" if capabilities.verified else "UNVERIFIED against a real control plane"
    print_text("; ".join(filter(None, (f"attach: {capabilities.attach_mode}", status_text, capabilities.note))))


_VISIBILITY_TEXTS = {True: "yes", False: "NO", None: "not checked"}


@click.command()
@campaign_argument
@results_option
@build_format_option("table", "json")
def verify(campaign: Path, results: Path, style: str) -> None:
    """Check every device of the held compositions on the fabric and on its host, and list what is wrong.

    CAMPAIGN is a campaign file or a system file. For the results directory of a campaign, or an archive, the command instead checks
    every record, lease, journal and plan. Exits with 1 if a device is missing, broken, or not the requested one, or if a file is
    damaged.
    """
    path = campaign
    campaign, results = resolve_source(campaign, results)
    if campaign.is_dir():
        _verify_results(path, Results.from_directory(campaign.absolute()))
        return
    leases = manual.verify_compositions(campaign, results)
    if style == "json":
        print_json(leases)
    elif not leases:
        print_text("no composition is held")
    is_valid = True
    for lease in leases:
        is_visible = all(d["host_sees"] is not False and d["health"] != "critical" for d in lease["devices"])
        is_valid = is_valid and is_visible and not lease["mismatches"] and lease["live"]
        if style == "json":
            continue
        owner = f"{lease['owner']}, campaign {lease['campaign']}, {'live' if lease['live'] else 'WITHOUT OWNER'}"
        rows = [
            (d["host"], d["device"], d["model"], d["location"], _VISIBILITY_TEXTS[d["host_sees"]], d["health"])
            for d in lease["devices"]
        ]
        columns = ["host", "device", "model", "location", "visible to host", "health"]
        title = f"{lease['lease']} ({owner})"
        if not rows:
            print_text(f"{title}: no device")
        print_tables(TextTable(title, columns, rows))
        for mismatch in lease["mismatches"]:
            print_text(f"differs from the request: {mismatch}")
    if not is_valid:
        sys.exit(1)


def _verify_results(path: Path, results: Results) -> None:
    """Check all files of a results directory, print their problems, and exit with 1 if there are any."""
    problems = list(check_results.find_problems(results))
    for problem in problems[:_MAX_PROBLEMS]:
        echo(problem, fg="red", err=True)
    if problems:
        more_text = f", of which {len(problems) - _MAX_PROBLEMS} are not shown" if len(problems) > _MAX_PROBLEMS else ""
        echo(f"{path}: {pluralize(len(problems), 'problem')}{more_text}", err=True)
        sys.exit(1)
    print_text(f"{path}: every record, lease, journal and plan is intact")

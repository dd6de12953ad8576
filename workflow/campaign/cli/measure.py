"""`campaign measure`: one lease, from composing to releasing."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from campaign.documents.lease_plan import LeasePlan
    from campaign.paths import Results


@click.command()
@click.argument("lease", type=click.Path(path_type=Path), metavar="LEASE.json")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Directory of all results. Default: the one that LEASE.json is in; 'results' for a file from elsewhere.",
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    help="File that says which runs were measured. Default: the next one in manifests/ of the results.",
)
def measure(lease: Path, results: Path | None, manifest: Path | None) -> None:
    """Measure the runs of one lease that have no record: compose, submit a driver, wait, verify, release.

    LEASE.json is a file of plan/leases/, which 'campaign plan --write' makes. It holds everything that is needed: no campaign file
    is read. After an interruption, the same command measures what is missing.
    """
    from campaign.documents.lease_plan import read_lease_plan

    plan = read_lease_plan(lease)
    where = _results(lease, plan, results)
    out = manifest or _next_manifest(plan, where)
    _measure(plan, where, out, where.logs / plan.lease / f"measure.{out.stem}.log")


def _results(path: Path, plan: LeasePlan, given: Path | None) -> Results:
    from campaign.paths import Results

    if given is not None:
        return Results(given, plan.campaign)
    inside = Results(path.absolute().parent.parent.parent.parent, plan.campaign)
    return inside if inside.lease_plans == path.absolute().parent else Results(Path("results"), plan.campaign)


def _next_manifest(plan: LeasePlan, results: Results) -> Path:
    number = 1
    while (path := results.manifests / plan.lease / f"{plan.run_set}.{number}.json").exists():
        number += 1
    return path


def _measure(plan: LeasePlan, results: Results, manifest: Path, log: Path) -> None:
    """Measure, telling the terminal and the log; the manifest is written whole or not at all."""
    from campaign.errors import CampaignError
    from campaign.processes.signals import Interrupted
    from campaign.run.driver_supervisor import Left
    from campaign.run.measure_lease import measure

    def say(message: str) -> None:
        # A closed terminal or a full disk must not end what is measured: words are not worth it.
        with suppress(OSError):
            print(message, flush=True)
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(message + "\n")

    try:
        _write(measure(plan, results, say), manifest)
    except Left:
        sys.exit(f"{plan.lease}: its job was left in Slurm; the same command again picks it up")
    except Interrupted:
        sys.exit(f"{plan.lease}: stopped and released; the same command again goes on with what is missing")
    except CampaignError as error:
        say(f"error: {error}")
        sys.exit(1)


def _write(document: dict[str, Any], manifest: Path) -> None:
    from campaign.errors import unwritable
    from campaign.files import write_json

    try:
        write_json(manifest, document, indent=1)
    except OSError as error:
        raise unwritable(error, manifest) from error

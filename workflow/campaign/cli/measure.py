"""`campaign measure`: one lease, from composing to releasing."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from campaign.cli.options import PATH
from campaign.documents.lease_plan import LeasePlan, read_lease_plan
from campaign.errors import CampaignError, unwritable
from campaign.files import write_json
from campaign.paths import Results
from campaign.processes.signals import Interrupted
from campaign.run import measure_lease
from campaign.run.driver_supervisor import Left


@click.command()
@click.argument("lease", type=PATH, metavar="LEASE.json")
@click.option(
    "--results",
    "root",
    type=PATH,
    help="Directory of all results. Default: the one that LEASE.json is in; 'results' for a file from elsewhere.",
)
@click.option(
    "--manifest",
    type=PATH,
    help="File that says which runs were measured. Default: the next one in manifests/ of the results.",
)
def measure(lease: Path, root: Path | None, manifest: Path | None) -> None:
    """Measure the runs of one lease that have no record: compose, submit a driver, wait, verify, release.

    LEASE.json is a file of plan/leases/, which 'campaign plan --write' makes. It holds everything that is needed: no campaign file
    is read. After an interruption, the same command measures what is missing.
    """
    plan = read_lease_plan(lease)
    results = Results(root or lease.absolute().parent.parent.parent.parent, plan.campaign)
    if root is None and results.lease_plans != lease.absolute().parent:
        results = Results(Path("results"), plan.campaign)
    out = manifest or _next_manifest(plan, results)
    log = results.logs / plan.lease / f"measure.{out.stem}.log"

    def say(message: str) -> None:
        # A closed terminal or a full disk must not end what is measured: words are not worth it.
        with suppress(OSError):
            print(message, flush=True)
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(message + "\n")

    try:
        document = measure_lease.measure(plan, results, say)
        try:
            write_json(out, document, indent=1)  # whole or not at all
        except OSError as error:
            raise unwritable(error, out) from error
    except Left:
        sys.exit(f"{plan.lease}: its job was left in Slurm; the same command again picks it up")
    except Interrupted:
        sys.exit(f"{plan.lease}: stopped and released; the same command again goes on with what is missing")
    except CampaignError as error:
        say(f"error: {error}")
        sys.exit(1)


def _next_manifest(plan: LeasePlan, results: Results) -> Path:
    number = 1
    while (path := results.manifests / plan.lease / f"{plan.run_set}.{number}.json").exists():
        number += 1
    return path

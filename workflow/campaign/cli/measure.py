"""`campaign measure`: a lease, or all leases of a plan, from composing to releasing."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from campaign.cli.options import PATH
from campaign.documents.lease_plan import LeasePlan, read_lease_plan
from campaign.documents.plan import PLAN_SCHEMA, parse_plan, plan_json
from campaign.errors import CampaignError, unwritable
from campaign.files import read_json, write_atomic, write_json
from campaign.paths import Results
from campaign.processes.signals import Interrupted
from campaign.run import measure_lease
from campaign.run.driver_supervisor import Left
from campaign.run.measure_plan import Outcome, measure_plan, next_manifest
from campaign.wording import plural

_NAMED = 8


@click.command()
@click.argument("document", type=PATH, metavar="LEASE.json|PLAN.json")
@click.option(
    "--results",
    "root",
    type=PATH,
    help="Directory of all results. Default: the one that the file is in; 'results' for a file from elsewhere.",
)
@click.option(
    "--manifest",
    type=PATH,
    help="File that says which runs were measured; of a plan, it lists the manifests of the leases. Default: the next one in "
    "manifests/ of the results.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="all",
    help="Of a plan: cores that leases take on this machine, at most; with Slurm, leases that are under way.",
)
def measure(document: Path, root: Path | None, manifest: Path | None, cores: int) -> None:
    """Measure the runs that have no record: compose, submit a driver, wait, verify, release.

    LEASE.json is a file of plan/leases/, which 'campaign plan --write' makes. It holds everything that is needed: no campaign file
    is read. PLAN.json is plan/plan.json: all leases of the plan are measured, in its order. After an interruption, the same command
    measures what is missing.
    """
    if read_json(document).get("schema_version") == PLAN_SCHEMA:
        sys.exit(_plan(document, root, manifest, cores))
    plan = read_lease_plan(document)
    results = Results(root or document.absolute().parent.parent.parent.parent, plan.campaign)
    if root is None and results.lease_plans != document.absolute().parent:
        results = Results(Path("results"), plan.campaign)
    _lease(results, plan, manifest or next_manifest(results, plan.lease, plan.run_set))


def _plan(path: Path, root: Path | None, listing: Path | None, cores: int) -> str | None:
    """Measure the leases of a plan; gives what to say of those without a manifest."""
    planned = parse_plan(path, plan_json(path))
    results = Results(root or path.absolute().parent.parent.parent, planned.campaign)
    done = measure_plan(planned, path.parent, results, lambda *lease: _lease(results, *lease), cores)
    said = _outcome(done)
    if listing and not said:
        write_json(listing, {"manifests": [str(each.relative_to(results.directory)) for each in done.manifests]})
    if listing:
        with suppress(OSError):  # each lease has a log of its own, too
            write_atomic(results.logs / f"measure.{listing.stem}.log", f"{said or 'all leases are measured'}\n")
    return said or None


def _outcome(done: Outcome) -> str:
    """Leases without a manifest; empty where there is none."""
    if not done.failed and not done.left:
        return ""
    named = f": {', '.join(done.failed)}" if len(done.failed) <= _NAMED else ""
    said = [f"{plural(len(done.failed), 'lease')} without a manifest{named}"] if done.failed else []
    said += [f"{plural(done.left, 'lease')} not started"] if done.left else []
    return f"{'; '.join(said)}; the same command again measures what is missing"


def _lease(results: Results, plan: LeasePlan, out: Path, reconcile: bool = True, leave: bool = False) -> None:
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
        document = measure_lease.measure(plan, results, say, reconcile=reconcile, leave=leave)
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

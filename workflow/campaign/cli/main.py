"""The `campaign` command: what the rules do, one piece at a time, for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from campaign import __version__
from campaign.cli.archive import archive
from campaign.cli.cluster import cluster
from campaign.cli.compare import compare
from campaign.cli.fabric import fabric
from campaign.cli.figures import figures
from campaign.cli.import_logs import import_logs
from campaign.cli.init import init
from campaign.cli.measure import measure
from campaign.cli.options import (
    CAMPAIGN_FILE,
    budget_option,
    campaign_argument,
    campaign_option,
    format_option,
    implied_option,
    learn_option,
    name_option,
    results_option,
    where_option,
)
from campaign.cli.recommend import recommend
from campaign.cli.report import collect, report, summary
from campaign.cli.serve import serve
from campaign.cli.sql import sql
from campaign.cli.workload import workload
from campaign.errors import CampaignError, ConfigError


class _Group(click.Group):
    """Reports a CampaignError as one message, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except CampaignError as error:
            click.secho(f"error: {error}", err=True, fg="red")
            context.exit(1)


def _unquoted(where: str) -> str:
    """An expression as Snakemake leaves it alone: it takes quotes away from the ends of a value."""
    text = where.strip()
    return f"({text})" if text[-1:] in ("'", '"') or text[:1] in ("'", '"') else text


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="campaign")
def main() -> None:
    """Characterization campaigns on composable infrastructure.

    CAMPAIGN is a campaign file; config/campaign.yaml when left out. Start with 'campaign plan', which touches nothing.
    """


@main.command()
@campaign_argument
def validate(campaign: Path) -> None:
    """Check a campaign file and everything it names."""
    from campaign.plan.dag import Request, read_plan
    from campaign.run.preflight import preflight

    plan = read_plan(Request(campaign, Path("results")))
    preflight(plan.campaign)
    cells = sum(len(lease.cells) for lease in plan.leases)
    click.echo(
        f"{campaign}: valid; {cells} cells, {plan.runs} runs in {len(plan.leases)} leases on {plan.campaign.system.name}"
    )


@main.command()
@campaign_argument
@where_option
@implied_option
@budget_option
@learn_option
@results_option
@format_option("table", "json", "tsv")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write plan.json and plan.tsv into this directory instead."
)
@click.option(
    "--write",
    is_flag=True,
    help="Write the plan into the results, with one document a lease in plan/leases/, which 'campaign measure' reads.",
)
@click.option("--launcher", type=click.Choice(["local", "slurm"]), help="Default: the system's.")
@click.option("--slurm", metavar="JSON", help='Options of the allocations, such as \'{"partition": "gpu"}\'.')
def plan(
    campaign: Path,
    where: str | None,
    run_implied: bool,
    budget: str | None,
    learn_from: tuple[Path, ...],
    results: Path,
    style: str,
    output: Path | None,
    write: bool,
    launcher: str | None,
    slurm: str | None,
) -> None:
    """Show what would be measured, in which order, and at what cost. Without --write and --output, nothing is written.

    Costs come with 95 % intervals, learned from the runs of all campaigns in the results directory. With --budget, it shows what
    would be measured for it, what would be learned, and what is left out.

    Exits with 1 when a configuration does not fit the system.
    """
    from campaign.plan.cost.budget import parse_budget
    from campaign.plan.dag import Request, read_plan

    paid = parse_budget(budget) if budget else None
    asked = Request(
        campaign,
        results,
        where,
        launcher=launcher,
        slurm=_slurm_options(slurm),
        run_implied=run_implied,
        budget=paid,
        learn_from=learn_from,
    )
    planned = read_plan(asked, allow_unfit=not write)
    if write or output:
        from campaign.paths import Results
        from campaign.plan.write import write_plan, write_tables

        written = write_plan(planned, Results(results, planned.campaign.name)) if write else []
        click.echo("\n".join(map(str, [*written, *(write_tables(planned, output) if output else [])])))
    elif style == "table":
        from campaign.cli.plan import show_plan

        show_plan(planned)
    else:
        _echo_plan(planned, style)
    if planned.unfit:
        raise ConfigError(
            f"{campaign}: {len(planned.unfit)} configurations do not fit the system; see 'does not fit' in the plan"
        )


def _slurm_options(text: str | None) -> Any:
    import json

    from campaign.config.slurm_options import given_options

    try:
        return given_options(json.loads(text or "{}"))
    except ValueError as error:
        raise ConfigError(f"--slurm: '{text}' is not JSON ({error})") from error


def _echo_plan(planned: Any, style: str) -> None:
    import json

    from campaign.plan.plan_table import plan_document, plan_rows

    if style == "json":
        click.echo(json.dumps(plan_document(planned), indent=1))
        return
    for row in plan_rows(planned):
        click.echo("\t".join(row))


@main.command()
@campaign_argument
@where_option
@implied_option
@budget_option
@learn_option
@results_option
@click.option("--profile", help="Snakemake profile: local, slurm or a path. Default: the system's launcher.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be done.")
@click.argument("snakemake", nargs=-1, type=click.UNPROCESSED)
def run(
    campaign: Path,
    where: str | None,
    run_implied: bool,
    budget: str | None,
    learn_from: tuple[Path, ...],
    results: Path,
    profile: str | None,
    dry_run: bool,
    snakemake: tuple[str, ...],
) -> None:
    """Measure what has no record yet and write the report, through Snakemake.

    The same as 'snakemake --profile local --config campaign=CAMPAIGN'. What stands behind '--' goes to Snakemake.
    With --where "host == 'host3'", the runs that this holds for are measured again: their records are set aside first, into
    superseded/ of the results, and kept. With --budget, only what 'campaign plan --budget' shows is measured; the choice is kept as
    plan/budget.json, so that the same command again goes on with it.
    """
    if str(campaign).startswith("-"):  # 'campaign run -- OPTIONS': the default campaign
        campaign, snakemake = CAMPAIGN_FILE, (str(campaign), *snakemake)
    from campaign.config.load import read_campaign, read_system
    from campaign.paths import ROOT, SNAKEFILE
    from campaign.plan.cost.budget import parse_budget

    if where:
        from campaign.config.resolve import load_campaign
        from campaign.paths import Results
        from campaign.run.redo import redo

        loaded = load_campaign(campaign)
        for line in redo(loaded, Results(results, loaded.name), where, dry_run=dry_run):
            click.echo(line)
    name = profile or read_system(read_campaign(campaign).system, campaign).launcher
    directory = ROOT / name
    config = [f"campaign={campaign}", f"results={results}", *([f"where={_unquoted(where)}"] if where else [])]
    config += ["skip_implied=no"] if run_implied else []
    config += [f"budget={parse_budget(budget)}"] if budget else []
    config += [f"learn_from={','.join(map(str, learn_from))}"] if learn_from else []
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    command += ["--profile", str(directory if directory.is_dir() else name), "--directory", str(Path.cwd())]
    command += [*(["-n"] if dry_run else []), *snakemake, "--config", *config]
    sys.exit(subprocess.run(command, check=False).returncode)


@main.command()
@click.argument("configuration")
@campaign_option
@results_option
@click.option("--hosts", metavar="HOST,HOST..", help="Only on these hosts. Default: any that fit.")
@name_option
@click.option(
    "--dry-run", "-n", is_flag=True, help="Print the exact requests to the fabric, and send none that changes anything."
)
def compose(
    configuration: str, campaign: Path, results: Path, hosts: str | None, name: str | None, dry_run: bool
) -> None:
    """Compose one CONFIGURATION by hand and keep it until 'campaign release'.

    A campaign waits for devices that are kept so.
    """
    from campaign.cli.compose import show_composition
    from campaign.lease.manual import compose as keep
    from campaign.lease.manual import rehearse

    allowed = tuple(filter(None, (hosts or "").split(",")))
    if dry_run:
        for line in rehearse(campaign, results, configuration, allowed, name):
            click.echo(line)
        return
    show_composition(keep(campaign, results, configuration, allowed, name))


@main.command()
@click.argument("configuration", required=False)
@campaign_option
@results_option
@click.option(
    "--orphans", is_flag=True, help="Release the leases that dead processes left, instead of a configuration."
)
@click.option("--dry-run", "-n", is_flag=True, help="With --orphans: only list them.")
@name_option
def release(
    configuration: str | None, campaign: Path, results: Path, orphans: bool, dry_run: bool, name: str | None
) -> None:
    """Release a CONFIGURATION that 'campaign compose' keeps, or what dead processes left (--orphans)."""
    from campaign.lease.manual import release as give_back
    from campaign.lease.manual import release_orphans

    if orphans == (configuration is not None):
        raise ConfigError("give either a configuration or --orphans")
    if configuration is None:
        for line in release_orphans(campaign, results, dry_run=dry_run) or ["no lease without an owner"]:
            click.echo(line)
        return
    click.echo(give_back(campaign, results, configuration, name))


@main.command()
@campaign_argument
@results_option
def inventory(campaign: Path, results: Path) -> None:
    """Show the system's hosts and devices, and who holds them."""
    from campaign.cli.compose import show_inventory
    from campaign.lease.manual import read_inventory

    show_inventory(*read_inventory(campaign, results))


@main.command()
@campaign_argument
@results_option
def verify(campaign: Path, results: Path) -> None:
    """Read back every composition that is held, from the fabric and from the hosts, device by device.

    Exits with 1 when a device is missing, broken, or not what was requested.
    """
    from campaign.cli.compose import show_verification
    from campaign.lease.manual import verify as read_back

    if not show_verification(read_back(campaign, results)):
        sys.exit(1)


@main.command()
@campaign_argument
@where_option
@implied_option
@results_option
def status(campaign: Path, where: str | None, run_implied: bool, results: Path) -> None:
    """Show what is done, what is running, and what failed so far."""
    from campaign.cli.status import show_status
    from campaign.plan.dag import Request, read_plan

    asked = Request(campaign, results, where, run_implied=run_implied)
    show_status(read_plan(asked, allow_unfit=True), results)


main.add_command(archive)
main.add_command(cluster)
main.add_command(collect)
main.add_command(compare)
main.add_command(fabric)
main.add_command(figures)
main.add_command(import_logs)
main.add_command(init)
main.add_command(measure)
main.add_command(recommend)
main.add_command(report)
main.add_command(sql)
main.add_command(serve)
main.add_command(summary)
main.add_command(workload)


if __name__ == "__main__":
    main()

"""From records to a page: `campaign collect`, `report` and `summary`.

The rules of the workflow call these, each in a process of its own, so each imports only what it needs.
"""

from __future__ import annotations

from pathlib import Path

import click

from campaign.cli.options import PATH, output_option, results_option, tables_argument, where_option
from campaign.errors import ConfigError, unwritable
from campaign.paths import Results


@click.command()
@click.argument("plan", type=PATH, metavar="PLAN.json")
def collect(plan: Path) -> None:
    """Write the tables of a planned campaign from its records: tables/ beside plan/ in the results.

    PLAN.json is plan/plan.json of the results, which 'campaign plan --write' makes.
    """
    from campaign.tables import collect as collecting

    tables = plan.parent.parent / "tables"
    gathered = collecting.gather_planned(plan)
    try:
        collecting.collect(gathered, tables)
    except OSError as error:
        raise unwritable(error, tables) from error
    click.echo(tables)


@click.command()
@tables_argument
@where_option
@results_option
@output_option("The page. Default: in the results, or beside the archive.")
def report(source: Path, where: str | None, results: Path, output: Path | None) -> None:
    """Write the report as one HTML page.

    From a CAMPAIGN file, tables and figures are first made anew from the records that there are; from an ARCHIVE (a .zip file),
    without the campaign's files. From a results DIRECTORY, the page is made of its tables/, figures/ and recommendation/ as they
    are.
    """
    if source.is_dir():
        from campaign.report.write import render_report

        if where:
            raise ConfigError(f"{source}: --where needs a campaign file or an archive, not a directory of results")
        paths = Results.at(source)
        out = output or paths.report
        render_report(paths.tables, paths.figures, out)
    elif source.suffix == ".zip":
        from campaign.archive import report_from_archive

        out = output or source.with_suffix(".report.html")
        report_from_archive(source, out, where)
    else:
        from campaign.archive import as_planned, report_from
        from campaign.config.resolve import load_campaign

        loaded = load_campaign(source)
        paths = Results(results, loaded.name)
        out = output or paths.report
        report_from(as_planned(loaded, paths.directory), paths.directory, where, paths.directory, out)
    click.echo(out)


@click.command()
@click.argument("directory", type=PATH)
@output_option("Also write it to this file, if no run is missing.")
def summary(directory: Path, output: Path | None) -> None:
    """Show on one screen what was measured and found, from a results DIRECTORY with a report.

    Exits with 1 when planned runs have no record, and says why.
    """
    from campaign.report import campaign_summary

    text = campaign_summary.summary(directory)
    click.echo(text)
    if missing := campaign_summary.missing_reasons(directory):
        raise ConfigError("\n".join(["some runs have no record; run the same command again to measure them", *missing]))
    if output:
        try:
            output.write_text(text + "\n")
        except OSError as error:
            raise unwritable(error, output) from error

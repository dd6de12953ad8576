"""The commands that turn records into tables, figures, reports and summaries.

These are `campaign collect`, `figures`, `report` and `summary`. The rules of the workflow call each in a separate process, so each
command imports only what it needs.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from campaign.cli.echo import echo
from campaign.cli.options import (
    PATH,
    add_source_options,
    build_format_option,
    build_output_option,
    cells_option,
    results_option,
    tables_argument,
)
from campaign.cli.source import find_results, replace_scratch_path
from campaign.cli.terminal import print_warnings
from campaign.common.errors import ConfigError, convert_os_error
from campaign.common.paths import Results


@click.command()
@click.argument("plan", type=PATH, metavar="PLAN.json")
def collect(plan: Path) -> None:
    """Write the tables of a planned campaign from its records, into tables/ of the results.

    PLAN.json is plan/plan.json of the results, written by 'campaign plan --write'.
    """
    from campaign.analysis.tables import collect as collecting

    tables = plan.parent.parent / "tables"
    collection = collecting.read_planned_results(plan)
    try:
        collecting.write_campaign_tables(collection, tables)
    except OSError as error:
        raise convert_os_error(error, tables) from error
    echo(tables)


@click.command()
@tables_argument
@results_option
@cells_option
@click.option(
    "--for",
    "medium",
    type=click.Choice(("page", "paper", "report")),
    default="page",
    help="page: SVG in the page's colours. paper: PDF and SVG on white, captions and tables of numbers in LaTeX. report: every "
    "figure that has data, as 'campaign report' reads it (SVG, CSV, JSON); CAMPAIGN must then be a results directory.",
)
@click.option(
    "--only", metavar="NAME,NAME..", help="Figures to draw, by file name or anchor. Default: all that have data."
)
@build_output_option(
    "Output directory. Default: figures/ in the current directory; for a paper, paper/; for a report, figures/ of the results."
)
def figures(
    source: Path,
    results: Path,
    where: str | None,
    medium: str,
    only: str | None,
    output: Path | None,
) -> None:
    """Draw the figures of a campaign, each with its data as CSV.

    For a paper, \\input two files into a document that loads graphicx and booktabs. figures.tex contains the figures (3.4 in or
    7.1 in wide, fonts embedded) with captions, and tables. numbers.tex contains the comparisons and all cells with intervals.

    \b
    campaign figures                          all, into figures/
    campaign figures demo.zip --only scaling  one, from an archive
    campaign figures demo.zip --for paper     all for a paper, into paper/
    """
    if medium == "report":
        from campaign.report.write import draw_figures

        if where or only or not (source / "tables").is_dir():
            raise ConfigError(
                f"{source}: --for report needs a results directory with tables/, without --where and --only"
            )
        draw_figures(source / "tables", output or source / "figures")
        return
    from campaign.report.paper.figures import draw_figure_files
    from campaign.report.paper.numbers import write_numbers
    from campaign.report.sources import load_tables  # Imported late, because a report needs no campaign file.

    for_paper = medium == "paper"
    out = output or Path("paper" if for_paper else "figures")
    tables = load_tables(source, results, where)
    result = draw_figure_files(tables, out, for_paper, only.split(",") if only else None)
    for path in [*result.files, *(write_numbers(tables, out) if for_paper else ())]:
        echo(path)
    for name, reason in result.left_out.items():
        echo(f"{name}: left out because {reason}", err=True)
    if not result.files and not for_paper:
        raise ConfigError(f"{source}: there is no figure to draw")


@click.command()
@tables_argument
@click.option(
    "--where",
    metavar="EXPRESSION",
    help="Use only cells that match, e.g. 'batch >= 8'. \"host == 'host3'\" selects cells with a run on that host.",
)
@results_option
@build_output_option("Page to write. Default: report.html in the results, or a file next to the archive.")
def report(source: Path, where: str | None, results: Path, output: Path | None) -> None:
    """Write the report as one HTML page.

    For a campaign file, tables and figures are first updated from the existing records. For an archive (a .zip file), the
    campaign's files are not needed. For a results directory, the page uses its tables/, figures/ and recommendation/ as they are.
    They are updated if there are none, or with --where. Read-only results need --output.
    """
    if source.suffix == ".zip" and not source.is_dir():
        from campaign.report.sources import write_archive_report

        out = output or source.with_suffix(".report.html")
        write_archive_report(source, out, where)
    elif source.is_dir() and not where and (source / "tables").is_dir():
        from campaign.report.cell_runs import ResultFiles
        from campaign.report.write import provide_figures, render_report

        paths = Results.from_directory(source)
        out = output or paths.report_file
        with provide_figures(paths) as figures:
            render_report(paths.tables, figures, out, files=ResultFiles.list(paths.directory, out))
    else:
        from campaign.plan.campaign.resolve import load_campaign
        from campaign.plan.campaign.workload_inputs import describe_edited_files
        from campaign.plan.dag import read_plan
        from campaign.plan.request import PlanRequest
        from campaign.report.sources import find_planned_campaign, open_writable_directory, write_report
        from campaign.run.preflight import find_missing_inputs

        loaded_campaign = load_campaign(source, results=results)
        paths = Results.from_directory(source) if source.is_dir() else Results(results, loaded_campaign.name)
        if not paths.manifests.is_dir() and not paths.records.is_dir():
            # A campaign that does not fit its system could never be measured. Reading its plan then raises a ConfigError.
            read_plan(PlanRequest(source, results))
        out = output or paths.report_file
        measured_campaign = find_planned_campaign(loaded_campaign, paths.directory)
        print_warnings(
            [
                *describe_edited_files(loaded_campaign.workloads, loaded_campaign.inputs, measured_campaign.inputs),
                *find_missing_inputs(loaded_campaign),
            ]
        )
        with open_writable_directory(paths) as scratch:
            write_report(measured_campaign, paths.directory, where, scratch, out)
    echo(out)


@click.command()
@add_source_options()
@build_output_option("Also write the summary to this file, if no run is missing.")
@build_format_option("text", "markdown")
def summary(campaign: Path, results: Path, output: Path | None, style: str) -> None:
    """Show the findings of a campaign on one screen: what was measured, which runs failed, and what to build.

    Exits with 1 and gives the reasons if planned runs have no record. 'campaign status' shows the progress of a running campaign.
    """
    from campaign.report import campaign_summary
    from campaign.report.write import provide_figures

    paths = find_results(campaign, results)
    table_paths = paths
    if not (paths.tables / "cells.csv").is_file():
        from campaign.report.sources import collect_tables

        scratch = click.get_current_context().with_resource(TemporaryDirectory(prefix="campaign-summary-"))
        table_paths = collect_tables(Path(scratch), campaign, paths)
    summarize = {
        "text": campaign_summary.summarize_campaign,
        "markdown": campaign_summary.summarize_campaign_as_markdown,
    }[style]
    with provide_figures(table_paths) as figures:
        text = summarize(paths.directory, figures, table_paths.tables)
    echo(replace_scratch_path(text))
    if missing := campaign_summary.list_missing_reasons(paths.directory, table_paths.tables):
        raise ConfigError("\n".join(["some runs have no record; start the campaign again to measure them", *missing]))
    if output:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise convert_os_error(error, output) from error

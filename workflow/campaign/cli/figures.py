"""`campaign figures`: the report's figures as files, for a page or for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from campaign.cli.options import PATH, cells_option, output_option, results_option, tables_argument
from campaign.errors import ConfigError
from campaign.report.write import draw_figures


@click.command()
@tables_argument
@results_option
@cells_option
@click.option(
    "--for",
    "medium",
    type=click.Choice(("page", "paper", "report")),
    default="page",
    help="page: SVG in the page's colours. paper: PDF and SVG on white, 3.4 in (one column) or 7.1 in (both) wide, fonts "
    "embedded, and figures.tex with their captions and with tables (booktabs). report: every "
    "figure as 'campaign report' reads it (SVG, CSV, JSON); the source must then be a results directory.",
)
@click.option(
    "--recommendation",
    type=PATH,
    help="With --for report: also write the recommendation into this directory, as 'campaign recommend --output' does.",
)
@click.option("--only", metavar="NAME,NAME..", help="Only these, by file name or anchor. Default: all that have data.")
@output_option(
    "Directory. Default: figures/ or paper/ in the current directory; for a report, figures/ of the results."
)
def figures(
    source: Path,
    results: Path,
    where: str | None,
    medium: str,
    recommendation: Path | None,
    only: str | None,
    output: Path | None,
) -> None:
    """Draw the figures of a campaign, an archive, or a results directory, each with its data as CSV.

    \b
    campaign figures --for paper                          all, into paper/
    campaign figures demo.zip --for paper --only scaling  one, from an archive
    """
    if medium == "report":
        if where or only or not (source / "tables").is_dir():
            raise ConfigError(
                f"{source}: --for report takes a results directory with tables/, no --where and no --only"
            )
        draw_figures(source / "tables", output or source / "figures", recommendation=recommendation)
        return
    if recommendation:
        raise ConfigError("--recommendation goes with --for report; alone it is made by 'campaign recommend --output'")
    from campaign.archive.open_results import tables_from  # a report needs no campaign file
    from campaign.report.paper import draw

    out = output or Path("paper" if medium == "paper" else "figures")
    names = only.split(",") if only else None
    drawn, left_out = draw(tables_from(source, results, where), out, medium == "paper", names)
    for path in drawn:
        click.echo(path)
    for name, reason in left_out.items():
        click.echo(f"{name}: left out because {reason}", err=True)
    if not drawn:
        raise ConfigError(f"{source}: there is no figure to draw")

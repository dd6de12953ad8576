"""`campaign import`: records from logs that were made without this program."""

from __future__ import annotations

import json
from pathlib import Path

import click

from campaign.cli.options import PATH, dry_run_option, format_option, results_option
from campaign.cli.terminal import show, show_rows, table_of
from campaign.importing import summary
from campaign.importing.map_file import read_map
from campaign.importing.scan_logs import survey
from campaign.importing.write import earlier, rehearse, write
from campaign.paths import Results


@click.command("import")
@click.argument("directory", type=PATH)
@click.option(
    "--map",
    "map_path",
    type=PATH,
    required=True,
    help="YAML file that describes the logs; docs/reference/configuration.md lists its keys.",
)
@results_option
@dry_run_option("Show the matrix and write nothing.")
@format_option("table", "json")
def import_logs(directory: Path, map_path: Path, results: Path, dry_run: bool, style: str) -> None:
    """Make records from the logs in DIRECTORY, which were written without this program.

    Failed runs become records too. Files that cannot be read are listed with the reason. No log is imported twice: run the same
    command again to add new logs. It writes a campaign file, which every other command accepts.

    \b
    campaign import logs/ --map map.yaml --dry-run
    campaign import logs/ --map map.yaml
    campaign report results/NAME/config/campaign.yaml
    """
    read = read_map(map_path)
    paths = Results(results, read.said.name)
    found = survey(directory, read, earlier(paths))
    # A file system that is full, or a set of claims that is not there, shall not be news after a dry run.
    rehearse(found, read, paths)
    written = None if dry_run else write(found, read, paths)
    if style == "json":
        click.echo(json.dumps({**summary.document(found), "file": None if written is None else str(written)}, indent=1))
        return
    show_rows("Axes", summary.axes(found))
    show_rows("Cells", summary.cells(found))
    unread = [{"file": entry.path, "why": entry.why} for entry in found.of("unread")]
    show(table_of("Failed runs", summary.failures(found)), table_of("Files that could not be read", unread))
    click.echo(summary.one_line(found, written=not dry_run))
    if written is None:
        click.echo("nothing was written (--dry-run)")
        return
    again = "" if results == Path("results") else f" --results {results}"
    click.echo(f"{written}\nnext: campaign report {written}{again}")

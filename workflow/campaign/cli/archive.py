"""The commands of `campaign archive`: pack a campaign into one file, and check and unpack such files."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from campaign.archive.programs import DEFAULT_MAX_PROGRAM_MIB, is_program_member
from campaign.archive.read import check_archive
from campaign.archive.read import extract_to_directory as extract_archive
from campaign.archive.write import ArchiveOptions, WrittenArchive, write_archive
from campaign.cli.echo import echo
from campaign.cli.options import PATH, add_source_options, build_output_option
from campaign.cli.terminal import print_warnings
from campaign.common.paths import Results
from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import load_campaign
from campaign.report.sources import find_planned_campaign

_MAX_LINES = 5


class _DefaultPackGroup(click.Group):
    """Command group in which `pack` is the default, so that `campaign archive CAMPAIGN` packs."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Put `pack` before the arguments unless they begin with a subcommand or a help option."""
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["pack", *args]
        return super().parse_args(context, args)


@click.group(cls=_DefaultPackGroup, subcommand_metavar="[CAMPAIGN] | verify | extract")
def archive() -> None:
    """Pack a campaign into one file; verify and extract such archives.

    'campaign archive CAMPAIGN' is short for 'campaign archive pack CAMPAIGN'. An archive is a zip file and a Workflow Run RO-Crate.
    Its README.md explains how to read it without this program.
    """


@archive.command()
@add_source_options(changes_results=True)
@click.option("--where", metavar="EXPRESSION", help="Cells to show in the archive's report. All records are packed.")
@build_output_option("Archive to write. Default: <campaign>.zip in the results directory.")
@click.option("--no-telemetry", is_flag=True, help="Leave out telemetry/, which is often the largest part.")
@click.option(
    "--inputs-mib",
    type=click.FloatRange(0),
    default=DEFAULT_MAX_PROGRAM_MIB,
    metavar="MIB",
    help="Largest size of a program or input file of a workload that is packed. 0 packs none.",
)
@click.option(
    "--license", metavar="SPDX|URL", help="Licence of the measurements, such as CC-BY-4.0. Default: not stated."
)
@click.option("--creator", metavar="NAME", help="Creator of the measurements. Default: not stated.")
def pack(
    campaign: Path, where: str | None, results: Path, output: Path | None, no_telemetry: bool, **metadata: Any
) -> None:
    """Pack the used configuration, plan, records, telemetry, tables and leases into one file with checksums.

    Programs and input files of workloads are packed as they were measured. Those that may contain a secret are left out. Possible
    secrets in other files are listed. If the output file is already an archive of the same campaign, the records that only it has
    are kept.
    """
    loaded_campaign = load_campaign(campaign, results=results)
    paths = Results(results, loaded_campaign.name)
    out = output or paths.root / f"{loaded_campaign.name}.zip"
    options = ArchiveOptions(**metadata, telemetry=not no_telemetry)
    planned_campaign = find_planned_campaign(loaded_campaign, paths.directory)
    result = write_archive(planned_campaign, paths.directory, out, where, options, loaded_campaign.inputs)
    _print_result(result)
    if result.kept_members:
        echo(
            f"kept {pluralize(len(result.kept_members), 'file')} that only the existing archive had: "
            f"{_join_names(result.kept_members)}"
        )
    if result.superseded_records:
        echo(
            f"moved {pluralize(len(result.superseded_records), 'record')} of the existing archive, whose runs were measured "
            f"again, to superseded/: {_join_names(result.superseded_records)}"
        )


def _print_result(result: WrittenArchive) -> None:
    """Print the path and contents of a written archive, the files left out, and warnings about possible secrets."""
    echo(f"{result.path}: {result.members} files, {result.records} records")
    if result.programs.files_by_member:
        echo(f"programs and input files: {', '.join(result.programs.files_by_member)}")
    for left_out in result.programs.left_out:
        echo(f"left out: {left_out}")
    print_warnings([f"possible secret: {finding}" for finding in result.secrets[:_MAX_LINES]])
    if len(result.secrets) > _MAX_LINES:
        print_warnings([f"{len(result.secrets) - _MAX_LINES} more possible secrets"])
    if result.secrets:
        print_warnings([f"do not share {result.path} before you have checked that it holds no valid secret"])


def _join_names(names: tuple[str, ...]) -> str:
    """Join the first names with commas, and an ellipsis if there are more."""
    return ", ".join(names[:_MAX_LINES]) + (", ..." if len(names) > _MAX_LINES else "")


@archive.command()
@click.argument("file", type=PATH)
def verify(file: Path) -> None:
    """Check an archive's files against its checksums, and check its RO-Crate metadata.

    Exits with 1 if a file is damaged, missing, added, or described wrongly.
    """
    index, problems = check_archive(file)
    for problem in problems[:_MAX_LINES]:
        echo(f"{file}: RO-Crate: {problem}", fg="red", err=True)
    if problems:
        sys.exit(1)
    records = sum(name.startswith("records/") for name in index.sha256)
    maker_text = f", by {index.made_by}" if index.made_by else ""
    echo(
        f"{file}: intact; {index.schema_version}, campaign {index.campaign}, "
        f"{len(index.sha256)} files, {records} records{maker_text}"
    )


@archive.command()
@click.argument("file", type=PATH)
@click.option(
    "--into",
    type=PATH,
    default=Path("results"),
    help="Directory of all results. The campaign's directory is created in it and must not exist yet.",
)
def extract(file: Path, into: Path) -> None:
    """Extract an archive into a results directory, in which the campaign can be reported and continued."""
    archive = extract_archive(file, into)
    where = ["--where", archive.where] if archive.where else []
    report = ["campaign", "report", f"{archive.directory / 'config' / 'campaign.yaml'}", "--results", f"{into}", *where]
    echo(f"{archive.directory}\n{shlex.join(report)}")
    if programs := [name for name in archive.index.sha256 if is_program_member(name)]:
        echo(f"'campaign run' would run programs from this archive; inspect them first: {_join_names(tuple(programs))}")

"""`campaign archive`: pack a campaign into one file; check, merge and unpack such files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from campaign.cli.options import campaign_argument, results_option

if TYPE_CHECKING:
    from campaign.archive import Merged, Written

_SHOWN = 5


class _PackFirst(click.Group):
    """`campaign archive FILE` packs: what is no command is an argument of `pack`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["pack", *args]
        return super().parse_args(context, args)


@click.group(cls=_PackFirst, subcommand_metavar="[CAMPAIGN] | merge | verify | extract")
def archive() -> None:
    """Pack a campaign into one file, or check, merge and unpack such files.

    'campaign archive CAMPAIGN' is short for 'campaign archive pack CAMPAIGN'. An archive is a zip file and a Workflow Run RO-Crate:
    README.md in it says how to read it without this program.
    """


@archive.command()
@campaign_argument
@click.option("--where", metavar="EXPRESSION", help="What its report shows. All records are packed all the same.")
@results_option
@click.option(
    "--output", type=click.Path(path_type=Path), help="The archive. Default: <campaign>.zip in the results directory."
)
@click.option("--no-telemetry", is_flag=True, help="Without the samples of telemetry/, which may be most of its bytes.")
@click.option(
    "--license", metavar="SPDX|URL", help="Licence of the measurements, such as CC-BY-4.0. Default: not stated."
)
@click.option("--creator", metavar="NAME", help="Who measured. Default: not stated.")
def pack(
    campaign: Path,
    where: str | None,
    results: Path,
    output: Path | None,
    no_telemetry: bool,
    license: str | None,
    creator: str | None,
) -> None:
    """Pack config as used, plan, records, samples, tables and leases, with checksums, into one file.

    Over an archive of the same campaign, what that has and the results do not is kept.
    """
    from campaign.archive import Wishes, write_archive
    from campaign.config.resolve import load_campaign
    from campaign.paths import Results

    loaded = load_campaign(campaign)
    paths = Results(results, loaded.name)
    out = output or paths.root / f"{loaded.name}.zip"
    _echo(write_archive(loaded, paths.directory, out, where, Wishes(license, creator, not no_telemetry)))


def _echo(written: Written) -> None:
    click.echo(f"{written.path}: {written.members} files, {written.records} records")
    if written.kept:
        click.echo(f"kept {len(written.kept)} files that only the archive had: {_some(written.kept)}")
    if written.superseded:
        click.echo(
            f"{len(written.superseded)} of its records were measured again; the old ones are under superseded/: "
            f"{_some(written.superseded)}"
        )


@archive.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("archives", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="ARCHIVE...")
@click.option(
    "--on-conflict",
    type=click.Choice(["error", "first"]),
    default="error",
    show_default=True,
    help="Where archives hold different records of one run: refuse, or let the one that is named first count.",
)
def merge(out: Path, archives: tuple[Path, ...], on_conflict: Any) -> None:
    """Write to OUT what all ARCHIVEs of one campaign hold: measured in parts, or on several machines.

    They may differ in configurations, values of axes, workloads, exclusions and repetitions.
    """
    from campaign.archive import merge as put_together

    _echo_merged(put_together(out, archives, on_conflict), archives[0])


def _echo_merged(merged: Merged, first: Path) -> None:
    click.echo(f"{merged.path}: {merged.members} files, {merged.records} records")
    if merged.taken:
        click.echo(f"the archives differ in {', '.join(merged.taken)}: that of {first} counts")
    for old, new in merged.renamed.items():
        click.echo(f"two leases are called {old}: the later archive's is {new} from now on")
    if merged.superseded:
        click.echo(
            f"{len(merged.superseded)} records gave way to an earlier archive's, and are kept under superseded/: "
            f"{_some(merged.superseded)}"
        )
    if not merged.plan:
        click.echo("the archives have different plans; none of them is for all of it, so they are left out")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


@archive.command()
@click.argument("file", type=click.Path(path_type=Path))
def verify(file: Path) -> None:
    """Read every byte of an archive against its checksums, and its description as an RO-Crate.

    Exits with 1 when anything is damaged, missing, added, or described wrongly.
    """
    from campaign.archive import check

    index, problems = check(file)
    records = sum(name.startswith("records/") for name in index.sha256)
    for problem in problems[:_SHOWN]:
        click.secho(f"{file}: as an RO-Crate: {problem}", fg="red", err=True)
    if problems:
        sys.exit(1)
    made = f", by {index.made_by}" if index.made_by else ""
    click.echo(
        f"{file}: whole; {index.schema}, campaign {index.campaign}, {len(index.sha256)} files, {records} records{made}"
    )


@archive.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Directory of all results; the campaign's own is made in it, and must not be there yet.",
)
def extract(file: Path, into: Path) -> None:
    """Unpack an archive into a results directory, from which the campaign can be reported and gone on with."""
    from campaign.archive import extract as unpack

    directory = unpack(file, into)
    click.echo(f"{directory}\ncampaign report {directory / 'config' / 'campaign.yaml'} --results {into}")

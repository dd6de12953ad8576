"""Resolution of a campaign source, which may be a campaign file, a results directory, or an archive."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from campaign.common.errors import ArchiveError, ConfigError
from campaign.common.paths import Results

_UNPACKED = "campaign.unpacked"
"""Key of click's `meta` for two paths: the directory that an archive was unpacked into, and the archive."""


def located(given: Path, results: Path, *, changes: bool = False) -> tuple[Path, Path]:
    """Return the path that `load_campaign` reads for a source, and the directory of all results.

    An archive is unpacked into a temporary directory, which is deleted when the command ends. Raises ArchiveError if the archive
    cannot be read, or if the command would change it.

    Args:
        path: campaign file, results directory of a campaign, or archive.
        results: directory of all results, used for campaign files.
        changes_results: whether the command changes results. Archives are rejected then.
    """
    if given.is_dir():
        return given, given.absolute().parent if given.name in ("", "..") else given.parent
    if given.suffix != ".zip":
        return given, results
    if changes:
        raise _unchangeable(str(given))
    from campaign.archive.read import extract  # most commands need no archive

    context = click.get_current_context()
    scratch = Path(context.with_resource(TemporaryDirectory(prefix="campaign-archive-")))
    directory = extract(given, scratch).directory
    context.meta[_UNPACKED] = str(directory), str(given)
    return directory, scratch


def _unchangeable(archive: str) -> ArchiveError:
    """Build the error for an attempt to change an archive."""
    return ArchiveError(
        f"{archive}: an archive is not changed; 'campaign archive extract {archive}' makes a results directory of it that can be"
    )


def refuse_archive() -> None:
    """Raise ArchiveError if the source of the current command is an archive.

    Used by options that change results, in commands that otherwise do not.
    """
    if unpacked := click.get_current_context().meta.get(_UNPACKED):
        raise _unchangeable(unpacked[1])


def as_given(text: str) -> str:
    """Replace the directory that an archive was unpacked into by the path of the archive, in a text for users."""
    context = click.get_current_context(silent=True)
    directory, given = context.meta.get(_UNPACKED, ("", "")) if context else ("", "")
    return text.replace(directory, given) if directory else text


def results_of(campaign: Path, results: Path) -> Results:
    """Return the results of a campaign. Raises ConfigError if there are none yet.

    Args:
        campaign: campaign file or results directory, as `resolve_source` returns it.
        results: directory of all results.
    """
    if campaign.is_dir():
        place = Results.at(campaign)
    else:
        from campaign.plan.campaign.load import (
            load_campaign_file,  # a rule gives its results directory, and ends without
        )

        place = Results(results, load_campaign_file(campaign).model.name)
    if not place.directory.is_dir():
        raise ConfigError(
            f"{place.directory}: there are no results of {campaign} yet; 'campaign run {campaign}' measures it"
        )
    return place

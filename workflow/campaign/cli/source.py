"""Where a campaign and its results are, whichever of three a person names: its file, its results directory, or an archive."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from campaign.common.errors import ArchiveError, ConfigError
from campaign.common.paths import Results

_UNPACKED = "campaign.unpacked"
"""Key of click's `meta`: the directory that an archive was unpacked into, and the archive."""


def located(given: Path, results: Path, *, changes: bool = False) -> tuple[Path, Path]:
    """What `load_campaign` reads, which is a campaign file or a directory of results, and the directory of all results.

    results: of campaign files. changes: whether the command changes anything, which nothing does in an archive: that is unpacked
    into a directory that is gone when the command ends. ArchiveError: it cannot be read, or would have to be changed.
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
    return ArchiveError(
        f"{archive}: an archive is not changed; 'campaign archive extract {archive}' makes a results directory of it that can be"
    )


def refuse_archive() -> None:
    """ArchiveError where what `located` gave is an archive: for an option of a command that otherwise changes nothing."""
    if unpacked := click.get_current_context().meta.get(_UNPACKED):
        raise _unchangeable(unpacked[1])


def as_given(text: str) -> str:
    """A text that names the archive and not the directory that it was unpacked into."""
    context = click.get_current_context(silent=True)
    directory, given = context.meta.get(_UNPACKED, ("", "")) if context else ("", "")
    return text.replace(directory, given) if directory else text


def results_of(campaign: Path, results: Path) -> Results:
    """The results that a campaign has, by what `located` gives. ConfigError: there are none yet."""
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

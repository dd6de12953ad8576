"""Resolution of a campaign source, which may be a campaign file, a results directory, or an archive."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from campaign.common.errors import ArchiveError, ConfigError
from campaign.common.paths import Results

_ARCHIVE_META_KEY = "campaign.unpacked"
"""Key of click's `meta` for two paths: the directory that an archive was unpacked into, and the archive."""


def resolve_source(path: Path, results: Path, *, changes_results: bool = False) -> tuple[Path, Path]:
    """Return the path that `load_campaign` reads for a source, and the directory of all results.

    An archive is unpacked into a temporary directory, which is deleted when the command ends. Raises ArchiveError if the archive
    cannot be read, or if the command would change it.

    Args:
        path: campaign file, results directory of a campaign, or archive.
        results: directory of all results, used for campaign files.
        changes_results: whether the command changes results. Archives are rejected then.
    """
    if path.is_dir():
        return path, path.absolute().parent if path.name in ("", "..") else path.parent
    if path.suffix != ".zip":
        return path, results
    if changes_results:
        raise _build_read_only_error(str(path))
    from campaign.archive.read import extract_to_directory  # Imported late, because most commands need no archive.

    context = click.get_current_context()
    scratch = Path(context.with_resource(TemporaryDirectory(prefix="campaign-archive-")))
    directory = extract_to_directory(path, scratch).directory
    context.meta[_ARCHIVE_META_KEY] = str(directory), str(path)
    return directory, scratch


def _build_read_only_error(archive: str) -> ArchiveError:
    """Build the error for an attempt to change an archive."""
    return ArchiveError(
        f"{archive}: an archive is read-only; 'campaign archive extract {archive}' creates a results directory that can be changed"
    )


def refuse_archive() -> None:
    """Raise ArchiveError if the source of the current command is an archive.

    Used by options that change results, in commands that otherwise do not.
    """
    if archive_paths := click.get_current_context().meta.get(_ARCHIVE_META_KEY):
        raise _build_read_only_error(archive_paths[1])


def is_archive() -> bool:
    """Return whether the source of the current command is an archive."""
    return _ARCHIVE_META_KEY in click.get_current_context().meta


def replace_scratch_path(text: str) -> str:
    """Replace the directory that an archive was unpacked into by the path of the archive, in a text for users."""
    context = click.get_current_context(silent=True)
    directory, archive = context.meta.get(_ARCHIVE_META_KEY, ("", "")) if context else ("", "")
    return text.replace(directory, archive) if directory else text


def find_results(campaign: Path, results: Path) -> Results:
    """Return the results of a campaign. Raises ConfigError if there are none yet.

    Args:
        campaign: campaign file or results directory, as `resolve_source` returns it.
        results: directory of all results.
    """
    if campaign.is_dir():
        paths = Results.from_directory(campaign)
    else:
        # Imported late, because the rules of the workflow pass a results directory.
        from campaign.plan.campaign.load import load_campaign_file

        paths = Results(results, load_campaign_file(campaign).model.name)
    if not paths.directory.is_dir():
        raise ConfigError(f"{paths.directory}: {campaign} has no results yet; 'campaign run {campaign}' measures it")
    return paths

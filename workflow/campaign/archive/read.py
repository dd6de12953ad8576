"""Reading of archives. Every byte is checked before any of the content is used."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter, ValidationError

from campaign.archive.crate import find_crate_problems
from campaign.archive.layout import (
    CAMPAIGN,
    CONFIG,
    CRATE,
    INDEX,
    SCHEMA,
    ArchiveIndex,
    FileFacts,
    find_part,
    is_allowed_member,
)
from campaign.archive.programs import reject_unmeasured_programs
from campaign.common.errors import ArchiveError, CampaignError, format_first_error
from campaign.plan.campaign.resolve import Campaign, campaign_from_document

MAX_UNPACKED_BYTES = 50 * 2**30
"""Size limit of the unpacked archive, so that a zip bomb cannot fill the disk."""
MAX_MEMBERS = 5_000_000
_UNCONDITIONAL_UNPACKED_BYTES = 64 * 2**20
"""Unpacked size that is allowed for every archive, regardless of its compressed size."""
_MAX_COMPRESSION_RATIO = 100
"""Maximum ratio of additional bytes to compressed bytes. Numbers in text reach 10, and zeros 1,000."""
_CHUNK_BYTES = 2**20
_COPY_AGAIN = "copy it again from its source"
_FREE_SPACE = "free space, or set TMPDIR to a directory with enough space"
_NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors that the archive never causes."""
_DISTRUST = "do not trust this file"


@dataclass(frozen=True)
class OpenedArchive:
    """Archive that was checked and unpacked.

    Attributes:
        campaign: the campaign as used.
        directory: directory to which the archive was unpacked.
        where: filter that the archive's report uses by default.
        index: content of `archive.json`.
    """

    campaign: Campaign
    directory: Path
    where: str | None
    index: ArchiveIndex = field(default_factory=lambda: ArchiveIndex(""))
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Size in bytes of every member except the index."""

    def select_facts(self, *excluded_names: str) -> dict[str, FileFacts]:
        """Return the size and the checksum of every member except the index and the excluded names."""
        return {
            name: FileFacts(self.sizes[name], digest)
            for name, digest in self.index.sha256.items()
            if name not in excluded_names
        }


@contextmanager
def open_archive(path: Path) -> Iterator[OpenedArchive]:
    """Check an archive and unpack it into a temporary directory for the duration of the block.

    Raises ArchiveError if the file is not an archive, has an unknown schema version, would fill the disk, or has a member that
    points outside. The error is also raised for missing, added and damaged members, with their names.
    """
    with TemporaryDirectory(prefix="campaign-archive-") as scratch:
        archive = unpack_archive(path, Path(scratch))
        with name_archive_in_errors(path, archive.directory):
            yield archive


@contextmanager
def name_archive_in_errors(path: Path, directory: Path) -> Iterator[None]:
    """Replace the unpacked directory in errors of a block by the archive, such as `a.zip/records/..`.

    Args:
        path: the archive.
        directory: directory to which it was unpacked.
    """
    try:
        yield
    except CampaignError as error:
        error.args = tuple(
            replace_directory(argument, path, directory) if isinstance(argument, str) else argument
            for argument in error.args
        )
        raise
    except OSError as error:
        if isinstance(error.filename, str | Path):
            error.filename = replace_directory(str(error.filename), path, directory)
        raise


def replace_directory(text: str, path: Path, directory: Path) -> str:
    """Return a message in which the archive replaces the directory to which it was unpacked."""
    for directory_text in {str(directory.resolve()), str(directory)}:
        text = text.replace(directory_text, str(path))
    return text


def unpack_archive(path: Path, directory: Path) -> OpenedArchive:
    """Check an archive and unpack it into an existing empty directory. Raises ArchiveError as `open_archive` does."""
    try:
        with zipfile.ZipFile(path) as archive:
            index = _read_index(path, archive)
            infos = _check_members(path, archive, index.sha256, directory)
            _write_members(path, archive, infos, index.sha256, directory)
    except FileNotFoundError:
        raise ArchiveError(f"{path}: no such file") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        if getattr(error, "errno", None) in _NO_SPACE_ERRNOS:
            raise ArchiveError(f"{path}: could not be unpacked into {directory} ({error}); {_FREE_SPACE}") from error
        words = replace_directory(str(error), path, directory)
        raise ArchiveError(f"{path} is not a complete archive ({words}); {_COPY_AGAIN}") from error
    try:
        campaign = campaign_from_document(json.loads((directory / CAMPAIGN).read_bytes()))
        reject_unmeasured_programs(campaign.inputs, index.sha256)
    except CampaignError as error:
        raise ArchiveError(f"{path}: {error}") from error
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        words = replace_directory(str(error), path, directory)
        raise ArchiveError(f"{path}: its {CAMPAIGN} cannot be read ({words}); {_COPY_AGAIN}") from error
    _set_manifest_times(directory, index.order)
    return OpenedArchive(campaign, directory, index.where, index, {info.filename: info.file_size for info in infos})


def extract_to_directory(path: Path, root: Path) -> OpenedArchive:
    """Unpack an archive to `<root>/<campaign>`, completely or not at all.

    Raises ArchiveError as `open_archive` does, and if the directory exists already.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".campaign-archive-", dir=root))
    except OSError as error:
        raise ArchiveError(f"{root} is not writable ({error.strerror}); give another --into") from error
    try:
        archive = unpack_archive(path, scratch)
        target = root / archive.campaign.name
        if target.exists():
            raise ArchiveError(f"{target} already exists and is not replaced; give another --into")
        scratch.chmod(0o755)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return replace(archive, directory=target)


def check_archive(path: Path) -> tuple[ArchiveIndex, list[str]]:
    """Read a whole archive, and return its index and the problems of its RO-Crate description.

    Raises ArchiveError as `open_archive` does.
    """
    with open_archive(path) as archive:
        crate = archive.directory / CRATE
        if not crate.is_file():
            return archive.index, [f"{CRATE} is missing"]
        try:
            document = json.loads(crate.read_bytes())
        except (ValueError, RecursionError) as error:
            return archive.index, [f"{CRATE} is not JSON ({error})"]
        return archive.index, find_crate_problems(document, archive.select_facts(CRATE))


def _read_index(path: Path, archive: zipfile.ZipFile) -> ArchiveIndex:
    """Read and check the index of an archive. Raises ArchiveError if it is missing, damaged, or of another schema version."""
    # Programs differ in which of two members of one name they use, so one could be checked and the other one used.
    if archive.namelist().count(INDEX) > 1:
        raise ArchiveError(f"{path}: member '{INDEX}' occurs twice; {_DISTRUST}")
    try:
        info = archive.getinfo(INDEX)
        if info.file_size > _compute_max_unpacked_bytes(min(info.compress_size, path.stat().st_size)):
            raise ArchiveError(f"{path}: its {INDEX} is too large; {_DISTRUST}")
        content = archive.read(INDEX)
        version = json.loads(content)["schema_version"]
    except (KeyError, ValueError, TypeError, RecursionError):
        raise ArchiveError(f"{path} has no readable {INDEX}; it was not made by 'campaign archive'") from None
    if version != SCHEMA:
        raise ArchiveError(
            f"{path} has schema {version!r}, but this version reads only {SCHEMA!r}; use the version that made it"
        )
    try:
        index = TypeAdapter(ArchiveIndex).validate_json(content, strict=True)
    except ValidationError as error:
        raise ArchiveError(f"{path}: its {INDEX} is damaged ({format_first_error(error)}); {_COPY_AGAIN}") from None
    if CAMPAIGN not in index.sha256:
        raise ArchiveError(f"{path}: its {INDEX} lists no checksums; it was not made by 'campaign archive'")
    for name in index.order:
        if name not in index.sha256 or find_part(name) != "manifests":
            raise ArchiveError(f"{path}: its {INDEX} lists '{name}' as a manifest, which it is not; {_DISTRUST}")
    return index


def _check_members(
    path: Path, archive: zipfile.ZipFile, checksums: Mapping[str, str], directory: Path
) -> list[zipfile.ZipInfo]:
    """Return the members except the index. Raises ArchiveError if one is missing, added, outside the archive, or too large."""
    infos = [info for info in archive.infolist() if info.filename != INDEX]
    for info in infos:
        if not _is_inside_archive(info):
            raise ArchiveError(f"{path}: member '{info.filename}' points outside the archive; {_DISTRUST}")
        if not is_allowed_member(info.filename):
            raise ArchiveError(f"{path}: 'campaign archive' never packs member '{info.filename}'; {_DISTRUST}")
    if differences := _describe_differences([info.filename for info in infos], checksums):
        raise ArchiveError(f"{path}: members differ from the archive's list: {', '.join(differences)}; {_COPY_AGAIN}")
    unpacked_bytes, compressed_bytes = sum(info.file_size for info in infos), sum(info.compress_size for info in infos)
    size = path.stat().st_size
    if unpacked_bytes > _compute_max_unpacked_bytes(size) or len(infos) > MAX_MEMBERS or compressed_bytes > size:
        raise ArchiveError(
            f"{path} would unpack to {_format_gib(unpacked_bytes)}, more than an archive of this size can hold; {_DISTRUST}"
        )
    if unpacked_bytes > (free_bytes := shutil.disk_usage(directory).free):
        raise ArchiveError(
            f"{path} unpacks to {_format_gib(unpacked_bytes)}, but only "
            f"{_format_gib(free_bytes)} are free in {directory.parent}; {_FREE_SPACE}"
        )
    return infos


def _compute_max_unpacked_bytes(compressed_bytes: int) -> int:
    """Return the number of bytes that an archive of a compressed size may unpack to."""
    return min(MAX_UNPACKED_BYTES, _UNCONDITIONAL_UNPACKED_BYTES + _MAX_COMPRESSION_RATIO * compressed_bytes)


def _format_gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _is_inside_archive(info: zipfile.ZipInfo) -> bool:
    """Return whether a member is a regular file with a relative path that stays inside the archive."""
    parts = PurePosixPath(info.filename).parts
    is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
    has_plain_name = parts and "\\" not in info.filename and ":" not in parts[0]
    return bool(
        has_plain_name and not is_link and not info.is_dir() and not info.filename.startswith("/") and ".." not in parts
    )


def _describe_differences(names: list[str], checksums: Mapping[str, str]) -> list[str]:
    """Describe the first duplicate, missing and unlisted members of an archive."""
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    missing_names, unlisted_names = sorted(set(checksums) - set(names)), sorted(set(names) - set(checksums))
    return [
        *(f"'{name}' occurs twice" for name in duplicates[:3]),
        *(f"'{name}' is missing" for name in missing_names[:3]),
        *(f"'{name}' is not listed" for name in unlisted_names[:3]),
    ]


def _write_members(
    path: Path, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], checksums: Mapping[str, str], directory: Path
) -> None:
    """Unpack the members into a directory. Raises ArchiveError with the names of damaged members."""
    damaged_names = []
    for parent in sorted({(directory / info.filename).parent for info in infos}):
        parent.mkdir(parents=True, exist_ok=True)
    for info in infos:
        digest = hashlib.sha256()
        try:
            with archive.open(info) as member, (directory / info.filename).open("wb") as file:
                while chunk := member.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
        except (zipfile.BadZipFile, zlib.error, EOFError):
            damaged_names.append(info.filename)
            continue
        if digest.hexdigest() != checksums[info.filename]:
            damaged_names.append(info.filename)
        elif info.filename.startswith(f"{CONFIG}/") and info.external_attr >> 16 & 0o100:
            (directory / info.filename).chmod(0o755)
    if damaged_names:
        names_text = ", ".join(damaged_names[:5]) + (
            f" and {len(damaged_names) - 5} more" if len(damaged_names) > 5 else ""
        )
        raise ArchiveError(f"{path}: the checksum differs for {names_text}; {_COPY_AGAIN}")


def _set_manifest_times(directory: Path, order: tuple[str, ...]) -> None:
    """Set the modification times of the manifests so that they keep their order."""
    # The modification times of the files determine which manifest of a lease is the newest.
    for position, name in enumerate(order):
        os.utime(directory / name, (position + 1.0, position + 1.0))

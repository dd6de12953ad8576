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

from campaign.archive.crate import problems
from campaign.archive.layout import CAMPAIGN, CONFIG, CRATE, INDEX, SCHEMA, FileFacts, Index, is_member, part_of
from campaign.archive.programs import refuse_others
from campaign.common.errors import ArchiveError, CampaignError, first_problem
from campaign.plan.campaign.resolve import Campaign, from_document

MAX_BYTES = 50 * 2**30  # size limit of the unpacked archive, so that a zip bomb cannot fill the disk
MAX_MEMBERS = 5_000_000
_FREE_BYTES = 64 * 2**20  # allowed for every archive, whatever its compressed size is
_MAX_RATIO = 100  # of additional bytes to compressed bytes; numbers in text reach 10, and zeros 1,000
_CHUNK = 2**20
_AGAIN = "copy it again from where it was made"
_ROOM = "free space, or set TMPDIR to a directory that has it"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # errors that are never caused by the archive
_DISTRUST = "do not trust this file"


@dataclass(frozen=True)
class Opened:
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
    index: Index = field(default_factory=lambda: Index(""))
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Size in bytes of every member except the index."""

    def facts(self, *without: str) -> dict[str, FileFacts]:
        """Return the size and the checksum of every member except the index and the excluded names."""
        return {
            name: FileFacts(self.sizes[name], digest)
            for name, digest in self.index.sha256.items()
            if name not in without
        }


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Check an archive and unpack it into a temporary directory for the duration of the block.

    Raises ArchiveError if the file is not an archive, has an unknown schema version, would fill the disk, or has a member that
    points
    outside. Missing, added and damaged members also raise it, each with its name.
    """
    with TemporaryDirectory(prefix="campaign-archive-") as scratch:
        archive = unpack(path, Path(scratch))
        with naming_members(path, archive.directory):
            yield archive


@contextmanager
def naming_members(path: Path, directory: Path) -> Iterator[None]:
    """Replace the unpacked directory in errors of a block by the archive, such as `a.zip/records/..`.

    Args:
        path: the archive.
        directory: directory to which it was unpacked.
    """
    try:
        yield
    except CampaignError as error:
        error.args = tuple(
            name_members(each, path, directory) if isinstance(each, str) else each for each in error.args
        )
        raise
    except OSError as error:
        if isinstance(error.filename, str | Path):
            error.filename = name_members(str(error.filename), path, directory)
        raise


def name_members(text: str, path: Path, directory: Path) -> str:
    """Return a message in which the archive replaces the directory to which it was unpacked."""
    for unpacked in {str(directory.resolve()), str(directory)}:
        text = text.replace(unpacked, str(path))
    return text


def unpack(path: Path, directory: Path) -> Opened:
    """Check an archive and unpack it into an existing empty directory. Raises ArchiveError as `open_archive` does."""
    try:
        with zipfile.ZipFile(path) as archive:
            index = _index(path, archive)
            infos = _members(path, archive, index.sha256, directory)
            _write(path, archive, infos, index.sha256, directory)
    except FileNotFoundError:
        raise ArchiveError(f"{path}: no such file") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        if getattr(error, "errno", None) in _NO_ROOM:
            raise ArchiveError(f"{path}: could not be unpacked into {directory} ({error}); {_ROOM}") from error
        words = name_members(str(error), path, directory)
        raise ArchiveError(f"{path}: is not a complete archive ({words}); {_AGAIN}") from error
    try:
        campaign = from_document(json.loads((directory / CAMPAIGN).read_bytes()))
        refuse_others(campaign.inputs, index.sha256)
    except CampaignError as error:
        raise ArchiveError(f"{path}: {error}") from error
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        words = name_members(str(error), path, directory)
        raise ArchiveError(f"{path}: its {CAMPAIGN} cannot be read ({words}); {_AGAIN}") from error
    _set_order(directory, index.order)
    return Opened(campaign, directory, index.where, index, {info.filename: info.file_size for info in infos})


def extract(path: Path, root: Path) -> Opened:
    """Unpack an archive to `<root>/<campaign>`, completely or not at all.

    Raises ArchiveError as `open_archive` does, and if the directory exists already.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".campaign-archive-", dir=root))
    except OSError as error:
        raise ArchiveError(f"{root}: cannot be written ({error.strerror}); give another --into") from error
    try:
        archive = unpack(path, scratch)
        target = root / archive.campaign.name
        if target.exists():
            raise ArchiveError(f"{target}: already exists and is not replaced; give another --into")
        scratch.chmod(0o755)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return replace(archive, directory=target)


def check(path: Path) -> tuple[Index, list[str]]:
    """Read a whole archive, and return its index and the problems of its RO-Crate description.

    Raises ArchiveError as `open_archive` does.
    """
    with opened(path) as archive:
        crate = archive.directory / CRATE
        if not crate.is_file():
            return archive.index, [f"there is no {CRATE}"]
        try:
            document = json.loads(crate.read_bytes())
        except (ValueError, RecursionError) as error:
            return archive.index, [f"{CRATE} is not JSON ({error})"]
        return archive.index, problems(document, archive.facts(CRATE))


def _index(path: Path, archive: zipfile.ZipFile) -> Index:
    # Programs differ in which of two members they use, so that one could be checked and the other one read.
    if archive.namelist().count(INDEX) > 1:
        raise ArchiveError(f"{path}: '{INDEX}' stands twice; {_DISTRUST}")
    try:
        info = archive.getinfo(INDEX)
        if info.file_size > _most_bytes(min(info.compress_size, path.stat().st_size)):
            raise ArchiveError(f"{path}: its {INDEX} is larger than any can be; {_DISTRUST}")
        content = archive.read(INDEX)
        version = json.loads(content)["schema_version"]
    except (KeyError, ValueError, TypeError, RecursionError):
        raise ArchiveError(f"{path}: has no readable {INDEX}; it was not made by 'campaign archive'") from None
    if version != SCHEMA:
        raise ArchiveError(
            f"{path}: has schema {version!r}; this version reads {SCHEMA!r}. Use the version that made it"
        )
    try:
        index = TypeAdapter(Index).validate_json(content, strict=True)
    except ValidationError as error:
        raise ArchiveError(f"{path}: its {INDEX} is damaged ({first_problem(error)}); {_AGAIN}") from None
    if CAMPAIGN not in index.sha256:
        raise ArchiveError(f"{path}: its {INDEX} lists no checksums; it was not made by 'campaign archive'")
    for name in index.order:
        if name not in index.sha256 or part_of(name) != "manifests":
            raise ArchiveError(f"{path}: its {INDEX} orders '{name}', which is no manifest in it; {_DISTRUST}")
    return index


def _members(
    path: Path, archive: zipfile.ZipFile, checksums: Mapping[str, str], directory: Path
) -> list[zipfile.ZipInfo]:
    """Return the members except the index. Raises ArchiveError if one is missing, added, outside the archive, or too large."""
    infos = [info for info in archive.infolist() if info.filename != INDEX]
    for info in infos:
        if not _inside(info):
            raise ArchiveError(f"{path}: member '{info.filename}' points outside the archive; {_DISTRUST}")
        if not is_member(info.filename):
            raise ArchiveError(f"{path}: member '{info.filename}' is none that 'campaign archive' packs; {_DISTRUST}")
    if differ := _differences([info.filename for info in infos], checksums):
        raise ArchiveError(f"{path}: members differ from the archive's list: {', '.join(differ)}; {_AGAIN}")
    total, stored = sum(info.file_size for info in infos), sum(info.compress_size for info in infos)
    size = path.stat().st_size
    if total > _most_bytes(size) or len(infos) > MAX_MEMBERS or stored > size:
        raise ArchiveError(f"{path}: would unpack to more than it can hold ({_gib(total)}); {_DISTRUST}")
    if total > (free := shutil.disk_usage(directory).free):
        raise ArchiveError(
            f"{path}: unpacks to {_gib(total)}, and {_gib(free)} are free in {directory.parent}; {_ROOM}"
        )
    return infos


def _most_bytes(stored: int) -> int:
    """Return the number of bytes that an archive of a compressed size may unpack to."""
    return min(MAX_BYTES, _FREE_BYTES + _MAX_RATIO * stored)


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _inside(info: zipfile.ZipInfo) -> bool:
    parts = PurePosixPath(info.filename).parts
    link = (info.external_attr >> 16) & 0o170000 == 0o120000
    plain = parts and "\\" not in info.filename and ":" not in parts[0]
    return bool(plain and not link and not info.is_dir() and not info.filename.startswith("/") and ".." not in parts)


def _differences(names: list[str], checksums: Mapping[str, str]) -> list[str]:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    lacking, added = sorted(set(checksums) - set(names)), sorted(set(names) - set(checksums))
    return [
        *(f"'{name}' stands twice" for name in twice[:3]),
        *(f"'{name}' is missing" for name in lacking[:3]),
        *(f"'{name}' is not listed" for name in added[:3]),
    ]


def _write(
    path: Path, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], checksums: Mapping[str, str], directory: Path
) -> None:
    damaged = []
    for parent in sorted({(directory / info.filename).parent for info in infos}):
        parent.mkdir(parents=True, exist_ok=True)
    for info in infos:
        digest = hashlib.sha256()
        try:
            with archive.open(info) as member, (directory / info.filename).open("wb") as file:
                while chunk := member.read(_CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
        except (zipfile.BadZipFile, zlib.error, EOFError):
            damaged.append(info.filename)
            continue
        if digest.hexdigest() != checksums[info.filename]:
            damaged.append(info.filename)
        elif info.filename.startswith(f"{CONFIG}/") and info.external_attr >> 16 & 0o100:
            (directory / info.filename).chmod(0o755)
    if damaged:
        told = ", ".join(damaged[:5]) + (f" and {len(damaged) - 5} more" if len(damaged) > 5 else "")
        raise ArchiveError(f"{path}: the checksum differs for {told}; {_AGAIN}")


def _set_order(directory: Path, order: tuple[str, ...]) -> None:
    # The times of the files determine which manifest of a lease is the newest.
    for position, name in enumerate(order):
        os.utime(directory / name, (position + 1.0, position + 1.0))

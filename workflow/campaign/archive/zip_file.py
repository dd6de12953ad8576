"""Reproducible zip files. They are written completely or not at all, and the same members give the same bytes."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from campaign.archive.layout import CONFIG, FileFacts, compute_facts
from campaign.common.errors import ArchiveError
from campaign.common.files import acquire_lock, sync_directory

MemberContent = Path | bytes
# Zip files require a time. It is fixed, because the same results must give the same bytes.
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_zip(
    out: Path,
    members: Mapping[str, MemberContent],
    make_last_members: Callable[[Mapping[str, FileFacts]], Iterator[tuple[str, bytes]]],
    on_member: Callable[[str, bytes], None] = lambda name, content: None,
) -> dict[str, FileFacts]:
    """Write members in order into a zip file, and return the size and checksum of each.

    Raises ArchiveError if the file cannot be written or another process is writing it. An earlier file is then unchanged.

    Args:
        out: zip file to write.
        members: content by member name.
        make_last_members: function that makes the final members from the size and checksum of all others.
        on_member: function that is called with the name and the content of every member.
    """
    facts_by_member: dict[str, FileFacts] = {}
    try:
        with _open_replacement(out) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, source in members.items():
                content = source if isinstance(source, bytes) else source.read_bytes()
                on_member(name, content)
                facts_by_member[name] = compute_facts(content)
                write_member(archive, name, content, executable=_is_executable(name, source))
            for name, content in make_last_members(facts_by_member):
                facts_by_member[name] = compute_facts(content)
                write_member(archive, name, content)
    except OSError as error:
        raise ArchiveError(
            f"{error.filename or out} could not be read or written ({error.strerror or error}); free space or fix permissions; "
            f"{out} is unchanged"
        ) from error
    return facts_by_member


def _is_executable(name: str, source: MemberContent) -> bool:
    return name.startswith(f"{CONFIG}/") and isinstance(source, Path) and bool(source.stat().st_mode & 0o100)


def write_member(archive: zipfile.ZipFile, name: str, content: bytes, *, executable: bool = False) -> None:
    """Write one member with a fixed timestamp."""
    info = zipfile.ZipInfo(name, _FIXED_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o755 if executable else 0o644) << 16
    archive.writestr(info, content)


@contextmanager
def _open_replacement(out: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `out` once it is complete and on the disk. Only one process can write at a time.

    A file that a killed process left behind is overwritten by the next one.
    """
    temporary = out.with_name(f".{out.name}.tmp")
    descriptor = acquire_lock(temporary, holder="")
    # Between opening and locking, another process may have moved the file to the archive's name.
    if descriptor is None or not (temporary.exists() and os.path.samestat(os.fstat(descriptor), temporary.stat())):
        raise ArchiveError(f"another process is writing {out}; wait until it ends, or give another --output")
    with os.fdopen(descriptor, "r+b") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(out)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_directory(out.parent)

"""A zip file of given members, written so that it is there whole or not at all, and of the same bytes for the same members."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from campaign.archive.layout import CONFIG, FileFacts, facts
from campaign.common.errors import ArchiveError
from campaign.common.files import acquire_lock, sync_directory

Content = Path | bytes
# Zip keeps times to two seconds and needs one; the same results must give the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def pack(
    out: Path,
    members: Mapping[str, Content],
    last: Callable[[Mapping[str, FileFacts]], Iterator[tuple[str, bytes]]],
    seen: Callable[[str, bytes], None] = lambda name, content: None,
) -> dict[str, FileFacts]:
    """Write members in their order; gives size and checksum of each.

    last: what is written after them, made from what they are. seen: told of every member while it is in memory. ArchiveError when
    the file cannot be written, or is being written by another process; what was there before is then still there.
    """
    written: dict[str, FileFacts] = {}
    try:
        with _replacing(out) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, source in members.items():
                content = source if isinstance(source, bytes) else source.read_bytes()
                seen(name, content)
                written[name] = facts(content)
                add(archive, name, content, executable=_is_program(name, source))
            for name, content in last(written):
                written[name] = facts(content)
                add(archive, name, content)
    except OSError as error:
        raise ArchiveError(
            f"{error.filename or out}: could not be read or written ({error.strerror or error}); free space or fix permissions; "
            f"{out} is as it was before"
        ) from error
    return written


def _is_program(name: str, source: Content) -> bool:
    return name.startswith(f"{CONFIG}/") and isinstance(source, Path) and bool(source.stat().st_mode & 0o100)


def add(archive: zipfile.ZipFile, name: str, content: bytes, *, executable: bool = False) -> None:
    """Add one member without the time of day."""
    info = zipfile.ZipInfo(name, _NO_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o755 if executable else 0o644) << 16
    archive.writestr(info, content)


@contextmanager
def _replacing(out: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `out` once it is whole and on the disk; one process at a time.

    What a killed process left of it is written over by the next one.
    """
    temporary = out.with_name(f".{out.name}.tmp")
    descriptor = acquire_lock(temporary, holder="")
    # Between opening and locking, the process that had it may have made it the archive.
    if descriptor is None or not (temporary.exists() and os.path.samestat(os.fstat(descriptor), temporary.stat())):
        raise ArchiveError(f"{out}: another process is writing it; wait for that one, or give another --output")
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

"""Reader of program output that needs memory for only a few lines of a log of any size.

A line ends at a line feed or, as in progress bars, at a carriage return. Terminal codes are removed.

The log is read in blocks of 128 KiB, and only those lines are decoded that a parser searches for. That takes 0.6 to 7.4 CPU
seconds per GB, and 43 MiB of memory. Blocks of 4 MiB, which do not fit into a cache, took three times as long.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from campaign.common.files import open_regular

# Blocks that fit into a core's cache are read three times as fast as larger ones.
_CHUNK_BYTES = 128 << 10
_WHOLE_BYTES = 4 << 20
_LINE_BYTES = 16 << 20
_TAIL_BYTES = 256 << 10
_ENCODING_BYTES = 512
_PAIRS_LOOKED_AT = 100
_SIGN_LINES = 100
_SIGN_LINE_BYTES = 4 << 10
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Log:
    """Log file, or its content as bytes. Every call reads the log anew; creating the object reads nothing."""

    def __init__(self, source: Path | bytes) -> None:
        self._source = source

    @classmethod
    def of(cls, text: str) -> Log:
        """Create a log from a text instead of a file."""
        return cls(text.encode(errors="replace"))

    def chunks(self, longest: int | None = None) -> Iterator[bytes]:
        """Yield complete lines as they were printed, about 128 KiB at a time. Only the last chunk may lack a line end.

        Args:
            max_line_bytes: maximum length of a line in bytes (16 MiB if None). Longer lines are left out, because they are no
                text.
        """
        held: list[bytes] = []  # blocks of a line that has not ended yet
        skipping = False
        with self._opened() as file:
            while block := file.read(_CHUNK_BYTES):
                cut = _cut(block)
                if not cut:
                    if not skipping:
                        held.append(block)
                        skipping = sum(map(len, held)) > (longest or _LINE_BYTES)
                    if skipping:
                        held.clear()
                    continue
                whole = (
                    re.split(rb"(?<=[\r\n])", block[:cut], maxsplit=1)[-1]
                    if skipping
                    else b"".join([*held, block[:cut]])
                )
                skipping = False
                if whole:
                    yield whole
                held = [block[cut:]]
        if rest := b"".join(held):
            yield rest

    def lines(
        self,
        needles: Sequence[bytes] = (),
        rows: re.Pattern[bytes] | None = None,
        *,
        whole: bool = False,
        longest: int | None = None,
    ) -> Iterator[str]:
        """Yield lines without their line ends, optionally only those that match.

        Args:
            needles: select lines that contain one of these.
            rows: select lines that match this pattern, which begins with a line feed.
            only_ended: leave out a last line without a line end.
            max_line_bytes: maximum length of a line in bytes, as in `read_chunks`.
        """
        for number, chunk in enumerate(map(plain, self.chunks(longest))):
            if number == 0:
                chunk = chunk.removeprefix(BOM_UTF8)  # some editors put this mark before a text
            if whole and not chunk.endswith(b"\n"):
                chunk = chunk[: chunk.rfind(b"\n") + 1]
            if needles or rows is not None:
                # The pattern may need the line end after a number.
                wanted: Iterable[bytes] = _found(chunk if chunk.endswith(b"\n") else chunk + b"\n", needles, rows)
            else:
                wanted = chunk.removesuffix(b"\n").split(b"\n") if chunk else ()
            for line in wanted:
                yield line.decode(errors="replace")

    def excerpt(self, signs: Sequence[bytes] = ()) -> str:
        """Return the first lines with a sign of failure and the end of the log, as an excerpt that can explain a failed run.

        A log of less than 4 MiB is returned completely.

        Args:
            signs: texts that mark lines as evidence.
        """
        with self._opened() as file:
            begin = file.read(_WHOLE_BYTES)
            if len(begin) < _WHOLE_BYTES:
                return plain(begin).decode(errors="replace")
        left = dict.fromkeys(signs, _SIGN_LINES)
        found: list[bytes] = []
        tail = b""
        for chunk in map(plain, self.chunks()):
            found += _signs(chunk, left)
            tail = (tail + chunk)[-_TAIL_BYTES:]
        return b"\n".join([*found, tail[tail.find(b"\n") + 1 :]]).decode(errors="replace")

    def head(self) -> bytes:
        """Return the first MiB of the log as it was printed."""
        with self._opened() as file:
            return file.read(1 << 20)

    def encoding_problem(self) -> str:
        """Return a sentence on how to convert the log if it is UTF-16 text; '' otherwise."""
        begin = self.head()[:_ENCODING_BYTES]
        # Without a mark, every second byte of ASCII text is zero.
        halved = len(begin) > 8 and any(begin) and not (any(begin[::2]) and any(begin[1::2]))
        if begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or halved:
            return "the log is UTF-16 text, as `>` of PowerShell writes it: convert it, such as by `iconv -f UTF-16 -t UTF-8`"
        return ""

    def end(self) -> bytes:
        """Return the last MiB of the log as it was printed."""
        with self._opened() as file:
            file.seek(max(0, file.seek(0, SEEK_END) - (1 << 20)))
            return file.read()

    def unended_line(self) -> str:
        """Return the last line (from the last MiB) if no line feed ends it; '' otherwise."""
        return plain(self.end()).rpartition(b"\n")[2].decode(errors="replace")

    def tail(self, characters: int = 400) -> str:
        """Return the last characters of the log, as evidence."""
        with self._opened() as file:
            size = file.seek(0, SEEK_END)
            file.seek(max(0, size - 4 * characters))
            return plain(file.read()).decode(errors="replace").strip()[-characters:]

    def _opened(self) -> BinaryIO:
        return BytesIO(self._source) if isinstance(self._source, bytes) else open_regular(self._source)


def plain(chunk: bytes) -> bytes:
    """Remove terminal codes from a chunk of a log, and end lines at carriage returns as progress bars do."""
    if b"\x1b" in chunk:
        chunk = _ANSI.sub(b"", chunk)
    if b"\r" in chunk:
        if _has_pairs(chunk):
            chunk = chunk.replace(b"\r\n", b"\n")
        chunk = chunk.replace(b"\r", b"\n")
    return chunk


def _has_pairs(chunk: bytes) -> bool:
    """Return whether lines end with CR LF, judged by the first 100 line ends.

    Searching all of a log with progress bars for the pair would take longer than the rest of the work. If the answer is wrong,
    additional empty lines are read.
    """
    at = -1
    for _ in range(_PAIRS_LOOKED_AT):
        at = chunk.find(b"\n", at + 1)
        if at < 0:
            return False
        if chunk[at - 1 : at] == b"\r":
            return True
    return False


def _cut(text: bytes) -> int:
    """Return the index after the last line end in a block.

    A carriage return at the very end is not counted, because it may be half of a CR LF.
    """
    at = text.rfind(b"\n")
    return at + 1 if at >= 0 else text.rfind(b"\r", 0, len(text) - 1) + 1


def _found(chunk: bytes, needles: Sequence[bytes], rows: re.Pattern[bytes] | None) -> Iterator[bytes]:
    """Yield the lines of a chunk that contain a needle or match the pattern, in order."""
    found: dict[int, int] = {}
    for needle in needles:
        at = chunk.find(needle)
        while at >= 0:
            end = _end(chunk, at)
            found[chunk.rfind(b"\n", 0, at) + 1] = end
            at = chunk.find(needle, end)
    if rows is not None:
        # The line feed before the first line belongs to the previous chunk.
        end = _end(chunk, 0)
        if rows.search(b"\n" + chunk[: end + 1]):
            found[0] = end
        for match in rows.finditer(chunk):
            begin = match.start() + 1
            found[begin] = _end(chunk, begin)
    for begin in sorted(found):
        yield chunk[begin : found[begin]]


def _end(chunk: bytes, at: int) -> int:
    """Return the index of the line end at or after a position."""
    end = chunk.find(b"\n", at)
    return end if end >= 0 else len(chunk)


def _signs(chunk: bytes, left: dict[bytes, int]) -> list[bytes]:
    """Return the lines of a chunk that contain a sign of failure, in order, shortened around the sign.

    Args:
        chunk: complete lines.
        remaining_counts: how many more lines may be taken per sign; updated in place.
    """
    found: dict[int, bytes] = {}
    for sign, count in left.items():
        at = chunk.find(sign) if count else -1
        while at >= 0 and left[sign]:
            left[sign] -= 1
            begin, end = chunk.rfind(b"\n", 0, at) + 1, _end(chunk, at)
            if sign == b"Last error:":
                end = _end(chunk, end + 1)  # the next line describes the error
            found[begin] = chunk[begin if at - begin < _SIGN_LINE_BYTES else at : min(end, at + _SIGN_LINE_BYTES)]
            at = chunk.find(sign, end)
    return [found[begin] for begin in sorted(found)]

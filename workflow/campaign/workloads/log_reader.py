"""What a program printed, read in pieces: a log of any size costs the memory of a few of its lines.

A line ends at a line feed or, as progress bars have it, at a carriage return. Terminal codes are no part of a line.

Pieces have 128 KiB, and lines become text only where a parser looks for them: 0.6 to 7.4 CPU seconds and 43 MiB of memory per GB.
Pieces of 4 MiB, which do not fit a cache, took three times as long.
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

# What fits into a core's cache is read three times as fast as what does not.
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
    """A log file, or its bytes. It is read anew by every call, and by nothing before."""

    def __init__(self, source: Path | bytes) -> None:
        self._source = source

    @classmethod
    def of(cls, text: str) -> Log:
        """A log that is no file."""
        return cls(text.encode(errors="replace"))

    def chunks(self, longest: int | None = None) -> Iterator[bytes]:
        """Whole lines as they were printed, some 128 KiB at a time. Only the last chunk may end without a line end.

        A line of more bytes than `longest` (16 MiB if None) is no line of text, and is left out.
        """
        held: list[bytes] = []  # what no line end has come for yet
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
        """Lines without their ends; with `needles` or `rows` only those that hold a needle or in which `rows` is found.

        rows: begins with a line feed, as every line does here. whole: leave out a last line that has no end.
        """
        for number, chunk in enumerate(map(plain, self.chunks(longest))):
            if number == 0:
                chunk = chunk.removeprefix(BOM_UTF8)  # which editors of some systems put before a text
            if whole and not chunk.endswith(b"\n"):
                chunk = chunk[: chunk.rfind(b"\n") + 1]
            if needles or rows is not None:
                # A row may be known by what stands behind its number, be it the end of its line.
                wanted: Iterable[bytes] = _found(chunk if chunk.endswith(b"\n") else chunk + b"\n", needles, rows)
            else:
                wanted = chunk.removesuffix(b"\n").split(b"\n") if chunk else ()
            for line in wanted:
                yield line.decode(errors="replace")

    def excerpt(self, signs: Sequence[bytes] = ()) -> str:
        """What is needed to say why a run failed: the first lines that hold any sign of it, and the end of the log.

        The whole text where that is less than 4 MiB.
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
        """The first MiB, as it was printed."""
        with self._opened() as file:
            return file.read(1 << 20)

    def encoding_problem(self) -> str:
        """Return a sentence for a log of text that is no UTF-8; an empty text for others."""
        begin = self.head()[:_ENCODING_BYTES]
        # Without a mark, every second byte of ASCII text is zero.
        halved = len(begin) > 8 and any(begin) and not (any(begin[::2]) and any(begin[1::2]))
        if begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or halved:
            return "the log is UTF-16 text, as `>` of PowerShell writes it: convert it, such as by `iconv -f UTF-16 -t UTF-8`"
        return ""

    def end(self) -> bytes:
        """The last MiB, as it was printed."""
        with self._opened() as file:
            file.seek(max(0, file.seek(0, SEEK_END) - (1 << 20)))
            return file.read()

    def unended_line(self) -> str:
        """Return the last line, from its last MiB, if no line feed ends it; else an empty text."""
        return plain(self.end()).rpartition(b"\n")[2].decode(errors="replace")

    def tail(self, characters: int = 400) -> str:
        """The end of the log, as evidence."""
        with self._opened() as file:
            size = file.seek(0, SEEK_END)
            file.seek(max(0, size - 4 * characters))
            return plain(file.read()).decode(errors="replace").strip()[-characters:]

    def _opened(self) -> BinaryIO:
        return BytesIO(self._source) if isinstance(self._source, bytes) else open_regular(self._source)


def plain(chunk: bytes) -> bytes:
    """Lines as a person sees them: carriage returns of progress bars end a line, colours are gone."""
    if b"\x1b" in chunk:
        chunk = _ANSI.sub(b"", chunk)
    if b"\r" in chunk:
        if _has_pairs(chunk):
            chunk = chunk.replace(b"\r\n", b"\n")
        chunk = chunk.replace(b"\r", b"\n")
    return chunk


def _has_pairs(chunk: bytes) -> bool:
    """Whether lines end with CR LF, by the first of them: to look for the pair in an epoch of bars takes longer than all the rest.

    Where it is wrong, an empty line more comes out.
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
    """Behind the last line end; a carriage return at the very end may be half of one."""
    at = text.rfind(b"\n")
    return at + 1 if at >= 0 else text.rfind(b"\r", 0, len(text) - 1) + 1


def _found(chunk: bytes, needles: Sequence[bytes], rows: re.Pattern[bytes] | None) -> Iterator[bytes]:
    found: dict[int, int] = {}
    for needle in needles:
        at = chunk.find(needle)
        while at >= 0:
            end = _end(chunk, at)
            found[chunk.rfind(b"\n", 0, at) + 1] = end
            at = chunk.find(needle, end)
    if rows is not None:
        # The line feed before the first line of a chunk went with the chunk before.
        end = _end(chunk, 0)
        if rows.search(b"\n" + chunk[: end + 1]):
            found[0] = end
        for match in rows.finditer(chunk):
            begin = match.start() + 1
            found[begin] = _end(chunk, begin)
    for begin in sorted(found):
        yield chunk[begin : found[begin]]


def _end(chunk: bytes, at: int) -> int:
    end = chunk.find(b"\n", at)
    return end if end >= 0 else len(chunk)


def _signs(chunk: bytes, left: dict[bytes, int]) -> list[bytes]:
    """Lines of a chunk with a sign of failure, cut around it, in order. A sign that is everywhere is not looked for any more."""
    found: dict[int, bytes] = {}
    for sign, count in left.items():
        at = chunk.find(sign) if count else -1
        while at >= 0 and left[sign]:
            left[sign] -= 1
            begin, end = chunk.rfind(b"\n", 0, at) + 1, _end(chunk, at)
            if sign == b"Last error:":
                end = _end(chunk, end + 1)  # what it is stands in the next line
            found[begin] = chunk[begin if at - begin < _SIGN_LINE_BYTES else at : min(end, at + _SIGN_LINE_BYTES)]
            at = chunk.find(sign, end)
    return [found[begin] for begin in sorted(found)]

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
_MAX_EXCERPT_BYTES = 4 << 20
_MAX_LINE_BYTES = 16 << 20
_TAIL_BYTES = 256 << 10
_ENCODING_SAMPLE_BYTES = 512
_MAX_LINE_ENDS_CHECKED = 100
_MAX_LINES_PER_SIGN = 100
_MAX_SIGN_LINE_BYTES = 4 << 10
_ANSI_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Log:
    """Output of a program, as a file or as bytes. Every call reads the log anew; creating the object reads nothing."""

    def __init__(self, source: Path | bytes) -> None:
        self._source = source

    @classmethod
    def from_text(cls, text: str) -> Log:
        """Create a log whose content is a text instead of a file."""
        return cls(text.encode(errors="replace"))

    def read_chunks(self, max_line_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the log as printed, in chunks of whole lines of about 128 KiB. Only the last chunk may end without a line end.

        Args:
            max_line_bytes: maximum length of a line in bytes (16 MiB if None). Longer lines are not text and are left out.
        """
        pending_blocks: list[bytes] = []  # blocks of a line that has not ended yet
        skipping = False
        with self._open() as file:
            while block := file.read(_CHUNK_BYTES):
                end_of_lines = _find_last_line_end(block)
                if not end_of_lines:
                    if not skipping:
                        pending_blocks.append(block)
                        skipping = sum(map(len, pending_blocks)) > (max_line_bytes or _MAX_LINE_BYTES)
                    if skipping:
                        pending_blocks.clear()
                    continue
                complete_lines = (
                    re.split(rb"(?<=[\r\n])", block[:end_of_lines], maxsplit=1)[-1]
                    if skipping
                    else b"".join([*pending_blocks, block[:end_of_lines]])
                )
                skipping = False
                if complete_lines:
                    yield complete_lines
                pending_blocks = [block[end_of_lines:]]
        if last_line := b"".join(pending_blocks):
            yield last_line

    def read_lines(
        self,
        needles: Sequence[bytes] = (),
        rows: re.Pattern[bytes] | None = None,
        *,
        only_ended: bool = False,
        max_line_bytes: int | None = None,
    ) -> Iterator[str]:
        """Yield lines without their line ends, optionally only those that match.

        Args:
            needles: only lines that contain one of these are selected.
            rows: lines that match this pattern are selected, too. The pattern begins with a line feed.
            only_ended: true to leave out a last line without a line end.
            max_line_bytes: maximum length of a line in bytes, as in `read_chunks`.
        """
        for number, chunk in enumerate(map(strip_terminal_codes, self.read_chunks(max_line_bytes))):
            if number == 0:
                chunk = chunk.removeprefix(BOM_UTF8)  # some editors put this mark before a text
            if only_ended and not chunk.endswith(b"\n"):
                chunk = chunk[: chunk.rfind(b"\n") + 1]
            if needles or rows is not None:
                # The pattern may need the line end after a number.
                selected_lines: Iterable[bytes] = _select_lines(
                    chunk if chunk.endswith(b"\n") else chunk + b"\n", needles, rows
                )
            else:
                selected_lines = chunk.removesuffix(b"\n").split(b"\n") if chunk else ()
            for line in selected_lines:
                yield line.decode(errors="replace")

    def read_excerpt(self, signs: Sequence[bytes] = ()) -> str:
        """Return an excerpt that may explain why a run failed: the first lines with signs of failure, and the end of the log.

        A log of less than 4 MiB is returned completely.

        Args:
            signs: texts that mark lines as evidence.
        """
        with self._open() as file:
            begin = file.read(_MAX_EXCERPT_BYTES)
            if len(begin) < _MAX_EXCERPT_BYTES:
                return strip_terminal_codes(begin).decode(errors="replace")
        remaining_counts = dict.fromkeys(signs, _MAX_LINES_PER_SIGN)
        sign_lines: list[bytes] = []
        tail = b""
        for chunk in map(strip_terminal_codes, self.read_chunks()):
            sign_lines += _find_sign_lines(chunk, remaining_counts)
            tail = (tail + chunk)[-_TAIL_BYTES:]
        return b"\n".join([*sign_lines, tail[tail.find(b"\n") + 1 :]]).decode(errors="replace")

    def read_head(self) -> bytes:
        """Return the first MiB of the log exactly as printed."""
        with self._open() as file:
            return file.read(1 << 20)

    def find_encoding_problem(self) -> str:
        """Explain how to convert the log if it is UTF-16 text. Returns an empty string if it is not."""
        begin = self.read_head()[:_ENCODING_SAMPLE_BYTES]
        # Without a mark, every second byte of ASCII text is zero.
        has_zero_bytes = len(begin) > 8 and any(begin) and not (any(begin[::2]) and any(begin[1::2]))
        if begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or has_zero_bytes:
            return "the log is UTF-16 text (as `>` of PowerShell writes it); convert it, such as with `iconv -f UTF-16 -t UTF-8`"
        return ""

    def read_end(self) -> bytes:
        """Return the last MiB of the log exactly as printed."""
        with self._open() as file:
            file.seek(max(0, file.seek(0, SEEK_END) - (1 << 20)))
            return file.read()

    def read_unended_line(self) -> str:
        """Return the last line (at most a MiB) if it does not end in a line feed, else an empty string."""
        return strip_terminal_codes(self.read_end()).rpartition(b"\n")[2].decode(errors="replace")

    def read_tail(self, characters: int = 400) -> str:
        """Return the last characters of the log, as evidence of a failure."""
        with self._open() as file:
            size = file.seek(0, SEEK_END)
            file.seek(max(0, size - 4 * characters))
            return strip_terminal_codes(file.read()).decode(errors="replace").strip()[-characters:]

    def _open(self) -> BinaryIO:
        return BytesIO(self._source) if isinstance(self._source, bytes) else open_regular(self._source)


def strip_terminal_codes(chunk: bytes) -> bytes:
    """Remove terminal codes from a chunk of a log, and treat carriage returns (as in progress bars) as line ends."""
    if b"\x1b" in chunk:
        chunk = _ANSI_ESCAPE.sub(b"", chunk)
    if b"\r" in chunk:
        if _has_crlf(chunk):
            chunk = chunk.replace(b"\r\n", b"\n")
        chunk = chunk.replace(b"\r", b"\n")
    return chunk


def _has_crlf(chunk: bytes) -> bool:
    """Return whether lines of a chunk end in CR LF, judging by the first 100 line ends.

    Searching a whole log with progress bars for this pair would take longer than all other work. If the answer is wrong, some
    additional empty lines are read.
    """
    position = -1
    for _ in range(_MAX_LINE_ENDS_CHECKED):
        position = chunk.find(b"\n", position + 1)
        if position < 0:
            return False
        if chunk[position - 1 : position] == b"\r":
            return True
    return False


def _find_last_line_end(text: bytes) -> int:
    """Return the index after the last line end in a block of a log.

    A carriage return at the very end does not count, because it may be the first half of a CR LF.
    """
    position = text.rfind(b"\n")
    return position + 1 if position >= 0 else text.rfind(b"\r", 0, len(text) - 1) + 1


def _select_lines(chunk: bytes, needles: Sequence[bytes], rows: re.Pattern[bytes] | None) -> Iterator[bytes]:
    """Yield those lines of a chunk, in order, that contain one of the needles or match the pattern."""
    line_ends: dict[int, int] = {}
    for needle in needles:
        position = chunk.find(needle)
        while position >= 0:
            end = _find_line_end(chunk, position)
            line_ends[chunk.rfind(b"\n", 0, position) + 1] = end
            position = chunk.find(needle, end)
    if rows is not None:
        # The line feed before the first line belongs to the previous chunk.
        end = _find_line_end(chunk, 0)
        if rows.search(b"\n" + chunk[: end + 1]):
            line_ends[0] = end
        for match in rows.finditer(chunk):
            begin = match.start() + 1
            line_ends[begin] = _find_line_end(chunk, begin)
    for begin in sorted(line_ends):
        yield chunk[begin : line_ends[begin]]


def _find_line_end(chunk: bytes, position: int) -> int:
    """Return the index of the first line end in a chunk at or after a position."""
    end = chunk.find(b"\n", position)
    return end if end >= 0 else len(chunk)


def _find_sign_lines(chunk: bytes, remaining_counts: dict[bytes, int]) -> list[bytes]:
    """Return those lines of a chunk, in order, that contain a sign of failure. Long lines are shortened around the sign.

    Args:
        chunk: complete lines.
        remaining_counts: number of further lines that may be returned, by sign; updated in place.
    """
    lines: dict[int, bytes] = {}
    for sign, count in remaining_counts.items():
        position = chunk.find(sign) if count else -1
        while position >= 0 and remaining_counts[sign]:
            remaining_counts[sign] -= 1
            begin, end = chunk.rfind(b"\n", 0, position) + 1, _find_line_end(chunk, position)
            if sign == b"Last error:":
                end = _find_line_end(chunk, end + 1)  # the next line describes the error
            lines[begin] = chunk[
                begin if position - begin < _MAX_SIGN_LINE_BYTES else position : min(
                    end, position + _MAX_SIGN_LINE_BYTES
                )
            ]
            position = chunk.find(sign, end)
    return [lines[begin] for begin in sorted(lines)]

"""Standard files that daemons and `ssh host command <&-` leave closed, and their encoding."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

_STREAM_NAMES = ("stdin", "stdout", "stderr")


def open_standard_files() -> None:
    """Open /dev/null for each closed standard stream. Otherwise a lock file could get its descriptor number."""
    for number, name in enumerate(_STREAM_NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # The file gets the lowest free number.
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def set_utf8_encoding() -> None:
    """Set the encoding of the standard streams to UTF-8, even if the locale cannot represent the printed characters."""
    for name in _STREAM_NAMES:
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            # Bytes in file names that are not UTF-8 are written unchanged.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if name == "stderr" else "surrogateescape")

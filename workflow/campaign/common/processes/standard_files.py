"""Standard files: those that daemons and `ssh host command <&-` leave closed, and the encoding of each."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

_NAMES = ("stdin", "stdout", "stderr")


def open_standard_files() -> None:
    """Open /dev/null in place of each standard file that is closed. Otherwise a lock could become one."""
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def use_utf8() -> None:
    """Have the standard files be UTF-8 as all others are, also where the locale has no letter for what is printed."""
    for name in _NAMES:
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            # Bytes of file names that are no UTF-8 pass as they are.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if name == "stderr" else "surrogateescape")

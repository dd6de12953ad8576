"""Standard files that are closed, as daemons and `ssh host command <&-` leave them."""

from __future__ import annotations

import os
import sys


def open_standard_files() -> None:
    """Open /dev/null in place of each standard file that is closed. Otherwise a lock could become one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115

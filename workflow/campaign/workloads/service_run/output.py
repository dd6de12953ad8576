"""What the processes of a run print: passed on to its log as it comes, with the end of it kept as evidence."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

_TAIL_BYTES = 4096
_LINE_BYTES = 1 << 16


def say(words: str) -> None:
    """A line of the program itself."""
    write(f"service: {words}\n".encode())


def write(data: bytes) -> None:
    """To the log of the run, where a line of another process never comes into the middle of these bytes."""
    while data:
        data = data[os.write(1, data) :]


class Output:
    """The output of one process. wanted: what `seen` waits for; copy: a file that gets all of it, too."""

    def __init__(self, pipe: int, wanted: str | None = None, copy: Path | None = None) -> None:
        self._pipe = pipe
        self._wanted = None if wanted is None else re.compile(wanted.encode())
        self._copy = copy
        self._tail = b""
        self.seen = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """The end of it. What has ended is given a moment, since its last words may still be on their way."""
        self._thread.join(0.5)
        return self._tail.decode(errors="replace").strip()

    def _pass_on(self) -> None:
        line = b""
        with (self._copy or Path(os.devnull)).open("wb") as file:
            while data := os.read(self._pipe, 1 << 16):
                write(data)
                file.write(data)
                file.flush()
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                if self._wanted is not None and not self.seen:
                    *lines, line = (line[-_LINE_BYTES:] + data).split(b"\n")
                    self.seen = any(map(self._wanted.search, (*lines, line)))
        os.close(self._pipe)

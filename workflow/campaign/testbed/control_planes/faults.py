"""Faults that an emulated control plane commits on request: on the wire, whatever the dialect."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

FaultKind = Literal[
    "drop_before",  # the connection ends and nothing was done
    "drop_after",  # it is done, and the connection ends without an answer
    "status",  # nothing is done; the answer has `status` and `body`
    "status_after",  # it is done; the answer has `status` and `body`
    "lie",  # nothing is done; the answer is that of success (`body`, else empty, with `status`, else 200)
    "garbage",  # it is done; the answer's body is cut in its middle, its length is that of the whole
    "html",  # nothing is done; a page of HTML with status 500
    "slow",  # it is done; the answer is sent one byte at a time, `delay_s` between two
    "delay",  # it is done; the answer comes after `delay_s`
    "stale",  # reads only: the answer is the last one that this address gave, whatever was changed since
]


@dataclass
class Fault:
    """One kind of fault, for requests that match: method and path, as shell patterns. times: how often (-1: always); after: so many
    matching requests go well before."""

    kind: FaultKind
    method: str = "*"
    path: str = "*"
    times: int = 1
    after: int = 0
    status: int = 500
    body: str = ""
    delay_s: float = 1.0


class Faults:
    """The faults of one server, counted down by one request at a time."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def strike(self, method: str, path: str) -> Fault | None:
        """The fault that happens to this request; None when all goes well."""
        with self._lock:
            for fault in list(self._faults):
                if fault.times == 0 or not (fnmatchcase(method, fault.method) and fnmatchcase(path, fault.path)):
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault
            return None

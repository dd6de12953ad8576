"""One number of speed, and the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass


class Skipped(Exception):
    """A benchmark that cannot be had on this machine; its message says why."""


@dataclass(frozen=True)
class Figure:
    """One number with what it may be at most (infinity: it is only told). floor: what bare tools take for the same, and which."""

    name: str
    measured: float
    unit: str
    limit: float
    floor: float | None = None
    floor_of: str = ""
    cpu_s: float | None = None

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit

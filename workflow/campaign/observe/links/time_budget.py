"""Which message sizes fit into the time budget: the time of a size, forecast from smaller ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_STEP = 16
_NUMBER_BYTES = 4


def ladder(sizes_bytes: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Ascending sizes as (bytes, whether it counts).

    Auxiliary sizes, which are sent once and do not count, keep each size within 16 times the one before. So the first message over
    a slow link never takes minutes.
    """
    before = None
    for size in sorted(set(sizes_bytes)):
        while before is not None and size > before * _STEP:
            before = before * _STEP // _NUMBER_BYTES * _NUMBER_BYTES
            if before < size:
                yield before, False
        yield size, True
        before = size


@dataclass
class Forecast:
    """How long a pass over all pairs takes, by message size: sums of latency + size / bandwidth (Hockney 1994) are linear in it."""

    passes: list[tuple[int, float]] = field(default_factory=list)

    def note(self, size_bytes: int, pass_s: float) -> None:
        """A pass that was measured; sizes ascend."""
        self.passes.append((size_bytes, pass_s))

    def pass_s(self, size_bytes: int) -> float:
        """Seconds expected of a pass with a larger size; 0 before anything is known.

        Along the line through the last two sizes, and never less than the last: where latency rules, noise can make the line fall.
        """
        if not self.passes:
            return 0.0
        size, seconds = self.passes[-1]
        if len(self.passes) == 1:
            return seconds
        size_before, seconds_before = self.passes[-2]
        rise = (seconds - seconds_before) / (size - size_before)
        return seconds + max(0.0, rise) * (size_bytes - size)

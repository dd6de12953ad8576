"""What a request met, and what many of them say together. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from campaign.workloads.load.load_file import Load

PERCENTILES = (50, 90, 95, 99)
Window = tuple[float, float]
"""Begin and end of what counts, in seconds of the load."""

# The timers of an event loop have a resolution of 1 ms, so that less than twice that says nothing of a generator.
_LATE_MS = (2.0, 5.0)
_LATE_SHARE = 0.01


@dataclass(frozen=True)
class SentRequest:
    """One request. Seconds are on one monotonic clock and begin with the load; None is a time that did not come.

    Tokens are those that the server reports (`usage`); where it does not (`reported`), they are words of the prompt and pieces of
    the output. error: why there is no complete answer.
    """

    intended_s: float
    sent_s: float
    first_s: float | None
    last_s: float | None
    prompt_tokens: int
    output_tokens: int
    error: str | None = None
    requested_prompt_tokens: int = 0
    requested_output_tokens: int = 0
    reported: bool = True

    @property
    def ttft_ms(self) -> float:
        """Until its first token came; infinite if it failed."""
        return math.inf if self.error or self.first_s is None else (self.first_s - self.intended_s) * 1e3

    @property
    def e2e_ms(self) -> float:
        """Until its last token came; infinite if it failed."""
        return math.inf if self.error or self.last_s is None else (self.last_s - self.intended_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Mean gap between its tokens; None for a single one, infinite if it failed."""
        if self.error or self.first_s is None or self.last_s is None:
            return math.inf
        return (self.last_s - self.first_s) / (self.output_tokens - 1) * 1e3 if self.output_tokens > 1 else None

    @property
    def late_ms(self) -> float:
        """How late the generator was."""
        return (self.sent_s - self.intended_s) * 1e3


def window(load: Load, requests: Iterable[SentRequest]) -> Window:
    """What counts: after the warm-up and until `duration_s`; a load with `requests` counts until the last was answered, or sent."""
    ends = [row.intended_s if row.last_s is None else row.last_s for row in requests]
    return load.warmup_s, load.duration_s or math.nextafter(max(ends, default=load.warmup_s), math.inf)


def columns(requests: Iterable[SentRequest]) -> dict[str, list[Any]]:
    """The requests as a list for each of their fields."""
    rows = list(requests)
    return {field.name: [getattr(row, field.name) for row in rows] for field in fields(SentRequest)}


def counted(requests: Iterable[SentRequest], within: Window) -> list[SentRequest]:
    """The requests that were intended to start inside the window."""
    return [each for each in requests if within[0] <= each.intended_s < within[1]]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that so many percent do not exceed. values: ascending.

    None where there are too few for it to differ from the maximum, or where it lies among failed requests.
    """
    if len(values) * (100 - percent) < 100:
        return None
    value = values[math.ceil(len(values) * percent / 100) - 1]
    return value if math.isfinite(value) else None


def summary(requests: Iterable[SentRequest], within: Window) -> dict[str, float]:
    """Counts, rates, and percentiles of latencies (`ttft_ms_p99`) of the requests inside the window.

    A failed request has an infinite latency. Percentiles that lie among such are left out, and with any of them mean and maximum.
    So is a percentile that would be the maximum: `p99` needs 100 requests. Rates count what was completed inside the window.
    """
    rows = list(requests)
    inside = counted(rows, within)
    begin, end = within
    done = [row for row in rows if not row.error and row.last_s is not None and begin <= row.last_s <= end]
    found: dict[str, float] = {
        "requests": len(inside),
        "errors": sum(row.error is not None for row in inside),
    }
    if inside:
        found["errors_pct"] = 100 * found["errors"] / len(inside)
    if end > begin:
        found["requests_per_s"] = len(done) / (end - begin)
        found["offered_per_s"] = len(inside) / (end - begin)
        found["prompt_tokens_per_s"] = sum(row.prompt_tokens for row in done) / (end - begin)
        found["output_tokens_per_s"] = sum(row.output_tokens for row in done) / (end - begin)
    answered = [row for row in inside if not row.error]
    if answered:
        found["prompt_tokens_mean"] = sum(row.prompt_tokens for row in answered) / len(answered)
        found["output_tokens_mean"] = sum(row.output_tokens for row in answered) / len(answered)
    for name, values in _latencies(inside).items():
        for percent in PERCENTILES:
            if (value := percentile(values, percent)) is not None:
                found[f"{name}_ms_p{percent}"] = value
        if values and math.isfinite(values[-1]):
            found[f"{name}_ms_mean"] = math.fsum(values) / len(values)
            found[f"{name}_ms_max"] = values[-1]
    return found


def flags(requests: Iterable[SentRequest], within: Window) -> tuple[str, ...]:
    """What a reader of these latencies should know: a generator that was late, and tokens that are not as requested."""
    inside = counted(requests, within)
    answered = [row for row in inside if not row.error]
    if not answered:
        return ()
    found = []
    values = _latencies(inside)
    late = percentile(values["late"], 99) or values["late"][-1]
    half = percentile(values["e2e"], 50)
    limit = min(_LATE_MS[1], max(_LATE_MS[0], _LATE_SHARE * half)) if half is not None else _LATE_MS[1]
    if late > limit:
        found.append(f"the load generator was late: p99 {late:.3g} ms, limit {limit:.3g} ms; its host is too busy")
    if uncounted := sum(not row.reported for row in answered):
        found.append(f"the server reports no usage for {uncounted} of {len(answered)} requests: pieces count as tokens")
    for kind in ("prompt", "output"):
        differ = [row for row in answered if getattr(row, f"{kind}_tokens") != _requested(row, kind)]
        if differ:
            asked = sum(_requested(row, kind) for row in differ) / len(differ)
            given = sum(getattr(row, f"{kind}_tokens") for row in differ) / len(differ)
            found.append(
                f"{len(differ)} of {len(answered)} {kind}s have other lengths than requested: mean {given:.4g} tokens, "
                f"requested {asked:.4g}"
            )
    return tuple(found)


def _requested(row: SentRequest, kind: str) -> int:
    requested: int = getattr(row, f"requested_{kind}_tokens")
    return requested


def _latencies(rows: Sequence[SentRequest]) -> Mapping[str, list[float]]:
    """Name -> values of all requests, ascending."""
    return {
        "ttft": sorted(row.ttft_ms for row in rows),
        "tpot": sorted(value for row in rows if (value := row.tpot_ms) is not None),
        "e2e": sorted(row.e2e_ms for row in rows),
        "late": sorted(row.late_ms for row in rows),
    }

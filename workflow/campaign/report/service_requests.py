"""What figures of services share: requests with their latencies, cells with their rates, objectives, and words for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes

from campaign import wording
from campaign.report import plot
from campaign.report.figure import FigureData
from campaign.statistics import serving
from campaign.statistics.highest_rate import Objective, objectives

_DECADE = 10.0
NO_REQUESTS = "no record holds requests of a service"
NO_RATE = "no service was measured at a rate of requests (option rate_per_s)"
SHORT = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
NO_OBJECTIVE = "no workload file of a service has an 'objective'"
EXPLAINED = (
    "TTFT: to the first token; TPOT: per token after it; E2E: to the end; all from when a request was due. "
    "Failed requests count as "
    "infinitely late."
)


@dataclass(frozen=True)
class ServiceRequests:
    """Requests of services. requests: of `serving.latencies`; cells: those with a rate, of `serving.rated`; objectives: by
    workload."""

    requests: pd.DataFrame
    cells: pd.DataFrame
    objectives: Mapping[str, tuple[Objective, ...]]

    @property
    def latencies(self) -> list[str]:
        """The latencies that any request has."""
        return [name for name in serving.LATENCIES if self.requests[name].notna().any()]


def service_requests(data: FigureData) -> ServiceRequests:
    """The requests, rated cells and objectives of a campaign with requests."""
    said = data.context.get("objectives", {})
    limits = {str(name): objectives(document) for name, document in said.items()}
    return ServiceRequests(serving.latencies(data.requests, data.runs), serving.rated(data.cells), limits)


def limit_words(decides: str, limit: float) -> str:
    """An objective in words: 'p99 TTFT at most 500 ms'."""
    percent, _, latency = decides.partition(" ")
    return f"{percent} {SHORT[latency]} at most {wording.number(limit)} ms"


def objective_words(limits: tuple[Objective, ...]) -> str:
    """All objectives of a workload: 'p99 TTFT at most 500 ms, p99 TPOT at most 100 ms'."""
    return ", ".join(limit_words(f"p{each.percent:g} {each.latency}", each.limit) for each in limits)


def per_s(value: float) -> str:
    """A rate of requests."""
    return wording.number(value)


def percentile_words(row: Mapping[Any, Any], unit: str = "") -> str:
    """A percentile with what is known of it: '412 [380, 450]', 'at least 380', 'not known from 71 requests'."""
    value, low, high = row["value"], row["low"], row["high"]
    if math.isinf(value) or math.isinf(low):
        return "infinite: too many requests failed"
    if low == low and high == high and value == value:
        above = "infinite" if math.isinf(high) else wording.number(high)
        return f"{wording.number(value)} [{wording.number(low)}, {above}]{unit}"
    if low == low:
        return f"at least {wording.number(low)}{unit}"
    return f"not known from {wording.plural(int(row['n_requests']), 'request')}"


def too_late(found: ServiceRequests) -> tuple[str, ...]:
    """A sentence about cells whose load generator was late, where there are any."""
    late = serving.lateness(found.requests)
    late = late[late["too_late"]]
    if late.empty:
        return ()
    return (
        f"The load generator was late in {wording.plural(len(late), 'cell')}: 1 % of its requests left "
        f"{wording.number(late['late_ms'].max())} ms or more after they were due, and latencies hold this time. Send fewer "
        "requests per second, or give the generator a core of its own.",
    )


def scaled(axes: Axes, which: Literal["x", "y"], times: pd.Series[Any]) -> None:
    """A logarithmic axis for times that differ by more than a factor of ten; after they are drawn."""
    known = times[(times > 0) & (times < math.inf)]
    if len(known) and known.max() / known.min() >= _DECADE:
        # Only then does the axis end above zero.
        axes.set(**{f"{which}scale": "log"})
        plot.logarithmic(axes, which)


def why_no_rates(data: FigureData) -> str:
    """Why no figure of rates can be drawn; '' where services were measured at some."""
    if data.requests.empty:
        return NO_REQUESTS
    return NO_RATE if serving.rated(data.cells).empty else ""

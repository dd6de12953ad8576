"""What runs and leases have cost in time: what a forecast is learned from. Pure; as JSON it is `costs/1`.

It stands in tables/costs.json (all records of a campaign) and in every manifest (what one lease measured just now).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FiniteFloat, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from campaign.documents.cell import Cell, Configuration, Scalar
from campaign.documents.earlier_spread import EarlierSpread, spreads
from campaign.documents.record import RecordedCell
from campaign.workloads.sample_flops import sample_flops

SHORTEST_S = 0.01
"""Times are compared by their logarithm; what took less counts as this much."""

Shape = Mapping[str, Scalar]


@dataclass(frozen=True)
class CellCost:
    """Wall time of the runs of one cell: how many, and mean and standard deviation of ln(seconds).

    believed: whether most of them were `ok`; a run that fails early says nothing of the cells beside it. flops: operations of the
    workload on one sample, where they are known.
    """

    cell_id: str
    shape: Shape
    workload: str
    batch: PositiveInt
    precision: str
    options: Mapping[str, Scalar]
    steps: PositiveInt
    runs: int = 0
    believed: bool = False
    mean_log_s: FiniteFloat = 0.0
    sd_log_s: FiniteFloat = 0.0
    flops: Annotated[PositiveFloat, FiniteFloat] | None = None

    def of_runs(self, spans: Sequence[Span]) -> CellCost:
        """The same of some runs."""
        logs = [math.log(max(SHORTEST_S, span.ended - span.started)) for span in spans]
        mean = statistics.fmean(logs)
        # `statistics.stdev` computes with fractions, which takes longer than all else of a cell.
        sd = math.sqrt(math.fsum((each - mean) ** 2 for each in logs) / max(1, len(logs) - 1))
        believed = 2 * sum(span.ok for span in spans) > len(spans)
        return replace(self, runs=len(logs), believed=believed, mean_log_s=mean, sd_log_s=sd)


@dataclass(frozen=True)
class LeaseCost:
    """Time that one use of a lease took beside its runs: composing, in a queue, from there to the first run, between two runs, from
    the last to the release. None where it was not recorded; without `queue_s`, the start includes the queue."""

    lease_id: str
    shape: Shape
    runs: int
    compose_s: FiniteFloat | None
    start_s: FiniteFloat | None
    between_s: FiniteFloat | None
    end_s: FiniteFloat | None
    timed: tuple[Mapping[str, Any], ...] = ()
    """Operations of the fabric as its journal has them (`Journal.note_times`)."""
    queue_s: FiniteFloat | None = None


@dataclass(frozen=True)
class Costs:
    """What one campaign on one system has cost."""

    campaign: str
    system: str
    cells: tuple[CellCost, ...] = ()
    leases: tuple[LeaseCost, ...] = ()
    spread: Annotated[tuple[EarlierSpread, ...], BeforeValidator(spreads)] = ()
    """How much compositions differed, by workload."""
    fabric: str = ""
    """Kind of the system's fabric; empty where it is not known."""
    schema_version: Literal["costs/1"] = "costs/1"

    @property
    def runs(self) -> int:
        return sum(cell.runs for cell in self.cells)

    def document(self) -> dict[str, Any]:
        """JSON-serialisable; `from_documents` reads it."""
        found: dict[str, Any] = _COSTS.dump_python(self, mode="json")
        return found


_COSTS = TypeAdapter(Costs)


@dataclass(frozen=True)
class Span:
    """One run in time, Unix seconds. use: of the lease that it was measured on; empty where that follows from its time."""

    cell_id: str
    started: float
    ended: float
    ok: bool
    use: str = ""


def document_of(found: Sequence[Costs]) -> dict[str, Any]:
    """The costs of a campaign on one system or on several; JSON-serialisable, and `from_documents` reads it."""
    return found[0].document() if len(found) == 1 else {"systems": [each.document() for each in found]}


def from_documents(document: Any) -> list[Costs]:
    """The costs of a campaign, by system. What is damaged is none: it only makes a forecast coarser."""
    found = []
    for each in document.get("systems", [document]) if isinstance(document, dict) else []:
        try:
            found.append(_COSTS.validate_python(each))
        except ValidationError:
            continue
    return found


def cell_cost(
    cell_id: str, configuration: Configuration, cell: Cell | RecordedCell, specification: Mapping[str, Any]
) -> CellCost:
    """A cell of which no run is known yet."""
    steps = [specification.get(name) for name in ("warmup_steps", "measured_steps")]
    return CellCost(
        cell_id=cell_id,
        shape=configuration.shape(),
        workload=cell.workload,
        batch=cell.batch,
        precision=cell.precision,
        options=dict(cell.options),
        steps=max(1, sum(each for each in steps if isinstance(each, int))),
        flops=sample_flops(specification.get("workload") or {}, specification.get("options") or {}),
    )


def costs_of(
    empty: Costs, cells: Mapping[str, CellCost], spans: Sequence[Span], leases: Sequence[Mapping[str, Any]]
) -> Costs:
    """What runs of some cells and uses of leases took. cells: by id; leases: documents."""
    by_cell: defaultdict[str, list[Span]] = defaultdict(list)
    by_use: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_cell[span.cell_id].append(span)
        by_use[span.use or next((str(each["lease_id"]) for each in leases if _within(each, span)), "")].append(span)
    found = tuple(cells[name].of_runs(mine) for name, mine in sorted(by_cell.items()) if name in cells)
    uses = [(lease, by_use[str(lease["lease_id"])]) for lease in leases]
    return replace(empty, cells=found, leases=tuple(_lease_costs(uses)))


def _lease_costs(uses: Sequence[tuple[Mapping[str, Any], Sequence[Span]]]) -> Iterator[LeaseCost]:
    """Costs of all uses with runs. What a lease was held for without any, such as in the queue, is charged to its next start."""
    idle_s: defaultdict[str, float] = defaultdict(float)
    for document, spans in uses:
        ready, released = (number_of(document, f"{name}_s") for name in ("ready", "released"))
        if not spans and ready is not None and released is not None:
            idle_s[_lease_of(document)] += max(0.0, released - ready)
    for document, spans in uses:
        if (cost := lease_cost(document, spans)) is not None:
            idle = idle_s.pop(_lease_of(document), 0.0)
            if cost.queue_s is None:
                yield replace(cost, start_s=(cost.start_s or 0.0) + idle)
            else:
                yield replace(cost, queue_s=cost.queue_s + idle)


def lease_cost(document: Mapping[str, Any], spans: Iterable[Span]) -> LeaseCost | None:
    """The cost of one use of a lease by its document and its runs; None where it never got ready or ran nothing."""
    requested, ready, released = (number_of(document, f"{name}_s") for name in ("requested", "ready", "released"))
    ordered = sorted(spans, key=lambda span: span.started)
    shape = document.get("requested")
    if ready is None or not ordered or not isinstance(shape, Mapping):
        return None
    began, first = number_of(document, "driver_began_s"), ordered[0].started
    queue_s = None if began is None else max(0.0, min(began, first) - ready)
    gaps = [after.started - before.ended for before, after in itertools.pairwise(ordered)]
    return LeaseCost(
        lease_id=str(document["lease_id"]),
        shape={name: value for name, value in shape.items() if name != "name"},
        runs=len(ordered),
        compose_s=None if requested is None else max(0.0, ready - requested),
        start_s=max(0.0, first - ready - (queue_s or 0.0)),
        between_s=max(0.0, statistics.fmean(gaps)) if gaps else None,
        end_s=None if released is None else max(0.0, released - max(span.ended for span in ordered)),
        timed=tuple(document.get("timed") or ()),
        queue_s=queue_s,
    )


def parts_s(leases: Sequence[LeaseCost], spans: Iterable[Span]) -> dict[str, float | None]:
    """What some uses of a lease and their runs took, by part; None where one of the uses does not say it."""

    def whole(seconds: Iterable[float | None]) -> float | None:
        known = list(seconds)
        return None if None in known or not known else round(sum(each or 0.0 for each in known), 3)

    return {
        "composing": whole(each.compose_s for each in leases),
        "queue": whole(each.queue_s for each in leases),
        "start": whole(each.start_s for each in leases),
        "runs": whole(span.ended - span.started for span in spans),
        "between": whole((each.between_s or 0.0) * (each.runs - 1) for each in leases),
        "release": whole(each.end_s for each in leases),
    }


def number_of(document: Mapping[str, Any], name: str) -> float | None:
    """A number of a document of a lease, where it has one."""
    value = document.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _lease_of(use: Mapping[str, Any]) -> str:
    return str(use["lease_id"]).rpartition(".")[0]


def _within(lease: Mapping[str, Any], span: Span) -> bool:
    ready, released = number_of(lease, "ready_s"), number_of(lease, "released_s")
    return ready is not None and ready <= span.started and (released is None or span.ended <= released)

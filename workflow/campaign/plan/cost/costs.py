"""What runs and leases have cost in time: what a forecast is learned from. Pure; as JSON it is `costs/1`.

It stands in tables/costs.json (all records of a campaign) and in every manifest (what one lease measured just now).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from campaign.documents.cell import Cell, Scalar
from campaign.documents.earlier_spread import EarlierSpread, spreads
from campaign.documents.record import Record
from campaign.workloads.sample_flops import sample_flops

SCHEMA = "costs/1"
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
    batch: int
    precision: str
    options: Mapping[str, Scalar]
    steps: int
    runs: int
    believed: bool
    mean_log_s: float
    sd_log_s: float
    flops: float | None = None


@dataclass(frozen=True)
class LeaseCost:
    """Time that one use of a lease took beside its runs: composing, in a queue, from there to the first run, between two runs, from
    the last to the release. None where it was not recorded; without `queue_s`, the start includes the queue."""

    lease_id: str
    shape: Shape
    runs: int
    compose_s: float | None
    start_s: float | None
    between_s: float | None
    end_s: float | None
    timed: tuple[Mapping[str, Any], ...] = ()
    """Operations of the fabric as its journal has them (`Journal.note_times`)."""
    queue_s: float | None = None


_CELLS, _LEASES = TypeAdapter(tuple[CellCost, ...]), TypeAdapter(tuple[LeaseCost, ...])


@dataclass(frozen=True)
class Costs:
    """What one campaign on one system has cost."""

    campaign: str
    system: str
    cells: tuple[CellCost, ...] = ()
    leases: tuple[LeaseCost, ...] = ()
    spread: tuple[EarlierSpread, ...] = ()
    """How much compositions differed, by workload."""
    fabric: str = ""
    """Kind of the system's fabric; empty where it is not known."""

    @property
    def runs(self) -> int:
        return sum(cell.runs for cell in self.cells)

    def document(self) -> dict[str, Any]:
        """JSON-serialisable; `from_document` reads it."""
        parts = {name: [vars(each) for each in getattr(self, name)] for name in ("cells", "leases")}
        return {"schema_version": SCHEMA, **vars(self), **parts, "spread": list(map(asdict, self.spread))}


@dataclass(frozen=True)
class Span:
    """One run in time, Unix seconds."""

    cell_id: str
    started: float
    ended: float
    ok: bool


def document_of(found: Sequence[Costs]) -> dict[str, Any]:
    """The costs of a campaign on one system or on several; JSON-serialisable, and `from_documents` reads it."""
    return found[0].document() if len(found) == 1 else {"systems": [each.document() for each in found]}


def from_documents(document: Any) -> list[Costs]:
    """The costs of a campaign, by system; of what is damaged, none."""
    several = document.get("systems", [document]) if isinstance(document, dict) else []
    return [costs for each in several if (costs := from_document(each)) is not None]


def from_document(document: Any) -> Costs | None:
    """Costs as they were written down; None for anything else: a damaged file only makes a forecast coarser."""
    try:
        if document["schema_version"] != SCHEMA:
            return None
        cells = _CELLS.validate_python(document["cells"])
        leases = _LEASES.validate_python([{**lease, "timed": lease.get("timed") or ()} for lease in document["leases"]])
        spread = spreads(document.get("spread", ()))
        fabric = str(document.get("fabric", ""))
        costs = Costs(str(document["campaign"]), str(document["system"]), cells, leases, spread, fabric)
        numbers = [x for c in cells for x in (c.mean_log_s, c.sd_log_s, float(c.runs), math.log2(c.batch * c.steps))]
        numbers += [math.log2(1.0 if cell.flops is None else cell.flops) for cell in cells]
        times = [x for each in leases for x in (each.compose_s, each.queue_s, each.start_s, each.between_s, each.end_s)]
        if all(map(math.isfinite, numbers)) and all(x is None or math.isfinite(x) for x in times):
            return costs
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    return None


def cell_cost(
    cell_id: str,
    shape: Shape,
    axes: tuple[str, int, str, Mapping[str, Scalar]],
    steps: int,
    spans: Sequence[Span],
    flops: float | None = None,
) -> CellCost:
    """The cost of the runs of one cell. axes: workload, batch, precision, options; steps: warm-up and measured."""
    logs = [math.log(max(SHORTEST_S, span.ended - span.started)) for span in spans]
    workload, batch, precision, options = axes
    return CellCost(
        cell_id=cell_id,
        shape=shape,
        workload=workload,
        batch=batch,
        precision=precision,
        options=dict(options),
        steps=max(1, steps),
        runs=len(spans),
        believed=2 * sum(span.ok for span in spans) > len(spans),
        mean_log_s=statistics.fmean(logs),
        sd_log_s=_sd(logs),
        flops=flops,
    )


def _sd(numbers: Sequence[float]) -> float:
    """Standard deviation; `statistics.stdev` computes with fractions, which takes longer than all else of a cell."""
    if len(numbers) < 2:
        return 0.0
    mean = statistics.fmean(numbers)
    return math.sqrt(math.fsum((each - mean) ** 2 for each in numbers) / (len(numbers) - 1))


def lease_cost(document: Mapping[str, Any], spans: Iterable[Span]) -> LeaseCost | None:
    """The cost of one use of a lease by its document and its runs; None where it never got ready or ran nothing."""
    requested, ready, released = (_number(document.get(f"{name}_s")) for name in ("requested", "ready", "released"))
    ordered = sorted(spans, key=lambda span: span.started)
    shape = document.get("requested")
    if ready is None or not ordered or not isinstance(shape, Mapping):
        return None
    began, first = _number(document.get("driver_began_s")), ordered[0].started
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


def actual_s(document: Mapping[str, Any]) -> float | None:
    """How long one use of a lease took, from the request to its release; None while it is not over."""
    requested, released = _number(document.get("requested_s")), _number(document.get("released_s"))
    return None if requested is None or released is None else released - requested


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


def costs_of(
    campaign: str, system: str, records: Iterable[Record], leases: Iterable[Mapping[str, Any]], fabric: str = ""
) -> Costs:
    """What a campaign's records and lease documents say. Runs that were only implied, or whose log
    did not say how long they took, say nothing."""
    by_cell: defaultdict[str, list[Span]] = defaultdict(list)
    by_lease: defaultdict[str, list[Span]] = defaultdict(list)
    one: dict[str, Record] = {}
    for record in records:
        if record.status == "implied" or record.ended <= record.started:
            continue
        span = Span(record.cell_id, record.started, record.ended, record.status == "ok")
        by_cell[record.cell_id].append(span)
        by_lease[record.lease_id].append(span)
        one[record.cell_id] = record
    cells = []
    for name, spans in sorted(by_cell.items()):
        cell = one[name].cell
        axes = cell.workload, cell.batch, cell.precision, cell.options
        specification = one[name].specification
        flops = _flops_of(specification)
        cells.append(cell_cost(name, one[name].requested.shape(), axes, steps_of(specification), spans, flops))
    uses = [(lease, by_lease.get(str(lease["lease_id"]), [])) for lease in leases]
    return Costs(campaign, system, tuple(cells), tuple(_lease_costs(uses)), fabric=fabric)


def costs_measured(
    empty: Costs,
    cells: Iterable[Cell],
    specification: Callable[[Cell], Mapping[str, Any]],
    spans: Iterable[Span],
    leases: Iterable[Mapping[str, Any]],
) -> Costs:
    """What the runs of some cells took just now; which use of the lease they were of follows from when it was held."""
    known = {cell.id: cell for cell in cells}
    by_cell: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_cell[span.cell_id].append(span)
    found = []
    for name, mine in sorted(by_cell.items()):
        if (cell := known.get(name)) is not None:
            axes = cell.workload, cell.batch, cell.precision, cell.options
            steps = cell.settings.warmup_steps + cell.settings.measured_steps
            flops = _flops_of(specification(cell))
            found.append(cell_cost(name, cell.configuration.shape(), axes, steps, mine, flops))
    everything = [span for mine in by_cell.values() for span in mine]
    uses = [(lease, [span for span in everything if _within(lease, span)]) for lease in leases if lease]
    return replace(empty, cells=tuple(found), leases=tuple(_lease_costs(uses)))


def _lease_costs(uses: Sequence[tuple[Mapping[str, Any], Sequence[Span]]]) -> Iterator[LeaseCost]:
    """Costs of all uses with runs. What a lease was held for without any, such as in the queue, is charged to its next start."""
    idle_s: defaultdict[str, float] = defaultdict(float)
    for document, spans in uses:
        ready, released = (_number(document.get(f"{name}_s")) for name in ("ready", "released"))
        if not spans and ready is not None and released is not None:
            idle_s[_lease_of(document)] += max(0.0, released - ready)
    for document, spans in uses:
        if (cost := lease_cost(document, spans)) is not None:
            idle = idle_s.pop(_lease_of(document), 0.0)
            told = cost.queue_s is not None
            yield (
                replace(cost, queue_s=(cost.queue_s or 0.0) + idle)
                if told
                else replace(cost, start_s=(cost.start_s or 0.0) + idle)
            )


def _lease_of(use: Mapping[str, Any]) -> str:
    return str(use["lease_id"]).rpartition(".")[0]


def _within(lease: Mapping[str, Any], span: Span) -> bool:
    ready, released = _number(lease.get("ready_s")), _number(lease.get("released_s"))
    return ready is not None and ready <= span.started and (released is None or span.ended <= released)


def _flops_of(specification: Mapping[str, Any]) -> float | None:
    """Operations of a record's workload on one sample."""
    return sample_flops(specification.get("workload") or {}, specification.get("options") or {})


def steps_of(specification: Mapping[str, Any]) -> int:
    """Warm-up and measured steps of a record's specification; 1 where it does not say."""
    found = [specification.get(name) for name in ("warmup_steps", "measured_steps")]
    return max(1, sum(value for value in found if isinstance(value, int)))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

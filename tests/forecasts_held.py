"""Forecasts of the cost model held against what leases took: recorded campaigns, recordings of a fabric, planted campaigns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

from campaign.common.paths import ROOT
from campaign.fabrics.operations import OperationCounts
from campaign.plan.cost import CostModel, LeaseWork
from campaign.plan.past_costs import CampaignCosts, CellCost, LeaseCost, parse_costs
from campaign.spec.cell import Cell, Configuration
from campaign.spec.operation_times import OperationTimes, read_published_times

DATA = Path(__file__).parent / "data" / "costs"
DEMOS = (ROOT / "config" / "campaign.costs.json", *(DATA / f"demo-{number}.json" for number in (1, 2, 3)))
FABRIC = "simulated"


@dataclass(frozen=True)
class Outcome:
    """Actual time of one lease over the time that was expected of it, and the factors of its interval."""

    off: float
    low: float
    high: float

    @property
    def is_held(self) -> bool:
        return self.low <= self.off <= self.high


@dataclass(frozen=True)
class Held:
    """How well some forecasts held. factor: median of the upper end of an interval over the expected time."""

    leases: int
    held_pct: float
    error_pct: float
    factor: float


def summarize(outcomes: Sequence[Outcome]) -> Held:
    return Held(
        len(outcomes),
        100 * sum(each.is_held for each in outcomes) / len(outcomes),
        100 * median(abs(each.off - 1) for each in outcomes),
        median(each.high for each in outcomes),
    )


def _work(lease: LeaseCost, cells: Sequence[CellCost]) -> tuple[LeaseWork, float] | None:
    """Return the work of a lease whose runs are spread evenly over the cells of its hardware, and what all of it took."""
    shape = {name: value for name, value in lease.shape.items() if name != "layout"}
    own = [each for each in cells if {n: v for n, v in each.shape.items() if n != "layout"} == shape]
    if not own or None in (lease.compose_s, lease.end_s):
        return None
    configuration = Configuration("", **shape)  # type: ignore[arg-type]
    count = lease.runs / len(own)
    runs = [(Cell(each.cell_id, configuration, each.workload, 1, "fp32"), round(count)) for each in own]
    runs_s = count * sum(median(each.seconds) for each in own)
    beside = (lease.compose_s, lease.queue_s, lease.start_s, (lease.between_s or 0.0) * (lease.runs - 1), lease.end_s)
    return LeaseWork(configuration, runs), runs_s + sum(each or 0.0 for each in beside)


def hold_demo() -> list[list[Outcome]]:
    """Forecast each recorded demo by those before it. The first is what the campaign ships."""
    known: list[CampaignCosts] = []
    found = []
    for number, path in enumerate(DEMOS):
        (costs,) = parse_costs(json.loads(path.read_text()))
        costs = replace(costs, fabric=FABRIC, campaign=str(number))
        model = CostModel({"": FABRIC}, known)
        outcomes, leases = [], []
        for lease in costs.leases:
            work = _work(lease, costs.cells)
            expected = model.forecast(work[0]) if work else None
            if work is None or expected is None or expected.expected_s is None:
                continue
            off = work[1] / expected.expected_s
            outcomes.append(Outcome(off, *model.factors))
            leases.append(replace(lease, off=off))
        found += [outcomes] if outcomes else []
        known.append(replace(costs, leases=tuple(leases) or costs.leases))
    return found


def hold_recordings(times: OperationTimes | None = None) -> list[Outcome]:
    """Forecast each recorded composing of each session by those before it in the session, else by the other sessions.

    A session stands for a site. Each of its composings is planned when those before it have ended.
    """
    times = times or read_published_times("h3")
    found = []
    for session in times.sessions:
        others = replace(times, sessions=tuple(each for each in times.sessions if each is not session))
        leases: list[LeaseCost] = []
        for group in session.group_operations():
            devices = sum(each.operation == "attach" for each in group)
            if not devices:
                continue
            configuration = Configuration("", 1, devices, 0, devices, "gpu", "fabric", "local")
            work = LeaseWork(
                configuration, [(Cell("c", configuration, "w", 1, "fp32"), 1)], OperationCounts.from_timed(group)
            )
            model = CostModel(
                {"": "h3"}, [CampaignCosts("a", "s", (), tuple(leases), fabric="h3")], {"w": 1.0}, lambda _, o=others: o
            )  # type: ignore[misc]
            expected_s = model.forecast(work).parts["composing"]
            actual_s = sum(each.seconds for each in group)
            off = actual_s / expected_s if expected_s else None
            if off is not None:
                found.append(Outcome(off, *model.factors))
            name = f"{session.name}.{len(leases)}"
            leases.append(LeaseCost(name, configuration.shape(), 1, actual_s, None, None, None, off=off))
    return found


def hold_planted(seed: int, known_share: float, campaigns: int = 4) -> list[Outcome]:
    """Forecast campaigns of a planted site, one after the other, each by those before it.

    known_share: of the cells of a campaign, those that an earlier one has measured.
    """
    random = Random(seed)
    shapes = [
        Configuration(f"{n}-{a}", 1, n, n if a == "local" else 0, n, "gpu", a, "local")  # type: ignore[arg-type]
        for n in (1, 2, 4)
        for a in ("local", "fabric")
    ]
    took: dict[str, float] = {}
    known: list[CampaignCosts] = []
    found = []
    for campaign in range(campaigns):
        model = CostModel({"": FABRIC}, known)
        cells: dict[str, list[tuple[Cell, float]]] = {}
        leases = []
        for shape in shapes:
            runs = []
            for workload, base_s in (("bert", 60.0), ("resnet", 20.0)):
                for batch in (1, 2, 4):
                    number = 0 if random.random() < known_share else campaign
                    cell = Cell(f"{shape.name} {workload} {batch} {number}", shape, workload, batch, "fp32")
                    own = random.lognormvariate(math.log(base_s * (1 + 0.1 * batch)), 0.15)
                    runs.append((cell, took.setdefault(cell.id, own) * random.lognormvariate(0, 0.03)))
            cells[shape.name] = runs
            compose_s = (20.0 + 15.0 * shape.fabric_devices) * random.lognormvariate(0, 0.2)
            lease = LeaseCost(
                f"{campaign} {shape.name}", shape.shape(), len(runs), compose_s if shape.fabric_devices else 0.1,
                random.lognormvariate(0, 0.8), 0.1, random.lognormvariate(0, 0.5), 0.1,
            )  # fmt: skip
            beside_s = sum(
                (lease.compose_s or 0.0, lease.start_s or 0.0, 0.1 * (len(runs) - 1), lease.end_s or 0.0, 0.1)
            )
            expected_s = model.forecast(LeaseWork(shape, [(cell, 1) for cell, _ in runs])).expected_s
            off = (beside_s + sum(seconds for _, seconds in runs)) / expected_s if expected_s else None
            if off is not None:
                found.append(Outcome(off, *model.factors))
            leases.append(replace(lease, off=off))
        measured = tuple(
            CellCost(cell.id, shape.shape(), cell.workload, 1, True, (seconds,))
            for shape in shapes
            for cell, seconds in cells[shape.name]
        )
        known.append(CampaignCosts(str(campaign), "s", measured, tuple(leases), fabric=FABRIC))
    return found


def rows() -> Iterator[tuple[str, Held]]:
    """What was forecast, and how well that held."""
    demos = hold_demo()
    for number, outcomes in enumerate(demos, 1):
        yield f"demo {number}, by those before it", summarize(outcomes)
    yield "all demos", summarize([each for outcomes in demos for each in outcomes])
    yield "composing of two Falcon boxes, each session a site", summarize(hold_recordings())
    for share in (0.0, 0.5, 1.0):
        outcomes = [each for seed in range(100) for each in hold_planted(seed, share)]
        yield f"planted, {100 * share:g} % of the cells measured before", summarize(outcomes)

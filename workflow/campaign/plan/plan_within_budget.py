"""The plan of what a budget pays for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from campaign.documents.cell import Configuration
from campaign.documents.run_numbers import composition_of
from campaign.errors import ConfigError
from campaign.plan.concurrency import host_count, isolation, wall_s
from campaign.plan.cost.budget import Budget, Choice, choose
from campaign.plan.cost.estimates import Work
from campaign.plan.cost.forecast import Forecaster
from campaign.plan.cost.ranking import Offer
from campaign.plan.cost.several_systems import SystemForecasters
from campaign.plan.matrix import Matrix, Removed
from campaign.plan.missing_runs import Known
from campaign.plan.plan import Plan
from campaign.plan.reference import without_references

# What a budget covers the levels of; other axes of a shape follow from these.
_SHAPE = ("hosts", "devices_per_host", "devices_used", "device", "attach", "storage")
_TRIES = 20


def plan_within(
    budget: Budget,
    there: Choice | None,
    plan: Plan,
    matrix: Matrix,
    known: Known,
    forecaster: Forecaster | SystemForecasters,
    planned: Callable[[Matrix], Plan],
) -> Plan:
    """Of the whole plan, what a budget pays for. there: what it chose before; ConfigError where it pays for nothing.

    Composing a part can take more than its share of composing all, since devices stay attached between leases of which a budget may
    leave one out. So a choice whose plan costs too much is made again, with costs that count as much more.
    """
    if there:
        return _of(there, matrix, plan, planned)
    offer, more = _offer(budget, plan, matrix, known, forecaster), 1.0
    for _ in range(_TRIES):
        choice = choose(budget, _dearer(offer, more))
        found = _of(choice, matrix, plan, planned)
        cost = (found.device_hours if budget.unit == "device-hours" else (found.wall_s or 0.0) / 3600) or 0.0
        if cost <= budget.amount * (1 + 1e-9):
            return replace(found, budget=replace(choice, cost=cost))
        more *= 1.02 * cost / budget.amount
    raise ConfigError(f"--budget {budget}: pays for no plan that was found; raise it")


def _of(choice: Choice, matrix: Matrix, plan: Plan, planned: Callable[[Matrix], Plan]) -> Plan:
    cells = choice.chosen(matrix.cells)
    gone = Removed(f"--budget {choice.budget}", choice.left_out, len(matrix.cells) - len(cells))
    kept = replace(matrix, cells=cells, removed=(*matrix.removed, *([gone] if gone.cells else [])))
    return replace(planned(kept), budget=choice, matrix=matrix.cells, unplanned=plan.unplanned)


def _dearer(offer: Offer, more: float) -> Offer:
    return replace(
        offer, value=lambda costs: more * offer.value(costs), weights=[more * each for each in offer.weights]
    )


def _offer(
    budget: Budget, plan: Plan, matrix: Matrix, known: Known, forecaster: Forecaster | SystemForecasters
) -> Offer:
    if unknown := plan.forecast.unknown:
        raise ConfigError(
            f"--budget {budget}: {unknown.words()}, so what it pays for cannot be said; {unknown.advice()}"
        )
    every = [lease.work for lease in plan.leases]
    by_devices = budget.unit == "device-hours"
    every_price = forecaster.prices(every, Work.devices) if by_devices else forecaster.prices(every)
    works, prices = without_references(every, every_price)
    to_do = {(cell.id, lease.composition): count for lease in plan.leases for cell, count in lease.work.runs}
    missing: dict[str, list[int]] = {cell.id: [] for cell in matrix.cells}
    for cell, run in known.missing(matrix.cells):
        here = cell.id, composition_of(run)
        if to_do.get(here, 0):
            to_do[here] -= 1
            missing[cell.id].append(run)
    recorded = Counter(cell for cell, _ in known.measured)
    hosts = 1 if isolation(plan.campaign) == "machine" else host_count(plan.campaign)

    def value(seconds: Sequence[float]) -> float:
        if by_devices:
            return sum(seconds) / 3600
        each = zip((work.configuration for work in works), seconds, strict=True)
        return wall_s(plan.campaign, [(configuration, 1, s) for configuration, s in each if s]) / 3600

    def weight(configuration: Configuration) -> float:
        if by_devices:
            return 1 / 3600
        return (1 if hosts == 1 else min(configuration.hosts, hosts) / hosts) / 3600

    return Offer(
        cells=matrix.cells,
        axes=("workload", "batch", "precision", *plan.campaign.file.axes.options, *_SHAPE, "configuration"),
        recorded=recorded,
        missing=missing,
        works=works,
        prices=prices,
        value=value,
        weights=[weight(work.configuration) for work in works],
    )

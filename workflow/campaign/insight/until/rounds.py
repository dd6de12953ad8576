"""The leases of the next round: what they are expected to tell, for what they cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from campaign.insight.until.cell_states import CellStates, Floats, Marks, PricedMatrix
from campaign.insight.until.expectation import Expectation
from campaign.insight.until.requirements import PairEvidence, RequiredPairs, of_composition

LEARNING, ROUND = 0.06, 0.04
"""Parts of the cost of the whole matrix: what the first round may take, and each one after it."""
MOST, MOST_SPREAD = 0.4, 0.3
"""Parts of the same that may be spent in all: where an answer is not likely, and when cells are composed for the spread of
compositions alone, so that both of two that are compared can still be composed."""
FREEDOM, SPREAD = 12.0, 0.02
"""Freedom of the spread of compositions that is sought by composing what is cheap again, and what each round may take for it."""
FREEDOM_OF_PAIR, SPREAD_OF_PAIR = 100.0, 0.08
"""The same where two configurations are compared, which alone tell little of it: there the whole matrix has much more."""
_FEWEST_LEARNED = 5
_SPREAD = 0.03**2
_BESIDE = 0.3  # of what a lease tells for its cost: cells that tell as much are measured on it as well


@dataclass(frozen=True)
class LeaseChoice:
    """A lease of the matrix, and the places of the cells to measure on it."""

    lease: int
    places: tuple[int, ...]


class CellPrices:
    """What is left to measure of each cell, and its cost; what was spent, and what the whole matrix takes. Where no duration is
    known, a run of a device counts as one."""

    def __init__(self, states: CellStates, matrix: PricedMatrix) -> None:
        place = {cell.id: number for number, cell in enumerate(states.cells)}
        known = matrix.device_hours is not None
        self.spent = self.whole = 0.0
        self.once: list[float] = []
        self.cost = np.full(len(states.cells), np.inf)
        self.lease = np.full(len(states.cells), -1, dtype=np.int64)
        for number, lease in enumerate(matrix.leases):
            devices = float(lease.configuration.devices)
            once = lease.once_h if known else 0.0
            self.once.append(once)
            each = lease.cells_h if known else (devices,) * len(lease.cells)
            self.whole += once + sum(each)
            done = [states.done.get((cell.id, lease.composition), frozenset[str]()) for cell in lease.cells]
            # A lease that was composed for several rounds took as much each time.
            self.spent += once * len(frozenset[str]().union(*done))
            self.spent += sum(hours for hours, here in zip(each, done, strict=True) if here)
            for cell, hours in zip(lease.cells, each, strict=True):
                at = place.get(cell.id, -1)
                # Compositions of a cell are measured in their order.
                if at >= 0 and not states.fails[at] and (cell.id, lease.composition) not in states.done:
                    before = self.lease[at]
                    if before < 0 or matrix.leases[before].composition > lease.composition:
                        self.lease[at], self.cost[at] = number, max(hours, 1e-9)


def learning(states: CellStates, expected: Expectation, prices: CellPrices) -> list[LeaseChoice]:
    """A first round: cells that tell the most of all others for their cost, on several configurations."""
    cover = expected.covariance.copy()
    taken: dict[int, list[int]] = {}
    spent, budget = 0.0, LEARNING * prices.whole
    left = prices.lease >= 0
    configurations: set[int] = set()
    wanted = min(_FEWEST_LEARNED, len(states.configurations))
    once = np.array(prices.once)
    while left.any():
        opened = np.isin(prices.lease, list(taken))
        cost = prices.cost + np.where(opened, 0.0, once[prices.lease])
        told = np.sum(cover**2, axis=1) / (np.diag(cover) + _SPREAD)
        # Beyond the budget only for what is needed to know how good expectations are.
        fresh = ~np.isin(states.configuration, list(configurations))
        allowed = left & ((spent + cost <= budget) | ((len(configurations) < wanted) & fresh))
        if not allowed.any():
            break
        worth = np.where(allowed, told / cost, -1.0)
        if spent + cost[worth.argmax()] > budget:
            worth = np.where(allowed, 1 / cost, -1.0)
        best = int(np.argmax(worth))
        taken.setdefault(int(prices.lease[best]), []).append(best)
        spent += float(cost[best])
        configurations.add(int(states.configuration[best]))
        left[best] = False
        cover -= np.outer(cover[best], cover[best]) / (cover[best, best] + _SPREAD)
    return _in_order(taken)


def next_round(
    states: CellStates,
    expected: Expectation,
    pairs: RequiredPairs,
    known: PairEvidence,
    wanted: Marks,
    prices: CellPrices,
    *,
    whole: bool,
    likely: bool,
) -> list[LeaseChoice]:
    """Cells that do most for pairs that are not shown yet (`wanted`), for their cost; with them, while little is known of how much
    compositions differ, cheap ones that tell it. Empty where nothing is left to measure. whole: all of these cells, whatever they
    cost. likely: whether an answer is expected.
    """
    taken = _repeated(states, pairs, wanted, prices, whole=whole)
    most = math.inf if likely else MOST * prices.whole - prices.spent
    # Differences that only wait for the spread of compositions to be known are told by any cells that tell it.
    clear = known.margin > -stdtrit(FREEDOM, known.part) * known.error
    unclear = wanted & ~(clear & known.measured)
    worth = _worth(states, expected, pairs, known, unclear if unclear.any() or taken else wanted)
    worth = np.where(prices.lease >= 0, worth, 0.0)
    spent, budget = 0.0, most if whole else min(most, ROUND * prices.whole)
    if beside := {place for some in taken.values() for place in some}:
        worth[list(beside)] = 0.0
    first = True
    offers: list[tuple[float, int, list[int], float]] = []
    for lease in np.unique(prices.lease[worth > 0]):
        here = np.flatnonzero((prices.lease == lease) & (worth > 0))
        here = here[np.lexsort((here, -worth[here] / prices.cost[here]))]
        value, cost = np.cumsum(worth[here]), prices.once[lease] + np.cumsum(prices.cost[here])
        count = here.size if whole else int(np.argmax(value / cost)) + 1
        # What is left out now may have to be composed for again.
        while (
            count < here.size
            and worth[here[count]] / prices.cost[here[count]] > _BESIDE * value[count - 1] / cost[count - 1]
        ):
            count += 1
        offers.append(
            (float(value[count - 1] / cost[count - 1]), int(lease), here[:count].tolist(), float(cost[count - 1]))
        )
    for _, lease, some, cost in sorted(offers, key=lambda each: (-each[0], each[1])):
        if spent + cost > (most if first else budget):
            continue
        first = False
        taken.setdefault(lease, []).extend(some)
        spent += cost
    return _in_order(taken)


def _repeated(
    states: CellStates, pairs: RequiredPairs, wanted: Marks, prices: CellPrices, *, whole: bool
) -> dict[int, list[int]]:
    """Cheap cells to compose again, by lease, until the freedom of the spread of compositions is enough in each workload that pairs
    are wanted of. Of each configuration one cell of a workload: further cells on its leases tell little more. whole: two
    configurations are compared, and what is not asked about was not measured before."""
    design = states.design
    freedom, budget = (FREEDOM_OF_PAIR, SPREAD_OF_PAIR) if whole else (FREEDOM, SPREAD)
    taken: dict[int, list[int]] = {}
    if design is None:
        return taken
    names = np.array([cell.workload for cell in states.cells])
    spent, budget = 0.0, min(budget * prices.whole, MOST_SPREAD * prices.whole - prices.spent)
    for workload in np.unique(names[pairs.better[wanted]]):
        stratum = design.means.groups.workloads.index(workload) if workload in design.means.groups.workloads else -1
        here = (design.means.groups.stratum == stratum) & (design.compositions > 1)
        lacking = freedom - (float(np.max(design.variances.alone.pool_freedom[here])) if here.any() else 0.0)
        able = np.flatnonzero((names == workload) & (prices.lease >= 0) & ((states.measured > 0) | whole))
        once = np.array([0.0 if lease in taken else prices.once[lease] for lease in prices.lease[able]])
        cost = prices.cost[able] + once
        configurations: set[int] = set()
        twice = states.measured[able] == 0  # one composition tells nothing of how they differ
        for at in np.lexsort((able, cost * (1 + twice))):
            place = int(able[at])
            if lacking <= 0 or spent + cost[at] > budget:
                break
            if whole or int(states.configuration[place]) not in configurations:
                configurations.add(int(states.configuration[place]))
                taken.setdefault(int(prices.lease[place]), []).append(place)
                spent += float(cost[at])
                lacking -= 1
    return taken


def _worth(
    states: CellStates, expected: Expectation, pairs: RequiredPairs, known: PairEvidence, wanted: Marks
) -> Floats:
    """By how much one more composition of each cell makes the errors of wanted pairs smaller, in parts of them."""
    worth = np.zeros(len(states.cells))
    variance = np.diag(expected.covariance)
    one = of_composition(states)
    k = states.measured
    again = one / np.maximum(k, 1) - one / (k + 1)
    gain = np.where(k > 0, again, np.maximum(variance - one, 0.1 * one))
    for side, other in ((pairs.better, pairs.other), (pairs.other, pairs.better)):
        total = np.where(k[side] > 0, one / np.maximum(k[side], 1), variance[side]) + np.where(
            k[other] > 0, one / np.maximum(k[other], 1), variance[other]
        )
        # One that may well be the better one counts more: once it is known to be, it settles others as well.
        weight = np.where(k[side] > 0, 1.0, 0.05 + 2 * (1 - known.likely))
        np.add.at(worth, side[wanted], (weight * gain[side] / total)[wanted])
    return worth


def _in_order(taken: Mapping[int, list[int]]) -> list[LeaseChoice]:
    return [LeaseChoice(lease, tuple(sorted(taken[lease]))) for lease in sorted(taken)]

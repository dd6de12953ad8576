"""The leases of the next round, or none where the question is answered or cannot be. Pure.

Every configuration is composed once, since only other configurations tell anything of one that was not: first a few with all of
their cells, then the others with the cells that may be their best. Then the cell that is named and those that may still be
better are composed again, side by side: a rival only where it would not be told from the named one by more compositions of that
one. A panel that has hardly a chance to be answered by all that is left is not measured for any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from campaign.insight.until.cell_states import CellStates, Ints, Marks, PricedMatrix
from campaign.insight.until.evidence import LEAST_TOLD, QuestionEvidence, QuestionPanel, chance, tolerance

HOPE = 0.05
"""The chance of an answer below which a panel is not measured for any more."""
SPREAD_UP_TO = 0.75
"""Of the leases of the campaign: others are composed for the spread of compositions alone only up to here."""
WORTH = 0.4
"""The chance of an answer that is worth that."""
_SURE = 0.75
"""The chance with which a rival has to be told from the named cell without being composed again."""
_MAY_BE_BEST = 1.7
"""Standard errors below the best cell of a configuration within which another one is measured beside it."""
_MOST_NEEDED = 200
_SPARE_IN_A_ROUND = 4
_SIDE_BY_SIDE, _FREEDOM = 4, 6
"""How many configurations are composed in a round at least, until the spread of compositions has that freedom."""
_RIVAL = "may be better than the one named so far"
_SIDE = "one of those that are to be told apart"


@dataclass(frozen=True)
class NextLease:
    """A lease of the next round, the ids of the cells to measure on it (all their runs in this composition), and why.

    device_hours: what it is expected to cost, with composing; None where that is unknown.
    """

    lease: str
    configuration: str
    composition: int
    cells: tuple[str, ...]
    why: str = ""
    device_hours: float | None = None


class RoundPrices:
    """What is left to measure, and what it costs. Where no duration is known, a run of a device counts as one.

    spent, whole: of what was measured, and of all cells that the question is about, with composing. composed, compositions: how
    often their leases were composed, and how many they are; beside: of other leases. left: by place, compositions without a
    record. once, each, uses: of each lease, its cost, those of its cells without a record by place, and how often it was
    composed.
    """

    def __init__(self, states: CellStates, matrix: PricedMatrix) -> None:
        self.states, self.matrix, self.left = states, matrix, np.zeros(len(states.cells), dtype=np.int64)
        self.spent = self.whole = 0.0
        self.composed = self.beside = self.compositions = 0
        self.once, self.each, self.uses = list[float](), list[dict[int, float]](), list[int]()
        place = {cell.id: number for number, cell in enumerate(states.cells)}
        known = matrix.device_hours is not None
        for lease in matrix.leases:
            once = lease.once_h if known else 0.0
            hours = lease.cells_h if known else (float(lease.configuration.devices),) * len(lease.cells)
            mine = {place[cell.id]: cost for cell, cost in zip(lease.cells, hours, strict=True) if cell.id in place}
            about = [cost for at, cost in mine.items() if states.panel[at] >= 0]
            done = {at: states.done.get((states.cells[at].id, lease.composition), frozenset[str]()) for at in mine}
            # A lease that was composed for several rounds took as much each time.
            uses = len(frozenset[str]().union(*done.values()))
            if about:
                self.spent += once * uses + sum(cost for at, cost in mine.items() if done[at])
                self.whole += once + sum(about)
                self.compositions += 1
                self.composed += uses
            else:
                self.beside += uses
            self.once.append(once)
            self.each.append({at: cost for at, cost in mine.items() if not done[at] and not states.fails[at]})
            self.uses.append(uses)
            for at in self.each[-1]:
                self.left[at] += 1

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, lease in enumerate(self.matrix.leases):
            found.setdefault(lease.configuration.name, []).append(number)
        return found

    def leases(self, place: int) -> list[int]:
        """The leases of a cell's configuration in the order of composing: those that were not composed come first."""
        mine = self._by_name[self.states.cells[place].configuration.name]
        return sorted(mine, key=lambda n: (self.uses[n] > 0, self.matrix.leases[n].composition))

    def lease_for(self, places: Iterable[int]) -> tuple[int, tuple[int, ...]] | None:
        """The lease of one configuration that holds the most of these cells without a record, and them."""
        places = sorted(places)
        options = [
            (-len(here), order, lease, here)
            for order, lease in enumerate(self.leases(places[0]))
            if (here := tuple(at for at in places if at in self.each[lease]))
        ]
        return min(options)[2:] if options else None

    def composing(self, places: Ints) -> float:
        """Device-hours of one more composition of a configuration with these of its cells; nan where they are unknown."""
        lease = self.matrix.leases[self.leases(int(places[0]))[0]]
        hours = dict(zip((cell.id for cell in lease.cells), lease.cells_h, strict=True))
        return lease.once_h + sum(hours[self.states.cells[at].id] for at in places)


def choose(evidence: QuestionEvidence, prices: RoundPrices, seed: int) -> list[NextLease]:
    """The next round; empty where nothing more is needed, or would help."""
    if evidence.answered.all():
        return []
    states = evidence.states
    if not states.done and evidence.question.form != "comparison":
        return _of_places(prices, dict.fromkeys(_first(evidence), "one of the first, with all of its cells"))
    if unseen := _unseen(evidence):
        return _of_places(prices, dict.fromkeys(unseen, "not composed yet"))
    wanted: dict[int, str] = {}
    for panel in evidence.panels:
        if panel.answered < 0:
            wanted = _for_panel(evidence, panel, prices, seed) | wanted
    if evidence.question.form == "comparison":  # with all else that it asks of them, so that no lease is composed twice
        again = np.isin(states.configuration, states.configuration[list(wanted)]) & states.open & (states.panel >= 0)
        wanted = dict.fromkeys(map(int, np.flatnonzero(again & (prices.left > 0))), _SIDE)
    return _of_places(prices, wanted)


def _of_places(prices: RoundPrices, places: Mapping[int, str]) -> list[NextLease]:
    """One lease of each configuration of these cells, which come with the reason; in the order of the plan."""
    by_configuration: dict[int, list[int]] = {}
    for place in places:
        by_configuration.setdefault(int(prices.states.configuration[place]), []).append(place)
    found = {}
    for mine in by_configuration.values():
        if (chosen := prices.lease_for(mine)) is not None:
            lease, ids = prices.matrix.leases[chosen[0]], tuple(prices.states.cells[at].id for at in chosen[1])
            hours = prices.once[chosen[0]] + sum(prices.each[chosen[0]][at] for at in chosen[1])
            cost = None if prices.matrix.device_hours is None else hours
            about = lease.name, lease.configuration.name, lease.composition
            found[chosen[0]] = NextLease(*about, ids, places[mine[0]], cost)
    return [found[number] for number in sorted(found)]


def _first(evidence: QuestionEvidence) -> list[int]:
    """All cells of some configurations, small and large ones; of all, where nothing is expected of configurations and there is
    nothing to choose in one."""
    states = evidence.states
    asked = np.flatnonzero(states.open & (states.panel >= 0))
    configurations = np.unique(states.configuration[asked])
    pairs = np.unique(np.stack([states.configuration[asked], states.panel[asked]]), axis=1)
    if asked.size > 2 * pairs.shape[1] or evidence.estimates.informed:
        devices = [float(states.devices[states.configuration == each][0]) for each in configurations]
        order = configurations[np.argsort(devices, kind="stable")]
        count = min(order.size, 2 + math.ceil(order.size / 8))
        configurations = order[np.unique(np.linspace(0, order.size - 1, count).round().astype(int))]
    return [int(at) for at in asked if states.configuration[at] in configurations]


def _unseen(evidence: QuestionEvidence) -> list[int]:
    """Of each configuration without a record that may hold the best of a panel, the two best cells as expected, and those near
    them."""
    states, estimates = evidence.states, evidence.estimates
    started = np.unique(states.configuration[states.ran])
    found: list[int] = []
    for panel in evidence.panels:
        new = panel.cells[~np.isin(states.configuration[panel.cells], started)]
        if panel.pairs.better.size and evidence.question.form == "best":
            new = np.intersect1d(new, panel.pairs.other[~panel.pairs.passes])
        for configuration in np.unique(states.configuration[new]):
            here = new[states.configuration[new] == configuration]
            here = here[np.argsort(-estimates.expected[here], kind="stable")]
            below, variance = estimates.expectations(np.full(here.size, here[0]), here)
            near = (below < _MAY_BE_BEST * np.sqrt(variance)) | (estimates.told[here] < LEAST_TOLD)
            near[:2] = True
            found += here[near].tolist()
    return found


def _for_panel(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices, seed: int) -> dict[int, str]:
    """The cells that a panel needs composed again, and why; none where it has no chance."""
    states, cells = evidence.states, panel.cells
    if cells.size == 1 or not panel.named.size:
        return {int(at): "all others failed" for at in cells if prices.left[at] and not states.measured[at]}
    pairs = panel.pairs.take(~panel.pairs.passes)
    rows = np.unique(np.concatenate([pairs.better, pairs.other]))
    configurations = np.unique(states.configuration[rows])
    final = states.measured[cells] + prices.left[cells]
    more = sum(int(prices.left[rows[states.configuration[rows] == each]].max()) for each in configurations)
    known = evidence.freedom(int(cells[0]))
    freedom = known + more - (0 if known else configurations.size)
    form = evidence.question.form
    # Two configurations cost no more than they do without a question.
    spare = [] if form == "comparison" else _spare(evidence, prices, configurations, int(cells[0]))
    hope = chance(evidence, panel, final, freedom, seed)
    full = chance(evidence, panel, final, freedom + len(spare), seed) if spare else hope
    if hope < HOPE and full < WORTH:
        return {}
    wanted = _best(evidence, panel, prices, freedom) if form == "best" else _sides(states, panel, prices)
    if full >= WORTH and not wanted:
        wanted |= dict.fromkeys(spare[:_SPARE_IN_A_ROUND], "tells how much compositions differ")
    return wanted


def _best(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices, freedom: float) -> dict[int, str]:
    """The named cell and its rivals, first those composed less often; several of them while little is known of the spread."""
    states, named = evidence.states, int(panel.named[0])
    pairs = panel.pairs.take(~panel.pairs.passes)
    rivals = pairs.other[np.argsort((pairs.difference - pairs.least) / pairs.error, kind="stable")]
    able = rivals[prices.left[rivals] > 0]
    most = int(states.measured[named] + prices.left[named])
    wanted = dict.fromkeys(map(int, able[~_told(evidence, named, able, most, freedom)]), _RIVAL)
    behind = any(states.measured[each] < states.measured[named] for each in wanted)
    if prices.left[named] and not behind:
        wanted[named] = "named so far"
    least = _SIDE_BY_SIDE if evidence.freedom(named) < _FREEDOM else 1 if wanted else _SIDE_BY_SIDE - 1
    configurations = {int(states.configuration[at]) for at in wanted}
    for each in map(int, able):
        if len(configurations) < least and int(states.configuration[each]) not in configurations:
            configurations.add(int(states.configuration[each]))
            wanted[each] = _RIVAL
    return wanted


def _told(evidence: QuestionEvidence, named: int, rivals: Ints, most: int, freedom: float) -> Marks:
    """Which rivals are told from the named cell once that is composed so often, and they are not composed again."""
    from scipy.special import ndtr

    if not rivals.size:
        return np.zeros(0, dtype=np.bool_)
    states, i = evidence.states, np.full(rivals.size, named)
    of = np.full(rivals.size, most), states.measured[rivals]
    (a, v), (b, w) = evidence.after(i, of[0]), evidence.after(rivals, of[1])
    needs = np.minimum(evidence.asked(i, rivals, *of, freedom), 1e9)  # infinite without freedom
    spread = np.sqrt(v + w + needs**2 / (2 * (max(freedom, 0.0) + 2)) + 1e-12)
    well = ndtr((a - b + tolerance(evidence.question) - needs) / spread) >= _SURE
    apart = states.configuration[rivals] != states.configuration[named]
    return np.asarray(well & apart & (states.measured[rivals] > 0), dtype=np.bool_)


def _sides(states: CellStates, panel: QuestionPanel, prices: RoundPrices) -> dict[int, str]:
    """Both sides of every statement that is not shown, that first which was composed less often."""
    pairs = panel.pairs.take(~panel.pairs.passes)
    sides = np.unique(np.concatenate([pairs.better, pairs.other]))
    able = sides[prices.left[sides] > 0]
    least = states.measured[able].min(initial=10**9)
    return {int(at): _SIDE for at in able if states.measured[at] == least}


def _spare(evidence: QuestionEvidence, prices: RoundPrices, but: Ints, like: int) -> list[int]:
    """The cheapest cell of each other configuration that would tell how much compositions differ, the cheapest first."""
    states, fit = evidence.states, evidence.estimates.fit
    able = (fit == fit[like]) & (states.measured > 0) & ~np.isin(states.configuration, but)
    offers = []
    for configuration in np.unique(states.configuration[able]):
        mine = list(map(int, np.flatnonzero(able & (states.configuration == configuration))))
        lease = prices.leases(mine[0])[0]
        if not prices.uses[lease] and (here := [at for at in mine if at in prices.each[lease]]):
            offers.append(min((prices.once[lease] + prices.each[lease][at], at) for at in here))
    most = int(SPREAD_UP_TO * len(prices.matrix.leases)) - prices.composed
    return [at for _, at in sorted(offers)][: max(0, most)]


@dataclass(frozen=True)
class Needed:
    """What would decide a panel: so many more compositions of each of these cells' configurations, in all, and their cost."""

    cells: Ints
    each: int
    compositions: int
    cost: float


def needed(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices) -> Needed | None:
    """What is expected to decide a panel, if differences stay as they are; None for more than anybody composes.

    A rival is composed again where more compositions of the named cell alone would not tell it.
    """
    pairs = panel.pairs.take(~panel.pairs.passes)
    if evidence.question.form == "comparison" and pairs.answer.size:  # the answer that is the nearest to be shown
        worst = {each: (pairs.difference - pairs.least)[pairs.answer == each].min() for each in np.unique(pairs.answer)}
        pairs = pairs.take(pairs.answer == max(worst, key=lambda each: worst[each]))
    if not pairs.better.size or (pairs.difference <= pairs.least).any():
        return None
    states, freedom = evidence.states, evidence.freedom(int(pairs.better[0]))
    margin = pairs.difference - pairs.least
    for each in range(1, _MOST_NEEDED):
        k = states.measured[pairs.better] + each, states.measured[pairs.other]
        alone = evidence.asked(pairs.better, pairs.other, *k, max(freedom, 1.0) + each)
        more = (margin <= alone) | (k[1] == 0)
        cells = np.unique(np.concatenate([pairs.better, pairs.other[more]]))
        configurations = np.unique(states.configuration[cells])
        known = freedom + (each if freedom else each - 1) * configurations.size
        if (margin > evidence.asked(pairs.better, pairs.other, k[0], k[1] + each * more, known)).all():
            cost = sum(prices.composing(cells[states.configuration[cells] == one]) for one in configurations)
            return Needed(cells, each, each * configurations.size, each * cost)
    return None

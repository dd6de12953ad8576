"""The leases of the next round, or none where the question is answered or cannot be. Pure.

Every configuration is composed once, since only other configurations tell anything of one that was not: first a few with all of
their cells, then the others with the cells that may be their best. Then the cell that is named and those that may still be
better are composed again, side by side: a rival only where it would not be told from the named one by more compositions of that
one. A panel that has hardly a chance to be answered by all that is left is not measured for any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from campaign.documents.rounds import ChosenLease
from campaign.insight.until.cell_states import CellStates
from campaign.insight.until.evidence import LEAST_TOLD, QuestionEvidence, QuestionPanel
from campaign.statistics.intervals import Integers

HOPE = 0.02
"""The chance of its least likely statement below which a panel is not measured for any more."""
_SURE = 0.75
"""The chance with which a rival has to be told from the named cell without being composed again."""
_MAY_BE_BEST = 1.7
"""Standard errors below the best cell of a configuration within which another one is measured beside it."""
_MOST_NEEDED = 200
_SIDE_BY_SIDE, _FREEDOM = 4, 6
"""How many configurations are composed in a round at least, until the spread of compositions has that freedom."""
_RIVAL = "may be better than the one named so far"
_SIDE = "one of those that are to be told apart"


def choose(evidence: QuestionEvidence) -> list[tuple[ChosenLease, str]]:
    """The next round, with the reason for each lease; empty where nothing more is needed, or would help."""
    if evidence.answered.all():
        return []
    states, comparison = evidence.states, evidence.question.form == "comparison"
    if not states.done and not comparison:
        return _leases(states, dict.fromkeys(_first(evidence), "one of the first, with all of its cells"))
    if unseen := _unseen(evidence):
        return _leases(states, dict.fromkeys(unseen, "not composed yet"))
    wanted: dict[int, str] = {}
    for panel in evidence.panels:
        if panel.answered < 0:
            wanted = _for_panel(evidence, panel) | wanted
    if comparison:  # with all else that it asks of them, so that no lease is composed twice
        again = np.isin(states.configuration, states.configuration[list(wanted)]) & (states.panel >= 0)
        wanted = dict.fromkeys(map(int, np.flatnonzero(again & (states.left > 0))), _SIDE)
    return _leases(states, wanted)


def _leases(states: CellStates, places: Mapping[int, str]) -> list[tuple[ChosenLease, str]]:
    """One lease of each configuration of these cells, which come with the reason, in the order of the plan: the one that holds
    the most of them without a record, of these one that was not composed yet."""
    by_configuration: dict[str, list[int]] = {}
    for at in places:
        by_configuration.setdefault(states.cells[at].configuration.name, []).append(at)
    found = {}
    for name, mine in by_configuration.items():
        held = {number: sorted(states.each[number].keys() & set(mine)) for number in states.of[name]}
        number = min(held, key=lambda n: (-len(held[n]), states.uses[n] > 0, states.matrix.leases[n].composition))
        if here := held[number]:
            lease = states.matrix.leases[number]
            hours = (
                float(states.once_h[here[0]]) + sum(states.each[number][at] for at in here) if states.known else None
            )
            chosen = ChosenLease(
                lease=lease.name, configuration=name, composition=lease.composition,
                cells=tuple(states.cells[at].id for at in here), device_hours=hours,
            )  # fmt: skip
            found[number] = chosen, places[mine[0]]
    return [found[number] for number in sorted(found)]


def _first(evidence: QuestionEvidence) -> list[int]:
    """All cells of some configurations, small and large ones; of all, where nothing is expected of configurations and there is
    nothing to choose in one."""
    states = evidence.states
    asked = np.flatnonzero(~states.fails & (states.panel >= 0))
    configurations, first = np.unique(states.configuration[asked], return_index=True)
    pairs = np.unique(np.stack([states.configuration[asked], states.panel[asked]]), axis=1)
    if asked.size > 2 * pairs.shape[1] or evidence.estimates.informed:
        order = configurations[np.argsort(states.devices[asked[first]], kind="stable")]
        count = min(order.size, 2 + math.ceil(order.size / 8))
        configurations = order[np.unique(np.linspace(0, order.size - 1, count).round().astype(int))]
    return [int(at) for at in asked if states.configuration[at] in configurations]


def _unseen(evidence: QuestionEvidence) -> list[int]:
    """Of each configuration without a record that may hold the best of a panel, the two best cells as expected, and those near
    them."""
    states, estimates, of = evidence.states, evidence.estimates, evidence.states.configuration
    found: list[int] = []
    for panel in evidence.panels:
        new = panel.cells[~np.isin(of[panel.cells], of[states.ran])]
        if panel.pairs.better.size and evidence.question.form == "best":
            new = np.intersect1d(new, panel.pairs.other[~panel.pairs.passes])
        for configuration in np.unique(of[new]):
            here = new[of[new] == configuration]
            here = here[np.argsort(-estimates.expected[here], kind="stable")]
            below, variance = estimates.expectations(np.full(here.size, here[0]), here)
            near = (below < _MAY_BE_BEST * np.sqrt(variance)) | (estimates.told[here] < LEAST_TOLD)
            near[:2] = True
            found += here[near].tolist()
    return found


def _for_panel(evidence: QuestionEvidence, panel: QuestionPanel) -> dict[int, str]:
    """The cells that a panel needs composed again, and why; none where it has no chance.

    Of the best: the named cell and its rivals, first those composed less often; several of them while little is known of the
    spread. Else both sides of every statement that is not shown.
    """
    states, cells, of = evidence.states, panel.cells, evidence.states.configuration
    if cells.size == 1 or not panel.named.size:
        return {int(at): "all others failed" for at in cells if states.left[at] and not states.measured[at]}
    pairs = panel.pairs.take(~panel.pairs.passes)
    sides = np.unique(np.concatenate([pairs.better, pairs.other]))
    configurations = np.unique(of[sides])
    known = float(evidence.estimates.freedom[cells[0]])
    more = sum(int(states.left[sides[of[sides] == each]].max()) for each in configurations)
    freedom = known + more - sum(not states.measured[of == each].any() for each in configurations)
    final = states.measured + states.left
    hopes = evidence.chances(panel, pairs, final, final, freedom)
    if evidence.question.form == "best":  # a rival may become the one that is named
        turned = replace(pairs, better=pairs.other, other=pairs.better)
        hopes = np.minimum(1.0, hopes + evidence.chances(panel, turned, final, final, freedom))
    if max(hopes[pairs.answer == each].min() for each in np.unique(pairs.answer)) < HOPE:
        return {}
    if evidence.question.form != "best":
        able = sides[states.left[sides] > 0]
        return {int(at): _SIDE for at in able if states.measured[at] == states.measured[able].min()}
    named = int(panel.named[0])
    pairs = pairs.take(np.argsort((pairs.difference - pairs.least) / pairs.error, kind="stable"))
    pairs = pairs.take(states.left[pairs.other] > 0)
    told = evidence.chances(panel, pairs, final, states.measured, freedom) >= _SURE
    told &= (of[pairs.other] != of[named]) & (states.measured[pairs.other] > 0)
    wanted = dict.fromkeys(map(int, pairs.other[~told]), _RIVAL)
    if states.left[named] and not any(states.measured[each] < states.measured[named] for each in wanted):
        wanted[named] = "named so far"
    least = _SIDE_BY_SIDE if known < _FREEDOM else 1 if wanted else _SIDE_BY_SIDE - 1
    for at in map(int, pairs.other):
        composed = {int(of[each]) for each in wanted}
        if len(composed) < least and int(of[at]) not in composed:
            wanted[at] = _RIVAL
    return wanted


class Needed(NamedTuple):
    """What would decide a panel: so many more compositions of each of these cells' configurations, in all, and their cost."""

    cells: Integers
    each: int
    compositions: int
    cost: float


def needed(evidence: QuestionEvidence, panel: QuestionPanel) -> Needed | None:
    """What is expected to decide a panel, if differences stay as they are; None for more than anybody composes.

    A rival is composed again where more compositions of the named cell alone would not tell it.
    """
    pairs = panel.pairs.take(~panel.pairs.passes)
    if evidence.question.form == "comparison" and pairs.answer.size:  # the answer that is the nearest to be shown
        worst = {each: (pairs.difference - pairs.least)[pairs.answer == each].min() for each in np.unique(pairs.answer)}
        pairs = pairs.take(pairs.answer == max(worst, key=lambda each: worst[each]))
    margin = pairs.difference - pairs.least
    if not margin.size or (margin <= 0).any():
        return None
    states, freedom = evidence.states, float(evidence.estimates.freedom[pairs.better[0]])
    for each in range(1, _MOST_NEEDED):
        k, m = states.measured[pairs.better] + each, states.measured[pairs.other]
        more = (margin <= evidence.asked(panel, pairs.better, pairs.other, k, m, max(freedom, 1.0) + each)) | (m == 0)
        cells = np.unique(np.concatenate([pairs.better, pairs.other[more]]))
        first = np.unique(states.configuration[cells], return_index=True)[1]
        known = freedom + each * first.size - int((states.measured[cells[first]] == 0).sum())
        if (margin > evidence.asked(panel, pairs.better, pairs.other, k, m + each * more, known)).all():
            cost = float(states.cells_h[cells].sum() + states.once_h[cells[first]].sum())
            return Needed(cells, each, each * first.size, each * cost if states.known else math.nan)
    return None

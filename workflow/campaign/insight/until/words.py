"""What a decision says: the answer or what it lacks, what it rests on, and why the next leases are chosen. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from campaign import wording
from campaign.insight.until.cell_states import CellStates, Marks, PricedMatrix
from campaign.insight.until.question import Question
from campaign.insight.until.requirements import of_composition, tolerance
from campaign.insight.until.rounds import MOST, LeaseChoice
from campaign.insight.until.weighed import Weighed, last

_MOST_COMPOSITIONS = 999
_WIDEST = math.log(10)


def statement(question: Question, weighed: Weighed, *, stop: bool) -> str:
    """Whether the question is answered, and why no more is measured where it is not."""
    if not (weighed.states.open & (weighed.states.panel >= 0)).any():
        return f"Not decided: {question.text}: every cell that it is about failed or runs out of memory."
    answered = weighed.answered >= 0
    if answered.all():
        return f"Decided: {question.text} (95\u202f% confidence)."
    head = f"{question.text}; shown for {answered.sum()} of {wording.count(answered.size)}."
    return f"Not decided: {head}{_ended(weighed)}" if stop else f"Not known yet: {head}"


def answers(question: Question, matrix: PricedMatrix, weighed: Weighed) -> tuple[str, ...]:
    """A sentence for each panel, those that are shown first: its answer, or what leads and what is not shown."""
    order = np.argsort(weighed.answered < 0, kind="stable")
    return tuple(_panel(question, matrix, weighed, int(panel)) for panel in order)


def _ended(weighed: Weighed) -> str:
    """Why no more is measured for what is not shown."""
    states = weighed.states
    if not (np.isfinite(weighed.prices.cost) & (states.panel >= 0)).any():
        return " Nothing is left to measure."
    chance = f"{100 * weighed.chance:.0f}\u202f%"
    if weighed.likely:
        return " What is left to measure tells hardly more of it."
    if weighed.wanted.any():
        return (
            f" No more is measured: at most {100 * MOST:.0f}\u202f% of the matrix is taken where the rest is not likely to "
            f"show all of it (chance: {chance})."
        )
    return (
        f" No more is measured, since all of it would be shown with a chance of {chance} only, with all that is left."
    )


def rests_on(question: Question, matrix: PricedMatrix, weighed: Weighed, spent: float | None) -> tuple[str, ...]:
    """A sentence for each thing that the statement rests on."""
    states, pairs, known = weighed.states, weighed.pairs, weighed.known
    asked = states.panel >= 0
    there = asked & (states.measured > 0)
    leases = {lease for uses in states.done.values() for lease in uses}
    found = [
        f"{wording.count(there.sum())} of {wording.count(asked.sum())} cells measured; leases were composed "
        f"{wording.plural(len(leases), 'time')}" + (f"; {_freedom(states)}" if there.any() else "") + "."
    ]
    if beside := int(((states.measured > 0) & ~asked).sum()):
        found.append(f"{beside} cells of other configurations, for how much compositions differ.")
    for of, why in (
        (states.fails & states.ran, "failed on every composition that was tried, and {} not compete"),
        (states.fails & ~states.ran, "{} not run, as a smaller batch ran out of memory there, and {} not compete"),
        (states.open & (states.failed > 0), "failed on one composition, which counts only once another one shows it"),
    ):
        if count := int((of & asked).sum()):
            was, do = ("was", "does") if count == 1 else ("were", "do")
            found.append(f"{wording.plural(count, 'cell')} {why.format(*[was, do][-why.count('{}') :])}.")
    by_expectation = known.passes & ~((states.measured[pairs.better] > 0) & (states.measured[pairs.other] > 0))
    if left_out := np.unique(pairs.other[by_expectation]).size:
        found.append(
            f"{left_out} cells were not measured, because of what is expected of them from cells like them; configurations that "
            f"were left out were expected with a median error of {weighed.expected.error_pct:.0f}\u202f%."
        )
    if question.form != "comparison" and (states.measured[asked] < states.planned[asked]).any():
        found.append("The error of 5\u202f% is divided over all pairs of cells and all looks at them.")
    if spent is None or not matrix.device_hours:
        blocks = sum(len(lease.cells) for lease in matrix.leases)
        found.append(f"Durations are unknown; {len(states.done)} of {blocks} compositions of cells.")
    return tuple(found)


def reasons(weighed: Weighed, matrix: PricedMatrix, chosen: Sequence[LeaseChoice]) -> tuple[str, ...]:
    """Why each lease of a round was chosen."""
    states, pairs, wanted = weighed.states, weighed.pairs, weighed.wanted
    named = {int(place) for panel in weighed.answers for place in panel}
    lines = []
    for each in chosen:
        lease = matrix.leases[each.lease]
        mine = np.array(each.places, dtype=np.int64)
        rivals = wanted & np.isin(pairs.other, mine)
        if not states.done:
            why = "tells much of other cells for what it costs"
        elif last(states)[mine].all():
            why = "all others failed"
        elif weighed.pair and (states.panel[mine] >= 0).any():
            why = "one of the two"
        elif named & set(each.places) and (wanted & np.isin(pairs.better, mine)).any():
            why = "named by the answer so far"
        elif rivals.any():
            chance = 1 - float(weighed.known.likely[rivals].min())
            why = (
                f"not told from the answer so far (it may be wrong by {100 * chance:.0f}\u202f%)"
                if chance > 0.005
                else ("not shown yet to be worse than the answer so far")
            )
        else:
            why = "tells how much compositions differ"
        lines.append(f"{lease.name}: {wording.plural(len(each.places), 'cell')}, {why}.")
    return tuple(lines)


def _freedom(states: CellStates) -> str:
    design = states.design
    several = design is not None and (design.compositions > 1).any()
    if design is None or not several:
        return "each composed once, so that nothing tells how much compositions differ"
    freedom = design.variances.alone.pool_freedom[design.compositions > 1]
    sd = 100 * math.sqrt(of_composition(states))
    return f"compositions of a cell differ by {sd:.1f}\u202f% (sd), with {freedom.max():.0f} degrees of freedom"


def about(panel: tuple[object, ...]) -> str:
    """A panel in words: 'bert, fp32, batch 8'."""
    workload, precision, *rest = panel
    more = [f"batch {each}" if isinstance(each, int) else f"{each[0]} {each[1]}" for each in rest]  # type: ignore[index]
    return ", ".join([str(workload), str(precision), *more])


def _cell(states: CellStates, place: int) -> str:
    cell = states.cells[place]
    return f"{cell.configuration.name} (batch {cell.batch})"


def _value(matrix: PricedMatrix, states: CellStates, place: int) -> str:
    """The value of a cell with its interval, where it was measured."""
    design = states.design
    if design is None or not states.measured[place]:
        return "not measured"
    at = design.cells.get_loc(states.cells[place].id)
    value, low, high = (float(each[at]) for each in design.locations()[0].bounds())

    said, between = (
        f"{wording.rate(value)}\u202f{matrix.metric.unit}".rstrip(),
        wording.between(low, high, wording.rate),
    )
    if not math.isfinite(low):
        return f"{said} (one run, no interval)"
    if not math.isfinite(float(design.variances.alone.variance[at])):
        return f"{said} ({between} from run to run, on one composition)"
    return f"{said} (95\u202f% interval {between})"


def _beside(matrix: PricedMatrix, states: CellStates, panel: int, named: int) -> str:
    """The cell with the best measured mean, where that is not the one that is named."""
    here = np.flatnonzero((states.panel == panel) & (states.measured > 0))
    if not here.size or (best := int(here[np.argmax(states.good[here])])) == named:
        return ""
    return f"; the best mean that was measured is that of {_cell(states, best)}, {_value(matrix, states, best)}"


def _panel(question: Question, matrix: PricedMatrix, weighed: Weighed, panel: int) -> str:
    states, named = weighed.states, weighed.answers[panel]
    head = f"{about(states.panels[panel])}: "
    here = weighed.pairs.panel == panel
    if question.form == "comparison":
        return head + _comparison(question, weighed, panel)
    if not named.size:
        return f"{head}every cell failed."
    if question.form == "best":
        place = int(named[0])
        said = f"{head}{_cell(states, place)}, {_value(matrix, states, place)}"
        beside = _beside(matrix, states, panel, place)
    else:
        beside = ""
        said = head + ", ".join(f"{_cell(states, int(each))}" for each in named)
    if weighed.answered[panel] < 0 and not here.any():
        return f"{said}; all others failed."
    if weighed.answered[panel] < 0:
        leads = " so far" if question.form != "best" else ", is expected to be the best" if beside else ", leads"
        return f"{said}{leads}{beside}; {_lacking(question, weighed, here)}"
    if not here.any():
        return f"{said}; nothing else competes."
    if question.form == "best":
        return f"{said}; {_bound(question, weighed, here)}{beside}."
    return f"{said}."


def _bound(question: Question, weighed: Weighed, here: Marks) -> str:
    """How much worse than others the named cell may be; what was not measured is expected to be worse at most."""
    known, pairs, slack = weighed.known, weighed.pairs, tolerance(question)
    both = here & (weighed.states.measured[pairs.better] > 0) & (weighed.states.measured[pairs.other] > 0)
    said = []
    if both.any():
        most = float(np.max(np.minimum(known.asks * known.error - known.difference, slack)[both]))
        worse = f"at most {-100 * math.expm1(-most):.1f}\u202f% below any other one that was measured"
        said.append("no other one that was measured is better" if most <= 0 else worse)
    if count := int((here & ~both).sum()):
        said.append(f"{count} not measured, and not expected to be better by more than {question.within_pct:g}\u202f%")
    return "; ".join(said)


def _comparison(question: Question, weighed: Weighed, panel: int) -> str:
    known, pairs = weighed.known, weighed.pairs
    here = np.flatnonzero((pairs.panel == panel) & (pairs.answer == 0))
    if not here.size:
        return (
            f"{question.first} or {question.second} failed or runs out of memory, so that there is nothing to compare."
        )
    at = int(here[0])
    if not (weighed.states.measured[pairs.better[at]] > 0 and weighed.states.measured[pairs.other[at]] > 0):
        return "not measured yet."
    ratio, half = float(known.difference[at]), float(known.asks[at] * known.error[at])
    low, high = (100 * math.expm1(ratio + side * min(half, _WIDEST)) for side in (-1, 1))
    within = wording.between(low, high, wording.percent)
    bounds = within if half < _WIDEST else "with too few compositions for an interval"
    interval = f"{wording.percent(100 * math.expm1(ratio))}, {bounds}"
    first, second = question.first, question.second
    match int(weighed.answered[panel]):
        case 0:
            return f"{first} is better than {second} ({interval})."
        case 1:
            return f"{first} is worse than {second} ({interval})."
        case 2:
            return f"{first} and {second} differ by less than {question.within_pct:g}\u202f% ({interval})."
        case _:
            return f"{first} against {second}: {interval}; {_lacking(question, weighed, pairs.panel == panel)}"


def _lacking(question: Question, weighed: Weighed, here: Marks) -> str:
    """What is not shown, and what would show it, as far as can be expected."""
    states, pairs, known = weighed.states, weighed.pairs, weighed.known
    open_ = np.flatnonzero(here & ~known.passes)
    if question.form == "comparison":  # of the answers, the one that is the nearest to be shown
        worst = {each: min(n for n in open_ if pairs.answer[n] == each) for each in np.unique(pairs.answer[open_])}
        open_ = np.array([max(worst.values(), key=lambda n: known.margin[n])])
    at = int(open_[np.argmin(known.margin[open_] / known.error[open_])])
    a, b = int(pairs.better[at]), int(pairs.other[at])
    names = f"{_cell(states, a)} and {_cell(states, b)}"
    more = max(0, open_.size - 1)
    others = f", nor for {wording.plural(more, 'other pair')}" if more else ""
    needed = _needed(weighed, at)
    expected = (
        "and is not expected to be"
        if needed is None
        else f"with {wording.plural(needed, 'composition')} of each (now {states.measured[a]} and {states.measured[b]}) "
        "it would be, expected"
    )
    return f"not shown for {names}{others}; {expected}."


def _needed(weighed: Weighed, at: int) -> int | None:
    """Compositions of both cells of a pair with which a statement is expected to be shown; None for more than a campaign has."""
    from scipy.special import ndtri

    margin = float(weighed.known.margin[at])
    if margin <= 0:
        return None
    factor = -float(ndtri(weighed.known.part[at]))
    count = math.ceil(2 * of_composition(weighed.states) * (factor / margin) ** 2)
    least = 1 + int(
        max(weighed.states.measured[weighed.pairs.better[at]], weighed.states.measured[weighed.pairs.other[at]])
    )
    return max(count, least) if max(count, least) <= _MOST_COMPOSITIONS else None

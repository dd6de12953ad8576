"""What a decision says: the answer or what it lacks, what it rests on, and why the next leases are chosen. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from campaign import wording
from campaign.insight.until.arms import Arms, Marks
from campaign.insight.until.offer import Offer
from campaign.insight.until.question import Question
from campaign.insight.until.requirements import of_composition, tolerance
from campaign.insight.until.rounds import MOST, Choice
from campaign.insight.until.weighed import Weighed, last

_SHOWN = 6
_MOST_COMPOSITIONS = 999
_WIDEST = 7.0  # of a logarithm: a thousand times


def statement(question: Question, offer: Offer, weighed: Weighed, *, stop: bool) -> str:
    """The answer of each panel, or what it lacks."""
    if not (weighed.arms.open & (weighed.arms.panel >= 0)).any():
        return f"Not decided: {question.text}: every cell that it is about failed or runs out of memory."
    answered = weighed.answered >= 0
    said = [_panel(question, offer, weighed, panel) for panel in range(answered.size)]
    if answered.all():
        return f"Decided: {question.text} (95\u202f% confidence). {_listed(said)}"
    if not stop:
        return f"Not known yet: {question.text}; shown for {answered.sum()} of {wording.count(answered.size)}."
    return (
        f"Not decided: {question.text}; shown for {answered.sum()} of {wording.count(answered.size)}. "
        f"{_listed([each for each, ok in zip(said, answered, strict=True) if not ok])}{_ended(weighed)}"
    )


def _ended(weighed: Weighed) -> str:
    """Why no more is measured for what is not shown."""
    arms = weighed.arms
    if not (np.isfinite(weighed.prices.cost) & (arms.panel >= 0)).any():
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


def rests_on(question: Question, offer: Offer, weighed: Weighed, spent: float | None) -> tuple[str, ...]:
    """A sentence for each thing that the statement rests on."""
    arms, pairs, known = weighed.arms, weighed.pairs, weighed.known
    asked = arms.panel >= 0
    there = asked & (arms.measured > 0)
    leases = {lease for uses in arms.done.values() for lease in uses}
    found = [
        f"{wording.count(there.sum())} of {wording.count(asked.sum())} cells measured, on {wording.count(len(leases))} leases"
        + (f"; {_freedom(arms)}" if there.any() else "")
        + "."
    ]
    if beside := int(((arms.measured > 0) & ~asked).sum()):
        found.append(f"{beside} cells of other configurations, for how much compositions differ.")
    if fails := int((arms.fails & asked).sum()):
        found.append(f"{fails} cells failed or run out of memory; they do not compete.")
    by_expectation = known.passes & ~((arms.measured[pairs.better] > 0) & (arms.measured[pairs.other] > 0))
    if left_out := np.unique(pairs.other[by_expectation]).size:
        found.append(
            f"{left_out} cells were not measured, because of what is expected of them from cells like them; configurations that "
            f"were left out were expected with a median error of {weighed.expected.error_pct:.0f}\u202f%."
        )
    if question.form != "comparison" and (arms.measured[asked] < arms.offered[asked]).any():
        found.append("The error of 5\u202f% is divided over all pairs of cells and all looks at them.")
    if spent is None or not offer.device_hours:
        blocks = sum(len(lease.cells) for lease in offer.leases)
        found.append(f"Durations are unknown; {len(arms.done)} of {blocks} compositions of cells.")
    return tuple(found)


def reasons(weighed: Weighed, offer: Offer, chosen: Sequence[Choice]) -> tuple[str, ...]:
    """Why each lease of a round was chosen."""
    arms, pairs, wanted = weighed.arms, weighed.pairs, weighed.wanted
    named = {int(arm) for panel in weighed.answers for arm in panel}
    lines = []
    for each in chosen:
        lease = offer.leases[each.lease]
        mine = np.array(each.arms, dtype=np.int64)
        rivals = wanted & np.isin(pairs.other, mine)
        if not arms.done:
            why = "tells much of other cells for what it costs"
        elif last(arms)[mine].all():
            why = "all others failed"
        elif weighed.pair and (arms.panel[mine] >= 0).any():
            why = "one of the two"
        elif named & set(each.arms) and (wanted & np.isin(pairs.better, mine)).any():
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
        lines.append(f"{lease.name}: {wording.plural(len(each.arms), 'cell')}, {why}.")
    return tuple(lines)


def _listed(said: Sequence[str]) -> str:
    more = f" And {len(said) - _SHOWN} more." if len(said) > _SHOWN else ""
    return " ".join(said[:_SHOWN]) + more


def _freedom(arms: Arms) -> str:
    design = arms.design
    several = design is not None and (design.compositions > 1).any()
    if design is None or not several:
        return "each composed once, so that nothing tells how much compositions differ"
    freedom = design.variances.alone.pool_freedom[design.compositions > 1]
    sd = 100 * math.sqrt(of_composition(arms))
    return f"compositions of a cell differ by {sd:.1f}\u202f% (sd), with {freedom.max():.0f} degrees of freedom"


def _about(panel: tuple[object, ...]) -> str:
    workload, precision, *rest = panel
    more = [f"batch {each}" if isinstance(each, int) else f"{each[0]} {each[1]}" for each in rest]  # type: ignore[index]
    return ", ".join([str(workload), str(precision), *more])


def _arm(arms: Arms, place: int) -> str:
    cell = arms.cells[place]
    return f"{cell.configuration.name} (batch {cell.batch})"


def _value(offer: Offer, arms: Arms, place: int) -> str:
    """With its interval, where it was measured."""
    design = arms.design
    if design is None or not arms.measured[place]:
        return "not measured"
    at = design.cells.get_loc(arms.cells[place].id)
    value, low, high = (float(each[at]) for each in design.locations()[0].bounds())
    return wording.with_interval(value, low, high, lambda x: f"{wording.rate(x)}\u202f{offer.metric.unit}".rstrip())


def _panel(question: Question, offer: Offer, weighed: Weighed, panel: int) -> str:
    arms, named = weighed.arms, weighed.answers[panel]
    head = f"{_about(arms.panels[panel])}: "
    here = weighed.pairs.panel == panel
    if question.form == "comparison":
        return head + _comparison(question, weighed, panel)
    if not named.size:
        return f"{head}every cell failed."
    if question.form == "best":
        place = int(named[0])
        said = f"{head}{_arm(arms, place)}, {_value(offer, arms, place)}"
    else:
        said = head + ", ".join(f"{_arm(arms, int(each))}" for each in named)
    if weighed.answered[panel] < 0 and not here.any():
        return f"{said}; all others failed."
    if weighed.answered[panel] < 0:
        return f"{said}{' leads' if question.form == 'best' else ' so far'}; {_lacking(question, weighed, here)}"
    if not here.any():
        return f"{said}; nothing else competes."
    if question.form == "best":
        return f"{said}; {_bound(weighed, here, tolerance(question))}."
    return f"{said}."


def _bound(weighed: Weighed, here: Marks, slack: float) -> str:
    known = weighed.known
    tested = np.where(known.measured | np.isfinite(known.asks), known.asks * known.error - known.difference, slack)
    most = float(np.max(np.minimum(tested[here], slack)))
    if most <= 0:
        return "every other one is worse"
    return f"no other one is more than {100 * math.expm1(most):.1f}\u202f% better"


def _comparison(question: Question, weighed: Weighed, panel: int) -> str:
    known, pairs = weighed.known, weighed.pairs
    here = np.flatnonzero((pairs.panel == panel) & (pairs.answer == 0))
    if not here.size:
        return "one of the two failed, so that there is nothing to compare."
    at = int(here[0])
    if not (weighed.arms.measured[pairs.better[at]] > 0 and weighed.arms.measured[pairs.other[at]] > 0):
        return "not measured yet."
    ratio, half = float(known.difference[at]), float(known.asks[at] * known.error[at])
    ends = [100 * math.expm1(min(ratio + side * half, _WIDEST)) for side in (-1, 1)]
    interval = f"{wording.percent(100 * math.expm1(ratio))}, {wording.between(ends[0], ends[1], wording.percent)}"
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
    arms, pairs, known = weighed.arms, weighed.pairs, weighed.known
    open_ = np.flatnonzero(here & ~known.passes)
    if question.form == "comparison":  # of the answers, the one that is the nearest to be shown
        worst = {each: min(n for n in open_ if pairs.answer[n] == each) for each in np.unique(pairs.answer[open_])}
        open_ = np.array([max(worst.values(), key=lambda n: known.margin[n])])
    at = int(open_[np.argmin(known.margin[open_] / known.error[open_])])
    a, b = int(pairs.better[at]), int(pairs.other[at])
    names = f"{_arm(arms, a)} and {_arm(arms, b)}"
    more = max(0, open_.size - 1)
    others = f", nor for {wording.plural(more, 'other pair')}" if more else ""
    needed = _needed(weighed, at)
    expected = (
        "and is not expected to be"
        if needed is None
        else f"with {needed} compositions of each (now {arms.measured[a]} and {arms.measured[b]}) it would be, expected"
    )
    return f"not shown for {names}{others}; {expected}."


def _needed(weighed: Weighed, at: int) -> int | None:
    """Compositions of both cells of a pair with which a statement is expected to be shown; None for more than a campaign has."""
    from scipy.special import ndtri

    margin = float(weighed.known.margin[at])
    if margin <= 0:
        return None
    factor = -float(ndtri(weighed.known.part[at]))
    count = math.ceil(2 * of_composition(weighed.arms) * (factor / margin) ** 2)
    least = 1 + int(
        max(weighed.arms.measured[weighed.pairs.better[at]], weighed.arms.measured[weighed.pairs.other[at]])
    )
    return max(count, least) if max(count, least) <= _MOST_COMPOSITIONS else None

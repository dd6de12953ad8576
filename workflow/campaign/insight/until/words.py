"""What a decision says: the answer, or what it lacks and what would decide it; what it rests on. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from campaign import wording
from campaign.insight.until.cell_states import CellStates
from campaign.insight.until.evidence import NOTHING, QuestionEvidence, QuestionPanel, tolerance
from campaign.insight.until.rounds import Needed, RoundPrices, needed

_WIDEST = math.log(10)
_NAMED = 4
_OWN_HOSTS = (
    "Some stayed on hosts of their own, and what a host does cannot be told from what they do; compositions on the same hosts "
    "would decide it."
)


def statement(evidence: QuestionEvidence, prices: RoundPrices, *, stop: bool) -> str:
    """Whether the question is answered; where it is not and no more is measured, why, and what would decide it."""
    text = evidence.question.text
    if not any(panel.cells.size for panel in evidence.panels):
        return f"Not decided: {text}: every cell that it is about failed or runs out of memory."
    if evidence.decided:
        return f"Decided: {text} (95\u202f% confidence)."
    head = f"{text}; shown for {evidence.answered.sum()} of {wording.count(len(evidence.panels))}."
    if not stop:
        return f"Not known yet: {head}"
    open_ = [panel for panel in evidence.panels if panel.answered < 0]
    if any(prices.left[panel.cells].any() for panel in open_):
        return f"Not decided: {head} No more is measured, since what is left is not expected to decide it."
    return f"Not decided: {head} Nothing is left to measure."


def answers(evidence: QuestionEvidence, prices: RoundPrices) -> tuple[str, ...]:
    """A sentence for each panel, those that are shown first: its answer, or what leads and what is not told from it."""
    order = np.argsort(~evidence.answered, kind="stable")
    return tuple(
        f"{about(evidence.states.panels[at])}: {_of_panel(evidence, evidence.panels[at], prices)}" for at in order
    )


def rests_on(evidence: QuestionEvidence, prices: RoundPrices) -> tuple[str, ...]:
    """A sentence for each thing that the statement rests on."""
    states = evidence.states
    asked = states.panel >= 0
    there = asked & (states.measured > 0)
    known = prices.matrix.device_hours is not None
    hours = (
        f", {100 * prices.spent / prices.whole:.0f}\u202f% of device-hours with composing"
        if known and prices.whole
        else ""
    )
    found = [
        f"{wording.count(there.sum())} of {wording.count(asked.sum())} cells measured, {wording.count(prices.composed)} of "
        f"{wording.plural(prices.compositions, 'composition')} made{hours}{_freedom(evidence) if there.any() else ''}."
    ]
    if prices.beside:
        found.append(
            f"{wording.plural(prices.beside, 'composition')} of other configurations, for how much compositions differ."
        )
    for of, why in (
        (states.fails & states.ran, "failed on every composition that was tried, and {} not compete"),
        (states.fails & ~states.ran, "{} not run, as a smaller batch ran out of memory there, and {} not compete"),
        (states.open & (states.failed > 0), "failed on one composition, which counts only once another one shows it"),
    ):
        if count := int((of & asked).sum()):
            was, do = ("was", "does") if count == 1 else ("were", "do")
            found.append(f"{wording.plural(count, 'cell')} {why.format(*[was, do][-why.count('{}') :])}.")
    others = np.concatenate([panel.pairs.other[panel.pairs.passes] for panel in evidence.panels])
    left_out = np.unique(others[states.measured[others] == 0]).astype(int)
    if left_out.size:
        like = f"{'the model of a step and ' if evidence.estimates.informed else ''}cells like them"
        doubt = 100 * float(np.median(evidence.estimates.doubts(left_out)))
        found.append(
            f"{wording.plural(left_out.size, 'cell')} not measured, because of what is expected of them from {like}; cells deviate "
            f"from that by {doubt:.1f}\u202f% (sd)."
        )
    if evidence.question.form != "comparison" and there.any():
        count = sum(panel.candidates for panel in evidence.panels)
        found.append(
            f"The error of 5\u202f% is divided over the {wording.plural(count, 'cell')} that could be named, and over looks as by "
            "O'Brien and Fleming: most of it is left for the last composition."
        )
    if not known:
        blocks = sum(len(lease.cells) for lease in prices.matrix.leases)
        found.append(f"Durations are unknown; {len(states.done)} of {blocks} compositions of cells.")
    return tuple(found)


def _freedom(evidence: QuestionEvidence) -> str:
    fits = [fit for fit in evidence.estimates.fits if fit.freedom[0] > 0]
    if not fits:
        return "; each composed once, so that nothing tells how much compositions differ"
    fit = max(fits, key=lambda each: each.composition)
    return (
        f"; compositions of a cell differ by {100 * math.sqrt(fit.composition):.1f}\u202f% (sd), with "
        f"{fit.freedom[0]:.0f} degrees of freedom"
    )


def about(panel: tuple[object, ...]) -> str:
    """A panel in words: 'bert, fp32, batch 8'."""
    workload, precision, *rest = panel
    more = [f"batch {each}" if isinstance(each, int) else f"{each[0]} {each[1]}" for each in rest]  # type: ignore[index]
    return ", ".join([str(workload), str(precision), *more])


def _cell(states: CellStates, place: int) -> str:
    cell = states.cells[place]
    return f"{cell.configuration.name} (batch {cell.batch})"


def _value(prices: RoundPrices, place: int) -> str:
    """The value of a cell with its interval, where it was measured."""
    states, design = prices.states, prices.states.design
    if design is None or not states.measured[place]:
        return "not measured"
    at = states.in_design[place]
    value, low, high = (float(each[at]) for each in design.locations()[0].bounds())
    said, between = (
        f"{wording.rate(value)}\u202f{prices.matrix.metric.unit}".rstrip(),
        wording.between(low, high, wording.rate),
    )
    if not math.isfinite(low):
        return f"{said} (one run, no interval)"
    if not math.isfinite(float(design.variances.alone.variance[at])):
        return f"{said} ({between} from run to run, on one composition)"
    return f"{said} (95\u202f% interval {between})"


def _of_panel(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices) -> str:
    states, form = evidence.states, evidence.question.form
    if form == "comparison":
        return _comparison(evidence, panel, prices)
    if not panel.cells.size:
        return "every cell failed."
    if not panel.named.size:
        return "nothing measured yet."
    names = ", ".join(_cell(states, int(each)) for each in panel.named)
    if form == "best":
        names = f"{names}, {_value(prices, int(panel.named[0]))}"
    if panel.cells.size == 1:
        return f"{names}; nothing else competes." if panel.answered >= 0 else f"{names}; all others failed."
    if panel.answered < 0:
        return f"{names}, {'leads' if form == 'best' else 'so far'}. {_lacking(evidence, panel, prices)}"
    return f"{names}; {_bound(evidence, panel)}{_beside(evidence, panel, prices)}." if form == "best" else f"{names}."


def _beside(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices) -> str:
    """The cell with the best measured mean, where that is not the one that is named."""
    here = panel.cells[evidence.states.measured[panel.cells] > 0]
    best = int(here[np.argmax(evidence.estimates.measured[here])])
    if best == panel.named[0]:
        return ""
    return f"; the best mean that was measured is that of {_cell(evidence.states, best)}, {_value(prices, best)}"


def _bound(evidence: QuestionEvidence, panel: QuestionPanel) -> str:
    """How much worse than others the named cell may be; what was not measured is expected to be worse at most."""
    pairs, slack = panel.pairs, tolerance(evidence.question)
    both = evidence.states.measured[pairs.other] > 0
    said = []
    if both.any():
        most = float(np.minimum(pairs.asks * pairs.error - pairs.difference, slack)[both].max())
        worse = f"at most {-100 * math.expm1(-most):.1f}\u202f% below any other one that was measured"
        said.append("no other one that was measured is better" if most <= 0 else worse)
    if count := int((~both).sum()):
        said.append(
            f"{count} not measured, and not expected to be better by more than {evidence.question.within_pct:g}\u202f%"
        )
    return "; ".join(said)


def _comparison(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices) -> str:
    question, pairs = evidence.question, panel.pairs
    first, second = question.first, question.second
    if panel.answered == NOTHING:
        return f"{first} or {second} failed or runs out of memory, so that there is nothing to compare."
    if not (evidence.states.measured[panel.named] > 0).all():
        return "not measured yet."
    ratio, half = float(pairs.difference[0]), float(pairs.asks[0] * pairs.error[0])
    low, high = (100 * math.expm1(ratio + side * min(half, _WIDEST)) for side in (-1, 1))
    bounds = (
        wording.between(low, high, wording.percent) if half < _WIDEST else "with too few compositions for an interval"
    )
    interval = f"{wording.percent(100 * math.expm1(ratio))}, {bounds}"
    return {
        0: f"{first} is better than {second} ({interval}).",
        1: f"{first} is worse than {second} ({interval}).",
        2: f"{first} and {second} differ by less than {question.within_pct:g}\u202f% ({interval}).",
    }.get(panel.answered) or f"{first} against {second}: {interval}. {_decided_by(needed(evidence, panel, prices))}"


def _lacking(evidence: QuestionEvidence, panel: QuestionPanel, prices: RoundPrices) -> str:
    """The candidates that the named cell is not told from, the nearest first, and what would tell them apart."""
    pairs, more = panel.pairs.take(~panel.pairs.passes), needed(evidence, panel, prices)
    order = np.argsort((pairs.difference - pairs.least) / np.maximum(pairs.error, 1e-12), kind="stable")
    rivals = dict.fromkeys(
        int(at) for n in order for at in (pairs.other[n], pairs.better[n]) if at not in panel.named[:1]
    )
    near = [at for at in rivals if more is None or at in more.cells] or list(rivals)
    said = [f"{_cell(evidence.states, at)}, {_value(prices, at)}" for at in near[:_NAMED]]
    if left := len(rivals) - len(said):
        said.append(f"{left} more")
    subject = "It is" if evidence.question.form == "best" else "They are"
    measured = np.minimum(evidence.states.measured[pairs.better], evidence.states.measured[pairs.other])
    own = np.isinf(pairs.asks) & (measured > 1)
    told = _OWN_HOSTS if own.any() else _decided_by(more)
    return f"{subject} not shown to be as good as {_list(said)}. {told}"


def _list(said: Sequence[str]) -> str:
    return "; ".join(said[:-1]) + (" and " if len(said) > 1 else "") + said[-1]


def _decided_by(more: Needed | None) -> str:
    """What would decide a panel: '7 more compositions (3 device-hours) would decide it'."""
    if more is None:
        return "No number of compositions is expected to decide it."
    cost = f", about {wording.number(more.cost)} device-hours" if math.isfinite(more.cost) else ""
    return (
        f"{wording.plural(more.compositions, 'more composition')} ({more.each} of each candidate{cost}) would decide it, if means "
        "stay as they are."
    )

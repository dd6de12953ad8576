"""The next round of leases that a question needs, or the statement that ends it; in words: the answer, or what it lacks and what
would decide it, and what that rests on. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from campaign import wording
from campaign.documents.rounds import ChosenLease
from campaign.errors import ConfigError
from campaign.insight.until.cell_states import CellStates, PricedMatrix
from campaign.insight.until.evidence import NOTHING, QuestionEvidence, QuestionPanel
from campaign.insight.until.question import Question
from campaign.insight.until.rounds import Needed, choose, needed
from campaign.tables.io import Tables

MOST_CELLS = 2000
"""More cells than these are not weighed against each other at once."""
_WIDEST = math.log(10)
_NAMED = 4
_OWN_HOSTS = (
    "Some ran on hosts that no other one used, so the hosts may differ. Compositions on common hosts would decide it."
)


@dataclass(frozen=True)
class Decision:
    """What follows from what has been measured.

    stop: nothing more is to be measured. decided: whether the question is answered. statement: in words. answers: of each panel,
    those that are shown first. rests_on: what the statement rests on, a sentence each. next: the leases of the next round,
    empty with `stop`. reasons: why these, a sentence each. device_hours: expected of what has been measured;
    whole_device_hours: of all cells that the question is about; None where they are unknown.
    """

    stop: bool
    decided: bool
    statement: str
    answers: tuple[str, ...]
    rests_on: tuple[str, ...]
    next: tuple[ChosenLease, ...]
    reasons: tuple[str, ...]
    device_hours: float | None
    whole_device_hours: float | None


def decide(
    question: Question, matrix: PricedMatrix, tables: Tables | None, prior: Mapping[str, float] | None = None
) -> Decision:
    """What to measure next, or that no more is needed. tables: None where nothing was measured.

    prior: what another model expects of cells, by id: logarithms of the metric, up to a constant. ConfigError for a question
    about too many cells.
    """
    asked = len({cell.id for lease in matrix.leases for cell in lease.cells if question.beside(cell)})
    if asked > MOST_CELLS:
        raise ConfigError(
            f"--until: '{question.text}' is about {asked:,} cells; at most {MOST_CELLS:,} are weighed against each "
            'other: narrow it, as with "for workload == ..."'
        )
    evidence = QuestionEvidence(question, matrix, tables, prior)
    chosen, states = choose(evidence), evidence.states
    costs = (states.spent, states.whole) if states.known else (None, None)
    reasons = tuple(f"{lease.lease}: {wording.plural(len(lease.cells), 'cell')}, {why}." for lease, why in chosen)
    said = _statement(evidence, stop=not chosen), _answers(evidence), _rests_on(evidence)
    return Decision(not chosen, evidence.decided, *said, tuple(lease for lease, _ in chosen), reasons, *costs)


def _statement(evidence: QuestionEvidence, *, stop: bool) -> str:
    """Whether the question is answered; where it is not and no more is measured, why, and what would decide it."""
    text, left = evidence.question.text, evidence.states.left
    if not any(panel.cells.size for panel in evidence.panels):
        return f"Not decided: {text}: every cell that it is about failed or runs out of memory."
    if evidence.decided:
        return f"Decided: {text} (95\u202f% confidence)."
    head = f"{text}; shown for {evidence.answered.sum()} of {wording.count(len(evidence.panels))}."
    if not stop:
        return f"Not known yet: {head}"
    if any(left[panel.cells].any() for panel in evidence.panels if panel.answered < 0):
        return f"Not decided: {head} No more is measured, since what is left is not expected to decide it."
    return f"Not decided: {head} Nothing is left to measure."


def _answers(evidence: QuestionEvidence) -> tuple[str, ...]:
    """A sentence for each panel, those that are shown first: its answer, or what leads and what is not told from it."""
    order = np.argsort(~evidence.answered, kind="stable")
    say = _comparison if evidence.question.form == "comparison" else _named
    return tuple(f"{about(evidence.states.panels[at])}: {say(evidence, evidence.panels[at])}" for at in order)


def _rests_on(evidence: QuestionEvidence) -> tuple[str, ...]:
    """A sentence for each thing that the statement rests on."""
    states, of, plural = evidence.states, evidence.estimates, wording.plural
    asked = states.panel >= 0
    there = asked & (states.measured > 0)
    hours = f", {100 * states.spent / states.whole:.0f}\u202f% of device-hours with composing" if states.whole else ""
    spread = ""
    if (of.freedom > 0).any():
        at = np.argmax(np.where(of.freedom > 0, of.composition / of.more, 0.0))
        sd = 100 * math.sqrt(of.composition[at] / of.more[at])
        spread = (
            f"; compositions of a cell differ by {sd:.1f}\u202f% (sd), with {of.freedom[at]:.0f} degrees of freedom"
        )
    elif there.any():
        spread = "; each composed once, so that nothing tells how much compositions differ"
    found = [
        f"{wording.count(there.sum())} of {wording.count(asked.sum())} cells measured, {wording.count(states.composed)} of "
        f"{plural(states.compositions, 'composition')} made{hours if states.known else ''}{spread}."
    ]
    if states.beside:
        found.append(
            f"{plural(states.beside, 'composition')} of other configurations, for how much compositions differ."
        )
    for which, why in (
        (states.fails & states.ran, "{} failed on every composition that was tried, and does not compete."),
        (
            states.fails & ~states.ran,
            "{} was not run, as a smaller batch ran out of memory there, and does not compete.",
        ),
        (
            ~states.fails & (states.failed > 0),
            "{} failed on one composition, which counts only once another one shows it.",
        ),
    ):
        if count := int((which & asked).sum()):
            said = why if count == 1 else why.replace(" was ", " were ").replace("does", "do")
            found.append(said.format(plural(count, "cell")))
    others = np.concatenate([panel.pairs.other[panel.pairs.passes] for panel in evidence.panels])
    left_out = np.unique(others[states.measured[others] == 0]).astype(int)
    if left_out.size:
        like = f"{'the model of a step and ' if of.informed else ''}cells like them"
        doubt = 100 * float(np.median(np.sqrt(of.doubt[left_out, left_out])))
        found.append(
            f"{plural(left_out.size, 'cell')} not measured, because of what is expected of them from {like}; cells deviate "
            f"from that by {doubt:.1f}\u202f% (sd)."
        )
    if evidence.question.form != "comparison" and there.any():
        count = sum(panel.candidates for panel in evidence.panels)
        found.append(
            f"The error of 5\u202f% is divided over the {plural(count, 'cell')} that could be named, and over looks: most of it "
            "is left for the last composition."
        )
    if not states.known:
        found.append(f"Durations are unknown; {len(states.done)} of {states.planned.sum()} compositions of cells.")
    return tuple(found)


def about(panel: tuple[object, ...]) -> str:
    """A panel in words: 'bert, fp32, batch 8'."""
    workload, precision, *rest = panel
    more = [f"batch {each}" if isinstance(each, int) else f"{each[0]} {each[1]}" for each in rest]  # type: ignore[index]
    return ", ".join([str(workload), str(precision), *more])


def _cell(states: CellStates, place: int) -> str:
    """A cell with its value and the interval of that, where it was measured."""
    cell, design = states.cells[place], states.design
    name = f"{cell.configuration.name} (batch {cell.batch})"
    if design is None or not states.measured[place]:
        return f"{name}, not measured"
    at = states.in_design[place]
    value, low, high = (float(each[at]) for each in design.locations()[0].bounds())
    said = f"{name}, " + f"{wording.rate(value)}\u202f{states.matrix.metric.unit}".rstrip()
    if not math.isfinite(low):
        return f"{said} (one run, no interval)"
    between = wording.between(low, high, wording.rate)
    if not math.isfinite(float(design.variances.alone.variance[at])):
        return f"{said} ({between} from run to run, on one composition)"
    return f"{said} (95\u202f% interval {between})"


def _named(evidence: QuestionEvidence, panel: QuestionPanel) -> str:
    """What is named as the best or on the frontier."""
    states, best = evidence.states, evidence.question.form == "best"
    if not panel.cells.size:
        return "every cell failed."
    if not panel.named.size:
        return "nothing measured yet."
    names = _cell(states, int(panel.named[0]))
    if not best:
        of = [states.cells[at] for at in panel.named]
        names = ", ".join(f"{cell.configuration.name} (batch {cell.batch})" for cell in of)
    if panel.cells.size == 1:
        return f"{names}; nothing else competes." if panel.answered >= 0 else f"{names}; all others failed."
    if panel.answered < 0:
        return f"{names}, {'leads' if best else 'so far'}. {_lacking(evidence, panel)}"
    if not best:
        return f"{names}."
    here = panel.cells[states.measured[panel.cells] > 0]
    top = int(here[np.argmax(evidence.estimates.measured[here])])
    beside = f"; the best mean that was measured is that of {_cell(states, top)}" if top != panel.named[0] else ""
    return f"{names}; {_bound(evidence, panel)}{beside}."


def _bound(evidence: QuestionEvidence, panel: QuestionPanel) -> str:
    """How much worse than others the named cell may be; what was not measured is expected to be worse at most."""
    pairs, question, said = panel.pairs, evidence.question, []
    both = evidence.states.measured[pairs.other] > 0
    if both.any():
        most = float(np.minimum(pairs.asks * pairs.error - pairs.difference, question.tolerance)[both].max())
        worse = f"at most {-100 * math.expm1(-most):.1f}\u202f% below any other one that was measured"
        said.append("no other one that was measured is better" if most <= 0 else worse)
    if count := int((~both).sum()):
        said.append(f"{count} not measured, and not expected to be better by more than {question.within_pct:g}\u202f%")
    return "; ".join(said)


def _comparison(evidence: QuestionEvidence, panel: QuestionPanel) -> str:
    question, pairs = evidence.question, panel.pairs
    first, second = question.first, question.second
    if panel.answered == NOTHING:
        return f"{first} or {second} failed or runs out of memory, so that there is nothing to compare."
    if not (evidence.states.measured[panel.named] > 0).all():
        return "not measured yet."
    ratio, half = float(pairs.difference[0]), float(pairs.asks[0] * pairs.error[0])
    low, high = (100 * math.expm1(ratio + side * min(half, _WIDEST)) for side in (-1, 1))
    known = wording.between(low, high, wording.percent)
    bounds = known if half < _WIDEST else "with too few compositions for an interval"
    interval = f"{wording.percent(100 * math.expm1(ratio))}, {bounds}"
    return {
        0: f"{first} is better than {second} ({interval}).",
        1: f"{first} is worse than {second} ({interval}).",
        2: f"{first} and {second} differ by less than {question.within_pct:g}\u202f% ({interval}).",
    }.get(panel.answered) or f"{first} against {second}: {interval}. {_decided_by(needed(evidence, panel))}"


def _lacking(evidence: QuestionEvidence, panel: QuestionPanel) -> str:
    """The candidates that the named cell is not told from, the nearest first, and what would tell them apart."""
    states, pairs, more = evidence.states, panel.pairs.take(~panel.pairs.passes), needed(evidence, panel)
    order = np.argsort((pairs.difference - pairs.least) / pairs.error, kind="stable")
    sides = [int(at) for n in order for at in (pairs.other[n], pairs.better[n])]
    rivals = list(dict.fromkeys(at for at in sides if at not in panel.named[:1]))
    near = [at for at in rivals if more is None or at in more.cells] or rivals
    said = [_cell(states, at) for at in near[:_NAMED]]
    if left := len(rivals) - len(said):
        said.append(f"{left} more")
    subject = "It is" if evidence.question.form == "best" else "They are"
    own = np.isinf(pairs.asks) & (np.minimum(states.measured[pairs.better], states.measured[pairs.other]) > 1)
    told = _OWN_HOSTS if own.any() else _decided_by(more)
    listed = " and ".join(filter(None, ["; ".join(said[:-1]), said[-1]]))
    return f"{subject} not shown to be as good as {listed}. {told}"


def _decided_by(more: Needed | None) -> str:
    """What would decide a panel: '7 more compositions (3 device-hours) would decide it'."""
    if more is None:
        return "No number of compositions is expected to decide it."
    cost = f", about {wording.number(more.cost)} device-hours" if math.isfinite(more.cost) else ""
    many = wording.plural(more.compositions, "more composition")
    return f"{many} ({more.each} of each candidate{cost}) would decide it, if means stay as they are."

"""The section 'What to build' in words for the template, from a recommendation document. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from campaign import wording
from campaign.errors import RecordError, first_problem
from campaign.files import load_json, read_text
from campaign.insight.recommend.document import UNKNOWN, RecommendationAnswer, RecommendationDocument, RecommendedChoice
from campaign.report.intervals_column import Interval, column
from campaign.report.templates import downloads

# Of the first objective, and of each other one; a campaign of many workloads and precisions has more in its recommendation.json.
ANSWERS_ON_PAGE = 4
ANSWERS_TO_OTHERS = 1
FILE = "recommendation.json"

# Of each answer of the first objective, beside the one to build.
_BESIDE_ON_PAGE = 2
_DRAWN = "Against the first, %"
_HEADINGS = ("For", "Build", _DRAWN, "Gives (95\u202f% interval)", "Known by")


def read_recommendation(directory: Path) -> dict[str, Any] | None:
    """The document in a directory, its picture under `svg`, with `downloads`; None where there is none. RecordError where that
    is unreadable."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        return {"document": load_json(path), "svg": read_text(path.with_suffix(".svg")), **downloads(path)}
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); delete it and run again") from error


def recommended(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the template lays out; None without a recommendation. RecordError when the document is not as it should be."""
    if given is None:
        return None
    try:
        document = RecommendationDocument.model_validate(given["document"])
    except ValidationError as error:
        raise RecordError(f"recommendation: {first_problem(error)}") from error
    by_objective: dict[str, list[RecommendationAnswer]] = {}
    for answer in document.answers:
        by_objective.setdefault(answer.objective, []).append(answer)
    chosen = [
        answers[: ANSWERS_TO_OTHERS if place else ANSWERS_ON_PAGE]
        for place, answers in enumerate(by_objective.values())
    ]
    shown = [answer for answers in chosen for answer in answers]
    listed = {id(answer): _listed(answer, answers is chosen[0]) for answers in chosen for answer in answers}
    several = any(len(each) > 1 for each in listed.values())
    known = [each for choices in listed.values() for each in choices if each]
    unknown = bool(known) and all(each.memory == "unknown" for each in known)
    objectives = [
        {
            "objective": answers[0].objective,
            "meaning": f"{answers[0].meaning[:1].upper()}{answers[0].meaning[1:]}",
            "answers": [
                {"about": answer.about, "rows": _rows(answer, listed[id(answer)], not unknown)} for answer in answers
            ],
            "summary": _in_summary(answers[0]),
        }
        for answers in chosen
    ]
    return {
        "basis": document.basis,
        "constraints": document.constraints,
        "headings": [heading for heading in _HEADINGS if several or heading != _DRAWN],
        "objectives": objectives,
        "drawn": column([_against_first(each, answer) for answer in shown for each in listed[id(answer)]])
        if several
        else None,
        # What is beyond the measured is alike for all answers, so that one is said.
        "remarks": [
            *[_beyond(answer.about, answer.beyond) for answer in shown if answer.beyond][:1],
            *(["Whether batches fit into memory is unknown."] if unknown else []),
        ],
        "left_out": len(document.answers) - len(shown),
        "figure": document.figure,
    }


def _listed(answer: RecommendationAnswer, beside: bool) -> list[RecommendedChoice | None]:
    """What has a row of its own: the choice, and `beside` it what may be as good; None for no answer."""
    return [answer.choice, *(answer.alternatives[:_BESIDE_ON_PAGE] if answer.choice and beside else ())]


def _rows(
    answer: RecommendationAnswer, listed: Sequence[RecommendedChoice | None], memory: bool
) -> list[tuple[str, str, str, str]]:
    """What to build, what it gives, how that is known, and the interval that is drawn: the choice first, then what may be as
    good. memory: whether to say of which it is not known that it fits."""
    if answer.choice is None:
        return [("no answer", "", f"{answer.sentences[0].rstrip('.')}", "")]
    rows = []
    for choice in filter(None, listed):
        first = choice is answer.choice
        build = f"{'' if first else 'or '}{choice.configuration}, {choice.batches}"
        gives = choice.bare if first else choice.short.removeprefix(f"{choice.configuration} ")
        known = ("tied within 5\u202f%, " if choice in answer.tied else "") + _known_by(choice, memory)
        drawn = _against_first(choice, answer)
        against = wording.with_interval(drawn.value, drawn.low, drawn.high, wording.percent, none="no interval")
        rows.append((build, gives, known, against))
    more = answer.tied_total + answer.not_told_apart_total - len(rows) + 1
    unknown = "" if answer.comparable else f"; ties {UNKNOWN}"
    build, gives, known, against = rows[-1]
    last = f"{known}{f'; {more} more may be as good' if more > 0 else ''}{unknown}"
    return [*rows[:-1], (build, gives, last, against)]


def _against_first(choice: RecommendedChoice | None, answer: RecommendationAnswer) -> Interval:
    """A choice with its interval in percent of the one to build."""
    if choice is None or answer.choice is None or not answer.choice.value:
        return Interval(math.nan, math.nan, math.nan)
    bounds = (choice.value, *(math.nan if each is None else each for each in (choice.low, choice.high)))
    value, low, high = (100 * (each / answer.choice.value - 1) for each in bounds)
    return Interval(value, low, high, "better" if choice is answer.choice else "")


def _in_summary(answer: RecommendationAnswer) -> str:
    """One answer as finished sentences: of ties only what there is to say."""
    choice, beyond = answer.choice, ""
    if answer.beyond:
        beyond = f" Beyond what was measured, {answer.beyond.short} is predicted."
    if choice is None:
        return f"{answer.sentences[0].rstrip('.')}.{beyond}"
    others = answer.tied_total + answer.not_told_apart_total
    tied = f"; {wording.plural(others, 'other')} may be as good" if others else ""
    return (
        f"for {answer.about}, {choice.configuration} ({choice.words}), {choice.batches}: {choice.bare}, "
        f"{_known_by(choice, memory=True)}{tied if answer.comparable else f'; ties {UNKNOWN}'}.{beyond}"
    )


def _beyond(about: str, choice: RecommendedChoice) -> str:
    return (
        f"Beyond what was measured, for {about}: {choice.configuration} ({choice.words}), {choice.batches}, is predicted to give "
        f"{choice.bare}. Extrapolated: {choice.extrapolated}."
    )


def _known_by(choice: RecommendedChoice, memory: bool) -> str:
    runs = sum(each.runs for each in choice.evidence)
    how = f"predicted from {wording.plural(choice.evidence_total, 'cell')}"
    if choice.measured:
        how = choice.how if choice.replayed else f"measured, {wording.plural(runs, 'run')}{choice.compositions()}"
    return how if choice.memory == "fits" or not memory else f"{how}; whether the batch fits into memory is unknown"

"""The section 'What to build' in words for the template, from a recommendation document. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from campaign.analysis.recommend.document import (
    SCHEMA,
    UNKNOWN,
    RecommendationAnswer,
    RecommendationDocument,
    RecommendedChoice,
)
from campaign.common import wording
from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import load_json
from campaign.report.intervals_column import Interval, column

# Of the first objective, and of each other one; a campaign of many workloads and precisions has more in its recommendation.json.
ANSWERS_ON_PAGE = 4
ANSWERS_TO_OTHERS = 1
FILE = "recommendation.json"

# Of each answer of the first objective, beside the one to build.
_BESIDE_ON_PAGE = 2
_DRAWN = "Against the first, %"
_HEADINGS = ("For", "Build", _DRAWN, "Gives (95\u202f% interval)", "Known by")


def read_recommendation(directory: Path) -> RecommendationDocument | None:
    """Return the document in a directory; None if there is none, or an earlier version wrote it.

    Raises RecordError if it is unreadable.
    """
    path = directory / FILE
    if not path.exists():
        return None
    try:
        found = load_json(path)
        if found.get("schema_version") != SCHEMA:
            return None
        return RecommendationDocument.model_validate(found)
    except ValidationError as error:
        raise RecordError(f"{path}: {format_first_error(error)}; delete it and run again") from error
    except (OSError, ValueError, AttributeError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); delete it and run again") from error


def recommendation_section(document: RecommendationDocument) -> dict[str, Any]:
    """Return what the template lays out."""
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
    objectives = [
        {
            "objective": answers[0].objective,
            "meaning": f"{answers[0].meaning[:1].upper()}{answers[0].meaning[1:]}",
            "answers": [{"about": answer.about, "rows": _rows(answer, listed[id(answer)])} for answer in answers],
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
        "left_out": len(document.answers) - len(shown),
        "unmeasured": document.unmeasured,
    }


def _listed(answer: RecommendationAnswer, beside: bool) -> list[RecommendedChoice | None]:
    """Return the choices that get a row, which are the best one and, if requested, its alternatives; None for no answer."""
    return [answer.choice, *(answer.alternatives[:_BESIDE_ON_PAGE] if answer.choice and beside else ())]


def _rows(answer: RecommendationAnswer, listed: Sequence[RecommendedChoice | None]) -> list[tuple[str, str, str, str]]:
    """Format each choice as configuration, value, evidence and drawn interval, the best one first."""
    if answer.choice is None:
        return [("no answer", "", f"{answer.sentences[0].rstrip('.')}", "")]
    rows = []
    for choice in filter(None, listed):
        first = choice is answer.choice
        build = f"{'' if first else 'or '}{choice.configuration}, {choice.batches}"
        gives = choice.bare if first else choice.short.removeprefix(f"{choice.configuration} ")
        known = ("tied within 5\u202f%, " if choice in answer.tied else "") + _known_by(choice)
        drawn = _against_first(choice, answer)
        against = wording.format_with_interval(
            drawn.value, drawn.low, drawn.high, wording.format_percent, no_interval_text="no interval"
        )
        rows.append((build, gives, known, against))
    more = answer.tied_total + answer.not_told_apart_total - len(rows) + 1
    unknown = "" if answer.comparable else f"; ties {UNKNOWN}"
    build, gives, known, against = rows[-1]
    last = f"{known}{f'; {more} more may be as good' if more > 0 else ''}{unknown}"
    return [*rows[:-1], (build, gives, last, against)]


def _against_first(choice: RecommendedChoice | None, answer: RecommendationAnswer) -> Interval:
    """Return the interval of a choice in percent of the best one."""
    if choice is None or answer.choice is None or not answer.choice.value:
        return Interval(math.nan, math.nan, math.nan)
    bounds = (choice.value, *(math.nan if each is None else each for each in (choice.low, choice.high)))
    value, low, high = (100 * (each / answer.choice.value - 1) for each in bounds)
    return Interval(value, low, high, "better" if choice is answer.choice else "")


def _in_summary(answer: RecommendationAnswer) -> str:
    """Summarise one answer in sentences."""
    choice = answer.choice
    if choice is None:
        return f"{answer.sentences[0].rstrip('.')}."
    others = answer.tied_total + answer.not_told_apart_total
    tied = f"; {wording.pluralize(others, 'other')} may be as good" if others else ""
    return (
        f"for {answer.about}, {choice.built}: {choice.bare}, {_known_by(choice)}"
        f"{tied if answer.comparable else f'; ties {UNKNOWN}'}."
    )


def _known_by(choice: RecommendedChoice) -> str:
    return f"measured, {wording.pluralize(sum(each.runs for each in choice.evidence), 'run')}{choice.compositions()}"

"""The section 'What to build' in words for the template, from a recommendation document. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from campaign import wording
from campaign.errors import RecordError, first_problem
from campaign.files import load_json, read_text
from campaign.insight.recommend.document import UNKNOWN, RecommendationAnswer, RecommendationDocument, RecommendedChoice
from campaign.report.templates import downloads

# Of the first objective, and of each other one; a campaign of many workloads and precisions has more in its recommendation.json.
ANSWERS_ON_PAGE = 4
ANSWERS_TO_OTHERS = 1
FILE = "recommendation.json"

_HEADINGS = ("For", "Build", "Gives (95\u202f% interval)")


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
    objectives = [
        _objective(answers, ANSWERS_TO_OTHERS if place else ANSWERS_ON_PAGE)
        for place, answers in enumerate(by_objective.values())
    ]
    return {
        "basis": document.basis,
        "constraints": document.constraints,
        "objectives": objectives,
        "left_out": len(document.answers) - sum(len(each["rows"]) for each in objectives),
        "figure": document.figure,
    }


def _objective(answers: Sequence[RecommendationAnswer], most: int) -> dict[str, Any]:
    shown = answers[:most]
    return {
        "objective": answers[0].objective,
        "meaning": f"{answers[0].meaning[:1].upper()}{answers[0].meaning[1:]}",
        "headings": _HEADINGS,
        "rows": [_row(answer) for answer in shown],
        "summary": [_in_summary(answer) for answer in answers[:1]],
        # One of them: the others of an objective are alike.
        "beyond": [_beyond(answer.about, answer.beyond) for answer in shown if answer.beyond][:1],
    }


def _row(answer: RecommendationAnswer) -> tuple[str, str, str]:
    choice = answer.choice
    if choice is None:
        return answer.about, "no answer", f"{answer.sentences[0].rstrip('.')}{_further(answer)}"
    tied = answer.beside() if answer.tied_total + answer.not_told_apart_total else ""
    gives = "; ".join(filter(None, [choice.bare, _known_by(choice), tied])) + _further(answer)
    return answer.about, f"{choice.configuration}, {choice.batches}", gives


def _in_summary(answer: RecommendationAnswer) -> str:
    """One answer as a finished sentence: of ties only what there is to say."""
    choice = answer.choice
    if choice is None:
        return f"{answer.sentences[0].rstrip('.')}{_further(answer)}."
    tied = f"; {answer.beside()}" if answer.tied_total + answer.not_told_apart_total else ""
    return (
        f"{answer.about}: {choice.configuration} ({choice.words}), {choice.batches}: {choice.bare}, {_known_by(choice)}"
        f"{tied if answer.comparable else f'; ties {UNKNOWN}'}{_further(answer)}."
    )


def _further(answer: RecommendationAnswer) -> str:
    if answer.beyond is None:
        return ""
    return f"; a {'better' if answer.choice else 'possible'} one is extrapolated, below"


def _beyond(about: str, choice: RecommendedChoice) -> str:
    return f"{about}: {_built(choice)}, {choice.bare}. Extrapolated: {choice.extrapolated}."


def _built(choice: RecommendedChoice) -> str:
    return f"{choice.configuration}: {choice.words}; {choice.batches}"


def _known_by(choice: RecommendedChoice) -> str:
    runs = sum(each.runs for each in choice.evidence)
    how = (
        f"{choice.how}, {wording.plural(runs, 'run')}{choice.compositions()}"
        if choice.measured
        else f"predicted from {wording.plural(choice.evidence_total, 'cell')}, not measured"
    )
    return how if choice.memory == "fits" else f"{how}; whether the batch fits into memory is unknown"

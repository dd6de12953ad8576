"""Texts of the section 'What to build', from a recommendation document. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from campaign.analysis.recommend.document import (
    SCHEMA,
    UNKNOWN_TIES,
    RecommendationAnswer,
    RecommendationDocument,
    RecommendedChoice,
)
from campaign.common import wording
from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import load_json
from campaign.report.intervals_column import Interval, build_intervals_column

# Further answers, in campaigns with very many workloads and options, are only in recommendation.json.
MAX_ANSWERS = 100
RECOMMENDATION_FILE = "recommendation.json"

# Maximum number of alternatives to each answer of the first objective.
_MAX_ALTERNATIVES = 2
_INTERVAL_HEADING = "Difference from the first (%)"
_EVIDENCE_HEADING = "Evidence"
_UNKNOWN_TIES_SENTENCE = "Ties are unknown where each configuration was measured on one composition."
_HEADINGS = ("For", "Build", _INTERVAL_HEADING, "Result (95\u202f% interval)", _EVIDENCE_HEADING)


def read_recommendation(directory: Path) -> RecommendationDocument | None:
    """Read the document in a directory. Return None if there is none, or if an earlier version wrote it.

    Raises RecordError if it is unreadable.
    """
    path = directory / RECOMMENDATION_FILE
    if not path.exists():
        return None
    try:
        document = load_json(path)
        if document.get("schema_version") != SCHEMA:
            return None
        return RecommendationDocument.model_validate(document)
    except ValidationError as error:
        raise RecordError(f"{path}: {format_first_error(error)}; delete it and run again") from error
    except (OSError, ValueError, AttributeError) as error:
        raise RecordError(f"{path} cannot be read ({error}); delete it and run again") from error


def build_recommendation_section(document: RecommendationDocument) -> dict[str, Any]:
    """Build the template context of the section on recommendations."""
    by_objective: dict[str, list[RecommendationAnswer]] = {}
    for answer in document.answers[:MAX_ANSWERS]:
        by_objective.setdefault(answer.objective, []).append(answer)
    answer_groups = list(by_objective.values())
    shown_answers = [answer for answers in answer_groups for answer in answers]
    choices_by_answer = {
        id(answer): _list_choices(answer, answers is answer_groups[0])
        for answers in answer_groups
        for answer in answers
    }
    has_alternatives = any(len(item) > 1 for item in choices_by_answer.values())
    evidence = Counter(_describe_evidence(choice) for item in choices_by_answer.values() for choice in item if choice)
    common_evidence = evidence.most_common(1)[0][0] if evidence else ""
    units_by_objective = {
        answers[0].objective: _find_common_unit(item for answer in answers for item in choices_by_answer[id(answer)])
        for answers in answer_groups
    }
    subject = "Unless stated otherwise, each" if len(evidence) > 1 else "Each"
    rows_by_answer = {
        id(answer): _format_rows(
            answer, choices_by_answer[id(answer)], common_evidence, units_by_objective[answer.objective]
        )
        for answer in shown_answers
    }
    has_evidence = any(row[2] for rows in rows_by_answer.values() for row in rows)
    objectives = [
        {
            "objective": answers[0].objective,
            "meaning": f"{answers[0].meaning[:1].upper()}{answers[0].meaning[1:]}",
            "unit": units_by_objective[answers[0].objective],
            "answers": [{"about": answer.about, "rows": rows_by_answer[id(answer)]} for answer in answers],
            "summary": _summarize_answer(answers[0]),
        }
        for answers in answer_groups
    ]
    return {
        "basis": [
            *document.basis[:1],
            *(f"{subject} was measured in {text}." for text in [common_evidence] if text),
            *(
                [_UNKNOWN_TIES_SENTENCE]
                if any(answer.choice and not answer.comparable for answer in shown_answers)
                else ()
            ),
        ],
        "constraints": document.constraints,
        "headings": [
            heading
            for heading in _HEADINGS
            if (has_alternatives or heading != _INTERVAL_HEADING) and (has_evidence or heading != _EVIDENCE_HEADING)
        ],
        "has_evidence": has_evidence,
        "objectives": objectives,
        "drawn": build_intervals_column(
            [
                _compute_relative_interval(item, answer)
                for answer in shown_answers
                for item in choices_by_answer[id(answer)]
            ]
        )
        if has_alternatives
        else None,
        "left_out": len(document.answers) - len(shown_answers),
        "unmeasured": document.unmeasured,
    }


def _find_common_unit(choices: Iterable[RecommendedChoice | None]) -> str:
    """Return the unit of the values of an objective; empty for ratios, and if choices have different units."""
    values = [choice.value_text.partition(" (")[0].partition("\u202f") for choice in choices if choice]
    units = {"" if number.endswith("×") else unit for number, _, unit in values}
    return units.pop() if len(units) == 1 else ""


def _list_choices(answer: RecommendationAnswer, with_alternatives: bool) -> list[RecommendedChoice | None]:
    """List the choices to show as rows: the best one (None if unanswered) and, if requested, alternatives."""
    return [answer.choice, *(answer.alternatives[:_MAX_ALTERNATIVES] if answer.choice and with_alternatives else ())]


def _format_rows(
    answer: RecommendationAnswer, choices: Sequence[RecommendedChoice | None], common_evidence: str, unit: str
) -> list[tuple[str, str, str, str]]:
    """Format each choice as configuration, value, evidence and drawn interval, the best one first.

    `common_evidence` and the unit are left out, because they are stated once.
    """
    if answer.choice is None:
        return [("no answer", "", f"{answer.sentences[0].rstrip('.')}", "")]
    rows = []
    for choice in filter(None, choices):
        first = choice is answer.choice
        build = f"{'' if first else 'or '}{choice.configuration}, {choice.batches}"
        result_text = choice.value_text.replace(f"\u202f{unit}", "", 1) if unit else choice.value_text
        tie = "tied within 5\u202f%" if choice in answer.tied else ""
        evidence = _describe_evidence(choice)
        evidence_text = ", ".join(filter(None, (tie, "" if evidence == common_evidence else evidence)))
        interval = _compute_relative_interval(choice, answer)
        interval_text = wording.format_with_interval(
            interval.value, interval.low, interval.high, wording.format_percent, no_interval_text="no interval"
        )
        rows.append((build, result_text, evidence_text, interval_text))
    unlisted_count = answer.tied_total + answer.not_told_apart_total - len(rows) + 1
    unlisted = f"{unlisted_count} more may be as good" if unlisted_count > 0 else ""
    build, result_text, evidence_text, interval_text = rows[-1]
    return [*rows[:-1], (build, result_text, "; ".join(filter(None, (evidence_text, unlisted))), interval_text)]


def _compute_relative_interval(choice: RecommendedChoice | None, answer: RecommendationAnswer) -> Interval:
    """Compute the interval of a choice in percent of the best choice."""
    if choice is None or answer.choice is None or not answer.choice.value:
        return Interval(math.nan, math.nan, math.nan)
    bounds = (choice.value, *(math.nan if bound is None else bound for bound in (choice.low, choice.high)))
    value, low, high = (100 * (bound / answer.choice.value - 1) for bound in bounds)
    return Interval(value, low, high, "better" if choice is answer.choice else "")


def _summarize_answer(answer: RecommendationAnswer) -> str:
    """Summarise one answer in sentences."""
    choice = answer.choice
    if choice is None:
        return f"{answer.sentences[0].rstrip('.')}."
    tied_count = answer.tied_total + answer.not_told_apart_total
    ties_note = f"; {wording.pluralize(tied_count, 'other')} may be as good" if tied_count else ""
    return (
        f"{choice.full_name} reaches {choice.value_text} for {answer.about}"
        f"{ties_note if answer.comparable else f'; ties {UNKNOWN_TIES}'}."
    )


def _describe_evidence(choice: RecommendedChoice) -> str:
    return (
        f"{wording.pluralize(sum(evidence.runs for evidence in choice.evidence), 'run')}{choice.format_compositions()}"
    )

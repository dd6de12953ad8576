"""The race for the best configuration in words, for the page and the terminal."""

from __future__ import annotations

from typing import Any

from campaign.common.wording import format_rate, format_with_interval, pluralize
from campaign.spec.race import RaceCandidate, RaceDocument, WorkloadRace

HEADINGS = ("Configuration", "Compositions", "Why it is not measured further")


def describe_race(race: RaceDocument) -> dict[str, Any]:
    """Return the race as the page shows it: a line, a sentence per workload, and a row per configuration that was dropped."""
    return {
        "line": describe_progress(race),
        "sentences": [_describe_workload(item, race) for item in race.workloads],
        "headings": HEADINGS,
        "rows": [
            (
                item.configuration,
                _format_composition_count(race, item.configuration),
                f"It {_describe_exclusion(race)}: {item.reason}.",
            )
            for item in race.dropped
        ],
    }


def format_race_lines(race: RaceDocument) -> list[str]:
    """Return the race as lines of a terminal."""
    dropped_lines = (
        f"{item.configuration}: not measured further after "
        f"{_format_composition_count(race, item.configuration)} compositions, since it "
        f"{_describe_exclusion(race)}: {item.reason}."
        for item in race.dropped
    )
    return [
        describe_progress(race),
        *(f"  {item}" for item in (*(_describe_workload(item, race) for item in race.workloads), *dropped_lines)),
    ]


def describe_progress(race: RaceDocument) -> str:
    """Return how far the race is, and how many compositions it has measured."""
    measured_count, planned_count = sum(race.compositions.values()), race.compositions_planned
    count = f"{measured_count} of {pluralize(planned_count, 'composition')} ({100 * measured_count / planned_count:.0f}\u202f%)"
    goal = f"The best configuration within {race.within_pct:g}\u202f%"
    if not race.ended:
        return (
            f"{goal}: block {max(race.compositions.values())} of {race.blocks} is next; with it, {count} are measured."
        )
    if race.decided:
        return f"{goal} is known, after {count}."
    undecided_count = sum(not workload.best for workload in race.workloads)
    return f"{goal} is not known for {undecided_count} of {pluralize(len(race.workloads), 'workload')}, after {count}."


def _describe_workload(race: WorkloadRace, document: RaceDocument) -> str:
    """Return the answer for a workload, or the candidates that are left."""
    if not race.candidates:
        return f"{race.about}: every configuration failed."
    if not (race.best or document.ended):
        return f"{race.about}: not decided; {pluralize(len(race.candidates), 'candidate')}."
    candidates_by_name = {
        candidate.configuration: _describe_candidate(candidate, document) for candidate in race.candidates
    }
    best = candidates_by_name.pop(race.best, "")
    other_candidates = "; ".join(candidates_by_name.values())
    within_text = f"within {document.within_pct:g}\u202f% of the best"
    if not best:
        return f"{race.about}: not decided. Candidates: {other_candidates}. {race.note}".rstrip()
    if not candidates_by_name:
        return f"{race.about}: {best}, is the best. No other configuration is {within_text}."
    return f"{race.about}: {best}, is {within_text}. Others that may be {within_text}: {other_candidates}."


def _describe_candidate(candidate: RaceCandidate, document: RaceDocument) -> str:
    """Return a configuration with its best batch, its mean and its interval."""
    if candidate.value is None:
        return f"{candidate.configuration} (no valid run)"
    low, high = (float("nan") if bound is None else bound for bound in (candidate.low, candidate.high))
    value = format_with_interval(candidate.value, low, high, format_rate)
    composition_count = _format_composition_count(document, candidate.configuration)
    return (
        f"{candidate.configuration} (batch {candidate.batch}, "
        f"{composition_count} compositions), {value} {document.unit}"
    ).rstrip()


def _format_composition_count(race: RaceDocument, configuration: str) -> str:
    return f"{race.compositions[configuration]} of {race.blocks}"


def _describe_exclusion(race: RaceDocument) -> str:
    return f"cannot be within {race.within_pct:g}\u202f% of the best"

"""Description of the race for the best configuration, for the page and the terminal."""

from __future__ import annotations

from typing import Any

from campaign.common.wording import format_rate, format_with_interval, pluralize
from campaign.spec.race import RaceCandidate, RaceDocument, WorkloadRace

HEADINGS = ("Configuration", "Compositions", "Reason for exclusion")


def describe_race(race: RaceDocument) -> dict[str, Any]:
    """Build the page's texts on the race: a line, a sentence per workload, and a row per excluded configuration."""
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
    """Format the race as lines for a terminal."""
    dropped_lines = (
        f"{item.configuration} was excluded after {_format_composition_count(race, item.configuration)} compositions, because it "
        f"{_describe_exclusion(race)}: {item.reason}."
        for item in race.dropped
    )
    return [
        describe_progress(race),
        *(f"  {item}" for item in (*(_describe_workload(item, race) for item in race.workloads), *dropped_lines)),
    ]


def describe_progress(race: RaceDocument) -> str:
    """Describe the progress of the race, with the number of measured compositions."""
    measured_count, planned_count = sum(race.compositions.values()), race.compositions_planned
    count = f"{measured_count} of {pluralize(planned_count, 'composition')} ({100 * measured_count / planned_count:.0f}\u202f%)"
    goal = f"The best configuration within {race.within_pct:g}\u202f%"
    if not race.ended:
        block = f"{max(race.compositions.values())} of {race.blocks}"
        return f"{goal} is not known yet. After the next block ({block}), {count} are measured."
    if race.is_decided:
        return f"{goal} is known after {count}."
    undecided_count = sum(not workload.best for workload in race.workloads)
    return f"{goal} is unknown for {undecided_count} of {pluralize(len(race.workloads), 'workload')} after {count}."


def _describe_workload(race: WorkloadRace, document: RaceDocument) -> str:
    """Describe the answer for a workload, or its remaining candidates."""
    if not race.candidates:
        return f"{race.about}: every configuration failed."
    if not (race.best or document.ended):
        return f"{race.about}: not decided yet, with {pluralize(len(race.candidates), 'candidate')}."
    candidates_by_name = {
        candidate.configuration: _describe_candidate(candidate, document) for candidate in race.candidates
    }
    best = candidates_by_name.pop(race.best, "")
    other_candidates = "; ".join(candidates_by_name.values())
    within_text = f"within {document.within_pct:g}\u202f% of the best"
    if not best:
        return f"{race.about}: not decided. The candidates are {other_candidates}. {race.note}".rstrip()
    if not candidates_by_name:
        return f"{race.about}: the best configuration is {best}. No other one is {within_text}."
    return f"{race.about}: {within_text} is {best}. These may be {within_text} as well: {other_candidates}."


def _describe_candidate(candidate: RaceCandidate, document: RaceDocument) -> str:
    """Describe a configuration with its mean and interval, its best batch, and its number of compositions."""
    if candidate.value is None:
        return f"{candidate.configuration} (no valid run)"
    low, high = (float("nan") if bound is None else bound for bound in (candidate.low, candidate.high))
    value = format_with_interval(candidate.value, low, high, format_rate)
    composition_count = _format_composition_count(document, candidate.configuration)
    value = f"{value} {document.unit}".rstrip()
    return f"{candidate.configuration} with {value} (batch {candidate.batch}, {composition_count} compositions)"


def _format_composition_count(race: RaceDocument, configuration: str) -> str:
    return f"{race.compositions[configuration]} of {race.blocks}"


def _describe_exclusion(race: RaceDocument) -> str:
    return f"cannot be within {race.within_pct:g}\u202f% of the best"

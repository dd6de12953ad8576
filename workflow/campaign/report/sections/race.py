"""The race for the best configuration in words, for the page and the terminal."""

from __future__ import annotations

from typing import Any

from campaign.common.wording import format_rate, format_with_interval, pluralize
from campaign.spec.race import RaceCandidate, RaceDocument, WorkloadRace

HEADINGS = ("Configuration", "Compositions", "Why it is not measured further")


def describe_race(race: RaceDocument) -> dict[str, Any]:
    """Return the race as the page shows it: a line, a sentence per workload, and a row per configuration that was dropped."""
    return {
        "line": state_race(race),
        "sentences": [_describe_workload(each, race) for each in race.workloads],
        "headings": HEADINGS,
        "rows": [
            (each.configuration, _composed(race, each.configuration), f"It {_cannot_be(race)}: {each.reason}.")
            for each in race.dropped
        ],
    }


def race_lines(race: RaceDocument) -> list[str]:
    """Return the race as lines of a terminal."""
    dropped = (
        f"{each.configuration}: not measured further after {_composed(race, each.configuration)} compositions, since it "
        f"{_cannot_be(race)}: {each.reason}."
        for each in race.dropped
    )
    return [
        state_race(race),
        *(f"  {each}" for each in (*(_describe_workload(each, race) for each in race.workloads), *dropped)),
    ]


def state_race(race: RaceDocument) -> str:
    """Return how far the race is, and how many compositions it has measured."""
    measured, planned = sum(race.compositions.values()), race.compositions_planned
    count = f"{measured} of {pluralize(planned, 'composition')} ({100 * measured / planned:.0f}\u202f%)"
    goal = f"The best configuration within {race.within_pct:g}\u202f%"
    if not race.ended:
        return (
            f"{goal}: block {max(race.compositions.values())} of {race.blocks} is next; with it, {count} are measured."
        )
    if race.decided:
        return f"{goal} is known, after {count}."
    undecided = sum(not each.best for each in race.workloads)
    return f"{goal} is not known for {undecided} of {pluralize(len(race.workloads), 'workload')}, after {count}."


def _describe_workload(race: WorkloadRace, whole: RaceDocument) -> str:
    """Return the answer for a workload, or the candidates that are left."""
    if not race.candidates:
        return f"{race.about}: every configuration failed."
    if not (race.best or whole.ended):
        return f"{race.about}: not decided; {pluralize(len(race.candidates), 'candidate')}."
    named = {each.configuration: _describe_candidate(each, whole) for each in race.candidates}
    best = named.pop(race.best, "")
    others = "; ".join(named.values())
    within = f"within {whole.within_pct:g}\u202f% of the best"
    if not best:
        return f"{race.about}: not decided. Candidates: {others}. {race.note}".rstrip()
    if not named:
        return f"{race.about}: {best}, is the best. No other configuration is {within}."
    return f"{race.about}: {best}, is {within}. Others that may be {within}: {others}."


def _describe_candidate(candidate: RaceCandidate, whole: RaceDocument) -> str:
    """Return a configuration with its best batch, its mean and its interval."""
    if candidate.value is None:
        return f"{candidate.configuration} (no valid run)"
    low, high = (float("nan") if bound is None else bound for bound in (candidate.low, candidate.high))
    value = format_with_interval(candidate.value, low, high, format_rate)
    composed = _composed(whole, candidate.configuration)
    return (
        f"{candidate.configuration} (batch {candidate.batch}, {composed} compositions), {value} {whole.unit}".rstrip()
    )


def _composed(race: RaceDocument, configuration: str) -> str:
    return f"{race.compositions[configuration]} of {race.blocks}"


def _cannot_be(race: RaceDocument) -> str:
    return f"cannot be within {race.within_pct:g}\u202f% of the best"

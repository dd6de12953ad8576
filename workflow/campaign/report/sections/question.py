"""What a campaign was asked, what was chosen in each round to answer it, and the answer: in words for page and terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from campaign.documents.rounds import RoundDocument
from campaign.wording import number, plural

_NAMED, _REASONS = 4, 6
_WHY_NOT = {True: "and the whole matrix is measured", False: "and no further lease is expected to decide it"}
_HEADINGS = ("Round", "Leases", "Chosen because", "Device-hours of the round", "Known when it began")


def questions(asked: Sequence[Sequence[RoundDocument]]) -> list[dict[str, Any]]:
    """For each question: its words, a row a round, the answer as far as it is known, and what that cost."""
    return [
        {
            "question": rounds[-1].question,
            "where": rounds[-1].where or "",
            "table": {"headings": _HEADINGS, "rows": [_row(each) for each in rounds if each.leases]},
            "answer": answer(rounds),
            "state": state(rounds[-1]),
            "cost": cost(rounds),
        }
        for rounds in asked
    ]


def answer(rounds: Sequence[RoundDocument]) -> list[str]:
    """The statement, the answers, and what they rest on."""
    last = rounds[-1]
    return [last.statement, *last.answers, *last.rests_on]


def leading(last: RoundDocument) -> list[str]:
    """The first answers, for the terminal between rounds."""
    return [f"  {each}" for each in _first(last.answers, _REASONS)]


def state(last: RoundDocument) -> str:
    """Whether anything is still to be measured for it."""
    return {
        "": f"not answered yet, in round {last.number}",
        "answered": "answered",
        "budget": f"the budget of {last.budget} is spent",
        "undecided": f"not decided, {_WHY_NOT[last.leases_measured == last.leases_matrix]}",
    }[last.end]


def cost(rounds: Sequence[RoundDocument]) -> str:
    """What was measured for it, and its share of all cells that it is about."""
    last, count = rounds[-1], len(rounds) - 1
    share = ""
    if last.device_hours is not None and last.device_hours_matrix:
        used, whole = last.device_hours, last.device_hours_matrix
        share = f", {number(used)} of {number(whole)} device-hours of all cells that it is about ({100 * used / whole:.0f} %)"
    rounds_made = f", in {plural(count, 'round')}" if count else ""
    return f"{last.leases_measured} of {plural(last.leases_matrix, 'lease')} measured{share}{rounds_made}"


def chosen(one: RoundDocument) -> str:
    """A round in words: 'round 2: 3 leases (1x1-local--c2, ..), about 0.3 device-hours', and below it why."""
    about = "" if one.round_device_hours is None else f", about {number(one.round_device_hours)} device-hours"
    return "\n  ".join([f"round {one.number}: {_leases(one)}{about}", *_reasons(one)])


def _leases(one: RoundDocument) -> str:
    names = [each.lease for each in one.leases]
    return f"{plural(len(names), 'lease')} ({', '.join(_first(names, _NAMED))})"


def _reasons(one: RoundDocument) -> list[str]:
    return _first(one.reasons, _REASONS)


def _first(texts: Sequence[str], most: int) -> list[str]:
    """The texts, or the first of them and how many more there are."""
    return list(texts) if len(texts) <= most + 1 else [*texts[:most], f"and {len(texts) - most} more"]


def _row(one: RoundDocument) -> tuple[object, ...]:
    return (one.number, _leases(one), " ".join(_reasons(one)), number(one.round_device_hours), one.statement)


def terminal_lines(documents: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """The questions of a context document, for the summary on one screen."""
    lines = []
    for each in documents:
        rounds = [RoundDocument.model_validate(one) for one in each]
        about = f" (where {rounds[-1].where})" if rounds[-1].where else ""
        lines += [f"\nUntil {rounds[-1].question}{about}: {state(rounds[-1])}"]
        lines += [f"  {sentence}" for sentence in (*answer(rounds), cost(rounds))]
        lines += [] if rounds[-1].end else ["  the same command again measures what is missing, or the next round"]
    return lines

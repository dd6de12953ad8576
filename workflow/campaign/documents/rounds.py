"""Rounds of a campaign that is measured until a question is answered: what was known, and which leases came next (`round/1`).

A round is written once, before it is measured, as questions/<number>-<key>/round-<number>.json of the results. The key follows
from the question and the cells that it is about. Each round names the hash of the one before it, so that those of two results
directories that were merged are never read as one history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from campaign.documents.fields import ClosedModel
from campaign.errors import RecordError, first_problem
from campaign.files import content_hash, require_json, write_once
from campaign.paths import Results

CellIn = tuple[str, int]
"""A cell, by its id, in one composition."""
ROUND_SCHEMA: Literal["round/1"] = "round/1"


class ChosenLease(ClosedModel):
    """A lease of a round, with the cells that are measured on it: all their runs in this composition."""

    lease: str
    """Name of the lease."""
    configuration: str
    """Configuration that is composed."""
    composition: int
    """Which composition of the configuration it is, from 1."""
    cells: tuple[str, ...]
    """Ids of the cells."""
    device_hours: float | None = None
    """What it was expected to cost when it was chosen; null where that was unknown."""


class RoundDocument(ClosedModel):
    """What was known when a round began, and which leases it measures. The last one of a question has none."""

    schema_version: Literal["round/1"] = ROUND_SCHEMA
    """Version of this format."""
    question: str
    """The question."""
    where: str | None = None
    """Expression that selects the cells that it is about."""
    matrix: str
    """Hash of these cells with their repetitions and compositions."""
    number: int = Field(ge=1)
    """Number of the round, from 1."""
    after: str = ""
    """Hash of the round before it; empty for the first one."""
    seed: int
    """Seed of the protocol, by which leases are ordered."""
    known: str
    """Hash of the runs that it was chosen by."""
    runs_known: int
    """How many these are."""
    end: Literal["", "answered", "budget", "undecided"] = ""
    """Why no further lease is measured; empty where one is."""
    statement: str
    """Whether the question is answered, in words."""
    answers: tuple[str, ...] = ()
    """The answer for each workload with its precision, or what leads and what is not shown."""
    rests_on: tuple[str, ...] = ()
    """What that rests on."""
    leases: tuple[ChosenLease, ...] = ()
    """Leases to measure."""
    reasons: tuple[str, ...] = ()
    """Why these."""
    budget: str = ""
    """What may be spent on the question; empty where nothing was said."""
    round_device_hours: float | None = None
    """Device-hours that this round is expected to take; null where they are unknown."""
    round_hours: float | None = None
    """Hours that it is expected to take, from start to end."""
    device_hours: float | None = None
    """Device-hours of what was measured before it, with composing, as expected; null where they are unknown."""
    device_hours_matrix: float | None = None
    """Device-hours of all cells that the question is about, with composing, as expected; null where they are unknown."""
    leases_measured: int = 0
    """Leases of the matrix with a run that has a record."""
    leases_matrix: int = 0
    """Leases of the whole matrix."""

    @property
    def digest(self) -> str:
        return content_hash(self.model_dump(mode="json"))


class Rounds(tuple[RoundDocument, ...]):
    """The rounds of one question in order; empty before the first one."""

    __slots__ = ()

    @property
    def chosen(self) -> frozenset[CellIn]:
        """Cells with the compositions that they were chosen to be measured on."""
        return frozenset((cell, each.composition) for one in self for each in one.leases for cell in each.cells)

    @property
    def key(self) -> str:
        """Which rounds belong together."""
        return question_key(self[0].question, self[0].where, self[0].matrix)

    @property
    def why_left_out(self) -> str:
        """Why a run that was not chosen has no record."""
        return f"not needed so far to know: {self[-1].question}"


def question_key(question: str, where: str | None, matrix: str) -> str:
    return content_hash([" ".join(question.replace("%", " %").split()), where, matrix], 12)


def kept_rounds(results: Results, question: str, where: str | None, matrix: str) -> Rounds:
    """The rounds of a question that were begun, in order. RecordError names one that is damaged."""
    return rounds_of_key(results, question_key(question, where, matrix))


def rounds_of_key(results: Results, key: str) -> Rounds:
    """The rounds that have this key."""
    found = sorted(results.questions.glob(f"*-{key}"))
    return _rounds_in(found[0]) if found else Rounds()


def all_rounds(results: Results) -> Iterator[Rounds]:
    """The rounds of every question that was asked, in the order of asking."""
    for directory in sorted(results.questions.glob("*-*")):
        if rounds := _rounds_in(directory):
            yield rounds


def keep_rounds(results: Results, rounds: Rounds) -> None:
    """Write those that are not written yet."""
    there = sorted(results.questions.glob("*"))
    directory = next((path for path in there if path.name.endswith(f"-{rounds.key}")), None)
    if directory is None:
        directory = results.questions / f"{len(there) + 1:02d}-{rounds.key}"
    for each in rounds:
        text = json.dumps(each.model_dump(mode="json"), indent=1, ensure_ascii=False)
        write_once(directory / _name(each.number), f"{text}\n".encode())


def _rounds_in(directory: Path) -> Rounds:
    rounds: list[RoundDocument] = []
    while (path := directory / _name(len(rounds) + 1)).exists():
        remedy = "restore it from an archive, or remove its directory to ask the question anew: records are kept"
        try:
            one = RoundDocument.model_validate(require_json(path, remedy))
        except ValidationError as error:
            raise RecordError(f"{path}: {first_problem(error, 'the file')}; {remedy}") from error
        if one.after != (rounds[-1].digest if rounds else ""):
            break  # merged results: this round was chosen after another one
        rounds.append(one)
    return Rounds(rounds)


def _name(number: int) -> str:
    return f"round-{number:02d}.json"

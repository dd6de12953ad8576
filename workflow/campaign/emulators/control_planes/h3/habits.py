"""How a box behaves: what was recorded of two Falcon 4005 boxes, and switches for what nobody has published.

Every rate has its count beside it; the times are the package's recordings (`campaign.spec.operation_times`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.spec.operation_times import Operation, OperationTimes, Timed, published_times

READS = 210
WRONG_LISTS: dict[str, int] = {"lacking": 5, "more": 3, "swapped": 3}
"""Of `READS` while two others polled: every device of one host lacks; one of another host is shown besides, or in place of one."""
BROKEN_READS: dict[str, int] = {"eof": 4, "shell": 1}
"""Of the same reads: the connection ended before any answer; a shell's complaint stood in place of a header."""
ATTACHES, LOST_ATTACHES = 251, 1
SESSION_ATTACHES = 34
"""Attaches of one box in one recorded session, on average: so rarely does the state of a box change."""

FreePort = Literal["empty", "no_key", "no_record", "dash"]
RefusalForm = Literal["false", "true", "empty", "status", "text"]


class BoxOptions(BaseModel):
    """What is emulated. Where a description says unknown, nobody has published what a real box does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factor: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="of the recorded times; 0: at once, 1: as recorded"
    )
    seed: int = 0
    attached: Literal["none", "all"] = Field(
        default="none", description="devices at first: as in the rack, or those that are free evenly on the host ports"
    )
    answers: Literal["recorded", "true", "false"] = Field(
        default="recorded", description="to an attach that works: as in recorded sessions, or always the same"
    )
    disturbed: Literal["overlap", "always", "never"] = Field(
        default="overlap",
        description="reads that may go wrong: those that overlap another request, all as if others polled, none",
    )
    rate: Annotated[float, Field(ge=0)] = Field(default=1.0, description="of wrong and broken answers; 1: as recorded")
    free_port: FreePort = Field(default="empty", description="Host_Port# of a device that nobody has; unknown")
    refusal: RefusalForm = Field(default="false", description="the answer to what cannot be done; unknown")
    strange: bool = Field(default=False, description="records and keys beyond what is known, in any order; unknown")
    status: int = Field(default=200, description="HTTP status of every answer; unknown, no client reads it")
    devices_max: int = Field(default=0, description="devices of a box that one host may have; 0: all; unknown")
    hosts_max: int = Field(
        default=0,
        description="hosts that may have devices of a box at one time, as in a mode that it was set to; 0: all",
    )
    renumber_after: int = Field(
        default=0, description="allocations after which a box gives its devices other Dev_GIDs; 0: never by itself"
    )


class Habits:
    """The state and the chance of one box. It resembles one recorded session of one box for a while, then another.

    number: of the box, from 0; of times that name a box only those of its own are used, where it has any.
    """

    def __init__(self, options: BoxOptions, number: int) -> None:
        self.options = options
        self.random = Random(f"{options.seed} {number}")
        self._times = {name: _values(name, str(number)) for name in ("detach", "read_back", "inventory")}
        self._mood = self._another()
        self._spoiled = False

    def _another(self) -> tuple[Timed, ...]:
        moods = _moods()
        return self.random.choices(moods, [len(mood) for mood in moods])[0]

    def attach(self) -> tuple[bool, float]:
        """What the box will say of its next attach, and the seconds that this takes."""
        if self.random.random() < 1 / SESSION_ATTACHES:
            self._mood = self._another()
        asked = self.options.answers
        answer = self.random.choice(self._mood).answer if asked == "recorded" else asked
        same = tuple(one.seconds for one in self._mood if one.answer == answer)
        return answer == "true", self._unrounded(same or _attaches(answer))

    def seconds(self, operation: Operation) -> float:
        """What a detach takes, or the read after an attach (`read_back`), or any other read of one box (`inventory`)."""
        values = self._times[operation]
        if operation == "inventory":  # recorded for two boxes at the same time, of which the slower counts
            return values[int(self.random.random() ** 2 * len(values))]
        return self._unrounded(values)

    def _unrounded(self, values: Sequence[float]) -> float:
        """One of the values. The difference of two times in whole seconds is off by less than one."""
        value = self.random.choice(values)
        return value + self.random.triangular(-1, 1) if float(value).is_integer() else value

    def damage(self, overlapped: bool) -> str:
        """What goes wrong with a read: a key of WRONG_LISTS or BROKEN_READS, or nothing. The read after a wrong list is right."""
        told = self.options.disturbed
        kinds = WRONG_LISTS | BROKEN_READS
        spoiled, self._spoiled = self._spoiled, False
        if spoiled or not (told == "always" or (told == "overlap" and overlapped)):
            return ""
        if self.random.random() >= self.options.rate * sum(kinds.values()) / READS:
            return ""
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        self._spoiled = kind in WRONG_LISTS
        return kind

    def loses_attach(self) -> bool:
        """An attach whose answer breaks off; whether it was done is not recorded."""
        return self.options.disturbed != "never" and self.random.random() < self.options.rate * LOST_ATTACHES / ATTACHES


@cache
def _times() -> OperationTimes:
    return published_times("h3")


@cache
def _values(operation: Operation, box: str) -> tuple[float, ...]:
    """Sorted; of all boxes where none of them is this one."""
    found = [one for session in _times().sessions for one in session.operations if one.operation == operation]
    own = [one.seconds for one in found if one.box in ("", box)] if box in {one.box for one in found} else []
    return tuple(sorted(own or (one.seconds for one in found)))


@cache
def _attaches(answer: str) -> tuple[float, ...]:
    return tuple(_times().seconds("attach", answer=answer))


@cache
def _moods() -> tuple[tuple[Timed, ...], ...]:
    """The attaches of each box in each recorded session whose answers were logged."""
    moods: list[tuple[Timed, ...]] = []
    for session in _times().sessions:
        told = [one for one in session.operations if one.is_a("attach") and one.answer]
        moods += [tuple(one for one in told if one.box == box) for box in dict.fromkeys(one.box for one in told)]
    return tuple(moods)

"""Behaviour of a box: as recorded from two Falcon 4005 boxes, with options for unpublished behaviour.

Each rate is given with its count. The times are recordings that are part of the package (`campaign.spec.operation_times`).
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
"""Number of wrong lists in the recorded reads, while two other clients polled.

`lacking`: all devices of one host are missing. `more`: a device of another host is shown as well. `swapped`: it is shown instead.
"""
BROKEN_READS: dict[str, int] = {"eof": 4, "shell": 1}
"""Number of broken answers in the same reads.

`eof`: the connection ended without an answer. `shell`: an error message of a shell replaced a header.
"""
ATTACHES, LOST_ATTACHES = 251, 1
SESSION_ATTACHES = 34
"""Mean number of attaches of one box in one recorded session, after which its behaviour changes."""

FreePort = Literal["empty", "no_key", "no_record", "dash"]
RefusalForm = Literal["false", "true", "empty", "status", "text"]


class BoxOptions(BaseModel):
    """Options of the emulated boxes.

    "unknown" in a description means that the behaviour of a real box is not published.
    """

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
    """Random behaviour of one box. It follows one recorded session of one box for a while, then another."""

    def __init__(self, options: BoxOptions, number: int) -> None:
        """Create the behaviour of one box.

        Args:
            options: options of the boxes.
            number: number of the box, from 0. Only the recorded times of this box are used, if there are any.
        """
        self.options = options
        self.random = Random(f"{options.seed} {number}")
        self._times = {name: _values(name, str(number)) for name in ("detach", "read_back", "inventory")}
        self._mood = self._another()
        self._spoiled = False

    def _another(self) -> tuple[Timed, ...]:
        """Draw a recorded session at random, weighted by its number of attaches."""
        moods = _moods()
        return self.random.choices(moods, [len(mood) for mood in moods])[0]

    def attach(self) -> tuple[bool, float]:
        """Draw the answer of the box to its next attach, and the duration in seconds."""
        if self.random.random() < 1 / SESSION_ATTACHES:
            self._mood = self._another()
        asked = self.options.answers
        answer = self.random.choice(self._mood).answer if asked == "recorded" else asked
        same = tuple(one.seconds for one in self._mood if one.answer == answer)
        return answer == "true", self._unrounded(same or _attaches(answer))

    def seconds(self, operation: Operation) -> float:
        """Draw the duration (seconds) of an operation of one box.

        Operations: a detach, the read after an attach (`read_back`), or any other read (`inventory`).
        """
        values = self._times[operation]
        if operation == "inventory":  # the recorded time is that of the slower of two boxes, read at the same time
            return values[int(self.random.random() ** 2 * len(values))]
        return self._unrounded(values)

    def _unrounded(self, values: Sequence[float]) -> float:
        """Draw one of the durations (seconds).

        A difference of two times in whole seconds has an error below one second, which is drawn as well.
        """
        value = self.random.choice(values)
        return value + self.random.triangular(-1, 1) if float(value).is_integer() else value

    def damage(self, overlapped: bool) -> str:
        """Draw the damage to a read: a key of WRONG_LIST_COUNTS or BROKEN_READ_COUNTS, or "".

        The read after a wrong list is correct.
        """
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
        """Return True, at random, if the answer to the next attach is cut off.

        The recordings do not show if such an attach was done.
        """
        return self.options.disturbed != "never" and self.random.random() < self.options.rate * LOST_ATTACHES / ATTACHES


@cache
def _times() -> OperationTimes:
    """Load the recorded times of H3 boxes."""
    return published_times("h3")


@cache
def _values(operation: Operation, box: str) -> tuple[float, ...]:
    """Return the recorded durations (seconds) of an operation of a box, sorted.

    Durations of all boxes are used if there are none of this box.
    """
    found = [one for session in _times().sessions for one in session.operations if one.operation == operation]
    own = [one.seconds for one in found if one.box in ("", box)] if box in {one.box for one in found} else []
    return tuple(sorted(own or (one.seconds for one in found)))


@cache
def _attaches(answer: str) -> tuple[float, ...]:
    """Return the recorded durations (seconds) of attaches with this answer."""
    return tuple(_times().seconds("attach", answer=answer))


@cache
def _moods() -> tuple[tuple[Timed, ...], ...]:
    """Return the attaches of each box in each recorded session with logged answers."""
    moods: list[tuple[Timed, ...]] = []
    for session in _times().sessions:
        told = [one for one in session.operations if one.is_a("attach") and one.answer]
        moods += [tuple(one for one in told if one.box == box) for box in dict.fromkeys(one.box for one in told)]
    return tuple(moods)

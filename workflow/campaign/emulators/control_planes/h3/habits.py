"""Behaviour of a box: as recorded from two Falcon 4005 boxes, with options for unpublished behaviour.

Each rate is given with its count. The times are recordings that are part of the package (`campaign.spec.operation_times`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.spec.operation_times import Operation, OperationTime, OperationTimes, read_published_times

RECORDED_READS = 210
WRONG_LIST_COUNTS: dict[str, int] = {"lacking": 5, "more": 3, "swapped": 3}
"""Number of wrong lists in the recorded reads, while two other clients polled.

`lacking`: all devices of one host are missing. `more`: a device of another host is also shown. `swapped`: it is shown instead.
"""
BROKEN_READ_COUNTS: dict[str, int] = {"eof": 4, "shell": 1}
"""Number of broken answers in the same reads.

`eof`: the connection ended without an answer. `shell`: an error message of a shell replaced a header.
"""
RECORDED_ATTACHES, RECORDED_LOST_ATTACHES = 251, 1
MEAN_ATTACHES_PER_SESSION = 34
"""Mean number of attaches of one box in one recorded session, after which its behaviour changes."""

FreePort = Literal["empty", "no_key", "no_record", "dash"]
RefusalForm = Literal["false", "true", "empty", "status", "text"]


class BoxOptions(BaseModel):
    """Options of the emulated boxes.

    "unknown" in a description means that the behaviour of a real box is not published.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    factor: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="factor by which the recorded times are multiplied; 0: immediate, 1: as recorded"
    )
    seed: int = 0
    attached: Literal["none", "all"] = Field(
        default="none",
        description="initial attachments: `none` leaves devices free, `all` spreads them over the host ports",
    )
    answers: Literal["recorded", "true", "false"] = Field(
        default="recorded", description="answers to a successful attach: as in recorded sessions, or always the same"
    )
    disturbed: Literal["overlap", "always", "never"] = Field(
        default="overlap",
        description="reads that may fail: those that overlap another request, all of them, or none",
    )
    rate: Annotated[float, Field(ge=0)] = Field(
        default=1.0, description="rate of wrong and broken answers, relative to the recordings"
    )
    free_port: FreePort = Field(default="empty", description="form of Host_Port# for a device without a host (unknown)")
    refusal: RefusalForm = Field(default="false", description="answer to an impossible request (unknown)")
    strange: bool = Field(default=False, description="additional records and keys, in any order (unknown)")
    status: int = Field(default=200, description="HTTP status of every answer (unknown, because no client reads it)")
    devices_max: int = Field(default=0, description="maximum number of devices of a box per host; 0: all (unknown)")
    hosts_max: int = Field(
        default=0,
        description="maximum number of hosts that have devices of a box at one time, as set by its mode; 0: all",
    )
    renumber_after: int = Field(
        default=0, description="number of allocations after which a box changes its Dev_GIDs; 0: never"
    )


class BoxBehaviour:
    """Random behaviour of one box. It follows one recorded session of one box for a while, then another."""

    def __init__(self, options: BoxOptions, number: int) -> None:
        """Create the behaviour of one box.

        Args:
            options: options of the boxes.
            number: number of the box, from 0. Only the recorded times of this box are used, if there are any.
        """
        self.options = options
        self.random = Random(f"{options.seed} {number}")
        self._times = {name: _list_durations_s(name, str(number)) for name in ("detach", "read_back", "inventory")}
        self._session_attaches = self._draw_session()
        self._last_list_was_wrong = False

    def _draw_session(self) -> tuple[OperationTime, ...]:
        """Draw a recorded session at random, weighted by its number of attaches."""
        sessions = _list_session_attaches()
        return self.random.choices(sessions, [len(mood) for mood in sessions])[0]

    def draw_attach(self) -> tuple[bool, float]:
        """Draw the answer of the box to its next attach, and the duration in seconds."""
        if self.random.random() < 1 / MEAN_ATTACHES_PER_SESSION:
            self._session_attaches = self._draw_session()
        configured_answers = self.options.answers
        answer = (
            self.random.choice(self._session_attaches).answer
            if configured_answers == "recorded"
            else configured_answers
        )
        matching_times_s = tuple(
            operation.seconds for operation in self._session_attaches if operation.answer == answer
        )
        return answer == "true", self._draw_unrounded_s(matching_times_s or _list_attach_durations_s(answer))

    def draw_duration_s(self, operation: Operation) -> float:
        """Draw the duration (seconds) of an operation of one box.

        Operations: a detach, the read after an attach (`read_back`), or any other read (`inventory`).
        """
        values = self._times[operation]
        if (
            operation == "inventory"
        ):  # The recorded time is that of the slower of two boxes that were read at the same time.
            return values[int(self.random.random() ** 2 * len(values))]
        return self._draw_unrounded_s(values)

    def _draw_unrounded_s(self, values: Sequence[float]) -> float:
        """Draw one of the durations (seconds).

        A difference of two times in whole seconds has an error below one second, which is also drawn.
        """
        value = self.random.choice(values)
        return value + self.random.triangular(-1, 1) if float(value).is_integer() else value

    def draw_damage(self, is_overlapped: bool) -> str:
        """Draw the damage to a read: a key of WRONG_LIST_COUNTS or BROKEN_READ_COUNTS, or "" for none.

        The read after a wrong list is correct.
        """
        disturbance = self.options.disturbed
        kinds = WRONG_LIST_COUNTS | BROKEN_READ_COUNTS
        was_wrong, self._last_list_was_wrong = self._last_list_was_wrong, False
        if was_wrong or not (disturbance == "always" or (disturbance == "overlap" and is_overlapped)):
            return ""
        if self.random.random() >= self.options.rate * sum(kinds.values()) / RECORDED_READS:
            return ""
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        self._last_list_was_wrong = kind in WRONG_LIST_COUNTS
        return kind

    def draw_lost_attach(self) -> bool:
        """Return True, at random, if the answer to the next attach is cut off.

        The recordings do not show whether such an attach took effect.
        """
        return (
            self.options.disturbed != "never"
            and self.random.random() < self.options.rate * RECORDED_LOST_ATTACHES / RECORDED_ATTACHES
        )


@cache
def _load_recorded_times() -> OperationTimes:
    """Load the recorded times of H3 boxes."""
    return read_published_times("h3")


@cache
def _list_durations_s(operation: Operation, box: str) -> tuple[float, ...]:
    """Return the recorded durations (seconds) of an operation of a box, sorted.

    If there are none for this box, those of all boxes are used.
    """
    operations = [
        timed_operation
        for session in _load_recorded_times().sessions
        for timed_operation in session.operations
        if timed_operation.operation == operation
    ]
    box_durations_s = (
        [timed_operation.seconds for timed_operation in operations if timed_operation.box in ("", box)]
        if box in {timed_operation.box for timed_operation in operations}
        else []
    )
    return tuple(sorted(box_durations_s or (timed_operation.seconds for timed_operation in operations)))


@cache
def _list_attach_durations_s(answer: str) -> tuple[float, ...]:
    """Return the recorded durations (seconds) of attaches with this answer."""
    return tuple(_load_recorded_times().select_seconds("attach", answer=answer))


@cache
def _list_session_attaches() -> tuple[tuple[OperationTime, ...], ...]:
    """Return the attaches of each box in each recorded session with logged answers."""
    sessions: list[tuple[OperationTime, ...]] = []
    for session in _load_recorded_times().sessions:
        answered_attaches = [
            operation for operation in session.operations if operation.matches("attach") and operation.answer
        ]
        sessions += [
            tuple(operation for operation in answered_attaches if operation.box == box)
            for box in dict.fromkeys(operation.box for operation in answered_attaches)
        ]
    return tuple(sessions)

"""Recorded durations of fabric operations as data (`operation-times/1`).

A session is one continuous recording, such as one log file or the leases of one campaign. Operations of one session resemble each
other more than those of different sessions, so sessions are kept apart. In the file, an operation is a row

    [operation, device kind, box, answer, seconds, group]

in which "" stands for an unknown value. Operations of the same group belong to one recomposition, in the order in which they ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import yaml

from campaign.common.errors import ConfigError
from campaign.common.files import read_bytes

SCHEMA = "operation-times/1"

Operation = Literal["detach", "attach", "inventory", "read_back", "visible", "request", "rest"]
"""`inventory`: reading all boxes; `read_back`: reading one box after an attach; `visible`: from attachment until the host sees the
device; `request`: change of a fabric that does not compose device by device; `rest`: time of composing outside of all
operations."""
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class OperationTime:
    """Duration of one operation.

    Attributes:
        answer: answer of the control plane to an attach ("true" or "false"), which may be wrong.
    """

    operation: Operation
    device: str
    box: str
    answer: str
    seconds: float
    group: int = 0

    def matches(self, operation: Operation, device: str = "", box: str = "", answer: str = "") -> bool:
        """Return whether the operation matches all filters that are not empty."""
        filters = ((device, self.device), (box, self.box), (answer, self.answer))
        return self.operation == operation and all(
            not requested_value or requested_value == actual_value for requested_value, actual_value in filters
        )


@dataclass(frozen=True, slots=True)
class RecordingSession:
    """Operations of one continuous recording, in order.

    Attributes:
        began: start of the recording.
        resolution_s: resolution of its clock, which is 1 if only whole seconds were printed.
    """

    name: str
    operations: tuple[OperationTime, ...]
    began: str = ""
    resolution_s: float = 0.001

    def group_operations(self) -> list[tuple[OperationTime, ...]]:
        """Group the operations into recompositions, in order."""
        groups: dict[int, list[OperationTime]] = {}
        for operation in self.operations:
            groups.setdefault(operation.group, []).append(operation)
        return [tuple(group) for group in groups.values()]


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Recorded operation times of one kind of fabric.

    Attributes:
        source: description of the recording.
        address: address from which the recording is available.
    """

    fabric: str
    source: str
    address: str
    sessions: tuple[RecordingSession, ...]

    def __len__(self) -> int:
        return sum(len(session.operations) for session in self.sessions)

    def select_seconds(self, operation: Operation, device: str = "", box: str = "", answer: str = "") -> list[float]:
        """Return the durations (s) of the operations that match all filters that are not empty."""
        return [
            operation_time.seconds
            for session in self.sessions
            for operation_time in session.operations
            if operation_time.matches(operation, device, box, answer)
        ]

    def quantile(self, share: float, operation: Operation, device: str = "", answer: str = "") -> float | None:
        """Return a quantile over all sessions by linear interpolation, or None if the operation was never timed.

        Args:
            share: probability of the quantile, from 0 to 1.
            operation: operation to select.
            device: kind of device to select, or '' for all.
            answer: answer to select, or '' for all.
        """
        values = sorted(self.select_seconds(operation, device, "", answer))
        if not values:
            return None
        position = share * (len(values) - 1)
        low = math.floor(position)
        high = min(low + 1, len(values) - 1)
        return values[low] + (position - low) * (values[high] - values[low])

    def scale_times(self, factor: float) -> OperationTimes:
        """Return the recording with all times multiplied by a factor."""
        if factor == 1:
            return self
        scaled_times = self._map_operations(lambda each: replace(each, seconds=factor * each.seconds))
        return replace(scaled_times, source=f"{self.source}, times {factor:g}")

    def double_readings(self, pause_s: float) -> OperationTimes:
        """Return a recording in which every reading is repeated after a pause, for fabrics whose state is read twice."""
        extra_s = pause_s + (self.quantile(0.5, "inventory") or 0.0)

        def lengthen_reading(each: OperationTime) -> OperationTime:
            reading = each.operation in ("inventory", "read_back")
            return replace(each, seconds=each.seconds + extra_s) if reading else each

        return self._map_operations(lengthen_reading)

    def drop_device_kinds(self) -> OperationTimes:
        """Return the recording without device kinds, so that its times apply to devices of every kind."""
        return self._map_operations(lambda each: replace(each, device=""))

    def _map_operations(self, change: Callable[[OperationTime], OperationTime]) -> OperationTimes:
        sessions = (replace(each, operations=tuple(map(change, each.operations))) for each in self.sessions)
        return replace(self, sessions=tuple(sessions))

    def sample_seconds(self, random: Random, operation: Operation, device: str = "", answer: str = "") -> float:
        """Return one recorded duration (s) at random; 0 if the operation was never timed."""
        values = self.select_seconds(operation, device, "", answer) or self.select_seconds(operation, device)
        return random.choice(values) if values else 0.0

    def document(self) -> dict[str, Any]:
        """Return the recording as a JSON-serialisable document (see `from_document`)."""
        sessions = [
            {
                "session": s.name,
                "began": s.began,
                "resolution_s": s.resolution_s,
                "operations": [list(astuple(each)) for each in s.operations],
            }
            for s in self.sessions
        ]
        source = {"words": self.source, "address": self.address}
        return {"schema_version": SCHEMA, "fabric": self.fabric, "source": source, "sessions": sessions}


def from_document(document: Any, where: str = "operation times") -> OperationTimes:
    """Build a recording from its document. Raises ConfigError if the document is invalid."""
    try:
        if document["schema_version"] != SCHEMA:
            raise ValueError(f"schema_version is not {SCHEMA}")
        sessions = [
            RecordingSession(
                str(s["session"]), _parse_operations(s["operations"]), str(s["began"]), float(s["resolution_s"])
            )
            for s in document["sessions"]
        ]
        source = document["source"]
        return OperationTimes(str(document["fabric"]), str(source["words"]), str(source["address"]), tuple(sessions))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: not a valid file of operation times ({type(error).__name__}: {error}); "
            "`campaign fabric times SYSTEM` writes a valid one"
        ) from error


def _parse_operations(rows: Iterable[Sequence[Any]]) -> tuple[OperationTime, ...]:
    operations = []
    for operation, device, box, answer, seconds, group in rows:
        if operation not in OPERATIONS or not 0 <= float(seconds) < math.inf:
            raise ValueError(
                f"operation {operation!r} with {seconds} s is invalid; operations are: {', '.join(OPERATIONS)}"
            )
        operations.append(OperationTime(operation, str(device), str(box), str(answer), float(seconds), int(group)))
    return tuple(operations)


def read_times(path: Path) -> OperationTimes:
    """Read a site's own operation times from a YAML or JSON file. Raises ConfigError if it is invalid."""
    try:
        document = yaml.load(read_bytes(path), _Loader)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    return from_document(document, str(path))


def read_published_times(name: str) -> OperationTimes:
    """Read recordings that come with this package, such as `h3`. Raises ConfigError for an unknown name."""
    directory = files("campaign") / "fabrics" / "times"
    available_names = sorted(
        file.name.removesuffix(".yaml") for file in directory.iterdir() if file.name.endswith(".yaml")
    )
    if name not in available_names:
        raise ConfigError(f"no recorded times are called {name!r}; there are: {', '.join(available_names)}")
    text = (directory / f"{name}.yaml").read_text(encoding="utf-8")
    return from_document(yaml.load(text, _Loader), f"{name}.yaml")

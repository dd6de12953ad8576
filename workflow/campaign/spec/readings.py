"""What kept logs were read to say after their runs, beside the records, which stay as they were measured.

Layout: `readings/<when>-<hash>.json`, one document for each time that logs were read again; of a run, the newest one counts. A run
that is measured again does not take over the reading of the earlier one: it started at another time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from campaign.common.errors import ConfigError, format_first_error
from campaign.common.files import read_bytes, write_once
from campaign.common.paths import Results
from campaign.spec.fields import ClosedModel

READ_AGAIN = "log read again"
"""Flag of a run whose numbers are of a later reading of its log."""
RecordKey = Literal["status", "failure", "throughput_per_s", "step_times_s", "window_s", "metrics", "flags"]
"""Keys of a record that a reading takes the place of."""


def _without_requests(record: Any) -> Any:
    """Return the keys of a record without `requests`, which readings of earlier versions have."""
    return {key: value for key, value in record.items() if key != "requests"} if isinstance(record, dict) else record


class Reading(ClosedModel):
    """One run's log, read again."""

    started: Annotated[float, Field(description="as the record has it")]
    record: Annotated[
        dict[RecordKey, Any],
        BeforeValidator(_without_requests),
        Field(description="keys of the record, with the values that count from now on"),
    ]


class Readings(ClosedModel):
    """Logs of one results directory that were read at one time."""

    schema_version: Literal["readings/1"] = "readings/1"
    made: Annotated[float, Field(ge=0, lt=1e11, description="Unix seconds")]
    version: Annotated[str, Field(description="version of the program that read")]
    workloads: Annotated[
        dict[str, dict[str, Any]], Field(description="how logs of each workload were read: its parser")
    ]
    runs: Annotated[dict[str, Reading], Field(description="`<cell id>.<repetition>`: what was read")]

    @property
    def when(self) -> str:
        """'2026-11-24 01:30 UTC'."""
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.made))


def keep(results: Path, readings: Readings) -> Path:
    """Write a document of its own; gives its path. Its name is of its content, so that those of two archives do not meet."""
    content = readings.model_dump_json().encode() + b"\n"
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(readings.made))
    path = Results.from_directory(results).log_readings / f"{when}-{hashlib.sha256(content).hexdigest()[:8]}.json"
    write_once(path, content)
    return path


def all_readings(results: Path) -> list[Readings]:
    """Every time that logs were read again, the oldest first. ConfigError: one cannot be read."""
    paths = sorted(Results.from_directory(results).log_readings.glob("*.json"))
    return sorted(map(_read, paths), key=lambda readings: readings.made)


def _read(path: Path) -> Readings:
    try:
        return Readings.model_validate_json(read_bytes(path))
    except (OSError, ValidationError) as error:
        why = format_first_error(error, "the file") if isinstance(error, ValidationError) else error.strerror
        raise ConfigError(
            f"{path}: cannot be read ({why}); restore it from an archive, or remove it and read the logs again with "
            "'campaign parse'"
        ) from error


def newest_readings(results: Path) -> Mapping[tuple[str, float], Reading]:
    """The reading that counts, by `<cell id>.<repetition>` and the start of the run."""
    return {(run, each.started): each for readings in all_readings(results) for run, each in readings.runs.items()}

"""Values that were read from stored logs after the runs. The records themselves are not changed.

Layout: `readings/<when>-<hash>.json`, one document per time that logs were read again. The newest document that contains a run
applies. The reading of a run does not apply to a repetition of the run, which has another start time.
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

REREAD_FLAG = "log read again"
"""Flag of a run whose values come from a later reading of its log."""
RecordKey = Literal["status", "failure", "throughput_per_s", "step_times_s", "window_s", "metrics", "flags"]
"""Keys of a record that a reading can replace."""


def _without_requests(record: Any) -> Any:
    """Return the keys of a record without `requests`, a key of earlier versions."""
    return {key: value for key, value in record.items() if key != "requests"} if isinstance(record, dict) else record


class Reading(ClosedModel):
    """Values that were read again from the log of one run."""

    started: Annotated[float, Field(description="Start of the run as in its record.")]
    record: Annotated[
        dict[RecordKey, Any],
        BeforeValidator(_without_requests),
        Field(description="New values by key of the record."),
    ]


class Readings(ClosedModel):
    """Document of the logs in one results directory that were read again at the same time."""

    schema_version: Literal["readings/1"] = "readings/1"
    made: Annotated[float, Field(ge=0, lt=1e11, description="Time of the reading in Unix seconds.")]
    version: Annotated[str, Field(description="Version of the program that read the logs.")]
    workloads: Annotated[
        dict[str, dict[str, Any]], Field(description="Parser by workload with which its logs were read.")
    ]
    runs: Annotated[dict[str, Reading], Field(description="Values that were read, by `<cell id>.<repetition>`.")]

    @property
    def formatted_time(self) -> str:
        """Time of the reading as text, such as '2026-11-24 01:30 UTC'."""
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.made))


def write_readings(results: Path, readings: Readings) -> Path:
    """Write readings to a new file and return its path.

    Its name contains a hash of the content, so that files from different archives do not have the same name.
    """
    content = readings.model_dump_json().encode() + b"\n"
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(readings.made))
    path = Results.from_directory(results).log_readings / f"{when}-{hashlib.sha256(content).hexdigest()[:8]}.json"
    write_once(path, content)
    return path


def read_all_readings(results: Path) -> list[Readings]:
    """Return all readings, the oldest first. Raises ConfigError if a file cannot be read."""
    paths = sorted(Results.from_directory(results).log_readings.glob("*.json"))
    return sorted(map(_read_file, paths), key=lambda readings: readings.made)


def _read_file(path: Path) -> Readings:
    try:
        return Readings.model_validate_json(read_bytes(path))
    except (OSError, ValidationError) as error:
        reason = format_first_error(error, "the file") if isinstance(error, ValidationError) else error.strerror
        raise ConfigError(
            f"{path}: cannot be read ({reason}); restore it from an archive, or delete it and read the logs again with "
            "'campaign parse'"
        ) from error


def select_newest_readings(results: Path) -> Mapping[tuple[str, float], Reading]:
    """Return the newest reading of each run, by `<cell id>.<repetition>` and start of the run."""
    return {(run, each.started): each for readings in read_all_readings(results) for run, each in readings.runs.items()}

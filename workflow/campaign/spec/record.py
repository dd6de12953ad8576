"""Record of one run, which is written once, and the store of records.

Layout: `records/<first two digits>/<cell id>.<repetition>.json`. Parts that many records share (campaign as used, environment,
composition) are stored once in `shared/<hash>.json`. The record of a run that was not started, because another run implies its
outcome, is `<cell id>.<repetition>.implied-by.<cell id>.<repetition>.json`. It is valid as long as the record of the other run
exists and the run itself has no record.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator

from campaign.common.credentials import mask_secrets
from campaign.common.errors import ConfigError, RecordError, format_first_error
from campaign.common.files import hash_document, read_bytes, read_json, require_json, write_once
from campaign.common.paths import Results
from campaign.spec.cell import Attach, Cell, Configuration, Scalar, Storage
from campaign.spec.fields import ClosedModel
from campaign.spec.host_load import HostLoad
from campaign.spec.readings import Reading, select_newest_readings

SCHEMA = "record/1"
IMPORTED_FLAG = "imported"
"""Flag of a record that was imported from a log of another program."""
IMPORTED_LEASE_PREFIX = "imported-"
"""Prefix of the last part of the lease id of an imported record, if the map of the import names no lease."""
_MIN_FREE_BYTES = 64 * 1024  # More than a program prints at once.

Status = Literal[
    "ok",  # The run finished, and its metrics are valid.
    "oom_device",  # The workload requested more device memory than available.
    "oom_host",  # The workload requested more host memory than available.
    "time_limit",  # The run exceeded its time limit.
    "nan",  # The run finished with a loss that is not a number. Its rate is stored but not used.
    "unsupported",  # The device does not support the cell, such as its precision. Nothing was run instead.
    "comm_timeout",  # A collective operation exceeded its timeout.
    "comm_error",  # The communication library failed.
    "crashed",  # The run ended with another error.
    # The run finished, but its own check or plain arithmetic contradicts its output, or it did not run on its devices. Its rate is
    # stored but not used.
    "invalid",
    "implied",  # The run was not started, because a smaller batch ran out of memory on the same hardware.
    "incomplete",  # The run succeeded, but its output lacks expected values.
]
OUT_OF_MEMORY: tuple[Status, ...] = ("oom_device", "oom_host")

_KEY = r"([0-9a-f]{20})\.(\d{1,6})"
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{20})"\}\s*\Z')
_NAME = re.compile(rf"{_KEY}(?:\.implied-by\.{_KEY})?\.json")


class Failure(ClosedModel):
    """Reason why a run is not `ok`.

    Attributes:
        reason: sentence about the cause.
        evidence: log lines or exit codes that show the cause.
        rank: rank that failed, or None if unknown.
    """

    reason: Annotated[str, AfterValidator(mask_secrets)]
    evidence: Annotated[str, AfterValidator(mask_secrets)] = ""
    rank: int | None = None


_NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]  # Tables have 64-bit integers.


class RecordedCell(ClosedModel):
    """Requested cell as a flat object, so that a record can be read without the campaign."""

    configuration: str
    hosts: _NonNegativeInt
    devices_per_host: _NonNegativeInt
    local_devices_per_host: _NonNegativeInt
    devices_used: _NonNegativeInt
    device: str
    attach: str
    storage: str
    workload: str
    batch: _NonNegativeInt
    precision: str
    options: dict[str, Scalar] = Field(default_factory=dict)

    @classmethod
    def from_cell(cls, cell: Cell) -> RecordedCell:
        """Build the recorded form of a cell."""
        return cls.model_validate(
            {
                "configuration": cell.configuration.name,
                **cell.configuration.shape(),
                "options": dict(cell.options),
                "workload": cell.workload,
                "batch": cell.batch,
                "precision": cell.precision,
            }
        )


class Source(ClosedModel):
    """Log from which an imported record was read."""

    path: str = Field(description="Path of the log, relative to the imported directory.")
    sha256: str
    timed: bool = Field(
        description="True if the log contains the duration of the run. Otherwise `started` equals `ended`."
    )
    test: int | None = Field(default=None, ge=1, description="Number of the test in a log with several tests.")

    @property
    def key(self) -> str:
        """Key that is unique among the records of a cell."""
        return self.sha256 if self.test is None else f"{self.sha256}#{self.test}"


class Record(ClosedModel):
    """One run. Times are Unix seconds (UTC) or durations in seconds; rates are per second."""

    schema_version: Literal["record/1"] = "record/1"
    cell_id: str = Field(description="Hash of `specification`.")
    repetition: int = Field(
        ge=1, description="Number of the run (`campaign.spec.run_numbers`), which is also its block."
    )
    cell: RecordedCell
    specification: dict[str, Any] = Field(description="Specification of the cell, from which `cell_id` is computed.")
    status: Status = Field(description="Outcome of the run.")
    failure: Failure | None = Field(default=None, description="Reason if the status is not `ok`.")
    started: float = Field(description="Start of the run in Unix seconds.")
    ended: float = Field(description="End of the run in Unix seconds.")
    lease_id: str = Field(description="Id of the use of a lease in which the run was measured.")
    hosts: tuple[str, ...] = Field(default=(), description="Hosts of the run.")
    devices: tuple[str, ...] = Field(
        default=(),
        description="Fabric ids of the devices that the run used, by rank. Empty if not recorded.",
    )
    composition: str = Field(description="Hash of the obtained composition, in shared/.")
    environment: str = Field(description="Hash of the hardware and software of the hosts, in shared/.")
    campaign: str = Field(description="Hash of the campaign as used, in shared/.")
    throughput_per_s: float | None = Field(default=None, description="Samples per second over all ranks.")
    step_times_s: tuple[tuple[float, ...], ...] = Field(
        default=(), description="Durations of the measured steps, as [rank][step]."
    )
    warmup_steps: int | None = Field(
        default=None, description="Number of warm-up steps. Null if the program does not report it."
    )
    window_s: tuple[float, ...] = Field(default=(), description="Total duration of the measured steps, by rank.")
    metrics: dict[str, float] = Field(
        default_factory=dict, description="Further metrics, whose names end with the unit."
    )
    phases_s: dict[str, float] = Field(
        default_factory=dict, description="Durations of the phases: import, group, model, warm-up, and so on."
    )
    ran_on: tuple[str, ...] = Field(
        default=(),
        description="Devices of torch that held the parameters, gradients and losses, by rank, with the UUID of the device if "
        "torch reports it. Empty if nothing reports them.",
    )
    in_force: dict[str, str] = Field(
        default_factory=dict,
        description="Settings as detected during the run, which may differ from the requested ones: `precision` of products, "
        "`attention` (the kernel), `optimizer` (fused or absent), `weights` (their type in the pass with `fsdp_precision: mixed`).",
    )
    requests: Annotated[None, BeforeValidator(lambda _: None)] = Field(
        default=None,
        exclude=True,
        description="Requests of a service in records of earlier versions. This key is ignored.",
    )
    links: str = Field(default="", description="Hash of the links that were measured on the composition, in shared/.")
    software: str = Field(default="", description="Hash of the workload's own software environment, in shared/.")
    telemetry: str = Field(
        default="", description="Path of the telemetry samples of the run, relative to the results directory."
    )
    stopped: str = Field(
        default="", description="Reason why this is the last repetition of the cell, if a target ended its repetitions."
    )
    implied_by: str = Field(
        default="", description="`<cell id>.<repetition>` of the run that implies the outcome of this one."
    )
    flags: tuple[str, ...] = Field(default=(), description="Remarks that readers of the result should know.")
    log: str = Field(default="", description="Path of the log, relative to the results directory.")
    numa: tuple[str, ...] = Field(
        default=(),
        description="NUMA node of the device and NUMA nodes of the processors to which the rank was bound, by rank. Empty if the "
        "hosts do not report them.",
    )
    loads: tuple[HostLoad, ...] = Field(
        default=(),
        description="Load of the hosts by this campaign and by other programs. Empty if unknown, as in earlier records. "
        "Hosts that are emulated on one machine have one entry.",
    )
    source: Source | None = Field(default=None, description="Log from which an imported record was read.")
    checksum: str = Field(
        default="",
        description="SHA-256 (20 digits) of the file's bytes before the comma of this last key.",
    )

    @field_validator("specification")
    @classmethod
    def _check_parts(cls, given: dict[str, Any]) -> dict[str, Any]:
        for part in ("system", "configuration"):
            if not isinstance(given.get(part) or {}, dict):
                raise ValueError(f"'{part}' is not an object")
        return given

    @property
    def key(self) -> tuple[str, int]:
        return self.cell_id, self.repetition

    @property
    def requested_configuration(self) -> Configuration:
        """Requested configuration of the cell."""
        c = self.cell
        numbers = c.hosts, c.devices_per_host, c.local_devices_per_host, c.devices_used
        return Configuration(
            c.configuration, *numbers, c.device, cast(Attach, c.attach), cast(Storage, c.storage), self.system
        )

    @property
    def system(self) -> str:
        """Name of the system on which the run was measured."""
        return str((self.specification.get("system") or {}).get("name", ""))


def is_disk_full(directory: Path) -> bool:
    """Return True if the file system is so full that output of programs may be lost."""
    return shutil.disk_usage(directory).free < _MIN_FREE_BYTES


class RecordStore:
    """Store of the records of one results directory."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.records = Results.from_directory(results).records
        self.shared = Results.from_directory(results).shared_documents
        self._records_prefix = f"{self.records}{os.sep}"

    def path(self, cell_id: str, repetition: int) -> Path:
        """Return the path of the record of a run. An implied record has another path."""
        return Path(self.format_path(cell_id, repetition))

    def format_path(self, cell_id: str, repetition: int) -> str:
        """Return the path of the record of a run as text. For many runs, building Path objects takes long."""
        return f"{self._records_prefix}{cell_id[:2]}/{cell_id}.{repetition}.json"

    def list_keys(self, *, include_implied: bool = True, cells: Collection[str] | None = None) -> set[tuple[str, int]]:
        """Return the keys of all records, as derived from the file names.

        Args:
            include_implied: include implied records, whose runs were not started.
            cells: ids of the cells to list. None means all cells.
        """
        keys: set[tuple[str, int]] = set()
        implied_keys: list[tuple[tuple[str, int], tuple[str, int]]] = []
        if not self.records.is_dir():
            return keys
        try:
            for shard in _list_names(self.records) if cells is None else {cell_id[:2] for cell_id in cells}:
                for name in _list_names(self.records / shard):
                    match = _NAME.fullmatch(name)
                    if match is None or match[1][:2] != shard or (cells is not None and match[1] not in cells):
                        continue
                    if match[3] is None:
                        keys.add((match[1], int(match[2])))
                    elif include_implied:
                        implied_keys.append(((match[1], int(match[2])), (match[3], int(match[4]))))
        except OSError as error:
            raise RecordError(f"{error.filename}: cannot be listed ({error.strerror}); fix its permissions") from error
        # A run of these cells may be implied by a run of another cell.
        existing_keys = (
            keys if cells is None else {evidence for _, evidence in implied_keys if self.path(*evidence).exists()}
        )
        return keys | {key for key, evidence in implied_keys if evidence in existing_keys}

    def has_record(self, cell_id: str, repetition: int, *, include_implied: bool = True) -> bool:
        """Return True if a run has a record."""
        return self.path(cell_id, repetition).exists() or (
            include_implied and self._find_implied(cell_id, repetition) is not None
        )

    def list_started(self, cell_id: str) -> list[int]:
        """Return the numbers of a cell's runs that have a record and were started."""
        names = (_NAME.fullmatch(path.name) for path in (self.records / cell_id[:2]).glob(f"{cell_id}.*.json"))
        return sorted(int(match[2]) for match in names if match and match[3] is None)

    def _find_implied(self, cell_id: str, repetition: int) -> Path | None:
        for path in sorted((self.records / cell_id[:2]).glob(f"{cell_id}.{repetition}.implied-by.*.json")):
            match = _NAME.fullmatch(path.name)
            if match and match[3] and self.path(match[3], int(match[4])).exists():
                return path
        return None

    def await_records(self, keys: Collection[tuple[str, int]], latency_s: float) -> None:
        """Wait until these records are visible on this host, because a shared file system shows new files with a delay.

        Raises RecordError if a record does not become visible.

        Args:
            keys: keys of the records.
            latency_s: maximum wait in seconds.
        """
        until = time.monotonic() + latency_s
        # A shared file system may cache the absence of a file, so the directory is listed for files that are not found.
        unseen = {key for key in keys if not self.path(*key).exists()}
        while unseen and (unseen := unseen - self.list_keys()):
            if time.monotonic() > until:
                raise RecordError(
                    f"{self.path(*min(unseen))}: was written on another host but is not visible here after {latency_s:g} s; "
                    "put the results directory on a file system that both hosts share"
                )
            time.sleep(0.2)

    def write(self, record: Record) -> None:
        """Write a record with its checksum. An existing record is left alone."""
        path = self.path(*record.key).with_name(_format_file_name(record))
        body = record.model_dump_json(exclude={"checksum"}).encode().removesuffix(b"}")
        write_once(path, body + b',"checksum":"%s"}\n' % _compute_checksum(body))

    def read_latest(self, cell_id: str, repetition: int) -> Record:
        """Read the record of a run, even an implied one, and apply the newest reading of its log.

        Raises RecordError if the record is damaged, or ConfigError if the reading is damaged.
        """
        record = self.read_measured(cell_id, repetition)
        if reading := self._readings.get((f"{cell_id}.{repetition}", record.started)):
            try:
                return Record.model_validate({**dict(record), **reading.record})
            except ValidationError as error:
                raise ConfigError(
                    f"{Results.from_directory(self.results).log_readings}: the reading of run {cell_id}.{repetition} is damaged "
                    f"({format_first_error(error, 'the run')}); read the logs again with 'campaign parse'"
                ) from error
        return record

    def read_measured(self, cell_id: str, repetition: int) -> Record:
        """Read the record of a run as it was written after the run."""
        name = self.format_path(cell_id, repetition)
        try:
            return _parse_record(name, read_bytes(name))
        except FileNotFoundError:
            return read_record(self._find_implied(cell_id, repetition) or Path(name))
        except OSError as error:
            raise _unreadable_error(name, error) from error

    @cached_property
    def _readings(self) -> Mapping[tuple[str, float], Reading]:
        return select_newest_readings(self.results)

    def find_damaged(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Return the problem of each damaged record among these records, by key."""
        problems = {}
        for key in keys:
            try:
                self.read_measured(*key)
            except RecordError as error:
                problems[key] = str(error)
        return problems

    def delete_implied_records(self, cell_id: str, repetition: int) -> None:
        """Delete the implied records that depend on a run, because its outcome has changed."""
        for path in self.records.glob(f"*/*.implied-by.{cell_id}.{repetition}.json"):
            path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[Record]:
        """Yield all records in the order of their keys. Raises RecordError if a record is damaged."""
        for key in sorted(self.list_keys()):
            yield self.read_latest(*key)

    def share_document(self, document: object) -> str:
        """Store a document that many records share, and return its hash. A damaged file is replaced."""
        name = hash_document(document)
        try:
            self.read_shared_document(name)
        except RecordError:
            (self.shared / f"{name}.json").unlink(missing_ok=True)
        write_once(self.shared / f"{name}.json", (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
        return name

    def read_shared_document(self, name: str) -> dict[str, Any]:
        """Read a shared document by its hash. Raises RecordError if it is missing or damaged."""
        path = self.shared / f"{name}.json"
        document = require_json(path, "restore it from an archive")
        if hash_document(document) != name:
            raise RecordError(f"{path}: its content does not match its name; restore it from an archive")
        return document


def read_record(path: Path) -> Record:
    """Read a record file. Raises RecordError with the file and the problem if it is damaged."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise _unreadable_error(str(path), error) from error
    return _parse_record(str(path), content)


def _unreadable_error(path: str, error: OSError) -> RecordError:
    return RecordError(f"{path}: cannot be read ({error.strerror})")


def _parse_record(path: str, content: bytes) -> Record:
    """Parse and check the content of a record file."""
    if match := _CHECKSUM.search(content):
        if _compute_checksum(content[: match.start()]) != match[1]:
            raise RecordError(
                f"{path}: was changed after it was written (checksum mismatch); move it away to measure the run again"
            )
        content = content[: match.start()] + b"}"
    try:
        record = Record.model_validate_json(content)
    except ValidationError as error:
        problem = format_first_error(error, "the file")
        raise RecordError(
            f"{path}: is not a complete {SCHEMA} record ({problem}); move it away to measure the run again"
        ) from error
    if path.rpartition(os.sep)[2] != _format_file_name(record):
        raise RecordError(f"{path}: contains the record of run {record.cell_id}.{record.repetition}; move it away")
    return record


def _compute_checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:20].encode()


def _list_names(directory: Path) -> list[str]:
    """Return the names in a directory. The list is empty if it does not exist or is not a directory."""
    try:
        return [entry.name for entry in os.scandir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _format_file_name(record: Record) -> str:
    suffix = f".implied-by.{record.implied_by}" if record.implied_by else ""
    return f"{record.cell_id}.{record.repetition}{suffix}.json"


CAMPAIGN_SCHEMA = "campaign-as-used/1"
ARCHIVE_PATH = "campaign.json"
"""Path of the campaign as used in an archive."""


def read_campaigns_as_used(directory: Path, *, include_all: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the campaigns as used in a results directory: that of the plan, then that of an archive extracted there.

    If there is neither, the campaigns of the records follow, the newest first.

    Args:
        directory: results directory.
        include_all: yield the campaigns of the records in any case.
    """
    results, needs_recorded = Results.from_directory(directory), True
    if name := read_json(results.plan_file).get("campaign_hash"):
        with suppress(RecordError):
            yield RecordStore(directory).read_shared_document(str(name))
            needs_recorded = False
    if document := read_json(directory / ARCHIVE_PATH):
        yield document
        needs_recorded = False
    if needs_recorded or include_all:
        paths = sorted(results.shared_documents.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        yield from (each for each in map(read_json, paths) if each.get("schema_version") == CAMPAIGN_SCHEMA)

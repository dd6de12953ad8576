"""Everything about one run, written once, and the directory of records.

Layout: `records/<first two digits>/<cell id>.<repetition>.json`; what many records share (campaign as used, environment,
composition) stands once in `shared/<hash>.json`. The record of a run that was not started because another one implies how it ends
is `<cell id>.<repetition>.implied-by.<cell id>.<repetition>.json`: it counts while the record that it rests on is there, and gives
way to a record of the run itself.
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
from campaign.spec.readings import Reading, newest_readings

SCHEMA = "record/1"
IMPORTED = "imported"
"""Flag of a record that was read from a log which was made without us."""
IMPORTED_LEASE_PREFIX = "imported-"
"""How the last part of the lease's id begins where the map of an import says of no lease."""
_MIN_FREE_BYTES = 64 * 1024  # more than a program prints at once

Status = Literal[
    "ok",  # finished, and its metrics are believed
    "oom_device",  # the subject asked for more device memory than there is
    "oom_host",  # ... or more host memory
    "time_limit",  # still running at the run's time limit
    "nan",  # finished with a loss that is not a number: the rate is kept, and not believed
    "unsupported",  # the device cannot do what the cell asks (a precision, say): nothing was run in its place
    "comm_timeout",  # a collective operation waited longer than its limit
    "comm_error",  # the communication library failed
    "crashed",  # ended with an error that is none of the above
    # finished, and its own check or arithmetic contradicts what it printed, or its work was not on its devices: the rate is kept,
    # and not believed
    "invalid",
    "implied",  # not run: a smaller batch on the same hardware ran out of memory
    "incomplete",  # ended well, but the expected output was not found in what it printed
]
OUT_OF_MEMORY: tuple[Status, ...] = ("oom_device", "oom_host")

_KEY = r"([0-9a-f]{20})\.(\d{1,6})"
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{20})"\}\s*\Z')
_NAME = re.compile(rf"{_KEY}(?:\.implied-by\.{_KEY})?\.json")


class Failure(ClosedModel):
    """Why a run is not `ok`: a sentence, and the evidence it rests on (log lines, exit codes)."""

    reason: Annotated[str, AfterValidator(mask_secrets)]
    evidence: Annotated[str, AfterValidator(mask_secrets)] = ""
    rank: int | None = None


_NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]  # what a table can hold


class RecordedCell(ClosedModel):
    """The cell as it was asked for, flat, so that a record can be read without the campaign."""

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
    """The log that an imported record was read from."""

    path: str = Field(description="relative to the directory that was imported")
    sha256: str
    timed: bool = Field(description="whether the log says how long the run took; otherwise started equals ended")
    test: int | None = Field(default=None, ge=1, description="which test of the log it is, where that has several")

    @property
    def key(self) -> str:
        """What no two records of one cell share."""
        return self.sha256 if self.test is None else f"{self.sha256}#{self.test}"


class Record(ClosedModel):
    """One run. Times are Unix seconds (UTC) or durations in seconds; rates are per second."""

    schema_version: Literal["record/1"] = "record/1"
    cell_id: str = Field(description="hash of `specification`")
    repetition: int = Field(ge=1, description="number of the run (`campaign.spec.run_numbers`); also its block")
    cell: RecordedCell
    specification: dict[str, Any] = Field(description="what was hashed into cell_id")
    status: Status = Field(description="how the run ended")
    failure: Failure | None = Field(default=None, description="why it is not `ok`")
    started: float = Field(description="Unix seconds")
    ended: float = Field(description="Unix seconds")
    lease_id: str = Field(description="the use of a composition that it was measured on")
    hosts: tuple[str, ...] = Field(default=(), description="hosts of the run")
    devices: tuple[str, ...] = Field(
        default=(),
        description="fabric ids of the devices that the run used, by rank; empty where that was not recorded",
    )
    composition: str = Field(description="hash of the composition obtained, in shared/")
    environment: str = Field(description="hash of the hosts' hardware and software, in shared/")
    campaign: str = Field(description="hash of the campaign as used, in shared/")
    throughput_per_s: float | None = Field(default=None, description="samples per second over all ranks")
    step_times_s: tuple[tuple[float, ...], ...] = Field(default=(), description="[rank][measured step]")
    warmup_steps: int | None = Field(
        default=None, description="warm-up steps that were made; null where the program does not say"
    )
    window_s: tuple[float, ...] = Field(default=(), description="[rank] time of all measured steps together")
    metrics: dict[str, float] = Field(default_factory=dict, description="further numbers, unit in the name")
    phases_s: dict[str, float] = Field(default_factory=dict, description="import, group, model, warm-up, ...")
    ran_on: tuple[str, ...] = Field(
        default=(),
        description="by rank: torch's devices that its parameters, gradients and losses were on, and the device's UUID where torch "
        "tells it; empty where nothing reports it",
    )
    in_force: dict[str, str] = Field(
        default_factory=dict,
        description="what was found in force, not what was asked for: `precision` of products, `attention` (the kernel), "
        "`optimizer` (fused, or absent), `weights` (their type in the pass, with `fsdp_precision: mixed`)",
    )
    requests: Annotated[None, BeforeValidator(lambda _: None)] = Field(
        default=None, exclude=True, description="requests of a service, of records of earlier versions; it is not read"
    )
    links: str = Field(default="", description="hash of the links measured on the composition, in shared/")
    software: str = Field(default="", description="hash of the workload's own software environment, in shared/")
    telemetry: str = Field(
        default="", description="path of the samples beside the run, relative to the results directory"
    )
    stopped: str = Field(default="", description="why this is the cell's last repetition, where a target ended them")
    implied_by: str = Field(
        default="", description="`<cell id>.<repetition>` of the run that an implied record rests on"
    )
    flags: tuple[str, ...] = Field(default=(), description="what a reader of this number should know")
    log: str = Field(default="", description="path of the log, relative to the results directory")
    numa: tuple[str, ...] = Field(
        default=(),
        description="by rank: NUMA node of its device, and nodes of the processors that it was bound to; empty where no host tells",
    )
    source: Source | None = Field(default=None, description="where an imported record was read from")
    checksum: str = Field(
        default="",
        description="SHA-256 (20 digits) of the file's bytes before this key and its comma; last in the file",
    )

    @field_validator("specification")
    @classmethod
    def _of_parts(cls, given: dict[str, Any]) -> dict[str, Any]:
        for part in ("system", "configuration"):
            if not isinstance(given.get(part) or {}, dict):
                raise ValueError(f"{part} is no object")
        return given

    @property
    def key(self) -> tuple[str, int]:
        return self.cell_id, self.repetition

    @property
    def requested(self) -> Configuration:
        """The configuration of the cell."""
        c = self.cell
        numbers = c.hosts, c.devices_per_host, c.local_devices_per_host, c.devices_used
        return Configuration(
            c.configuration, *numbers, c.device, cast(Attach, c.attach), cast(Storage, c.storage), self.system
        )

    @property
    def system(self) -> str:
        """Name of the system that it was measured on."""
        return str((self.specification.get("system") or {}).get("name", ""))


def is_full(directory: Path) -> bool:
    """Return whether so little space is left that the output of programs may be lost."""
    return shutil.disk_usage(directory).free < _MIN_FREE_BYTES


class RecordStore:
    """Store of the records of one results directory."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.records = Results.from_directory(results).records
        self.shared = Results.from_directory(results).shared_documents

    def path(self, cell_id: str, repetition: int) -> Path:
        """Return the path of the record of a run that was started."""
        return self.records / f"{cell_id[:2]}/{cell_id}.{repetition}.json"

    def list_keys(self, *, implied: bool = True, cells: Collection[str] | None = None) -> set[tuple[str, int]]:
        """Keys of all records, from file names alone.

        implied: with those of runs that were not started for being implied; cells: ids, where those of some cells will do.
        """
        keys: set[tuple[str, int]] = set()
        implied_keys: list[tuple[tuple[str, int], tuple[str, int]]] = []
        if not self.records.is_dir():
            return keys
        try:
            for shard in _names_in(self.records) if cells is None else {cell_id[:2] for cell_id in cells}:
                for name in _names_in(self.records / shard):
                    match = _NAME.fullmatch(name)
                    if match is None or match[1][:2] != shard or (cells is not None and match[1] not in cells):
                        continue
                    if match[3] is None:
                        keys.add((match[1], int(match[2])))
                    elif implied:
                        implied_keys.append(((match[1], int(match[2])), (match[3], int(match[4]))))
        except OSError as error:
            raise RecordError(f"{error.filename}: cannot be listed ({error.strerror}); fix its permissions") from error
        # What implies a run of these cells may be a run of another one.
        existing_keys = (
            keys if cells is None else {evidence for _, evidence in implied_keys if self.path(*evidence).exists()}
        )
        return keys | {key for key, evidence in implied_keys if evidence in existing_keys}

    def has_record(self, cell_id: str, repetition: int, *, implied: bool = True) -> bool:
        """Return whether a run has a record."""
        return self.path(cell_id, repetition).exists() or (
            implied and self._find_implied(cell_id, repetition) is not None
        )

    def list_started(self, cell_id: str) -> list[int]:
        """Return the numbers of a cell's runs that were started and have a record."""
        names = (_NAME.fullmatch(path.name) for path in (self.records / cell_id[:2]).glob(f"{cell_id}.*.json"))
        return sorted(int(match[2]) for match in names if match and match[3] is None)

    def _find_implied(self, cell_id: str, repetition: int) -> Path | None:
        for path in sorted((self.records / cell_id[:2]).glob(f"{cell_id}.{repetition}.implied-by.*.json")):
            match = _NAME.fullmatch(path.name)
            if match and match[3] and self.path(match[3], int(match[4])).exists():
                return path
        return None

    def await_records(self, keys: Collection[tuple[str, int]], latency_s: float) -> None:
        """Until these records are seen here: a shared file system shows them late. RecordError names one that does not come."""
        until = time.monotonic() + latency_s
        # All names are listed only where one is not seen: a shared file system may remember that there was no such file.
        unseen = {key for key in keys if not self.path(*key).exists()}
        while unseen and (unseen := unseen - self.list_keys()):
            if time.monotonic() > until:
                raise RecordError(
                    f"{self.path(*min(unseen))}: was written on another host, and is not seen here after {latency_s:g} s; is "
                    "the results directory on a file system that both share?"
                )
            time.sleep(0.2)

    def write(self, record: Record) -> None:
        path = self.path(*record.key).with_name(_format_file_name(record))
        body = record.model_dump_json(exclude={"checksum"}).encode().removesuffix(b"}")
        write_once(path, body + b',"checksum":"%s"}\n' % _checksum(body))

    def read_latest(self, cell_id: str, repetition: int) -> Record:
        """The record of a run with the newest reading of its log, or the record that says what implies how it ends.

        RecordError: it is damaged; ConfigError: a reading is.
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
        """Read the record as it was written after the run."""
        path = self.path(cell_id, repetition)
        return read_record(path if path.exists() else self._find_implied(cell_id, repetition) or path)

    @cached_property
    def _readings(self) -> Mapping[tuple[str, float], Reading]:
        return newest_readings(self.results)

    def find_damaged(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Return the problem by key, for those of these records that cannot be read."""
        problems = {}
        for key in keys:
            try:
                self.read_measured(*key)
            except RecordError as error:
                problems[key] = str(error)
        return problems

    def forget_implied_by(self, cell_id: str, repetition: int) -> None:
        """Remove what rests on a record that says something else now."""
        for path in self.records.glob(f"*/*.implied-by.{cell_id}.{repetition}.json"):
            path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[Record]:
        """All records in the order of their keys; a damaged one raises RecordError naming the file."""
        for key in sorted(self.list_keys()):
            yield self.read_latest(*key)

    def share_document(self, document: object) -> str:
        """Store a document that many records have in common once, and return its hash. A damaged file is replaced."""
        name = hash_document(document)
        try:
            self.read_shared_document(name)
        except RecordError:
            (self.shared / f"{name}.json").unlink(missing_ok=True)
        write_once(self.shared / f"{name}.json", (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
        return name

    def read_shared_document(self, name: str) -> dict[str, Any]:
        path = self.shared / f"{name}.json"
        document = require_json(path, "restore it from an archive")
        if hash_document(document) != name:
            raise RecordError(f"{path}: its content does not match its name; restore it from an archive")
        return document


def read_record(path: Path) -> Record:
    """Parse one record file; RecordError names the file and what is wrong with it."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    if match := _CHECKSUM.search(content):
        if _checksum(content[: match.start()]) != match[1]:
            raise RecordError(
                f"{path}: was changed since it was written (checksum); move it away and the run is measured again"
            )
        content = content[: match.start()] + b"}"
    try:
        record = Record.model_validate_json(content)
    except ValidationError as error:
        problem = format_first_error(error, "the file")
        raise RecordError(
            f"{path}: not a whole {SCHEMA} record ({problem}); move it away and the run is measured again"
        ) from error
    if path.name != _format_file_name(record):
        raise RecordError(f"{path}: holds the record of {record.cell_id}.{record.repetition}; move it away")
    return record


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:20].encode()


def _names_in(directory: Path) -> list[str]:
    """Names in a directory; none where it is no directory."""
    try:
        return [entry.name for entry in os.scandir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _format_file_name(record: Record) -> str:
    suffix = f".implied-by.{record.implied_by}" if record.implied_by else ""
    return f"{record.cell_id}.{record.repetition}{suffix}.json"


CAMPAIGN_SCHEMA = "campaign-as-used/1"
IN_ARCHIVE = "campaign.json"
"""Where an archive holds the campaign as used."""


def read_campaigns_as_used(directory: Path, *, every: bool = False) -> Iterator[dict[str, Any]]:
    """The campaign as used in a results directory: that of its plan, then that of an archive that was extracted there.

    Without both, or where `every` one is wanted, those that records name, the newest first.
    """
    results, needs_recorded = Results.from_directory(directory), True
    if name := read_json(results.plan_file).get("campaign_hash"):
        with suppress(RecordError):
            yield RecordStore(directory).read_shared_document(str(name))
            needs_recorded = False
    if document := read_json(directory / IN_ARCHIVE):
        yield document
        needs_recorded = False
    if needs_recorded or every:
        paths = sorted(results.shared_documents.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        yield from (each for each in map(read_json, paths) if each.get("schema_version") == CAMPAIGN_SCHEMA)

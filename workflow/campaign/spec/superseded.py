"""Records that were set aside because their runs are measured again, and the hosts of recorded runs.

Layout: `superseded/<when>/records/<first two digits>/<cell id>.<repetition>.json` are the unchanged records.
`superseded/<when>/why.json` has the expression or the reason, and all runs that were set aside. It is written first, so that the
move can be completed after a crash.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.common.errors import RecordError
from campaign.common.files import load_json, make_directory, write_once
from campaign.common.paths import Results
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import RunKey

SCHEMA = "superseded/1"


@dataclass(frozen=True)
class SupersededRecords:
    """Records that were set aside at the same time.

    Attributes:
        directory: directory of the records.
        where: expression that selected the records, or ''.
        runs: keys of the records.
        why: another reason than the expression, or ''.
    """

    directory: Path
    where: str
    runs: tuple[RunKey, ...]
    why: str = ""

    @property
    def when(self) -> str:
        """Time in UTC, as in the name of the directory."""
        return self.directory.name

    def to_json(self) -> bytes:
        """Return the content of why.json."""
        run_names = [f"{cell_id}.{repetition}" for cell_id, repetition in self.runs]
        document = {
            "schema_version": SCHEMA,
            "where": self.where,
            "runs": run_names,
            **({"why": self.why} if self.why else {}),
        }
        return (json.dumps(document, indent=1) + "\n").encode()

    @property
    def reason(self) -> str:
        """Reason in words."""
        return self.why or f"runs with {self.where}"

    def path(self, run: RunKey) -> Path:
        """Return the current path of the record of a run."""
        return RecordStore(self.directory).path(*run)

    def move_remaining(self, store: RecordStore) -> int:
        """Move the remaining records, and return their number. Raises RecordError if a record cannot be moved."""
        count = 0
        for run in self.runs:
            old, new = store.path(*run), self.path(run)
            if new.exists() or not old.exists():
                continue
            try:
                make_directory(new.parent)
                old.rename(new)
            except OSError as error:
                raise RecordError(
                    f"{old}: could not be moved to {new.parent} ({error.strerror}); fix this, then run the same command again"
                ) from error
            count += 1
        return count


def supersede_records(
    store: RecordStore, runs: Sequence[RunKey], *, where: str = "", why: str = ""
) -> SupersededRecords:
    """Move records into a new directory of superseded records. Raises RecordError if a record cannot be moved.

    Args:
        store: store of the records.
        runs: keys of the records.
        where: expression that selects the records, or ''.
        why: another reason, or ''.
    """
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    directory = Results.from_directory(store.results).superseded_records / when
    number = 1
    while directory.exists():
        number += 1
        directory = directory.with_name(f"{when}-{number}")
    superseded = SupersededRecords(directory, where, tuple(runs), why)
    write_once(directory / "why.json", superseded.to_json())
    superseded.move_remaining(store)
    return superseded


def list_superseded(results: Path) -> list[SupersededRecords]:
    """Return all sets of records that were set aside, in order of time. Raises RecordError if a why.json is damaged."""
    set_asides = []
    for path in sorted(Results.from_directory(results).superseded_records.glob("*/why.json")):
        try:
            document = load_json(path)
            keys = tuple(_parse_run_key(name) for name in document["runs"])
            set_asides.append(
                SupersededRecords(path.parent, str(document["where"]), keys, str(document.get("why", "")))
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}: cannot be read ({error!r}); restore it from an archive") from error
    return set_asides


def _parse_run_key(name: str) -> RunKey:
    cell_id, repetition = name.split(".")
    return cell_id, int(repetition)


class RecordedHosts:
    """Hosts of the recorded runs of a cell, including records that were set aside.

    File names are listed once, and records are read when their cell is requested.

    Attributes:
        seen: hosts of all cells that were requested.
    """

    def __init__(self, store: RecordStore) -> None:
        self.store = store
        self.requested_hosts: set[str] = set()
        self._files: dict[str, list[Path]] | None = None

    def __call__(self, cell_id: str) -> frozenset[str]:
        if self._files is None:
            self._files = {}
            paths = Results.from_directory(self.store.results)
            for directory in (self.store.records, *sorted(paths.superseded_records.glob("*/records"))):
                for path in _list_record_files(directory):
                    self._files.setdefault(path.name.split(".")[0], []).append(path)
        hosts = frozenset(host for path in self._files.get(cell_id, ()) for host in read_recorded_hosts(path))
        self.requested_hosts |= hosts
        return hosts


def read_recorded_hosts(path: Path) -> tuple[str, ...]:
    """Return the hosts in a record file without validating the rest. The result is empty if the run was not started.

    Raises RecordError if the file is damaged.
    """
    try:
        document = load_json(path)
        return () if document.get("implied_by") else tuple(map(str, document["hosts"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path}: is not a valid record ({error!r}); move it away to measure the run again"
        ) from error


def _list_record_files(records: Path) -> Iterator[Path]:
    """Yield the record files in arbitrary order, without temporary files."""
    if not records.is_dir():
        return
    try:
        for shard in os.scandir(records):
            if shard.is_dir():
                names = (entry.name for entry in os.scandir(shard.path))
                yield from (Path(shard.path, name) for name in names if name.endswith(".json") and name[0] != ".")
    except OSError as error:
        raise RecordError(f"{error.filename}: cannot be listed ({error.strerror}); fix its permissions") from error

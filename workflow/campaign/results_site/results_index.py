"""The campaigns below a results root, as they are now: nothing is read twice that has not changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet

from campaign.config.resolve import Campaign, from_document
from campaign.documents.record import Record, Store
from campaign.errors import CampaignError, RecordError
from campaign.files import is_locked, open_regular, parse_json, read_json
from campaign.paths import Results
from campaign.tables.collect import gather, tables_of
from campaign.tables.io import Tables, read

_LOOK_S = 1.0
"""The results directory is not listed more often than this."""
_REST = 5.0
"""Tables of a campaign that is running are made again once this many times of what making them took has gone by."""


class _Keeping(Store):
    """A store that reads a record once: it never changes."""

    def __init__(self, results: Path) -> None:
        super().__init__(results)
        self.kept: dict[tuple[str, int], Record] = {}

    def read(self, cell_id: str, repetition: int) -> Record:
        key = cell_id, repetition
        # An implied one gives way to that of a run.
        if key not in self.kept or self.kept[key].implied_by:
            self.kept[key] = super().read(cell_id, repetition)
        return self.kept[key]


@dataclass(frozen=True)
class CampaignProgress:
    """How far a campaign is. state: `measuring`, `complete`, `partial`, or `planned`; last_s: Unix time of the last record."""

    state: str
    runs: int
    runs_done: int
    last_s: float | None
    last: str = ""
    leases: tuple[str, ...] = ()
    """Leases that are composed or measured now."""


@dataclass
class Shelved:
    """One campaign's results."""

    results: Results
    _store: _Keeping = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _index: frozenset[tuple[str, int]] = frozenset()
    _looked: float = 0.0
    _tables: Tables | None = None
    _of: frozenset[tuple[str, int]] | None = None
    _made: float = 0.0
    _took: float = 0.0

    def __post_init__(self) -> None:
        self._store = _Keeping(self.results.directory)

    @property
    def name(self) -> str:
        return self.results.campaign

    def tables(self) -> Tables | None:
        """What is measured so far; None without records. RecordError or ConfigError where they cannot be read."""
        with self._lock:
            index = self._listed()
            due = time.monotonic() - self._made > _REST * self._took
            if index and index != self._of and (self._tables is None or due):
                started = time.monotonic()
                self._tables, self._of = self._read(index), index
                self._made = time.monotonic()
                self._took = self._made - started
            return self._tables if index else None

    @property
    def version(self) -> int:
        """Changes when the tables do."""
        return hash(self._of)

    def _listed(self) -> frozenset[tuple[str, int]]:
        if time.monotonic() - self._looked > _LOOK_S:
            self._index = frozenset(self._store.index())
            self._looked = time.monotonic()
        return self._index

    def _read(self, index: frozenset[tuple[str, int]]) -> Tables:
        """The tables: those of tables/ where they have every record, otherwise made from the records."""
        written = self.results.tables / "runs.parquet"
        with suppress(OSError, ValueError, RecordError):
            if pyarrow.parquet.read_metadata(written).num_rows == len(index):
                self._store.kept.clear()
                return read(self.results.tables)
        return tables_of(gather(self._campaign(index), self.results.directory, store=self._store))

    def _campaign(self, index: frozenset[tuple[str, int]]) -> Campaign:
        """The campaign as the newest record has it."""
        newest = max((self._store.read(*key) for key in index), key=lambda record: record.ended)
        return from_document(self._store.shared_document(newest.campaign))

    def progress(self) -> CampaignProgress:
        """How far the campaign is, by the plan, the names of records, and locks: cheap whatever the campaign's size.

        What tables were made last know of planned runs counts too: an unpacked archive has no plan.
        """
        totals: Mapping[str, Any] = read_json(self.results.plan_document).get("totals", {})
        with self._lock:
            done = len(self._listed())
            known = 0 if self._tables is None else int(self._tables.cells["n_planned"].sum())
        runs = max(int(totals.get("runs", 0)), known, done)
        leases = tuple(sorted(self._busy()))
        last = self._last()
        state = "measuring" if leases else "planned" if not done else "complete" if done >= runs else "partial"
        words = f"{last['what']}: {last['status']}" if last else ""
        return CampaignProgress(state, runs, done, float(last["time_s"]) if last else None, words, leases)

    def _busy(self) -> set[str]:
        found = set()
        for lock in self.results.directory.glob("work/*/*.lock"):
            with suppress(OSError):
                if lock.stem in ("driver", "measure") and is_locked(lock):
                    found.add(lock.parent.name)
        return found

    def _last(self) -> Mapping[str, Any] | None:
        """The last whole line of progress."""
        try:
            with open_regular(self.results.progress) as file:
                file.seek(max(0, file.seek(0, 2) - 4096))
                lines = file.read().split(b"\n")[:-1]
            line = parse_json(lines[-1])
        except (OSError, ValueError, IndexError):
            return None
        return line if {"what", "status", "time_s"} <= line.keys() else None


class Shelf:
    """All campaigns of a results root, by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, Shelved] = {}
        self._lock = threading.Lock()

    def campaigns(self) -> list[Shelved]:
        """The campaigns that have a plan, records or tables, by name."""
        try:
            names = sorted(entry.name for entry in self.root.iterdir() if _is_campaign(entry))
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise RecordError(f"{self.root}: cannot be listed ({error.strerror}); fix its permissions") from error
        with self._lock:
            self._known = {name: self._known.get(name) or Shelved(Results(self.root, name)) for name in names}
            return list(self._known.values())

    def campaign(self, name: str) -> Shelved | None:
        """The campaign of a name; None where there is none."""
        return next((each for each in self.campaigns() if each.name == name), None)


def _is_campaign(path: Path) -> bool:
    return not path.name.startswith(".") and any((path / part).is_dir() for part in ("records", "plan", "tables"))


def tables_or_problem(shelved: Shelved) -> tuple[Tables | None, str]:
    """Tables, or why there are none."""
    try:
        found = shelved.tables()
    except CampaignError as error:
        return None, str(error)
    return found, "" if found else "no run has a record yet"

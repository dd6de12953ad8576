"""What a directory of logs holds by a map: the campaign that it makes, and what becomes of every file. Nothing is written here."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from campaign.config.campaign_file import CampaignFile
from campaign.config.check import Sources
from campaign.config.load import validate
from campaign.config.resolve import Campaign, resolve
from campaign.config.system_file import SystemFile
from campaign.documents.cell import Cell
from campaign.documents.record import Record
from campaign.errors import ConfigError
from campaign.importing.campaign_files import campaign_document, system_document
from campaign.importing.log_facts import Found, look
from campaign.importing.log_identity import Copy, Known, LogIdentity, Point, Unread, identify
from campaign.importing.log_outcome import digest, outcome_of
from campaign.importing.map_file import Map, unsaved_file
from campaign.plan.matrix import expand
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome

Fate = Literal["new", "present", "unread"]


@dataclass(frozen=True)
class Entry:
    """One file below the directory. cell, repetition, outcome: of a log that is new; why: of a file that is not read."""

    path: str
    fate: Fate
    why: str = ""
    sha256: str = ""
    cell: Cell | None = None
    repetition: int = 0
    identity: LogIdentity | None = None
    found: Found = field(default_factory=Found)
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Survey:
    """All files in the order of their paths. strays: records of earlier imports that this map has no cell for."""

    directory: Path
    campaign: Campaign
    entries: tuple[Entry, ...]
    records: tuple[Record, ...] = ()
    strays: int = 0

    def of(self, fate: Fate) -> list[Entry]:
        return [entry for entry in self.entries if entry.fate == fate]


def survey(directory: Path, read: Map, records: Sequence[Record] = ()) -> Survey:
    """Look at every file; nothing is written. records: of earlier imports. ConfigError where no log says what it is of."""
    identified = [_identified(path, directory, read) for path in _files(directory, read.ignored)]
    subjects = {entry.path: entry.identity for entry in identified if entry.identity is not None}
    names = {c.name for c in read.known.configurations}
    earlier = [
        record
        for record in records
        if record.cell.configuration in names and record.cell.workload in read.known.workloads
    ]
    if not subjects and not earlier:
        told = "; ".join(f"{entry.path}: {entry.why}" for entry in identified[:3]) or "there are no files"
        raise ConfigError(f"{directory}: no log of a run was found by {read.path}: {told}")
    first = _campaign(read, list(subjects.values()), earlier)
    cells = {_point(cell): cell for cell in expand(first).cells}
    sorted_out = list(_Sorting(first, cells, directory, records).sorted(identified))
    # What turned out to be a copy makes no cell and no repetition.
    campaign = _campaign(read, [entry.identity for entry in sorted_out if entry.identity is not None], earlier)
    by_id = {cell.id: cell for cell in expand(campaign).cells}
    entries = tuple(entry if entry.cell is None else replace(entry, cell=by_id[entry.cell.id]) for entry in sorted_out)
    return Survey(directory, campaign, entries, tuple(records), sum(r.cell_id not in by_id for r in records))


def _files(directory: Path, ignored: Iterable[re.Pattern[str]]) -> Iterator[Path]:
    if not directory.is_dir():
        raise ConfigError(f"{directory}: is not a directory; give the directory of the logs")
    for path in sorted(directory.rglob("*"), key=lambda path: _natural(path.relative_to(directory).as_posix())):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not any(each.fullmatch(name) for each in ignored):
            yield path


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """So that run 10 comes after run 9."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", text)]


def _identified(path: Path, directory: Path, read: Map) -> Entry:
    """What a file is a log of."""
    name = path.relative_to(directory).as_posix()
    try:
        fitting = ((each, values) for each, compiled in read.patterns if (values := compiled.match(name)) is not None)
        chosen, values = next(fitting, (None, {}))
        if chosen is None:
            raise Unread("no pattern of the map fits its path")
        sha256 = digest(path)
        found = look(chosen, Log(path))
        if found.problems:
            raise Unread("; ".join(found.problems))
        axes = {
            *read.known.axes,
            *(option for option in _options(read) if option in {*values, *found.values, *chosen.values}),
        }
        return Entry(
            name, "new", sha256=sha256, identity=identify(_with(read.known, axes), chosen, values, found), found=found
        )
    except Unread as error:
        return Entry(name, "unread", str(error))


def _options(read: Map) -> set[str]:
    return {option for file in read.known.workloads.values() for option in file.options}


def _with(known: Known, axes: Iterable[str]) -> Known:
    return Known(known.configurations, known.workloads, frozenset(axes))


def _campaign(read: Map, subjects: Sequence[LogIdentity], earlier: Sequence[Record]) -> Campaign:
    """The campaign of everything found now and before."""
    points = {each.point for each in subjects}
    points |= {
        (r.cell.configuration, r.cell.workload, r.cell.batch, r.cell.precision, tuple(sorted(r.cell.options.items())))
        for r in earlier
    }
    axes = {name for point in points for name, _ in point[4]}
    often = _repetitions(read, subjects, earlier)
    document = campaign_document(read.said, points, axes, often, read.known.workloads)
    source = unsaved_file(read.path, document)
    file = cast(CampaignFile, validate(source, "campaign"))
    system = cast(
        SystemFile, validate(unsaved_file(read.path, system_document(read.said, read.known.workloads)), "system")
    )
    workloads = {name: read.known.workloads[name] for name in file.axes.workload}
    return resolve(read.path, file, system, workloads, Sources(source, source, {}))


def _repetitions(read: Map, subjects: Sequence[LogIdentity], earlier: Sequence[Record]) -> dict[str, int]:
    """Planned repetitions by workload: as the map says, or the most that a cell has."""
    counts: Counter[Point] = Counter()
    most: defaultdict[str, int] = defaultdict(lambda: 1)
    for each in subjects:
        workload = each.point[1]
        counts[each.point] += 1
        most[workload] = max(most[workload], each.repetition or counts[each.point])
    for record in earlier:
        most[record.cell.workload] = max(most[record.cell.workload], record.repetition)
    said = read.said.protocol.repetitions
    return {name: said or count for name, count in most.items()}


def _point(cell: Cell) -> Point:
    return cell.configuration.name, cell.workload, cell.batch, cell.precision, tuple(sorted(cell.options.items()))


class _Sorting:
    """Which of the logs are new, and which repetition each is. No log is imported twice, whatever it is called."""

    def __init__(
        self, campaign: Campaign, cells: Mapping[Point, Cell], directory: Path, records: Sequence[Record]
    ) -> None:
        self.campaign, self.cells, self.directory = campaign, cells, directory
        self.taken: dict[tuple[str, int], tuple[str, str]] = {}
        """(cell, repetition) -> (sha256, path)."""
        self.texts: dict[str, tuple[str, str, str]] = {}
        """sha256 of a log that is ok -> (path, cell, its words)."""
        self.left: Counter[tuple[str, str]] = Counter()
        """Records by (cell, sha256) that no file of this directory stands for yet."""
        for record in records:
            if record.source is None:
                continue
            self.taken[record.key] = (record.source.sha256, record.source.path)
            self.left[record.cell_id, record.source.sha256] += 1
            if record.status == "ok":
                words = f"{record.cell.configuration} · {record.cell.workload} · batch {record.cell.batch}"
                self.texts[record.source.sha256] = (record.source.path, record.cell_id, words)

    def sorted(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        # Repetitions that logs name themselves first: the others get what is free.
        done: dict[str, Entry] = {}
        for entry in sorted(entries, key=lambda entry: entry.identity is None or entry.identity.repetition is None):
            done[entry.path] = self.one(entry) if entry.identity is not None else entry
        yield from (done[entry.path] for entry in entries)

    def one(self, entry: Entry) -> Entry:
        try:
            return self.placed(entry, cast(LogIdentity, entry.identity))
        except Copy as error:
            return Entry(entry.path, "unread", str(error))
        except Unread as error:
            return replace(entry, fate="unread", why=str(error))

    def placed(self, entry: Entry, of: LogIdentity) -> Entry:
        axes = self.campaign.file.axes.options
        given = {**self.campaign.workloads[of.point[1]].options, **dict(of.point[4])}
        cell = self.cells[(*of.point[:4], tuple((name, given[name]) for name in sorted(axes)))]
        here = (cell.id, entry.sha256)
        if of.repetition is not None:
            sha256, path = self.taken.get((cell.id, of.repetition), ("", ""))
            if sha256 == entry.sha256 and self.left[here]:
                self.left[here] -= 1
                return replace(entry, fate="present", cell=cell, repetition=of.repetition)
            if sha256:
                raise Copy(
                    f"repetition {of.repetition} of its cell is there, from {path} with "
                    + (
                        "the same text"
                        if sha256 == entry.sha256
                        else "other content; move that record away to have this one"
                    )
                )
        elif self.left[here]:
            self.left[here] -= 1
            return replace(entry, fate="present", cell=cell)
        self.refuse_copy(entry, cell)
        outcome = outcome_of(self.campaign, cell, self.directory / entry.path, entry.found)
        if outcome.status == "ok":
            self.texts[entry.sha256] = (entry.path, cell.id, cell.label())
        repetition = of.repetition or self.free(cell)
        self.taken[cell.id, repetition] = (entry.sha256, entry.path)
        return replace(entry, cell=cell, repetition=repetition, outcome=outcome)

    def refuse_copy(self, entry: Entry, cell: Cell) -> None:
        """Two runs that fail may print the same; of two that are timed, one is the other's copy."""
        path, cell_id, words = self.texts.get(entry.sha256, ("", "", ""))
        if path and cell_id == cell.id:
            raise Copy(f"is a copy of {path}")
        if path:
            raise Copy(
                f"is a copy of {path}, which is a log of {words}; where the map has changed, import under another name, or "
                "delete the results of this one first"
            )

    def free(self, cell: Cell) -> int:
        number = 1
        while (cell.id, number) in self.taken:
            number += 1
        return number

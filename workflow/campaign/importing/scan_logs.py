"""Survey of a directory of logs by a map: the resulting campaign, and the outcome for every file. Nothing is written."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from campaign.common.errors import ConfigError
from campaign.importing.campaign_files import campaign_document, system_document
from campaign.importing.log_facts import (
    CellPoint,
    Copy,
    LogFacts,
    LogIdentity,
    Unread,
    digest,
    identify,
    look,
    outcome_of,
)
from campaign.importing.map_file import Map, unsaved_file
from campaign.importing.stated_settings import StatedSettings, find_difference
from campaign.plan.campaign.check import Sources
from campaign.plan.campaign.import_file import LogPattern
from campaign.plan.campaign.load import validate
from campaign.plan.campaign.resolve import Campaign, resolve
from campaign.plan.matrix import expand
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.cell import Cell
from campaign.spec.record import NO_LEASE_SAID, Record, RecordedCell
from campaign.spec.run_numbers import MOST, composition_of, number_in_composition, run_number
from campaign.spec.system_file import SystemFile
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import alike, several
from campaign.workloads.protocol import Outcome

LogFate = Literal["new", "present", "unread"]


@dataclass(frozen=True)
class ScannedLog:
    """File below the directory, or one of the tests in a file.

    Attributes:
        path: path below the directory.
        status: outcome of the file.
        reason: reason why the file is not read.
        sha256: SHA-256 of the file.
        test: number of the test in the file, or None if the file has one test.
        cell: cell of a new log.
        repetition: number of the run of a new log.
        identity: run that the log belongs to.
        facts: facts in the log.
        outcome: outcome of the run of a new log.
    """

    path: str
    fate: LogFate
    why: str = ""
    sha256: str = ""
    test: int | None = None
    cell: Cell | None = None
    repetition: int = 0
    identity: LogIdentity | None = None
    found: LogFacts = field(default_factory=LogFacts)
    outcome: Outcome | None = None

    @property
    def key(self) -> str:
        """SHA-256 of the file, with the number of the test."""
        return self.sha256 if self.test is None else f"{self.sha256}#{self.test}"

    @property
    def name(self) -> str:
        """Path of the file, with the number of the test."""
        return self.path if self.test is None else f"{self.path} (test {self.test})"


@dataclass(frozen=True)
class LogSurvey:
    """Result of a survey, with all files in the order of their paths.

    Attributes:
        directory: directory of the logs.
        campaign: resulting campaign.
        entries: files and tests.
        records: records of earlier imports.
        stray_record_count: number of records of earlier imports for which this map has no cell.
    """

    directory: Path
    campaign: Campaign
    entries: tuple[ScannedLog, ...]
    records: tuple[Record, ...] = ()
    strays: int = 0

    def of(self, fate: LogFate) -> list[ScannedLog]:
        """Return the entries with this status."""
        return [entry for entry in self.entries if entry.fate == fate]


def survey(directory: Path, read: Map, records: Sequence[Record] = ()) -> LogSurvey:
    """Survey every file of a directory. Nothing is written. Raises ConfigError if no log can be assigned to a run.

    Args:
        directory: directory of the logs.
        import_map: map of the import.
        records: records of earlier imports.
    """
    identified = [entry for path in _files(directory, read.ignored) for entry in _identified(path, directory, read)]
    identified = _reject_mixed_cells(identified, read)
    names = {c.name for c in read.known.configurations}
    earlier = [r for r in records if r.cell.configuration in names and r.cell.workload in read.known.workloads]
    if not earlier and all(entry.identity is None for entry in identified):
        reasons = {entry.why: entry.path for entry in reversed(identified[:3])}
        told = "; ".join(f"{path}: {why}" for why, path in reversed(reasons.items())) or "there are no files"
        raise ConfigError(f"{directory}: no log of a run was found by {read.path}: {told}")
    compositions = _compositions(identified, earlier)
    identified = [_numbered(entry, compositions) for entry in identified]
    sorted_out = _Sorting(_campaign(read, identified, earlier), directory, records, compositions).sorted(identified)
    # A copy adds neither a cell nor a repetition.
    campaign = _campaign(read, sorted_out, earlier)
    by_id = {cell.id: cell for cell in expand(campaign).cells}
    entries = tuple(entry if entry.cell is None else replace(entry, cell=by_id[entry.cell.id]) for entry in sorted_out)
    return LogSurvey(directory, campaign, entries, tuple(records), sum(r.cell_id not in by_id for r in records))


def _files(directory: Path, ignored: Iterable[re.Pattern[str]]) -> Iterator[Path]:
    """Yield the files below a directory in natural order, except the ignored ones."""
    if not directory.is_dir():
        raise ConfigError(f"{directory}: is not a directory; give the directory of the logs")
    for path in sorted(directory.rglob("*"), key=lambda path: _natural(path.relative_to(directory).as_posix())):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not any(each.fullmatch(name) for each in ignored):
            yield path


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that places run 10 after run 9."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", text)]


def _identified(path: Path, directory: Path, read: Map) -> list[ScannedLog]:
    """Identify the runs of a file, which is one run, or one per test in the file."""
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
        return [
            ScannedLog(name, "new", sha256=sha256, test=test, identity=identity, found=of)
            for test, identity, of in _runs_in(path, read, chosen, values, found)
        ]
    except Unread as error:
        return [ScannedLog(name, "unread", str(error))]


def _runs_in(
    path: Path, read: Map, pattern: LogPattern, values: Mapping[str, str], found: LogFacts
) -> Iterator[tuple[int | None, LogIdentity, LogFacts]]:
    """Yield (number of the test, run that it belongs to, facts) of every run in a log.

    The times of the runs are unknown if the log has several.
    """
    named = pattern.tests not in ("one", "repetitions")
    first = identify(read.known, pattern, values, found)
    workload = read.known.workloads[first.point[1]]
    tests = workload.tests(Log(path))
    settings = [StatedSettings(test.settings, test.rounded) for test in tests]
    if named and len({stated.values.get("precision") for stated in settings}) > 1:
        # The option distinguishes the precisions, which no label of the whole log could do.
        settings = [
            replace(each, values={n: v for n, v in each.values.items() if n != "precision"}) for each in settings
        ]
    if len(tests) < 2 or (pattern.tests == "one" and alike(tests)):
        for stated in settings[:1]:
            found = replace(found, settings=stated)
        yield None, identify(read.known, pattern, values, found), found
        return
    if pattern.tests == "one":
        raise Unread(
            f"{several(tests)}; say by 'test' of the workload which one counts, or by 'tests' of its pattern that each is a run"
        )
    if named and pattern.tests not in workload.options:
        raise Unread(f"tests: '{pattern.tests}' is no option of workload '{workload.name}'; add it to its options")
    if not named and first.repetition is not None:
        raise Unread(
            f"is repetition {first.repetition}, and has {len(tests)} tests, which would be as many; write * for {{repetition}}"
        )
    untimed = replace(found, start_s=None, end_s=None, duration_s=None)
    for number, test in enumerate(tests, 1):
        if named and not test.program:
            raise Unread(f"test {number} of {len(tests)} has no name; write 'tests: repetitions' where all are alike")
        said = {**found.values, pattern.tests: test.program} if named else found.values
        facts = replace(untimed, settings=settings[number - 1])
        yield number, identify(read.known, pattern, values, replace(facts, values=said)), facts


def _reject_mixed_cells(entries: Sequence[ScannedLog], read: Map) -> list[ScannedLog]:
    """Mark all runs of a cell as unread if their logs state different settings, such as different rates of requests."""
    runs: defaultdict[CellPoint, list[tuple[str, StatedSettings]]] = defaultdict(list)
    cells: list[CellPoint | None] = []
    for entry in entries:
        cell: CellPoint | None = None
        if entry.identity is not None:
            configuration, workload, batch, precision, given = entry.identity.point
            options = tuple(sorted({**read.known.workloads[workload].options, **dict(given)}.items()))
            cell = configuration, workload, batch, precision, options
            runs[cell].append((entry.name, entry.found.settings))
        cells.append(cell)
    problems = {cell: find_difference(stated) for cell, stated in runs.items()}
    return [
        ScannedLog(entry.path, "unread", problems[cell], test=entry.test)
        if cell is not None and problems[cell]
        else entry
        for entry, cell in zip(entries, cells, strict=True)
    ]


def _numbered(entry: ScannedLog, compositions: Mapping[tuple[str, str], int]) -> ScannedLog:
    """Return the entry unchanged, or marked as unread if its configuration already has the maximum number of leases."""
    of = entry.identity
    if of is None or compositions.get((of.point[0], of.lease), 1) <= MOST:
        return entry
    why = f"its configuration '{of.point[0]}' has {MOST} leases already; import the logs of others under another name"
    return ScannedLog(entry.path, "unread", why, test=entry.test)


def _campaign(read: Map, entries: Sequence[ScannedLog], earlier: Sequence[Record]) -> Campaign:
    """Build the campaign of all logs found now and in earlier imports."""
    points = [each.identity.point for each in entries if each.identity is not None]
    compositions = _compositions(entries, earlier)
    counts: Counter[tuple[CellPoint, int]] = Counter()
    runs: defaultdict[CellPoint, Counter[int]] = defaultdict(Counter)
    numbers: defaultdict[CellPoint, list[tuple[int, int]]] = defaultdict(list)
    for each in entries:
        if (of := each.identity) is not None:
            here = compositions.get((of.point[0], of.lease), 1)
            counts[of.point, here] += 1
            runs[of.point][here] = max(runs[of.point][here], counts[of.point, here], of.repetition or 1)
            numbers[of.point].append((here, of.repetition or 0))
    for record in earlier:
        points.append(point := _point(record.cell.configuration, record.cell))
        here, number = composition_of(record.repetition), number_in_composition(record.repetition)
        runs[point][here] = max(runs[point][here], number)
        numbers[point].append((here, number))
    # Runs without a log are not planned, unless the map plans them.
    often = {point: read.said.protocol.repetitions or _planned(runs[point], numbers[point]) for point in runs}
    axes = {name for point in points for name, _ in point[4]}
    known = read.known.workloads
    times = max([1, *compositions.values()])
    source = unsaved_file(read.path, campaign_document(read.said, set(points), axes, often, times, known))
    file = validate(source, CampaignFile)
    system = validate(unsaved_file(read.path, system_document(read.said, known)), SystemFile)
    workloads = {name: known[name] for name in file.axes.workload}
    return resolve(read.path, file, [system], workloads, Sources(source, {system.name: source}, {}))


def _planned(most: Counter[int], numbers: Sequence[tuple[int, int]]) -> int:
    """Return the number of planned runs of a cell, by the largest number in each composition.

    If numbers continue over all compositions, only the largest of them counts.

    Args:
        max_number_by_composition: largest number of a run by composition.
        numbers: pairs of the composition and the number of each run. The number is 0 if nothing states it.
    """
    by_number: defaultdict[int, set[int]] = defaultdict(set)
    for composition, number in numbers:
        by_number[number].add(composition)
    goes_on = len(most) > 1 and 0 not in by_number and all(len(of) == 1 for of in by_number.values())
    return max(by_number) if goes_on else most.total()


def _compositions(entries: Sequence[ScannedLog], records: Sequence[Record]) -> dict[tuple[str, str], int]:
    """Return the number of the composition by configuration and lease, as in earlier imports, then in the order of the logs.

    Runs without a stated lease are numbered as those of one composition.
    """
    known: dict[tuple[str, str], int] = {}
    for record in records:
        of = record.cell.configuration
        known[of, record.lease_id.partition(f".{of}.")[2]] = composition_of(record.repetition)
    most: Counter[str] = Counter()
    for (configuration, lease), number in known.items():
        if not lease.startswith(NO_LEASE_SAID):
            most[configuration] = max(most[configuration], number)
    for each in entries:
        if (identity := each.identity) is not None and identity.lease:
            key = identity.point[0], identity.lease
            if key not in known:
                known[key] = most[key[0]] = most[key[0]] + 1
    return known


def _point(configuration: str, cell: Cell | RecordedCell) -> CellPoint:
    return configuration, cell.workload, cell.batch, cell.precision, tuple(sorted(cell.options.items()))


class _Sorting:
    """Assigner of run numbers to logs, which also detects logs that are imported already.

    No log is imported twice, whatever its name is.
    """

    def __init__(
        self,
        campaign: Campaign,
        directory: Path,
        records: Sequence[Record],
        compositions: Mapping[tuple[str, str], int],
    ) -> None:
        self.campaign, self.directory, self.compositions = campaign, directory, compositions
        self.cells = {_point(cell.configuration.name, cell): cell for cell in expand(campaign).cells}
        self.taken: dict[tuple[str, int], tuple[str, str]] = {}
        """Key and path of the log by (cell id, run number)."""
        self.texts: dict[str, tuple[str, str, str]] = {}
        """Path, cell id and description by key of each valid log."""
        self.left: Counter[tuple[str, str]] = Counter()
        """Number of records by (cell id, key) for which no file of this directory was found yet."""
        for record in records:
            if record.source is None:
                continue
            self.taken[record.key] = (record.source.key, record.source.path)
            self.left[record.cell_id, record.source.key] += 1
            if record.status == "ok":
                words = f"{record.cell.configuration} · {record.cell.workload} · batch {record.cell.batch}"
                self.texts[record.source.key] = (record.source.path, record.cell_id, words)

    def sorted(self, entries: Sequence[ScannedLog]) -> list[ScannedLog]:
        """Return the entries with their cell, run number and outcome, or with the reason why they are not read."""
        done: dict[str, ScannedLog] = {}  # by path and test
        # First logs that have a record, then those that state their repetition. The remaining logs get free numbers.
        for entry in sorted(entries, key=self.turn):
            try:
                done[entry.name] = entry if entry.identity is None else self.placed(entry, entry.identity)
            except Copy as error:
                done[entry.name] = ScannedLog(entry.path, "unread", str(error), test=entry.test)
            except Unread as error:
                done[entry.name] = replace(entry, fate="unread", why=str(error))
        return [done[entry.name] for entry in entries]

    def turn(self, entry: ScannedLog) -> int:
        """Return the position at which an entry is handled: 0 if its log has a record, 1 if it states its run number, else 2."""
        if entry.identity is None or not (run := self.run(entry.identity)):
            return 2
        sha256, _ = self.taken.get((self.cell(entry.identity).id, run), ("", ""))
        return int(sha256 != entry.key)

    def cell(self, of: LogIdentity) -> Cell:
        """Return the cell that a log belongs to."""
        given = {**self.campaign.workloads[of.point[1]].options, **dict(of.point[4])}
        options = tuple((name, given[name]) for name in sorted(self.campaign.file.axes.options))
        return self.cells[(*of.point[:4], options)]

    def composition(self, of: LogIdentity) -> int:
        """Return the number of the composition that a log belongs to."""
        return self.compositions.get((of.point[0], of.lease), 1)

    def run(self, of: LogIdentity) -> int:
        """Return the number of the run that a log states itself, or 0 if it states none."""
        return run_number(self.composition(of), of.repetition) if of.repetition else 0

    def placed(self, entry: ScannedLog, of: LogIdentity) -> ScannedLog:
        """Return the entry with its cell, run number and outcome.

        Raises DuplicateLogError for a copy of another log, and UnreadLogError if no run number is free.
        """
        cell, run = self.cell(of), self.run(of)
        sha256, path = self.taken.get((cell.id, run), ("", ""))
        same = sha256 == entry.key
        if self.left[cell.id, entry.key] and (same or not sha256):
            self.left[cell.id, entry.key] -= 1
            return replace(entry, fate="present", cell=cell, repetition=run)
        if sha256:
            what = "the same text" if same else "other content; move that record away to have this one"
            raise Copy(f"repetition {of.repetition} of its cell is there, from {path} with {what}")
        # Two failed runs may print the same text. So may valid runs whose logs have no time; repetition or cell distinguish these.
        path, cell_id, words = self.texts.get(entry.key, ("", "", ""))
        timed = entry.found.start_s is not None or entry.found.end_s is not None
        told_apart = not timed and path != entry.path and (of.repetition is not None or cell_id != cell.id)
        if path and not told_apart and cell_id == cell.id:
            raise Copy(f"is a copy of {path}")
        if path and not told_apart:
            raise Copy(
                f"is a copy of {path}, which is a log of {words}; where the map has changed, import under another name, or "
                "delete the results of this one first"
            )
        outcome = outcome_of(self.campaign, cell, self.directory / entry.path, entry.found, entry.test)
        if outcome.status == "ok":
            self.texts[entry.key] = (entry.path, cell.id, cell.label())
        numbers = (run_number(self.composition(of), number) for number in range(1, MOST + 1))
        repetition = run or next((number for number in numbers if (cell.id, number) not in self.taken), 0)
        if not repetition:
            raise Unread(
                f"its cell has {MOST} runs already; say by 'lease' of the map which of them share a composition"
            )
        self.taken[cell.id, repetition] = (entry.key, entry.path)
        return replace(entry, cell=cell, repetition=repetition, outcome=outcome)

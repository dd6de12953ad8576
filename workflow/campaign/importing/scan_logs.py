"""Survey of a directory of logs by a map: the resulting campaign, and the outcome for every file. Nothing is written."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from campaign.common.errors import ConfigError
from campaign.importing.campaign_files import make_campaign_document, make_system_document
from campaign.importing.log_facts import (
    CellPoint,
    DuplicateLogError,
    LogFacts,
    LogIdentity,
    LogImportError,
    hash_log,
    identify_run,
    read_log_facts,
    read_outcome,
)
from campaign.importing.map_file import ImportMap, make_yaml_file
from campaign.importing.stated_settings import StatedSettings, find_difference
from campaign.plan.campaign.check import Sources
from campaign.plan.campaign.import_file import LogPattern
from campaign.plan.campaign.load import validate
from campaign.plan.campaign.resolve import Campaign, resolve_campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.cell import Cell
from campaign.spec.record import IMPORTED_LEASE_PREFIX, Record, RecordedCell
from campaign.spec.run_numbers import (
    MAX_RUNS_PER_COMPOSITION,
    compute_run_number,
    get_composition_number,
    get_number_in_composition,
)
from campaign.spec.system_file import SystemFile
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import describe_tests, have_equal_numbers
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
    status: LogFate
    reason: str = ""
    sha256: str = ""
    test: int | None = None
    cell: Cell | None = None
    repetition: int = 0
    identity: LogIdentity | None = None
    facts: LogFacts = field(default_factory=LogFacts)
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
    stray_record_count: int = 0

    def select_entries(self, status: LogFate) -> list[ScannedLog]:
        """Return the entries with this status."""
        return [entry for entry in self.entries if entry.status == status]


def survey_logs(directory: Path, import_map: ImportMap, records: Sequence[Record] = ()) -> LogSurvey:
    """Survey all files in a directory without writing anything. Raises ConfigError if no log can be assigned to a run.

    Args:
        directory: directory of the logs.
        import_map: map of the import.
        records: records of earlier imports.
    """
    entries = [
        entry
        for path in _list_log_files(directory, import_map.ignored_paths)
        for entry in _identify_file(path, directory, import_map)
    ]
    entries = _reject_mixed_cells(entries, import_map)
    names = {c.name for c in import_map.declarations.configurations}
    earlier_records = [
        r for r in records if r.cell.configuration in names and r.cell.workload in import_map.declarations.workloads
    ]
    if not earlier_records and all(entry.identity is None for entry in entries):
        reasons = {entry.reason: entry.path for entry in reversed(entries[:3])}
        examples = "; ".join(f"{path}: {reason}" for reason, path in reversed(reasons.items())) or "there are no files"
        raise ConfigError(f"{directory}: {import_map.path} matches no log of a run ({examples})")
    compositions = _number_compositions(entries, earlier_records)
    entries = [_reject_excess_leases(entry, compositions) for entry in entries]
    campaign = _build_campaign(import_map, entries, earlier_records)
    cells = expand_matrix(campaign).cells
    placed_entries = _RunAssigner(campaign, cells, directory, records, compositions).assign_runs(entries)
    if [entry.identity for entry in placed_entries] != [entry.identity for entry in entries]:
        # A copy adds neither a cell nor a repetition.
        campaign = _build_campaign(import_map, placed_entries, earlier_records)
        cells = expand_matrix(campaign).cells
    by_id = {cell.id: cell for cell in cells}
    final_entries = tuple(
        entry if entry.cell is None else replace(entry, cell=by_id[entry.cell.id]) for entry in placed_entries
    )
    return LogSurvey(directory, campaign, final_entries, tuple(records), sum(r.cell_id not in by_id for r in records))


def _list_log_files(directory: Path, ignored_paths: Iterable[re.Pattern[str]]) -> Iterator[Path]:
    """Yield the files below a directory in natural order, except the ignored ones."""
    if not directory.is_dir():
        raise ConfigError(f"{directory}: is not a directory; give the directory of the logs")
    for path in sorted(directory.rglob("*"), key=lambda path: _make_sort_key(path.relative_to(directory).as_posix())):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not any(pattern.fullmatch(name) for pattern in ignored_paths):
            yield path


def _make_sort_key(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that places run 10 after run 9."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", text)]


def _identify_file(path: Path, directory: Path, import_map: ImportMap) -> list[ScannedLog]:
    """Identify the runs of a file, which is one run, or one per test in the file."""
    name = path.relative_to(directory).as_posix()
    try:
        matches = (
            (log_pattern, values)
            for log_pattern, path_pattern in import_map.patterns
            if (values := path_pattern.match(name)) is not None
        )
        matching_pattern, values = next(matches, (None, {}))
        if matching_pattern is None:
            raise LogImportError("no pattern in the map matches its path")
        sha256 = hash_log(path)
        facts = read_log_facts(matching_pattern, Log(path))
        if facts.problems:
            raise LogImportError("; ".join(facts.problems))
        return [
            ScannedLog(name, "new", sha256=sha256, test=test, identity=identity, facts=run_facts)
            for test, identity, run_facts in _identify_runs(path, import_map, matching_pattern, values, facts)
        ]
    except LogImportError as error:
        return [ScannedLog(name, "unread", str(error))]


def _identify_runs(
    path: Path, import_map: ImportMap, pattern: LogPattern, path_values: Mapping[str, str], log_facts: LogFacts
) -> Iterator[tuple[int | None, LogIdentity, LogFacts]]:
    """Yield (number of the test, run that it belongs to, facts) of every run in a log.

    The times of the runs are unknown if the log has several.
    """
    is_named = pattern.tests not in ("one", "repetitions")
    first = identify_run(import_map.declarations, pattern, path_values, log_facts)
    workload = import_map.declarations.workloads[first.point[1]]
    tests = workload.parse_tests(Log(path))
    settings = [StatedSettings(test.settings, test.rounded) for test in tests]
    if is_named and len({log_settings.values.get("precision") for log_settings in settings}) > 1:
        # The option distinguishes the precisions, which no label of the whole log could do.
        settings = [
            replace(test_settings, values={n: v for n, v in test_settings.values.items() if n != "precision"})
            for test_settings in settings
        ]
    if len(tests) < 2 or (pattern.tests == "one" and have_equal_numbers(tests)):
        for log_settings in settings[:1]:
            log_facts = replace(log_facts, settings=log_settings)
        yield None, identify_run(import_map.declarations, pattern, path_values, log_facts), log_facts
        return
    if pattern.tests == "one":
        raise LogImportError(
            f"{describe_tests(tests)}; select one with 'test' of the workload, "
            "or import each as a run with 'tests' of the pattern"
        )
    if is_named and pattern.tests not in workload.options:
        raise LogImportError(
            f"tests: '{pattern.tests}' is not an option of workload '{workload.name}'; add it to its options"
        )
    if not is_named and first.repetition is not None:
        raise LogImportError(
            f"is repetition {first.repetition} but has {len(tests)} tests, each of which is a repetition; "
            "write * instead of {repetition}"
        )
    untimed_facts = replace(log_facts, start_s=None, end_s=None, duration_s=None)
    for number, test in enumerate(tests, 1):
        if is_named and not test.program:
            raise LogImportError(
                f"test {number} of {len(tests)} has no name; write 'tests: repetitions' if all tests are alike"
            )
        test_values = {**log_facts.values, pattern.tests: test.program} if is_named else log_facts.values
        test_facts = replace(untimed_facts, settings=settings[number - 1])
        yield (
            number,
            identify_run(import_map.declarations, pattern, path_values, replace(test_facts, values=test_values)),
            test_facts,
        )


def _reject_mixed_cells(entries: Sequence[ScannedLog], import_map: ImportMap) -> list[ScannedLog]:
    """Mark all runs of a cell as unread if their logs state different settings, such as different rates of requests."""
    runs: defaultdict[CellPoint, list[tuple[str, StatedSettings]]] = defaultdict(list)
    cells: list[CellPoint | None] = []
    for entry in entries:
        cell: CellPoint | None = None
        if entry.identity is not None:
            configuration, workload, batch, precision, option_values = entry.identity.point
            options = tuple(
                sorted({**import_map.declarations.workloads[workload].options, **dict(option_values)}.items())
            )
            cell = configuration, workload, batch, precision, options
            runs[cell].append((entry.name, entry.facts.settings))
        cells.append(cell)
    problems = {cell: find_difference(settings_by_file) for cell, settings_by_file in runs.items()}
    return [
        ScannedLog(entry.path, "unread", problems[cell], test=entry.test)
        if cell is not None and problems[cell]
        else entry
        for entry, cell in zip(entries, cells, strict=True)
    ]


def _reject_excess_leases(entry: ScannedLog, compositions: Mapping[tuple[str, str], int]) -> ScannedLog:
    """Return the entry unchanged, or marked as unread if its configuration already has the maximum number of leases."""
    identity = entry.identity
    if identity is None or compositions.get((identity.point[0], identity.lease), 1) <= MAX_RUNS_PER_COMPOSITION:
        return entry
    reason = (
        f"its configuration '{identity.point[0]}' has {MAX_RUNS_PER_COMPOSITION} "
        "leases already; import the logs of further leases under another name"
    )
    return ScannedLog(entry.path, "unread", reason, test=entry.test)


def _build_campaign(
    import_map: ImportMap, entries: Sequence[ScannedLog], earlier_records: Sequence[Record]
) -> Campaign:
    """Build the campaign of all logs found now and in earlier imports."""
    points = [entry.identity.point for entry in entries if entry.identity is not None]
    compositions = _number_compositions(entries, earlier_records)
    counts: Counter[tuple[CellPoint, int]] = Counter()
    runs: defaultdict[CellPoint, Counter[int]] = defaultdict(Counter)
    numbers: defaultdict[CellPoint, list[tuple[int, int]]] = defaultdict(list)
    for entry in entries:
        if (identity := entry.identity) is not None:
            composition = compositions.get((identity.point[0], identity.lease), 1)
            counts[identity.point, composition] += 1
            runs[identity.point][composition] = max(
                runs[identity.point][composition], counts[identity.point, composition], identity.repetition or 1
            )
            numbers[identity.point].append((composition, identity.repetition or 0))
    for record in earlier_records:
        points.append(point := _make_point(record.cell.configuration, record.cell))
        composition, number = get_composition_number(record.repetition), get_number_in_composition(record.repetition)
        runs[point][composition] = max(runs[point][composition], number)
        numbers[point].append((composition, number))
    # Runs without a log are not planned, unless the map plans them.
    repetitions = {
        point: import_map.import_file.protocol.repetitions or _count_planned_runs(runs[point], numbers[point])
        for point in runs
    }
    axes = {name for point in points for name, _ in point[4]}
    declared_workloads = import_map.declarations.workloads
    composition_count = max([1, *compositions.values()])
    source = make_yaml_file(
        import_map.path,
        make_campaign_document(
            import_map.import_file, set(points), axes, repetitions, composition_count, declared_workloads
        ),
    )
    file = validate(source, CampaignFile)
    system = validate(
        make_yaml_file(import_map.path, make_system_document(import_map.import_file, declared_workloads)), SystemFile
    )
    workloads = {name: declared_workloads[name] for name in file.axes.workload}
    return resolve_campaign(import_map.path, file, [system], workloads, Sources(source, {system.name: source}, {}))


def _count_planned_runs(max_number_by_composition: Counter[int], numbers: Sequence[tuple[int, int]]) -> int:
    """Return the number of planned runs of a cell, by the largest number in each composition.

    If numbers continue over all compositions, only the largest of them counts.

    Args:
        max_number_by_composition: largest number of a run by composition.
        numbers: pairs of the composition and the number of each run. The number is 0 if nothing states it.
    """
    compositions_by_number: defaultdict[int, set[int]] = defaultdict(set)
    for composition, number in numbers:
        compositions_by_number[number].add(composition)
    is_continuous = (
        len(max_number_by_composition) > 1
        and 0 not in compositions_by_number
        and all(len(composition_set) == 1 for composition_set in compositions_by_number.values())
    )
    return max(compositions_by_number) if is_continuous else max_number_by_composition.total()


def _number_compositions(entries: Sequence[ScannedLog], records: Sequence[Record]) -> dict[tuple[str, str], int]:
    """Return the number of the composition by configuration and lease, as in earlier imports, then in the order of the logs.

    Runs without a stated lease are numbered as those of one composition.
    """
    number_by_lease: dict[tuple[str, str], int] = {}
    for record in records:
        record_configuration = record.cell.configuration
        number_by_lease[record_configuration, record.lease_id.partition(f".{record_configuration}.")[2]] = (
            get_composition_number(record.repetition)
        )
    max_number: Counter[str] = Counter()
    for (configuration, lease), number in number_by_lease.items():
        if not lease.startswith(IMPORTED_LEASE_PREFIX):
            max_number[configuration] = max(max_number[configuration], number)
    for entry in entries:
        if (identity := entry.identity) is not None and identity.lease:
            key = identity.point[0], identity.lease
            if key not in number_by_lease:
                number_by_lease[key] = max_number[key[0]] = max_number[key[0]] + 1
    return number_by_lease


def _make_point(configuration: str, cell: Cell | RecordedCell) -> CellPoint:
    return configuration, cell.workload, cell.batch, cell.precision, tuple(sorted(cell.options.items()))


class _RunAssigner:
    """Assigner of run numbers to logs, which also detects logs that are imported already.

    No log is imported twice, whatever its name is.
    """

    def __init__(
        self,
        campaign: Campaign,
        cells: Iterable[Cell],
        directory: Path,
        records: Sequence[Record],
        compositions: Mapping[tuple[str, str], int],
    ) -> None:
        self.campaign, self.directory, self.compositions = campaign, directory, compositions
        self.cells = {_make_point(cell.configuration.name, cell): cell for cell in cells}
        self.log_by_run: dict[tuple[str, int], tuple[str, str]] = {}
        """Key and path of the log by (cell id, run number)."""
        self.valid_logs: dict[str, tuple[str, str, str]] = {}
        """Path, cell id and description by key of each valid log."""
        self.unmatched_records: Counter[tuple[str, str]] = Counter()
        """Number of records by (cell id, key) for which no file of this directory was found yet."""
        for record in records:
            if record.source is None:
                continue
            self.log_by_run[record.key] = (record.source.key, record.source.path)
            self.unmatched_records[record.cell_id, record.source.key] += 1
            if record.status == "ok":
                words = f"{record.cell.configuration} · {record.cell.workload} · batch {record.cell.batch}"
                self.valid_logs[record.source.key] = (record.source.path, record.cell_id, words)

    def assign_runs(self, entries: Sequence[ScannedLog]) -> list[ScannedLog]:
        """Return the entries with their cell, run number and outcome, or with the reason why they are not read."""
        entry_by_name: dict[str, ScannedLog] = {}
        # Logs with a record come first, then logs that state their repetition. The remaining logs get free numbers.
        for entry in sorted(entries, key=self.get_priority):
            try:
                entry_by_name[entry.name] = entry if entry.identity is None else self.assign_run(entry, entry.identity)
            except DuplicateLogError as error:
                entry_by_name[entry.name] = ScannedLog(entry.path, "unread", str(error), test=entry.test)
            except LogImportError as error:
                entry_by_name[entry.name] = replace(entry, status="unread", reason=str(error))
        return [entry_by_name[entry.name] for entry in entries]

    def get_priority(self, entry: ScannedLog) -> int:
        """Return the position at which an entry is handled: 0 if its log has a record, 1 if it states its run number, else 2."""
        if entry.identity is None or not (run := self.get_run_number(entry.identity)):
            return 2
        sha256, _ = self.log_by_run.get((self.find_cell(entry.identity).id, run), ("", ""))
        return int(sha256 != entry.key)

    def find_cell(self, identity: LogIdentity) -> Cell:
        """Return the cell that a log belongs to."""
        option_values = {**self.campaign.workloads[identity.point[1]].options, **dict(identity.point[4])}
        options = tuple((name, option_values[name]) for name in sorted(self.campaign.file.axes.options))
        return self.cells[(*identity.point[:4], options)]

    def get_composition(self, identity: LogIdentity) -> int:
        """Return the number of the composition that a log belongs to."""
        return self.compositions.get((identity.point[0], identity.lease), 1)

    def get_run_number(self, identity: LogIdentity) -> int:
        """Return the run number stated in a log, or 0 if there is none."""
        return compute_run_number(self.get_composition(identity), identity.repetition) if identity.repetition else 0

    def assign_run(self, entry: ScannedLog, identity: LogIdentity) -> ScannedLog:
        """Return the entry with its cell, run number and outcome.

        Raises DuplicateLogError for a copy of another log, and LogImportError if no run number is free.
        """
        cell, run = self.find_cell(identity), self.get_run_number(identity)
        sha256, path = self.log_by_run.get((cell.id, run), ("", ""))
        is_same_log = sha256 == entry.key
        if self.unmatched_records[cell.id, entry.key] and (is_same_log or not sha256):
            self.unmatched_records[cell.id, entry.key] -= 1
            return replace(entry, status="present", cell=cell, repetition=run)
        if sha256:
            difference = (
                "the same content" if is_same_log else "other content; move that record away to import this log instead"
            )
            raise DuplicateLogError(
                f"repetition {identity.repetition} of its cell was already imported from {path} with {difference}"
            )
        # Two failed runs may print the same text. So may valid runs whose logs have no time; repetition or cell distinguish these.
        path, cell_id, description = self.valid_logs.get(entry.key, ("", "", ""))
        has_time = entry.facts.start_s is not None or entry.facts.end_s is not None
        is_distinguishable = (
            not has_time and path != entry.path and (identity.repetition is not None or cell_id != cell.id)
        )
        if path and not is_distinguishable and cell_id == cell.id:
            raise DuplicateLogError(f"is a copy of {path}")
        if path and not is_distinguishable:
            raise DuplicateLogError(
                f"is a copy of {path}, which is a log of {description}; if the map has changed, import under another name, or "
                "delete the earlier results first"
            )
        outcome = read_outcome(self.campaign, cell, self.directory / entry.path, entry.facts, entry.test)
        if outcome.status == "ok":
            self.valid_logs[entry.key] = (entry.path, cell.id, cell.label())
        numbers = (
            compute_run_number(self.get_composition(identity), number)
            for number in range(1, MAX_RUNS_PER_COMPOSITION + 1)
        )
        repetition = run or next((number for number in numbers if (cell.id, number) not in self.log_by_run), 0)
        if not repetition:
            raise LogImportError(
                f"its cell has {MAX_RUNS_PER_COMPOSITION} runs already; use 'lease' in the map to state which of them share a "
                "composition"
            )
        self.log_by_run[cell.id, repetition] = (entry.key, entry.path)
        return replace(entry, cell=cell, repetition=repetition, outcome=outcome)

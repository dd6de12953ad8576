"""Adaptive repetitions: a cell is repeated until the 95 % interval of its mean is narrow enough (`has_ended`).

The rule applies to each composition separately, to the interval of the runs on it. Leases are therefore independent and may be
measured at the same time. The interval shows how well the mean of one composition is known. The report computes the differences
between compositions from their means.

The progress of a cell in a composition is stored next to the records as one small file, whose name contains all of it
(`stops/<first two digits>/<cell id>.<number of the last run>.<half-width in ppm>.<failures>.json`). The file stores the precision
that was reached and not the target. With a smaller target the cell is therefore continued, and with a larger one it ends.

The interval is Student's (`campaign.run.adaptive_repetitions`). It is also used for 20 runs and more, for which the report uses
the bootstrap, because it costs nothing between two runs and is equally wide. It is computed after every run, and the runs end
when it is narrow enough for the first time. Such an interval covers the true mean less often than the interval of a fixed number
of runs. Coverage in simulations with normal noise, 20,000 cells each, for a nominal coverage of 95 %:

    noise (CV)  target  min.   max.   covers  mean repetitions
       1 %       2 %      3     10    94.9 %        3.7
       2 %       2 %      3     10    92.3 %        6.0
       2 %       2 %      5     10    94.5 %        6.6
       2 %       1 %      3     30    90.3 %       15.9
       2 %       1 %     10     30    93.5 %       17.1
       3 %       2 %      3     10    90.9 %        8.3  (of the cells that reach the target: 84.4 %)

A larger minimum number of repetitions improves the coverage.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaign.common.errors import RecordError
from campaign.common.files import write_once
from campaign.common.paths import Results
from campaign.spec.cell import Cell, Settings
from campaign.spec.run_numbers import (
    MAX_RUNS_PER_COMPOSITION,
    RunKey,
    compute_run_number,
    get_composition_number,
    get_number_in_composition,
    list_compositions,
    list_run_numbers,
    with_composition,
)

CellComposition = tuple[str, int]
"""Id of a cell, and a composition."""

_NAME = re.compile(r"([0-9a-f]{20})\.(\d{1,6})\.(\d{1,15}|none)\.(\d{1,6})\.json")


@dataclass(frozen=True, slots=True)
class CellProgress:
    """Progress of a cell in one composition after its first `repetitions` runs.

    Args:
        repetitions: number of runs.
        failures: number of runs that are not valid.
        half_width_ppm: half-width of the 95 % interval in millionths of the mean, rounded up; None without an interval (fewer
            than two valid runs, or a mean that is not positive).
        composition: number of the composition.
    """

    repetitions: int
    failures: int
    half_width_ppm: int | None
    composition: int = 1

    @property
    def half_width_pct(self) -> float | None:
        return None if self.half_width_ppm is None else self.half_width_ppm / 1e4

    def file_name(self, cell_id: str) -> str:
        """Return the name of the file that stores this progress."""
        width = "none" if self.half_width_ppm is None else self.half_width_ppm
        return f"{cell_id}.{compute_run_number(self.composition, self.repetitions)}.{width}.{self.failures}.json"


def min_runs(settings: Settings) -> int:
    """Return the minimum number of runs of a cell in one composition, if there is a target.

    It is the composition's share of `repetitions_min`. With several compositions it is at least 2, because an interval needs two
    runs.
    """
    k = settings.compositions
    return settings.repetitions_min if k == 1 else max(2, -(-settings.repetitions_min // k))


def max_runs(settings: Settings, composition: int) -> int:
    """Return the maximum number of runs of a cell in one composition."""
    return len(list_run_numbers(with_composition(settings, composition)))


def has_ended(cell: CellProgress, settings: Settings) -> bool:
    """Return whether a target ends the cell in its composition before the maximum number of runs.

    The cell ends if the target is reached, or if the number of failed runs equals the minimum number of runs.
    """
    target, minimum = settings.target_half_width_pct, min_runs(settings)
    if target is None:
        return False
    if cell.failures >= minimum:
        return True
    believed = cell.repetitions - cell.failures
    return believed >= minimum and cell.half_width_pct is not None and cell.half_width_pct <= target


def list_planned_runs(
    settings: Settings,
    cell_id: str,
    measured: Collection[RunKey],
    stops: Mapping[CellComposition, CellProgress] | None = None,
) -> tuple[int, ...]:
    """Return the numbers of the planned runs of a cell.

    Runs after the end of the cell in their composition are left out. A stop counts only while all its runs have a record.

    Args:
        settings: settings of the cell.
        cell_id: id of the cell.
        measured: keys of the runs that have a record.
        stops: progress of cells by composition.
    """
    runs = list_run_numbers(settings)
    if settings.target_half_width_pct is None or not stops:
        return runs
    ended_by_composition = {
        c: stop for c in list_compositions(settings) if (stop := stops.get((cell_id, c))) and has_ended(stop, settings)
    }
    last_runs = {
        c: stop.repetitions
        for c, stop in ended_by_composition.items()
        if all((cell_id, compute_run_number(c, number)) in measured for number in range(1, stop.repetitions + 1))
    }
    return tuple(
        run
        for run in runs
        if get_number_in_composition(run) <= last_runs.get(get_composition_number(run), MAX_RUNS_PER_COMPOSITION)
    )


def min_remaining_runs(settings: Settings, remaining: int) -> int:
    """Return the minimum number of repetitions that a cell still needs in one composition.

    Args:
        settings: settings of the cell.
        remaining: number of remaining repetitions of a cell that has not ended.
    """
    if settings.target_half_width_pct is None or not remaining:
        return remaining
    return min(remaining, max(1, min_runs(settings) - (len(list_run_numbers(settings)) - remaining)))


def estimate_remaining_runs(settings: Settings, remaining: int, median_repetitions: int | None) -> int:
    """Estimate how many of a cell's remaining repetitions will be needed in one composition.

    Args:
        settings: settings of the cell.
        remaining: number of remaining repetitions.
        median_repetitions: number of repetitions after which other cells ended; None to assume that all are needed.
    """
    if median_repetitions is None:
        return remaining
    return max(
        min_remaining_runs(settings, remaining),
        min(remaining, median_repetitions - (len(list_run_numbers(settings)) - remaining)),
    )


def median_ended_repetitions(stops: Iterable[CellProgress]) -> int | None:
    """Return the median number of repetitions after which cells ended in a composition, or None if none has ended."""
    counts = sorted(stop.repetitions for stop in stops)
    return counts[len(counts) // 2] if counts else None


def format_repetition_count(settings: Settings) -> str:
    """Format the number of repetitions of a cell, such as '3' or '3-10'."""
    counts = [max_runs(settings, composition) for composition in list_compositions(settings)]
    at_least = sum(min(count, min_runs(settings)) for count in counts)
    if settings.target_half_width_pct is None or at_least >= sum(counts):
        return str(sum(counts))
    return f"{at_least}-{sum(counts)}"


def explain_end(cell: CellProgress, settings: Settings) -> str:
    """Explain why the last of these runs ends the cell. Returns an empty string if it does not or there is no target."""
    target = settings.target_half_width_pct
    if target is None:
        return ""
    width = "is unbounded" if cell.half_width_pct is None else f"is ±{_format_percent(cell.half_width_pct)} of the mean"
    where = "" if settings.compositions == 1 else f" in composition {cell.composition}"
    if not has_ended(cell, settings):
        count = max_runs(settings, cell.composition)
        if cell.repetitions < count:
            return ""
        return f"the maximum of {count} repetitions is reached{where}; the 95 % interval {width}, the target is ±{target:g} %"
    if cell.failures >= min_runs(settings):
        return f"{cell.failures} of {cell.repetitions} repetitions failed{where}, and {min_runs(settings)} failures end a cell"
    return f"after {cell.repetitions} repetitions{where}, the 95 % interval {width}, the target is ±{target:g} %"


def _format_percent(value: float) -> str:
    # The value is rounded up to two significant digits.
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    scale = 10.0 ** max(digits, 0)
    return f"{math.ceil(value * scale - 1e-9) / scale:g} %"


class StopFiles:
    """Files of one results directory that store the progress of cells."""

    def __init__(self, results: Path) -> None:
        self.directory = Results.from_directory(results).stopped_cells

    def file_path(self, cell_id: str, cell: CellProgress) -> Path:
        return self.directory / cell_id[:2] / cell.file_name(cell_id)

    def read_all(self) -> dict[CellComposition, CellProgress]:
        """Return the progress of every cell by composition, from file names alone.

        The progress with the most repetitions counts.
        """
        return _parse_names(_list_names(self.directory))

    def read_cell(self, cell_id: str) -> dict[CellComposition, CellProgress]:
        """Return the progress of one cell by composition."""
        return _parse_names(path.name for path in (self.directory / cell_id[:2]).glob(f"{cell_id}.*.json"))

    def write(self, cell: Cell, progress: CellProgress) -> None:
        words = {"cell": cell.label(), "stopped": explain_end(progress, cell.settings)}
        write_once(self.file_path(cell.id, progress), (json.dumps(words, ensure_ascii=False) + "\n").encode())

    def remove(self, cell_id: str, composition: int) -> None:
        """Remove the progress of a cell in a composition, because its runs change."""
        for path in (self.directory / cell_id[:2]).glob(f"{cell_id}.*.json"):
            match = _NAME.fullmatch(path.name)
            if match and get_composition_number(int(match[2])) == composition:
                path.unlink(missing_ok=True)


def _parse_names(names: Iterable[str]) -> dict[CellComposition, CellProgress]:
    progress_by_cell: dict[CellComposition, CellProgress] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            run, width = int(match[2]), None if match[3] == "none" else int(match[3])
            progress = CellProgress(get_number_in_composition(run), int(match[4]), width, get_composition_number(run))
            key = (match[1], progress.composition)
            if key not in progress_by_cell or progress_by_cell[key].repetitions < progress.repetitions:
                progress_by_cell[key] = progress
    return progress_by_cell


def _list_names(directory: Path) -> Iterable[str]:
    try:
        shards = list(os.scandir(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{directory}: cannot be listed ({error.strerror}); fix its permissions") from error
    for shard in shards:
        with suppress(NotADirectoryError):
            yield from (entry.name for entry in os.scandir(shard.path))

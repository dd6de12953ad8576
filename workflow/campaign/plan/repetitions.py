"""Adaptive repetitions: a cell is repeated until the 95 % interval of its mean is narrow enough. One rule: `begins_next_run`.

The rule holds for each composition by itself: the interval is that of the runs on it. So leases need not know of each other, and
may be measured at the same time. It says how well the runs of a composition are known; how compositions differ, no number of runs
on one of them tells, and the report takes that from the means of the compositions.

What the runs of a cell in a composition have reached is kept beside the records as one small file, whose name says it all
(`stops/<first two digits>/<cell id>.<number of the last run>.<half-width in ppm>.<failures>.json`). It says what was reached, not
what was asked for: so a smaller target goes on with the cell, and a larger one ends it.

The interval is Student's (`campaign.run.adaptive_repetitions`), over the runs that there are, also of 20 and more, which the report
bootstraps: it costs nothing between two runs, and both are as wide. It is looked at after every run, and the runs end
the first time that it looks good. An interval that was waited for like this covers the true mean less often than one of as many
runs that were fixed beforehand. Simulated with normal noise, 20,000 cells each, where it is to cover 95 %:

    noise (CV)  target  least  most   covers  mean repetitions
       1 %       2 %      3     10    94.9 %        3.7
       2 %       2 %      3     10    92.3 %        6.0
       2 %       2 %      5     10    94.5 %        6.6
       2 %       1 %      3     30    90.3 %       15.9
       2 %       1 %     10     30    93.5 %       17.1
       3 %       2 %      3     10    90.9 %        8.3  (of the cells that reach the target: 84.4 %)

A larger least number of repetitions is what helps.
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
    MOST,
    RunKey,
    composition_of,
    compositions_of,
    in_composition,
    number_in_composition,
    run_number,
    runs_of,
)

CellComposition = tuple[str, int]
"""Id of a cell, and a composition."""

_NAME = re.compile(r"([0-9a-f]{20})\.(\d{1,6})\.(\d{1,15}|none)\.(\d{1,6})\.json")


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of a cell in one composition after its first `repetitions` runs.

    failures: number of runs that are not believed. half_width_ppm: half-width of the 95 % interval, in millionths of the mean,
    rounded up; None without an interval (fewer than two believed runs, or a mean that is not positive).
    """

    repetitions: int
    failures: int
    half_width_ppm: int | None
    composition: int = 1

    @property
    def half_width_pct(self) -> float | None:
        return None if self.half_width_ppm is None else self.half_width_ppm / 1e4

    def name(self, cell_id: str) -> str:
        """Return the name of the file that stores this progress."""
        width = "none" if self.half_width_ppm is None else self.half_width_ppm
        return f"{cell_id}.{run_number(self.composition, self.repetitions)}.{width}.{self.failures}.json"


def fewest(settings: Settings) -> int:
    """Return the minimum number of runs of a cell in one composition, if there is a target.

    It is the composition's share of `repetitions_min`, and at least 2 with several compositions, as one run has no interval.
    """
    k = settings.compositions
    return settings.repetitions_min if k == 1 else max(2, -(-settings.repetitions_min // k))


def most(settings: Settings, composition: int) -> int:
    """Return the maximum number of runs of a cell in one composition."""
    return len(runs_of(in_composition(settings, composition)))


def is_over(cell: Reached, settings: Settings) -> bool:
    """Return whether a target ends the cell in its composition before the maximum number of runs.

    The target is reached, or the number of failed runs equals the required number of believed runs.
    """
    target, least = settings.target_half_width_pct, fewest(settings)
    if target is None:
        return False
    if cell.failures >= least:
        return True
    believed = cell.repetitions - cell.failures
    return believed >= least and cell.half_width_pct is not None and cell.half_width_pct <= target


def planned(
    settings: Settings,
    cell_id: str,
    measured: Collection[RunKey],
    stops: Mapping[CellComposition, Reached] | None = None,
) -> tuple[int, ...]:
    """Return the numbers of the runs that a cell is to have.

    Runs after a target ended the cell in their composition are left out. A stop counts only while all runs behind it have a
    record.

    Args:
        settings: settings of the cell.
        cell_id: id of the cell.
        measured: keys of the runs that have a record.
        stops: progress of cells by composition.
    """
    runs = runs_of(settings)
    if settings.target_half_width_pct is None or not stops:
        return runs
    ended = {
        c: stop for c in compositions_of(settings) if (stop := stops.get((cell_id, c))) and is_over(stop, settings)
    }
    last = {
        c: stop.repetitions
        for c, stop in ended.items()
        if all((cell_id, run_number(c, number)) in measured for number in range(1, stop.repetitions + 1))
    }
    return tuple(run for run in runs if number_in_composition(run) <= last.get(composition_of(run), MOST))


def least(settings: Settings, left: int) -> int:
    """Return how many of a cell's remaining repetitions in one composition are needed at least.

    Args:
        settings: settings of the cell.
        remaining: number of remaining repetitions of a cell that has not ended.
    """
    if settings.target_half_width_pct is None or not left:
        return left
    return min(left, max(1, fewest(settings) - (len(runs_of(settings)) - left)))


def likely(settings: Settings, left: int, usual: int | None) -> int:
    """Estimate how many of a cell's remaining repetitions in one composition will be needed.

    Args:
        settings: settings of the cell.
        remaining: number of remaining repetitions.
        median_repetitions: number of repetitions after which other cells ended; None to count all that remain.
    """
    if usual is None:
        return left
    return max(least(settings, left), min(left, usual - (len(runs_of(settings)) - left)))


def usual(stops: Iterable[Reached]) -> int | None:
    """Return the median number of repetitions after which cells ended in a composition, or None without any."""
    counts = sorted(stop.repetitions for stop in stops)
    return counts[len(counts) // 2] if counts else None


def said(settings: Settings) -> str:
    """Format the number of repetitions of a cell, such as '3' or '3-10'."""
    counts = [most(settings, composition) for composition in compositions_of(settings)]
    at_least = sum(min(count, fewest(settings)) for count in counts)
    if settings.target_half_width_pct is None or at_least >= sum(counts):
        return str(sum(counts))
    return f"{at_least}-{sum(counts)}"


def why(cell: Reached, settings: Settings) -> str:
    """Explain why the last of these runs ends the cell, or return '' if it does not or if there is no target."""
    target = settings.target_half_width_pct
    if target is None:
        return ""
    width = "has no bounds" if cell.half_width_pct is None else f"reaches ±{_percent(cell.half_width_pct)} of the mean"
    here = "" if settings.compositions == 1 else f" in composition {cell.composition}"
    if not is_over(cell, settings):
        count = most(settings, cell.composition)
        if cell.repetitions < count:
            return ""
        return f"the most repetitions ({count}) are done{here}; the 95 % interval {width}, the target is {target:g} %"
    if cell.failures >= fewest(settings):
        return (
            f"{cell.failures} of {cell.repetitions} repetitions failed{here}, and {fewest(settings)} are enough to tell"
        )
    return f"the 95 % interval {width} after {cell.repetitions} repetitions{here}: the target is {target:g} %"


def _percent(value: float) -> str:
    # Two digits, never rounded below what was reached.
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    scale = 10.0 ** max(digits, 0)
    return f"{math.ceil(value * scale - 1e-9) / scale:g} %"


class Stops:
    """Files of one results directory that store the progress of cells."""

    def __init__(self, results: Path) -> None:
        self.directory = Results.from_directory(results).stopped_cells

    def path(self, cell_id: str, cell: Reached) -> Path:
        return self.directory / cell_id[:2] / cell.name(cell_id)

    def index(self) -> dict[CellComposition, Reached]:
        """Return the progress of every cell by composition, from file names alone.

        The progress with the most repetitions counts.
        """
        return _known(_names(self.directory))

    def of(self, cell_id: str) -> dict[CellComposition, Reached]:
        """Return the progress of one cell by composition."""
        return _known(path.name for path in (self.directory / cell_id[:2]).glob(f"{cell_id}.*.json"))

    def write(self, cell: Cell, found: Reached) -> None:
        words = {"cell": cell.label(), "stopped": why(found, cell.settings)}
        write_once(self.path(cell.id, found), (json.dumps(words, ensure_ascii=False) + "\n").encode())

    def withdraw(self, cell_id: str, composition: int) -> None:
        """Remove the progress of a cell in a composition, because its runs change."""
        for path in (self.directory / cell_id[:2]).glob(f"{cell_id}.*.json"):
            match = _NAME.fullmatch(path.name)
            if match and composition_of(int(match[2])) == composition:
                path.unlink(missing_ok=True)


def _known(names: Iterable[str]) -> dict[CellComposition, Reached]:
    known: dict[CellComposition, Reached] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            run, width = int(match[2]), None if match[3] == "none" else int(match[3])
            found = Reached(number_in_composition(run), int(match[4]), width, composition_of(run))
            key = (match[1], found.composition)
            if key not in known or known[key].repetitions < found.repetitions:
                known[key] = found
    return known


def _names(directory: Path) -> Iterable[str]:
    try:
        shards = list(os.scandir(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{directory}: cannot be listed ({error.strerror}); fix its permissions") from error
    for shard in shards:
        with suppress(NotADirectoryError):
            yield from (entry.name for entry in os.scandir(shard.path))

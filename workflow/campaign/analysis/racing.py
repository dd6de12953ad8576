"""Race of configurations: which ones may still be the best after each block. Pure.

A race composes every configuration once per block and drops those that can no longer win (Maron & Moore, 1994, "Hoeffding races:
accelerating model selection search for classification and function approximation", Advances in Neural Information Processing
Systems 6). Configurations race for each workload with its precision and options, each at its best batch:

- A configuration is dropped if each of its cells is shown to be more than the tolerance below a cell of another one.
- A race is decided once no other configuration can be more than the tolerance above the named one.
- A configuration is composed again while it is a candidate of a race that is not decided.
- One composition does not show how much compositions differ, so nothing is decided before the second one.
- A cell counts as failed if none of its runs on two compositions is valid. So one crash does not count.

Both statements are false only if the true best falls below its interval against another cell. So one-sided intervals of the
candidates against each other suffice (Hsu, 1996, "Multiple comparisons", chapter 4). They are those of the report
(`campaign.analysis.statistics.comparisons`), at an error of 5 % per race that is divided evenly over blocks and cells
(Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.statistics.selected_estimate import bound_best_cell
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.common.intervals import CONFOUNDED_WITH_HOSTS, SIGNIFICANCE_LEVEL, Floats
from campaign.spec.cell import Cell
from campaign.spec.race import DroppedConfiguration, RaceCandidate, RaceDocument, WorkloadRace
from campaign.spec.run_numbers import compositions_of

_OWN_HOSTS = "Some ran on hosts that no other one used, so the hosts may cause the difference."


@dataclass(frozen=True)
class _Race:
    """Race of configurations for one workload, precision and set of options.

    Args:
        label: workload, precision and options in words.
        cells: cells of each candidate, by configuration.
        dropped: upper bound of each dropped configuration as a fraction of another one, and the reason in words.
        best: the configuration that won, or an empty string.
        block: block after which the race was decided.
        note: reason why configurations cannot be distinguished.
    """

    about: str
    cells: Mapping[str, Sequence[Cell]]
    dropped: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    best: str = ""
    block: int | None = None
    note: str = ""

    @property
    def ended(self) -> bool:
        """Whether the race is decided or has no candidate left."""
        return bool(self.best) or not self.cells

    @property
    def racing(self) -> Collection[str]:
        """Configurations that have to be composed again for this race."""
        return () if self.ended else self.cells.keys()


def race_configurations(
    cells: Sequence[Cell], tables: Tables | None, is_measured: Callable[[str, int], bool], within_pct: float
) -> RaceDocument:
    """Return the state of all races of a campaign according to its measured runs.

    Args:
        cells: the cells of the campaign.
        tables: tables of their records; None if there are no records.
        is_measured: predicate that is true if every run of a configuration (name) on a composition (number) has a record.
        within_pct: tolerance in percent of the best configuration.
    """
    planned: dict[str, int] = {}
    for cell in cells:
        name = cell.configuration.name
        planned[name] = max(len(compositions_of(cell.settings)), planned.get(name, 0))
    blocks, block = max(planned.values()), 0
    races = list(_open_races(cells))
    racing, composed = list(planned), dict.fromkeys(planned, 0)
    while racing and block < blocks:
        block += 1
        composed |= {name: min(block, planned[name]) for name in racing}
        if not all(is_measured(name, composed[name]) for name in racing):
            break
        if block > 1 and tables is not None:
            error = SIGNIFICANCE_LEVEL / (blocks - 1)
            measured = _keep_measured(tables, cells, composed)
            races = [race if race.ended else _judge_race(race, measured, block, within_pct, error) for race in races]
        racing = [name for name in racing if block < blocks and any(name in race.racing for race in races)]
    design = None if tables is None else _keep_measured(tables, cells, composed).design
    return RaceDocument(
        within_pct=within_pct,
        blocks=blocks,
        ended=not racing,
        compositions=composed,
        compositions_planned=sum(planned.values()),
        workloads=tuple(_describe_race(race, design) for race in races),
        dropped=tuple(_describe_dropped(races)),
    )


def _open_races(cells: Sequence[Cell]) -> Iterator[_Race]:
    """Yield the race of each workload with its precision and options."""
    groups: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.workload, cell.precision, *sorted(cell.options.items())), []).append(cell)
    for group in groups.values():
        by_configuration: dict[str, list[Cell]] = {}
        for cell in group:
            by_configuration.setdefault(cell.configuration.name, []).append(cell)
        first = group[0]
        options = (f"{name} {value}" for name, value in first.options.items())
        yield _Race(", ".join([first.workload, first.precision, *options]), by_configuration)


def _keep_measured(tables: Tables, cells: Sequence[Cell], composed: Mapping[str, int]) -> Tables:
    """Return the tables with only the runs of those compositions that the race has measured."""
    last = {cell.id: composed[cell.configuration.name] for cell in cells}
    limit = tables.runs["cell_id"].map(last).astype("float64")
    return replace(tables, runs=tables.runs[tables.runs["composition"] <= limit])


def _judge_race(race: _Race, tables: Tables, block: int, within_pct: float, error: float) -> _Race:
    """Return the race after a block, with dropped configurations and, if it is decided, the best one.

    Args:
        race: the race before the block.
        tables: tables of the measured runs.
        block: number of the block.
        within_pct: tolerance in percent of the best configuration.
        error_rate: probability of a false statement about the race.
    """
    design, dropped = tables.design, dict(race.dropped)
    # After two compositions at least, each with a record of every run: a cell without a valid run has failed twice.
    cells = {name: [cell for cell in mine if cell.id in design.cells] for name, mine in race.cells.items()}
    dropped |= {name: (0.0, f"it failed on every composition for {race.about}") for name in cells if not cells[name]}
    cells = {name: mine for name, mine in cells.items() if mine}
    if not cells:
        return replace(race, cells=cells, dropped=dropped)
    names, best = list(cells), _best_cells(list(cells.values()), design)
    bounds, note = _upper_bounds(list(cells.values()), [cell for _, cell in best], design, error)
    tolerance = 1 - within_pct / 100
    for place, name in enumerate(names):
        rival = int(bounds[place].argmin())
        if bounds[place, rival] < tolerance:
            bound, cell = float(bounds[place, rival]), best[rival][1]
            words = f"at most {wording.format_percent(100 * bound)} of {cell.configuration.name} (batch {cell.batch})"
            dropped[name] = bound, f"{words} for {race.about}"
            del cells[name]
    left = [place for place, name in enumerate(names) if name in cells]
    race = replace(race, cells=cells, dropped=dropped, note=note)
    for place in sorted(left, key=lambda place: best[place][0]):
        if all(bounds[rival, place] <= 1 / tolerance for rival in left if rival != place):
            return replace(race, best=names[place], block=block)
    return race


def _best_cells(cells: Sequence[Sequence[Cell]], design: Design) -> list[tuple[float, Cell]]:
    """Return the lowest cost of each configuration, with its cell; the cost is infinite if no cell was measured."""
    places = design.places(pd.Series([cell.id for mine in cells for cell in mine], dtype="str"))
    costs = iter(np.where(places >= 0, np.append(design.cost, np.inf)[places], np.inf).tolist())
    return [min(((next(costs), cell) for cell in mine), key=lambda pair: pair[0]) for mine in cells]


def _upper_bounds(
    cells: Sequence[Sequence[Cell]], best: Sequence[Cell], design: Design, error: float
) -> tuple[Floats, str]:
    """Return the upper bound of each configuration as a fraction of the best cell of each other one, and a note on confounding.

    The array has the shape [configuration, other configuration]. A bound is infinite if there is no test.

    Args:
        cells: cells of each configuration.
        best: best cell of each configuration.
        design: experiment design that compares the cells.
        error_rate: probability of a false statement, divided over all cells.
    """
    every = [cell.id for mine in cells for cell in mine]
    of = pd.Series(np.repeat(every, len(best)), dtype="str")
    to = pd.Series(np.tile([cell.id for cell in best], len(every)), dtype="str")
    found = comparisons.ratios(of, to, design)
    # One-sided: half of the error of a two-sided interval is on this side.
    high = found.of.bounds(1 - 2 * error / max(1, len(every) - 1))[2]
    high = np.where(found.tested & np.isfinite(high), high, np.inf).reshape(len(every), len(best))
    first = np.cumsum([0, *map(len, cells[:-1])])
    bounds = np.maximum.reduceat(high, first, axis=0)
    np.fill_diagonal(bounds, np.inf)
    return np.asarray(bounds, dtype=np.float64), _OWN_HOSTS if (found.method == CONFOUNDED_WITH_HOSTS).any() else ""


def _describe_race(race: _Race, design: Design | None) -> WorkloadRace:
    """Build the document of a race, with the mean and interval of each candidate."""
    best = [(np.inf, mine[0]) for mine in race.cells.values()]
    bounds: dict[str, tuple[float, float, float]] = {}
    if design is not None:
        best = sorted(_best_cells(list(race.cells.values()), design), key=lambda pair: pair[0])
        cells = [cell.id for cost, cell in best if np.isfinite(cost)]
        places = design.places(pd.Series(cells, dtype="str"))
        values = np.stack(design.locations()[0].bounds(), axis=1)[places].tolist()
        bounds = dict(zip(cells, values, strict=True))
        if cells:
            every = (cell.id for mine in race.cells.values() for cell in mine)
            bounds[cells[0]] = _bound_best(cells[0], [cell for cell in every if cell in design.cells], design)
    candidates = []
    for _, cell in best:
        candidate = RaceCandidate(configuration=cell.configuration.name)
        if cell.id in bounds:
            value, low, high = bounds[cell.id]
            known = {"low": low, "high": high} if np.isfinite(low) else {}
            candidate = candidate.model_copy(update={"batch": cell.batch, "value": value, **known})
        candidates.append(candidate)
    note = "" if race.best else race.note
    return WorkloadRace(about=race.about, best=race.best, block=race.block, candidates=tuple(candidates), note=note)


def _bound_best(best: str, cells: Sequence[str], design: Design) -> tuple[float, float, float]:
    """Return the value of the best of all cells with the bounds of an estimate that was selected by its size."""
    pools = design.with_pools()
    ordered = [best, *(cell for cell in cells if cell != best)]
    places = design.places(pd.Series(ordered, dtype="str"))
    errors, score = pools.locations()[0], -np.log(design.cost[places])
    bounds = bound_best_cell(score, errors.variance[places], float(errors.freedom[places[0]]), ordered, pools)
    low, high = sorted(np.exp(bound if design.higher else -bound) for bound in bounds)
    return float(design.value[places[0]]), float(low), float(high)


def _describe_dropped(races: Sequence[_Race]) -> Iterator[DroppedConfiguration]:
    """Yield the configurations that every race has dropped, each with its reason in the race where it comes closest."""
    for name in dict.fromkeys(name for race in races for name in race.dropped):
        if not any(name in race.cells for race in races):
            _, reason = max(race.dropped[name] for race in races if name in race.dropped)
            yield DroppedConfiguration(configuration=name, reason=reason)

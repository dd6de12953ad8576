"""Which configurations may still be the best, block by block. Pure.

A race composes every configuration once per block and drops those that can no longer win (Maron & Moore, 1994, "Hoeffding races:
accelerating model selection search for classification and function approximation", Advances in Neural Information Processing
Systems 6). Configurations race for each workload with its precision and options, each at its best batch:

- A configuration is dropped if each of its cells is shown to be more than the tolerance below a cell of another one.
- A race is decided once no other configuration can be more than the tolerance above the named one.
- A configuration is composed again while it is a candidate of a race that is not decided.
- One composition does not show how much compositions differ, so nothing is decided before the second one.
- A cell that failed counts as failed after a second composition, and only if none of its runs is valid.

Both statements are false only if the true best falls below its interval against another cell. So one-sided intervals of the
candidates against each other suffice (Hsu, 1996, "Multiple comparisons", chapter 4). They are those of the report
(`campaign.statistics.comparisons`), at an error of 5 % that is divided evenly over blocks, races and cells (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from campaign import wording
from campaign.documents.cell import Cell
from campaign.documents.race import DroppedConfiguration, RaceCandidate, RaceDocument, WorkloadRace
from campaign.documents.run_numbers import compositions_of
from campaign.statistics import comparisons
from campaign.statistics.comparisons import Design
from campaign.statistics.intervals import SIGNIFICANT, Floats
from campaign.tables.io import Tables
from campaign.tables.runs import CONFIRMED, compositions_with


@dataclass(frozen=True)
class _Race:
    """The race for one workload, precision and set of options.

    cells: by configuration, of the candidates only; dropped: upper bound of each dropped configuration as a part of another one,
    with words; best, block: what was decided, and after which block.
    """

    about: str
    cells: Mapping[str, Sequence[Cell]]
    dropped: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    best: str = ""
    block: int | None = None

    @property
    def ended(self) -> bool:
        return bool(self.best) or not self.cells


def race_configurations(
    cells: Sequence[Cell], tables: Tables | None, is_measured: Callable[[str, int], bool], within_pct: float
) -> RaceDocument:
    """Return how the race stands by what was measured.

    Args:
        cells: the cells of the campaign.
        tables: tables of their records; None if there is none.
        is_measured: whether every run of a configuration on a composition has a record.
        within_pct: tolerance in percent of the best.
    """
    planned: dict[str, int] = {}
    for cell in cells:
        count = len(compositions_of(cell.settings))
        planned[cell.configuration.name] = max(count, planned.get(cell.configuration.name, 0))
    blocks = max(planned.values())
    races = list(_open_races(cells))
    racing, composed = list(planned), dict.fromkeys(planned, 0)
    block = 0
    while racing and block < blocks:
        block += 1
        composed |= {name: min(block, planned[name]) for name in racing}
        if not all(is_measured(name, block) for name in racing):
            break
        if block > 1 and tables is not None:
            known = _keep_measured(tables, composed)
            error = SIGNIFICANT / (blocks - 1) / len(races)
            races = [_judge_race(race, known, block, within_pct, error) for race in races]
            racing = [name for name in racing if any(name in race.cells and not race.ended for race in races)]
    else:
        racing = []
    design = None if tables is None else _keep_measured(tables, composed).design
    return RaceDocument(
        within_pct=within_pct,
        blocks=blocks,
        ended=not racing,
        compositions=composed,
        compositions_planned=sum(planned.values()),
        workloads=tuple(_describe_race(race, design) for race in races),
        dropped=tuple(_describe_dropped(races, within_pct)),
    )


def _open_races(cells: Sequence[Cell]) -> Iterator[_Race]:
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


def _keep_measured(tables: Tables, composed: Mapping[str, int]) -> Tables:
    """Return the tables without runs of later compositions than the race has measured."""
    runs = tables.runs
    return replace(tables, runs=runs[runs["composition"] <= runs["configuration"].map(composed)])


def _judge_race(race: _Race, tables: Tables, block: int, within_pct: float, error: float) -> _Race:
    """Return the race after a block. error: chance of a false statement about it."""
    if race.ended:
        return race
    failed = _confirm_failures(race, tables.runs)
    cells = {name: [cell for cell in mine if cell.id not in failed] for name, mine in race.cells.items()}
    dropped = dict(race.dropped)
    for name in [name for name, mine in cells.items() if not mine]:
        dropped[name] = (0.0, f"{race.about}: failed on {CONFIRMED} compositions")
        del cells[name]
    if not cells:
        return replace(race, cells={}, dropped=dropped)
    names = list(cells)
    of, reach = _upper_bounds(cells, tables.design, error)
    for place, rival in zip(reach.argmin(axis=1), range(len(names)), strict=True):
        bound = reach[rival, place]
        if bound < 1 - within_pct / 100:
            best = f"{of[place].configuration.name} (batch {of[place].batch})"
            said = f"{race.about}: at most {wording.percent(100 * bound)} of {best}"
            dropped[names[rival]] = (float(bound), said)
    left = {name: mine for name, mine in cells.items() if name not in dropped}
    race = replace(race, cells=left, dropped=dropped)
    kept = np.array([name in left for name in names])
    beats = (reach <= 1 / (1 - within_pct / 100)) | np.eye(len(names), dtype=np.bool_) | ~kept[:, None]
    means = [_best_cost(cells[name], tables.design)[0] for name in names]
    for place in np.argsort(means, kind="stable"):
        if kept[place] and (beats[:, place].all()):
            return replace(race, best=names[place], block=block)
    return race


def _confirm_failures(race: _Race, runs: pd.DataFrame) -> Collection[str]:
    """Return the cells that failed on two compositions, or on all that they have, without any valid run."""
    valid = set(runs.loc[runs["status"] == "ok", "cell_id"])
    tried = compositions_with(runs)
    return {
        cell.id
        for mine in race.cells.values()
        for cell in mine
        if cell.id not in valid
        and tried.get(cell.id, 0) >= min(CONFIRMED, len(compositions_of(cell.settings)))
    }


def _best_cost(cells: Sequence[Cell], design: Design) -> tuple[float, Cell]:
    """Return the cell with the least mean cost, and that cost; infinite if none was measured."""
    places = design.places(pd.Series([cell.id for cell in cells], dtype="str"))
    costs = [float(design.cost[at]) if at >= 0 else np.inf for at in places]
    at = int(np.argmin(costs))
    return costs[at], cells[at]


def _upper_bounds(
    cells: Mapping[str, Sequence[Cell]], design: Design, error: float
) -> tuple[list[Cell], Floats]:
    """Return the best cell of each configuration, and [configuration, other]: how good it may be as a part of that cell of the other.

    Infinite where nothing is known.
    """
    names = list(cells)
    best = [_best_cost(mine, design)[1] for mine in cells.values()]
    every = [(number, cell) for number, mine in enumerate(cells.values()) for cell in mine]
    shape = (len(every), len(best))
    of = pd.Series(np.repeat([cell.id for _, cell in every], len(best)), dtype="str")
    to = pd.Series(np.tile([cell.id for cell in best], len(every)), dtype="str")
    found = comparisons.ratios(of, to, design)
    share = error / max(1, len(every) - 1)
    _, _, high = found.of.bounds(1 - 2 * share)
    high = np.where(found.tested & np.isfinite(high), high, np.inf).reshape(shape)
    reach = np.zeros((len(names), len(names)))
    np.maximum.at(reach, [number for number, _ in every], high)
    np.fill_diagonal(reach, np.inf)
    return best, reach


def _describe_race(race: _Race, design: Design | None) -> WorkloadRace:
    candidates = []
    for name, mine in race.cells.items():
        cost, cell = (np.inf, mine[0]) if design is None else _best_cost(mine, design)
        if design is None or not np.isfinite(cost):
            candidates.append((cost, RaceCandidate(configuration=name)))
            continue
        at = design.places(pd.Series([cell.id], dtype="str"))
        value, low, high = (float(each[at][0]) for each in design.locations()[0].bounds())
        bounds = {"low": low, "high": high} if np.isfinite(low) else {}
        candidates.append((cost, RaceCandidate(configuration=name, batch=cell.batch, value=value, **bounds)))
    ordered = (candidate for _, candidate in sorted(candidates, key=lambda pair: pair[0]))
    return WorkloadRace(about=race.about, best=race.best, block=race.block, candidates=tuple(ordered))


def _describe_dropped(races: Sequence[_Race], within_pct: float) -> Iterator[DroppedConfiguration]:
    """Yield the configurations that are out of every race, each with the race in which it comes closest."""
    for name in dict.fromkeys(name for race in races for name in race.dropped):
        if not any(name in race.cells for race in races):
            closest, reason = max(race.dropped[name] for race in races if name in race.dropped)
            yield DroppedConfiguration(configuration=name, reason=reason)

"""Race of configurations: which ones may still be the best after each block. Pure.

A race composes every configuration once per block and drops those that can no longer win (Maron & Moore, 1994, "Hoeffding races:
accelerating model selection search for classification and function approximation", Advances in Neural Information Processing
Systems 6). Configurations race for each workload with its precision and options, each at its best batch:

- A configuration is dropped if each of its cells is shown to be more than the tolerance below a cell of another one.
- A race is decided once no other configuration can be more than the tolerance above the named one.
- A configuration is composed again while it is a candidate of a race that is not decided.
- One composition does not show how much compositions differ, so nothing is decided before the second one.
- A cell counts as failed if none of its runs on two compositions is valid, so one crash does not count.

These statements are false only if the true best falls below its interval against another cell. So one-sided intervals of the
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
from campaign.spec.run_numbers import list_compositions

_HOST_CONFOUNDING_NOTE = (
    "Some configurations ran on hosts that no other configuration used, so the hosts may cause the difference."
)


@dataclass(frozen=True)
class _ConfigurationRace:
    """Race of configurations for one workload, precision and set of options.

    Args:
        label: workload, precision and options in words.
        cells: cells of each candidate, by configuration.
        dropped: upper bound of each dropped configuration as a fraction of another one, and the reason in words.
        best: the configuration that won, or an empty string.
        block: block after which the race was decided.
        note: reason why configurations cannot be distinguished.
    """

    label: str
    cells: Mapping[str, Sequence[Cell]]
    dropped: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    best: str = ""
    block: int | None = None
    note: str = ""

    @property
    def is_ended(self) -> bool:
        """True if the race is decided or has no candidate left."""
        return bool(self.best) or not self.cells

    @property
    def active_configurations(self) -> Collection[str]:
        """Configurations that have to be composed again for this race."""
        return () if self.is_ended else self.cells.keys()


def evaluate_races(
    cells: Sequence[Cell], tables: Tables | None, is_measured: Callable[[str, int], bool], within_pct: float
) -> RaceDocument:
    """Return the state of all races of a campaign according to its measured runs.

    Args:
        cells: the cells of the campaign.
        tables: tables of their records; None if there are no records.
        is_measured: predicate that is true if every run of a configuration (name) on a composition (number) has a record.
        within_pct: tolerance in percent of the best configuration.
    """
    planned_counts: dict[str, int] = {}
    for cell in cells:
        name = cell.configuration.name
        planned_counts[name] = max(len(list_compositions(cell.settings)), planned_counts.get(name, 0))
    blocks, block = max(planned_counts.values()), 0
    races = list(_build_races(cells))
    active, composed_counts = list(planned_counts), dict.fromkeys(planned_counts, 0)
    while active and block < blocks:
        block += 1
        composed_counts |= {name: min(block, planned_counts[name]) for name in active}
        if not all(is_measured(name, composed_counts[name]) for name in active):
            break
        if block > 1 and tables is not None:
            error_rate = SIGNIFICANCE_LEVEL / (blocks - 1)
            measured_tables = _select_measured_runs(tables, cells, composed_counts)
            races = [
                race if race.is_ended else _update_race(race, measured_tables, block, within_pct, error_rate)
                for race in races
            ]
        active = [
            name for name in active if block < blocks and any(name in race.active_configurations for race in races)
        ]
    design = None if tables is None else _select_measured_runs(tables, cells, composed_counts).design
    return RaceDocument(
        within_pct=within_pct,
        blocks=blocks,
        ended=not active,
        compositions=composed_counts,
        compositions_planned=sum(planned_counts.values()),
        workloads=tuple(_describe_race(race, design) for race in races),
        dropped=tuple(_list_dropped(races)),
    )


def _build_races(cells: Sequence[Cell]) -> Iterator[_ConfigurationRace]:
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
        yield _ConfigurationRace(", ".join([first.workload, first.precision, *options]), by_configuration)


def _select_measured_runs(tables: Tables, cells: Sequence[Cell], compositions: Mapping[str, int]) -> Tables:
    """Return the tables with only the runs of those compositions that the race has measured."""
    last_compositions = {cell.id: compositions[cell.configuration.name] for cell in cells}
    limit = tables.runs["cell_id"].map(last_compositions).astype("float64")
    return replace(tables, runs=tables.runs[tables.runs["composition"] <= limit])


def _update_race(
    race: _ConfigurationRace, tables: Tables, block: int, within_pct: float, error_rate: float
) -> _ConfigurationRace:
    """Return the race after a block, with dropped configurations and, if it is decided, the best one.

    Args:
        race: the race before the block.
        tables: tables of the measured runs.
        block: number of the block.
        within_pct: tolerance in percent of the best configuration.
        error_rate: probability of a false statement about the race.
    """
    design, dropped_configurations = tables.design, dict(race.dropped)
    # After two compositions at least, each with a record of every run: a cell without a valid run has failed twice.
    cells = {name: [cell for cell in group if cell.id in design.cells] for name, group in race.cells.items()}
    dropped_configurations |= {
        name: (0.0, f"it failed on every composition with {race.label}") for name in cells if not cells[name]
    }
    cells = {name: group for name, group in cells.items() if group}
    if not cells:
        return replace(race, cells=cells, dropped=dropped_configurations)
    names, best = list(cells), _find_best_cells(list(cells.values()), design)
    bounds, note = _compute_upper_bounds(list(cells.values()), [cell for _, cell in best], design, error_rate)
    tolerance = 1 - within_pct / 100
    for index, name in enumerate(names):
        rival = int(bounds[index].argmin())
        if bounds[index, rival] < tolerance:
            bound, cell = float(bounds[index, rival]), best[rival][1]
            limit = wording.format_percent(100 * bound)
            comparison = f"it reaches at most {limit} of {cell.configuration.name} (batch {cell.batch})"
            dropped_configurations[name] = bound, f"{comparison} with {race.label}"
            del cells[name]
    remaining = [index for index, name in enumerate(names) if name in cells]
    race = replace(race, cells=cells, dropped=dropped_configurations, note=note)
    for index in sorted(remaining, key=lambda index: best[index][0]):
        if all(bounds[rival, index] <= 1 / tolerance for rival in remaining if rival != index):
            return replace(race, best=names[index], block=block)
    return race


def _find_best_cells(cells: Sequence[Sequence[Cell]], design: Design) -> list[tuple[float, Cell]]:
    """Return the lowest cost of each configuration, with its cell; the cost is infinite if no cell was measured."""
    positions = design.find_cell_indices(pd.Series([cell.id for group in cells for cell in group], dtype="str"))
    costs = iter(np.where(positions >= 0, np.append(design.cost, np.inf)[positions], np.inf).tolist())
    return [min(((next(costs), cell) for cell in group), key=lambda pair: pair[0]) for group in cells]


def _compute_upper_bounds(
    cells: Sequence[Sequence[Cell]], best: Sequence[Cell], design: Design, error_rate: float
) -> tuple[Floats, str]:
    """Return the upper bound of each configuration as a fraction of the best cell of each other one, and a note on confounding.

    The array has the shape [configuration, other configuration]. A bound is infinite if there is no test.

    Args:
        cells: cells of each configuration.
        best: best cell of each configuration.
        design: experiment design that compares the cells.
        error_rate: probability of a false statement, divided over all cells.
    """
    cell_ids = [cell.id for group in cells for cell in group]
    compared_cells = pd.Series(np.repeat(cell_ids, len(best)), dtype="str")
    references = pd.Series(np.tile([cell.id for cell in best], len(cell_ids)), dtype="str")
    pair_ratios = comparisons.compute_ratios(compared_cells, references, design)
    # One-sided: half of the error of a two-sided interval is on this side.
    high = pair_ratios.estimate.compute_bounds(1 - 2 * error_rate / max(1, len(cell_ids) - 1))[2]
    high = np.where(pair_ratios.is_tested & np.isfinite(high), high, np.inf).reshape(len(cell_ids), len(best))
    first_positions = np.cumsum([0, *map(len, cells[:-1])])
    bounds = np.maximum.reduceat(high, first_positions, axis=0)
    np.fill_diagonal(bounds, np.inf)
    return np.asarray(bounds, dtype=np.float64), _HOST_CONFOUNDING_NOTE if (
        pair_ratios.method == CONFOUNDED_WITH_HOSTS
    ).any() else ""


def _describe_race(race: _ConfigurationRace, design: Design | None) -> WorkloadRace:
    """Build the document of a race, with the mean and interval of each candidate."""
    ranked_cells = [(np.inf, group[0]) for group in race.cells.values()]
    bounds: dict[str, tuple[float, float, float]] = {}
    if design is not None:
        ranked_cells = sorted(_find_best_cells(list(race.cells.values()), design), key=lambda pair: pair[0])
        cells = [cell.id for cost, cell in ranked_cells if np.isfinite(cost)]
        positions = design.find_cell_indices(pd.Series(cells, dtype="str"))
        values = np.stack(design.estimate_locations()[0].compute_bounds(), axis=1)[positions].tolist()
        bounds = dict(zip(cells, values, strict=True))
        if cells:
            cell_ids = (cell.id for group in race.cells.values() for cell in group)
            bounds[cells[0]] = _bound_best_value(cells[0], [cell for cell in cell_ids if cell in design.cells], design)
    candidates = []
    for _, cell in ranked_cells:
        candidate = RaceCandidate(configuration=cell.configuration.name)
        if cell.id in bounds:
            value, low, high = bounds[cell.id]
            interval = {"low": low, "high": high} if np.isfinite(low) else {}
            candidate = candidate.model_copy(update={"batch": cell.batch, "value": value, **interval})
        candidates.append(candidate)
    note = "" if race.best else race.note
    return WorkloadRace(about=race.label, best=race.best, block=race.block, candidates=tuple(candidates), note=note)


def _bound_best_value(best: str, cells: Sequence[str], design: Design) -> tuple[float, float, float]:
    """Return the value of the best of all cells with the bounds of an estimate that was selected by its size."""
    pools = design.with_pools()
    ordered_cells = [best, *(cell for cell in cells if cell != best)]
    positions = design.find_cell_indices(pd.Series(ordered_cells, dtype="str"))
    errors, score = pools.estimate_locations()[0], -np.log(design.cost[positions])
    bounds = bound_best_cell(
        score, errors.variance[positions], float(errors.freedom[positions[0]]), ordered_cells, pools
    )
    low, high = sorted(np.exp(bound if design.higher_is_better else -bound) for bound in bounds)
    return float(design.value[positions[0]]), float(low), float(high)


def _list_dropped(races: Sequence[_ConfigurationRace]) -> Iterator[DroppedConfiguration]:
    """Yield the configurations that every race has dropped, each with its reason in the race where it comes closest."""
    for name in dict.fromkeys(name for race in races for name in race.dropped):
        if not any(name in race.cells for race in races):
            _, reason = max(race.dropped[name] for race in races if name in race.dropped)
            yield DroppedConfiguration(configuration=name, reason=reason)

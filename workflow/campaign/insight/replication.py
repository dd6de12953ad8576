"""How often to compose and run a campaign's cells, to find a difference of a given size: spread and costs of this campaign.

The spread is that of the campaign's own runs, else that of other campaigns on the same system, else assumed; what one choice costs
follows from the plan's forecast.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from campaign.documents.cell import Cell
from campaign.documents.run_numbers import whole
from campaign.errors import ConfigError, RecordError
from campaign.paths import Results
from campaign.plan.cost.estimates import Prices, Work
from campaign.plan.cost.history import read_costs
from campaign.plan.dag import Request, forecaster_of
from campaign.plan.plan import Plan
from campaign.statistics.replication import Design, Spread, best, cheapest_by_compositions, design
from campaign.statistics.spread_sources import valid_runs
from campaign.statistics.variance_components import components
from campaign.tables.io import Tables, read

ASSUMED_PCT = {"composition": 1.0, "run": 1.0, "step": 5.0}
"""Of a system that nobody has measured on."""
_USUAL = (1, 2, 3, 5)


@dataclass(frozen=True)
class Advice:
    """now: the campaign as it is; usual: the same with other numbers of compositions; cheapest: what reaches the wanted difference,
    None where nothing up to 20 compositions does; alternatives: the cheapest choice of every number of compositions that does.
    hours_known: False where device-hours only tell which choice is cheaper, because times are unknown.
    """

    detect_pct: float
    spread: Spread
    configurations: int
    now: Design
    usual: tuple[Design, ...]
    cheapest: Design | None
    alternatives: tuple[Design, ...]
    hours_known: bool = True


def advise(plan: Plan, asked: Request, detect_pct: float, assumed: str = "") -> Advice:
    """What finds a difference of detect_pct between configurations of the plan. assumed: a spread, as `parse_spread` reads it."""
    tables = list(_tables(plan, asked.results))
    spread = parse_spread(assumed) if assumed else measured_spread(tables) or _assumed(ASSUMED_PCT)
    cells = [cell for _, cell in plan.cells]
    settings = [whole(cell.settings) for cell in cells]
    compositions = max(each.compositions for each in settings)
    runs = max(1, round(np.median([each.repetitions / each.compositions for each in settings])))
    steps = round(np.median([each.measured_steps for each in settings]))
    hours = _Hours(plan, asked, _window_share(tables), steps)
    configurations = len({lease.configuration.name for lease in plan.leases})
    # What a window is made of is not known of every program; then steps stay what they are.
    length = steps if hours.window_share else 0
    spread_of_runs = spread if length else Spread(spread.composition_pct, spread.run_pct, 0.0, spread.source)
    alternatives = tuple(cheapest_by_compositions(spread_of_runs, detect_pct, configurations, length, hours))

    def of(count: int) -> Design:
        return design(spread_of_runs, configurations, count, runs, length, hours(count, runs, length))

    usual = tuple(map(of, _USUAL))
    now, cheapest = of(compositions), best(alternatives)
    return Advice(detect_pct, spread, configurations, now, usual, cheapest, alternatives, hours.known)


def parse_spread(text: str) -> Spread:
    """'composition 1 %, run 0.5 %, step 5 %' -> a spread; parts that are not named are as assumed of any system."""
    found = dict(ASSUMED_PCT)
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s+(\d+(?:\.\d+)?)\s*%?\s*", part)
        if match is None or match[1] not in found:
            raise ConfigError(
                f"--spread {text}: '{part.strip()}' is no standard deviation of composition, run or step; "
                "write it like 'composition 1 %, run 0.5 %, step 5 %'"
            )
        found[match[1]] = float(match[2])
    return _assumed(found)


def _assumed(pct: dict[str, float]) -> Spread:
    return Spread(pct["composition"], pct["run"], pct["step"], "assumed")


def _tables(plan: Plan, results_root: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and runs of the campaign itself, then of all others on its system."""
    others = sorted(path.name for path in results_root.glob("*") if path.is_dir() and path.name != plan.campaign.name)
    for name in (plan.campaign.name, *others):
        directory = Results(results_root, name).tables
        if (directory / "runs.parquet").exists():
            try:
                tables: Tables = read(directory)
            except RecordError:
                continue  # of another version, or being written
            if tables.context["campaign"]["system"] == plan.campaign.system_names:
                yield name, tables.runs


def measured_spread(tables: Sequence[tuple[str, pd.DataFrame]]) -> Spread | None:
    """Of the first campaigns that say all of it; None where no cell was run twice in one composition."""
    for name, runs in tables:
        rows = valid_runs(runs)
        found = components(rows["rate"], rows["cell_id"], rows["lease_id"], rows["host_names"]) if len(rows) else None
        if found is None or not found.run.known:
            continue
        steps = rows["step_error_pct"].dropna() if "step_error_pct" in rows else pd.Series(dtype="float64")
        error_pct = float(np.sqrt((steps**2).mean())) if len(steps) else 0.0
        step_pct = error_pct * float(np.sqrt(rows.loc[steps.index, "measured_steps"].median())) if len(steps) else 0.0
        between = max(found.lease.variance, found.together.variance, found.host.variance)
        several = found.lease.known or found.together.known
        composition_pct = 100.0 * float(np.sqrt(between)) if several else ASSUMED_PCT["composition"]
        run_pct = float(np.sqrt(max(0.0, found.run.sd_pct**2 - error_pct**2)))
        alone = "" if several else "; from composition to composition assumed, since each was composed once"
        return Spread(composition_pct, run_pct, step_pct, f"{len(rows)} runs of campaign {name}{alone}")
    return None


def _window_share(tables: Sequence[tuple[str, pd.DataFrame]]) -> float:
    """Which part of a run's time its warm-up and measured steps take; 0 where no campaign says it."""
    for _, runs in tables:
        if "window_s" in runs:
            steps = (runs["warmup_steps"] + runs["measured_steps"]) / runs["measured_steps"].where(
                runs["measured_steps"] > 0
            )
            share = (runs["window_s"] * steps / runs["wall_s"]).dropna()
            if len(share):
                return float(min(1.0, share.median()))
    return 0.0


class _Hours:
    """Device-hours of a choice: all cells of the plan in as many compositions, runs and steps.

    known: False where a time is unknown; then composing and every run count alike, which is enough to find the cheapest choice.
    """

    def __init__(self, plan: Plan, asked: Request, window_share: float, steps: int) -> None:
        self.window_share, self.steps = window_share, steps
        cells: dict[str, dict[str, Cell]] = defaultdict(dict)
        for lease, cell in plan.cells:
            cells[lease.configuration.name][cell.id] = cell
        leases = {lease.configuration.name: lease for lease in plan.leases}
        works = [
            replace(lease.work, lease=name, runs=[(cell, 1) for cell in cells[name].values()])
            for name, lease in leases.items()
        ]
        costs = read_costs(Results(asked.results, plan.campaign.name), asked.learn_from)
        forecaster = forecaster_of(plan.campaign, costs, asked.assumed)
        self.known = not forecaster.forecast(works).unknown
        prices = forecaster.prices(works, Work.devices)
        if not self.known:
            devices = [work.devices("runs") for work in works]
            prices = Prices(tuple(devices), tuple((n,) * len(w.runs) for n, w in zip(devices, works, strict=True)))
        self._compose_s, self._run_s = sum(prices.once_s), sum(map(sum, prices.run_s))

    def __call__(self, compositions: int, runs: int, steps: int) -> float:
        longer = 1.0 + self.window_share * (steps / self.steps - 1.0) if steps else 1.0
        return compositions * (self._compose_s + runs * self._run_s * longer) / 3600

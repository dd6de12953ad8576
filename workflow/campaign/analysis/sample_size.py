"""Sample size of a campaign: how many compositions, runs and steps detect a given difference at the lowest cost.

The variance of a cell's mean has three parts, each divided by how often its level is repeated (Kalibera & Jones, "Rigorous
Benchmarking in Reasonable Time", ISMM 2013): compositions k, runs r in each of them, steps s in each run. A level is worth
repeating if it is cheap and noisy compared with the level above it. The difference of two configurations is tested as the
report tests it, among all cells of the plan, which is simulated (`campaign.analysis.simulated_power`). A difference is
detectable if 80 of 100 campaigns find it.

The spread is that of the campaign's own runs. Without them, it is that of other campaigns on the same system, or assumed. The
cost of a choice follows from the cost forecast of the plan.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from campaign.analysis.simulated_power import PlannedComparisons, SimulatedPrecision
from campaign.analysis.statistics.variance_components import estimate_components, select_comparable_runs
from campaign.analysis.tables.io import read_tables
from campaign.common.errors import ConfigError, RecordError
from campaign.common.paths import Results
from campaign.plan.cost import ChargeCalculator, LeaseWork, build_cost_model
from campaign.plan.past_costs import read_costs
from campaign.plan.plan import Plan
from campaign.plan.request import PlanRequest
from campaign.spec.cell import Cell
from campaign.spec.run_numbers import without_composition

MAX_COMPOSITIONS, MAX_RUNS = 20, 6
ASSUMED_PCT = {"composition": 1.0, "run": 1.0, "step": 5.0}
"""Standard deviations that are assumed for a system without measurements."""
_USUAL_COMPOSITIONS = (1, 2, 3, 5)
_STEP_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Spread:
    """Standard deviations of throughput in percent: between compositions, between runs, and between steps."""

    composition_pct: float
    run_pct: float
    step_pct: float
    source: str

    def compute_log_mean_variance(self, compositions: int, runs: int, steps: int) -> float:
        """Compute the variance of the logarithm of a cell's mean."""
        parts = self.composition_pct**2 + (self.run_pct**2 + self.step_pct**2 / max(steps, 1)) / runs
        return parts / compositions / 1e4

    def compute_shared_variance_fraction(self, runs: int, steps: int) -> float:
        """Compute the fraction of the variance of a composition's mean that all of its cells share."""
        total = self.compute_log_mean_variance(1, runs, steps)
        return (self.composition_pct / 100) ** 2 / total if total else 0.0


@dataclass(frozen=True)
class SampleSize:
    """Numbers of compositions, runs per composition and steps per run, with their cost.

    half_width_pct: half-width of the 95 % interval of a difference of two configurations; detectable_pct: smallest difference
    that 80 of 100 campaigns find.
    """

    compositions: int
    runs: int
    steps: int
    half_width_pct: float
    detectable_pct: float
    device_hours: float


@dataclass(frozen=True)
class SampleSizes:
    """Sample sizes of a campaign for a wanted detectable difference, with their costs.

    Args:
        spread: standard deviations from which the sizes are computed.
        comparisons: number of differences that are tested together.
        now: the campaign as currently planned.
        usual: the campaign with other numbers of compositions.
        cheapest: cheapest size that reaches the wanted difference; None if no size up to 20 compositions does.
        alternatives: cheapest size for each number of compositions that reaches the difference.
        hours_known: false if durations are unknown, so that device-hours only show which size is cheaper.
    """

    spread: Spread
    comparisons: int
    now: SampleSize
    usual: tuple[SampleSize, ...]
    cheapest: SampleSize | None
    alternatives: tuple[SampleSize, ...]
    hours_known: bool = True


def compute_sample_sizes(plan: Plan, request: PlanRequest, detect_pct: float, spread_text: str = "") -> SampleSizes:
    """Compute the sample sizes that detect a given difference between configurations of a plan.

    Args:
        plan: the plan of the campaign.
        request: request with the results directory and the campaigns to learn costs from.
        detect_pct: difference to detect, in percent.
        spread_text: spread to use instead of a measured one, in the format of `parse_spread`.
    """
    tables = list(_read_campaign_runs(plan, request.results))
    spread = parse_spread(spread_text) if spread_text else estimate_spread(tables) or _build_assumed_spread(ASSUMED_PCT)
    settings = [without_composition(cell.settings) for _, cell in plan.cells]
    compositions = max(item.compositions for item in settings)
    runs = max(1, round(np.median([item.repetitions / item.compositions for item in settings])))
    steps = round(np.median([item.measured_steps for item in settings]))
    hours = _DeviceHours(plan, request, _estimate_window_share(tables), steps)
    comparisons = PlannedComparisons.from_plan(plan)
    precision = SimulatedPrecision(comparisons)
    # The window of some programs is unknown. Then the number of steps is not varied.
    length = steps if hours.window_share else 0
    spread_of_runs = spread if length else replace(spread, step_pct=0.0)

    def size_with(count: int) -> SampleSize:
        return compute_sample_size(spread_of_runs, precision, count, runs, length, hours(count, runs, length))

    alternatives = tuple(list_cheapest_sizes(spread_of_runs, detect_pct, precision, length, hours))
    cheapest = min(alternatives, key=lambda item: (item.device_hours, item.compositions), default=None)
    usual = tuple(map(size_with, _USUAL_COMPOSITIONS))
    return SampleSizes(
        spread, comparisons.tests, size_with(compositions), usual, cheapest, alternatives, hours.is_known
    )


def compute_sample_size(
    spread: Spread, precision: SimulatedPrecision, compositions: int, runs: int, steps: int, device_hours: float
) -> SampleSize:
    """Compute the precision of one sample size.

    The precision is infinite for one composition, which does not show how much compositions differ.
    """
    if compositions < 2:
        return SampleSize(compositions, runs, steps, np.inf, np.inf, device_hours)
    sd = np.sqrt(spread.compute_log_mean_variance(1, runs, steps))
    simulated_precision = precision.estimate(compositions, spread.compute_shared_variance_fraction(runs, steps))
    half_width_pct, detectable_pct = (
        float(100.0 * np.expm1(size * sd)) for size in (simulated_precision.half_width, simulated_precision.detectable)
    )
    return SampleSize(compositions, runs, steps, half_width_pct, detectable_pct, device_hours)


def list_cheapest_sizes(
    spread: Spread,
    detect_pct: float,
    precision: SimulatedPrecision,
    steps: int,
    device_hours: Callable[[int, int, int], float],
) -> Iterator[SampleSize]:
    """Yield the cheapest sample size for each number of compositions that can detect the difference.

    Args:
        spread: standard deviations of the system.
        detect_pct: difference to detect, in percent.
        precision: simulated precision of the plan's comparisons.
        steps: measured steps of a run today, which are varied by powers of two; 0 if the program has no steps.
        device_hours: function of compositions, runs per composition and steps per run.
    """
    lengths = sorted({max(4, round(factor * steps)) for factor in _STEP_FACTORS}) if steps else [0]
    for compositions in range(2, MAX_COMPOSITIONS + 1):
        choices = [(compositions, runs, length) for runs in range(1, MAX_RUNS + 1) for length in lengths]
        sizes = [compute_sample_size(spread, precision, *choice, device_hours(*choice)) for choice in choices]
        if sufficient := [size for size in sizes if size.detectable_pct <= detect_pct]:
            yield min(sufficient, key=lambda size: (size.device_hours, size.runs, size.steps))


def parse_spread(text: str) -> Spread:
    """Parse a spread such as 'composition 1 %, run 0.5 %, step 5 %'.

    Parts that are not named have the assumed values (`ASSUMED_PCT`). Raises ConfigError for any other text.
    """
    deviations_pct = dict(ASSUMED_PCT)
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s+(\d+(?:\.\d+)?)\s*%?\s*", part)
        if match is None or match[1] not in deviations_pct:
            raise ConfigError(
                f"--spread '{text}': '{part.strip()}' is not the standard deviation of a composition, run or step; "
                "write, for example, 'composition 1 %, run 0.5 %, step 5 %'"
            )
        deviations_pct[match[1]] = float(match[2])
    return _build_assumed_spread(deviations_pct)


def _build_assumed_spread(deviations_pct: dict[str, float]) -> Spread:
    return Spread(deviations_pct["composition"], deviations_pct["run"], deviations_pct["step"], "assumed")


def _read_campaign_runs(plan: Plan, results_root: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and runs of this campaign, then of all other campaigns on its system."""
    other_names = sorted(
        path.name for path in results_root.glob("*") if path.is_dir() and path.name != plan.campaign.name
    )
    for name in (plan.campaign.name, *other_names):
        directory = Results(results_root, name).tables
        if (directory / "runs.parquet").exists():
            try:
                tables = read_tables(directory)
            except RecordError:
                continue  # The tables are of another version, or they are being written.
            if tables.context["campaign"]["system"] == plan.campaign.system_names:
                yield name, tables.runs


def estimate_spread(tables: Sequence[tuple[str, pd.DataFrame]]) -> Spread | None:
    """Estimate the spread from the first campaign whose runs suffice for it.

    Return None if no cell was run twice in one composition.

    Args:
        tables: name and runs of each campaign.
    """
    for name, runs in tables:
        rows = select_comparable_runs(runs)
        estimate = (
            estimate_components(rows["rate"], rows["cell_id"], rows["lease_id"], rows["host_names"])
            if len(rows)
            else None
        )
        if estimate is None or not estimate.run.is_known:
            continue
        steps = rows["step_error_pct"].dropna() if "step_error_pct" in rows else pd.Series(dtype="float64")
        error_pct = float(np.sqrt((steps**2).mean())) if len(steps) else 0.0
        step_pct = error_pct * float(np.sqrt(rows.loc[steps.index, "measured_steps"].median())) if len(steps) else 0.0
        between_variance = max(estimate.lease.variance, estimate.lease_and_host.variance, estimate.host.variance)
        is_known = estimate.lease.is_known or estimate.lease_and_host.is_known
        composition_pct = 100.0 * float(np.sqrt(between_variance)) if is_known else ASSUMED_PCT["composition"]
        run_pct = float(np.sqrt(max(0.0, estimate.run.sd_pct**2 - error_pct**2)))
        remark = (
            ""
            if is_known
            else "; the spread between compositions is assumed, because each configuration was composed once"
        )
        return Spread(composition_pct, run_pct, step_pct, f"{len(rows)} runs of campaign {name}{remark}")
    return None


def _estimate_window_share(tables: Sequence[tuple[str, pd.DataFrame]]) -> float:
    """Estimate the fraction of a run's time that its warm-up and measured steps take.

    Return 0 if no campaign has recorded it.
    """
    for _, runs in tables:
        if "window_s" in runs:
            measured_steps = runs["measured_steps"].where(runs["measured_steps"] > 0)
            share = (runs["window_s"] * (1.0 + runs["warmup_steps"] / measured_steps) / runs["wall_s"]).dropna()
            if len(share):
                return float(min(1.0, share.median()))
    return 0.0


class _DeviceHours:
    """Function that returns the device-hours of a sample size: all cells of the plan, by compositions, runs and steps.

    is_known: false if a duration is unknown. Then composing and every run count alike, which is enough to find the cheapest
    choice.
    """

    def __init__(self, plan: Plan, request: PlanRequest, window_share: float, steps: int) -> None:
        self.window_share, self.steps = window_share, steps
        cells: dict[str, dict[str, Cell]] = defaultdict(dict)
        for lease, cell in plan.cells:
            cells[lease.configuration.name][cell.id] = cell
        configurations = {lease.configuration.name: lease.configuration for lease in plan.leases}
        past_costs = read_costs(Results(request.results, plan.campaign.name), request.learn_from, plan.campaign.path)
        costs, charges = build_cost_model(plan.campaign, past_costs), ChargeCalculator(plan.campaign, plan.placements)

        def device_hours(runs: int) -> float | None:
            works = [
                LeaseWork(
                    configuration, [(cell, runs) for cell in cells[name].values()], plan.placements[name].operations
                )
                for name, configuration in configurations.items()
            ]
            hours = [charges(work, costs.forecast(work)).device_hours for work in works]
            return None if None in hours else sum(configuration or 0.0 for configuration in hours)

        hours_of_one_run, hours_of_two_runs = device_hours(1), device_hours(2)
        self.is_known = hours_of_one_run is not None and hours_of_two_runs is not None
        if hours_of_one_run is None or hours_of_two_runs is None:
            hours_of_one_run, hours_of_two_runs = (
                sum(
                    configuration.devices * (1 + runs * len(cells[name]))
                    for name, configuration in configurations.items()
                )
                for runs in (1, 2)
            )
        self._run_h, self._compose_h = hours_of_two_runs - hours_of_one_run, 2 * hours_of_one_run - hours_of_two_runs

    def __call__(self, compositions: int, runs: int, steps: int) -> float:
        duration_factor = 1.0 + self.window_share * (steps / self.steps - 1.0) if steps else 1.0
        return compositions * (self._compose_h + runs * self._run_h * duration_factor)

"""What statements come to over many planted campaigns: how often intervals hold the truth and ties are called differences.

`measured` is of comparisons between configurations (one figure a campaign), `within` of cells that share leases, `locations` of the
number that a cell leads with. The others go the public path: records, tables, and the statement that a user reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from campaign.analysis.compare import compare, parse_rule
from campaign.analysis.compare.campaign_spread import estimate_campaign_spread
from campaign.analysis.recommend.advise import build_recommendation
from campaign.analysis.recommend.candidates import add_results, build_candidates, build_energy_design
from campaign.analysis.recommend.choice import bound_score, score_candidates
from campaign.analysis.recommend.objectives import THROUGHPUT, RecommendationObjective, RecommendationRequest
from campaign.analysis.recommend.workload_mix import build_mix_candidates
from campaign.analysis.sample_size import Spread, compute_sample_size
from campaign.analysis.simulated_power import PlannedComparisons, SimulatedPrecision
from campaign.analysis.statistics import comparable_cells, comparisons, scaling_curves
from campaign.analysis.statistics.average_ratio import compute_average_ratio
from campaign.analysis.statistics.combined_cells import combine_cells
from campaign.analysis.statistics.ratios import LogRatios
from campaign.analysis.statistics.slow_hosts import compare_hosts
from campaign.analysis.tables.io import Tables
from campaign.common.intervals import SIGNIFICANCE_LEVEL, adjust_p_values
from campaign.report.site import history
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth
from tests.unit.report import report_data


@dataclass(frozen=True)
class Statements:
    """In percent. cover: intervals that hold the truth, of the workload farthest from 95; found: true differences that are found.

    wrong: campaigns with an untrue difference; half: median half-width of the intervals. nan where there is none.
    """

    cover: float
    wrong: float
    found: float
    half: float
    tested: float


def _said(
    truth_of: np.ndarray, ratios: comparisons.Ratios, figures: int, workload: np.ndarray | None = None
) -> Statements:
    _, low, high = ratios.estimate.compute_bounds()
    p = ratios.compute_p_values().reshape(figures, -1)
    differs = np.nan_to_num(np.array([adjust_p_values(row) for row in p]), nan=1.0) < 0.05
    none = np.isclose(truth_of, 1).reshape(figures, -1)
    half = 100 * np.log(high / low) / 2
    return Statements(
        _covered(truth_of, low, high, ratios.is_tested, np.zeros(low.size) if workload is None else workload),
        100 * float((differs & none).any(axis=1).mean()),
        100 * float(differs[~none].mean()) if (~none).any() else float("nan"),
        float(np.nanmedian(half)),
        100 * float(ratios.is_tested.mean()),
    )


def _covered(truth_of: np.ndarray, low: np.ndarray, high: np.ndarray, known: np.ndarray, workload: np.ndarray) -> float:
    held = pd.Series((low <= truth_of) & (truth_of <= high))[known].groupby(workload[known]).mean()
    return 100 * float(held.loc[(held - 0.95).abs().idxmax()]) if len(held) else float("nan")


def _against_first(design: comparisons.Design, truth: Truth, campaigns: int) -> Statements:
    of, to = planted.pairs(truth, campaigns)
    # [campaign, workload, cell, configuration]
    shape = (campaigns, truth.workloads, truth.cells, truth.configurations - 1)
    times = truth.times()
    truth_of = np.broadcast_to((times[:, :1] / times[:, 1:])[:, None], shape).ravel()
    workload = np.broadcast_to(np.arange(truth.workloads)[:, None, None], shape).ravel()
    return _said(truth_of, comparisons.compute_ratios(of, to, design), campaigns, workload)


def measured(truth: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """Every configuration against the first; a figure a campaign."""
    return _against_first(comparisons.build_design(planted.runs(truth, campaigns, seed)), truth, campaigns)


def plan_precision(truth: Truth) -> SimulatedPrecision:
    """The precision that `campaign detect` plans with for a campaign of these configurations, workloads and cells."""
    axes = itertools.product(range(truth.configurations), range(truth.workloads), range(truth.cells))
    cells = pd.DataFrame(axes, columns=["configuration", "workload", "batch"])
    cells = cells.assign(lease=cells["configuration"], system="")
    return SimulatedPrecision(PlannedComparisons.from_cells(cells, "blocks"))


def marked_noisy(truth: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """`measured`, where found is the share of comparisons with the noisy configuration, the first, that are marked as noisy."""
    by = comparisons.build_design(planted.runs(truth, campaigns, seed))
    noisy = comparisons.compute_ratios(*planted.pairs(truth, campaigns), by).noisy_side
    marked = 100 * float(np.mean([name.endswith("the reference") for name in noisy]))
    return replace(_against_first(by, truth, campaigns), found=marked)


def detected(truth: Truth, campaigns: int = 300, seed: int = 8) -> Statements:
    """One configuration slower by what `campaign detect` calls detectable; found: cells of it that are named; half: that size."""
    k = truth.composed()[0]
    spread = Spread(100 * truth.lease, 100 * truth.run, 0.0, "planted")
    size = compute_sample_size(spread, plan_precision(truth), k, truth.runs // k, 0, 1.0).detectable_pct
    effect = (1.0, 1 + size / 100, *[1.0] * (truth.configurations - 2))
    return replace(measured(replace(truth, effect=effect), campaigns, seed), half=size)


def least_detected(truth: Truth, campaigns: int = 300, seed: int = 9) -> Statements:
    """The least detectable difference that each campaign states, planted in another one of its kind; half: its median."""
    of, to = planted.pairs(truth, campaigns)
    stated, other = (
        comparisons.compute_ratios(of, to, comparisons.build_design(planted.runs(truth, campaigns, at)))
        for at in (seed, seed + 1)
    )
    tests = of.size // campaigns
    least = stated.compute_detectable_pct(tests)
    moved = replace(other, estimate=replace(other.estimate, ratio=other.estimate.ratio * (1 + least / 100)))
    nan = float("nan")
    return Statements(
        nan,
        nan,
        100 * float((moved.compute_p_values() * tests < SIGNIFICANCE_LEVEL).mean()),
        float(np.median(least)),
        100.0,
    )


def lent(truth: Truth, earlier: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """`measured`, where an earlier campaign on the system (`earlier`) lends the spread of compositions."""
    before = comparisons.build_design(planted.runs(earlier, campaigns, seed + 1)).summarize_composition_spread(
        "pilot", "value"
    )
    return _against_first(
        comparisons.build_design(planted.runs(truth, campaigns, seed), earlier=before), truth, campaigns
    )


def within(truth: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """Cells that share all leases of a configuration: each against the first, in all configurations of a campaign."""
    design = comparisons.build_design(planted.runs(truth, campaigns, seed))
    of, to = planted.pairs_within(truth, campaigns)
    ratios = comparisons.compute_ratios(of, to, design)
    return _said(np.ones(of.size), ratios, campaigns)


def locations(truth: Truth, campaigns: int = 50, seed: int = 1) -> Statements:
    """The number that a cell leads with: its truth is the speed without deviations."""
    design = comparisons.build_design(planted.runs(truth, campaigns, seed))
    _, low, high = design.estimate_locations()[0].compute_bounds()
    # Cells come in the order of campaign, configuration, workload and batch.
    place = np.asarray(design.cells, dtype=np.int64) // truth.cells
    workload, at = place % truth.workloads, place // truth.workloads % truth.configurations
    cover = _covered(1 / truth.times()[workload, at], low, high, np.isfinite(low), workload)
    nan = float("nan")
    return Statements(cover, nan, nan, 100 * float(np.nanmedian(np.log(high / low))) / 2, 100.0)


def averages(truth: Truth, campaigns: int = 100, seed: int = 7, within: bool = False) -> Statements:
    """The mean of a figure's ratios: of each configuration against the first, or of cells of each lease against the first one."""
    pairs = (planted.pairs_within if within else planted.pairs)(truth, campaigns)
    times = truth.times()
    true = 1.0 if within else float(np.exp(np.log(times[:, :1] / times[:, 1:]).mean()))
    of, to = pairs
    design = comparisons.build_design(planted.runs(truth, campaigns, seed))
    rows = pd.DataFrame(
        {"cell_id": of, "against_cell": to, **comparisons.compute_ratios(of, to, design).build_columns(of.index)}
    )
    held, half = [], []
    for _, figure in rows.groupby(np.arange(len(rows)) * campaigns // len(rows)):
        _, low, high = (
            float(each[0]) for each in compute_average_ratio(figure[figure["ratio"].notna()], design).compute_bounds()
        )
        held.append(low <= true <= high)
        half.append(50 * np.log(high / low))
    nan = float("nan")
    return Statements(100 * float(np.mean(held)), nan, nan, float(np.median(half)), 100.0)


def largest(truth: Truth, campaigns: int = 300, seed: int = 9) -> Statements:
    """The largest of equal ratios within leases with the interval of one ratio, which no sentence quotes."""
    of, to = planted.pairs_within(truth, campaigns)
    design = comparisons.build_design(planted.runs(truth, campaigns, seed))
    value, low, high = (
        each.reshape(campaigns, -1) for each in comparisons.compute_ratios(of, to, design).estimate.compute_bounds()
    )
    at = np.arange(campaigns), value.argmax(axis=1)
    nan = float("nan")
    return Statements(100 * float(((low[at] <= 1) & (high[at] >= 1)).mean()), nan, nan, nan, 100.0)


_CAMPAIGNS_OF_DESIGN = 10


def chosen(truth: Truth, campaigns: int = 300, seed: int = 8) -> Statements:
    """The interval of the best of all cells, as `campaign recommend` quotes it.

    wrong: campaigns in which the truth is above the interval, of which 1 % are wanted.
    """
    below, above, half = [], [], []
    by_cell = -np.log(truth.times()[0].repeat(truth.cells))
    # A choice looks at the whole design, so that designs of few campaigns are faster.
    for of_part in range(-(-campaigns // _CAMPAIGNS_OF_DESIGN)):
        design = comparisons.build_design(planted.runs(truth, _CAMPAIGNS_OF_DESIGN, 1000 * seed + of_part))
        rows = add_results(pd.DataFrame({"cell": design.cells}), design)
        for _, of_campaign in rows.groupby(rows["cell"] // by_cell.size):
            candidates = score_candidates(RecommendationObjective(THROUGHPUT), of_campaign)
            best = candidates.iloc[0]
            low, high = bound_score(best, candidates.iloc[1:], design)
            true = by_cell[best["cell"] % by_cell.size]
            below.append(true < low)
            above.append(true > high)
            half.append(50 * (high - low))
    missed = 100 * float(np.mean(above))
    return Statements(100 - 100 * float(np.mean(below)) - missed, missed, float("nan"), float(np.median(half)), 100.0)


def medians(truth: Truth, campaigns: int = 50, seed: int = 1) -> Statements:
    """Medians of cells over several compositions: their truth is the speed without deviations, where these are symmetric."""
    runs = planted.runs(truth, campaigns, seed)
    design = comparisons.build_design(runs)
    _, low, high = design.estimate_medians(
        runs.groupby("cell_id")["value"].median().loc[design.cells].to_numpy()
    ).compute_bounds()
    nan = float("nan")
    cover = _covered(np.ones(low.size), low, high, np.isfinite(low), np.zeros(low.size))
    return Statements(cover, nan, nan, 100 * float(np.nanmedian(np.log(high / low))) / 2, 100.0)


Maker = Callable[..., Tables]
"""Makes one campaign, as `planted.tables` does."""


def compared(truth: Truth, campaigns: int = 40, seed: int = 1, make: Maker = planted.tables) -> Statements:
    """`campaign compare` of a campaign with one in which `effect` is planted; wrong: a tie is called slower or faster."""
    random, wrong, found, failed = np.random.default_rng(seed), 0, [], 0
    changed = np.repeat(truth.times().T != 1, truth.cells)
    for _ in range(campaigns):
        base = make(replace(truth, effect=()), random, name="base")
        after = make(truth, random, name="after")
        comparison = compare(base, after, [parse_rule("throughput < -1%")])
        says = comparison.rows["says"].isin(["slower", "faster"]).to_numpy()
        wrong += bool((says & ~changed).any())
        failed += bool(comparison.violations)
        found.append(float(says[changed].mean()) if changed.any() else np.nan)
    nan = float("nan")
    # `half` has the share of campaigns that --fail-on "throughput < -1%" fails.
    return Statements(nan, 100 * wrong / campaigns, 100 * float(np.mean(found)), 100 * failed / campaigns, nan)


def compared_in_site(
    truth: Truth, day: float, earlier: int = 3, campaigns: int = 40, seed: int = 11, with_spread: bool = True
) -> Statements:
    """A campaign beside the one before, as a site compares them; `effect` is planted in the last one.

    wrong: a tie is called slower or faster; half: median half-width of the intervals.

    Args:
        day: standard deviation of a campaign, common to all of its cells
        earlier: number of campaigns before the last one
        with_spread: whether the earlier ones tell how much campaigns differ
    """
    random, wrong, found, tested, half = np.random.default_rng(seed), 0, [], [], []
    changed = np.repeat(truth.times().T != 1, truth.cells)
    for _ in range(campaigns):
        every, deviations = [], np.exp(day * random.standard_normal(earlier + 1))
        for place, deviation in enumerate(deviations):
            effect = truth.effect if place == earlier and truth.effect else (1.0,) * truth.configurations
            times = tuple(deviation * time for time in effect)
            every.append(planted.tables(replace(truth, effect=times), random, name=f"campaign {place}"))
        measured = [
            (f"{n}", float(n), history.select_measured_cells(each.cells, each.context)) for n, each in enumerate(every)
        ]
        spread = history.estimate_spread_before(measured, earlier) if with_spread else None
        rows = compare(every[-2], every[-1], spread=spread).rows
        says = rows["says"].isin(["slower", "faster"]).to_numpy()
        wrong += bool((says & ~changed).any())
        found.append(float(says[changed].mean()) if changed.any() else np.nan)
        tested.append(float(rows["tested"].mean()))
        half.append(50 * float(np.log(rows["high"] / rows["low"]).median()))
    parts = 100 * wrong / campaigns, 100 * float(np.mean(found)), float(np.median(half)), 100 * float(np.mean(tested))
    return Statements(float("nan"), *parts)


def changed_between_campaigns(
    truth: Truth, day: float, earlier: int, campaigns: int = 300, seed: int = 12, with_spread: bool = True
) -> Statements:
    """As `compared_in_site`, from tables of runs: many histories at once.

    Args:
        day: standard deviation of a campaign, common to all of its cells
        earlier: number of campaigns before the last one
        with_spread: whether the earlier ones tell how much campaigns differ
    """
    size = earlier + 1
    runs = planted.runs(replace(truth, effect=()), campaigns * size, seed)
    deviation = day * np.random.default_rng(seed + 1).standard_normal(campaigns * size)
    effect = np.log(truth.times()[0])
    last = runs["campaign"] % size == earlier
    runs["value"] *= np.exp(-deviation[runs["campaign"]] - np.where(last, effect[runs["at"]], 0.0))
    design = comparisons.build_design(runs)
    shape = (campaigns, size, truth.configurations * truth.cells)
    cells = np.arange(np.prod(shape)).reshape(shape)
    found = comparisons.compute_ratios(
        pd.Series(cells[:, -1].ravel()), pd.Series(cells[:, -2].ravel()), design
    ).estimate
    means = design.value.reshape(shape)
    changed = effect.repeat(truth.cells) != 0
    wrong, named, half = [], [], []
    tested = 100.0
    for n, own in enumerate(np.split(np.arange(campaigns * shape[2]), campaigns)):
        of = LogRatios(found.ratio[own], found.variance[own], found.freedom[own])
        campaign, cell = (axis.ravel() for axis in np.indices(shape[1:]))
        before = pd.DataFrame({"campaign": campaign, "cell": cell, "mean": means[n].ravel()})
        spread = estimate_campaign_spread(before[before["campaign"] < earlier])
        of = spread.widen_ratios(of) if with_spread else of
        tested = 100.0 * (spread.is_known or not with_spread)
        differs = (adjust_p_values(of.compute_p_values()) < SIGNIFICANCE_LEVEL) & (tested > 0)
        wrong.append(bool((differs & ~changed).any()))
        named.append(float(differs[changed].mean()) if changed.any() else np.nan)
        half.append(float(np.median(50 * np.log(of.compute_bounds()[2] / of.compute_bounds()[1]))))
    parts = 100 * float(np.mean(wrong)), 100 * float(np.mean(named)), float(np.median(half)), tested
    return Statements(float("nan"), *parts)


def recommended(truth: Truth, campaigns: int = 40, seed: int = 2, make: Maker = planted.tables) -> Statements:
    """`campaign recommend`: wrong: not all equal configurations are called ties; found: the only best one is named alone."""
    random, wrong, found, told = np.random.default_rng(seed), 0, 0, 0
    for _ in range(campaigns):
        (answer,) = build_recommendation(
            make(truth, random), RecommendationRequest((RecommendationObjective(THROUGHPUT),))
        ).answers
        told += answer.comparable
        wrong += answer.comparable and not truth.effect and len(answer.alternatives) < truth.configurations - 1
        found += answer.comparable and bool(truth.effect) and not answer.alternatives
    nan = float("nan")
    return Statements(nan, 100 * wrong / campaigns, 100 * found / campaigns, nan, 100 * told / campaigns)


def mixed(truth: Truth, campaigns: int = 300, seed: int = 5) -> Statements:
    """The equal mix of all workloads on each configuration against that on the first; half: stated over true standard deviation
    of the mix on one configuration, in percent."""
    design = comparisons.build_design(planted.runs(truth, campaigns, seed))
    shape = (campaigns, truth.configurations, truth.workloads)
    campaign, at, _ = (axis.ravel() for axis in np.indices(shape))
    cells = np.arange(campaign.size) * truth.cells
    names = np.array([f"{c:06}.{i:03}" for c, i in zip(campaign, at, strict=True)])
    known = design.find_cell_indices(pd.Series(cells)) >= 0
    parts = pd.DataFrame({"sum": names, "kind": "mix", "cell_id": cells, "weight": 1 / truth.workloads})[known]
    sums = combine_cells(design, parts)
    cost = truth.times().mean(axis=0)
    of = names[:: truth.workloads].reshape(campaigns, -1)
    found = comparisons.compute_ratios(
        pd.Series(of[:, 1:].ravel()), pd.Series(np.repeat(of[:, 0], of.shape[1] - 1)), sums
    )
    said = _said(np.tile(cost[0] / cost[1:], campaigns), found, campaigns)
    there = np.array([int(name.partition(".")[2]) for name in sums.cells])
    off = np.log(sums.cost / cost[there])
    stated = np.sqrt(sums.estimate_locations()[0].variance.mean())
    return replace(said, half=100 * float(stated / np.sqrt((off**2).mean())))


def slow_downs(truth: Truth, campaigns: int = 40, seed: int = 6) -> Statements:
    """The slow-down of each configuration for the equal mix of those workloads that have one fastest configuration in truth."""
    random, held, half = np.random.default_rng(seed), [], []
    times = truth.times()
    one = np.flatnonzero(np.isclose(times, times.min(axis=1, keepdims=True)).sum(axis=1) == 1)
    times = times[one]
    true = (times / times.min(axis=1, keepdims=True)).mean(axis=0)
    for _ in range(campaigns):
        tables = planted.tables(truth, random)
        rows = build_candidates(tables, build_energy_design(tables), ["precision"])
        every = [own for _, own in rows.groupby("workload", sort=False)]
        variants = [every[at] for at in one]
        found, _ = build_mix_candidates(variants, [1 / len(variants)] * len(variants), tables.design)
        low, high = 1 / found["high"].to_numpy(float), 1 / found["low"].to_numpy(float)
        here = true[found["shape"]]
        known = np.isfinite(low)
        held += list((low <= here)[known] & (here <= high)[known])
        half += list(50 * np.log(high / low)[known])
    nan = float("nan")
    return Statements(100 * float(np.mean(held)), nan, nan, float(np.median(half)), 100.0)


COUNTS = (1, 2, 4, 6, 8, 10, 12, 14)


def dipped(truth: Truth, dip: float = 0.0, campaigns: int = 40, seed: int = 3) -> Statements:
    """A scaling curve of a ring all-reduce over `COUNTS` devices, of which 10 give less by the part `dip`."""
    random, wrong, found, tested = np.random.default_rng(seed), 0, 0, 0.0
    shapes = [report_data.configuration(each=n) for n in COUNTS]
    steps = np.array([0.04 + 4e-4 * (n - 1) + 0.024 * (n - 1) / n for n in COUNTS])
    steps[COUNTS.index(10)] *= 1 + dip
    truth = replace(truth, configurations=len(COUNTS), effect=tuple(steps / steps[0]))
    for _ in range(campaigns):
        tables = planted.tables(truth, random, shapes)
        rows = comparable_cells.compare_device_counts(tables.cells, tables.design)
        rows = scaling_curves.add_model_columns(
            rows, [*comparable_cells.PANEL_COLUMNS, "batch"], tables.design, tables.runs
        )
        named = set(rows.loc[rows["dip"], "ranks"])
        wrong += bool(named - ({10} if dip else set()))
        found += 10 in named
        tested += float(rows["dip_p"].notna().any())
    nan = float("nan")
    return Statements(nan, 100 * wrong / campaigns, 100 * found / campaigns, nan, 100 * tested / campaigns)


def hosts_named(
    hosts: int, leases: int, slower: float = 0.0, slow_runs: float = 0.0, campaigns: int = 100, seed: int = 4
) -> Statements:
    """Equal hosts (lease sd 1.5 %, run sd 1 %, two cells, five runs); the first gives less by the part `slower`."""
    random, wrong, found = np.random.default_rng(seed), 0, 0
    shape = (hosts, leases, 2, 5)
    host, lease, cell, _ = (axis.ravel() for axis in np.indices(shape))
    names = [(f"host{n}",) for n in host]
    for _ in range(campaigns):
        log = random.normal(0, 0.015, (hosts, leases))[host, lease] + random.normal(0, 0.01, host.size)
        rate = np.exp(log) * np.where(host == 0, 1 - slower, 1.0)
        rate *= np.where(random.random(host.size) < slow_runs, 0.7, 1.0)
        named = {each.host for each in compare_hosts(rate, cell, host * leases + lease, names) if each.is_slow}
        wrong += bool(named - ({"host0"} if slower else set()))
        found += "host0" in named
    nan = float("nan")
    return Statements(nan, 100 * wrong / campaigns, 100 * found / campaigns, nan, nan)

"""What statements come to over many planted campaigns: how often intervals hold the truth and ties are called differences.

`measured` is of comparisons between configurations (one figure a campaign), `within` of cells that share leases, `locations` of the
number that a cell leads with. The others go the public path: records, tables, and the statement that a user reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from campaign.insight.compare import compare, parse_rule
from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.objectives import THROUGHPUT, Asked, Objective
from campaign.statistics import comparable_cells, comparisons, scaling_curves
from campaign.statistics.multiple_testing import holm
from campaign.statistics.slow_hosts import compare_hosts
from campaign.tables.io import Tables
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth
from tests.unit.report import report_data


@dataclass(frozen=True)
class Statements:
    """In percent. cover: intervals that hold the truth; wrong: campaigns with an untrue difference; found: true ones found.

    half: median half-width of the intervals. nan where there is none.
    """

    cover: float
    wrong: float
    found: float
    half: float
    tested: float


def _said(truth_of: np.ndarray, ratios: comparisons.Ratios, figures: int) -> Statements:
    _, low, high = ratios.of.bounds()
    held = ((low <= truth_of) & (truth_of <= high))[ratios.tested]
    p = ratios.p().reshape(figures, -1)
    differs = np.nan_to_num(np.array([holm(row) for row in p]), nan=1.0) < 0.05
    none = np.isclose(truth_of, 1).reshape(figures, -1)
    half = 100 * np.log(high / low) / 2
    nan = float("nan")
    return Statements(
        100 * float(held.mean()) if held.size else nan,
        100 * float((differs & none).any(axis=1).mean()),
        100 * float(differs[~none].mean()) if (~none).any() else nan,
        float(np.nanmedian(half)),
        100 * float(ratios.tested.mean()),
    )


def measured(truth: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """Every configuration against the first; a figure a campaign and cell of a lease."""
    design = comparisons.design(planted.runs(truth, campaigns, seed))
    of, to = planted.pairs(truth, campaigns)
    times = np.tile(truth.times()[1:], campaigns * truth.cells)
    ratios = comparisons.ratios(of, to, design)
    return _said(truth.times()[0] / times, ratios, campaigns)


def lent(truth: Truth, earlier: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """`measured`, where an earlier campaign on the system (`earlier`) lends the spread of compositions."""
    before = comparisons.design(planted.runs(earlier, campaigns, seed + 1)).spread_of_compositions("pilot", "value")
    design = comparisons.design(planted.runs(truth, campaigns, seed), earlier=before)
    of, to = planted.pairs(truth, campaigns)
    times = np.tile(truth.times()[1:], campaigns * truth.cells)
    return _said(truth.times()[0] / times, comparisons.ratios(of, to, design), campaigns)


def within(truth: Truth, campaigns: int = 300, seed: int = 1) -> Statements:
    """Cells that share all leases of a configuration: each against the first, in all configurations of a campaign."""
    design = comparisons.design(planted.runs(truth, campaigns, seed))
    first = np.arange(campaigns * truth.configurations) * truth.cells
    of = (first[:, None] + np.arange(1, truth.cells)).ravel()
    ratios = comparisons.ratios(pd.Series(of), pd.Series(np.repeat(first, truth.cells - 1)), design)
    return _said(np.ones(of.size), ratios, campaigns)


def locations(truth: Truth, campaigns: int = 50, seed: int = 1) -> Statements:
    """The number that a cell leads with, of one composition: its truth is the speed without deviations."""
    design = comparisons.design(planted.runs(truth, campaigns, seed))
    _, low, high = design.locations()[0].bounds()
    nan = float("nan")
    half = 100 * float(np.nanmedian(np.log(high / low))) / 2
    return Statements(100 * float(((low <= 1) & (high >= 1)).mean()), nan, nan, half, 100.0)


Maker = Callable[..., Tables]
"""Makes one campaign, as `planted.tables` does."""


def compared(truth: Truth, campaigns: int = 40, seed: int = 1, make: Maker = planted.tables) -> Statements:
    """`campaign compare` of a campaign with one in which `effect` is planted; wrong: a tie is called slower or faster."""
    random, wrong, found, failed = np.random.default_rng(seed), 0, [], 0
    changed = np.repeat(truth.times() != 1, truth.cells)
    for _ in range(campaigns):
        base = make(replace(truth, effect=()), random, name="base")
        after = make(truth, random, name="after")
        comparison = compare(base, after, [parse_rule("throughput < -1%")])
        says = comparison.rows["says"].isin(["slower", "faster"]).to_numpy()
        wrong += bool((says & ~changed).any())
        failed += bool(comparison.broken)
        found.append(float(says[changed].mean()) if changed.any() else np.nan)
    nan = float("nan")
    # `half` has the share of campaigns that --fail-on "throughput < -1%" fails.
    return Statements(nan, 100 * wrong / campaigns, 100 * float(np.mean(found)), 100 * failed / campaigns, nan)


def recommended(truth: Truth, campaigns: int = 40, seed: int = 2, make: Maker = planted.tables) -> Statements:
    """`campaign recommend`: wrong: not all equal configurations are called ties; found: the only best one is named alone."""
    random, wrong, found, told = np.random.default_rng(seed), 0, 0, 0
    for _ in range(campaigns):
        (answer,) = advise(make(truth, random), Asked((Objective(THROUGHPUT),))).document.answers
        told += answer.comparable
        wrong += answer.comparable and not truth.effect and answer.tied_total < truth.configurations - 1
        found += answer.comparable and bool(truth.effect) and answer.tied_total == 0
    nan = float("nan")
    return Statements(nan, 100 * wrong / campaigns, 100 * found / campaigns, nan, 100 * told / campaigns)


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
        rows = comparable_cells.scaling(tables.cells, tables.design)
        rows = scaling_curves.with_models(rows, [*comparable_cells.KIND, "batch"], tables.design, tables.runs)
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
        named = {each.host for each in compare_hosts(rate, cell, host * leases + lease, names) if each.slow}
        wrong += bool(named - ({"host0"} if slower else set()))
        found += "host0" in named
    nan = float("nan")
    return Statements(nan, 100 * wrong / campaigns, 100 * found / campaigns, nan, nan)

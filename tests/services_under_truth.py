"""What is said of services whose truth is known, counted over many of them: percentiles, highest rates, and their ratios."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from campaign.statistics import comparisons, serving
from campaign.statistics.highest_rate import Objective, highest_rate
from campaign.statistics.intervals import SIGNIFICANT
from campaign.statistics.latency_percentiles import Sample, percentile
from tests.planted_services import SERVED_PER_S, Floats, Service, figure_data, response_times, true_percentile
from tests.statements_under_truth import Statements

_LEAST_SPARE = 0.5  # requests per second; a composition that is slower than its load has no percentile


def _samples(of: Service, rate: float, campaigns: int, draw: np.random.Generator, served: Floats) -> list[Sample]:
    """One sample a campaign; served: of each composition of each campaign."""
    each = np.repeat(np.maximum(served, rate + _LEAST_SPARE), of.runs)
    times = response_times(rate, each, of.requests, draw).reshape(campaigns, -1, of.requests)
    compositions = np.repeat(np.arange(of.compositions), of.runs)
    return [Sample(tuple(runs), compositions) for runs in times]


def _served(of: Service, campaigns: int, draw: np.random.Generator) -> Floats:
    return np.asarray(SERVED_PER_S * np.exp(draw.normal(0, of.lease_sd, campaigns * of.compositions)))


def percentiles_cover(of: Service, rate: float, percent: float, campaigns: int, seed: int = 1) -> Statements:
    """cover: intervals, an end that nothing bounds included; found: those with both ends; half: their median half-width."""
    draw = np.random.default_rng(seed)
    truth = true_percentile(percent, rate, SERVED_PER_S)
    found = [percentile(each, percent) for each in _samples(of, rate, campaigns, draw, _served(of, campaigns, draw))]
    low, high = (np.array([getattr(each, end) for each in found]) for end in ("low", "high"))
    return _counted(low, high, np.full(campaigns, truth), float("nan"))


def highest_rates_cover(of: Service, percent: float, holds: float, campaigns: int, seed: int = 1) -> Statements:
    """As `percentiles_cover`, of the highest rate that holds, which is `holds`."""
    draw = np.random.default_rng(seed)
    served = _served(of, campaigns, draw)
    objective = Objective("ttft", percent, true_percentile(percent, holds, SERVED_PER_S))
    by_rate = {rate: _samples(of, rate, campaigns, draw, served) for rate in of.rates}
    found = [
        highest_rate({objective: {rate: samples[number] for rate, samples in by_rate.items()}})
        for number in range(campaigns)
    ]
    low, high = (np.array([getattr(each, end) for each in found]) for end in ("low", "high"))
    return _counted(low, high, np.full(campaigns, holds), float("nan"))


def ratios_cover(of: Service, percent: float, holds: float, campaigns: int) -> Statements:
    """Ratios of highest rates to the first configuration's, whose service holds `holds`, from tables.

    cover: intervals of ratios; wrong: campaigns that call a tie a difference; found: true differences that are named.
    """
    limit_ms = 1e3 * true_percentile(percent, holds, SERVED_PER_S)
    objectives = {"gpt-service": (Objective("ttft_ms", percent, limit_ms),)}
    speeds = np.array(list(of.speeds.values()))
    truth = (SERVED_PER_S * speeds - (SERVED_PER_S - holds)) / holds
    ends, wrong, named = [], [], []
    for seed in range(campaigns):
        data = figure_data(of, seed=seed)
        requests, cells = serving.latencies(data.requests, data.runs), serving.rated(data.cells)
        table = serving.highest_rates(requests, cells, data.runs, objectives)
        each = serving.of_compositions(requests, cells, data.runs, objectives)
        by = comparisons.design(each, data.protocol, column="rate")
        rows = serving.against_baseline(table, data.baseline, by).iloc[1:]
        ends.append(rows[["ratio_low", "ratio_high"]].to_numpy())
        differ = (rows["p_holm"] < SIGNIFICANT).to_numpy()
        wrong.append(bool(differ[truth[1:] == 1].any()))
        named += differ[truth[1:] != 1].tolist()
    low, high = np.concatenate(ends).T
    known = np.isfinite(low)
    counted = _counted(low[known], high[known], np.tile(truth[1:], campaigns)[known], 100 * float(np.mean(wrong)))
    return replace(counted, found=100 * float(np.mean(named)) if named else float("nan"))


def _counted(low: Floats, high: Floats, truth: Floats, wrong: float) -> Statements:
    covered = ~(low > truth) & ~(high < truth)
    both = np.isfinite(low) & np.isfinite(high)
    half = 100 * float(np.median(((high - low) / 2 / truth)[both])) if both.any() else float("nan")
    return Statements(100 * float(covered.mean()), wrong, 100 * float(both.mean()), half, 100.0)

"""What the model of a step (`campaign.model`) expects of cells before anything is measured. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.documents.metric import THROUGHPUT
from campaign.model.parameters import medians
from campaign.model.simulation import simulate
from campaign.plan.step_cases import case_of, prior_of

_MOST_SIMULATED = 120
"""More would take longer than choosing a round does. Of a configuration, cells that are not simulated are expected as the nearest
one that is; main effects of batch and precision come from the measured cells in any case."""


def expected_rates(campaign: Campaign, cells: Iterable[Cell]) -> dict[str, float]:
    """Logarithms of throughput by cell id, with all parameters at their medians; only of workloads of which the model knows every
    cell, and nothing where the campaign is about another metric."""
    groups = defaultdict[tuple[str, str], list[Cell]](list)
    for cell in cells if campaign.metric == THROUGHPUT else ():
        groups[cell.workload, cell.configuration.name].append(cell)
    part = min(1.0, _MOST_SIMULATED / max(1, sum(map(len, groups.values()))))
    found: dict[str, dict[str, float | None]] = defaultdict(dict)
    for (workload, _), mine in groups.items():
        mine.sort(key=lambda cell: (cell.precision, sorted(map(str, cell.options.items())), cell.batch), reverse=True)
        places = np.unique(np.linspace(0, len(mine) - 1, math.ceil(part * len(mine))).round().astype(int))
        rates = [_log_rate(campaign, mine[at]) for at in places]
        nearest = np.abs(places[:, None] - np.arange(len(mine))).argmin(axis=0)
        found[workload] |= {cell.id: rates[at] for cell, at in zip(mine, nearest, strict=True)}
    known = [rates for rates in found.values() if None not in rates.values()]
    return {cell: rate for rates in known for cell, rate in rates.items() if rate is not None}


def _log_rate(campaign: Campaign, cell: Cell) -> float | None:
    workload, system = campaign.workloads[cell.workload], campaign.on(cell.configuration).system
    case = case_of(system, workload, cell)
    if case is None:
        return None
    step_s = float(simulate(case, medians(prior_of(system, workload, [case]))).step_s[0])
    return math.log(cell.batch_global / step_s)

"""Campaigns of any plan whose rates are planted, with deviations of compositions and of runs.

Records are made once; each of the campaigns is the table of their runs with deviations of its own, so that hundreds are cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import yaml

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.common.paths import ROOT
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.cell import Cell
from campaign.spec.run_numbers import compute_run_number
from campaign.spec.system_file import SystemFile
from tests.unit.report import report_data


@dataclass(frozen=True)
class Simulated:
    """cells: of the plan; rate: samples per second of a cell; repetitions: runs of a cell in each composition."""

    system: SystemFile
    cells: tuple[Cell, ...]
    rate: Callable[[Cell], float]
    compositions: int = 3
    repetitions: int = 2

    def tables(self, random: np.random.Generator, lease: float = 0.01, run: float = 0.01) -> Tables:
        """One campaign; lease, run: standard deviations of the logarithm of time."""
        runs = self._runs
        leases = runs["lease_id"].unique()
        by_lease = pd.Series(lease * random.standard_normal(len(leases)), index=leases)
        time = np.exp(by_lease.reindex(runs["lease_id"]).to_numpy() + run * random.standard_normal(len(runs)))
        changed = ("throughput_per_s", "throughput_per_device_per_s", "value")
        runs = runs.assign(**{name: runs[name] / time for name in changed})
        return Tables(runs, build_cells_table(self._plan, runs), [], [], self._context)

    @cached_property
    def _plan(self) -> list[CellPlan]:
        return [
            CellPlan(cell, self.compositions * self.repetitions, f"{cell.configuration.name}.c1", runs=self._numbers)
            for cell in self.cells
        ]

    @property
    def _numbers(self) -> tuple[int, ...]:
        of = range(1, self.repetitions + 1)
        return tuple(compute_run_number(c, n) for c in range(1, self.compositions + 1) for n in of)

    @cached_property
    def _runs(self) -> pd.DataFrame:
        records = []
        for cell in self.cells:
            bare = {"step_times_s": (), "window_s": (), "metrics": {}}
            for number in self._numbers:
                lease = f"{cell.configuration.name}.c{number // 1000 + 1}"
                records.append(report_data.record(cell, number, self.rate(cell), **bare, lease_id=lease))
        return build_runs_table(records)

    @cached_property
    def _context(self) -> dict[str, Any]:
        context = report_data.context_document()
        context["campaign"] = {**context["campaign"], "protocol": {"order": "blocks", "lease_order": "blocks"}}
        context["campaign_yaml"] = yaml.safe_dump({"system": self.system.model_dump(mode="json")})
        return context


_SAMPLE_S = {"bert-nano": 0.038, "resnet50w16": 0.136}
_BYTES = {"bert-nano": 2.9e6, "resnet50w16": 6.1e6}


def default_campaign() -> Simulated:
    """Return the default campaign with steps of compute and a ring all-reduce; devices scale, and links cost."""
    campaign = load_campaign(ROOT / "config" / "campaign.yaml")

    def rate(cell: Cell) -> float:
        at = cell.configuration
        link = 3.8e7 if at.hosts > 1 or at.attach != "local" else 1.2e8
        compute = _SAMPLE_S[cell.workload] * cell.batch * (0.67 if cell.precision == "bf16" else 1.0)
        return cell.batch_global / (0.002 + compute + 2 * (at.ranks - 1) / at.ranks * _BYTES[cell.workload] / link)

    return Simulated(campaign.system, tuple(expand_matrix(campaign).cells), rate, repetitions=1)

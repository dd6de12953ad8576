"""Campaigns of any plan whose step times are those of `tests.step_simulator`, with deviations of compositions and of runs.

Records are made once; each of the campaigns is the table of their runs with deviations of its own, so that hundreds are cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import yaml

from campaign.documents.cell import Cell
from campaign.documents.run_numbers import run_number
from campaign.tables.cells import CellPlan, cells_table
from campaign.tables.io import Tables
from campaign.tables.runs import runs_table
from tests.step_simulator import Floats, Machine
from tests.unit.report import report_data


@dataclass(frozen=True)
class Simulated:
    """cells: of the plan; system: its file as a document, for `recommend`; repetitions: runs of a cell in each composition."""

    machine: Machine
    cells: tuple[Cell, ...]
    system: Mapping[str, Any] | None = None
    compositions: int = 3
    repetitions: int = 2
    links: Sequence[Mapping[str, Any]] = field(default=())

    @cached_property
    def true_step_s(self) -> Floats:
        return self.machine.step_s(self.cells)

    @cached_property
    def true_rate(self) -> pd.Series[float]:
        """Samples per second by cell."""
        rates = [cell.batch_global for cell in self.cells] / self.true_step_s
        return pd.Series(rates, index=[cell.id for cell in self.cells])

    def tables(self, random: np.random.Generator, lease: float = 0.01, run: float = 0.01) -> Tables:
        """One campaign; lease, run: standard deviations of the logarithm of time."""
        runs = self._runs
        leases = runs["lease_id"].unique()
        by_lease = pd.Series(lease * random.standard_normal(len(leases)), index=leases)
        time = np.exp(by_lease.reindex(runs["lease_id"]).to_numpy() + run * random.standard_normal(len(runs)))
        changed = ("throughput_per_s", "throughput_per_device_per_s", "value")
        runs = runs.assign(**{name: runs[name] / time for name in changed})
        return Tables(runs, cells_table(self._plan, runs), [], self.links, self._context)

    @cached_property
    def _plan(self) -> list[CellPlan]:
        return [
            CellPlan(cell, self.compositions * self.repetitions, f"{cell.configuration.name}.c1", runs=self._numbers)
            for cell in self.cells
        ]

    @property
    def _numbers(self) -> tuple[int, ...]:
        of = range(1, self.repetitions + 1)
        return tuple(run_number(c, n) for c in range(1, self.compositions + 1) for n in of)

    @cached_property
    def _runs(self) -> pd.DataFrame:
        records = []
        for cell, rate in zip(self.cells, self.true_rate, strict=True):
            bare = {"step_times_s": (), "window_s": (), "metrics": self._metrics(cell)}
            for number in self._numbers:
                lease = f"{cell.configuration.name}.c{number // 1000 + 1}"
                records.append(report_data.record(cell, number, float(rate), **bare, lease_id=lease))
        return runs_table(records)

    def _metrics(self, cell: Cell) -> dict[str, float]:
        """What a workload counts, as `train` does."""
        size, n = self.machine.bytes_of(cell), cell.configuration.ranks
        found = {"gradient_bytes": size}
        if n == 1:
            return found
        part, parallel = 1 - 1 / n, cell.options.get("parallel", "ddp")
        accumulation = int(cell.options.get("accumulation", 1))
        weights = self.machine.traces[cell.workload].elements * 4.0
        if parallel == "dp":
            return found | {"communication_bytes_per_step": part * 2 * accumulation * size}
        if parallel == "fsdp":
            return found | {"communication_bytes_per_step": part * (2 * accumulation + 1) * size}
        moved = part * (2 * size + (weights if parallel == "zero1" else 0.0))
        return found | {"allreduce_bytes_per_step": size, "communication_bytes_per_step": moved}

    @cached_property
    def _context(self) -> dict[str, Any]:
        context = report_data.context_document()
        context["campaign"] = {**context["campaign"], "protocol": {"order": "blocks", "lease_order": "blocks"}}
        context["campaign_yaml"] = yaml.safe_dump({"system": dict(self.system)} if self.system else {})
        return context

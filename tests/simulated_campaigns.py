"""Campaigns of any plan whose step times are simulated with planted parameters, with deviations of compositions and of runs.

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
from campaign.model.parameters import Draws, Floats, medians
from campaign.model.simulation import steps_s
from campaign.plan.step_cases import case_of, prior_of

from campaign.config.system_file import SystemFile
from campaign.documents.cell import Cell
from campaign.documents.run_numbers import run_number
from campaign.tables.cells import CellPlan, cells_table
from campaign.tables.io import Tables
from campaign.tables.runs import runs_table
from campaign.workloads.protocol import Workload
from tests.unit.report import report_data


@dataclass(frozen=True)
class Machine:
    """planted: values of parameters by name; of the others it is the median of what is known of them beforehand. pace: factor of
    the compute time by precision."""

    system: SystemFile
    workloads: Mapping[str, Workload]
    planted: Mapping[str, float] = field(default_factory=dict)
    pace: Mapping[str, float] = field(default_factory=dict)

    def step_s(self, cells: Sequence[Cell]) -> Floats:
        """Seconds of a step of each cell."""
        cases = [case_of(self.system, self.workloads[cell.workload], cell) for cell in cells]
        known = [case for case in cases if case is not None]
        assert len(known) == len(cells)
        return steps_s(known, [self._draws(cell) for cell in cells])[:, 0] if known else np.empty(0)

    def _draws(self, cell: Cell) -> Draws:
        found = medians(prior_of(self.system, self.workloads[cell.workload])).values
        planted = {name: np.array([value]) for name, value in self.planted.items()}
        compute = planted.get("compute", found["compute"]) * self.pace.get(cell.precision, 1.0)
        return Draws({**found, **planted, "compute": compute})


@dataclass(frozen=True)
class Simulated:
    """cells: of the plan; repetitions: runs of a cell in each composition; known: whether `recommend` knows the programs."""

    machine: Machine
    cells: tuple[Cell, ...]
    compositions: int = 3
    repetitions: int = 2
    links: Sequence[Mapping[str, Any]] = field(default=())
    known: bool = True

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
            bare = {"step_times_s": (), "window_s": (), "metrics": {}}
            for number in self._numbers:
                lease = f"{cell.configuration.name}.c{number // 1000 + 1}"
                records.append(report_data.record(cell, number, float(rate), **bare, lease_id=lease))
        return runs_table(records)

    @cached_property
    def _context(self) -> dict[str, Any]:
        context = report_data.context_document()
        context["campaign"] = {**context["campaign"], "protocol": {"order": "blocks", "lease_order": "blocks"}}
        programs = {name: each.model_dump(mode="json") for name, each in self.machine.workloads.items()}
        document = {"system": self.machine.system.model_dump(mode="json"), "workloads": programs if self.known else {}}
        context["campaign_yaml"] = yaml.safe_dump(document)
        return context

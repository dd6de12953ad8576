"""A campaign that is simulated instead of measured: tables as those of a measurement, and what may come out of each cell.

Each cell is one run, at the median of what may come out. What is not known of the inputs is drawn (`campaign.model`). One draw
holds for all cells, so that the ratio of two cells is known better than each of them. What the model itself is off by is drawn for
each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.documents.record import Record, RecordedCell, Store
from campaign.documents.run_numbers import whole
from campaign.model.description import StepCase
from campaign.model.parameters import MISFIT, Draws, Floats, sample
from campaign.model.simulation import StepPrediction, simulate
from campaign.plan.matrix import expand
from campaign.plan.plan import lease_name
from campaign.plan.step_cases import case_of, prior_of
from campaign.tables.collect import tables_of
from campaign.tables.io import Tables
from campaign.tables.report_context import Collected

DRAWS = 1000
MANY_DRAWS = 4000
"""For what is conditioned on a claim that few draws fit."""
PREDICTED = 0.8
"""Share of what may come out that an interval holds."""
_UNKNOWN = "no prediction: the model does not know what a step of this program does"


@dataclass(frozen=True, eq=False)
class PredictedCell:
    """What may come out of a cell. case, step: None where the model does not know the program. rates: samples per second under each
    draw, with what the model is off by."""

    cell: Cell
    case: StepCase | None = None
    step: StepPrediction | None = None
    rates: Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, cell: Cell, case: StepCase, step: StepPrediction, seed: int) -> PredictedCell:
        half = step.step_s.size // 2
        off = np.random.default_rng((zlib.crc32(cell.id.encode()), seed)).standard_normal(half)
        # To both sides of each draw, so that it moves no median.
        misfit = np.exp(MISFIT * np.concatenate([off, -off]))
        return cls(cell, case, step, np.asarray(cell.batch_global / step.step_s * misfit))

    @cached_property
    def throughput_per_s(self) -> tuple[float, float, float] | None:
        """Median and the 80 % interval; None where the model does not know the program."""
        return _interval(self.rates) if self.step else None

    @cached_property
    def step_s(self) -> tuple[float, float, float] | None:
        """The same of a step."""
        return _interval(self.cell.batch_global / self.rates) if self.step else None

    @property
    def memory_mib(self) -> float:
        """On the fullest device; nan where that is not known."""
        return float(np.median(self.step.memory_mib)) if self.step else np.nan

    @property
    def memory_limit_mib(self) -> float | None:
        """Of a device; None where that is not known."""
        return self.case.memory_mib if self.case else None

    @property
    def fits(self) -> float | None:
        """Share of the draws that fit into memory; None where that is not known."""
        return self.step.fits if self.step else None

    @property
    def lacks_memory(self) -> bool:
        return self.fits is not None and self.fits < 0.5

    def metrics(self) -> Iterator[tuple[str, Floats]]:
        """Metrics of a run by their names in the tables, under each draw."""
        step, case = self.step, self.case
        assert step is not None
        assert case is not None
        yield "communication_bytes_per_step", np.full(self.rates.size, step.sent_bytes)
        yield "device_utilisation_mean_pct", 100 * step.busy
        if (carried := step.link_bytes.get("fabric")) is not None:
            per_s = carried / self.cell.configuration.ranks * self.rates / self.cell.batch_global
            for way in ("rx", "tx"):
                yield f"pcie_{way}_mean_gb_per_s", per_s / 2 / 1e9
        if np.isfinite(step.memory_mib).all():
            yield "device_memory_peak_mib", step.memory_mib
        if step.host_busy is not None and case.input is not None:
            # The process of each rank keeps a core busy, beside those that read and decode.
            own = case.topology.on_host / case.input.cores
            yield "cpu_utilisation_mean_pct", 100 * np.minimum(step.host_busy + own, 1.0)

    def drawn(self) -> pd.DataFrame:
        columns = {
            "cell_id": pd.Series([self.cell.id] * self.rates.size, dtype="str"),
            "draw": np.arange(self.rates.size),
            "value": self.rates,
            "throughput_per_s": self.rates,
            "batch_global": self.cell.batch_global,
            **dict(self.metrics()),
        }
        return pd.DataFrame(columns)

    def record(self, campaign: Campaign, number: int) -> Record:
        """The run at the median; one that fails where it does not fit into memory."""
        cell = self.cell
        assert self.throughput_per_s is not None
        assert self.step_s is not None
        if self.lacks_memory:
            limit = self.memory_limit_mib or 0
            needed = f"predicted to need {self.memory_mib / 1024:.1f} GiB of {limit / 1024:g} GiB"
            outcome: dict[str, Any] = {"status": "oom_device", "failure": {"reason": needed}}
        else:
            metrics = {name: float(np.median(values)) for name, values in self.metrics()}
            if (parameters := campaign.workloads[cell.workload].summary().get("parameters")) is not None:
                metrics["parameters"] = float(parameters)
            outcome = {
                "status": "ok",
                "throughput_per_s": self.throughput_per_s[0],
                "step_times_s": ((self.step_s[0],),),
                "metrics": metrics,
            }
        of_system = cell.configuration.system or campaign.on(cell.configuration).system.name
        specification = {
            "system": {"name": of_system},
            "warmup_steps": cell.settings.warmup_steps,
            "version": campaign.file.version or "",
        }
        return Record.model_validate(
            {
                "cell_id": cell.id,
                "repetition": 1,
                "cell": RecordedCell.of(cell),
                "specification": specification,
                "started": float(number),
                "ended": number + self.step_s[0] * cell.settings.measured_steps,
                "lease_id": f"{cell.configuration.name}.predicted",
                "composition": "",
                "environment": "",
                "campaign": "",
                **outcome,
            }
        )


@dataclass(frozen=True)
class PredictedCampaign:
    """Tables as `campaign collect` makes them, and each cell in the order of the plan. assumed: compute times that nobody measured,
    and the factor that they are known up to."""

    tables: Tables
    cells: tuple[PredictedCell, ...]
    assumed: Mapping[str, float]


def predict(
    campaign: Campaign, where: str | None = None, *, replayed: bool = False, count: int = DRAWS, seed: int = 0
) -> PredictedCampaign:
    """Simulate the cells of a campaign.

    where: only those that match; replayed: what a replay on this machine would measure, instead of what the system would; count: of
    draws, even. ConfigError: the campaign does not fit its system, or has no cells.
    """
    matrix = expand(campaign, where)
    settings = {cell.id: replace(whole(cell.settings), repetitions=1, compositions=1) for cell in matrix.cells}
    cells = tuple(replace(cell, settings=settings[cell.id]) for cell in matrix.cells)
    draws: dict[object, Draws] = {}
    found = tuple(_predicted(campaign, cell, draws, replayed, count, seed) for cell in cells)
    known = [(number, each) for number, each in enumerate(found) if each.case]
    drawn = [each.drawn() for _, each in known if not each.lacks_memory]
    computed = [compute for each in found if each.case for compute in each.case.compute]
    reasons = {lease_name(campaign.protocol, cell, 1): _UNKNOWN for cell in cells}
    collected = Collected(
        campaign,
        replace(matrix, cells=cells),
        [each.record(campaign, number) for number, each in known],
        [],
        reasons,
        _NoStore(Path()),
        draws=pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame({"cell_id": []}),
    )
    assumed = {compute.key: compute.factor for compute in computed if compute.factor is not None}
    return PredictedCampaign(tables_of(collected), found, assumed)


class _NoStore(Store):
    """Nothing was measured, so there is no document of compositions or hosts."""

    def shared_document(self, name: str) -> dict[str, Any]:
        return {}


def _predicted(
    campaign: Campaign, cell: Cell, draws: dict[object, Draws], replayed: bool, count: int, seed: int
) -> PredictedCell:
    """draws: what is drawn so far of what is not known, by system, workload and compute times."""
    workload, system = campaign.workloads[cell.workload], campaign.on(cell.configuration).system
    if workload.predicts and not replayed:
        system = system.model_copy(update={"emulation": None})
    if (case := case_of(system, workload, cell)) is None:
        return PredictedCell(cell)
    key = system.name, workload.name, tuple(each.key for each in case.compute)
    if key not in draws:
        half = sample(prior_of(system, workload, [case]), count // 2, seed)
        draws[key] = Draws({name: np.tile(values, 2) for name, values in half.values.items()})
    return PredictedCell.of(cell, case, simulate(case, draws[key]), seed)


def _interval(values: Floats) -> tuple[float, float, float]:
    median, low, high = np.quantile(values, [0.5, 0.5 - PREDICTED / 2, 0.5 + PREDICTED / 2])
    return float(median), float(low), float(high)


def conditioned(tables: Tables, logs: Floats, low: float, high: float, seed: int = 0) -> Tables:
    """Predicted tables after one number was learned: draws are taken as often as they fit it, and medians are of those.

    logs: [draw] logarithm of what was learned, in the order of the draws; low, high: between which it is. Beside these, the model
    may be off by `MISFIT` in both cells of a ratio.
    """
    off = np.maximum(np.maximum(np.log(low) - logs, logs - np.log(high)), 0.0)
    weights = np.exp(-0.5 * (off / (MISFIT * np.sqrt(2))) ** 2)
    # Systematic resampling (Kitagawa 1996, Journal of Computational and Graphical Statistics 5(1)).
    at = (np.arange(logs.size) + np.random.default_rng(seed).random()) / logs.size
    taken = np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), at), logs.size - 1)
    order = tables.draws.sort_values(["cell_id", "draw"], kind="stable").reset_index(drop=True)
    cells = len(order) // logs.size
    rows = (np.arange(cells)[:, None] * logs.size + taken[None, :]).ravel()
    draws = order.iloc[rows].assign(draw=np.tile(np.arange(logs.size), cells)).reset_index(drop=True)
    medians = draws.drop(columns="draw").groupby("cell_id").median()
    known = [name for name in medians.columns if name in tables.runs]
    runs = tables.runs.set_index("cell_id", drop=False)
    runs.loc[medians.index, known] = medians[known]
    return replace(tables, runs=runs.reset_index(drop=True), draws=draws)

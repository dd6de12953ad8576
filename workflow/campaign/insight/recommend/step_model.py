"""The model of the steps of one workload on one device model, fitted to its measured cells. Pure.

Where the inside of a step is known, it is `campaign.model`, with effects of shapes for what that leaves out. A program of unknown
inside (`command`) is taken for training of equal layers on replicas, each of its strategies by itself. The error of leaving
configurations out decides how it shares the work: gradients are reduced beside the backward pass or after it, by processes or by
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.insight.recommend.observations import observed
from campaign.insight.recommend.step_rows import Assumed, MeasuredProgram, StepRows, UnknownInsideError
from campaign.model.description import WorkSharing
from campaign.model.fit import STARTS, FittedSteps, Predicted, fit
from campaign.observe.links.document import FABRIC, LOCAL, NETWORK
from campaign.tables.io import Tables

TRUSTED_PCT = 10.0
"""A model that is further off than this about a configuration it was not shown (median) chooses nothing."""
FEWEST_CONFIGURATIONS = 4
MOST_SIMULATED, MOST_COMPARED = 240, 60
"""Cells that a simulation is fitted to, and that decide what a program of unknown inside is taken for; of more, some of each
configuration."""
_ASSUMED: Sequence[Assumed] = (
    *((WorkSharing(overlap=overlap), algorithm) for overlap in (True, False) for algorithm in ("nccl", "ring")),
    (WorkSharing("dp"), "ring"),
)


@dataclass(frozen=True)
class FittedWorkload:
    """rows: steps of any rows; freedom: of intervals. off_pct, wider: by strategy, the median error about configurations that were
    left out, and how much wider than stated intervals have to be."""

    rows: StepRows
    fitted: FittedSteps
    freedom: float
    off_pct: Mapping[str, float]
    wider: Mapping[str, float]

    def predict(self, frame: pd.DataFrame) -> Predicted:
        """Of rows with the columns of `MeasuredWorkload.cells` that say what is run."""
        said = self.fitted.predict(self.rows.of(frame))
        return Predicted(said.log_s, frame["strategy"].map(self.wider).to_numpy(dtype=np.float64) * said.sd)


@dataclass(frozen=True)
class MeasuredWorkload:
    """What was measured of a workload on a device model, or of one of its strategies, and the model of its steps, None where there
    are too few configurations.

    cells: as `observed` makes them, with `predicted_s` from a fit without the cell's configuration, nan where nothing else tells,
    and `error_pct` of throughput, predicted over measured. named: columns of precision and options.
    """

    workload: str
    device: str
    named: tuple[str, ...]
    cells: pd.DataFrame
    model: FittedWorkload | None

    @property
    def strategies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.cells["strategy"]))

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Strategies that the model is too far off about, by name; all where there is no model."""
        off = self.model.off_pct if self.model else {}
        return tuple(name for name in self.strategies if not off.get(name, np.inf) <= TRUSTED_PCT)

    @property
    def ways(self) -> set[str]:
        """Kinds of ways that were measured, or whose links are known otherwise."""
        guesses = self.model.rows.guesses if self.model else ()
        known = {link for link in (LOCAL, FABRIC, NETWORK) if f"rate[{link}]" not in guesses}
        further = {FABRIC + " + " + NETWORK} if {FABRIC, NETWORK} <= known else set()
        return {*self.cells["way"], *known, *further}


def measured_workloads(
    tables: Tables,
    named: Sequence[str],
    programs: Mapping[str, MeasuredProgram] | None,
    workloads: Sequence[str] = (),
) -> list[MeasuredWorkload]:
    """Each workload on each device model, or these workloads. programs: by workload, what is known of it; None: make no models."""
    cells = tables.cells[tables.cells["workload"].isin(list(workloads))] if workloads else tables.cells
    found = []
    for own in observed(tables.runs, cells, named):
        program = None if programs is None else programs.get(str(own["workload"].iloc[0]), MeasuredProgram())
        found += modelled(own, named, program)
    return found


def modelled(cells: pd.DataFrame, named: Sequence[str], program: MeasuredProgram | None) -> list[MeasuredWorkload]:
    """Cells of one workload on one device model, with their model; by strategy, where the inside of a step is not known."""
    if program is None or cells["configuration"].nunique() < FEWEST_CONFIGURATIONS:
        return [_workload(cells.assign(predicted_s=np.nan, error_pct=np.nan), named, None)]
    try:
        return [_fitted(cells, named, StepRows(cells, named, program))]
    except UnknownInsideError:
        by_strategy = [own.reset_index(drop=True) for _, own in cells.groupby("strategy", sort=False)]
    if len(by_strategy) > 1:
        return [each for own in by_strategy for each in modelled(own, named, program)]
    return [_fitted(cells, named, StepRows(cells, named, program, _assumed(cells, named, program)))]


def _assumed(cells: pd.DataFrame, named: Sequence[str], program: MeasuredProgram) -> Assumed:
    """What describes a program of unknown inside best."""
    some = _some_of_each(cells["configuration"], MOST_COMPARED)
    few = cells.iloc[np.union1d(some, cells.drop_duplicates("group").index)].reset_index(drop=True)
    tried = [_fitted(few, named, StepRows(few, named, program, each)) for each in _ASSUMED]
    errors = [each.cells["error_pct"].abs().median() for each in tried]
    return _ASSUMED[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]


def _fitted(cells: pd.DataFrame, named: Sequence[str], rows: StepRows) -> MeasuredWorkload:
    steps, log_s = rows.of(cells), np.log(cells["step_s"].to_numpy(dtype=np.float64))
    some = _some_of_each(cells["configuration"], MOST_SIMULATED)
    # Nothing of what is assumed hides a parameter for long.
    fitted = fit(steps.take(some), log_s[some], rows.prior, rows.guesses, 0 if rows.assumed else STARTS)
    said = fitted.left_out(steps, cells["configuration"].tolist(), some)
    error = pd.Series(log_s - said.log_s, index=cells.index)  # of the rate: it is the inverse of the step time
    cells = cells.assign(predicted_s=np.exp(said.log_s), error_pct=100 * np.expm1(error))
    # One device communicates with nobody, and tells nothing of a strategy where there are several.
    tells = (cells["ranks"] > 1) | (cells["strategy"].nunique() == 1)
    of = cells["strategy"].where(tells)
    names = list(map(str, cells["strategy"].unique()))
    off_pct = cells["error_pct"].abs().groupby(of).median().reindex(names)
    wider = np.sqrt(np.square(error / said.sd).groupby(of).mean()).clip(lower=1.0).reindex(names).fillna(1.0)
    freedom = min(fitted.freedom, cells["configuration"].nunique() - 1.0)
    by_strategy = [dict(zip(names, map(float, each), strict=True)) for each in (off_pct, wider)]
    model = FittedWorkload(rows, fitted, freedom, *by_strategy)
    return _workload(cells, named, model)


def _workload(cells: pd.DataFrame, named: Sequence[str], model: FittedWorkload | None) -> MeasuredWorkload:
    workload, device = cells.iloc[0][["workload", "device"]].astype(str)
    return MeasuredWorkload(workload, device, tuple(named), cells, model)


def _some_of_each(configurations: pd.Series[str], most: int) -> npt.NDArray[np.int64]:
    """Positions of at most so many cells, as many of each configuration, and others of the next one."""
    if len(configurations) <= most:
        return np.arange(len(configurations))
    turn = configurations.groupby(configurations, sort=False).cumcount()
    number = pd.Series(pd.factorize(configurations)[0], index=configurations.index)
    size = configurations.map(configurations.value_counts())
    turn = (turn + number * size // (number.max() + 1)) % size
    return np.sort(turn.to_numpy().argsort(kind="stable")[:most])

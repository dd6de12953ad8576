"""Drift of a system over a campaign, estimated from its reference.

The reference is one cell that was measured in every composition. Pure functions.

Model: the logarithm of the reference's cost in a composition is that of its device, plus a straight line over the time of the
campaign, plus a deviation of the composition. A composition is one value, whatever the number of its runs, so the degrees of
freedom are those of compositions. Devices with another attachment are separate references, with a level each and one common
line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.analysis.statistics import location
from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats, student_quantile

_HOUR_S = 3600.0
_MIN_NOISE = 1e-6  # A smaller deviation comes from numbers that differ only in their last digits.


@dataclass(frozen=True)
class Drift:
    """Estimated drift of a system's speed during a campaign.

    leases: one row per composition in the order of time, with lease_id, configuration, attach, hardware, runs, time_h (since
    the first one), cost (mean) and deviation (of the logarithm of cost from its device's level in the middle of the
    campaign).

    slope: of the logarithm of cost, per hour. error, freedom: standard error of the slope and its degrees of freedom; nan and
    0 if there are too few compositions. noise: standard deviation of compositions about the line.
    """

    leases: pd.DataFrame
    slope: float
    error: float
    freedom: int
    noise: float

    @property
    def is_known(self) -> bool:
        """True if there are enough compositions to estimate the drift."""
        return self.freedom > 0 and self.error > 0

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis of no drift; nan if there are too few compositions."""
        return (
            float(2 * scipy.special.stdtr(self.freedom, -abs(self.slope) / self.error))
            if self.is_known
            else float("nan")
        )

    @property
    def is_significant(self) -> bool:
        """True if the drift differs significantly from zero."""
        return self.p < SIGNIFICANCE_LEVEL

    @property
    def span_h(self) -> float:
        """Hours between the first and the last composition."""
        return float(np.ptp(self.leases["time_h"])) if len(self.leases) else 0.0

    @property
    def change_pct(self) -> tuple[float, float, float]:
        """Change of speed along the line from the first to the last composition, in percent, with its 95 % interval."""
        width = float(student_quantile(self.freedom)) * self.error if self.is_known else float("nan")
        ends = (self.slope, self.slope + width, self.slope - width)
        value, low, high = (100 * float(np.expm1(-slope * self.span_h)) for slope in ends)
        return value, low, high

    @property
    def detectable_pct(self) -> float:
        """Change over the campaign, in percent, that 80 of 100 campaigns like this one would detect."""
        if not self.is_known:
            return float("nan")
        quantiles = float(student_quantile(self.freedom)) + float(student_quantile(self.freedom, 0.6))
        return 100 * float(np.expm1(quantiles * self.error * self.span_h))

    def predict_trend(self, time_h: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Predict the speed relative to the middle of the campaign, with its 95 % interval.

        Args:
            time_h: times in hours since the first composition.
        """
        time_from_mean = np.asarray(time_h, dtype=np.float64) - float(self.leases["time_h"].mean())
        width = student_quantile(self.freedom if self.is_known else np.nan) * np.sqrt(
            self.noise**2 / max(1, len(self.leases)) + (self.error * time_from_mean) ** 2
        )
        middle = -self.slope * time_from_mean
        return np.exp(middle), np.exp(middle - width), np.exp(middle + width)


def estimate_drift(reference: pd.DataFrame, *, higher_is_better: bool = True) -> Drift:
    """Estimate the drift from the runs of the reference.

    Args:
        reference: runs of the reference (`campaign.analysis.tables.runs.build_reference_table`).
        higher_is_better: whether higher values of `value` are better.
    """
    leases = _average_by_lease(reference, higher_is_better)
    if leases.empty:
        return Drift(leases, 0.0, float("nan"), 0, float("nan"))
    device, names = pd.factorize(leases["hardware"])
    time, log = leases["time_h"].to_numpy(), np.log(leases["cost"].to_numpy())
    size = np.bincount(device)
    time_residual, log_residual = (values - (np.bincount(device, values) / size)[device] for values in (time, log))
    spread = float(time_residual @ time_residual)
    freedom = len(leases) - len(names) - 1
    if freedom < 1 or spread <= 0:
        return Drift(leases.assign(deviation=log_residual), 0.0, float("nan"), 0, float("nan"))
    slope = float(time_residual @ log_residual) / spread
    noise = max(_MIN_NOISE, float(np.sqrt(((log_residual - slope * time_residual) ** 2).sum() / freedom)))
    deviation = log_residual - slope * time_residual + slope * (time - time.mean())
    return Drift(leases.assign(deviation=deviation), slope, noise / np.sqrt(spread), freedom, noise)


def _average_by_lease(reference: pd.DataFrame, higher_is_better: bool) -> pd.DataFrame:
    """Average the runs of the reference by lease: time, number of runs and mean cost."""
    columns = ["lease_id", "configuration", "attach", "hardware", "runs", "time_h", "cost"]
    rows = reference[(reference["status"] == "ok") & (reference["value"] > 0)] if len(reference) else reference
    if rows.empty:
        return pd.DataFrame(columns=[*columns, "deviation"])
    value = rows["value"].to_numpy(dtype=np.float64)
    hardware = pd.factorize(rows["hardware"])[0].astype(np.int64)
    clipped_cost, _ = location.clip_outliers(
        1 / value if higher_is_better else value, hardware, np.zeros(hardware.max() + 1, dtype=np.int64)
    )
    rows = rows.assign(cost=clipped_cost, time_h=(rows["started"] - rows["started"].min()) / _HOUR_S)
    lease = rows.groupby(["lease_id", "configuration", "attach", "hardware"], sort=False).ngroup().to_numpy()
    count = np.bincount(lease)
    means = {name: np.bincount(lease, rows[name]) / count for name in ("time_h", "cost")}
    table = rows.iloc[np.unique(lease, return_index=True)[1]].assign(runs=count, **means)
    return table.sort_values(["time_h", "lease_id"], kind="stable", ignore_index=True)[columns]


def is_adjusted(campaign: Mapping[str, Any]) -> bool:
    """Return whether comparisons of a campaign are adjusted by its reference.

    Args:
        campaign: `campaign` section of the report's context.
    """
    return bool(dict(dict(campaign.get("protocol") or {}).get("reference") or {}).get("adjust"))


def adjust_by_reference(runs: pd.DataFrame, reference: pd.DataFrame, *, higher_is_better: bool = True) -> pd.DataFrame:
    """Adjust `value` of the runs to the state of the system in the middle of the campaign.

    The cost of each run is divided by that of the reference in its composition, relative to the level of the
    reference's device. A composition without a valid run of the reference gets the value interpolated between those
    before and after it.

    Args:
        runs: runs table.
        reference: runs of the reference.
        higher_is_better: whether higher values of the metric are better.
    """
    leases = estimate_drift(reference, higher_is_better=higher_is_better).leases
    if leases.empty or runs.empty:
        return runs
    deviation_by_lease = leases.set_index("lease_id")["deviation"]
    start = (runs["started"] - reference.loc[reference["status"] == "ok", "started"].min()) / _HOUR_S
    interpolated_deviation = np.interp(
        start.groupby(runs["lease_id"]).transform("mean"), leases["time_h"], leases["deviation"]
    )
    deviation = runs["lease_id"].map(deviation_by_lease).astype("float64").to_numpy()
    cost = np.exp(np.where(np.isfinite(deviation), deviation, interpolated_deviation))
    return runs.assign(value=runs["value"] * cost if higher_is_better else runs["value"] / cost)

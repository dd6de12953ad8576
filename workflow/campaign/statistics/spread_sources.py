"""Where the spread of a campaign's primary metric comes from, by workload, and which hosts are slow: from its runs. Pure.

What the numbers are, `campaign.statistics.variance_components` and `campaign.statistics.slow_hosts` say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.statistics.intervals import CONFIDENCE
from campaign.statistics.slow_hosts import HostResult, compare_hosts
from campaign.statistics.variance_components import Component, Components, components

COULD, MAY, NOT, UNKNOWN = "could", "may", "could not", "not known"


@dataclass(frozen=True)
class Spread:
    """by_workload: in the order of names; hosts: slow ones first."""

    by_workload: dict[str, Components]
    hosts: tuple[HostResult, ...]

    @property
    def slow(self) -> tuple[HostResult, ...]:
        return tuple(host for host in self.hosts if host.slow)

    def between_hosts(self, workload: str) -> Component | None:
        """What equal cells differ by on other hosts: the hosts' part, or that of leases and hosts together; None if unknown."""
        parts = self.by_workload.get(workload)
        if parts is None:
            return None
        return next((each for each in (parts.host, parts.together) if each.known), None)

    def explains(self, workload: str, ratio: float) -> str:
        """Whether equal cells on other hosts differ by as much as a ratio of two means: COULD, MAY, NOT or UNKNOWN.

        MAY: the component's interval is too wide to tell. nan has no answer but UNKNOWN.
        """
        part = self.between_hosts(workload)
        if part is None or not ratio > 0:
            return UNKNOWN
        # Two means on hosts of their own: both deviate, and 95 % of such differences are smaller.
        size = abs(float(np.log(ratio))) / float(scipy.special.ndtri(0.5 + CONFIDENCE / 2.0) * np.sqrt(2.0))
        return COULD if 100.0 * size <= part.sd_pct else MAY if 100.0 * size <= part.high_pct else NOT


def valid_runs(runs: pd.DataFrame, higher: bool = True) -> pd.DataFrame:
    """The runs that can be compared: ok, with a lease and a positive primary metric; `rate` is the larger the better a run is.

    higher: whether more of the metric is better.
    """
    value = runs["value"] if "value" in runs else runs["throughput_per_s"]
    positive = (runs["status"] == "ok") & (value > 0) & (runs["lease_id"] != "")
    kept = value[positive].astype("float64")
    return runs[positive].assign(rate=kept if higher else 1.0 / kept)


def spread(runs: pd.DataFrame, higher: bool = True) -> Spread:
    """Components of each workload's runs, and all hosts against each other over all workloads; higher: as for `valid_runs`."""
    rows = valid_runs(runs, higher)
    of = _Numbered(rows)
    workloads = rows["workload"].to_numpy(dtype=str)
    parts = {str(name): of.components(workloads == name) for name in np.unique(workloads)}
    named = (rows["host_names"] != "").to_numpy(dtype=np.bool_)
    hosts = [tuple(names.split(", ")) for names in rows["host_names"] if names]
    if len({name for names in hosts for name in names}) < 2:
        return Spread(parts, ())
    compared = compare_hosts(of.rate[named], of.cell[named], of.lease[named], hosts)
    return Spread(parts, tuple(replace(each, cells=tuple(of.names[int(at)] for at in each.cells)) for each in compared))


class _Numbered:
    """Runs with their labels as numbers: texts are ten times as slow to sort."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rate = rows["rate"].to_numpy(dtype=np.float64)
        self.cell, names = pd.factorize(rows["cell_id"], sort=True)
        self.lease, _ = pd.factorize(rows["lease_id"], sort=True)
        self.hosts, _ = pd.factorize(rows["host_names"], sort=True)
        self.names = [str(name) for name in names]

    def components(self, chosen: npt.NDArray[np.bool_]) -> Components:
        """Of some of the runs."""
        return components(self.rate[chosen], self.cell[chosen], self.lease[chosen], self.hosts[chosen])

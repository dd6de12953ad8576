"""Measured cells as the model of their steps is fitted to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from campaign.documents.cell import Configuration
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.observe.links.document import FABRIC, LOCAL, NETWORK

STRATEGY = ("parallel", "accumulation", "bucket_mib", "overlap")
"""Options that say how devices share the work, and what of their communication can hide."""


def way_of(hosts: int, attach: str, ranks: int) -> str:
    """The longest kind of way in a ring over the ranks, as `campaign.observe.links.document` names it; '' for one rank."""
    if ranks < 2:
        return ""
    through = f"{FABRIC}-p2p" if attach.endswith("-p2p") else FABRIC
    crossed = [*([through] if attach != LOCAL else []), *([NETWORK] if hosts > 1 else [])]
    return " + ".join(crossed) or LOCAL


def with_ways(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of configurations with their `way`."""
    shapes = zip(frame["hosts"], frame["attach"], frame["ranks"], strict=True)
    return frame.assign(way=pd.Series([way_of(*shape) for shape in shapes], index=frame.index, dtype="str"))


def configuration_of(row: Mapping[Any, Any]) -> Configuration:
    """The configuration of a row with COLUMNS."""
    shape: dict[str, Any] = {name: row[name] if isinstance(row[name], str) else int(row[name]) for name in COLUMNS}
    return Configuration(**{"name": "", **shape})


def observed(runs: pd.DataFrame, cells: pd.DataFrame, named: Sequence[str]) -> list[pd.DataFrame]:
    """Rows of the cells table that were measured, a frame for each workload and device model. named: columns of precision and
    options.

    With `step_s`, `device_w` (nan where no valid run tells it), `way`, `group` (the values of `named` in words) and `strategy`
    (options of STRATEGY in words, '' where there is one strategy).
    """
    measured = cells[(cells["n_ok"] > 0) & (cells["mean"] > 0)].reset_index(drop=True)
    ok = runs[runs["status"] == "ok"]
    energy = ok.get("energy_per_sample_j", pd.Series(np.nan, index=ok.index))
    watts = (energy * ok["throughput_per_s"] / ok["ranks"]).groupby(ok["cell_id"]).mean()
    measured = with_ways(measured).assign(
        step_s=measured["batch_global"] / measured["mean"],
        device_w=measured["cell_id"].map(watts),
        group=[", ".join(map(str, each)) for each in measured[list(named)].itertuples(index=False, name=None)],
    )
    each = [own.reset_index(drop=True) for _, own in measured.groupby(["workload", "device"], sort=False)]
    return [own.assign(strategy=_strategies(own, named)) for own in each]


def _strategies(cells: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """The strategy of each cell, by those options that differ."""
    options = {name.removeprefix("option_"): cells[name].astype(str) for name in named}
    differ = {name: texts for name, texts in options.items() if name in STRATEGY and texts.nunique() > 1}
    words = [texts if name == "parallel" else f"{name} " + texts for name, texts in differ.items()]
    return [", ".join(each) for each in zip(*words, strict=True)] if words else [""] * len(cells)

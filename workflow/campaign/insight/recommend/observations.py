"""Measured cells of one workload on one device model, as the model of their steps is fitted to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign.documents.cell import Configuration
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.observe.links.document import FABRIC, LOCAL, NETWORK

STRATEGY = ("parallel", "accumulation", "bucket_mib", "overlap")
"""Options that say how devices share the work, and what of their communication can hide."""


@dataclass(frozen=True)
class ObservedWorkload:
    """Measured cells of one workload on one device model.

    cells: rows of the cells table with `step_s`, `device_w`, `group`, `strategy`, `way` ('' for one rank). groups: precision and
    options by index of `group`, columns `named`. storages: the usual one first. strategies: options of STRATEGY in words, '' where
    there is one strategy, by index of `strategy`.
    """

    workload: str
    device: str
    cells: pd.DataFrame
    groups: tuple[tuple[Any, ...], ...]
    named: tuple[str, ...]
    storages: tuple[str, ...]
    strategies: tuple[str, ...] = ("",)


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
    model, _, layout = str(shape["device"]).partition(" (")
    return Configuration(**{"name": "", **shape, "device": model, "layout": layout.removesuffix(")")})


def observed(runs: pd.DataFrame, cells: pd.DataFrame, named: Sequence[str]) -> list[ObservedWorkload]:
    """All workloads and device models that were measured. named: columns of precision and options."""
    measured = cells[(cells["n_ok"] > 0) & (cells["mean"] > 0)].reset_index(drop=True)
    measured = with_ways(measured).assign(step_s=measured["batch_global"] / measured["mean"])
    measured = measured.merge(_power(runs), on="cell_id", how="left")
    found = []
    for (workload, device), own in measured.groupby(["workload", "device"], sort=False):
        groups = tuple(own[list(named)].drop_duplicates().itertuples(index=False, name=None))
        place = {group: position for position, group in enumerate(groups)}
        strategies = _strategies(groups, named)
        kinds = tuple(dict.fromkeys(strategies))
        own = own.assign(group=[place[each] for each in own[list(named)].itertuples(index=False, name=None)])
        own = own.assign(strategy=[kinds.index(strategies[group]) for group in own["group"]]).reset_index(drop=True)
        stored = own["storage"].value_counts()
        usual = LOCAL if LOCAL in stored.index else str(stored.index[0])
        storages = (usual, *sorted(set(own["storage"]) - {usual}))
        found.append(ObservedWorkload(str(workload), str(device), own, groups, tuple(named), storages, kinds))
    return found


def _strategies(groups: Sequence[tuple[Any, ...]], named: Sequence[str]) -> list[str]:
    """The strategy of each group, by those options that differ."""
    columns = [(name, [group[place] for group in groups]) for place, name in enumerate(named)]
    differ = [
        (name.removeprefix("option_"), values)
        for name, values in columns
        if name.removeprefix("option_") in STRATEGY and len({str(value) for value in values}) > 1
    ]
    return [
        ", ".join(str(values[place]) if name == "parallel" else f"{name} {values[place]}" for name, values in differ)
        for place in range(len(groups))
    ]


def _power(runs: pd.DataFrame) -> pd.DataFrame:
    """Watts of a device by cell; nan where no valid run tells."""
    ok = runs[runs["status"] == "ok"]
    energy = ok.get("energy_per_sample_j", pd.Series(np.nan, index=ok.index))
    watts = energy * ok["throughput_per_s"] / ok["ranks"]
    return pd.DataFrame({"cell_id": ok["cell_id"], "device_w": watts}).groupby("cell_id", as_index=False).mean()

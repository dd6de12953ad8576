"""Every possible answer: measured cells, and shapes of the same pool that were not measured, with what they give. Pure.

A frame with a row for each shape, workload, batch, precision and options: its shape; `configuration`, `ranks`, `devices`, `way`;
`measured`, `replayed`, `cell_id`, `n_ok`; `rate` (samples per second), `sd` of its logarithm with `freedom`, `low`, `high`;
`price_per_h` of its devices, nan without prices; `known`: whether that sd holds the spread of compositions, so that ties can be
told; `energy_j` a sample, with `energy_sd`; `said_rate`: the model's of a measured cell whose configuration was left out;
`extrapolated`: in words, or ''; `outside`: whether it is; `memory`: fits, out or unknown; `trusted`: whether predictions may be
chosen; `shape`: its number. `reasons` says why a cell was predicted far off when its configuration was left out of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.record import OUT_OF_MEMORY
from campaign.insight.recommend.fit import Checked, Fitted, fit, predict
from campaign.insight.recommend.fit import check as check_model
from campaign.insight.recommend.model import StepTimeModel
from campaign.insight.recommend.observations import LinkStart, ObservedWorkload, divided_cells, observed, with_ways
from campaign.insight.recommend.shape_enumeration import COLUMNS, Pool, name, possible
from campaign.statistics import comparisons
from campaign.statistics.comparisons import Design
from campaign.statistics.intervals import student_quantile
from campaign.tables.io import Tables
from campaign.tables.runs import CONFIRMED, compositions_with

TRUSTED_PCT = 10.0
"""A model that is further off than this about a configuration it was not shown (median) chooses nothing."""

FEWEST_SHAPES = 3
_KEPT = (
    "workload",
    *COLUMNS,
    "batch",
    *("configuration", "ranks", "devices", "way", "batch_global", "measured", "replayed", "cell_id", "n_ok"),
    *("rate", "sd", "freedom", "known", "low", "high", "price_per_h", "energy_j", "energy_sd", "said_rate"),
    *("extrapolated", "outside", "memory", "trusted", "shape"),
)


@dataclass(frozen=True)
class Modelled:
    """A workload on a device model: what was measured of it, and the model, where there is one."""

    observed: ObservedWorkload
    fitted: Fitted | None
    checked: Checked | None
    divided: bool = False

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Strategies that the model is too far off about, by name; all where there is no model."""
        if self.checked is None:
            return self.observed.strategies
        median = self.checked.strategy_median_pct
        return tuple(name for name, off in zip(self.observed.strategies, median, strict=True) if not off <= TRUSTED_PCT)

    @property
    def trusted(self) -> bool:
        return not self.untrusted

    def trusts(self, groups: pd.Series[int]) -> npt.NDArray[np.bool_]:
        """Whether predictions of each of these groups may be chosen."""
        of = np.array(self.observed.strategy or (0,) * len(self.observed.groups), dtype=np.int64)
        kept = np.array([name not in self.untrusted for name in self.observed.strategies])
        return np.asarray(kept[of[groups.to_numpy(dtype=np.int64)]])


def modelled(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    named: Sequence[str],
    links: Mapping[str, LinkStart],
    workloads: Sequence[str],
    replayed: Mapping[str, LinkStart] | None = None,
) -> list[Modelled]:
    """Models of all workloads, or of these. replayed: the links that replayed workloads are predicted over, by default the same."""
    chosen = cells[cells["workload"].isin(list(workloads))] if workloads else cells
    found = []
    known_ways = [way for way, known in links.items() if known.known]
    by_formula = ~chosen["cell_id"].isin(divided_cells(runs))
    for each in observed(runs, chosen[by_formula], named, known_ways):
        fitted = fit(each, replayed if replayed and _replayed(each.cells).any() else links)
        found.append(Modelled(each, fitted, check_model(fitted) if fitted else None))
    # What a divided model exchanges grows with the batch, and is not one all-reduce over all ranks.
    own = observed(runs, chosen[~by_formula], named, known_ways)
    return [*found, *(Modelled(each, None, None, divided=True) for each in own)]


def candidates(tables: Tables, models: Sequence[Modelled], pools: Mapping[str, Pool]) -> pd.DataFrame:
    """The candidates of all workloads together; pools: by device model."""
    cells, energy = tables.cells, _energy(tables)
    frames = []
    for each in models:
        own = _measured(each, energy, tables.design)
        frames.append(own)
        pool = pools.get(each.observed.device)
        if each.fitted is not None and each.checked is not None and pool is not None:
            frames.append(_predicted(each, each.fitted, each.checked, pool, own))
    together = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if together.empty:
        return together
    together = together.assign(
        memory=_memory(together, tables, models[0].observed.named),
        outside=together["extrapolated"] != "",
        shape=together.groupby(list(COLUMNS), sort=False).ngroup(),
        measured=together["measured"].astype(bool),
        replayed=_replayed(together),
        known=together["known"].astype(bool),
        trusted=together["trusted"].astype(bool) & ~_failed(together, cells, models[0].observed.named),
    )
    kept = [*_KEPT, *models[0].observed.named]
    texts = [name for name in kept if not pd.api.types.is_numeric_dtype(together[name])]
    # Rows are taken from it hundreds of times, which is slow for columns of Arrow's strings.
    return together[kept].astype(dict.fromkeys(texts, object))


def _energy(tables: Tables) -> pd.DataFrame:
    """Joules a sample of each cell, and the sd of its logarithm."""
    column = "energy_per_sample_j"
    if column not in tables.runs:
        return pd.DataFrame({"cell_id": pd.Series(dtype="str"), "energy_j": [], "energy_sd": []})
    protocol = tables.context.get("campaign", {}).get("protocol", {})
    by = comparisons.design(tables.runs, protocol, column=column, higher=False)
    errors = by.errors(by.cells.to_series(), np.arange(len(by.cells)))
    return pd.DataFrame(
        {"cell_id": by.cells.astype("str"), "energy_j": by.value, "energy_sd": np.sqrt(errors.variance)}
    )


def _measured(each: Modelled, energy: pd.DataFrame, design: Design) -> pd.DataFrame:
    cells = each.observed.cells
    errors = design.errors(cells["cell_id"], np.zeros(len(cells), dtype=np.int64))
    said = np.full(len(cells), np.nan) if each.checked is None else each.checked.predicted_s
    return cells.merge(energy, on="cell_id", how="left").assign(
        measured=True,
        rate=cells["mean"],
        sd=np.sqrt(errors.variance),
        freedom=errors.freedom,
        known=errors.known,
        low=cells["ci_low"],
        high=cells["ci_high"],
        said_rate=cells["batch_global"] / said,
        extrapolated="",
        trusted=each.trusts(cells["group"]),
    )


def _predicted(each: Modelled, fitted: Fitted, checked: Checked, pool: Pool, own: pd.DataFrame) -> pd.DataFrame:
    """Shapes that were not measured, for every precision, options and batch that was."""
    cells = each.observed.cells
    shapes = possible(pool, each.observed.device, cells, _storages(each.observed))
    shapes = shapes.assign(
        ranks=shapes["hosts"] * shapes["devices_used"], devices=shapes["hosts"] * shapes["devices_per_host"]
    )
    shapes = with_ways(shapes)
    shapes = shapes[shapes["way"].isin(["", *each.observed.ways])]
    asked = cells[["workload", *each.observed.named, "group", "batch"]].drop_duplicates()
    sizes = cells.groupby("group")["bytes"].median()
    frame = shapes.merge(asked, how="cross")
    keys = [*COLUMNS, "group", "batch"]
    there = pd.MultiIndex.from_frame(cells[keys])
    frame = frame[~pd.MultiIndex.from_frame(frame[keys]).isin(there)].reset_index(drop=True)
    frame = frame.assign(bytes=frame["group"].map(sizes), batch_global=frame["batch"] * frame["ranks"])
    if frame.empty:
        return frame
    said = predict(fitted, each.observed.rows(frame), checked.strategy_rms)
    rate = frame["batch_global"] / said.step_s
    half = student_quantile(fitted.freedom) * said.sd
    power = np.log(cells["device_w"].where(cells["device_w"] > 0)).groupby(cells["group"]).agg(["median", "std"])
    known = cells.drop_duplicates(list(COLUMNS))
    names = dict(zip(known[list(COLUMNS)].itertuples(index=False, name=None), known["configuration"], strict=True))
    records = shapes.to_dict("records")
    called = {_shape(row): names.get(_shape(row)) or name(row) for row in records}
    limits = MeasuredRange.of(cells)
    outside = {_shape(row): limits.outside(row) for row in records}
    each_shape = list(frame[list(COLUMNS)].itertuples(index=False, name=None))
    return frame.assign(
        measured=False,
        known=True,
        price_per_h=frame["devices"] * (cells["price_per_h"] / cells["devices"]).median(),
        cell_id="",
        n_ok=0,
        configuration=[called[shape] for shape in each_shape],
        rate=rate,
        sd=said.sd,
        freedom=fitted.freedom,
        low=rate * np.exp(-half),
        high=rate * np.exp(half),
        said_rate=np.nan,
        energy_j=np.exp(frame["group"].map(power["median"])) * frame["ranks"] / rate,
        energy_sd=np.hypot(said.sd, frame["group"].map(power["std"]).fillna(0.0)),
        extrapolated=[outside[shape] for shape in each_shape],
        trusted=each.trusts(frame["group"]),
    )


def _storages(of: ObservedWorkload) -> list[str]:
    """The usual storage, and others that enough shapes had for the model to know what they cost."""
    shapes = of.cells.drop_duplicates(list(COLUMNS))["storage"].value_counts()
    return [of.reference, *(name for name in of.storages if shapes[name] >= FEWEST_SHAPES)]


def _shape(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in COLUMNS)


@dataclass(frozen=True)
class MeasuredRange:
    """What was measured of a workload: the range of each number, and the kinds of ways and of attachment."""

    numbers: Mapping[str, tuple[int, int]]
    kinds: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, cells: pd.DataFrame) -> MeasuredRange:
        return cls(
            {name: (int(cells[name].min()), int(cells[name].max())) for name in ("ranks", "hosts", "devices_used")},
            {name: frozenset(map(str, cells[name].unique())) for name in ("way", "attach")},
        )

    def outside(self, row: Mapping[Any, Any]) -> str:
        """How a shape is outside of the range; '' where it is inside."""
        said = []
        for column, noun in (("ranks", "devices"), ("hosts", "hosts"), ("devices_used", "devices of a host")):
            low, high = self.numbers[column]
            if row[column] > high:
                said.append(f"{row[column]} {noun}, at most {high} measured")
            elif row[column] < low:
                said.append(f"{row[column]} {noun}, {low} or more measured")
        if row["way"] and row["way"] not in self.kinds["way"]:
            said.append(f"all-reduce over {row['way']}, not measured")
        if row["attach"] not in self.kinds["attach"]:
            said.append(f"attached {row['attach']}, not measured")
        return "; ".join(said)


def _replayed(rows: pd.DataFrame) -> pd.Series[bool]:
    """Whether the cell of a row was replayed."""
    return rows["predicted"].eq(True) if "predicted" in rows else pd.Series(False, index=rows.index)


def _failed(frame: pd.DataFrame, cells: pd.DataFrame, named: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows were tried and failed: the cell itself, or all cells of a workload on a shape that did not only lack memory."""
    ran = cells[(cells["n_ok"] > 0) | (cells["n_failed"] > 0)]
    failed = ran[ran["n_ok"] == 0]
    crashed = failed[~failed["failures"].str.fullmatch(r"oom_\w+( x\d+)?")]
    found = np.zeros(len(frame), dtype=np.bool_)
    for rows, by in ((failed, ["workload", *COLUMNS, "batch", *named]), (crashed, ["workload", *COLUMNS])):
        of, well = (pd.MultiIndex.from_frame(each[by]) for each in (rows, ran[ran["n_ok"] > 0]))
        found |= pd.MultiIndex.from_frame(frame[by]).isin(of.difference(well))
    return found


def _memory(frame: pd.DataFrame, tables: Tables, named: Sequence[str]) -> pd.Series[Any]:
    """Whether each row's batch fits. Memory grows with the batch; over ranks it falls where weights are shared among them, but two
    need more than one, which has no all-reduce. So what fitted on fewer ranks (not one) fits, what ran out on more does not, and
    where both is so, nothing is known. That a cell ran out counts once two of its compositions show it, or the only one."""
    by = ["workload", "device", *named]
    protocol = tables.context.get("campaign", {}).get("protocol", {})
    enough = min(CONFIRMED, int(protocol.get("compositions") or 1))
    on = compositions_with(tables.runs, (*OUT_OF_MEMORY, "implied"))
    cells = tables.cells[~_replayed(tables.cells)]  # a replay needs no memory
    ran_out = np.array([on.get(cell, 0) >= enough for cell in cells["cell_id"]], dtype=np.bool_)
    plain = cells[[*by, "batch", "ranks"]]
    evidence = plain.assign(out=ran_out & (cells["n_ok"] == 0), well=cells["n_ok"] > 0)
    verdicts = pd.Series("unknown", index=frame.index, dtype="str")
    told = evidence[evidence["out"] | evidence["well"]].groupby(by, sort=False)[["batch", "ranks", "out", "well"]]
    known = {key: [own[name].to_numpy() for name in own] for key, own in told}
    for key, rows in frame[[*by, "batch", "ranks"]].groupby([*by, "batch"], sort=False):
        *group, batch = key
        if tuple(group) not in known:
            continue
        batches, on_ranks, short, well = known[tuple(group)]
        fitted = on_ranks[well & (batches >= batch)]
        fewest, alone = fitted[fitted > 1].min(initial=np.iinfo(np.int64).max), (fitted == 1).any()
        most = on_ranks[short & (batches <= batch)].max(initial=0)
        ranks = rows["ranks"].to_numpy()
        fits, out = (ranks >= fewest) | ((ranks == 1) & alone), ranks <= most
        verdicts[rows.index[out & ~fits]] = "out"
        verdicts[rows.index[fits & ~out]] = "fits"
    verdicts[frame["measured"].to_numpy(dtype=bool) & ~_replayed(frame).to_numpy()] = "fits"
    return verdicts


FEWEST_OF_A_WAY = 2


def reasons(each: Modelled) -> list[str]:
    """For each measured cell of the model; '' where it is within TRUSTED_PCT, or could not be predicted."""
    if each.fitted is None or each.checked is None:
        return [""] * len(each.observed.cells)
    of = _Cells(each, each.fitted, each.checked)
    far = np.nan_to_num(np.abs(each.checked.error_pct)) > TRUSTED_PCT
    return [of.reason(place) if off else "" for place, off in enumerate(far)]


class _Cells:
    def __init__(self, each: Modelled, fitted: Fitted, checked: Checked) -> None:
        self.untrusted = each.untrusted
        self.cells = each.observed.cells
        self.rows = each.observed.rows()
        self.names = np.array(each.observed.strategies)[fitted.structure.of_groups()[self.rows.group]]
        self.hidden = StepTimeModel(fitted.structure, self.rows).at(fitted.theta).hidden

    def reason(self, place: int) -> str:
        """The first that holds."""
        row = self.cells.iloc[place]
        others = (self.cells["configuration"] != row["configuration"]).to_numpy()
        if outside := MeasuredRange.of(self.cells[others]).outside(row.to_dict()):
            return f"extrapolated without it: {outside}"
        if self.names[place] and self.names[place] in self.untrusted:
            return f"the model does not describe {self.names[place]}"
        alike = others & (self.rows.way >= 0) & (self.names == self.names[place])
        if row["ranks"] > 1 and alike.any() and (self.hidden[alike] != self.hidden[place]).all():
            hides = "all communication that can hide" if self.hidden[place] else "only a part of communication"
            return f"no other configuration hides {hides}"
        way = self.cells.loc[others & (self.cells["way"] == row["way"]).to_numpy(), "configuration"].nunique()
        if row["way"] and way < FEWEST_OF_A_WAY:
            return f"{'one other configuration' if way else 'no other configuration'} communicates over {row['way']}"
        return "not described by the model"

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
from campaign.insight.recommend.observations import ObservedWorkload, observed, with_ways
from campaign.insight.recommend.shape_enumeration import COLUMNS, Pool, name, possible
from campaign.insight.recommend.step_model import MeasuredProgram, StepModel, model_of
from campaign.model.parameters import MISFIT
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
    model: StepModel | None

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Strategies that the model is too far off about, by name; all where there is no model."""
        if self.model is None:
            return self.observed.strategies
        median = self.model.checked.strategy_median_pct
        return tuple(name for name, off in zip(self.observed.strategies, median, strict=True) if not off <= TRUSTED_PCT)

    @property
    def trusted(self) -> bool:
        return not self.untrusted

    def trusts(self, strategies: pd.Series[int]) -> npt.NDArray[np.bool_]:
        """Whether predictions of each of these strategies may be chosen."""
        kept = np.array([name not in self.untrusted for name in self.observed.strategies])
        return np.asarray(kept[strategies.to_numpy(dtype=np.int64)])


def modelled(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    named: Sequence[str],
    programs: Mapping[str, MeasuredProgram],
    workloads: Sequence[str],
) -> list[Modelled]:
    """Models of all workloads, or of these. programs: by workload, where the campaign as used has it."""
    chosen = cells[cells["workload"].isin(list(workloads))] if workloads else cells
    return [Modelled(each, model_of(each, programs.get(each.workload))) for each in observed(runs, chosen, named)]


def candidates(tables: Tables, models: Sequence[Modelled], pools: Mapping[str, Pool]) -> pd.DataFrame:
    """The candidates of all workloads together; pools: by device model."""
    cells, energy = tables.cells, _energy(tables)
    frames = []
    for each in models:
        own = _measured(each, energy, tables.design)
        frames.append(own)
        pool = pools.get(each.observed.device)
        if each.model is not None and pool is not None:
            frames.append(_predicted(each, each.model, pool))
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
    said = np.full(len(cells), np.nan) if each.model is None else each.model.checked.predicted_s
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
        trusted=each.trusts(cells["strategy"]),
    )


def _predicted(each: Modelled, model: StepModel, pool: Pool) -> pd.DataFrame:
    """Shapes that were not measured, for every precision, options and batch that was, where the workload runs on them."""
    cells = each.observed.cells
    shapes = possible(pool, each.observed.device, cells, _storages(each.observed))
    shapes = shapes.assign(
        ranks=shapes["hosts"] * shapes["devices_used"], devices=shapes["hosts"] * shapes["devices_per_host"]
    )
    shapes = with_ways(shapes)
    shapes = shapes[shapes["way"].isin(["", *model.ways])]
    asked = cells[["workload", *each.observed.named, "group", "strategy", "batch"]].drop_duplicates()
    frame = shapes.merge(asked, how="cross")
    keys = [*COLUMNS, "group", "batch"]
    there = pd.MultiIndex.from_frame(cells[keys])
    frame = frame[~pd.MultiIndex.from_frame(frame[keys]).isin(there)].reset_index(drop=True)
    frame = frame[model.runs(frame)].reset_index(drop=True)
    frame = frame.assign(batch_global=frame["batch"] * frame["ranks"])
    if frame.empty:
        return frame
    power = np.log(cells["device_w"].where(cells["device_w"] > 0)).groupby(cells["group"]).agg(["median", "std"])
    known = cells.drop_duplicates(list(COLUMNS))
    names = dict(zip(known[list(COLUMNS)].itertuples(index=False, name=None), known["configuration"], strict=True))
    records = shapes.to_dict("records")
    called = {_shape(row): names.get(_shape(row)) or name(row) for row in records}
    limits = MeasuredRange.of(cells, model.simulates)
    outside = {_shape(row): limits.outside(row) for row in records}
    each_shape = list(frame[list(COLUMNS)].itertuples(index=False, name=None))
    extrapolated = [outside[shape] for shape in each_shape]
    said = model.predict(frame)
    # Leaving configurations out tells nothing of what is beyond them all.
    sd = np.hypot(said.sd, np.where([bool(each) for each in extrapolated], MISFIT, 0.0))
    rate: pd.Series[float] = frame["batch_global"] / np.exp(said.log_s)
    half = student_quantile(model.freedom) * sd
    return frame.assign(
        measured=False,
        known=True,
        price_per_h=frame["devices"] * (cells["price_per_h"] / cells["devices"]).median(),
        cell_id="",
        n_ok=0,
        configuration=[called[shape] for shape in each_shape],
        rate=rate,
        sd=sd,
        freedom=model.freedom,
        low=rate * np.exp(-half),
        high=rate * np.exp(half),
        said_rate=np.nan,
        energy_j=np.exp(frame["group"].map(power["median"])) * frame["ranks"] / rate,
        energy_sd=np.hypot(sd, frame["group"].map(power["std"]).fillna(0.0)),
        extrapolated=extrapolated,
        trusted=each.trusts(frame["strategy"]),
    )


def _storages(of: ObservedWorkload) -> list[str]:
    """The usual storage, and others that enough shapes had for the model to know what they cost."""
    shapes = of.cells.drop_duplicates(list(COLUMNS))["storage"].value_counts()
    return [of.storages[0], *(name for name in of.storages[1:] if shapes[name] >= FEWEST_SHAPES)]


def _shape(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in COLUMNS)


@dataclass(frozen=True)
class MeasuredRange:
    """What was measured of a workload: each number, and the kinds of ways and of attachment. simulates: numbers between those that
    were measured are inside, too."""

    numbers: Mapping[str, frozenset[int]]
    kinds: Mapping[str, frozenset[str]]
    simulates: bool

    @classmethod
    def of(cls, cells: pd.DataFrame, simulates: bool) -> MeasuredRange:
        return cls(
            {name: frozenset(map(int, cells[name].unique())) for name in ("ranks", "hosts", "devices_used")},
            {name: frozenset(map(str, cells[name].unique())) for name in ("way", "attach")},
            simulates,
        )

    def outside(self, row: Mapping[Any, Any]) -> str:
        """How a shape is outside of the range; '' where it is inside."""
        said = []
        for column, noun in (("ranks", "devices"), ("hosts", "hosts"), ("devices_used", "devices of a host")):
            known = self.numbers[column]
            if row[column] > max(known):
                said.append(f"{row[column]} {noun}, at most {max(known)} measured")
            elif row[column] < min(known):
                said.append(f"{row[column]} {noun}, {min(known)} or more measured")
            elif not self.simulates and row[column] not in known:
                said.append(f"{row[column]} {noun}, not measured, and the program’s inside is not known")
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
    cells = each.observed.cells
    found = [""] * len(cells)
    if each.model is None:
        return found
    far = np.nan_to_num(np.abs(each.model.checked.error_pct)) > TRUSTED_PCT
    for configuration, own in cells[far].groupby("configuration", sort=False):
        others = cells[cells["configuration"] != configuration]
        outside = MeasuredRange.of(others, each.model.simulates).outside(own.iloc[0].to_dict())
        way = str(own["way"].iloc[0])
        alike = others.loc[others["way"] == way, "configuration"].nunique()
        for place, number in zip(own.index, own["strategy"], strict=True):
            strategy = each.observed.strategies[number]
            if outside:
                found[place] = f"extrapolated without it: {outside}"
            elif strategy and strategy in each.untrusted:
                found[place] = f"the model does not describe {strategy}"
            elif way and alike < FEWEST_OF_A_WAY:
                found[place] = f"{'one' if alike else 'no'} other configuration communicates over {way}"
            else:
                found[place] = "not described by the model"
    return found

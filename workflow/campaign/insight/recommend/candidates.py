"""Every possible answer: measured cells, and shapes of the same pool that were not measured, with what they give. Pure.

A frame with a row for each shape, workload, batch, precision and options: its shape; `configuration`, `ranks`, `devices`, `way`;
`measured`, `replayed`, `cell_id`; `rate` (samples per second), `sd` of its logarithm with `freedom`, `low`, `high`;
`price_per_h` of its devices, nan without prices; `known`: whether that sd holds the spread of compositions, so that ties can be
told; `energy_j` a sample, with `energy_sd`; `said_rate`: the model's of a measured cell whose configuration was left out;
`extrapolated`: in words, or ''; `outside`: whether it is; `memory`: fits, out or unknown; `trusted`: whether predictions may be
chosen; `shape`: its number. `reasons` says why a cell was predicted far off when its configuration was left out of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.config.expand_shapes import name_of
from campaign.documents.cell import Storage
from campaign.documents.record import OUT_OF_MEMORY
from campaign.insight.recommend.observations import with_ways
from campaign.insight.recommend.shape_enumeration import COLUMNS, Pool, possible
from campaign.insight.recommend.step_model import TRUSTED_PCT, FittedWorkload, MeasuredWorkload
from campaign.model.parameters import MISFIT
from campaign.statistics import comparisons
from campaign.statistics.comparisons import Design
from campaign.statistics.intervals import student_quantile
from campaign.tables.io import Tables
from campaign.tables.runs import CONFIRMED, compositions_with

_FEWEST_OF_A_STORAGE = 3
_FEWEST_OF_A_WAY = 2
_KEPT = (
    "workload",
    *COLUMNS,
    "batch",
    *("configuration", "ranks", "devices", "way", "batch_global", "measured", "replayed", "cell_id"),
    *("rate", "sd", "freedom", "known", "low", "high", "price_per_h", "energy_j", "energy_sd", "said_rate"),
    *("extrapolated", "outside", "memory", "trusted", "shape"),
)


def candidates(tables: Tables, workloads: Sequence[MeasuredWorkload], pools: Mapping[str, Pool]) -> pd.DataFrame:
    """The candidates of all workloads together; pools: by device model."""
    energy, frames = _energy(tables), []
    for each in workloads:
        frames.append(_measured(each, energy, tables.design))
        if each.model is not None and each.device in pools:
            frames.append(_predicted(each, each.model, pools[each.device]))
    together = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if together.empty:
        return together
    named = workloads[0].named
    together = together.assign(
        memory=_memory(together, tables, named),
        outside=together["extrapolated"] != "",
        shape=together.groupby(list(COLUMNS), sort=False).ngroup(),
        measured=together["measured"].astype(bool),
        replayed=_replayed(together),
        known=together["known"].astype(bool),
        trusted=together["trusted"].astype(bool) & ~_failed(together, tables.cells, named),
    )[[*_KEPT, *named]]
    texts = [name for name in together if not pd.api.types.is_numeric_dtype(together[name])]
    # Rows are taken from it hundreds of times, which is slow for columns of Arrow's strings.
    return together.astype(dict.fromkeys(texts, object))


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


def _measured(each: MeasuredWorkload, energy: pd.DataFrame, design: Design) -> pd.DataFrame:
    cells = each.cells
    errors = design.errors(cells["cell_id"], np.zeros(len(cells), dtype=np.int64))
    return cells.merge(energy, on="cell_id", how="left").assign(
        measured=True,
        rate=cells["mean"],
        sd=np.sqrt(errors.variance),
        freedom=errors.freedom,
        known=errors.known,
        low=cells["ci_low"],
        high=cells["ci_high"],
        said_rate=cells["batch_global"] / cells["predicted_s"],
        extrapolated="",
        trusted=~cells["strategy"].isin(each.untrusted),
    )


def _predicted(each: MeasuredWorkload, model: FittedWorkload, pool: Pool) -> pd.DataFrame:
    """Shapes that were not measured, for every precision, options and batch that was, where the workload runs on them."""
    cells = each.cells
    made = [at.axes() | {"named": name_of(at)} for at in possible(pool, each.device, cells, _storages(cells))]
    shapes = with_ways(pd.DataFrame(made, columns=[*COLUMNS, "devices", "ranks", "named"]))
    shapes = shapes[shapes["way"].isin(["", *each.ways])]
    known = cells[[*COLUMNS, "configuration"]].drop_duplicates(list(COLUMNS))
    shapes = shapes.merge(known, on=list(COLUMNS), how="left").assign(extrapolated=outside(shapes, cells))
    asked = cells[["workload", *each.named, "group", "strategy", "batch"]].drop_duplicates()
    frame = shapes.merge(asked, how="cross")
    keys = [*COLUMNS, "group", "batch"]
    frame = frame[~pd.MultiIndex.from_frame(frame[keys]).isin(pd.MultiIndex.from_frame(cells[keys]))]
    frame = frame[model.rows.runs(frame)].reset_index(drop=True)
    if frame.empty:
        return frame
    frame = frame.assign(batch_global=frame["batch"] * frame["ranks"])
    power = np.log(cells["device_w"].where(cells["device_w"] > 0)).groupby(cells["group"]).agg(["median", "std"])
    said = model.predict(frame)
    # Leaving configurations out tells nothing of what is beyond them all.
    sd = np.hypot(said.sd, np.where(frame["extrapolated"] != "", MISFIT, 0.0))
    rate: pd.Series[float] = frame["batch_global"] / np.exp(said.log_s)
    half = student_quantile(model.freedom) * sd
    return frame.assign(
        measured=False,
        known=True,
        price_per_h=frame["devices"] * (cells["price_per_h"] / cells["devices"]).median(),
        cell_id="",
        configuration=frame["configuration"].fillna(frame["named"]),
        rate=rate,
        sd=sd,
        freedom=model.freedom,
        low=rate * np.exp(-half),
        high=rate * np.exp(half),
        said_rate=np.nan,
        energy_j=np.exp(frame["group"].map(power["median"])) * frame["ranks"] / rate,
        energy_sd=np.hypot(sd, frame["group"].map(power["std"]).fillna(0.0)),
        trusted=~frame["strategy"].isin(each.untrusted),
    )


def _storages(cells: pd.DataFrame) -> list[Storage]:
    """The usual storage, and others that enough shapes had for the model to know what they cost."""
    stored, shapes = (of["storage"].value_counts() for of in (cells, cells.drop_duplicates(list(COLUMNS))))
    usual = "local" if "local" in stored.index else stored.index[0]
    return [usual, *sorted(name for name in stored.index if name != usual and shapes[name] >= _FEWEST_OF_A_STORAGE)]


def outside(rows: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """How each row is outside of the range of measured cells; '' where it is inside."""
    said: list[list[str]] = [[] for _ in range(len(rows))]
    for column, noun in (("ranks", "devices"), ("hosts", "hosts"), ("devices_used", "devices of a host")):
        least, most = cells[column].min(), cells[column].max()
        for own, value in zip(said, rows[column], strict=True):
            if value > most:
                own.append(f"{value} {noun}, at most {most} measured")
            elif value < least:
                own.append(f"{value} {noun}, {least} or more measured")
    for column, words in (("way", "all-reduce over"), ("attach", "attached")):
        known = {"", *cells[column]}
        for own, value in zip(said, rows[column], strict=True):
            if value not in known:
                own.append(f"{words} {value}, not measured")
    return ["; ".join(own) for own in said]


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


def reasons(each: MeasuredWorkload) -> list[str]:
    """For each measured cell of the model; '' where it is within TRUSTED_PCT, or could not be predicted."""
    cells = each.cells
    found = pd.Series("", index=cells.index)
    far = cells["error_pct"].abs() > TRUSTED_PCT
    for configuration, own in cells[far].groupby("configuration", sort=False):
        others = cells[cells["configuration"] != configuration]
        (beyond,) = outside(own.iloc[:1], others)
        way = str(own["way"].iloc[0])
        alike = others.loc[others["way"] == way, "configuration"].nunique()
        for strategy, alike_cells in own.groupby("strategy", sort=False):
            if beyond:
                reason = f"extrapolated without it: {beyond}"
            elif strategy and strategy in each.untrusted:
                reason = f"the model does not describe {strategy}"
            elif way and alike < _FEWEST_OF_A_WAY:
                reason = f"{'one' if alike else 'no'} other configuration communicates over {way}"
            else:
                reason = "not described by the model"
            found[alike_cells.index] = reason
    return found.tolist()

"""Comparison of cells that differ in software options: parallelism, accumulation, compilation .. by precision."""

from __future__ import annotations

from typing import Any

import pandas as pd

from campaign.analysis.statistics.comparable_cells import SHAPE, against, option_columns, precision_rank
from campaign.analysis.statistics.comparisons import Design

# Option -> its default, which is plain, and the wording of other values.
PLAIN = {
    "parallel": ("ddp", "{}"),
    "accumulation": ("1", "accumulation {}"),
    "compile": ("False", "compiled"),
    "activation_checkpointing": ("False", "activations recomputed"),
    "channels_last": ("", "channels last: {}"),
    "bucket_mib": ("25", "buckets of {} MiB"),
}
_ORDER = ("ddp", "dp", "zero1", "fsdp")


def software_options(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare cells with otherwise equal cells that have other options; the plainest measured one is the reference."""
    said, equal = planned(cells)
    measured = (said["n_ok"] > 0).groupby([said[key] for key in equal], sort=False).transform("any").astype(bool)
    rows = said[measured].reset_index(drop=True)
    variants = {each: _rank(*each) for each in set(zip(rows["options"], rows["precision"], strict=True))}
    places = {each: place for place, each in enumerate(sorted(variants, key=lambda each: variants[each]))}
    place = pd.Series([places[each] for each in zip(rows["options"], rows["precision"], strict=True)], dtype="int64")
    variant = pd.Series(
        [f"{name}, {precision}" for name, precision in zip(rows["options"], rows["precision"], strict=True)],
        dtype="str",
    )
    rows = rows.assign(variant=variant, variant_place=place)
    plainest = place.where(rows["n_ok"] > 0).groupby([rows[key] for key in equal], sort=False).transform("min")
    reference = (place == plainest) & (rows["n_ok"] > 0)
    paired = against(rows, equal, reference, design)
    names = rows[reference].drop_duplicates(equal)[equal].assign(against_variant=variant[reference])
    return paired.merge(names, on=equal, how="left", validate="many_to_one").fillna({"against_variant": ""})


def planned(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Select the cells that were planned with several options, and return them with the columns that are equal."""
    known = [name for name in PLAIN if f"option_{name}" in cells]
    said = cells.assign(options=_options(cells, known))
    others = [name for name in option_columns(cells) if name.removeprefix("option_") not in known]
    equal = [*SHAPE, *others, "workload", "batch"]
    levels = said["options"].groupby([said[key] for key in equal], sort=False).transform("nunique")
    return said[levels >= 2], equal


def _options(cells: pd.DataFrame, known: list[str]) -> pd.Series:
    """Describe the options of each cell that are not plain, after its way of parallelism."""
    columns = [cells[f"option_{name}"].tolist() for name in known]
    words = [_said(dict(zip(known, values, strict=True))) for values in zip(*columns, strict=True)] if known else []
    return pd.Series(words if known else "ddp", index=cells.index, dtype="str")


def _said(options: dict[str, Any]) -> str:
    """Describe options by their words in `PLAIN_OPTIONS`, without plain ones."""
    said = []
    for name, (plain, words) in PLAIN.items():
        value = options.get(name, "")
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if text in ("", plain) and name != "parallel":
            continue
        said.append(words.format(text or plain))
    return ", ".join(said)


def _rank(options: str, precision: str) -> tuple[Any, ...]:
    """Return a sort key with plain options first: by the number of options set, then by parallelism, then by precision."""
    way, *more = options.split(", ")
    known = _ORDER.index(way) if way in _ORDER else len(_ORDER)
    return len(more) + (way != "ddp"), precision_rank(precision), known, options

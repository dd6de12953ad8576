"""Comparison of cells that differ in software options: parallelism, accumulation, compilation .. by precision."""

from __future__ import annotations

from typing import Any

import pandas as pd

from campaign.analysis.statistics.comparable_cells import (
    HARDWARE_COLUMNS,
    compare_with_reference,
    list_option_columns,
    rank_precision,
)
from campaign.analysis.statistics.comparisons import Design

# Option -> its default, which is plain, and the wording of other values.
PLAIN_OPTIONS = {
    "parallel": ("ddp", "{}"),
    "accumulation": ("1", "accumulation {}"),
    "compile": ("False", "compiled"),
    "activation_checkpointing": ("False", "activations recomputed"),
    "channels_last": ("", "channels last: {}"),
    "bucket_mib": ("25", "buckets of {} MiB"),
}
_PARALLEL_ORDER = ("ddp", "dp", "zero1", "fsdp")


def compare_software_options(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Compare cells with otherwise equal cells that have other options; the plainest measured one is the reference."""
    described_cells, equal = select_cells_with_options(cells)
    is_measured = (
        (described_cells["n_ok"] > 0)
        .groupby([described_cells[key] for key in equal], sort=False)
        .transform("any")
        .astype(bool)
    )
    rows = described_cells[is_measured].reset_index(drop=True)
    variants = {
        options_and_precision: _rank_options(*options_and_precision)
        for options_and_precision in set(zip(rows["options"], rows["precision"], strict=True))
    }
    places = {
        options_and_precision: place
        for place, options_and_precision in enumerate(
            sorted(variants, key=lambda options_and_precision: variants[options_and_precision])
        )
    }
    place = pd.Series(
        [
            places[options_and_precision]
            for options_and_precision in zip(rows["options"], rows["precision"], strict=True)
        ],
        dtype="int64",
    )
    variant = pd.Series(
        [f"{name}, {precision}" for name, precision in zip(rows["options"], rows["precision"], strict=True)],
        dtype="str",
    )
    rows = rows.assign(variant=variant, variant_place=place)
    plainest = place.where(rows["n_ok"] > 0).groupby([rows[key] for key in equal], sort=False).transform("min")
    reference = (place == plainest) & (rows["n_ok"] > 0)
    table = compare_with_reference(rows, equal, reference, design)
    names = rows[reference].drop_duplicates(equal)[equal].assign(against_variant=variant[reference])
    return table.merge(names, on=equal, how="left", validate="many_to_one").fillna({"against_variant": ""})


def select_cells_with_options(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Select the cells planned with several options; also return the columns in which compared cells are equal."""
    options = [name for name in PLAIN_OPTIONS if f"option_{name}" in cells]
    described_cells = cells.assign(options=_describe_cell_options(cells, options))
    other_columns = [name for name in list_option_columns(cells) if name.removeprefix("option_") not in options]
    equal_columns = [*HARDWARE_COLUMNS, *other_columns, "workload", "batch"]
    levels = (
        described_cells["options"]
        .groupby([described_cells[key] for key in equal_columns], sort=False)
        .transform("nunique")
    )
    return described_cells[levels >= 2], equal_columns


def _describe_cell_options(cells: pd.DataFrame, options: list[str]) -> pd.Series:
    """Describe each cell by its parallelism and its options that differ from plain ones."""
    columns = [cells[f"option_{name}"].tolist() for name in options]
    words = (
        [_describe_options(dict(zip(options, values, strict=True))) for values in zip(*columns, strict=True)]
        if options
        else []
    )
    return pd.Series(words if options else "ddp", index=cells.index, dtype="str")


def _describe_options(options: dict[str, Any]) -> str:
    """Describe options by the words in `PLAIN_OPTIONS`, omitting those with plain values."""
    descriptions = []
    for name, (plain, words) in PLAIN_OPTIONS.items():
        value = options.get(name, "")
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if text in ("", plain) and name != "parallel":
            continue
        descriptions.append(words.format(text or plain))
    return ", ".join(descriptions)


def _rank_options(options: str, precision: str) -> tuple[Any, ...]:
    """Return a sort key with plain options first: by the number of options set, then by parallelism, then by precision."""
    way, *extra_options = options.split(", ")
    parallel_rank = _PARALLEL_ORDER.index(way) if way in _PARALLEL_ORDER else len(_PARALLEL_ORDER)
    return len(extra_options) + (way != "ddp"), rank_precision(precision), parallel_rank, options

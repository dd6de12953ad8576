"""Figure: what software options give: ways to share the work among devices, accumulation, compilation .. by precision."""

from typing import Any

import pandas as pd

from campaign import wording
from campaign.report import bars, columns, plot
from campaign.report.bars import Bars, Groups, grouped, tall_enough
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, only_in_table, telling
from campaign.statistics import comparable_cells, verdict
from campaign.statistics.comparisons import Design

TITLE = "Software optimisations"
SECTION = (
    "How much of the cost of a slow link can software recover, against ddp without further options in "
    "the highest precision?"
)
PART = ANSWERS
PLACE = 70
UNITS = {"variant_place": ""}
COUNTERPARTS = {
    "Falcon: Fig. 16": "DP, DDP, mixed precision, sharding",
}

# Option -> what it is without being asked for, which is plain, and how another value is said.
_PLAIN = {
    "parallel": ("ddp", "{}"),
    "accumulation": ("1", "accumulation {}"),
    "compile": ("False", "compiled"),
    "activation_checkpointing": ("False", "activations recomputed"),
    "channels_last": ("", "channels last: {}"),
    "bucket_mib": ("25", "buckets of {} MiB"),
}
_ORDER = ("ddp", "dp", "zero1", "fsdp")


def draw(data: FigureData) -> Drawing:
    rows = _rows(data.cells, data.design)
    if rows.empty:
        return nothing("no cell was planned with two software options that are otherwise equal, and measured in one")
    rows = comparable_cells.in_words(rows)
    others = [name for name in comparable_cells.option_columns(rows) if name.removeprefix("option_") not in _PLAIN]
    by = ["workload", "batch", "device", *others]
    shown = bars.first_configurations(rows)
    panels = plot.panels(shown, by)
    more = only_in_table(rows["configuration"].nunique() - shown["configuration"].nunique(), "configuration")
    caption = (
        f"{data.metric.label.capitalize()} by configuration and option; {wording.runs_behind(list(rows['n_ok']))} a bar, "
        f"{wording.interval_of(rows['interval_method'])}. Above a bar: its speed-up over the plain one.{panels.sentence()}"
    )
    drawn = plot.in_panels(panels, "configuration")
    places = dict(zip(plot.in_panels(panels, "variant"), plot.in_panels(panels, "variant_place"), strict=True))
    return plot.drawn(
        data,
        rows,
        lambda: Bars(sorted(places, key=places.__getitem__), _speedup).multiples(
            panels, _groups, "configuration", data.metric.axis, tall_enough(2.6, drawn), rotation=90
        ),
        {
            "Workload": columns.described(telling(rows, by)),
            "Configuration": columns.text("configuration"),
            "Options": columns.text("variant"),
            **columns.rate(data.metric.heading),
            "Against": columns.text("against_variant", wording.NONE),
            **columns.ratio("Speed-up"),
            **verdict.P,
            **columns.RUNS_AND_FAILURES,
        },
        caption=caption,
        limits=(*panels.limits(), more, plot.cut(shown, plot.RATE)),
        findings=_findings(rows, by),
        coverage=coverage_of_cells(_planned(data.cells)[0]),
    )


def _rows(cells: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Cells of which an otherwise equal one has other options, beside the plainest measured one among them."""
    said, equal = _planned(cells)
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
    paired = comparable_cells.against(rows, equal, reference, design)
    names = rows[reference].drop_duplicates(equal)[equal].assign(against_variant=variant[reference])
    return paired.merge(names, on=equal, how="left", validate="many_to_one").fillna({"against_variant": ""})


def _planned(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Cells of which an otherwise equal one was planned with other options, and the columns that are equal."""
    known = [name for name in _PLAIN if f"option_{name}" in cells]
    said = cells.assign(options=_options(cells, known))
    others = [name for name in comparable_cells.option_columns(cells) if name.removeprefix("option_") not in known]
    equal = [*comparable_cells.SHAPE, *others, "workload", "batch"]
    levels = said["options"].groupby([said[key] for key in equal], sort=False).transform("nunique")
    return said[levels >= 2], equal


def _options(cells: pd.DataFrame, known: list[str]) -> pd.Series:
    """The options of each cell in words: what is not plain, after how the work is shared."""
    columns = [cells[f"option_{name}"].tolist() for name in known]
    words = [_said(dict(zip(known, values, strict=True))) for values in zip(*columns, strict=True)] if known else []
    return pd.Series(words if known else "ddp", index=cells.index, dtype="str")


def _said(options: dict[str, Any]) -> str:
    said = []
    for name, (plain, words) in _PLAIN.items():
        value = options.get(name, "")
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if text in ("", plain) and name != "parallel":
            continue
        said.append(words.format(text or plain))
    return ", ".join(said)


def _rank(options: str, precision: str) -> tuple[Any, ...]:
    """Plain ways first: by the number of options set, then by how the work is shared, then by precision."""
    way, *more = options.split(", ")
    known = _ORDER.index(way) if way in _ORDER else len(_ORDER)
    return len(more) + (way != "ddp"), comparable_cells.precision_rank(precision), known, options


def _findings(rows: pd.DataFrame, by: list[str]) -> tuple[str, ...]:
    """The range of speed-ups of each variant over the plain one of its configuration."""
    said = []
    named = telling(rows, ["configuration", *by], "configuration")
    compared = rows[rows["ratio"].notna() & (rows["variant"] != rows["against_variant"])]
    for (variant, against), cells in compared.sort_values("variant_place", kind="stable").groupby(
        ["variant", "against_variant"], sort=False
    ):
        said.append(f"{variant} against {against}: {verdict.speed_ups(cells, named)}.")
    return tuple(said) or ("No variant has a measured plain cell beside it.",)


def _groups(cells: pd.DataFrame) -> Groups:
    return grouped(cells.sort_values("variant_place", kind="stable"), "configuration", "variant")


def _speedup(row: Any) -> str:
    return wording.times(row["ratio"]) if row["variant"] != row["against_variant"] and pd.notna(row["ratio"]) else ""

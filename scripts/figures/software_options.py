"""Figure: what software options give: ways to share the work among devices, accumulation, compilation .. by precision."""

from typing import Any

import pandas as pd

from campaign import wording
from campaign.report import bars, plot
from campaign.report.bars import Bars
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.statistics import comparable_cells, verdict
from campaign.statistics.comparisons import Design

TITLE = "Software optimisations"
SECTION = (
    "How much of the cost of a slow link can software recover? Ways to share the work among devices (ddp; dp, one process; "
    "zero1 and fsdp, sharded) and other options, each in every precision, against the reference: ddp, no further option, "
    "highest precision."
)
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
    findings = _findings(rows, by)
    left_out = rows["configuration"].nunique() - shown["configuration"].nunique()
    more = f" {wording.plural(left_out, 'further configuration')} in the data table only." if left_out else ""
    caption = (
        f"{data.metric.label.capitalize()} by configuration and option; {wording.runs_behind(list(rows['n_ok']))} a bar, "
        f"{wording.interval_of(rows['interval_method'])}. Above a bar: its speed-up over the plain one of its configuration. "
        f"{verdict.counted(rows, data.protocol, 'the plain one')} A cross names why a planned cell has no value."
        f"{panels.sentence()}{more}{plot.cut(shown, plot.RATE)} {measured_as(data, shown)}"
    )
    with plot.style(data.style):
        svg = _picture(panels, data.metric.axis)
    table = page_table(
        rows,
        {
            "Workload": lambda row: wording.describe(row, by),
            "Configuration": lambda row: row["configuration"],
            "Options": lambda row: row["variant"],
            data.metric.heading: lambda row: wording.rate(row["mean"]),
            "95 % interval": lambda row: wording.between(row["ci_low"], row["ci_high"], wording.rate),
            "Against": lambda row: row["against_variant"] or wording.NONE,
            "Speed-up": lambda row: wording.times(row["ratio"]),
            "95 % interval ": lambda row: wording.between(row["ratio_low"], row["ratio_high"], wording.times),
            **verdict.COLUMNS,
            "Runs": lambda row: wording.count(row["n_ok"]),
            "Failed": lambda row: row["failures"],
        },
    )
    covered = coverage_of_cells(_planned(data.cells)[0])
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


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
    named = [column for column in ["configuration", *by] if rows[column].nunique() > 1] or ["configuration"]
    compared = rows[rows["ratio"].notna() & (rows["variant"] != rows["against_variant"])]
    for (variant, against), cells in compared.sort_values("variant_place", kind="stable").groupby(
        ["variant", "against_variant"], sort=False
    ):
        said.append(f"{variant} against {against}: {verdict.speed_ups(cells, named)}.")
    return tuple(said) or ("No variant has a measured plain cell beside it.",)


def _picture(panels: plot.Panels, value: str) -> str:
    variants: dict[str, int] = {}
    for panel in panels.shown:
        variants |= dict(zip(panel.rows["variant"], panel.rows["variant_place"], strict=True))
    bars = Bars({name: name for name in sorted(variants, key=variants.__getitem__)})
    longest = max(len(name) for panel in panels.shown for name in panel.rows["configuration"])
    figure, axes = plot.grid(len(panels.shown), height_in=2.6 + 0.055 * min(longest, 30))
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        groups = [
            (str(name), list(zip(cells["variant"], cells.to_dict("records"), strict=True)))
            for name, cells in panel.rows.sort_values("variant_place", kind="stable").groupby(
                "configuration", sort=False
            )
        ]
        bars.draw(only, groups, _speedup)
        only.tick_params(axis="x", rotation=90)
        only.set_xlabel("configuration")
        if plot.is_left(position):
            only.set_ylabel(value)
    bars.legend(figure)
    return plot.to_svg(figure)


def _speedup(row: Any) -> str:
    return wording.times(row["ratio"]) if row["variant"] != row["against_variant"] and pd.notna(row["ratio"]) else ""

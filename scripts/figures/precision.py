"""Figure: throughput by precision, with the speed-up over the most precise and visible gaps."""

from typing import Any

import pandas as pd

from campaign import wording
from campaign.report import plot
from campaign.report.bars import Bars
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.statistics import comparable_cells, verdict

TITLE = "Precision"
SECTION = (
    "What do shorter number formats gain, and what do they make possible? A cell that did not fit into memory or that "
    "the device cannot compute is a result: it is drawn as a gap with its class."
)
PLACE = 60
COUNTERPARTS = {
    "FASTER: Fig. 8": "fp16 against tf32 by batch, on 1 and 12 GPUs",
    "Falcon: Fig. 16 (precision)": "mixed precision",
}


def draw(data: FigureData) -> Drawing:
    rows = comparable_cells.in_words(comparable_cells.precision(data.cells, data.design))
    if rows.empty:
        return nothing("no cell was planned in two precisions and measured in one")
    by = ["workload", "shape", "attached", "storage", "device", *comparable_cells.option_columns(rows)]
    panels = plot.panels(_most_telling_first(rows, by, data.baseline), by, series="batch")
    findings = _findings(rows, by)
    first = " Drawn: compositions like the baseline, then the largest." if panels.left_out else ""
    caption = (
        f"{data.metric.label.capitalize()} by batch and precision; {wording.runs_behind(rows['n_ok'])} a bar, "
        f"{wording.interval_of(rows['interval_method'])}. Above a bar: its speed-up over {rows['reference'].iloc[0]}. "
        f"{verdict.counted(rows, data.protocol, rows['reference'].iloc[0])} A cross names why a planned cell has no value."
        f"{panels.sentence()}{first}{plot.cut(rows, plot.RATE)} {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(panels, data.metric.axis)
    table = page_table(
        rows,
        {
            "Workload": lambda row: wording.describe(row, by),
            "Batch": lambda row: wording.count(row["batch"]),
            "Precision": lambda row: row["precision"],
            data.metric.heading: lambda row: wording.rate(row["mean"]),
            "95 % interval": lambda row: wording.between(row["ci_low"], row["ci_high"], wording.rate),
            "CV": lambda row: wording.percent(row["cv_pct"]),
            "Speed-up": lambda row: wording.times(row["ratio"]),
            "95 % interval ": lambda row: wording.between(row["ratio_low"], row["ratio_high"], wording.times),
            **verdict.COLUMNS,
            "Runs": lambda row: wording.count(row["n_ok"]),
            "Failed": lambda row: row["failures"],
        },
    )
    covered = coverage_of_cells(
        comparable_cells.varied(
            data.cells,
            [*comparable_cells.SHAPE, *comparable_cells.option_columns(data.cells), "workload", "batch"],
            "precision",
        )
    )
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _most_telling_first(rows: pd.DataFrame, by: list[str], baseline: str) -> pd.DataFrame:
    """Rows as they are; with more panels than are drawn, compositions like the baseline stand first, then the largest."""
    if rows.groupby(by, sort=False, dropna=False).ngroups <= plot.MOST_PANELS:
        return rows
    shape = ["shape", "attached", "storage", "device"]
    like = rows[shape].apply(tuple, axis=1)
    known = set(like[rows["configuration"].isin(baseline.split(", "))])
    order = rows.assign(_other=~like.isin(known), _devices=-rows["ranks"])
    return order.sort_values(["_other", "_devices"], kind="stable").drop(columns=["_other", "_devices"])


def _findings(rows: pd.DataFrame, by: list[str]) -> tuple[str, ...]:
    """The range of speed-ups of each precision, and the cells that only some precisions could run."""
    said = []
    reference = rows["reference"].iloc[0]
    named = [column for column in [*by, "batch"] if rows[column].nunique() > 1] or ["workload"]
    for name in sorted(set(rows["precision"]) - {reference}, key=comparable_cells.precision_rank):
        compared = rows[(rows["precision"] == name) & rows["ratio"].notna()]
        if len(compared):
            said.append(f"{name} against {reference}: {verdict.speed_ups(compared, named)}.")
    gaps = rows[rows["n_ok"] == 0]
    if len(gaps):
        row: Any = gaps.iloc[0]
        classes = wording.describe(row, ["precision", *named])
        said.append(f"{wording.plural(len(gaps), 'cell')} without a value, the first {classes}: {plot.why_not(row)}.")
    return tuple(said)


def _picture(panels: plot.Panels, value: str) -> str:
    names = sorted(
        {name for panel in panels.shown for name in panel.rows["precision"]}, key=comparable_cells.precision_rank
    )
    bars = Bars({name: name for name in names})
    figure, axes = plot.grid(len(panels.shown), height_in=2.7)
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        groups = [
            (str(batch), list(zip(rows["precision"], rows.to_dict("records"), strict=True)))
            for batch, rows in panel.rows.groupby("batch", sort=True)
        ]
        bars.draw(only, groups, _speedup)
        only.set_xlabel("batch per device (samples)")
        if plot.is_left(position):
            only.set_ylabel(value)
    bars.legend(figure)
    return plot.to_svg(figure)


def _speedup(row: Any) -> str:
    return wording.times(row["ratio"]) if row["precision"] != row["reference"] and pd.notna(row["ratio"]) else ""

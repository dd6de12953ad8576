"""Figure: the speed-up of each device count over the smallest, by batch."""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from campaign import wording
from campaign.report import plot
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.statistics import comparable_cells, verdict

TITLE = "Speed-up by batch"
SECTION = (
    "Does a larger batch scale better? A larger batch computes longer between two exchanges of gradients, so it should, "
    "until the memory is full. The speed-up of each device count is against the smallest count at the same batch."
)
PLACE = 20
UNITS = {"efficiency_low": "pct", "efficiency_high": "pct"}
COUNTERPARTS = {
    "FASTER: Fig. 7 (by batch)": "speed-up of BERT-Large by batch",
    "Dell: Figs 9 to 11 (by batch)": "throughput by batch",
}


_SPEEDUP = plot.Columns("ratio", "ratio_low", "ratio_high")


def draw(data: FigureData) -> Drawing:
    rows = comparable_cells.speedup_by_batch(data.cells, data.design)
    if rows.empty:
        return nothing("no two batches were measured at the same two numbers of devices")
    by = [*comparable_cells.KIND, *comparable_cells.option_columns(rows)]
    panels = plot.panels(rows, by, series="batch")
    rows, effects = comparable_cells.one_family(rows, comparable_cells.batch_effect(rows, data.design))
    findings = _findings(effects, by)
    caption = (
        f"Speed-up over the smallest number of devices at the same batch; {wording.runs_behind(rows['n_ok'])} a point, ratio "
        f"of means{_interval(rows)}. Dotted: ideal. "
        f"{verdict.counted(rows, data.protocol, 'the ideal')} A cross names why a planned cell has no value."
        f"{panels.sentence()}{plot.cut(rows, _SPEEDUP)} {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(panels)
    table = page_table(
        rows,
        {
            "Workload": lambda row: wording.describe(row, by),
            "Batch": lambda row: wording.count(row["batch"]),
            "Devices": lambda row: wording.count(row["ranks"]),
            "Against": lambda row: wording.number(row["against_ranks"]),
            "Speed-up": lambda row: wording.times(row["ratio"]),
            "95 % interval": lambda row: wording.between(row["ratio_low"], row["ratio_high"], wording.times),
            **verdict.COLUMNS,
            "Runs": lambda row: wording.count(row["n_ok"]),
            "Failed": lambda row: row["failures"],
        },
    )
    series = comparable_cells.scaling(data.cells, data.design)
    covered = coverage_of_cells(comparable_cells.varied(series[series["compact"]], [*by, "ranks"], "batch"))
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _interval(rows: pd.DataFrame) -> str:
    return " with 95 % interval" if rows["ratio_low"].notna().any() else "; one run each, so no interval"


def _findings(effects: pd.DataFrame, by: list[str]) -> tuple[str, ...]:
    """For the series whose speed-up changes most from the smallest to the largest batch, both ends."""
    if effects.empty:
        return ()
    series = [*by, "ranks"]
    row = effects.loc[np.log1p(effects["change_pct"] / 100).abs().idxmax()]
    named = [column for column in series if effects[column].nunique() > 1 or column in ("workload", "ranks")]
    first, last = (
        wording.with_interval(*(row[f"ratio{part}{end}"] for part in ("", "_low", "_high")), wording.times)
        for end in ("", "_large")
    )
    none = verdict.together(effects, "change_low", "change_high")
    doubt = f": {none}" if none else verdict.doubt(row, row["change_low"], row["change_high"])
    return (
        f"The batch matters most for {wording.describe(row, named)}: speed-up {first} at batch {row['batch']} and {last} at "
        f"batch {row['batch_large']}{doubt}{f' ({basis})' if (basis := verdict.basis(row)) else ''}.",
    )


def _picture(panels: plot.Panels) -> str:
    counts = sorted({count for panel in panels.shown for count in panel.rows["ranks"]})
    looks = {count: plot.look(position) for position, count in enumerate(counts)}
    figure, axes = plot.grid(len(panels.shown))
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        batches = sorted(panel.rows["batch"].unique())
        place = {batch: index for index, batch in enumerate(batches)}
        for count, rows in panel.rows.groupby("ranks", sort=True):
            look = looks[count]
            ordered = rows.sort_values("batch")
            line = ordered[ordered["ratio"].notna()]
            only.axhline(ordered["ideal"].iloc[0], color=look.colour, linestyle=":", linewidth=0.9)
            only.plot(line["batch"].map(place), line["ratio"], color=look.colour)
            plot.points(only, line, line["batch"].map(place), _SPEEDUP, look)
        for batch, rows in panel.rows[panel.rows["n_ok"] == 0].groupby("batch", sort=True):
            reasons = dict.fromkeys(plot.why_not(row) for row in rows.to_dict("records"))
            plot.gap(only, place[batch], ", ".join(reasons))
        only.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        only.set_xlim(-0.4, len(batches) - 0.6)
        only.set_ylim(0, 1.05 * max(panel.rows["ideal"].max(), plot.range_of(panel.rows, _SPEEDUP)[1]))
        only.set_xlabel("batch per device (samples)")
        if plot.is_left(position):
            only.set_ylabel("speed-up (×)")
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, label=wording.axis("ranks", count))
        for count, look in looks.items()
    ]
    handles.append(Line2D([], [], color=plot.INK, linestyle=":", label="ideal"))
    plot.legend(figure, handles)
    return plot.to_svg(figure)

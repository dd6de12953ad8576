"""Figure: equally many devices on one host or spread over several."""

import itertools
from operator import itemgetter
from typing import Any

import pandas as pd

from campaign import wording
from campaign.report import plot
from campaign.report.bars import Bars
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.statistics import comparable_cells, verdict
from campaign.statistics.spread_sources import COULD, MAY, NOT, Spread, spread

TITLE = "Node spread"
SECTION = (
    "What does it cost to spread the same number of devices over more hosts? A composable system can attach all of them to one "
    "host; a traditional one has to use several. The drop is against the fewest hosts measured with as many devices. Equal "
    "cells also differ from host to host; a smaller drop may have that cause."
)
PLACE = 30
UNITS = {"drop_low": "pct", "drop_high": "pct"}
COUNTERPARTS = {
    "FASTER: Figs 3, 4": "the same GPUs on more hosts, A100 and T4",
    "FASTER: Fig. 5": "drop in percent by hosts",
}


_DROP = ("drop_pct", "drop_low", "drop_high")


def draw(data: FigureData) -> Drawing:
    rows = comparable_cells.node_spread(data.cells, data.design)
    if rows.empty:
        return nothing("no number of devices was measured on two numbers of hosts that are otherwise equal")
    by = [*comparable_cells.KIND, *comparable_cells.option_columns(rows)]
    panels = plot.panels(rows, by, series="batch")
    found = spread(data.runs, data.metric.higher)
    answers = [found.explains(str(row["workload"]), row["ratio"]) for row in rows.to_dict("records")]
    rows = rows.assign(hosts_explain=pd.Series(answers, index=rows.index, dtype="str"))
    findings = _findings(rows, by, found, data.metric.performance)
    caption = (
        f"{data.metric.label.capitalize()} at equal numbers of devices; {wording.runs_behind(rows['n_ok'])} a bar, "
        f"{wording.interval_of(rows['interval_method'])}. Above a bar: its drop against the first bar of the group. "
        f"{verdict.counted(rows, data.protocol, 'the fewest hosts')} A cross names why a planned cell has no value."
        f"{panels.sentence()}{plot.cut(rows, plot.RATE)} {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(panels, data.metric.axis)
    table = page_table(
        rows,
        {
            "Workload": lambda row: wording.describe(row, [*by, "batch"]),
            "Devices": lambda row: wording.count(row["ranks"]),
            "Hosts": lambda row: wording.count(row["hosts"]),
            data.metric.heading: lambda row: wording.rate(row["mean"]),
            "95 % interval": lambda row: wording.between(row["ci_low"], row["ci_high"], wording.rate),
            "CV": lambda row: wording.percent(row["cv_pct"]),
            "Against": lambda row: (
                wording.axis("hosts", row["against_hosts"]) if row["against_n"] > 0 else wording.NONE
            ),
            "Drop": lambda row: wording.percent(row["drop_pct"]),
            "95 % interval ": lambda row: wording.between(row["drop_low"], row["drop_high"], wording.percent),
            **verdict.COLUMNS,
            "Host-to-host spread explains it": lambda row: row["hosts_explain"] if row["p"] == row["p"] else "",
            "Runs": lambda row: wording.count(row["n_ok"]),
            "Failed": lambda row: row["failures"],
        },
    )
    covered = coverage_of_cells(
        comparable_cells.varied(
            data.cells,
            [*comparable_cells.KIND, *comparable_cells.option_columns(data.cells), "batch", "ranks"],
            "hosts",
        )
    )
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _findings(rows: pd.DataFrame, by: list[str], found: Spread, measure: str) -> tuple[str, ...]:
    """The largest and the smallest drop."""
    spread = rows[rows["drop_pct"].notna() & (rows["hosts"] > rows["against_hosts"])]
    if spread.empty:
        return ()
    named = [column for column in [*by, "batch"] if spread[column].nunique() > 1] or ["workload"]
    ordered = spread.sort_values("drop_pct", kind="stable")

    def say(row: Any) -> str:
        lost = verdict.measured(row, tuple(row[name] for name in _DROP), wording.percent, wording.describe(row, named))
        none = verdict.doubt(row, row["drop_low"], row["drop_high"])
        return (
            f"{wording.axis('ranks', row['ranks'])} on {wording.axis('hosts', row['hosts'])} instead of "
            f"{row['against_hosts']:.0f} lower {measure} by {lost}{none}{_explained(row, found) if not none else ''}"
        )

    known = any(found.between_hosts(str(name)) for name in spread["workload"].unique())
    unknown = () if known else ("The spread between hosts is unknown: no cell was run on several of them.",)
    if len(ordered) == 1:
        return (f"{say(ordered.iloc[0])}.", *unknown)
    return (f"Largest drop: {say(ordered.iloc[-1])}.", f"Smallest drop: {say(ordered.iloc[0])}.", *unknown)


def _explained(row: Any, found: Spread) -> str:
    """Whether the spread of equal cells over hosts could be what a drop is."""
    part = found.between_hosts(str(row["workload"]))
    if part is None:
        return ""
    size = f"(standard deviation {wording.percent(part.sd_pct, 2)})"
    return {
        COULD: f"; equal cells differ as much from host to host {size}",
        MAY: f"; too few hosts were compared to say that they do not differ as much {size}",
        NOT: f", more than host-to-host variation {size} could explain",
    }.get(row["hosts_explain"], "")


def _picture(panels: plot.Panels, value: str) -> str:
    hosts = sorted({count for panel in panels.shown for count in panel.rows["hosts"]})
    bars = Bars({count: wording.axis("hosts", count) for count in hosts})
    figure, axes = plot.grid(len(panels.shown), height_in=2.7)
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        several = panel.rows["batch"].nunique() > 1
        cells = panel.rows.sort_values(["ranks", "batch"], kind="stable").to_dict("records")
        groups = [
            (f"{ranks}\n{batch}" if several else str(ranks), [(cell["hosts"], cell) for cell in group])
            for (ranks, batch), group in itertools.groupby(cells, itemgetter("ranks", "batch"))
        ]
        bars.draw(only, groups, _drop)
        only.set_xlabel("devices in use\nbatch per device (samples)" if several else "devices in use")
        if plot.is_left(position):
            only.set_ylabel(value)
    bars.legend(figure)
    return plot.to_svg(figure)


def _drop(row: Any) -> str:
    return wording.percent(-row["drop_pct"]) if row["hosts"] > row["against_hosts"] else ""

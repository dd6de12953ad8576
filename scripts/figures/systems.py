"""Figure: equally many devices of several systems, with overlaid scaling and ratios to the first system."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, telling

TITLE = "Systems"
SECTION = "How do equally many devices of two systems compare? A difference may be that of the hosts that were used."
RESTS_ON = ("devices",)
PART = ANSWERS
PLACE = 15
COUNTERPARTS = {"FASTER: Figs 1 to 4": "composed A100 of FASTER against the two A100 a host of Grace"}


def draw(data: FigureData) -> Drawing:
    """Draw the scaling of several systems in common panels, and list the ratios to the first system."""
    if data.cells["system"].nunique() < 2:
        return nothing("the campaign has cells on one system only")
    options = comparable_cells.option_columns(data.cells)
    by = ["workload", "precision", "storage", *options, "batch"]
    rows = comparable_cells.across_systems(data.cells, data.design)
    if rows.empty or not rows["ratio"].notna().any():
        return nothing("no number of devices was measured on two systems that is otherwise equal")
    matched = data.cells[by].apply(tuple, axis=1).isin(set(rows[by].itertuples(index=False, name=None)))
    # Among compositions with as many hosts, the one with the fewest idle devices is drawn, as in scaling.
    lines = data.cells[matched].sort_values(["ranks", "hosts", "devices_per_host"], kind="stable")
    lines = lines.drop_duplicates(["system", "attach", "ranks", "hosts", *by]).reset_index(drop=True)
    first = str(rows["against_system"].iloc[0])
    panels = plot.panels(lines, by)
    caption = (
        f"{data.metric.label.capitalize()} against devices in use; {wording.runs_behind(lines['n_ok'])} a point, "
        f"{wording.interval_of(lines['interval_method'])}. Lines join compositions on the fewest hosts. Ratios are to {first}."
        f"{panels.sentence()}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels, data.metric.axis),
        {
            "Cell": columns.described(telling(rows, by)),
            "Devices": columns.count("ranks"),
            "Composition": columns.text("configuration"),
            "Against": columns.text("against_configuration"),
            "Hosts": lambda row: (
                "as many" if row["same_hosts"] else f"{row['hosts']:.0f} against {row['against_hosts']:.0f}"
            ),
            data.metric.heading: lambda row: wording.rate(row["mean"]),
            f"{data.metric.heading} of {first}": lambda row: wording.rate(row["against_mean"]),
            **columns.ratio("Ratio", "95 % interval"),
            **verdict.P,
            **columns.RUNS_AND_FAILURES,
        },
        caption=caption,
        limits=(*panels.limits(), plot.cut(lines, plot.RATE)),
        findings=_findings(rows, telling(rows, [*by, "ranks"]), data.design),
        coverage=coverage_of_cells(rows, rows.loc[rows["ratio"].notna(), "cell_id"]),
    )


def _findings(rows: pd.DataFrame, named: list[str], design: Design) -> tuple[str, ...]:
    """Return a sentence per system with the mean and the range of its ratios, for equal and for different numbers of hosts."""
    said = []
    compared = rows[rows["ratio"].notna()]
    for (system, same), group in compared.groupby(["system", "same_hosts"], sort=False):
        where = "on as many hosts" if same else "on other numbers of hosts"
        first = group["against_system"].iloc[0]
        said.append(
            f"{system} against {first}, equally many devices {where}: {verdict.summarize_effects(group, design, named)}."
        )
    return tuple(said)


def _picture(panels: plot.Panels, value: str) -> str:
    """Draw one panel per workload, with a line per system and attachment. Return SVG.

    Args:
        panels: panels with the cells of all systems.
        y_label: label of the vertical axes.
    """
    shown = pd.concat([panel.rows for panel in panels.shown])
    names = list(dict.fromkeys(shown[["system", "attach"]].itertuples(index=False, name=None)))
    several = shown.groupby("system")["attach"].nunique() > 1
    labels = {(system, attach): f"{system}, {attach}" if several[system] else str(system) for system, attach in names}
    looks = plot.looks(names)

    def paint(axes: Any, own: pd.DataFrame) -> None:
        """Draw a line per system and attachment. Compositions on more than the fewest hosts are hollow markers."""
        for name, rows in own.groupby(["system", "attach"], sort=False):
            measured = rows[rows["n_ok"] > 0]
            compact = ~measured.duplicated("ranks")
            line: Any = measured[compact]
            axes.plot(line["ranks"], line["mean"], color=looks[name].colour, linewidth=1.2)
            plot.points(axes, line, line["ranks"], plot.RATE, looks[name])
            plot.points(axes, measured[~compact], measured.loc[~compact, "ranks"], plot.RATE, looks[name], hollow=True)
        axes.set_xscale("log", base=2)
        counts = sorted({int(count) for count in own["ranks"]})
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)

    return plot.multiples(panels, paint, plot.keys(looks, labels.__getitem__), "devices in use", value, height_in=2.7)

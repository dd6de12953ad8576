"""Figure: equally many devices of several systems, with overlaid scaling and ratios to the first system."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Systems"
SECTION = "How do equal numbers of devices of two systems compare? Differences may come from the hosts that were used."
RESTS_ON = ("devices",)
PART = ANSWERS
PLACE = 15
COUNTERPARTS = {"FASTER: Figs 1 to 4": "composed A100 of FASTER compared with the two A100 per host of Grace"}


def draw(data: FigureData) -> Drawing:
    """Draw the scaling of several systems in common panels, and list the ratios to the first system."""
    if data.cells["system"].nunique() < 2:
        return nothing("the campaign has cells on one system only")
    options = comparable_cells.list_option_columns(data.cells)
    panel_columns = ["workload", "precision", "storage", *options, "batch"]
    rows = comparable_cells.compare_systems(data.cells, data.design)
    if rows.empty or not rows["ratio"].notna().any():
        return nothing("no two measured cells differ only in their system")
    is_matched = (
        data.cells[panel_columns].apply(tuple, axis=1).isin(set(rows[panel_columns].itertuples(index=False, name=None)))
    )
    # Among compositions with equal numbers of hosts, the one with the fewest idle devices is drawn, as in scaling.
    lines = data.cells[is_matched].sort_values(["ranks", "hosts", "devices_per_host"], kind="stable")
    lines = lines.drop_duplicates(["system", "attach", "ranks", "hosts", *panel_columns]).reset_index(drop=True)
    first = str(rows["against_system"].iloc[0])
    panels = plot.split_into_panels(lines, panel_columns)
    caption = (
        f"{data.metric.label.capitalize()} by devices in use. {describe_marks('point', lines['n_ok'], lines['interval_method'])} "
        f"Lines join the fewest hosts. Ratios are relative to {first}.{panels.format_common_sentence()}"
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_panels(panels, data.metric.axis_label),
        {
            "Cell": columns.description_column(select_distinguishing_columns(rows, panel_columns)),
            "Devices": columns.count_column("ranks"),
            "Composition": columns.text_column("configuration"),
            "Compared with": columns.text_column("against_configuration"),
            "Hosts": lambda row: (
                "same number" if row["same_hosts"] else f"{row['hosts']:.0f} against {row['against_hosts']:.0f}"
            ),
            data.metric.heading: lambda row: wording.format_rate(row["mean"]),
            f"{data.metric.heading} of {first}": lambda row: wording.format_rate(row["against_mean"]),
            **columns.ratio_columns("Ratio", "95 % interval"),
            **verdict.P_COLUMN,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), plot.describe_cut_intervals(lines, plot.RATE)),
        findings=_describe_ratios(
            rows,
            select_distinguishing_columns(rows, [*panel_columns, "ranks"]),
            data.design,
            data.metric.performance_name,
        ),
        coverage=describe_cell_coverage(rows, rows.loc[rows["ratio"].notna(), "cell_id"]),
    )


def _describe_ratios(rows: pd.DataFrame, label_columns: list[str], design: Design, measure: str) -> tuple[str, ...]:
    """Return sentences per system on the mean and the range of its ratios, for equal and for different numbers of hosts."""
    sentences = []
    compared_rows = rows[rows["ratio"].notna()]
    for (system, has_same_hosts), group in compared_rows.groupby(["system", "same_hosts"], sort=False):
        hosts_text = "the same number of hosts" if has_same_hosts else "different numbers of hosts"
        first = group["against_system"].iloc[0]
        sentences.append(
            verdict.summarize_effects(
                group,
                design,
                label_columns,
                f"{system} reaches {{}} the {measure} of {first} with equal devices on {hosts_text}",
                f"difference between {system} and {first} with equal devices on {hosts_text}",
            )
        )
    return tuple(sentences)


def _draw_panels(panels: plot.Panels, y_label: str) -> str:
    """Draw one panel per workload, with a line per system and attachment. Return SVG.

    Args:
        panels: panels with the cells of all systems.
        y_label: label of the vertical axes.
    """
    all_rows = pd.concat([panel.rows for panel in panels.shown])
    names = list(dict.fromkeys(all_rows[["system", "attach"]].itertuples(index=False, name=None)))
    has_several_attachments = all_rows.groupby("system")["attach"].nunique() > 1
    labels = {
        (system, attach): f"{system}, {attach}" if has_several_attachments[system] else str(system)
        for system, attach in names
    }
    looks = plot.assign_looks(names)

    def draw_panel(axes: Any, panel_rows: pd.DataFrame) -> None:
        """Draw a line per system and attachment. Compositions on more than the fewest hosts are hollow markers."""
        for name, rows in panel_rows.groupby(["system", "attach"], sort=False):
            measured_rows = rows[rows["n_ok"] > 0]
            compact = ~measured_rows.duplicated("ranks")
            line: Any = measured_rows[compact]
            axes.plot(line["ranks"], line["mean"], color=looks[name].colour, linewidth=1.2)
            plot.draw_points(axes, line, line["ranks"], plot.RATE, looks[name])
            plot.draw_points(
                axes, measured_rows[~compact], measured_rows.loc[~compact, "ranks"], plot.RATE, looks[name], hollow=True
            )
        axes.set_xscale("log", base=2)
        counts = sorted({int(count) for count in panel_rows["ranks"]})
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)

    return plot.draw_multiples(
        panels, draw_panel, plot.build_legend_keys(looks, labels.__getitem__), "devices in use", y_label, height_in=2.7
    )

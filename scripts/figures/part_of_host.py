"""Figure: runs that use a part of a host's devices, by the number of devices composed into the host."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.bars import BarGroups, Bars, group_bars
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Part of a host"
SECTION = "Do idle devices in the host slow a run down?"
PART = ANSWERS
PLACE = 50
COUNTERPARTS = {
    "FASTER: Fig. 6": "part of a composed host's GPUs, coefficient of variation",
}


_MAX_LABELLED_GROUPS = 6  # more labelled groups in a panel would overlap


def draw(data: FigureData) -> Drawing:
    """Draw the performance of runs that use k of n devices of a host, by n."""
    rows = comparable_cells.compare_partial_hosts(data.cells, data.design)
    if rows.empty:
        return nothing("every measured run used all devices of its hosts")
    panel_columns = [*comparable_cells.PANEL_COLUMNS, *comparable_cells.list_option_columns(rows), "hosts"]
    panels = plot.split_into_panels(rows, panel_columns)
    caption = (
        f"{data.metric.label.capitalize()} by devices in use and devices composed into the host. "
        f"{describe_marks('bar', rows['n_ok'], rows['interval_method'])} CV: of a group's means.{panels.format_common_sentence()}"
    )
    sizes = sorted(set(plot.collect_panel_values(panels, "devices_per_host")))
    return plot.build_drawing(
        data,
        rows,
        lambda: Bars(sizes, format_series="of {} composed".format).draw_multiples(
            panels, _group_bars, _format_axis_label, data.metric.axis_label
        ),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, [*panel_columns, "batch"])),
            "Used of composed": lambda row: f"{row['devices_used']} of {row['devices_per_host']}",
            **columns.rate_columns(data.metric.heading),
            "CV of repetitions": columns.percent_column("cv_pct"),
            "CV of the group": columns.percent_column("case_cv_pct"),
            **columns.ratio_columns("Ratio to the smallest host"),
            **verdict.P_COLUMN,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), plot.describe_cut_intervals(rows, plot.RATE)),
        findings=_describe_variation(rows, panel_columns, data.design, data.metric.performance_name),
        coverage=describe_cell_coverage(_select_planned(data.cells)),
        minor=not verdict.has_significant_difference(rows),
    )


def _select_planned(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells planned on a part of a host, and the cells planned for comparison with them."""
    equal = [
        *comparable_cells.PANEL_COLUMNS,
        *comparable_cells.list_option_columns(cells),
        "batch",
        "hosts",
        "devices_used",
    ]
    part = cells["devices_used"] < cells["devices_per_host"]
    return cells[part.groupby([cells[key] for key in equal], sort=False).transform("any").astype(bool)]


def _describe_variation(rows: pd.DataFrame, panel_columns: list[str], design: Design, measure: str) -> tuple[str, ...]:
    """Return sentences on the change against the smallest host, and on the largest variation over differently composed hosts."""
    cases = rows[rows["case_cv_pct"].notna()]
    if cases.empty:
        part = rows[rows["devices_used"] < rows["devices_per_host"]]
        return (
            f"{wording.pluralize(len(part), 'cell')} used part of a host, but no second size of host was measured to compare with.",
        )
    sentences = [_describe_change_from_smallest(rows, [*panel_columns, "batch"], design, measure)]
    row: Any = cases.loc[cases["case_cv_pct"].idxmax()]
    label_columns = select_distinguishing_columns(cases, [*panel_columns, "batch"])
    repetition_cv_pct = rows["cv_pct"].max()
    repetition_text = (
        f" Repetitions of one cell vary by up to {wording.format_percent(repetition_cv_pct)}."
        if pd.notna(repetition_cv_pct)
        else ""
    )
    sentences.append(
        f"With the same devices in use, {measure} varies between sizes of the host by up to "
        f"{wording.format_percent(row['case_cv_pct'])} (CV; {wording.format_axes(row, label_columns)}, "
        f"{row['devices_used']} in use).{repetition_text}"
    )
    return tuple(sentence for sentence in sentences if sentence)


def _describe_change_from_smallest(rows: pd.DataFrame, panel_columns: list[str], design: Design, measure: str) -> str:
    """Return sentences on the mean and the range of differences from the smallest host with the same devices in use.

    It is empty if no difference was tested.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
        design: design of the experiment.
        measure: name of the performance that changes.
    """
    tested_rows = rows[rows["p"].notna()]
    if tested_rows.empty:
        return ""
    pairs = zip(tested_rows["devices_used"], tested_rows["devices_per_host"], strict=True)
    usage = [f"{usage} of {total} devices" for usage, total in pairs]
    label_columns = ["used", *select_distinguishing_columns(tested_rows, panel_columns)]
    return verdict.summarize_effects(
        tested_rows.assign(used=usage),
        design,
        label_columns,
        f"Idle devices in the host change {measure} by {{}}",
        f"effect of idle devices in the host on {measure}",
        lambda ratio: 100 * (ratio - 1),
        wording.format_percent,
    )


def _choose_labels(rows: pd.DataFrame) -> tuple[bool, bool]:
    """Return whether the groups of a panel are labelled with their batch, and whether with their variation."""
    # Labels of more groups would overlap. The table has every variation.
    cases = rows.drop_duplicates(["devices_used", "batch"])["case_cv_pct"]
    return rows["batch"].nunique() > 1, bool(cases.notna().any()) and len(cases) < _MAX_LABELLED_GROUPS


def _group_bars(rows: pd.DataFrame) -> BarGroups:
    """Group the bars of a panel by number of devices in use and batch, with one bar per number of devices composed."""
    has_batches, has_variation = _choose_labels(rows)
    variation = rows.groupby(["devices_used", "batch"])["case_cv_pct"].first()

    def format_label(key: tuple[int, int]) -> str:
        """Format the label of a group from its number of devices and batch."""
        variation_text = (
            f"\n{wording.format_percent(variation[key])}" if has_variation and pd.notna(variation[key]) else ""
        )
        return (f"{key[0]}\n{key[1]}" if has_batches else str(key[0])) + variation_text

    return group_bars(rows, ["devices_used", "batch"], "devices_per_host", format_label, sort=True)


def _format_axis_label(rows: pd.DataFrame) -> str:
    """Format the label of the horizontal axis, one line per part of the group labels."""
    has_batches, has_variation = _choose_labels(rows)
    words = ["devices in use per host", *(["batch per device (samples)"] if has_batches else [])]
    return "\n".join([*words, *(["CV between host sizes"] if has_variation else [])])

"""Figure: additional time for equal work if devices or storage are attached differently than in the baseline."""

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

TITLE = "Local, hybrid and fabric"
SECTION = "How much more time does the same work take with devices or storage attached through the fabric?"
RESTS_ON = ("links",)
PART = ANSWERS
PLACE = 90
UNITS = {"overhead_low": "pct", "overhead_high": "pct"}
COUNTERPARTS = {
    "Falcon: Fig. 11": "training time with local, hybrid and fabric GPUs against local ones",
    "Falcon: Fig. 15": "training time with local and fabric NVMe",
    "Dell: Figs 9 to 11": "throughput of native, virtual, mixed and remote GPUs, one row per batch",
}


# Maximum number of lines per panel. Readers do not follow more.
_MAX_LINES = 30
_OVERHEAD = plot.IntervalColumns("overhead_pct", "overhead_low", "overhead_high")
_LINE_COLUMNS = (
    "cell_id",
    "treatment",
    "state",
    "n_ok",
    "n_failed",
    "failures",
    "overhead_pct",
    "overhead_low",
    "overhead_high",
)


def draw(data: FigureData) -> Drawing:
    """Draw the overhead of each kind of attachment against the baseline, with a line per workload."""
    if not data.cells["configuration"].isin(data.baseline.split(", ")).any():
        return nothing(f"the baseline configuration {data.baseline!r} is not part of the plan")
    rows = comparable_cells.add_description_columns(
        comparable_cells.compute_attachment_overhead(data.cells, data.baseline, data.design)
    )
    if rows.empty:
        return nothing("every configuration has the attachment and storage of the baseline")
    unpaired_count = int((rows["n_ok"] > 0).sum() - rows["overhead_pct"].notna().sum())
    paired_rows = rows[rows["against_n"] > 0].reset_index(drop=True)
    if not paired_rows["overhead_pct"].notna().any():
        return nothing("no measured cell has a counterpart with the baseline attachment")
    has_several_storages = data.cells["storage"].nunique() > 1
    paired_rows = paired_rows.assign(
        treatment=[
            wording.describe_attachment_and_storage(row, has_several_storages) for row in paired_rows.to_dict("records")
        ]
    )
    panel_columns = ["precision", "shape", "device", *comparable_cells.list_option_columns(rows)]
    panels = plot.split_into_panels(paired_rows, panel_columns)
    unpaired_text = (
        f"Not shown: {wording.pluralize(unpaired_count, 'measured cell')} without a counterpart with the baseline attachment."
        if unpaired_count
        else ""
    )
    marks = describe_marks("point", paired_rows["n_ok"], paired_rows["method"])
    caption = (
        f"Additional time compared with the attachment of {data.baseline}. {marks} "
        f"Below zero: faster.{panels.format_common_sentence()}"
    )
    label_columns = ["workload", *_list_row_columns(paired_rows), *panel_columns]
    overview_rows = _select_overview(paired_rows)
    return plot.build_drawing(
        data,
        paired_rows,
        lambda: _draw_overheads(panels, _list_row_columns(paired_rows)),
        {
            "Workload": columns.description_column(select_distinguishing_columns(paired_rows, label_columns)),
            "Attachment": columns.text_column("treatment"),
            data.metric.heading: lambda row: wording.format_rate(row["mean"]),
            f"Baseline {data.metric.heading.lower()}": lambda row: wording.format_rate(row["against_mean"]),
            "Overhead": columns.percent_column("overhead_pct"),
            "95 % interval": columns.interval_column("overhead_low", "overhead_high", wording.format_percent),
            **verdict.P_COLUMN,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        glance=lambda: _draw_overview(overview_rows),
        headline=_describe_overview(overview_rows, data.design),
        limits=(*panels.list_limits(), unpaired_text, plot.describe_cut_intervals(paired_rows, _OVERHEAD)),
        findings=_describe_overheads(paired_rows, panel_columns, data.design),
        coverage=describe_cell_coverage(rows, paired_rows.loc[paired_rows["overhead_pct"].notna(), "cell_id"]),
    )


def _list_row_columns(rows: pd.DataFrame) -> list[str]:
    """Return the columns that distinguish rows of a panel, in addition to the workload."""
    return [column for column in ["batch"] if rows[column].nunique() > 1]


def _select_overview(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the first overhead of each workload and kind of attachment."""
    known_rows = rows[rows["overhead_pct"].notna()]
    return known_rows.drop_duplicates(["treatment", "workload"]).head(plot.MAX_GLANCE_ROWS)


def _describe_overview(rows: pd.DataFrame, design: Design) -> str:
    """Return a sentence on the overheads of the overview."""
    names = wording.shorten_names(rows["treatment"].unique())
    return verdict.summarize_shown_cells(
        rows,
        design,
        ["workload", "treatment"],
        f"{'This attachment takes' if len(rows) == 1 else 'Other attachments take'} {{}} more time than that of the baseline",
        f"overhead of {names}",
        lambda ratio: 100 * (1 / ratio - 1),
        wording.format_percent,
    )


def _draw_overview(rows: pd.DataFrame) -> str:
    """Draw the overview of overheads, one dot per workload and kind of attachment. Return SVG."""
    dots = [
        (f"{row['workload']}, {row['treatment']}", row["overhead_pct"], row["overhead_low"], row["overhead_high"])
        for row in rows.to_dict("records")
    ]
    return plot.draw_glance_dots(dots, "overhead (% of baseline time)", 0.0)


def _describe_overheads(rows: pd.DataFrame, panel_columns: list[str], design: Design) -> tuple[str, ...]:
    """Return a sentence per kind of attachment with the mean and the range of its overheads."""
    sentences = []
    label_columns = [
        "workload",
        *(column for column in [*panel_columns, *_list_row_columns(rows)] if rows[column].nunique() > 1),
    ]
    for treatment, cells in rows[rows["overhead_pct"].notna()].groupby("treatment", sort=False):
        sentences.append(
            verdict.summarize_effects(
                cells,
                design,
                label_columns,
                f"The overhead of {treatment} is {{}}",
                f"overhead of {treatment}",
                lambda ratio: 100 * (1 / ratio - 1),
                wording.format_percent,
            )
        )
    return tuple(sentences)


def _draw_overheads(panels: plot.Panels, row_columns: list[str]) -> str:
    """Draw one panel per group of cells, with a line per workload and a marker per kind of attachment. Return SVG.

    Args:
        panels: panels with the rows of overheads.
        row_columns: columns that distinguish lines, in addition to the workload.
    """
    looks = plot.assign_looks(plot.collect_panel_values(panels, "treatment"))
    lines = max(panel.rows.groupby(["workload", *row_columns], sort=False).ngroups for panel in panels.shown)

    def draw_panel(axes: Any, panel_rows: pd.DataFrame) -> None:
        """Draw a line per workload, with a marker per kind of attachment."""
        labels = []
        panel_looks = {name: look for name, look in looks.items() if name in set(panel_rows["treatment"])}
        for place, (_, rows) in enumerate(panel_rows.groupby(["workload", *row_columns], sort=False)):
            if place == _MAX_LINES:
                labels.append("more in the table")
                break
            labels.append(wording.format_axes(rows.iloc[0], ["workload", *row_columns]))
            _draw_line(axes, place, rows[list(_LINE_COLUMNS)].to_dict("records"), panel_looks)
        if panel_rows["overhead_pct"].notna().any():
            low, high = plot.compute_range(panel_rows, _OVERHEAD)
            low, high = min(low, 0.0), max(high, 0.0)
            room = 0.06 * (high - low) or 1.0
            axes.set_xlim(low - room, high + room + _compute_gap_width(panel_rows) * (high - low + 2 * room))
        axes.axvline(0, color=plot.INK, linewidth=0.9)
        plot.label_panel_lines(axes, labels, grid="both")

    height_in = 1.0 + 0.3 * max(2, min(lines, _MAX_LINES))
    handles = plot.build_legend_keys(looks, linestyle="")
    return plot.draw_multiples(panels, draw_panel, handles, "overhead (%)", "cell", height_in)


def _compute_gap_width(rows: pd.DataFrame) -> float:
    """Return the additional width of a panel, as a share of its width, for texts about cells without a value."""
    longest = max((len(plot.describe_gap(row)) for row in rows[rows["n_ok"] == 0].to_dict("records")), default=0)
    share = min(0.68, 0.08 + 0.025 * longest) if longest else 0.0
    return share / (1 - share)


def _draw_line(axes: Any, place: int, rows: list[Any], looks: dict[str, plot.SeriesLook]) -> None:
    """Draw one line of a panel, with the overheads of its cells, or the reason for a missing value at the right edge.

    Args:
        axes: axes of the panel.
        place: vertical position of the line.
        rows: cells of the line.
        looks: look of each kind of attachment in the panel.
    """
    for row in rows:
        position = list(looks).index(row["treatment"])
        y = place + (position - (len(looks) - 1) / 2) * 0.7 / max(1, len(looks))
        look = looks[row["treatment"]]
        if not row["n_ok"]:
            transform = axes.get_yaxis_transform()
            axes.plot([0.97], [y], marker="x", color=look.colour, markersize=5, transform=transform, clip_on=False)
            axes.text(
                0.93,
                y,
                plot.describe_gap(row),
                transform=transform,
                ha="right",
                va="center",
                fontsize=plot.get_small_font_pt(),
            )
            continue
        error_low, error_high = plot.compute_interval_lengths(row, "overhead_pct", "overhead_low", "overhead_high")
        axes.errorbar(
            row["overhead_pct"],
            y,
            xerr=[[error_low], [error_high]],
            color=look.colour,
            marker=look.marker,
            markersize=4.5,
        )
        plot.link_cells(axes, [row["cell_id"]], [row["overhead_pct"]], [y])

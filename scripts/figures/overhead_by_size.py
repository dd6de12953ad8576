"""Figure: overhead of attachments by size of the model and by bytes all-reduced per step, with fitted lines."""

from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.common import intervals, wording
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

TITLE = "Overhead by size"
SECTION = "Is the overhead of the fabric larger for large models? It depends on the communication that computing does not hide."
RESTS_ON = ("links",)
PART = ANSWERS
WITH = "overhead"
METHOD = (
    "the line over sizes is a least-squares fit of the mean overhead of each workload over at least three sizes; its slope has a "
    "Student t interval (n − 2), and the p-values of all lines together are adjusted (Holm)"
)
PLACE = 100
COUNTERPARTS = {
    "Falcon: Section V.C.2": "overhead grows with the model",
}
UNITS = {
    **dict.fromkeys(("workloads", "correlation", "sizes", "freedom"), ""),
    **dict.fromkeys(("overhead_low", "overhead_high", "slope", "slope_low", "slope_high", "intercept"), "pct"),
}

# Column, label of the axis, divisor to the unit of the axis, unit of the slope in words, and that unit in units of the axis.
_SIZES = (
    ("parameters", "parameters of the model (million)", 1e6, "100 million parameters", 100.0),
    ("allreduce_bytes_per_step", "all-reduced per step (MB)", 1e6, "100 MB all-reduced per step", 100.0),
)
_MIN_SIZES = 3
_MAX_MARKS_PER_LINE = 200  # more would be a cloud of points, and a large page
_OVERHEAD_COLUMNS = plot.IntervalColumns("overhead_pct", "overhead_low", "overhead_high")


def draw(data: FigureData) -> Drawing:
    """Draw the overhead of other attachments against the size of the model and the bytes of its all-reduces."""
    rows = _tabulate_overheads(data)
    if rows.empty:
        return nothing("no two workloads have both a known overhead and a known size")
    panel_columns = ["size_kind", *_list_panel_columns(rows)]
    rows = _select_comparable(rows, panel_columns)
    if rows.empty:
        return nothing("no two comparable workloads have both a known overhead and a known size")
    rows, fits = _fit_lines(rows, panel_columns)
    if rows["slope"].isna().all():
        return nothing(f"no overhead is known for comparable workloads of {_MIN_SIZES} sizes")
    panels = plot.split_into_panels(rows, panel_columns, axis_columns=["size_kind"])
    is_thinned = bool(
        (rows.groupby([*panel_columns, "treatment"], sort=False, dropna=False).size() > _MAX_MARKS_PER_LINE).any()
    )
    thinning_text = "Only some of the many cells are drawn." if is_thinned else ""
    caption = (
        f"{describe_marks('mark', rows['n_ok'], rows['method'])} The line is fitted to the mean of each workload; "
        f"r: Pearson's correlation.{panels.format_common_sentence()}"
    )
    options = [name for name in comparable_cells.list_option_columns(rows) if name not in panel_columns]
    overheads = comparable_cells.compute_attachment_overhead(data.cells, data.baseline, data.design)
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_overheads(panels, fits, panel_columns),
        {
            "Kind of size": columns.text_column("size_kind"),
            "Size": columns.number_column("size"),
            "Cell": columns.description_column(
                select_distinguishing_columns(rows, ["workload", "shape", "batch", *panel_columns[1:], *options])
            ),
            "Attachment": columns.text_column("treatment"),
            "Overhead": columns.percent_column("overhead_pct"),
            "95 % interval": columns.interval_column("overhead_low", "overhead_high", wording.format_percent),
            "Slope of the line": _format_slope,
            "95 % interval ": columns.interval_column("slope_low", "slope_high"),
            "p of a zero slope (Holm)": lambda row: verdict.format_p_value(row["slope_p_holm"]),
            "r": columns.number_column("correlation", 2),
            **columns.RUN_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), thinning_text, plot.describe_cut_intervals(rows, _OVERHEAD_COLUMNS)),
        findings=_describe_slopes(rows, fits, panel_columns),
        data=rows.rename(columns={"size_kind": "size_unit"}),
        coverage=describe_cell_coverage(overheads, rows["cell_id"]),
    )


def _format_slope(row: Any) -> str:
    """Format the slope of the line that a row belongs to, in percentage points."""
    return (
        wording.NO_VALUE if pd.isna(row["slope"]) else f"{wording.format_number(row['slope'])} points per {row['per']}"
    )


def _list_panel_columns(rows: pd.DataFrame) -> list[str]:
    """Return the columns that make panels of their own.

    Options that only some workloads have are left out, because they would separate these workloads from the others.
    """
    common = [name for name in comparable_cells.list_option_columns(rows) if not (rows[name].astype(str) == "").any()]
    return ["precision", "device", *common]


def _tabulate_overheads(data: FigureData) -> pd.DataFrame:
    """Build one row per cell and known size, with the overhead in percent and the size in the unit of its axis."""
    if not data.cells["configuration"].isin(data.baseline.split(", ")).any():
        return pd.DataFrame()
    rows = comparable_cells.compute_attachment_overhead(data.cells, data.baseline, data.design)
    rows = comparable_cells.add_description_columns(rows[rows["overhead_pct"].notna()].reset_index(drop=True))
    has_several_storages = data.cells["storage"].nunique() > 1
    words = [wording.describe_attachment_and_storage(row, has_several_storages) for row in rows.to_dict("records")]
    rows = rows.assign(treatment=pd.Series(words, index=rows.index, dtype="str"))
    ok = data.runs[data.runs["status"] == "ok"].groupby("cell_id", sort=False)
    tables: list[pd.DataFrame] = []
    for column, size_kind, divisor, per, _ in _SIZES:
        if column in data.runs:
            size = rows["cell_id"].map(ok[column].first()).astype(float) / divisor
            known_rows = rows.assign(size=size, size_kind=size_kind, per=per)[size.notna()]
            tables.append(known_rows)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _select_comparable(rows: pd.DataFrame, panel_columns: list[str]) -> pd.DataFrame:
    """Return the rows of attachments that were measured with several workloads under equal conditions."""
    keys = [rows[name] for name in (*panel_columns, "treatment")]
    return rows[rows["workload"].groupby(keys, sort=False, dropna=False).transform("nunique") > 1].reset_index(
        drop=True
    )


def _fit_lines(rows: pd.DataFrame, panel_columns: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fit a line per panel and kind of attachment.

    Return the rows with the parameters of their line, and a table with one line per row.

    Args:
        rows: overheads by size.
        panel_columns: columns that identify a panel.
    """
    lines = []
    for key, group in rows.groupby([*panel_columns, "treatment"], sort=False, dropna=False):
        means = group.groupby("workload", sort=False)[["size", "overhead_pct"]].mean()
        is_untested = any(verdict.is_untested(row) for row in group.to_dict("records"))
        per = next(factor for _, size_kind, _, _, factor in _SIZES if size_kind == group["size_kind"].iloc[0])
        ends = {"least": means["size"].min(), "most": means["size"].max(), "per": group["per"].iloc[0]}
        fit = {**fit_line(means, per), **({"slope_p": np.nan} if is_untested else {}), "untested": is_untested}
        lines.append({**dict(zip([*panel_columns, "treatment"], key, strict=True)), **ends, **fit})
    fits = pd.DataFrame(lines)
    fits["slope_p_holm"] = intervals.adjust_p_values(fits["slope_p"])
    with_line = rows.merge(
        fits.drop(columns=["least", "most", "per", "untested"]), on=[*panel_columns, "treatment"], how="left"
    )
    return with_line, fits


def fit_line(means: pd.DataFrame, per: float) -> dict[str, float]:
    """Fit overhead_pct to size by least squares.

    Return intercept, slope with its 95 % interval, p-value of a zero slope, correlation, and number of workloads. With fewer
    than three sizes, all but the number of workloads are NaN.

    Args:
        means: mean size and overhead, one row per workload.
        per: size difference that the slope refers to, in units of the axis.
    """
    n = means["size"].nunique()
    names = ("intercept", "slope", "slope_low", "slope_high", "slope_p", "correlation")
    if n < _MIN_SIZES:
        return {**dict.fromkeys(names, np.nan), "workloads": float(len(means))}
    from scipy.stats import linregress  # imported late, as it is slow to load and few campaigns have a line

    fit = linregress(means["size"], means["overhead_pct"])
    half_width = intervals.student_quantile(len(means) - 2) * fit.stderr
    slopes = [per * slope for slope in (fit.slope, fit.slope - half_width, fit.slope + half_width)]
    is_flat = bool(means["overhead_pct"].nunique() < 2)
    values = (fit.intercept, *slopes, fit.pvalue, np.nan if is_flat else fit.rvalue)
    return {**dict(zip(names, values, strict=True)), "workloads": float(len(means))}


def _describe_slopes(rows: pd.DataFrame, fits: pd.DataFrame, panel_columns: list[str]) -> tuple[str, ...]:
    """Return a sentence per line on its slope, or on the lack of a significant trend.

    Without any line, the mean overheads are listed from the smallest model to the largest.

    Args:
        rows: overheads by size.
        fits: lines, one per row.
        panel_columns: columns that identify a panel.
    """
    sentences, short_count = [], 0
    label_columns = [column for column in panel_columns[1:] if fits[column].nunique() > 1]
    for row in fits.to_dict("records"):
        if pd.isna(row["slope"]):
            short_count += 1
            continue
        subject = ", ".join(
            [str(row["treatment"]), *(wording.format_axis_value(column, row[column]) for column in label_columns)]
        )
        interval = f"[{wording.format_range(row['slope_low'], row['slope_high'])}]"
        slope = f"{wording.format_number(row['slope'])} {interval} percentage points per {row['per']}"
        if row["untested"]:
            sentences.append(
                f"The overhead of {subject} changes by {slope} (not tested: each was measured on one composition)."
            )
        elif row["slope_p_holm"] < intervals.SIGNIFICANCE_LEVEL:
            sentences.append(
                f"The overhead of {subject} {'grows' if row['slope'] > 0 else 'falls'} with size, by {slope}."
            )
        else:
            p_text = verdict.format_p_value(row["slope_p_holm"])
            sentences.append(
                f"No significant trend of the overhead of {subject} with size: the slope is {slope} (p of a zero slope: {p_text})."
            )
    if not sentences:
        first = rows[rows["size_kind"] == rows["size_kind"].iloc[0]]
        for treatment, group in first.groupby("treatment", sort=False):
            means = group.groupby("workload", sort=False)[["size", "overhead_pct"]].mean().sort_values("size")
            words = ", ".join(
                f"{wording.format_percent(row['overhead_pct'])} for {name}" for name, row in means.iterrows()
            )
            sentences.append(f"The mean overhead of {treatment}, from the smallest model to the largest, is {words}.")
    if short_count:
        verb = "has" if short_count == 1 else "have"
        sentences.append(
            f"{wording.pluralize(short_count, 'comparison')} {verb} no line, because fewer than {_MIN_SIZES} sizes were measured."
        )
    return tuple(sentences)


def _draw_overheads(panels: plot.Panels, fits: pd.DataFrame, panel_columns: list[str]) -> str:
    """Draw the overheads by size and the fitted lines, with one panel per kind of size. Return SVG.

    Args:
        panels: panels with the rows of overheads.
        fits: lines, one per row.
        panel_columns: columns that identify a panel.
    """
    looks = plot.assign_looks(plot.collect_panel_values(panels, "treatment"))

    def draw_panel(axes: Any, rows: pd.DataFrame) -> None:
        """Draw the overheads of one kind of size, with a fitted line per kind of attachment."""
        panel_fits = fits.merge(rows[panel_columns].drop_duplicates(), on=panel_columns)
        for row in panel_fits.to_dict("records"):
            look = looks[row["treatment"]]
            points = rows[rows["treatment"] == row["treatment"]]
            points = points.iloc[:: -(-len(points) // _MAX_MARKS_PER_LINE)]
            plot.draw_points(axes, points, points["size"], _OVERHEAD_COLUMNS, look)
            if pd.notna(row["slope"]):
                ends = np.array([row["least"], row["most"]])
                line = row["intercept"] + row["slope"] / 100.0 * ends
                axes.plot(ends, line, color=look.colour, linestyle=look.dashes, linewidth=1.1, zorder=1)
        low, high = plot.compute_range(rows, _OVERHEAD_COLUMNS)
        room = 0.06 * (max(high, 0.0) - min(low, 0.0)) or 1.0
        axes.set_ylim(min(low, 0.0) - room, max(high, 0.0) + room)
        axes.axhline(0, color=plot.INK, linewidth=0.9)
        axes.set_xlim(left=0)
        axes.set_xlabel(rows["size_kind"].iloc[0])
        axes.set_ylabel("overhead (% of baseline time)")

    handles = [
        key for name, look in looks.items() for key in plot.build_legend_keys({name: look}, linestyle=look.dashes)
    ]
    return plot.draw_multiples(panels, draw_panel, handles, height_in=2.7)

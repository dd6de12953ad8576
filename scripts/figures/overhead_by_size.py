"""Figure: overhead of attachments by size of the model and by bytes all-reduced per step, with fitted lines."""

from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.common import intervals, wording
from campaign.report import columns, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, telling

TITLE = "Overhead by size"
SECTION = (
    "Is the overhead of the fabric larger for large models? What counts is communication that computing does not hide."
)
RESTS_ON = ("links",)
PART = ANSWERS
WITH = "overhead"
METHOD = (
    "the line over sizes is of least squares through the mean overhead of each workload, from three sizes on; the interval of its "
    "slope is by Student t (n − 2), its p of all lines together (Holm)"
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
    ("allreduce_bytes_per_step", "all-reduced a step (MB)", 1e6, "100 MB all-reduced a step", 100.0),
)
_LEAST_SIZES = 3
_MARKS = 200  # more would be a cloud of points, and a large page
_POINTS = plot.Columns("overhead_pct", "overhead_low", "overhead_high")


def draw(data: FigureData) -> Drawing:
    """Draw the overhead of other attachments against the size of the model and the bytes of its all-reduces."""
    rows = _rows(data)
    if rows.empty:
        return nothing("no two workloads have both a known overhead and a known size")
    by = ["size_kind", *_splits(rows)]
    rows = _comparable(rows, by)
    if rows.empty:
        return nothing("no two comparable workloads have both a known overhead and a known size")
    rows, fits = _fitted(rows, by)
    if rows["slope"].isna().all():
        return nothing(f"no comparable workloads have a known overhead at {_LEAST_SIZES} sizes")
    panels = plot.panels(rows, by, of_axes=["size_kind"])
    many = bool((rows.groupby([*by, "treatment"], sort=False, dropna=False).size() > _MARKS).any())
    thinned = " Of very many cells, only some are drawn." if many else ""
    caption = (
        f"{wording.runs_behind(list(rows['n_ok']))} a mark, which is a cell, "
        f"{wording.interval_of(rows['method'], '95 % interval')}. The line goes through the mean of each workload; "
        f"r: Pearson's correlation.{panels.sentence()}"
    )
    options = [name for name in comparable_cells.option_columns(rows) if name not in by]
    overheads = comparable_cells.overhead(data.cells, data.baseline, data.design)
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels, fits, by),
        {
            "Against": columns.text("size_kind"),
            "Size": columns.number("size"),
            "Cell": columns.described(telling(rows, ["workload", "shape", "batch", *by[1:], *options])),
            "Attached": columns.text("treatment"),
            "Overhead": columns.percent("overhead_pct"),
            "95 % interval": columns.between("overhead_low", "overhead_high", wording.percent),
            "Slope of the line": _slope,
            "95 % interval ": columns.between("slope_low", "slope_high"),
            "p (Holm)": lambda row: verdict.p_value(row["slope_p_holm"]),
            "r": columns.number("correlation", 2),
            **columns.RUNS,
        },
        caption=caption,
        limits=(*panels.limits(), thinned, plot.cut(rows, _POINTS)),
        findings=_findings(rows, fits, by),
        data=rows.rename(columns={"size_kind": "size_unit"}),
        coverage=coverage_of_cells(overheads, rows["cell_id"]),
    )


def _slope(row: Any) -> str:
    """Format the slope of the line that a row belongs to, in percentage points."""
    return wording.NONE if pd.isna(row["slope"]) else f"{wording.number(row['slope'])} points for {row['per']}"


def _splits(rows: pd.DataFrame) -> list[str]:
    """Return the columns that make panels of their own.

    Options that only some workloads have are left out, because they would separate these workloads from the others.
    """
    common = [name for name in comparable_cells.option_columns(rows) if not (rows[name].astype(str) == "").any()]
    return ["precision", "device", *common]


def _rows(data: FigureData) -> pd.DataFrame:
    """Build one row per cell and known size, with the overhead in percent and the size in the unit of its axis."""
    if not data.cells["configuration"].isin(data.baseline.split(", ")).any():
        return pd.DataFrame()
    rows = comparable_cells.overhead(data.cells, data.baseline, data.design)
    rows = comparable_cells.in_words(rows[rows["overhead_pct"].notna()].reset_index(drop=True))
    several = data.cells["storage"].nunique() > 1
    words = [wording.treatment(row, several) for row in rows.to_dict("records")]
    rows = rows.assign(treatment=pd.Series(words, index=rows.index, dtype="str"))
    ok = data.runs[data.runs["status"] == "ok"].groupby("cell_id", sort=False)
    found: list[pd.DataFrame] = []
    for column, says, divisor, per, _ in _SIZES:
        if column in data.runs:
            size = rows["cell_id"].map(ok[column].first()).astype(float) / divisor
            known = rows.assign(size=size, size_kind=says, per=per)[size.notna()]
            found.append(known)
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _comparable(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the rows of attachments that were measured with several workloads under equal conditions."""
    keys = [rows[name] for name in (*by, "treatment")]
    return rows[rows["workload"].groupby(keys, sort=False, dropna=False).transform("nunique") > 1].reset_index(
        drop=True
    )


def _fitted(rows: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fit a line per panel and kind of attachment.

    Return the rows with the parameters of their line, and a table with one line per row.

    Args:
        rows: overheads by size.
        panel_columns: columns that identify a panel.
    """
    lines = []
    for key, group in rows.groupby([*by, "treatment"], sort=False, dropna=False):
        means = group.groupby("workload", sort=False)[["size", "overhead_pct"]].mean()
        alone = any(verdict.untested(row) for row in group.to_dict("records"))
        per = next(factor for _, says, _, _, factor in _SIZES if says == group["size_kind"].iloc[0])
        ends = {"least": means["size"].min(), "most": means["size"].max(), "per": group["per"].iloc[0]}
        fitted = {**line(means, per), **({"slope_p": np.nan} if alone else {}), "untested": alone}
        lines.append({**dict(zip([*by, "treatment"], key, strict=True)), **ends, **fitted})
    fits = pd.DataFrame(lines)
    fits["slope_p_holm"] = intervals.holm(fits["slope_p"])
    with_line = rows.merge(fits.drop(columns=["least", "most", "per", "untested"]), on=[*by, "treatment"], how="left")
    return with_line, fits


def line(means: pd.DataFrame, per: float) -> dict[str, float]:
    """Fit overhead_pct to size by least squares.

    Return intercept, slope with its 95 % interval, p-value of a zero slope, correlation, and number of workloads. With fewer
    than three sizes, all but the number of workloads are NaN.

    Args:
        means: mean size and overhead, one row per workload.
        per: size difference that the slope refers to, in units of the axis.
    """
    n = means["size"].nunique()
    names = ("intercept", "slope", "slope_low", "slope_high", "slope_p", "correlation")
    if n < _LEAST_SIZES:
        return {**dict.fromkeys(names, np.nan), "workloads": float(len(means))}
    from scipy.stats import linregress  # imported late, as it is slow to load and few campaigns have a line

    found = linregress(means["size"], means["overhead_pct"])
    reach = intervals.student_quantile(len(means) - 2) * found.stderr
    slopes = [per * each for each in (found.slope, found.slope - reach, found.slope + reach)]
    flat = bool(means["overhead_pct"].nunique() < 2)
    values = (found.intercept, *slopes, found.pvalue, np.nan if flat else found.rvalue)
    return {**dict(zip(names, values, strict=True)), "workloads": float(len(means))}


def _findings(rows: pd.DataFrame, fits: pd.DataFrame, by: list[str]) -> tuple[str, ...]:
    """Return a sentence per line on its slope, or on the lack of a significant trend.

    Without any line, the mean overheads are listed from the smallest model to the largest.

    Args:
        rows: overheads by size.
        fits: lines, one per row.
        panel_columns: columns that identify a panel.
    """
    said, short = [], 0
    named = [column for column in by[1:] if fits[column].nunique() > 1]
    for row in fits.to_dict("records"):
        if pd.isna(row["slope"]):
            short += 1
            continue
        about = ", ".join([str(row["treatment"]), *(wording.axis(column, row[column]) for column in named)])
        size = f"{wording.number(abs(row['slope']))} percentage points for {row['per']}"
        interval = f"95\u202f% interval {wording.between(row['slope_low'], row['slope_high'])}"
        basis = f"{interval}; r = {wording.number(row['correlation'], 2)}, {wording.plural(int(row['workloads']), 'workload')}"
        slope = f"{wording.number(row['slope'])} percentage points for {row['per']}"
        if row["untested"]:
            said.append(f"Overhead of {about} by size: {slope} ({basis}); {verdict.ONE_EACH}.")
        elif row["slope_p_holm"] < intervals.SIGNIFICANT:
            said.append(f"Overhead of {about} {'grows' if row['slope'] > 0 else 'falls'} by {size} ({basis}).")
        else:
            said.append(
                f"Overhead of {about} shows no sure trend: {slope} ({basis}; p = {verdict.p_value(row['slope_p_holm'])})."
            )
    if not said:
        first = rows[rows["size_kind"] == rows["size_kind"].iloc[0]]
        for treatment, group in first.groupby("treatment", sort=False):
            means = group.groupby("workload", sort=False)[["size", "overhead_pct"]].mean().sort_values("size")
            words = ", ".join(f"{wording.percent(row['overhead_pct'])} of {name}" for name, row in means.iterrows())
            said.append(f"Mean overhead of {treatment}, from the smallest model to the largest: {words}.")
    if short:
        said.append(f"{wording.plural(short, 'comparison')} with fewer than {_LEAST_SIZES} sizes: no line.")
    return tuple(said)


def _picture(panels: plot.Panels, fits: pd.DataFrame, by: list[str]) -> str:
    """Draw the overheads by size and the fitted lines, with one panel per kind of size. Return SVG.

    Args:
        panels: panels with the rows of overheads.
        fits: lines, one per row.
        panel_columns: columns that identify a panel.
    """
    looks = plot.looks(plot.in_panels(panels, "treatment"))

    def paint(axes: Any, rows: pd.DataFrame) -> None:
        """Draw the overheads of one kind of size, with a fitted line per kind of attachment."""
        here = fits.merge(rows[by].drop_duplicates(), on=by)
        for row in here.to_dict("records"):
            each = looks[row["treatment"]]
            points = rows[rows["treatment"] == row["treatment"]]
            points = points.iloc[:: -(-len(points) // _MARKS)]
            plot.points(axes, points, points["size"], _POINTS, each)
            if pd.notna(row["slope"]):
                ends = np.array([row["least"], row["most"]])
                line = row["intercept"] + row["slope"] / 100.0 * ends
                axes.plot(ends, line, color=each.colour, linestyle=each.dashes, linewidth=1.1, zorder=1)
        low, high = plot.range_of(rows, _POINTS)
        room = 0.06 * (max(high, 0.0) - min(low, 0.0)) or 1.0
        axes.set_ylim(min(low, 0.0) - room, max(high, 0.0) + room)
        axes.axhline(0, color=plot.INK, linewidth=0.9)
        axes.set_xlim(left=0)
        axes.set_xlabel(rows["size_kind"].iloc[0])
        axes.set_ylabel("overhead (% of baseline time)")

    handles = [key for name, each in looks.items() for key in plot.keys({name: each}, linestyle=each.dashes)]
    return plot.multiples(panels, paint, handles, height_in=2.7)

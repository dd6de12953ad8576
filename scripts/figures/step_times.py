"""Figure: distribution of the times of single steps, by run and composition, and steadiness of the measured window."""

from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from campaign.analysis.statistics import comparable_cells
from campaign.analysis.statistics.step_times import (
    COARSE_CLOCK,
    MIN_TREND_PCT,
    PERCENTILES,
    TOO_SHORT,
    estimate_percentiles,
    summarize_windows,
)
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, describe_cell_coverage, nothing

TITLE = "Step times"
SECTION = "How are the times of single steps distributed, and was the measured window steady?"
METHOD = (
    "intervals of percentiles of step times (Woodruff) are over compositions, or over the runs of a single composition"
)
PLACE = 45
UNITS = {"tail": ""}

_KEYS = ["cell_id", "repetition"]
_NAMES = [f"p{percent:g}" for percent in PERCENTILES]

_MIN_MARGIN_SHARE = 0.005
"""Minimum margin around the shortest and the longest step, as a share of the longest. It is needed if all steps are equal."""


def draw(data: FigureData) -> Drawing:
    """Draw the distribution of step times of the cells with the longest tails, with a line per run."""
    if data.steps.empty:
        return nothing("no program reported the times of single steps")
    steps = _add_clusters(data.runs, data.steps)
    rows = _tabulate_percentiles(data, steps)
    drawn_rows = rows.sort_values("tail", ascending=False, kind="stable").head(plot.MAX_PANELS)
    drawn_rows = rows[rows["cell_id"].isin(drawn_rows["cell_id"])]
    hidden_count = len(rows) - len(drawn_rows)
    left_out = f" Drawn: the {len(drawn_rows)} cells with the longest tails." if hidden_count else ""
    interval_text = " Percentiles have a 95\u202f% interval." if (rows["n_ok"] > 1).any() else ""
    caption = (
        "Cumulative share of the slowest rank's steps by duration. Each line is a run, each colour a composition "
        f"({wording.format_run_counts(rows['n_ok']).removeprefix('n = ')} per cell).{interval_text}{left_out}"
    )
    label_columns = ["configuration", "workload", "batch", "precision", *comparable_cells.list_option_columns(rows)]
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_distributions(drawn_rows, _select_steps(data, drawn_rows)),
        {
            "Cell": columns.description_column(label_columns),
            **{f"{name} (ms)": _build_percentile_column(name) for name in _NAMES},
            "p99 over p50": lambda row: wording.format_ratio(row["tail"]),
            "Trend in the window": _format_trend,
            "Uncertainty of one run": columns.percent_column("error_pct", 2),
            "Steps": columns.count_column("n_steps"),
            **columns.RUN_COLUMNS,
        },
        caption=caption,
        findings=(*_describe_unsteady_windows(rows), *_describe_short_windows(rows), _describe_longest_tail(rows)),
        coverage=describe_cell_coverage(data.cells, rows["cell_id"]),
    )


def _add_clusters(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps with the number of their cluster: the lease, or the run in cells with a single lease."""
    # Keys of runs in columns of all steps would take the most memory of a report, so steps have the number of their run.
    is_next_run = (steps["cell_id"] != steps["cell_id"].shift()) | steps["repetition"].diff().ne(0)
    measured_runs = steps.loc[is_next_run, _KEYS].merge(runs[[*_KEYS, "lease_id"]], how="left", on=_KEYS)
    has_several_leases = measured_runs.groupby("cell_id")["lease_id"].transform("nunique") > 1
    labels = measured_runs["lease_id"].where(has_several_leases, measured_runs["repetition"].astype("str"))
    return steps.assign(cluster=pd.factorize(labels)[0][is_next_run.cumsum() - 1])


def _select_steps(data: FigureData, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of some cells with the composition of each."""
    steps = data.steps[data.steps["cell_id"].isin(rows["cell_id"])].astype({"cell_id": "str"})
    return steps.merge(data.runs[[*_KEYS, "composition"]], on=_KEYS)


def _tabulate_percentiles(data: FigureData, steps: pd.DataFrame) -> pd.DataFrame:
    """Build one row per cell with step times, in the order of the plan.

    It has percentiles with their intervals, the trend in the window, and the error of a window.

    Args:
        data: data of the figure.
        steps: times of single steps, with the lease or run that each belongs to.
    """
    quantiles = estimate_percentiles(steps)
    wide_table = quantiles.pivot(index="cell_id", columns="percent", values=["time_s", "low_s", "high_s"])
    wide_table.columns = pd.Index(
        [f"p{percent:g}_{name}".replace("_time_", "_") for name, percent in wide_table.columns]
    )
    counts = quantiles.drop_duplicates("cell_id").set_index("cell_id")["n_steps"]
    cell_columns = [
        "cell_id",
        "configuration",
        "workload",
        "batch",
        "precision",
        *comparable_cells.list_option_columns(data.cells),
    ]
    rows = data.cells[[*cell_columns, "n_ok", "state", "failures"]].merge(wide_table.reset_index(), on="cell_id")
    ids = rows["cell_id"]
    return rows.assign(
        tail=rows["p99_s"] / rows["p50_s"],
        n_steps=ids.map(counts),
    ).join(summarize_windows(data.runs), on="cell_id")


def _build_percentile_column(name: str) -> Any:
    """Return a function that formats a percentile of a row in ms, with its interval."""

    def format_percentile(row: Any) -> str:
        """Format the percentile in ms, with its interval if that is known."""
        value, low, high = (1e3 * row[f"{name}{end}_s"] for end in ("", "_low", "_high"))
        return wording.format_number(value) + (
            f" [{wording.format_number(low)}, {wording.format_number(high)}]" if high == high else ""
        )

    return format_percentile


def _format_trend(row: Any) -> str:
    """Format the trend in the measured window, and mark windows that are not steady."""
    if row["trend_pct"] != row["trend_pct"]:
        return wording.NO_VALUE
    return wording.format_percent(row["trend_pct"]) + (
        "" if row["trend_low_pct"] != row["trend_low_pct"] else ", not steady"
    )


def _describe_cell(row: Any, rows: pd.DataFrame) -> str:
    """Describe a cell by its configuration and by the axes in which the rows differ."""
    label_columns = ["configuration", "workload", "batch", "precision", *comparable_cells.list_option_columns(rows)]
    return wording.format_axes(
        row, [name for name in label_columns if name == "configuration" or rows[name].nunique() > 1]
    )


def _describe_unsteady_windows(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence on cells whose measured window was not steady, or an empty tuple if there are none."""
    unsteady_rows = rows[rows["trend_low_pct"].notna()].sort_values(
        "trend_pct", key=abs, ascending=False, kind="stable"
    )
    if unsteady_rows.empty:
        return ()
    worst = unsteady_rows.iloc[0]
    change_text = wording.format_with_interval(
        worst["trend_pct"], worst["trend_low_pct"], worst["trend_high_pct"], wording.format_percent
    )
    return (
        f"The measured window was not steady in {wording.pluralize(len(unsteady_rows), 'cell')}: step times change by "
        f"{change_text} from its first to its last quarter ({_describe_cell(worst, rows)}). If steps still become shorter, "
        "increase warmup_steps or set warmup_steps_max.",
    )


def _describe_short_windows(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences on cells with too few steps for their noise, and on cells with steps too short for the clock."""
    noisy_rows = rows[rows["window"].str.contains(TOO_SHORT)]
    coarse_rows = rows[rows["window"].str.contains(COARSE_CLOCK)]
    sentences = []
    if len(noisy_rows):
        worst = noisy_rows.loc[noisy_rows["error_pct"].idxmax()]
        sentences.append(
            f"In {wording.pluralize(len(noisy_rows), 'cell')}, the measurement was too short for its noise: the mean of one run is "
            f"uncertain by {wording.format_percent(worst['error_pct'])} ({_describe_cell(worst, rows)}). Increase measured_steps."
        )
    if len(coarse_rows):
        sentences.append(
            f"In {wording.pluralize(len(coarse_rows), 'cell')} (such as {_describe_cell(coarse_rows.iloc[0], rows)}), steps are "
            "too short for the resolution of the clock, so their percentiles are rounded."
        )
    return tuple(sentences)


def _describe_longest_tail(rows: pd.DataFrame) -> str:
    """Return a sentence on the cell with the largest ratio of 99th percentile to median."""
    row = rows.loc[rows["tail"].idxmax()]
    steady = (
        ""
        if rows["trend_low_pct"].notna().any()
        else f" No measured window has a trend of {MIN_TREND_PCT:g} % or more."
    )
    return (
        f"The 99th percentile of step times is at most {wording.format_ratio(row['tail'])} the median "
        f"({_describe_cell(row, rows)}).{steady}"
    )


def _draw_distributions(rows: pd.DataFrame, steps: pd.DataFrame) -> str:
    """Draw one panel per cell, with the cumulative distribution of the step times of each run. Return SVG."""
    looks = plot.assign_looks(sorted(steps["composition"].unique()))
    steps_by_cell = dict(list(steps.groupby("cell_id")))
    panels = [plot.Panel(_describe_cell(row, rows), steps_by_cell[row["cell_id"]]) for row in rows.to_dict("records")]

    def draw_panel(axes: Any, panel_steps: pd.DataFrame) -> None:
        """Draw one curve per run of a cell, in the look of its composition."""
        for (composition, _), times_s in panel_steps.groupby(["composition", "repetition"])["time_s"]:
            plot.draw_cumulative_shares(axes, 1e3 * times_s, looks[composition], linewidth=1.0)
        low, high = 1e3 * float(panel_steps["time_s"].min()), 1e3 * float(panel_steps["time_s"].max())
        room = max(0.05 * (high - low), _MIN_MARGIN_SHARE * high)
        axes.set_xlim(max(0.0, low - room), high + room)
        axes.xaxis.set_major_locator(MaxNLocator(4))  # times that differ little have many digits

    handles = plot.build_dashed_keys(looks, "composition {}".format)
    panel_set = plot.Panels(tuple(panels), "", 0)
    return plot.draw_multiples(panel_set, draw_panel, handles, "time of a step (ms)", "share of steps", height_in=2.3)

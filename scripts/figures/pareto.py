"""Figure: throughput against cost in device-hours, money and energy, with the Pareto front."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells, comparisons, verdict
from campaign.common import intervals, wording
from campaign.report import bars, columns, plot
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)
from campaign.spec.metric import THROUGHPUT

TITLE = "Throughput against cost"
SECTION = "What does speed cost? On the Pareto front are the cells that no other cell beats in throughput and in cost."
PART = ANSWERS
METHOD = (
    "a cell is clearly worse if the whole intervals of another cell are better in both speed and cost; device-hours count all "
    "composed devices"
)
PLACE = 180
UNITS = {"front": ""}

_DEVICE_HOURS, _ENERGY = "device-hours per 1 M samples", "energy per 1 M samples (kWh)"
_UNITS = {_DEVICE_HOURS: "device-hours per 1 M samples", _ENERGY: "kWh per 1 M samples"}
_COST_COLUMNS = plot.IntervalColumns("cost", "cost_low", "cost_high")
_MAX_NUMBERS_PER_PANEL = 8  # more numbers in a panel would overlap
_J_PER_KWH = 3.6e6
_POINTS_WITH_BARS = 200
_UNTESTED_METHODS = (intervals.T_OVER_RUNS_OF_COMPOSITION, intervals.NO_INTERVAL_ONE_RUN)
_MAX_MARKS = 300  # per attachment and panel; more would be a cloud of points, and a large page
_MARGIN_SHARE = 0.12  # margin beyond the outermost markers, as a share of the axis
_WORK_OPTIONS = ("seq_len", "image_px")  # options that change what a sample is


def draw(data: FigureData) -> Drawing:
    """Draw the throughput of each cell against the cost of a million samples, with one panel per workload and kind of cost."""
    if data.metric != THROUGHPUT:
        return nothing(f"the cost of a sample follows from throughput, but the primary metric is {data.metric.label}")
    rows = _tabulate_costs(data)
    if rows.empty:
        return nothing("no workload was measured in two cells with comparable costs")
    work_options = _list_work_options(rows)
    panel_columns = ["cost_kind", "workload", *work_options]
    rows = _mark_front(rows, panel_columns)
    panels = plot.split_into_panels(rows, panel_columns, axis_columns=["cost_kind"])
    cell_columns = [
        "configuration",
        "batch",
        "precision",
        *(o for o in comparable_cells.list_option_columns(rows) if o not in work_options),
    ]
    label_columns = [column for column in cell_columns if rows[column].nunique() > 1 or column == "configuration"]
    cut = plot.describe_cut_intervals(rows, plot.RATE) or next(
        (
            cut_text
            for _, group in rows.groupby("cost_kind", sort=False)
            if (cut_text := plot.describe_cut_intervals(group, _COST_COLUMNS))
        ),
        "",
    )
    is_thinned = bool(
        (rows.groupby([*panel_columns, "attach", "near"], sort=False, dropna=False).size() > _MAX_MARKS).any()
    )
    thinning_text = "The front and some of the many other cells are drawn." if is_thinned else ""
    caption = (
        f"{describe_marks('mark', rows['n_ok'], rows['interval_method'])} The line joins the front; "
        f"hollow: clearly worse.{panels.format_common_sentence()}"
    )
    value_columns = ["front", "near", "mean", "ci_low", "ci_high", "cost", "cost_low", "cost_high", "n_ok"]
    return plot.build_drawing(
        data,
        rows[list(dict.fromkeys([*panel_columns, *label_columns, *value_columns]))],
        lambda: _draw_panels(panels),
        {
            "Cost": columns.text_column("cost_kind"),
            "Workload": columns.description_column(select_distinguishing_columns(rows, ["workload", *work_options])),
            "Cell": columns.description_column(label_columns),
            "Front": lambda row: (
                f"no. {row['front']}" if row["front"] else "within noise" if row["near"] else "clearly worse"
            ),
            **columns.rate_columns("Samples/s"),
            "Cost of 1 M samples": columns.number_column("cost"),
            "95 % interval ": columns.interval_column("cost_low", "cost_high"),
            **columns.RUN_COLUMNS,
        },
        data=rows,
        caption=caption,
        limits=(*panels.list_limits(), thinning_text, cut),
        findings=_describe_fronts(rows, panel_columns, label_columns),
        coverage=describe_cell_coverage(data.cells, rows["cell_id"]),
    )


def _list_work_options(rows: pd.DataFrame) -> list[str]:
    """Return the options that change what a sample is. Cells that differ in one of them do not compete."""
    return [
        name for name in comparable_cells.list_option_columns(rows) if name.removeprefix("option_") in _WORK_OPTIONS
    ]


def _tabulate_costs(data: FigureData) -> pd.DataFrame:
    """Build one row per measured cell and known kind of cost.

    The columns cost, cost_low and cost_high refer to a million samples. Cells without a competitor are left out.
    """
    cells = data.cells[(data.cells["n_ok"] > 0) & (data.cells["mean"] > 0)]
    low = cells["ci_low"].where(cells["ci_low"] > 0)
    hours = cells["devices"] * 1e6 / 3600
    by_time = cells.assign(
        cost_kind=_DEVICE_HOURS,
        cost_unit=_UNITS[_DEVICE_HOURS],
        cost=hours / cells["mean"],
        cost_low=hours / cells["ci_high"],
        cost_high=hours / low,
    )
    tables = [by_time, *_tabulate_by_price(by_time, str(data.context.get("system", {}).get("currency", "")))]
    ok = data.runs[data.runs["status"] == "ok"]
    if "energy_per_sample_j" in ok and ok["energy_per_sample_j"].notna().any():
        tables.append(_tabulate_by_energy(cells, ok, data.protocol))
    rows = pd.concat(tables, ignore_index=True)
    keys = ["cost_kind", "workload", *_list_work_options(rows)]
    several = rows.groupby(keys, sort=False, dropna=False)["cell_id"].transform("size") > 1
    return rows[several].reset_index(drop=True)


def _tabulate_by_price(by_time: pd.DataFrame, currency: str) -> list[pd.DataFrame]:
    """Return the cells whose devices all have a price, with the price as cost. The list has one table, or none."""
    if "price_per_h" not in by_time or not by_time["price_per_h"].notna().any():
        return []
    rows = by_time[by_time["price_per_h"].notna()]
    price_per_device_h = rows["price_per_h"] / rows["devices"]
    costs = {name: rows[name] * price_per_device_h for name in ("cost", "cost_low", "cost_high")}
    kind = f"price per 1 M samples ({currency})"
    return [rows.assign(cost_kind=kind, cost_unit=f"{currency} per 1 M samples", **costs)]


def _tabulate_by_energy(cells: pd.DataFrame, ok: pd.DataFrame, protocol: Mapping[str, Any]) -> pd.DataFrame:
    """Return the cells with the energy of a million samples as cost, in kWh.

    Args:
        cells: measured cells.
        ok: valid runs.
        protocol: protocol of the campaign.
    """
    groups = (ok["energy_per_sample_j"] * 1e6 / _J_PER_KWH).groupby(ok["cell_id"], sort=False)
    table = pd.DataFrame(
        {"cell_id": groups.mean().index, "mean": groups.mean(), "sd": groups.std(), "n_ok": groups.count()}
    )
    design = comparisons.build_design(ok, protocol, column="energy_per_sample_j", higher_is_better=False)
    energy_costs = bars.add_intervals(table[table["n_ok"] > 0].reset_index(drop=True), design)
    energy_costs = energy_costs.rename(columns={"mean": "cost", "ci_low": "cost_low", "ci_high": "cost_high"})
    costs = energy_costs[["cell_id", "cost", "cost_low", "cost_high"]]
    return cells.merge(costs, on="cell_id").assign(cost_kind=_ENERGY, cost_unit=_UNITS[_ENERGY])


def _mark_front(rows: pd.DataFrame, panel_columns: list[str]) -> pd.DataFrame:
    """Add the columns `front` and `near` to the rows.

    `front` is the position on the front of the panel, counted from the cheapest cell, and 0 for other cells. `near` is true on
    the front, and for cells that are not clearly dominated.
    """
    front, near = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
    for places in rows.groupby(panel_columns, sort=False, dropna=False).indices.values():
        group = rows.iloc[places]
        front[places] = rank_pareto_front(group["mean"].to_numpy(), group["cost"].to_numpy())
        low, high = (group[name].fillna(group["mean"]).to_numpy() for name in ("ci_low", "ci_high"))
        cost_low, cost_high = (group[name].fillna(group["cost"]).to_numpy() for name in ("cost_low", "cost_high"))
        # Without the spread of compositions, the distance between two cells has no interval.
        is_untested = group["interval_method"].isin(_UNTESTED_METHODS).to_numpy()
        low, high = np.where(is_untested, -np.inf, low), np.where(is_untested, np.inf, high)
        near[places] = ~find_clearly_dominated(low, high, cost_low, cost_high) | (front[places] > 0)
    return rows.assign(front=front, near=near)


def rank_pareto_front(rate: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Rank the points on the Pareto front, from 1 for the cheapest. Other points get 0.

    A point is on the front if no other one equals or beats it in both rate and cost.

    Args:
        rate: rates of the points.
        cost: costs of the points.
    """
    order = np.lexsort((-rate, cost))
    number = np.zeros(len(rate), dtype=np.int64)
    best = np.maximum.accumulate(np.concatenate([[-np.inf], rate[order]]))[:-1]
    on_front = order[rate[order] > best]
    number[on_front] = np.arange(1, len(on_front) + 1)
    return number


def find_clearly_dominated(
    low: np.ndarray, high: np.ndarray, cost_low: np.ndarray, cost_high: np.ndarray
) -> np.ndarray:
    """Return which points are dominated with confidence, as a boolean array.

    Another point must have a lower bound of its rate above `high`, and an upper bound of its cost below `cost_low`.

    Args:
        low: lower bounds of the rates.
        high: upper bounds of the rates.
        cost_low: lower bounds of the costs.
        cost_high: upper bounds of the costs.
    """
    order = np.argsort(-low, kind="stable")
    lowest_cost = np.minimum.accumulate(cost_high[order])
    faster = np.searchsorted(-low[order], -high, side="left")
    return (faster > 0) & (lowest_cost[np.maximum(faster - 1, 0)] < cost_low)


def _describe_fronts(rows: pd.DataFrame, panel_columns: list[str], label_columns: list[str]) -> tuple[str, ...]:
    """Return a sentence per front on its cheapest and its fastest cell."""
    sentences = []
    for _, group in rows.groupby(panel_columns, sort=False, dropna=False):
        front = group[group["front"] > 0].sort_values("front")
        first, last = front.iloc[0], front.iloc[-1]
        unit = str(first["cost_unit"]).partition(" ")[0]
        names = [wording.format_axes(row, label_columns) for row in (first, last)]
        cost, rate = f"{wording.format_number(first['cost'])} {unit} per 1 M samples", wording.format_rate(last["mean"])
        subject = wording.format_axes(first, panel_columns[1:])
        single_text = f"{names[0]} is the cheapest ({cost}) and the fastest cell ({rate} samples/s) for {subject}"
        ends_text = (
            f"{names[0]} is the cheapest ({cost}) and {names[1]} the fastest cell ({rate} samples/s) for {subject}"
        )
        close = int((group["near"] & (group["front"] == 0)).sum())
        noise = f"; {wording.pluralize(close, 'further cell')} may be on the front" if close else ""
        noise += (
            f" (not tested: {verdict.RUN_VARIATION_ONLY})"
            if group["interval_method"].isin(_UNTESTED_METHODS).all()
            else ""
        )
        sentences.append(f"{single_text if len(front) == 1 else ends_text}{noise}.")
    return tuple(sentences[: plot.MAX_PANELS])


def _draw_panels(panels: plot.Panels) -> str:
    """Draw one panel per workload and kind of cost, with a marker per cell and the front as a line. Return SVG."""
    looks = plot.assign_looks(plot.collect_panel_values(panels, "attach"))

    def draw_panel(axes: Any, panel_rows: pd.DataFrame) -> None:
        """Draw a marker per cell and the front of one workload and kind of cost."""
        for name, rows in panel_rows.groupby("attach", sort=False):
            for near, marks in rows.groupby("near", sort=True):
                step = -(-len(marks) // _MAX_MARKS)
                is_drawn = (np.arange(len(marks)) % step == 0) | (marks["front"].to_numpy() > 0)
                _draw_marks(axes, marks[is_drawn], looks[name], is_filled=bool(near))
        front = panel_rows[panel_rows["front"] > 0].sort_values("front")
        axes.plot(front["cost"], front["mean"], color=plot.INK, linewidth=0.9, zorder=1)
        text_style = {"textcoords": "offset points", "ha": "left", "fontsize": plot.get_small_font_pt()}
        for row in front.iloc[:: -(-len(front) // _MAX_NUMBERS_PER_PANEL)].to_dict("records"):
            axes.annotate(str(row["front"]), (row["cost"], row["mean"]), xytext=(4, 3), **text_style)
        is_logarithmic = bool(panel_rows["mean"].max() > 12 * panel_rows["mean"].min())
        axes.set_xlim(_compute_axis_limits(panel_rows, _COST_COLUMNS, logarithmic=True))
        axes.set_ylim(_compute_axis_limits(panel_rows, plot.RATE, logarithmic=is_logarithmic))
        plot.set_logarithmic(axes, "xy" if is_logarithmic else "x")
        axes.set_xlabel(panel_rows["cost_kind"].iloc[0])

    handles = [*plot.build_legend_keys(looks, linestyle=""), plot.build_ink_key("front", linewidth=0.9)]
    return plot.draw_multiples(panels, draw_panel, handles, y="throughput (samples/s)", height_in=3.0)


def _compute_axis_limits(
    rows: pd.DataFrame, columns: plot.IntervalColumns, *, logarithmic: bool
) -> tuple[float, float]:
    """Return the limits of an axis.

    They span all values and their intervals, except very long ones, with a margin for markers and numbers.

    Args:
        rows: cells of the panel.
        columns: names of the columns of value and interval.
        logarithmic: whether the axis is logarithmic.
    """
    low, high = plot.compute_range(rows, columns)
    if logarithmic:
        low = max(low, 0.5 * float(rows[columns.value].min()))
        room = max(1.1, (high / low) ** _MARGIN_SHARE)
        return low / room, high * room
    room = _MARGIN_SHARE * (high - low) or _MARGIN_SHARE * high
    return max(low, 0.0) - (room if low > room else 0.0), high + room


def _draw_marks(axes: Any, rows: pd.DataFrame, look: plot.SeriesLook, *, is_filled: bool) -> None:
    """Draw the markers of cells, with their intervals if there are few."""
    marker_style = {"color": look.colour, "marker": look.marker, "linestyle": "", "markersize": 4.5}
    marker_style["markerfacecolor"] = look.colour if is_filled else "none"
    plot.link_cells(axes, rows["cell_id"], rows["cost"], rows["mean"])
    if len(rows) > _POINTS_WITH_BARS or not is_filled:
        axes.plot(rows["cost"], rows["mean"], **marker_style)
        return
    bars = [
        [(rows[value] - rows[low]).clip(lower=0), (rows[high] - rows[value]).clip(lower=0)]
        for value, low, high in (("mean", "ci_low", "ci_high"), ("cost", "cost_low", "cost_high"))
    ]
    axes.errorbar(rows["cost"], rows["mean"], yerr=bars[0], xerr=bars[1], elinewidth=0.8, capsize=0, **marker_style)

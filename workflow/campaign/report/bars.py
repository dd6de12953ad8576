"""Grouped bars, and bar figures of telemetry per cell, such as utilisation, transfer rates and energy.

A figure has one row per quantity and cell: the mean over the cell's valid runs, with its interval. For each workload, the picture
shows the batch, precision and options that were sampled on the most configurations; the data has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.text import Annotation

from campaign.analysis.statistics import comparable_cells, comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.common import intervals, wording
from campaign.report import columns, plot
from campaign.report.figure import (
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    describe_undrawn,
    nothing,
)

# With more bars or groups in one panel, labels would cover each other.
_MAX_LABELLED_BARS = 60
_MAX_GROUP_LABELS = 30
_PT_PER_IN = 72


@dataclass(frozen=True, slots=True)
class Quantity:
    """Quantity of a bar figure: a column of the runs table, its label, its unit, and the divisor to that unit."""

    column: str
    label: str
    unit: str
    divisor: float = 1.0


# Smaller units for a rate with a small number, with the factor to each of them.
_SMALLER_UNITS = {"GB/s": (("MB/s", 1e3), ("kB/s", 1e6)), "MB/s": (("kB/s", 1e3),)}

BarGroups = Sequence[tuple[str, Sequence[tuple[Any, Any]]]]
"""Groups of bars: the label of each, and its pairs of series and cell."""

MAX_CONFIGURATIONS = 24
"""Maximum number of configurations in one picture; more bars are not readable."""
_CELL_COLUMNS = ("cell_id", "configuration", "workload", "batch", "precision", "state", "n_planned")


def summarize_by_cell(data: FigureData, quantities: Sequence[Quantity]) -> pd.DataFrame:
    """Summarise quantities per cell over its valid runs.

    Return one row per quantity and cell that has a valid run with a value, in the order of quantities, then of the plan. The
    columns are those of the cell, `n_ok` (runs with a value), `mean`, `sd`, `ci_low`, `ci_high`, `interval_method`, `quantity` and
    `unit`. A missing value is absent, never zero. The table is empty if there is no value.
    """
    runs = data.runs[data.runs["status"] == "ok"]
    cells = data.cells[[*_CELL_COLUMNS, *comparable_cells.list_option_columns(data.cells)]]
    tables = []
    for quantity in quantities:
        if quantity.column not in runs or not runs[quantity.column].notna().any():
            continue
        values = runs[quantity.column] / quantity.divisor
        unit, factor = choose_unit(quantity.unit, float(values.max()))
        groups = (factor * values).groupby(runs["cell_id"], sort=False)
        table = pd.DataFrame({"n_ok": groups.count(), "mean": groups.mean(), "sd": groups.std()}).reset_index()
        table = table[table["n_ok"] > 0].assign(quantity=quantity.label, unit=unit)
        design = comparisons.build_design(runs, data.protocol, column=quantity.column, higher_is_better=False)
        tables.append(add_intervals(cells.merge(table, on="cell_id"), design))
    tables = [table for table in tables if len(table)]
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables, ignore_index=True)


def add_intervals(rows: pd.DataFrame, design: Design) -> pd.DataFrame:
    """Add ci_low, ci_high and interval_method to rows of cells (cell_id, mean, sd, n_ok).

    The interval is over compositions if the design has all runs of the cell. A quantity with values of zero has no logarithm,
    so its interval is over runs (Student's t).
    """
    low, high = intervals.student_interval(rows["mean"], rows["sd"], rows["n_ok"])
    method = np.array(wording.list_interval_methods(rows["n_ok"]), dtype=object)
    positions = design.find_cell_indices(rows["cell_id"])
    if len(design.cells):
        locations, methods = design.estimate_locations()
        has_all_runs = (positions >= 0) & (np.append(design.runs, 0)[positions] == rows["n_ok"])
        value, lower, upper = (np.append(bound, np.nan)[positions] for bound in locations.compute_bounds())
        low = np.where(has_all_runs, rows["mean"] * lower / value, low)
        high = np.where(has_all_runs, rows["mean"] * upper / value, high)
        method = np.where(has_all_runs, np.append(methods, "")[positions], method)
    return rows.assign(ci_low=low, ci_high=high, interval_method=pd.Series(method, index=rows.index, dtype="str"))


def choose_unit(unit: str, largest: float) -> tuple[str, float]:
    """Choose the unit of a rate by its largest value; return it with the conversion factor.

    For example, 0.00004 GB/s is shown as 40 kB/s.
    """
    units = [(unit, 1.0), *_SMALLER_UNITS.get(unit, ())]
    # Zero needs no smaller unit.
    return next((candidate for candidate in units if candidate[1] * largest >= 0.1), units[-1] if largest else units[0])


def format_with_unit(value: float, unit: str) -> str:
    """Format a value in a suitable unit, such as '3.10 GB/s' or '41.2 kB/s'."""
    suitable_unit, factor = choose_unit(unit, abs(value))
    return f"{wording.format_number(factor * value)} {suitable_unit}"


def format_value(value: float, unit: str) -> str:
    """Format a value without its unit, which is stated next to it, such as '3.10'.

    A value that is too small for this unit is formatted with another unit, such as '41.2 kB/s'.
    """
    return format_with_unit(value, unit) if 0 < abs(value) < 1e-3 else wording.format_number(value)


def build_bar_drawing(
    data: FigureData,
    rows: pd.DataFrame,
    value_sentence: str,
    remarks: str = "",
    first_findings: tuple[str, ...] = (),
) -> Drawing:
    """Build a bar figure with one panel per quantity, one group per configuration and one bar per workload.

    Args:
        data: data of the figure.
        rows: rows of `summarize_by_cell`.
        value_sentence: sentence of the caption on the meaning of a value.
        remarks: further sentences of the caption.
        first_findings: findings that precede the ranges of the quantities.
    """
    if rows.empty:
        return nothing("no valid run has a value")
    options = comparable_cells.list_option_columns(rows)
    drawn_rows = select_most_sampled(rows)
    findings = (*first_findings, *describe_ranges(drawn_rows))
    axes = ["workload", "batch", "precision", *options]
    kinds = drawn_rows.drop_duplicates(axes).to_dict("records")
    variants = sorted({wording.format_axes(row, axes) for row in kinds})
    # Panels have ranges of their own.
    cut_note = next(
        (
            note
            for _, group in drawn_rows.groupby("quantity")
            if (note := plot.describe_cut_intervals(group, plot.RATE))
        ),
        "",
    )
    undrawn_note = describe_undrawn(drawn_rows["configuration"].nunique() - MAX_CONFIGURATIONS, "configuration")
    caption = f"{describe_marks('bar', drawn_rows['n_ok'], drawn_rows['interval_method'])} {value_sentence}"
    # Ten thousand cells have few different workloads and batches, so each is described once.
    groups = rows.groupby(axes, sort=False, dropna=False)
    cell_descriptions = [
        wording.format_axes(row, axes) for row in rows.loc[~rows.duplicated(axes), axes].to_dict("records")
    ]
    table_rows = rows[["configuration", "quantity", "unit", "mean", "ci_low", "ci_high", "n_ok"]]
    return plot.build_drawing(
        data,
        table_rows.assign(words=np.array(cell_descriptions, dtype=object)[groups.ngroup().to_numpy()]),
        lambda: render_bars(select_configurations(drawn_rows)),
        {
            "Quantity": lambda row: f"{row['quantity']} ({row['unit']})",
            "Configuration": columns.text_column("configuration"),
            "Workload": columns.text_column("words"),
            "Mean": lambda row: format_value(row["mean"], row["unit"]),
            "95 % interval": columns.interval_column("ci_low", "ci_high"),
            **columns.RUN_COLUMNS,
        },
        data=rows,
        caption=caption,
        limits=(f"Drawn: {'; '.join(variants)}.", remarks, undrawn_note, cut_note),
        findings=findings,
        coverage=describe_cell_coverage(data.cells, rows["cell_id"]),
    )


def select_configurations(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of at most `MAX_CONFIGURATIONS` configurations, spread evenly over the plan.

    Similar configurations are neighbours in the plan.
    """
    names = rows["configuration"].unique()
    positions = np.unique(np.linspace(0, len(names) - 1, min(MAX_CONFIGURATIONS, len(names))).round().astype(int))
    return rows[rows["configuration"].isin(names[positions])]


def select_most_sampled(rows: pd.DataFrame) -> pd.DataFrame:
    """Select, per workload, the batch, precision and options that were sampled on the most configurations."""
    axes = ["batch", "precision", *comparable_cells.list_option_columns(rows)]
    groups_kept = []
    for _, workload_rows in rows.groupby("workload", sort=False):
        groups = workload_rows.groupby(axes, sort=False, dropna=False)
        groups_kept.append(max((group for _, group in groups), key=_rank_sampling))
    return pd.concat(groups_kept).sort_index()


def _rank_sampling(group: pd.DataFrame) -> tuple[int, float, tuple[int, str]]:
    """Return the sort key of a group: number of configurations, then batch, then precision."""
    precision, name = comparable_cells.rank_precision(group["precision"].iloc[0])
    return group["configuration"].nunique(), float(group["batch"].iloc[0]), (-precision, name)


def describe_ranges(rows: pd.DataFrame) -> tuple[str, ...]:
    """Describe the range of each quantity over configurations and workloads, one sentence per quantity."""
    sentences = []
    for quantity, group in rows.groupby("quantity", sort=False):
        sorted_rows = group.sort_values("mean", kind="stable")
        low, high = sorted_rows.iloc[0], sorted_rows.iloc[-1]
        low_text, high_text = (format_with_unit(row["mean"], row["unit"]) for row in (low, high))
        name = f"{str(quantity)[0].upper()}{str(quantity)[1:]}"
        if low_text == high_text:
            sentences.append(
                f"{name} is {low_text} {'everywhere' if len(group) > 1 else f'({_describe_place(low, rows)})'}."
            )
        else:
            sentences.append(
                f"{name} ranges from {low_text} ({_describe_place(low, rows)}) to {high_text} ({_describe_place(high, rows)})."
            )
    return tuple(sentences)


def _describe_place(row: Any, rows: pd.DataFrame) -> str:
    """Describe the configuration of a row, with the workload if there are several."""
    columns_to_name = ["workload"] if rows["workload"].nunique() > 1 else []
    return ", ".join([str(row["configuration"]), *(wording.format_axes(row, [name]) for name in columns_to_name)])


def render_bars(rows: pd.DataFrame) -> str:
    """Draw the bars as SVG; call it inside `plot.use_style`."""
    workloads = list(rows["workload"].unique())
    configurations = list(rows["configuration"].unique())
    bars = Bars(workloads)
    quantities = rows.groupby("quantity", sort=False)
    panels = [plot.Panel(str(name), group) for name, group in quantities][: plot.MAX_PANELS]

    def paint(axes: Axes, group: pd.DataFrame) -> None:
        by_place = {(row["configuration"], row["workload"]): row for row in group.to_dict("records")}
        groups = [
            (name, [(workload, by_place[name, workload]) for workload in workloads if (name, workload) in by_place])
            for name in configurations
        ]
        bars.draw(axes, [(label, pairs) for label, pairs in groups if pairs])
        axes.tick_params(axis="x", rotation=90)
        axes.set_ylabel(f"mean ({group['unit'].iloc[0]})")
        if group["unit"].iloc[0] == "%":
            axes.set_ylim(0, max(100.0, math.ceil(float(group["mean"].max()))))
        elif not group["mean"].any():
            axes.set_ylim(0, 1)

    handles = bars.build_legend_handles() if len(workloads) > 1 else ()
    height_in = compute_panel_height_in(2.1, configurations)
    return plot.draw_multiples(plot.Panels(tuple(panels), "", 0), paint, handles, "configuration", height_in=height_in)


def _compute_interval_top(row: Any) -> float:
    """Compute the upper end of a bar and its interval; 0 if there is no value."""
    return float(max((value for value in (row["mean"], row["ci_high"]) if value == value), default=0.0))


@dataclass(frozen=True, slots=True)
class _BarLayout:
    """Layout of the bars of a panel.

    Args:
        width: width of a bar, in distances between groups.
        highest: value at the top of the panel.
        labels: label above each bar of each group.
        is_narrow: true if labels are wider than a bar.
    """

    width: float
    highest: float
    labels: list[list[str]]
    is_narrow: bool

    def find_top(self, pairs: Sequence[tuple[Any, Any]], index: int) -> float:
        """Find the value above which the label of a bar is placed.

        A label that is wider than its bar must also clear the neighbouring bars.
        """
        if not self.is_narrow:
            return _compute_interval_top(pairs[index][1])
        return max(_compute_interval_top(row) for _, row in pairs[max(index - 1, 0) : index + 2])


class Bars:
    """Grouped bars with intervals, labels and marked gaps; a series has the same look in all panels.

    Args:
        series: names of the series.
        format_label: function that returns the label above the bar of a cell.
        format_series: function that formats the name of a series in the legend.
    """

    def __init__(
        self,
        series: Iterable[Any],
        format_label: Callable[[Any], str] = lambda _: "",
        format_series: Callable[[Any], str] = str,
    ) -> None:
        self.looks = plot.assign_looks(series)
        self._format_label = format_label
        self._format_series = format_series

    def _build_bar_style(self, key: Any) -> dict[str, Any]:
        """Return the matplotlib style of the bars of a series."""
        look = self.looks[key]
        return {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": plot.INK, "linewidth": 0.7}

    def draw(self, axes: Axes, groups: BarGroups) -> None:
        """Draw the bars of one panel, with intervals, labels and marked gaps."""
        layout = self._lay_out(axes, groups)
        longest_words = 0
        bars: dict[Any, list[tuple[float, float, float, float]]] = {}
        for position, (_, pairs) in enumerate(groups):
            for index, (key, row) in enumerate(pairs):
                x = position + (index - (len(pairs) - 1) / 2) * layout.width
                if not row["n_ok"]:
                    plot.mark_gap(axes, x, plot.describe_gap(row))
                    continue
                bars.setdefault(key, []).append(
                    (x, row["mean"], *plot.compute_interval_lengths(row, "mean", "ci_low", "ci_high"))
                )
                if "cell_id" in row:
                    plot.link_cells(axes, [row["cell_id"]], [x], [row["mean"]], 0.47 * layout.width)
                words = layout.labels[position][index]
                if words:
                    label = self._write_label(axes, x, layout.find_top(pairs, index), layout.highest, words)
                    plot.assign_to_series(axes, label, self.looks[key])
                    longest_words = max(longest_words, len(words))
        self._draw_series(axes, bars, layout.width)
        step = math.ceil(len(groups) / _MAX_GROUP_LABELS)
        axes.set_xticks(range(0, len(groups), step), [label for label, _ in groups[::step]])
        axes.set_xlim(-0.6, len(groups) - 0.4)
        if layout.highest > 0:
            # Room for the vertical label above the tallest bar.
            axes.set_ylim(0, 1.05 * layout.highest * (1.0 + 0.045 * longest_words))

    def _lay_out(self, axes: Axes, groups: BarGroups) -> _BarLayout:
        """Choose the width of bars, and the labels above bars that are wide enough for them."""
        width = 0.84 / max(len(pairs) for _, pairs in groups)
        axes_pt = _PT_PER_IN * axes.get_window_extent().width / float(mpl.rcParams["figure.dpi"])
        bar_pt = axes_pt * width / (len(groups) + 0.2)
        return _BarLayout(
            width=width,
            highest=plot.compute_range(pd.DataFrame([row for _, pairs in groups for _, row in pairs]), plot.RATE)[1],
            labels=self._choose_labels(groups, bar_pt),
            is_narrow=bar_pt < 1.5 * plot.get_small_font_pt(),
        )

    def _choose_labels(self, groups: BarGroups, bar_pt: float) -> list[list[str]]:
        """Choose the label above each bar of each group; labels are empty in a panel where they would overlap."""
        empty_labels = [[""] * len(pairs) for _, pairs in groups]
        if sum(len(pairs) for _, pairs in groups) > _MAX_LABELLED_BARS:
            return empty_labels
        words = [[self._format_label(row) for _, row in pairs] for _, pairs in groups]
        has_neighbours = any(first and second for group_labels in words for first, second in pairwise(group_labels))
        return empty_labels if bar_pt < 1.1 * plot.get_small_font_pt() and has_neighbours else words

    def _draw_series(
        self, axes: Axes, bars: Mapping[Any, Sequence[tuple[float, float, float, float]]], width: float
    ) -> None:
        """Draw all bars of a series at once: matplotlib takes as long for one bar as for hundreds."""
        for key, numbers in bars.items():
            x, height, *interval = np.array(numbers).T
            style: dict[str, Any] = {**self._build_bar_style(key), "ecolor": plot.INK, "error_kw": {"elinewidth": 1.0}}
            intervals = axes.bar(x, height, width * 0.94, yerr=interval, **style).errorbar
            for artist in intervals.get_children() if intervals else ():
                plot.assign_to_series(axes, artist, self.looks[key])

    @staticmethod
    def _write_label(axes: Axes, x: float, top: float, highest: float, words: str) -> Annotation:
        """Write the label above a bar."""
        # An interval that leaves the picture has no visible end, so the label goes to its right.
        offset_pt = 5 if top > highest else 0
        text_style: dict[str, Any] = {
            "rotation": 90,
            "ha": "center",
            "va": "bottom",
            "fontsize": plot.get_small_font_pt(),
        }
        return axes.annotate(
            words, (x, min(top, highest)), xytext=(offset_pt, 3), textcoords="offset points", **text_style
        )

    def build_legend_handles(self) -> list[Patch]:
        """Return the entries of the legend."""
        return [Patch(label=self._format_series(key), **self._build_bar_style(key)) for key in self.looks]

    def draw_multiples(
        self,
        panels: plot.Panels,
        groups: Callable[[pd.DataFrame], BarGroups],
        x: str | Callable[[pd.DataFrame], str],
        y: str,
        height_in: float = 2.7,
        rotation: float = 0,
    ) -> str:
        """Draw small multiples of grouped bars as SVG.

        Args:
            panels: rows of each panel.
            groups: function that returns the groups of bars of a panel's rows.
            x: label of the x axis, or a function of a panel's rows that returns it.
            y: label of the y axis.
            height_in: height of a panel in inches.
            rotation: rotation of the labels of groups, in degrees.
        """

        def paint(axes: Axes, rows: pd.DataFrame) -> None:
            self.draw(axes, groups(rows))
            if rotation:
                axes.tick_params(axis="x", rotation=rotation)
            axes.set_xlabel(x if isinstance(x, str) else x(rows))

        return plot.draw_multiples(panels, paint, self.build_legend_handles(), y=y, height_in=height_in)


def group_bars(
    rows: pd.DataFrame, group_columns: Any, series: str, label: Callable[[Any], str] = str, *, sort: bool = False
) -> BarGroups:
    """Group rows into bars by the values of one or several columns, with one bar per row.

    Args:
        rows: rows of cells.
        group_columns: column or columns of a group.
        series: column whose value determines the look of a bar.
        label: function that formats the value of a group.
        sort: sort the groups by value instead of first appearance.
    """
    # The rows of all groups are converted at once: one by one, thousands of groups would take most of a figure's time.
    groups: dict[int, list[dict[Any, Any]]] = {}
    for group_number, cell in zip(
        rows.groupby(group_columns, sort=sort).ngroup(), rows.to_dict("records"), strict=True
    ):
        groups.setdefault(group_number, []).append(cell)
    names = [group_columns] if isinstance(group_columns, str) else group_columns
    keys = {group_number: tuple(cells[0][name] for name in names) for group_number, cells in groups.items()}
    return [
        (
            label(keys[group_number] if len(names) > 1 else keys[group_number][0]),
            [(cell[series], cell) for cell in groups[group_number]],
        )
        for group_number in sorted(groups)
    ]


def compute_panel_height_in(min_height_in: float, labels: Iterable[str]) -> float:
    """Return the height in inches of a panel whose group labels are vertical."""
    return min_height_in + 0.055 * min(max(len(label) for label in labels), 40)

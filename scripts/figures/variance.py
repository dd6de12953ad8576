"""Figure: variation of throughput from run to run, lease to lease and host to host, with slow hosts."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from campaign.analysis.statistics import verdict
from campaign.analysis.statistics.slow_hosts import ERROR_FROM_LEASES, HostResult
from campaign.analysis.statistics.variance_components import (
    HOST,
    LEASE,
    LEASE_AND_HOST,
    RUN,
    SpreadSources,
    VarianceComponent,
    analyze_spread_sources,
)
from campaign.analysis.statistics.variance_components import METHOD as METHOD_OF_PARTS
from campaign.common import intervals, wording
from campaign.report import columns, plot
from campaign.report.bars import BarGroups, Bars, group_bars
from campaign.report.figure import Drawing, FigureData, describe_cell_coverage, nothing
from campaign.spec.metric import Metric

TITLE = "Variance and slow hosts"
SECTION = (
    "How much does a cell vary from run to run, between compositions, and between hosts? A difference smaller than this "
    "variation is no evidence of an effect."
)
METHOD = (
    f"variation has chi-square intervals ({METHOD_OF_PARTS}); each host is compared with the others in the same cells and named "
    "if it is significantly slower (Holm, 5 %), which happens by chance in one of twenty campaigns without a slow host"
)
PLACE = 40
UNITS = {"freedom": ""}
COUNTERPARTS = {
    "FASTER: Fig. 5 (hosts)": "differences between hosts",
}

_COMPONENTS = (RUN, LEASE, HOST, LEASE_AND_HOST)
_DIFFERENCE = plot.IntervalColumns("value_pct", "low_pct", "high_pct")
_MAX_HOSTS = 40
_MAX_LISTED_CELLS = 4
_MAX_AXIS_RATIO = 5.0  # longest axis, in multiples of the largest value; longer intervals are cut
_MAX_LABELLED_BARS = 24  # texts next to more bars would overlap


def draw(data: FigureData) -> Drawing:
    """Draw the components of variation of equal cells, and each host in comparison with the others."""
    sources = analyze_spread_sources(data.runs, data.metric.is_higher_better)
    parts = _tabulate_components(sources)
    if not parts["value_pct"].notna().any():
        return nothing("no cell has two valid runs on one lease, so the run-to-run variation is unknown")
    hosts = _tabulate_hosts(sources, data.cells)
    rows = pd.concat([parts, hosts], ignore_index=True) if len(hosts) else parts
    counts = data.cells.loc[data.cells["workload"].isin(sources.by_workload), "n_ok"]
    findings = (
        *_describe_slow_hosts(sources, data.cells, data.metric.performance_name),
        *_describe_spreads(parts, data.metric.label),
        *_describe_equal_hosts(sources),
    )
    caption = (
        f"Left: standard deviation of {data.metric.label} within cells "
        f"({wording.format_run_counts(list(counts)).removeprefix('n = ')} per cell) with its 95\u202f% interval; a cross means "
        f"unknown. {_format_host_caption(sources)}"
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_spreads_and_hosts(parts, hosts, data.metric),
        {
            "Variation": columns.text_column("what"),
            "Workload or host": columns.text_column("of"),
            f"Standard deviation, or loss of {data.metric.performance_name}": columns.percent_column("value_pct", 2),
            "95 % interval": columns.interval_column(
                "low_pct", "high_pct", lambda value: wording.format_percent(value, 2)
            ),
            "p of an equal host (Holm)": lambda row: verdict.format_p_value(row["p_holm"]),
            "Cells": columns.count_column("n_cells"),
            "Runs": columns.count_column("n_runs"),
            "Degrees of freedom": lambda row: (
                wording.format_count(row["freedom"]) if row["freedom"] else wording.NO_VALUE
            ),
            "Remark": columns.text_column("remark"),
        },
        caption=caption,
        limits=(_describe_cut_intervals(parts),),
        findings=findings,
        coverage=describe_cell_coverage(data.cells),
    )


def _tabulate_components(sources: SpreadSources) -> pd.DataFrame:
    """Build one row per workload and component of the variation.

    Lease and host share a row if they cannot be separated.
    """
    rows = []
    for workload, parts in sources.by_workload.items():
        components = (
            (parts.run, parts.lease_and_host) if parts.lease_and_host.is_known else (parts.run, parts.lease, parts.host)
        )
        rows += [_build_component_row(workload, part, parts.runs, parts.cells) for part in components]
    return pd.DataFrame(rows, columns=_TABLE_COLUMNS)


_TABLE_COLUMNS = [
    "what",
    "of",
    "value_pct",
    "low_pct",
    "high_pct",
    "p",
    "p_holm",
    "n_cells",
    "n_runs",
    "freedom",
    "remark",
]


def _build_component_row(workload: str, part: VarianceComponent, runs: int, cells: int) -> list[Any]:
    """Build the table row of a component of variation.

    Args:
        workload: name of the workload.
        part: component with standard deviation and interval in percent.
        runs: number of runs.
        cells: number of cells.
    """
    remark = "each lease of a cell was on different hosts" if part.is_known and part.name == LEASE_AND_HOST else ""
    nan = float("nan")
    numbers = [part.sd_pct, part.low_pct, part.high_pct, nan, nan]
    return [part.name, workload, *numbers, cells, runs, part.freedom, part.why or remark]


def _tabulate_hosts(sources: SpreadSources, cells: pd.DataFrame) -> pd.DataFrame:
    """Build one row per host with its slowdown against the other hosts."""
    rows = []
    for result in sources.hosts:
        numbers = (result.slowdown_pct, result.low_pct, result.high_pct, result.p, result.p_holm)
        counts = (len(result.cells), result.runs, 0)
        rows.append(["host against the others", result.host, *numbers, *counts, _describe_host_result(result, cells)])
    return pd.DataFrame(rows, columns=_TABLE_COLUMNS)


def _describe_host_result(result: HostResult, cells: pd.DataFrame) -> str:
    """Return the remark of a host, either its cells if it is slow, or why it could not be compared."""
    if not result.is_slow:
        return result.why
    return f"slow, in {_describe_cells(result, cells)}{_describe_other_causes(result)}"


def _describe_other_causes(result: HostResult) -> str:
    """Return a clause with other possible causes of a slowdown than the host, or an empty string if there are none."""
    together_text = (
        f"; it was always used together with {', '.join(result.together)}, so either may be the cause"
        if result.together
        else ""
    )
    if result.error_of == ERROR_FROM_LEASES:
        return together_text
    return (
        f"{together_text}; it was compared in "
        f"{wording.pluralize(result.leases, 'lease')}, so the cause may be the lease or the host"
    )


def _describe_cells(result: HostResult, cells: pd.DataFrame) -> str:
    """Describe the cells in which a host was compared, the first few by name."""
    rows = cells[cells["cell_id"].isin(result.cells)]
    names = [
        wording.format_axes(row, ("configuration", "workload", "batch", "precision")) for row in rows.to_dict("records")
    ]
    remainder_text = f" and {len(names) - _MAX_LISTED_CELLS:,} more" if len(names) > _MAX_LISTED_CELLS else ""
    return f"{wording.pluralize(len(result.cells), 'cell')}: {'; '.join(names[:_MAX_LISTED_CELLS])}{remainder_text}"


def _describe_spreads(parts: pd.DataFrame, measure: str) -> Iterable[str]:
    """Yield a sentence per component on the workload that varies most, and one per component that is unknown.

    Args:
        parts: rows of components.
        measure: name of the metric.
    """
    for name in _COMPONENTS:
        known_rows = parts[(parts["what"] == name) & parts["value_pct"].notna()]
        if known_rows.empty:
            continue
        row = known_rows.sort_values("value_pct", kind="stable").iloc[-1]
        label = "Between leases on different hosts" if name == LEASE_AND_HOST else f"From {name}"
        numbers = (row["value_pct"], row["low_pct"], row["high_pct"])
        spread_text = wording.format_with_interval(*numbers, lambda value: wording.format_percent(value, 2))
        # An estimate: the true value is bounded by the interval, not by the number.
        subject = f"varies most for {row['of']}, by" if len(known_rows) > 1 else f"of {row['of']} varies by"
        yield f"{label}, {measure} {subject} {spread_text}."
    unknown_rows = parts[parts["value_pct"].isna()]
    for (name, reason), rows in unknown_rows.groupby(["what", "remark"], sort=False):
        workloads_text = "" if len(rows) == parts["of"].nunique() else f" of {', '.join(rows['of'].head(3))}"
        yield f"The variation{workloads_text} from {name} is unknown: {reason}."


def _describe_slow_hosts(sources: SpreadSources, cells: pd.DataFrame, measure: str) -> Iterable[str]:
    """Yield a sentence per slow host, with its slowdown, and the command that repeats its runs."""
    for result in sources.slow_hosts:
        size = wording.format_with_interval(
            result.slowdown_pct, result.low_pct, result.high_pct, wording.format_percent
        )
        yield (
            f"{result.host} is slower than the other hosts: it has {size} less {measure} (p of an equal host "
            f"{_format_p_value(result.p_holm)}, Holm) in {_describe_cells(result, cells)}{_describe_other_causes(result)}. "
            f"To repeat these runs, use campaign run --where \"host == '{result.host}'\" with this campaign's file."
        )


def _describe_equal_hosts(sources: SpreadSources) -> Iterable[str]:
    """Yield a sentence that no host is slow, with the largest difference that is compatible with the data."""
    compared_hosts = [host for host in sources.hosts if not host.why]
    if compared_hosts and not sources.slow_hosts:
        widest = max(max(abs(result.low_pct), abs(result.high_pct)) for result in compared_hosts)
        yield (
            f"None of {wording.pluralize(len(compared_hosts), 'host')} is significantly slower than the others; differences above "
            f"{wording.format_percent(widest)} are ruled out (each at 95\u202f%)."
        )


def _format_p_value(value: float) -> str:
    """Format a p-value with its relation, as in '= 0.03'."""
    text = verdict.format_p_value(value)
    return text if text.startswith("<") else f"= {text}"


def _format_host_caption(sources: SpreadSources) -> str:
    """Return the part of the caption on hosts, or the reason why hosts cannot be compared."""
    compared_count = sum(not host.why for host in sources.hosts)
    if not compared_count:
        return "Hosts cannot be compared, because no cell was run on two of them."
    left_out = f" The {_MAX_HOSTS} slowest are drawn." if compared_count > _MAX_HOSTS else ""
    return f"Right: each of {wording.pluralize(compared_count, 'host')} compared with the others in the same cells.{left_out}"


def _draw_spreads_and_hosts(parts: pd.DataFrame, hosts: pd.DataFrame, metric: Metric) -> str:
    """Draw standard deviations by workload and component on the left, and hosts on the right. Return SVG.

    Args:
        parts: rows of components.
        hosts: rows of hosts; empty if hosts were not compared.
        metric: metric of the campaign.
    """
    host_rows = hosts[hosts["value_pct"].notna()].sort_values("value_pct", ascending=False, kind="stable")
    figure, axes = plot.create_grid(2 if len(host_rows) else 1, height_in=3.0)
    ((spread_axes,), *host_panels) = axes
    series = [name for name in _COMPONENTS if (parts["what"] == name).any()]
    bar_chart = Bars(series)
    is_known = parts["value_pct"].notna()
    cells = parts.assign(
        mean=parts["value_pct"], ci_low=parts["low_pct"], ci_high=parts["high_pct"], n_ok=is_known.astype(int)
    )
    groups = group_bars(cells.assign(failures="unknown", state="missing"), "of", "what")
    bar_chart.draw(spread_axes, groups)
    _annotate_bars(spread_axes, groups, _compute_axis_top(parts))
    spread_axes.set_ylabel(f"standard deviation (% of {metric.label})")
    spread_axes.set_xlabel("workload")
    plot.set_panel_title(spread_axes, "Variation of equal cells")
    plot.add_legend(figure, bar_chart.build_legend_handles())
    for (host_axes,) in host_panels:
        _draw_hosts(host_axes, host_rows.head(_MAX_HOSTS).reset_index(drop=True), metric.performance_name)
    return plot.to_svg(figure)


def _compute_axis_top(parts: pd.DataFrame) -> float:
    """Return the upper end of the axis, which is that of the intervals unless those would flatten the values."""
    return min(float(parts["high_pct"].max()), _MAX_AXIS_RATIO * float(parts["value_pct"].max()))


def _describe_cut_intervals(parts: pd.DataFrame) -> str:
    """Return a sentence for the caption if intervals are longer than the axis, or an empty string."""
    wider = bool((parts["high_pct"] > _compute_axis_top(parts)).any())
    return "Arrows mark intervals that end beyond the picture; the table has their ends." if wider else ""


def _annotate_bars(axes: Any, groups: BarGroups, highest: float) -> None:
    """Write values next to the bars, and draw arrows for intervals that are longer than the axis.

    Args:
        axes: axes of the bars.
        groups: groups of bars.
        highest: upper end of the axis, in percent.
    """
    axes.set_ylim(0, 1.12 * highest)
    width = 0.84 / max(len(pairs) for _, pairs in groups)
    is_legible = sum(len(pairs) for _, pairs in groups) <= _MAX_LABELLED_BARS
    for position, (_, pairs) in enumerate(groups):
        for index, (_, row) in enumerate(pairs):
            x = position + (index - (len(pairs) - 1) / 2) * width
            if row["ci_high"] > highest:
                axes.plot([x], [1.09 * highest], marker="^", markersize=4, color=plot.INK, linestyle="", zorder=5)
            if is_legible and pd.notna(row["mean"]):
                text_style = {"rotation": 90, "ha": "left", "va": "bottom", "fontsize": plot.get_small_font_pt()}
                words = wording.format_percent(row["mean"], 2)
                axes.annotate(words, (x, row["mean"]), xytext=(4, 2), textcoords="offset points", **text_style)


def _draw_hosts(axes: Any, rows: pd.DataFrame, measure: str) -> None:
    """Draw the slowdown of each host with its interval. Slow hosts are filled, others hollow."""
    slow = rows["p_holm"] < intervals.SIGNIFICANCE_LEVEL
    axes.axhline(0, color=plot.INK, linestyle=":", linewidth=0.9)
    for look, hollow, mask in ((plot.choose_series_look(5), False, slow), (plot.choose_series_look(0), True, ~slow)):
        marker_rows = rows[mask]
        plot.draw_points(axes, marker_rows, marker_rows.index.to_numpy(), _DIFFERENCE, look, hollow)
    low, high = plot.compute_range(rows, _DIFFERENCE)
    room = 0.12 * (high - low or 1.0)
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), rows["of"], rotation=90 if len(rows) > 6 else 0)
    axes.set_ylabel(f"loss of {measure} (%)")
    axes.set_xlabel("host")
    plot.set_panel_title(axes, "Each host against the others")

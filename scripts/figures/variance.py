"""Figure: variation of throughput from run to run, lease to lease and host to host, with slow hosts."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from campaign.analysis.statistics import verdict
from campaign.analysis.statistics.slow_hosts import WITH_LEASES, HostResult
from campaign.analysis.statistics.variance_components import (
    HOST,
    LEASE,
    RUN,
    TOGETHER,
    Component,
    SpreadSources,
    spread_sources,
)
from campaign.analysis.statistics.variance_components import METHOD as METHOD_OF_PARTS
from campaign.common import intervals, wording
from campaign.report import columns, plot
from campaign.report.bars import BarGroups, Bars, grouped
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, nothing
from campaign.spec.metric import Metric

TITLE = "Variance and slow hosts"
SECTION = (
    "How much does a cell vary from run to run, between compositions, and between hosts? A smaller "
    "difference is no effect of the hardware."
)
METHOD = (
    f"spreads have chi-square intervals ({METHOD_OF_PARTS}); each host is held against the others in the same "
    f"cells, and named where it "
    "is slower among all (Holm, 5 %): of twenty campaigns without a slow host, one names a host by chance"
)
PLACE = 40
UNITS = {"freedom": ""}
COUNTERPARTS = {
    "FASTER: Fig. 5 (hosts)": "how hosts differ by themselves",
}

_SERIES = (RUN, LEASE, HOST, TOGETHER)
_DIFFERENCE = plot.Columns("value_pct", "low_pct", "high_pct")
_MOST_HOSTS = 40
_CELLS_NAMED = 4
_MOST_TIMES = 5.0  # longest axis, in multiples of the largest value; longer intervals are cut
_MOST_VALUES = 24  # texts beside more bars would overlap


def draw(data: FigureData) -> Drawing:
    """Draw the components of variation of equal cells, and each host in comparison with the others."""
    found = spread_sources(data.runs, data.metric.higher)
    parts = _parts(found)
    if not parts["value_pct"].notna().any():
        return nothing("no cell has two valid runs on one lease, so the run-to-run spread is unknown")
    hosts = _hosts(found, data.cells)
    rows = pd.concat([parts, hosts], ignore_index=True) if len(hosts) else parts
    counts = data.cells.loc[data.cells["workload"].isin(found.by_workload), "n_ok"]
    findings = (
        *_slow(found, data.cells, data.metric.performance),
        *_spreads(parts, data.metric.label),
        *_none_slow(found),
    )
    caption = (
        f"Left: standard deviation of {data.metric.label} inside of cells; {wording.runs_behind(list(counts))} a cell, 95 % "
        f"interval. A cross: unknown. {_caption_of(found)}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: _picture(parts, hosts, data.metric),
        {
            "What": columns.text("what"),
            "Of": columns.text("of"),
            f"Spread, or less {data.metric.performance}": columns.percent("value_pct", 2),
            "95 % interval": columns.between("low_pct", "high_pct", lambda value: wording.percent(value, 2)),
            "p (Holm)": lambda row: verdict.p_value(row["p_holm"]),
            "Cells": columns.count("n_cells"),
            "Runs": columns.count("n_runs"),
            "Independent differences": lambda row: wording.count(row["freedom"]) if row["freedom"] else wording.NONE,
            "Remark": columns.text("remark"),
        },
        caption=caption,
        limits=(_cut(parts),),
        findings=findings,
        coverage=coverage_of_cells(data.cells),
    )


def _parts(found: SpreadSources) -> pd.DataFrame:
    """Build one row per workload and component of the variation.

    Lease and host share a row if they cannot be separated.
    """
    rows = []
    for workload, parts in found.by_workload.items():
        told = (parts.run, parts.together) if parts.together.known else (parts.run, parts.lease, parts.host)
        rows += [_part_row(workload, part, parts.runs, parts.cells) for part in told]
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = ["what", "of", "value_pct", "low_pct", "high_pct", "p", "p_holm", "n_cells", "n_runs", "freedom", "remark"]


def _part_row(workload: str, part: Component, runs: int, cells: int) -> list[Any]:
    """Build the table row of a component of variation.

    Args:
        workload: name of the workload.
        part: component with standard deviation and interval in percent.
        runs: number of runs.
        cells: number of cells.
    """
    together = "every lease of a cell was on other hosts" if part.known and part.name == TOGETHER else ""
    nan = float("nan")
    numbers = [part.sd_pct, part.low_pct, part.high_pct, nan, nan]
    return [part.name, workload, *numbers, cells, runs, part.freedom, part.why or together]


def _hosts(found: SpreadSources, cells: pd.DataFrame) -> pd.DataFrame:
    """Build one row per host with its slowdown against the other hosts."""
    rows = []
    for each in found.hosts:
        numbers = (each.slowdown_pct, each.low_pct, each.high_pct, each.p, each.p_holm)
        counts = (len(each.cells), each.runs, 0)
        rows.append(["host against the others", each.host, *numbers, *counts, _remark(each, cells)])
    return pd.DataFrame(rows, columns=_COLUMNS)


def _remark(each: HostResult, cells: pd.DataFrame) -> str:
    """Return the remark of a host, either its cells if it is slow, or why it could not be compared."""
    if not each.slow:
        return each.why
    return f"slow, in {_cells(each, cells)}{_doubt(each)}"


def _doubt(each: HostResult) -> str:
    """Return a clause with other possible causes of a slowdown than the host, or an empty string if there are none."""
    others = f"; always used together with {', '.join(each.together)}: either may be the cause" if each.together else ""
    if each.error_of == WITH_LEASES:
        return others
    return f"{others}; it was compared in {wording.plural(each.leases, 'lease')}, so the cause may be the lease or the host"


def _cells(each: HostResult, cells: pd.DataFrame) -> str:
    """Describe the cells in which a host was compared, the first few by name."""
    rows = cells[cells["cell_id"].isin(each.cells)]
    names = [
        wording.describe(row, ("configuration", "workload", "batch", "precision")) for row in rows.to_dict("records")
    ]
    more = f" and {len(names) - _CELLS_NAMED:,} more" if len(names) > _CELLS_NAMED else ""
    return f"{wording.plural(len(each.cells), 'cell')}: {'; '.join(names[:_CELLS_NAMED])}{more}"


def _spreads(parts: pd.DataFrame, measure: str) -> Iterable[str]:
    """Yield a sentence per component on the workload that varies most, and one per component that is unknown.

    Args:
        parts: rows of components.
        measure: name of the metric.
    """
    for name in _SERIES:
        known = parts[(parts["what"] == name) & parts["value_pct"].notna()]
        if known.empty:
            continue
        row = known.sort_values("value_pct", kind="stable").iloc[-1]
        what = "With another lease on other hosts" if name == TOGETHER else name.capitalize()
        numbers = (row["value_pct"], row["low_pct"], row["high_pct"])
        said = wording.with_interval(*numbers, lambda value: wording.percent(value, 2))
        # An estimate: the true value is bounded by the interval, not by the number.
        most = f"most for {row['of']}:" if len(known) > 1 else f"for {row['of']} by"
        yield f"{what}, {measure} varies {most} {said}."
    unknown = parts[parts["value_pct"].isna()]
    for (name, why), rows in unknown.groupby(["what", "remark"], sort=False):
        whose = "" if len(rows) == parts["of"].nunique() else f" of {', '.join(rows['of'].head(3))}"
        yield f"The {name} spread{whose} is unknown: {why}."


def _slow(found: SpreadSources, cells: pd.DataFrame, measure: str) -> Iterable[str]:
    """Yield a sentence per slow host, with its slowdown, and the command that repeats its runs."""
    for each in found.slow:
        size = wording.with_interval(each.slowdown_pct, each.low_pct, each.high_pct, wording.percent)
        yield (
            f"{each.host} is slower than the other hosts: {size} less {measure} (p {_p(each.p_holm)} by Holm) in "
            f"{_cells(each, cells)}{_doubt(each)}. To repeat these runs: "
            f"campaign run --where \"host == '{each.host}'\" with this campaign's file."
        )


def _none_slow(found: SpreadSources) -> Iterable[str]:
    """Yield a sentence that no host is slow, with the largest difference that is compatible with the data."""
    compared = [host for host in found.hosts if not host.why]
    if compared and not found.slow:
        widest = max(max(abs(each.low_pct), abs(each.high_pct)) for each in compared)
        yield (
            f"None of {wording.plural(len(compared), 'host')} is slower than the others (5\u202f% for all together, Holm); no "
            f"difference is larger than {wording.percent(widest)} (each at 95\u202f%)."
        )


def _p(value: float) -> str:
    """Format a p-value with its relation, as in '= 0.03'."""
    said = verdict.p_value(value)
    return said if said.startswith("<") else f"= {said}"


def _caption_of(found: SpreadSources) -> str:
    """Return the part of the caption on hosts, or the reason why hosts cannot be compared."""
    compared = sum(not host.why for host in found.hosts)
    if not compared:
        return "Hosts cannot be compared: no cell was run on two of them."
    left_out = f" The {_MOST_HOSTS} slowest are drawn." if compared > _MOST_HOSTS else ""
    return f"Right: each of {wording.plural(compared, 'host')} against the others in the same cells.{left_out}"


def _picture(parts: pd.DataFrame, hosts: pd.DataFrame, metric: Metric) -> str:
    """Draw standard deviations by workload and component on the left, and hosts on the right. Return SVG.

    Args:
        parts: rows of components.
        hosts: rows of hosts; empty if hosts were not compared.
        metric: metric of the campaign.
    """
    drawn = hosts[hosts["value_pct"].notna()].sort_values("value_pct", ascending=False, kind="stable")
    figure, axes = plot.grid(2 if len(drawn) else 1, height_in=3.0)
    ((left,), *others) = axes
    series = [name for name in _SERIES if (parts["what"] == name).any()]
    bars = Bars(series)
    known = parts["value_pct"].notna()
    cells = parts.assign(
        mean=parts["value_pct"], ci_low=parts["low_pct"], ci_high=parts["high_pct"], n_ok=known.astype(int)
    )
    groups = grouped(cells.assign(failures="unknown", state="missing"), "of", "what")
    bars.draw(left, groups)
    _values(left, groups, _highest(parts))
    left.set_ylabel(f"standard deviation (% of {metric.label})")
    left.set_xlabel("workload")
    plot.title(left, "Spread of equal cells")
    plot.legend(figure, bars.handles())
    for (right,) in others:
        _draw_hosts(right, drawn.head(_MOST_HOSTS).reset_index(drop=True), metric.performance)
    return plot.to_svg(figure)


def _highest(parts: pd.DataFrame) -> float:
    """Return the upper end of the axis, which is that of the intervals unless those would flatten the values."""
    return min(float(parts["high_pct"].max()), _MOST_TIMES * float(parts["value_pct"].max()))


def _cut(parts: pd.DataFrame) -> str:
    """Return a sentence for the caption if intervals are longer than the axis, or an empty string."""
    wider = bool((parts["high_pct"] > _highest(parts)).any())
    return " An arrow: the interval ends beyond the picture, and is whole in the table." if wider else ""


def _values(axes: Any, groups: BarGroups, highest: float) -> None:
    """Write values beside the bars, and draw arrows for intervals that are longer than the axis.

    Args:
        axes: axes of the bars.
        groups: groups of bars.
        highest: upper end of the axis, in percent.
    """
    axes.set_ylim(0, 1.12 * highest)
    width = 0.84 / max(len(pairs) for _, pairs in groups)
    legible = sum(len(pairs) for _, pairs in groups) <= _MOST_VALUES
    for position, (_, pairs) in enumerate(groups):
        for index, (_, row) in enumerate(pairs):
            x = position + (index - (len(pairs) - 1) / 2) * width
            if row["ci_high"] > highest:
                axes.plot([x], [1.09 * highest], marker="^", markersize=4, color=plot.INK, linestyle="", zorder=5)
            if legible and pd.notna(row["mean"]):
                how = {"rotation": 90, "ha": "left", "va": "bottom", "fontsize": plot.small_pt()}
                words = wording.percent(row["mean"], 2)
                axes.annotate(words, (x, row["mean"]), xytext=(4, 2), textcoords="offset points", **how)


def _draw_hosts(axes: Any, rows: pd.DataFrame, measure: str) -> None:
    """Draw the slowdown of each host with its interval. Slow hosts are filled, others hollow."""
    slow = rows["p_holm"] < intervals.SIGNIFICANT
    axes.axhline(0, color=plot.INK, linestyle=":", linewidth=0.9)
    for look, hollow, which in ((plot.look(5), False, slow), (plot.look(0), True, ~slow)):
        marked = rows[which]
        plot.points(axes, marked, marked.index.to_numpy(), _DIFFERENCE, look, hollow)
    low, high = plot.range_of(rows, _DIFFERENCE)
    room = 0.12 * (high - low or 1.0)
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), rows["of"], rotation=90 if len(rows) > 6 else 0)
    axes.set_ylabel(f"less {measure} than other hosts (%)")
    axes.set_xlabel("host")
    plot.title(axes, "Hosts against each other")

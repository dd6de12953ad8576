"""Figure: performance and efficiency by number of devices, with the ideal line."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells, scaling_curves, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.analysis.statistics.scaling_models import AMDAHL, GUSTAFSON, LATENCY, MAX_RESIDUAL_PCT, MIN_DIP_PCT
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
from campaign.spec.metric import Metric

TITLE = "Scaling"
SECTION = (
    "How does performance scale with devices? The batch per device is constant (weak scaling). Efficiency is relative to the "
    "fewest devices measured."
)
RESTS_ON = ("devices",)
PART = ANSWERS
METHOD = (
    "a scaling line follows the model (Amdahl, Gustafson, latency-bandwidth) with the smallest AICc, if it fits within "
    f"{MAX_RESIDUAL_PCT:.0f} % (F test); a dip is more than {MIN_DIP_PCT:.0f} % below both neighbours (in 1/n; t test, Holm)"
)
PLACE = 10
UNITS = {"dip_low": "pct", "dip_high": "pct", "efficiency_low": "pct", "efficiency_high": "pct"}
COUNTERPARTS = {
    "FASTER: Fig. 2": "throughput by GPUs; comparison with a traditional cluster by `campaign compare`",
    "FASTER: Fig. 7": "BERT-Large by GPUs, with a dip at 14 GPUs (dips are tested)",
}


# Limits for sentences and labels. The table has all dips.
_MAX_LISTED_DIPS = 5
_MAX_LISTED_LINES = 3
_MAX_LISTED_GAPS = 3
_MAX_LABELLED_HOSTS = 6  # per line; more numbers of hosts next to markers would overlap
_LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
_MODEL_NAMES = {AMDAHL: "Amdahl's law", GUSTAFSON: "Gustafson's law", LATENCY: "the latency-bandwidth model"}
_EFFICIENCY = plot.IntervalColumns("efficiency_pct", "efficiency_low", "efficiency_high")


def draw(data: FigureData) -> Drawing:
    """Draw performance and efficiency against the number of devices, with ideal lines, fitted models and dips."""
    if data.metric.name.startswith(_LATENCIES):
        return nothing("request latency does not scale with devices")
    rows = comparable_cells.compare_device_counts(data.cells, data.design, data.metric)
    # At a given rate of requests, the throughput of a server is that rate.
    offered_rate_cells = comparable_cells.select_cells_with_request_rate(data.cells)["cell_id"]
    rows = rows[~rows["cell_id"].isin(offered_rate_cells)].reset_index(drop=True)
    if rows.empty and len(offered_rate_cells):
        return nothing("requests were sent at fixed rates, which do not scale with devices")
    if rows.empty:
        return nothing("no two measured cells differ only in their number of devices")
    panel_columns = [*comparable_cells.PANEL_COLUMNS, *comparable_cells.list_option_columns(rows)]
    rows = scaling_curves.add_model_columns(rows, [*panel_columns, "batch"], data.design, data.runs)
    if data.metric.scaling != "total_rate":
        rows = scaling_curves.add_empty_model_columns(rows)
    panels = plot.split_into_panels(_select_panels_with_runs(rows, panel_columns), panel_columns, series=("batch",))
    overview_lines = _select_overview(rows)
    scales, name = data.metric.has_efficiency, data.metric.label.capitalize()
    cut_text = plot.describe_cut_intervals(rows, plot.RATE) or (
        plot.describe_cut_intervals(_drop_references(rows), _EFFICIENCY) if scales else ""
    )
    caption = (
        f"{f'{name} (top) and efficiency (bottom)' if scales else name} by devices in use. "
        f"{describe_marks('point', rows['n_ok'], rows['interval_method'])} "
        f"{'Dotted: ideal. ' if scales else ''}Lines join the fewest hosts; open "
        f"markers: more hosts.{panels.format_common_sentence()}{'' if scales else _explain_missing_ideal(data.metric)}"
    )
    if scales:
        ratio_columns = {
            **columns.ratio_columns("Speed-up"),
            "Efficiency": columns.percent_column("efficiency_pct", 0),
            **verdict.P_AGAINST_IDEAL_COLUMN,
        }
    else:
        ratio_columns = {**columns.ratio_columns(f"Ratio of {data.metric.performance_name}"), **verdict.P_COLUMN}
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_scaling(panels, data.metric),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, [*panel_columns, "batch"])),
            "Devices": columns.count_column("ranks"),
            "Hosts": columns.count_column("hosts"),
            **columns.rate_columns(data.metric.heading),
            **ratio_columns,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        glance=lambda: _draw_overview(overview_lines, data.metric),
        headline=_describe_overview(overview_lines, data.metric),
        limits=(*panels.list_limits(), cut_text),
        findings=_describe_scaling(rows, panel_columns, data.design, data.metric),
        coverage=describe_cell_coverage(rows),
    )


def _explain_missing_ideal(metric: Metric) -> str:
    """Return a sentence that explains why the figure has no ideal line."""
    if metric.scaling == "none":
        return f" There is no ideal line, because {metric.label} is not expected to scale with devices."
    return f" There is no ideal line, because the `scaling` of {metric.label} is not declared."


def _select_overview(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Select the line of each workload that has the most points, as rows by number of devices."""
    compact_rows = rows[rows["compact"] & rows["ratio"].notna()]
    lines = [
        max((line for _, line in workload_rows.groupby(["precision", "batch"], sort=False)), key=len)
        for _, workload_rows in compact_rows.groupby("workload", sort=False)
    ]
    return [line.sort_values("ranks", kind="stable") for line in lines[: plot.MAX_GLANCE_ROWS]]


def _describe_overview(lines: list[pd.DataFrame], metric: Metric) -> str:
    """Return a sentence on the last point of each line of the overview."""
    ends: list[Any] = [line.iloc[-1] for line in lines if line["ranks"].iloc[-1] > line["against_ranks"].iloc[-1]]
    if not ends:
        return ""
    last = pd.DataFrame(ends)
    if len(last) == 1:
        return _describe_speedup(ends[0], ["workload"], metric)
    counts = [last[name].unique() for name in ("ranks", "against_ranks")]
    names = [
        wording.format_axis_value("ranks", numbers[0]) if len(numbers) == 1 else default
        for numbers, default in zip(counts, ("The most devices of each line", "the fewest"), strict=True)
    ]
    labels = select_distinguishing_columns(last, ["workload", "precision", "batch"])
    return f"{names[0]} reach {verdict.format_estimate_range(last, labels)} the {metric.total_performance_name} of {names[1]}."


def _draw_overview(lines: list[pd.DataFrame], metric: Metric) -> str:
    """Draw the overview of speed-ups by devices. Return SVG."""
    labels = (
        ["workload"]
        if len(lines) == 1
        else select_distinguishing_columns(pd.concat(lines), ["workload", "precision", "batch"])
    )
    return plot.draw_glance_lines(
        [(wording.format_axes(line.iloc[0], labels), line["ranks"].tolist(), line["ratio"].tolist()) for line in lines],
        "devices in use",
        "speed-up" if metric.has_efficiency else "ratio",
        draw_ideal=metric.has_efficiency,
    )


def _select_panels_with_runs(rows: pd.DataFrame, panel_columns: list[str]) -> pd.DataFrame:
    """Return the rows of panels in which anything was run. Panels with a value come first, as the number of panels is limited.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
    """
    kind = rows.groupby(panel_columns, sort=False, dropna=False)
    ran, has_value = (
        mask.groupby(kind.ngroup(), sort=False).transform("any").astype(bool)
        for mask in (rows["state"] != "missing", rows["n_ok"] > 0)
    )
    return (
        rows[ran]
        .assign(_valued=has_value)
        .sort_values("_valued", ascending=False, kind="stable")
        .drop(columns="_valued")
    )


def _drop_references(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without references, whose efficiency is 100 % by definition."""
    return rows[rows["ranks"] != rows["against_ranks"]]


def _describe_scaling(rows: pd.DataFrame, panel_columns: list[str], design: Design, metric: Metric) -> tuple[str, ...]:
    """Return sentences on dips, efficiency with the most devices of each line, models, and lines without a value.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
        design: design of the experiment.
        metric: metric of the campaign.
    """
    series = [*panel_columns, "batch"]
    compared_rows = rows[rows["compact"] & rows["ratio"].notna() & (rows["ranks"] > rows["against_ranks"])]
    last = compared_rows.sort_values("ranks", kind="stable").drop_duplicates(series, keep="last")
    if last.empty:
        return ()
    label_columns = select_distinguishing_columns(last, series)
    if len(last) == 1:
        ends = _describe_speedup(last.to_dict("records")[0], label_columns, metric)
    else:
        ends = _describe_efficiencies(last, label_columns, design, metric)
    if not metric.has_efficiency:
        return (ends, *_describe_failed_lines(rows, series))
    dips = tuple(_describe_dips(rows, label_columns))
    return (*dips, ends, *_describe_fits(rows), *_describe_absent_dips(rows), *_describe_failed_lines(rows, series))


def _describe_speedup(row: Any, label_columns: list[str], metric: Metric) -> str:
    """Return a sentence on speed-up and efficiency at the end of the only line, or on its ratio for a metric without an ideal."""
    ratio = wording.format_with_interval(row["ratio"], row["ratio_low"], row["ratio_high"], wording.format_ratio)
    caveat = verdict.explain_missing_test(row) if verdict.is_untested(row) else ""
    conditions = "; ".join(filter(None, (wording.format_axes(row, label_columns), verdict.describe_basis(row), caveat)))
    efficiency = (
        f", an efficiency of {wording.format_percent(row['efficiency_pct'], 0)}" if metric.has_efficiency else ""
    )
    return (
        f"{wording.format_axis_value('ranks', row['ranks'])} reach {ratio} the {metric.total_performance_name} of "
        f"{wording.format_axis_value('ranks', row['against_ranks'])}{efficiency} ({conditions})."
    )


def _describe_efficiencies(last: pd.DataFrame, label_columns: list[str], design: Design, metric: Metric) -> str:
    """Return a sentence with the mean and the range of efficiencies at the end of each line.

    No line is called best, because no test compares lines.

    Args:
        last: row of each line with the most devices.
        label_columns: columns that distinguish lines.
        design: design of the experiment.
        metric: metric of the campaign.
    """
    effect_columns = [*label_columns, *(["ranks"] if "ranks" not in label_columns else [])]
    if not metric.has_efficiency:
        effect = verdict.summarize_range(last, design, effect_columns, float, wording.format_ratio)
        return f"The ratio of {metric.performance_name} with the most devices of each line to the fewest is {effect}."
    efficiencies = last.assign(ratio=last["ratio"] / last["ideal"])
    effect = verdict.summarize_range(
        efficiencies, design, effect_columns, lambda ratio: 100 * ratio, wording.format_percent
    )
    return f"Efficiency with the most devices of each line is {effect}."


def _describe_fits(rows: pd.DataFrame) -> Iterable[str]:
    """Yield a sentence on how many lines each model fits best, or on the model of the only line.

    The table has the parameters of several lines. A line that is selected by its efficiency would need another interval.
    """
    lines = rows[(rows["ideal"] == 1) & (rows["fit"] != "")]
    if lines.empty:
        return
    counts = lines.loc[lines["fit_holds"], "fit"].value_counts()
    unfitted_count = int((~lines["fit_holds"]).sum())
    if len(lines) > 1 and len(counts) == 1 and not unfitted_count:
        yield f"All {len(lines):,} lines follow {_MODEL_NAMES[str(counts.index[0])]}."
    elif len(lines) > 1:
        shares = [
            f"{wording.format_count(count)} {'follows' if count == 1 else 'follow'} {_MODEL_NAMES[str(model)]}"
            for model, count in counts.items()
        ]
        shares += (
            [f"{unfitted_count:,} {'follows' if unfitted_count == 1 else 'follow'} no model"] if unfitted_count else []
        )
        yield f"Of {len(lines):,} lines, {', '.join(shares)}."
    elif unfitted_count:
        yield "No model fits the points of the line; the table has the nearest one."
    else:
        row: Any = lines.to_dict("records")[0]
        yield scaling_curves.describe_fit(row)


def _describe_dips(rows: pd.DataFrame, label_columns: list[str]) -> Iterable[str]:
    """Yield a sentence per dip, the deepest first, and one with the number of further dips."""
    dips = rows[rows["dip"]].sort_values("dip_pct", ascending=False, kind="stable")
    for row in dips.head(_MAX_LISTED_DIPS).to_dict("records"):
        dip_text = wording.format_with_interval(row["dip_pct"], row["dip_low"], row["dip_high"], wording.format_percent)
        yield (
            f"Performance dips at {wording.format_axis_value('ranks', row['ranks'])}: it is {dip_text} below what both neighbours "
            f"predict ({wording.format_axes(row, label_columns)})."
        )
    if len(dips) > _MAX_LISTED_DIPS:
        yield f"The data table has {wording.pluralize(len(dips) - _MAX_LISTED_DIPS, 'further dip')}."


def _describe_absent_dips(rows: pd.DataFrame) -> Iterable[str]:
    """Yield a sentence if no tested point dips, or if no point could be tested."""
    tested_count = int(rows["dip_p"].notna().sum())
    if tested_count and not rows["dip"].any():
        yield f"No point dips below its neighbours ({wording.pluralize(tested_count, 'point')} tested)."
    if not tested_count and rows["dip_expected_per_s"].notna().any():
        yield f"Dips are not tested: {verdict.RUN_VARIATION_ONLY}."


def _describe_failed_lines(rows: pd.DataFrame, series: list[str]) -> Iterable[str]:
    """Yield a sentence on lines that were run but have no valid run, with the reasons."""
    groups = rows.groupby(series, sort=False, dropna=False)
    has_failed = (groups["n_ok"].transform("sum") == 0) & (groups["n_failed"].transform("sum") > 0)
    failed_rows = rows[has_failed]
    if len(failed_rows):
        names = failed_rows.drop_duplicates(series)
        reasons = "; ".join(dict.fromkeys(plot.describe_gap(row) for row in failed_rows.to_dict("records")))
        label_columns = select_distinguishing_columns(rows, series)
        lines_text = "; ".join(
            wording.format_axes(row, label_columns) for row in names.head(_MAX_LISTED_LINES).to_dict("records")
        )
        remainder_text = f" and {len(names) - _MAX_LISTED_LINES:,} more" if len(names) > _MAX_LISTED_LINES else ""
        verb = "has" if len(names) == 1 else "have"
        yield f"{wording.pluralize(len(names), 'line')} {verb} no valid run: {lines_text}{remainder_text} ({reasons})."


def _format_dip(row: Any) -> str:
    """Format the depth of a point below its neighbours, with interval and p-value."""
    if not np.isfinite(row["dip_p_holm"]):
        return wording.NO_VALUE
    size = (
        f"{wording.format_percent(row['dip_pct'])} "
        f"[{wording.format_range(row['dip_low'], row['dip_high'], wording.format_percent)}]"
    )
    return f"{'dip: ' if row['dip'] else ''}{size}, p {verdict.format_p_value(row['dip_p_holm'])}"


def _draw_scaling(panels: plot.Panels, metric: Metric) -> str:
    """Draw one panel per workload, with performance on top and efficiency below it. Return SVG."""
    batches = sorted(set(plot.collect_panel_values(panels, "batch")))
    looks = plot.assign_looks(batches)
    all_rows = pd.concat([panel.rows for panel in panels.shown])
    scales = metric.has_efficiency
    figure, axes = plot.create_grid(len(panels.shown), height_in=3.3, heights=(2.2, 1) if scales else (1,))
    for position, (panel, (top, *efficiency_axes)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.set_panel_title(top, panel.label)
        host_labels: dict[tuple[int, str], tuple[float, float]] = {}
        multi_host_batches = sorted(panel.rows.loc[panel.rows["hosts"] > 1, "batch"].unique())
        for batch, rows in panel.rows.groupby("batch", sort=True):
            # Markers of several hosts are shifted to the right, so that those of different batches do not overlap.
            part = (
                (1 + multi_host_batches.index(batch)) / len(multi_host_batches) if batch in multi_host_batches else 0.0
            )
            host_labels |= _draw_line(top, efficiency_axes, rows, looks[batch], part, metric)
        # One label for all batches is next to the rightmost marker.
        for (_, words), point in host_labels.items():
            top.annotate(words, point, (6, -3), textcoords="offset points", fontsize=plot.get_small_font_pt())
        _draw_gaps(top, panel.rows, looks)
        if (panel.rows["n_ok"] > 0).any():
            growth = panel.rows["ideal"] if metric.scaling == "total_rate" else 1
            ideal = (panel.rows["against_mean"] * growth).max()
            top.set_ylim(0, 1.05 * max(ideal, plot.compute_range(panel.rows, plot.RATE)[1]))
        for axes_below in efficiency_axes:
            axes_below.axhline(100, color=plot.INK, linestyle=":", linewidth=0.9)
            axes_below.set_ylim(*_compute_efficiency_range(all_rows))
        bottom = (top, *efficiency_axes)[-1]
        bottom.set_xticks(_select_ticks(sorted(panel.rows["ranks"].unique())))
        bottom.set_xlim(0, panel.rows["ranks"].max() * (1.36 if host_labels else 1.14))
        bottom.set_xlabel("devices in use")
        if plot.is_leftmost(position):
            top.set_ylabel(metric.axis_label)
            for axes_below in efficiency_axes:
                axes_below.set_ylabel("efficiency (%)")
    hollow = {"linestyle": "", "markerfacecolor": "none"}
    handles = [
        *plot.build_legend_keys(looks, lambda batch: wording.format_axis_value("batch", batch)),
        *([plot.build_ink_key("ideal", linestyle=":")] if scales else []),
        *(
            [plot.build_ink_key("best-fitting model", linestyle="--", linewidth=0.9)]
            if all_rows["fit_holds"].any()
            else []
        ),
        *([plot.build_ink_key("dip", marker="o", markersize=11, **hollow)] if all_rows["dip"].any() else []),
        *(
            [plot.build_ink_key("several hosts (number)", marker="o", **hollow)]
            if (all_rows["hosts"] > 1).any()
            else []
        ),
    ]
    if (all_rows["compact"] & (all_rows["n_ok"] == 0)).any():
        handles.append(plot.build_ink_key("no value", linestyle="", marker="x", markersize=5))
    plot.add_legend(figure, handles)
    return plot.to_svg(figure)


def _compute_efficiency_range(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the range of efficiencies that all panels share, so that they can be compared.

    It spans all values and 100 %, with a margin of 3 %.
    """
    lowest, highest = plot.compute_range(_drop_references(rows), _EFFICIENCY)
    lowest, highest = min(lowest, 100.0), max(highest, 100.0)
    margin = 0.03 * max(highest - lowest, 10.0)
    return max(0.0, lowest - margin), highest + margin


def _draw_gaps(axes: Any, rows: pd.DataFrame, looks: dict[Any, plot.SeriesLook]) -> None:
    """Draw crosses where lines have no value, and the reasons in the lower right corner, below lines that rise.

    Args:
        axes: axes of the panel.
        rows: cells of the panel.
        looks: look of each batch.
    """
    transform = axes.get_xaxis_transform()
    texts = []
    planned_rows = rows[rows["compact"]].groupby("batch", sort=True)
    for batch, gap_rows in rows[rows["compact"] & (rows["n_ok"] == 0)].groupby("batch", sort=True):
        marker_style = {"marker": "x", "color": looks[batch].colour, "markersize": 5, "linestyle": ""}
        axes.plot(
            gap_rows["ranks"], [0.03] * len(gap_rows), transform=transform, clip_on=False, zorder=5, **marker_style
        )
        reasons = gap_rows.assign(why=[plot.describe_gap(row) for row in gap_rows.to_dict("records")]).groupby(
            "why", sort=False
        )["ranks"]
        for reason, ranks in reasons:
            devices_text = (
                ""
                if len(ranks) == len(planned_rows.get_group(batch))
                else f" at {', '.join(str(count) for count in ranks)}"
            )
            texts.append(f"batch {batch}{devices_text}: {reason}")
    remainder = [f"and {len(texts) - _MAX_LISTED_GAPS:,} more"] if len(texts) > _MAX_LISTED_GAPS else []
    words = "\n".join([*texts[:_MAX_LISTED_GAPS], *remainder])
    text_style = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    axes.text(0.99, 0.07, words, fontsize=plot.get_small_font_pt(), zorder=5, in_layout=False, **text_style)


def _shift_markers(rows: pd.DataFrame, share: float) -> pd.Series:
    """Return the horizontal positions of markers. Those of several hosts are shifted to the right.

    The shift is at most a third of the distance to the next number of devices.

    Args:
        rows: cells of a line.
        share: share of the shift, which separates the lines of several batches.
    """
    counts = np.array(sorted(rows["ranks"].unique()), dtype=float)
    gaps = np.append(np.diff(counts), counts[-1] * 0.46)
    room = rows["ranks"].map(dict(zip(counts, gaps, strict=True)))
    # With the same number of devices, more hosts are shifted further.
    hosts = rows.groupby("ranks")["hosts"].rank(method="dense") / rows.groupby("ranks")["hosts"].transform("nunique")
    return rows["ranks"] + share * hosts * np.minimum(0.35 * room, 0.16 * counts[-1]) * ~rows["compact"].astype(bool)


def _draw_line(
    top: Any, efficiency_axes: list[Any], rows: pd.DataFrame, look: plot.SeriesLook, share: float, metric: Metric
) -> dict[tuple[int, str], tuple[float, float]]:
    """Draw a line with its markers, ideal, model and dips.

    Return the labels for numbers of hosts. The key is the number of devices and the text; the value is the position of the
    marker.

    Args:
        top: axes of the performance.
        efficiency_axes: axes of the efficiency; empty for a metric without one.
        rows: cells of the line.
        look: look of the line.
        share: share of the shift of markers of several hosts.
        metric: metric of the campaign.
    """
    line = rows[rows["compact"] & (rows["n_ok"] > 0)]
    host_labels: dict[tuple[int, str], tuple[float, float]] = {}
    if line.empty:
        return host_labels
    start = line.iloc[0]
    if metric.has_efficiency:
        counts = np.linspace(start["ranks"], line["ranks"].max(), 40 if metric.scaling == "time_of_fixed_work" else 2)
        power = {"total_rate": 1, "time_of_fixed_work": -1}.get(str(metric.scaling), 0)
        ideal = start["mean"] * (counts / start["ranks"]) ** power
        top.plot(counts, ideal, color=look.colour, linestyle=":", linewidth=0.9)
    top.plot(line["ranks"], line["mean"], color=look.colour)
    for bottom in efficiency_axes:
        bottom.plot(line["ranks"], line["efficiency_pct"], color=look.colour)
    if start["fit_holds"]:
        devices = np.linspace(start["ranks"], line["ranks"].max(), 40)
        # Black and on top, because it lies on the line that it describes.
        top.plot(
            devices,
            scaling_curves.predict_throughput(start, devices),
            color=plot.INK,
            linestyle="--",
            linewidth=0.9,
            zorder=4,
        )
    dips = rows[rows["dip"]]
    if len(dips):
        ring_style = {"marker": "o", "markersize": 11, "linestyle": "", "markerfacecolor": "none"}
        top.plot(dips["ranks"], dips["mean"], color=plot.INK, **ring_style)
    measured_rows = rows[rows["n_ok"] > 0]
    # The reference is 100 % by definition, so it has no interval.
    is_reference = measured_rows["cell_id"] == start["cell_id"]
    bounds = ["efficiency_low", "efficiency_high"]
    measured_rows = measured_rows.assign(**measured_rows[bounds].mask(is_reference), at=_shift_markers(rows, share))
    for hollow, marker_rows in measured_rows.groupby(measured_rows["hosts"] > 1, sort=True):
        plot.draw_points(top, marker_rows, marker_rows["at"], plot.RATE, look, bool(hollow))
        for bottom in efficiency_axes:
            plot.draw_points(bottom, marker_rows, marker_rows["at"], _EFFICIENCY, look, bool(hollow))
        if hollow and len(marker_rows) <= _MAX_LABELLED_HOSTS:
            for ranks, group in marker_rows.sort_values("at").groupby("ranks"):
                words = ", ".join(f"{count}" for count in group["hosts"])
                host_labels[ranks, words] = (group["at"].iloc[-1], group["mean"].iloc[-1])
    return host_labels


def _select_ticks(counts: list[int]) -> list[int]:
    """Return the measured numbers of devices whose labels do not overlap that of their larger neighbour."""
    ticks: list[int] = []
    for count in reversed(counts):
        if not ticks or ticks[-1] - count >= 0.06 * counts[-1]:
            ticks.append(count)
    return ticks[::-1]

"""Figure: performance and efficiency by number of devices, with the ideal line."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells, scaling_curves, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.analysis.statistics.scaling_models import LEAST_DIP_PCT, MOST_RESIDUAL_PCT
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, telling
from campaign.spec.metric import Metric

TITLE = "Scaling"
SECTION = (
    "How does performance scale with devices, at a constant batch of each (weak scaling)? Speed-up and "
    "efficiency are against the fewest devices measured."
)
RESTS_ON = ("devices",)
PART = ANSWERS
METHOD = (
    "the model of a scaling line has the smallest AICc of Amdahl, Gustafson and latency-bandwidth, and points on it (F test, 5 %) "
    f"within {MOST_RESIDUAL_PCT:.0f} %; a dip is a point more than {LEAST_DIP_PCT:.0f} % below both neighbours (in 1/n; one-sided "
    "t, Holm, 5 %)"
)
PLACE = 10
UNITS = {"dip_low": "pct", "dip_high": "pct", "efficiency_low": "pct", "efficiency_high": "pct"}
COUNTERPARTS = {
    "FASTER: Fig. 2": "throughput against GPUs; against a traditional cluster with `campaign compare`",
    "FASTER: Fig. 7": "BERT-Large by GPUs, with a dip at 14 GPUs (dips are tested)",
}


# Limits for sentences and labels. The table has all dips.
_DIPS_NAMED = 5
_SERIES_NAMED = 3
_GAPS_NAMED = 3
_HOSTS_NAMED = 6  # per line; numbers of hosts beside more markers would overlap
_LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
_EFFICIENCY = plot.Columns("efficiency_pct", "efficiency_low", "efficiency_high")


def draw(data: FigureData) -> Drawing:
    """Draw performance and efficiency against the number of devices, with ideal lines, fitted models and dips."""
    if data.metric.name.startswith(_LATENCIES):
        return nothing("a latency of requests does not scale with devices")
    rows = comparable_cells.scaling(data.cells, data.design, data.metric)
    # At a given rate of requests, the throughput of a server is that rate.
    given = comparable_cells.at_given_rates(data.cells)["cell_id"]
    rows = rows[~rows["cell_id"].isin(given)].reset_index(drop=True)
    if rows.empty and len(given):
        return nothing("requests were sent at given rates, which do not scale with devices")
    if rows.empty:
        return nothing("no workload was measured with two numbers of devices that are otherwise equal")
    by = [*comparable_cells.KIND, *comparable_cells.option_columns(rows)]
    rows = scaling_curves.with_models(rows, [*by, "batch"], data.design, data.runs)
    if data.metric.scaling != "total_rate":
        rows = scaling_curves.without_models(rows)
    panels = plot.panels(_with_runs(rows, by), by, series=("batch",))
    scales, name = data.metric.scales, data.metric.label.capitalize()
    cut = plot.cut(rows, plot.RATE) or (plot.cut(_compared(rows), _EFFICIENCY) if scales else "")
    caption = (
        f"{f'{name} (top) and efficiency (bottom)' if scales else name} by devices in use; "
        f"{wording.runs_behind(rows['n_ok'])} a point, "
        f"{wording.interval_of(rows['interval_method'])}. {'Dotted: ideal. ' if scales else ''}Lines join the fewest hosts; open "
        f"markers: more hosts.{panels.sentence()}{'' if scales else _why_no_efficiency(data.metric)}"
    )
    if scales:
        compared = {
            **columns.ratio("Speed-up"),
            "Efficiency": columns.percent("efficiency_pct", 0),
            **verdict.P_AGAINST_IDEAL,
        }
    else:
        compared = {**columns.ratio(f"Ratio of {data.metric.performance}"), **verdict.P}
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels, data.metric),
        {
            "Workload": columns.described(telling(rows, [*by, "batch"])),
            "Devices": columns.count("ranks"),
            "Hosts": columns.count("hosts"),
            **columns.rate(data.metric.heading),
            **compared,
            **columns.RUNS_AND_FAILURES,
        },
        caption=caption,
        glance=lambda: _glance(rows, data.metric),
        limits=(*panels.limits(), cut),
        findings=_findings(rows, by, data.design, data.metric),
        coverage=coverage_of_cells(rows),
    )


def _why_no_efficiency(metric: Metric) -> str:
    """Return a sentence that explains why the figure has no ideal line."""
    if metric.scaling == "none":
        return f" There is no ideal line, as no speed-up of {metric.label} is expected of more devices."
    return (
        f" There is no ideal line, as nothing tells how {metric.label} scales with devices (`scaling` of the metric)."
    )


def _glance(rows: pd.DataFrame, metric: Metric) -> str:
    """Draw the overview of speed-ups by devices, with the line of each workload that has the most points. Return SVG."""
    measured = rows[rows["compact"] & rows["ratio"].notna()]
    lines = []
    for workload, own in measured.groupby("workload", sort=False):
        line = max((group for _, group in own.groupby(["precision", "batch"], sort=False)), key=len)
        lines.append((str(workload), line["ranks"].tolist(), line["ratio"].tolist()))
    return plot.glance_lines(lines, "devices in use", "speed-up" if metric.scales else "ratio", ideal=metric.scales)


def _with_runs(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the rows of panels in which anything was run. Panels with a value come first, as the number of panels is limited.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
    """
    kind = rows.groupby(by, sort=False, dropna=False)
    ran, valued = (
        known.groupby(kind.ngroup(), sort=False).transform("any").astype(bool)
        for known in (rows["state"] != "missing", rows["n_ok"] > 0)
    )
    return (
        rows[ran].assign(_valued=valued).sort_values("_valued", ascending=False, kind="stable").drop(columns="_valued")
    )


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without references, whose efficiency is 100 % by definition."""
    return rows[rows["ranks"] != rows["against_ranks"]]


def _findings(rows: pd.DataFrame, by: list[str], design: Design, metric: Metric) -> tuple[str, ...]:
    """Return sentences on dips, on efficiency with the most devices of each line, on models, and on lines without a value.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
        design: design of the experiment.
        metric: metric of the campaign.
    """
    series = [*by, "batch"]
    measured = rows[rows["compact"] & rows["ratio"].notna() & (rows["ranks"] > rows["against_ranks"])]
    last = measured.sort_values("ranks", kind="stable").drop_duplicates(series, keep="last")
    if last.empty:
        return ()
    different = telling(last, series)
    if len(last) == 1:
        ends = _pace(last.to_dict("records")[0], different, metric)
    else:
        ends = _ends_of_lines(last, different, design, metric)
    if not metric.scales:
        return (ends, *_without(rows, series))
    dips = tuple(_dips(rows, different))
    return (*dips, ends, *_fits(rows), *_no_dip(rows), *_without(rows, series))


def _pace(row: Any, different: list[str], metric: Metric) -> str:
    """Return a sentence on speed-up and efficiency at the end of the only line, or on its ratio for a metric without an ideal."""
    pace = verdict.measured(row, tuple(row[name] for name in ("ratio", "ratio_low", "ratio_high")), wording.times)
    untested = f"; {verdict.not_tested(row)}" if verdict.untested(row) else ""
    efficiency = f", an efficiency of {wording.percent(row['efficiency_pct'], 0)}" if metric.scales else ""
    return (
        f"{wording.describe(row, different)}: {wording.axis('ranks', row['ranks'])} give {pace} the {metric.total_performance} of "
        f"{wording.axis('ranks', row['against_ranks'])}{efficiency}{untested}."
    )


def _ends_of_lines(last: pd.DataFrame, different: list[str], design: Design, metric: Metric) -> str:
    """Return a sentence with the mean and the range of efficiencies at the end of each line.

    No line is called best, because no test compares lines.

    Args:
        last: row of each line with the most devices.
        label_columns: columns that distinguish lines.
        design: design of the experiment.
        metric: metric of the campaign.
    """
    named = [*different, *(["ranks"] if "ranks" not in different else [])]
    if not metric.scales:
        effect = verdict.summarize_range(last, design, named, float, wording.times)
        return f"{metric.performance.capitalize()} with the most devices of each line, against the fewest: {effect}."
    efficiencies = last.assign(ratio=last["ratio"] / last["ideal"])
    effect = verdict.summarize_range(efficiencies, design, named, lambda ratio: 100 * ratio, wording.percent)
    return f"Efficiency with the most devices of each line: {effect}."


def _fits(rows: pd.DataFrame) -> Iterable[str]:
    """Yield a sentence on how many lines each model fits best, or on the model of the only line.

    The table has the parameters of several lines. A line that is selected by its efficiency would need another interval.
    """
    lines = rows[(rows["ideal"] == 1) & (rows["fit"] != "")]
    if lines.empty:
        return
    counts = lines.loc[lines["fit_holds"], "fit"].value_counts()
    none = int((~lines["fit_holds"]).sum())
    if len(lines) > 1:
        shares = [f"{model} for {wording.count(count)}" for model, count in counts.items()]
        shares += [f"no model for {none:,}"] if none else []
        yield f"Of {wording.plural(len(lines), 'line')}, these models fit best: {', '.join(shares)}."
    elif none:
        yield "No model describes the points of the line; the table has the nearest."
    else:
        row: Any = lines.to_dict("records")[0]
        yield f"Model that fits best: {scaling_curves.said(row)}."


def _dips(rows: pd.DataFrame, different: list[str]) -> Iterable[str]:
    """Yield a sentence per dip, the deepest first, and one with the number of further dips."""
    dips = rows[rows["dip"]].sort_values("dip_pct", ascending=False, kind="stable")
    for row in dips.head(_DIPS_NAMED).to_dict("records"):
        under = wording.with_interval(
            row["dip_pct"], row["dip_low"], row["dip_high"], wording.percent, wording.describe(row, different)
        )
        yield f"Dip: {wording.axis('ranks', row['ranks'])} give {under} less than their neighbours on both sides predict."
    if len(dips) > _DIPS_NAMED:
        yield f"{wording.plural(len(dips) - _DIPS_NAMED, 'further dip')} in the data table."


def _no_dip(rows: pd.DataFrame) -> Iterable[str]:
    """Yield a sentence if no tested point dips, or if no point could be tested."""
    tested = int(rows["dip_p"].notna().sum())
    if tested and not rows["dip"].any():
        yield f"No point dips below its neighbours ({wording.plural(tested, 'point')} tested)."
    if not tested and rows["dip_expected_per_s"].notna().any():
        yield f"Dips are not tested: {verdict.ONE_COMPOSITION}."


def _without(rows: pd.DataFrame, series: list[str]) -> Iterable[str]:
    """Yield a sentence on lines that were run but have no valid run, with the reasons."""
    kept = rows.groupby(series, sort=False, dropna=False)
    failed = (kept["n_ok"].transform("sum") == 0) & (kept["n_failed"].transform("sum") > 0)
    lost = rows[failed]
    if len(lost):
        names = lost.drop_duplicates(series)
        why = "; ".join(dict.fromkeys(plot.why_not(row) for row in lost.to_dict("records")))
        different = telling(rows, series)
        which = "; ".join(wording.describe(row, different) for row in names.head(_SERIES_NAMED).to_dict("records"))
        more = f" and {len(names) - _SERIES_NAMED:,} more" if len(names) > _SERIES_NAMED else ""
        yield f"No valid run for {wording.plural(len(names), 'line')}: {which}{more} ({why})."


def _under(row: Any) -> str:
    """Format the depth of a point below its neighbours, with interval and p-value."""
    if not np.isfinite(row["dip_p_holm"]):
        return wording.NONE
    size = f"{wording.percent(row['dip_pct'])} [{wording.between(row['dip_low'], row['dip_high'], wording.percent)}]"
    return f"{'dip: ' if row['dip'] else ''}{size}, p {verdict.p_value(row['dip_p_holm'])}"


def _picture(panels: plot.Panels, metric: Metric) -> str:
    """Draw one panel per workload, with performance on top and efficiency below it. Return SVG."""
    batches = sorted(set(plot.in_panels(panels, "batch")))
    looks = plot.looks(batches)
    shown = pd.concat([panel.rows for panel in panels.shown])
    scales = metric.scales
    figure, axes = plot.grid(len(panels.shown), height_in=3.3, heights=(2.2, 1) if scales else (1,))
    for position, (panel, (top, *below)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(top, panel.label)
        hosts: dict[tuple[int, str], tuple[float, float]] = {}
        spread = sorted(panel.rows.loc[panel.rows["hosts"] > 1, "batch"].unique())
        for batch, rows in panel.rows.groupby("batch", sort=True):
            # Markers of several hosts are shifted to the right, so that those of different batches do not overlap.
            part = (1 + spread.index(batch)) / len(spread) if batch in spread else 0.0
            hosts |= _series(top, below, rows, looks[batch], part, metric)
        # One label for all batches, beside the rightmost marker.
        for (_, words), where in hosts.items():
            top.annotate(words, where, (6, -3), textcoords="offset points", fontsize=plot.small_pt())
        _gaps(top, panel.rows, looks)
        if (panel.rows["n_ok"] > 0).any():
            rises = panel.rows["ideal"] if metric.scaling == "total_rate" else 1
            ideal = (panel.rows["against_mean"] * rises).max()
            top.set_ylim(0, 1.05 * max(ideal, plot.range_of(panel.rows, plot.RATE)[1]))
        for axes_below in below:
            axes_below.axhline(100, color=plot.INK, linestyle=":", linewidth=0.9)
            axes_below.set_ylim(*_efficiencies(shown))
        bottom = (top, *below)[-1]
        bottom.set_xticks(_ticks(sorted(panel.rows["ranks"].unique())))
        bottom.set_xlim(0, panel.rows["ranks"].max() * (1.36 if hosts else 1.14))
        bottom.set_xlabel("devices in use")
        if plot.is_left(position):
            top.set_ylabel(metric.axis)
            for axes_below in below:
                axes_below.set_ylabel("efficiency (%)")
    hollow = {"linestyle": "", "markerfacecolor": "none"}
    handles = [
        *plot.keys(looks, lambda batch: wording.axis("batch", batch)),
        *([plot.ink_key("ideal", linestyle=":")] if scales else []),
        *([plot.ink_key("model that fits best", linestyle="--", linewidth=0.9)] if shown["fit_holds"].any() else []),
        *([plot.ink_key("dip", marker="o", markersize=11, **hollow)] if shown["dip"].any() else []),
        *([plot.ink_key("several hosts (how many)", marker="o", **hollow)] if (shown["hosts"] > 1).any() else []),
    ]
    if (shown["compact"] & (shown["n_ok"] == 0)).any():
        handles.append(plot.ink_key("no value", linestyle="", marker="x", markersize=5))
    plot.legend(figure, handles)
    return plot.to_svg(figure)


def _efficiencies(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the range of efficiencies that all panels share, so that they can be compared.

    It spans all values and 100 %, with a margin of 3 %.
    """
    lowest, highest = plot.range_of(_compared(rows), _EFFICIENCY)
    lowest, highest = min(lowest, 100.0), max(highest, 100.0)
    margin = 0.03 * max(highest - lowest, 10.0)
    return max(0.0, lowest - margin), highest + margin


def _gaps(axes: Any, rows: pd.DataFrame, looks: dict[Any, plot.Look]) -> None:
    """Draw crosses where lines have no value, and the reasons in the lower right corner, below lines that rise.

    Args:
        axes: axes of the panel.
        rows: cells of the panel.
        looks: look of each batch.
    """
    across = axes.get_xaxis_transform()
    said = []
    planned = rows[rows["compact"]].groupby("batch", sort=True)
    for batch, lost in rows[rows["compact"] & (rows["n_ok"] == 0)].groupby("batch", sort=True):
        how = {"marker": "x", "color": looks[batch].colour, "markersize": 5, "linestyle": ""}
        axes.plot(lost["ranks"], [0.03] * len(lost), transform=across, clip_on=False, zorder=5, **how)
        reasons = lost.assign(why=[plot.why_not(row) for row in lost.to_dict("records")]).groupby("why", sort=False)[
            "ranks"
        ]
        for why, ranks in reasons:
            where = (
                "" if len(ranks) == len(planned.get_group(batch)) else f" at {', '.join(str(count) for count in ranks)}"
            )
            said.append(f"batch {batch}{where}: {why}")
    more = [f"and {len(said) - _GAPS_NAMED:,} more"] if len(said) > _GAPS_NAMED else []
    words = "\n".join([*said[:_GAPS_NAMED], *more])
    place = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    axes.text(0.99, 0.07, words, fontsize=plot.small_pt(), zorder=5, in_layout=False, **place)


def _beside(rows: pd.DataFrame, part: float) -> pd.Series:
    """Return the horizontal positions of markers. Those of several hosts are shifted to the right.

    The shift is at most a third of the distance to the next number of devices.

    Args:
        rows: cells of a line.
        part: share of the shift, which separates the lines of several batches.
    """
    counts = np.array(sorted(rows["ranks"].unique()), dtype=float)
    gaps = np.append(np.diff(counts), counts[-1] * 0.46)
    room = rows["ranks"].map(dict(zip(counts, gaps, strict=True)))
    # With the same number of devices, more hosts are shifted further.
    hosts = rows.groupby("ranks")["hosts"].rank(method="dense") / rows.groupby("ranks")["hosts"].transform("nunique")
    return rows["ranks"] + part * hosts * np.minimum(0.35 * room, 0.16 * counts[-1]) * ~rows["compact"].astype(bool)


def _series(
    top: Any, below: list[Any], rows: pd.DataFrame, look: plot.Look, part: float, metric: Metric
) -> dict[tuple[int, str], tuple[float, float]]:
    """Draw a line with its markers, ideal, model and dips.

    Return the labels for numbers of hosts. The key is the number of devices and the text; the value is the position of the
    marker.

    Args:
        top: axes of the performance.
        efficiency_axes: axes of the efficiency; empty for a metric without one.
        rows: cells of the line.
        look: look of the line.
        part: share of the shift of markers of several hosts.
        metric: metric of the campaign.
    """
    line = rows[rows["compact"] & (rows["n_ok"] > 0)]
    hosts: dict[tuple[int, str], tuple[float, float]] = {}
    if line.empty:
        return hosts
    start = line.iloc[0]
    if metric.scales:
        counts = np.linspace(start["ranks"], line["ranks"].max(), 40 if metric.scaling == "time_of_fixed_work" else 2)
        power = {"total_rate": 1, "time_of_fixed_work": -1}.get(str(metric.scaling), 0)
        ideal = start["mean"] * (counts / start["ranks"]) ** power
        top.plot(counts, ideal, color=look.colour, linestyle=":", linewidth=0.9)
    top.plot(line["ranks"], line["mean"], color=look.colour)
    for bottom in below:
        bottom.plot(line["ranks"], line["efficiency_pct"], color=look.colour)
    if start["fit_holds"]:
        devices = np.linspace(start["ranks"], line["ranks"].max(), 40)
        # Black and on top, because it lies on the line that it describes.
        top.plot(devices, scaling_curves.line(start, devices), color=plot.INK, linestyle="--", linewidth=0.9, zorder=4)
    dips = rows[rows["dip"]]
    if len(dips):
        ring = {"marker": "o", "markersize": 11, "linestyle": "", "markerfacecolor": "none"}
        top.plot(dips["ranks"], dips["mean"], color=plot.INK, **ring)
    measured = rows[rows["n_ok"] > 0]
    # The reference is 100 % by definition, so it has no interval.
    itself = measured["cell_id"] == start["cell_id"]
    bounds = ["efficiency_low", "efficiency_high"]
    measured = measured.assign(**measured[bounds].mask(itself), at=_beside(rows, part))
    for hollow, marked in measured.groupby(measured["hosts"] > 1, sort=True):
        plot.points(top, marked, marked["at"], plot.RATE, look, bool(hollow))
        for bottom in below:
            plot.points(bottom, marked, marked["at"], _EFFICIENCY, look, bool(hollow))
        if hollow and len(marked) <= _HOSTS_NAMED:
            for ranks, beside in marked.sort_values("at").groupby("ranks"):
                words = ", ".join(f"{count}" for count in beside["hosts"])
                hosts[ranks, words] = (beside["at"].iloc[-1], beside["mean"].iloc[-1])
    return hosts


def _ticks(counts: list[int]) -> list[int]:
    """Return the measured numbers of devices whose labels do not overlap that of their larger neighbour."""
    kept: list[int] = []
    for count in reversed(counts):
        if not kept or kept[-1] - count >= 0.06 * counts[-1]:
            kept.append(count)
    return kept[::-1]

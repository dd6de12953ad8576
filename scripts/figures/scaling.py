"""Figure: throughput and efficiency against the number of devices, with the ideal line."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from campaign import comparison, pairing, plot, scaling_fits, verdict, wording
from campaign.figure import Drawing, FigureData, nothing, page_table
from campaign.spread import spread

TITLE = "Scaling"
ANCHOR = "scaling"
SECTION = (
    "What do more devices give? The batch of each device is held, so the global batch grows with the devices (weak "
    "scaling). Speed-up and efficiency are against the fewest devices measured. Three models are fitted to each line, and a "
    "point that is slower than its neighbours on both sides say is named as a dip."
)


# Further dips are in the table.
_DIPS_NAMED = 5
_EFFICIENCY = plot.Columns("efficiency_pct", "efficiency_low", "efficiency_high")


def draw(data: FigureData) -> Drawing:
    rows = comparison.scaling(data.cells, pairing.blocks(data.runs, data.protocol))
    (rows,) = comparison.one_family(rows[rows["against_ranks"].notna()])
    if rows.empty:
        return nothing("no workload was measured with two numbers of devices that are otherwise equal")
    by = [*comparison.KIND, *comparison.option_columns(rows)]
    found = spread(data.runs)
    rows = scaling_fits.with_models(rows, [*by, "batch"], found, data.runs)
    panels = plot.panels(rows, by)
    findings = _findings(rows, by)
    leases_known = any(found.between_leases(str(name)) for name in rows["workload"].unique())
    caption = (
        f"Throughput (top) and efficiency (bottom) by devices in use; {wording.runs_behind(rows['n_ok'])} a point, mean with "
        f"95 % interval{wording.made_by(rows['interval_method'])}. "
        f"{verdict.counted(rows, data.protocol, 'the ideal speed-up')} Dotted: ideal. Lines join the compositions with the "
        "fewest hosts; hollow markers are several hosts; a cross names why a cell of a line has no value. "
        f"{_models(rows, leases_known)}{panels.sentence()}{plot.cut(rows, plot.RATE)} Protocol: "
        f"{wording.protocol(data.protocol)}."
    )
    with plot.style(data.style):
        svg = _picture(panels, " ".join(findings))
    table = page_table(
        rows,
        {
            "Workload": lambda row: wording.describe(row, [*by, "batch"]),
            "Devices": lambda row: wording.count(row["ranks"]),
            "Hosts": lambda row: wording.count(row["hosts"]),
            "Samples/s": lambda row: wording.rate(row["mean"]),
            "95 % interval": lambda row: wording.between(row["ci_low"], row["ci_high"], wording.rate),
            "CV": lambda row: wording.percent(row["cv_pct"]),
            "Speed-up": lambda row: wording.times(row["ratio"]),
            "95 % interval ": lambda row: wording.between(row["ratio_low"], row["ratio_high"], wording.times),
            "Efficiency": lambda row: wording.percent(row["efficiency_pct"], 0),
            **verdict.COLUMNS,
            "Model that fits best [95 %]": lambda row: scaling_fits.said(row) if row["ideal"] == 1 else "",
            "Under its neighbours": _under,
            "Runs": lambda row: wording.count(row["n_ok"]),
            "Failed": lambda row: row["failures"],
        },
    )
    return Drawing(svg=svg, caption=caption, alt=" ".join(findings), findings=findings, data=rows, **table)


def _findings(rows: pd.DataFrame, by: list[str]) -> tuple[str, ...]:
    """The best and the worst efficiency at the largest number of devices of a series."""
    series = [*by, "batch"]
    measured = rows[rows["compact"] & rows["ratio"].notna() & (rows["ideal"] > 1)]
    last = measured.sort_values("ranks", kind="stable").drop_duplicates(series, keep="last")
    if last.empty:
        return ()
    different = [column for column in series if last[column].nunique() > 1] or ["workload"]
    ordered = last.sort_values("efficiency_pct", kind="stable")

    def say(row: Any) -> str:
        pace = wording.with_interval(row["ratio"], row["ratio_low"], row["ratio_high"], wording.times)
        return (
            f"{wording.describe(row, different)}: {wording.axis('ranks', row['ranks'])} give {pace} the throughput of "
            f"{row['against_ranks']:.0f}, an efficiency of {wording.percent(row['efficiency_pct'], 0)}"
        )

    best, worst = ordered.iloc[-1], ordered.iloc[0]
    ends = (f"{say(best)}.",)
    if len(ordered) > 1:
        ends = (f"Scaling is best for {say(best)}.", f"Scaling is worst for {say(worst)}.")
    return (*ends, *_fits(rows, worst, different), *_dips(rows, different))


def _models(rows: pd.DataFrame, leases_known: bool) -> str:
    """For the caption: how models were fitted, and what a dip is."""
    fitted = (
        "Dashed: the model with the smallest AICc (Amdahl, Gustafson, latency-bandwidth). " if rows["fit"].any() else ""
    )
    tested = int(rows["dip_p"].notna().sum())
    if not tested:
        return fitted
    leases = "runs and leases" if leases_known else "runs; that of leases is not known, and is not in it"
    return (
        f"{fitted}Dips: {wording.plural(tested, 'point')} with neighbours on both sides tested against them (straight in 1/n; "
        f"one-sided t with the spread of {leases}; Holm, 5 %); they take no part in the models. "
    )


def _fits(rows: pd.DataFrame, worst: Any, different: list[str]) -> Iterable[str]:
    """How many lines each model fits best, and the model of the line that scales worst."""
    lines = rows[(rows["ideal"] == 1) & (rows["fit"] != "")]
    if lines.empty:
        return
    counts = lines["fit"].value_counts()
    if len(lines) > 1:
        shares = ", ".join(f"{model} {wording.count(count)}" for model, count in counts.items())
        yield f"Model that fits best, of {wording.plural(len(lines), 'line')}: {shares}."
    if worst["fit"]:
        whose = "" if len(lines) == 1 else f" ({wording.describe(worst, different)})"
        yield f"The line that scales worst{whose}: {scaling_fits.said(worst)}."


def _dips(rows: pd.DataFrame, different: list[str]) -> Iterable[str]:
    """Each point that is under its neighbours; that there is none, where some could be tested."""
    dips = rows[rows["dip"]].sort_values("dip_pct", ascending=False, kind="stable")
    for row in dips.head(_DIPS_NAMED).to_dict("records"):
        under = wording.with_interval(
            row["dip_pct"], row["dip_low"], row["dip_high"], wording.percent, wording.describe(row, different)
        )
        yield f"Dip: {wording.axis('ranks', row['ranks'])} give {under} less than their neighbours on both sides say."
    if len(dips) > _DIPS_NAMED:
        yield f"{wording.plural(len(dips) - _DIPS_NAMED, 'further dip')} in the data table."
    tested = int(rows["dip_p"].notna().sum())
    if dips.empty and tested:
        yield f"No point dips under its neighbours ({wording.plural(tested, 'point')} tested)."


def _under(row: Any) -> str:
    if not np.isfinite(row["dip_p_holm"]):
        return wording.NONE
    size = f"{wording.percent(row['dip_pct'])} [{wording.between(row['dip_low'], row['dip_high'], wording.percent)}]"
    return f"{'dip: ' if row['dip'] else ''}{size}, p {verdict.p_value(row['dip_p_holm'])}"


def _picture(panels: plot.Panels, alt: str) -> str:
    batches = sorted({batch for panel in panels.shown for batch in panel.rows["batch"]})
    looks = {batch: plot.look(position) for position, batch in enumerate(batches)}
    figure, axes = plot.grid(len(panels.shown), height_in=3.3, heights=(2.2, 1))
    for position, (panel, (top, bottom)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(top, panel.label)
        for batch, rows in panel.rows.groupby("batch", sort=True):
            # Several hosts stand a little to the right, so that the markers of batches do not hide each other.
            aside = 0.022 * panel.rows["ranks"].max() * (1 + batches.index(batch))
            _series(top, bottom, rows, looks[batch], aside)
        bottom.axhline(100, color=plot.INK, linestyle=":", linewidth=0.9)
        ideal = (panel.rows["against_mean"] * panel.rows["ideal"]).max()
        top.set_ylim(0, 1.05 * max(ideal, plot.range_of(panel.rows, plot.RATE)[1]))
        lowest, highest = plot.range_of(panel.rows[panel.rows["ideal"] != 1], _EFFICIENCY)
        bottom.set_ylim(max(0.0, 10 * ((lowest - 4) // 10)), max(104.0, highest))
        bottom.set_xticks(_ticks(sorted(panel.rows["ranks"].unique())))
        bottom.set_xlim(0, panel.rows["ranks"].max() * 1.14)
        bottom.set_xlabel("devices in use")
        if plot.is_left(position):
            top.set_ylabel("throughput (samples/s)")
            bottom.set_ylabel("efficiency (%)")
    handles = [
        Line2D([], [], color=each.colour, marker=each.marker, label=wording.axis("batch", batch))
        for batch, each in looks.items()
    ]
    handles.append(Line2D([], [], color=plot.INK, linestyle=":", label="ideal"))
    if any((panel.rows["fit"] != "").any() for panel in panels.shown):
        handles.append(Line2D([], [], color=plot.INK, linestyle="--", linewidth=0.9, label="model that fits best"))
    hollow = {"color": plot.INK, "linestyle": "", "markerfacecolor": "none"}
    if any(panel.rows["dip"].any() for panel in panels.shown):
        handles.append(Line2D([], [], marker="o", markersize=11, label="dip", **hollow))
    if any((panel.rows["hosts"] > 1).any() for panel in panels.shown):
        handles.append(Line2D([], [], marker="o", label="several hosts", **hollow))
    plot.legend(figure, handles)
    return plot.to_svg(figure, ANCHOR, TITLE, alt)


def _series(top: Any, bottom: Any, rows: pd.DataFrame, look: plot.Look, aside: float) -> None:
    line = rows[rows["compact"] & (rows["n_ok"] > 0)]
    start = line.iloc[0]
    ideal = [start["mean"], start["mean"] * line["ranks"].max() / start["ranks"]]
    top.plot([start["ranks"], line["ranks"].max()], ideal, color=look.colour, linestyle=":", linewidth=0.9)
    top.plot(line["ranks"], line["mean"], color=look.colour)
    bottom.plot(line["ranks"], line["efficiency_pct"], color=look.colour)
    if start["fit"]:
        devices = np.linspace(start["ranks"], line["ranks"].max(), 40)
        top.plot(devices, scaling_fits.line(start, devices), color=look.colour, linestyle="--", linewidth=0.9)
    dips = rows[rows["dip"]]
    if len(dips):
        ring = {"marker": "o", "markersize": 11, "linestyle": "", "markerfacecolor": "none"}
        top.plot(dips["ranks"], dips["mean"], color=plot.INK, **ring)
    for row in rows[rows["compact"] & (rows["n_ok"] == 0)].to_dict("records"):
        plot.gap(top, row["ranks"], plot.why_not(row))
    measured = rows[rows["n_ok"] > 0]
    # The reference is 100 % by definition, so it has no interval.
    itself = measured["cell_id"] == start["cell_id"]
    bounds = ["efficiency_low", "efficiency_high"]
    measured = measured.assign(**measured[bounds].mask(itself))
    for hollow, marked in measured.groupby(measured["hosts"] > 1, sort=True):
        x = marked["ranks"] + aside * ~marked["compact"].astype(bool)
        plot.points(top, marked, x, plot.RATE, look, bool(hollow))
        plot.points(bottom, marked, x, _EFFICIENCY, look, bool(hollow))


def _ticks(counts: list[int]) -> list[int]:
    """Measured device counts, without those too close to their larger neighbour to be labelled."""
    kept: list[int] = []
    for count in reversed(counts):
        if not kept or kept[-1] - count >= 0.06 * counts[-1]:
            kept.append(count)
    return kept[::-1]

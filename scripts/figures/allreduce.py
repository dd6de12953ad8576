"""Figure: bus bandwidth of all-reduces by message size, with the latency-bandwidth model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from campaign.common import wording
from campaign.observe.links.alpha_beta_model import predict_allreduce_s
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, describe_lease_coverage, nothing, select_first_and_last
from campaign.report.link_selection import SelectedLinks, compare_allreduce, format_size, select_shown_links

TITLE = "All-reduce by message size"
SECTION = (
    "How fast is an all-reduce over all devices of a composition? Small messages depend on latency, "
    "large ones on bandwidth."
)
RESTS_ON = ("links",)
METHOD = (
    "the ring model of all-reduces, t = 2(n−1)α + 2(n−1)/n·S/B, is fitted by relative least squares over at least three sizes; bus "
    "bandwidth is 2(n−1)/n·bytes/time"
)
PLACE = 130
UNITS = {"sizes": ""}

_CURVE_POINTS = 80
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw(data: FigureData) -> Drawing:
    """Draw the measured bus bandwidth of all-reduces by message size, with one panel per number of devices."""
    selected_links = [links for links in select_shown_links(data.links) if links.document["allreduce"]]
    if not selected_links:
        return nothing(
            "no all-reduce over two or more devices was measured with the links; results of all-reduce workloads are in the "
            "figures of their metrics"
        )
    rows = _tabulate_bandwidths(selected_links)
    lease_ids = [links["lease_id"] for links in data.links if links["document"]["allreduce"]]
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_panels(selected_links),
        {
            "Configuration": columns.text_column("configuration"),
            "Devices": lambda row: str(row["ranks"]),
            "Latency alpha, µs": columns.number_column("alpha_us"),
            "95 % interval": columns.interval_column("alpha_low_us", "alpha_high_us"),
            "Bandwidth B, GB/s": columns.number_column("gb_per_s"),
            "95 % interval ": lambda row: _format_bounds(row["low_gb_per_s"], row["high_gb_per_s"]),
            "Residual": columns.percent_column("residual_pct", 0),
            "Highest bus bandwidth, GB/s": columns.number_column("busbw_max_gb_per_s"),
            "At message size": lambda row: format_size(row["busbw_max_at_bytes"]),
            "Sizes": lambda row: str(row["sizes"]),
            "Left out": columns.text_column("left_out", wording.NO_VALUE),
        },
        caption=_format_caption(selected_links),
        findings=_describe_extremes(rows, data.links),
        coverage=describe_lease_coverage(data.leases, lease_ids, "have an all-reduce measurement"),
    )


def _format_caption(selected_links: list[SelectedLinks]) -> str:
    """Format the caption, which explains markers, lines and panels."""
    repeats = min(links.document["settings"]["repeats"] for links in selected_links)
    return (
        "Bus bandwidth by message size per device (fp32), one panel per number of devices. Markers: from the slowest device's "
        f"median time over at least {repeats} repeats. Lines: the fitted ring model."
    )


_MODEL = ("alpha_us", "alpha_low_us", "alpha_high_us", "gb_per_s", "low_gb_per_s", "high_gb_per_s", "residual_pct")


def _tabulate_bandwidths(selected_links: list[SelectedLinks]) -> pd.DataFrame:
    """Build one row per configuration with the parameters of the model and the bus bandwidth of each message size."""
    rows = []
    for links in selected_links:
        allreduce, model = links.document["allreduce"], links.document["model"]["allreduce"] or {}
        sizes, rates = allreduce["size_bytes"], allreduce["busbw_gb_per_s"]
        best = int(np.argmax(rates))
        rows.append(
            {
                "configuration": links.configuration,
                "ranks": allreduce["ranks"],
                **{name: np.nan if model.get(name) is None else model[name] for name in _MODEL},
                "busbw_max_gb_per_s": rates[best],
                "busbw_max_at_bytes": sizes[best],
                "sizes": len(sizes),
                "largest_bytes": max(sizes),
                "left_out": ", ".join(format_size(size["size_bytes"]) for size in links.document["left_out"]),
                **{f"busbw_{size}_gb_per_s": rate for size, rate in zip(sizes, rates, strict=True)},
            }
        )
    return pd.DataFrame(rows)


def _format_bounds(low: float, high: float) -> str:
    """Format an interval. An infinite upper bound is written as 'or more'."""
    if np.isfinite(low) and not np.isfinite(high):
        return f"{wording.format_number(low)} or more"
    return wording.format_range(low, high)


def _describe_extremes(rows: pd.DataFrame, links: Sequence[Any]) -> tuple[str, ...]:
    """Return a sentence per number of devices on the fastest and the slowest configuration, at the largest message size."""
    sentences = []
    for ranks, group in rows.groupby("ranks", sort=True):
        size = group["largest_bytes"].max()
        ranking = group[group["largest_bytes"] == size].sort_values(
            f"busbw_{size}_gb_per_s", ascending=False, kind="stable"
        )
        ends = select_first_and_last(ranking)
        names = [str(row["configuration"]) for row in ends]
        conditions = f"on {wording.pluralize(int(ranks), 'device')} at {format_size(size)}"
        if len(ends) == 2:
            sentences.append(compare_allreduce(links, *names, size, conditions))
        else:
            bandwidth = wording.format_number(ends[0][f"busbw_{size}_gb_per_s"])
            sentences.append(f"{names[0]} reaches {bandwidth} GB/s {conditions}.")
    return tuple(sentences)


def _draw_panels(selected_links: list[SelectedLinks]) -> str:
    """Draw one panel per number of devices, because only equal numbers are comparable. Return SVG."""
    ranks = pd.Series([entry.document["allreduce"]["ranks"] for entry in selected_links])
    panels = [
        plot.Panel(wording.pluralize(int(count), "device"), pd.DataFrame({"place": group.index}))
        for count, group in ranks.groupby(ranks, sort=True)
    ][: plot.MAX_PANELS]
    looks = plot.assign_looks(selected_links[place].configuration for panel in panels for place in panel.rows["place"])

    def draw_panel(axes: Any, rows: pd.DataFrame) -> None:
        """Draw all configurations with the same number of devices."""
        for links in (selected_links[place] for place in rows["place"]):
            _draw_configuration(axes, links, looks[links.configuration])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=2**5, numticks=9))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(size)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: _format_tick(rate)))

    handles = [
        key for name, entry in looks.items() for key in plot.build_legend_keys({name: entry}, linestyle=entry.dashes)
    ]
    return plot.draw_multiples(
        plot.Panels(tuple(panels), "", 0), draw_panel, handles, "message size", "bus bandwidth (GB/s)", height_in=2.9
    )


def _format_tick(rate: float) -> str:
    """Format a power of ten for the axis of bandwidths."""
    power = round(np.log10(rate))
    return f"{rate:g}" if power >= -3 else "10" + str(power).translate(_SUPERSCRIPTS)


def _draw_configuration(axes: Any, links: SelectedLinks, look: plot.SeriesLook) -> None:
    """Draw the measured points of a configuration, and the line of its model."""
    allreduce, model = links.document["allreduce"], links.document["model"]["allreduce"]
    sizes, ranks = allreduce["size_bytes"], allreduce["ranks"]
    axes.plot(sizes, allreduce["busbw_gb_per_s"], color=look.colour, marker=look.marker, linestyle="", zorder=3)
    if model is None or len(sizes) < 2:
        return
    curve = np.geomspace(sizes[0], sizes[-1], _CURVE_POINTS)
    seconds = predict_allreduce_s(curve, ranks, model["alpha_us"], model["gb_per_s"])
    # A negative fitted latency can make the time negative: there is no rate to draw then.
    rates = np.where(seconds > 0, 2 * (ranks - 1) / ranks * curve / np.where(seconds > 0, seconds, 1.0) / 1e9, np.nan)
    axes.plot(curve, rates, color=look.colour, marker="", linestyle=look.dashes, linewidth=1.0)

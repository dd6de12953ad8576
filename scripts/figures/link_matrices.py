"""Figure: bandwidth and latency between every two devices of a composition, measured before its runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm

from campaign.common import wording
from campaign.observe.links.document import KINDS, TELLING_BYTES
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, coverage_of_leases, nothing, only_in_table
from campaign.report.link_selection import LinksOf, kinds_ratio, shown, size_words

TITLE = "Links between devices"
SECTION = (
    "What bandwidth and latency do the links of a composition have, one pair of devices at a time? A row "
    "sends, a column receives."
)
RESTS_ON = ("links",)
METHOD = "bandwidth of a pair of devices is from the send until the receiver confirms arrival, one pair at a time"
PLACE = 120
COUNTERPARTS = {
    "Falcon: Table IV": "bandwidth and latency between local and fabric devices",
    "Dell: Table 1": "bandwidth between hosts and GPUs, local and remote",
    "Dell: Table 2": "latency between hosts and GPUs",
}

_COLOURS = colormaps["cividis"].resampled(48)  # its lightness rises monotonically, so that it is readable in grey
_MOST_NUMBERS = 8  # numbers would not fit into the cells of more devices
_MOST_SHAPES = 16  # the cells of more devices are one bitmap instead of vector shapes
_MOST_LABELS = 16
_LABEL_CHARACTERS = 16
_TITLE_CHARACTERS = 22  # the unit of the colours is beside the title
_NUMBER_PT = 6.5
_LETTERS = {kind: "".join(part[0].upper() for part in kind.split(" + ")) for kind in KINDS}
_BANDWIDTH, _LATENCY = "unidirectional_gb_per_s", "latency_us"
_ALARM_PCT = 10.0  # below the median of its type; such a link is the first finding


def draw(data: FigureData) -> Drawing:
    """Draw a matrix of bandwidths and a matrix of latencies between the devices of each composition."""
    every = [each for each in shown(data.links) if each.document["matrices"]]
    if not every:
        return nothing("no links between devices were measured")
    rows = _rows(every)
    drawn = every[: plot.MOST_PANELS]
    measured = [each["lease_id"] for each in data.links if each["document"]["matrices"]]
    return plot.drawn(
        data,
        rows,
        lambda: _picture(drawn),
        {
            "Configuration": columns.text("configuration"),
            "From": columns.text("from"),
            "To": columns.text("to"),
            "Way": columns.text("kind"),
            "One way, GB/s": columns.number("unidirectional_gb_per_s"),
            "Both ways, sum, GB/s": columns.number("bidirectional_gb_per_s"),
            "Latency, µs": columns.number("latency_us"),
            "Peer access": lambda row: wording.NONE if row["p2p"] is None else ("yes" if row["p2p"] else "no"),
        },
        caption=f"{_caption(every, drawn)}",
        findings=_findings(rows, data.links),
        coverage=coverage_of_leases(data.leases, measured, "had their links measured"),
    )


def _caption(every: list[LinksOf], drawn: list[LinksOf]) -> str:
    """Format the caption, which explains the matrices and the types of links, and reports problems of the measurement.

    Args:
        selected_links: links of all configurations.
        drawn_links: links of the configurations that are drawn.
    """
    letters = ", ".join(
        f"{_LETTERS[kind]} {kind}"
        for kind in KINDS
        if any(kind in row for each in drawn for row in each.document["kinds"])
    )
    sizes = sorted({each.document["matrix_size_bytes"] for each in every})
    said = " to ".join(dict.fromkeys(size_words(size) for size in (sizes[0], sizes[-1])))
    repeats = min(each.document["settings"]["repeats"] for each in every)
    more = only_in_table(len(every) - len(drawn), "configuration", "table")
    return (
        f"Above, bandwidth of one direction ({said}); below, half a round trip of the smallest message; medians "
        f"of {repeats} repeats or "
        f"more. Lines separate hosts; F: behind the fabric. Types: {letters}.{_untold(every)}{more}{_problems(every)}"
    )


def _untold(every: list[LinksOf]) -> str:
    """Return a sentence on configurations without a bandwidth because their messages were too small, or an empty string."""
    short = [each.configuration for each in every if each.document["matrix_size_bytes"] < TELLING_BYTES]
    return f" No bandwidth of {', '.join(short)}: only messages under 64 KiB fitted into its time." if short else ""


def _problems(every: list[LinksOf]) -> str:
    """Return a sentence with the first problem of the measurement and the number of further ones, or an empty string."""
    found = [f"{each.configuration}: {problem}" for each in every for problem in each.document["problems"]]
    if not found:
        return ""
    more = f", and {wording.plural(len(found) - 1, 'further problem')}" if len(found) > 1 else ""
    return f" Not all went well: {found[0]}{more}."


def _rows(every: list[LinksOf]) -> pd.DataFrame:
    """Build one row per pair of devices with its type of link, bandwidths, latency and peer access."""
    found = []
    for each in every:
        document, names = each.document, [device["name"] for device in each.document["devices"]]
        for out, ways in enumerate(document["kinds"]):
            for to, kind in enumerate(ways):
                if kind is not None:
                    values = {name: _values(each, name)[out][to] for name in document["matrices"]}
                    ends = {"configuration": each.configuration, "from": names[out], "to": names[to], "kind": kind}
                    found.append({**ends, "size_bytes": document["matrix_size_bytes"], **values})
    rows = pd.DataFrame(found)
    numbers = ["unidirectional_gb_per_s", "bidirectional_gb_per_s", "latency_us"]
    return rows.astype(dict.fromkeys(numbers, float)).astype({"p2p": object})


def _values(each: LinksOf, name: str) -> Any:
    """Return a matrix of measured values. Bandwidths are None if no message was large enough to measure them."""
    matrix = each.document["matrices"][name]
    if name.endswith("gb_per_s") and each.document["matrix_size_bytes"] < TELLING_BYTES:
        return [[None] * len(row) for row in matrix]
    return matrix


def _findings(rows: pd.DataFrame, links: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return sentences on the types of links.

    They give the median of each type from the fastest to the slowest, the ratio of local to fabric links inside a composition,
    and the slowest link for its type. A slow link comes first if it is far below its median.
    """
    measured = rows[rows[_BANDWIDTH].notna()]
    if measured.empty:
        return ("No bandwidth could be measured.",)
    kinds = measured.groupby("kind")[[_BANDWIDTH, _LATENCY]].median().sort_values(_BANDWIDTH, ascending=False)
    counts = measured["kind"].value_counts()
    words = [
        f"{kind} {wording.number(row[_BANDWIDTH])} GB/s and {wording.number(row[_LATENCY])} µs "
        f"({wording.plural(int(counts[kind]), 'pair')})"
        for kind, row in kinds.iterrows()
    ]
    said = [f"Median of one direction, by type of link: {'; '.join(words)}."]
    for configuration, own in measured.groupby("configuration", sort=False):
        medians = own.groupby("kind")[_BANDWIDTH].median()
        if {"local", "fabric"} <= set(medians.index):
            times = kinds_ratio(links, str(configuration), ("local", "fabric"))
            said.append(f"{configuration}: local links have {times} the bandwidth of fabric links.")
            break
    spread = measured[_BANDWIDTH] / measured.groupby(["configuration", "kind"])[_BANDWIDTH].transform("median")
    slowest = measured.loc[spread.idxmin()]
    alarming = 100 * (1 - spread.min()) >= _ALARM_PCT
    said.insert(
        0 if alarming else len(said),
        f"Slowest link for its type: {slowest['from']} to {slowest['to']} of {slowest['configuration']}, "
        f"{wording.number(slowest[_BANDWIDTH])} GB/s, {wording.percent(100 * (1 - spread.min()), 0)} below the median of its "
        f"{slowest['kind']} links (one measurement, not tested).",
    )
    return tuple(said)


def _picture(drawn: list[LinksOf]) -> str:
    """Draw a bandwidth matrix above a latency matrix for each configuration. Return SVG."""
    most = max(len(each.document["devices"]) for each in drawn)
    figure, panels = plot.grid(len(drawn), height_in=5.0 if most > 4 else 4.4, heights=(1.0, 1.0))
    for row, (name, unit) in enumerate(((_BANDWIDTH, "GB/s"), (_LATENCY, "µs"))):
        norm = _norm(drawn, name)
        for position, (each, axes) in enumerate(zip(drawn, panels, strict=True)):
            painted = _heat(axes[row], each, name, norm, names=row == 1, left=plot.is_left(position))
            # One colour bar per panel: a shared one would make the panel beside it smaller than the others.
            _scale(figure.colorbar(painted, ax=axes[row], aspect=25, pad=0.03), norm, unit)
    for each, axes in zip(drawn, panels, strict=True):
        plot.title(axes[0], each.configuration, _TITLE_CHARACTERS)
    return plot.to_svg(figure)


def _scale(bar: Any, norm: LogNorm, unit: str) -> None:
    """Label a colour bar with three numbers and the unit. Other values are read off the cells."""
    ticks = np.geomspace(norm.vmin, norm.vmax, 3)
    bar.set_ticks(ticks, labels=[wording.number(tick, 2) for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    # As bitmaps, equal colour bars would have the same id in the page.
    bar.solids.set_rasterized(False)
    bar.solids.set_edgecolor("face")
    bar.ax.tick_params(labelsize=7)
    bar.ax.set_title(unit, fontsize=7.5, fontweight="normal", loc="left")


def _norm(drawn: list[LinksOf], name: str) -> LogNorm:
    """Build the logarithmic colour scale that all matrices of a quantity share."""
    values = [value for each in drawn for row in _values(each, name) for value in row if value is not None]
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    # A scale over a tiny range would show noise in all colours.
    return LogNorm(min(low, high / 2), high)


def _heat(axes: Any, each: LinksOf, name: str, norm: LogNorm, *, names: bool, left: bool) -> Any:
    """Draw one matrix as coloured cells, with lines between hosts. Return the mesh for its colour bar.

    Args:
        axes: axes to draw on.
        links: links of the configuration.
        name: name of the matrix.
        norm: colour scale.
        has_names: whether the columns are labelled with the devices.
        is_leftmost: whether the rows are labelled 'from'.
    """
    matrix = _values(each, name)
    values = np.array([[np.nan if value is None else value for value in row] for row in matrix], dtype=float)
    count = len(values)
    painted = axes.pcolormesh(
        np.ma.masked_invalid(values), cmap=_COLOURS, norm=norm, rasterized=count > _MOST_SHAPES, edgecolor="none"
    )
    if count <= _MOST_NUMBERS:
        _numbers(axes, each, values, painted)
    hosts = [device["host"] for device in each.document["devices"]]
    for position in (place for place in range(1, count) if hosts[place] != hosts[place - 1]):
        axes.axhline(position, color=plot.INK, linewidth=1.6)
        axes.axvline(position, color=plot.INK, linewidth=1.6)
    axes.set_ylim(count, 0)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    _labels(axes, each, names)
    if left:
        axes.set_ylabel("from")
    if names:
        axes.set_xlabel("to")
    return painted


def _numbers(axes: Any, each: LinksOf, values: Any, painted: Any) -> None:
    """Write the value and the type of link into each cell, in black or white by the brightness of the cell."""
    how = {"ha": "center", "va": "center", "fontsize": _NUMBER_PT}
    for out, ways in enumerate(each.document["kinds"]):
        for to, kind in enumerate(ways):
            if kind is None or np.isnan(values[out, to]):
                continue
            red, green, blue, _ = painted.cmap(painted.norm(values[out, to]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            words = f"{wording.number(values[out, to], 2)}\n{_LETTERS[kind]}"
            axes.text(to + 0.5, out + 0.5, words, color="#ffffff" if dark else "#000000", **how)


def _labels(axes: Any, each: LinksOf, names: bool) -> None:
    """Label rows, and optionally columns, with the devices. Matrices of many devices have no labels."""
    devices = each.document["devices"]
    if len(devices) > _MOST_LABELS:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    words = [_short(device["name"]) + (" F" if device["attach"] == "fabric" else "") for device in devices]
    places = np.arange(len(words)) + 0.5
    axes.set_xticks(places, words if names else [""] * len(words), rotation=90)
    axes.set_yticks(places, words)
    axes.tick_params(length=0, labelsize=7)


def _short(name: str) -> str:
    """Shorten a device name to its end."""
    return name if len(name) <= _LABEL_CHARACTERS else f"…{name[1 - _LABEL_CHARACTERS :]}"

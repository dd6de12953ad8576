"""Figure: bandwidth and latency between every two devices of a composition, measured before its runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm

from campaign.common import wording
from campaign.observe.links.document import KINDS, MIN_BANDWIDTH_BYTES
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, describe_lease_coverage, describe_undrawn, nothing
from campaign.report.link_selection import SelectedLinks, compare_link_kinds, format_size, select_shown_links

TITLE = "Links between devices"
SECTION = "What bandwidth and latency does each pair of devices in a composition have? Rows send, columns receive."
RESTS_ON = ("links",)
METHOD = "the bandwidth of a pair of devices is measured until the receiver confirms arrival, one pair at a time"
PLACE = 120
COUNTERPARTS = {
    "Falcon: Table IV": "bandwidth and latency between local and fabric devices",
    "Dell: Table 1": "bandwidth between hosts and GPUs, local and remote",
    "Dell: Table 2": "latency between hosts and GPUs",
}

_COLOURS = colormaps["cividis"].resampled(48)  # its lightness rises monotonically, so that it is readable in grey
_MAX_DEVICES_WITH_NUMBERS = 8  # numbers would not fit into the cells of more devices
_MAX_DEVICES_AS_SHAPES = 16  # the cells of more devices are one bitmap instead of vector shapes
_MAX_DEVICES_WITH_LABELS = 16
_MAX_LABEL_CHARS = 16
_MAX_TITLE_CHARS = 22  # The unit of the colours is next to the title.
_NUMBER_PT = 6.5
_KIND_LETTERS = {kind: "".join(part[0].upper() for part in kind.split(" + ")) for kind in KINDS}
_BANDWIDTH, _LATENCY = "unidirectional_gb_per_s", "latency_us"
_ALARM_PCT = 10.0  # below the median of its type; such a link is the first finding


def draw(data: FigureData) -> Drawing:
    """Draw a matrix of bandwidths and a matrix of latencies between the devices of each composition."""
    selected_links = [links for links in select_shown_links(data.links) if links.document["matrices"]]
    if not selected_links:
        return nothing("no links between devices were measured")
    rows = _tabulate_pairs(selected_links)
    drawn_links = selected_links[: plot.MAX_PANELS]
    lease_ids = [links["lease_id"] for links in data.links if links["document"]["matrices"]]
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_matrices(drawn_links),
        {
            "Configuration": columns.text_column("configuration"),
            "From": columns.text_column("from"),
            "To": columns.text_column("to"),
            "Link type": columns.text_column("kind"),
            "One way, GB/s": columns.number_column("unidirectional_gb_per_s"),
            "Both ways together, GB/s": columns.number_column("bidirectional_gb_per_s"),
            "Latency, µs": columns.number_column("latency_us"),
            "Peer access": lambda row: wording.NO_VALUE if row["p2p"] is None else ("yes" if row["p2p"] else "no"),
        },
        caption=_format_caption(selected_links, drawn_links),
        findings=_describe_link_types(rows, data.links),
        coverage=describe_lease_coverage(data.leases, lease_ids, "had their links measured"),
    )


def _format_caption(selected_links: list[SelectedLinks], drawn_links: list[SelectedLinks]) -> str:
    """Format the caption, which explains the matrices and the types of links, and reports problems of the measurement.

    Args:
        selected_links: links of all configurations.
        drawn_links: links of the configurations that are drawn.
    """
    letters = ", ".join(
        f"{_KIND_LETTERS[kind]} {kind}"
        for kind in KINDS
        if any(kind in row for links in drawn_links for row in links.document["kinds"])
    )
    sizes = sorted({links.document["matrix_size_bytes"] for links in selected_links})
    size_text = " to ".join(dict.fromkeys(format_size(size) for size in (sizes[0], sizes[-1])))
    repeats = min(links.document["settings"]["repeats"] for links in selected_links)
    remainder_text = describe_undrawn(len(selected_links) - len(drawn_links), "configuration", "table")
    return (
        f"Top: bandwidth in one direction ({size_text}). Bottom: latency, half a round trip of the smallest message. Medians of "
        f"at least {repeats} repeats. Lines separate hosts; F: attached through the fabric. Link types: "
        f"{letters}.{_describe_small_messages(selected_links)}{remainder_text}{_describe_problems(selected_links)}"
    )


def _describe_small_messages(selected_links: list[SelectedLinks]) -> str:
    """Return a sentence on configurations without a bandwidth because their messages were too small, or an empty string."""
    short = [
        links.configuration for links in selected_links if links.document["matrix_size_bytes"] < MIN_BANDWIDTH_BYTES
    ]
    return (
        f" No bandwidth for {', '.join(short)}: only messages below 64 KiB fitted into the time limit." if short else ""
    )


def _describe_problems(selected_links: list[SelectedLinks]) -> str:
    """Return a sentence with the first problem of the measurement and the number of further ones, or an empty string."""
    problems = [
        f"{links.configuration}: {problem}" for links in selected_links for problem in links.document["problems"]
    ]
    if not problems:
        return ""
    remainder_text = f", and {wording.pluralize(len(problems) - 1, 'further problem')}" if len(problems) > 1 else ""
    return f" The measurement had problems: {problems[0]}{remainder_text}."


def _tabulate_pairs(selected_links: list[SelectedLinks]) -> pd.DataFrame:
    """Build one row per pair of devices with its type of link, bandwidths, latency and peer access."""
    pairs = []
    for links in selected_links:
        document, names = links.document, [device["name"] for device in links.document["devices"]]
        for sender, kinds in enumerate(document["kinds"]):
            for receiver, kind in enumerate(kinds):
                if kind is not None:
                    values = {name: _select_matrix(links, name)[sender][receiver] for name in document["matrices"]}
                    ends = {
                        "configuration": links.configuration,
                        "from": names[sender],
                        "to": names[receiver],
                        "kind": kind,
                    }
                    pairs.append({**ends, "size_bytes": document["matrix_size_bytes"], **values})
    rows = pd.DataFrame(pairs)
    numbers = ["unidirectional_gb_per_s", "bidirectional_gb_per_s", "latency_us"]
    return rows.astype(dict.fromkeys(numbers, float)).astype({"p2p": object})


def _select_matrix(links: SelectedLinks, name: str) -> Any:
    """Return a matrix of measured values. Bandwidths are None if no message was large enough to measure them."""
    matrix = links.document["matrices"][name]
    if name.endswith("gb_per_s") and links.document["matrix_size_bytes"] < MIN_BANDWIDTH_BYTES:
        return [[None] * len(row) for row in matrix]
    return matrix


def _describe_link_types(rows: pd.DataFrame, links: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return sentences on the types of links.

    They give the median of each type from the fastest to the slowest, the ratio of local to fabric links inside a composition,
    and the slowest link for its type. A slow link comes first if it is far below its median.
    """
    pairs = rows[rows[_BANDWIDTH].notna()]
    if pairs.empty:
        return ("No bandwidth could be measured.",)
    kinds = pairs.groupby("kind")[[_BANDWIDTH, _LATENCY]].median().sort_values(_BANDWIDTH, ascending=False)
    words = [
        f"{kind} {wording.format_number(row[_BANDWIDTH])} GB/s and {wording.format_number(row[_LATENCY])} µs"
        for kind, row in kinds.iterrows()
    ]
    sentences = [f"Median bandwidth and latency in one direction by link type: {'; '.join(words)}."]
    for configuration, group in pairs.groupby("configuration", sort=False):
        medians = group.groupby("kind")[_BANDWIDTH].median()
        if {"local", "fabric"} <= set(medians.index):
            sentences.append(compare_link_kinds(links, str(configuration), ("local", "fabric")))
            break
    spread = pairs[_BANDWIDTH] / pairs.groupby(["configuration", "kind"])[_BANDWIDTH].transform("median")
    slowest = pairs.loc[spread.idxmin()]
    alarming = 100 * (1 - spread.min()) >= _ALARM_PCT
    sentences.insert(
        0 if alarming else len(sentences),
        f"The slowest link for its type is {slowest['from']} to {slowest['to']} in {slowest['configuration']}: "
        f"{wording.format_number(slowest[_BANDWIDTH])} GB/s, "
        f"{wording.format_percent(100 * (1 - spread.min()), 0)} below the median of its "
        f"{slowest['kind']} links (one measurement, not tested).",
    )
    return tuple(sentences)


def _draw_matrices(drawn_links: list[SelectedLinks]) -> str:
    """Draw a bandwidth matrix above a latency matrix for each configuration. Return SVG."""
    max_devices = max(len(links.document["devices"]) for links in drawn_links)
    figure, panels = plot.create_grid(len(drawn_links), height_in=5.0 if max_devices > 4 else 4.4, heights=(1.0, 1.0))
    for row, (name, unit) in enumerate(((_BANDWIDTH, "GB/s"), (_LATENCY, "µs"))):
        norm = _build_colour_norm(drawn_links, name)
        for position, (links, axes) in enumerate(zip(drawn_links, panels, strict=True)):
            mesh = _draw_matrix(
                axes[row], links, name, norm, has_names=row == 1, is_leftmost=plot.is_leftmost(position)
            )
            # Each panel has its own colour bar, because a shared one would make the panel next to it smaller than the others.
            _format_colour_bar(figure.colorbar(mesh, ax=axes[row], aspect=25, pad=0.03), norm, unit)
    for links, axes in zip(drawn_links, panels, strict=True):
        plot.set_panel_title(axes[0], links.configuration, _MAX_TITLE_CHARS)
    return plot.to_svg(figure)


def _format_colour_bar(colour_bar: Any, norm: LogNorm, unit: str) -> None:
    """Label a colour bar with three numbers and the unit. Other values are read off the cells."""
    ticks = np.geomspace(norm.vmin, norm.vmax, 3)
    colour_bar.set_ticks(ticks, labels=[wording.format_number(tick, 2) for tick in ticks])
    colour_bar.minorticks_off()
    colour_bar.outline.set_visible(False)
    # As bitmaps, equal colour bars would have the same id in the page.
    colour_bar.solids.set_rasterized(False)
    colour_bar.solids.set_edgecolor("face")
    colour_bar.ax.tick_params(labelsize=7)
    colour_bar.ax.set_title(unit, fontsize=7.5, fontweight="normal", loc="left")


def _build_colour_norm(drawn_links: list[SelectedLinks], name: str) -> LogNorm:
    """Build the logarithmic colour scale that all matrices of a quantity share."""
    values = [
        value for links in drawn_links for row in _select_matrix(links, name) for value in row if value is not None
    ]
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    # A scale over a tiny range would show noise in all colours.
    return LogNorm(min(low, high / 2), high)


def _draw_matrix(
    axes: Any, links: SelectedLinks, name: str, norm: LogNorm, *, has_names: bool, is_leftmost: bool
) -> Any:
    """Draw one matrix as coloured cells, with lines between hosts. Return the mesh for its colour bar.

    Args:
        axes: axes to draw on.
        links: links of the configuration.
        name: name of the matrix.
        norm: colour scale.
        has_names: whether the columns are labelled with the devices.
        is_leftmost: whether the rows are labelled 'from'.
    """
    matrix = _select_matrix(links, name)
    values = np.array([[np.nan if value is None else value for value in row] for row in matrix], dtype=float)
    count = len(values)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(values),
        cmap=_COLOURS,
        norm=norm,
        rasterized=count > _MAX_DEVICES_AS_SHAPES,
        edgecolor="none",
    )
    if count <= _MAX_DEVICES_WITH_NUMBERS:
        _annotate_cells(axes, links, values, mesh)
    hosts = [device["host"] for device in links.document["devices"]]
    for position in (place for place in range(1, count) if hosts[place] != hosts[place - 1]):
        axes.axhline(position, color=plot.INK, linewidth=1.6)
        axes.axvline(position, color=plot.INK, linewidth=1.6)
    axes.set_ylim(count, 0)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    _label_axes(axes, links, has_names)
    if is_leftmost:
        axes.set_ylabel("from")
    if has_names:
        axes.set_xlabel("to")
    return mesh


def _annotate_cells(axes: Any, links: SelectedLinks, values: Any, mesh: Any) -> None:
    """Write the value and the type of link into each cell, in black or white by the brightness of the cell."""
    text_style = {"ha": "center", "va": "center", "fontsize": _NUMBER_PT}
    for sender, kinds in enumerate(links.document["kinds"]):
        for receiver, kind in enumerate(kinds):
            if kind is None or np.isnan(values[sender, receiver]):
                continue
            red, green, blue, _ = mesh.cmap(mesh.norm(values[sender, receiver]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            words = f"{wording.format_number(values[sender, receiver], 2)}\n{_KIND_LETTERS[kind]}"
            axes.text(receiver + 0.5, sender + 0.5, words, color="#ffffff" if dark else "#000000", **text_style)


def _label_axes(axes: Any, links: SelectedLinks, has_names: bool) -> None:
    """Label rows, and optionally columns, with the devices. Matrices of many devices have no labels."""
    devices = links.document["devices"]
    if len(devices) > _MAX_DEVICES_WITH_LABELS:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    words = [_shorten_name(device["name"]) + (" F" if device["attach"] == "fabric" else "") for device in devices]
    places = np.arange(len(words)) + 0.5
    axes.set_xticks(places, words if has_names else [""] * len(words), rotation=90)
    axes.set_yticks(places, words)
    axes.tick_params(length=0, labelsize=7)


def _shorten_name(name: str) -> str:
    """Shorten a device name to its end."""
    return name if len(name) <= _MAX_LABEL_CHARS else f"…{name[1 - _MAX_LABEL_CHARS :]}"

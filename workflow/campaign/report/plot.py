"""Drawing of figures: panels, looks of series, and SVG that is reproducible byte for byte and fits any page.

Lines and texts use `currentColor` and the background is transparent, so a picture in a page follows its light or dark theme.
Series differ in colour *and* marker or hatch. The colours are those of Okabe & Ito (2008), "Color Universal Design".
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from campaign.common import wording
from campaign.report import svg
from campaign.report.figure import Drawing, FigureData, build_page_table, describe_undrawn, list_limits

INK = svg.INK

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
# Hatches consist of lines only, because a dotted hatch is a hundred times larger as SVG.
HATCHES = ("", "////", "\\\\\\\\", "----", "xxxx", "||||")

# More small multiples would not be readable; further ones are in the data table.
MAX_PANELS = 12
# Maximum number of lines or groups in one panel that a reader can distinguish: the number of colours.
MAX_SERIES = len(COLOURS)
_SERIES_LIMITS = {"batch": ("values of batch", MAX_SERIES), "ranks": ("numbers of devices", 2 * MAX_SERIES)}
_MAX_TICKS = 6
_SHORT_AXIS_RATIO = 6.0  # upper over lower end of a logarithmic axis
_PT_PER_IN = 72
_TITLE_CHARACTERS = 30
_LABEL_CHARACTERS = 24  # per line of two, so that a name of 40 characters and a number fit
_TITLE_PAD_PT = 16


@dataclass(frozen=True, slots=True)
class SeriesLook:
    """Colour, marker and line style that distinguish a series from others."""

    colour: str
    marker: str
    hatch: str
    dashes: str
    """Line style where no markers are drawn."""


@dataclass(frozen=True)
class FigureMedium:
    """Medium that figures are drawn for, such as a page, a phone or a paper.

    Args:
        widths_in: widths in inches of a figure with one, two and three panels in a row. Their number is the maximum per row.
        scale: factor of heights, relative to the page.
        style: style file that is applied on top of the page's style.
        path: path (without suffix) of further files of a figure; for a page, only of a figure that fits a sheet.
        formats: formats of these files.
        title: title in these files.
        figures: list to which the drawn figures are added, except small pictures. Figures for phones are not drawn then.
    """

    widths_in: tuple[float, ...]
    scale: float = 1.0
    style: Path | None = None
    path: Path | None = None
    formats: tuple[str, ...] = ()
    title: str = ""
    figures: list[MplFigure] | None = None


PAGE = FigureMedium((5.95, 7.87, 9.6))
PHONE = FigureMedium((3.65,))
# Larger figures do not fit a phone or a sheet, and drawing them again takes long.
MAX_CELLS_TO_REDRAW, _MAX_PHONE_BYTES, _MAX_SHEET_BYTES = 2_000, 250_000, 500_000
COLUMN_WIDTH_IN, PAGE_WIDTH_IN = 3.4, 7.1  # of papers of IEEE and ACM


def build_page_medium(path: Path, title: str) -> FigureMedium:
    """Build the medium of the report page, which also saves a PDF file.

    Args:
        path: path of the file, without suffix.
        title: title of the figure.
    """
    return replace(PAGE, path=path, formats=("pdf",), title=title)


def build_paper_medium(style: Path, path: Path, formats: Sequence[str], title: str) -> FigureMedium:
    """Build the medium of a two-column paper: one panel fits into a column, several span both.

    Args:
        style: style file of the paper.
        path: path of the files, without suffix.
        formats: formats of the files.
        title: title of the figure.
    """
    widths_in = COLUMN_WIDTH_IN, PAGE_WIDTH_IN, PAGE_WIDTH_IN
    return FigureMedium(widths_in, PAGE_WIDTH_IN / PAGE.widths_in[-1], style, path, tuple(formats), title)


_medium: ContextVar[FigureMedium] = ContextVar("medium", default=PAGE)


@contextmanager
def use_medium(medium: FigureMedium) -> Iterator[None]:
    """Draw figures for the given medium inside the context."""
    token = _medium.set(medium)
    try:
        yield
    finally:
        _medium.reset(token)


def get_small_font_pt() -> float:
    """Return the font size of labels next to marks, in points; call it inside `use_style`."""
    return float(mpl.rcParams["font.size"]) / 1.2


def choose_series_look(position: int) -> SeriesLook:
    """Return the look of the n-th series. There are 36 pairs of colour and marker, and 24 of colour and dashes."""
    round_ = position // len(COLOURS)
    shifted_position = (position + round_) % len(MARKERS)
    return SeriesLook(
        COLOURS[position % len(COLOURS)],
        MARKERS[shifted_position],
        HATCHES[shifted_position],
        DASHES[round_ % len(DASHES)],
    )


@dataclass(frozen=True)
class Panel:
    """Panel of small multiples, with its rows and the label that distinguishes it."""

    label: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class Panels:
    """Rows split into the panels of small multiples.

    Args:
        common: properties that all panels share, in words.
        left_out: number of panels that are not drawn.
        series: numbers of drawn and of all series, in words; '' if all are drawn.
    """

    shown: tuple[Panel, ...]
    common: str
    left_out: int
    series: str = ""

    def format_common_sentence(self) -> str:
        """Format a caption sentence, after a space, on what all panels share; empty if they share nothing."""
        return f" All panels: {self.common}." if self.common else ""

    def list_limits(self) -> tuple[str, ...]:
        """List sentences on the panels and series that are not drawn."""
        panels_note = describe_undrawn(self.left_out, "panel", "data").strip()
        series_note = f"Drawn: {self.series}; the others are in the data." if self.series else ""
        return panels_note, series_note


def split_into_panels(
    rows: pd.DataFrame, columns: Sequence[str], axis_columns: Sequence[str] = (), series: Sequence[str] = ()
) -> Panels:
    """Split rows into panels by columns, in the order of first appearance.

    Labels contain only what differs between panels.

    Args:
        rows: rows of the figure.
        columns: columns whose values define a panel.
        axis_columns: columns among `columns` that are shown at the axes (a kind of cost), so that labels leave them out.
        series: columns of `_SERIES_LIMITS` to thin out if they have too many values to distinguish; `MAX_SERIES` values are
            drawn, evenly from the smallest to the largest.
    """
    thinned_series = []
    for column in series:
        values, (noun, max_values) = sorted(rows[column].unique()), _SERIES_LIMITS[column]
        if len(values) > max_values:
            places = np.linspace(0, len(values) - 1, MAX_SERIES).round().astype(int)
            rows = rows[rows[column].isin([values[place] for place in places])]
            thinned_series.append(f"{MAX_SERIES} of {len(values):,} {noun}")
    label_columns = [column for column in columns if column not in axis_columns]
    different = [column for column in label_columns if rows[column].nunique() > 1]
    first = rows.iloc[0]
    common_columns = [column for column in label_columns if column not in different]
    groups = rows.groupby(list(columns), sort=False)
    shown_panels = [
        Panel(wording.format_axes(group.iloc[0], different), group.reset_index(drop=True))
        for position, (_, group) in enumerate(groups)
        if position < MAX_PANELS
    ]
    return Panels(
        tuple(shown_panels),
        wording.format_axes(first, common_columns),
        groups.ngroups - len(shown_panels),
        ", ".join(thinned_series),
    )


@contextmanager
def use_style(path: Path) -> Iterator[None]:
    """Use only the report's matplotlib style inside the context, and ignore the user's settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        matplotlib.style.use([path_or_style for path_or_style in (path, _medium.get().style) if path_or_style])
        yield


def create_grid(
    count: int, height_in: float = 2.4, heights: Sequence[float] = (1.0,)
) -> tuple[MplFigure, list[list[Axes]]]:
    """Create a figure for `count` panels.

    Each panel is a column of axes that share x and have the given relative heights. Return the figure and, for each panel,
    its axes from top to bottom.
    """
    medium = _medium.get()
    columns = min(count, len(medium.widths_in))
    rows = math.ceil(count / columns)
    size_in = medium.widths_in[columns - 1], medium.scale * (rows * height_in + 0.5)
    figure = MplFigure(figsize=size_in, layout="constrained")
    outer = figure.add_gridspec(rows, columns)
    cells: list[list[Axes]] = []
    for position in range(count):
        inner = outer[position // columns, position % columns].subgridspec(len(heights), 1, height_ratios=heights)
        top = figure.add_subplot(inner[0])
        cells.append([top, *(figure.add_subplot(inner[i], sharex=top) for i in range(1, len(heights)))])
        for axes in cells[-1][:-1]:
            axes.tick_params(labelbottom=False)
    return figure, cells


def set_panel_title(axes: Axes, label: str, characters: int = _TITLE_CHARACTERS) -> None:
    """Set the title of a panel, wrapped at the panel's width."""
    axes.set_title("\n".join(textwrap.wrap(label, characters)))


def _wrap_in_two_lines(label: str, characters: int) -> str:
    """Wrap a label into at most two lines."""
    at_hyphens = textwrap.wrap(label, characters)
    at_any_place = textwrap.wrap(label, characters, break_on_hyphens=False, max_lines=2, placeholder=" …")
    return "\n".join(at_hyphens if len(at_hyphens) <= 2 else at_any_place)


def label_panel_lines(axes: Axes, labels: Sequence[str], *, grid: str = "x") -> None:
    """Label the lines of a panel on the y axis, the first on top.

    Long names take two lines, so that they leave half of the width to the marks; longer ones end in '…'.

    Args:
        axes: axes of the panel.
        labels: names of the lines.
        grid: direction of grid lines, 'x', 'y' or 'both'.
    """
    size_pt = _PT_PER_IN * axes.get_window_extent().width / float(mpl.rcParams["figure.dpi"])
    characters = max(_LABEL_CHARACTERS, int(0.5 * size_pt / (0.61 * get_small_font_pt())))
    axes.set_yticks(range(len(labels)), [_wrap_in_two_lines(label, characters) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=grid != "y", axis="x")
    axes.grid(visible=grid != "x", axis="y")


def set_logarithmic(axes: Axes, axis_names: str = "x") -> None:
    """Make axes ('x', 'y' or 'xy') logarithmic within their current limits, with few plain numbers as ticks.

    Powers of ten would cover each other.
    """
    for name in axis_names:
        axes.set(**{f"{name}scale": "log"})
        axis, (low, high) = (axes.xaxis, axes.get_xlim()) if name == "x" else (axes.yaxis, axes.get_ylim())
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks: Sequence[float] = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        if high < _SHORT_AXIS_RATIO * low:
            ticks = [float(f"{tick:.6g}") for tick in MaxNLocator(4).tick_values(low, high)]
        ticks = [tick for tick in ticks if low <= tick <= high]
        ticks = ticks[:: -(-len(ticks) // _MAX_TICKS)]
        axis.set_ticks(ticks, labels=[f"{tick:,.4g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())


def is_leftmost(position: int) -> bool:
    """Return whether a panel is the first of its row, which has the label of the y axis."""
    return position % len(_medium.get().widths_in) == 0


def add_legend(figure: MplFigure, handles: Sequence[Any]) -> None:
    """Add one legend for the whole figure, above its panels, in as many columns as fit."""
    widest = max(len(str(handle.get_label())) for handle in handles)
    # A character is about 0.61 of its size wide. The key and the space between columns take nine more.
    room = figure.get_size_inches()[0] * _PT_PER_IN / (0.61 * float(mpl.rcParams["legend.fontsize"]))
    in_one_row = sum(len(str(handle.get_label())) + 9 for handle in handles) <= room
    columns = len(handles) if in_one_row else max(1, min(len(handles), int(room / (widest + 9))))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, alignment="left")


def assign_looks(names: Iterable[Any]) -> dict[Any, SeriesLook]:
    """Assign a look to each name, in the order of first appearance."""
    return {name: choose_series_look(position) for position, name in enumerate(dict.fromkeys(names))}


def collect_panel_values(panels: Panels, column: str) -> pd.Series[Any]:
    """Collect the values of a column over all drawn panels."""
    values: pd.Series[Any] = pd.concat([panel.rows[column] for panel in panels.shown])
    return values


def build_legend_keys(
    looks: Mapping[Any, SeriesLook], format_name: Callable[[Any], str] = str, **line_style: Any
) -> list[Line2D]:
    """Build legend entries with a marker on a line for each look.

    Args:
        looks: look of each name.
        format_name: function that formats a name.
        line_style: different line properties, such as `linestyle=""` for markers alone.
    """
    return [
        Line2D([], [], **{"color": look.colour, "marker": look.marker, **line_style}, label=format_name(name))
        for name, look in looks.items()
    ]


def build_dashed_keys(looks: Mapping[Any, SeriesLook], format_name: Callable[[Any], str] = str) -> list[Line2D]:
    """Build legend entries of lines without markers."""
    return [build_ink_key(format_name(name), color=look.colour, linestyle=look.dashes) for name, look in looks.items()]


def build_ink_key(label: str, **line_style: Any) -> Line2D:
    """Build a legend entry for a mark that belongs to no series, such as a limit, an ideal or a bound."""
    return Line2D([], [], **{"color": INK, **line_style}, label=label)


def draw_multiples(
    panels: Panels,
    draw_panel: Callable[[Axes, pd.DataFrame], object],
    handles: Sequence[Any],
    x: str = "",
    y: str = "",
    height_in: float = 2.4,
) -> str:
    """Draw small multiples as SVG; call it inside `use_style`.

    Args:
        panels: rows of each panel.
        draw_panel: function that draws the rows of a panel on its axes; it may set its own labels.
        handles: entries of the legend.
        x: label of the x axis of every panel.
        y: label of the y axis of the first panel of each row.
        height_in: height of a panel in inches.
    """
    figure, axes = create_grid(len(panels.shown), height_in)
    for position, (panel, (panel_axes,)) in enumerate(zip(panels.shown, axes, strict=True)):
        set_panel_title(panel_axes, panel.label)
        draw_panel(panel_axes, panel.rows)
        if x:
            panel_axes.set_xlabel(x)
        if y and is_leftmost(position):
            panel_axes.set_ylabel(y)
    if handles:
        add_legend(figure, handles)
    return to_svg(figure)


_GLANCE_IN = (3.1, 1.75)
MAX_GLANCE_ROWS = 4
"""Number of dots or lines in a small picture."""


def draw_glance_dots(rows: Sequence[tuple[str, float, float, float]], x: str, no_effect: float) -> str:
    """Draw a small picture of a few numbers with their intervals, one below the other; call it inside `use_style`.

    Args:
        rows: label, value, low and high, nan without an interval; only the first four are drawn.
        x: label of the x axis.
        no_effect: value that means no difference.
    """
    figure = MplFigure(figsize=_GLANCE_IN, layout="constrained")
    axes = figure.add_subplot()
    for place, (label, value, low, high) in enumerate(rows[:MAX_GLANCE_ROWS]):
        series = choose_series_look(place)
        interval = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar(value, place, xerr=interval, color=series.colour, marker=series.marker)
        axes.annotate(
            textwrap.shorten(label, 44, placeholder=" …"),
            (0, place),
            xycoords=("axes fraction", "data"),
            xytext=(0, 7),
            textcoords="offset points",
            fontsize=get_small_font_pt(),
            annotation_clip=False,
        )
    axes.axvline(no_effect, color=INK, linewidth=0.9)
    axes.set_ylim(min(len(rows), MAX_GLANCE_ROWS) - 0.6, -0.9)
    axes.set(yticks=[], xlabel=x)
    axes.margins(x=0.08)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # so that a speed-up of 1 has its tick
    return to_svg(figure)


def draw_glance_lines(
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]], x: str, y: str, draw_ideal: bool
) -> str:
    """Draw a small picture of a few lines with a legend; call it inside `use_style`.

    Args:
        lines: label, x values and y values of each line.
        x: label of the x axis.
        y: label of the y axis.
        draw_ideal: also draw a line for the ideal speed-up.
    """
    figure = MplFigure(figsize=_GLANCE_IN, layout="constrained")
    axes = figure.add_subplot()
    for place, (label, x_values, values) in enumerate(lines[:MAX_GLANCE_ROWS]):
        series = choose_series_look(place)
        axes.plot(
            x_values,
            values,
            color=series.colour,
            marker=series.marker,
            label=textwrap.shorten(label, 30, placeholder=" …"),
        )
    places = sorted({float(place) for _, x_values, _ in lines for place in x_values})
    if draw_ideal:
        axes.plot(
            places, [place / places[0] for place in places], color=INK, linestyle=":", linewidth=0.9, label="ideal"
        )
    axes.set(
        xlabel=x, ylabel=y, xticks=places if len(places) <= _MAX_TICKS else places[:: len(places) // _MAX_TICKS + 1]
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", fontsize=get_small_font_pt())
    return to_svg(figure)


def mark_gap(axes: Axes, x: float, words: str) -> None:
    """Mark a missing value with a cross on the axis and the kind of its reason above it."""
    across = axes.get_xaxis_transform()
    axes.plot([x], [0.03], marker="x", color=INK, markersize=5, linestyle="", transform=across, clip_on=False, zorder=5)
    axes.text(
        x, 0.08, words, transform=across, rotation=90, ha="center", va="bottom", fontsize=get_small_font_pt(), zorder=5
    )


def describe_gap(row: Any) -> str:
    """Describe why a cell has no value.

    This is the outcome of its runs in words, 'no value' (valid runs without a value) or 'missing'.
    """
    if row["failures"]:
        return wording.format_status_counts(str(row["failures"]))
    return "missing" if row["state"] == "missing" else "no value"


def compute_interval_lengths(row: Any, value: str, low: str, high: str) -> tuple[float, float]:
    """Return how far the interval of a value extends below and above it; nan without an interval."""
    if not (math.isfinite(row[low]) and math.isfinite(row[high])):
        return math.nan, math.nan
    return max(0.0, row[value] - row[low]), max(0.0, row[high] - row[value])


@dataclass(frozen=True, slots=True)
class IntervalColumns:
    """Names of the columns that hold a value and the bounds of its interval."""

    value: str
    low: str
    high: str


RATE = IntervalColumns("mean", "ci_low", "ci_high")


def compute_range(rows: pd.DataFrame, columns: IntervalColumns) -> tuple[float, float]:
    """Compute the axis range, which includes all values and most of their intervals.

    It extends beyond the values by at most 0.6 of the largest. With two runs a 95 % interval can be a hundred times its
    value; the values must stay readable next to it.
    """
    value = rows[columns.value]
    room = 0.6 * float(value.abs().max())
    low = max(float(rows[columns.low].min(skipna=True)), float(value.min()) - room)
    high = min(float(rows[columns.high].max(skipna=True)), float(value.max()) + room)
    # Without any interval both are nan, and the values are the range.
    return (low if low == low else float(value.min())), (high if high == high else float(value.max()))


def describe_cut_intervals(rows: pd.DataFrame, columns: IntervalColumns) -> str:
    """Return a sentence if some intervals exceed the picture, or an empty string."""
    low, high = compute_range(rows, columns)
    wider = bool((rows[columns.low] < low).any() or (rows[columns.high] > high).any())
    return "Very wide intervals are cut off in the picture." if wider else ""


_series_artist_counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by figure
_linked_cells: WeakKeyDictionary[Axes, list[tuple[str, float, float, float]]] = WeakKeyDictionary()


def link_cells(
    axes: Axes, cell_ids: Iterable[str], x: Iterable[float], y: Iterable[float], half_width: float = 0.0
) -> None:
    """Link marks to cells, so that the page shows the values of a cell at its mark.

    Args:
        axes: axes with the marks.
        cell_ids: cell of each mark.
        x: positions of the marks, in data coordinates.
        y: positions of the marks, in data coordinates; for bars, their ends.
        half_width: half the width of each bar, in data coordinates; 0 for points.
    """
    _linked_cells.setdefault(axes, []).extend(
        (cell_id, float(mark_x), float(mark_y), half_width)
        for cell_id, mark_x, mark_y in zip(cell_ids, x, y, strict=True)
    )


def assign_to_series(axes: Axes, artist: Artist, look: SeriesLook) -> None:
    """Assign an artist drawn in ink, such as the interval of a bar, to a series, which the page can switch off."""
    number = _series_artist_counts[axes.figure] = _series_artist_counts.get(axes.figure, 0) + 1
    artist.set_gid(f"series-{look.colour.removeprefix('#').lower()}-{number}")


def _format_linked_cells(figure: MplFigure) -> str:
    """Format the visible marks of cells as 'cell,x,y;..' in units of the SVG; bars also have half their width and their base."""
    width_pt, height_pt = figure.get_size_inches() * _PT_PER_IN
    texts = []
    for axes in figure.axes:
        to_figure = axes.transData - figure.transFigure
        for cell_id, x, y, half_width in _linked_cells.get(axes, ()):
            (left, top), (right, base) = to_figure.transform([(x - half_width, y), (x + half_width, 0.0)])
            (low_x, low_y), (high_x, high_y) = figure.transFigure.inverted().transform(axes.bbox.get_points())
            if not (low_x <= (left + right) / 2 <= high_x and low_y <= top <= high_y):
                continue
            numbers = [width_pt * (left + right) / 2, height_pt * (1 - top)]
            if half_width:
                numbers += [width_pt * (right - left) / 2, height_pt * (1 - max(base, low_y))]
            texts.append(",".join([cell_id, *(f"{number:.0f}" for number in numbers)]))
    return ";".join(texts)


def draw_points(
    axes: Axes, rows: pd.DataFrame, x: Any, columns: IntervalColumns, look: SeriesLook, hollow: bool = False
) -> None:
    """Draw markers with intervals at x for the rows that have a value.

    Rows without an interval get a marker alone.
    """
    value = rows[columns.value].to_numpy(dtype=float)
    bars = [value - rows[columns.low].to_numpy(dtype=float), rows[columns.high].to_numpy(dtype=float) - value]
    # Caps would fill an open marker.
    marker_style: dict[str, Any] = {"markerfacecolor": "none", "markersize": 6.5, "capsize": 0} if hollow else {}
    axes.errorbar(x, value, bars, color=look.colour, marker=look.marker, linestyle="", **marker_style)
    if "cell_id" in rows:
        link_cells(axes, rows["cell_id"], x, value)


def draw_cumulative_shares(axes: Axes, values: Any, look: SeriesLook, **line_style: Any) -> None:
    """Draw the cumulative share of values as a curve."""
    sorted_values = np.sort(np.asarray(values, dtype=np.float64))
    fractions = np.arange(1, sorted_values.size + 1) / max(sorted_values.size, 1)
    axes.step(sorted_values, fractions, where="post", color=look.colour, linestyle=look.dashes, **line_style)
    axes.set_ylim(0, 1.02)


def to_svg(figure: MplFigure) -> str:
    """Convert a matplotlib figure to SVG; `Figure.draw` adapts it to the page.

    The files of the current medium are also saved.
    """
    medium = _medium.get()
    for axes in figure.axes:
        _raise_title(axes)
    is_glance = figure.get_size_inches()[0] == _GLANCE_IN[0]
    if medium.figures is not None and not is_glance:
        medium.figures.append(figure)
    is_saved = not is_glance and bool(medium.path)
    if is_saved:
        _fix_layout(figure)
    if is_saved and medium.style:
        _save(figure, medium)
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_facecolor("none")
    buffer = io.StringIO()
    # savefig would draw everything twice for the same picture.
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    if is_saved and not medium.style and buffer.tell() <= _MAX_SHEET_BYTES:
        _save(figure, medium)
    linked_cells = "" if is_glance else _format_linked_cells(figure)
    return buffer.getvalue().replace("<svg ", f'<svg data-cells="{linked_cells}" ' if linked_cells else "<svg ", 1)


def _raise_title(axes: Axes) -> None:
    """Raise the title of a panel above the power of ten of its y axis, if there is one."""
    formatter, label = axes.yaxis.get_major_formatter(), axes.get_title("left")
    formatter.set_locs(list(axes.get_yticks()))
    if label and formatter.get_offset():
        axes.set_title(label, pad=_TITLE_PAD_PT)


def _save(figure: MplFigure, medium: FigureMedium) -> None:
    """Save a figure to files in the formats of a medium.

    Files have no date, so that the same figure gives the same file.
    """
    # Imported late, because it imports fontTools, and pages of many cells have no such files.
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    assert medium.path
    for kind in medium.formats:
        canvas, date = (FigureCanvasPdf(figure), "CreationDate") if kind == "pdf" else (FigureCanvasSVG(figure), "Date")
        write = getattr(canvas, f"print_{kind}")
        write(medium.path.with_suffix(f".{kind}"), metadata={"Title": medium.title, date: None})


def build_drawing(
    figure_data: FigureData,
    rows: pd.DataFrame,
    picture: Callable[[], str] | None,
    columns: Mapping[str, Callable[[Any], str]],
    **fields: Any,
) -> Drawing:
    """Build a drawing from a picture, which is drawn in the report's style, and its table.

    Args:
        figure_data: data of the figure.
        rows: rows of the table.
        picture: function that draws the picture; None for a table alone.
        columns: function of each column, by heading, that formats a row.
        fields: other fields of the Drawing; `glance` is a function like `picture`.
    """
    pictures: dict[str, str] = {}
    with use_style(figure_data.style):
        if picture:
            pictures["svg"] = picture()
            if (
                not _medium.get().style
                and _medium.get().figures is None
                and len(pictures["svg"]) <= _MAX_PHONE_BYTES
                and len(figure_data.cells) <= MAX_CELLS_TO_REDRAW
            ):
                with use_medium(PHONE):
                    pictures["narrow"] = picture()
        if glance := fields.pop("glance", None):
            pictures["glance"] = glance()
    limits = dict.fromkeys(
        limit.strip() for limit in (*fields.pop("limits", ()), *list_limits(figure_data, rows)) if limit
    )
    return Drawing(
        **{"svg": None, **pictures, "data": rows, "limits": tuple(limits), **build_page_table(rows, columns), **fields}
    )


def chart(
    data: FigureData, rows: pd.DataFrame, draw_panel: Callable[[Axes], object], caption: str, findings: Sequence[str]
) -> Drawing:
    """Build a drawing with one panel, which `paint` draws, and a table of all columns of `rows`."""
    columns = {str(name).replace("_", " "): partial(_format_cell, str(name)) for name in rows.columns}
    panels = Panels((Panel("", rows),), "", 0)
    picture = partial(draw_multiples, panels, lambda axes, _: draw_panel(axes), ())
    return build_drawing(data, rows, picture, columns, caption=caption, findings=tuple(findings))


def _format_cell(column: str, row: Mapping[str, Any]) -> str:
    value = row[column]
    return wording.format_number(value) if isinstance(value, float) else str(value)


def _fix_layout(figure: MplFigure) -> None:
    """Compute the layout and fix it at rounded positions.

    The last digits of matplotlib's layout differ between processes.
    """
    engine = figure.get_layout_engine()
    assert engine
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        x0, bottom, width, height = (round(number, 4) for number in axes.get_position().bounds)
        axes.set_position((x0, bottom, width, height))

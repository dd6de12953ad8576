"""How a figure looks: panels, the encodings of series, and SVG that is the same byte for byte and fits any page.

Ink is `currentColor` and the background is transparent, so a picture inlined in a page follows its light or dark theme.
Series differ in colour *and* marker or hatch; colours are those of Okabe & Ito (2008), "Color Universal Design".
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

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from campaign.common import wording
from campaign.report import svg
from campaign.report.figure import Drawing, FigureData, limits_of, page_table

INK = svg.INK

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("o", "s", "^", "D", "v", "P")
# Lines only: a dotted hatch is a hundred times larger as SVG.
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "////", "\\\\\\\\", "----", "xxxx", "||||")

# Small multiples beyond this many are no longer read; the rest is in the data table.
MOST_PANELS = 12
# Lines or groups of one panel that a reader can still tell apart: as many as there are colours.
MOST_SERIES = len(COLOURS)
_SERIES = {"batch": ("values of batch", MOST_SERIES), "ranks": ("numbers of devices", 2 * MOST_SERIES)}
_MOST_TICKS = 6
_SHORT_AXIS = 6.0  # of a logarithmic axis, its end over its begin
_PT_PER_IN = 72
_TITLE_CHARACTERS = 30
_LABEL_CHARACTERS = 24  # of a line of two, so that a name of 40 characters and a number beside it are whole
_ABOVE_POWER_PT = 16


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is told from the others."""

    colour: str
    marker: str
    hatch: str
    dashes: str
    """The style of its lines, which carry no marker."""


@dataclass(frozen=True)
class Medium:
    """What figures are drawn for.

    widths_in: of a figure with one, two and three panels in a row; as many fit as there are widths. scale: of heights, against the
    page's; style: what differs from the page's style; path (without suffix), formats, title: where else a figure is saved, and as
    what; for a page, only a figure that fits a sheet.
    """

    widths_in: tuple[float, ...]
    scale: float = 1.0
    style: Path | None = None
    path: Path | None = None
    formats: tuple[str, ...] = ()
    title: str = ""


PAGE = Medium((5.95, 7.87, 9.6))
PHONE = Medium((3.65,))
# What is larger has more in it than a phone or a sheet shows, and takes as long to draw again.
AGAIN_CELLS, _PHONE_BYTES, _SHEET_BYTES = 2_000, 250_000, 500_000
COLUMN_IN, BOTH_COLUMNS_IN = 3.4, 7.1  # of a paper, as IEEE and ACM set them


def page(path: Path, title: str) -> Medium:
    """For the page, with a PDF beside. path: of the file, without suffix."""
    return replace(PAGE, path=path, formats=("pdf",), title=title)


def paper(style: Path, path: Path, formats: Sequence[str], title: str) -> Medium:
    """For a paper of two columns: one panel fits into a column, more take both. path: of the files, without suffix."""
    widths_in = COLUMN_IN, BOTH_COLUMNS_IN, BOTH_COLUMNS_IN
    return Medium(widths_in, BOTH_COLUMNS_IN / PAGE.widths_in[-1], style, path, tuple(formats), title)


_medium: ContextVar[Medium] = ContextVar("medium", default=PAGE)


@contextmanager
def drawn_for(medium: Medium) -> Iterator[None]:
    """Figures drawn inside are drawn for this medium."""
    token = _medium.set(medium)
    try:
        yield
    finally:
        _medium.reset(token)


def small_pt() -> float:
    """The size of words beside marks, in points; for use inside `style`."""
    return float(mpl.rcParams["font.size"]) / 1.2


def look(position: int) -> Look:
    """The look of the n-th series; 36 differ in colour and marker together, 24 in colour and dashes."""
    round_ = position // len(COLOURS)
    shifted = (position + round_) % len(MARKERS)
    return Look(COLOURS[position % len(COLOURS)], MARKERS[shifted], HATCHES[shifted], DASHES[round_ % len(DASHES)])


@dataclass(frozen=True)
class Panel:
    """One of the small multiples: its rows, and what tells it from the other panels."""

    label: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class Panels:
    """Rows in small multiples. `common`: what all panels share, in words; `left_out`: how many are not drawn."""

    shown: tuple[Panel, ...]
    common: str
    left_out: int
    series: str = ""
    """How many series are drawn of how many, where it is not all."""

    def sentence(self) -> str:
        """For the caption, after a space: what holds for all panels; '' for nothing."""
        return f" All panels: {self.common}." if self.common else ""

    def limits(self) -> tuple[str, ...]:
        """What is not drawn, as sentences."""
        more = f"{wording.pluralize(self.left_out, 'further panel')} in the data only." if self.left_out else ""
        part = f"Drawn: {self.series}; the others are in the data." if self.series else ""
        return more, part


def panels(rows: pd.DataFrame, by: Sequence[str], of_axes: Sequence[str] = (), series: Sequence[str] = ()) -> Panels:
    """Split rows by the columns `by`, in the order of first appearance; labels name only what differs between panels.

    of_axes: those of `by` that are names of axes (a kind of cost): they stand at the axes, and in no label.
    series: those of `_COMPONENTS` of which, where there are more than one can tell apart, `MOST_SERIES` values are drawn, evenly
    from the smallest to the largest.
    """
    thinned = []
    for column in series:
        values, (noun, most) = sorted(rows[column].unique()), _SERIES[column]
        if len(values) > most:
            places = np.linspace(0, len(values) - 1, MOST_SERIES).round().astype(int)
            rows = rows[rows[column].isin([values[place] for place in places])]
            thinned.append(f"{MOST_SERIES} of {len(values):,} {noun}")
    named = [column for column in by if column not in of_axes]
    different = [column for column in named if rows[column].nunique() > 1]
    first = rows.iloc[0]
    same = [column for column in named if column not in different]
    groups = rows.groupby(list(by), sort=False)
    shown = [
        Panel(wording.format_axes(group.iloc[0], different), group.reset_index(drop=True))
        for position, (_, group) in enumerate(groups)
        if position < MOST_PANELS
    ]
    return Panels(tuple(shown), wording.format_axes(first, same), groups.ngroups - len(shown), ", ".join(thinned))


@contextmanager
def style(path: Path) -> Iterator[None]:
    """Matplotlib with the report's style and nothing of the user's."""
    with mpl.rc_context():
        mpl.rcdefaults()
        matplotlib.style.use([each for each in (path, _medium.get().style) if each])
        yield


def grid(count: int, height_in: float = 2.4, heights: Sequence[float] = (1.0,)) -> tuple[MplFigure, list[list[Axes]]]:
    """A figure for `count` panels, each a column of axes that share x with the given relative heights.

    Returns the figure and, for each panel, its axes from top to bottom.
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


def title(axes: Axes, label: str, characters: int = _TITLE_CHARACTERS) -> None:
    """A panel's title, broken into lines where the panel ends."""
    axes.set_title("\n".join(textwrap.wrap(label, characters)))


def _in_two_lines(label: str, characters: int) -> str:
    at_hyphens = textwrap.wrap(label, characters)
    anywhere = textwrap.wrap(label, characters, break_on_hyphens=False, max_lines=2, placeholder=" …")
    return "\n".join(at_hyphens if len(at_hyphens) <= 2 else anywhere)


def label_lines(axes: Axes, labels: Sequence[str], *, grid: str = "x") -> None:
    """Name the lines of a panel that stand below each other, the first on top. grid: 'x', 'y' or 'both'.

    Long names take two lines, so that they leave half of the width to the marks; what is longer still ends in '…'.
    """
    size_pt = _PT_PER_IN * axes.get_window_extent().width / float(mpl.rcParams["figure.dpi"])
    characters = max(_LABEL_CHARACTERS, int(0.5 * size_pt / (0.61 * small_pt())))
    axes.set_yticks(range(len(labels)), [_in_two_lines(label, characters) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=grid != "y", axis="x")
    axes.grid(visible=grid != "x", axis="y")


def logarithmic(axes: Axes, which: str = "x") -> None:
    """Logarithmic axes ('x', 'y' or 'xy') with few plain numbers, as far as they reach now: powers would cover each other."""
    for name in which:
        axes.set(**{f"{name}scale": "log"})
        axis, (low, high) = (axes.xaxis, axes.get_xlim()) if name == "x" else (axes.yaxis, axes.get_ylim())
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks: Sequence[float] = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        if high < _SHORT_AXIS * low:
            ticks = [float(f"{tick:.6g}") for tick in MaxNLocator(4).tick_values(low, high)]
        ticks = [tick for tick in ticks if low <= tick <= high]
        ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
        axis.set_ticks(ticks, labels=[f"{tick:,.4g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())


def is_left(position: int) -> bool:
    """Whether a panel is the first of its row, the one that carries the label of the y axis."""
    return position % len(_medium.get().widths_in) == 0


def legend(figure: MplFigure, handles: Sequence[Any]) -> None:
    """One legend for the whole figure, above its panels, in as many columns as fit."""
    widest = max(len(str(handle.get_label())) for handle in handles)
    # A character is about 0.61 of its size wide; nine more are taken by the key and the space between columns.
    room = figure.get_size_inches()[0] * _PT_PER_IN / (0.61 * float(mpl.rcParams["legend.fontsize"]))
    in_one_row = sum(len(str(handle.get_label())) + 9 for handle in handles) <= room
    columns = len(handles) if in_one_row else max(1, min(len(handles), int(room / (widest + 9))))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, alignment="left")


def looks(names: Iterable[Any]) -> dict[Any, Look]:
    """A look for each name, in the order of first appearance."""
    return {name: look(position) for position, name in enumerate(dict.fromkeys(names))}


def in_panels(panels: Panels, column: str) -> pd.Series[Any]:
    """The values of a column in the panels that are drawn."""
    values: pd.Series[Any] = pd.concat([panel.rows[column] for panel in panels.shown])
    return values


def keys(looks: Mapping[Any, Look], say: Callable[[Any], str] = str, **how: Any) -> list[Line2D]:
    """Entries of a legend: a marker on a line for each look. how: what differs, such as `linestyle=""` for markers alone."""
    return [
        Line2D([], [], **{"color": each.colour, "marker": each.marker, **how}, label=say(name))
        for name, each in looks.items()
    ]


def dashed_keys(looks: Mapping[Any, Look], say: Callable[[Any], str] = str) -> list[Line2D]:
    """Entries of a legend of lines without markers."""
    return [ink_key(say(name), color=each.colour, linestyle=each.dashes) for name, each in looks.items()]


def ink_key(label: str, **how: Any) -> Line2D:
    """An entry of a legend for what belongs to no series: a limit, an ideal, a bound."""
    return Line2D([], [], **{"color": INK, **how}, label=label)


def multiples(
    panels: Panels,
    paint: Callable[[Axes, pd.DataFrame], object],
    handles: Sequence[Any],
    x: str = "",
    y: str = "",
    height_in: float = 2.4,
) -> str:
    """Small multiples as SVG, for use inside `style`: `paint` draws the rows of each panel.

    x: label of every panel; y: label of the first panel of each row; handles: of the legend. `paint` may set labels of its own.
    """
    figure, axes = grid(len(panels.shown), height_in)
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        title(only, panel.label)
        paint(only, panel.rows)
        if x:
            only.set_xlabel(x)
        if y and is_left(position):
            only.set_ylabel(y)
    if handles:
        legend(figure, handles)
    return to_svg(figure)


_GLANCE_IN = (3.1, 1.75)
_MOST_GLANCES = 4


def glance_dots(rows: Sequence[tuple[str, float, float, float]], x: str, none: float) -> str:
    """A small picture of a few numbers with their intervals, below each other, for use inside `style`.

    rows: label, value, low and high, nan without an interval; of more than four, the first. none: the value of no difference.
    """
    figure = MplFigure(figsize=_GLANCE_IN, layout="constrained")
    axes = figure.add_subplot()
    for place, (label, value, low, high) in enumerate(rows[:_MOST_GLANCES]):
        each = look(place)
        interval = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar(value, place, xerr=interval, color=each.colour, marker=each.marker)
        axes.annotate(
            textwrap.shorten(label, 44, placeholder=" …"),
            (0, place),
            xycoords=("axes fraction", "data"),
            xytext=(0, 7),
            textcoords="offset points",
            fontsize=small_pt(),
            annotation_clip=False,
        )
    axes.axvline(none, color=INK, linewidth=0.9)
    axes.set_ylim(min(len(rows), _MOST_GLANCES) - 0.6, -0.9)
    axes.set(yticks=[], xlabel=x)
    axes.margins(x=0.08)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # so that a speed-up of 1 has its tick
    return to_svg(figure)


def glance_lines(lines: Sequence[tuple[str, Sequence[float], Sequence[float]]], x: str, y: str, ideal: bool) -> str:
    """A small picture of a few lines (label, places, values), each with its label in the legend, for use inside `style`.

    ideal: whether a line of equal places and values is drawn too.
    """
    figure = MplFigure(figsize=_GLANCE_IN, layout="constrained")
    axes = figure.add_subplot()
    for place, (label, at, values) in enumerate(lines[:_MOST_GLANCES]):
        each = look(place)
        axes.plot(
            at, values, color=each.colour, marker=each.marker, label=textwrap.shorten(label, 30, placeholder=" …")
        )
    places = sorted({float(place) for _, at, _ in lines for place in at})
    if ideal:
        axes.plot(
            places, [place / places[0] for place in places], color=INK, linestyle=":", linewidth=0.9, label="ideal"
        )
    axes.set(
        xlabel=x, ylabel=y, xticks=places if len(places) <= _MOST_TICKS else places[:: len(places) // _MOST_TICKS + 1]
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", fontsize=small_pt())
    return to_svg(figure)


def gap(axes: Axes, x: float, words: str) -> None:
    """Mark where a planned value is not: a cross on the axis and, above it, the class of what happened."""
    across = axes.get_xaxis_transform()
    axes.plot([x], [0.03], marker="x", color=INK, markersize=5, linestyle="", transform=across, clip_on=False, zorder=5)
    axes.text(x, 0.08, words, transform=across, rotation=90, ha="center", va="bottom", fontsize=small_pt(), zorder=5)


def why_not(row: Any) -> str:
    """Why a cell has no value: what became of its runs in words, 'no rate' (ok, but nothing to rate) or 'missing'."""
    if row["failures"]:
        return wording.format_status_counts(str(row["failures"]))
    return "missing" if row["state"] == "missing" else "no rate"


def errors(row: Any, value: str, low: str, high: str) -> tuple[float, float]:
    """How far the interval of a value reaches below and above it; nan without one."""
    if not (math.isfinite(row[low]) and math.isfinite(row[high])):
        return math.nan, math.nan
    return max(0.0, row[value] - row[low]), max(0.0, row[high] - row[value])


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that hold a value and its interval."""

    value: str
    low: str
    high: str


RATE = Columns("mean", "ci_low", "ci_high")


def range_of(rows: pd.DataFrame, columns: Columns) -> tuple[float, float]:
    """The range to draw: all values and their intervals, but no further beyond the values than 0.6 of the largest.

    With two runs a 95 % interval can be a hundred times its value; the values must stay readable beside it.
    """
    value = rows[columns.value]
    room = 0.6 * float(value.abs().max())
    low = max(float(rows[columns.low].min(skipna=True)), float(value.min()) - room)
    high = min(float(rows[columns.high].max(skipna=True)), float(value.max()) + room)
    # Without any interval both are nan, and the values are the range.
    return (low if low == low else float(value.min())), (high if high == high else float(value.max()))


def cut(rows: pd.DataFrame, columns: Columns) -> str:
    """That some intervals are wider than the picture, where they are."""
    low, high = range_of(rows, columns)
    wider = bool((rows[columns.low] < low).any() or (rows[columns.high] > high).any())
    return "Very wide intervals are cut in the picture." if wider else ""


def points(axes: Axes, rows: pd.DataFrame, x: Any, columns: Columns, look: Look, hollow: bool = False) -> None:
    """Markers with intervals at x for the rows that have a value; rows without an interval get a marker alone."""
    value = rows[columns.value].to_numpy(dtype=float)
    bars = [value - rows[columns.low].to_numpy(dtype=float), rows[columns.high].to_numpy(dtype=float) - value]
    # Caps would fill an open marker.
    how: dict[str, Any] = {"markerfacecolor": "none", "markersize": 6.5, "capsize": 0} if hollow else {}
    axes.errorbar(x, value, bars, color=look.colour, marker=look.marker, linestyle="", **how)


def shares(axes: Axes, values: Any, look: Look, **how: Any) -> None:
    """Draw the share of values that are at most so large, as a curve."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    up_to = np.arange(1, ordered.size + 1) / max(ordered.size, 1)
    axes.step(ordered, up_to, where="post", color=look.colour, linestyle=look.dashes, **how)
    axes.set_ylim(0, 1.02)


def to_svg(figure: MplFigure) -> str:
    """The figure as matplotlib writes it; `Figure.draw` makes it fit the page. For a paper, saved as its files too."""
    medium = _medium.get()
    for axes in figure.axes:
        _raise_title(axes)
    saved = figure.get_size_inches()[0] != _GLANCE_IN[0] and bool(medium.path)
    if saved:
        _settle(figure)
    if saved and medium.style:
        _save(figure, medium)
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_facecolor("none")
    buffer = io.StringIO()
    # savefig would draw everything once before, for the same picture.
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    if saved and not medium.style and buffer.tell() <= _SHEET_BYTES:
        _save(figure, medium)
    return buffer.getvalue()


def _raise_title(axes: Axes) -> None:
    """Put the title of a panel above the power of ten of its y axis, where that has one."""
    formatter, label = axes.yaxis.get_major_formatter(), axes.get_title("left")
    formatter.set_locs(list(axes.get_yticks()))
    if label and formatter.get_offset():
        axes.set_title(label, pad=_ABOVE_POWER_PT)


def _save(figure: MplFigure, medium: Medium) -> None:
    """The files of a medium. Without a date, the same figure is the same file."""
    assert medium.path
    for kind in medium.formats:
        canvas, date = (FigureCanvasPdf(figure), "CreationDate") if kind == "pdf" else (FigureCanvasSVG(figure), "Date")
        write = getattr(canvas, f"print_{kind}")
        write(medium.path.with_suffix(f".{kind}"), metadata={"Title": medium.title, date: None})


def drawn(
    of: FigureData,
    rows: pd.DataFrame,
    picture: Callable[[], str] | None,
    columns: Mapping[str, Callable[[Any], str]],
    **said: Any,
) -> Drawing:
    """The drawing of a picture, which is made in the report's style, with its table.

    picture: None for a table alone; columns: heading -> what it says of a row; said: the other fields of a Drawing, its glance as a
    function like the picture.
    """
    pictures: dict[str, str] = {}
    with style(of.style):
        if picture:
            pictures["svg"] = picture()
            if not _medium.get().style and len(pictures["svg"]) <= _PHONE_BYTES and len(of.cells) <= AGAIN_CELLS:
                with drawn_for(PHONE):
                    pictures["narrow"] = picture()
        if glance := said.pop("glance", None):
            pictures["glance"] = glance()
    limits = dict.fromkeys(each.strip() for each in (*said.pop("limits", ()), *limits_of(of, rows)) if each)
    return Drawing(
        **{"svg": None, **pictures, "data": rows, "limits": tuple(limits), **page_table(rows, columns), **said}
    )


def chart(
    data: FigureData, rows: pd.DataFrame, paint: Callable[[Axes], object], caption: str, findings: Sequence[str]
) -> Drawing:
    """A drawing with one panel, which `paint` draws, and a table of all columns of `rows`."""
    columns = {str(name).replace("_", " "): partial(_text, str(name)) for name in rows.columns}
    one = Panels((Panel("", rows),), "", 0)
    picture = partial(multiples, one, lambda axes, _: paint(axes), ())
    return drawn(data, rows, picture, columns, caption=caption, findings=tuple(findings))


def _text(column: str, row: Mapping[str, Any]) -> str:
    value = row[column]
    return wording.format_number(value) if isinstance(value, float) else str(value)


def _settle(figure: MplFigure) -> None:
    """Lay out for good, on round positions: the layout's last digits differ between processes."""
    engine = figure.get_layout_engine()
    assert engine
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(number, 4) for number in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))

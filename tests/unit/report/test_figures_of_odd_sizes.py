"""Figures of few cells and many, of one point, without intervals, of nothing valid and with long names: all words can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as MplFigure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from campaign.report import plot
from campaign.report.figure import FigureData, load_all_figures
from tests.unit.report import odd_sizes
from tests.unit.report.figure_columns import UNPAINTED

FIGURES = load_all_figures()
SLACK_PT = 1.0
SPACE_PT = 3.0
LEVEL = (0.0, 90.0)


MANY_CELLS = ("200 cells", "20 cells", "200 cells", "no interval")
FEW_CELLS = ("1 cell", "2 cells", "one point", "all failed")


def choose_kinds(number: int) -> tuple[str, ...]:
    """Choose the kinds of campaigns for the figure of a number: long names, many cells and few; all with CAMPAIGN_EXPLORE=1."""
    if "CAMPAIGN_EXPLORE" in os.environ:
        return odd_sizes.KINDS
    return ("long names", MANY_CELLS[number % len(MANY_CELLS)], FEW_CELLS[number % len(FEW_CELLS)])


@cache
def load_campaigns(kind: str) -> tuple[FigureData, FigureData]:
    """Build the tables of a training campaign and of a campaign of services."""
    return odd_sizes.data(kind), odd_sizes.services(kind)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for number, name in enumerate(FIGURES) for kind in choose_kinds(number)]
)
def test_words_stand_within_the_picture_and_not_on_each_other(kind: str, name: str) -> None:
    campaigns = load_campaigns(kind)
    pictures: list[MplFigure] = []
    with mock.patch.object(plot, "to_svg", lambda picture: pictures.append(picture) or UNPAINTED):
        drawing = FIGURES[name].draw(campaigns[name == "latencies"])
    assert bool(pictures) == (drawing.svg is not None) == (drawing.narrow is not None)
    faults = [fault for picture in pictures for fault in unreadable(picture)]
    assert faults == []


def test_open_markers_of_as_many_devices_on_several_hosts_stand_apart_and_are_named_once() -> None:
    pictures: list[MplFigure] = []
    with mock.patch.object(plot, "to_svg", lambda picture: pictures.append(picture) or UNPAINTED):
        FIGURES["scaling"].draw(load_campaigns("20 cells")[0])
    picture = pictures[0]
    picture.draw_without_rendering()
    found = 0
    for axes in picture.axes:
        hollow = [line for line in axes.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "none"]
        places = [place for line in hollow for place in axes.transData.transform(line.get_xydata())]
        apart_pt = [72 / picture.dpi * np.hypot(*(one - other)) for one, other in combinations(places, 2)]
        assert all(each > line.get_markersize() for each in apart_pt for line in hollow)
        found += len(apart_pt)
        assert [words.get_text() for words in axes.texts].count("2, 4") <= 1
    assert found >= 4


def test_steps_that_differ_little_have_few_ticks_with_many_digits() -> None:
    data, _ = load_campaigns("200 cells")
    steps = data.steps.assign(time_s=1034.5 + 1e-3 * data.steps["time_s"])
    pictures: list[MplFigure] = []
    with mock.patch.object(plot, "to_svg", lambda picture: pictures.append(picture) or UNPAINTED):
        FIGURES["step_times"].draw(replace(data, steps=steps))
    assert [fault for picture in pictures for fault in unreadable(picture)] == []


def unreadable(picture: MplFigure) -> Iterator[str]:
    """What of a picture's words cannot be read."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw_without_rendering()
    width = f"{picture.get_size_inches()[0]:g} in wide"
    boxes = [(each, each.get_window_extent(renderer)) for each in _words(picture)]
    whole = picture.bbox.padded(SLACK_PT)
    for words, box in boxes:
        if not (whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1):
            yield f"{width}: outside: {words.get_text()!r}"
    level = [(words, box) for words, box in boxes if words.get_rotation() in LEVEL]
    ticks = {id(label) for axes in picture.axes for label in axes.get_xticklabels()}
    for (one, its), (other, of_other) in combinations(level, 2):
        # Numbers of an axis without a space between them are one number.
        if _cover(its, of_other, -SPACE_PT if {id(one), id(other)} <= ticks else SLACK_PT):
            yield f"{width}: on each other: {one.get_text()!r}, {other.get_text()!r}"


def _words(picture: MplFigure) -> list[Text]:
    """Titles, names of axes, ticks and legends; words beside marks may touch these."""
    found = [text for legend in picture.legends for text in legend.get_texts()]
    for axes in picture.axes:
        found += [axes.title, axes._left_title, axes._right_title]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            every = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            ticks = [tick for tick in every if low <= tick.get_loc() <= high]
            found += [axis.label, *(tick.label1 for tick in ticks if tick.label1.get_visible())]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def _cover(one: Bbox, other: Bbox, least_pt: float) -> bool:
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    upwards = min(one.y1, other.y1) - max(one.y0, other.y0)
    return across > least_pt and upwards > SLACK_PT

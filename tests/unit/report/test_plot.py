"""Places of the marks of cells in a picture, and the series that the page can switch off."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from campaign.common.paths import REPORTS
from campaign.report import bars, plot, svg


def draw(kind: str, values: list[float], highest: float) -> str:
    rows = pd.DataFrame({"cell_id": [f"c{n}" for n in range(len(values))], "mean": values, "n_ok": 2})
    rows = rows.assign(ci_low=rows["mean"], ci_high=rows["mean"])
    with plot.use_style(REPORTS / "style.mplstyle"):
        figure, ((axes,),) = plot.create_grid(1, 2.4)
        if kind == "points":
            plot.draw_points(axes, rows, range(len(rows)), plot.RATE, plot.choose_series_look(0))
        else:
            series = bars.Bars(["a", "b"])
            pairs = zip(["a", "b", "a"], rows.to_dict("records"), strict=True)
            series.draw(axes, [(key, [(key, row)]) for key, row in pairs])
        axes.set_ylim(0, highest)
        return plot.to_svg(figure)


def list_marks(picture: str) -> dict[str, list[float]]:
    marks = re.search(r'<svg data-cells="([^"]*)"', picture)
    assert marks
    return {
        cell: [float(text) for text in places.split(",")]
        for cell, _, places in (m.partition(",") for m in marks[1].split(";"))
    }


def test_marks_are_where_points_are_drawn_and_those_outside_are_left_out() -> None:
    picture = draw("points", [1.0, 3.0, 9.0], 5.0)
    drawn = [
        [float(text) for text in place]
        for place in re.findall(r'<use xlink:href="#[^"]*" x="([^"]*)" y="([^"]*)" style="fill: #', picture)
    ]
    marks = list_marks(picture)
    assert [*marks] == ["c0", "c1"]
    for mark in marks.values():
        assert any(place == pytest.approx(mark, abs=0.51) for place in drawn)


def test_marks_of_bars_have_their_width_and_base() -> None:
    marks = list_marks(draw("bars", [1.0, 3.0, 4.0], 5.0))
    (x, y, half, base), (next_x, next_y, _, next_base), _ = marks.values()
    assert base == next_base > y > next_y
    assert (base - y) / (base - next_y) == pytest.approx(1 / 3, abs=0.02)
    assert 0 < 2 * half < next_x - x


def test_intervals_of_bars_belong_to_their_series() -> None:
    picture = draw("bars", [1.0, 3.0, 4.0], 5.0)
    ids = re.findall(r' id="(series-[^"]*)"', picture)
    assert len(ids) == len({*ids}) > 2
    adapted = svg.adapt_svg(picture, "figure", "Figure", "")
    colours = {plot.choose_series_look(n).colour.removeprefix("#").lower() for n in range(2)}
    assert {*re.findall(r' class="series-([^"]*)"', adapted)} == colours

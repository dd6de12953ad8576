"""What holds of every figure that is shown, for their tests: words, units, names of axes, and a picture that fits any page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unittest import mock
from xml.etree import ElementTree

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure

from campaign.common import wording
from campaign.report import plot
from campaign.report.figure import Drawing, Figure, FigureData, add_metric_units
from tests.sentences import find_odd_sentences

_UNITS = (
    "per_s|per_h|s|ms|us|j|w|pct|mib|gb_per_s|bytes|layers|gflop_per_sample|mb_per_step|per_allreduce_mb|per_step|"
    "per_allreduce_byte"
)
_WITH_UNIT = re.compile(rf"(^|_)({_UNITS})(_low|_high)?$")
UNPAINTED = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
"""In place of a picture that nobody looks at: writing one takes most of the time of a figure."""
# Counts, ratios, probabilities and scores, by names that mean the same in every figure; what one figure has, its UNITS say.
_NONE = re.compile(
    r"n_\w+|p|\w+_p|(\w+_)?p_holm|(ratio|ideal)(_low|_high)?|aicc_\w+|option_\w+|(\w+_)?(hosts|devices|ranks)|against_n|"
    r"batch|batch_global|devices_per_host|local_devices_per_host|devices_used|leases|operations|retries|repetition|runs|(against_)?compositions|freedom"
)
# Numbers whose unit stands in a column beside them.
_BESIDE = {"unit": r"mean|sd|ci_low|ci_high|least|most", "cost_unit": r"cost(_low|_high)?", "size_unit": "size"}


def without_unit(figure: Figure, drawing: Drawing) -> list[str]:
    """Names of numeric columns, as they are written, without a unit."""
    rows = drawing.data
    written = dict(zip(rows.columns, add_metric_units(rows, drawing.metric, figure.units), strict=True))
    beside = [pattern for column, pattern in _BESIDE.items() if column in rows]
    return [
        name
        for column, name in written.items()
        if pd.api.types.is_numeric_dtype(rows[column]) and not pd.api.types.is_bool_dtype(rows[column])
        if figure.units.get(column) != ""
        if not (_WITH_UNIT.search(name) or _NONE.fullmatch(name) or any(re.fullmatch(each, name) for each in beside))
    ]


def check(figure: Figure, drawing: Drawing, pictures: Sequence[MplFigure] = ()) -> None:
    """Assert what holds of every figure that is shown. pictures: those that it was painted from."""
    assert drawing.rows
    assert drawing.coverage
    assert {len(row) for row in drawing.rows} == {len(drawing.headings)}
    assert all(isinstance(value, str) for row in drawing.rows for value in row)
    assert not {"", "unnamed"} & set(drawing.data.columns)
    assert without_unit(figure, drawing) == []
    assert unnamed_axes(pictures) == []
    assert (
        find_odd_sentences([*drawing.findings, drawing.headline, drawing.caption, *drawing.limits, drawing.coverage])
        == []
    )
    assert find_odd_sentences(drawing.headings) == []
    assert all(sentence.endswith(".") for sentence in (*drawing.findings, *drawing.limits))
    if drawing.svg is None:
        return
    root = ElementTree.fromstring(drawing.svg)
    assert root.get("role") == "img"
    described = root.find("{http://www.w3.org/2000/svg}desc")
    assert described is not None
    assert described.text == drawing.alt == wording.write_alt_text(drawing.findings) != ""
    assert plot.INK not in drawing.svg
    assert "<metadata" not in drawing.svg
    assert not re.search(r"\b20\d\d-\d\d-\d\d", drawing.svg)
    ids = re.findall(r'\sid="([^"]+)"', drawing.svg)
    assert len(ids) == len(set(ids))
    assert all(each.startswith(figure.anchor) for each in ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawing.svg)) <= set(ids)
    assert not pictures or "currentColor" in drawing.svg


def with_pictures(figure: Figure, data: FigureData) -> tuple[Drawing, list[MplFigure]]:
    """The drawing, and the pictures that it is painted from."""
    pictures: list[MplFigure] = []
    painted = plot.to_svg
    with mock.patch.object(plot, "to_svg", lambda picture: pictures.append(picture) or painted(picture)):
        return figure.draw(data), pictures


def unnamed_axes(pictures: Sequence[MplFigure]) -> list[str]:
    """Axes with numbers or words beside them, and no name: of its own, or, for y, of the first panel of the row."""
    panels = [axes for picture in pictures for axes in picture.axes if axes.get_label() != "<colorbar>"]
    rows = {_row(axes) for axes in panels if axes.get_ylabel()}
    across = [axes for axes in panels if axes.xaxis.get_tick_params()["labelbottom"] and axes.get_xticks().size]
    nameless = [f"x of {axes.get_title()!r}" for axes in across if not (axes.get_xlabel() or not _words(axes))]
    return nameless + [f"y of {axes.get_title()!r}" for axes in panels if _row(axes) not in rows]


def _row(axes: Axes) -> tuple[int, int]:
    """Row of its panel, and of the axes in the panel."""
    place = axes.get_subplotspec()
    assert place is not None
    return place.get_topmost_subplotspec().rowspan.start, place.rowspan.start


def _words(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels() if label.get_text()]

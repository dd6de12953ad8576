"""Marks and lines of one series are one element, and the picture stays what it was."""

from __future__ import annotations

import re

from campaign.report.svg import adapt_svg, render_notice

_CIRCLE = (
    "M 0 3 \nC 0.8 3 1.6 2.7 2.1 2.1 \nC 2.7 1.6 3 0.8 3 0 \nC 3 -0.8 2.7 -1.6 2.1 -2.1 \nC 1.6 -2.7 0.8 -3 0 -3 \n"
    "C -0.8 -3 -1.6 -2.7 -2.1 -2.1 \nC -2.7 -1.6 -3 -0.8 -3 0 \nC -3 0.8 -2.7 1.6 -2.1 2.1 \nC -1.6 2.7 -0.8 3 0 3 \nz\n"
)
_TRIANGLE = "M 0 -3 \nL -3 3 \nL 3 3 \nz\n"
_CROSS = "M -2 -2 \nL 2 2 \nM -2 2 \nL 2 -2 \n"
_BLUE = "fill: #0072b2; stroke: #0072b2"


def _marks(outline: str, style: str = _BLUE, own: str = "stroke: #0072b2") -> str:
    uses = "\n".join(f'<use xlink:href="#m1" x="{x}" y="{y}" style="{style}"/>' for x, y in ((10, 20), (30.5, 40)))
    return f'<svg><defs><path id="m1" d="{outline}" style="{own}"/></defs><g>{uses}</g></svg>'


def _group(picture: str) -> str:
    return " ".join(re.findall(r"<g>(.*)</g>", adapt_svg(picture, "scaling", "Scaling", "alt"), re.DOTALL)[0].split())


def test_marks_of_one_kind_are_one_path_where_each_of_them_was() -> None:
    assert _group(_marks(_TRIANGLE)) == (
        f'<path d="M10 17l-3 6l6 0zM30.5 37l-3 6l6 0z" style="{_BLUE}; stroke: #0072b2"/>'
    )
    assert 'd="M8 18l4 4m-4 0l4 -4M28.5 38l4 4m-4 0l4 -4"' in _group(_marks(_CROSS))


def test_circles_are_drawn_as_arcs() -> None:
    arc = "a3 3 0 1 0 0 -6a3 3 0 1 0 0 6z"
    hollow = "fill-opacity: 0; stroke: #0072b2"
    assert _group(_marks(_CIRCLE, hollow)) == f'<path d="M10 23{arc}M30.5 43{arc}" style="{hollow}; stroke: #0072b2"/>'


def test_marks_that_would_show_where_they_lie_on_each_other_stay_apart() -> None:
    for style in (
        "fill: #ffffff; stroke: #0072b2",
        f"{_BLUE}; opacity: 0.5",
        "fill: #0072b2; fill-opacity: 0.5; stroke: #0072b2",
    ):
        assert _group(_marks(_CIRCLE, style)).count("<use") == 2, style


def test_lines_that_differ_in_nothing_but_their_place_are_one_path() -> None:
    def bar(x: int, style: str) -> str:
        return f'<path d="M {x} 1 \nL {x} 2 \n" clip-path="url(#p1)" style="{style}"/>'

    blue, red = "fill: none; stroke: #0072b2; stroke-width: 1.4", "fill: none; stroke: #d55e00"
    inside = "\n".join([bar(1, blue), bar(2, blue), bar(3, red)])
    assert _group(f"<svg><g>{inside}</g></svg>") == (
        f'<path d="M 1 1 L 1 2 M 2 1 L 2 2 " clip-path="url(#scaling-p1)" style="{blue}"/> '
        f'<path d="M 3 1 L 3 2 " clip-path="url(#scaling-p1)" style="{red}"/>'
    )
    for apart in ("fill: none; stroke: #0072b2; stroke-opacity: 0.5", "fill: #0072b2"):
        assert _group(f"<svg><g>{bar(1, apart)}\n{bar(2, apart)}</g></svg>").count("<path") == 2, apart


def test_a_notice_is_as_high_as_its_lines() -> None:
    for line_count in (1, 2):
        lines = re.findall("<tspan", (picture := render_notice("a", "one word more " * 6 * line_count)))
        assert len(lines) == line_count
        assert f'viewBox="0 0 620 {24 + 18 * line_count}"' in picture

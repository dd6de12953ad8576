"""SVG pictures as text that fits any page and is equal byte for byte for equal numbers. Pure.

Coordinates are rounded and ids are numbered by appearance, because the last digits of matplotlib's constrained layout differ
between processes, and ids are hashed from them. Marks of one series become one element, because browsers slow down with the number
of elements.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

_LONG_NUMBER = re.compile(r"(?<![\w.#])-?\d+\.\d{3,}(?![\w.])")
_TAG = re.compile("<[^>]*>")
_HASHED_ID = re.compile(r"-([a-z])[0-9a-f]{10}\b")
# Characters that are not allowed in XML documents, but could be in a name of a campaign.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
# Consecutive lines, and consecutive marks of one kind, with equal attributes. Translucent elements must not be joined, because
# their overlaps are visible.
_LINES = re.compile(
    r'<path d="[^"]*" ((?:(?!opacity)[^>])*fill: none(?:(?!opacity)[^>])*)/>(?:\s*<path d="[^"]*" \1/>)+'
)
_OUTLINE = re.compile(r' d="([^"]*)"')
_MARKER = re.compile(r'<path id="([^"]*)" d="([^"]*)" style="([^"]*)"/>')
_MARKS = re.compile(
    r'<use xlink:href="#([^"]*)" x="[^"]*" y="[^"]*" style="((?:fill: ([^;"]*)|fill-opacity: 0); stroke: (?:(?!opacity)[^"])*)"/>'
    r'(?:\s*<use xlink:href="#\1" x="[^"]*" y="[^"]*" style="\2"/>)+'
)
_PLACE = re.compile(r' x="([^"]*)" y="([^"]*)"')
_SERIES_ID = re.compile(r' id="series-([0-9a-f]{6})-\d+"')  # See `plot.assign_to_series`.
_STEP = re.compile(r"([MLz])(?: (\S+) (\S+))?")

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'
INK = "#010203"
"""Placeholder that is replaced by currentColor everywhere. It must equal the ink of style.mplstyle."""


def adapt_svg(text: str, anchor: str, title: str, alt: str) -> str:
    """Adapt a drawing for inlining as an `svg` element: prefix ids with the anchor, draw ink in currentColor.

    A screen reader reads the title and the alternative text, but not every number.
    """
    text = _NOT_XML.sub("", text[text.index("<svg") :])
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = _SERIES_ID.sub(r' class="series-\1"', text)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{anchor}-", text)
    text = text.replace(INK, "currentColor")
    text = _join_elements(_normalize(text))
    attributes = f'role="img" aria-labelledby="{anchor}-title"'
    title_elements = f'<title id="{anchor}-title">{escape(title)}</title>'
    if alt:
        attributes += f' aria-describedby="{anchor}-desc"'
        title_elements += f'\n <desc id="{anchor}-desc">{escape(_NOT_XML.sub("", alt))}</desc>'
    head, body = text.replace("<g ", '<g aria-hidden="true" ', 1).split(">", 1)
    return f"{head} {attributes}>\n {title_elements}{body}"


def _round_match(number: re.Match[str]) -> str:
    return _format_number(float(number[0]))


def _format_number(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _normalize(text: str) -> str:
    """Make an SVG picture reproducible by rounding long numbers and renumbering hashed ids.

    The layout's last digits, and the ids hashed from them, differ between processes.
    """
    # Only numbers in tags are rounded, not those in the texts of the picture.
    text = _TAG.sub(lambda tag: _LONG_NUMBER.sub(_round_match, tag[0]), text)
    new_ids: dict[str, str] = {}
    return _HASHED_ID.sub(lambda match: new_ids.setdefault(match[0], f"-{match[1]}{len(new_ids) + 1}"), text)


def _join_elements(text: str) -> str:
    """Join consecutive lines, and consecutive marks, of equal style into one path each."""
    markers = {name: (outline, style) for name, outline, style in _MARKER.findall(text)}

    def join_lines(match: re.Match[str]) -> str:
        return f'<path d="{"".join(_OUTLINE.findall(match[0]))}" {match[1]}/>'

    def join_marks(match: re.Match[str]) -> str:
        (outline, marker_style), style, fill = markers[match[1]], match[2], match[3]
        if fill and f"stroke: {fill}" not in style:  # Overlapping marks would be visible.
            return match[0]
        x, y, shape = _to_relative_path(outline)
        places = (
            f"M{_format_number(float(a) + x)} {_format_number(float(b) + y)}{shape}"
            for a, b in _PLACE.findall(match[0])
        )
        return f'<path d="{"".join(places)}" style="{style}; {marker_style}"/>'

    return _MARKS.sub(join_marks, _LINES.sub(join_lines, text))


def _to_relative_path(outline: str) -> tuple[float, float, str]:
    """Convert a marker's outline to its start (x, y) and relative path commands.

    Curves are those of a circle.
    """
    (_, first_x, first_y), *steps = _STEP.findall(outline)
    begin = position = float(first_x), float(first_y)
    if "C" in outline:
        radius, across = abs(begin[1]), -2 * begin[1]
        arc = f"a{_format_number(radius)} {_format_number(radius)} 0 1 0 0 "
        return *begin, f"{arc}{_format_number(across)}{arc}{_format_number(-across)}z"
    shape, subpath_start = "", begin
    for kind, x, y in steps:
        if kind == "z":
            shape, position = f"{shape}z", subpath_start
            continue
        target = float(x), float(y)
        shape += f"{kind.lower()}{_format_number(target[0] - position[0])} {_format_number(target[1] - position[1])}"
        position, subpath_start = target, target if kind == "M" else subpath_start
    return *begin, shape


def render_notice(anchor: str, words: str) -> str:
    """Render a small picture with one sentence, for a figure without a picture."""
    lines: list[str] = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) > 88:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    spans = "".join(f'<tspan x="12" dy="18">{escape(line)}</tspan>' for line in lines)
    height = 24 + 18 * len(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="{height}" viewBox="0 0 620 {height}" role="img"'
        f' aria-labelledby="{anchor}-title">\n <title id="{anchor}-title">{escape(words)}</title>\n'
        f' <text x="12" y="6" font-family="sans-serif" font-size="13" fill="currentColor">{spans}</text>\n</svg>\n'
    )

"""SVG pictures as text that fits any page and is the same byte for byte for the same numbers. Pure.

Coordinates are rounded and ids numbered by appearance: the last digits of matplotlib's constrained layout differ between
processes, and it hashes ids from them. Marks of one series are one element: a browser's time grows with the number of elements.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

_LONG_NUMBER = re.compile(r"(?<![\w.#])-?\d+\.\d{3,}(?![\w.])")
_TAG = re.compile("<[^>]*>")
_HASHED_ID = re.compile(r"-([a-z])[0-9a-f]{10}\b")
# Characters that no XML document may hold; a name in a campaign could.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
# Lines below each other, and marks of one kind, with all else the same. What is translucent shows where it lies on itself.
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
_STEP = re.compile(r"([MLz])(?: (\S+) (\S+))?")

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'
INK = "#010203"
"""Never used as a colour of its own: every occurrence becomes currentColor. Must equal the ink of style.mplstyle."""


def adapted(text: str, anchor: str, title: str, alt: str) -> str:
    """Adapt a drawing to be an `svg` element of a page, with ids prefixed by the anchor and ink as currentColor.

    A screen reader gets title and alt, but not every number.
    """
    text = _NOT_XML.sub("", text[text.index("<svg") :])
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{anchor}-", text)
    text = text.replace(INK, "currentColor")
    text = _joined(_settled(text))
    named = f'role="img" aria-labelledby="{anchor}-title"'
    words = f'<title id="{anchor}-title">{escape(title)}</title>'
    if alt:
        named += f' aria-describedby="{anchor}-desc"'
        words += f'\n <desc id="{anchor}-desc">{escape(_NOT_XML.sub("", alt))}</desc>'
    head, body = text.replace("<g ", '<g aria-hidden="true" ', 1).split(">", 1)
    return f"{head} {named}>\n {words}{body}"


def _rounded(number: re.Match[str]) -> str:
    return _plain(float(number[0]))


def _plain(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _settled(text: str) -> str:
    """Make a picture reproducible by rounding long numbers and renumbering hashed ids.

    The layout's last digits, and the ids hashed from them, differ between processes.
    """
    # In tags only: a number that is written in the picture is meant as it is.
    text = _TAG.sub(lambda tag: _LONG_NUMBER.sub(_rounded, tag[0]), text)
    numbered: dict[str, str] = {}
    return _HASHED_ID.sub(lambda found: numbered.setdefault(found[0], f"-{found[1]}{len(numbered) + 1}"), text)


def _joined(text: str) -> str:
    """Join consecutive lines, and consecutive marks, of equal style to one path each."""
    markers = {name: (outline, style) for name, outline, style in _MARKER.findall(text)}

    def lines(found: re.Match[str]) -> str:
        return f'<path d="{"".join(_OUTLINE.findall(found[0]))}" {found[1]}/>'

    def marks(found: re.Match[str]) -> str:
        (outline, own), style, filled = markers[found[1]], found[2], found[3]
        if filled and f"stroke: {filled}" not in style:  # it would show where one lies on another
            return found[0]
        x, y, shape = _relative(outline)
        places = (f"M{_plain(float(a) + x)} {_plain(float(b) + y)}{shape}" for a, b in _PLACE.findall(found[0]))
        return f'<path d="{"".join(places)}" style="{style}; {own}"/>'

    return _MARKS.sub(marks, _LINES.sub(lines, text))


def _relative(outline: str) -> tuple[float, float, str]:
    """Return the start (x, y) of a marker's outline and the rest of it as relative path commands.

    Curves are those of a circle.
    """
    (_, first_x, first_y), *steps = _STEP.findall(outline)
    begin = at = float(first_x), float(first_y)
    if "C" in outline:
        radius, across = abs(begin[1]), -2 * begin[1]
        arc = f"a{_plain(radius)} {_plain(radius)} 0 1 0 0 "
        return *begin, f"{arc}{_plain(across)}{arc}{_plain(-across)}z"
    shape, opened = "", begin
    for kind, x, y in steps:
        if kind == "z":
            shape, at = f"{shape}z", opened
            continue
        to = float(x), float(y)
        shape += f"{kind.lower()}{_plain(to[0] - at[0])} {_plain(to[1] - at[1])}"
        at, opened = to, to if kind == "M" else opened
    return *begin, shape


def notice(anchor: str, words: str) -> str:
    """Return a small picture that holds one sentence, for a figure with nothing to show."""
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

"""Pictures as text: SVG that fits any page, and is the same byte for byte for the same numbers. Pure.

Coordinates are rounded and ids numbered by appearance: the last digits of matplotlib's constrained layout differ between processes,
and it hashes ids from them.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

_LONG_NUMBER = re.compile(r"(?<![\w.#])-?\d+\.\d{3,}(?![\w.])")
_TAG = re.compile("<[^>]*>")
_HASHED_ID = re.compile(r"-([a-z])[0-9a-f]{10}\b")
# Characters that no XML document may hold; a name in a campaign could.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'
INK = "#010203"
"""Never used as a colour of its own: every occurrence becomes currentColor. Must equal the ink of style.mplstyle."""


def adapted(text: str, anchor: str, title: str, alt: str) -> str:
    """A drawing as an `svg` element: ids prefixed by the anchor, ink as currentColor. A screen reader gets title and alt, and not
    its numbers one by one."""
    text = _NOT_XML.sub("", text[text.index("<svg") :])
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{anchor}-", text)
    text = text.replace(INK, "currentColor")
    text = _settled(text)
    named = f'role="img" aria-labelledby="{anchor}-title"'
    words = f'<title id="{anchor}-title">{escape(title)}</title>'
    if alt:
        named += f' aria-describedby="{anchor}-desc"'
        words += f'\n <desc id="{anchor}-desc">{escape(_NOT_XML.sub("", alt))}</desc>'
    head, body = text.replace("<g ", '<g aria-hidden="true" ', 1).split(">", 1)
    return f"{head} {named}>\n {words}{body}"


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _settled(text: str) -> str:
    """The same picture for the same numbers: the layout's last digits, and the ids hashed from them, differ between processes."""
    # In tags only: a number that is written in the picture is meant as it is.
    text = _TAG.sub(lambda tag: _LONG_NUMBER.sub(_rounded, tag[0]), text)
    numbered: dict[str, str] = {}
    return _HASHED_ID.sub(lambda found: numbered.setdefault(found[0], f"-{found[1]}{len(numbered) + 1}"), text)


def notice(anchor: str, words: str) -> str:
    """A small picture that holds one sentence, for a figure with nothing to show."""
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

"""Text and tables as LaTeX prints them. Needs the packages graphicx and booktabs, and no more."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

# Of a table on one page, of which a row may take several; further rows are in its CSV file.
LINES = 55
CAPTION_WORDS = 40
# Characters: of columns that are not broken into lines, the first length with which these fit; of a heading's line at least; and of
# a page's width, in the narrowest usual class, `article`. A table that is wider is scaled down.
_LONG, _NARROW, _CHARACTERS = (24, 16), 8, 100
_WHOLE, _BROKEN = 0.8, 0.4  # shares of the width: of columns that are not broken at most, of those that are at least

# Brackets and stars are arguments after the end of a row.
_LATEX = {c: f"\\{c}" for c in "#$%&_{}"} | {c: f"{{{c}}}" for c in "[]*"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\rightarrow$",
    "²": "$^2$", "·": r"$\cdot$", "–": "--", "—": "---", "’": "'", "“": "``", "”": "''", "…": r"\ldots{}", "µ": r"\textmu{}",
    "μ": r"\textmu{}", "α": r"$\alpha$", "°": r"$^\circ$", "\u202f": r"\,", "\u00a0": "~",
}  # fmt: skip
_ACCENTS = "\u0300\u0301\u0302\u0303\u0308"


def escaped(text: str) -> str:
    """Text as LaTeX prints it, in one line; a letter that pdfLaTeX has no glyph for becomes the nearest one, or a question mark."""
    return "".join(_escaped(character) for character in re.sub(r"[ \t\r\n\f\v\x85\u2028\u2029]+", " ", text))


def _escaped(character: str) -> str:
    if found := _LATEX.get(character):
        return found
    if " " <= character <= "~":
        return character
    plain = unicodedata.normalize("NFKD", character)
    if len(plain) == 2 and plain[0] in "aeiounAEIOUN" and plain[1] in _ACCENTS:
        return unicodedata.normalize("NFC", character)
    return "".join(_LATEX.get(each, each) for each in plain if " " <= each <= "~") or "?"


def caption(text: str) -> tuple[str, str]:
    """The sentences of a caption that fit into CAPTION_WORDS, and those that do not."""
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text)
    words, kept = 0, 0
    for sentence in sentences:
        words += len(sentence.split())
        if kept and words > CAPTION_WORDS:
            break
        kept += 1
    return " ".join(sentences[:kept]), " ".join(sentences[kept:])


def note(*texts: str) -> str:
    """Small print below a caption; '' for none."""
    said = " ".join(text for text in texts if text)
    return (
        f"  \\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {escaped(said)}\\end{{minipage}}\n"
        if said
        else ""
    )


def table(
    label: str,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    file: str,
    notes: Sequence[str] = (),
    total: int = 0,
) -> str:
    """A table over both columns, never wider than the page, in the rules of booktabs, with as many rows as fit on it. file: where
    all of them are; total: how many, if not those of `rows`."""
    shown = rows[:LINES]
    longest = [max(len(text) for text in column) for column in zip(*shown, strict=True)]
    # Headings are broken into lines as wide as their columns, and so are columns that hold sentences: they share what is left.
    lines_of = [
        textwrap.wrap(text, max(width, _NARROW), break_long_words=False) or [""]
        for text, width in zip(headings, longest, strict=True)
    ]
    widths = [max(width, *map(len, lines)) for width, lines in zip(longest, lines_of, strict=True)]
    whole = [sum(width + 2 for width in widths if width <= most) / _CHARACTERS for most in _LONG]
    long, kept = next((each for each in zip(_LONG, whole, strict=True) if each[1] <= _WHOLE), (_LONG[-1], whole[-1]))
    # By the square root: a short column beside a long one must not become a word wide.
    weights = [math.sqrt(width) if width > long else 0.0 for width in widths]
    shares = [max(_BROKEN, 1 - kept) * weight / sum(weights) if weight else math.inf for weight in weights]
    kinds = ["l" if share == math.inf else f"p{{{share:.2f}\\textwidth}}" for share in shares]
    taken = accumulate(
        max(math.ceil(len(text) / (share * _CHARACTERS)) or 1 for text, share in zip(row, shares, strict=True))
        for row in shown
    )
    shown = shown[: max(1, bisect_right(list(taken), LINES))]
    left_out = max(total, len(rows)) - len(shown)
    more = f"{left_out:,} further row{'' if left_out == 1 else 's'} in {file}." if left_out else ""
    first = [r"\shortstack[l]{" + r" \\ ".join(map(escaped, lines)) + "}" for lines in lines_of]
    cells = [
        [
            escaped(text) if share == math.inf else f"{{\\raggedright {escaped(text)}\\par}}"
            for text, share in zip(row, shares, strict=True)
        ]
        for row in shown
    ]
    lines = [" & ".join(row) + r" \\" for row in (first, *cells)]
    says, rest = caption(title)
    return (
        "% needs \\usepackage{graphicx,booktabs}\n"
        "\\begin{table*}\n  \\centering\n  \\scriptsize\n  \\setlength{\\tabcolsep}{3pt}\n"
        f"  \\caption{{{escaped(says)}}}\n"
        f"  \\label{{tab:{label}}}\n"
        "  \\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%\n"
        f"  \\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}\n"
        f"    \\toprule\n    {lines[0]}\n    \\midrule\n"
        + "".join(f"    {line}\n" for line in lines[1:])
        + f"    \\bottomrule\n  \\end{{tabular}}}}\n{note(rest, more, *notes)}\\end{{table*}}\n"
    )

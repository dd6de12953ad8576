"""Text and tables in LaTeX. They need the packages graphicx and booktabs."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

# Lines of a table on one page. A row may take several lines; further rows are in its CSV file.
MAX_TABLE_LINES = 55
MAX_CAPTION_WORDS = 40
# In characters: possible maximum lengths of columns that are not broken into lines, of which the first that fits is used; minimum
# width of a heading; and width of a page in `article`, the narrowest common class. Wider tables are scaled down.
_UNBROKEN_LENGTHS, _MIN_COLUMN_CHARACTERS, _PAGE_WIDTH_CHARACTERS = (24, 16), 8, 100
_MAX_UNBROKEN_SHARE, _MIN_BROKEN_SHARE = (
    0.8,
    0.4,
)  # maximum share of the width for unbroken columns, and minimum share for broken ones

# After the end of a row, LaTeX would read brackets and stars as arguments.
_LATEX_BY_CHARACTER = {c: f"\\{c}" for c in "#$%&_{}"} | {c: f"{{{c}}}" for c in "[]*"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\rightarrow$",
    "²": "$^2$", "·": r"$\cdot$", "–": "--", "—": "---", "’": "'", "“": "``", "”": "''", "…": r"\ldots{}", "µ": r"\textmu{}",
    "μ": r"\textmu{}", "α": r"$\alpha$", "°": r"$^\circ$", "\u202f": r"\,", "\u00a0": "~",
}  # fmt: skip
_ACCENTS = "\u0300\u0301\u0302\u0303\u0308"


def escape_latex(text: str) -> str:
    """Escape text for LaTeX, in one line.

    A letter without a glyph in pdfLaTeX becomes the nearest one, or a question mark.
    """
    return "".join(_escape_character(character) for character in re.sub(r"[ \t\r\n\f\v\x85\u2028\u2029]+", " ", text))


def _escape_character(character: str) -> str:
    if replacement := _LATEX_BY_CHARACTER.get(character):
        return replacement
    if " " <= character <= "~":
        return character
    plain = unicodedata.normalize("NFKD", character)
    if len(plain) == 2 and plain[0] in "aeiounAEIOUN" and plain[1] in _ACCENTS:
        return unicodedata.normalize("NFC", character)
    return "".join(_LATEX_BY_CHARACTER.get(letter, letter) for letter in plain if " " <= letter <= "~") or "?"


def split_caption(text: str) -> tuple[str, str]:
    """Split a caption into the sentences that fit into MAX_CAPTION_WORDS, and the rest."""
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z0-9])", text)
    words, sentence_count = 0, 0
    for sentence in sentences:
        words += len(sentence.split())
        if sentence_count and words > MAX_CAPTION_WORDS:
            break
        sentence_count += 1
    return " ".join(sentences[:sentence_count]), " ".join(sentences[sentence_count:])


def format_note(*texts: str) -> str:
    """Format small print below a caption; empty if there is none."""
    joined_text = " ".join(text for text in texts if text)
    return (
        f"  \\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {escape_latex(joined_text)}\\end{{minipage}}\n"
        if joined_text
        else ""
    )


def format_table(
    label: str,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    file: str,
    notes: Sequence[str] = (),
    total: int = 0,
) -> str:
    """Format a table over both columns of a page, in the rules of booktabs, with as many rows as fit on the page.

    Args:
        label: label after `tab:`.
        title: caption; its last sentences go below the table if it is long.
        headings: texts of the first row.
        rows: texts of the other rows.
        file: name of the file with all rows.
        notes: further notes below the table.
        total: number of all rows, if it is more than `rows`.
    """
    rows_of_page = rows[:MAX_TABLE_LINES]
    columns = _lay_out_columns(headings, rows_of_page)
    rows_of_page = rows_of_page[: _count_fitting_rows(columns, rows_of_page)]
    left_out = max(total, len(rows)) - len(rows_of_page)
    rows_note = f"{left_out:,} further {'row is' if left_out == 1 else 'rows are'} in {file}." if left_out else ""
    heading = _join_cells(column.format_heading() for column in columns)
    body = [
        _join_cells(column.format_cell(text) for column, text in zip(columns, row, strict=True)) for row in rows_of_page
    ]
    first_sentences, last_sentences = split_caption(title)
    return (
        "% needs \\usepackage{graphicx,booktabs}\n"
        "\\begin{table*}\n  \\centering\n  \\scriptsize\n  \\setlength{\\tabcolsep}{3pt}\n"
        f"  \\caption{{{escape_latex(first_sentences)}}}\n"
        f"  \\label{{tab:{label}}}\n"
        "  \\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%\n"
        f"  \\begin{{tabular}}{{@{{}}{''.join(column.kind for column in columns)}@{{}}}}\n"
        f"    \\toprule\n    {heading}\n    \\midrule\n"
        + "".join(f"    {line}\n" for line in body)
        + f"    \\bottomrule\n  \\end{{tabular}}}}\n{format_note(last_sentences, rows_note, *notes)}\\end{{table*}}\n"
    )


@dataclass(frozen=True, slots=True)
class _LatexColumn:
    """Column of a table: lines of its heading, and its share of the page's width; None for a column that is as wide as its text."""

    heading: tuple[str, ...]
    share: float | None

    @property
    def kind(self) -> str:
        """Column type in the preamble of `tabular`."""
        return "l" if self.share is None else f"p{{{self.share:.2f}\\textwidth}}"

    def format_heading(self) -> str:
        """Format the heading, one line below the other."""
        return r"\shortstack[l]{" + r" \\ ".join(map(escape_latex, self.heading)) + "}"

    def format_cell(self, text: str) -> str:
        """Format a text of the column."""
        return escape_latex(text) if self.share is None else f"{{\\raggedright {escape_latex(text)}\\par}}"

    def count_lines(self, text: str) -> int:
        """Return the number of lines that the text takes in the column."""
        return 1 if self.share is None else max(math.ceil(len(text) / (self.share * _PAGE_WIDTH_CHARACTERS)), 1)


def _lay_out_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[_LatexColumn]:
    """Break headings into lines as wide as their columns, and share the rest of the width among columns that hold sentences."""
    longest = [max(len(text) for text in column) for column in zip(*rows, strict=True)]
    lines = [
        tuple(textwrap.wrap(text, max(width, _MIN_COLUMN_CHARACTERS), break_long_words=False) or [""])
        for text, width in zip(headings, longest, strict=True)
    ]
    widths = [max(width, *map(len, heading)) for width, heading in zip(longest, lines, strict=True)]
    shares = _share_width(widths)
    return [_LatexColumn(heading, share) for heading, share in zip(lines, shares, strict=True)]


def _share_width(widths: Sequence[int]) -> list[float | None]:
    """Share the width among columns with broken lines; None for the other columns."""
    longest, unbroken = _choose_longest_unbroken(widths)
    # The square root keeps a short column next to a long one from shrinking to the width of a word.
    weights = [math.sqrt(width) if width > longest else 0.0 for width in widths]
    broken_share = max(_MIN_BROKEN_SHARE, 1 - unbroken)
    return [broken_share * weight / sum(weights) if weight else None for weight in weights]


def _choose_longest_unbroken(widths: Sequence[int]) -> tuple[int, float]:
    """Return the length up to which texts are not broken into lines, and the share of the width that such columns take."""
    unbroken = 0.0
    for longest in _UNBROKEN_LENGTHS:
        unbroken = sum(width + 2 for width in widths if width <= longest) / _PAGE_WIDTH_CHARACTERS
        if unbroken <= _MAX_UNBROKEN_SHARE:
            return longest, unbroken
    return _UNBROKEN_LENGTHS[-1], unbroken


def _count_fitting_rows(columns: Sequence[_LatexColumn], rows: Sequence[Sequence[str]]) -> int:
    """Count the rows that fit on one page, at least one."""
    heights = (max(column.count_lines(text) for column, text in zip(columns, row, strict=True)) for row in rows)
    return max(1, bisect_right(list(accumulate(heights)), MAX_TABLE_LINES))


def _join_cells(cells: Iterable[str]) -> str:
    """Join the formatted cells of a row."""
    return " & ".join(cells) + r" \\"

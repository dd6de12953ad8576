"""The report's figures as files: for a page, or for a paper of two columns, with their captions in LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from campaign import wording
from campaign.errors import ConfigError, unwritable
from campaign.paths import REPORTS
from campaign.report.figure import Drawing, Figure, all_figures, data_of
from campaign.report.plot import COLUMN_IN, PAGE, drawn_for, paper
from campaign.report.svg import DECLARATION
from campaign.tables.io import Tables

# Of a table on one page; more are in its CSV file.
_ROWS = 45
# Characters: of a column that is not broken into lines, of a heading's line at least, and of a page's width.
_LONG, _NARROW, _CHARACTERS = 24, 8, 150

_LATEX = {c: f"\\{c}" for c in "#$%&_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "–": "--",
    "µ": r"\textmu{}",
    "\u202f": r"\,",
    "\u00a0": "~",
}


def draw(
    tables: Tables, out: Path, for_paper: bool, only: Sequence[str] | None = None
) -> tuple[list[Path], Mapping[str, str]]:
    """Draw figures into `out`: the files, and by title why others have nothing to show.

    only: names or anchors. ConfigError for one that does not exist, or when `out` cannot be written.
    """
    chosen = _chosen(only)
    files: list[Path] = []
    left_out: dict[str, str] = {}
    captions: list[str] = []
    formats = ("pdf", "svg") if for_paper else ()
    data = data_of(tables)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for figure in chosen:
            medium = paper(REPORTS / "paper.mplstyle", out / figure.name, formats, figure.title) if for_paper else PAGE
            with drawn_for(medium):
                drawing = figure.draw(data)
            if drawing.svg is None and not drawing.rows:
                left_out[figure.title] = drawing.empty_reason
                continue
            files += _write(figure, drawing, out, formats)
            captions.append(latex(figure, drawing) if drawing.svg is not None else latex_table(figure, drawing))
        if for_paper and captions:
            (out / "figures.tex").write_text("\n".join(captions), encoding="utf-8")
            files.append(out / "figures.tex")
    except OSError as error:
        raise unwritable(error, out) from error
    return files, left_out


def _chosen(only: Sequence[str] | None) -> list[Figure]:
    known = all_figures()
    wanted = [name.strip() for name in only or ()]
    for name in wanted:
        if not any(name in (figure.name, figure.anchor) for figure in known.values()):
            raise ConfigError(f"--only {name}: there is no such figure; there are {', '.join(known)}")
    return [figure for figure in known.values() if not wanted or {figure.name, figure.anchor} & set(wanted)]


def _write(figure: Figure, drawing: Drawing, out: Path, formats: Sequence[str]) -> list[Path]:
    """The data, and the picture where it is not saved while drawing."""
    data = out / f"{figure.name}.csv"
    data.write_text(figure.csv(drawing), encoding="utf-8")
    if drawing.svg is None:
        return [data]
    if formats:
        return [*(out / f"{figure.name}.{kind}" for kind in formats), data]
    picture = out / f"{figure.name}.svg"
    picture.write_text(DECLARATION + drawing.svg, encoding="utf-8")
    return [picture, data]


def latex(figure: Figure, drawing: Drawing) -> str:
    """A figure over one column or both: picture, what there is to see (as a comment), caption, label."""
    environment = "figure" if figure_width_in(drawing.svg or "") < COLUMN_IN + 0.1 else "figure*"
    return (
        f"\\begin{{{environment}}}\n  \\centering\n"
        f"  \\includegraphics{{{figure.name}.pdf}}\n"
        f"  % {' '.join(drawing.alt.split())}\n"
        f"  \\caption{{{_caption(figure, drawing)}}}\n"
        f"  \\label{{fig:{figure.anchor}}}\n"
        f"\\end{{{environment}}}\n"
    )


def latex_table(figure: Figure, drawing: Drawing) -> str:
    """A table over both columns, in the rules of the package booktabs: caption, label, and as many rows as fit on a page."""
    shown = drawing.rows[:_ROWS]
    left_out = len(drawing.rows) - len(shown)
    more = f" {wording.plural(left_out, 'further row')} in {figure.name}.csv." if left_out else ""
    longest = [max(len(text) for text in column) for column in zip(*shown, strict=True)]
    # Headings are broken into lines as wide as their columns, and so are columns that hold sentences: they share what is left.
    headings = [
        textwrap.wrap(text, max(width, _NARROW), break_long_words=False) or [""]
        for text, width in zip(drawing.headings, longest, strict=True)
    ]
    widths = [max(width, *map(len, lines)) for width, lines in zip(longest, headings, strict=True)]
    broken = sum(width for width in widths if width > _LONG)
    left = max(0.2, 1 - (sum(widths) - broken + 2 * len(widths)) / _CHARACTERS)
    kinds = [f"p{{{left * width / broken:.2f}\\textwidth}}" if width > _LONG else "l" for width in widths]
    first = [r"\shortstack[l]{" + r" \\ ".join(map(escaped, lines)) + "}" for lines in headings]
    lines = [" & ".join(row) + r" \\" for row in (first, *([escaped(text) for text in row] for row in shown))]
    return (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table*}\n  \\centering\n  \\scriptsize\n  \\setlength{\\tabcolsep}{3pt}\n"
        f"  \\caption{{{_caption(figure, drawing)}{escaped(more)}}}\n"
        f"  \\label{{tab:{figure.anchor}}}\n"
        f"  \\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}\n"
        f"    \\toprule\n    {lines[0]}\n    \\midrule\n"
        + "".join(f"    {line}\n" for line in lines[1:])
        + "    \\bottomrule\n  \\end{tabular}\n\\end{table*}\n"
    )


def _caption(figure: Figure, drawing: Drawing) -> str:
    covered = f" Coverage: {drawing.coverage}" if drawing.coverage else ""
    return escaped(f"{figure.title}. {drawing.caption}{covered}")


def figure_width_in(svg: str) -> float:
    """Width of a picture as matplotlib writes it, in inches."""
    found = re.search(r'<svg[^>]* width="([0-9.]+)pt"', svg)
    return float(found[1]) / 72 if found else 0.0


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in text)

"""The report's figures as files: for a page, or for a paper of two columns, with their captions in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.analysis.tables.io import Tables
from campaign.common.errors import ConfigError, convert_os_error
from campaign.common.paths import REPORTS
from campaign.report.figure import Drawing, Figure, all_figures, data_of
from campaign.report.paper.latex import caption, escaped, note, table
from campaign.report.plot import COLUMN_IN, PAGE, drawn_for, paper
from campaign.report.svg import DECLARATION


@dataclass(frozen=True)
class Drawn:
    """files; left_out: by title, why a figure has nothing to show."""

    files: list[Path]
    left_out: Mapping[str, str]


def draw(tables: Tables, out: Path, for_paper: bool, only: Sequence[str] | None = None) -> Drawn:
    """Draw figures into a directory.

    Raises ConfigError if a selected figure does not exist or a file cannot be written.
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
        raise convert_os_error(error, out) from error
    return Drawn(files, left_out)


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
    """Format a figure in LaTeX, with picture, caption, label and limits."""
    environment = "figure" if figure_width_in(drawing.svg or "") < COLUMN_IN + 0.1 else "figure*"
    says, rest = caption(f"{figure.title}. {drawing.caption}")
    return (
        f"\\begin{{{environment}}}\n  \\centering\n"
        f"  \\includegraphics[width=\\linewidth,height=0.85\\textheight,keepaspectratio]{{{figure.name}.pdf}}\n"
        f"  % {' '.join(drawing.alt.split())}\n"
        f"  \\caption{{{escaped(says)}}}\n"
        f"  \\label{{fig:{figure.anchor}}}\n"
        f"{note(rest, *_notes(drawing))}\\end{{{environment}}}\n"
    )


def latex_table(figure: Figure, drawing: Drawing) -> str:
    """Format a figure that is a table in LaTeX."""
    title = f"{figure.title}. {drawing.caption}"
    return table(
        figure.anchor, title, drawing.headings, drawing.rows, f"{figure.name}.csv", _notes(drawing), drawing.rows_total
    )


def _notes(drawing: Drawing) -> list[str]:
    return [f"Coverage: {drawing.coverage}" if drawing.coverage else "", *filter(None, drawing.limits)]


def figure_width_in(svg: str) -> float:
    """Return the width of a matplotlib SVG in inches."""
    found = re.search(r'<svg[^>]* width="([0-9.]+)pt"', svg)
    return float(found[1]) / 72 if found else 0.0

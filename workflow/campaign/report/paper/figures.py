"""Figures of the report as files, for a page or for a paper with two columns, with captions in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.analysis.tables.io import Tables
from campaign.common.errors import ConfigError, convert_os_error
from campaign.common.paths import REPORTS
from campaign.report.figure import Drawing, Figure, build_figure_data, load_all_figures
from campaign.report.paper.latex import escape_latex, format_note, format_table, split_caption
from campaign.report.plot import COLUMN_WIDTH_IN, PAGE, build_paper_medium, use_medium
from campaign.report.svg import DECLARATION


@dataclass(frozen=True)
class DrawnFigures:
    """Files of drawn figures, and the reason why each other figure has no data, by title."""

    files: list[Path]
    left_out: Mapping[str, str]


def draw_figure_files(
    tables: Tables, out: Path, for_paper: bool, selection: Sequence[str] | None = None
) -> DrawnFigures:
    """Draw figures into a directory.

    Raises ConfigError if a selected figure does not exist or a file cannot be written.
    """
    selected_figures = _select_figures(selection)
    files: list[Path] = []
    left_out: dict[str, str] = {}
    captions: list[str] = []
    formats = ("pdf", "svg") if for_paper else ()
    data = build_figure_data(tables)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for figure in selected_figures:
            medium = (
                build_paper_medium(REPORTS / "paper.mplstyle", out / figure.name, formats, figure.title)
                if for_paper
                else PAGE
            )
            with use_medium(medium):
                drawing = figure.draw(data)
            if drawing.svg is None and not drawing.rows:
                left_out[figure.title] = drawing.empty_reason
                continue
            files += _write_files(figure, drawing, out, formats)
            captions.append(
                format_figure(figure, drawing) if drawing.svg is not None else format_figure_table(figure, drawing)
            )
        if for_paper and captions:
            (out / "figures.tex").write_text("\n".join(captions), encoding="utf-8")
            files.append(out / "figures.tex")
    except OSError as error:
        raise convert_os_error(error, out) from error
    return DrawnFigures(files, left_out)


def _select_figures(selection: Sequence[str] | None) -> list[Figure]:
    figures_by_name = load_all_figures()
    names = [name.strip() for name in selection or ()]
    for name in names:
        if not any(name in (figure.name, figure.anchor) for figure in figures_by_name.values()):
            raise ConfigError(f"--only {name}: this figure does not exist; figures are {', '.join(figures_by_name)}")
    return [figure for figure in figures_by_name.values() if not names or {figure.name, figure.anchor} & set(names)]


def _write_files(figure: Figure, drawing: Drawing, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure's data, and its picture unless drawing saved it already. Return all paths."""
    data = out / f"{figure.name}.csv"
    figure.write_csv(drawing, data)
    if drawing.svg is None:
        return [data]
    if formats:
        return [*(out / f"{figure.name}.{kind}" for kind in formats), data]
    picture = out / f"{figure.name}.svg"
    picture.write_text(DECLARATION + drawing.svg, encoding="utf-8")
    return [picture, data]


def format_figure(figure: Figure, drawing: Drawing) -> str:
    """Format a figure in LaTeX, with picture, caption, label and limits."""
    environment = "figure" if read_width_in(drawing.svg or "") < COLUMN_WIDTH_IN + 0.1 else "figure*"
    short_caption, caption_rest = split_caption(f"{figure.title}. {drawing.caption}")
    return (
        f"\\begin{{{environment}}}\n  \\centering\n"
        f"  \\includegraphics[width=\\linewidth,height=0.85\\textheight,keepaspectratio]{{{figure.name}.pdf}}\n"
        f"  % {' '.join(drawing.alt.split())}\n"
        f"  \\caption{{{escape_latex(short_caption)}}}\n"
        f"  \\label{{fig:{figure.anchor}}}\n"
        f"{format_note(caption_rest, *_list_notes(drawing))}\\end{{{environment}}}\n"
    )


def format_figure_table(figure: Figure, drawing: Drawing) -> str:
    """Format a figure that is a table in LaTeX."""
    title = f"{figure.title}. {drawing.caption}"
    return format_table(
        figure.anchor,
        title,
        drawing.headings,
        drawing.rows,
        f"{figure.name}.csv",
        _list_notes(drawing),
        drawing.rows_total,
    )


def _list_notes(drawing: Drawing) -> list[str]:
    return [f"Coverage: {drawing.coverage}" if drawing.coverage else "", *filter(None, drawing.limits)]


def read_width_in(svg: str) -> float:
    """Return the width of a matplotlib SVG in inches."""
    match = re.search(r'<svg[^>]* width="([0-9.]+)pt"', svg)
    return float(match[1]) / 72 if match else 0.0

"""Figures as files: sizes and fonts of a paper, captions in LaTeX, and what a person may ask for."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from campaign.analysis.tables import io
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.cli.main import main
from campaign.common.errors import ConfigError
from campaign.report import plot
from campaign.report.figure import build_figure_data, load_all_figures
from campaign.report.paper import figures as paper
from campaign.report.paper.latex import MAX_CAPTION_WORDS, MAX_TABLE_LINES, escape_latex, format_table, split_caption
from tests.unit.report import report_data as synthetic
from tests.unit.report.figure_columns import UNPAINTED


@pytest.fixture(scope="module")
def tables() -> Tables:
    shown = ("bert", 8, "fp16")
    plan = [
        each for each in synthetic.planned(2) if (each.cell.workload, each.cell.batch, each.cell.precision) == shown
    ]
    runs = build_runs_table(synthetic.records(plan))
    return Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document())


ONLY = ["scaling", "composition_times"]


def test_a_paper_gets_pdf_and_svg_of_its_columns_with_fonts_inside(tables: Tables, tmp_path: Path) -> None:
    drawn = paper.draw_figure_files(tables, tmp_path, for_paper=True, selection=ONLY)
    assert {path.name for path in drawn.files} == {
        "figures.tex",
        *(f"{n}.{k}" for n in ONLY for k in ("pdf", "svg", "csv")),
    }
    assert all(path.is_file() for path in drawn.files)
    assert drawn.left_out == {}
    for name in ONLY:
        width_in = (
            float(str(ElementTree.parse(tmp_path / f"{name}.svg").getroot().get("width")).removesuffix("pt")) / 72
        )
        assert any(width_in == pytest.approx(each) for each in (plot.COLUMN_WIDTH_IN, plot.PAGE_WIDTH_IN))
        assert "<text" not in (tmp_path / f"{name}.svg").read_text(), "letters are outlines"
        assert b"/FontFile2" in (tmp_path / f"{name}.pdf").read_bytes(), "TrueType fonts are in the file"
    again = tmp_path / "again"
    paper.draw_figure_files(tables, again, for_paper=True, selection=ONLY)
    for path in again.iterdir():
        # Not compared by `==` in the assertion: pytest would take a minute to say how pictures differ.
        same = path.read_bytes() == (tmp_path / path.name).read_bytes()
        assert same, path.name


def test_captions_are_latex_and_what_is_drawn_for_paper_leaves_the_page_as_it_was(
    tables: Tables, tmp_path: Path
) -> None:
    before = load_all_figures()["composition_times"].draw(build_figure_data(tables)).svg
    paper.draw_figure_files(tables, tmp_path, for_paper=True, selection=["composition-times"])
    assert load_all_figures()["composition_times"].draw(build_figure_data(tables)).svg == before
    text = (tmp_path / "figures.tex").read_text()
    assert re.search(r"\\includegraphics\[width=.linewidth,[^]]*]\{composition_times.pdf}", text)
    assert "\\label{fig:composition-times}" in text
    assert "\\begin{figure}" in text


def test_captions_have_coverage_and_tables_are_latex_tables(tables: Tables, tmp_path: Path) -> None:
    only = ["software-stack", "workload-characteristics", "scaling"]
    files = paper.draw_figure_files(tables, tmp_path, for_paper=True, selection=only).files
    assert {path.suffix for path in files} == {".csv", ".pdf", ".svg", ".tex"}
    text = (tmp_path / "figures.tex").read_text()
    assert "Coverage: " in text.partition("\\label{fig:scaling}")[2].partition("\\end{figure")[0]
    for name in ("software-stack", "workload-characteristics"):
        assert f"\\label{{tab:{name}}}" in text
    assert text.count("\\begin{table*}") == text.count("\\toprule") == text.count("\\bottomrule") == 2
    for own in text.split("\\begin{tabular}")[1:]:
        lines = [line for line in own.splitlines() if line.startswith("    ") and line.endswith("\\\\")]
        assert len({line.replace("\\&", "").count("&") for line in lines}) == 1, "as many cells in every row"
    assert "mean_per_s" in pd.read_csv(tmp_path / "scaling.csv")


def test_every_character_that_means_something_to_latex_is_escaped() -> None:
    assert escape_latex("5 % of a_b & {c} #1 $x^2 ~ \\") == (
        r"5 \% of a\_b \& \{c\} \#1 \$x\textasciicircum{}2 \textasciitilde{} \textbackslash{}"
    )
    assert escape_latex("−2.5× ±1–3") == r"$-$2.5$\times$ $\pm$1--3"
    assert escape_latex("2(n−1)α at 40 °C") == r"2(n$-$1)$\alpha$ at 40 $^\circ$C"
    assert escape_latex("[a] *\n<b>|é ő 中") == r"{[}a{]} {*} \textless{}b\textgreater{}\textbar{}é o ?"


@given(st.text())
def test_any_text_becomes_one_line_of_letters_that_pdflatex_has(text: str) -> None:
    said = escape_latex(text)
    assert all(
        " " <= each <= "~" or each in "áàâãäéèêëíìîïóòôõöúùûüñ" or each.lower() in "áàâãäéèêëíìîïóòôõöúùûüñĩũẽ"
        for each in said
    )
    plain = re.sub(r"\\[#$%&_{}]|\\[a-z]+\{\}|\\,|\$[^$]*\$|\{[\[\]*]\}", "", said)
    assert not set(plain) & set("#$%&_{}\\^[]*")


@given(st.lists(st.text("ab ", min_size=1, max_size=60).map(lambda each: f"A{each}."), min_size=1, max_size=9))
def test_a_caption_has_few_words_and_loses_none(sentences: list[str]) -> None:
    text = " ".join(" ".join(sentences).split())
    kept, rest = split_caption(text)
    assert f"{kept} {rest}".strip() == text
    assert len(kept.split()) <= MAX_CAPTION_WORDS or kept.count(". A") == 0


def test_a_table_ends_with_its_page_whether_rows_take_one_line_or_several() -> None:
    short = format_table("t", "T.", ("a", "b"), [("x", "1")] * 90, "t.csv")
    assert short.count("x & 1") == MAX_TABLE_LINES
    assert f"{90 - MAX_TABLE_LINES} further rows are in t.csv." in short
    sentence = "words " * 40  # of 240 characters; a line of the page has 100
    long = format_table("t", "T.", ("a", "b"), [(sentence, "1")] * 90, "t.csv", total=100)
    assert long.count("& 1") == MAX_TABLE_LINES // 3
    assert f"{100 - MAX_TABLE_LINES // 3} further rows are in t.csv." in long
    endless = format_table("t", "T.", ("a",), [("words " * 9999,)], "t.csv")
    assert "further" not in endless


def test_a_page_gets_svg_and_what_has_no_data_says_why(tables: Tables, tmp_path: Path) -> None:
    drawn = paper.draw_figure_files(tables, tmp_path, for_paper=False, selection=["link_matrices", "scaling"])
    assert [path.name for path in drawn.files] == ["scaling.svg", "scaling.csv"]
    assert "currentColor" in drawn.files[0].read_text()
    assert "no links" in next(iter(drawn.left_out.values()))


def test_a_figure_that_does_not_exist_is_named_with_those_that_do(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only scalling: this figure does not exist; figures are .*scaling, "):
        paper.draw_figure_files(tables, tmp_path, for_paper=True, selection=["scalling"])


def test_every_caption_has_at_most_so_many_words(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "to_svg", lambda _: UNPAINTED)
    paper.draw_figure_files(tables, tmp_path, for_paper=True)
    captions = re.findall(r"\\caption\{(.*)\}\n", (tmp_path / "figures.tex").read_text())
    assert len(captions) > 5
    assert [each for each in captions if len(each.split()) > MAX_CAPTION_WORDS] == []


def test_the_command_draws_from_a_directory_of_results(tables: Tables, tmp_path: Path) -> None:
    io.write_all_tables(tables, tmp_path / "tables")
    out = tmp_path / "out"
    done = CliRunner().invoke(
        main, ["figures", str(tmp_path), "--for", "paper", "--only", "scaling", "--output", str(out)]
    )
    assert done.exit_code == 0, done.output
    pieces = {"figures.tex", "numbers.tex", "comparisons.csv", "cells.csv"}
    assert {path.name for path in out.iterdir()} == {"scaling.pdf", "scaling.svg", "scaling.csv", *pieces}
    done = CliRunner().invoke(main, ["figures", str(out)])
    assert done.exit_code == 1
    assert "has no results of a campaign" in done.output

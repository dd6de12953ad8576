"""Figures as files: sizes and fonts of a paper, captions in LaTeX, and what a person may ask for."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.errors import ConfigError
from campaign.report import paper, plot
from campaign.tables import io
from campaign.tables.cells import cells_table
from campaign.tables.io import Tables
from campaign.tables.runs import runs_table
from tests.unit.report import report_data as synthetic


@pytest.fixture(scope="module")
def tables() -> Tables:
    shown = ("bert", 8, "fp16")
    plan = [
        each for each in synthetic.planned(2) if (each.cell.workload, each.cell.batch, each.cell.precision) == shown
    ]
    runs = runs_table(synthetic.records(plan))
    return Tables(runs, cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document())


ONLY = ["scaling", "composition_times"]


def test_a_paper_gets_pdf_and_svg_of_its_columns_with_fonts_inside(tables: Tables, tmp_path: Path) -> None:
    files, left_out = paper.draw(tables, tmp_path, for_paper=True, only=ONLY)
    assert {path.name for path in files} == {"figures.tex", *(f"{n}.{k}" for n in ONLY for k in ("pdf", "svg", "csv"))}
    assert all(path.is_file() for path in files)
    assert left_out == {}
    for name in ONLY:
        width_in = (
            float(str(ElementTree.parse(tmp_path / f"{name}.svg").getroot().get("width")).removesuffix("pt")) / 72
        )
        assert any(width_in == pytest.approx(each) for each in (plot.COLUMN_IN, plot.BOTH_COLUMNS_IN))
        assert "<text" not in (tmp_path / f"{name}.svg").read_text(), "letters are outlines"
        assert b"/FontFile2" in (tmp_path / f"{name}.pdf").read_bytes(), "TrueType fonts are in the file"
    again = tmp_path / "again"
    paper.draw(tables, again, for_paper=True, only=ONLY)
    for path in again.iterdir():
        # Not compared by `==` in the assertion: pytest would take a minute to say how pictures differ.
        same = path.read_bytes() == (tmp_path / path.name).read_bytes()
        assert same, path.name


def test_captions_are_latex_and_what_is_drawn_for_paper_leaves_the_page_as_it_was(
    tables: Tables, tmp_path: Path
) -> None:
    before = paper.all_figures()["composition_times"].draw(paper.data_of(tables)).svg
    paper.draw(tables, tmp_path, for_paper=True, only=["composition-times"])
    assert paper.all_figures()["composition_times"].draw(paper.data_of(tables)).svg == before
    text = (tmp_path / "figures.tex").read_text()
    assert "\\includegraphics{composition_times.pdf}" in text
    assert "\\label{fig:composition-times}" in text
    assert "\\begin{figure}" in text


def test_captions_have_coverage_and_tables_are_latex_tables(tables: Tables, tmp_path: Path) -> None:
    files, _ = paper.draw(
        tables, tmp_path, for_paper=True, only=["software-stack", "workload-characteristics", "scaling"]
    )
    assert {path.suffix for path in files} == {".csv", ".pdf", ".svg", ".tex"}
    text = (tmp_path / "figures.tex").read_text()
    assert "Coverage: " in text.partition("\\label{fig:scaling}")[0]
    for name in ("software-stack", "workload-characteristics"):
        assert f"\\label{{tab:{name}}}" in text
    assert text.count("\\begin{table*}") == text.count("\\toprule") == text.count("\\bottomrule") == 2
    for table in text.split("\\begin{tabular}")[1:]:
        lines = [line for line in table.splitlines() if line.startswith("    ") and line.endswith("\\\\")]
        assert len({line.replace("\\&", "").count("&") for line in lines}) == 1, "as many cells in every row"
    assert "mean_per_s" in (tmp_path / "scaling.csv").read_text().splitlines()[0].split(",")


def test_every_character_that_means_something_to_latex_is_escaped() -> None:
    assert paper.escaped("5 % of a_b & {c} #1 $x^2 ~ \\") == (
        r"5 \% of a\_b \& \{c\} \#1 \$x\textasciicircum{}2 \textasciitilde{} \textbackslash{}"
    )
    assert paper.escaped("−2.5× ±1–3") == r"$-$2.5$\times$ $\pm$1--3"


def test_a_page_gets_svg_and_what_has_no_data_says_why(tables: Tables, tmp_path: Path) -> None:
    files, left_out = paper.draw(tables, tmp_path, for_paper=False, only=["link_matrices", "scaling"])
    assert [path.name for path in files] == ["scaling.svg", "scaling.csv"]
    assert "currentColor" in files[0].read_text()
    assert "no links" in next(iter(left_out.values()))


def test_a_figure_that_does_not_exist_is_named_with_those_that_do(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only scalling: there is no such figure; there are .*scaling, "):
        paper.draw(tables, tmp_path, for_paper=True, only=["scalling"])


def test_the_command_draws_from_a_directory_of_results(tables: Tables, tmp_path: Path) -> None:
    io.write(tables, tmp_path / "tables")
    out = tmp_path / "out"
    done = CliRunner().invoke(
        main, ["figures", str(tmp_path), "--for", "paper", "--only", "scaling", "--output", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} == {"scaling.pdf", "scaling.svg", "scaling.csv", "figures.tex"}
    done = CliRunner().invoke(main, ["figures", str(out)])
    assert done.exit_code == 1
    assert "holds no results of a campaign" in done.output

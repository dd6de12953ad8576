"""Tables of numbers for a paper: every comparison and cell once, and LaTeX whatever the names are."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from campaign.analysis.statistics import comparable_cells
from campaign.analysis.tables.io import Tables
from campaign.common import intervals
from campaign.report.paper.numbers import compare_cells, format_numbers
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth

TRUTH = Truth(compositions=3, runs=6)
HOSTILE = r"\end{document} 100% & #1 $x_{y}$ ~^ [z] * <é中>"


def campaign(truth: Truth = TRUTH, **context: Any) -> Tables:
    tables = planted.tables(truth, np.random.default_rng(5))
    return replace(tables, context={**tables.context, **context})


def hostile() -> Tables:
    tables = campaign(conditions=[HOSTILE])
    names = {"workload": HOSTILE + tables.cells["workload"], "configuration": HOSTILE + tables.cells["configuration"]}
    runs = tables.runs.assign(**{name: HOSTILE + tables.runs[name] for name in names})
    return replace(tables, cells=tables.cells.assign(**names), runs=runs)


def text_of(tables: Tables) -> str:
    return format_numbers(tables, compare_cells(tables))


def test_names_of_any_kind_leave_the_environments_balanced() -> None:
    text = text_of(hostile())
    begun, ended = (Counter(re.findall(rf"\\{word}\{{(\w+\*?)\}}", text)) for word in ("begin", "end"))
    plain = re.sub(r"\\[{}]", "", text)
    assert begun == ended
    assert plain.count("{") == plain.count("}")
    assert r"\end{document}" not in text
    assert not re.search(r"\\\\\n\s*[\[*]", text), "no argument of the end of a row"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_numbers_compile_alone_and_are_no_wider_than_the_page(tmp_path: Path) -> None:
    (tmp_path / "piece.tex").write_text(text_of(hostile()))
    document = (
        "\\documentclass{article}\\usepackage{graphicx,booktabs}\\begin{document}\\input{piece.tex}\\end{document}"
    )
    (tmp_path / "main.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    wide = [float(each) for each in re.findall(r"Overfull \\hbox \(([\d.]+)pt", done.stdout)]
    assert [each for each in wide if each > 1] == []


def test_every_comparison_and_cell_is_there_once_with_the_numbers_of_its_figure() -> None:
    tables = campaign(conditions=["the fabric is simulated"])
    compared, text = compare_cells(tables), text_of(tables)
    assert len(compared) >= 3
    assert not compared.duplicated(["cell_id", "against_cell"]).any()
    assert (compared["method"] != intervals.NO_INTERVAL_REFERENCE).all()
    assert compared["ratio"].between(compared["ratio_low"], compared["ratio_high"]).all()
    for title, rows in (
        ("Scaling", comparable_cells.compare_device_counts(tables.cells, tables.design)),
        ("Node spread", comparable_cells.compare_host_counts(tables.cells, tables.design)),
    ):
        own = compared[compared["figure"] == title]
        both = own.merge(rows, on=["cell_id", "against_cell"], suffixes=("", "_figure"))
        assert len(both) == len(own)
        assert (both["p_holm"] == both["p_holm_figure"]).all()
        assert (both["ratio_low"] == both["ratio_low_figure"]).all()
    for ratio in compared["ratio"]:
        assert f"{ratio:.2f}$\\times$" in text
    assert text.count("\\label{tab:comparisons}") == text.count("\\label{tab:cells}") == 1
    assert text.count("The fabric is simulated.") == 2


def test_a_pair_is_named_by_what_differs() -> None:
    tables = campaign(replace(TRUTH, cells=2))
    row = compare_cells(tables).iloc[0]
    cells = tables.cells.set_index("cell_id")
    first, second = cells.loc[row["cell_id"]], cells.loc[row["against_cell"]]
    named = f"{first['configuration']} against {second['configuration']} (batch {first['batch']})"
    assert row["comparison"] == named


def test_a_campaign_without_a_valid_run_has_no_comparison() -> None:
    tables = campaign()
    cells = tables.cells.assign(n_ok=0, mean=np.nan, ci_low=np.nan, ci_high=np.nan, state="failed")
    text = text_of(replace(tables, runs=tables.runs.assign(status="crashed"), cells=cells))
    assert "tab:comparisons" not in text
    assert "failed & 0 & 0" in text

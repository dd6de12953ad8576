"""Numbers, methods and artifact appendix: true for the campaign that they are of, and LaTeX whatever its names are."""

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

from campaign.insight.compare.claims import claims
from campaign.report.paper import texts
from campaign.tables.io import Tables
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth
from tests.unit.report import report_data

TRUTH = Truth(compositions=3, runs=6)
HOSTILE = r"\end{document} 100% & #1 $x_{y}$ ~^ [z] * <é中>"


def campaign(truth: Truth = TRUTH, **said: Any) -> Tables:
    made = planted.tables(truth, np.random.default_rng(5))
    return replace(made, context={**made.context, **said})


def pieces(tables: Tables, source: str = "small.zip") -> dict[str, str]:
    stated = claims(tables)
    documents = [{"title": "Scaling", "method": "as it is", "tested": {}}]
    return {
        "numbers": texts.numbers(tables, stated),
        "methods": texts.methods(tables, documents, stated),
        "artifact": texts.artifact(tables, Path(source), stated),
    }


def balanced(text: str) -> bool:
    begun, ended = (Counter(re.findall(rf"\\{word}\{{(\w+\*?)\}}", text)) for word in ("begin", "end"))
    plain = re.sub(r"\\[{}]", "", text)
    return begun == ended and plain.count("{") == plain.count("}")


def hostile() -> Tables:
    made = campaign(notes=[HOSTILE], conditions=[HOSTILE])
    names = {"workload": HOSTILE + made.cells["workload"], "configuration": HOSTILE + made.cells["configuration"]}
    about = {**made.context["campaign"], "title": HOSTILE, "question": HOSTILE, "name": HOSTILE}
    runs = made.runs.assign(**{name: HOSTILE + made.runs[name] for name in names})
    return replace(made, cells=made.cells.assign(**names), runs=runs, context={**made.context, "campaign": about})


def test_names_of_any_kind_leave_the_environments_balanced() -> None:
    for name, text in pieces(hostile(), f"{HOSTILE}.zip").items():
        assert balanced(text), name
        assert r"\end{document}" not in text
        assert not re.search(r"\\\\\n\s*[\[*]", text), "no argument of the end of a row"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
@pytest.mark.parametrize("name", ["numbers", "methods", "artifact"])
def test_each_piece_compiles_alone_and_is_no_wider_than_the_page(name: str, tmp_path: Path) -> None:
    (tmp_path / "piece.tex").write_text(pieces(hostile(), f"{HOSTILE}.zip")[name])
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


def test_methods_say_how_often_hardware_was_composed_and_how_intervals_were_made() -> None:
    text = pieces(campaign(conditions=["the fabric is simulated"]))["methods"]
    assert "hardware was composed anew 12 times" in text
    assert "in 3 compositions with 2 valid runs in each, 24 valid runs in all" in text
    assert "The fabric is simulated." in text
    assert "Scaling: as it is." in text
    once = pieces(campaign(replace(TRUTH, configurations=6, compositions=(3, 3, 3, 3, 1, 1))))["methods"]
    assert "each cell was measured in 1 to 3 compositions" in once
    assert "borrowed from other cells of the campaign" in once
    assert "borrowed" not in text


def test_numbers_say_which_ratios_they_are() -> None:
    assert "Ratios of throughput, with 95" in pieces(campaign())["numbers"]
    shapes = [report_data.configuration(each=devices) for devices in (1, 2)]
    scaled = planted.tables(replace(TRUTH, configurations=2, cells=2), np.random.default_rng(5), shapes)
    text = pieces(scaled)["numbers"]
    assert "Ratios of throughput, of speed-ups, with 95" in text
    assert "batch 16 against batch 8 (fabric-2), over fabric-1\\par} & Speed-up by batch & " in text


def test_methods_say_how_figures_tested() -> None:
    documents = [{"title": "Scaling", "method": "", "tested": {"differ": 1, "t over compositions": 4}}]
    tables = campaign()
    assert "1 of 4 comparisons in figures differ significantly" in texts.methods(tables, documents, claims(tables))


def test_a_campaign_without_a_valid_run_says_so() -> None:
    made = campaign()
    empty = replace(made, runs=made.runs.assign(status="crashed"))
    cells = empty.cells.assign(n_ok=0, mean=np.nan, ci_low=np.nan, ci_high=np.nan, state="failed")
    found = pieces(replace(empty, cells=cells))
    assert "No run is valid." in found["methods"]
    assert "states no comparison" in found["artifact"]
    assert "tab:comparisons" not in found["numbers"]


def test_numbers_have_each_claim_and_cell_once_and_the_appendix_its_tolerance() -> None:
    tables = campaign()
    stated, found = claims(tables), pieces(tables)
    assert len(stated) >= 3
    for row in stated.to_dict("records"):
        ratio = f"{row['ratio']:.2f}$\\times$"
        assert ratio in found["numbers"]
        assert f"{row['expected_low']:.2f}$\\times$ to {row['expected_high']:.2f}$\\times$" in found["artifact"]
    assert found["numbers"].count("\\label{tab:cells}") == 1
    assert "campaign reproduce small.zip" in found["artifact"]
    assert "is made by" not in found["artifact"]
    assert "campaign archive" in pieces(tables, "results/small")["artifact"].partition("is made by")[2]

"""Adding a figure: the template of `campaign.report.figure`, saved as a file, is drawn and on the page without any other edit."""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.analysis.tables import io
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.common.errors import RecordError
from campaign.common.paths import REPORTS, SCRIPTS, find_figure_files
from campaign.report import bars, figure, write
from campaign.report.context_schema import ContextDocument
from docs import literature_index
from tests.unit.report import report_data as synthetic

LINES = 10


def template() -> str:
    """The figure that the documentation of figures says to copy."""
    described = inspect.getdoc(figure) or ""
    start = described.index('    """Figure:')
    return textwrap.dedent(described[start : described.index("Optional declarations")])


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of scripts/ with two figures, one of them new."""
    folder = tmp_path / "scripts" / "figures"
    folder.mkdir(parents=True)
    shutil.copy(SCRIPTS / "figures" / "composition_times.py", folder)
    (folder / "held_time.py").write_text(template())
    return folder.parent


def test_files_of_the_current_directory_are_figures_beside_those_of_the_program(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scripts.parent)
    files = find_figure_files()
    assert {name for name, path in files.items() if path.parent != SCRIPTS / "figures"} == {
        "composition_times",
        "held_time",
    }
    assert "precision" in files


def test_the_template_has_ten_lines() -> None:
    assert len([line for line in template().splitlines() if line.strip()]) <= LINES


def test_a_new_file_is_drawn_and_on_the_page(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = synthetic.planned(2)[:4]
    runs = build_runs_table(synthetic.records(plan))
    tables = io.Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document())
    io.write_all_tables(tables, tmp_path / "tables")
    figures = tmp_path / "figures"
    write.draw_figures(tmp_path / "tables", figures, scripts)
    document = json.loads((figures / "held_time.json").read_text())
    assert document["picture"]
    assert document["alt"] == document["findings"][0]
    assert document["caption"] == "Mean over leases."
    assert (figures / "held_time.csv").read_text().startswith('"configuration","held_s"\n')
    write.render_report(tmp_path / "tables", figures, tmp_path / "page.html", scripts)
    page = (tmp_path / "page.html").read_text()
    assert '<section id="held-time"' in page
    assert "<svg" in page.partition('<section id="held-time"')[2].partition("</section>")[0]
    # Figures that declare no part are evidence.
    assert (
        page.index('<section id="evidence"')
        < page.index('<section id="held-time"')
        < page.index('<section id="apparatus"')
    )


def test_bars_of_a_column_that_no_run_has_are_left_out_with_the_reason() -> None:
    plan = synthetic.planned(2)[:4]
    runs = build_runs_table(synthetic.records(plan))
    data = figure.build_figure_data(
        io.Tables(runs, build_cells_table(plan, runs), [], [], synthetic.context_document())
    )
    rows = bars.summarize_by_cell(data, [bars.Quantity("no_such_column_w", "power", "W")])
    drawn = bars.build_bar_drawing(data, rows, "Power is that of the whole run.")
    assert drawn.svg is None
    assert drawn.empty_reason == "no valid run has a value"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("leases.json", lambda document: [5]),
        ("leases.json", lambda document: [{**document[0], "obtained": {"hosts": 5}}]),
        ("links.json", lambda document: [5]),
        ("context.json", lambda document: {**document, "references": [5]}),
        ("context.json", lambda document: {**document, "campaign": 5}),
        ("context.json", lambda document: None),
    ],
)
def test_damaged_tables_are_one_message(tmp_path: Path, name: str, change: Callable[[Any], Any]) -> None:
    plan = synthetic.planned(2)[:4]
    runs = build_runs_table(synthetic.records(plan))
    tables = io.Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document())
    io.write_all_tables(tables, tmp_path)
    path = tmp_path / name
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(RecordError, match="the tables are damaged; delete them and run the command again"):
        io.read_tables(tmp_path)


def test_tables_look_for_the_kinds_that_the_page_has_a_form_for() -> None:
    """Of each key of the context whether it is a text, a list or a mapping, and of what, down to a mapping of any form."""

    def kind(said: dict[str, Any], schema: dict[str, Any]) -> Any:
        said = schema["$defs"][said["$ref"].rpartition("/")[2]] if "$ref" in said else said
        if said["type"] == "array":
            return [kind(said["items"], schema)]
        return said["type"]

    ours, page = io.ReportContext.model_json_schema(), ContextDocument.model_json_schema()
    assert set(page["properties"]) - set(ours["properties"]) == {"published", "race"}, (
        "claims are made for the page, and a race is read as its own document"
    )
    for name, said in ours["properties"].items():
        assert kind(said, ours) == kind(page["properties"][name], page), name


def test_a_file_that_is_no_figure_is_one_error(scripts: Path) -> None:
    (scripts / "figures" / "held_time.py").write_text('TITLE = "Held time"\n')
    with pytest.raises(RecordError, match=r"held_time\.py: a figure must declare .*; missing: SECTION, draw"):
        figure.load_all_figures(scripts)


def test_the_readme_of_reports_lists_what_figures_declare() -> None:
    assert (REPORTS / "README.md").read_text() == literature_index.written(), "run 'make docs'"

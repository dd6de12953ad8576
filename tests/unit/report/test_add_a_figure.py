"""Adding a figure: the template of `campaign.report.figure`, saved as a file, is drawn and on the page without any other edit."""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from pathlib import Path

import pytest

from campaign.errors import RecordError
from campaign.paths import REPORTS, SCRIPTS
from campaign.report import figure, literature_index, write
from campaign.tables import io
from campaign.tables.cells import cells_table
from campaign.tables.runs import runs_table
from tests.unit.report import report_data as synthetic

LINES = 10


def template() -> str:
    """The figure that the documentation of figures says to copy."""
    described = inspect.getdoc(figure) or ""
    start = described.index('    """Figure:')
    return textwrap.dedent(described[start : described.index("What it may declare")])


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of scripts/ with two figures, one of them new."""
    folder = tmp_path / "scripts" / "figures"
    folder.mkdir(parents=True)
    shutil.copy(SCRIPTS / "figures" / "composition_times.py", folder)
    (folder / "held_time.py").write_text(template())
    return folder.parent


def test_the_template_has_ten_lines() -> None:
    assert len([line for line in template().splitlines() if line.strip()]) <= LINES


def test_a_new_file_is_drawn_and_on_the_page(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = synthetic.planned(2)[:4]
    runs = runs_table(synthetic.records(plan))
    tables = io.Tables(runs, cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document())
    io.write(tables, tmp_path / "tables")
    figures = tmp_path / "figures"
    write.draw_figures(tmp_path / "tables", figures, scripts)
    document = json.loads((figures / "held_time.json").read_text())
    assert document["picture"]
    assert document["alt"] == document["findings"][0]
    assert document["caption"] == "Mean over leases."
    assert (figures / "held_time.csv").read_text().startswith("configuration,held_s\n")
    write.render_report(tmp_path / "tables", figures, tmp_path / "page.html", scripts)
    page = (tmp_path / "page.html").read_text()
    assert '<section id="held-time"' in page
    assert "<svg" in page.partition('<section id="held-time"')[2].partition("</section>")[0]
    # Figures that declare no place come last.
    assert page.index('<section id="composition-times"') < page.index('<section id="held-time"')


def test_a_file_that_is_no_figure_is_one_error(scripts: Path) -> None:
    (scripts / "figures" / "held_time.py").write_text('TITLE = "Held time"\n')
    with pytest.raises(RecordError, match=r"held_time\.py: a figure declares .*; missing: SECTION, draw"):
        figure.all_figures(scripts)


def test_the_readme_of_reports_lists_what_figures_declare() -> None:
    assert (REPORTS / "README.md").read_text() == literature_index.written(), "run 'make docs'"

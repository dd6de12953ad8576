"""The page: complete, escaped, self-contained, and the same every time."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from jinja2 import UndefinedError

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.leases import build_leases_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.common.errors import RecordError
from campaign.report import figure
from campaign.report import page as report
from campaign.report.figure import FigureData
from campaign.spec.cell import Cell, Configuration
from campaign.spec.record import Record
from campaign.spec.run_numbers import compute_run_number
from tests.unit.report import report_data as synthetic
from tests.unit.report import spread_data

SHOWN = ("node_spread", "composition_times")
Tables = tuple[pd.DataFrame, pd.DataFrame]


class Reader(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def tables(plan: list[CellPlan]) -> Tables:
    runs = build_runs_table(synthetic.records(plan))
    return runs, build_cells_table(plan, runs)


def of_records(records: Iterable[Record], cell: Cell, repetitions: int) -> Tables:
    """Tables of a campaign of one cell."""
    runs = build_runs_table(records)
    return runs, build_cells_table([CellPlan(cell, repetitions, "l")], runs)


def context_of(
    of: Tables, leases: Sequence[dict] = (), drawings: Mapping[str, dict] | None = None, **changes: Any
) -> dict:
    """What the page says of the synthetic campaign; changes: keys of its document."""
    return report.build_context(*of, leases, synthetic.context_document() | changes, drawings or {})


def page_of(of: Tables, leases: Sequence[dict] = (), drawings: Mapping[str, dict] | None = None, **changes: Any) -> str:
    return report.render_report_page(*of, leases, synthetic.context_document() | changes, drawings or {})


def draw(runs: pd.DataFrame, cells: pd.DataFrame, names: tuple[str, ...] = SHOWN) -> dict:
    data = FigureData(runs, cells, build_leases_table(synthetic.leases()), synthetic.BASELINE, {})
    documents = {}
    for name in names:
        shown = figure.load_figure(name)
        drawing = shown.draw(data)
        words = figure.build_page_document(shown, drawing)
        documents[name] = {**words, "svg": f'<?xml version="1.0"?>\n{drawing.svg}', "csv": "H4sI", "pdf": "JVBE"}
    return documents


@pytest.fixture(scope="module")
def measured() -> Tables:
    return tables([entry for entry in synthetic.planned() if entry.cell.batch != 16])


@pytest.fixture(scope="module")
def drawings(measured: Tables) -> dict:
    nothing = {
        "anchor": "overhead", "title": "Local, hybrid and fabric", "section": "", "shown": False,
        "reason": "there is <no> baseline", "caption": "", "alt": "", "findings": [], "headings": [], "rows": [],
        "rows_left_out": 0, "svg": "<svg/>", "csv": "", "pdf": "", "part": "answers", "within": "",
    }  # fmt: skip
    return {"overhead": nothing, **draw(*measured)}


@pytest.fixture(scope="module")
def page(measured: Tables, drawings: dict) -> str:
    return page_of(measured, synthetic.leases(), drawings)


def test_sections_come_in_order_with_a_table_of_contents(page: str) -> None:
    reader = read(page)
    sections = [attrs["id"] for tag, attrs in reader.tags if tag == "section"]
    assert sections == [
        "answer", "answers", "node-spread", "evidence", "cells", "apparatus", "composition-times", "compositions", "coverage",
        "method", "provenance",
    ]  # fmt: skip
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert re.findall(r'href="#([^"]+)"', contents) == sections
    headings = [tag for tag, _ in reader.tags if tag in ("h1", "h2", "h3")]
    assert headings.count("h1") == 1
    assert ("html", {"lang": "en"}) in reader.tags


def test_the_campaign_file_chooses_and_orders(measured: Tables, drawings: dict) -> None:
    def shown(**layout: list[str]) -> dict[str, list[str]]:
        campaign = {**synthetic.context_document()["campaign"], "report": layout}
        context = context_of(measured, synthetic.leases(), drawings, campaign=campaign)
        return {part: [each["anchor"] for each in context[part]] for part in ("answers", "evidence", "apparatus")}

    assert shown() == {"answers": ["node-spread"], "evidence": [], "apparatus": ["composition-times"]}
    asked = shown(open=["composition_times"])
    assert asked == {"answers": ["composition-times"], "evidence": ["node-spread"], "apparatus": []}
    assert shown(hide=["node-spread"])["answers"] == []


def document_of(name: str, part: str = figure.ANSWERS, within: str = "", **fields: Any) -> dict:
    """Document of a figure with two findings."""
    declared = figure.Figure(
        name, name.capitalize(), f"Why {name}?", lambda data: figure.nothing(""), part=part, within=within
    )
    drawing = figure.Drawing(svg="<svg/>", findings=(f"First of {name}.", f"Second of {name}."), **fields)
    return {**figure.build_page_document(declared, drawing), "svg": "<svg/>", "csv": "H4sI", "pdf": ""}


def test_an_answer_without_a_significant_difference_is_one_line_unless_the_campaign_file_opens_it(
    measured: Tables,
) -> None:
    drawings = {
        "parent": document_of("parent"),
        "panel": document_of("panel", within="parent"),
        "calm": document_of("calm", within="parent", minor=True),
        "alone": document_of("alone", minor=True),
    }
    page = page_of(measured, drawings=drawings)
    answers = page[page.index('<section id="answers"') : page.index('<section id="evidence"')]
    for name, is_folded in (("parent", False), ("panel", False), ("calm", True), ("alone", True)):
        said = [f"Second of {name}." in answers, f'id="{name}-heading"' in answers]
        assert said == ([False, True] if is_folded else [True, name == "parent"]), name
        assert (f'<summary><h3 id="{name}-heading">' in answers) == is_folded
    first_screen = page[: page.index("<nav")]
    assert "First of parent." in first_screen
    assert "First of alone." not in first_screen
    campaign = {**synthetic.context_document()["campaign"], "report": {"open": ["alone", "parent"]}}
    asked = page_of(measured, drawings=drawings, campaign=campaign)
    assert "Second of alone." in asked
    assert asked.index('id="panel"') < asked.index('<section id="evidence"')


def test_a_card_has_the_sentence_of_its_picture_and_what_was_assumed(measured: Tables) -> None:
    drawings = {
        "linked": {**document_of("linked", glance="<svg/>", headline="By <all>."), "rests_on": ["links", "devices"]},
        "wired": {**document_of("wired"), "rests_on": ["links"]},
    }
    assumed = page_of(measured, drawings=drawings, assumptions={"links": "Links are set to 3 Gbit/s."})
    cards = re.findall(r"<p>(.*?)</p>", re.search(r'<ul class="glances">(.*?)</ul>', assumed, re.DOTALL)[1])
    note = ' <span class="fine">Links are set to 3 Gbit/s.</span>'
    assert cards == [f"By &lt;all&gt;.{note}", f"First of wired.{note}"]
    conditions = page_of(measured, drawings=drawings, conditions=["links are emulated"])
    assert conditions.count('<span class="fine">Links are emulated.</span>') == 2


def test_figures_of_one_subject_share_a_folded_section_with_all_titles(measured: Tables) -> None:
    part = figure.EVIDENCE
    drawings = {"parent": document_of("parent", part), "other": document_of("other", part, within="parent")}
    page = page_of(measured, drawings=drawings)
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert '<a href="#parent">Parent</a>' in contents
    assert '<h3 id="parent-heading">Parent, other</h3>' in page
    assert 'href="#other"' not in contents
    assert page.count("First of other.") == 1
    alone = page_of(measured, drawings={"other": drawings["other"]})
    assert '<a href="#other">Other</a>' in alone


def test_a_panel_is_in_the_part_of_its_section() -> None:
    figures = {each.anchor: each for each in figure.load_all_figures().values()}
    for panel in figures.values():
        assert not panel.within or figures[panel.within].part == panel.part, panel.name
        assert not panel.within or not figures[panel.within].within, panel.name


def test_drawings_of_earlier_versions_are_still_shown(measured: Tables) -> None:
    drawing = document_of("old")
    del drawing["minor"]
    assert "Second of old." in page_of(measured, drawings={"old": drawing})


def test_the_page_is_one_file_without_request_and_only_links_that_need_its_script_are_hidden(page: str) -> None:
    reader = read(page)
    assert [attrs for tag, attrs in reader.tags if tag == "script"] == [
        {"type": "application/json", "id": "cells-data"},
        {},
    ]
    hidden = [(tag, attrs) for tag, attrs in reader.tags if "hidden" in attrs]
    assert all(attrs.get("data-svg") or attrs.get("data-csv") for tag, attrs in hidden if tag == "a")
    assert [attrs["class"] for tag, attrs in hidden if tag != "a"] == ["marks-help"]
    assert not any(name.startswith("on") for _, attrs in reader.tags for name in attrs)
    targets = [
        attrs[name] or "" for tag, attrs in reader.tags for name in ("src", "href", "xlink:href") if name in attrs
    ]
    assert all(target.startswith(("#", "data:")) for target in targets)
    assert not re.search(r"@import|url\((?!#)", page)


def test_text_of_campaigns_and_logs_is_shown_not_run(page: str) -> None:
    reader = read(page)
    assert synthetic.HOSTILE not in page
    # Title, exclusion, failure reason, mismatch and YAML carry it; a reader sees it as text.
    assert "".join(reader.text).count(synthetic.HOSTILE) >= 5
    assert "&lt;no&gt; baseline" in page


def test_no_id_comes_twice(page: str) -> None:
    ids = [attrs["id"] for _, attrs in read(page).tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_same_input_gives_the_same_page(page: str, measured: Tables, drawings: dict) -> None:
    assert page_of(measured, synthetic.leases(), dict(reversed(drawings.items()))) == page


def test_summary_counts_what_was_asked_and_what_came(measured: Tables, drawings: dict) -> None:
    context = context_of(measured, synthetic.leases(), drawings)
    assert dict(context["counts"]) == {
        "planned": "112", "measured": "97", "failed": "14", "missing": "1", "excluded": "12", "runs": "444",
        "compositions": "28",
    }  # fmt: skip
    assert [each["anchor"] for each in context["glances"]] == ["node-spread"]
    assert context["lost"] == "Of 112 planned cells, 14 failed and 1 is missing."


def test_a_folded_section_has_its_finding_in_its_line() -> None:
    plan = spread_data.plan(repetitions=16)
    runs = build_runs_table(spread_data.records(plan, slow=0.06, seed=0))
    cells = build_cells_table(plan, runs)
    page = page_of((runs, cells), drawings=draw(runs, cells, ("variance",)))
    line = re.search(r'<h3 id="variance-heading">.*?</summary>', page, re.DOTALL)
    assert line
    assert "host2 is slower than the other hosts" in line[0]


def test_every_planned_cell_is_accounted_for_with_reasons(measured: Tables, drawings: dict) -> None:
    context = context_of(measured, synthetic.leases(), drawings)
    rows = context["coverage"]["rows"]
    states = [row[1] for row in rows if row[1] != "measured"]
    assert {state: states.count(state) for state in set(states)} == {"failed": 14, "missing": 1}
    assert all(row[-1] for row in rows)
    assert dict(context["counts"])["measured"] == "97"
    missing = next(row for row in rows if row[1] == "missing")
    assert "fabric did not answer x4" in missing[-1]
    assert any("oversubscribed" in row[-1] for row in rows)


def test_very_many_cells_are_grouped_and_still_add_up() -> None:
    plan = [
        CellPlan(synthetic.cell(at, workload, seed=n), 2, "l")
        for at in synthetic.configurations()[:3]
        for workload in ("bert", "resnet")
        for n in range(40)
    ]
    runs, _ = tables(plan[:200])
    coverage = context_of((runs, build_cells_table(plan, runs)))["coverage"]
    assert len(coverage["rows"]) == 6
    assert sum(int(row[2]) for row in coverage["rows"]) == 240
    assert sum(int(row[5]) for row in coverage["rows"]) == 40
    assert coverage["rows"][-1][1] == "missing"
    assert "no record" in coverage["rows"][-1][-1]


def test_remarks_tell_what_counts_hide() -> None:
    cell, other = (synthetic.cell(synthetic.configuration(), batch=batch) for batch in (8, 16))
    records = [synthetic.record(cell, 1, 10.0), synthetic.record(other, 1, 10.0)]
    remarks = context_of(of_records(records, cell, 3))["remarks"]
    assert len(remarks) == 4
    assert "fewer valid runs" in remarks[0]
    assert "no interval" in remarks[1]
    assert "does not plan" in remarks[2]
    assert "host3" in remarks[3]


def test_a_cell_with_one_run_and_a_borrowed_interval_is_not_called_without_one() -> None:
    """Three configurations are composed three times, the last one once."""
    random = np.random.default_rng(3)
    plan, records = [], []
    for place, at in enumerate(synthetic.configurations()[:4]):
        cell = synthetic.cell(at)
        plan.append(CellPlan(cell, 3, f"lease-{at.name}"))
        for n in range(1, 4 if place < 3 else 2):
            rate = 10 * float(random.normal(1, 0.01))
            records.append(synthetic.record(cell, compute_run_number(n, 1), rate, lease_id=f"{at.name}.c{n}"))
    runs = build_runs_table(records)
    cells = build_cells_table(plan, runs)
    assert cells["ci_low"].notna().all()
    remarks = context_of((runs, cells))["remarks"]
    assert not any("no interval" in each for each in remarks)
    assert any("1 cell has only one valid run; the variance is estimated from other cells" in e for e in remarks)


def test_outliers_are_told_though_their_cell_was_measured() -> None:
    cell = synthetic.cell(synthetic.configuration())
    rates = enumerate([100, 101, 99, 80, 100, 99.5], start=1)
    context = context_of(of_records([synthetic.record(cell, n, rate) for n, rate in rates], cell, 6))
    coverage = context["coverage"]
    row = dict(zip(coverage["headings"], coverage["rows"][0], strict=True))
    assert row["Mean (samples/s)"] == "99.26"
    assert "outlier (kept): composition 1, run 4 (−19.8 %)" in row["Reasons and flags"]
    assert any("1 run in 1 cell is marked as an outlier" in remark for remark in context["remarks"])


def test_what_was_obtained_and_differs_is_flagged(page: str, measured: Tables) -> None:
    context = context_of(measured, synthetic.leases())
    compositions = context["compositions"]
    assert (compositions["total"], compositions["mismatched"], compositions["faulty"]) == (14, 1, 1)
    differing = next(row for row in compositions["rows"] if row["mismatches"])
    assert differing["obtained"] == "host0: A100 x3 (3 local)"
    assert next(row for row in compositions["rows"] if row["state"] == "failed")["obtained"] == "nothing"
    assert ">differs<" in page


def test_very_many_leases_leave_the_eventful_ones(measured: Tables) -> None:
    leases = [{**synthetic.leases()[0], "lease_id": f"l{n}", "faults": ["x"] if n == 3 else []} for n in range(150)]
    compositions = context_of(measured, leases)["compositions"]
    assert [row["lease"] for row in compositions["rows"]] == ["l3"]
    assert (compositions["total"], compositions["left_out"]) == (150, 0)


def test_every_failed_run_names_its_log(page: str, measured: Tables) -> None:
    failed = context_of(measured)["failed"]
    runs = measured[0]
    logs = runs.loc[runs["status"] != "ok", "log"].tolist()
    assert len(logs) == len(set(logs)) == 56
    ((said, rows),) = failed["groups"]
    assert sorted(log for row in rows for log in row[2].split(", ")) == sorted(logs)
    assert all(log in page for log in logs)
    assert said.startswith("out of memory, 56 runs: ")
    assert failed["left_out"] == "0"


def test_a_run_that_nothing_was_started_for_has_no_log() -> None:
    cell = synthetic.cell(synthetic.configuration())
    record = synthetic.record(cell, 1, None, "unsupported", log="", ended=1_700_000_100.0)
    ((said, (row,)),) = context_of(of_records([record], cell, 1))["failed"]["groups"]
    assert said.startswith("not supported, 1 run")
    assert row[1:] == ("composition 1, run 1", "no program was started")


def test_of_very_many_failed_runs_the_page_says_how_many_more_there_are() -> None:
    cell = synthetic.cell(synthetic.configuration())
    page = page_of(of_records([synthetic.record(cell, n, None, "crashed") for n in range(1, 603)], cell, 602))
    assert "Failed runs and their logs (602)" in page
    assert "tables/runs.csv has 102 further failed runs" in page


def test_a_flag_with_a_comma_is_one_flag() -> None:
    cell = synthetic.cell(synthetic.configuration())
    records = [synthetic.record(cell, 1, 10.0, flags=("failed alike on host1, host2", "slow"))]
    flags = context_of(of_records(records, cell, 1))["flags"]
    assert [row[0] for row in flags["rows"]] == ["failed alike on host1; host2", "slow"]


def test_idle_time_is_told_with_the_longest(measured: Tables, page: str) -> None:
    idle = context_of(measured)["idle"]
    assert "The longest break was 2.0\u202fs, on lease lease-fabric-4x1" in idle
    assert idle in page


def test_what_was_requested_and_what_failed_are_told_in_words(measured: Tables) -> None:
    lease = synthetic.leases()[0]
    asked = Configuration("c", 2, 4, 2, 1, "a100", "hybrid", "fabric-nvme")
    fault = {"time_s": 1.0, "operation": "compose", "error": "OutcomeUnknown", "message": "no answer to <POST>"}
    leases = [
        lease | {"requested": asdict(asked), "faults": [fault]},
        lease | {"requested": {"rack": 7}, "faults": [fault]},
    ]
    page = page_of(measured, leases)
    assert "2 hosts with 2 local + 2 fabric a100 each, 1 used, fabric-nvme" in page
    assert "compose: no answer to &lt;POST&gt;" in page
    assert "rack 7" in page


def test_without_two_runs_on_a_lease_idle_time_is_not_spoken_of() -> None:
    cell = synthetic.cell(synthetic.configuration())
    assert "leases were idle" not in page_of(of_records([synthetic.record(cell, 1, 10.0)], cell, 1))


def test_hosts_left_out_are_named_with_the_reason(page: str, measured: Tables) -> None:
    assert ">host3</dt><dd>Slurm says DOWN: not responding &lt;script&gt;" in page
    assert "1 host was excluded from further allocations after a failure: host3." in page
    healthy = page_of(measured, hosts_left_out=[])
    assert "Excluded hosts" not in healthy
    assert "excluded from further allocations" not in healthy


@pytest.mark.parametrize(
    ("launchers", "said"),
    [
        ({"slurm": 3}, "Slurm started the runs: every allocation was a job, and every run a job step"),
        (
            {"local": 3},
            "No scheduler was used: drivers and runs were processes on the machine that started the campaign",
        ),
        ({"slurm": 2, "local": 1}, "started the campaign (1 run); Slurm started the runs: every allocation"),
        ({}, None),
    ],
)
def test_the_page_says_which_scheduler_measured(launchers: dict[str, int], said: str | None) -> None:
    page = page_of(tables([]), launchers=launchers)
    (line,) = re.findall(r'<h3 id="provenance-heading">.*?</summary>', page, re.DOTALL)
    assert said is None or said in line


def test_figures_left_out_are_one_line_with_their_reasons(page: str) -> None:
    (line,) = re.findall(r"<li>(.*?)</li>", re.search(r'<ul class="left-out">(.*?)</ul>', page, re.DOTALL)[1])
    assert line == "Local, hybrid and fabric: there is &lt;no&gt; baseline."


def test_provenance_holds_what_is_needed_to_repeat(page: str) -> None:
    text = "".join(read(page).text)
    for part in (
        "Two drawers of eight devices",
        "links are not emulated",
        "2.13.0",
        "record/1",
        "warm up steps 5",
    ):
        assert part in text
    (campaign,) = (attrs["href"] for tag, attrs in read(page).tags if attrs.get("download") == "campaign.yaml")
    assert "name: synthetic" in unquote(campaign)
    assert "More ranks than cores" in text


def test_an_empty_campaign_is_still_a_page() -> None:
    page = page_of(tables([]))
    assert "The measurements allow no comparison" in page


@pytest.mark.parametrize(("key", "value"), [("unknown", 1), ("campaign", {"name": "x"})])
def test_a_context_of_another_form_is_an_error_that_names_the_key(measured: Tables, key: str, value: object) -> None:
    with pytest.raises(RecordError, match=key):
        context_of(measured, **{key: value})


def test_a_name_the_template_does_not_get_is_an_error(measured: Tables) -> None:
    context = context_of(measured)
    del context["remarks"]
    with pytest.raises(UndefinedError, match="remarks"):
        report.render_context(context)


def test_figures_are_read_by_name_and_the_page_is_written(tmp_path: Path) -> None:
    (tmp_path / "scaling.svg").write_text("<svg/>")
    (tmp_path / "scaling.csv").write_text("1,2")
    (tmp_path / "scaling.pdf").write_bytes(b"%PDF")
    words = figure.build_page_document(
        figure.Figure("scaling", "Scaling", "How?", lambda data: figure.nothing("no data")),
        figure.Drawing(svg="<svg/>"),
    )
    (tmp_path / "scaling.json").write_text(json.dumps(words))
    found = report.read_drawings([(tmp_path / "scaling.svg", tmp_path / "scaling.json")])["scaling"]
    assert gzip.decompress(b64decode(found.pop("csv"))) == b"1,2"
    assert found == {**words, "svg": "<svg/>", "pdf": b64encode(b"%PDF").decode()}
    (tmp_path / "scaling.json").write_text(json.dumps({**words, "rows": [5]}))
    with pytest.raises(RecordError, match=r"rows\.0: .*delete the figure and run again"):
        report.read_drawings([(tmp_path / "scaling.svg", tmp_path / "scaling.json")])
    report.write_report(tmp_path / "deep" / "report.html", "<p>ü</p>")
    assert (tmp_path / "deep" / "report.html").read_text(encoding="utf-8") == "<p>ü</p>"
    with pytest.raises(RecordError, match="cannot be read"):
        report.read_drawings([(tmp_path / "none.svg", tmp_path / "none.json")])

"""The report shows published claims beside its figures and in a table of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from campaign.analysis.tables.io import write_all_tables
from campaign.cli.main import main
from campaign.common.errors import RecordError
from campaign.report import page as report
from tests import reference_campaign as reference

FIGURE = {
    "anchor": "node-spread",
    "title": "Node spread",
    "section": "What does it cost?",
    "shown": True,
    "picture": True,
    "reason": "",
    "coverage": "",
    "caption": "Throughput.",
    "alt": "",
    "findings": [],
    "headings": [],
    "rows": [],
    "rows_left_out": 0,
    "svg": "<svg></svg>",
    "csv": "",
    "pdf": "",
    "part": "answers",
    "within": "",
    "place": 1,
    "method": "",
    "rests_on": [],
    "limits": [],
    "tested": {},
    "narrow": None,
    "glance": None,
}


def page(context: dict[str, Any], name: str = "faster") -> str:
    of = reference.tables(name)
    return report.render_report_page(of.runs, of.cells, of.leases, context, {"node_spread": FIGURE})


@pytest.fixture(scope="module")
def context() -> dict[str, Any]:
    return dict(reference.tables("faster").context)


def test_a_figure_says_what_was_published_and_what_is_here(context: dict[str, Any]) -> None:
    section = re.search(r'<section id="node-spread".*?</section>', page(context), re.DOTALL)
    text = " ".join(re.sub(r"<[^>]+>", "", section[0]).split(" "))
    said = "Published: four GPUs on two hosts instead of one lose 8.1 % of throughput (TF-ResNet50, A100, 4 devices, 2 hosts, "
    assert f"{said}2 devices per host, against 1 host); measured here: loss of throughput 8.1\u202f% [" in text
    assert "]: agrees, with another program (program resnet50 instead of tf-resnet50) [faster, section 3.1" in text
    assert "FP16" not in text  # the claims of other figures stand beside those


def test_all_claims_stand_in_one_table_or_say_why_not(context: dict[str, Any]) -> None:
    whole = page(context)
    assert '<a href="#published">' in whole
    section = re.search(r'<section id="published".*?</section>', whole, re.DOTALL)
    assert section[0].count('<th scope="row">') == len(context["published"]["claims"])
    assert re.search(r"29 claims: \d+ agrees?, \d+ agree with another program, ", section[0])
    assert (
        "<td>near linear up to 20 devices, judged as an efficiency of at least 90\u202f%</td><td>efficiency "
        in section[0]
    )
    assert "<td>fits</td><td>fits</td>" in section[0]
    assert "10.1145/3569951.3593601" in section[0]


def test_other_conditions_than_the_program_are_other_conditions(context: dict[str, Any]) -> None:
    missed = ("program resnet50 instead of tf-resnet50", "device h100 instead of a100-40gb")
    said = {
        **context["published"],
        "claims": [{**claim, "other": missed, "other_program": False} for claim in context["published"]["claims"]],
    }
    whole = page({**context, "published": said})
    assert "with another program" not in whole
    assert '<span class="state verdict other-conditions">other conditions</span>' in whole


def test_a_figure_that_is_not_in_the_page_is_not_linked(context: dict[str, Any]) -> None:
    section = re.search(r'<section id="published".*?</section>', page(context), re.DOTALL)
    assert set(re.findall(r'href="(#[^"]*)"', section[0])) == {"#node-spread"}


def test_a_campaign_without_references_says_nothing_of_them(context: dict[str, Any]) -> None:
    plain = page({key: value for key, value in context.items() if key != "published"})
    assert "Published" not in re.sub(r"<style>.*?</style>", "", plain, flags=re.DOTALL)


def test_what_claims_say_is_escaped(context: dict[str, Any]) -> None:
    said = {
        **context["published"],
        "claims": [{**claim, "says": "<script>x</script>"} for claim in context["published"]["claims"]],
    }
    assert "<script>x" not in page({**context, "published": said})


def test_a_damaged_part_is_named(context: dict[str, Any]) -> None:
    claims = [{**claim, "verdict": "perhaps"} for claim in context["published"]["claims"]]
    with pytest.raises(RecordError, match=r"published\.claims\.0\.verdict"):
        page({**context, "published": {**context["published"], "claims": claims}})


def test_the_command_shows_campaigns_beside_their_claims_and_counts_them(tmp_path: Path) -> None:
    write_all_tables(reference.tables("bitfusion"), tmp_path / "tables")
    done = CliRunner().invoke(
        main, ["published", str(tmp_path), "--output", str(tmp_path / "page.html")], terminal_width=200
    )
    assert done.exit_code == 0, done.output
    assert "2 of 11 claims can be checked: 2 inside the stated range" in " ".join(done.output.split())
    whole = (tmp_path / "page.html").read_text()
    assert "<b>2 of 11 claims can be checked" in whole

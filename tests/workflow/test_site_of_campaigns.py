"""A site of one campaign that is measured three times: each cell has a line, and each campaign a comparison."""

from __future__ import annotations

import csv
import html
import re
import shutil
from pathlib import Path

import pytest

from tests.workflow.checkout_twin import Project

# Requests a second, by repetition 0.4 apart, in an order of each campaign's own.
BODY = (
    'case "$CAMPAIGN_RUN" in *fabric*) rate=$RATE;; *) rate=100;; esac; '
    "n=$(echo $CAMPAIGN_RUN | sed 's/.*[.]//'); echo \"rate: $rate.$(((n + SHIFT) % 3 * 4))\""
)
RATES = {"first": 90, "second": 90, "third": 90, "fourth": 83}


def measured(project: Project, time: str, rate: int) -> Path:
    """Results of the campaign with its report, kept under the name of the time."""
    project.environment |= {"RATE": str(rate), "SHIFT": str(list(RATES).index(time))}
    project.write_tables()
    project.page("overhead")
    return Path(shutil.move(project.results().directory, project.directory / "kept" / time))


def text(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\u202f", " ")


def test_four_campaigns_have_a_line_per_cell_and_comparisons(project: Project) -> None:
    project.workload("logged", body=BODY)
    project.campaign(attach=("local", "fabric"), repetitions=3, compositions=3)
    (project.directory / "kept").mkdir()
    first, *_ = [measured(project, time, rate) for time, rate in RATES.items()]
    alone = (first / "report.html").read_bytes()
    assert "site/index.html: 4 campaigns" in project.run_campaign("site", "kept")
    site = project.directory / "site"

    pages = re.findall(r'href="(history/[^"#]*)"', (site / "index.html").read_text())
    lines = {page: list(csv.DictReader((site / page).with_suffix(".csv").read_text().splitlines())) for page in pages}
    means = {page.partition("1x1-")[2]: [float(row["mean"]) for row in rows] for page, rows in lines.items()}
    assert means["fabric.html"] == pytest.approx([90.4, 90.4, 90.4, 83.4], abs=0.1)
    assert means["local.html"] == pytest.approx([100.4] * 4, abs=0.1)

    # The spread between campaigns is known from three earlier ones on.
    of_fourth = text((max(site.glob("c-*")) / "compare.html").read_text())
    assert re.search(r"faster\s*0\s*slower\s*1\s*with another outcome\s*0", of_fourth)
    assert re.search(r"1 of 2 cells changed significantly; the estimated change is −\S+ % \(1x1-fabric", of_fourth)

    for path in site.glob("c-*/report.html"):
        assert re.search(r'<a href="../index.html">All campaigns</a> · Campaign <b>c</b>', path.read_text())
    assert (first / "report.html").read_bytes() == alone
    assert b"All campaigns" not in alone

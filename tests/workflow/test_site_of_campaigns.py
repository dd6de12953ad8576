"""A site of one campaign that is measured three times: by the third time, devices behind the fabric have become slower."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path

from tests.workflow.checkout_twin import Project

# Requests a second, by repetition 0.4 apart, in an order of each campaign's own.
BODY = (
    'case "$CAMPAIGN_RUN" in *fabric*) rate=$RATE;; *) rate=100;; esac; '
    "n=$(echo $CAMPAIGN_RUN | sed 's/.*[.]//'); echo \"rate: $rate.$(((n + SHIFT) % 3 * 4))\""
)
RATES = {"first": 90, "second": 90, "third": 83}
SLOWER_PCT = 100 * (1 - 83.4 / 90.4)


def measured(project: Project, time: str, rate: int) -> Path:
    """Results of the campaign with its report, kept under the name of the time."""
    project.environment |= {"RATE": str(rate), "SHIFT": str(list(RATES).index(time))}
    project.run("tables")
    project.page("overhead")
    return Path(shutil.move(project.results().directory, project.directory / "kept" / time))


def text(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\u202f", " ")


def test_a_change_in_the_third_is_the_only_one_that_the_site_says(project: Project) -> None:
    project.workload("logged", body=BODY)
    project.campaign(attach=("local", "fabric"), repetitions=3, compositions=3)
    (project.directory / "kept").mkdir()
    first, *_ = [measured(project, time, rate) for time, rate in RATES.items()]
    alone = (first / "report.html").read_bytes()
    assert "site/index.html: 3 campaigns" in project.run_campaign("site", "kept")
    site = project.directory / "site"

    index = (site / "index.html").read_text()
    (change,) = re.findall(r'<li><a href="(history/[^"#]*)#cell-1">([^<]*)</a>: ([^<]*)', index)
    assert "1x1-fabric" in change[1]
    ratio, low, high = (float(each) for each in re.findall(r"−([\d.]+)\u202f%", change[2]))
    assert low > SLOWER_PCT > high
    assert abs(ratio - SLOWER_PCT) < 1
    history = (site / change[0]).read_text()
    assert history.count('class="mark worse"') == 1
    assert "against 2 earlier campaigns" in text(history)
    (other,) = (path for path in (site / "history").glob("*.html") if path.name != Path(change[0]).name)
    assert "mark" not in re.findall(r'class="([^"]*)"', other.read_text())
    assert "Not significant against 2 earlier campaigns" in text(other.read_text())

    of_third = text((max(site.glob("c-*")) / "compare.html").read_text())
    assert re.search(r"faster\s*0\s*slower\s*1\s*other outcome\s*0", of_third)
    assert re.search(r"Largest change: −.*1x1-fabric", of_third)

    for path in site.glob("c-*/report.html"):
        assert re.search(r'<a href="../index.html">All campaigns</a> · Campaign <b>c</b>', path.read_text())
    assert (first / "report.html").read_bytes() == alone
    assert b"All campaigns" not in alone

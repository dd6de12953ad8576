"""The site in a real browser: index, a history and a comparison on a phone, dark, and without a word from the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.report.site import campaigns
from campaign.report.site.write import write_site
from tests.measured_again import measured, results
from tests.simulated_campaigns import default_campaign
from tests.workflow.test_report_in_browser import contrast

pytestmark = pytest.mark.browser
HISTORY = "history/falcon-demo-1x4-fabric.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, demo = tmp_path_factory.mktemp("site"), default_campaign()
    for number in range(3):
        results(measured(demo, number, 0.06 if number == 2 else 0, "fabric"), root / "results" / f"demo{number}")
    write_site(campaigns.find_sources([root / "results"]), root / "site", pytest.fail)
    return root / "site"


@pytest.fixture(params=["index.html", HISTORY, "demo-2023-11-28-221500/compare.html"])
def phone(browser: Any, site: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page on a phone in the dark."""
    metrics = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    browser.get((site / request.param).as_uri())
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_page_on_a_phone_in_the_dark_reads_well(phone: Any) -> None:
    phone.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    wide, inner = phone.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner == 360
    ground = phone.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert contrast(ground, "rgb(255, 255, 255)") > 15
    inks = phone.execute_script(
        "const colours = (query, name) => [...document.querySelectorAll(query)].map(e => getComputedStyle(e)[name]);"
        "return [...new Set([...colours('p, a, td, h2', 'color'), ...colours('svg text', 'fill')])]"
    )
    assert len(inks) >= 3
    assert min(contrast(ink, ground) for ink in inks) >= 4.5
    assert phone.get_log("browser") == []


def test_the_index_leads_to_the_line_of_a_cell(browser: Any, site: Path) -> None:
    browser.set_window_size(1280, 900)
    browser.get((site / "index.html").as_uri())
    address = browser.find_element("link text", "1x4-fabric").get_attribute("href")
    assert address.endswith(HISTORY)
    browser.get(address)
    line, intervals, smallest = browser.execute_script(
        "const own = document.querySelector('svg.history'), box = query => own.querySelector(query).getBoundingClientRect();"
        "return [box('.line').width, box('.intervals').height, Math.min(...[...own.querySelectorAll('text')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) * own.getScreenCTM().a))]"
    )
    assert line > 200
    assert intervals > 20
    assert smallest >= 9


def test_intervals_of_a_comparison_stand_below_their_scale(browser: Any, site: Path) -> None:
    browser.set_window_size(1280, 900)
    browser.get((site / "demo-2023-11-28-221500" / "compare.html").as_uri())
    zero, line, points, height = browser.execute_script(
        "const box = each => each.getBoundingClientRect(), all = query => [...document.querySelectorAll(query)];"
        "const zero = box(all('thead .interval text').find(each => each.textContent === '0'));"
        "return [zero.x + zero.width / 2, box(all('tbody .interval .zero')[0]).x,"
        " all('tbody .interval .point').length, box(all('tbody .interval')[0]).height]"
    )
    assert abs(zero - line) < 2
    assert points >= 2  # both cells of the slower configuration at least
    assert height > 12

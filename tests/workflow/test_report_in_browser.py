"""The page in a real browser: fits a phone, follows the dark theme, asks the network for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.report import figure
from campaign.report import page as report
from campaign.report.figure import FigureData
from campaign.tables.cells import cells_table
from campaign.tables.leases import leases_table
from campaign.tables.runs import runs_table
from tests.unit.report import report_data as synthetic

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = [entry for entry in synthetic.planned() if entry.cell.batch != 16 and entry.cell.workload == "bert"]
    runs = runs_table(synthetic.records(plan))
    cells = cells_table(plan, runs)
    data = FigureData(runs, cells, leases_table(synthetic.leases()), synthetic.BASELINE, {})
    drawings = {}
    for name, shown in figure.all_figures().items():
        drawing = shown.draw(data)
        words = figure.page_document(shown, drawing)
        drawings[name] = {**words, "svg": drawing.svg or "<svg/>", "csv": shown.csv(drawing) if drawing.rows else ""}
    out = tmp_path_factory.mktemp("page") / "report.html"
    report.write_report(out, report.assemble(runs, cells, synthetic.leases(), synthetic.context_document(), drawings))
    return out


@pytest.fixture(scope="module")
def loaded(browser: Any, page: Path) -> Any:
    """The page, loaded once: layouts and themes follow what is emulated."""
    browser.get_log("browser")
    browser.get(page.as_uri())
    return browser


@pytest.fixture
def show(loaded: Any) -> Callable[..., Any]:
    """Show the page at a width, with CSS media features or a medium."""

    def opened(width: int, **media: Any) -> Any:
        loaded.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        loaded.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [], **media})
        return loaded

    return opened


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(show: Callable[..., Any], width: int) -> None:
    driver = show(width)
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    wide, inner = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner == width


@pytest.mark.parametrize(("width", "least"), [(1280, 3), (390, 1)])
def test_the_first_screen_holds_an_answer_and_a_picture(show: Callable[..., Any], width: int, least: int) -> None:
    driver = show(width)
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = false); scrollTo(0, 0)")
    seen = driver.execute_script(
        "const inside = e => { const r = e.getBoundingClientRect(); return r.width && r.top >= 0 && r.bottom <= innerHeight };"
        "return ['.glances p', '.glances svg'].map(q => [...document.querySelectorAll(q)].filter(inside).length)"
    )
    assert min(seen) >= least
    assert driver.execute_script("return document.querySelector('.basis').getBoundingClientRect().top") < (
        800 if width > 600 else 4000
    )


def test_what_is_folded_is_printed(show: Callable[..., Any]) -> None:
    driver = show(1000, media="print")
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = false)")
    unseen = driver.execute_script(
        "return [...document.querySelectorAll('details.fold figcaption, details.fold td')]"
        ".filter(e => !e.checkVisibility({contentVisibilityAuto: true})).length"
    )
    assert unseen == 0


def test_on_a_phone_tables_and_pictures_scroll_in_their_box_and_stay_legible(show: Callable[..., Any]) -> None:
    driver = show(360)
    boxes = driver.execute_script(
        "return [...document.querySelectorAll('.scroll, .picture')].filter(e => e.offsetParent)"
        ".map(e => [getComputedStyle(e).overflowX, e.clientWidth, e.tabIndex])"
    )
    assert boxes
    assert all(overflow == "auto" and width <= 360 and tab == 0 for overflow, width, tab in boxes)
    smallest = driver.execute_script(
        "return Math.min(...[...document.querySelectorAll('.picture text')].filter(e => e.checkVisibility()).map("
        "e => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getScreenCTM().a))"
    )
    assert smallest >= 7


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast of two 'rgb(r, g, b)' colours."""

    def luminance(colour: str) -> float:
        channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_of_page_and_pictures_can_be_read_in_both_themes(show: Callable[..., Any], theme: str) -> None:
    driver = show(1280, features=[{"name": "prefers-color-scheme", "value": theme}])
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    inks = driver.execute_script(
        "const colours = (query, name) => [...document.querySelectorAll(query)].map(e => getComputedStyle(e)[name]);"
        "return [...new Set([...colours('p, a, td, .state', 'color'), ...colours('.picture text', 'fill')])]"
    )
    assert len(inks) >= 4
    assert min(contrast(ink, ground) for ink in inks) >= 4.5


def test_themes_differ(show: Callable[..., Any]) -> None:
    grounds = {
        theme: show(1280, features=[{"name": "prefers-color-scheme", "value": theme}]).execute_script(
            "return getComputedStyle(document.body).backgroundColor"
        )
        for theme in ("light", "dark")
    }
    assert grounds["light"] != grounds["dark"]


def test_nothing_is_fetched_run_or_complained_about(show: Callable[..., Any]) -> None:
    driver = show(1280)
    assert driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert driver.execute_script("return document.scripts.length") == 0
    assert driver.get_log("browser") == []
    assert synthetic.HOSTILE in driver.title


def test_print_shows_whole_tables_and_no_navigation(show: Callable[..., Any]) -> None:
    driver = show(1000, media="print")
    navigation = driver.execute_script("return getComputedStyle(document.querySelector('nav')).display")
    cut = driver.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollHeight > e.clientHeight + 1).length"
    )
    assert (navigation, cut) == ("none", 0)


def test_every_link_of_the_contents_leads_somewhere(show: Callable[..., Any]) -> None:
    driver = show(1280)
    missing = driver.execute_script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert missing == 0

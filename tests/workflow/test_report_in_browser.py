"""The page in a real browser: fits a phone, follows the dark theme, asks the network for nothing, gives each figure as files."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from campaign.analysis.tables import io as tableset
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.common.paths import Results
from campaign.report import write as outputs
from tests.unit.report import report_data as synthetic

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page alone, without the results that it was made in."""
    plan = [entry for entry in synthetic.planned() if entry.cell.batch != 16 and entry.cell.workload == "bert"]
    runs = build_runs_table(synthetic.records(plan))
    of = Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document())
    results = Results.from_directory(tmp_path_factory.mktemp("results"))
    tableset.write_all_tables(of, results.tables)
    outputs.draw_figures(results.tables, results.figures)
    outputs.write_recommendation(results.tables, results.recommendation)
    outputs.render_report(results.tables, results.figures, results.report_file)
    return Path(shutil.move(results.report_file, tmp_path_factory.mktemp("page")))


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


def test_nothing_is_fetched_or_complained_about(show: Callable[..., Any]) -> None:
    driver = show(1280)
    assert driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert driver.get_log("browser") == []
    assert synthetic.HOSTILE in driver.title


def test_print_shows_whole_tables_and_no_navigation(show: Callable[..., Any]) -> None:
    driver = show(1000, media="print")
    navigation = driver.execute_script("return getComputedStyle(document.querySelector('nav')).display")
    cut = driver.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollHeight > e.clientHeight + 1).length"
    )
    assert (navigation, cut) == ("none", 0)


def test_a_screen_reader_gets_the_answer_first_and_a_name_for_everything(show: Callable[..., Any]) -> None:
    driver = show(1280)
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = false)")
    first = [
        each for each in _heard(driver) if each[0] in ("heading", "image", "region", "DisclosureTriangle", "navigation")
    ]
    glances = [each.text for each in driver.find_elements("css selector", ".glances h2")]
    beginning = [("heading", driver.title), ("region", "Answer")]
    beginning += [(role, name) for name in glances for role in ("heading", "image")]
    assert first[: len(beginning)] == beginning
    assert [role for role, _ in first[len(beginning) : len(beginning) + 2]] == ["DisclosureTriangle", "navigation"]
    for width in (1280, 390):
        driver = show(width)
        driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
        heard = _heard(driver)
        assert [
            role for role, name in heard if role in ("image", "table", "link", "DisclosureTriangle") and not name
        ] == []
        assert sum(role == "image" for role, _ in heard) > 12
        assert ("StaticText", "devices in use") not in heard  # within a picture


def _heard(driver: Any) -> list[tuple[str, str]]:
    """Roles and names of what a screen reader gets, in its order."""
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    of = {node["nodeId"]: node for node in nodes}

    def within(node: Any) -> Iterator[tuple[str, str]]:
        role, name = (node.get(each, {}).get("value", "") for each in ("role", "name"))
        if not node["ignored"]:
            yield role, " ".join(name.split())
        for child in node["childIds"]:
            yield from within(of[child])

    return list(within(nodes[0]))


def test_every_link_of_the_contents_leads_somewhere(show: Callable[..., Any]) -> None:
    driver = show(1280)
    missing = driver.execute_script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert missing == 0


def test_each_figure_of_a_page_that_stands_alone_downloads_as_svg_pdf_and_csv(
    show: Callable[..., Any], tmp_path: Path
) -> None:
    driver = show(1280)
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    pictures = driver.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.wide-picture svg')].map(svg => "
        "[svg.getAttribute('aria-labelledby').split('-title')[0], [...svg.querySelectorAll('text')].map(e => e.textContent)]))"
    )
    assert len(pictures) > 10
    for name in [f"{anchor}.{kind}" for anchor in pictures for kind in ("csv", "pdf", "svg")]:
        _downloaded(driver.find_element("css selector", f"a[download='{name}']"), tmp_path / name)
    for anchor, words in pictures.items():
        saved = list(ElementTree.parse(tmp_path / f"{anchor}.svg").getroot().iter("{http://www.w3.org/2000/svg}text"))
        assert ["".join(each.itertext()) for each in saved] == words
        assert len(pd.read_csv(tmp_path / f"{anchor}.csv"))
        assert (tmp_path / f"{anchor}.pdf").read_bytes().startswith(b"%PDF-")
        if not shutil.which("pdftotext"):  # of poppler-utils, which CI installs
            continue
        printed = subprocess.run(
            ["pdftotext", tmp_path / f"{anchor}.pdf", "-"], capture_output=True, text=True, check=True
        )
        of_picture = _words(words)  # of one that stands at a slant, pdftotext finds single letters
        assert len(of_picture & _words([printed.stdout])) > 0.7 * len(of_picture)


def _downloaded(link: Any, file: Path) -> None:
    """Follow a link until its file is there: a browser drops a download now and then that another one has just come before."""
    for _ in range(5):
        link.send_keys("\n")
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            if file.exists():
                return
            time.sleep(0.01)
    pytest.fail(f"{file.name} was never saved")


def _words(texts: Iterable[str]) -> set[str]:
    """Words, of which none has a hyphen, where a line may end."""
    return set(" ".join(texts).replace("-", " ").split())

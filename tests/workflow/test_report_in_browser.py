"""The page in a real browser: fits a phone, follows the dark theme, asks the network for nothing, gives each figure as files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

from campaign.analysis.tables import io as tableset
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table, build_step_times_table
from campaign.common.paths import Results
from campaign.report import write as outputs
from campaign.report.cell_runs import ResultFiles
from tests.unit.report import report_data as synthetic

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page in a directory of its own. Its results have logs, but no records."""
    plan = [entry for entry in synthetic.planned() if entry.cell.batch != 16 and entry.cell.workload == "bert"]
    records = list(synthetic.records(plan))
    runs, steps = build_runs_table(records), build_step_times_table(records)
    of = Tables(runs, build_cells_table(plan, runs), synthetic.leases(), [], synthetic.context_document(), steps=steps)
    results = Results.from_directory(tmp_path_factory.mktemp("results"))
    tableset.write_all_tables(of, results.tables)
    outputs.draw_figures(results.tables, results.figures)
    outputs.write_recommendation(results.tables, results.recommendation)
    for run in runs.to_dict("records"):
        log = results.directory / run["log"]
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"log of {run['cell_id']}, {run['repetition']}\n")
    page = tmp_path_factory.mktemp("page") / "report.html"
    outputs.render_report(results.tables, results.figures, page, files=ResultFiles.list(results.directory, page))
    return page


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


def find_mark(driver: Any, svg: Any) -> tuple[int, int, int]:
    """Scroll to the mark of a picture that is farthest from others; return its row in the table of all cells and its place."""
    row, x, y = driver.execute_script(
        "const [svg] = arguments; document.documentElement.style.scrollBehavior = 'auto'; svg.scrollIntoView({block: 'center'});"
        "const marks = svg.dataset.cells.split(';').map(mark => mark.split(',').map(Number));"
        "const room = mark => Math.min(...marks.filter(each => each !== mark)"
        ".map(each => Math.hypot(each[1] - mark[1], each[2] - mark[2])));"
        "const [row, x, y] = marks.reduce((best, mark) => room(mark) >= room(best) ? mark : best);"
        "const place = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM()); return [row, place.x, place.y]",
        svg,
    )
    return row, round(x), round(y)


def point_at(driver: Any, x: int, y: int, *, click: bool = False) -> None:
    actions = ActionChains(driver)
    actions.w3c_actions.pointer_action.move_to_location(x + 1, y).move_to_location(
        x, y
    )  # A pointer at rest sends no event.
    if click:
        actions.w3c_actions.pointer_action.click()
    actions.perform()


def read_values(driver: Any) -> str:
    """Read what is shown at a mark, once it is shown."""
    box = driver.find_element("css selector", ".mark-values")
    WebDriverWait(driver, 60).until(lambda _: box.is_displayed())
    return str(box.text)


def test_a_mark_shows_its_cell_and_leads_to_its_runs_and_their_logs(show: Callable[..., Any], page: Path) -> None:
    driver = show(1280)
    svg = driver.find_element("css selector", "#scaling .wide-picture svg")
    row, x, y = find_mark(driver, svg)
    point_at(driver, x, y)
    values = read_values(driver).splitlines()
    cells = json.loads(driver.find_element("id", "cells-data").get_property("textContent"))["columns"]
    columns = {column["name"]: column for column in cells}
    name = columns["configuration"]["texts"][columns["configuration"]["values"][row]]
    assert values[0].startswith(f"{name}, bert, batch {columns['batch']['values'][row]}, ")
    mean = float(values[1].split(": ")[1].split(" [")[0].replace(",", ""))
    assert mean == pytest.approx(columns["mean"]["values"][row], rel=1e-3)
    assert re.fullmatch(r"\d+ runs on \d+ compositions?", values[-1])
    point_at(driver, 2, 2)
    assert not driver.find_element("css selector", ".mark-values").is_displayed()

    point_at(driver, x, y, click=True)
    button = driver.switch_to.active_element
    cell = button.find_element("xpath", "ancestor::tr")
    assert cell.find_element("css selector", "th").text == name
    assert f"{columns['batch']['values'][row]}" in cell.text
    button.send_keys("\n")
    runs = WebDriverWait(driver, 60).until(lambda _: driver.find_elements("css selector", "tr.runs tbody tr"))
    assert len(runs) == int(values[-1].split()[0])
    assert runs[0].text.startswith("composition 1, run 1")
    assert runs[0].find_elements("css selector", "svg.steps path")
    (link,) = runs[0].find_elements("css selector", "a")  # There is no record.
    link.send_keys("\n")
    text = driver.find_element("css selector", "body").text
    driver.get(page.as_uri())
    assert re.fullmatch(r"log of \w+, 1", text.strip())


def test_marks_are_reached_by_keys(show: Callable[..., Any]) -> None:
    driver = show(1280)
    picture = driver.find_element("css selector", "#scaling .picture")
    driver.execute_script("arguments[0].focus()", picture)
    shown = []
    for _ in range(2):
        picture.send_keys("\ue014")  # arrow right
        shown.append(WebDriverWait(driver, 60).until(lambda _: (now := read_values(driver)) not in shown and now))
    picture.send_keys("\n")
    assert driver.switch_to.active_element.text == shown[1].split(",")[0]


@pytest.mark.parametrize(("anchor", "number"), [("scaling", 0), ("node-spread", 1)])
def test_a_series_is_switched_off_with_its_intervals_and_labels(
    show: Callable[..., Any], anchor: str, number: int
) -> None:
    driver = show(1280)
    svg = driver.find_element("css selector", f"#{anchor} .wide-picture svg")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg)

    def count_painted() -> dict[str, int]:
        """Count the visible elements outside of the legend by colour; those in ink by their series."""
        return dict(
            driver.execute_script(
                "const counts = {}; for (const element of arguments[0].querySelectorAll('g:not([id*=legend]) > *')) {"
                "if (element.closest('[id*=legend]') || !element.checkVisibility()) continue;"
                "const colour = (element.getAttribute('style') ?? '').match(/(?:fill|stroke): (#[0-9a-f]{6}|url\\([^)]*)/)?.[1]"
                " ?? element.closest('[class^=series-]')?.getAttribute('class');"
                "if (colour) counts[colour] = (counts[colour] ?? 0) + 1 } return counts",
                svg,
            )
        )

    before = count_painted()
    entry = svg.find_elements("css selector", "[id*=legend] .toggle text")[number]
    name = entry.text
    ActionChains(driver).move_to_element(entry).click().perform()
    hidden = {colour: count for colour, count in before.items() if colour not in count_painted()}
    assert len(hidden) == 1 + (anchor == "node-spread"), "its colour, and intervals of bars in ink"
    status = driver.find_element("css selector", ".unseen")
    assert status.get_property("textContent") == f"{name} hidden"
    picture = svg.find_element("xpath", "ancestor::*[contains(@class, 'picture') and @tabindex]")
    driver.execute_script("arguments[0].focus()", picture)
    picture.send_keys(f"{number + 1}")
    assert count_painted() == before
    assert status.get_property("textContent") == f"{name} shown"

"""The table of all cells in a real browser: sorted, filtered, paged and exported, and plain without scripts."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selenium.webdriver.support.ui import WebDriverWait

from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.report.cell_runs import ResultFiles
from campaign.report.cells_table import ROWS_PER_PAGE
from campaign.report.page import render_report_page
from tests.unit.report import report_data as synthetic
from tests.unit.report.test_report import document_of
from tests.workflow.test_report_in_browser import find_mark, point_at, read_values

pytestmark = pytest.mark.browser

MANY = 10_000
PICTURE = '<svg data-cells="{},40,40;{},160,40" width="200" height="80" viewBox="0 0 200 80"></svg>'
# Without a load; the time to load a page includes the start of its scripts.
MAX_SORT_MS, MAX_LOAD_MS = 300, 3000


def write_page(cells_count: int, path: Path) -> pd.DataFrame:
    """Write a page with so many cells, as copies of the synthetic ones with means of their own; return its cells."""
    plan = synthetic.planned()
    runs = build_runs_table(synthetic.records(plan))
    cells = build_cells_table(plan, runs)
    copies = pd.concat([cells] * -(-cells_count // len(cells)), ignore_index=True).head(cells_count)
    means = np.random.default_rng(0).uniform(10, 5000, cells_count)
    copies = copies.assign(
        cell_id=[f"{number}" for number in range(cells_count)] if cells_count > len(cells) else copies["cell_id"],
        mean=np.where(copies["n_ok"] > 0, means, np.nan),
    )
    blocks = -(-cells_count // len(cells))
    numbers = {cell_id: number for number, cell_id in enumerate(cells["cell_id"])}
    copied_runs = [
        runs.assign(cell_id=(runs["cell_id"].map(numbers) + len(cells) * n).astype(str)) for n in range(blocks)
    ]
    copied_runs = pd.concat(copied_runs, ignore_index=True) if cells_count > len(cells) else runs
    logs = (path.parent / "results" / log for log in set(copied_runs["log"]))
    for log in logs:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"text of {log.name}")
    marks = {**document_of("marks"), "svg": PICTURE.format(copies["cell_id"].iloc[0], copies["cell_id"].iloc[-1])}
    page = render_report_page(
        copied_runs,
        copies,
        [],
        synthetic.context_document(),
        {"marks": marks},
        files=ResultFiles.list(path.parent / "results", path),
    )
    path.write_text(page, encoding="utf-8")
    return copies


@pytest.fixture(scope="module")
def cells(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Cells of a page that the browser has loaded."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    cells = write_page(MANY, path)
    browser.get_log("browser")
    browser.get(path.as_uri())
    return cells


def read_rows(driver: Any) -> list[list[str]]:
    return list(
        driver.execute_script(
            "return [...document.querySelectorAll('#cells tbody tr')].map(row => [...row.cells].map(e => e.textContent))"
        )
    )


def select_by_text(driver: Any, tag: str, text: str) -> Any:
    return next(each for each in driver.find_elements("css selector", f"#cells {tag}") if each.text.startswith(text))


def list_bars(driver: Any) -> list[str]:
    """Paths of the bars and intervals of the first ten rows."""
    return [path.get_attribute("d") or "" for path in driver.find_elements("css selector", "#cells .bar path")[:20]]


def press(button: Any) -> None:
    """Press a button or link by the keyboard, as a click may meet a page that still scrolls."""
    button.send_keys("\n")


def filter_cells(driver: Any, words: str) -> None:
    """Type words into the empty filter."""
    search = driver.find_element("css selector", "#cells input[type=search]")
    search.send_keys("\ue009a\ue000\ue017", words)  # Control+A, Delete


def test_many_cells_are_paged_sorted_and_filtered(browser: Any, cells: pd.DataFrame) -> None:
    assert browser.get_log("browser") == []
    assert len(read_rows(browser)) == ROWS_PER_PAGE
    status = browser.find_element("css selector", "#cells [role=status]")
    assert status.text == "1–50 of 10,000"
    press(select_by_text(browser, "button", "Next"))
    assert status.text == "51–100 of 10,000"
    assert [row[0] for row in read_rows(browser)] == cells["configuration"][50:100].tolist()
    assert not any(row[0].startswith("Next") for row in read_rows(browser))

    head = select_by_text(browser, "th", "Samples/s")
    for direction, values in (("ascending", cells["mean"].nsmallest(50)), ("descending", cells["mean"].nlargest(50))):
        press(head.find_element("css selector", "button"))
        assert head.get_attribute("aria-sort") == direction
        means = [float(row[4].split(" [")[0].replace(",", "")) for row in read_rows(browser)]
        assert means == pytest.approx(values.tolist(), rel=1e-3)
    assert len(browser.find_elements("css selector", "#cells [aria-sort]")) == 1

    filter_cells(browser, "RESNET fp16")
    rows = read_rows(browser)
    assert rows
    assert all("resnet" in " ".join(row) and "fp16" in " ".join(row) for row in rows)
    expected = cells[cells["workload"].str.contains("resnet") & cells["precision"].str.contains("fp16")]
    assert status.text == f"1–{len(rows)} of {len(expected):,}"
    filter_cells(browser, "no such words")
    assert (read_rows(browser), status.text) == ([], "0")
    filter_cells(browser, "")
    assert status.text == "1–50 of 10,000"


def test_many_cells_are_sorted_within_a_moment(browser: Any, cells: pd.DataFrame) -> None:
    sort_ms = browser.execute_script(
        "return [...document.querySelectorAll('#cells thead button')].map(button => {"
        "const start = performance.now(); button.click(); document.body.offsetHeight; return performance.now() - start })"
    )
    timing = browser.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"{len(cells):,} cells: sorts {[round(each) for each in sort_ms]} ms, load {timing:.0f} ms")
    assert max(sort_ms) < MAX_SORT_MS
    assert timing < MAX_LOAD_MS


def test_a_mark_leads_to_the_last_of_many_cells_its_runs_and_a_log(browser: Any, cells: pd.DataFrame) -> None:
    filter_cells(browser, "no such words")
    svg = browser.find_element("css selector", "#marks svg")
    row, x, y = find_mark(browser, svg)
    assert row == MANY - 1
    point_at(browser, x, y)
    last = cells.iloc[-1]
    assert read_values(browser).startswith(f"{last['configuration']}, {last['workload']}, batch {last['batch']}")
    point_at(browser, x, y, click=True)
    status = browser.find_element("css selector", "#cells [role=status]")
    assert status.text.endswith(" of 10,000")
    button = browser.switch_to.active_element
    assert button.text == last["configuration"]
    start_s = time.monotonic()
    press(button)
    runs = WebDriverWait(browser, 60).until(lambda _: browser.find_elements("css selector", "tr.runs tbody tr"))
    print(f"{MANY:,} cells: runs of a cell in {time.monotonic() - start_s:.2f} s")
    (link,) = runs[0].find_elements("css selector", "a")
    href, address = link.get_attribute("href"), browser.current_url
    browser.get(href)
    assert browser.find_element("css selector", "body").text == f"text of {href.rpartition('/')[2]}"
    browser.get(address.partition("#")[0])


def test_the_csv_has_the_rows_that_match(browser: Any, cells: pd.DataFrame, tmp_path: Path) -> None:
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    filter_cells(browser, "fp16")
    file = tmp_path / "cells.csv"
    for _ in range(5):  # A browser drops a download now and then.
        press(select_by_text(browser, "a", "CSV"))
        deadline = time.monotonic() + 4
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if file.exists():
            break
    with file.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    filter_cells(browser, "")
    expected = cells[cells["precision"].str.contains("fp16")]
    assert sorted(row["mean"] for row in rows if row["mean"]) == sorted(
        f"{mean:.6g}" for mean in expected["mean"].dropna()
    )
    assert len(rows) == len(expected)


def test_without_scripts_it_is_a_plain_table_of_the_first_rows(
    browser: Any, cells: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    write_page(120, path)
    browser.get(path.as_uri())
    scripted, scripted_bars = read_rows(browser), list_bars(browser)
    assert "Without scripts" not in browser.find_element("css selector", "#cells").text
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(path.as_uri())
        section = browser.find_element("css selector", "#cells")
        bars = list_bars(browser)
        assert "Without scripts, the table has the first 50 of 120 cells" in section.text
        assert section.find_elements("css selector", "button, input, a") == []
        plain = [
            [cell.get_property("textContent") for cell in row.find_elements("css selector", "th, td")]
            for row in section.find_elements("css selector", "tbody tr")[:10]
        ]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert plain == scripted[:10]
    assert bars == scripted_bars
    assert any(bars)

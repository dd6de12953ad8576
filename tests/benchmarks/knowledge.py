"""From many records to knowledge: report, page in a browser, comparison and recommendation of 10,000 cells with five runs each."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.benchmarks import floors
from tests.benchmarks.figure import Figure
from tests.benchmarks.measured import pretend_measured
from tests.benchmarks.project import Project

_CELLS, _REPETITIONS = 10_000, 5
# Opens every section, then steps through the whole page, one a frame, and tells the longest time between two frames.
_USE = """
const done = arguments[arguments.length - 1];
const sections = [...document.querySelectorAll("details:not([open])")];
const steps = 240;
let frames = 0, step = 0, last = performance.now(), longest = 0;
function frame(now) {
  if (frames > 10) longest = Math.max(longest, now - last);
  last = now;
  if (++frames > 10) {
    if (sections.length) sections.shift().open = true;
    else if (++step > steps) return done(longest);
    else window.scrollTo({top: document.documentElement.scrollHeight * step / steps, behavior: "instant"});
  }
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);
"""


def knowledge(project: Project) -> Iterable[Figure]:
    """Report, page, comparison and recommendation of 10,000 cells x 5 repetitions."""
    results = project.directory / "results"
    first = project.campaign("first", _CELLS, repetitions=_REPETITIONS)
    pretend_measured(first, results)
    floor = floors.import_matplotlib_s(project)
    took = project.run("campaign", "report", str(first), "--output", "page.html")
    yield Figure("report of 10,000 cells x 5", took.wall_s, "s", 15, floor, "import pandas, matplotlib", took.cpu_s)
    yield Figure("report of 10,000 cells x 5, memory", took.peak_mib, "MiB", 477)  # 500 MB
    page = project.directory / "page.html"
    yield Figure("report of 10,000 cells x 5, page", page.stat().st_size / 1e6, "MB", 15)
    if (longest_ms := _used(page)) is not None:
        # Sixteen would be every frame of a screen at 60 Hz; headless, on two cores, without a GPU.
        yield Figure("opening and reading that page, longest frame", longest_ms, "ms", 100)
    took = project.run("campaign", "recommend", str(results / "first"))
    yield Figure("recommendation from 10,000 cells x 5", took.wall_s, "s", 10, floor, "", took.cpu_s)
    second = project.campaign("second", _CELLS, repetitions=_REPETITIONS)
    pretend_measured(second, results)
    project.run("campaign", "report", str(second), "--output", "second.html")
    directories = [str(results / name) for name in ("first", "second")]
    took = project.run("campaign", "compare", *directories, "--output", "compared.html")
    yield Figure("comparing two campaigns of 10,000 cells x 5", took.wall_s, "s", 20, floor, "", took.cpu_s)
    yield Figure("comparing them, page", (project.directory / "compared.html").stat().st_size / 1e6, "MB", 15)


def _used(page: Path) -> float | None:
    """Milliseconds of the longest frame; None without a browser."""
    driver_path = shutil.which("chromedriver")
    if not shutil.which("chromium") or not driver_path:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu"):
        options.add_argument(flag)
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path)) as driver:
        driver.set_script_timeout(120)
        driver.get(page.as_uri())
        return float(driver.execute_async_script(_USE))

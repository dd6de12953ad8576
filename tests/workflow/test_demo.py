"""The default campaign end to end, and its report in a real browser: what a newcomer sees first."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign import load
from campaign.common.paths import ROOT
from tests.sentences import find_odd_sentences

FIGURES = {
    "allreduce",
    "break-even",
    "composition-times",
    "fabric-failures",
    "forecast",
    "link-matrices",
    "node-spread",
    "operation-times",
    "overhead",
    "pareto",
    "part-of-host",
    "precision",
    "roofline",
    "scaling",
    "speedup-by-batch",
    "step-times",
    "time-series",
    "transfer-rates",
    "utilisation",
    "variance",
    "work-per-step",
}
MOST_WORDS = 3600  # of the page with everything unfolded, without what stands in pictures and in the rows of all cells
LIMIT_S = 900  # a minute on two quiet cores; a test must not fail because the machine is busy
LINKS = {"sizes_bytes": [8, 4096, 262144], "repeats": 3, "warmup": 0, "budget_s": 4}
LESS = {"warmup_steps": 1, "measured_steps": 3, "repetitions": 1, "compositions": 1, "telemetry_s": 0.4, "links": LINKS}
"""Of the same cells: nothing here is a question of how often and how long they are measured."""
TWICE = {"when": "configuration == '1x1-local'", "repetitions": 2}
"""Variance is drawn where something was measured twice."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Results of the default campaign, and what it printed. Runs in a directory of its own with a home of its own."""
    project, home = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("home")
    for name in ("workflow", "scripts", "reports", "local"):
        (project / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "config", project / "config")
    campaign = yaml.safe_load((ROOT / "config" / "campaign.yaml").read_text())
    assert campaign["protocol"].keys() >= LESS.keys()
    campaign["protocol"] |= LESS
    campaign["overrides"] = [TWICE]
    (project / "config" / "campaign.yaml").write_text(yaml.safe_dump(campaign, sort_keys=False))
    chassis = project / "config" / "systems" / "falcon-demo.yaml"
    system = yaml.safe_load(chassis.read_text())
    del system["emulation"]["pace"]  # other tests take the cores; a pace is tested by itself
    system["machine_lock"] = str(project / "machine.lock")
    chassis.write_text(yaml.safe_dump(system, sort_keys=False))
    images = project / "config" / "workloads" / "resnet50w16.yaml"
    images.write_text(images.read_text().replace("image_px: 64", "image_px: 32"))
    environment = {**os.environ, "HOME": str(home)}
    started = time.time()
    done = subprocess.run(
        ["snakemake", "--profile", "local", "--quiet", "host", "reason"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(f"the demo took {time.time() - started:.0f} s")
    assert done.returncode == 0, done.stdout[-4000:]
    assert not list(home.iterdir()), "something was written to the user's home"
    return project / "results" / "demo", done.stdout


@pytest.mark.slow
def test_every_planned_run_has_a_record_and_progress_was_told(demo: tuple[Path, str]) -> None:
    results, printed = demo
    assert "29 cells, 34 runs: " in printed
    assert "0 missing" in printed
    assert "[34/34 runs · cells 29/29]" in printed
    assert "Report: results/demo/report.html" in printed
    assert len(list((results / "records").glob("*/*.json"))) == 34
    loaded = load(results)
    run = loaded.runs.iloc[0]
    assert loaded.log(run) == (results / run["log"]).read_text(errors="replace")


@pytest.mark.slow
@pytest.mark.browser
def test_the_report_opens_with_every_figure_visible_and_nothing_asked_of_the_network(
    demo: tuple[Path, str], browser: Any
) -> None:
    results, _ = demo
    browser.get_log("browser")
    browser.get((results / "report.html").as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    sizes = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.wide-picture svg')].map("
        "e => [e.getAttribute('aria-labelledby').split('-title')[0], e.getBoundingClientRect()])"
        ".map(([name, box]) => [name, box.width * box.height]))"
    )
    assert set(sizes) == FIGURES
    assert all(area > 40_000 for area in sizes.values())
    requests = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert requests == []
    assert browser.get_log("browser") == []
    words = browser.execute_script(
        "document.querySelectorAll('svg, #cells tbody').forEach(each => each.remove()); return document.body.innerText"
    )
    assert len(words.split()) <= MOST_WORDS
    assert find_odd_sentences(words.splitlines()) == []

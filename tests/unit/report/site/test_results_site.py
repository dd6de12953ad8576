"""The site: the demo measured three times; what a second call does; and what it must survive."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result

from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables
from campaign.analysis.tables.io import Tables, read_tables
from campaign.cli.main import main
from campaign.plan.campaign.resolve import Campaign
from campaign.report.site import campaigns, history, pages
from tests.measured_again import DAY_S, FINDING, measured, results
from tests.simulated_campaigns import Simulated, default_campaign
from tests.unit.archive import archive_data
from tests.unit.archive.archive_data import ARCHIVES
from tests.unit.report.report_data import HOSTILE


@pytest.fixture(scope="module")
def demo() -> Simulated:
    return default_campaign()


@pytest.fixture(scope="module")
def three(demo: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the demo measured three times; the third is 6 % slower behind the fabric."""
    root = tmp_path_factory.mktemp("results")
    for number in range(3):
        results(measured(demo, number, 0.06 if number == 2 else 0, "fabric"), root / f"demo{number}")
    return root


def made(*arguments: Path | str) -> Result:
    return CliRunner().invoke(main, ["site", *map(str, arguments)])


@pytest.fixture(scope="module")
def site(three: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("www") / "site"
    done = made(three, "--output", out)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [f"{out}/index.html: 3 campaigns"]
    return out


def files(site: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and content of every file: what is written again has another inode."""
    return {str(p.relative_to(site)): (p.stat().st_ino, p.read_bytes()) for p in site.rglob("*") if p.is_file()}


def text(path: Path) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", path.read_text()))


def test_a_cell_has_a_line_with_the_mean_and_interval_of_each_campaign(three: Path, site: Path) -> None:
    page = site / "history" / "falcon-demo-1x4-fabric.html"
    assert f'href="history/{page.name}"' in (site / "index.html").read_text()
    numbers = pd.read_csv(page.with_suffix(".csv"))
    assert len(numbers) == 6  # two cells, three campaigns
    for number in range(3):
        cells = read_tables(three / f"demo{number}" / "tables").cells.query("configuration == '1x4-fabric'")
        own = numbers[numbers["campaign"].str.startswith(f"demo-2023-11-{14 + 7 * number}")]
        assert sorted(own["mean"]) == pytest.approx(sorted(cells["mean"]))
        assert sorted(own["ci_low"]) == pytest.approx(sorted(cells["ci_low"]))
        assert set(own["runs"]) == set(cells["n_ok"])
    pictures = re.findall(r'class="intervals" d="([^"]*)".*?class="dots" d="([^"]*)"', page.read_text(), re.DOTALL)
    assert [(intervals.count("V"), dots.count("h0")) for intervals, dots in pictures] == [(3, 3)] * 2
    assert "includes only the variation within this campaign, not between campaigns" in text(page)
    # The third campaign is slower behind the fabric; the line shows it, and no word says it.
    assert not re.search("chang|signific|slower", text(page) + text(site / "index.html").replace(FINDING, ""))


def test_any_two_campaigns_of_the_site_can_be_compared(site: Path, tmp_path: Path) -> None:
    two = [str(site / f"demo-2023-11-{day}-221500") for day in (14, 28)]
    done = CliRunner().invoke(main, ["compare", *two, "--output", str(tmp_path / "c.html")])
    assert done.exit_code == 0, done.output
    assert "1x4-fabric" in (tmp_path / "c.html").read_text()


def test_the_index_names_each_campaign_with_its_finding_newest_first(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert re.findall(r'<h3><a href="demo-(2023-11-\d\d)-\d+/report.html">', page) == [
        "2023-11-28", "2023-11-21", "2023-11-14",
    ]  # fmt: skip
    assert text(site / "index.html").count(FINDING) == 3
    assert HOSTILE not in page


def test_each_campaign_but_the_first_is_compared_with_the_one_before(site: Path) -> None:
    found = {path.parent.name: path for path in site.glob("*/compare.html")}
    assert sorted(found) == ["demo-2023-11-21-221500", "demo-2023-11-28-221500"]
    last = found["demo-2023-11-28-221500"]
    assert "demo of 2023-11-28 22:15 against demo of 2023-11-21 22:15" in text(last)
    assert last.read_text().count('<path class="point ') == 29  # a drawn interval a cell
    # The third one is 6 % slower behind the fabric, and nothing tells whether campaigns differ by that anyway.
    assert "29 cells were not tested: the spread between campaigns is unknown." in text(last)
    assert "<dt>slower</dt><dd>0</dd>" in last.read_text()


def test_no_page_needs_matplotlib_whose_pictures_would_take_most_of_the_time(three: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('is not needed')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "campaign.cli", "site", str(three), "--output", str(tmp_path / "site")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    assert len(list((tmp_path / "site").glob("*/compare.html"))) == 2


def test_every_link_is_relative_and_leads_to_a_file_of_the_site_and_no_page_has_a_script(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "report.html"]
    assert len(pages) > 10
    for page in pages:
        content = page.read_text()
        assert "<script" not in content
        for address in re.findall(r'(?:href|src)="([^"]*)"', content):
            if address.startswith(("data:", "#")):
                continue
            path, _, anchor = unquote(address).partition("#")
            target = page.parent / path
            assert not path.startswith("/"), address
            assert target.is_file(), f"{page}: {address}"
            assert not anchor or f'id="{anchor}"' in target.read_text()


def test_figures_stand_beside_the_report_as_svg_csv_and_pdf(site: Path) -> None:
    own = site / "demo-2023-11-14-221500"
    assert {path.name for path in (own / "figures").iterdir()} == {"overhead.svg", "overhead.csv", "overhead.pdf"}
    assert (own / "report.html").read_text() == "<title>demo0</title>"
    assert {f"figures/overhead.{kind}" for kind in ("svg", "csv", "pdf")} <= set(
        re.findall(r'href="([^"]*)"', (own / "index.html").read_text())
    )


def test_a_second_call_writes_nothing_and_a_new_campaign_only_what_it_changes(
    demo: Simulated, three: Path, site: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    before = files(copy)
    assert made(three, "--output", copy).exit_code == 0
    assert files(copy) == before
    results(measured(demo, 3), tmp_path / "more" / "demo3")
    done = made(tmp_path / "more", "--output", copy)
    assert done.output.endswith("4 campaigns\n")
    after = files(copy)
    changed = {name for name in before if after[name] != before[name]}
    assert {name.partition("/")[0] for name in changed} == {"index.html", "history"}
    assert {name.partition("/")[0] for name in set(after) - set(before)} == {"demo-2023-12-05-221500"}


def test_results_that_grew_take_the_place_of_what_was_there_and_an_older_copy_does_not(
    demo: Simulated, tmp_path: Path
) -> None:
    whole = measured(demo, 0)
    part = replace(whole, runs=whole.runs[whole.runs["composition"] < 3])
    old, new = results(part, tmp_path / "old"), results(whole, tmp_path / "new")
    out = tmp_path / "site"
    for sources in ([old], [new], [old], [old, new]):
        made(*sources, "--output", out)
    (entry,) = campaigns.read_entries(out)
    assert entry.runs == len(whole.runs)
    assert (out / entry.directory / "report.html").read_text() == "<title>new</title>"


def test_campaigns_of_one_name_and_second_on_two_systems_are_two(demo: Simulated, tmp_path: Path) -> None:
    here = measured(demo, 0, name="../<b>", title=HOSTILE)
    there = replace(here, cells=here.cells.assign(system="elsewhere"), runs=here.runs.assign(system="elsewhere"))
    for name, tables in (("here", here), ("there", there)):
        results(tables, tmp_path / name)
    out = tmp_path / "site"
    assert made(tmp_path / "here", tmp_path / "there", "--output", out).exit_code == 0
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "b-2023-11-14-221500", "b-2023-11-14-221500-2", "history",
    ]  # fmt: skip
    page = (out / "index.html").read_text()
    assert HOSTILE not in page
    assert HOSTILE in text(out / "index.html")
    assert 'id="histories"' not in page  # nothing was measured twice on one system


def test_an_archive_is_read_anew_and_what_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "archives"
    sources.mkdir()
    shutil.copy(ARCHIVES / "made-up.zip", sources / "whole.zip")
    (sources / "torn.zip").write_bytes((ARCHIVES / "made-up.zip").read_bytes()[:-500])
    with zipfile.ZipFile(ARCHIVES / "made-up.zip") as good, zipfile.ZipFile(sources / "slip.zip", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name))
        bad.writestr("../../outside.json", "{}")
    (sources / "broken" / "tables").mkdir(parents=True)
    (sources / "broken" / "tables" / "runs.parquet").write_bytes(b"no table")

    def page(_: object, __: object, ___: object, scratch: Path, out: Path, *, is_archive: bool) -> None:
        # Figures of a campaign take half a minute; tests of archives and reports draw them.
        from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables

        write_campaign_tables(read_campaign_results(_, __, None), scratch / "tables")  # type: ignore[arg-type]
        (scratch / "figures").mkdir()
        out.write_text("drawn anew")

    monkeypatch.setattr(campaigns, "write_report", page)
    done = made(sources, "--output", tmp_path / "site")
    assert done.exit_code == 0, done.output
    (entry,) = campaigns.read_entries(tmp_path / "site")
    assert (tmp_path / "site" / entry.directory / "report.html").read_text() == "drawn anew"
    said = done.output
    assert f"warning: left out: {sources}/torn.zip is not a complete archive" in said
    assert f"warning: left out: {sources}/slip.zip: member '../../outside.json' points outside the archive" in said
    assert f"warning: left out: {sources}/broken" in said
    assert not (tmp_path / "outside.json").exists()
    assert not list((tmp_path / "site").glob(".adding-*"))


def test_repetitions_of_a_plan_without_tables_are_campaigns_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(of: Campaign, directory: Path, where: str | None, scratch: Path, out: Path, *, is_archive: bool) -> None:
        write_campaign_tables(read_campaign_results(of, directory, where), scratch / "tables")
        (scratch / "figures").mkdir()
        out.write_text("drawn anew")

    monkeypatch.setattr(campaigns, "write_report", page)  # its figures take half a minute
    (tmp_path / "config").mkdir()
    campaign = archive_data.campaign_in(tmp_path / "config")
    sources = [archive_data.fill(campaign, tmp_path / "small")]
    monkeypatch.setattr(archive_data, "START_S", archive_data.START_S + DAY_S)
    sources.append(archive_data.fill(campaign, tmp_path / "small-again", seed=8))
    names = [sorted(path.name for path in (each / "records").rglob("*.json")) for each in sources]
    assert names[0] == names[1]
    done = made(*sources, "--output", tmp_path / "site")
    assert done.output.splitlines() == [f"{tmp_path}/site/index.html: 2 campaigns"]
    copy = shutil.copytree(sources[0], tmp_path / "copy")
    assert campaigns.hash_source(copy) == campaigns.hash_source(sources[0])
    lease = next((copy / "leases").glob("*.json"))
    lease.write_text(lease.read_text() + " ")
    assert campaigns.hash_source(copy) != campaigns.hash_source(sources[0])


def test_a_site_without_a_campaign_and_a_directory_without_results_are_errors(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = made(empty, "--output", tmp_path / "site")
    assert done.exit_code == 1
    assert (
        "has no results; give the results directory of a campaign, an archive (.zip), or a directory of these"
        in done.output
    )
    (empty / "torn.zip").write_bytes(b"")
    done = made(empty, "--output", tmp_path / "site")
    assert done.exit_code == 1
    assert "no campaign could be read" in done.output


@pytest.mark.parametrize("started", [float("nan"), 1e300, -1.0])
def test_times_that_are_none_are_refused(demo: Simulated, tmp_path: Path, started: float) -> None:
    tables = measured(demo, 0)
    results(replace(tables, runs=tables.runs.assign(started=started)), tmp_path / "demo")
    done = made(tmp_path / "demo", "--output", tmp_path / "site")
    assert "are not valid Unix seconds" in done.output


def in_order(all_tables: Mapping[str, Tables]) -> list[history.History]:
    return history.build_histories([
        (name, float(each.runs["started"].min()), history.select_measured_cells(each.cells, each.context))
        for name, each in all_tables.items()
    ])  # fmt: skip


def test_a_cell_is_the_same_whatever_its_configuration_is_called(demo: Simulated) -> None:
    tables = {f"demo{n}": measured(demo, n) for n in range(3)}
    found = in_order(tables)
    assert len(found) == len(demo.cells)
    assert {tuple(point.campaign for point in each.points) for each in found} == {("demo0", "demo1", "demo2")}
    named = {**tables, "demo1": _renamed(tables["demo1"])}
    assert [[p.mean for p in each.points] for each in in_order(named)] == [
        [p.mean for p in each.points] for each in found
    ]


def test_a_cell_of_another_program_is_another_one(demo: Simulated) -> None:
    name = str(measured(demo, 0).cells["workload"].iloc[0])
    tables = {f"demo{n}": measured(demo, n) for n in range(4)}
    for number, (sha256, words) in enumerate([("a" * 64, ""), ("b" * 64, ""), ("a" * 64, "other words")]):
        document = {"workloads": {name: {"description": words}}, "inputs": {name: {"x.py": {"sha256": sha256}}}}
        each = tables[f"demo{number}"]
        tables[f"demo{number}"] = replace(each, context={**each.context, "campaign_yaml": yaml.safe_dump(document)})
    found = [each for each in in_order(tables) if each.key["workload"] == name]
    assert {tuple(point.campaign for point in each.points) for each in found} == {("demo0", "demo2")}


def test_no_name_in_the_table_of_a_history_is_a_formula(demo: Simulated) -> None:
    found = in_order({f"=demo{n}": measured(demo, n) for n in range(2)})
    (page, *_) = pages.build_history_pages(found, campaigns.to_address)
    assert set(pages.build_history_table(page)["campaign"]) == {"'=demo0", "'=demo1"}


def _renamed(tables: Tables) -> Tables:
    return replace(tables, cells=tables.cells.assign(configuration="other " + tables.cells["configuration"]))


def test_other_metrics_are_no_part_of_a_history(demo: Simulated) -> None:
    one, two = (measured(demo, n) for n in range(2))
    metric = {"name": "step_median_s", "label": "step median", "unit": "s", "better": "lower"}
    timed = replace(two, context={**two.context, "campaign": {**two.context["campaign"], "metric": metric}})
    assert in_order({"one": one, "two": timed}) == []

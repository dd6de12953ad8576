"""The served pages: what they show, who may ask, and that nothing is written."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from campaign.config.resolve import Campaign
from campaign.results_site.application import application
from tests import campaign_files, campaign_records

HOSTILE = "<script>alert('x')</script>"


@contextmanager
def served(root: Path, token: str | None = None) -> Iterator[httpx.Client]:
    """A real server over a results root, and a client of it."""
    server = uvicorn.Server(uvicorn.Config(application(root, token), log_level="error", access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=30) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return campaign_files.load(tmp_path_factory.mktemp("config"), {"campaign.question": HOSTILE})


@pytest.fixture(scope="module")
def root(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a campaign's records, what a crash left of another's plan, and things that are no campaign."""
    root = tmp_path_factory.mktemp("results")
    campaign_records.fill(campaign, root / "small", 0.5)
    (root / "small" / "plan").mkdir()
    (root / "small" / "plan" / "plan.json").write_text(json.dumps({"totals": {"runs": 32}}))
    (root / "small" / "progress.jsonl").write_text(
        json.dumps({"what": "steps · batch 1", "status": "ok", "time_s": 2.0}) + '\n{"torn'
    )
    (root / "damaged" / "records" / "ab").mkdir(parents=True)
    (root / "damaged" / "records" / "ab" / f"ab{'0' * 18}.1.json").write_text("{")
    (root / ".systems" / "records").mkdir(parents=True)
    (root / "notes").mkdir()
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[httpx.Client]:
    with served(root) as client:
        yield client


def test_all_campaigns_are_listed_with_progress_and_what_is_wrong_with_one(client: httpx.Client) -> None:
    page = client.get("/").text
    assert 'href="/campaign/small"' in page
    assert "16 of 32 runs" in page
    assert '<progress max="100" value="50">' in page
    assert "last: steps · batch 1: ok" in page
    assert f"ab{'0' * 18}.1.json: not a whole record/1 record" in page
    assert "notes" not in page
    assert ".systems" not in page


def test_a_campaign_shows_coverage_cells_filters_and_figures(client: httpx.Client) -> None:
    page = client.get("/campaign/small").text
    assert "16 cells" in page
    assert '<select name="batch" multiple' in page
    assert 'href="/campaign/small?configuration=1x1-local&amp;workload=steps"' in page
    assert '<img src="/campaign/small/figure/precision.svg"' in page
    assert "not measured yet" in page


@pytest.mark.parametrize(
    ("query", "cells"),
    [("batch=2", 8), ("batch=2&precision=fp32", 4), ("where=batch+%3E+1", 8), ("state=measured&batch=1&batch=2", 8)],
)
def test_a_filter_leaves_the_cells_that_are_asked_for_in_page_and_data(
    client: httpx.Client, query: str, cells: int
) -> None:
    assert f"<p>{cells} cells</p>" in client.get(f"/campaign/small?{query}").text
    assert len(client.get(f"/campaign/small/cells.csv?{query}").text.splitlines()) == cells + 1


def test_a_filter_knows_the_hosts_that_runs_touched(campaign: Campaign, tmp_path: Path) -> None:
    store = campaign_records.fill(campaign, tmp_path / "small", 0.5)
    for number, record in enumerate(list(store)):
        path = store.path(*record.key)
        path.write_text(record.model_copy(update={"hosts": (f"host{number % 8 // 2}", "far")}).model_dump_json() + "\n")
    with served(tmp_path) as client:
        assert "<p>2 cells</p>" in client.get("/campaign/small?where=host == 'host1'").text
        assert "<p>8 cells</p>" in client.get("/campaign/small?where=host == 'far'").text
        assert "<p>0 cells</p>" in client.get("/campaign/small?where=host == 'nowhere'").text


def test_without_a_plan_the_planned_runs_are_those_of_the_campaign(campaign: Campaign, tmp_path: Path) -> None:
    campaign_records.fill(campaign, tmp_path / "small", 0.5)
    with served(tmp_path) as client:
        assert "16 of 32 runs" in client.get("/campaign/small").text


def test_a_figure_has_a_page_a_picture_and_data_of_the_filtered_cells(client: httpx.Client) -> None:
    page = client.get("/campaign/small/figure/precision?where=batch == 2").text
    assert "samples/s" in page.lower()
    picture = client.get("/campaign/small/figure/precision.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "prefers-color-scheme:dark" in picture.text
    some = client.get("/campaign/small/figure/precision.csv?where=batch == 2").text.splitlines()
    every = client.get("/campaign/small/figure/precision.csv").text.splitlines()
    assert 1 < len(some) < len(every)
    assert "left out because" in client.get("/campaign/small/figure/link_matrices.svg").text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/campaign/nope", 404, "there is no campaign"),
        ("/campaign/..%2f..%2fetc", 404, ""),
        ("/campaign/notes", 404, "there is no campaign"),
        ("/campaign/damaged/cells.csv", 404, "not a whole record/1 record"),
        ("/campaign/small/leases.csv", 404, "no such table; there are: runs, cells"),
        ("/campaign/small/figure/nope", 404, "there is no such figure; there are highest_rate"),
        ("/campaign/small/report", 404, "no report yet"),
        ("/campaign/small?where=colour+==+1", 422, "colour"),
        ("/campaign/small?where=__import__('os')", 422, "where"),
        ("/compare?a=small&b=nope", 404, "there is no campaign &#39;nope&#39;; there are damaged, small"),
    ],
)
def test_what_cannot_be_shown_says_why(client: httpx.Client, path: str, status: int, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert words in answer.text


def test_two_campaigns_are_compared_with_a_way_back(campaign: Campaign, tmp_path: Path) -> None:
    for name in ("before", "after"):
        campaign_records.fill(campaign, tmp_path / name, 0.5)
    with served(tmp_path) as client:
        assert '<option value="before">' in client.get("/compare").text
        answer = client.get("/compare?a=before&b=after")
        assert answer.status_code == 200
        assert '<a href="/">All campaigns</a>' in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_text_of_campaigns_is_escaped_and_no_page_may_run_or_fetch_anything(client: httpx.Client) -> None:
    for path in ("/", "/campaign/small", "/campaign/small/figure/precision", "/compare", "/campaign/nope"):
        answer = client.get(path)
        assert "<script" not in answer.text
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "script" not in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert HOSTILE.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;") in client.get("/").text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_answered(client: httpx.Client, method: str) -> None:
    assert client.request(method, "/campaign/small").status_code == 405


def test_nothing_is_written(client: httpx.Client, root: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        found = {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in root.rglob("*")}
        return found

    before = state()
    for path in ("/", "/campaign/small", "/campaign/small/figure/scaling.svg", "/campaign/small/runs.csv"):
        client.get(path)
    assert state() == before


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8451", "localhost.evil.example", "127.0.0.1.evil", ""])
def test_a_page_of_another_site_cannot_ask_through_a_readers_browser(root: Path, host: str) -> None:
    with served(root) as client:
        assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8451", "[::1]:8451", "[::1]"])
def test_this_machine_may_ask_by_any_of_its_names(root: Path, host: str) -> None:
    with served(root) as client:
        assert client.get("/", headers={"host": host}).status_code == 200


def test_with_a_token_only_who_knows_it_reads_and_it_leaves_the_address(root: Path) -> None:
    with served(root, "s3cret") as client:
        assert client.get("/").status_code == 403
        assert client.get("/?token=wrong").status_code == 403
        assert client.get("/", headers={"cookie": "campaign-token=wrong"}).status_code == 403
        answer = client.get("/campaign/small?token=s3cret&batch=2")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/campaign/small?batch=2"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/campaign/small").status_code == 200


def test_records_that_come_while_it_is_open_are_shown(campaign: Campaign, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("campaign.results_site.results_index._LOOK_S", 0.0)
    monkeypatch.setattr("campaign.results_site.results_index._REST", 0.0)
    with served(tmp_path) as client:
        assert "No campaign has results here yet" in client.get("/").text
        campaign_records.fill(campaign, tmp_path / "small", 0.25)
        assert '<span class="state measured">4 measured</span>' in client.get("/").text
        campaign_records.fill(campaign, tmp_path / "small", 1.0)
        assert '<span class="state measured">16 measured</span>' in client.get("/").text


def test_a_record_is_read_once(campaign: Campaign, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("campaign.results_site.results_index._LOOK_S", 0.0)
    monkeypatch.setattr("campaign.results_site.results_index._REST", 0.0)
    reads: list[Path] = []
    from campaign.documents import record

    plain = record.read_record
    monkeypatch.setattr(record, "read_record", lambda path: (reads.append(path), plain(path))[1])
    with served(tmp_path) as client:
        campaign_records.fill(campaign, tmp_path / "small", 0.5)
        client.get("/")
        assert len(reads) == 16
        campaign_records.fill(campaign, tmp_path / "small", 1.0)
        client.get("/")
        client.get("/campaign/small")
    assert len(reads) == 32


def test_a_campaign_that_is_measured_now_asks_again_by_itself(campaign: Campaign, tmp_path: Path) -> None:
    from campaign.files import lock

    campaign_records.fill(campaign, tmp_path / "small", 0.25)
    with served(tmp_path) as client:
        assert "http-equiv" not in client.get("/campaign/small").text
        with lock(tmp_path / "small" / "work" / "1x1-local" / "driver.lock"):
            page = client.get("/campaign/small").text
        assert '<meta http-equiv="refresh" content="5">' in page
        assert "measuring" in page
        assert "Composed or measured now: 1x1-local" in page

"""`campaign serve` as a process, in a real browser: live, filtered by its form, in a phone's width, ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from tests import campaign_files, campaign_records


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    campaign_records.fill(campaign_files.load(tmp_path_factory.mktemp("config")), root / "small", 0.75)
    return root


@pytest.fixture(scope="module")
def address(results: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "campaign.cli.main", "serve", "--results", str(results), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "CAMPAIGN_SERVE_TOKEN"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        try:
            said = server.stdout.readline()
            found = re.search(r"http://localhost:\d+/", said)
            assert found, said + server.stdout.read()
            for _ in range(200):
                try:
                    httpx.get(found[0])
                    break
                except httpx.TransportError:
                    continue
            yield found[0]
            server.send_signal(signal.SIGINT)
            assert server.wait(10) == 0
        finally:
            server.kill()


@pytest.mark.browser
def test_a_person_filters_and_looks_at_a_figure(browser: Any, address: str) -> None:
    browser.get_log("browser")
    browser.get(address)
    browser.find_element("link text", "small").click()
    assert "16 cells" in browser.find_element("id", "cells").text
    browser.find_element("name", "where").send_keys("batch == 2\n")
    assert "8 cells" in browser.find_element("id", "cells").text
    assert "where=batch" in browser.current_url
    browser.get(f"{address}campaign/small/figure/precision?where=batch+==+2")
    image = browser.find_element("css selector", ".picture img")
    assert int(image.get_property("naturalWidth")) > 300
    assert "bf16" in image.get_attribute("alt")
    assert browser.get_log("browser") == []


@pytest.mark.browser
@pytest.mark.parametrize("path", ["", "campaign/small", "campaign/small/figure/precision", "compare"])
def test_no_page_scrolls_sideways_on_a_phone(browser: Any, address: str, path: str) -> None:
    metrics = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.get(address + path)
        wide, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= inner
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_port_that_is_taken_and_an_address_of_no_use_are_clear_errors(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["serve", "--results", str(tmp_path), "--port", str(port)])
    assert done.exit_code == 1
    assert f"--port {port}: cannot listen on 127.0.0.1" in done.output
    done = CliRunner().invoke(main, ["serve", "--host", "everywhere"])
    assert "--host everywhere: is no address" in done.output
    done = CliRunner().invoke(main, ["serve", "--host", "0.0.0.0", "--no-token"])
    assert done.exit_code == 1
    assert "can be reached from other machines" in done.output

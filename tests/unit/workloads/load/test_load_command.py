"""The load as a command of its own, over sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.testbed.queueing_server import QueueingServer
from campaign.workloads.load.__main__ import main


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server that takes 1 ms for a request."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(QueueingServer("constant", 0.001).handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_it_prints_what_requests_met_and_writes_them(address: str, tmp_path: Path) -> None:
    written = tmp_path / "requests.json"
    keys = ["concurrency=2", "requests=10", "prompt_tokens={uniform: [2, 4]}", "output_tokens=2"]
    done = CliRunner().invoke(main, [address, *keys, "--requests", str(written)])
    assert done.exit_code == 0, done.output
    assert "requests                 10\n" in done.output
    assert "errors                   0\n" in done.output
    assert json.loads(written.read_text())["error"] == [None] * 10


@pytest.mark.parametrize(
    ("keys", "message"),
    [(["requests=1"], "either 'rate_per_s'"), (["rate=1"], "rate"), (["rate_per_s={"], "expected the node content")],
)
def test_a_wrong_load_is_refused(keys: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["http://127.0.0.1:1", *keys])
    assert done.exit_code == 1
    assert message in done.output

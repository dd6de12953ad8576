"""The server as processes: two share each layer, give the tokens of one, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import torch

from campaign.processes.marked import MARK, marked
from campaign.workloads.gpt_server.batching import Feed
from campaign.workloads.gpt_server.decoder import SIZES, Decoder, random_weights
from campaign.workloads.rank_launchers import free_port

COMMAND = [sys.executable, "-m", "campaign.workloads.gpt_server"]


def test_two_processes_share_each_layer_give_the_tokens_of_one_and_end_together(tmp_path: Path) -> None:
    port, mark = free_port("127.0.0.1"), f"{tmp_path}"
    words = [*COMMAND, f"--port={port}", "--tensor-parallel=2", "--seed=7"]
    environment = {**os.environ, MARK: mark, "CAMPAIGN_PACE_GFLOPS": "10,10", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_ready(port, server, tmp_path / "log")
        assert len(list(marked(mark))) == 2
        asked = {"prompt": [5, 900, 17, 4, 31], "max_tokens": 6}
        answers = [httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=20) for _ in range(2)]
        texts = {answer.json()["choices"][0]["text"] for answer in answers}
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0, (tmp_path / "log").read_text()
        assert list(marked(mark)) == []
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        server.wait()
    assert texts == {"".join(f" w{token}" for token in _alone([5, 900, 17, 4, 31], 6))}


def _wait_until_ready(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())


def _alone(prompt: list[int], count: int) -> list[int]:
    torch.set_num_threads(1)
    decoder = Decoder(SIZES["gpt-nano"], random_weights(SIZES["gpt-nano"], 7), slots=1, context=64)
    tokens, fed = list(prompt), 0
    for _ in range(count):
        fed, (token,) = len(tokens), decoder.next_tokens([Feed(0, fed, tokens[fed:])])
        tokens.append(token)
    return tokens[len(prompt) :]


def test_unknown_models_and_widths_are_one_line() -> None:
    for words, message in (
        (["--model=gpt-5", "--port=1"], "error: --model gpt-5: is not known; use one of gpt-nano"),
        (["--port=0"], "0 is not in the range 1<=x<=65535"),
    ):
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

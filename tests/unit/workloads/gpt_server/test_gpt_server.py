"""The decoder gives the tokens of full recomputation: cached, batched, in pieces, and divided over processes that end together."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import torch

from campaign.errors import ConfigError
from campaign.processes.marked import MARK, marked
from campaign.workloads.gpt_server.application import Batcher, Feed
from campaign.workloads.gpt_server.decoder import Decoder, random_weights
from campaign.workloads.rank_launchers import free_port
from campaign.workloads.trainer.models.language import Gpt
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES

COMMAND = [sys.executable, "-m", "campaign.workloads.gpt_server"]


def test_processes_share_each_layer_give_the_tokens_of_one_and_end_together(tmp_path: Path) -> None:
    ranks, port, mark = 4, free_port("127.0.0.1"), f"{tmp_path}"
    words = [*COMMAND, f"--port={port}", f"--tensor-parallel={ranks}", "--seed=7"]
    environment = {**os.environ, MARK: mark, "CAMPAIGN_PACE_GFLOPS": "10,10", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_ready(port, server, tmp_path / "log")
        assert len(list(marked(mark))) == ranks
        asked = {"prompt": PROMPTS[0], "max_tokens": 6}
        answers = [httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=20) for _ in range(2)]
        texts = {answer.json()["choices"][0]["text"] for answer in answers}
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0, (tmp_path / "log").read_text()
        assert list(marked(mark)) == []
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        server.wait()
    assert texts == {"".join(f" w{token}" for token in _recomputed(PROMPTS[0], 6))}


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


def test_unknown_models_and_widths_are_one_line() -> None:
    for words, message in (
        (["--model=gpt-5", "--port=1"], "error: --model gpt-5: is not known; use one of gpt-nano"),
        (["--port=0"], "0 is not in the range 1<=x<=65535"),
    ):
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


SIZE = GPT_SIZES["gpt-nano"]
WEIGHTS = random_weights(SIZE, seed=7)
PROMPTS = [[5, 900, 17, 4, 31], [1], [2047, 0, 3] * 5, list(range(7, 407, 10))]


@functools.cache
def _all_recomputed(prompt: tuple[int, ...]) -> list[int]:
    network = Gpt(SIZE, dropout=0.0)
    network.load_state_dict(dict(WEIGHTS))
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(12):
            tokens.append(int(network.eval()(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def _recomputed(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow, at most twelve, by the trainer's network, which has no cache."""
    return _all_recomputed(tuple(prompt))[:count]


def _decoded(decoder: Decoder, prompt: Sequence[int], count: int, slot: int = 0) -> list[int]:
    tokens = list(prompt)
    fed = 0
    for _ in range(count):
        (token,) = decoder.next_tokens([Feed(slot, fed, tokens[fed:])])
        fed = len(tokens)
        tokens.append(token)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_cached_decoding_gives_the_tokens_of_full_recomputation(prompt: list[int]) -> None:
    found = _decoded(Decoder(SIZE, WEIGHTS, slots=2, context=64), prompt, 12, slot=1)
    assert found == _recomputed(prompt, 12)
    assert len(set(found)) > 1, "a network that repeats itself shows nothing"


def test_a_batch_gives_the_tokens_of_each_alone_in_reused_slots_and_with_a_prompt_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A prompt of 40 takes three iterations.
    monkeypatch.setattr("campaign.workloads.gpt_server.application.MOST_TOKENS", 16)

    async def generated() -> tuple[Batcher, list[list[int]]]:
        batcher = Batcher(Decoder(SIZE, WEIGHTS, slots=3, context=64).next_tokens, slots=3)
        running = asyncio.create_task(batcher.run())

        async def tokens(prompt: list[int]) -> list[int]:
            return [token async for token in batcher.generate(prompt, 10)]

        found = await asyncio.gather(*map(tokens, PROMPTS * 2))
        running.cancel()
        return batcher, found

    batcher, found = asyncio.run(generated())
    assert found == [_recomputed(prompt, 10) for prompt in PROMPTS] * 2
    assert batcher.counts["output_tokens"] == 80
    assert 2 < batcher.counts["batched_sequences"] / batcher.counts["iterations"] <= 3


def test_operations_are_those_of_all_products_and_few_tokens_read_the_whole_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[float] = []
    monkeypatch.setattr(Decoder, "_worked", lambda _, operations: counted.append(operations))
    decoder = Decoder(SIZE, WEIGHTS, slots=1, context=64, least_tokens=8)
    decoder.next_tokens([Feed(0, 0, [3] * 20)])
    in_layers = 12 * SIZE.width**2 * SIZE.layers
    assert sum(counted) == pytest.approx(
        2 * 20 * in_layers + 4 * 20 * 20 * SIZE.width * SIZE.layers + 2 * 8 * SIZE.vocabulary * SIZE.width
    )
    counted.clear()
    decoder.next_tokens([Feed(0, 20, [3])])
    assert sum(counted) == pytest.approx(2 * 8 * (in_layers + SIZE.vocabulary * SIZE.width), rel=0.01)


def test_a_paced_decoder_takes_the_time_of_its_device() -> None:
    decoder = Decoder(SIZE, WEIGHTS, slots=1, context=64, gflops=0.05)
    started_s = time.perf_counter()
    _decoded(decoder, PROMPTS[0], 5)
    took_s = time.perf_counter() - started_s
    # Nine tokens through layers of 0.79 MFLOP, five of them through a head of 0.52 MFLOP.
    assert took_s > 0.95 * (9 * 0.79e6 + 5 * 0.52e6) / 0.05e9


def test_what_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="1024 positions, fewer than 2000"):
        Decoder(SIZE, WEIGHTS, 1, 2000)
    for name, value in (("is_initialized", True), ("get_rank", 0), ("get_world_size", 3)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    with pytest.raises(ConfigError, match="4 attention heads cannot be divided over 3 processes"):
        Decoder(SIZE, WEIGHTS, 1, 64)

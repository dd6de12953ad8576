"""Arrivals, prompts, and what becomes of requests that are not answered as they should be."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from campaign.emulators.queueing_server import QueueingServer
from campaign.workloads.load import Load, SentRequest
from campaign.workloads.load.__main__ import main
from campaign.workloads.load.generator import apply, arrivals, length, prompts, read_prompts
from campaign.workloads.load.load_file import Lognormal, Uniform
from campaign.workloads.load.streaming_client import ServerAddress
from tests.simulated_clock import Pipe, run_simulated

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TOKEN = b'data: {"choices": [{"text": " a", "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"text": " b", "finish_reason": "length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, output: int) -> bytes:
    return b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\n' % (prompt, output)


def answered(*pieces: bytes | float, **options: object) -> SentRequest:
    """What one request met: bytes are sent, numbers are seconds between them."""

    async def handle(reader: asyncio.StreamReader, writer: Pipe) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
            else:
                await asyncio.sleep(piece)
        writer.close()

    load = Load.model_validate({"prompt_tokens": 3, "output_tokens": 2, **options}).for_run(
        {"concurrency": 1, "requests": 1}
    )
    [request] = run_simulated(lambda: apply(load, "http://server", "model"), handle)
    return request


def test_times_and_tokens_of_a_stream() -> None:
    found = answered(0.5, STREAM, 0.5, TOKEN, 0.25, LAST, usage(5, 2), 9.0, DONE)
    assert found == SentRequest(0.0, 0.0, 1.0, 1.25, 5, 2, None, 3, 2)
    assert (found.ttft_ms, found.e2e_ms, found.tpot_ms) == (1000, 1250, 250)


def test_without_usage_pieces_count_and_are_called_so() -> None:
    found = answered(STREAM, TOKEN, TOKEN, LAST, DONE)
    assert (found.prompt_tokens, found.output_tokens, found.reported, found.error) == (3, 3, False, None)


def test_the_role_of_a_chat_is_no_token_and_events_may_be_torn() -> None:
    role = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
    token = b'data: {"choices": [{"delta": {"content": "a"}}]}\r\n\r\n'
    last = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    found = answered(STREAM, role, 1.0, token[:20], 1.0, token[20:], last, 1.0, usage(4, 1), endpoint="chat")
    assert (found.first_s, found.last_s, found.output_tokens, found.error, found.tpot_ms) == (2.0, 2.0, 1, None, None)


def test_tokens_without_text_count_where_the_server_reports_them() -> None:
    empty = b'data: {"choices": [{"text": "", "finish_reason": null}]}\n\n'
    found = answered(STREAM, 1.0, empty, 1.0, empty, usage(3, 2), DONE)
    assert (found.first_s, found.last_s, found.error) == (1.0, 2.0, None)


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (
            (b'HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n{"error": {"message": "too long"}}',),
            "HTTP 400: too long",
        ),
        ((b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\nbusy",), "HTTP 503: busy"),
        ((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{}",), "no event stream"),
        ((STREAM, TOKEN, b"data: {nonsense\n\n", LAST, DONE), "no JSON object: {nonsense"),
        ((STREAM, TOKEN, b'data: {"error": {"message": "engine died"}}\n\n'), "engine died"),
        ((STREAM, TOKEN), "ended before the answer was complete"),
        ((STREAM, DONE), "no token came"),
        ((STREAM, TOKEN, 100.0, LAST, DONE), "time-out"),
        ((100.0,), "time-out"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), "RemoteProtocolError"),
        (
            (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nff\r\n",),
            "RemoteProtocolError",
        ),
        ((b"",), "RemoteProtocolError"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(pieces: tuple[bytes | float, ...], error: str) -> None:
    found = answered(*pieces)
    assert error in str(found.error)
    assert found.e2e_ms == found.ttft_ms == found.tpot_ms == float("inf")


def test_a_refused_connection_is_an_error_of_the_request() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        load = Load().for_run({"rate_per_s": 1000, "requests": 3})
        done = asyncio.run(apply(load, f"http://127.0.0.1:{held.getsockname()[1]}"))
    assert ["ConnectionRefusedError" in str(row.error) for row in done] == [True] * 3


def test_the_model_is_the_servers_own_and_the_body_is_as_the_file_says() -> None:
    seen: list[dict[str, object]] = []

    class Recording(QueueingServer):
        async def _answer(self, http, writer, asked, tokens, served):  # type: ignore[no-untyped-def]
            seen.append(asked)
            await super()._answer(http, writer, asked, tokens, served)

    load = Load(prompt_tokens=3, output_tokens=2, endpoint="chat", body={"ignore_eos": True})
    chosen = load.for_run({"concurrency": 1, "requests": 1})
    done = run_simulated(lambda: apply(chosen, "http://queue:1/"), Recording("constant", 1.0).handle)
    assert done[0].error is None
    [asked] = seen
    assert asked["model"] == "queue"
    assert asked["ignore_eos"] is True
    assert asked["max_tokens"] == 2
    assert asked["stream_options"] == {"include_usage": True}


def test_open_loops_have_their_rate_whatever_the_lengths() -> None:
    fixed = Load(arrivals="fixed").for_run({"rate_per_s": 4, "duration_s": 1})
    assert list(arrivals(fixed, random.Random(1))) == [0, 0.25, 0.5, 0.75]
    poisson = Load().for_run({"rate_per_s": 50, "requests": 4000})
    at = list(arrivals(poisson, random.Random(1)))
    assert at[-1] == pytest.approx(80, rel=0.05)
    gaps = sorted(b - a for a, b in pairwise(at))
    assert gaps[len(gaps) // 2] == pytest.approx(0.02 * 0.693, rel=0.1)

    def starts(output_tokens: object, seed: int) -> list[float]:
        load = Load.model_validate({"output_tokens": output_tokens, "seed": seed, "timeout_s": 1e6})
        chosen = load.for_run({"rate_per_s": 10, "requests": 20})
        done = run_simulated(lambda: apply(chosen, "http://queue"), QueueingServer("constant", 0.1).handle)
        return [row.intended_s for row in done]

    assert starts(4, 1) == starts({"uniform": [1, 9]}, 1) != starts(4, 2)


def test_a_closed_loop_keeps_as_many_requests_going_as_it_says() -> None:
    queue = QueueingServer("constant", 0.5, servers=8)
    load = Load(output_tokens=2, prompt_tokens=2).for_run({"concurrency": 4, "requests": 20})
    ended: list[SentRequest] = []
    done = run_simulated(lambda: apply(load, "http://queue", on_request=ended.append), queue.handle)
    assert len(done) == len(ended) == 20
    assert [round(row.intended_s, 6) for row in done] == [0.5 * (i // 4) for i in range(20)]


def test_lengths() -> None:
    draw = random.Random(1)
    drawn = [length(Uniform(uniform=(2, 4)), draw) for _ in range(200)]
    assert set(drawn) == {2, 3, 4}
    tail = sorted(length(Lognormal(median=100, sigma=1, max=500), draw) for _ in range(2000))
    assert tail[1000] == pytest.approx(100, rel=0.1)
    assert tail[-1] == 500
    one, two = (next(prompts(Load(prompt_tokens=7), random.Random(seed))) for seed in (1, 2))
    assert len(one.text.split()) == 7 == one.prompt_tokens
    assert one.text != two.text


def test_prompts_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "lengths.jsonl"
    lines.write_text('{"prompt_tokens": 2, "output_tokens": 3}\n\n{"prompt": "why not", "output_tokens": 4}\n')
    drawn = prompts(Load(prompts=str(lines)), random.Random(1))
    rows = sorted((row.prompt_tokens, row.output_tokens, len(row.text.split())) for row in (next(drawn), next(drawn)))
    assert rows == [(2, 3, 2), (2, 4, 2)]
    shared = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "how are you"}, {"from": "gpt", "value": "well enough"}]
    shared.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, {}]))
    assert [(row.text, row.prompt_tokens, row.output_tokens) for row in read_prompts(shared)] == [("how are you", 3, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompt"),
        ('{"prompt_tokens": 1}', "1: 'prompt_tokens' and 'output_tokens'"),
        ('{"prompt_tokens": 1, "output_tokens": true}', "1: 'prompt_tokens'"),
        ('{"prompt": 5, "output_tokens": 1}', "1: 'prompt_tokens'"),
        ("hello", "1: is not a JSON object"),
        ('{"prompt"', "is not JSON"),
        ("[1, 2]", "has no prompt"),
    ],
)
def test_a_wrong_file_of_prompts_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)
    load = Load(prompts=str(tmp_path)).for_run({"rate_per_s": 1, "requests": 1})
    with pytest.raises(ValueError, match="cannot be read"):
        run_simulated(lambda: apply(load, "http://server", "model"), QueueingServer("constant", 1).handle)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duration_s": 1}, "either 'rate_per_s' or 'concurrency'"),
        ({"rate_per_s": 1, "concurrency": 2, "duration_s": 1}, "either 'rate_per_s' or 'concurrency'"),
        ({"rate_per_s": 1}, "either 'duration_s' or 'requests'"),
        ({"rate_per_s": 1, "duration_s": 1, "requests": 1}, "either 'duration_s' or 'requests'"),
        ({"rate_per_s": 1, "duration_s": 1, "warmup_s": 1}, "leaves nothing"),
        ({"rate_per_s": -1, "duration_s": 1}, "rate_per_s"),
        ({"rate_per_s": 1, "duration_s": 1, "output_tokens": 0}, "output_tokens"),
    ],
)
def test_a_load_that_cannot_be_applied_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Load().for_run(options)


def test_options_replace_the_keys_that_they_name() -> None:
    load = Load(output_tokens=Uniform(uniform=(1, 5)), duration_s=9)
    chosen = load.for_run({"rate_per_s": 2, "output_tokens": 7, "tensor_parallel": 4})
    assert (chosen.rate_per_s, chosen.output_tokens, chosen.duration_s) == (2.0, 7, 9)
    with pytest.raises(ValueError, match="smaller"):
        Uniform(uniform=(5, 1))


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://host", "http://"])
def test_an_address_is_that_of_a_server(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        asyncio.run(apply(Load().for_run({"rate_per_s": 1, "requests": 1}), address))


def test_addresses() -> None:
    assert ServerAddress.at(urlsplit("https://[::1]/base/v1/")) == ServerAddress("::1", 443, "/base", True)
    target = ServerAddress("::1", 443, "/base", True).request("POST", "/v1/completions", b"").target
    assert target == b"/base/v1/completions"


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

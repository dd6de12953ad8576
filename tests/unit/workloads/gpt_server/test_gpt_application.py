"""The interface of the server, over real sockets: answers, streams, refusals, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from campaign.workloads.gpt_server.application import Batcher, Feed, application


@dataclass
class Served:
    client: httpx.Client
    batcher: Batcher
    hold: threading.Event
    stop: Callable[[], object]


@pytest.fixture
def served() -> Iterator[Served]:
    """A server whose next token is one more than the last; while `hold` is set, a token takes 10 ms."""
    hold = threading.Event()

    def next_tokens(feeds: Sequence[Feed]) -> list[int]:
        if hold.is_set():
            time.sleep(0.01)
        return [feed.tokens[-1] + 1 for feed in feeds]

    started = threading.Event()
    found: dict[str, Any] = {}

    async def serving() -> None:
        batcher = Batcher(next_tokens, slots=2)
        app = application(batcher, "gpt-test", vocabulary=1000, context=100, lost_s=lambda: 0.25)
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        decoding = asyncio.create_task(batcher.run())
        loop = asyncio.get_running_loop()
        found.update(batcher=batcher, server=server, stop=lambda: loop.call_soon_threadsafe(decoding.cancel))
        started.set()
        await server.serve()
        decoding.cancel()

    thread = threading.Thread(target=asyncio.run, args=(serving(),), daemon=True)
    thread.start()
    started.wait(5)
    server = found["server"]
    _wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield Served(client, found["batcher"], hold, found["stop"])
    finally:
        server.should_exit = True
        thread.join(5)


def _wait_until(holds: Callable[[], bool], patience_s: float = 5) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _events(response: httpx.Response) -> list[str]:
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def test_a_completion_is_answered_whole_and_in_events(served: Served) -> None:
    asked = {"model": "gpt-test", "prompt": "w1 w2 w10", "max_tokens": 3, "temperature": 0}
    whole = served.client.post("/v1/completions", json=asked).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [{"index": 0, "text": " w11 w12 w13", "logprobs": None, "finish_reason": "length"}]
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = served.client.post("/v1/completions", json=asked | options)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *chunks, done = _events(streamed)
    *tokens, last = map(json.loads, chunks)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in tokens] == [" w11", " w12", " w13"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None, None, "length"]
    assert all(chunk["usage"] is None for chunk in tokens)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    *_, unasked, _ = _events(served.client.post("/v1/completions", json=asked | {"stream": True}))
    assert "usage" not in json.loads(unasked)
    ids = served.client.post("/v1/completions", json=asked | {"prompt": [5, 41], "max_tokens": 1}).json()
    assert ids["choices"][0]["text"] == " w42"


@pytest.mark.parametrize(
    ("asked", "status", "code", "message"),
    [
        ({"prompt": "w1", "max_tokens": 100}, 400, "context_length_exceeded", "maximum context length"),
        ({"prompt": "w1 " * 100}, 400, "context_length_exceeded", "116 tokens"),
        ({"prompt": "w1", "max_tokens": 0}, 400, None, "max_tokens"),
        ({"prompt": ""}, 400, None, "no token"),
        ({"prompt": [1000]}, 400, None, "token 1000"),
        ({"prompt": "w1", "n": 2}, 400, None, "n: "),
        ({}, 400, None, "prompt"),
        ({"model": "other", "prompt": "w1"}, 404, "model_not_found", "other"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_as_openai_does(
    served: Served, asked: dict[str, object], status: int, code: str | None, message: str
) -> None:
    response = served.client.post("/v1/completions", json=asked)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert message in error["message"]
    assert served.client.post("/v1/completions", content=b"{").status_code == 400
    assert served.batcher.counts["requests"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_the_slot_of_a_client_that_has_gone_is_free(served: Served, stream: bool) -> None:
    served.hold.set()
    asked = {"prompt": "w1", "max_tokens": 99, "stream": stream}
    for _ in range(2):  # all slots
        with httpx.Client(base_url=served.client.base_url) as leaving:
            if stream:
                with leaving.stream("POST", "/v1/completions", json=asked) as response:
                    next(response.iter_text())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    leaving.post("/v1/completions", json=asked, timeout=0.05)
    _wait_until(lambda: served.batcher.counts["requests_cancelled"] == 2)
    served.hold.clear()
    answer = served.client.post("/v1/completions", json={"prompt": "w1", "max_tokens": 2}).json()
    assert answer["choices"][0]["text"] == " w2 w3"
    assert served.batcher.counts["output_tokens"] < 99
    assert (len(served.batcher.running), len(served.batcher.waiting)) == (0, 0)


def test_models_health_and_metrics(served: Served) -> None:
    served.client.post("/v1/completions", json={"prompt": "w1 w2", "max_tokens": 4})
    assert served.client.get("/v1/models").json()["data"][0]["id"] == "gpt-test"
    assert served.client.get("/health").status_code == 200
    text = served.client.get("/metrics").text
    for line in (
        "gpt_requests_total 1",
        "gpt_prompt_tokens_total 2",
        "gpt_output_tokens_total 4",
        "gpt_iterations_total 4",
        "gpt_pace_lost_seconds_total 0.25",
        "gpt_requests_waiting 0",
        "# TYPE gpt_requests_running gauge",
    ):
        assert f"{line}\n" in text
    served.stop()
    _wait_until(lambda: served.client.get("/health").status_code == 503)
    assert served.client.post("/v1/completions", json={"prompt": "w1"}).status_code == 500


def test_a_failure_of_the_network_ends_all_generations_and_is_raised() -> None:
    def broken(feeds: Sequence[Feed]) -> list[int]:
        raise RuntimeError("a process has ended")

    async def failing() -> list[BaseException | int]:
        batcher = Batcher(broken, slots=1)
        asked = [anext(batcher.generate([1], 1)) for _ in range(2)]  # type: ignore[call-overload]
        return await asyncio.gather(*asked, batcher.run(), return_exceptions=True)

    *asked, raised = asyncio.run(failing())
    assert [type(each) for each in asked] == [EOFError, EOFError]
    assert isinstance(raised, RuntimeError)
    assert str(raised) == "a process has ended"

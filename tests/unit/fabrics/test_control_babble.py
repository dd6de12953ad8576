"""Whatever bytes come from a control plane, there is an answer or an error that says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.common.errors import FabricError
from campaign.fabrics.errors import OutcomeUnknown
from tests.unit.fabrics.raw_server import RawServer, client, hangs_up, impatient, says

__all__ = ["impatient"]


@pytest.fixture(scope="module")
def babbler() -> Iterator[RawServer]:
    with RawServer(hangs_up) as server:
        yield server


_heads = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.0 200",
        b"HTTP/1.1 204 No",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.1 101 Up",
        b"HTTP/1.1 307 There",
        b"HTTP/1.1 99 Low",
        b"HTTP/9.9 200 OK",
    ]
)
_headers = st.sampled_from(
    [
        b"Content-Length: 3",
        b"Content-Length: 0",
        b"Content-Length: 18446744073709551616",
        b"Content-Length: 3, 3",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Location: /there",
        b"Location: \xff\xfe",
        b"Retry-After: -1",
        b" folded",
        b": nameless",
        b"Content-Type: text/html; charset=no-such",
    ]
)
_bodies = st.sampled_from(
    [b"", b"abc", b"{}", b"3\r\nabc\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"\r\n\r\n"]
) | st.binary(max_size=40)


@st.composite
def _answers(draw: st.DrawFn) -> bytes:
    """Something like one answer, or several in a row."""
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        head = draw(_heads | st.binary(max_size=20))
        lines = draw(st.lists(_headers | st.binary(max_size=20), max_size=4))
        parts.append(b"\r\n".join([head, *lines, b"", draw(_bodies)]))
    return b"".join(parts)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    answers=st.lists(_answers() | st.binary(max_size=60), min_size=1, max_size=3),
    method=st.sampled_from(["GET", "PUT"]),
)
def test_whatever_bytes_come_there_is_an_answer_or_a_fabric_error(
    babbler: RawServer, answers: list[bytes], method: str
) -> None:
    babbler.talks = [says(answer, close=True) for answer in answers]
    asking = client(babbler, request_s=5.0, operation_s=5.0)
    for _ in range(2):
        try:
            answer = asking.get("/x") if method == "GET" else asking.send_change(method, "/x", {"a": 1})
            assert answer.summarize()
            assert answer.retry_after_s is None
        except OutcomeUnknown:
            assert method == "PUT"
        except FabricError:
            assert method == "GET"
    asking.close()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(answer=_answers())
def test_whatever_bytes_come_before_a_silence_the_client_ends(babbler: RawServer, answer: bytes) -> None:
    ended, outwaited = threading.Event(), []

    def talk(peer: socket.socket, request: bytes) -> None:
        peer.sendall(answer)
        outwaited.append(not ended.wait(20))

    babbler.talks = [talk]
    asking = client(babbler, request_s=0.05, operation_s=0.1)
    with suppress(FabricError):
        asking.get("/x")
    ended.set()
    asking.close()
    assert True not in outwaited

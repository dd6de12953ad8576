"""HTTP to a control plane, against servers that close, drip, lie and are no HTTP servers: what is tried again, and when it ends."""

from __future__ import annotations

import gzip
import json
import socket
import time
from email.utils import formatdate
from typing import Any

import pytest

from campaign.common.errors import FabricError
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation
from campaign.fabrics.http import client as http_client
from campaign.fabrics.http import connection as http_connection
from campaign.fabrics.http.response import Answer, parse_json, parse_retry_after
from campaign.fabrics.operations import record_operations, time_operation
from tests.unit.fabrics.raw_server import OK, RawServer, Talk, client, drips, hangs_up, impatient, reply, says

__all__ = ["impatient"]


# -- what is tried again, and what is not --------------------------------------------------------------------------------------


def test_a_read_is_tried_again_until_it_is_answered() -> None:
    with RawServer(hangs_up, says(reply(503)), says(reply(429)), OK) as server:
        asking = client(server)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http_client, "RETRY_DELAYS_S", (0.01,) * 3)
            assert asking.get("/x").body == {}
        assert (asking.request_count, asking.retry_count, len(server.asked)) == (4, 3, 4)


def test_changes_are_timed_but_logins_and_parts_of_other_operations_are_not() -> None:
    with RawServer(OK) as server, record_operations() as timed:
        asking = client(server)
        asking.send_change("POST", "/login", {"password": "secret-1"}, secret=True)
        asking.send_change("POST", "/x", {})
        with time_operation("attach", "gpu", "box1") as answered:
            asking.send_change("POST", "/y", {})
            answered.answer = "false"
        with pytest.raises(FabricError), time_operation("detach"):
            raise FabricError("refused")
    assert [(each.operation, each.device, each.box, each.answer) for each in timed] == [
        ("request", "", "", "200"),
        ("attach", "gpu", "box1", "false"),
    ]
    assert all(each.seconds > 0 for each in timed)


def test_a_service_that_stays_unavailable_gets_its_answer_through() -> None:
    with RawServer(says(reply(503, b"maintenance"))) as server:
        asking = client(server)
        assert (asking.get("/x").summarize(), asking.request_count) == ("HTTP 503 maintenance", 3)


@pytest.mark.parametrize("status", [400, 401, 404, 500, 501])
def test_other_answers_are_answers(status: int) -> None:
    with RawServer(says(reply(status))) as server:
        assert client(server).get("/x").status == status
        assert len(server.asked) == 1


@pytest.mark.parametrize("answer", [hangs_up, says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", close=True)])
def test_a_change_is_sent_once_and_a_lost_answer_is_an_unknown_outcome(answer: Talk) -> None:
    with RawServer(answer, OK) as server:
        asking = client(server)
        with pytest.raises(OutcomeUnknown, match=f"POST {server.url}/x: the request was sent"):
            asking.send_change("POST", "/x", {"a": 1})
        assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_change_that_is_told_to_wait_is_the_adapters(status: int) -> None:
    with RawServer(says(reply(status, b"", "Retry-After: 7"))) as server:
        answer = client(server).send_change("PATCH", "/x", {})
        assert (answer.status, answer.retry_after_s, len(server.asked)) == (status, 7.0, 1)


def test_a_change_that_could_not_be_sent_did_not_happen() -> None:
    with RawServer(OK) as server:
        asking = client(server)
    with pytest.raises(FabricError, match=r"cannot be reached .*refused") as caught:
        asking.send_change("POST", "/x", {})
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_change_does_not_use_a_connection_that_idled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hangs up on whatever comes second on a connection, as one does that closed it at that moment."""
    seen: list[socket.socket] = []

    def once(peer: socket.socket, request: bytes) -> None:
        if peer in seen:
            raise OSError
        seen.append(peer)
        peer.sendall(reply())

    monkeypatch.setattr(http_client, "MAX_IDLE_BEFORE_CHANGE_S", 0.0)
    with RawServer(once) as server:
        asking = client(server)
        asking.get("/x")
        assert asking.send_change("POST", "/x", {}).is_success
        assert asking.get("/x").is_success  # sent again
        assert asking.retry_count == 1


def test_a_connection_that_the_server_closed_is_not_used() -> None:
    with RawServer(says(reply(), close=True)) as server:
        asking = client(server)
        for _ in range(3):
            assert asking.get("/x").is_success
            time.sleep(0.4)  # its end arrives, also on a busy machine
            assert asking.send_change("POST", "/x", {}).is_success
            time.sleep(0.4)
        assert asking.retry_count == 0


def test_a_connection_is_kept_while_it_is_used() -> None:
    with RawServer(OK) as server:
        asking = client(server)
        for _ in range(3):
            asking.get("/x")
            asking.send_change("POST", "/x", {})
        assert server.connections == 1


@pytest.mark.parametrize("surplus", [reply(200, b'{"id": "not yours"}'), b"surplus"])
def test_what_is_said_beyond_an_answer_is_not_the_next_answer(surplus: bytes) -> None:
    with RawServer(says(b"HTTP/1.1 204 No\r\n\r\n" + surplus), OK) as server:
        asking = client(server)
        assert asking.send_change("DELETE", "/x").body is None
        assert asking.get("/y").body == {}


def test_what_is_promised_and_comes_late_is_not_the_next_answer() -> None:
    """A body where none can be, which the server sends after all: here when the next request has come."""
    owed: list[socket.socket] = []

    def late(peer: socket.socket, request: bytes) -> None:
        if peer in owed:
            peer.sendall(b"HTTP/1.1 404 not yours\r\nContent-Length: 0\r\n\r\n")
        owed.append(peer)
        peer.sendall(b"HTTP/1.1 204 No\r\nContent-Length: 47\r\n\r\n")

    with RawServer(late) as server:
        asking = client(server)
        for _ in range(2):
            assert asking.send_change("DELETE", "/x").status == 204


@pytest.mark.parametrize("moment", ["seconds", "date"])
def test_retry_after_is_waited_for_within_the_operation(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(http_client.time, "sleep", waits.append)
    told = "20" if moment == "seconds" else formatdate(time.time() + 21, usegmt=True)
    with RawServer(says(reply(503, b"", f"Retry-After: {told}")), OK) as server:
        asking = client(server, operation_s=100.0)
        assert asking.get("/x").status == 200
    (waited,) = waits
    assert 15 < waited < 22


def test_retry_after_neither_outlasts_the_operation_nor_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(http_client.time, "sleep", waits.append)
    with RawServer(says(reply(503, b"", "Retry-After: 5000"))) as server:
        assert client(server, operation_s=20.0).get("/x").status == 503
        assert waits == []
        assert client(server, operation_s=3600.0).get("/x").status == 503
        assert waits == [http_client.MAX_RETRY_AFTER_S] * 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("1e9", None),
        ("٣", None),
        ("Thu, 99 Jan 1970 00:01:00 GMT", None),
    ],
)
def test_what_retry_after_says(text: str, found: float | None) -> None:
    assert parse_retry_after(text, now_s=10.0) == found


# -- time ----------------------------------------------------------------------------------------------------------------------

_SLOW = {
    "header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000,
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9999,
    "provisional": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "nothing": b"",
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("part", _SLOW)
def test_a_server_that_drips_holds_nobody(part: str, method: str) -> None:
    """Its bytes alone would take minutes; each comes well within the time of a request."""

    def silent(peer: socket.socket, request: bytes) -> None:
        drips(_SLOW[part])(peer, request)
        time.sleep(10)

    with RawServer(silent) as server:
        asking = client(server, request_s=0.6, operation_s=0.8)
        with pytest.raises(OutcomeUnknown if method == "POST" else FabricError, match=r"within 0\.\d+ s"):
            asking.get("/x") if method == "GET" else asking.send_change(method, "/x", {})


def test_a_silent_handshake_holds_nobody() -> None:
    with RawServer(OK) as server:
        asking = client(server, url=server.url.replace("http", "https"), request_s=0.6, operation_s=0.8)
        with pytest.raises(FabricError, match="TLS handshake failed: no connection was established within"):
            asking.send_change("POST", "/x", {})


def test_when_the_operation_is_over_nothing_is_sent() -> None:
    with RawServer(OK) as server:
        asking = client(server)
        with asking.limit_time(0.01):
            time.sleep(0.02)
            for ask in (lambda: asking.get("/x"), lambda: asking.send_change("POST", "/x", {})):
                with pytest.raises(FabricError, match="operation_s") as caught:
                    ask()
                assert not isinstance(caught.value, OutcomeUnknown)
            with pytest.raises(FabricError, match="operation_s"):
                asking.sleep(1)
        assert (server.asked, asking.request_count) == ([], 0)
        assert asking.get("/x").is_success


# -- what is no answer ---------------------------------------------------------------------------------------------------------

_BROKEN = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "bad status": b"HTTP/1.1 abc OK\r\n\r\n",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "cut chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "bad header": b"HTTP/1.1 200 OK\r\n\x00\xff: \x01\r\n\r\n",
    "no colon": b"HTTP/1.1 200 OK\r\nwhat\r\n\r\n",
    "huge header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "huge": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5000,
    "endless": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000,
    "confetti": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + (b"1;" + b"a" * 3000 + b"\r\nx\r\n") * 6
    + b"0\r\n\r\n",
}


@pytest.mark.parametrize("what", _BROKEN)
def test_what_is_no_answer_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawServer(says(_BROKEN[what], close=True)) as server:
        asking = client(server)
        asking._wire._max_content_bytes = 1000
        with pytest.raises(ProtocolViolation, match=f"GET {server.url}/x"):
            asking.get("/x")
        with pytest.raises(OutcomeUnknown):
            asking.send_change("PUT", "/x", {})


def test_an_answer_that_is_too_long_is_not_asked_for_again() -> None:
    with RawServer(says(_BROKEN["endless"], close=True)) as server:
        asking = client(server)
        asking._wire._max_content_bytes = 1000
        with pytest.raises(ProtocolViolation, match="larger than 1000 bytes"):
            asking.get("/x")
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + reply(200, b"x"), 200, "x"),
        (b"HTTP/1.0 200 OK\r\n\r\nup to the end", 200, "up to the end"),
        (b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello", 204, ""),
        (b"HTTP/1.1 304 Same\r\n\r\n", 304, ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: r\r\n\r\n", 200, "abc"),
        (reply(999, b"x"), 999, "x"),
        (reply(200, b"\xff\xfe<html>"), 200, "\ufffd\ufffd<html>"),
        (reply(200, b"caf\xe9", "X: caf\xe9"), 200, "caf\ufffd"),
    ],
)
def test_odd_answers_are_answers(answer: bytes, status: int, text: str) -> None:
    with RawServer(says(answer, close=True)) as server:
        for got in (client(server).get("/x"), client(server).send_change("POST", "/x")):
            assert (got.status, got.text, got.body) == (status, text, None)


def test_encodings_are_declined_and_a_packed_body_stays_packed() -> None:
    bomb = gzip.compress(b"0" * 1_000_000)
    with RawServer(says(reply(200, bomb, "Content-Encoding: gzip"))) as server:
        answer = client(server).get("/x")
        assert b"Accept-Encoding: identity" in server.asked[0]
        assert answer.body is None
        assert len(answer.text) < 10_000


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"\xef\xbb\xbf[1.5]", [1.5]),
        (b"0", 0),
        (b"null", None),
        (b"", None),
        (b'{"a": NaN}', None),
        (b"[-Infinity]", None),
        (b"[1e999]", None),
        (b"[" + b"9" * 41 + b"]", None),
        (b"[" + b"9" * 5000 + b"]", None),
        (b'["\\ud83d\\ude00"]', ["\U0001f600"]),
        (b'["\\ud800"]', None),
        (b"[" * 100_000, None),
        (b"[" * 100 + b"]" * 100, None),
        (b"[" * 60 + b"]" * 60, json.loads("[" * 60 + "]" * 60)),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, None),
    ],
)
def test_json_that_can_be_worked_on(content: bytes, value: Any) -> None:
    assert parse_json(content)[0] == value


def test_words_are_one_printable_line() -> None:
    answer = Answer(200, {}, None, "a\r\n b\x1b[31m\x00 c" + "d" * 500)
    assert answer.summarize() == "HTTP 200 a b\ufffd[31m\ufffd c" + "d" * 189
    with pytest.raises(ProtocolViolation, match="not a JSON object"):
        answer.require_object()
    assert Answer(204, {}, None, "").summarize() == "HTTP 204 (empty)"


def test_a_request_is_not_begun_while_another_is_under_way() -> None:
    with RawServer(drips(b"x" * 100)) as server:
        asking = client(server, request_s=0.5, operation_s=0.5)
        wires: list[http_connection.HttpConnection] = [asking._wire]
        with wires[0]._lock, pytest.raises(FabricError, match="another request"):
            asking.get("/x")
        assert server.connections == 0

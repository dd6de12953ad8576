"""Where requests to a control plane go, with what in them, and where they never go."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from campaign.common.errors import FabricError
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation
from campaign.fabrics.http import client as http_client
from tests.unit.fabrics.raw_server import OK, RawServer, client, reply, says


def paths(server: RawServer) -> list[str]:
    return [request.split()[1].decode() for request in server.asked]


def test_redirections_are_followed_within_the_control_plane_and_not_for_ever() -> None:
    with RawServer(says(reply(307, b"", "Location: /b?c=d")), says(reply(301, b"", "Location: e")), OK) as server:
        asking = client(server)
        asking.authorization["X-Auth-Token"] = "t0ken-of-ours"
        assert asking.get("/a").is_success
        assert paths(server) == ["/a", "/b?c=d", "/e"]
        assert all(b"t0ken-of-ours" in request for request in server.asked)
    with RawServer(says(reply(302, b"", "Location: /a"))) as server:
        assert client(server).get("/a").status == 302
        assert len(server.asked) == 1 + http_client.MAX_REDIRECTS


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
def test_nobody_else_is_told_who_we_are(scheme: str) -> None:
    with RawServer(OK) as other:
        for location in (f"{scheme}://127.0.0.1:{other.port}/x", f"//127.0.0.1:{other.port}/x", "http://[bad", "x:y"):
            with RawServer(says(reply(307, b"", f"Location: {location}"))) as server:
                asking = client(server)
                asking.authorization["Authorization"] = "Bearer t0ken-of-ours"
                assert asking.get("/a").status == 307
                assert len(server.asked) == 1
        assert other.connections == 0


def test_a_change_is_not_redirected() -> None:
    with RawServer(says(reply(307, b"", "Location: /b"))) as server:
        assert client(server).send_change("POST", "/a", {}).status == 307
        assert paths(server) == ["/a"]


@pytest.mark.parametrize(
    ("prefix", "path", "asked"),
    [
        ("", "/a/b", "/a/b"),
        ("", "a b/ü#frag", "/a%20b/%C3%BC"),
        ("", "/a%20b?x=1", "/a%20b?x=1&$expand=*($levels=1)&n=2&n=3&b=true"),
        ("", "https://elsewhere:99/a?x=1#f", "/a?x=1"),
        ("", "//elsewhere/a", "/elsewhere/a"),
        ("", "", "/"),
        ("", "/a\r\nX-Injected: 1", "/a%0D%0AX-Injected:%201"),
        ("", "/\ud800", "/%3F"),
        ("/api/v2", "/machines", "/api/v2/machines"),
        ("/api/v2/", "machines", "/api/v2/machines"),
        ("/api/v2", "/api/v2/machines", "/api/v2/machines"),
        ("/api/v2", "/api/v20", "/api/v2/api/v20"),
        ("/api/v2", "https://elsewhere/api/v2/x", "/api/v2/x"),
        ("/api/v2", "/", "/api/v2"),
    ],
)
def test_an_address_stays_within_the_control_plane(prefix: str, path: str, asked: str) -> None:
    with RawServer(OK) as server:
        asking = client(server, url=server.url + prefix)
        params = {"$expand": "*($levels=1)", "n": [2, 3], "b": True} if "expand" in asked else None
        asking.get(path, params)
        assert paths(server) == [asked]
        assert b"\r\nX-Injected" not in server.asked[0]


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with RawServer(OK) as proxy, RawServer(OK) as server:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert client(server).get("/x").is_success
        assert proxy.connections == 0


@pytest.mark.parametrize("path", [None, 5, {}, ["/x"]])
def test_an_address_that_is_none_is_a_violation(path: Any) -> None:
    with RawServer(OK) as server:
        with pytest.raises(ProtocolViolation, match="sent an invalid address"):
            client(server).get(path)
        with pytest.raises(ProtocolViolation, match="sent an invalid address"):
            client(server).send_change("DELETE", path)


@pytest.mark.parametrize("token", ["a\r\nX-Injected: 1", "tökèn", 98765432, None, "\x00"])
def test_a_token_that_cannot_be_sent_is_a_violation_that_does_not_show_it(token: Any) -> None:
    with RawServer(OK) as server:
        asking = client(server)
        asking.authorization["X-Auth-Token"] = token
        with pytest.raises(ProtocolViolation, match="X-Auth-Token") as caught:
            asking.send_change("POST", "/x", {})
        assert str(token) not in str(caught.value)
        assert server.asked == []


@pytest.mark.parametrize("body", [float("nan"), {1, 2}, "deep"])
def test_a_body_that_cannot_be_sent_is_a_violation(body: Any) -> None:
    if body == "deep":
        for _ in range(10_000):
            body = [body]
    with RawServer(OK) as server, pytest.raises(ProtocolViolation, match="JSON"):
        client(server).send_change("POST", "/x", {"a": body})


def test_what_is_sent() -> None:
    with RawServer(OK) as server:
        asking = client(server)
        asking.authorization = {"X-Auth-Token": "abc"}
        asking.send_change("POST", "/x", {"a": ["ü"]}, headers={"If-Match": 'W/"1"', "x-auth-token": "other"})
        asking.send_change("POST", "/x", form={"user": "a b", "p": "&"})
        asking.send_change("POST", "/x")
        asking.send_change("DELETE", "/x")
        heads = [request.decode() for request in server.asked]
    assert heads[0].endswith('\r\n\r\n{"a":["\\u00fc"]}')
    assert "Content-Type: application/json" in heads[0]
    assert 'If-Match: W/"1"' in heads[0]
    assert "x-auth-token: other" in heads[0]
    assert "abc" not in heads[0]
    assert heads[1].endswith("\r\n\r\nuser=a+b&p=%26")
    assert "application/x-www-form-urlencoded" in heads[1]
    assert "Content-Length: 0" in heads[2]
    assert "Content-Length" not in heads[3]
    assert all(f"Host: 127.0.0.1:{server.port}\r\n" in head for head in heads)


# -- TLS -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_a_certificate_is_verified_and_the_message_says_what_to_do(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ca_file = str(tmp_path / "ca.pem")
    with RawServer(OK, tls=server_tls(authority, "127.0.0.1")) as server:
        assert client(server, ca_file=ca_file).get("/x").is_success
        assert client(server, verify_tls=False).send_change("POST", "/x", {}).is_success
        asking = client(server)
        with pytest.raises(FabricError, match=r"ca_file.*verify_tls"):
            asking.get("/x")
        assert asking.retry_count == 0
        with pytest.raises(FabricError, match=r"ca_file.*verify_tls") as caught:
            asking.send_change("POST", "/x", {})
        assert not isinstance(caught.value, OutcomeUnknown)
    other = server_tls(authority, "other.example")
    with RawServer(OK, tls=other) as server, pytest.raises(FabricError, match=r"127\.0\.0\.1' ?"):
        client(server, ca_file=ca_file).get("/x")
    with (
        RawServer(OK, greeting=reply(400)) as plain,
        pytest.raises(FabricError, match="check that this port serves TLS"),
    ):
        client(plain, url=plain.url.replace("http", "https")).get("/x")

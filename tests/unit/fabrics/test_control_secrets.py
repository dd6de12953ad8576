"""Passwords and tokens are shown nowhere, whatever a server does with them."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from contextlib import suppress

import pytest

from campaign.common.credentials import MASK
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.http.recording import Anonymizer
from campaign.fabrics.http.redaction import SecretRedactor
from tests.unit.common.test_credentials import SECRET_NAMES
from tests.unit.fabrics.raw_server import OK, RawServer, client, impatient, reply, says

__all__ = ["impatient"]


PASSWORD = 's3crét "pass\\word" & <b>'


def echoes(peer: socket.socket, request: bytes) -> None:
    """Tells everything that it was told, in the many ways that servers do."""
    head, _, body = request.partition(b"\r\n\r\n")
    text = f"{head.decode('latin-1')} {body.decode()}"
    with suppress(ValueError):
        text += f" {json.loads(body)} {json.loads(body).get('Password', '')}"
    peer.sendall(reply(403, text.encode(), "X-Auth-Token: issued-t0ken-1"))


def test_a_server_that_echoes_everything_reveals_nothing() -> None:
    with RawServer(echoes) as server:
        asking = client(server)
        basic = "Basic " + b64encode(f"ada:{PASSWORD}".encode()).decode()
        login = asking.send_change("POST", "/login", {"UserName": "ada", "Password": PASSWORD}, secret=True)
        asking.authorization = {"Authorization": basic, "X-Api": "api-key-of-ours"}
        later = asking.get("/x", {"key": PASSWORD})
        asking.add_secret(PASSWORD)
        with pytest.raises(ProtocolViolation) as caught, asking.limit_time():
            raise ProtocolViolation(f"refused: {later.text} {login.text} {login.get_header('X-Auth-Token')}")
        with pytest.raises(ProtocolViolation) as members:
            later.require_object()
        told = (login.summarize(), later.summarize(), repr(login), repr(later), caught.value, members.value)
        all_shown = " ".join(map(str, told))
    assert "UserName" in all_shown
    assert "ada" in all_shown
    for secret in (PASSWORD, "s3cr", "pass\\", "word", basic.split()[1], "api-key-of-ours", "issued-t0ken-1"):
        assert secret not in all_shown.replace("Password", "").replace("password", "")


def test_tokens_of_an_answer_to_a_login_are_hidden_and_its_short_words_are_not() -> None:
    issued = {"access_token": "eyJhbGciOi.abc", "token_type": "id", "data": [{"refresh_token": "another-one-1"}]}
    with RawServer(says(reply(200, json.dumps(issued).encode()))) as server:
        asking = client(server)
        asking.send_change("POST", "/token", form={"username": "ada", "password": "hunter2"}, secret=True)
        assert asking.redact_secrets("eyJhbGciOi.abc another-one-1 hunter2 id ada") == "*** *** *** id ada"


def test_a_rehearsal_shows_neither_who_we_are_nor_how_we_prove_it() -> None:
    with RawServer(OK) as server:
        asking = client(server, url=server.url + "/api")
        asking.authorization = {"X-Auth-Token": "t0ken-of-ours"}
        asking.add_secret("hunter2")
        with asking.rehearse_changes() as sent:
            asking.send_change("POST", "/sessions", {"UserName": "ada", "Password": "x"}, secret=True)
            asking.send_change(
                "POST", "/x", {"Name": "n", "deep": [{"client_secret": "x"}, "hunter2"]}, rehearsal_body={"id": 1}
            )
            asking.send_change("PUT", "/y", form={"password": "x", "b": "c"}, params={"q": 1})
            asking.send_change("PUT", "/z", headers={"authorization": "Basic x", "x-auth-token": "y", "If-Match": "1"})
        assert [one.body for one in sent] == [
            "***",
            {"Name": "n", "deep": [{"client_secret": "***"}, "***"]},
            {"password": "***", "b": "c"},
            None,
        ]
        assert [one.url.removeprefix(server.url) for one in sent] == ["/api/sessions", "/api/x", "/api/y?q=1", "/api/z"]
        assert [dict(one.headers) for one in sent] == [{}, {}, {}, {"If-Match": "1"}]
        assert (server.asked, asking.request_count) == ([], 0)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_messages_rehearsals_and_recordings_go_by_the_names_of_secrets_in_system_files(name: str) -> None:
    with RawServer(says(reply(403, b"no swordfish-1 here"))) as server:
        asking = client(server)
        with asking.rehearse_changes() as sent:
            asking.send_change("POST", "/x", {"deep": [{name: "swordfish-1"}]})
        assert [one.body for one in sent] == [{"deep": [{name: MASK}]}]
        with asking.record_requests() as recorded:
            assert (
                asking.send_change("POST", "/x", {"deep": [{name: "swordfish-1"}]}).summarize()
                == "HTTP 403 no *** here"
            )
    (exchange,) = recorded
    # A word that adapters know is kept elsewhere in a recording.
    assert Anonymizer(str, ["swordfish-1"]).anonymize_value(json.loads(exchange.request_body)) == {
        "deep": [{name: MASK}]
    }


def test_an_error_that_quotes_the_wire_does_not_quote_a_secret() -> None:
    with RawServer(says(b"HTTP/1.1 200 hunter2\r\nhunter2\r\n\r\n", close=True)) as server:
        asking = client(server)
        asking.add_secret("hunter2")
        with pytest.raises(ProtocolViolation) as caught:
            asking.get("/hunter2")
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "echo",
    [
        "s3cr/t & <b>",
        "s3cr/t+%26+%3Cb%3E",
        "s3cr/t%20%26%20%3Cb%3E",
        "s3cr%2Ft%20%26%20%3Cb%3E",
        "s3cr/t &amp; &lt;b&gt;",
        "YWRhOnMzY3IvdCAmIDxiPg==",
    ],
)
def test_a_secret_is_hidden_in_every_form(echo: str) -> None:
    hidden = SecretRedactor()
    hidden.add_header_secrets("Basic " + b64encode(b"ada:s3cr/t & <b>").decode())
    shown = hidden.redact_secrets(f"given: {echo}.")
    assert "s3cr" not in shown
    assert "YWRh" not in shown
    assert shown.startswith("given: ***")


@pytest.mark.parametrize("value", ["", " ", None, 5, "Basic", "Basic !", "Basic /w=="])
def test_what_is_no_secret_hides_nothing_else(value: object) -> None:
    hidden = SecretRedactor()
    hidden.add_header_secrets(value)
    assert hidden.redact_secrets("nothing of 5 to hide") == "nothing of 5 to hide"

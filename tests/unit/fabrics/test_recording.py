"""A recording shows what a control plane says and nothing that names a site."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from campaign.fabrics.http.recording import Anonymizer, build_recording
from campaign.fabrics.protocol import RecordedRequest

PASSWORD = "hunter two"
SERIALS = st.integers(min_value=10**8, max_value=10**15)
WORDS = st.one_of(
    st.text(string.ascii_letters + string.digits + "-_.@:é", min_size=7, max_size=20).filter(
        lambda word: word.strip(".:") == word
    ),
    st.uuids().map(str),
    st.ip_addresses().map(str).filter(lambda address: len(address) > 6),
    st.from_regex(r"[0-9A-F]{2}(:[0-9A-F]{2}){5}", fullmatch=True),
    st.from_regex(r"0x[0-9a-f]{8,16}", fullmatch=True),
)


def scrub(text: str) -> str:
    return text.replace(PASSWORD, "***")


def names(keep: Sequence[str] = ()) -> Anonymizer:
    return Anonymizer(scrub, keep)


def recorded(words: Sequence[str], serial: int, stand_ins: Anonymizer) -> dict[str, Any]:
    """Words of a site at every place of an exchange where a control plane may show one."""
    one, two, three = words
    body = {
        "Id": one,
        "Members": [{"@odata.id": f"/redfish/v1/Systems/{two}", "SerialNumber": three, "Other": serial}],
        "Oem": {
            "message": f"Machine {one} of {two} is already being edited by {three}",
            "at": f"https://{one}:8443/x/{two}",
        },
        "quoted": json.dumps({"inner": [one, {"deep": two}]}),
    }
    exchanges = [
        RecordedRequest(
            "https://fabric.example:443",
            "GET",
            f"/redfish/v1/Systems/{one}?filter={two}&name=x{three}",
            json.dumps({"Name": one, "also": [two], "password": PASSWORD}).encode(),
            0.1,
            200,
            {
                "location": f"/redfish/v1/Systems/{one}",
                "server": f"nginx {two}",
                "x-owner": three,
                "etag": f'W/"{one}"',
            },
            body,
            json.dumps(body),
        ),
        RecordedRequest(
            "https://fabric.example:443", "GET", "/x", b"", 0.1, error=f"{one}: no route to {two} for {PASSWORD}"
        ),
        RecordedRequest(
            "https://fabric.example:443", "POST", "/x", one.encode(), 0.1, 500, {}, None, f"<h1>{one}</h1> {two}"
        ),
    ]
    options = {
        "kind": "redfish",
        "url": "https://fabric.example:443",
        "hosts": {one: two},
        "credentials": {"file": three},
    }
    system = {"hosts": [one], "pool": [{"kind": "gpu", "model": "a100", "count": 2}]}
    return build_recording("redfish", options, system, exchanges, stand_ins)


@given(words=st.tuples(WORDS, WORDS, WORDS), serial=SERIALS)
def test_no_word_of_a_site_survives(words: tuple[str, ...], serial: int) -> None:
    stand_ins = names()
    assume(not any(stand_ins._is_known_word(word) for word in words))
    shown = json.dumps(recorded(words, serial, stand_ins), ensure_ascii=False)
    for word in (*words, str(serial), PASSWORD, "fabric.example"):
        assert word not in shown, word


def test_secrets_and_names_are_replaced_although_their_words_are_known() -> None:
    """Words of the adapters' sources and short numbers stay anywhere else."""
    stand_ins = Anonymizer(scrub, (), ["gpu-node"])
    known = ("root", "gpu-node", "token", "1234", "dead")
    assert all(names()._is_known_word(word) for word in known)
    headers = dict.fromkeys(("set-cookie", "x-auth-token", "authorization"), "session=1234; path=root")
    body = {"AccessToken": "dead", "Pin_Secret": 1234, "gpu-node": 1, "alice": {"by": "alice"}, "a@cn.example": 1}
    body |= {
        "rack.cn.example": 1,
        "to": "gpu-node.fabric gpu-node-host (GPU-NODE:nic)",
        "Members@odata.count": 1,
        "Port#": 1,
    }
    sent = json.dumps({"password": "root"}).encode()
    asked = RecordedRequest("http://u:p@[fe80::1]:80", "GET", "/x?token=1234", sent, 0.1, 200, headers, body)
    (found,) = build_recording("redfish", {}, {}, [asked], stand_ins)["exchanges"]
    assert found["headers"] == dict.fromkeys(headers, "***")
    assert (found["query"], found["sent"]) == ({"token": "***"}, {"password": "***"})
    assert [found["answer"][name] for name in ("AccessToken", "Pin_Secret")] == ["***", "***"]
    assert {"Members@odata.count", "Port#"} < found["answer"].keys()
    assert not re.search("gpu-node|alice|example|fe80|u:p", json.dumps(found), re.IGNORECASE)
    page = RecordedRequest("http://a", "GET", "/", b"", 0.1, 200, {}, None, "\0 " * 10**6)
    assert len(stand_ins.anonymize_exchange(page)["answer_text"]) < 10**6


def test_the_same_word_has_the_same_stand_in_and_what_is_known_stays() -> None:
    stand_ins = names(["NVIDIA A100-PCIE-40GB"])
    found = recorded(("cn17.site", "7f3a91c2d4", "ada99lovelace"), 4711471147, stand_ins)
    assert found["fabric"]["hosts"] == {stand_ins.stand_ins["cn17.site"]: stand_ins.stand_ins["7f3a91c2d4"]}
    first, lost, page = found["exchanges"]
    one = stand_ins.stand_ins["cn17.site"]
    assert first["ask"] == f"GET /redfish/v1/Systems/{one}"
    assert first["headers"]["location"] == f"/redfish/v1/Systems/{one}"
    assert first["answer"]["Id"] == first["sent"]["Name"] == one
    assert first["sent"]["password"] == "***"
    assert first["answer"]["Oem"]["message"].startswith(f"Machine {one} of ")
    assert first["answer"]["Oem"]["message"].endswith(
        "is already being edited by " + stand_ins.stand_ins["ada99lovelace"]
    )
    assert first["answer"]["Oem"]["at"].startswith("http://address")
    assert (lost["lost"], page["status"]) == (f"{one}: no route to {stand_ins.stand_ins['7f3a91c2d4']} for ***", 500)
    assert len(stand_ins.stand_ins["7f3a91c2d4"]) == 10  # hexadecimal still
    assert int(stand_ins.stand_ins["7f3a91c2d4"], 16)
    assert found["pool"] == [{"kind": "gpu", "model": "a100", "count": 2}]
    assert "credentials" not in found["fabric"]
    for kept in (
        "NVIDIA A100-PCIE-40GB",
        "0x00001001",
        "30h",
        "2026-11-24T01:00:00Z",
        "#Connection.v1_1_0.Connection",
        "48",
    ):
        assert names(["NVIDIA A100-PCIE-40GB"]).anonymize_text(kept) == kept

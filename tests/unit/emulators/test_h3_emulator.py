"""The emulated Falcon boxes, judged by what was recorded of two real ones; and strict with everything that was not."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import scipy
import yaml

from campaign.emulators.control_planes.h3 import EmulatedBoxes, open_emulator
from campaign.emulators.control_planes.h3.habits import RECORDED_READS, WRONG_LIST_COUNTS, BoxBehaviour, BoxOptions
from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply
from campaign.spec.operation_times import Operation, read_published_times

RECORDED = yaml.safe_load((Path(__file__).parents[2] / "data" / "fabrics" / "h3" / "recorded.yaml").read_text())
P, R, A = "/h3api/v1", "/h3api/v1/resources", "/h3api/v1/allocation"
TEXT = {"Content-Type": "text/plain"}


def hardware() -> Rack:
    return build_rack(["hostA", "hostB"], [("gpu", "a100", 8)])


def boxes(**options: Any) -> EmulatedBoxes:
    return open_emulator(hardware(), **{"attached": "all", "disturbed": "never", "answers": "true"} | options)


def ask(
    emulator: EmulatedBoxes, method: str, body: str = "", *, box: int = 0, path: str = "", **headers: str
) -> Reply | None:
    try:
        parsed = json.loads(body) if body else None
    except ValueError:
        parsed = None
    told = {"User-Agent": "test"} | (TEXT if body else {}) | headers
    path = path or (R if method == "GET" else A)
    return emulator.answer(HttpRequest(method, path, {}, told, parsed, body, part=list(emulator.boxes)[box]))


def detach(gid: str) -> str:
    return json.dumps({"gep": "0", "dev_gid": gid})


def attach(gid: str, port: str) -> str:
    return json.dumps({"gep": "0", "port_gid": port, "dev_gid": gid})


def records(reply: Reply | None) -> list[dict[str, str]]:
    assert reply is not None
    found: list[dict[str, str]] = json.loads(reply.body)
    assert all(isinstance(text, str) for record in found for text in (*record, *record.values()))
    return found


def held(emulator: EmulatedBoxes, box: int = 0) -> dict[str, str]:
    """Host_Port# by Dev_GID."""
    listed = records(ask(emulator, "GET", box=box))
    return {one["Dev_GID"]: one["Host_Port#"] for one in listed if one.get("dev_type") == "GPU" and "Host_Port#" in one}


def result(reply: Reply | None) -> Any:
    assert reply is not None
    return json.loads(reply.body)["result"]


# -- what was recorded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", RECORDED["sessions"], ids=lambda session: session["source"].rsplit("/", 1)[1])
def test_a_recorded_session_is_answered_as_it_was(session: dict[str, Any]) -> None:
    emulator = boxes()
    by_number = list(emulator.boxes.values())
    for number, said in session["answers"].items():
        habits = by_number[int(number)].behaviour
        habits.options = habits.options.model_copy(update={"answers": said})
    first = session["steps"][0]["inventory"]
    for box in by_number:
        for device in box.devices:
            port = int(first[f"{box.number}-{box.gids[device.name]}"])
            emulator.rack.detach(device.name)
            emulator.rack.attach(device.name, {0: "hostA", 48: "hostB"}[port])
    uuids = {
        one["OB_GPU_GUID"]
        for number in (0, 1)
        for one in records(ask(emulator, "GET", box=number))
        if "dev_type" in one
    }
    for step in session["steps"]:
        if "inventory" in step:
            now = {f"{number}-{gid}": port for number in (0, 1) for gid, port in held(emulator, number).items()}
            assert now == step["inventory"]
            continue
        number, _, gid = step["move"].partition("-")
        assert result(ask(emulator, "DELETE", detach(gid), box=int(number))) == [True]
        assert result(ask(emulator, "POST", attach(gid, step["to"]), box=int(number))) == [step["answer"]]
        listed = records(ask(emulator, "GET", box=int(number)))
        (device,) = (one for one in listed if one.get("Dev_GID") == gid)
        (port,) = (one for one in listed if one.get("Port#") == device["Host_Port#"])
        assert port["Port_GID"] == step["to"]
        assert device["OB_GPU_GUID"] in uuids
    assert emulator.violations == []


def test_bodies_and_answers_are_as_they_were_logged() -> None:
    emulator = boxes()
    bodies = RECORDED["request_bodies"]
    reply = ask(emulator, "DELETE", bodies["detach"])
    assert reply is not None
    assert reply.body.strip() == RECORDED["detach_answer"]["text"]
    assert reply.headers["Content-Type"] == "text/plain"
    assert result(ask(emulator, "POST", bodies["attach"])) == [True]
    assert held(emulator)["001300"] == "48"


# p5, median, p95 of the recordings, in seconds
QUANTILES = {
    ("detach", "true"): (5.2, 6.5, 9.0),
    ("attach", "true"): (7.7, 9.0, 11.3),
    ("attach", "false"): (14, 15, 16),
    ("read_back", ""): (4, 5, 6),
    ("two boxes", ""): (1.4, 3.0, 5.2),
    ("move", ""): (15.0, 21.0, 24.2),
}


@pytest.fixture(scope="module")
def emulated() -> Mapping[tuple[str, str], list[float]]:
    """Seconds of 1,200 moves with their reads, by operation and answer, in 75 sessions; emulated without waiting."""
    found: dict[tuple[str, str], list[float]] = {key: [] for key in QUANTILES}
    all_boxes = [boxes(answers="recorded", seed=seed) for seed in range(75)]
    for number, emulator in product(range(16), all_boxes):
        box, port = number % 2, ("00h", "30h")[number // 8]
        gid = ("000500", "000C00", "001300", "001800")[number // 2 % 4]
        emulator.timed_operations.clear()
        for method, body in (("DELETE", detach(gid)), ("POST", attach(gid, port)), ("GET", ""), ("GET", "")):
            ask(emulator, method, body, box=box)
        ask(emulator, "GET", box=1 - box)
        first, second, third, *both = emulator.timed_operations
        found["detach", "true"].append(first.seconds)
        found["attach", second.answer].append(second.seconds)
        found["read_back", ""].append(third.seconds)
        found["two boxes", ""].append(max(one.seconds for one in both))
        found["move", ""].append(first.seconds + second.seconds)
    assert not any(emulator.violations for emulator in all_boxes)
    return found


@pytest.mark.parametrize("operation", QUANTILES, ids=str)
def test_times_are_distributed_as_the_recorded_ones(
    operation: tuple[str, str], emulated: Mapping[tuple[str, str], list[float]]
) -> None:
    found = np.quantile(emulated[operation], (0.05, 0.5, 0.95))
    assert found == pytest.approx(QUANTILES[operation], abs=1.0)
    assert found[1] == pytest.approx(QUANTILES[operation][1], abs=0.6)


@pytest.mark.parametrize(("operation", "answer"), [("attach", "true"), ("attach", "false"), ("read_back", "")])
def test_no_test_tells_emulated_times_from_recorded_ones(operation: Operation, answer: str) -> None:
    random = Random(1)
    options = BoxOptions(answers=answer or "true")  # type: ignore[arg-type]
    fresh = (BoxBehaviour(options.model_copy(update={"seed": seed}), seed % 2) for seed in range(500))
    drawn = [one.draw_attach()[1] if operation == "attach" else one.draw_duration_s(operation) for one in fresh]
    logged = [int(random.random() + each) for each in drawn]  # the difference of two times printed in whole seconds
    recorded = read_published_times("h3").select_seconds(operation, answer=answer)
    assert scipy.stats.ks_2samp(logged, recorded).pvalue > 0.05


def test_a_box_says_the_same_for_a_long_time(emulated: Mapping[tuple[str, str], list[float]]) -> None:
    said = {answer: len(emulated["attach", answer]) for answer in ("true", "false")}
    assert said["true"] / sum(said.values()) == pytest.approx(55 / 203, abs=0.06)
    emulator = boxes(answers="recorded", seed=5)
    told = []
    for number in range(600):
        ask(emulator, "DELETE", detach("000500"))
        told.append(result(ask(emulator, "POST", attach("000500", ("00h", "30h")[number % 2]))))
    changes = sum(one != other for one, other in pairwise(told))
    assert 0 < changes < 0.15 * len(told)
    assert {gid for gid, port in held(emulator).items() if port == "48"} >= {"000500"}


def test_lists_are_wrong_as_often_as_recorded_and_right_at_the_next_read() -> None:
    emulator = boxes(disturbed="always")
    right = {"000500": "0", "000C00": "48", "001300": "0", "001800": "48"}
    kinds: Counter[str] = Counter()
    wrong_before = False
    for _ in range(5000):
        reply = ask(emulator, "GET")
        if reply is None or reply.raw:
            kinds["eof" if reply is None else "shell"] += 1
            assert reply is None or "syntax error" in reply.raw
            wrong_before = False
            continue
        found = held_of(reply)
        wrong = found != right
        assert not (wrong and wrong_before)
        wrong_before = wrong
        if wrong:
            lacking = right.keys() - found.keys()
            assert all(lacked in ({"000500", "001300"}, {"000C00", "001800"}) for lacked in [lacking] if lacking)
            moved = [gid for gid in found if found[gid] != right[gid]]
            kinds["lacking" if lacking else {1: "more", 2: "swapped"}[len(moved)]] += 1
    for kind, count in (WRONG_LIST_COUNTS | {"eof": 4, "shell": 1}).items():
        assert kinds[kind] / 5000 == pytest.approx(count / RECORDED_READS, abs=0.007), kinds
    assert emulator.rack.list_free_devices() == []


def held_of(reply: Reply) -> dict[str, str]:
    return {one["Dev_GID"]: one["Host_Port#"] for one in records(reply) if "dev_type" in one}


# -- on the wire ---------------------------------------------------------------------------------------------------------


def over_http(url: str, method: str, body: str = "", timeout: float = 10) -> str:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    connection.request(method, R if method == "GET" else A, body or None, TEXT if body else {})
    try:
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_a_read_waits_for_the_attach_and_another_box_does_not() -> None:
    emulator = boxes(factor=0.03, answers="false")
    with ControlPlaneServer(emulator) as server:
        one, two = server.urls.values()
        assert one != two
        assert one.startswith("http://")
        over_http(one, "DELETE", detach("000500"))
        began = time.monotonic()
        attaching = threading.Thread(target=over_http, args=(one, "POST", attach("000500", "30h")))
        attaching.start()
        while not emulator.boxes["drawer1"].is_busy:
            time.sleep(0.001)
        records(Reply(200, over_http(two, "GET")))
        elsewhere_s = time.monotonic() - began
        listed = records(Reply(200, over_http(one, "GET")))
        attaching.join()
        attach_s = next(took.seconds for took in emulator.timed_operations if took.operation == "attach") * 0.03
    assert time.monotonic() - began > attach_s > elsewhere_s
    assert next(record for record in listed if record.get("Dev_GID") == "000500")["Host_Port#"] == "48"
    assert emulator.violations == []


def test_the_bytes_of_the_recorded_client_are_answered() -> None:
    """As the standard library of Go writes the requests of that client."""
    agent = "User-Agent: Go-http-client/1.1"
    texts = [
        f"GET {R} HTTP/1.1\r\nHost: box\r\n{agent}\r\nAccept-Encoding: gzip\r\n\r\n",
        *(
            f"{method} {A} HTTP/1.1\r\nHost: box\r\n{agent}\r\nContent-Length: {len(body)}\r\n"
            f"Content-Type: text/plain\r\nAccept-Encoding: gzip\r\n\r\n{body}"
            for method, body in (
                ("DELETE", RECORDED["request_bodies"]["detach"]),
                ("POST", RECORDED["request_bodies"]["attach"]),
            )
        ),
    ]
    emulator = boxes()
    with (
        ControlPlaneServer(emulator) as server,
        socket.create_connection(urlsplit(server.url).netloc.split(":")) as wire,
    ):  # type: ignore[arg-type]
        for text in texts:
            wire.sendall(text.encode())
            answer = http.client.HTTPResponse(wire)
            answer.begin()
            assert answer.getheader("Content-Encoding") is None
            assert json.loads(answer.read())
    assert emulator.violations == []
    assert held(emulator)["001300"] == "48"


def test_an_attach_whose_client_is_gone_is_finished() -> None:
    emulator = boxes(factor=0.02)
    with ControlPlaneServer(emulator) as server:
        url = server.urls["drawer2"]
        over_http(url, "DELETE", detach("001800"))
        with pytest.raises(TimeoutError):
            over_http(url, "POST", attach("001800", "00h"), timeout=0.02)
        listed = records(Reply(200, over_http(url, "GET")))
    assert next(record for record in listed if record.get("Dev_GID") == "001800")["Host_Port#"] == "0"


def test_two_clients_that_poll_get_wrong_lists_and_one_does_not() -> None:
    def poll(reads: int) -> None:
        for _ in range(reads):
            try:
                seen.append(over_http(server.url, "GET"))
            except (http.client.HTTPException, OSError) as error:
                seen.append(type(error).__name__)

    seen: list[str] = []
    emulator = boxes(disturbed="overlap", rate=5.0, factor=0.0003)
    with ControlPlaneServer(emulator) as server:
        poll(60)
        assert len(set(seen)) == 1
        pollers = [threading.Thread(target=poll, args=(60,)) for _ in range(2)]
        for poller in pollers:
            poller.start()
        for poller in pollers:
            poller.join()
    assert len(set(seen)) > 2
    assert seen.count(seen[0]) > len(seen) / 2
    assert emulator.violations == []


def test_an_answer_to_an_attach_that_breaks_off_says_nothing_of_what_happened() -> None:
    emulator = boxes(disturbed="always", rate=251.0)
    happened = []
    for number in range(20):
        gid, box = ("000500", "000C00", "001300", "001800")[number % 4], number % 2
        device = next(name for name, one in emulator.boxes[f"drawer{box + 1}"].gids.items() if one == gid)
        if emulator.rack.devices[device].attached_to:
            ask(emulator, "DELETE", detach(gid), box=box)
        reply = ask(emulator, "POST", attach(gid, "30h"), box=box)
        assert reply is not None
        assert reply.raw
        happened.append(emulator.rack.devices[device].attached_to)
    assert set(happened) == {None, "hostB"}


# -- strict --------------------------------------------------------------------------------------------------------------

NEVER_SENT: dict[str, Callable[[EmulatedBoxes], Reply | None]] = {
    "another method": lambda d: ask(d, "PATCH", detach("000500")),
    "another path": lambda d: ask(d, "GET", path=f"{P}/resources/"),
    "Redfish": lambda d: ask(d, "GET", path="/redfish/v1"),
    "a query": lambda d: d.answer(HttpRequest("GET", R, {"all": "1"}, {}, None, "", part="drawer1")),
    "a read with a body": lambda d: ask(d, "GET", "{}", path=R),
    "a read with a header": lambda d: ask(d, "GET", Authorization="Basic eDp5"),
    "JSON as such": lambda d: ask(d, "DELETE", detach("000500"), **{"Content-Type": "application/json"}),
    "a charset": lambda d: ask(d, "DELETE", detach("000500"), **{"Content-Type": "text/plain; charset=utf-8"}),
    "no JSON": lambda d: ask(d, "DELETE", "gep=0"),
    "a list": lambda d: ask(d, "DELETE", json.dumps([{"gep": "0", "dev_gid": "000500"}])),
    "a number": lambda d: ask(d, "DELETE", json.dumps({"gep": 0, "dev_gid": "000500"})),
    "a detach with a port": lambda d: ask(d, "DELETE", attach("000500", "00h")),
    "an attach without a port": lambda d: ask(d, "POST", detach("000500")),
    "several devices": lambda d: ask(d, "DELETE", json.dumps({"gep": "0", "dev_gid": ["000500", "000C00"]})),
    "another gep": lambda d: ask(d, "DELETE", json.dumps({"gep": "1", "dev_gid": "000500"})),
    "the box in the id": lambda d: ask(d, "DELETE", detach("0-000500")),
    "lower case": lambda d: ask(d, "DELETE", detach("000c00")),
    "Port# in place of Port_GID": lambda d: ask(d, "POST", attach("000500", "48")),
    "a key more": lambda d: ask(d, "DELETE", json.dumps({"gep": "0", "dev_gid": "000500", "force": "1"})),
    "another order": lambda d: ask(d, "DELETE", json.dumps({"dev_gid": "000500", "gep": "0"})),
    "a device that is not there": lambda d: ask(d, "DELETE", detach("00AA00")),
    "a port that is not there": lambda d: (
        ask(d, "DELETE", detach("000500")) and ask(d, "POST", attach("000500", "FFh"))
    ),
    "an attach of a held device": lambda d: ask(d, "POST", attach("000500", "30h")),
    "a detach of a free device": lambda d: ask(d, "DELETE", detach("000500")) and ask(d, "DELETE", detach("000500")),
}


@pytest.mark.parametrize("name", NEVER_SENT)
def test_what_no_client_ever_sent_is_refused_and_noted(name: str) -> None:
    emulator = boxes(refusal="status")
    before = {one.name: one.attached_to for one in emulator.rack.devices.values()}
    reply = NEVER_SENT[name](emulator)
    assert reply is not None
    assert reply.status >= 400
    assert len(emulator.violations) == 1
    changed = {one.name for one in emulator.rack.devices.values() if one.attached_to != before[one.name]}
    assert changed <= {"gpu1"}


def test_two_allocations_at_once_are_noted() -> None:
    emulator = boxes(factor=0.01)
    boxes_at_work = [
        threading.Thread(target=ask, args=(emulator, "DELETE", detach("000500")), kwargs={"box": box}) for box in (0, 1)
    ]
    for thread in boxes_at_work:
        thread.start()
    while not all(box.is_busy for box in emulator.boxes.values()):
        time.sleep(0.001)
    assert emulator.violations == []
    ask(emulator, "DELETE", detach("000C00"))
    for thread in boxes_at_work:
        thread.join()
    assert ["is running on this box" in one for one in emulator.violations] == [True]
    assert len(emulator.rack.list_free_devices()) == 3


# -- what nobody has published -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("free_port", "shown"), [("empty", ""), ("no_key", None), ("no_record", None), ("dash", "-")])
def test_a_free_device_is_shown_in_every_conceivable_way(free_port: str, shown: str | None) -> None:
    emulator = boxes(free_port=free_port)
    ask(emulator, "DELETE", detach("000C00"))
    listed = records(ask(emulator, "GET"))
    found = [record.get("Host_Port#") for record in listed if record.get("Dev_GID") == "000C00"]
    assert found == ([] if free_port == "no_record" else [shown])


@pytest.mark.parametrize(
    ("refusal", "status", "body"),
    [
        ("false", 200, "[ false ]"),
        ("true", 200, "[ true ]"),
        ("empty", 200, "[]"),
        ("status", 409, ""),
        ("text", 200, "sh:"),
    ],
)
def test_what_cannot_be_done_is_answered_in_every_conceivable_way(refusal: str, status: int, body: str) -> None:
    reply = ask(boxes(refusal=refusal), "POST", attach("000500", "30h"))
    assert reply is not None
    assert reply.status == status
    assert body in reply.body


@pytest.mark.parametrize("limit", ["devices_max", "hosts_max"])
def test_a_box_may_have_limits_and_says_no_to_what_is_beyond(limit: str) -> None:
    emulator = boxes(attached="none", refusal="status", **{limit: 1})
    assert result(ask(emulator, "POST", attach("000500", "00h"))) == [True]
    beyond = ("000C00", "00h") if limit == "devices_max" else ("000C00", "30h")
    assert ask(emulator, "POST", attach(*beyond)).status == 409  # type: ignore[union-attr]
    assert len(emulator.rack.list_free_devices()) == 7
    assert result(ask(emulator, "POST", attach(*beyond), box=1)) == [True]
    assert emulator.violations == []


def test_a_box_can_number_its_devices_anew() -> None:
    emulator = boxes(renumber_after=2)

    def uuids() -> dict[str, str]:
        return {one["Dev_GID"]: one["OB_GPU_GUID"] for one in records(ask(emulator, "GET")) if "dev_type" in one}

    before = uuids()
    ask(emulator, "DELETE", detach("000C00"))
    ask(emulator, "POST", attach("000C00", "00h"))
    assert uuids().keys() == {"000500", "001A00", "002F00", "004200"}
    assert set(uuids().values()) == set(before.values())
    emulator.boxes["drawer1"].renumber_devices()
    assert uuids().keys() == before.keys()
    assert uuids() != before


def test_status_and_strange_records_are_switches() -> None:
    assert ask(boxes(status=500), "GET").status == 500  # type: ignore[union-attr]
    emulator = boxes(strange=True)
    listed = records(ask(emulator, "GET"))
    assert listed != records(ask(emulator, "GET"))
    assert {record.get("dev_type") for record in listed} == {None, "GPU", "x_unknown"}


def test_what_does_not_fit_in_a_box_is_no_box() -> None:
    with pytest.raises(ValueError, match="contain only GPUs"):
        open_emulator(build_rack(["host1"], [("nvme", "ssd", 1)]))
    with pytest.raises(ValueError, match="8 host ports"):
        open_emulator(build_rack([f"host{n}" for n in range(9)], [("gpu", "a100", 1)]))

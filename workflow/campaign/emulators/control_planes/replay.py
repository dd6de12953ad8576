"""Replay of a recorded control plane (`campaign fabric record`). Only recorded behaviour is replayed.

A change gets the recorded answer of the next change of its kind, and a read the answer that was recorded at that point. Names
that a client chooses differently from the recorded one, such as lease ids, are replaced in the answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from campaign.common.errors import ConfigError
from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply, WireSettings

SCHEMA_VERSION = "recording/1"
_MEMBER_TYPES = {"fabric": dict, "hosts": list, "pool": list, "login": bool, "exchanges": list}
_READ_METHODS = ("GET", "HEAD")


class ReplayedControlPlane:
    """Control plane that replays a recording; see `server.Emulator`.

    `urls` holds the addresses at which it is served, by their names in the recording.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.rack: Rack = build_rack(list(map(str, document["hosts"])), [])
        self._document = document
        self._exchanges = list(document["exchanges"])
        self.wire = WireSettings(parts=tuple(dict.fromkeys(exchange["at"] for exchange in self._exchanges)), tls=False)
        self.urls: Mapping[str, str] = {}
        self.unanswered: list[str] = []
        self._next_index = 0
        self._used: set[int] = set()
        self._current_names: dict[str, str] = {}

    def build_system_document(self, name: str, directory: Path) -> dict[str, Any]:
        """Build the system file of the recorded control plane.

        An arbitrary user name and password are written to a file in the same directory.
        """
        recording = self._document
        credentials = directory / "credentials"
        credentials.touch(0o600)
        credentials.write_text("user\npassword\n", encoding="utf-8")
        hosts = [{"name": host, "cores": 8, "memory_gib": 64} for host in recording["hosts"]]
        system_entries = {
            "name": name,
            "launcher": "local",
            "fabric": recording["fabric"],
            "hosts": hosts,
            "pool": recording["pool"],
        }
        system_document: dict[str, Any] = json.loads(self._apply_current_names(json.dumps(system_entries)))
        system_document["fabric"] |= {"credentials": {"file": str(credentials.resolve())}} if recording["login"] else {}
        system_document["fabric"]["tunnel"] = True
        return system_document

    def answer(self, request: HttpRequest) -> Reply | None:
        """Return the recorded answer to a request, or None if the recorded connection ended without one."""
        number = self._find_exchange(request)
        if number is None:
            self.unanswered.append(f"{request.method} {request.path}")
            return Reply(404, f"the recording has no {request.method} {request.path} at this point")
        exchange = self._exchanges[number]
        self._used.add(number)
        if request.method not in _READ_METHODS:
            self._next_index = number + 1
            self._current_names |= _find_renamed_words(exchange.get("sent"), request.body)
        if "lost" in exchange:
            return None
        headers = {name: self._apply_current_names(str(value)) for name, value in exchange.get("headers", {}).items()}
        if "answer" in exchange:
            headers.pop("content-type", None)
            return Reply(
                exchange["status"], json.loads(self._apply_current_names(json.dumps(exchange["answer"]))), headers
            )
        return Reply(exchange["status"], self._apply_current_names(exchange.get("answer_text", "")) or None, headers)

    def _find_exchange(self, request: HttpRequest) -> int | None:
        """Return the number of the recorded exchange that matches a request, or None if none does.

        A change matches the next such exchange. A read matches the next one before the next change, or else the last one before
        it.
        """
        matching_numbers = [
            number for number, exchange in enumerate(self._exchanges) if self._matches_request(exchange, request)
        ]
        if request.method not in _READ_METHODS:
            return next((number for number in matching_numbers if number >= self._next_index), None)
        change = next(
            (n for n in range(self._next_index, len(self._exchanges)) if self._is_change(n)), len(self._exchanges)
        )
        unused_numbers = [
            number for number in matching_numbers if self._next_index <= number < change and number not in self._used
        ]
        earlier_numbers = [number for number in matching_numbers if number < change]
        return unused_numbers[0] if unused_numbers else earlier_numbers[-1] if earlier_numbers else None

    def _is_change(self, number: int) -> bool:
        """Return True if the recorded exchange is a change."""
        return str(self._exchanges[number]["ask"]).partition(" ")[0] not in _READ_METHODS

    def _matches_request(self, exchange: Mapping[str, Any], request: HttpRequest) -> bool:
        """Return True if the exchange has the part, method, path and query of the request."""
        method, _, path = str(exchange["ask"]).partition(" ")
        if (exchange["at"], method) != (request.part, request.method):
            return False
        query = {name: self._apply_current_names(str(value)) for name, value in exchange.get("query", {}).items()}
        return self._apply_current_names(path) == unquote(request.path) and query == dict(request.query)

    def _apply_current_names(self, text: str) -> str:
        """Replace recorded addresses and names in a text with the current ones."""
        for recorded_name, current_name in {**self._current_names, **self.urls}.items():
            text = text.replace(recorded_name, current_name)
        return text


def _find_renamed_words(recorded_body: Any, sent_body: Any) -> dict[str, str]:
    """Return the words that a client sends instead of the recorded ones, by recorded word, longest first."""
    pairs = dict(_pair_texts(recorded_body, sent_body))
    current_by_recorded = {
        recorded_word: current_word
        for recorded_word, current_word in pairs.items()
        if recorded_word != current_word and len(recorded_word) > 3
    }
    return dict(sorted(current_by_recorded.items(), key=lambda pair: -len(pair[0])))


def _pair_texts(recorded_value: Any, sent_value: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs of recorded and sent texts at the same position."""
    if isinstance(recorded_value, str) and isinstance(sent_value, str):
        yield recorded_value, sent_value
    elif isinstance(recorded_value, Mapping) and isinstance(sent_value, Mapping):
        for name in recorded_value.keys() & sent_value.keys():
            yield from _pair_texts(recorded_value[name], sent_value[name])
    elif isinstance(recorded_value, list) and isinstance(sent_value, list):
        for recorded_item, sent_item in zip(recorded_value, sent_value, strict=False):
            yield from _pair_texts(recorded_item, sent_item)


def _describe_problem(document: Any) -> str:
    """Return the reason why a document is not a valid recording, such as a cut or an edit; an empty string if it is valid."""
    if not isinstance(document, Mapping) or "schema_version" not in document:
        return "`schema_version` is missing"
    if document["schema_version"] != SCHEMA_VERSION:
        return f"this version cannot read `schema_version` {document['schema_version']!r}, only {SCHEMA_VERSION}"
    for name, kind in _MEMBER_TYPES.items():
        if not isinstance(document.get(name), kind):
            return f"`{name}` is missing, or is not a {kind.__name__}"
    if not document["exchanges"]:
        return "`exchanges` is empty"
    for number, exchange in enumerate(document["exchanges"], 1):
        if not isinstance(exchange, dict) or not {"at", "ask"} <= exchange.keys():
            return f"exchange {number} lacks `at` or `ask`"
        if "lost" not in exchange and type(exchange.get("status")) is not int:
            return f"exchange {number} ({exchange['ask']}) has neither a number as `status` nor `lost`"
        for name in {"query", "headers"} & exchange.keys():
            if not isinstance(exchange[name], dict):
                return f"`{name}` of exchange {number} ({exchange['ask']}) is not a dict"
    return ""


def open_replay_server(path: Path, port: int = 0) -> tuple[ControlPlaneServer, ReplayedControlPlane]:
    """Open a server that replays a recording, and return both. Raises ConfigError if the file is not a recording."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; use a recording from 'campaign fabric record'") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: this is not a recording from 'campaign fabric record': {error}") from error
    if problem := _describe_problem(document):
        remedy = "repeat 'campaign fabric record', or repair the file"
        raise ConfigError(f"{path}: the recording is incomplete or invalid: {problem}; {remedy}")
    replay = ReplayedControlPlane(document)
    server = ControlPlaneServer(replay, port=port)
    replay.urls = dict(server.urls)
    return server, replay

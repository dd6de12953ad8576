"""Replay of a recorded control plane (`campaign fabric record`). Nothing is emulated that was not recorded.

A change gets the recorded answer of the next change of its kind, and a read the answer that was recorded at that point. Names
that
a client chooses differently from the recorded one, such as lease ids, are replaced in the answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from campaign.common.errors import ConfigError
from campaign.emulators.control_planes.hardware import Rack, rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply, Wire

SCHEMA = "recording/1"
_MEMBERS = {"fabric": dict, "hosts": list, "pool": list, "login": bool, "exchanges": list}
_READS = ("GET", "HEAD")


class ReplayedControlPlane:
    """Control plane that replays a recording; see `server.Emulator`.

    `urls` holds the addresses at which it is served, by their names in the recording.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.rack: Rack = rack(list(map(str, document["hosts"])), [])
        self._document = document
        self._exchanges = list(document["exchanges"])
        self.wire = Wire(parts=tuple(dict.fromkeys(one["at"] for one in self._exchanges)), tls=False)
        self.urls: Mapping[str, str] = {}
        self.missed: list[str] = []
        self._next = 0
        self._used: set[int] = set()
        self._called: dict[str, str] = {}

    def system(self, name: str, directory: Path) -> dict[str, Any]:
        """Build the system file of the recorded control plane.

        A user and a password, which may be any, are written to a file beside it.
        """
        found = self._document
        credentials = directory / "credentials"
        credentials.touch(0o600)
        credentials.write_text("user\npassword\n", encoding="utf-8")
        hosts = [{"name": host, "cores": 8, "memory_gib": 64} for host in found["hosts"]]
        described = {
            "name": name,
            "launcher": "local",
            "fabric": found["fabric"],
            "hosts": hosts,
            "pool": found["pool"],
        }
        whole: dict[str, Any] = json.loads(self._as_asked(json.dumps(described)))
        whole["fabric"] |= {"credentials": {"file": str(credentials.resolve())}} if found["login"] else {}
        whole["fabric"]["tunnel"] = True
        return whole

    def answer(self, asked: HttpRequest) -> Reply | None:
        """Return the recorded answer to a request, or None if the recorded connection ended without one."""
        number = self._found(asked)
        if number is None:
            self.missed.append(f"{asked.method} {asked.path}")
            return Reply(404, f"the recording has no {asked.method} {asked.path} here")
        one = self._exchanges[number]
        self._used.add(number)
        if asked.method not in _READS:
            self._next = number + 1
            self._called |= _differing(one.get("sent"), asked.body)
        if "lost" in one:
            return None
        headers = {name: self._as_asked(str(value)) for name, value in one.get("headers", {}).items()}
        if "answer" in one:
            headers.pop("content-type", None)
            return Reply(one["status"], json.loads(self._as_asked(json.dumps(one["answer"]))), headers)
        return Reply(one["status"], self._as_asked(one.get("answer_text", "")) or None, headers)

    def _found(self, asked: HttpRequest) -> int | None:
        """Return the number of the recorded exchange that matches a request, or None.

        A change matches the next such exchange. A read matches the next one before the next change, or else the last one before
        it.
        """
        matching = [number for number, one in enumerate(self._exchanges) if self._is(one, asked)]
        if asked.method not in _READS:
            return next((number for number in matching if number >= self._next), None)
        change = next((n for n in range(self._next, len(self._exchanges)) if self._changes(n)), len(self._exchanges))
        fresh = [number for number in matching if self._next <= number < change and number not in self._used]
        before = [number for number in matching if number < change]
        return fresh[0] if fresh else before[-1] if before else None

    def _changes(self, number: int) -> bool:
        """Return True if the recorded exchange is a change."""
        return str(self._exchanges[number]["ask"]).partition(" ")[0] not in _READS

    def _is(self, one: Mapping[str, Any], asked: HttpRequest) -> bool:
        """Return True if the exchange has the part, method, path and query of the request."""
        method, _, path = str(one["ask"]).partition(" ")
        if (one["at"], method) != (asked.part, asked.method):
            return False
        query = {name: self._as_asked(str(value)) for name, value in one.get("query", {}).items()}
        return self._as_asked(path) == unquote(asked.path) and query == dict(asked.query)

    def _as_asked(self, text: str) -> str:
        """Replace recorded addresses and names in a text by the current ones."""
        for theirs, ours in {**self._called, **self.urls}.items():
            text = text.replace(theirs, ours)
        return text


def _differing(recorded: Any, sent: Any) -> dict[str, str]:
    """Return the words that a client sends instead of the recorded ones, by recorded word, longest first."""
    pairs = dict(_pairs(recorded, sent))
    found = {theirs: ours for theirs, ours in pairs.items() if theirs != ours and len(theirs) > 3}
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


def _pairs(recorded: Any, sent: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs of recorded and sent texts at the same position."""
    if isinstance(recorded, str) and isinstance(sent, str):
        yield recorded, sent
    elif isinstance(recorded, Mapping) and isinstance(sent, Mapping):
        for name in recorded.keys() & sent.keys():
            yield from _pairs(recorded[name], sent[name])
    elif isinstance(recorded, list) and isinstance(sent, list):
        for one, other in zip(recorded, sent, strict=False):
            yield from _pairs(one, other)


def _problem(document: Any) -> str:
    """Describe why a document is not a valid recording, such as one that was cut off or edited. Returns "" if it is valid."""
    if not isinstance(document, Mapping) or "schema_version" not in document:
        return "it has no `schema_version`"
    if document["schema_version"] != SCHEMA:
        return f"`schema_version` {document['schema_version']!r} is not read by this version, which reads {SCHEMA}"
    for name, kind in _MEMBERS.items():
        if not isinstance(document.get(name), kind):
            return f"`{name}` is missing, or no {kind.__name__}"
    if not document["exchanges"]:
        return "`exchanges` is empty"
    for number, one in enumerate(document["exchanges"], 1):
        if not isinstance(one, dict) or not {"at", "ask"} <= one.keys():
            return f"exchange {number} needs `at` and `ask`"
        if "lost" not in one and type(one.get("status")) is not int:
            return f"exchange {number} ({one['ask']}) needs a number as `status`, or `lost`"
        for name in {"query", "headers"} & one.keys():
            if not isinstance(one[name], dict):
                return f"`{name}` of exchange {number} ({one['ask']}) is no dict"
    return ""


def served(path: Path, port: int = 0) -> tuple[ControlPlaneServer, ReplayedControlPlane]:
    """Open a server that replays a recording, and return both. Raises ConfigError if the file is not a recording."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of 'campaign fabric record'") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not a recording of 'campaign fabric record': {error}") from error
    if problem := _problem(document):
        words = "record it again, or repair it"
        raise ConfigError(f"{path}: not a whole recording of 'campaign fabric record': {problem}; {words}")
    replay = ReplayedControlPlane(document)
    server = ControlPlaneServer(replay, port=port)
    replay.urls = dict(server.urls)
    return server, replay

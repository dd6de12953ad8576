"""One box of memory modules (Falcon C5022): reading it, and one step of a module's life at a time.

A module is composed at its device port, assigned to a host's port, unassigned, and deleted again. Source: the backend for this box
in a public fork of Seagate/cfm (package pkg/backend; its HTTP layer as in Seagate/cfm@012ae65). No answer of a real box is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from campaign.fabrics.dialects.h3.box import AnyBox
from campaign.fabrics.dialects.h3.listing import NOBODY
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation
from campaign.fabrics.http.json_values import at, listing, mappings, number, text
from campaign.fabrics.http.response import Answer

SWITCHES = "/h3api/v1/Switches"
LANES_MIN = 8
_JSON = {"Content-Type": "application/json; charset=UTF-8"}
_ENTRIES = {port: entry for entry, port in enumerate((*range(8), *range(13, 24), *range(29, 32)))}


@dataclass(frozen=True, slots=True)
class Module:
    """A memory module by its device port. state: 0 free, 1 composed, more: shared."""

    port: str
    capacity_gib: str
    state: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A composed module. host_port: that of the host that has it, None: nobody has."""

    id: str
    port: str
    host_port: str | None


@dataclass(frozen=True)
class Modules:
    """A box at one moment. hosts: ports that a host is on, with links that are wide enough."""

    modules: tuple[Module, ...]
    memories: tuple[Memory, ...]
    hosts: frozenset[str]

    def memory(self, port: str) -> Memory | None:
        return next((memory for memory in self.memories if memory.port == port), None)


def entry(port: str) -> int | None:
    """`EntryIdx` of a device port; None for a port that has none."""
    return _ENTRIES.get(int(port)) if port.isdecimal() else None


class MemoryBox(AnyBox[Modules]):
    """Everything is sent as its public client does: JSON with every request, `null` where there is nothing to say."""

    @cached_property
    def _switch(self) -> str:
        """Raises ProtocolViolation for a box that has other addresses; releases differ in them."""
        answer = self._asked("GET", SWITCHES)
        names = [each for each in listing(answer.body, "Switches") if isinstance(each, str)]
        if not names:
            raise ProtocolViolation(
                f"{self.name}: GET {self.client.base}{SWITCHES}: no switches ({answer.words()}); this release of the box has other "
                "addresses than those that are known"
            )
        return f"{SWITCHES}/{names[0]}"

    def _asked(self, method: str, path: str) -> Answer:
        with self.alone():
            return self.client.get(path, method=method, body=b"null", headers=_JSON)

    def _told(self, method: str, path: str) -> Answer:
        """Raises ProtocolViolation for what is no success."""
        answer = self._asked(method, path)
        if not answer.ok:
            raise ProtocolViolation(f"{self.name}: {method} {self.client.base}{path}: {answer.words()}")
        return answer

    def read_once(self) -> Modules:
        ports = mappings(self._told("POST", f"{self._switch}/Ports").body, "Ports")
        found = mappings(self._told("POST", f"{self._switch}/CXLDevices").body, "CXLDevices")
        mapped = at(self._told("GET", f"{self._switch}/VCSMapping").body, "VCSMapping")
        if not isinstance(mapped, Mapping):
            raise ProtocolViolation(f"{self.name}: {self.client.base}{self._switch}/VCSMapping: no object `VCSMapping`")
        hosts = (port for port in ports if port.get("PortType") == "USP" and _present(port.get("HostPlatformDetected")))
        return Modules(
            tuple(
                Module(port, text(one, "MemoryCapacity") or "", int(state))
                for one in found
                if (port := text(one, "PortNumber")) and (state := number(one.get("CompositionState"))) is not None
            ),
            tuple(
                Memory(str(name), port, host if _present(host := at(one, "HostPort")) else None)
                for name, one in mapped.items()
                if (port := text(one, "DS"))
            ),
            frozenset(str(port.get("PortNumber")) for port in hosts if _lanes(port) >= LANES_MIN),
        )

    def compose(self, port: str) -> str:
        """Make a module a memory; gives its id. OutcomeUnknown: nothing is told, or not its id."""
        body = {"DSPort": port, "EntryIdx": str(entry(port)), "Operation": "compose"}
        answer = self._ordered("POST", "", body, {"MemoryId": "(given by the box)"})
        if (memory := text(answer.body, "MemoryId")) is None:
            raise OutcomeUnknown(f"{self.name}: compose: {answer.words()}")
        return memory

    def assign(self, memory: str, host_port: str) -> None:
        self._ordered("POST", "", {"USPort": host_port, "MemoryId": memory, "Operation": "assign"})

    def unassign(self, memory: str) -> None:
        self._ordered("DELETE", f"/{memory}", None)

    def delete(self, memory: str) -> None:
        self._ordered("POST", "", {"MemoryId": memory, "Operation": "delete"})

    def _ordered(self, method: str, below: str, body: Mapping[str, str] | None, assumed: Any = None) -> Answer:
        """One step. OutcomeUnknown: what it came to is to be read back."""
        path = f"{self._switch}/VCSMapping{below}"
        sent: Any = dict(body) if body is not None else b"null"
        with self.alone():
            answer = self.client.change(method, path, sent, headers=_JSON, assumed=assumed)
        if not answer.ok:
            raise OutcomeUnknown(f"{self.name}: {method} {self.client.base}{path}: {answer.words()}")
        return answer


def _present(told: Any) -> bool:
    return isinstance(told, str) and told.strip().lower() not in NOBODY


def _lanes(port: Mapping[str, Any]) -> int:
    told = str(port.get("LanesInUse"))
    return int(told) if told.isdecimal() else 0

"""One Matrix as it is talked to: a session by digest key, the envelope, and commits that are done by and by."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from campaign.errors import FabricError
from campaign.fabrics.dialects.liqid import parse
from campaign.fabrics.dialects.liqid.options import Options
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.login import Login, login, needed_login

BASE = "/liqid/api/v2"
_LOGINS = 6
"""Processes that share a label end each other's sessions: whoever finds his gone begins a new one, this often for one request."""
_LOGIN_AGAIN_S = 0.05
_SILENT_POLLS = 5
_TAKEN = re.compile(r"exist|in use|duplicate", re.IGNORECASE)


class Refused(FabricError):
    """The Matrix answered that it does not do this; this request changed nothing."""

    @property
    def busy(self) -> bool:
        return parse.is_busy(str(self))

    def names(self, number: object) -> bool:
        """True when the refusal is about the machine or group of this number."""
        return parse.number(number) in parse.numbers(str(self).partition(": ")[2])


@dataclass(frozen=True, slots=True)
class Place:
    """Where this Matrix is: what never changes, and is part of many requests."""

    coordinates: Any
    fabr_id: int


class Api:
    """See the module. Every method raises FabricError; `change` raises Refused or OutcomeUnknown."""

    def __init__(self, options: Options) -> None:
        self.client = Client(options)
        self._options = options
        self._place: Place | None = None
        self._base = "" if self.client.base.endswith(BASE) else BASE

    def get(self, path: str, **params: Any) -> tuple[Any, ...]:
        """The data of a list. Raises Refused where the Matrix says no, ProtocolViolation when it is no list."""
        answer = self._sent(lambda: self.client.get(f"{self._base}/{path}", params or None))
        found = parse.envelope(answer.body)
        if found is not None and not found.ok:
            raise Refused(f"GET {path}: {found.words}")
        if answer.status >= 500:
            raise FabricError(f"GET {path}: {answer.words()}")
        if not answer.ok or found is None:
            raise ProtocolViolation(f"GET {path}: {answer.words()}")
        return found.data

    def place(self) -> Place:
        """Read once."""
        if self._place is None:
            coordinates = next(iter(self.get("coordinates")), {"rack": 0, "shelf": 0, "node": 0})
            self._place = Place(coordinates, parse.first_number(self.get("fabric/id")) or 1)
        return self._place

    def change(self, method: str, path: str, body: Any = None) -> tuple[Any, ...]:
        """Ask for a change and wait until it is done; gives whatever the answer says. In a rehearsal nothing is waited for."""
        answer = self._sent(lambda: self.client.change(method, f"{self._base}/{path}", body))
        what = f"{method} {path}"
        if answer.status >= 500:
            raise OutcomeUnknown(f"{what}: {answer.words()}")
        found = parse.envelope(answer.body)
        if found is not None and not found.ok:
            raise Refused(f"{what}: {found.words}")
        if not answer.ok:
            raise Refused(f"{what}: {answer.words()}")
        data = () if found is None else found.data
        if answer.status == 202 and (href := parse.link_of(data)) is not None:
            self._wait(what, href)
        return data

    def quietly(self, method: str, path: str, body: Any = None) -> None:
        """Try a change that only tidies up: that it fails is nothing new."""
        try:
            self.change(method, path, body)
        except FabricError:
            return

    # -- sessions ----------------------------------------------------------------------------------------------------------

    def _sent(self, send: Callable[[], Answer]) -> Answer:
        if not self.client.authorization:
            self._login()
        answer = send()
        for turn in range(_LOGINS):
            if not _unknown_session(answer) or self.client.rehearses:
                return answer
            needed_login(self._options)
            self._pause(turn)
            self._login()
            answer = send()
        if _unknown_session(answer):
            raise FabricError(f"{self.client.base}: refused after a successful login ({answer.words()})")
        return answer

    def _pause(self, turn: int) -> None:
        """Not all at once: who else logs in with this label does so a moment earlier or later."""
        if turn:
            self.client.sleep(random.uniform(0, _LOGIN_AGAIN_S * 2**turn))

    def _login(self) -> None:
        """A new digest key; an older one of the same label ends with it."""
        found = login(self._options)
        if found is None or self.client.rehearses:
            return
        for turn in range(_LOGINS):
            self._pause(turn)
            words, key = self._digest(found)
            if key:
                self.client.authorization = {"X-API-Key": key}
                return
            if not _TAKEN.search(words):
                break
        raise FabricError(f"{self.client.base}: login as {found.user!r} ({self._options.label}): {words}")

    def _digest(self, found: Login) -> tuple[str, str]:
        """What the Matrix said, and the key; "" where it gave none."""
        self.client.authorization = {}
        self.client.hide(found.password)
        basic = base64.b64encode(f"{found.user}:{found.password}".encode()).decode()
        headers, path = {"Authorization": f"Basic {basic}"}, f"{self._base}/digest/{self._options.label}"
        with suppress(OutcomeUnknown):  # there may be none to delete: making the new one tells
            self.client.change("DELETE", path, headers=headers, secret=True)
        try:
            answer = self.client.change("POST", path, headers=headers, secret=True)
        except OutcomeUnknown as error:
            raise FabricError(f"{self.client.base}: login: {error}") from error
        made = parse.envelope(answer.body)
        key = next((parse.member(each, "digest_key") for each in made.data), None) if made else None
        words = answer.words() if made is None or made.ok else made.words
        return words, key if made is not None and made.ok and isinstance(key, str) else ""

    # -- by and by ---------------------------------------------------------------------------------------------------------

    def _wait(self, what: str, href: str) -> None:
        path = self._own(href)
        silent = 0
        while silent < _SILENT_POLLS:
            try:
                self.client.sleep(self._options.poll_s)
                answer = self.client.get(path)
            except FabricError as error:
                raise OutcomeUnknown(f"{what}: begun, and then: {error}") from error
            if answer.status == 404:
                return  # what is done is forgotten
            found = parse.envelope(answer.body)
            state = parse.state_of(found.data).upper() if found is not None else ""
            if state == "SUCCESS":
                return
            if state == "FAILURE":
                said = next((str(parse.member(each, "message") or "") for each in found.data), "") if found else ""
                raise Refused(f"{what}: failed: {said or 'no reason given'}")
            silent = 0 if state == "PENDING" else silent + 1
        raise OutcomeUnknown(f"{what}: begun, and {_SILENT_POLLS} answers did not say what came of it")

    def _own(self, href: str) -> str:
        """The link's path on this Matrix: wherever else it points, the session's key does not go there."""
        path = urlsplit(href).path
        if BASE in path:
            return self._base + path.partition(BASE)[2]
        return f"{self._base}/{path.lstrip('/')}"


def _unknown_session(answer: Answer) -> bool:
    found = parse.envelope(answer.body)
    return answer.status in (401, 403) or (found is not None and not found.ok and found.code == 401)

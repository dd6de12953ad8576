"""An answer of a control plane, whatever it is, or why there is none. HTML, bare numbers and nothing are answers, too. Pure.

The functions that read JSON take what is missing, or of another type than it should be, for nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from campaign.fabrics.errors import ProtocolViolation

DEPTH_MAX = 64
_DIGITS_MAX = 40


class Unanswered(Exception):
    """permanent: trying again would be the same. garbled: what came is not HTTP."""

    def __init__(self, message: str, *, garbled: bool = False, permanent: bool = False) -> None:
        super().__init__(message)
        self.garbled = garbled
        self.permanent = permanent


class Unsent(Unanswered):
    """Nothing of the request was sent."""


class Lost(Unanswered):
    """The request, or a part of it, was sent, and no whole answer came back."""


@dataclass(frozen=True, slots=True)
class Received:
    """An answer as it came."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. body: parsed JSON of any kind, else None; text: as it came (decoded with replacement).

    `repr` shows neither: they may have tokens in them. `scrub` takes what is secret out of a text (see `redaction`).
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: Any = field(repr=False)
    text: str = field(repr=False)
    url: str = ""
    scrub: Callable[[str], str] = field(default=str, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refusal(self) -> bool:
        """Whether the same request will be refused again: a status of 4xx, without those of somebody else's lock or of haste."""
        return 400 <= self.status < 500 and self.status not in (408, 409, 423, 425, 429)

    def header(self, name: str) -> str | None:
        """A header by its name in any case."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the service wants to be asked again; None where it does not say."""
        return retry_after_s(self.header("Retry-After") or "", time.time())

    def members(self) -> dict[str, Any]:
        """The body as a JSON object. Raises ProtocolViolation quoting what it is instead."""
        if not isinstance(self.body, dict):
            raise ProtocolViolation(f"{self.scrub(self.url)}: a JSON object was expected, got: {self.words()}")
        return self.body

    def words(self) -> str:
        """The answer in a few words, for messages: one printable line without secrets."""
        text = self.scrub(" ".join(self.scrub(self.text).split()))
        return f"HTTP {self.status} {printable(text)[:200] or '(empty)'}"


def joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name in lower case; those that stand more than once are joined by commas."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ", ".join(values) for name, values in found.items()}


def printable(text: str) -> str:
    """The text with lines, and without other characters that a terminal would obey."""
    return "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in text)


def parsed(content: bytes) -> tuple[Any, str]:
    """(JSON value, text) of a body; None for what is no JSON that can be worked on.

    That is also: NaN and infinities, numbers of more than 40 digits, nesting deeper than 64, text that has no UTF-8 form.
    """
    text = content.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_float, parse_int=_int)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None, text
    return (value if shallow(value) else None), text


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refused(text)


def _int(text: str) -> int:
    return int(text) if len(text) <= _DIGITS_MAX else _refused(text)


def shallow(value: Any) -> bool:
    """True for a JSON value that is not nested deeper than `DEPTH_MAX`."""
    level = [value]
    for _ in range(DEPTH_MAX):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [child for children in inner for child in children]
    return not level


def retry_after_s(text: str, now_s: float) -> float | None:
    """What a Retry-After header says, in seconds from now (Unix time); None for what is none. RFC 9110, 10.2.3."""
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError, OSError, IndexError, TypeError):
        return None


Json = Mapping[str, Any]


def at(body: Any, *names: str) -> Any:
    """The value at a path of names; None where there is none."""
    for name in names:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def mapping(body: Any, *names: str) -> Json:
    found = at(body, *names)
    return found if isinstance(found, Mapping) else {}


def listing(body: Any, *names: str) -> list[Any]:
    found = at(body, *names)
    return found if isinstance(found, list) else []


def mappings(body: Any, *names: str) -> list[Json]:
    """The objects in a list."""
    return [one for one in listing(body, *names) if isinstance(one, Mapping)]


def text(body: Any, *names: str) -> str | None:
    """A text that is not empty."""
    found = at(body, *names)
    return found if isinstance(found, str) and found else None


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

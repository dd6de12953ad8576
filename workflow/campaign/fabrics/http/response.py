"""Answers of a control plane, errors of requests without an answer, and lenient access to JSON. Pure.

HTML, bare numbers and empty bodies are also answers. The functions that read JSON treat a value that is missing or of an
unexpected type as absent.
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

MAX_DEPTH = 64
_MAX_DIGITS = 40


class ExchangeError(Exception):
    """Error for a request that got no complete answer.

    is_permanent: a retry would fail in the same way. is_invalid_http: the data received is not HTTP.
    """

    def __init__(self, message: str, *, is_invalid_http: bool = False, is_permanent: bool = False) -> None:
        """Create the error with a message and its properties."""
        super().__init__(message)
        self.is_invalid_http = is_invalid_http
        self.is_permanent = is_permanent


class RequestNotSentError(ExchangeError):
    """Error for a request that failed before any part of it was sent."""


class AnswerLostError(ExchangeError):
    """Error for a request that was sent at least in part but got no complete answer."""


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """HTTP answer as received, with undecoded headers and content."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Decoded HTTP answer of a control plane.

    `repr` shows neither headers nor body nor text, because they may contain tokens.

    Attributes:
        status: HTTP status code.
        headers: values by header name.
        body: parsed JSON of any type, or None if the text is not usable JSON.
        text: body as text, decoded with replacement characters.
        url: path that was requested.
        redact_secrets: function that masks secrets in a text (see `redaction`).
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: Any = field(repr=False)
    text: str = field(repr=False)
    url: str = ""
    redact_secrets: Callable[[str], str] = field(default=str, repr=False, compare=False)

    @property
    def is_success(self) -> bool:
        """True for a 2xx status."""
        return 200 <= self.status < 300

    @property
    def is_refusal(self) -> bool:
        """True for a 4xx status that a repeated request would get again, which excludes locks and rate limits."""
        return 400 <= self.status < 500 and self.status not in (408, 409, 423, 425, 429)

    def get_header(self, name: str) -> str | None:
        """Return the value of a header, or None if it is missing. The case of the name is ignored."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds to wait before a retry, from the Retry-After header, or None if the answer has no valid one."""
        return parse_retry_after(self.get_header("Retry-After") or "", time.time())

    def require_object(self) -> dict[str, Any]:
        """Return the JSON body of the answer as a dictionary.

        Raises ProtocolViolation, with a quote of the answer, if the body is of another type.
        """
        if not isinstance(self.body, dict):
            raise ProtocolViolation(
                f"{self.redact_secrets(self.url)}: the answer is not a JSON object: {self.summarize()}"
            )
        return self.body

    def summarize(self) -> str:
        """Summarize the answer in one printable line without secrets, for messages."""
        text = self.redact_secrets(" ".join(self.redact_secrets(self.text).split()))
        return f"HTTP {self.status} {make_printable(text)[:200] or '(empty)'}"


def merge_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Build a dictionary of headers with names in lower case. Values of repeated headers are joined by commas."""
    values_by_name: dict[str, list[str]] = {}
    for name, value in headers:
        values_by_name.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ", ".join(values) for name, values in values_by_name.items()}


def make_printable(text: str) -> str:
    """Replace every non-printable character, because a terminal might act on it. Line feeds are kept."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def parse_json(content: bytes) -> tuple[Any, str]:
    """Parse the body of an answer and return (JSON value, text). The value is None if the body is not usable JSON.

    NaN and infinities, numbers of more than 40 digits, nesting deeper than 64 levels, and text without a UTF-8 form are also
    considered unusable.
    """
    text = content.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text, parse_constant=_reject_number, parse_float=_parse_float, parse_int=_parse_int)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None, text
    return (value if is_shallow(value) else None), text


def _reject_number(text: str) -> Any:
    """Raise ValueError for a number that cannot be used, such as NaN."""
    raise ValueError(f"{text} is not valid JSON")


def _parse_float(text: str) -> float:
    """Convert a JSON number to float. Raises ValueError if it is not finite."""
    value = float(text)
    return value if math.isfinite(value) else _reject_number(text)


def _parse_int(text: str) -> int:
    """Convert a JSON integer to int. Raises ValueError if it has more than 40 digits."""
    return int(text) if len(text) <= _MAX_DIGITS else _reject_number(text)


def is_shallow(value: Any) -> bool:
    """Return True if a JSON value is nested at most `MAX_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [
            node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)
        ]
        level = [child for children in containers for child in children]
    return not level


def parse_retry_after(text: str, now_s: float) -> float | None:
    """Parse a Retry-After header into seconds from now (RFC 9110, 10.2.3). Return None if it is invalid.

    Args:
        text: value of the header, a number of seconds or a date.
        now_s: current time, in Unix seconds.
    """
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError, OSError, IndexError, TypeError):
        return None


Json = Mapping[str, Any]


def get_nested(body: Any, *names: str) -> Any:
    """Return the value at a path of keys in nested JSON objects, or None if there is none."""
    for name in names:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def get_mapping(body: Any, *names: str) -> Json:
    """Return the JSON object at a path of keys, or an empty one if there is none."""
    value = get_nested(body, *names)
    return value if isinstance(value, Mapping) else {}


def get_list(body: Any, *names: str) -> list[Any]:
    """Return the JSON list at a path of keys, or an empty one if there is none."""
    value = get_nested(body, *names)
    return value if isinstance(value, list) else []


def get_mappings(body: Any, *names: str) -> list[Json]:
    """Return the JSON objects in the list at a path of keys. Other members of the list are left out."""
    return [item for item in get_list(body, *names) if isinstance(item, Mapping)]


def get_text(body: Any, *names: str) -> str | None:
    """Return the text at a path of keys, or None if it is missing, empty or of another type."""
    value = get_nested(body, *names)
    return value if isinstance(value, str) and value else None


def to_float(value: Any) -> float | None:
    """Convert a JSON number to float, or return None for anything else, including booleans."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

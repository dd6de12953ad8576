"""Reading JSON that somebody else wrote: what is missing, or of another type than it should be, is nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

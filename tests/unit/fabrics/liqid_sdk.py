"""Liqid's public SDK as a judge: which requests there are, and what it makes of their bodies and answers.

Its shapes are facts, written down in `tests/data/fabrics/liqid/sdk.json` with their sources. The SDK itself may not be
redistributed, and no registry has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

SHAPES = json.loads((Path(__file__).parents[2] / "data" / "fabrics" / "liqid" / "sdk.json").read_text())
_TYPES: dict[str, type | tuple[type, ...]] = {"str": str, "hex": str, "int": int, "long": int, "float": (int, float)}
_TYPES["bool"] = bool


class Rejected(Exception):
    """The SDK ends with an exception here, or has no such request."""


def shapes_of(method: str, path: str) -> tuple[Any, Any]:
    """The types of a request's body and of what is in the answer's data; the path is below the base, without a query."""
    for pattern, (body, data) in SHAPES["requests"].items():
        asked, _, place = pattern.partition(" ")
        if asked == method and fnmatchcase(path, place) and path.count("/") == place.count("/"):
            return body, data
    raise Rejected(f"the SDK has no request {method} {path}")


def members_of(record: str) -> dict[str, Any]:
    """The members of a record and of what it extends, with their types."""
    own = dict(SHAPES["records"][record])
    above = own.pop("extends", None)
    return own if above is None else members_of(above) | own


def read(value: Any, shape: Any, where: str = "") -> Any:
    """What the SDK has of a value, and would send back: members that it does not know are dropped, missing ones are null."""
    if value is None:
        return [] if isinstance(shape, list) else None
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise Rejected(f"{where}: a list expected")
        return [read(each, shape[0], where) for each in value]
    if shape in SHAPES["words"]:
        if value not in SHAPES["words"][shape]:
            raise Rejected(f"{where}: {value!r} is no {shape}")
        return value
    if shape in SHAPES["records"]:
        if not isinstance(value, Mapping):
            raise Rejected(f"{where}: {shape} expected")
        return {name: read(value.get(name), of, f"{where}.{name}") for name, of in members_of(shape).items()}
    if shape == "hex-number":
        return _number(value)
    if not isinstance(value, _TYPES[shape]) or (isinstance(value, bool) and shape != "bool"):
        raise Rejected(f"{where}: {value!r} is no {shape}")
    if shape == "hex" and value != "n/a":
        try:
            int(value, 16)
        except ValueError:
            raise Rejected(f"{where}: {value!r} is no hexadecimal number") from None
    return value


def _number(value: Any) -> int:
    """0 for text that is no hexadecimal number, as the SDK makes of it."""
    if isinstance(value, str):
        try:
            return int(value, 16)
        except ValueError:
            return 0
    if not isinstance(value, int):
        raise Rejected(f"{value!r} is neither text nor a number")
    return value


def answered(document: Any, shape: Any, where: str = "answer") -> list[Any]:
    """The data of an envelope; Rejected when it says that it is an error, or has members that the SDK does not allow."""
    response = document.get("response") if isinstance(document, Mapping) else None
    if not isinstance(response, Mapping) or set(response) != set(SHAPES["envelope"]["response"]):
        raise Rejected(f"{where}: envelope {sorted(response or ())}")
    if any(set(error) != set(SHAPES["envelope"]["error"]) for error in response["errors"] or ()):
        raise Rejected(f"{where}: members of an error")
    if response["code"] > 0 or response["errors"]:
        raise Rejected(f"{where}: {response['errors']}")
    return [read(each, shape, where) for each in response["data"] or ()]

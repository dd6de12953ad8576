"""What to write instead of a value of the wrong type, for the end of a message. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from campaign.documents.metric import unit_words

_PLAIN = re.compile(r"[-+]?(?:0|[1-9]\d*)(?:\.\d*)?")
_QUANTITY = re.compile(r"([-+]?\d+(?:\.\d*)?)\s*([A-Za-zµ%][\w/%]*)")
_TIMES_S = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("ms",), 1e-3),
    **dict.fromkeys(("us", "µs"), 1e-6),
}
# As Slurm reads K, M, G and T: powers of two.
_SIZES_BYTES = {
    unit: 2.0 ** (10 * power)
    for power, units in enumerate((("b", "bytes"), ("k", "kib"), ("m", "mib"), ("g", "gib"), ("t", "tib")))
    for unit in units
}
_KEYS: Mapping[str, tuple[Mapping[str, float], float]] = {
    "_s": (_TIMES_S, 1.0),
    "_min": (_TIMES_S, 60.0),
    "_ms": (_TIMES_S, 1e-3),
    "_bytes": (_SIZES_BYTES, 1.0),
    "_mib": (_SIZES_BYTES, 2.0**20),
    "_gib": (_SIZES_BYTES, 2.0**30),
}
"""End of a key -> units that can be converted to its own, and what its own is in them."""


def remedy(kind: str, found: object, key: str) -> str:
    """'; what to write instead' for a problem of pydantic's `kind` with the value of `key`; empty where its message tells."""
    if found is None:
        said = "the key has no value; give it one, or remove the key"
    elif kind in ("int_type", "int_parsing", "int_from_float", "float_type", "float_parsing"):
        said = _number(found, key, whole=kind.startswith("int"))
    elif kind == "string_type":
        said = _text(found)
    elif kind == "bool_type":
        said = "write true or false, without quotes"
    elif kind in ("tuple_type", "list_type"):
        said = (
            f"write a list: [{', '.join(str(found).split())}]"
            if isinstance(found, str | int | float)
            else "write a list: [..]"
        )
    elif kind in ("dict_type", "model_type", "model_attributes_type"):
        said = "write keys with values: {key: value}"
    else:
        return ""
    return f"; {said}"


def _text(found: object) -> str:
    if isinstance(found, dict) and list(found.values()) == [None]:
        return f'put braces in quotes: "{{{next(iter(found))}}}"'
    if isinstance(found, list | dict):
        return "write one text"
    return 'put the word in quotes, such as "no"' if isinstance(found, bool) else f'put it in quotes: "{found}"'


def _number(found: object, key: str, *, whole: bool) -> str:
    if isinstance(found, bool) or not isinstance(found, str | float):
        return "write a whole number" if whole else "write a number"
    if isinstance(found, float):
        return f"write {found:.0f}" if found.is_integer() else "write a whole number"
    words = unit_words(f"_{key}")
    with suppress(ValueError):  # 1e3 is a text in YAML 1.1
        value = float(found)
        return (
            "remove the quotes"
            if _PLAIN.fullmatch(found)
            else f"write {value:.12g}"
            if math.isfinite(value)
            else "write a finite number"
        )
    if match := _QUANTITY.fullmatch(found.strip()):
        if converted := _converted(float(match[1]), match[2].lower(), key):
            return f"this key is in {words}: write {converted}"
        return f"this key is in {words}: write the number alone" if words else f"write the number alone: {match[1]}"
    return f"write a number of {words}" if words else "write a number"


def _converted(value: float, unit: str, key: str) -> str:
    """The quantity in the unit of the key; empty where one of the two units is not known."""
    for ending, (units, own) in _KEYS.items():
        if key.endswith(ending) and unit in units:
            return f"{value * units[unit] / own:.12g}"
    return ""


def named_key(message: str, data: Any) -> tuple[str | int, ...]:
    """The place in `data` that a message about it as a whole names first ('key' or 'key.3'); () for none."""
    for name in re.findall(r"['`]([\w.-]+)[:'`]", message):
        place: tuple[str | int, ...] = ()
        inner = data
        for part in name.split("."):
            if isinstance(inner, dict) and part in inner:
                inner, place = inner[part], (*place, part)
            elif isinstance(inner, list) and part.isdigit() and int(part) < len(inner):
                inner, place = inner[int(part)], (*place, int(part))
            else:
                break
        else:
            return place
    return ()

"""In what two campaigns differ beside their numbers: system, protocol, software, hardware of the hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Differ between any two hosts and change no number.
_OF_ITS_OWN = ("host", "hostname", "schema_version", "collected_s")
_LONGEST = 300


@dataclass(frozen=True)
class Difference:
    """Something that is not the same in both; '' where one has nothing of it."""

    what: str
    base: str
    other: str


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    """What differs between the contexts of two campaigns (`campaign.report.context_schema`)."""
    one, two = _flat(base), _flat(other)
    for what in dict.fromkeys([*one, *two]):
        a, b = sorted(one.get(what, {})), sorted(two.get(what, {}))
        if a != b:
            yield Difference(what, _short(a), _short(b))


def _short(values: list[str]) -> str:
    text = " | ".join(values)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _flat(context: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """All values of each key; hosts of one campaign may differ among themselves."""
    found: dict[str, dict[str, None]] = {}

    def put(what: str, value: object) -> None:
        found.setdefault(what, {})[str(value)] = None

    for name, value in context.get("system", {}).items():
        put(f"system: {name}", value)
    for name, value in context.get("campaign", {}).get("protocol", {}).items():
        put(f"protocol: {name.replace('_', ' ')}", value)
    for name in context.get("launchers", {}):
        put("launcher", name)
    for each in context.get("software", ()):
        put(f"software: {each['name']}", each["version"])
    for document in context.get("environments", {}).values():
        for what, value in _leaves(document):
            put(what, value)
    return found


def _leaves(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        what = f"{above}{name.replace('_', ' ')}"
        if name in _OF_ITS_OWN:
            continue
        if isinstance(value, Mapping):
            # Versions of packages stand among the software already.
            yield from () if name == "packages" else _leaves(value, f"{what}: ")
        elif isinstance(value, list):
            for item in value:
                yield what, _without_identity(str(item)) if name == "gpus" else item
        else:
            yield what, value


def _without_identity(gpu: str) -> str:
    """nvidia-smi's line without index and UUID."""
    return ", ".join(gpu.split(", ")[2:]) or gpu

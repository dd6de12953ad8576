"""The emulated control planes of the kinds of fabric, by the kind's row in the registry."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from campaign.errors import ConfigError
from campaign.fabrics.registry import fabric_kinds
from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.server import Dialect


def emulated_kinds() -> tuple[str, ...]:
    """Kinds of fabric that have an emulator."""
    return tuple(name for name, kind in fabric_kinds().items() if kind.emulator)


def emulator(kind: str) -> Any:
    """The module that emulates a kind: `open_dialect(rack, **options)`, and `COMPOSES`, the request that composes (method, path).

    Raises ConfigError for a kind that has none.
    """
    if kind not in emulated_kinds():
        there = "\n".join(f"  {name}: {fabric_kinds()[name].summary}" for name in emulated_kinds())
        raise ConfigError(f"no emulator of kind {kind!r}; there are:\n{there}")
    return import_module(fabric_kinds()[kind].emulator)


def open_dialect(kind: str, rack: Rack, **options: Any) -> Dialect:
    """The emulated control plane of a kind, over a rack of hardware."""
    return cast(Dialect, emulator(kind).open_dialect(rack, **options))

"""Command prefix and environment variables by which a process uses devices that are not attached to its host.

These are remote devices and parts of devices (MIG, MPS). Prefix and variables are templates, in which names in braces are
replaced by values for the devices of one process.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

TEMPLATE_NAMES: Mapping[str, str] = {
    "devices": "number of devices that the process uses",
    "fraction": "part of each device, as a decimal number such as 0.25",
    "percent": "part of each device in percent, such as 25",
    "memory_mib": "`read_memory_mib` of the entry",
    "ids": "ids of its devices, joined by commas and without duplicates",
    "servers": "locations of its devices (its own host, or drawers of the pool), joined by commas",
    "host": "host of the process",
}
"""Names that templates can have in braces, with their meaning."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Access of a process to one device or to a part of it.

    Attributes:
        prefix: words before the command, as templates (`NAMES`).
        environment: environment variables, as templates.
        fraction: exact fraction of the device, such as 1/7.
        memory_mib: device memory of this part, or None.
        device: name of the physical device.
        id: id by which the process uses the device, such as a MIG UUID or an index.
        server: location of the device.
    """

    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    fraction: str = "1"
    memory_mib: int | None = None
    device: str = ""
    id: str = ""
    server: str = ""

    @property
    def shared_settings(self) -> tuple[Any, ...]:
        """Settings that all devices of one process must share."""
        return self.prefix, tuple(sorted(self.environment.items())), self.fraction, self.memory_mib

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Launch:
        """Build a launch from its document (`dataclasses.asdict`). Raises TypeError or KeyError if the document is invalid."""
        return cls(**{**document, "prefix": tuple(document["prefix"])})


@dataclass(frozen=True, slots=True)
class DeviceEnvironment:
    """Command prefix and variables of one process for its devices. Both are empty if the devices are attached to its host."""

    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def build_device_environment(launches: Sequence[Launch | None], host: str) -> DeviceEnvironment:
    """Build the command prefix and the variables for one process with these devices.

    Raises ValueError if the devices need different settings.

    Args:
        launches: launch of each device, or None for an attached device.
        host: host of the process.
    """
    remote_launches = [launch for launch in launches if launch is not None]
    if not remote_launches:
        return DeviceEnvironment()
    first = remote_launches[0]
    if len(remote_launches) != len(launches) or any(
        launch.shared_settings != first.shared_settings for launch in remote_launches
    ):
        raise ValueError(
            "its devices need different command prefixes or variables, but one process can have only one of each"
        )
    values = {
        "devices": str(len(remote_launches)),
        "fraction": format_decimal(first.fraction),
        "percent": format_decimal(str(100 * Fraction(first.fraction))),
        "memory_mib": str(first.memory_mib),
        "ids": ",".join(dict.fromkeys(launch.id for launch in remote_launches)),
        "servers": ",".join(dict.fromkeys(launch.server for launch in remote_launches)),
        "host": host,
    }
    return DeviceEnvironment(
        tuple(_fill_template(word, values) for word in first.prefix),
        {name: _fill_template(text, values) for name, text in first.environment.items()},
    )


def format_decimal(fraction: str) -> str:
    """Format a fraction as a decimal number, rounded down, such as 0.142857 for 1/7.

    It is never rounded up, because seven parts of 1/7 would then exceed the device.
    """
    million = Fraction(fraction) * 1_000_000
    return f"{int(million) / 1_000_000:.6f}".rstrip("0").rstrip(".")


def parse_fraction(value: str | float) -> Fraction:
    """Parse the fraction of a device ('5/20', '1/7' or 0.25) exactly. Raises ValueError if it is not above 0 and at most 1."""
    try:
        part = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        part = Fraction(0)
    if not 0 < part <= 1:
        raise ValueError(
            f"'{value}' is not a valid fraction of a device; it must be above 0 and at most 1, such as 1/7 or 0.25"
        )
    return part


def parse_names(text: str) -> Iterator[str]:
    """Yield the names in the braces of a template. Raises ValueError if the template is invalid or has an unknown name."""
    for _, name in _split_template(text):
        if name is not None:
            if name not in TEMPLATE_NAMES:
                raise ValueError(
                    f"'{{{name}}}' is not a known name; there are: "
                    f"{', '.join(TEMPLATE_NAMES)} (write {{{{ and }}}} for literal braces)"
                )
            yield name


def _fill_template(text: str, values: Mapping[str, str]) -> str:
    return "".join(literal + ("" if name is None else values[name]) for literal, name in _split_template(text))


def _split_template(text: str) -> Iterator[tuple[str, str | None]]:
    # Only plain names are allowed, because format fields could otherwise access attributes.
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"'{text}': {error}; write {{{{ and }}}} for literal braces") from error
    for literal, name, form, conversion in parts:
        if name is not None and (form or conversion):
            raise ValueError(f"'{text}': braces can contain only plain names, without ':' or '!'")
        yield literal, name

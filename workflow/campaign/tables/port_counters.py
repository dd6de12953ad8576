"""What the ports of a fabric carried while a lease was held, from the counters that were read at its start and at its end. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CARRIED: Mapping[str, str] = {"rx_bytes": "received", "tx_bytes": "sent"}


def ends(readings: Sequence[Mapping[str, Any]]) -> Iterator[dict[tuple[str, str], float]]:
    """Values by part and quantity, of the first look and of the last."""
    for look in (readings[0], readings[-1]):
        yield {(each["part"], each["quantity"]): each["value"] for each in look["readings"]}


def carried_gb_per_s(readings: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean rate of each port by quantity (`CARRIED`), from the first look to the last, idle time included.

    A counter that went back was set to zero meanwhile, and says nothing; so does one that did not grow.
    """
    held_s = readings[-1]["time_s"] - readings[0]["time_s"] if len(readings) > 1 else 0.0
    if held_s <= 0:
        return {}
    first, last = ends(readings)
    rates: dict[str, dict[str, float]] = {}
    for (part, quantity), before in first.items():
        grown = last.get((part, quantity), before) - before
        if quantity in CARRIED and grown > 0:
            rates.setdefault(part, {})[quantity] = grown / held_s / 1e9
    return rates


def all_gb_per_s(readings: Sequence[Mapping[str, Any]]) -> float | None:
    """All ports and both directions together; None where no port has counted anything."""
    rates = [rate for each in carried_gb_per_s(readings).values() for rate in each.values()]
    return sum(rates) if rates else None

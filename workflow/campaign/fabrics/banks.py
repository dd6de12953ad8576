"""Rules on which hosts may hold which slots of a pool, including those of the chassis modes. Pure functions.

A bank is a set of slots with a common rule: a drawer, or the half of a drawer that belongs to one connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["standard_one_host", "standard_two_hosts", "advanced"]

SLOTS_PER_DRAWER = 8
SLOTS_PER_CONNECTION = 4
MAX_HOSTS_PER_ADVANCED_DRAWER = 3
UNLIMITED_HOSTS = 1 << 30
"""`Bank.hosts_max` of a bank without a limit."""

MODE_RULES: dict[Mode, str] = {
    "standard_one_host": "standard_one_host: all eight slots of a drawer belong to one host",
    "standard_two_hosts": "standard_two_hosts: four slots of a drawer belong to each of its two connections",
    "advanced": "advanced: at most three hosts can hold devices of a drawer at one time",
}
CABLING_RULE = "cabling: a slot can be attached only to a host whose port reaches its drawer"


@dataclass(frozen=True, slots=True)
class Bank:
    """Slots with a common rule: a drawer, or the half of a drawer that belongs to one connection.

    `hosts` lists the hosts that can hold these slots. `hosts_max` is the number of hosts that may hold devices of the whole
    drawer at the same time.
    """

    name: str
    drawer: str
    mode: Mode
    slots: frozenset[int]
    hosts: tuple[str, ...]
    hosts_max: int


def build_unlimited_banks(
    locations: Iterable[str], hosts: tuple[str, ...] | Callable[[str], tuple[str, ...]]
) -> tuple[Bank, ...]:
    """Build one bank per drawer, without a limit on the number of hosts.

    Args:
        locations: slots of the pool, each as `<drawer>/slot<n>`.
        hosts: hosts that reach all drawers, or a function that returns the hosts of one drawer.
    """
    slots: dict[str, set[int]] = {}
    for location in locations:
        drawer, _, slot = location.rpartition("/slot")
        slots.setdefault(drawer, set()).add(int(slot))
    return tuple(
        Bank(
            name, name, "advanced", frozenset(slot_numbers), hosts(name) if callable(hosts) else hosts, UNLIMITED_HOSTS
        )
        for name, slot_numbers in slots.items()
    )


def build_banks_by_mode(
    locations: Iterable[str],
    hosts: tuple[str, ...] | Callable[[str], tuple[str, ...]],
    modes: Mapping[str, Literal["standard_one_host", "advanced"]],
) -> tuple[Bank, ...]:
    """Build one bank per drawer, with the rule for the drawer's mode in the system file.

    A drawer without a mode has no limit on the number of hosts.

    Args:
        locations: slots of the pool, each as `<drawer>/slot<n>`.
        hosts: hosts that reach all drawers, or a function that returns the hosts of one drawer.
        modes: mode by drawer name; see `find_drawer`.
    """
    banks: list[Bank] = []
    for bank in build_unlimited_banks(locations, hosts):
        mode = next((mode for name, mode in modes.items() if find_drawer(name, [bank.drawer])), None)
        if mode is not None:
            banks.append(replace(bank, mode=mode, hosts_max=MAX_HOSTS_PER_ADVANCED_DRAWER if mode == "advanced" else 1))
        else:
            banks.append(bank)
    return tuple(banks)


def find_drawer(name: str, drawers: Iterable[str]) -> str | None:
    """Return the drawer with this name, or None if there is none.

    The name may leave out the chassis: `drawer2` matches `falcon1/drawer2`.
    """
    return next((drawer for drawer in drawers if name in (drawer, drawer.rpartition("/")[2])), None)


def find_bank(all_banks: Sequence[Bank], location: str) -> Bank | None:
    """Return the bank that contains a slot, or None for a device outside any chassis (such as a built-in device of a host)."""
    drawer, chassis, slot = location.rpartition("/slot")
    return next((bank for bank in all_banks if chassis and bank.drawer == drawer and int(slot) in bank.slots), None)


def find_violation(all_banks: Sequence[Bank], hosts_by_location: Mapping[str, str]) -> str | None:
    """Describe the first rule that attaching slots to hosts would break, or return None if everything is allowed.

    Args:
        all_banks: banks of the pool.
        hosts_by_location: host that each slot would be attached to, by location of the slot.
    """
    hosts_by_drawer: dict[str, dict[str, None]] = {}
    for location, host in hosts_by_location.items():
        bank = find_bank(all_banks, location)
        if bank is None:
            continue
        if host not in bank.hosts:
            rule = CABLING_RULE if bank.mode == "advanced" else MODE_RULES[bank.mode]
            return f"{location} cannot be attached to {host} ({rule})"
        hosts_by_drawer.setdefault(bank.drawer, {})[host] = None
        if len(hosts_by_drawer[bank.drawer]) > bank.hosts_max:
            return f"{bank.drawer} would serve {', '.join(hosts_by_drawer[bank.drawer])} ({MODE_RULES[bank.mode]})"
    return None

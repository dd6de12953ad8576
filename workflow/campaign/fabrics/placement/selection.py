"""Choice of hosts and devices for a configuration: pure, first fit in a fixed order, with a reason if nothing fits.

Preferred in this order: the same spread over drawers on every host, few drawers per host, hosts and slots in order. Movable
devices
that are attached to a host are taken last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from campaign.fabrics.banks import CABLING_RULE, RULES, Bank, bank_of
from campaign.fabrics.errors import Conflict, Incompatible, NoMatch, Unhealthy
from campaign.fabrics.placement.search import Left, Need, Search, Share, enough
from campaign.fabrics.protocol import HostSelection, Request, Selection
from campaign.spec.cell import Configuration
from campaign.spec.hardware import STORAGE_KIND, Device, Host, Inventory

FreeDevices = tuple[list[Device], list[Device]]
"""Free compute devices and free drives of one bank."""


def select(request: Request, inventory: Inventory, banks: Sequence[Bank] = ()) -> Selection:
    """Choose hosts and devices for the request.

    Without `banks` (the rules of the pool), hosts have only their own devices.

    Raises:
        Conflict: the request would fit without other holders.
        Unhealthy: the request would fit if all devices worked.
        Incompatible: a rule of the chassis forbids the request.
        NoMatch: the system is too small.
    """
    if unknown := set(request.allowed_hosts) - {host.name for host in inventory.hosts}:
        known = ", ".join(host.name for host in inventory.hosts)
        raise NoMatch(f"{request.lease_id}: no host {', '.join(sorted(unknown))}; the system has {known}")
    hosts = _place(request, inventory, banks)
    if hosts is None:
        raise _why_not(request, inventory, banks)
    return Selection(request, hosts)


def _place(request: Request, inventory: Inventory, banks: Sequence[Bank]) -> tuple[HostSelection, ...] | None:
    """Choose hosts and their devices for a request, or return None if it does not fit."""
    wanted, need = request.configuration, _need(request.configuration)
    own = _own_parts(request, inventory)
    free = [_free_in(bank, banks, wanted, inventory) for bank in banks]
    if need != Need(0, 0):
        shares = Search(banks, need, wanted.hosts).run(tuple(own), _left(free, inventory, banks))
    else:
        nothing = Share((0,) * len(banks), None)
        shares = [(host, nothing) for host in own][: wanted.hosts] if len(own) >= wanted.hosts else None
    if shares is None:
        return None
    shares.sort(key=lambda each: inventory.hosts.index(each[0]))
    fabric, storage = _pick(shares, free, inventory)
    return tuple(
        replace(own[host], fabric=fabric[host.name], storage=(*own[host].storage, *storage[host.name]))
        for host, _ in shares
    )


def _pick(
    shares: Sequence[tuple[Host, Share]], free: Sequence[FreeDevices], inventory: Inventory
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Pick devices and drives by host, in the order of the inventory. Devices that are attached nowhere come first."""
    place = {device.fabric_id: index for index, device in enumerate(inventory.devices)}
    picked: list[dict[str, list[str]]] = []
    for use in (0, 1):
        wanted = {
            host.name: share.devices if use == 0 else tuple(int(index == share.drive) for index in range(len(free)))
            for host, share in shares
        }
        mine: dict[str, list[str]] = {host: [] for host in wanted}
        for index, bank in enumerate(free):
            left = sorted(bank[use], key=lambda device: device.movable)
            for host, counts in wanted.items():
                mine[host] += [device.fabric_id for device in left[: counts[index]]]
                left = left[counts[index] :]
        picked.append(mine)
    devices, drives = (
        {host: tuple(sorted(ids, key=place.__getitem__)) for host, ids in mine.items()} for mine in picked
    )
    return devices, drives


def _need(wanted: Configuration) -> Need:
    """Return the pooled devices and drives that each host of a configuration needs."""
    return Need(wanted.fabric_devices_per_host, int(wanted.storage == "fabric-nvme"))


def _allowed(request: Request, inventory: Inventory) -> list[Host]:
    """Return the hosts that the request may use and that no lease holds."""
    return [
        host
        for host in inventory.hosts
        if host.holder is None and (not request.allowed_hosts or host.name in request.allowed_hosts)
    ]


def _usable(device: Device) -> bool:
    """Return True if the device is free and not broken."""
    return device.state == "free" and device.health != "critical"


def _own_parts(request: Request, inventory: Inventory) -> dict[Host, HostSelection]:
    """Select the local devices and drives of each host. Hosts that lack any of them are left out."""
    wanted, found = request.configuration, dict[Host, HostSelection]()
    count, drives_needed = wanted.local_devices_per_host, int(wanted.storage == "nvme")
    for host in _allowed(request, inventory):
        own = [d for d in inventory.devices if d.local and d.attached_to == host.name and _usable(d)]
        fitting = [device.fabric_id for device in own if device.computes and device.model == wanted.device]
        drives = [device.fabric_id for device in own if device.kind == STORAGE_KIND]
        if len(fitting) >= count and len(drives) >= drives_needed:
            found[host] = HostSelection(host.name, local=tuple(fitting[:count]), storage=tuple(drives[:drives_needed]))
    return found


def _free_in(bank: Bank, banks: Sequence[Bank], wanted: Configuration, inventory: Inventory) -> FreeDevices:
    """Return the free devices of the requested model in a bank, and its free drives, in slot order."""
    free = [d for d in inventory.devices if not d.local and _usable(d) and bank_of(banks, d.location) is bank]
    return (
        [device for device in free if device.computes and device.model == wanted.device],
        [device for device in free if device.kind == STORAGE_KIND],
    )


def _left(free: Sequence[FreeDevices], inventory: Inventory, banks: Sequence[Bank]) -> Left:
    """Compute the free devices and drives per bank, and the number of hosts per drawer."""
    serving: dict[str, set[str]] = {bank.drawer: set() for bank in banks}
    for device in inventory.devices:
        # Movable devices are detached for this lease, so they do not count.
        bank = None if device.local or device.attached_to is None or device.movable else bank_of(banks, device.location)
        if bank is not None and device.attached_to is not None:
            serving[bank.drawer].add(device.attached_to)
    return Left(
        tuple(len(devices) for devices, _ in free),
        tuple(len(drives) for _, drives in free),
        tuple((drawer, len(hosts)) for drawer, hosts in serving.items()),
    )


def _why_not(
    request: Request, inventory: Inventory, banks: Sequence[Bank]
) -> Conflict | Unhealthy | Incompatible | NoMatch:
    """Build the error that explains why a request does not fit."""
    asked = f"{request.lease_id}: {_asked(request.configuration)}"
    freed = inventory.freed()
    if _place(request, freed, banks) is not None:
        holders = _holders(request, inventory)
        return Conflict(f"{asked} is held by {', '.join(holders)}", holders)
    well = Inventory(freed.hosts, tuple(replace(d, health="ok", state="free") for d in freed.devices))
    if _place(request, well, banks) is not None:
        broken = [d.fabric_id for d in inventory.devices if d.health == "critical"]
        return Unhealthy(f"{asked} would need failed devices: {', '.join(broken)}", broken)
    rule = _forbidding_rule(request, well, banks)
    if rule is not None:
        return Incompatible(f"{asked} breaks a rule of the chassis ({rule})", rule)
    return NoMatch(f"{asked} exceeds the system: {_have(request, well)}")


def _forbidding_rule(request: Request, inventory: Inventory, banks: Sequence[Bank]) -> str | None:
    """Return the first rule without which the request would fit, or None if the system is too small."""
    wanted = request.configuration
    cabled: dict[str, list[str]] = {}
    for bank in banks:
        cabled.setdefault(bank.drawer.split("/")[0], []).extend(bank.hosts)
    for mode in ("advanced", "standard_two_hosts", "standard_one_host"):
        lifted = [
            replace(bank, hosts=tuple(cabled[bank.drawer.split("/")[0]]), hosts_max=len(inventory.hosts))
            if bank.mode == mode != "advanced"
            else replace(bank, hosts_max=len(inventory.hosts))
            if bank.mode == "advanced"
            else bank
            for bank in banks
        ]
        if _place(request, inventory, lifted) is not None:
            return RULES[mode]
    left = _left([_free_in(bank, banks, wanted, inventory) for bank in banks], inventory, banks)
    if len(_own_parts(request, inventory)) >= wanted.hosts and enough(left, _need(wanted), wanted.hosts):
        return CABLING_RULE
    return None


def _holders(request: Request, inventory: Inventory) -> tuple[str, ...]:
    """Return the holders of hosts and devices that the request could use, in the order of the inventory."""
    wanted = request.configuration
    hosts = [host.holder for host in inventory.hosts if not request.allowed_hosts or host.name in request.allowed_hosts]
    devices = [
        device.holder
        for device in inventory.devices
        if (device.computes and device.model == wanted.device)
        or (device.kind == STORAGE_KIND and wanted.storage != "local")
    ]
    return tuple(dict.fromkeys(holder for holder in (*hosts, *devices) if holder is not None))


def _asked(wanted: Configuration) -> str:
    """Describe the hosts, devices and storage of a configuration."""
    parts = []
    if wanted.local_devices_per_host:
        parts.append(f"{wanted.local_devices_per_host} local")
    if wanted.fabric_devices_per_host:
        parts.append(f"{wanted.fabric_devices_per_host} pooled")
    each = " each" if wanted.hosts > 1 else ""
    devices = f" with {' and '.join(parts)} {wanted.device!r}{each}" if parts else ""
    storage = "" if wanted.storage == "local" else f" and {wanted.storage}"
    return f"{wanted.hosts} host{'s' if wanted.hosts > 1 else ''}{devices}{storage}"


def _have(request: Request, inventory: Inventory) -> str:
    """Describe the hosts and devices that the request may use."""
    allowed = [host.name for host in _allowed(request, inventory)]
    local = Counter(device.model for device in inventory.devices if device.local and device.attached_to in allowed)
    pooled = Counter(device.model for device in inventory.devices if not device.local)
    listed = [
        f"{where} " + (", ".join(f"{count} x {model!r}" for model, count in counts.items()) or "nothing")
        for where, counts in (("of their own", local), ("in the pool", pooled))
    ]
    return f"{len(allowed)} hosts ({', '.join(allowed) or 'none'}), {'; '.join(listed)}"

"""Choice of hosts and devices for a configuration: pure, first fit in a fixed order, with a reason if nothing fits.

Preferred in this order: the same spread over drawers on every host, few drawers per host, hosts and slots in order. Movable
devices that are attached to a host are taken last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from campaign.fabrics.banks import CABLING_RULE, MODE_RULES, Bank, find_bank
from campaign.fabrics.errors import Conflict, Incompatible, NoMatch, Unhealthy
from campaign.fabrics.placement.search import HostNeed, HostShare, PlacementSearch, RemainingCapacity, has_capacity
from campaign.fabrics.protocol import HostSelection, LeaseRequest, Selection
from campaign.spec.cell import Configuration
from campaign.spec.hardware import STORAGE_KIND, Device, Host, Inventory

FreeDevices = tuple[list[Device], list[Device]]
"""Free compute devices and free drives of one bank."""


def select_devices(request: LeaseRequest, inventory: Inventory, banks: Sequence[Bank] = ()) -> Selection:
    """Choose hosts and devices for the request.

    Without `banks` (the rules of the pool), hosts have only their own devices.

    Raises:
        Conflict: the request would fit without other holders.
        Unhealthy: the request would fit if all devices worked.
        Incompatible: a rule of the chassis forbids the request.
        NoMatch: the system is too small.
    """
    if unknown_hosts := set(request.allowed_hosts) - {host.name for host in inventory.hosts}:
        known_hosts = ", ".join(host.name for host in inventory.hosts)
        unknown_names = ", ".join(sorted(unknown_hosts))
        raise NoMatch(f"{request.lease_id}: the system has no host {unknown_names}; its hosts are {known_hosts}")
    hosts = _place_hosts(request, inventory, banks)
    if hosts is None:
        raise _build_selection_error(request, inventory, banks)
    return Selection(request, hosts)


def _place_hosts(
    request: LeaseRequest, inventory: Inventory, banks: Sequence[Bank]
) -> tuple[HostSelection, ...] | None:
    """Choose hosts and their devices for a request, or return None if it does not fit."""
    configuration, need = request.configuration, _build_need(request.configuration)
    own_selections = _select_own_devices(request, inventory)
    free = [_list_free_devices(bank, banks, configuration, inventory) for bank in banks]
    if need != HostNeed(0, 0):
        shares = PlacementSearch(banks, need, configuration.hosts).find_shares(
            tuple(own_selections), _compute_remaining_capacity(free, inventory, banks)
        )
    else:
        empty_share = HostShare((0,) * len(banks), None)
        shares = (
            [(host, empty_share) for host in own_selections][: configuration.hosts]
            if len(own_selections) >= configuration.hosts
            else None
        )
    if shares is None:
        return None
    shares.sort(key=lambda placement: inventory.hosts.index(placement[0]))
    fabric, storage = _pick_devices(shares, free, inventory)
    return tuple(
        replace(
            own_selections[host], fabric=fabric[host.name], storage=(*own_selections[host].storage, *storage[host.name])
        )
        for host, _ in shares
    )


def _pick_devices(
    shares: Sequence[tuple[Host, HostShare]], free: Sequence[FreeDevices], inventory: Inventory
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Pick the devices and drives of each host, in the order of the inventory, with unattached devices first."""
    inventory_order = {device.fabric_id: index for index, device in enumerate(inventory.devices)}
    picked_ids: list[dict[str, list[str]]] = []
    for use in (0, 1):
        counts_by_host = {
            host.name: share.devices if use == 0 else tuple(int(index == share.drive) for index in range(len(free)))
            for host, share in shares
        }
        picked_by_host: dict[str, list[str]] = {host: [] for host in counts_by_host}
        for index, bank in enumerate(free):
            remaining_devices = sorted(bank[use], key=lambda device: device.movable)
            for host, counts in counts_by_host.items():
                picked_by_host[host] += [device.fabric_id for device in remaining_devices[: counts[index]]]
                remaining_devices = remaining_devices[counts[index] :]
        picked_ids.append(picked_by_host)
    devices, drives = (
        {host: tuple(sorted(ids, key=inventory_order.__getitem__)) for host, ids in picked_by_host.items()}
        for picked_by_host in picked_ids
    )
    return devices, drives


def _build_need(configuration: Configuration) -> HostNeed:
    """Return the numbers of pooled devices and drives that each host of a configuration needs."""
    return HostNeed(configuration.fabric_devices_per_host, int(configuration.storage == "fabric-nvme"))


def _list_allowed_hosts(request: LeaseRequest, inventory: Inventory) -> list[Host]:
    """Return the hosts that the request may use and that no lease holds."""
    return [
        host
        for host in inventory.hosts
        if host.holder is None and (not request.allowed_hosts or host.name in request.allowed_hosts)
    ]


def _is_usable(device: Device) -> bool:
    """Return True if the device is free and not broken."""
    return device.state == "free" and device.health != "critical"


def _select_own_devices(request: LeaseRequest, inventory: Inventory) -> dict[Host, HostSelection]:
    """Select the local devices and drives of each host. Hosts with too few of them are left out."""
    configuration, selections = request.configuration, dict[Host, HostSelection]()
    count, drives_needed = configuration.local_devices_per_host, int(configuration.storage == "nvme")
    for host in _list_allowed_hosts(request, inventory):
        own_devices = [d for d in inventory.devices if d.local and d.attached_to == host.name and _is_usable(d)]
        fitting_ids = [
            device.fabric_id for device in own_devices if device.can_compute and device.model == configuration.device
        ]
        drives = [device.fabric_id for device in own_devices if device.kind == STORAGE_KIND]
        if len(fitting_ids) >= count and len(drives) >= drives_needed:
            selections[host] = HostSelection(
                host.name, local=tuple(fitting_ids[:count]), storage=tuple(drives[:drives_needed])
            )
    return selections


def _list_free_devices(
    bank: Bank, banks: Sequence[Bank], configuration: Configuration, inventory: Inventory
) -> FreeDevices:
    """Return the free devices of the requested model in a bank, and its free drives, in slot order."""
    free = [d for d in inventory.devices if not d.local and _is_usable(d) and find_bank(banks, d.location) is bank]
    return (
        [device for device in free if device.can_compute and device.model == configuration.device],
        [device for device in free if device.kind == STORAGE_KIND],
    )


def _compute_remaining_capacity(
    free: Sequence[FreeDevices], inventory: Inventory, banks: Sequence[Bank]
) -> RemainingCapacity:
    """Compute the free devices and drives per bank, and the number of hosts per drawer."""
    serving: dict[str, set[str]] = {bank.drawer: set() for bank in banks}
    for device in inventory.devices:
        # Movable devices are detached for this lease, so they do not count.
        bank = (
            None if device.local or device.attached_to is None or device.movable else find_bank(banks, device.location)
        )
        if bank is not None and device.attached_to is not None:
            serving[bank.drawer].add(device.attached_to)
    return RemainingCapacity(
        tuple(len(devices) for devices, _ in free),
        tuple(len(drives) for _, drives in free),
        tuple((drawer, len(hosts)) for drawer, hosts in serving.items()),
    )


def _build_selection_error(
    request: LeaseRequest, inventory: Inventory, banks: Sequence[Bank]
) -> Conflict | Unhealthy | Incompatible | NoMatch:
    """Build the error that explains why a request does not fit."""
    request_text = f"{request.lease_id}: {_describe_configuration(request.configuration)}"
    freed_inventory = inventory.release_all()
    if _place_hosts(request, freed_inventory, banks) is not None:
        holders = _list_holders(request, inventory)
        return Conflict(f"{request_text}: the requested hosts or devices are held by {', '.join(holders)}", holders)
    healthy_inventory = Inventory(
        freed_inventory.hosts, tuple(replace(d, health="ok", state="free") for d in freed_inventory.devices)
    )
    if _place_hosts(request, healthy_inventory, banks) is not None:
        failed_ids = [d.fabric_id for d in inventory.devices if d.health == "critical"]
        return Unhealthy(f"{request_text}: the request needs failed devices: {', '.join(failed_ids)}", failed_ids)
    rule = _find_forbidding_rule(request, healthy_inventory, banks)
    if rule is not None:
        return Incompatible(f"{request_text}: the request breaks a rule of the chassis ({rule})", rule)
    return NoMatch(f"{request_text}: the system has only {_describe_inventory(request, healthy_inventory)}")


def _find_forbidding_rule(request: LeaseRequest, inventory: Inventory, banks: Sequence[Bank]) -> str | None:
    """Return the first rule without which the request would fit, or None if the system is too small."""
    configuration = request.configuration
    hosts_by_chassis: dict[str, list[str]] = {}
    for bank in banks:
        hosts_by_chassis.setdefault(bank.drawer.split("/")[0], []).extend(bank.hosts)
    for mode in ("advanced", "standard_two_hosts", "standard_one_host"):
        relaxed_banks = [
            replace(bank, hosts=tuple(hosts_by_chassis[bank.drawer.split("/")[0]]), hosts_max=len(inventory.hosts))
            if bank.mode == mode != "advanced"
            else replace(bank, hosts_max=len(inventory.hosts))
            if bank.mode == "advanced"
            else bank
            for bank in banks
        ]
        if _place_hosts(request, inventory, relaxed_banks) is not None:
            return MODE_RULES[mode]
    capacity = _compute_remaining_capacity(
        [_list_free_devices(bank, banks, configuration, inventory) for bank in banks], inventory, banks
    )
    if len(_select_own_devices(request, inventory)) >= configuration.hosts and has_capacity(
        capacity, _build_need(configuration), configuration.hosts
    ):
        return CABLING_RULE
    return None


def _list_holders(request: LeaseRequest, inventory: Inventory) -> tuple[str, ...]:
    """Return the holders of hosts and devices that the request could use, in the order of the inventory."""
    configuration = request.configuration
    hosts = [host.holder for host in inventory.hosts if not request.allowed_hosts or host.name in request.allowed_hosts]
    devices = [
        device.holder
        for device in inventory.devices
        if (device.can_compute and device.model == configuration.device)
        or (device.kind == STORAGE_KIND and configuration.storage != "local")
    ]
    return tuple(dict.fromkeys(holder for holder in (*hosts, *devices) if holder is not None))


def _describe_configuration(configuration: Configuration) -> str:
    """Describe the hosts, devices and storage of a configuration."""
    parts = []
    if configuration.local_devices_per_host:
        parts.append(f"{configuration.local_devices_per_host} local")
    if configuration.fabric_devices_per_host:
        parts.append(f"{configuration.fabric_devices_per_host} pooled")
    per_host = " each" if configuration.hosts > 1 else ""
    devices = f" with {' and '.join(parts)} {configuration.device!r}{per_host}" if parts else ""
    storage = "" if configuration.storage == "local" else f" and {configuration.storage}"
    return f"{configuration.hosts} host{'s' if configuration.hosts > 1 else ''}{devices}{storage}"


def _describe_inventory(request: LeaseRequest, inventory: Inventory) -> str:
    """Describe the hosts and devices that the request may use."""
    allowed_hosts = [host.name for host in _list_allowed_hosts(request, inventory)]
    local_counts = Counter(
        device.model for device in inventory.devices if device.local and device.attached_to in allowed_hosts
    )
    pooled_counts = Counter(device.model for device in inventory.devices if not device.local)
    descriptions = [
        (", ".join(f"{count} x {model!r}" for model, count in counts.items()) or "no device") + f" {location_text}"
        for location_text, counts in (("in these hosts", local_counts), ("in the pool", pooled_counts))
    ]
    return f"{len(allowed_hosts)} hosts ({', '.join(allowed_hosts) or 'none'}), {' and '.join(descriptions)}"

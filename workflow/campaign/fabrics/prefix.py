"""Fabric of remote devices and parts of devices that are used without attaching them.

A run uses such a device through a command prefix and environment variables. A lease holds whole hosts and whole devices. Devices
in the pool are remote: their drawer is the server that contains them. If that server is a host of the system, the host lends its
devices. They are not remote devices of that host itself. A lease that holds one of them also holds the host, because runs on a
shared host disturb each other. For the same reason, a lease on a part of a device keeps other leases off the whole device.
Slurm is not informed: keep other jobs off lending hosts with a partition or reservation.

Unverified: the clients of all products, MIG and MPS. MIG and MPS follow public documentation (MIG UUIDs in CUDA_VISIBLE_DEVICES,
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE). MIG partitions both memory and compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from campaign.common.errors import ConfigError, FabricError
from campaign.fabrics.errors import Conflict, Incompatible, Unhealthy
from campaign.fabrics.protocol import Capabilities, LeaseRequest, Selection
from campaign.fabrics.registry import Example, FabricKind
from campaign.fabrics.simple_fabric import SimpleFabric
from campaign.fabrics.state_file import FabricState
from campaign.spec.cell import Configuration
from campaign.spec.hardware import DEFAULT_DRAWER, Device, Host, Inventory
from campaign.spec.launch_prefix import Launch, parse_fraction, parse_names
from campaign.spec.site_hardware import DeviceSpec, HostSpec, PoolSpec


def _check_fraction(value: str | float) -> str | float:
    """Check that a fraction is an exact number, and return it unchanged."""
    parse_fraction(value)
    return value


class LaunchRule(BaseModel):
    """Command prefix and environment (templates) that a process needs to use devices of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = Field(description="model of the devices, as in `hosts` and `pool`")
    where: Literal["local", "pool"] | None = Field(
        default=None,
        description="`local`: only built-in devices of hosts; `pool`: only devices of the pool; default: both",
    )
    prefix: tuple[Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")], ...] = Field(
        default=(),
        description="words before the command of every rank (or of a program that is started once), such as "
        '`[client, run, -n, "{devices}", -p, "{fraction}", --]`. Placeholders: `{devices}` (number of devices that the process '
        "uses), `{fraction}`, `{percent}`, `{memory_mib}`, `{ids}`, `{servers}`, `{host}`",
    )
    environment: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")],
    ] = Field(
        default={},
        description='environment variables of every rank, with the same placeholders, such as `CUDA_VISIBLE_DEVICES: "{ids}"`. '
        "They override those of the workload",
    )
    fraction: Annotated[str | float, AfterValidator(_check_fraction)] = Field(
        default="1", description="fraction of a physical device that one of these devices is: `1/7`, `5/20`, `0.25`"
    )
    shares: int | None = Field(
        default=None,
        ge=1,
        description="number of parts per physical device (as counted by `count`); default: as many as fit. A higher number makes "
        "parts share time on the device; a lower number spreads the parts of a run over more devices",
    )
    memory_mib: int | None = Field(default=None, ge=1, description="memory of one part in MiB, for `{memory_mib}`")
    of: str | None = Field(
        default=None,
        description="model of the physical devices of which these devices are aliases or parts, at the same location and in "
        "order. Only one of the two is used at one time",
    )
    ids: dict[str, tuple[str, ...]] = Field(
        default={},
        description="ids that processes use for the devices, such as `MIG-<uuid>`, by host or drawer of the pool (`pool` if the "
        "pool has no drawers): one id per part, or one per device. Default: numbers from 0. Use UUIDs if Slurm renumbers the "
        "devices of a job. The ids are not part of the identity of a cell",
    )

    @property
    def device_fraction(self) -> Fraction:
        """Fraction of a device that each part represents."""
        return parse_fraction(self.fraction)

    @property
    def parts_per_device(self) -> int:
        """Number of parts per device."""
        return self.shares or int(1 / self.device_fraction)

    def applies_to(self, *, local: bool) -> bool:
        """Return True if the rule applies to built-in devices (`local`) or to devices of the pool."""
        return self.where in (None, "local" if local else "pool")

    @field_validator("prefix", "environment")
    @classmethod
    def _check_templates(cls, value: tuple[str, ...] | dict[str, str]) -> tuple[str, ...] | dict[str, str]:
        """Check that prefix and environment use only known names in braces."""
        for text in value.values() if isinstance(value, dict) else value:
            list(parse_names(text))
        return value

    @model_validator(mode="after")
    def _require_template(self) -> LaunchRule:
        """Check that the rule has a prefix or an environment, and a memory size if a template uses it."""
        texts = (*self.prefix, *self.environment.values())
        if not texts:
            raise ValueError(f"{self.device}: set `prefix` or `environment`; without one, a run cannot use the device")
        if self.memory_mib is None and any("memory_mib" in parse_names(text) for text in texts):
            raise ValueError(f"{self.device}: a template uses '{{memory_mib}}'; set memory_mib")
        return self


class LaunchPrefixOptions(BaseModel):
    """Launch rules of devices that are used without attaching them.

    Devices of hosts without a rule are used directly.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    launch: tuple[LaunchRule, ...] = Field(
        min_length=1, description="one launch rule per model of remote or partial devices"
    )

    def find_rule(self, model: str, *, local: bool) -> LaunchRule | None:
        """Return the launch rule of a device model, or None if it has none."""
        return next((rule for rule in self.launch if rule.device == model and rule.applies_to(local=local)), None)

    @model_validator(mode="after")
    def _reject_duplicate_rules(self) -> LaunchPrefixOptions:
        """Check that each device model has only one rule for hosts and one for the pool."""
        for local, location_text in ((True, "built-in devices"), (False, "devices of the pool")):
            counts = Counter(rule.device for rule in self.launch if rule.applies_to(local=local))
            if duplicates := [model for model, count in counts.items() if count > 1]:
                raise ValueError(
                    f"{duplicates[0]}: there are two entries for {location_text} of this model; remove one, or set `where`"
                )
        return self


def build_devices(
    location: str, counts: Mapping[tuple[str, str], int], options: LaunchPrefixOptions, *, local: bool
) -> list[Device]:
    """Build all devices of a host or a drawer: first the physical devices, then their aliases and parts.

    Raises ConfigError if a device of the pool has no launch rule, or if there are more aliases than physical devices.

    Args:
        location: name of the host or drawer.
        counts: number of devices by (kind, model).
        options: launch rules.
        local: True for built-in devices of a host.
    """
    devices: list[Device] = []
    numbers: Counter[str] = Counter()
    physical_numbers: dict[str, list[int]] = {}
    for is_physical in (True, False):
        for (kind, model), count in counts.items():
            rule = options.find_rule(model, local=local)
            if rule is None and not local:
                raise ConfigError(
                    f"pool: {location}: '{model}' cannot be attached; add an entry for it to `launch`, or remove it"
                )
            if (rule is None or rule.of is None) != is_physical:
                continue
            if is_physical:
                physical_numbers[model] = list(range(numbers[kind], numbers[kind] + count))
                numbers[kind] += count
            elif rule is not None and count > len(physical_numbers.get(rule.of or "", ())):
                available_count = len(physical_numbers.get(rule.of or "", ()))
                raise ConfigError(
                    f"launch: {model}: {location} has {count} of them, but only {available_count} '{rule.of}' (`of`)"
                )
            used_numbers = physical_numbers[(rule and rule.of) or model][:count]
            devices += _build_model_devices(location, kind, model, used_numbers, rule, local=local)
    return devices


def _build_model_devices(
    host_or_drawer: str, kind: str, model: str, numbers: Sequence[int], rule: LaunchRule | None, *, local: bool
) -> list[Device]:
    """Build the devices of one model, or the parts of each device if the rule defines parts.

    Args:
        host_or_drawer: name of the host or drawer.
        kind: kind of the devices.
        model: model of the devices.
        numbers: numbers of the physical devices, counted per kind.
        rule: launch rule of the model, or None.
        local: True for built-in devices of a host.
    """

    def build_device(name: str, number: int, launch: Launch | None) -> Device:
        """Build one device or part with its location."""
        location = host_or_drawer if local else f"{host_or_drawer}/slot{number + 1}"
        host = host_or_drawer if local else None
        return Device(name, kind, model, None, location, local, attached_to=host, launch=launch)

    if rule is None:
        return [build_device(f"{host_or_drawer}/{kind}{number}", number, None) for number in numbers]
    ids = rule.ids.get(host_or_drawer, tuple(map(str, numbers)))
    if len(ids) not in (len(numbers), len(numbers) * rule.parts_per_device):
        part_hint = "" if rule.parts_per_device == 1 else f", or {len(numbers) * rule.parts_per_device} for their parts"
        raise ConfigError(
            f"launch: {model}: ids: {host_or_drawer}: there are {len(ids)} ids; use {len(numbers)} for the devices{part_hint}"
        )
    # A built-in device of a host and the same device lent to another host are claimed under different names.
    name_prefix = host_or_drawer if local or host_or_drawer == DEFAULT_DRAWER else f"{DEFAULT_DRAWER}/{host_or_drawer}"
    devices = []
    for index, number in enumerate(numbers):
        for part in range(rule.parts_per_device):
            name = f"{name_prefix}/{kind}{number}/{model}" + (f".{part}" if rule.parts_per_device > 1 else "")
            process_device_id = ids[index if len(ids) == len(numbers) else index * rule.parts_per_device + part]
            physical_name = f"{host_or_drawer}/{kind}{number}"
            launch = Launch(
                rule.prefix,
                rule.environment,
                str(rule.device_fraction),
                rule.memory_mib,
                physical_name,
                process_device_id,
                host_or_drawer,
            )
            devices.append(build_device(name, number, launch))
    return devices


LENDING_RULE = "prefix: a host that a lease uses cannot lend its devices"
_MAX_HOST_COMBINATIONS = 500


class PrefixFabric(SimpleFabric):
    """Fabric of devices that are used through a command prefix.

    Devices cannot be queried remotely: an unusable device is noticed only when a run is started.
    """

    kind = "prefix"
    atomic = True
    verified = False
    note = (
        "nothing is attached: runs are started with a prefix and an environment. MIG and MPS follow public documentation. "
        "Unusable devices are detected only when a run starts"
    )

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities of the fabric, with the largest number of devices that one host can use."""
        device_counts = Counter(
            (host, device.model)
            for device in (*self.built_in_devices, *self.pool.values())
            for host in self.hosts
            if device.can_compute and (device.attached_to == host if device.local else _get_server_name(device) != host)
        )
        return replace(super().describe_capabilities(), max_devices_per_host=max(device_counts.values(), default=0))

    def select_devices(self, request: LeaseRequest, inventory: Inventory) -> Selection:
        """Choose hosts and devices for a request, without using devices that the chosen hosts lend.

        Raises Incompatible if the configuration fits only with devices that its own hosts lend.
        """
        host_names = [host.name for host in inventory.hosts]
        hosts_lend = any(bank.drawer in self.hosts for bank in self.banks)
        hosts = [name for name in host_names if not request.allowed_hosts or name in request.allowed_hosts]
        configuration = request.configuration
        if not hosts_lend or not configuration.fabric_devices_per_host or set(request.allowed_hosts) - set(host_names):
            return super().select_devices(request, inventory)
        errors: list[FabricError] = []
        for candidate_hosts in islice(combinations(hosts, configuration.hosts), _MAX_HOST_COMBINATIONS):
            remaining_inventory = replace(
                inventory,
                devices=tuple(d for d in inventory.devices if d.local or _get_server_name(d) not in candidate_hosts),
            )
            try:
                selection = super().select_devices(replace(request, allowed_hosts=candidate_hosts), remaining_inventory)
            except FabricError as error:
                errors.append(error)
            else:
                return replace(selection, request=request)
        for selection_error in sorted(errors, key=lambda selection_error: isinstance(selection_error, Unhealthy)):
            if isinstance(selection_error, Conflict | Unhealthy):
                raise selection_error
        super().select_devices(request, inventory.release_all())  # It raises an error if the rule is not the reason.
        raise Incompatible(
            f"{request.lease_id}: configuration {configuration.name!r} needs {configuration.fabric_devices_per_host} remote "
            f"{configuration.device!r} for each of {configuration.hosts} hosts, but the other hosts have fewer ({LENDING_RULE})",
            LENDING_RULE,
        )

    def check_selection(self, state: FabricState, selection: Selection) -> None:
        """Check that the selected hosts and devices are still free.

        Raises Conflict if a selected host now lends devices to another lease, or if another part of a selected device is held.
        """
        lease_id, inventory = selection.request.lease_id, self.build_inventory(state)
        holders = {
            system_host.name: system_host.holder for system_host in sorted(inventory.hosts, key=lambda host: host.name)
        }
        holders |= {device.fabric_id: device.holder for device in inventory.devices}
        selected_names = {*(host.host for host in selection.hosts), *selection.fabric_ids}
        conflicts = {
            name: holder_id
            for name, holder_id in holders.items()
            if name in selected_names and holder_id not in (None, lease_id)
        }
        if conflicts:
            held_items = ", ".join(f"{name} is held by {holder}" for name, holder in conflicts.items())
            raise Conflict(
                f"{lease_id}: selected hosts or devices are no longer free: {held_items}",
                dict.fromkeys(str(lease) for lease in conflicts.values()),
            )

    def build_inventory(self, state: FabricState) -> Inventory:
        """Build the inventory from the claims in the state.

        The host that lends a held device, and the other parts of that device, count as held by the same lease.
        """
        devices = {device.fabric_id: device for device in (*self.built_in_devices, *self.pool.values())}
        leases_by_host = {host.name: lease for lease, lease_claim in state.leases.items() for host in lease_claim.hosts}
        leases_by_lender: dict[str, str] = {}
        leases_by_physical: dict[str, str] = {}
        for name, slot in state.devices.items():
            device = devices.get(name)
            if device is not None and slot.lease is not None:
                leases_by_physical[device.physical_id] = slot.lease
                if not device.local:
                    leases_by_lender[_get_server_name(device)] = slot.lease
        hosts = tuple(
            Host(
                spec.name,
                spec.cores,
                spec.memory_gib,
                holder=leases_by_host.get(spec.name) or leases_by_lender.get(spec.name),
            )
            for spec in self.hosts.values()
        )
        servers = {**leases_by_lender, **leases_by_host}
        return Inventory(
            hosts, tuple(self._apply_leases(d, state, leases_by_physical, servers) for d in devices.values())
        )

    def _apply_leases(
        self,
        device: Device,
        state: FabricState,
        leases_by_physical: Mapping[str, str],
        leases_by_server: Mapping[str, str],
    ) -> Device:
        """Return a device with the lease that holds it, another part of it, or its lending host."""
        slot = state.devices.get(device.fabric_id)
        if slot is not None and slot.lease is not None:
            return replace(device, holder=slot.lease, attached_to=slot.host, state="in_use")
        holder = leases_by_physical.get(device.physical_id)
        if holder is None and not device.local and _get_server_name(device) in self.hosts:
            holder = leases_by_server.get(_get_server_name(device))
        return device if holder is None else replace(device, holder=holder, state="reserved")


def _get_server_name(device: Device) -> str:
    """Return the name of the server that contains a remote device."""
    return device.location.rpartition("/slot")[0]


def open_fabric(
    options: LaunchPrefixOptions, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
) -> PrefixFabric:
    """Open a fabric of devices that are used through a command prefix.

    Raises ConfigError if launch rules, hosts and pool do not match.
    """
    local_counts = {host.name: Counter[tuple[str, str]]() for host in hosts}
    for host in hosts:
        for spec in host.devices:
            local_counts[host.name][spec.kind, spec.model] += spec.count
    drawer_counts: dict[str, Counter[tuple[str, str]]] = {}
    for entry in pool:
        drawer_counts.setdefault(entry.drawer or DEFAULT_DRAWER, Counter())[entry.kind, entry.model] += entry.count
    for rule in options.launch:
        places = {
            **(local_counts if rule.applies_to(local=True) else {}),
            **(drawer_counts if rule.applies_to(local=False) else {}),
        }
        locations = [name for name, counts in places.items() if any(model == rule.device for _, model in counts)]
        if not locations:
            location_text = {"local": "no host has", "pool": "the pool does not have"}.get(
                rule.where or "", "neither a host nor the pool has"
            )
            raise ConfigError(f"launch: {location_text} '{rule.device}'; correct the name, or list the devices")
        if unknown_locations := sorted(set(rule.ids) - set(locations)):
            raise ConfigError(
                f"launch: {rule.device}: ids: {unknown_locations[0]} has no such device; use one of: {', '.join(locations)}"
            )
    local = tuple(
        device for name, counts in local_counts.items() for device in build_devices(name, counts, options, local=True)
    )
    remote = tuple(
        device for name, counts in drawer_counts.items() for device in build_devices(name, counts, options, local=False)
    )
    return PrefixFabric(hosts, remote, state_dir, built_in=local)


FABRIC = FabricKind(
    "remote and partial devices that are used through a launch prefix and environment, without attaching them",
    LaunchPrefixOptions,
    open_fabric,
    unverified="not run with any product that lends devices. MIG and MPS follow NVIDIA's documentation",
    tested="the contract suite and stand-in programs",
    example=Example(
        {"launch": [{"device": "a100", "fraction": "1/2", "prefix": ["remote", "{devices}", "--"]}]},
        hosts=tuple(
            HostSpec(name=name, cores=8, memory_gib=32.0, devices=(DeviceSpec(kind="nvme", model="ssd", count=1),))
            for name in ("host1", "host2")
        ),
        pool=(PoolSpec(kind="gpu", model="a100", count=1, drawer="server1"),),
        configuration=Configuration("c", 1, 2, 0, 2, "a100", "fabric", "nvme"),
    ),
)
